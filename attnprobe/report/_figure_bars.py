"""Relations against their baseline, as bars with intervals; and all that is known of one head on one sheet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from attnprobe.errors import InputError, explain, near_names
from attnprobe.records import Study
from attnprobe.report._figure_captions import COUNTED_FROM, checked, intervals, sample
from attnprobe.report._figure_colours import FAINT, GREEN, INK, RULE, SOFT, tint
from attnprobe.report._figure_paper import POINT, SMALL, TINY, PaperFigure, column, note, paper, shortened, text_width
from attnprobe.report._figure_values import baseline_name, head_name, part

MOST = {"single": 14, "double": 20}
"""Relations shown unless they are chosen."""
PITCH = 0.152
"""Distance of two bars, in inches."""
ARROWS = {"dep->head": "↑", "head->dep": "↓"}
PASSED, FAILED = tint(GREEN, 0.75), tint(FAINT, 0.6)
COLUMNS = ("accuracy", "low", "high", "n", "baseline", "difference", "difference_low", "difference_high", "p_adjusted")


def relation_bars(study: Study, relations: Sequence[str] | None = None, *, width: str = "double") -> PaperFigure:
    """For each relation the head that did best on `select`: its accuracy on `report` with interval, and the baseline it must beat.

    `relations` names them in the order wanted; by default those with enough cases, of syntactic ones
    the commonest and full labels (`dep:`) rather than universal ones.
    Green: the head passes the paired test and gains the margin over the baseline.
    """
    best = part(study, "best", "relation bars")
    table = part(study, "relations", "relation bars")
    shown = _relations(best, table, relations, width)
    rows = [_row(best, name, float(table.attrs.get("margin", 0.05))) for name in shown]
    frame = pd.DataFrame(rows)
    with paper("relation-bars", width, 0.56 + PITCH * len(rows), shown) as figure:
        names = [figure.fonts.shown(_plain(name, shown)) for name in shown]
        _draw_bars(figure, frame, names, width)
        passed = int(frame["passed"].sum())
        few = int((frame["n"] < float(table.attrs.get("minimum_n", 100))).sum())
        none = int((frame["layer"] < 0).sum())
        figure.tell(
            caption=f"Accuracy (share of cases) of the best head for each of {len(frame)} relations, {sample(study)}. Scorer, direction and head "
            f"chosen on the select split, accuracy and n on report; {intervals(study)}. Black mark: baseline, the best fixed offset or rival "
            f"rule chosen on select. Green, {passed} of {len(frame)}: beats it (paired test, p < .05 after Holm, and the margin). "
            + (f"{few} with fewer than {int(table.attrs.get('minimum_n', 100))} cases: not tested. " if few else "")
            + (f"{none} with no case on select: no head was chosen (–). " if none else "")
            + f"↑: where the dependent looks hardest; ↓: which word looks hardest at the dependent. {checked(study)} {COUNTED_FROM}",
            alt=f"Bar chart of {len(frame)} relations; {passed} beat their baseline. "
            + "; ".join(
                f"{row.relation} " + _defined(f"{row.accuracy:.2f} against {row.baseline:.2f}")
                for row in frame.head(8).itertuples()
            ),
            table=frame,
        )
    return figure


def _relations(best: xr.Dataset, table: xr.Dataset, wanted: Sequence[str] | None, width: str) -> list[str]:
    known = [str(name) for name in best["relation"].values]
    if wanted is not None:
        for name in wanted:
            if name not in known:
                raise InputError(f"cannot draw the relation {name!r}: {near_names(name, known)}.")
        if not wanted:
            raise InputError(explain("cannot draw relation bars", expected="at least one relation", got="none"))
        return list(wanted)
    column(width)
    enough = (best["n"].values >= float(table.attrs.get("minimum_n", 100))) & (best["layer"].values >= 0)
    full = any(name.startswith("dep:") for name in known)
    kept = [name for name, ok in zip(known, enough, strict=True) if ok and not (full and name.startswith("udep:"))]
    kept = kept or known
    others = [name for name in kept if name.partition(":")[0] not in ("dep", "udep")][: MOST[width]]
    trees = [name for name in kept if name not in others][: MOST[width] - len(others)]
    return [name for name in kept if name in trees or name in others]


def _plain(name: str, among: Sequence[str]) -> str:
    """The name without `dep:`, where all names shown are of one family of dependencies."""
    alike = not any(other.startswith("udep:") for other in among)
    return name.removeprefix("dep:").replace("ALL", "all relations") if alike and name.startswith("dep:") else name


def _row(best: xr.Dataset, name: str, margin: float) -> dict[str, object]:
    here = best.sel(relation=name)
    row: dict[str, object] = {"relation": name, "layer": int(here["layer"]), "head": int(here["head"])}
    row |= {"direction": str(here["direction"].values), "scorer": str(here["scorer"].values)}
    row |= {key: float(here[key]) for key in COLUMNS}
    row["baseline_name"] = baseline_name(here)
    row["passed"] = bool(here["p_adjusted"] < 0.05 and here["difference"] >= margin)
    return {**row, "unit": "share of cases"}


def _draw_bars(figure: PaperFigure, frame: pd.DataFrame, names: list[str], width: str) -> None:
    """Names at the left, bars, numbers at the right: all of them in a double column, the counts in a single one."""
    wide = column(width)
    left = min(1.35, max(text_width(name, SMALL) for name in names) / POINT + 0.08)
    start, right = left + 0.5, 1.78 if width == "double" else 0.42
    axes = figure.inches(
        start, 0.2, wide - start - right, PITCH * len(frame), xlim=(0, 1), ylim=(len(frame) - 0.5, -0.5)
    )
    bars(axes, frame)
    explain_bars(axes)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("Accuracy (share of cases)")
    rows = list(frame.itertuples())
    heads = [f"{head_name(row.layer, row.head)} {ARROWS[row.direction]}" if row.layer >= 0 else "–" for row in rows]
    _write_column(axes, -0.5 * POINT - 2, "Relation", [shortened(name, (left - 0.06) * POINT, SMALL) for name in names])
    _write_column(axes, -4, "Head", heads, SOFT)
    end = (wide - start - right) * POINT
    counts = [f"{row.n:,.0f}" for row in rows]
    if width == "double":
        _write_column(
            axes,
            end + 74,
            "Accuracy [95 %]",
            [_defined(f"{row.accuracy:.2f} [{row.low:.2f}, {row.high:.2f}]") for row in rows],
        )
        gains = [_defined(f"{100 * row.difference:+.0f}".replace("-", "−")) for row in rows]
        _write_column(axes, end + 98, "Gain", gains)
    _write_column(axes, end + (126 if width == "double" else 28), "n", counts, SOFT)


def _defined(text: str) -> str:
    return "–" if "nan" in text else text


def _write_column(axes: Axes, right: float, heading: str, texts: Sequence[str], colour: str = INK) -> None:
    """A column of texts beside the bars, its right edge `right` points from where the bars begin."""
    at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right"}
    note(axes, heading, (0, -0.5), (right, 4), fontsize=TINY, color=SOFT, **at)
    for place, text in enumerate(texts):
        note(axes, text, (0, place), (right, 0), va="center_baseline", fontsize=SMALL, color=colour, **at)


def bars(axes: Axes, frame: pd.DataFrame) -> None:
    """Bars of accuracy with intervals, and a black mark at each baseline."""
    y = np.arange(len(frame))
    colours = [PASSED if passed else FAILED for passed in frame["passed"]]
    axes.barh(y, frame["accuracy"], height=0.64, color=colours, linewidth=0)
    axes.hlines(y, frame["low"], frame["high"], color=INK, linewidth=0.7)
    axes.vlines(frame["baseline"], y - 0.42, y + 0.42, color="white", linewidth=2.6)
    axes.vlines(frame["baseline"], y - 0.42, y + 0.42, color=INK, linewidth=1.2)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1.0], labels=["0", "0.25", "0.5", "0.75", "1"])
    axes.grid(axis="x", color=RULE)


def explain_bars(axes: Axes, *, at_right: bool = False) -> None:
    """What colours and marks mean, above the bars."""
    handles: list[Artist] = [Patch(color=PASSED, label="beats baseline"), Patch(color=FAILED, label="does not")]
    handles.append(
        Line2D([], [], color=INK, linewidth=0, marker="|", markersize=5, markeredgewidth=1.2, label="baseline")
    )
    spacing: dict[str, Any] = {
        "handlelength": 0.8,
        "handletextpad": 0.4,
        "columnspacing": 1.0,
        "borderaxespad": 0.0,
        "borderpad": 0.0,
    }
    axes.legend(
        handles=handles,
        loc="lower right" if at_right else "lower left",
        bbox_to_anchor=(float(at_right), 1),
        ncols=3,
        fontsize=TINY,
        **spacing,
    )
