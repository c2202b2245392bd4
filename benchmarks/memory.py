"""Peak resident memory: of a run over more and more sentences, and of BERT-base's shape at its full length.

python benchmarks/memory.py corpus [--sentences 2000 20000 100000] [--words 8]     each in a process of its own
python benchmarks/memory.py base [--sentences 16]     12 layers x 12 heads x 768, random weights, sentences of 512 tokens; every metric, relations

The corpus is the short sentences of the bundled treebank again and again, each time as documents of their own, read as a stream.
"""

import argparse
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, islice

import torch

import attnprobe
from attnprobe.data import path
from attnprobe.records import Sentence


@dataclass(frozen=True)
class Repeated:
    """The treebank's sentences of at most so many words, over and over."""

    sentences: tuple[Sentence, ...]
    n: int

    def __iter__(self) -> Iterator[Sentence]:
        return islice(self._all(), self.n)

    def _all(self) -> Iterator[Sentence]:
        for turn in count():
            for sentence in self.sentences:
                yield replace(sentence, id=f"{sentence.id}-{turn}", document=f"{sentence.document}-{turn}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("corpus", "base", "one"))
    parser.add_argument("--sentences", type=int, nargs="*")
    parser.add_argument("--words", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what == "corpus":
        for n in options.sentences or (2_000, 20_000, 100_000):
            _alone("one", "--sentences", str(n), "--words", str(options.words))
    elif options.what == "one":
        [n] = options.sentences
        short = tuple(s for s in attnprobe.read_conllu(path("bundled")) if len(s) <= options.words)
        _measure(f"{n} sentences", attnprobe.load("minilm", attn="sdpa"), Repeated(short, n))
    else:
        [n] = options.sentences or [16]
        words = [word for s in attnprobe.read_conllu(path("bundled")) for word in s.words]
        model = _base()
        _measure(f"BERT-base, {n} sentences of 512 tokens", model, list(_long(model, words, n)))


def _alone(*arguments: str) -> None:
    subprocess.run([sys.executable, __file__, *arguments], check=True)


def _measure(what: str, model: attnprobe.Model, sentences: object) -> None:
    before, start = _peak(), time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # repeated sentences are the point here
        study = attnprobe.run(model, sentences)
    tokens = int(study.tree.attrs["tokens"])
    spent = time.process_time() - start
    print(
        f"{what}, {tokens} tokens: peak {_peak():.0f} MB, {before:.0f} MB with the model loaded; {spent:.0f} s CPU",
        flush=True,
    )


def _peak() -> float:
    """Most memory that was resident at once, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _base() -> attnprobe.Model:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    module = BertModel(BertConfig(attn_implementation="sdpa")).eval()
    return attnprobe.load((module, attnprobe.load("minilm").tokenizer))


def _long(model: attnprobe.Model, words: list[str], n: int) -> Iterator[Sentence]:
    """Sentences that fill the model, each word's head the word before."""
    source = iter(words * n)
    for number in range(n):
        chosen: list[str] = []
        used = 2
        for word in source:
            used += len(model.tokenizer(word, add_special_tokens=False)["input_ids"])
            if used > 512:
                break
            chosen.append(word)
        relations = ("root", *["dep"] * (len(chosen) - 1))
        yield Sentence(f"long-{number}", tuple(chosen), heads=tuple(range(len(chosen))), deprels=relations)


if __name__ == "__main__":
    main()
