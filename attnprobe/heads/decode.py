"""Trees out of word patterns: maximum spanning arborescences and trees, and the gold tree they are held against.

Words that are left out (punctuation, words without a token) are left out of both sides: a word that hangs on one hangs on the nearest kept
word above it instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.sparse.csgraph import minimum_spanning_tree

ROOTS = ("given", "free")
"""Whether the gold root is given to the decoder, or found by it."""


@dataclass(frozen=True)
class GoldTree:
    """A dependency tree over the words that count."""

    words: np.ndarray
    """Places of the kept words in the sentence, increasing, int [word]."""
    heads: np.ndarray
    """Place of each one's head among the kept words, -1 for the root, int [word]."""

    @property
    def root(self) -> int:
        return int(np.flatnonzero(self.heads < 0)[0])

    @property
    def dependents(self) -> np.ndarray:
        """Words that have a head."""
        return np.flatnonzero(self.heads >= 0)

    def __len__(self) -> int:
        return len(self.words)


def gold_tree(heads: Sequence[int], kept: np.ndarray) -> GoldTree | None:
    """The tree over the words `kept`; None where none is left. `heads` count from 1, 0 is the root.

    Where the root itself is left out, the first kept word that hung on it, however far below, takes its place and the others hang on that.

    >>> gold_tree([2, 0, 2, 3], np.array([True, True, False, True])).heads.tolist()
    [1, -1, 1]
    """
    words = np.flatnonzero(kept)
    if not len(words):
        return None
    place = {int(word): number for number, word in enumerate(words)}
    found = []
    for word in words.tolist():
        above = heads[word] - 1
        while above >= 0 and above not in place:
            above = heads[above] - 1
        found.append(place.get(above, -1))
    array = np.array(found, dtype=np.int64)
    roots = np.flatnonzero(array < 0)
    array[roots[1:]] = roots[0]
    return GoldTree(words, array)


def arborescence(scores: np.ndarray, root: int | None = None) -> np.ndarray:
    """Heads of the tree with the greatest sum of scores; -1 for its root, which is `root`, or the best one where that is None.

    `scores[dependent, head]`, finite; the diagonal is not looked at. Chu-Liu-Edmonds' algorithm: exact, not greedy.

    >>> arborescence(np.array([[0.0, 0.9, 0.1], [0.8, 0.0, 0.1], [0.1, 0.7, 0.0]]), root=1).tolist()
    [1, -1, 1]
    """
    n = len(scores)
    if n == 1:
        return np.array([-1])
    if root is not None:
        order = np.array([root, *(word for word in range(n) if word != root)])
        found = solver().solve(scores[np.ix_(order, order)])
        heads = np.empty(n, dtype=np.int64)
        heads[order] = np.where(found >= 0, order[found], -1)
        return heads
    # an artificial root, whose every arc costs more than any tree is worth, so that just one is used
    table = np.empty((n + 1, n + 1))
    table[1:, 1:] = scores
    table[0], table[:, 0] = 0.0, -1.0 - 2 * n * max(float(np.abs(scores).max()), 1.0)
    return solver().solve(table)[1:] - 1


@dataclass(frozen=True)
class Solver:
    """A package that solves for the best arborescence rooted at word 0."""

    name: str
    solve: Callable[[np.ndarray], np.ndarray]
    """`scores[dependent, head] -> heads`, -1 for word 0."""


@cache
def solver() -> Solver:
    """`ufal.chu_liu_edmonds` where it is installed (extra `trees`); else networkx, as exact, and a thousand times slower."""
    try:
        from ufal.chu_liu_edmonds import chu_liu_edmonds
    except ImportError:
        return Solver("networkx", _by_networkx)

    def by_ufal(scores: np.ndarray) -> np.ndarray:
        return np.array(chu_liu_edmonds(np.ascontiguousarray(scores, dtype=np.float64))[0], dtype=np.int64)

    return Solver("ufal.chu_liu_edmonds", by_ufal)


def _by_networkx(scores: np.ndarray) -> np.ndarray:
    import networkx

    n = len(scores)
    graph = networkx.DiGraph()
    graph.add_weighted_edges_from(
        (head, word, float(scores[word, head])) for word in range(1, n) for head in range(n) if head != word
    )
    found: Any = networkx.maximum_spanning_arborescence(graph)
    heads = np.full(n, -1, dtype=np.int64)
    for head, word in found.edges:
        heads[word] = head
    return heads


def spanning_edges(weights: np.ndarray) -> np.ndarray:
    """Edges of the undirected tree of greatest weight, int [edge 2]; an edge weighs as much as its two directions together.

    >>> spanning_edges(np.array([[0.0, 0.9, 0.1], [0.8, 0.0, 0.1], [0.1, 0.7, 0.0]])).tolist()
    [[0, 1], [1, 2]]
    """
    both = weights + weights.T
    # scipy takes 0 for "no edge" and looks for the least: so every cost is over 0
    costs = np.triu(1.0 + both.max() - both, 1)
    return np.argwhere(minimum_spanning_tree(costs).toarray() > 0)


def undirected_hits(edges: np.ndarray, heads: np.ndarray) -> int:
    """How many edges join a word with its head."""
    i, j = edges[:, 0], edges[:, 1]
    return int(((heads[i] == j) | (heads[j] == i)).sum())
