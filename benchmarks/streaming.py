"""What measuring costs over the bare sdpa forward pass of the same batches, and against the usual way of measuring.

python benchmarks/streaming.py corpus [CORPUS] [--sentences N] [--every K]     the corpus's own batches, sorted by length
python benchmarks/streaming.py long                                one batch of 8 sequences of 512 tokens
python benchmarks/streaming.py usual [CORPUS] [--sentences N] [--every K]      `output_attentions=True`, padded to 128, statistics by NumPy: how many times the pass

"The metrics pass" is entropy, mean distance, the mass at each of 20 offsets and the mass on each of 5 kinds of special token, as sums for every
head, sentence and half of the corpus; tokenizing is left out of every time.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from timing import ratio

import attnprobe
from attnprobe.data import path
from attnprobe.heads.metrics import OFFSETS, default_metrics
from attnprobe.heads.prepared import prepare
from attnprobe.heads.running import inputs_for, padded
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import from_model_inputs
from attnprobe.planning import DEFAULT_RELATIONS, Job, Options, shards_of
from attnprobe.records import Sentence
from attnprobe.sharding import measure_shard
from attnprobe.text.batching import PlanOptions
from attnprobe.text.corpus import read_corpus
from attnprobe.text.drops import Drops

PASS = ("entropy", "distance", "offset_mass", "special_mass")
USUAL_LENGTH, USUAL_BATCH = 128, 16
Thing = Callable[[], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("corpus", "long", "usual"))
    parser.add_argument("corpus", nargs="?", default=str(path("bundled")))
    parser.add_argument("--sentences", type=int, default=None)
    parser.add_argument(
        "--every", type=int, default=1, help="take every so many sentences: a sample of the whole corpus"
    )
    parser.add_argument("--row", help="only rows whose name holds this")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = attnprobe.load("minilm", attn="sdpa")
    sentences = (
        list(long_sentences(8))
        if options.what == "long"
        else list(read_corpus(options.corpus))[:: options.every][: options.sentences]
    )
    if options.what == "usual":  # the same sentences for both
        sentences = [s for s in sentences if len(model.tokenizer(" ".join(s.words))["input_ids"]) <= USUAL_LENGTH]
    plan = PlanOptions(batch_tokens=8 * 512) if options.what == "long" else PlanOptions()
    shards = list(shards_of(model, sentences, Options((), (), plan=plan), Drops()))
    inputs = list(batches_of(model, shards))
    tokens = sum(batch["input_ids"].numel() for batch in inputs)
    print(
        f"{sum(len(m) for _, m in shards)} sentences, {len(inputs)} batches, {tokens} tokens, {options.threads} thread(s)"
    )
    chosen = partial(measured, model, shards)
    if options.what == "usual":
        found = ratio(_usual(sentences), partial(chosen, Options(PASS, ())), rounds=options.rounds)
        print(f"{'output_attentions over the metrics pass':40} {found}")
        return
    norms = Options(default_metrics(), DEFAULT_RELATIONS, ("weights", "norms"))
    things = [
        ("capture of q, k, v, context", partial(_captured, model, inputs)),
        ("metrics pass", partial(chosen, Options(PASS, ()))),
        ("all metrics", partial(chosen, Options(default_metrics(), ()))),
        ("all metrics and dep, udep relations", partial(chosen, Options(default_metrics(), DEFAULT_RELATIONS))),
        ("these, and the relations by norms too", partial(chosen, norms)),
    ]
    for name, thing in things:
        if options.row and options.row not in name:
            continue
        print(f"{name:40} {ratio(thing, partial(bare, model, inputs), rounds=options.rounds)}", flush=True)


def batches_of(model: attnprobe.Model, shards: list[Job]) -> Iterator[dict[str, torch.Tensor]]:
    for shard, members in shards:
        for batch in shard.batches:
            collated = padded(model, [members[place] for place in batch])
            yield inputs_for(model, prepare(collated, batch, None, model.device))


def bare(model: attnprobe.Model, inputs: list[dict[str, torch.Tensor]]) -> None:
    with torch.no_grad():
        for batch in inputs:
            model.backbone(**batch)


def _captured(model: attnprobe.Model, inputs: list[dict[str, torch.Tensor]]) -> None:
    for batch in inputs:
        run_forward(model, from_model_inputs(model, batch, describe=False), lambda call: None)


def measured(model: attnprobe.Model, shards: list[Job], chosen: Options) -> None:
    for shard, members in shards:
        measure_shard(model, shard, members, chosen)


def long_sentences(n: int, tokens: int = 512) -> Iterator[Sentence]:
    """Sentences of one-piece words, two fewer than the tokens; each word's head is the word before."""
    words = ("time", "people", "water", "house", "light", "music", "story") * 80
    for number in range(n):
        own = words[number % 7 :][: tokens - 2]
        yield Sentence(f"long-{number}", own, heads=tuple(range(len(own))), deprels=("root", *["dep"] * (len(own) - 1)))


def _usual(sentences: list[Sentence]) -> Thing:
    """What many scripts do: every pattern of every layer, padded to a fixed length, then NumPy; sentence by sentence in the corpus's order."""
    model = attnprobe.load("minilm", attn="eager")
    texts = [" ".join(sentence.words) for sentence in sentences]
    starts = range(0, len(texts), USUAL_BATCH)
    options = {"padding": "max_length", "max_length": USUAL_LENGTH, "truncation": True, "return_tensors": "pt"}
    batches = [model.tokenizer(texts[start : start + USUAL_BATCH], **options) for start in starts]

    def run() -> None:
        for batch in batches:
            with torch.no_grad():
                layers = model.backbone(**batch, output_attentions=True).attentions
            _numpy(np.stack([layer.numpy() for layer in layers], 1), batch["attention_mask"].sum(1).tolist())

    return run


def _numpy(patterns: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    """The four metrics of the pass, for every head and sentence."""
    found = []
    for attention, n in zip(patterns, lengths, strict=True):
        rows = attention[:, :, 1 : n - 1, :n]
        steps = np.arange(n) - np.arange(1, n - 1)[:, None]
        found.append(-(rows * np.log(rows + 1e-12)).sum(-1).sum(-1))
        found.append((rows * np.abs(steps)).sum(-1).sum(-1))
        found.append(np.stack([rows[..., steps == offset].sum(-1) for offset in OFFSETS], -1))
        found.append(np.stack([rows[..., 0].sum(-1), rows[..., -1].sum(-1), rows[..., steps == 0].sum(-1)], -1))
    return found


if __name__ == "__main__":
    main()
