"""What a run measures besides metrics and relations where it is asked to, in the same pass or right after it.

Each entry of `EXTRAS` collects sums while the shards run, and makes groups of the study out of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.errors import InputError, near_names
from attnprobe.heads.cases import Cases
from attnprobe.heads.cluster import Clusters, cluster_table
from attnprobe.heads.histograms import Histograms, histogram_table
from attnprobe.heads.label_examples import label_examples
from attnprobe.heads.measure import Collector, ShardMeasurer
from attnprobe.heads.patterns import Patterns, pattern_table
from attnprobe.heads.running import run_through, splits_of
from attnprobe.heads.tables import ShardSums
from attnprobe.heads.trees import Trees, tree_table, with_ensembles
from attnprobe.models.model import Model
from attnprobe.text.align import Encoded
from attnprobe.text.batching import Shard


@dataclass(frozen=True)
class Extra:
    """Something a run can measure besides."""

    about: str
    collect: Callable[[Sequence[Encoded]], Collector] | None
    """Makes the collector of a shard with these sentences; None: all is done after the pass."""
    tables: Callable[[ShardSums], dict[str, xr.Dataset]]
    """Groups of the study, out of the sums of all shards."""


def _nothing(sums: ShardSums) -> dict[str, xr.Dataset]:
    return {}


def _tree_groups(sums: ShardSums) -> dict[str, xr.Dataset]:
    table = tree_table(sums)
    return {} if table is None else {"/trees": table}


EXTRAS: dict[str, Extra] = {
    "examples": Extra("best, typical and worst sentences of each label (runs 300 of them again)", None, _nothing),
    "trees": Extra("UAS and UUAS of every head, and of ensembles (runs the corpus twice)", Trees, _tree_groups),
    "patterns": Extra(
        "shapes of patterns: vertical, diagonal, mixed, block",
        Patterns,
        lambda sums: {"/patterns": pattern_table(sums)},
    ),
    "clusters": Extra(
        "distances between heads, clusters, a map", Clusters, lambda sums: {"/clusters": cluster_table(sums)}
    ),
    "histograms": Extra(
        "distributions of distance, offset and entropy", Histograms, lambda sums: {"/histograms": histogram_table(sums)}
    ),
}


@dataclass(frozen=True)
class Again:
    """The corpus, to be run once more after the first tables are made."""

    model: Model
    jobs: Callable[[], Iterable[tuple[Shard, tuple[Encoded, ...]]]]
    cluster: str
    examples: int = 0
    """Example sentences that the study has already."""

    def collect(self, make: Callable[[Sequence[Encoded]], Collector]) -> dict[str, Any]:
        """Sums of another collector over all shards."""
        total: ShardSums | None = None
        for shard, members in self.jobs():
            measurer = ShardMeasurer([], None, {}, len(members), extras={"late": make(members)})
            run_through(self.model, shard, members, measurer, Cases(members, []))
            sums = measurer.finish(np.array(shard.clusters), splits_of(members, self.cluster))
            total = sums if total is None else total.merge(sums)
        assert total is not None
        return total.extras["late"]


def refuse_unknown_extras(names: Iterable[str]) -> None:
    for name in names:
        if name not in EXTRAS:
            raise InputError(f"unknown extra {name!r}; {near_names(name, EXTRAS)}.")


def collectors_of(names: Iterable[str], members: Sequence[Encoded]) -> dict[str, Collector]:
    """A shard's collectors."""
    made = ((name, EXTRAS[name].collect) for name in names)
    return {name: make(members) for name, make in made if make is not None}


def extra_tables(names: Iterable[str], sums: ShardSums) -> dict[str, xr.Dataset]:
    """Groups out of what was collected."""
    return {group: table for name in names for group, table in EXTRAS[name].tables(sums).items()}


def late_tables(names: Iterable[str], groups: Mapping[str, xr.Dataset], again: Again) -> dict[str, xr.Dataset]:
    """Groups that need the first ones, and the corpus once more; they replace those of the same name."""
    found: dict[str, xr.Dataset] = {}
    if "trees" in names and "trees" in groups:
        found["trees"] = with_ensembles(groups["trees"], groups.get("relations"), again.collect)
    if "examples" in names:
        items = (item for _, members in again.jobs() for item in members)
        found |= label_examples(again.model, groups["labels"], items, taken=again.examples)
    return found
