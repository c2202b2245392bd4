"""Measuring a shard while the model runs: each attention call becomes per-sentence sums and per-case hits, and is let go.

Patterns are recomputed in parts small enough to stay in the cache: several short sentences at a time, or a block of one long
sentence's query rows. Nothing of size layer x head x query x key outlives its part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from attnprobe.attention.call import AttentionCall, Role, Rows
from attnprobe.attention.forward import Scratch, blind_rows, inputs_as, pattern_and_entropy_of
from attnprobe.heads.answers import Answers
from attnprobe.heads.cases import Cases
from attnprobe.heads.pooling import Pooled, pool
from attnprobe.heads.prepared import Prepared, prepare
from attnprobe.heads.tables import ShardSums, by_cluster, by_split, stack_layers
from attnprobe.registry import HeadMetric
from attnprobe.stream import RatioSums

PART_ELEMENTS = 1_500_000
"""Weights of a pattern that are held at once: about what stays in the cache next to what is computed from them."""


class Scorer(Protocol):
    """What a relation is read off in place of the weights."""

    def start(self, prepared: Prepared) -> None:
        """A batch is about to run."""

    def __call__(self, call: AttentionCall, pattern: Tensor, rows: slice, members: slice) -> Tensor:
        """Scores of these rows of these sentences of the batch, [batch head query key], at least 0."""


class Collector(Protocol):
    """What is measured besides metrics and relations while a shard runs."""

    needs_words: bool

    def rows(self, call: AttentionCall, rows: Rows, prepared: Prepared, members: slice) -> None:
        """A block of rows of these sentences of the batch."""

    def words(self, call: AttentionCall, words: Tensor, prepared: Prepared, members: slice) -> None:
        """The whole word pattern of these sentences, [batch head query_word key_word]; only where `needs_words`."""

    def finish(self, cluster: np.ndarray, split: np.ndarray) -> dict[str, RatioSums | np.ndarray]:
        """The shard's sums, which are added up over shards; arguments as of `ShardMeasurer.finish`."""


class ShardMeasurer:
    """Takes every attention call of a shard's batches and ends with the shard's sums."""

    def __init__(
        self,
        metrics: Sequence[HeadMetric],
        cases: Cases | None,
        scorers: Mapping[str, Scorer | None],
        n_sentences: int,
        *,
        without_sinks: bool = False,
        extras: Mapping[str, Collector] | None = None,
    ) -> None:
        self.metrics = tuple(metrics)
        self.answers = Answers(cases, list(scorers)) if cases is not None and len(cases) else None
        self.scorers = scorers
        self.n_sentences = n_sentences
        self.views = ("", "@removed") if without_sinks else ("",)
        self.extras = dict(extras or {})
        self.modules: list[tuple[str, int, int]] = []
        self._every_row = bool(self.extras) or any(scorer is not None for scorer in scorers.values())
        self._pooled = Pooled(n_sentences)
        self._scratch = Scratch()
        self._cut: dict[int, tuple[Tensor, Tensor]] = {}
        self._of_tokens: dict[tuple[int, int, int, int, int], tuple[Tensor | None, Rows, Tensor | None]] = {}

    def start(self, prepared: Prepared) -> None:
        """A batch is about to run."""
        self._of_tokens.clear()
        self._cut.clear()
        for scorer in self.scorers.values():
            if scorer is not None:
                scorer.start(prepared)

    def add(self, call: AttentionCall, prepared: Prepared) -> None:
        """Measure one layer over one batch."""
        if call.layer == len(self.modules):
            self.modules.append((call.kind, call.index, call.n_heads))
        if call.q.dtype in (torch.float16, torch.bfloat16):
            call = inputs_as(replace(call, pattern=None), torch.float32)
        if prepared.decoder is not None:
            call, prepared = self._of_side(call, prepared, prepared.decoder)
        for members, part in _sentence_parts(call):
            self._add_part(part, prepared, members)

    def _of_side(self, call: AttentionCall, encoder: Prepared, decoder: Prepared) -> tuple[AttentionCall, Prepared]:
        """The call with what its rows and keys are. A cross-attention's rows are the decoder's; without that of the start token they are the words' again."""
        if call.kind != "cross":
            return call, decoder if call.kind == "decoder" else encoder
        n_rows = call.q.shape[2]
        cut = {
            name: value[:, :, 1:]
            for name in ("q", "bias", "sinks", "pattern", "context")
            if (value := getattr(call, name)) is not None and value.ndim == 4 and value.shape[2] == n_rows
        }
        if call.visible is not None and call.visible.shape[2] == n_rows:
            # cut once and kept, so that layers with one mask go on sharing one
            kept = self._cut.setdefault(id(call.visible), (call.visible, call.visible[:, :, 1:]))
            cut["visible"] = kept[1]
        return replace(call, **cut), encoder

    def _add_part(self, call: AttentionCall, prepared: Prepared, members: slice) -> None:
        batch, heads, n_rows, n_keys = call.q.shape[0], call.n_heads, call.q.shape[2], call.k.shape[2]
        pieces = None if prepared.pieces is None else prepared.pieces.take(members)
        of_rows: dict[str, list[Tensor]] = {name: [] for name in self._wanted_words()}
        first, end = (0, n_rows) if self._every_row else _span(prepared, members)
        step = max(1, PART_ELEMENTS // (batch * heads * n_keys))
        for start in range(first, end, step):
            rows = slice(start, min(start + step, end))
            with torch._C.DisableTorchFunction():  # whoever follows the model's operations need not follow these
                seen = self._rows_of(call, rows, prepared, members)
                self._add_metrics(seen, call.layer, prepared.members[members])
            pattern = seen.pattern
            for extra in self.extras.values():
                extra.rows(call, seen, prepared, members)
            for name, found in of_rows.items():
                assert pieces is not None
                scorer = self.scorers.get(name)
                found.append(pieces.sum_keys(pattern if scorer is None else scorer(call, pattern, rows, members)))
        for name, found in of_rows.items():
            assert pieces is not None
            words = pieces.mean_queries(found[0] if len(found) == 1 else torch.cat(found, 2), first)
            self._add_words(call, words, name, prepared, members)

    def _add_words(self, call: AttentionCall, words: Tensor, name: str, prepared: Prepared, members: slice) -> None:
        if self.answers is not None and name in self.scorers:
            self.answers.add(words, name, call.layer, prepared, members)
        for extra in self.extras.values():
            if extra.needs_words and name == "weights":
                extra.words(call, words, prepared, members)

    def _wanted_words(self) -> list[str]:
        """Scorers whose word patterns are needed: for relations all, for extras the weights."""
        names = list(self.scorers) if self.answers is not None else []
        needed = any(extra.needs_words for extra in self.extras.values())
        return [*names, "weights"] if needed and "weights" not in names else names

    def _rows_of(self, call: AttentionCall, rows: slice, prepared: Prepared, members: slice) -> Rows:
        """These rows. All but the pattern is the same in every layer with this mask, and worked out in the first."""
        key = (id(prepared), id(call.visible), members.start, rows.start, rows.stop)
        if key not in self._of_tokens:
            # the mask is kept, so that no other gets its id
            kept = (call.visible, _rows(call, rows, prepared, members), blind_rows(call, rows))
            self._of_tokens[key] = kept
        _, known, blind = self._of_tokens[key]
        if call.pattern is not None:
            return known.with_pattern(call.pattern[:, :, rows])
        pattern, entropy = pattern_and_entropy_of(call, rows, blind=blind, scratch=self._scratch)
        return known.with_pattern(pattern, entropy=entropy)

    def _add_metrics(self, rows: Rows, layer: int, places: Tensor) -> None:
        for view in self.views:
            seen = rows if not view else _without_sinks(rows)
            for metric in self.metrics:
                self._pooled.add(metric.name + view, layer, pool(metric, seen), places)

    def finish(self, cluster: np.ndarray, split: np.ndarray) -> ShardSums:
        """The shard's sums: `cluster` gives each sentence's cluster (non-decreasing), `split` each sentence's split number."""
        starts = np.flatnonzero(np.diff(cluster, prepend=cluster[0] - 1))
        split_of_cluster = split[starts]
        metrics = {
            metric.name + view: self._metric_sums(metric.name + view, starts, split_of_cluster)
            for metric in self.metrics
            for view in self.views
        }
        relations = {} if self.answers is None else self.answers.sums(cluster, split)
        extras = {name: extra.finish(cluster, split) for name, extra in self.extras.items()}
        return ShardSums(metrics, relations, tuple(self.modules), extras=extras)

    def _metric_sums(self, name: str, starts: np.ndarray, split: np.ndarray) -> RatioSums:
        """Layer by layer: the sums of squares over clusters of all layers at once would be the most memory of a run."""
        layers = [
            by_split(by_cluster(y, starts), by_cluster(n, starts), split)
            for y, n in (self._pooled.table(name, layer) for layer in range(len(self.modules)))
        ]
        return RatioSums(*(stack_layers([getattr(part, f.name) for part in layers]) for f in fields(RatioSums)))

    def of_sentences(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Sum of a metric over the rows of each sentence, and how many rows counted, [sentence layer head ...]."""
        found = [self._pooled.table(name, layer) for layer in range(len(self.modules))]
        return stack_layers([y for y, _ in found]), stack_layers([n for _, n in found])

    def case_hits(self) -> np.ndarray:
        """Whether each case was answered rightly, bool [case scorer direction layer head]."""
        assert self.answers is not None
        return self.answers.hits()


def _sentence_parts(call: AttentionCall) -> Iterator[tuple[slice, AttentionCall]]:
    """The call cut along its batch into parts whose pattern stays small; a single long sentence is one part."""
    batch, heads, n_rows, _ = call.q.shape
    step = max(1, PART_ELEMENTS // (heads * n_rows * call.k.shape[2]))
    if step >= batch:
        yield slice(0, batch), call
        return
    names = ("q", "k", "v", "bias", "pattern", "context", "visible")
    for start in range(0, batch, step):
        members = slice(start, min(start + step, batch))
        cut = {
            name: value[members]
            for name in names
            if (value := getattr(call, name)) is not None and value.shape[0] == batch
        }
        yield members, replace(call, **cut)


def _span(prepared: Prepared, members: slice) -> tuple[int, int]:
    """From the first row that counts in any of these sentences to after the last."""
    first, end = prepared.span[members].T
    return int(first.min()), max(int(end.max()), int(first.min()) + 1)


def _rows(call: AttentionCall, rows: slice, prepared: Prepared, members: slice) -> Rows:
    """These rows of these sentences, the pattern still to come."""
    index = torch.arange(rows.start, rows.stop, device=call.q.device)
    visible, keep = call.visible, prepared.keep[members][:, rows]
    if visible is None:
        visible = prepared.real[members][:, None, None, :].expand(-1, 1, len(index), -1)
    else:
        visible = visible if visible.shape[2] == 1 else visible[:, :, rows]
        visible = visible.expand(call.q.shape[0], -1, len(index), -1)
        keep = keep & visible.any(-1).any(1)
    marks = [None if table is None else table[members] for table in (prepared.segments, prepared.entities)]
    to_come = call.q.new_full((), torch.nan).expand(*call.q.shape[:2], len(index), call.k.shape[2])
    return Rows(to_come, visible, index, prepared.roles[members], keep, *marks)


def _without_sinks(rows: Rows) -> Rows:
    """The same rows with special tokens taken out and the rest divided by its sum; a row with nothing left sees nothing."""
    ordinary = (rows.roles <= Role.PUNCT)[:, None, None, :]
    left = rows.pattern * ordinary
    total = left.sum(-1, keepdim=True)
    visible = rows.visible & ordinary & (total > 0)
    return replace(rows, pattern=torch.where(total > 0, left / total, 0.0), visible=visible)


__all__ = ["Collector", "Prepared", "Scorer", "ShardMeasurer", "prepare"]
