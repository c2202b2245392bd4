"""Decoding trees: brute force, networkx, planted trees, and the two solvers beside each other."""

import sys

import numpy as np
import pytest

from attnprobe.heads import decode
from attnprobe.heads.decode import arborescence, gold_tree, solver, spanning_edges, undirected_hits
from tests.heads.test_planted import random_tree
from tests.oracles import heads_trees as oracle


@pytest.fixture(params=["ufal.chu_liu_edmonds", "networkx"])
def each_solver(request, monkeypatch):
    """Both packages in turn, as if the other were not there."""
    solver.cache_clear()
    if request.param == "networkx":
        monkeypatch.setitem(sys.modules, "ufal.chu_liu_edmonds", None)
    elif solver().name != request.param:
        pytest.importorskip("ufal.chu_liu_edmonds", reason="the extra `trees` is not installed")
    solver.cache_clear()
    assert solver().name == request.param
    yield request.param
    solver.cache_clear()


def total(scores, heads):
    return sum(scores[word, head] for word, head in enumerate(heads) if head >= 0)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_arborescences_are_the_best_of_all_trees(each_solver, n):
    generator = np.random.default_rng(n)
    for _ in range(6):
        scores = generator.random((n, n))
        for root in (None, 0, n - 1):
            found = arborescence(scores, root)
            wanted, best = oracle.best_heads(scores, root)
            assert total(scores, found) == pytest.approx(best)
            np.testing.assert_array_equal(found, wanted)
            assert (found < 0).sum() == 1
            assert root is None or found[root] == -1


def test_a_planted_tree_is_found_projective_or_not(each_solver):
    generator = np.random.default_rng(3)
    crossing = 0
    for _ in range(5):
        heads = np.array(random_tree(generator, 13)) - 1
        scores = 0.25 * generator.random((13, 13))
        scores[np.arange(13)[heads >= 0], heads[heads >= 0]] += 0.6
        root = int(np.flatnonzero(heads < 0)[0])
        for given in (root, None):
            np.testing.assert_array_equal(arborescence(scores, given), heads)
        arcs = [tuple(sorted((w, h))) for w, h in enumerate(heads) if h >= 0]
        crossing += any(a < c < b < d for a, b in arcs for c, d in arcs)
        assert undirected_hits(spanning_edges(scores), heads) == 12
    assert crossing


def test_scores_of_any_size_and_sign_are_decoded(each_solver):
    generator = np.random.default_rng(8)
    for scale, shift in ((1e-6, 0.0), (1e4, 0.0), (3.0, -50.0)):
        scores = scale * generator.random((4, 4)) + shift
        for root in (None, 2):
            np.testing.assert_array_equal(arborescence(scores, root), oracle.best_heads(scores, root)[0])


def test_greedy_heads_in_a_cycle_are_repaired():
    scores = np.array([[0, 0.9, 0.3], [0.9, 0, 0.2], [0.1, 0.2, 0]])  # 0 and 1 would be each other's heads
    assert arborescence(scores, 2).tolist() == [2, 0, -1]  # .3 + .9 beats .2 + .9


@pytest.mark.parametrize("n", [1, 2, 3, 7, 19])
def test_spanning_edges_are_those_of_networkx(n):
    generator = np.random.default_rng(n)
    for _ in range(5):
        weights = generator.random((n, n))
        assert {tuple(edge) for edge in spanning_edges(weights).tolist()} == oracle.spanning_edges(weights)
    assert len(spanning_edges(np.zeros((n, n)))) == n - 1  # a head without any weight still gives a tree


def test_gold_trees_bridge_what_is_left_out():
    generator = np.random.default_rng(5)
    for _ in range(40):
        n = int(generator.integers(1, 12))
        heads, kept = random_tree(generator, n), generator.random(n) < 0.7
        tree = gold_tree(heads, kept)
        names, wanted = oracle.contracted(heads, kept.tolist())
        if not names:
            assert tree is None
            continue
        assert tree.words.tolist() == names
        tops = [word for word, head in enumerate(wanted) if head < 0]
        assert tree.root == tops[0]
        expected = [head if head >= 0 else (-1 if word == tops[0] else tops[0]) for word, head in enumerate(wanted)]
        assert tree.heads.tolist() == expected
        assert len(tree.dependents) == len(tree) - 1


def test_a_word_under_two_words_left_out_hangs_on_the_one_above_them():
    tree = gold_tree([0, 1, 2, 3, 4], np.array([True, True, False, False, True]))
    assert tree.heads.tolist() == [-1, 0, 1]


def test_the_solver_is_chosen_once_and_told():
    decode.solver.cache_clear()
    assert solver() is solver()
    assert solver().name in ("ufal.chu_liu_edmonds", "networkx")
