"""Treebanks whose trees are redrawn: dependents keep their labels and their distances to heads, and lose their syntax.

What every word attends to most is found once, with the model; after that a redraw is an index into that table.
"""

from dataclasses import dataclass

import numpy as np
import torch

from attnprobe.heads.answers import relation_sums
from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import ShardMeasurer
from attnprobe.heads.metrics import OFFSETS
from attnprobe.heads.relations import choose
from attnprobe.heads.running import run_through, splits_of
from attnprobe.heads.tables import RelationSums, ShardSums, by_cluster
from attnprobe.text.align import encode
from attnprobe.text.batching import PlanOptions, cluster_of, plan_shards


class MostAttended:
    """Collects the other word that each word attends to most, and the one that attends to it most; -1: no weight on any."""

    needs_words = True

    def __init__(self, items):
        self.items = items
        self.first = np.concatenate([[0], np.cumsum([item.alignment.n_words for item in items])])
        self.table = {}

    def rows(self, call, rows, prepared, members):
        pass

    def words(self, call, words, prepared, members):
        table = self.table.setdefault(call.layer, np.full((self.first[-1], 2, words.shape[1]), -1, np.int16))
        for own, place in zip(words, prepared.members[members].tolist(), strict=True):
            item = self.items[place]
            n, has_token = item.alignment.n_words, torch.from_numpy(item.alignment.pieces > 0)
            for direction, weights in enumerate((own[:, :n, :n], own[:, :n, :n].transpose(1, 2))):
                hidden = ~has_token[None, None] | torch.eye(n, dtype=torch.bool)
                top, where = weights.masked_fill(hidden, -1.0).max(-1)
                found = torch.where(top > 0, where, -1).T.numpy()
                table[self.first[place] : self.first[place + 1], direction] = found

    def finish(self, cluster, split):
        return {}


@dataclass
class Redrawable:
    """A treebank under a model, ready for other trees."""

    cases: Cases
    top: np.ndarray
    """Most attended word of each case's query, [case direction layer head]."""
    labels: np.ndarray
    """Label of each case's query."""
    key: np.ndarray
    """Head of each case's query in the treebank."""
    has_token: list
    """Of each sentence, whether each word has a token."""
    cluster: np.ndarray
    split: np.ndarray
    modules: tuple

    @classmethod
    def of(cls, model, sentences):
        items = list(encode(model.tokenizer, sentences, max_length=model.max_length))
        options = PlanOptions(window=len(items), shard_cost=float("inf"))
        [(shard, members)] = plan_shards(
            items, length=len, cluster=lambda item: cluster_of(item.sentence), options=options
        )
        collector = MostAttended(members)
        measurer = ShardMeasurer([], None, {}, len(members), extras={"top": collector})
        run_through(model, shard, members, measurer, Cases(members, []))
        cases = Cases(members, choose(["dep", "udep"]))
        assert all(len(keys) == 1 for keys in cases.keys)
        query = np.array(cases.query)
        top = np.stack([collector.table[layer] for layer in sorted(collector.table)], axis=2)
        return cls(
            cases,
            top[collector.first[cases.sentence] + query],
            np.array([members[s].sentence.deprels[q] for s, q in zip(cases.sentence, query, strict=True)]),
            np.array(cases.keys)[:, 0],
            [item.alignment.pieces > 0 for item in members],
            np.array(shard.clusters),
            splits_of(members, "document"),
            tuple(measurer.modules),
        )

    def redraws(self, generator, n):
        """`n` times a head for every dependent: of the distances that its label has in the treebank, those that stay in the sentence."""
        query = np.array(self.cases.query)
        parts = []
        for label in np.unique(self.labels):
            own = np.flatnonzero(self.labels == label)
            distances, counts = np.unique(self.key[own] - query[own], return_counts=True)
            wanted = query[own, None] + distances
            possible = np.array(
                [
                    [0 <= place < len(words) and words[place] for place in row]
                    for row, words in zip(wanted, (self.has_token[s] for s in self.cases.sentence[own]), strict=True)
                ]
            )
            parts.append((own, wanted, np.cumsum(counts * possible, axis=1)))
        for _ in range(n):
            drawn = np.empty(len(query), np.int64)
            for own, wanted, cumulated in parts:
                at = generator.random((len(own), 1)) * cumulated[:, -1:]
                drawn[own] = wanted[np.arange(len(own)), (cumulated <= at).sum(1)]
            yield drawn

    def shuffled(self, generator):
        """Any other word of the sentence that has a token as the head of each dependent, each as likely."""
        others = [
            np.delete(np.flatnonzero(words), np.searchsorted(np.flatnonzero(words), query))
            for words, query in zip((self.has_token[s] for s in self.cases.sentence), self.cases.query, strict=True)
        ]
        drawn = generator.random(len(others))
        return np.array([words[int(part * len(words))] for words, part in zip(others, drawn, strict=True)])

    def hits(self, key):
        """Whether each head is right about each case, bool [case direction layer head]."""
        return self.top == key[:, None, None, None]

    def sums(self, key):
        """What a shard leaves behind, had the treebank these heads."""
        hits = self.hits(key)[:, None]
        nothing = np.zeros_like(hits)
        offsets = (key - np.array(self.cases.query))[:, None] == np.array(OFFSETS)
        relations: dict[str, RelationSums] = {}
        for name, own in self.cases.of_relation.items():
            sentences = self.cases.sentence[own]
            starts = np.flatnonzero(np.diff(self.cluster[sentences], prepend=-1))
            of_heads = (hits[own], nothing[own], nothing[own])
            of_baselines = (offsets[own], None, self.cases.chance[own])
            relations[name] = relation_sums(of_heads, of_baselines, starts, self.split[sentences])
        return ShardSums({}, relations, self.modules)

    def of_clusters(self, name, key=None):
        """Hits of the treebank's own heads, or of others, [cluster direction layer head] and cases [cluster] of a relation."""
        own = self.cases.of_relation[name]
        starts = np.flatnonzero(np.diff(self.cluster[self.cases.sentence[own]], prepend=-1))
        return by_cluster(self.hits(self.key if key is None else key)[own], starts), by_cluster(
            np.ones(len(own)), starts
        )
