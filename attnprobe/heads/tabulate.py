"""From sums to labelled tables: the `/metrics`, `/metrics_by_split`, `/relations` and `/best` groups of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.heads.baselines import Baselines, array_with_all, stacked, with_all
from attnprobe.heads.metrics import OFFSETS
from attnprobe.heads.relations import RIVALS
from attnprobe.heads.tables import DIRECTIONS, SPLIT_NAMES, RelationSums, ShardSums
from attnprobe.registry import METRICS, RELATIONS
from attnprobe.stream import RatioSums, holm, p_value, t_quantile

SPLITS = (*SPLIT_NAMES, "all")
SINK_VIEWS = ("kept", "removed")
MARGIN = 0.05
"""Gain over the baseline, on `select`, from which a (relation, head, direction) is carried forward to be tested on `report`."""
MINIMUM_N = 100
"""Cases on `report` under which nothing is tested or labelled."""
NONE = -1
"""Layer and head in `/best` of a relation for which none was chosen."""


def layer_coordinates(sums: ShardSums) -> dict[str, Any]:
    """Coordinates of the `layer` and `head` dimensions."""
    return {
        "layer": np.arange(len(sums.modules)),
        "kind": ("layer", [kind for kind, _, _ in sums.modules]),
        "index": ("layer", [index for _, index, _ in sums.modules]),
        "head": np.arange(max(heads for _, _, heads in sums.modules)),
    }


def metric_tables(sums: ShardSums) -> tuple[xr.Dataset, xr.Dataset]:
    """`/metrics` over the whole corpus, and `/metrics_by_split` with every split, each metric with interval and count."""
    coordinates = layer_coordinates(sums)
    whole: dict[str, Any] = {}
    split: dict[str, Any] = {}
    for name in dict.fromkeys(key.removesuffix("@removed") for key in sums.metrics):
        entry = METRICS[name]
        views = [key for key in (name, f"{name}@removed") if key in sums.metrics]
        of_views = [with_all(sums.metrics[key]) for key in views]
        dims = ["split", "layer", "head", *([entry.extra[0]] if entry.extra else [])]
        arrays = [(s.ratio, *s.interval(entry.limits), s.n) for s in of_views]
        if len(views) == 2:
            joined = [np.stack(pair, axis=3) for pair in zip(*arrays, strict=True)]
            dims.insert(3, "sinks")
            coordinates["sinks"] = list(SINK_VIEWS)
        else:
            joined = list(arrays[0])
        if entry.extra:
            coordinates[entry.extra[0]] = list(entry.extra[1])
        attributes = {"unit": entry.unit, "limits": _limits(entry.limits), "source": entry.source}
        for suffix, values in zip(("", "_low", "_high", "_count"), joined, strict=True):
            own = {"unit": "rows"} if suffix == "_count" else attributes
            split[name + suffix] = (dims, values, own)
            whole[name + suffix] = (dims[1:], values[-1], own)
    rows = next((value for key, value in whole.items() if key == "entropy_count"), None)
    if rows is not None:
        whole["count"] = rows
    used = {dim for dims, *_ in whole.values() for dim in dims}
    kept = {key: value for key, value in coordinates.items() if key in used or key in ("kind", "index")}
    return xr.Dataset(whole, kept), xr.Dataset(split, {**kept, "split": list(SPLITS)})


def _limits(limits: tuple[float | None, float | None]) -> np.ndarray:
    low, high = limits
    return np.array([-np.inf if low is None else low, np.inf if high is None else high])


def relation_table(sums: ShardSums, scorers: Sequence[str], *, margin: float = MARGIN) -> xr.Dataset | None:
    """`/relations`: hits, accuracies, baselines, differences and tests; None where the corpus held no relation."""
    if not sums.relations:
        return None
    names = _ordered(sums.relations)
    hits = with_all(stacked([sums.relations[name].hits for name in names], axis=2))
    ties, empty = (
        array_with_all(np.stack([getattr(sums.relations[name], part) for name in names], axis=2), 0)
        for part in ("ties", "empty")
    )
    # split scorer relation direction layer head
    low, high = hits.interval()
    baselines = Baselines.of([sums.relations[name] for name in names])
    n = baselines.n
    d, error = baselines.differences(hits)
    half = t_quantile(hits.clusters) * error
    p = _adjusted(hits, d, error, n, _repeats(names, sums.relations), margin)
    full = ["split", "scorer", "relation", "direction", "layer", "head"]
    variables = {
        "hits": (full, hits.y, {"unit": "cases"}),
        "n": (["split", "relation"], n, {"unit": "cases"}),
        "clusters": (["split", "relation"], baselines.offsets.clusters[..., 0], {"unit": "clusters"}),
        "accuracy": (full, hits.ratio, {"unit": "share", "limits": np.array([0.0, 1.0])}),
        "low": (full, low),
        "high": (full, high),
        **baselines.variables(),
        "difference": (full, d, {"unit": "share", "note": "accuracy minus baseline on the same cases"}),
        "difference_low": (full, np.clip(d - half, -1, 1)),
        "difference_high": (full, np.clip(d + half, -1, 1)),
        "p_adjusted": (full[1:], p, {"note": _TESTED}),
        "ties": (full, ties, {"unit": "cases", "note": "greatest weight shared; the lowest index was taken"}),
        "no_mass": (full, empty, {"unit": "cases", "note": "no weight on any candidate; counted as wrong"}),
    }
    coordinates = {
        **layer_coordinates(sums),
        "split": list(SPLITS),
        "scorer": list(scorers),
        "relation": names,
        "relation_kind": ("relation", [RELATIONS[name.partition(":")[0]].kind for name in names]),
        "direction": list(DIRECTIONS),
        "offset": list(OFFSETS),
        "rival": list(RIVALS),
    }
    return xr.Dataset(variables, coordinates, attrs={"margin": margin, "minimum_n": MINIMUM_N})


_TESTED = "report split, one-sided, Holm over what select carried forward; NaN: not tested"


def best_table(relations: xr.Dataset) -> xr.Dataset:
    """`/best`: for each relation the scorer, direction and head chosen on `select`, and what it does on `report`.

    Where `select` holds no case nothing is chosen: layer and head are -1, names "", and all but the counts is NaN.
    """
    accuracy = relations["accuracy"].sel(split="select").transpose("relation", "scorer", "direction", "layer", "head")
    shape = accuracy.shape[1:]
    flat = np.where(np.isnan(accuracy.values), -1.0, accuracy.values).reshape(len(accuracy), -1)
    places = np.unravel_index(flat.argmax(1), shape)
    index = [xr.DataArray(place, dims="relation") for place in places]
    everything = np.arange(len(accuracy))
    n_select = relations["n"].sel(split="select").values
    chosen = n_select > 0

    def at(name: str, split: str | None) -> np.ndarray:
        array = relations[name] if split is None else relations[name].sel(split=split)
        array = array.transpose("relation", "scorer", "direction", "layer", "head")
        return np.where(chosen, array.values[(everything, *[i.values for i in index])], np.nan)

    columns: dict[str, Any] = {
        "scorer": np.where(chosen, relations["scorer"].values[places[0]].astype(str), ""),
        "direction": np.where(chosen, relations["direction"].values[places[1]].astype(str), ""),
        "layer": np.where(chosen, places[2], NONE),
        "head": np.where(chosen, places[3], NONE),
        "accuracy_select": at("accuracy", "select"),
        "n_select": n_select,
        "accuracy": at("accuracy", "report"),
        "low": at("low", "report"),
        "high": at("high", "report"),
        "n": relations["n"].sel(split="report").values,
        "baseline": relations["baseline"].sel(split="report").values,
        "baseline_offset": relations["baseline_offset"].sel(split="report").values,
        "baseline_name": relations["baseline_name"].sel(split="report").values,
        "difference": at("difference", "report"),
        "difference_low": at("difference_low", "report"),
        "difference_high": at("difference_high", "report"),
        "p_adjusted": at("p_adjusted", None),
    }
    return xr.Dataset(
        {name: ("relation", values) for name, values in columns.items()}, {"relation": relations["relation"].values}
    )


def _ordered(relations: Mapping[str, RelationSums]) -> list[str]:
    """Families in the order they were registered, commonest relations first."""
    families = RELATIONS.names()

    def key(name: str) -> tuple[int, float, str]:
        return families.index(name.partition(":")[0]), -float(relations[name].offsets.n[..., 0].sum()), name

    return sorted(relations, key=key)


def _repeats(names: list[str], relations: Mapping[str, RelationSums]) -> np.ndarray:
    """Relations that hold the very cases of one before them (a universal relation with one full label): tested once."""
    repeats = np.zeros(len(names), dtype=bool)
    for i, name in enumerate(names):
        ours = relations[name]
        for other in names[:i]:
            theirs = relations[other]
            if np.array_equal(ours.offsets.y, theirs.offsets.y) and np.array_equal(ours.hits.y, theirs.hits.y):
                repeats[i] = np.array_equal(ours.offsets.n, theirs.offsets.n)
                break
    return repeats


def _adjusted(
    hits: RatioSums, d: np.ndarray, error: np.ndarray, n: np.ndarray, repeats: np.ndarray, margin: float
) -> np.ndarray:
    """Holm's p on `report` for what `select` carried forward, [scorer relation direction layer head]; NaN elsewhere."""
    select, report = 0, 1
    enough = (n[report] >= MINIMUM_N)[None, :, None, None, None]
    carried = (d[select] >= margin) & enough
    p = np.where(carried, p_value(d[report], error[report], hits.clusters[report]), np.nan)
    first = p.copy()
    first[:, repeats] = np.nan
    adjusted = holm(first)
    for i in np.flatnonzero(repeats):  # a repeat shows the p of the relation it repeats
        same = next(
            j
            for j in range(i)
            if not repeats[j] and np.array_equal(hits.y[:, :, i], hits.y[:, :, j]) and n[-1, i] == n[-1, j]
        )
        adjusted[:, i] = adjusted[:, same]
    return adjusted
