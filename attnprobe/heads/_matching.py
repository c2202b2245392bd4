"""Which head of one model does most nearly what a head of another does: a one-to-one assignment by distance."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import xarray as xr
from scipy.optimize import linear_sum_assignment
from scipy.special import entr

from attnprobe.errors import InputError, explain
from attnprobe.records import Study


def match_heads(a: Study, b: Study) -> xr.Dataset:
    """`/matches` of a comparison: for each head of `a` the head of `b` it is matched with, the sum of all distances being least.

    Distance is that of the patterns on example sentences that both studies hold with the same tokens: root of the mean Jensen-Shannon
    divergence of their rows (in 0..0.83). Without such sentences it is the Euclidean distance of their metrics, each scaled to deviation 1 over
    all heads. `distance_same` is that to the head of the same place. NaN for heads that are left over or not there.
    """
    found = _pattern_distance(a, b)
    method, unit = f"Jensen-Shannon distance of patterns on {found[1]} example sentences", "square root of nats"
    distance = found[0]
    if distance is None:
        distance = _profile_distance(a["metrics"], b["metrics"])
        method, unit = "Euclidean distance of metric profiles, each metric scaled to deviation 1", "deviations"
    shapes = [tuple(study["metrics"].sizes[dim] for dim in ("layer", "head")) for study in (a, b)]
    known = np.isfinite(distance)
    rows, columns = np.flatnonzero(known.any(1)), np.flatnonzero(known.any(0))
    picked = linear_sum_assignment(distance[np.ix_(rows, columns)])
    assigned = np.full(distance.shape[0], -1)
    assigned[rows[picked[0]]] = columns[picked[1]]
    return _table(distance, assigned, shapes, {"method": method, "unit": unit})


def _table(
    distance: np.ndarray, assigned: np.ndarray, shapes: list[tuple[int, ...]], attributes: dict[str, str]
) -> xr.Dataset:
    (layers, heads), of_b = shapes
    taken = assigned >= 0
    place = np.where(taken, assigned, 0)
    own = np.where(taken, distance[np.arange(len(assigned)), place], np.nan)
    same = np.full(shapes[0], np.nan)
    square = distance.reshape(*shapes[0], *of_b)
    for layer in range(min(layers, of_b[0])):
        for head in range(min(heads, of_b[1])):
            same[layer, head] = square[layer, head, layer, head]
    columns: dict[str, Any] = {
        "layer_b": np.where(taken, place // of_b[1], np.nan),
        "head_b": np.where(taken, place % of_b[1], np.nan),
        "distance": own,
        "distance_same": same.ravel(),
    }
    variables = {name: (["layer", "head"], values.reshape(shapes[0])) for name, values in columns.items()}
    return xr.Dataset(variables, {"layer": np.arange(layers), "head": np.arange(heads)}, attrs=attributes)


def _pattern_distance(a: Study, b: Study) -> tuple[np.ndarray | None, int]:
    """[head of a, head of b] over the example sentences in common, and their number."""
    ours, theirs = _examples(a), _examples(b)
    shared = [tokens for tokens in ours if tokens in theirs]
    divergences = [_divergence(ours[tokens], theirs[tokens]) for tokens in shared]
    if not divergences:
        return None, 0
    rows = np.array([len(json.loads(tokens)) for tokens in shared], dtype=np.float64)
    return np.sqrt(np.tensordot(rows / rows.sum(), np.stack(divergences), 1)), len(shared)


def _examples(study: Study) -> dict[str, np.ndarray]:
    """Patterns by their tokens, [head query key], rows summing to 1; a row or head without weight is NaN."""
    if "examples" not in study:
        return {}
    found = {}
    for example in study["examples"].children.values():
        pattern = example["pattern"].values.astype(np.float64)
        total = pattern.sum(-1, keepdims=True)
        pattern = np.divide(pattern, total, out=np.full(pattern.shape, np.nan), where=total > 0)
        found[str(example.attrs["tokens"])] = pattern.reshape(-1, *pattern.shape[2:])
    return found


def _divergence(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Mean over rows of the Jensen-Shannon divergence of each head of `a` from each of `b`, in nats."""
    own_a, own_b = entr(a).sum(-1), entr(b).sum(-1)
    result = np.full((len(a), len(b)), np.nan)
    for i, pattern in enumerate(a):  # one head at a time: all pairs of a large model would not fit
        rows = entr((pattern + b) / 2).sum(-1) - (own_a[i] + own_b) / 2
        counted = np.isfinite(rows)
        total, n = np.where(counted, rows, 0.0).sum(-1), counted.sum(-1)
        result[i] = np.divide(total, n, out=np.full(len(b), np.nan), where=n > 0)
    return np.maximum(result, 0.0)


def _profile_distance(a: xr.Dataset, b: xr.Dataset) -> np.ndarray:
    """[head of a, head of b] by the metrics that both hold."""
    names = [name for name in map(str, a.data_vars) if name in b and not name.endswith(("_low", "_high", "count"))]
    tables = [_profiles(table, names) for table in (a, b)]
    both = np.concatenate(tables)
    spread = np.nanstd(both, 0)
    varied = spread > 0
    if not varied.any():
        what = "cannot match the heads of these studies"
        raise InputError(explain(what, expected="metrics or example sentences in common", got="neither"))
    ours, theirs = (table[:, varied] / spread[varied] for table in tables)
    squared = np.square(ours[:, None] - theirs[None])
    squared[:, :, np.isnan(both).all(0)[varied]] = 0.0
    return np.sqrt(squared.sum(-1))


def _profiles(table: xr.Dataset, names: list[str]) -> np.ndarray:
    """[head feature], every metric and every place of its extra dimension a feature."""
    kept = table.sel(sinks="kept") if "sinks" in table.dims else table
    columns = []
    for name in names:
        values = kept[name]
        rest = [dim for dim in values.dims if dim not in ("layer", "head")]
        flat = values.transpose("layer", "head", *rest).values
        columns.append(flat.reshape(flat.shape[0] * flat.shape[1], -1))
    return np.concatenate(columns, axis=1)
