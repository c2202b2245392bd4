"""Distributions behind the means: how far a head looks, to which offset, and how spread its rows are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnprobe.attention.call import AttentionCall, Rows
from attnprobe.attention.measures import entropy_of
from attnprobe.heads.prepared import Prepared
from attnprobe.heads.tables import ShardSums, stack_layers
from attnprobe.heads.tabulate import layer_coordinates
from attnprobe.stream import RatioSums
from attnprobe.text.align import Encoded

DISTANCES = (0, 1, 2, 3, 4, 5, 6, 8, 11, 16, 26, 51)
"""Least distance of each bin, in tokens; the last is open."""
ENTROPIES = tuple(round(0.25 * step, 2) for step in range(21))
"""Least entropy of each bin, in nats; the last is open."""
OFFSETS = tuple(range(-10, 11))
"""Signed offsets that have a bin of their own; `beyond` holds the rest."""


class Histograms:
    """Collects mass by distance and by offset, and rows by entropy, over the rows that count."""

    needs_words = False

    def __init__(self, items: Sequence[Encoded]) -> None:
        self._parts: dict[int, dict[str, list[Tensor]]] = {}
        """Layer -> name -> [head bin] of each block of rows, on the device until the end."""

    def rows(self, call: AttentionCall, rows: Rows, prepared: Prepared, members: slice) -> None:
        device = rows.pattern.device
        distance, offset = rows.once("histogram bins", lambda: _bins(rows), of_tokens=True)
        edges = rows.once("entropy bins", lambda: torch.tensor(ENTROPIES, device=device), of_tokens=True)
        kept = rows.pattern * rows.keep[:, None, :, None]
        mass = kept.sum(0)  # [head query key]
        entropy = entropy_of(rows.pattern)
        spread = _binned(entropy.nan_to_num(0.0), edges)
        own = self._parts.setdefault(call.layer, {})
        for name, found in (
            ("distance", _by_bin(mass, distance, len(DISTANCES))),
            ("offset", _by_bin(mass, offset, len(OFFSETS) + 1)),
            ("entropy", _count(spread, rows.keep[:, None], len(ENTROPIES))),
        ):
            own.setdefault(name, []).append(found)

    def words(self, call: AttentionCall, words: Tensor, prepared: Prepared, members: slice) -> None:
        pass

    def finish(self, cluster: np.ndarray, split: np.ndarray) -> dict[str, RatioSums | np.ndarray]:
        layers = sorted(self._parts)
        return {
            name: stack_layers([_added(self._parts[layer][name]) for layer in layers], axis=0)
            for name in ("distance", "offset", "entropy")
        }


def _added(parts: list[Tensor]) -> np.ndarray:
    """Sum of all parts in float64; read off the device at once."""
    total: np.ndarray = torch.stack(parts).cpu().double().numpy().sum(0)
    return total


def _bins(rows: Rows) -> tuple[Tensor, Tensor]:
    """Bin of distance and of offset of every [query key]."""
    device = rows.pattern.device
    away = torch.arange(rows.pattern.shape[-1], device=device) - rows.query_index[:, None]
    distance = _binned(away.abs(), torch.tensor(DISTANCES, device=device))
    return distance, torch.where(away.abs() <= OFFSETS[-1], away - OFFSETS[0], len(OFFSETS))


def _binned(values: Tensor, edges: Tensor) -> Tensor:
    """Place of the last edge that is not over each value."""
    return torch.bucketize(values.to(torch.float32), edges.to(torch.float32), right=True) - 1


def _by_bin(mass: Tensor, bins: Tensor, n: int) -> Tensor:
    """Mass [head query key] summed by the bin of its place [query key]: [head bin]."""
    found = mass.new_zeros(len(mass), n)
    return found.index_add_(1, bins.flatten(), mass.flatten(1))


def _count(bins: Tensor, counted: Tensor, n: int) -> Tensor:
    """Rows [batch head query] by bin: [head bin]."""
    marks = torch.nn.functional.one_hot(bins, n) * counted[..., None]
    return marks.sum((0, 2))


def histogram_table(sums: ShardSums) -> xr.Dataset:
    """`/histograms`: shares of the attention mass by distance and by offset, shares of rows by entropy, [layer head bin]."""
    dims = ["layer", "head"]
    variables: dict[str, Any] = {}
    told = {
        "distance": ("distance_bin", "share of mass", "least distance of the bin, in tokens"),
        "offset": ("offset_bin", "share of mass", "offset in tokens; the last bin holds what lies beyond"),
        "entropy": ("entropy_bin", "share of rows", "least entropy of the bin, in nats"),
    }
    for name, table in sums.extras["histograms"].items():
        dim, unit, about = told[name]
        values = np.asarray(table)
        total = values.sum(-1, keepdims=True)
        shares = np.divide(values, total, out=np.full(values.shape, np.nan), where=total > 0)
        variables[name] = ([*dims, dim], shares, {"unit": unit, "limits": np.array([0.0, 1.0]), "bins": about})
    coordinates = {
        **layer_coordinates(sums),
        "distance_bin": list(DISTANCES),
        "offset_bin": [*map(str, OFFSETS), "beyond"],
        "entropy_bin": list(ENTROPIES),
    }
    return xr.Dataset(variables, coordinates)
