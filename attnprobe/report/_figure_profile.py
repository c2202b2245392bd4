"""All that is known of one head on one sheet: where it looks, at what, and which relations it follows."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator

from attnprobe.errors import InputError, explain
from attnprobe.records import Study
from attnprobe.report._figure_bars import bars, explain_bars
from attnprobe.report._figure_captions import COUNTED_FROM, checked, intervals, sample
from attnprobe.report._figure_colours import BLUE, FAINT, INK, SOFT
from attnprobe.report._figure_evidence import draw_probes, probes_of, probes_text, rows_high
from attnprobe.report._figure_grid import number
from attnprobe.report._figure_labels import HeadLabels, labels_of
from attnprobe.report._figure_paper import LEAST, POINT, SMALL, TEXT, TINY, PaperFigure, fitting, note, paper, shortened
from attnprobe.report._figure_values import baseline_name, head_name, part, table_of

TARGETS = {"self": "itself", "first": "first token", "cls": "[CLS]", "sep": "[SEP]", "punct": "punctuation"}
MOST = 8
"""Relations shown."""
FACTS = {"entropy": "entropy", "entropy_normalised": "normalised", "distance": "mean distance"}


def head_profile(study: Study, layer: int, head: int, *, width: str = "double") -> PaperFigure:
    """One head: attention by offset, attention to special targets, and the relations it follows best, with labels or the nearest miss.

    Relations are chosen by their gain over the baseline on `select` and shown as on `report`. Of a study with `/probes` and `/profiles`, also
    the probes on the head, with control and selectivity, and the verdict.
    """
    metrics = part(study, "metrics", "the head profile")
    _check_place(metrics, layer, head)
    here = metrics.sel(layer=layer, head=head)
    here = here.sel(sinks="kept") if "sinks" in here.dims else here
    labels = labels_of(study, "the head profile")[layer, head] if "labels" in study else HeadLabels((), None)
    offsets, targets = _bars_of(here, "offset_mass", "offset"), _bars_of(here, "special_mass", "target")
    relations = _relations(study, layer, head)
    probes, verdict = probes_of(study, layer, head)
    panels = [frame for frame in (offsets, targets, relations) if len(frame)]
    if not panels and probes.empty:
        remedy = "Run `attnprobe heads MODEL --out study.nc` with the metrics left at their default"
        expected = "offset_mass, special_mass or /relations"
        raise InputError(explain("cannot draw the head profile", expected=expected, got="none of them", remedy=remedy))
    name = head_name(layer, head)
    words = [
        *relations.get("relation", ()),
        *probes.get("task", ()),
        verdict,
        *(label.text for label in (*labels.labels, *[labels.nearest] * bool(labels.nearest))),
    ]
    room = rows_high(probes, width)
    height = (2.45 if panels else 0.4) if width == "double" else 0.66 + 1.55 * len(panels)
    with paper(f"head-{name}", width, height + room, map(str, words)) as figure:
        _head_line(figure, name, labels, _facts(here))
        for axes, frame in zip(_places(figure, len(panels), room), panels, strict=True):
            _draw_panel(figure, axes, frame)
        if len(probes):
            draw_probes(figure, probes, verdict, room)
        table = pd.concat([*panels, probes], ignore_index=True).assign(layer=layer, head=head)
        figure.tell(
            caption=f"Head {name} of {sample(study)}; {_counted(here)}. {_labels_text(labels)} {_facts(here)}. Attention to the token at each offset "
            "and to each target: share of a row, all sentences (no chance level is defined). Relations: accuracy on the report split, "
            f"chosen by gain on select; black mark: baseline, the best fixed offset or rival rule. {probes_text(probes, verdict)}{intervals(study).capitalize()}. "
            f"{checked(study)} {COUNTED_FROM}",
            alt=f"Profile of head {name}. {_labels_text(labels)} {_facts(here)}."
            + (f" Verdict: {verdict}." if verdict else ""),
            table=table,
        )
    return figure


def _check_place(metrics: xr.Dataset, layer: int, head: int) -> None:
    layers, heads = metrics.sizes["layer"], metrics.sizes["head"]
    if not (0 <= layer < layers and 0 <= head < heads):
        expected = f"a layer from 0 to {layers - 1} and a head from 0 to {heads - 1}"
        raise InputError(explain("there is no such head in the study", expected=expected, got=head_name(layer, head)))


def _bars_of(here: xr.Dataset, metric: str, dim: str) -> pd.DataFrame:
    """One row for each offset or target that is defined; empty where the study lacks the metric."""
    if metric not in here:
        return pd.DataFrame()
    columns = {key: here[metric + suffix].values for key, suffix in _SUFFIXES.items() if metric + suffix in here}
    frame = pd.DataFrame(
        {"panel": metric, dim: here[dim].values, **columns, "unit": str(here[metric].attrs.get("unit", ""))}
    )
    return frame[np.isfinite(frame["value"])]


_SUFFIXES = {"value": "", "low": "_low", "high": "_high", "n": "_count"}


def _relations(study: Study, layer: int, head: int) -> pd.DataFrame:
    """Relations by their gain on `select`, the better direction of each, full labels where there are some; as on `report`."""
    if "relations" not in study:
        return pd.DataFrame()
    table = table_of(study, "relations").sel(layer=layer, head=head).transpose("relation", "scorer", "direction", ...)
    enough = table["n"].sel(split="report").values >= float(table.attrs.get("minimum_n", 100))
    full = any(str(name).startswith("dep:") for name in table["relation"].values)
    gains = np.nan_to_num(table["difference"].sel(split="select").values, nan=-np.inf)
    best = gains.reshape(len(gains), -1).argmax(axis=1)
    scorer, direction = np.unravel_index(best, gains.shape[1:])
    gain = gains[np.arange(len(gains)), scorer, direction]
    rows = []
    for place in np.argsort(-gain, kind="stable"):
        again = full and str(table["relation"].values[place]).startswith("udep:")
        if enough[place] and np.isfinite(gain[place]) and not again:
            cell = table.isel(relation=place, scorer=scorer[place], direction=direction[place])
            rows.append(_relation_row(cell, float(gain[place]), float(table.attrs.get("margin", 0.05))))
    return pd.DataFrame(rows[:MOST])


def _relation_row(cell: xr.Dataset, select_gain: float, margin: float) -> dict[str, object]:
    report = cell.sel(split="report")
    row: dict[str, object] = {"panel": "relations", "select_gain": select_gain, "unit": "share of cases"}
    row |= {name: str(cell[name].values) for name in ("relation", "scorer", "direction")}
    row |= {name: float(report[name]) for name in ("accuracy", "low", "high", "n", "baseline", "difference")}
    p = float(cell["p_adjusted"])
    return {
        **row,
        "baseline_name": baseline_name(report),
        "p_adjusted": p,
        "passed": p < 0.05 and float(report["difference"]) >= margin,
    }


def _head_line(figure: PaperFigure, name: str, labels: HeadLabels, facts: str) -> None:
    """Name and labels at the top, in full as far as they fit; numbers under them."""
    wide, high = figure.get_size_inches()
    figure.text(0.03 / wide, 1 - 0.15 / high, name, size=TEXT + 2, weight="bold", va="center_baseline")
    room = (wide - 0.62) * POINT
    text = shortened(figure.fonts.shown(_short_labels(labels)), room, TEXT)
    figure.text(
        0.6 / wide, 1 - 0.15 / high, text, size=TEXT, va="center_baseline", color=INK if labels.labels else SOFT
    )
    if fitting(facts, room, SMALL) is None:  # a narrow column: without the intervals, which the caption has
        facts = re.sub(r" \[.*?\]", "", facts)
    figure.text(
        0.6 / wide, 1 - 0.29 / high, facts, size=fitting(facts, room, SMALL) or LEAST, va="center_baseline", color=SOFT
    )


def _short_labels(labels: HeadLabels) -> str:
    if labels.labels:
        return ",  ".join(f"{label.short} {number(label.score)}" for label in labels.labels)
    miss = labels.nearest
    return "no label" if miss is None else f"no label; nearest: {miss.short} {number(miss.score)}"


def _labels_text(labels: HeadLabels) -> str:
    if labels.labels:
        return (
            "Labels: "
            + ", ".join(f"{label.text} {number(label.score)}" for label in labels.labels).replace("->", " → ")
            + "."
        )
    miss = labels.nearest
    return "No label." if miss is None else f"No label; nearest: {miss.text.replace('->', ' → ')} {number(miss.score)}."


def _facts(here: xr.Dataset) -> str:
    parts = []
    for name, title in FACTS.items():
        if name in here and np.isfinite(here[name]):
            unit = str(here[name].attrs.get("unit", "")).replace("share", "")
            span = (
                f" [{number(float(here[name + '_low']))}, {number(float(here[name + '_high']))}]"
                if name + "_low" in here
                else ""
            )
            parts.append(f"{title} {number(float(here[name]))}{span} {unit}".rstrip())
    return ", ".join(parts)


def _counted(here: xr.Dataset) -> str:
    return f"{int(here['count']):,} query rows" if "count" in here else "number of query rows not recorded"


def _places(figure: PaperFigure, panels: int, below: float) -> list[Axes]:
    """Axes side by side in a double column, one under the other in a single one; `below`: inches kept free under them."""
    wide, high = figure.get_size_inches() - np.array([0, below])
    if wide < 5:
        return [figure.inches(0.85, 0.6 + 1.55 * place, wide - 0.95, 1.05) for place in range(panels)]
    room = (wide - 0.1) / max(panels, 1)
    sides = [(0.35, 0.5) if place == 0 else (0.75, 0.85) for place in range(panels)]
    return [
        figure.inches(0.1 + room * place + left, 0.62, room - both, high - 1.02)
        for place, (left, both) in enumerate(sides)
    ]


def _draw_panel(figure: PaperFigure, axes: Axes, frame: pd.DataFrame) -> None:
    kind = str(frame["panel"].iloc[0])
    if kind == "relations":
        _draw_relations(figure, axes, frame)
    else:
        (_draw_offsets if kind == "offset_mass" else _draw_targets)(axes, frame)


def _draw_offsets(axes: Axes, frame: pd.DataFrame) -> None:
    axes.bar(frame["offset"], frame["value"], width=0.8, color=BLUE, linewidth=0)
    if "low" in frame:
        axes.vlines(frame["offset"], frame["low"], frame["high"], color=INK, linewidth=0.6)
    axes.axvline(0, color=FAINT, linewidth=0.6, linestyle=(0, (2, 2)))
    axes.set_xticks([-10, -5, -1, 1, 5, 10], labels=["−10", "−5", "−1", "+1", "+5", "+10"])
    axes.set(title="To the token at each offset", xlabel="Offset (tokens)", ylabel="Attention (share)")
    axes.set_ylim(0, max(0.1, float(frame.get("high", frame["value"]).max()) * 1.05))
    _round_ticks(axes.yaxis, 5)
    axes.grid(axis="y")


def _draw_targets(axes: Axes, frame: pd.DataFrame) -> None:
    y, ends = np.arange(len(frame)), frame.get("high", frame["value"])
    axes.barh(y, frame["value"], height=0.64, color=BLUE, linewidth=0)
    if "low" in frame:
        axes.hlines(y, frame["low"], frame["high"], color=INK, linewidth=0.7)
    for place, (value, end) in enumerate(zip(frame["value"], ends, strict=True)):
        note(axes, number(value), (end, place), (3, 0), va="center_baseline", fontsize=TINY)
    names = [TARGETS.get(str(target), str(target)) for target in frame["target"]]
    axes.set_yticks(y, labels=names, fontsize=TINY)
    axes.tick_params(axis="y", length=0)
    axes.set(ylim=(max(len(frame), 3) - 0.5, -0.5), xlim=(0, max(0.1, float(ends.max()) * 1.22)))
    axes.set(title="To each target", xlabel="Attention (share)")
    _round_ticks(axes.xaxis, 4)
    axes.grid(axis="x")


def _draw_relations(figure: PaperFigure, axes: Axes, frame: pd.DataFrame) -> None:
    names = [figure.fonts.shown(name.removeprefix("dep:").replace("ALL", "all")) for name in frame["relation"]]
    arrows = ["↓" if way == "head->dep" else "↑" for way in frame["direction"]]
    bars(axes, frame)
    axes.set_yticks(
        range(len(frame)),
        labels=[f"{shortened(name, 43, TINY)} {arrow}" for name, arrow in zip(names, arrows, strict=True)],
    )
    axes.tick_params(axis="y", length=0, labelsize=TINY)
    axes.set(ylim=(max(len(frame), 3) - 0.5, -0.5), xlim=(0, 1), xlabel="Accuracy (share of cases)")
    explain_bars(axes, at_right=True)


def _round_ticks(axis: Axis, most: int) -> None:
    axis.set_major_locator(MaxNLocator(most))
    axis.set_major_formatter("{x:g}")
