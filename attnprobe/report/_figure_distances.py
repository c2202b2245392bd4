"""How far each head looks: one small histogram for each head, layers down, heads across."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

from attnprobe.errors import InputError, explain
from attnprobe.records import Study
from attnprobe.report._figure_captions import COUNTED_FROM, checked, sample
from attnprobe.report._figure_colours import BLUE, FAINT, SOFT
from attnprobe.report._figure_grid import Cells, draw_cells, draw_foot, draw_title, number
from attnprobe.report._figure_paper import LEAST, PaperFigure, note, paper
from attnprobe.report._figure_values import layer_names, part, table_of

GROUND = 0.962
"""Grey of the cells."""
PLACES = ("distance", "signed_distance", "offset")
"""Variables of `/histograms` that may be drawn, in the order they are looked for."""


@dataclass(frozen=True)
class Distances:
    """A distribution over distances for each head."""

    title: str
    unit: str
    heights: np.ndarray
    """[layer head place]; NaN where undefined."""
    places: np.ndarray
    """Distance of each bar, in tokens."""
    place_name: str
    across: str
    """What the distances are, after their range: `tokens from the query`."""
    counted: str
    layers: tuple[str, ...]

    @property
    def span(self) -> str:
        return f"{self.places[0]:+g} to {self.places[-1]:+g} {self.across}".replace("-", "−")

    @property
    def zero(self) -> float | None:
        """Where the token itself would stand, counted in bars; None where distances have no sign."""
        if not self.places.min() < 0 < self.places.max():
            return None
        return float(np.interp(0, self.places, np.arange(len(self.places))))

    def frame(self) -> pd.DataFrame:
        layer, head, place = (index.ravel() for index in np.indices(self.heights.shape))
        columns = {"layer": layer, "head": head, self.place_name: self.places[place], "value": self.heights.ravel()}
        return pd.DataFrame({**columns, "unit": self.unit})


def distance_histograms(study: Study, *, width: str = "double", **where: Any) -> PaperFigure:
    """How far each head looks: one small histogram for each head, layers down, heads across.

    From the distributions in `/histograms` where the study has them; else `offset_mass`, the mean attention to the token at each offset.
    """
    found = _distances(study, where)
    layers, heads, _ = found.heights.shape
    cells = Cells.of((layers, heads), width, lines=3, names=found.layers, bottom=0.2)
    top = float(np.nanmax(found.heights, initial=0.0)) or 1.0
    with paper("distance-histograms", width, cells.figure_height, [found.unit]) as figure:
        axes = draw_cells(figure, cells, np.full((layers, heads, 3), GROUND), found.layers)
        _silhouettes(axes, np.sqrt(np.nan_to_num(found.heights) / top))
        _mark_zero(axes, found)
        _peaks(axes, cells, found)
        draw_title(figure, figure.fonts.shown(f"{found.title} ({found.unit})"), cells.right)
        draw_foot(figure, f"across: {found.span}     height: square root, {top:.2f} in full")
        dashed = "" if found.zero is None else " Dashed: the token itself."
        figure.tell(
            caption=f"{found.title} ({found.unit}) for each head of {sample(study)}; {found.counted}. Across each cell: {found.span}; "
            f"height: square root of the value, {top:.2f} where it fills the cell.{dashed} No chance level is defined: what uniform attention "
            f"would give depends on the length of the sentence. {checked(study)} {COUNTED_FROM}",
            alt=f"Grid of {layers} layers by {heads} heads with one histogram each: {found.title}, {found.span}.",
            table=found.frame(),
        )
    return figure


def _distances(study: Study, where: dict[str, Any]) -> Distances:
    table = table_of(study, "histograms")
    name = next((name for name in PLACES if name in table and {"layer", "head"} < set(table[name].dims)), None)
    if name is not None:
        return _read(table, name, where, "Distribution of attention distance", "tokens")
    metrics = part(study, "metrics", "distance histograms")
    if "offset_mass" in metrics:
        where = {"sinks": "kept", **where}
        return _read(metrics, "offset_mass", where, "Attention to the token at each offset", "tokens from the query")
    failed, expected = "cannot draw distance histograms", "/histograms or the metric offset_mass"
    remedy = "Run `attnprobe heads MODEL --metrics offset_mass --out study.nc`"
    raise InputError(explain(failed, expected=expected, got="neither", remedy=remedy))


def _read(table: xr.Dataset, name: str, where: dict[str, Any], title: str, across: str) -> Distances:
    """One distribution; of dimensions but layer, head and the last, the place that `where` names, or the first."""
    array = table[name].transpose("layer", "head", ...)
    dims = [str(dim) for dim in array.dims[2:]]
    place = "offset" if "offset" in dims else dims[-1]
    at = {dim: where.get(dim, array[dim].values[0]) for dim in dims if dim != place}
    count = table[f"{name}_count"].values if f"{name}_count" in table else np.array([np.nan])
    counted = "number of query rows not recorded"
    if np.isfinite(count).any():
        counted = f"{int(np.nanmin(count)):,} to {int(np.nanmax(count)):,} query rows behind each bar"
    heights = array.sel(at).values.astype(float)
    unit = str(array.attrs.get("unit", "rows" if array.dtype.kind in "iu" else "share"))
    return Distances(title, unit, heights, array[place].values, place, across, counted, layer_names(table))


def _silhouettes(axes: Axes, heights: np.ndarray) -> None:
    """A stepped outline inside every cell; heights from 0 to 1."""
    layers, heads, bins = heights.shape
    edges = np.repeat(np.linspace(-0.46, 0.46, bins + 1), 2)
    outlines = []
    for layer, head in np.ndindex(layers, heads):
        steps = np.concatenate([[0.0], np.repeat(heights[layer, head], 2), [0.0]])
        outlines.append(np.column_stack([head + edges, layer + 0.46 - 0.86 * steps]))
    axes.add_collection(PolyCollection(outlines, facecolor=BLUE, linewidth=0), autolim=False)


def _mark_zero(axes: Axes, found: Distances) -> None:
    if found.zero is not None:
        layers, heads, bins = found.heights.shape
        x = np.arange(heads) - 0.46 + 0.92 * (found.zero + 0.5) / bins
        axes.vlines(x, -0.5, layers - 0.5, color=FAINT, linewidth=0.4, linestyle=(0, (2, 2)))


def _peaks(axes: Axes, cells: Cells, found: Distances) -> None:
    """The highest bar of each cell in numbers, where there is room: its height and its place."""
    if cells.points[0] < 30 or cells.points[1] < 18:
        return
    heights = np.nan_to_num(found.heights)
    for layer, head in np.ndindex(heights.shape[:2]):
        peak = int(heights[layer, head].argmax())
        side, sign = ("left", -1) if found.places[peak] > 0 else ("right", 1)
        text = f"{number(heights[layer, head, peak])}\nat {found.places[peak]:+g}".replace("-", "−")
        corner = (head + sign * 0.46, layer - 0.5)
        note(axes, text, corner, (-1.5 * sign, -2), ha=side, va="top", fontsize=LEAST, color=SOFT, linespacing=1.05)
