"""The first reading of a corpus: what is kept and left out, the batch plan and its hash, and the batches to verify on."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np

from attnprobe.errors import InputError, explain
from attnprobe.heads.examples import legible
from attnprobe.heads.tabulate import MARGIN
from attnprobe.models.load import Model
from attnprobe.records import Sentence
from attnprobe.text.align import Encoded, encode
from attnprobe.text.batching import (
    SPLITS,
    PlanDigest,
    PlanOptions,
    Shard,
    cluster_of,
    plan_shards,
    split_of_sentence,
)
from attnprobe.text.drops import Drops

DEFAULT_RELATIONS = ("dep", "udep")
Progress = Callable[[int, int], None]
"""Told (sentences done, sentences in all)."""
Job = tuple[Shard, tuple[Encoded, ...]]
"""One shard with its sentences."""


@dataclass(frozen=True)
class Options:
    """What a run depends on; stored in the study."""

    metrics: tuple[str, ...]
    relations: tuple[str, ...]
    scorers: tuple[str, ...] = ("weights",)
    extras: tuple[str, ...] = ()
    unit: str = "sentence"
    sinks: str = "kept"
    cluster: str = "document"
    seed: int = 0
    max_sentences: int | None = None
    margin: float = MARGIN
    examples: int = 6
    plan: PlanOptions = field(default_factory=PlanOptions)


@dataclass
class Planned:
    """What the first reading of the corpus gives."""

    sha256: str
    """Hash of the batch plan."""
    sentences: int
    tokens: int
    unknown: int
    drops: Drops
    documents: dict[str, int]
    """Clusters that stand in each split."""
    repeated: int
    """Sentences whose text was met before in the corpus (the first million are looked at)."""
    repeated_documents: int
    """Documents of two sentences or more that are, word for word, one met before."""
    pairs: int
    """Sentences that are pairs of segments."""
    batches: list[list[Encoded]]
    """The first, the longest and one random batch, for verification."""
    examples: list[Encoded]
    kept: list[Job] | None
    """The shards themselves where the corpus is small, so that it need not be tokenized again."""


SMALL = 4096
"""Sentences of a corpus that is kept between the two readings."""


def lay_plan(model: Model, sentences: Iterable[Sentence], options: Options) -> Planned:
    """First reading: what is kept and left out, the plan and its hash, and the batches to verify on."""
    digest, drops = PlanDigest(options.plan), Drops()
    generator = np.random.default_rng(options.seed)
    planned = Planned("", 0, 0, 0, drops, dict.fromkeys(SPLITS, 0), 0, 0, 0, [], [], [])
    first: list[Encoded] = []
    longest: list[Encoded] = []
    drawn: list[Encoded] = []
    seen, batches = _Seen(), 0
    for shard, members in shards_of(model, sentences, options, drops):
        digest.add(shard)
        for item in dict(zip(shard.clusters, members, strict=True)).values():
            planned.documents[split_of_sentence(item.sentence, options.cluster)] += 1
        for item in members:
            planned.tokens += len(item)
            planned.unknown += item.n_unknown
            planned.pairs += any(item.sentence.segments)
            planned.repeated += seen.before(item.sentence.words)
        planned.repeated_documents += sum(map(seen.before, _texts_of_documents(members)))
        for batch in shard.batches:
            batches += 1
            texts = [members[place] for place in batch]
            first = first or texts
            if not longest or len(texts[0]) > len(longest[0]):
                longest = texts
            if generator.random() < 1 / batches:
                drawn = texts
        planned.sentences += len(members)
        if planned.kept is not None:
            planned.kept.append((shard, members))
            if planned.sentences > SMALL:
                planned.kept = None
        _collect_examples(planned.examples, members, options.examples)
    if not planned.sentences:
        got = ", ".join(f"{count} {reason}" for reason, count in drops.counts.items()) or "an empty corpus"
        raise InputError(explain("no sentence is left to analyse", expected="at least one", got=got))
    planned.sha256 = digest.sha256
    planned.batches = [_short(batch) for batch in (first, longest, drawn)]
    return planned


class _Seen:
    """Texts met so far: the first million, by their hashes."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()

    def before(self, text: tuple[Any, ...]) -> bool:
        """Whether this text was met before; from now on it was."""
        key = hash(text)
        known = key in self._hashes
        if len(self._hashes) < 1_000_000:
            self._hashes.add(key)
        return known


def _texts_of_documents(members: Sequence[Encoded]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """The words of each document's sentences, for documents of two sentences or more: shorter ones repeat by nature."""
    for name, items in groupby(members, key=lambda item: item.sentence.document):
        text = tuple(item.sentence.words for item in items)
        if name and len(text) > 1:
            yield text


def _short(batch: list[Encoded], limit: int = 8) -> list[Encoded]:
    """A few sentences of a batch, its longest and shortest among them: enough to verify on."""
    return batch if len(batch) <= limit else [*batch[: limit // 2], *batch[-(limit // 2) :]]


def _collect_examples(examples: list[Encoded], members: Sequence[Encoded], wanted: int) -> None:
    """The first sentences that are legible at a glance."""
    for item in members:
        if len(examples) >= wanted:
            return
        if legible(item):
            examples.append(item)


def shards_of(model: Model, sentences: Iterable[Sentence], options: Options, drops: Drops) -> Iterator[Job]:
    encoded = encode(
        model.tokenizer, limited(sentences, options.max_sentences), max_length=model.longest_text, on_drop=drops.add
    )
    return plan_shards(
        encoded, length=len, cluster=lambda item: cluster_of(item.sentence, options.cluster), options=options.plan
    )


def limited(sentences: Iterable[Sentence], limit: int | None) -> Iterator[Sentence]:
    for number, sentence in enumerate(sentences):
        if limit is not None and number >= limit:
            return
        yield sentence


def warn_of_copies(planned: Planned) -> None:
    """Texts that are counted twice."""
    told = []
    if planned.repeated_documents:
        of = sum(planned.documents.values())
        told.append(f"{planned.repeated_documents} of {of} documents are word for word an earlier one")
    if planned.repeated > 0.05 * planned.sentences:
        told.append(f"{planned.repeated} of {planned.sentences} sentences repeat an earlier one")
    if told:
        warnings.warn(f"{'; '.join(told)}: intervals are too narrow if they are copies.", stacklevel=5)


def warn_of_an_empty_split(planned: Planned, cluster: str) -> None:
    """What a run cannot say where a split is empty: choices are made on `select` and judged on `report`."""
    counts = ", ".join(f"{n} in {split}" for split, n in planned.documents.items())
    by_sentence = ", or split by sentence: cluster='sentence' (--cluster sentence)" if cluster == "document" else ""
    for split, lost in (("select", "nothing can be chosen"), ("report", "nothing that is chosen can be judged")):
        if not planned.documents[split]:
            what = f"no {cluster} falls into the split {split} ({cluster}s: {counts}), so {lost}"
            told = "no relation gets a head, a baseline or a test"
            warnings.warn(f"{what}: {told}. Take more {cluster}s{by_sentence}.", stacklevel=5)
