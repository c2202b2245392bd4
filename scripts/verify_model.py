"""Show that attention recomputed from captured Q, K and V is what a model did, layer by layer.

    python scripts/verify_model.py minilm --text "The keys to the cabinet are lost." --attn eager

Leaves with 0 where every layer matches, with 1 where one does not.
"""

from __future__ import annotations

import argparse
import json
import sys

import attnprobe
from attnprobe.errors import AttnprobeError
from attnprobe.records import Verification


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "model", nargs="?", default="minilm", help="short name, folder or hub id (default: %(default)s)"
    )
    parser.add_argument("--text", action="append", help="a text to run, may be repeated; built-in ones by default")
    parser.add_argument("--attn", choices=["eager", "sdpa"], help="attention function (default: the library's)")
    parser.add_argument("--dtype", help="float32, bfloat16, ...; as stored by default")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, mps or auto (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser.parse_args(given)


def describe(checked: Verification) -> str:
    """One line for each attention module: the largest difference of its weights and of its context, with the tolerances."""
    verdict = "matches the model" if checked.ok else "DOES NOT MATCH the model"
    lines = [f"{checked.model}, {checked.attn_implementation}, {checked.dtype}: recomputed attention {verdict}"]
    for layer in range(checked.n_layers):
        lines.append(
            f"layer {layer} ({checked.kind[layer]}): "
            f"pattern {checked.pattern_max_abs[layer]:.1e} of {checked.pattern_tolerance[layer]:.1e} allowed, "
            f"context {checked.context_max_abs[layer]:.1e} of {checked.context_tolerance[layer]:.1e}, "
            f"{int(checked.rows_checked[layer])} rows, replay {'' if checked.bitwise[layer] else 'not '}bit for bit"
        )
    return "\n".join([*lines, *(f"note: {note}" for note in checked.notes)])


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    try:
        model = attnprobe.load(options.model, attn=options.attn, dtype=options.dtype, device=options.device)
        checked = attnprobe.verify(model, options.text)
    except AttnprobeError as error:
        print(f"verify_model: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(checked.as_json(), indent=2) if options.json else describe(checked))
    return 0 if checked.ok else 1


if __name__ == "__main__":
    sys.exit(main())
