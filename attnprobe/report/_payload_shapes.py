"""More of what the page's figures are drawn from: the map of clusters, the class of each pattern, what importance was measured on."""

from __future__ import annotations

from typing import Any

import numpy as np

from attnprobe.records import Study
from attnprobe.report._arena import Arena, number

Shape = tuple[int, int]


def clusters_of(study: Study, shape: Shape, arena: Arena) -> dict[str, Any] | None:
    """`/clusters`: place, group and distances of all heads; None where the study holds no map of these heads."""
    names = ("distance", "cluster", "embedding")
    if "clusters" not in study or not all(name in study["clusters"] for name in names):
        return None
    table = study["clusters"]
    axes = [str(dim) for dim in table["embedding"].dims if dim not in ("layer", "head")]
    if (table.sizes["layer"], table.sizes["head"]) != shape or len(axes) != 1 or table.sizes[axes[0]] < 2:
        return None
    return {
        "distance": arena.add(table["distance"].values),
        "group": arena.add(table["cluster"].transpose("layer", "head").values),
        "place": arena.add(table["embedding"].transpose("layer", "head", axes[0]).values[..., :2]),
        "silhouette": number(table.attrs.get("silhouette", np.nan)),
    }


def classes_of(study: Study, shape: Shape) -> list[list[str]] | None:
    """`class` of `/patterns`, [layer][head]; None where patterns were not classified."""
    if "patterns" not in study or "class" not in study["patterns"]:
        return None
    values = study["patterns"]["class"].transpose("layer", "head").values
    return [[str(name) for name in row] for row in values] if values.shape == shape else None


def importance_of(study: Study) -> dict[str, Any] | None:
    """What the importance of heads was watched on, and on how many sentences."""
    if "importance" not in study:
        return None
    attributes = study["importance"].attrs
    return {"quantity": str(attributes.get("quantity", "")), "n": number(attributes.get("n", np.nan))}
