"""Measuring shards: one at a time, here or elsewhere, kept when finished, and added up in the order of the plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from attnprobe.checkpoint import Checkpoints
from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import Prepared, ShardMeasurer, prepare
from attnprobe.heads.relations import choose
from attnprobe.heads.scorers import scorers_of
from attnprobe.heads.tables import SPLIT_NAMES, ShardSums
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import accepted_inputs, from_model_inputs
from attnprobe.models.load import Model
from attnprobe.planning import Job, Options, Planned, Progress, shards_of
from attnprobe.records import Sentence
from attnprobe.registry import METRICS
from attnprobe.text.align import Encoded
from attnprobe.text.batching import Shard, collate, split_of_sentence
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
) -> ShardSums:
    """Every shard's sums, from the store or from the engine, folded in the order of the plan."""
    shards = planned.kept if planned.kept is not None else shards_of(model, sentences, options, Drops())
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, planned.sentences)

    def jobs() -> Iterator[Job]:
        for shard, members in shards:
            if store is not None and (found := store.load(shard.index)) is not None:
                advance(len(shard))
                fold.add(shard.index, found)
            else:
                yield shard, members

    fold = Fold()
    for index, sums in engine(model, options, jobs(), advance):
        if store is not None:
            store.save(index, sums)
        fold.add(index, sums)
    return fold.finish()


class Fold:
    """Adds shards up in the order of the plan, in whatever order they come."""

    def __init__(self) -> None:
        self._total: ShardSums | None = None
        self._next = 0
        self._waiting: dict[int, ShardSums] = {}

    def add(self, index: int, sums: ShardSums) -> None:
        self._waiting[index] = sums
        while self._next in self._waiting:
            following = self._waiting.pop(self._next)
            self._total = following if self._total is None else self._total.merge(following)
            self._next += 1

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
    measurer = ShardMeasurer(metrics, cases, scorers, len(members), without_sinks=options.sinks == "both")
    for batch in shard.batches:
        prepared = prepare(
            padded(model, [members[place] for place in batch]),
            batch,
            cases if len(cases) else None,
            model.device,
            entities="entity_mass" in options.metrics,
        )
        measurer.start(prepared)
        encoded = from_model_inputs(model, model_inputs(model, prepared), describe=False)
        run_forward(model, encoded, lambda call, prepared=prepared: measurer.add(call, prepared))  # type: ignore[misc]
        if advance is not None:
            advance(len(batch))
    split = np.array([SPLIT_NAMES.index(split_of_sentence(item.sentence, options.cluster)) for item in members])
    sums = measurer.finish(np.array(shard.clusters), split)
    sums.counts.update(cases_without_token=cases.left_out)
    return sums


def padded(model: Model, batch: Sequence[Encoded]) -> Any:
    pad = getattr(model.tokenizer, "pad_token_id", None)
    return collate(batch, pad_id=0 if pad is None else pad)


def model_inputs(model: Model, prepared: Prepared) -> dict[str, Any]:
    names = accepted_inputs(model)
    return {key: value for key, value in prepared.inputs.items() if key in names}
