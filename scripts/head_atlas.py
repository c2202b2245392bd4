"""Draw the head atlas of a model: every head with a number and the label it earned, over a treebank.

    python scripts/head_atlas.py minilm --by entropy --card --dpi 240 --out docs/images/atlas.png
    python scripts/head_atlas.py study.nc --by dep:obj --width single --out obj.pdf

The suffix of `--out` chooses the format: pdf, svg or png. The caption goes to standard output.
"""

from __future__ import annotations

import argparse
import sys

import attnprobe
from attnprobe.data import path
from attnprobe.errors import AttnprobeError
from attnprobe.records import Study


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="minilm", help="short name, folder, hub id, or a saved study (.nc)")
    parser.add_argument("--corpus", help="CoNLL-U file (default: the bundled treebank)")
    parser.add_argument("--max-sentences", type=int, help="stop after so many sentences")
    parser.add_argument("--by", default="entropy", help="metric, relation or labels (default: %(default)s)")
    parser.add_argument(
        "--at", action="append", default=[], metavar="DIM=VALUE", help="such as target=cls or offset=-1"
    )
    parser.add_argument("--width", choices=["single", "double"], default="double", help="column (default: %(default)s)")
    parser.add_argument("--card", action="store_true", help="on a white card with round corners, for web pages")
    parser.add_argument("--table", help="also write the numbers here, as CSV")
    parser.add_argument("--dpi", type=int, default=300, help="dots to an inch of a png (default: %(default)s)")
    parser.add_argument("--out", default="atlas.pdf", help="file to write (default: %(default)s)")
    return parser.parse_args(given)


def measured(options: argparse.Namespace) -> Study:
    """The saved study, or a new one."""
    if options.model.endswith(".nc"):
        return attnprobe.open_study(options.model)
    sentences = attnprobe.read_conllu(options.corpus or path("bundled"))
    name = options.corpus or "bundled treebank"
    return attnprobe.run(options.model, sentences, max_sentences=options.max_sentences, corpus=name)


def coordinate(text: str) -> int | str:
    return int(text) if text.lstrip("+-").isdigit() else text


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    where = {dim: coordinate(value) for dim, _, value in (pair.partition("=") for pair in options.at)}
    try:
        drawn = attnprobe.figures.atlas(measured(options), options.by, width=options.width, **where)
        (drawn.as_card() if options.card else drawn).savefig(options.out, dpi=options.dpi)
    except AttnprobeError as error:
        print(f"head_atlas: {error}", file=sys.stderr)
        return error.exit_code
    if options.table:
        drawn.table.to_csv(options.table, index=False)
    print(drawn.caption)
    return 0


if __name__ == "__main__":
    sys.exit(main())
