"""Write every figure of a study for a paper: SVG, PDF, the numbers as CSV, caption and alternative text.

    python scripts/export_figures.py study.nc --out figures --width single --head L2H8 --head L0H2

`figures.txt` in the folder lists the captions, and what could not be drawn with what to run for it. Two studies give comparisons too.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

import attnprobe
from attnprobe.errors import AttnprobeError, InputError


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", help="study file written by `attnprobe heads`")
    parser.add_argument("--against", metavar="STUDY", help="a second study: also draw second minus first")
    parser.add_argument(
        "--by", action="append", help="metric or relation to compare by, may be repeated (default: entropy)"
    )
    parser.add_argument("--head", action="append", help="head to draw one by one, as L2H8; may be repeated")
    parser.add_argument("--width", choices=["single", "double"], default="double", help="column (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("figures"), help="folder to write (default: %(default)s)")
    return parser.parse_args(given)


def place(head: str) -> tuple[int, int]:
    """Layer and head of a name such as L2H8."""
    found = re.fullmatch(r"[Ll](\d+)[Hh](\d+)", head)
    if found is None:
        raise InputError(f"no head is called {head!r}: expected a layer and a head from 0, such as L2H8.")
    return int(found[1]), int(found[2])


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    try:
        heads = [place(head) for head in options.head] if options.head else None
        study = attnprobe.open_study(options.study)
        written = attnprobe.figures.save_all(study, options.out, width=options.width, heads=heads)
        if options.against:
            other = attnprobe.open_study(options.against)
            for by in options.by or ["entropy"]:
                drawn = attnprobe.figures.comparison(study, other, by, width=options.width)
                written += attnprobe.figures.save(drawn, options.out)
    except AttnprobeError as error:
        print(f"export_figures: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{len(written)} files in {options.out.resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
