"""How attention moves with depth: the entropy of every head by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from attnprobe.errors import InputError, explain
from attnprobe.records import Study
from attnprobe.report._figure_captions import COUNTED_FROM, checked, counts, intervals, sample, size_of
from attnprobe.report._figure_colours import BLUE, FAINT, SOFT, VERMILION
from attnprobe.report._figure_paper import TINY, PaperFigure, note, paper
from attnprobe.report._figure_values import HeadValues, head_name, metric_values, part

UNIFORM_NAME = "uniform attention"


FAINTLY: dict[str, Any] = {
    "fontsize": TINY,
    "color": SOFT,
    "path_effects": [withStroke(linewidth=1.5, foreground="white")],
}


def entropy_by_layer(study: Study, *, width: str = "double", **where: Any) -> PaperFigure:
    """Entropy of every head by layer with its interval, and the mean of each layer; normalised entropy beside it where measured.

    0 when one key takes everything; uniform attention reads 1 normalised, and the log of the number of visible keys in nats.
    """
    metrics = part(study, "metrics", "entropy by layer")
    names = [name for name in ("entropy", "entropy_normalised") if name in metrics]
    if not names:
        remedy = "Run `attnprobe heads MODEL --metrics entropy,entropy_normalised --out study.nc`"
        got = "other metrics"
        raise InputError(explain("cannot draw entropy by layer", expected="the metric entropy", got=got, remedy=remedy))
    panels = [metric_values(metrics, name, where, "entropy by layer") for name in names]
    beside = width == "double" and len(panels) > 1
    shape = (1, len(panels)) if beside else (len(panels), 1)
    with paper("entropy-by-layer", width, 2.1 if beside else 1.9 * len(panels), layout="constrained") as figure:
        for axes, values in zip(np.atleast_1d(figure.subplots(*shape)).ravel(), panels, strict=True):
            _by_layer(axes, values)
        table = pd.concat([values.frame().assign(metric=name) for name, values in zip(names, panels, strict=True)])
        means = np.nanmean(panels[0].value, axis=1)
        figure.tell(
            caption=f"Entropy of each head by layer, {sample(study)}; {counts(panels[0])}. Dots: heads, in order within a layer, with "
            f"{intervals(study)}. Line: mean of a layer. 0: one key takes all; {UNIFORM_NAME} gives the log of the number of visible keys "
            f"in nats, 1 where normalised (dashed). {checked(study)} {COUNTED_FROM}",
            alt=f"Dot plot of {panels[0].heading} for {size_of(panels[0])}. Mean by layer: "
            + ", ".join(f"{name}: {mean:.2f}" for name, mean in zip(panels[0].layers, means, strict=True)),
            table=table.reset_index(drop=True),
        )
    return figure


def _by_layer(axes: Axes, values: HeadValues) -> None:
    layers, heads = values.shape
    layer, head = np.indices(values.shape)
    x = layer + (head - (heads - 1) / 2) / max(1, heads) * 0.72
    if values.low is not None and values.high is not None:
        axes.vlines(x.ravel(), values.low.ravel(), values.high.ravel(), color=FAINT, linewidth=0.5)
    dot = max(2.2, min(9.0, 560 / values.value.size))
    axes.scatter(x.ravel(), values.value.ravel(), s=dot, color=BLUE, linewidth=0, zorder=3, label="head", clip_on=False)
    _name_extremes(axes, x, values)
    means = [np.nanmean(row) if np.isfinite(row).any() else np.nan for row in values.value]
    axes.plot(
        range(layers), means, color=VERMILION, linewidth=1.1, marker="_", markersize=9, zorder=2, label="mean of layer"
    )
    if values.chance is not None:
        axes.axhline(values.chance, color=SOFT, linewidth=0.7, linestyle=(0, (4, 2)), zorder=1)
        note(
            axes,
            values.chance_name,
            (1, values.chance),
            (-2, 2),
            xycoords=("axes fraction", "data"),
            ha="right",
            **FAINTLY,
        )
    every = 1 if layers <= 16 else 2 if layers <= 32 else 5
    axes.set_xticks(range(0, layers, every), labels=values.layers[::every])
    axes.tick_params(axis="x", labelrotation=90 if any(" " in name for name in values.layers) else 0)
    axes.set(xlim=(-0.6, layers - 0.4), xlabel="Layer", ylabel=values.heading)
    top = max(float(np.nanmax(values.value, initial=0.0)), values.chance or 0.0)
    axes.set_ylim(min(0.0, float(np.nanmin(values.value, initial=0.0))), top * 1.1)
    axes.grid(axis="y")
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
        handlelength=1.2,
        columnspacing=1.2,
        borderaxespad=0.1,
        fontsize=TINY,
    )


def _name_extremes(axes: Axes, x: np.ndarray, values: HeadValues) -> None:
    """Names at the lowest and the highest dot."""
    if not np.isfinite(values.value).any():
        return
    for place, above in ((int(np.nanargmin(values.value)), (5, 2)), (int(np.nanargmax(values.value)), (0, 3.5))):
        at = np.unravel_index(place, values.shape)
        side = "left" if above[0] else "center"
        note(axes, head_name(*at), (x[at], values.value[at]), above, ha=side, **FAINTLY)
