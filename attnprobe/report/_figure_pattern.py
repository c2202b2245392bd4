"""The attention pattern of one head as a heat map of tokens or words."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from attnprobe.errors import InputError, explain, near_names
from attnprobe.records import PatternBlock, PatternView, Study
from attnprobe.report._figure_captions import COUNTED_FROM
from attnprobe.report._figure_colours import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SKY,
    SOFT,
    VERMILION,
    Scale,
)
from attnprobe.report._figure_grid import Cells, Line, draw_scale, number, texts_of, write_cells
from attnprobe.report._figure_paper import (
    LEAST,
    POINT,
    SMALL,
    TALLEST,
    TINY,
    PaperFigure,
    column,
    note,
    paper,
    shortened,
    text_width,
)
from attnprobe.report._figure_values import head_name, part

LONGEST = 0.95
"""Room for words beside a heat map, in inches; longer ones are cut with an ellipsis."""
CLUSTER_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, "#333333", "#999999")


@dataclass(frozen=True)
class Weights:
    """The pattern of one head with the words along its sides."""

    pattern: np.ndarray
    """[query key]"""
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    told: str
    """Where it comes from, for the caption."""
    step: float
    """Distance of two values that are told apart, where weights were stored as whole numbers; else 0."""


def heat_map(
    source: PatternView | Study | xr.Dataset | xr.DataTree,
    layer: int,
    head: int,
    *,
    example: str | None = None,
    level: str = "token",
    width: str = "single",
) -> PaperFigure:
    """The attention pattern of one head: a row for each query, a column for each key, the weight in each cell.

    `source` is what `Capture.view()` gives, a study (`example` names one of its sentences, the first by default), or one such example.
    `level="word"` adds up the pieces of a key word and averages those of a query word; rows still sum to 1.
    """
    if level not in ("token", "word"):
        raise InputError(explain("unknown level of a heat map", expected="token or word", got=repr(level)))
    weights = _weights(source, layer, head, example, level)
    n_query, n_key = weights.pattern.shape
    name = f"pattern-{head_name(layer, head)}"
    with paper(name, width, 2.0, (*weights.queries, *weights.keys)) as figure:
        queries, keys = ([figure.fonts.shown(word) for word in words] for words in (weights.queries, weights.keys))
        cells = _pattern_cells(queries, keys, width)
        top = 0.42 + min(LONGEST, _longest(keys)) + 0.16
        figure.set_size_inches(column(width), top + cells.height * n_query + 0.05)
        scale = Scale.over(weights.pattern)
        rgb = scale.rgb(weights.pattern)
        axes = figure.inches(cells.left, top, cells.width * n_key, cells.height * n_query)
        _draw_pattern(axes, cells, rgb, queries, keys)
        texts = texts_of(weights.pattern, lambda value: number(value).replace("0.", ".") if value >= 0.005 else "")
        size = cells.size_for(texts, 1)
        write_cells(axes, cells, rgb, [] if size is None else [Line(texts, size, np.full(texts.shape, "normal"))])
        draw_scale(figure, scale, f"{head_name(layer, head)}: attention (share)", cells.right)
        rounding = f" Stored in steps of {weights.step:.4f}." if weights.step else ""
        figure.tell(
            caption=f"Attention of head {head_name(layer, head)} (share of a row), {weights.told}: {n_query} queries down, {n_key} keys "
            f"across, {level} level. Uniform attention would give {1 / n_key:.3f} where every key may be seen.{rounding} {COUNTED_FROM}",
            alt=f"Heat map of {n_query} by {n_key} {level}s; greatest weight {_greatest(weights)}.",
            table=_pattern_frame(weights),
        )
    return figure


def _weights(source: Any, layer: int, head: int, example: str | None, level: str) -> Weights:
    if isinstance(source, Study):
        examples = sorted(source.tree["examples"].children) if "examples" in source else []
        if not examples:
            part(source, "examples", "a heat map")
        name = example or examples[0]
        if name not in examples:
            raise InputError(f"the study has no example {name!r}; {near_names(name, examples)}.")
        return _of_example(source.tree["examples"][name].to_dataset(), layer, head, level)
    if isinstance(source, (xr.Dataset, xr.DataTree)):
        return _of_example(source.to_dataset() if isinstance(source, xr.DataTree) else source, layer, head, level)
    if not isinstance(source, PatternView):
        expected = "a PatternView (`capture(model, text).view()`), a Study, or an example of one"
        raise InputError(explain("cannot draw a heat map", expected=expected, got=type(source).__name__))
    block = next((block for block in source.blocks if block.layer == layer), None)
    shape = (1 + max((block.layer for block in source.blocks), default=-1), 0 if block is None else len(block.pattern))
    if block is None or not 0 <= head < shape[1]:
        raise _no_head(layer, head, shape)
    return _of_block(source, block, head, level)


def _of_example(table: xr.Dataset, layer: int, head: int, level: str) -> Weights:
    if not (0 <= layer < table.sizes["layer"] and 0 <= head < table.sizes["head"]):
        raise _no_head(layer, head, (table.sizes["layer"], table.sizes["head"]))
    step = 1 / float(table.attrs.get("scale", 255))
    pattern = table["pattern"].values[layer, head].astype(np.float64) * step
    words, tokens = (tuple(json.loads(table.attrs[key])) for key in ("words", "tokens"))
    told = f"sentence {table.attrs.get('id', '?')}"
    return _at_level(pattern, tokens, words, np.asarray(table.attrs["word_index"]), told, step, level)


def _of_block(view: PatternView, block: PatternBlock, head: int, level: str) -> Weights:
    pattern = np.asarray(block.pattern[head], dtype=np.float64)
    told = f"{view.model}, {block.kind} layer {block.index}" + (f", generation step {block.step}" if block.step else "")
    target = view.target_tokens or view.tokens
    keys = view.tokens if block.kind != "decoder" else target
    queries = target if block.kind in ("decoder", "cross") else view.tokens
    if block.kind != "encoder" and view.target_tokens or pattern.shape[0] != pattern.shape[1]:
        if level == "word":
            raise InputError(
                explain(
                    "cannot merge to words",
                    where=told,
                    expected="a pattern of one sequence over itself",
                    got=block.kind,
                )
            )
        return Weights(pattern, queries[-pattern.shape[0] :], keys[: pattern.shape[1]], told, 0.0)
    return _at_level(pattern, keys, view.words, view.alignment.word_index, told, 0.0, level)


def _at_level(
    pattern: np.ndarray,
    tokens: tuple[str, ...],
    words: tuple[str, ...],
    index: np.ndarray,
    told: str,
    step: float,
    level: str,
) -> Weights:
    """The pattern between tokens, or between words and special tokens: key pieces added up, query pieces averaged."""
    if level == "token":
        return Weights(pattern, tokens, tokens, told, step)
    unit: list[tuple[int, int]] = []
    for place, word in enumerate(index):
        unit.append((int(word), -1 if word >= 0 else place))
    units = list(dict.fromkeys(unit))
    member = np.array([[own == one for own in unit] for one in units], dtype=float)
    merged = (member / member.sum(axis=1, keepdims=True)) @ pattern @ member.T
    names = tuple(words[word] if word >= 0 else tokens[place] for word, place in units)
    return Weights(merged, names, names, told, step)


def _no_head(layer: int, head: int, shape: tuple[int, int]) -> InputError:
    expected = f"a layer from 0 to {shape[0] - 1}" + (f" and a head from 0 to {shape[1] - 1}" if shape[1] else "")
    return InputError(explain("there is no such head", expected=expected, got=head_name(layer, head)))


def _longest(words: Sequence[str]) -> float:
    return max(text_width(word, SMALL) for word in words) / POINT + 0.04


def _pattern_cells(queries: Sequence[str], keys: Sequence[str], width: str) -> Cells:
    left = min(LONGEST, _longest(queries)) + 0.2
    side = min((column(width) - left - 0.03) / len(keys), 0.42, (TALLEST - 1.6) / len(queries))
    high = min(side, 0.22) if width == "double" else side
    return Cells(len(queries), len(keys), side, high, left, 0.05)


def _draw_pattern(axes: Axes, cells: Cells, rgb: np.ndarray, queries: Sequence[str], keys: Sequence[str]) -> None:
    axes.set(xlim=(-0.5, cells.heads - 0.5), ylim=(cells.layers - 0.5, -0.5))
    gap = min(0.6, 0.04 * min(cells.width, cells.height) * POINT)
    x, y = np.arange(cells.heads + 1) - 0.5, np.arange(cells.layers + 1) - 0.5
    axes.pcolormesh(x, y, rgb, edgecolors="white", linewidth=gap)
    axes.spines[:].set_visible(False)
    axes.xaxis.tick_top()
    axes.tick_params(length=0, pad=2, labelcolor=INK)
    for set_ticks, words, room in ((axes.set_xticks, keys, cells.width), (axes.set_yticks, queries, cells.height)):
        every = max(1, int(np.ceil((LEAST * 1.05) / (room * POINT))))
        size = max(LEAST, min(SMALL, room * POINT * every / 1.05))
        labels = [shortened(word, (LONGEST - 0.05) * POINT, size) for word in words[::every]]
        set_ticks(range(0, len(words), every), labels=labels, fontsize=size)
    axes.tick_params(axis="x", labelrotation=90)
    at: dict[str, Any] = {"xycoords": "axes fraction", "fontsize": TINY, "color": SOFT}
    note(axes, "Query", (0, 0.5), (-cells.left * POINT + 5, 0), **at, ha="center", va="center", rotation=90)
    note(axes, "Key", (0, 1), (-4, 3), **at, ha="right")


def _greatest(weights: Weights) -> str:
    if not np.isfinite(weights.pattern).any():
        return "undefined"
    query, key = np.unravel_index(int(np.nanargmax(weights.pattern)), weights.pattern.shape)
    return f"{weights.pattern[query, key]:.2f} from {weights.queries[query]!r} to {weights.keys[key]!r}"


def _pattern_frame(weights: Weights) -> pd.DataFrame:
    query, key = (index.ravel() for index in np.indices(weights.pattern.shape))
    words = {"query_text": [weights.queries[i] for i in query], "key_text": [weights.keys[i] for i in key]}
    return pd.DataFrame({"query": query, "key": key, **words, "weight": weights.pattern.ravel(), "unit": "share"})
