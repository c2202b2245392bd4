"""Types of heads (positional, syntactic, rare words) by the criteria of Voita et al. 2019, beside what they found in a translation model.

python scripts/reproduce_voita2019.py minilm --corpus en_ewt-ud-dev.conllu
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator

import numpy as np

import attnprobe
from attnprobe.data import path
from attnprobe.errors import AttnprobeError
from attnprobe.records import Relation, Sentence

PUBLISHED = {  # relation below: (what it is in the paper, best head and best offset of its table 1, in per cent)
    "voita:nsubj-from-head": ("verb to subject", "WMT 45 (35), OpenSubtitles 77 (45)"),
    "voita:nsubj": ("subject to verb", "WMT 52 (35), OpenSubtitles 70 (45)"),
    "voita:obj-from-head": ("verb to object", "WMT 78 (41), OpenSubtitles 61 (46)"),
    "voita:obj": ("object to verb", "WMT 73 (41), OpenSubtitles 84 (46)"),
    "voita:amod-from-head": ("noun to adjective", "WMT 74 (72), OpenSubtitles 81 (80)"),
    "voita:amod": ("adjective to noun", "WMT 82 (72), OpenSubtitles 81 (80)"),
    "voita:advmod-from-head": ("verb to adverb", "WMT 48 (46), OpenSubtitles 38 (33)"),
    "voita:advmod": ("adverb to verb", "WMT 52 (46), OpenSubtitles 42 (33)"),
    "rare:rarest": ("rarest word", "WMT over 50, OpenSubtitles 66"),
    "rare:two-rarest": ("two rarest words", "OpenSubtitles 83"),
}
DIFFERS = """What differs from the paper:
  model     this model, not the encoder of a Transformer trained to translate English to Russian.
  labels    Universal Dependencies of this treebank, not Stanford's; any word may govern, not verbs and nouns alone.
  choice    heads and offsets are chosen on one half of the documents and scored on the other.
  rare      frequency ranks are counted in this corpus, unless its MISC column carries them, not in the training data."""


@attnprobe.relation(kind="syntax", source="Voita et al. 2019, table 1", labels=("nsubj", "obj", "amod", "advmod"))
def voita(sentence: Sentence) -> Iterator[Relation]:
    """Both ways as the paper counts them: a dependent looks at its head, and (`-from-head`) a head at its dependents."""
    for label in ("nsubj", "obj", "amod", "advmod"):
        words = np.flatnonzero(np.array(sentence.deprels) == label)
        heads = np.array(sentence.heads, dtype=np.int64)[words] - 1
        if len(words):
            yield Relation(f"voita:{label}", words, heads)
            yield Relation(f"voita:{label}-from-head", heads, words)


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="minilm", help="short name, folder or hub id")
    parser.add_argument("--corpus", help="CoNLL-U file (default: the bundled treebank)")
    parser.add_argument("--max-sentences", type=int, help="stop after so many sentences")
    options = parser.parse_args(given)
    try:
        sentences = attnprobe.read_conllu(options.corpus or path("bundled"))
        chosen = {"metrics": ["offset_argmax"], "relations": ["voita", "rare"], "examples": 0}
        study = attnprobe.run(options.model, sentences, max_sentences=options.max_sentences, **chosen)
    except AttnprobeError as error:
        print(f"reproduce_voita2019: {error}", file=sys.stderr)
        return error.exit_code
    share = study["metrics"][["offset_argmax", "offset_argmax_low", "offset_argmax_high"]].to_dataframe()
    print("positional heads, whose most attended token is at one offset in at least 90 % of the rows (95 % interval):")
    for (layer, head, offset), found in share[share["offset_argmax"] >= 0.9].iterrows():
        value, low, high = (100 * found[f"offset_argmax{end}"] for end in ("", "_low", "_high"))
        print(f"  L{layer}H{head} offset {offset:+d}: {value:.1f} % [{low:.1f}, {high:.1f}]")
    print(
        f"best head (best offset) in %, as published | {study.attributes['model']}: 95 % interval, best offset, gain; "
        "*: 10 points over the offset, the paper's criterion"
    )
    table = study["relations"].sel(scorer="weights", direction="dep->head")
    for relation, (name, published) in PUBLISHED.items():
        one = table.sel(relation=relation) if relation in table["relation"] else None
        if one is None or (one["n"] == 0).any():
            print(f"  {name:18} {published:40} | no case in one half of this corpus")
            continue
        layer, head = one["accuracy"].sel(split="select").to_series().idxmax()
        one = one.sel(split="report", layer=layer, head=head)
        names = ("accuracy", "low", "high", "baseline", "difference", "difference_low", "difference_high")
        accuracy, low, high, baseline, gain, least, most = (100 * float(one[name]) for name in names)
        measured = f"{accuracy:.1f} [{low:.1f} {high:.1f}] ({baseline:.1f}) {gain:+.1f} [{least:+.1f} {most:+.1f}]"
        print(
            f"  {name:18} {published:40} | L{layer}H{head} {measured} {'*' if gain >= 10 else ' '} n = {int(one['n'])}"
        )
    print(DIFFERS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
