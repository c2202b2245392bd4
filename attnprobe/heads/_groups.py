"""Totals of groups of clusters: what two studies of one corpus must keep so that their difference can be tested cluster by cluster.

A study holds sums over all clusters, from which no covariance between two studies can be had. A shard is a run of whole clusters, the same
in every study of one plan, so totals of shards, joined to at most `GROUPS`, are paired samples of bounded size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from attnprobe.heads.tables import DIRECTIONS, SPLIT_NAMES, ShardSums
from attnprobe.heads.tabulate import layer_coordinates
from attnprobe.registry import METRICS
from attnprobe.stream import t_quantile

GROUPS = 64
"""Most groups; shard i goes to group i modulo this."""


class GroupTotals:
    """Takes the sums of shards in the order of the plan and ends with `/totals`."""

    def __init__(self, groups: int = GROUPS) -> None:
        self.groups = groups
        self._sums: dict[int, ShardSums] = {}

    def add(self, index: int, sums: ShardSums) -> None:
        """The sums of shard `index`."""
        group = index % self.groups
        self._sums[group] = self._sums[group].merge(sums) if group in self._sums else sums

    def finish(self, scorers: tuple[str, ...]) -> xr.Dataset:
        """`<metric>_total` and `<metric>_n` (group, split, layer, head), `hits` and `cases` of relations; the view with sinks kept."""
        parts = [self._sums[group] for group in sorted(self._sums)]
        coordinates = {**layer_coordinates(parts[0]), "split": list(SPLIT_NAMES)}
        variables: dict[str, Any] = {}
        for name in (name for name in parts[0].metrics if "@" not in name):
            extra = METRICS[name].extra
            dims = ["group", "split", "layer", "head", *([extra[0]] if extra else [])]
            coordinates |= {extra[0]: list(extra[1])} if extra else {}
            variables[f"{name}_total"] = (dims, np.stack([part.metrics[name].y for part in parts]))
            variables[f"{name}_n"] = (dims, np.stack([part.metrics[name].n for part in parts]))
        relations = list(dict.fromkeys(name for part in parts for name in part.relations))
        if relations:
            coordinates |= {"relation": relations, "scorer": list(scorers), "direction": list(DIRECTIONS)}
            variables |= _relation_totals(parts, relations)
        table = xr.Dataset(variables, coordinates, attrs={"groups": len(parts)})
        for variable in table.data_vars.values():
            variable.encoding = {"zlib": True, "complevel": 4}
        return table


def _relation_totals(parts: list[ShardSums], relations: list[str]) -> dict[str, Any]:
    some = next(part.relations[name].hits.y for part in parts for name in part.relations)
    hits = np.zeros((len(parts), len(relations), *some.shape), np.uint32)
    cases = np.zeros((len(parts), len(relations), len(SPLIT_NAMES)), np.uint32)
    for group, part in enumerate(parts):
        for name, sums in part.relations.items():
            hits[group, relations.index(name)] = sums.hits.y
            cases[group, relations.index(name)] = sums.offsets.n[..., 0]
    dims = ["group", "relation", "split", "scorer", "direction", "layer", "head"]
    return {"hits": (dims, hits), "cases": (dims[:3], cases)}


def paired_difference(
    y_a: xr.DataArray, n_a: xr.DataArray, y_b: xr.DataArray, n_b: xr.DataArray
) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """y_b / n_b - y_a / n_a over `group`, with its 95 % interval from the groups' residuals; NaN with fewer than two groups."""
    totals = [values.sum("group") for values in (y_a, n_a, y_b, n_b)]
    (a, all_a), (b, all_b) = ((y / n.where(n > 0), n.where(n > 0)) for y, n in (totals[:2], totals[2:]))
    residuals = (y_b - b * n_b) / all_b - (y_a - a * n_a) / all_a
    groups = ((n_a > 0) | (n_b > 0)).sum("group")
    factor = (groups / (groups - 1).where(groups > 1)).astype(float)
    error = np.sqrt(factor * (residuals * residuals).sum("group"))
    half = xr.apply_ufunc(t_quantile, groups) * error
    return b - a, b - a - half, b - a + half
