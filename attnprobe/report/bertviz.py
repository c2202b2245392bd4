"""`to_bertviz`: bertviz's head, model and neuron views of our patterns, as a whole document that renders with no network.

The drawing is bertviz's own, read from the installed package; what is handed to it is ours. Against its own output: weights once and
rounded, tokens that cannot end a script, encoder and decoder of unequal depth side by side, libraries in the page.
"""

from __future__ import annotations

import html
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

import attnprobe
from attnprobe.errors import InputError, explain, near_names
from attnprobe.records import PatternView
from attnprobe.report import _view_bertviz as theirs
from attnprobe.report._arena import script_json
from attnprobe.report._view_choice import pick
from attnprobe.report._view_document import joined, policy, template, write_page
from attnprobe.report._view_joining import stacks_of
from attnprobe.report._view_stacks import Neurons, Stack
from attnprobe.report.view import pattern_view

KINDS = ("head", "model", "neuron")
DECIMALS = 4
"""Weights, q and k are rounded to this many decimals."""
MAX_CELLS = 150_000
"""Weights that a page may make the browser draw at once; beyond, bertviz takes minutes or never answers."""
FRAME_HEIGHT = 700


@dataclass(frozen=True)
class BertvizPage:
    """One bertviz view as a document."""

    html: str
    height: int = FRAME_HEIGHT
    """Pixels of a notebook's frame."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, under a temporary name first, then renamed."""
        return write_page(self.html, path)

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self.height}px;border:0;background:white"
        return f'<iframe sandbox="allow-scripts" title="bertviz" style="{style}" srcdoc="{html.escape(self.html)}"></iframe>'


def to_bertviz(
    source: PatternView | Any,
    kind: str = "head",
    *,
    index: int = 0,
    layers: Iterable[int] | None = None,
    heads: Iterable[int] | None = None,
    max_cells: int = MAX_CELLS,
    force: bool = False,
    offline: bool = True,
) -> BertvizPage:
    """Draw attention with bertviz: `head` (one layer's heads as lines), `model` (all heads small) or `neuron` (q and k of one head).

    `source` is a `PatternView`, or a capture (whose sequence `index` is taken); `layers` (places in execution order) and `heads` choose.
    `neuron` takes q and k of any model that was captured. With `offline` the page holds d3, jQuery and require.js, read from the packages
    of the extra `bertviz-offline`; without, it loads them from a network as bertviz does.

    Raises `InputError` for an unknown kind, for a page of more than `max_cells` weights drawn at once (unless `force`), for `neuron` without
    q and k, and where a package is missing.
    """
    if kind not in KINDS:
        raise InputError(f"unknown bertviz view {kind!r}; {near_names(kind, KINDS)}.")
    pattern = pattern_view(source, index, kind == "neuron")
    stacks = pick(stacks_of(pattern), layers, heads)
    _refuse_too_many(stacks, kind, max_cells, force)
    # bertviz has one list of layers and heads per view: kinds that share them make one view, others stand beside it
    groups = [tuple(group) for _, group in groupby(stacks, key=_shape)]
    views = [_view(group, kind, f"bertviz-{i}") for i, group in enumerate(groups)]
    scripts = [
        joined(("view/bertviz.js",)),
        *(theirs.drawing(kind, f"{view['root']}-data", offline=offline) for view in views),
    ]
    scripts = [*([*theirs.libraries(), theirs.SHIMS] if offline else []), *scripts, theirs.READY]
    style = joined(("view/bertviz.css",))
    text = template("view_bertviz.html").render(
        title=f"{pattern.model}: bertviz {kind} view",
        version=attnprobe.__version__,
        bertviz=theirs.bertviz_version(),
        decimals=DECIMALS,
        policy=policy(scripts, [style], more_scripts="" if offline else theirs.NETWORK),
        style=Markup(style),
        kind=kind,
        notes=_notes(stacks, kind),
        views=views,
        address=None if offline else theirs.REQUIRE_URL,
        scripts=[Markup(script) for script in scripts],
    )
    return BertvizPage(text)


def _shape(stack: Stack) -> tuple[int, tuple[int, ...]]:
    heads = {module.heads for module in stack.modules}
    if len(heads) > 1:
        raise InputError(
            explain("bertviz draws the same heads in every layer", expected="equal heads", got="layers that differ")
        )
    return len(stack.modules), heads.pop()


def _refuse_too_many(stacks: tuple[Stack, ...], kind: str, max_cells: int, force: bool) -> None:
    """What the browser draws at once: every layer in the model view, one layer in the others."""

    def drawn(stack: Stack) -> int:
        return stack.cells if kind == "model" else stack.cells // len(stack.modules)

    cells = sum(map(drawn, stacks)) if kind == "model" else max(map(drawn, stacks))
    if cells > max_cells and not force:
        raise InputError(
            explain(
                f"bertviz would hang the browser with this {kind} view",
                expected=f"at most {max_cells:,} weights drawn at once",
                got=f"{cells:,}",
                remedy="Choose `layers` or `heads`, take a shorter text, use `attnprobe.view`, or pass force=True",
            )
        )


def _view(stacks: tuple[Stack, ...], kind: str, root: str) -> dict[str, Any]:
    """One bertviz view: its place in the page, its menus, its parameters by bertviz's names."""
    attention: list[dict[str, Any]] = []
    for stack in stacks:
        attention += _with_parts(stack, _whole(stack, kind), len(attention))
    first = stacks[0].modules[0]
    parameters = {
        "unit": 10**DECIMALS,
        "attention": attention,
        "default_filter": "0",
        "root_div_id": root,
        "layer": None,
        "head": None,
        "heads": None,
        "include_layers": [module.index for module in stacks[0].modules],
        "include_heads": list(first.heads),
        "total_heads": len(first.heads),
        "display_mode": "light",
        "bidirectional": not all(stack.causal for stack in stacks),
    }
    names = [str(one["name"]) for one in attention]
    name = " and ".join(stack.kind for stack in stacks)
    return {"root": root, "name": f"{name} attention", "filters": names, "data": Markup(script_json(parameters))}


def _whole(stack: Stack, kind: str) -> dict[str, Any]:
    """All attention of a stack, weights (and vectors) as whole numbers."""
    whole = {
        "name": stack.kind.capitalize(),
        "left_text": list(stack.query.tokens),
        "right_text": list(stack.key.tokens),
        "attn": [_units(np.nan_to_num(module.pattern)) for module in stack.modules],
    }
    if kind == "neuron":
        neurons = [module.neurons for module in stack.modules if module.neurons is not None]
        if len(neurons) < len(stack.modules):
            expected = "a view with q, k and scores, as `capture(...).view(neurons=True)` makes it"
            raise InputError(explain("no neuron view without q and k", expected=expected, got="patterns alone"))
        whole["queries"] = [_units(one.q * _correction(one)) for one in neurons]
        whole["keys"] = [_units(one.k) for one in neurons]
    return whole


def _units(values: np.ndarray) -> Any:
    return np.rint(values * 10**DECIMALS).astype(int).tolist()


def _correction(neurons: Neurons) -> float:
    """What q is multiplied by, since bertviz divides q.k by the root of the dimension, whatever the model does."""
    return neurons.scale * float(np.sqrt(neurons.q.shape[-1]))


def _with_parts(stack: Stack, whole: dict[str, Any], place: int) -> list[dict[str, Any]]:
    """The whole, and for a pair of texts each direction between them, as places in the whole."""
    segments = stack.query.segments
    if stack.kind == "cross" or not segments or list(segments) != sorted(segments) or len(set(segments)) != 2:
        return [whole]
    cut, end = segments.index(max(segments)), len(segments)
    texts = {"A": [0, cut], "B": [cut, end]}
    parts = [
        {"name": f"Sentence {a} -> Sentence {b}", "part": {"of": place, "rows": texts[a], "columns": texts[b]}}
        for a, b in ("AA", "BB", "AB", "BA")
    ]
    return [{**whole, "name": "All"}, *parts]


def _notes(stacks: tuple[Stack, ...], kind: str) -> list[str]:
    """What the drawing does not say by itself."""
    modules = [module for stack in stacks for module in stack.modules]
    notes = []
    if any(module.source == "recomputed" for module in modules):
        notes.append("The weights were recomputed from the captured q and k.")
    if any(np.isnan(module.total).any() for module in modules):
        notes.append("Queries that see nothing have no lines.")
    if kind == "neuron":
        notes.append("Point at a token on the left and choose its + to see q and k.")
        held = [module.neurons for module in modules if module.neurons is not None]
        if any(abs(_correction(one) - 1) > 1e-3 for one in held):
            notes.append(
                "q is multiplied so that the q·k shown, over the root of its length, is the model's scaled score."
            )
        if any(np.where(np.isfinite(one.added), one.added, 0).any() for one in held):
            notes.append(
                "The model adds a position bias to the scores, which this view does not show; the softmax includes it."
            )
    return notes
