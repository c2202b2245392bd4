"""The heads of a model on the map that clustering made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from matplotlib.axes import Axes

from attnprobe.errors import InputError, explain
from attnprobe.records import Study
from attnprobe.report._figure_captions import COUNTED_FROM, checked, sample
from attnprobe.report._figure_colours import BLUE, GREEN, MARKERS, ORANGE, PURPLE, RULE, SKY, SOFT, VERMILION
from attnprobe.report._figure_paper import LEAST, POINT, TINY, PaperFigure, column, note, paper, text_width
from attnprobe.report._figure_values import head_name, part

CLUSTER_COLOURS = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, "#333333", "#999999")
Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points."""


def cluster_map(study: Study, *, width: str = "single") -> PaperFigure:
    """Heads placed so that those with like patterns lie near each other, with the cluster of each (colour and shape)."""
    table = part(study, "clusters", "the cluster map")
    frame = _places(table)
    sizes = frame["cluster"].value_counts().sort_index()
    about = table["distance"].attrs if "distance" in table else {}
    unit = f" ({about['unit']})" if about.get("unit") else ""
    with paper("cluster-map", width, min(column(width) * 0.92, 4.6), layout="constrained") as figure:
        axes = figure.add_subplot(xlabel=f"First coordinate{unit}", ylabel=f"Second coordinate{unit}")
        _draw_dots(axes, frame, sizes)
        figure.draw_without_rendering()
        unnamed = _name_dots(axes, frame, POINT / figure.dpi)
        rest = f" {unnamed} heads are unnamed for want of room; the table has them." if unnamed else ""
        measure = f" Distance{unit}: {about['source']}." if about.get("source") else ""
        figure.tell(
            caption=f"{len(frame)} heads of {sample(study)}, near each other where their attention is alike; {len(sizes)} clusters, by colour "
            f"and shape.{measure} The axes have no meaning of their own, and no chance level applies.{rest} {checked(study)} {COUNTED_FROM}",
            alt=f"Scatter of {len(frame)} heads in {len(sizes)} clusters of {', '.join(map(str, sizes))} heads.",
            table=frame,
        )
    return figure


def _places(table: xr.Dataset) -> pd.DataFrame:
    """Layer, head, two coordinates and cluster of every head that has a place."""
    failed = "cannot draw the cluster map"
    for name in ("embedding", "cluster"):
        if name not in table:
            raise InputError(
                explain(failed, expected=f"/clusters with {name}", got=", ".join(map(str, table)) or "none")
            )
    extra = [dim for dim in table["embedding"].dims if dim not in ("layer", "head")]
    if len(extra) != 1 or table.sizes[extra[0]] < 2:
        got = f"dimensions {', '.join(map(str, table['embedding'].dims))}"
        raise InputError(explain(failed, expected="an embedding with two coordinates for each head", got=got))
    place = table["embedding"].transpose("layer", "head", extra[0]).values
    cluster = table["cluster"].transpose("layer", "head").values
    layer, head = (index.ravel() for index in np.indices(cluster.shape))
    at = {"layer": layer, "head": head, "x": place[..., 0].ravel(), "y": place[..., 1].ravel()}
    frame = pd.DataFrame({**at, "cluster": cluster.ravel()})
    return frame[np.isfinite(frame["x"]) & np.isfinite(frame["y"])].reset_index(drop=True)


def _draw_dots(axes: Axes, frame: pd.DataFrame, sizes: pd.Series) -> None:
    for place, (group, count) in enumerate(sizes.items()):
        own = frame[frame["cluster"] == group]
        look: dict[str, Any] = {"marker": MARKERS[place % len(MARKERS)], "label": f"{group} ({count})"}
        look["color"] = CLUSTER_COLOURS[place % len(CLUSTER_COLOURS)]
        axes.scatter(own["x"], own["y"], s=13, linewidth=0.3, edgecolor="white", **look)
    axes.set_aspect("equal", adjustable="datalim")
    axes.grid(color=RULE)
    axes.locator_params(nbins=5)
    spacing: dict[str, Any] = {"handletextpad": 0.1, "columnspacing": 0.8, "borderaxespad": 0.0}
    titled: dict[str, Any] = {"title": "cluster (heads)", "title_fontsize": TINY, "alignment": "left"}
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.01), ncols=6, fontsize=TINY, **titled, **spacing)


def _name_dots(axes: Axes, frame: pd.DataFrame, scale: float) -> int:
    """Names beside the dots where they overlap nothing; returns how many heads are left unnamed."""
    dots = axes.transData.transform(frame[["x", "y"]].to_numpy()) * scale
    taken: list[Box] = [(x - 2, y - 2, x + 2, y + 2) for x, y in dots]
    unnamed = 0
    for (x, y), row in zip(dots, frame.itertuples(), strict=True):
        name = head_name(row.layer, row.head)
        long = text_width(name, LEAST)
        spots = ((3, -2), (-3 - long, -2), (-long / 2, 3), (-long / 2, -7))
        boxes = [(x + right, y + up, x + right + long, y + up + 4) for right, up in spots]
        free = next((place for place, box in enumerate(boxes) if not _overlaps(box, taken)), None)
        if free is None:
            unnamed += 1
        else:
            taken.append(boxes[free])
            note(axes, name, (row.x, row.y), spots[free], fontsize=LEAST, color=SOFT)
    return unnamed


def _overlaps(box: Box, others: Sequence[Box]) -> bool:
    return any(box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in others)
