"""Two more grids of one cell for each head: the comparison of two studies, and what probes read off each head."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from attnprobe.errors import InputError, explain
from attnprobe.records import Study
from attnprobe.report._figure_captions import (
    COUNTED_FROM,
    against,
    checked,
    counts,
    extremes,
    intervals,
    sample,
    size_of,
)
from attnprobe.report._figure_colours import Scale
from attnprobe.report._figure_grid import Cells, draw_cells, draw_scale, number, number_line, texts_of, write_cells
from attnprobe.report._figure_paper import PaperFigure, paper
from attnprobe.report._figure_values import HeadValues, chosen, layer_names, part, slug, values_of


def comparison(a: Study, b: Study, by: str = "entropy", *, width: str = "double", **where: Any) -> PaperFigure:
    """The second study minus the first, head by head, on a two-way scale; bold where the two intervals do not overlap.

    `by` and `where` as for `atlas`. The studies must have equally many layers and heads.
    """
    first, second = (values_of(study, by, where, "the comparison") for study in (a, b))
    if first.shape != second.shape:
        got = " and ".join(f"{values.shape[0]} x {values.shape[1]}" for values in (first, second))
        raise InputError(explain("cannot compare these studies", expected="equally many layers and heads", got=got))
    none: dict[str, Any] = {"low": None, "high": None, "passed": None, "chance": None}
    change = replace(first, name=f"comparison-{first.name}", value=second.value - first.value, **none)
    apart = _apart(first, second)
    cells = Cells.of(change.shape, width, lines=1, names=change.layers)
    models = [str(study.attributes.get("model", "?")) for study in (a, b)]
    with paper(change.name, width, cells.figure_height, [first.heading]) as figure:
        scale = Scale.both_ways(change.value)
        rgb = scale.rgb(change.value)
        axes = draw_cells(figure, cells, rgb, change.layers)
        texts = texts_of(change.value, lambda value: number(value, signed=True))
        write_cells(axes, cells, rgb, number_line(cells, texts, bold=apart))
        draw_scale(
            figure,
            scale,
            figure.fonts.shown(f"Change in {first.heading[0].lower()}{first.heading[1:]}"),
            cells.right,
            signed=True,
        )
        figure.tell(
            caption=f"{first.heading}: B minus A for each head. A: {sample(a)}, {counts(first)}. B: {sample(b)}, {counts(second)}. "
            f"0: no change. Bold, {int(apart.sum())} of {apart.size} heads: the two {intervals(a)}, do not overlap. "
            f"A: {checked(a)} B: {checked(b)} {COUNTED_FROM}",
            alt=f"Grid of {size_of(change)} coloured by the change in {first.title} from {models[0]} to {models[1]}. {extremes(change)}",
            table=_both(first, second, change, apart),
        )
    return figure


def _apart(first: HeadValues, second: HeadValues) -> np.ndarray:
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return np.zeros(first.shape, dtype=bool)
    return np.asarray((first.low > second.high) | (second.low > first.high))


def _both(first: HeadValues, second: HeadValues, change: HeadValues, apart: np.ndarray) -> pd.DataFrame:
    sides = [values.frame().drop(columns=["unit", "passed"], errors="ignore") for values in (first, second)]
    table = sides[0].merge(sides[1], on=["layer", "head"], suffixes=("_a", "_b"))
    return table.assign(change=change.value.ravel(), intervals_apart=apart.ravel(), unit=first.unit)


def probe_grid(
    study: Study, task: str | None = None, *, value: str = "selectivity", width: str = "double", **where: Any
) -> PaperFigure:
    """What a linear probe reads off each head's vectors: `selectivity` (accuracy minus that of its control task), `accuracy`, `control`, ...

    `task` is the first of the study unless given; `site`, and whatever dimension the probes have, likewise.
    """
    values = _probe_values(part(study, "probes", "the probe grid"), task, value, where)
    signed = value == "selectivity"
    texts = texts_of(values.value, lambda v: number(v, signed=signed))
    cells = Cells.of(values.shape, width, lines=1, names=values.layers)
    with paper(values.name, width, cells.figure_height, [values.title]) as figure:
        scale = Scale.over(values.value, values.chance)
        rgb = scale.rgb(values.value)
        axes = draw_cells(figure, cells, rgb, values.layers)
        lines = number_line(cells, texts)
        write_cells(axes, cells, rgb, lines)
        title = figure.fonts.shown(values.heading)
        draw_scale(figure, scale, title, cells.right, mark=values.chance, mark_name="majority", signed=signed)
        rest = "" if lines else " The numbers are in the table."
        figure.tell(
            caption=f"{values.heading} of a linear probe on the vectors of each head, {sample(study)}; {counts(values)}. "
            f"{against(values)}{rest} {checked(study)} {COUNTED_FROM}",
            alt=f"Grid of {size_of(values)} coloured by {values.heading}. {extremes(values)}",
            table=values.frame(),
        )
    return figure


def _probe_values(table: xr.Dataset, task: str | None, value: str, where: dict[str, Any]) -> HeadValues:
    if value not in table or not {"layer", "head"} <= set(table[value].dims):
        known = ", ".join(str(name) for name in table.data_vars if {"layer", "head"} <= set(table[name].dims))
        raise InputError(
            explain("cannot draw the probe grid", expected=f"one of {known or 'nothing'}", got=repr(value))
        )
    array = table[value]
    first = {str(dim): array[dim].values[0].item() for dim in array.dims if dim not in ("layer", "head")}
    at = chosen(array, {**first, **({} if task is None else {"task": task}), **where}, "the probe grid")
    majority, ceiling, n, embedding = (
        _at(table, name, at) for name in ("majority", "ceiling", "n", "embedding_accuracy")
    )
    site = f", {at['site']}" if "site" in at else ""
    note = "0: no more than on the control task" if value == "selectivity" else "Test items the probe gets right"
    if np.isfinite(majority) and value != "accuracy":
        note += f"; always the commonest class, its accuracy would be {majority:.3g}"
    if np.isfinite(ceiling):
        note += f"; the control task can reach {ceiling:.3g} at most"
    if value == "accuracy" and np.isfinite(embedding):
        note += f"; word embeddings alone {embedding:.3g}"
    found = array.sel(at).values
    return HeadValues(
        name=slug("probe", *at.values(), value),
        title=f"{value.replace('_', ' ').capitalize()} on {at.get('task', 'the task')}{site}",
        unit=str(array.attrs.get("unit", "share of test items")),
        value=found,
        low=None,
        high=None,
        count=np.full(found.shape, n),
        counted="test items",
        layers=layer_names(table),
        chance=majority if value == "accuracy" and np.isfinite(majority) else None,
        chance_name="always the commonest class",
        note=note,
    )


def _at(table: xr.Dataset, name: str, at: dict[str, Any]) -> float:
    """A number that goes with the one drawn, such as the majority share of its task; NaN where the study has none."""
    if name not in table or not set(table[name].dims) <= set(at):
        return float("nan")
    return float(table[name].sel({dim: at[str(dim)] for dim in table[name].dims}))
