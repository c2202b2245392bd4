"""How much a probe needs to learn: accuracy by the number of examples it was trained on, which the code length adds up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from attnprobe.errors import InputError, explain
from attnprobe.records import Study
from attnprobe.report._figure_captions import COUNTED_FROM, checked, sample
from attnprobe.report._figure_colours import BLUE, FAINT, INK, SOFT, VERMILION
from attnprobe.report._figure_paper import TINY, PaperFigure, note, paper
from attnprobe.report._figure_values import chosen, head_name, part, slug

CURVES = ("curve_accuracy", "control_curve_accuracy")


def learning_curve(
    study: Study, task: str | None = None, *, head: tuple[int, int] | None = None, width: str = "single", **where: Any
) -> PaperFigure:
    """Accuracy of every head's probe by the number of training examples; one head marked, with its control task.

    `task` and `site` are the first of the study unless given (`context`, where it was probed); `head` as (layer, head) is the one with most
    compression of the labels unless given.
    """
    probes = part(study, "probes", "the learning curve")
    if CURVES[0] not in probes or "curve_words" not in probes:
        remedy = "Run `attnprobe probe MODEL --into STUDY.nc`, which adds code lengths and learning curves"
        expected = "probes with curve_accuracy and curve_words"
        raise InputError(explain("cannot draw the learning curve", expected=expected, got="none", remedy=remedy))
    curves = _curves(probes, task, head, where)
    with paper(curves.name, width, 2.2, [curves.task]) as figure:
        wide = figure.get_size_inches()[0]
        axes = figure.inches(0.48, 0.24, wide - 0.95, 1.5)
        _draw(axes, curves)
        axes.set_ylabel(f"Accuracy on {figure.fonts.shown(curves.task)} (share)")
        name, mean = head_name(*curves.head), np.nanmean(curves.value[..., -1])
        own = curves.value[curves.head]
        figure.tell(
            caption=f"Accuracy (share of test items, report split) of a linear probe for {curves.task}{curves.site} by the number of examples it was trained on, "
            f"{sample(study)}; {curves.n} Grey: every head; blue: {name}; dashed: {name} on its control task; dotted: {curves.against}. "
            f"First seed; the study stores no intervals of curves. {checked(study)} {COUNTED_FROM}",
            alt=f"Learning curves of {int(np.isfinite(curves.value[..., -1]).sum())} heads on {curves.task}. {name} rises from {own[0]:.2f} "
            f"at {curves.words[0]:,.0f} examples to {own[-1]:.2f} at {curves.words[-1]:,.0f}; mean of heads at the end {mean:.2f}.",
            table=curves.frame(),
        )
    return figure


@dataclass(frozen=True)
class _Curves:
    name: str
    task: str
    site: str
    words: np.ndarray
    """Examples trained on, rising, [point]."""
    value: np.ndarray
    """[layer head point]"""
    control: np.ndarray
    head: tuple[int, int]
    majority: float
    n: str

    @property
    def against(self) -> str:
        """What the dotted line is."""
        return (
            f"the commonest class (majority), {self.majority:.2f}"
            if np.isfinite(self.majority)
            else "the majority was not recorded"
        )

    def frame(self) -> pd.DataFrame:
        """One row for each head and point."""
        layer, head, point = (places.ravel() for places in np.indices(self.value.shape))
        columns = {"layer": layer, "head": head, "examples": self.words[point], "accuracy": self.value.ravel()}
        return pd.DataFrame({**columns, "control": self.control.ravel(), "task": self.task, "unit": "share"})


def _curves(probes: xr.Dataset, task: str | None, head: tuple[int, int] | None, where: dict[str, Any]) -> _Curves:
    table = probes[CURVES[0]].isel(portion=0, drop=True)
    sites = [str(site) for site in probes["site"].values] if "site" in table.dims else []
    first = {"site": "context" if "context" in sites else sites[0]} if sites else {}
    asked = {"task": str(probes["task"].values[0]) if task is None else task, **first, **where}
    at = chosen(table.rename(CURVES[0]), asked, "the learning curve")
    words = probes["curve_words"].sel(task=at["task"]).values
    points = np.unique(words, return_index=True)[1]  # small shares of a small corpus are one block

    def read(name: str) -> np.ndarray:
        if name not in probes:
            return np.full((probes.sizes["layer"], probes.sizes["head"], len(points)), np.nan)
        return np.asarray(probes[name].sel(at).transpose("layer", "head", "portion").values[..., points])

    value = read(CURVES[0])
    whole = {dim: at[dim] for dim in at}
    chief = probes["compression"].sel(whole).values if "compression" in probes else value[..., -1]
    shown = _place(value, chief) if head is None else _checked(head, value)
    n = float(probes["n"].sel(task=at["task"])) if "n" in probes else np.nan
    return _Curves(
        name=slug("learning-curve", *map(str, at.values())),
        task=at["task"],
        site=f", {at['site']}" if "site" in at else "",
        words=words[points],
        value=value,
        control=read(CURVES[1]),
        head=shown,
        majority=float(probes["majority"].sel(task=at["task"])) if "majority" in probes else np.nan,
        n=f"{n:,.0f} test items." if np.isfinite(n) else "number of test items not recorded.",
    )


def _place(value: np.ndarray, chief: np.ndarray) -> tuple[int, int]:
    known = np.isfinite(chief) & np.isfinite(value[..., -1])
    if not known.any():
        got = "no head with a value"
        raise InputError(explain("cannot draw the learning curve", expected="a head that was probed", got=got))
    layer, head = np.unravel_index(int(np.argmax(np.where(known, chief, -np.inf))), chief.shape)
    return int(layer), int(head)


def _checked(head: tuple[int, int], value: np.ndarray) -> tuple[int, int]:
    layers, heads = value.shape[:2]
    if not (0 <= head[0] < layers and 0 <= head[1] < heads):
        expected = f"a layer from 0 to {layers - 1} and a head from 0 to {heads - 1}"
        raise InputError(explain("there is no such head in the study", expected=expected, got=head_name(*head)))
    return head


def _draw(axes: Axes, curves: _Curves) -> None:
    own, control = curves.value[curves.head], curves.control[curves.head]
    for row in curves.value.reshape(-1, len(curves.words)):
        axes.plot(curves.words, row, color=FAINT, linewidth=0.4, alpha=0.7)
    if np.isfinite(curves.majority):
        axes.axhline(curves.majority, color=SOFT, linewidth=0.8, linestyle=(0, (1, 2)))
    axes.plot(curves.words, control, color=VERMILION, linestyle=(0, (4, 2)), marker="D", markersize=2.5)
    axes.plot(curves.words, own, color=BLUE, linewidth=1.6, marker="o", markersize=3)
    apart = 4 if abs(own[-1] - control[-1]) < 0.06 else 0  # points, so that the two names do not cover each other
    for name, end, colour, up in (
        (head_name(*curves.head), own[-1], BLUE, apart),
        ("control", control[-1], INK, -apart),
    ):
        if np.isfinite(end):
            note(axes, name, (curves.words[-1], end), (4, up), va="center_baseline", fontsize=TINY, color=colour)
    axes.set_xscale("log")
    every = -(-len(curves.words) // 6)
    ticks = curves.words[::-every]
    axes.set_xticks(ticks, labels=[f"{words:,.0f}" for words in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="Training examples (log scale)", ylim=(0, 1))
    axes.grid(axis="y")
