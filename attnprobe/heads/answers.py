"""Whether each head answered each case of a shard rightly: judged layer by layer, counted up over clusters at the end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attnprobe.heads.cases import Cases
from attnprobe.heads.prepared import Prepared
from attnprobe.heads.tables import (
    DIRECTIONS,
    SPLIT_NAMES,
    RelationSums,
    RivalSums,
    by_cluster,
    by_split,
    stack_layers,
)
from attnprobe.stream import RatioSums


class Answers:
    """Hits, ties and empty rows of every case of a shard, by scorer, direction, layer and head; on the model's device until they are read."""

    def __init__(self, cases: Cases, scorers: Sequence[str]) -> None:
        self.cases = cases
        self.scorers = tuple(scorers)
        self._hits: dict[tuple[str, int], Tensor] = {}
        self._ties: dict[tuple[str, int], Tensor] = {}
        self._empty: dict[tuple[str, int], Tensor] = {}

    def add(self, words: Tensor, scorer: str, layer: int, prepared: Prepared, members: slice) -> None:
        """Judge the cases of these sentences of the batch by what a scorer gives between their words, [batch head query_word key_word]."""
        assert prepared.n_cases is not None
        begin, end = int(prepared.n_cases[members.start]), int(prepared.n_cases[members.stop])
        if begin == end:
            return
        place, sentence, query, keys, candidates = (part[begin:end] for part in prepared.case_rows)
        inside = sentence - members.start
        key = (scorer, layer)
        if key not in self._hits:
            shape = (len(self.cases), len(DIRECTIONS), words.shape[1])
            for table in (self._hits, self._ties, self._empty):
                table[key] = torch.zeros(shape, dtype=torch.bool, device=words.device)
        for direction in range(len(DIRECTIONS)):
            rows = _rows_of_words(words if direction == 0 else words.transpose(2, 3), inside, query)
            hit, tie, empty = judge(rows, keys, candidates)
            self._hits[key][place, direction] = hit
            self._ties[key][place, direction] = tie
            self._empty[key][place, direction] = empty

    def hits(self) -> np.ndarray:
        """Whether each case was answered rightly, bool [case scorer direction layer head]."""
        return self._table(self._hits)

    def _table(self, found: dict[tuple[str, int], Tensor]) -> np.ndarray:
        layers = len(found) // len(self.scorers)
        by_scorer = [
            stack_layers([found[scorer, layer].cpu().numpy() for layer in range(layers)], axis=2)
            for scorer in self.scorers
        ]
        return np.stack(by_scorer, axis=1)

    def sums(self, cluster: np.ndarray, split: np.ndarray) -> dict[str, RelationSums]:
        """Sums of each relation; arguments as of `ShardMeasurer.finish`."""
        hits, ties, empty = (self._table(found) for found in (self._hits, self._ties, self._empty))
        found = {}
        for name, chosen in self.cases.of_relation.items():
            sentences = self.cases.sentence[chosen]
            starts = np.flatnonzero(np.diff(cluster[sentences], prepend=-1))
            found[name] = relation_sums(
                (hits[chosen], ties[chosen], empty[chosen]),
                (self.cases.offset_hits[chosen], self.cases.rival_hits(name), self.cases.chance[chosen]),
                starts,
                split[sentences],
            )
        return found


def judge(rows: Tensor, keys: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether each case's greatest weight among its candidates lies on one of its keys: (hit, tie, empty), bool [case head].

    `rows` [case head word], `keys` and `candidates` bool [case word]. Ties go to the lowest index; a row without weight on any
    candidate is empty and no hit.
    """
    barred = rows.new_zeros(candidates.shape).masked_fill_(~candidates, -torch.inf)
    scores = rows + barred[:, None]
    top = scores.amax(-1, keepdim=True)
    empty = ~(top > 0)[..., 0]
    equal = scores.eq_(top)  # 1 or 0, in the same memory: several times as fast as the index of the maximum
    tie = (equal.sum(-1) > 1) & ~empty
    n = rows.shape[-1]
    where = n - equal.mul_(torch.arange(n, 0, -1, device=rows.device)).amax(-1).long().clamp(min=1)
    return keys.gather(1, where) & ~empty, tie, empty


def _rows_of_words(words: Tensor, sentence: Tensor, query: Tensor) -> Tensor:
    """The row of each case in every head, [case head word]: copied row by row, which indexing along two axes does not do."""
    heads, n = words.shape[1:3]
    head = torch.arange(heads, device=words.device)
    place = (sentence[:, None] * heads + head) * n + query[:, None]
    return words.reshape(-1, n).index_select(0, place.flatten()).view(-1, heads, n)


def relation_sums(
    of_heads: tuple[np.ndarray, np.ndarray, np.ndarray],
    of_baselines: tuple[np.ndarray, np.ndarray | None, np.ndarray],
    starts: np.ndarray,
    split: np.ndarray,
) -> RelationSums:
    """Sums of one relation from (hits, ties, empty rows) of the heads and (offset hits, rival hits, chance) of its cases."""
    (hits, ties, empty), (offset_hits, rival_hits, chance) = of_heads, of_baselines
    of_cluster = by_cluster(hits, starts)
    n = np.diff(np.append(starts, len(hits))).astype(np.float64)
    split_of_cluster = split[starts]

    def baseline(table: np.ndarray) -> tuple[RatioSums, np.ndarray]:
        own = by_cluster(table, starts)
        parts = [split_of_cluster == number for number in range(len(SPLIT_NAMES))]
        product = np.stack([np.tensordot(of_cluster[part], own[part], axes=(0, 0)) for part in parts])
        return by_split(own, n[:, None], split_of_cluster), product

    def total(table: np.ndarray) -> np.ndarray:
        return np.stack([table[split == number].sum(0, dtype=np.float64) for number in range(len(SPLIT_NAMES))])

    offsets, product = baseline(offset_hits)
    return RelationSums(
        hits=by_split(of_cluster, n.reshape(-1, *[1] * (of_cluster.ndim - 1)), split_of_cluster),
        offsets=offsets,
        product=product,
        ties=total(ties),
        empty=total(empty),
        chance=total(chance),
        rivals=None if rival_hits is None else RivalSums(*baseline(rival_hits)),
    )
