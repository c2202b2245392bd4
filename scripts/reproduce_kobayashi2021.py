"""How much attention blocks mix tokens, beside what Kobayashi et al. 2021 found in BERT-base and RoBERTa-base.

python scripts/reproduce_kobayashi2021.py minilm --corpus en_ewt-ud-dev.conllu --max-sentences 200
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice

import numpy as np

import attnprobe
from attnprobe.data import path
from attnprobe.errors import AttnprobeError
from attnprobe.heads.mixing import STAGES, mixing_ratios

PUBLISHED = {  # name in the paper, mean mixing ratio in per cent of BERT-base and of RoBERTa-base
    "weights": ("Attn-W", 96.41, 95.81),
    "norms": ("Attn-N", 85.28, 84.42),
    "weights+residual": ("AttnRes-W", 48.21, 47.91),
    "norms+residual": ("AttnRes-N", 22.25, 19.55),
    "norms+residual+norm": ("AttnResLn-N", 18.75, 16.24),
}
DIFFERS = """What differs from the paper:
  model     this model, not BERT-base or RoBERTa-base.
  corpus    single sentences of this corpus, not segments of Wikipedia, and no token is masked (12 % there).
  mean      over all tokens, special ones included, then over layers."""


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="minilm", help="short name, folder or hub id")
    parser.add_argument("--corpus", help="CoNLL-U file (default: the bundled treebank)")
    parser.add_argument("--max-sentences", type=int, help="stop after so many sentences")
    options = parser.parse_args(given)
    try:
        sentences = attnprobe.read_conllu(options.corpus or path("bundled"))
        found = mixing_ratios(options.model, islice(sentences, options.max_sentences))
    except AttnprobeError as error:
        print(f"reproduce_kobayashi2021: {error}", file=sys.stderr)
        return error.exit_code
    print(
        f"mean mixing ratio in %: BERT-base, RoBERTa-base as published | {options.model}, then each layer, 95 % interval at most"
    )
    for stage in STAGES:
        name, bert, roberta = PUBLISHED[stage]
        layers, low, high = (100 * found[part].sel(stage=stage) for part in ("ratio", "low", "high"))
        each = " ".join(f"{value:.1f}" for value in layers.values)
        wide = float(np.maximum(high - layers, layers - low).max())
        print(f"  {name:12} {bert:5.1f} {roberta:5.1f} | {float(layers.mean()):5.1f}  {each} +- {wide:.1f}")
    print(f"n = {int(found['n'].max())} tokens\n{DIFFERS}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
