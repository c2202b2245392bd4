"""The probe panel of a head's sheet: what can be read off its output, beside the verdict that joins this with where it looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attnprobe.records import Study
from attnprobe.report._figure_bars import FAILED, PASSED
from attnprobe.report._figure_colours import INK, RULE, SOFT
from attnprobe.report._figure_grid import number
from attnprobe.report._figure_paper import POINT, SMALL, TINY, PaperFigure, note, shortened, text_width
from attnprobe.report._payload_profiles import KINDS, records_of

PITCH = 0.16
"""Distance of two bars, in inches."""
LINE = 0.112
"""Distance of two lines of text, in inches."""
NUMBERS = (
    *("accuracy", "accuracy_low", "accuracy_high", "control", "selectivity", "selectivity_low", "selectivity_high"),
    *("selectivity_q", "majority", "n"),
)


def probes_of(study: Study, layer: int, head: int) -> tuple[pd.DataFrame, str]:
    """One row for each task probed, as `/profiles` judges it, and the verdict; empty where the study has no profiles."""
    records = records_of(study) if "probes" in study else None
    if records is None or layer >= len(records) or head >= len(records[layer]):
        return pd.DataFrame(), ""
    record = records[layer][head]
    site = str(study["profiles"].attrs.get("site", ""))
    rows = [
        {"panel": "probes", "kind": kind, "task": task["task"], "site": site, "holds": task["holds"], "unit": "share"}
        | {name: task.get(name, np.nan) for name in NUMBERS}
        for kind in KINDS
        for task in record.get(kind, {}).get("probe", [])
    ]
    return pd.DataFrame(rows), str(record.get("verdict", ""))


def rows_high(frame: pd.DataFrame, width: str) -> float:
    """Height in inches that the panel takes below the others."""
    if frame.empty:
        return 0.0
    return 0.72 + PITCH * max(len(frame), 3) + (0.0 if width == "double" else 0.75)


def draw_probes(figure: PaperFigure, frame: pd.DataFrame, verdict: str, room: float) -> None:
    """Accuracy with interval, control and majority by task, selectivity in numbers, the verdict at the right or, in a narrow column, below."""
    wide, high = figure.get_size_inches()
    double, count = wide > 5, len(frame)
    left, across = 0.95, (2.1 if double else wide - 2.15)
    axes = figure.inches(left, high - room + 0.25, across, PITCH * max(count, 3))
    y = np.arange(count)
    axes.barh(y, frame["accuracy"], height=0.64, color=[PASSED if held else FAILED for held in frame["holds"]])
    axes.hlines(y, frame["accuracy_low"], frame["accuracy_high"], color=INK, linewidth=0.7)
    axes.vlines(frame["majority"], y - 0.42, y + 0.42, color=INK, linewidth=1.2)
    axes.plot(frame["control"], y, linestyle="", marker="D", markersize=3, color="white", markeredgecolor=INK)
    axes.set(ylim=(max(count, 3) - 0.5, -0.5), xlim=(0, 1), xlabel="Accuracy of the probe (share of cases)")
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], labels=["0", "0.25", "0.5", "0.75", "1"])
    axes.set_yticks(y, labels=[shortened(figure.fonts.shown(str(name)), 62, TINY) for name in frame["task"]])
    axes.tick_params(axis="y", length=0, labelsize=TINY)
    axes.grid(axis="x", color=RULE)
    _explain(axes)
    note(axes, "Selectivity [95 %]", (1, -0.5), (78, 4), xycoords=("axes fraction", "data"), ha="right", fontsize=TINY, color=SOFT)  # fmt: skip
    for place, row in enumerate(frame.itertuples()):
        text = f"{number(row.selectivity, signed=True)} [{number(row.selectivity_low)}, {number(row.selectivity_high)}]"
        note(axes, text, (1, place), (78, 0), xycoords=("axes fraction", "data"), ha="right", va="center_baseline", fontsize=TINY)  # fmt: skip
    x, top = (4.45, high - room + 0.14) if double else (0.1, high - room + 0.67 + PITCH * max(count, 3))
    text = figure.fonts.shown(f"Verdict: {verdict}".replace("->", "→"))
    lines = _lines(text, (wide - x - 0.1) * POINT, int((high - top - 0.05) / LINE))
    figure.text(x / wide, 1 - top / high, "\n".join(lines), size=SMALL, va="top", linespacing=1.25)


def _lines(text: str, room: float, most: int) -> list[str]:
    """The text in lines at most `room` points wide; the last of `most` ends in an ellipsis where there is more."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".lstrip()
        if text_width(longer, SMALL) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    rest = " ".join(lines[most - 1 :])
    return [shortened(line, room, SMALL) for line in ([*lines[: most - 1], rest] if rest else lines)]


def _explain(axes: Axes) -> None:
    handles: list[Any] = [Patch(color=PASSED, label="holds"), Patch(color=FAILED, label="does not")]
    marks: dict[str, Any] = {"color": INK, "linewidth": 0}
    handles.append(Line2D([], [], marker="D", markersize=3, markerfacecolor="white", label="control", **marks))
    handles.append(Line2D([], [], marker="|", markersize=5, markeredgewidth=1.2, label="majority", **marks))
    tight: dict[str, Any] = {"handlelength": 0.8, "handletextpad": 0.3, "columnspacing": 0.7, "borderaxespad": 0.0}
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.3, 1), ncols=4, fontsize=TINY, borderpad=0.0, **tight)  # fmt: skip


def probes_text(frame: pd.DataFrame, verdict: str) -> str:
    """What the caption says of the panel; empty where it is not drawn."""
    if frame.empty:
        return ""
    counts = ", ".join(f"{row.task}: n = {row.n:,.0f}" for row in frame.itertuples())
    return (
        f"Probes on {frame['site'].iloc[0]} ({counts}): accuracy on the report split, ◆ the same probe on meaningless labels, black mark the "
        "commonest class; selectivity: accuracy minus control. Green: selectivity over 0 (false discovery rate .05) and accuracy over majority "
        f"and random weights. Verdict: {verdict.replace('->', '→')}. "
    )
