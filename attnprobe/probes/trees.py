"""Distances in a dependency tree, minimum spanning trees out of distances, and how the two are compared (Hewitt and Manning 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

SHORTEST, LONGEST = 5, 50
"""Lengths of sentences over which Spearman's correlation is averaged."""

Edge = tuple[int, int]


def tree_distances(heads: Sequence[int]) -> np.ndarray:
    """Number of arcs between every two words of a tree (heads 1-based, 0 for the root), float [word word].

    >>> tree_distances([2, 0, 2])[0].tolist()
    [0.0, 1.0, 2.0]
    """
    n = len(heads)
    distances = np.full((n, n), np.inf)
    np.fill_diagonal(distances, 0.0)
    children: list[list[int]] = [[] for _ in range(n)]
    for word, head in enumerate(heads):
        if head > 0:
            children[head - 1].append(word)
    known: list[int] = []
    stack = [word for word, head in enumerate(heads) if head == 0]
    while stack:
        word = stack.pop()
        if heads[word] > 0:
            row = distances[heads[word] - 1, known] + 1
            distances[word, known], distances[known, word] = row, row
        known.append(word)
        stack += children[word]
    return distances


def spanning_tree(distances: np.ndarray, kept: np.ndarray) -> set[Edge]:
    """Edges of the minimum spanning tree over the words `kept`, by Kruskal's rule, the lower words first where distances are equal."""
    words = np.flatnonzero(kept)
    i, j = (words[side] for side in np.triu_indices(len(words), 1))
    order = np.lexsort((j, i, distances[i, j]))
    group = {int(word): int(word) for word in words}

    def root(word: int) -> int:
        while group[word] != word:
            group[word] = word = group[group[word]]
        return word

    edges: set[Edge] = set()
    for a, b in zip(i[order].tolist(), j[order].tolist(), strict=True):
        if (first := root(a)) != (second := root(b)):
            group[first] = second
            edges.add((a, b))
            if len(edges) == len(words) - 1:
                break
    return edges


def edges_found(predicted: np.ndarray, gold: np.ndarray, kept: np.ndarray) -> tuple[int, int]:
    """Edges of the predicted tree that the gold tree has too, and the number of these.

    Both trees are spanned over the words `kept`, so that edges through words left out (punctuation) are bridged alike.
    """
    truth = spanning_tree(gold, kept)
    return len(truth & spanning_tree(predicted, kept)), len(truth)


class Spearman:
    """Mean rank correlation by sentence length: first within lengths, then over those from 5 to 50 (DSpr, NSpr)."""

    def __init__(self) -> None:
        self._by_length: dict[int, list[float]] = {}

    def add(self, predicted: np.ndarray, gold: np.ndarray) -> None:
        """One sentence: rows of distances [word word], or depths [word]. Rows that do not vary are left out."""
        ranks = [stats.rankdata(np.atleast_2d(values), axis=1) for values in (predicted, gold)]
        first, second = (rank - rank.mean(1, keepdims=True) for rank in ranks)
        size = np.sqrt((first * first).sum(1) * (second * second).sum(1))
        varies = size > 0
        if varies.any():
            found = (first * second).sum(1)[varies] / size[varies]
            self._by_length.setdefault(first.shape[1], []).extend(found.tolist())

    def by_length(self) -> dict[int, float]:
        """Length -> mean over words."""
        return {length: float(np.mean(values)) for length, values in sorted(self._by_length.items())}

    def mean(self) -> float:
        """Over lengths 5 to 50; NaN where there is none."""
        values = [value for length, value in self.by_length().items() if SHORTEST <= length <= LONGEST]
        return float(np.mean(values)) if values else float("nan")
