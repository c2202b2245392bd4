"""The batch plan: which sentences go through the model together, fixed before anything runs.

Sums in floating point depend on which sentences share a batch, so every engine and every resumed run follows one plan. It is
made as a stream: a window of whole documents becomes a shard, its sentences, sorted by length, become batches, and only that
window is in memory. Splitting into `select` and `report` is here too, since it is part of the same plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from attnprobe.errors import InputError, explain
from attnprobe.records import Sentence
from attnprobe.text.align import PAD, SPECIAL, Encoded
from attnprobe.text.source import name_as_given

T = TypeVar("T")

SPLITS = ("select", "report")
"""Where choices are made, and where they are judged."""


@dataclass(frozen=True)
class PlanOptions:
    """What the plan depends on, besides the lengths and clusters of the sentences."""

    batch_tokens: int = 2048
    """Most tokens of a batch, padding counted; a longer sentence is a batch of its own."""
    window: int = 2048
    """Most sentences of a shard, about: a shard ends with a document."""
    padding: float = 0.2
    """Largest share of padding in a batch."""
    shard_cost: float = 65_536.0
    """Most cost of a shard, about, as `cost_of` counts it; binds before `window` where sentences are long."""

    def __post_init__(self) -> None:
        for name in ("batch_tokens", "window", "shard_cost"):
            if getattr(self, name) < 1:
                got = str(getattr(self, name))
                raise InputError(explain(f"wrong option {name} of the batch plan", expected="1 or more", got=got))
        if not 0 <= self.padding < 1:
            got = str(self.padding)
            raise InputError(explain("wrong option padding of the batch plan", expected="0 or more, under 1", got=got))


@dataclass(frozen=True)
class Shard:
    """Consecutive sentences that are run, and checkpointed, together."""

    index: int
    """Place in the plan."""
    start: int
    """Number of sentences in the shards before."""
    lengths: tuple[int, ...]
    """Tokens of each sentence."""
    clusters: tuple[int, ...]
    """Cluster of each sentence, numbered through the corpus; a cluster lies in one shard."""
    batches: tuple[tuple[int, ...], ...]
    """Sentences of each batch, counted from the shard's first, longest sentences first."""

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def cost(self) -> float:
        return sum(map(cost_of, self.lengths))

    @property
    def padded_tokens(self) -> int:
        """Tokens the model computes, padding counted."""
        return sum(len(batch) * self.lengths[batch[0]] for batch in self.batches)

    @property
    def sha256(self) -> str:
        """Hash of the shard's plan, for its checkpoint."""
        return _sha256(asdict(self))


@dataclass(frozen=True)
class BatchPlan:
    """All shards of a corpus."""

    options: PlanOptions
    shards: tuple[Shard, ...]

    @property
    def sha256(self) -> str:
        digest = PlanDigest(self.options)
        for shard in self.shards:
            digest.add(shard)
        return digest.sha256

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` gives the same plan back."""
        return {"options": asdict(self.options), "shards": [asdict(shard) for shard in self.shards]}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> BatchPlan:
        shards = [
            Shard(
                shard["index"],
                shard["start"],
                tuple(shard["lengths"]),
                tuple(shard["clusters"]),
                tuple(map(tuple, shard["batches"])),
            )
            for shard in stored["shards"]
        ]
        return cls(PlanOptions(**stored["options"]), tuple(shards))


class PlanDigest:
    """Hash of a plan whose shards are seen one at a time; equals `BatchPlan.sha256` of the whole."""

    def __init__(self, options: PlanOptions) -> None:
        self._hash = hashlib.sha256(_sha256(asdict(options)).encode())

    def add(self, shard: Shard) -> None:
        self._hash.update(shard.sha256.encode())

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _sha256(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def cost_of(length: int) -> float:
    """Rough cost of a sentence of `length` tokens: linear (the model) and quadratic (attention and its statistics).

    The two are equal at 512 tokens, about what a small encoder shows; only the sizes of shards depend on it.
    """
    return length * (1 + length / 512)


def plan_batches(
    lengths: Sequence[int], clusters: Sequence[str], *, options: PlanOptions | None = None, **changes: Any
) -> BatchPlan:
    """The plan for sentences of these lengths (in tokens) and clusters (equal neighbours are one cluster), in corpus order.

    >>> plan_batches([5, 3, 7], ["a", "a", "b"], batch_tokens=10).shards[0].batches
    ((2,), (0, 1))
    """
    options = PlanOptions(**changes) if options is None else options
    pairs = zip(lengths, clusters, strict=True)
    shards = plan_shards(pairs, length=lambda pair: pair[0], cluster=lambda pair: pair[1], options=options)
    return BatchPlan(options, tuple(shard for shard, _ in shards))


def plan_shards(
    items: Iterable[T], *, length: Callable[[T], int], cluster: Callable[[T], str], options: PlanOptions
) -> Iterator[tuple[Shard, tuple[T, ...]]]:
    """Shards with their sentences, as a stream: at most two windows are in memory.

    A shard is closed at the end of the cluster that brings it nearest to `window` sentences or `shard_cost`. A document that
    fills a window alone is cut, and its parts count as clusters of their own.
    """
    index = start = 0
    for window in _windows(items, length, cluster, options):
        lengths = tuple(length(item) for item, _ in window)
        batches = tuple(_batches(lengths, options))
        yield (
            Shard(index, start, lengths, tuple(number for _, number in window), batches),
            tuple(item for item, _ in window),
        )
        index, start = index + 1, start + len(window)


@dataclass
class _Group:
    """Sentences with their cluster numbers, and what they cost, while a shard is being gathered."""

    members: list[tuple[Any, int]] = field(default_factory=list)
    cost: float = 0.0

    def filled(self, options: PlanOptions, other: _Group | None = None) -> float:
        """Share of a shard that this group fills, together with another one."""
        n, cost = len(self.members), self.cost
        if other is not None:
            n, cost = n + len(other.members), cost + other.cost
        return max(n / options.window, cost / options.shard_cost)

    def __add__(self, other: _Group) -> _Group:
        return _Group(self.members + other.members, self.cost + other.cost)


def _windows(
    items: Iterable[T], length: Callable[[T], int], cluster: Callable[[T], str], options: PlanOptions
) -> Iterator[list[tuple[T, int]]]:
    pending = _Group()
    for group in _clusters(items, length, cluster, options):
        if pending.members and pending.filled(options, group) - 1 > 1 - pending.filled(options):
            yield pending.members
            pending = _Group()
        pending += group
        if pending.filled(options) >= 1:
            yield pending.members
            pending = _Group()
    if pending.members:
        yield pending.members


def _clusters(
    items: Iterable[T], length: Callable[[T], int], cluster: Callable[[T], str], options: PlanOptions
) -> Iterator[_Group]:
    """Whole clusters, numbered, or window-sized parts of long ones."""
    number, group, name = 0, _Group(), None
    for item in items:
        if group.members and (cluster(item) != name or group.filled(options) >= 1):
            yield group
            number, group = number + 1, _Group()
        name = cluster(item)
        group.members.append((item, number))
        group.cost += cost_of(length(item))
    if group.members:
        yield group


def _batches(lengths: Sequence[int], options: PlanOptions) -> Iterator[tuple[int, ...]]:
    """Places sorted from long to short, cut where a batch would hold too many tokens or too much padding."""
    batch: list[int] = []
    longest = used = 0
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        padded = longest * (len(batch) + 1)
        padding = padded - used - lengths[place]
        if batch and (padded > options.batch_tokens or padding > options.padding * padded):
            yield tuple(batch)
            batch, used = [], 0
        if not batch:
            longest = lengths[place]
        batch.append(place)
        used += lengths[place]
    if batch:
        yield tuple(batch)


def cluster_of(sentence: Sentence, by: str = "document") -> str:
    """Cluster of a sentence: its document where the source marks documents, else the sentence itself (`by="sentence"`: always)."""
    if by not in ("document", "sentence"):
        raise InputError(explain("unknown kind of cluster", expected="document or sentence", got=repr(by)))
    return sentence.document if by == "document" and sentence.document else sentence.id


def split_of(cluster_id: str, fallback_text: str = "") -> str:
    """`select` or `report`, one half each, by a hash of the cluster's id, or of the text where there is none.

    Depends on nothing else, so that a sentence stays in its split whatever corpus it is part of. The mark that tells documents
    of the same id apart is left out, so that a document given twice is not in both splits.
    """
    key = name_as_given(cluster_id) or fallback_text
    return SPLITS[hashlib.sha256(key.encode()).digest()[0] % 2]


def split_of_sentence(sentence: Sentence, by: str = "document") -> str:
    """Split of a sentence with its cluster; running numbers are no ids, so a sentence without `sent_id` goes by its text."""
    text = sentence.text or " ".join(sentence.words)
    if by == "document" and sentence.document:
        return split_of(sentence.document, text)
    return split_of(sentence.metadata.get("sent_id", ""), text)


@dataclass(frozen=True)
class Batch:
    """Sentences padded on the right to the longest of them."""

    sentences: tuple[Encoded, ...]
    input_ids: np.ndarray
    """int64 [batch token]."""
    attention_mask: np.ndarray
    """1 for tokens, 0 for padding, int64 [batch token]."""
    token_types: np.ndarray
    """int64 [batch token], 0 in padding."""
    word_index: np.ndarray
    """Word of each token, -1 for special tokens and padding, int64 [batch token]."""
    roles: np.ndarray
    """What each token is, `PAD` for padding, int8 [batch token]."""

    def __len__(self) -> int:
        return len(self.sentences)


def collate(sentences: Sequence[Encoded], *, pad_id: int) -> Batch:
    """A batch of these sentences; `pad_id` is the tokenizer's padding token (any id where it has none: padding is masked)."""
    longest = max(len(sentence) for sentence in sentences)
    shape = (len(sentences), longest)
    ids, mask = np.full(shape, pad_id, np.int64), np.zeros(shape, np.int64)
    types, words, roles = np.zeros(shape, np.int64), np.full(shape, -1, np.int64), np.full(shape, PAD, np.int8)
    for row, sentence in enumerate(sentences):
        n = len(sentence)
        ids[row, :n], mask[row, :n], types[row, :n] = sentence.input_ids, 1, sentence.token_types
        words[row, :n], roles[row, :n] = sentence.alignment.word_index, sentence.roles
    return Batch(tuple(sentences), ids, mask, types, words, roles)


def with_start(batch: Batch, start: int) -> Batch:
    """The batch with one more token, a special one, before each sentence: what a decoder reads that starts from it."""

    def before(table: np.ndarray, value: int) -> np.ndarray:
        return np.pad(table, ((0, 0), (1, 0)), constant_values=value)

    return Batch(
        batch.sentences,
        before(batch.input_ids, start),
        before(batch.attention_mask, 1),
        before(batch.token_types, 0),
        before(batch.word_index, -1),
        before(batch.roles, SPECIAL),
    )
