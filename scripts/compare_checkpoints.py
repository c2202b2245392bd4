"""Two checkpoints over the same sentences: which heads changed, what they gained and lost, and which head became which.

python scripts/compare_checkpoints.py before/ after/ --corpus en_ewt-ud-dev.conllu --out comparison.nc
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np

import attnprobe
from attnprobe.data import path
from attnprobe.errors import AttnprobeError
from attnprobe.heads.compare import compare
from attnprobe.records import Study


def studied(name: str, options: argparse.Namespace) -> Study:
    if name.endswith(".nc"):
        return attnprobe.open_study(name)
    sentences = attnprobe.read_conllu(options.corpus or path("bundled"))
    return attnprobe.run(name, sentences, max_sentences=options.max_sentences, totals=True)


def told(found: Study) -> str:
    """The comparison in a few lines."""
    lines = [
        f"{found.attributes['model']}: {found.attributes['pairing']}, heads aligned by {found.attributes['align']}"
    ]
    entropy = found["metrics"]["entropy"]
    apart = (found["metrics"]["entropy_low"] > 0) | (found["metrics"]["entropy_high"] < 0)
    lines.append(f"entropy changed (interval without 0) in {int(apart.sum())} of {apart.size} heads")
    for layer, head in sorted(np.argwhere(apart.values).tolist(), key=lambda at: -abs(float(entropy[tuple(at)])))[:10]:
        lines.append(f"  L{layer}H{head} {float(entropy[layer, head]):+.3f} nats")
    for relation in found["best"]["relation"].values[:12] if "best" in found else ():
        one = found["best"].sel(relation=relation)
        d, low, high = (100 * float(one[name]) for name in ("difference", "low", "high"))
        lines.append(f"best head for {relation}: {d:+.1f} points [{low:+.1f} {high:+.1f}]")
    for (layer, head), text in np.ndenumerate(found["labels"]["labels"].values) if "labels" in found else ():
        changes = json.loads(str(text))
        for what in ("gained", "lost"):
            lines += [f"L{layer}H{head} {what} {label['label']}" for label in changes[what]]
    moved = found["matches"].where((found["matches"]["distance"] < found["matches"]["distance_same"]), drop=False)
    for layer, head in np.argwhere(moved["distance"].notnull().values):
        there = [int(moved[name][layer, head]) for name in ("layer_b", "head_b")]
        lines.append(f"L{layer}H{head} does most nearly what L{there[0]}H{there[1]} does in the second")
    return "\n".join([*lines, f"matched by {found['matches'].attrs['method']}"])


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("first", help="short name, folder, hub id, or a saved study (.nc)")
    parser.add_argument("second", help="the same, for the second checkpoint")
    parser.add_argument("--corpus", help="CoNLL-U file (default: the bundled treebank)")
    parser.add_argument("--max-sentences", type=int, help="stop after so many sentences")
    parser.add_argument("--align", choices=["index", "match"], help="default: index where the shapes agree")
    parser.add_argument("--out", help="write the comparison here (netCDF-4)")
    options = parser.parse_args(given)
    try:
        found = compare(studied(options.first, options), studied(options.second, options), align=options.align)
        if options.out:
            found.save(options.out)
    except AttnprobeError as error:
        print(f"compare_checkpoints: {error}", file=sys.stderr)
        return error.exit_code
    print(told(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
