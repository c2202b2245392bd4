"""Looking at a model with a text or two: `verify`, `capture`, `view`."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnprobe.commands.measuring import check_writable
from attnprobe.commands.options import Attn, Debug, Device, Dtype, Json, ModelName, Quiet, Texts
from attnprobe.errors import InputError, near_names

if TYPE_CHECKING:
    from attnprobe.records import Verification


def verify(
    model: ModelName,
    text: Annotated[
        list[str] | None,
        typer.Option(
            "--text",
            help="A text to run; may be given several times. Where none of them is padded, the built-in texts run as well.",
        ),
    ] = None,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Recompute attention from captured Q, K, V and compare with the model; exit 1 where they differ."""
    from attnprobe.models.load import load
    from attnprobe.models.verify import verify as verify_model

    checked = verify_model(load(model, attn=attn, dtype=dtype, device=device), text or None)
    if as_json:
        print(json.dumps(checked.as_json(), indent=2))
    else:
        _print_verification(checked)
    if not checked.ok:
        raise typer.Exit(1)


def capture(
    model: ModelName,
    text: Texts = None,
    out: Annotated[Path, typer.Option("--out", help="safetensors file to write.")] = Path("capture.safetensors"),
    route: Annotated[str, typer.Option("--route", help="auto, interface, flow or hooks.")] = "auto",
    max_mb: Annotated[float, typer.Option("--max-mb", help="Megabytes (2^20) beyond which it is refused.")] = 4096,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Save q, k, v, bias, pattern and context of every layer for one or more texts."""
    from attnprobe.models.capture import capture as capture_model
    from attnprobe.models.load import load

    check_writable(out)
    if not text:
        raise InputError("nothing to capture: give at least one --text.")
    loaded = load(model, attn=attn, dtype=dtype, device=device)
    with _told(quiet):
        taken = capture_model(loaded, text, route=route, max_bytes=int(max_mb * 2**20))
    written = taken.save(out)
    result = {
        "capture": str(written.resolve()),
        "layers": len(taken.layers),
        "tokens": [len(row) for row in taken.tokens],
    }
    print(
        json.dumps(result)
        if as_json
        else f"{len(taken.layers)} layers of {len(text)} text(s) saved to {written.resolve()}"
    )


@contextmanager
def _told(quiet: bool) -> Iterator[None]:
    """What the library logs about the size of a capture, on standard error."""
    log = logging.getLogger("attnprobe.models.budget")
    handler, level = logging.StreamHandler(), log.level
    if not quiet:
        log.setLevel(logging.INFO)
        log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def _print_verification(checked: Verification) -> None:
    verdict = "matches the model" if checked.ok else "DOES NOT MATCH the model"
    print(
        f"{checked.model} ({checked.family}, {checked.attn_implementation}, {checked.dtype}): recomputed attention {verdict}"
    )
    print("layer  kind       pattern      tolerance    context      tolerance    bitwise")
    for i in range(checked.n_layers):
        print(
            f"{i:>5}  {checked.kind[i]:<9}  {checked.pattern_max_abs[i]:<11.1e}  {checked.pattern_tolerance[i]:<11.1e}  "
            f"{checked.context_max_abs[i]:<11.1e}  {checked.context_tolerance[i]:<11.1e}  {'yes' if checked.bitwise[i] else 'no'}"
        )
    print(
        f"{int(checked.rows_checked.sum())} rows checked, {int(checked.rows_excluded.sum())} excluded (padding, or nothing visible)"
    )
    for note in checked.notes:
        print(f"note: {note}")


def view(
    model: ModelName,
    text: Annotated[str, typer.Option("--text", help="The text to show.")],
    text_pair: Annotated[
        str | None, typer.Option("--text-pair", help="A second segment, or the target of an encoder-decoder model.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Page to write.")] = Path("attnprobe-view.html"),
    backend: Annotated[str, typer.Option("--backend", help="own, or bertviz.")] = "own",
    kind: Annotated[str, typer.Option("--kind", help="With bertviz: head, model or neuron.")] = "head",
    layers: Annotated[str | None, typer.Option("--layers", help="Comma-separated layers to show.")] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the page: en or zh.")] = "en",
    force: Annotated[bool, typer.Option("--force", help="With bertviz: draw even what may hang a browser.")] = False,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Show the attention of every head over one text, as a page that opens offline."""
    from attnprobe.models.capture import capture as capture_model
    from attnprobe.models.load import load

    backends = ("own", "bertviz")
    if backend not in backends:
        raise InputError(f"unknown backend {backend!r}; {near_names(backend, backends)}.")
    check_writable(out)
    chosen = None if layers is None else [_number(part) for part in layers.split(",")]
    taken = capture_model(load(model, attn=attn, dtype=dtype, device=device), text, text_pair=text_pair)
    if backend == "bertviz":
        from attnprobe.report.bertviz import to_bertviz

        page = to_bertviz(taken, kind, layers=chosen, force=force).save(out)
    else:
        from attnprobe.report.view import view as view_pattern

        page = view_pattern(taken, layers=chosen, lang=lang).save(out)
    print(json.dumps({"page": str(page.resolve())}) if as_json else f"page: {page.resolve()}")


def _number(text: str) -> int:
    if not text.strip().isdecimal():
        raise InputError(f"--layers takes numbers separated by commas, not {text.strip()!r}.")
    return int(text)
