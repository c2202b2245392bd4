"""What one shard of a corpus leaves behind (`ShardSums`), and how shards are added up. NumPy only."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np

from attnprobe.stream import RatioSums

SPLIT_NAMES = ("select", "report")
DIRECTIONS = ("dep->head", "head->dep")


@dataclass(frozen=True)
class RivalSums:
    """Sums of a relation's own baselines, where its family has any."""

    hits: RatioSums
    """Over (split, rival)."""
    product: np.ndarray
    """Sum over clusters of head hits times rival hits, [split scorer direction layer head rival]."""

    def merge(self, other: RivalSums) -> RivalSums:
        return RivalSums(self.hits.merge(other.hits), self.product + other.product)


@dataclass(frozen=True)
class RelationSums:
    """Sums of one relation: arrays over (split, scorer, direction, layer, head) for heads, (split, offset) for offsets."""

    hits: RatioSums
    offsets: RatioSums
    product: np.ndarray
    """Sum over clusters of head hits times offset hits, [split scorer direction layer head offset]."""
    ties: np.ndarray
    """Cases whose greatest weight is shared by several candidates; the lowest index was taken."""
    empty: np.ndarray
    """Cases with no weight on any candidate; counted as wrong."""
    chance: np.ndarray
    """Cases that a random choice among the candidates would get right on average, [split]."""
    rivals: RivalSums | None = None

    def merge(self, other: RelationSums) -> RelationSums:
        return RelationSums(
            self.hits.merge(other.hits),
            self.offsets.merge(other.offsets),
            self.product + other.product,
            self.ties + other.ties,
            self.empty + other.empty,
            self.chance + other.chance,
            None if self.rivals is None or other.rivals is None else self.rivals.merge(other.rivals),
        )


@dataclass(frozen=True)
class ShardSums:
    """All sums of one shard; two are merged by adding, in the order of the plan."""

    metrics: dict[str, RatioSums]
    """Metric name (with `@removed` for the view without sinks) -> sums over (split, layer, head, extra)."""
    relations: dict[str, RelationSums]
    modules: tuple[tuple[str, int, int], ...]
    """Kind, index and number of heads of each attention module."""
    counts: dict[str, float] = field(default_factory=dict)
    """Anything else that is counted: sentences, tokens, unknown tokens, cases left out."""
    extras: dict[str, dict[str, RatioSums | np.ndarray]] = field(default_factory=dict)
    """What the extras of the run measured, by their names: sums that are added up."""

    def merge(self, other: ShardSums) -> ShardSums:
        if self.modules != other.modules:
            raise AssertionError("shards of one run see the same modules")
        return ShardSums(
            {name: self.metrics[name].merge(other.metrics[name]) for name in self.metrics},
            _merge_relations(self.relations, other.relations),
            self.modules,
            {key: self.counts.get(key, 0) + other.counts.get(key, 0) for key in {**self.counts, **other.counts}},
            {name: _merge_extra(sums, other.extras[name]) for name, sums in self.extras.items()},
        )


def _merge_relations(a: dict[str, RelationSums], b: dict[str, RelationSums]) -> dict[str, RelationSums]:
    merged = dict(a)
    for name, sums in b.items():
        merged[name] = merged[name].merge(sums) if name in merged else sums
    return merged


def _merge_extra(
    a: dict[str, RatioSums | np.ndarray], b: dict[str, RatioSums | np.ndarray]
) -> dict[str, RatioSums | np.ndarray]:
    merged: dict[str, RatioSums | np.ndarray] = {}
    for key, sums in a.items():
        other = b[key]
        if isinstance(sums, RatioSums) and isinstance(other, RatioSums):
            merged[key] = sums.merge(other)
        else:
            merged[key] = np.asarray(sums) + np.asarray(other)
    return merged


def fold(shards: Iterable[ShardSums]) -> ShardSums | None:
    """All shards added up in the order given; None where there are none."""
    total: ShardSums | None = None
    for shard in shards:
        total = shard if total is None else total.merge(shard)
    return total


def by_cluster(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Totals of runs of consecutive rows that begin at `starts`, in float64: [row ...] -> [cluster ...]."""
    return np.add.reduceat(values.astype(np.float64, copy=False), starts, axis=0)


def by_split(y: np.ndarray, n: np.ndarray, split: np.ndarray) -> RatioSums:
    """Ratio sums of each split, stacked on a new first axis; `split` gives the split's number for each cluster."""
    parts = []
    for number in range(len(SPLIT_NAMES)):
        chosen = split == number
        parts.append(RatioSums.of(y[chosen], n[chosen]))
    return RatioSums(*(np.stack([getattr(part, f.name) for part in parts]) for f in fields(RatioSums)))


def stack_layers(arrays: list[np.ndarray], axis: int = 1) -> np.ndarray:
    """Layers side by side on a new axis; a layer with fewer heads than the widest is filled with 0 (counts of 0: undefined)."""
    widest = max(array.shape[axis] for array in arrays)
    filled = []
    for array in arrays:
        width = [(0, 0)] * array.ndim
        width[axis] = (0, widest - array.shape[axis])
        filled.append(np.pad(array, width))
    return np.stack(filled, axis=axis)
