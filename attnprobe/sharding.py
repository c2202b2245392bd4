"""Measuring shards: one at a time, here or elsewhere, kept when finished, and added up in the order of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import xarray as xr

from attnprobe.checkpoint import Checkpoints
from attnprobe.errors import EnvironmentFailure, explain
from attnprobe.heads.alongside import collectors_of
from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import ShardMeasurer
from attnprobe.heads.relations import choose
from attnprobe.heads.running import run_through, splits_of
from attnprobe.heads.scorers import scorers_of
from attnprobe.heads.tables import ShardSums
from attnprobe.heads.tabulate import metric_tables, relation_table
from attnprobe.models.load import Model
from attnprobe.models.verify import require, verify
from attnprobe.planning import Job, Options, Planned, Progress, shards_of
from attnprobe.records import Sentence
from attnprobe.registry import METRICS
from attnprobe.text.align import Encoded
from attnprobe.text.batching import Shard
from attnprobe.text.drops import Drops

Advance = Callable[[int], None]
"""Told how many more sentences are done."""
Engine = Callable[[Model, Options, Iterator[Job], Advance], Iterator[tuple[int, ShardSums]]]
"""`(model, options, jobs, advance) -> (shard index, its sums)`, in any order; see `engines` for others than `in_process`."""


def measure_all(
    model: Model,
    sentences: Iterable[Sentence],
    options: Options,
    planned: Planned,
    engine: Engine,
    store: Checkpoints | None,
    progress: Progress | None,
    each: Callable[[int, ShardSums], None] | None = None,
) -> ShardSums:
    """Every shard's sums, from the store or from the engine, folded in the order of the plan and told to `each` in that order."""
    shards = planned.kept if planned.kept is not None else shards_of(model, sentences, options, Drops())
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, planned.sentences)

    fold = Fold(each, store)

    def jobs() -> Iterator[Job]:
        for shard, members in shards:
            if shard.index < fold.start:
                advance(len(shard))
            elif store is not None and (found := store.load(shard.index)) is not None:
                advance(len(shard))
                fold.add(shard.index, found)
            else:
                yield shard, members

    for index, sums in engine(model, options, jobs(), advance):
        if store is not None:
            store.save(index, sums)
        fold.add(index, sums)
    return fold.finish()


@dataclass(frozen=True)
class Repeat:
    """The corpus of a run once more, by its plan: for other questions, or for another model."""

    sentences: Iterable[Sentence]
    options: Options
    planned: Planned
    engine: Engine
    unverified: bool

    def items(self, model: Model) -> Iterator[Encoded]:
        """Its sentences as this model reads them."""
        kept = self.planned.kept
        jobs = kept if kept is not None else shards_of(model, self.sentences, self.options, Drops())
        return (item for _, members in jobs for item in members)

    def tables(self, model: Model) -> dict[str, xr.Dataset | None]:
        """Metrics and relations of another model with the same tokenizer, verified like the first."""
        if not self.unverified:
            require(verify(model))
        options = replace(self.options, extras=())
        sums = measure_all(model, self.sentences, options, self.planned, self.engine, None, None)
        relations = relation_table(sums, options.scorers, margin=options.margin)
        return {"metrics": metric_tables(sums)[0], "relations": relations}


FOLDED = 64
"""Shards after which their sum takes their place in the store, and shards kept in memory while an earlier one is missing."""


class Fold:
    """Adds shards up in the order of the plan, in whatever order they come.

    With a store it goes on from the sum kept there, keeps the sum there from time to time, and leaves shards that must wait on disk. Where
    `each` wants to be told every shard, the store is left to keep every shard.
    """

    def __init__(self, each: Callable[[int, ShardSums], None] | None = None, store: Checkpoints | None = None) -> None:
        self._each = each
        self._store = store
        self.start, self._total = store.folded() if store is not None and each is None else (0, None)
        """Shards added already when the run began."""
        self._next = self.start
        self._waiting: dict[int, ShardSums | None] = {}

    def add(self, index: int, sums: ShardSums) -> None:
        """Add a shard; with a store, one that is saved there."""
        full = self._store is not None and index != self._next and len(self._waiting) >= FOLDED
        self._waiting[index] = None if full else sums
        while self._next in self._waiting:
            following = self._waiting.pop(self._next) or self._stored(self._next)
            self._total = following if self._total is None else self._total.merge(following)
            if self._each is not None:
                self._each(self._next, following)
            self._next += 1
            if self._store is not None and self._each is None and (self._next - self.start) % FOLDED == 0:
                self._store.fold(self._next, self._total)

    def _stored(self, index: int) -> ShardSums:
        found = self._store.load(index) if self._store is not None else None
        if found is None:
            remedy = "Is the folder of checkpoints on a sound disk? Run again with --resume"
            raise EnvironmentFailure(explain(f"shard {index} was finished but cannot be read back", remedy=remedy))
        return found

    def finish(self) -> ShardSums:
        assert self._total is not None
        assert not self._waiting
        return self._total


def in_process(
    model: Model, options: Options, jobs: Iterator[Job], advance: Advance
) -> Iterator[tuple[int, ShardSums]]:
    """The plain engine: one shard after another, here."""
    for shard, members in jobs:
        yield shard.index, measure_shard(model, shard, members, options, advance)


def measure_shard(
    model: Model,
    shard: Shard,
    members: Sequence[Encoded],
    options: Options,
    advance: Advance | None = None,
) -> ShardSums:
    """Run one shard through the model and return its sums; the same for every engine."""
    cases = Cases(members, choose(options.relations))
    scorers = scorers_of(model, options.scorers)
    metrics = [METRICS[name] for name in options.metrics]
    collectors = collectors_of(options.extras, members)
    measurer = ShardMeasurer(
        metrics, cases, scorers, len(members), without_sinks=options.sinks == "both", extras=collectors
    )
    words = len(cases) or any(collector.needs_words for collector in collectors.values())
    entities = "entity_mass" in options.metrics
    run_through(model, shard, members, measurer, cases if words else None, entities=entities, advance=advance)
    split = splits_of(members, options.cluster)
    sums = measurer.finish(np.array(shard.clusters), split)
    sums.counts.update(cases_without_token=cases.left_out)
    return sums
