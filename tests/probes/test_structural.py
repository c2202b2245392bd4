"""Trees out of distances: a path-indicator embedding gives everything, and the map that undoes a mixing is found."""

import networkx
import numpy as np
import pytest
import torch
from scipy import stats

from attnprobe.errors import InputError
from attnprobe.probes import structural
from attnprobe.probes.structural import Parsed, fit_map, judge, mapped_depths, mapped_distances, structural_probe
from attnprobe.probes.tasks import depths_of
from attnprobe.probes.trees import Spearman, edges_found, spanning_tree, tree_distances
from attnprobe.records import Sentence
from tests.oracles import probe_trees
from tests.tiny import byte_tokenizer, tiny_model

DIM = 11


def random_heads(n, generator):
    order = generator.permutation(n)
    heads = np.zeros(n, dtype=int)
    for place in range(1, n):
        heads[order[place]] = order[generator.integers(place)] + 1
    return tuple(heads.tolist())


def planted(count, seed=2, mix=None):
    """Trees whose words carry the arcs on their way to the root, mixed by a matrix."""
    generator = np.random.default_rng(seed)
    trees = [random_heads(int(n), generator) for n in generator.integers(5, DIM, size=count)]
    mix = np.eye(DIM) if mix is None else mix
    vectors = [torch.from_numpy(probe_trees.path_indicators(heads, DIM) @ mix).float() for heads in trees]
    distances = [tree_distances(heads) for heads in trees]
    depths = [np.array(depths_of(heads), dtype=float) for heads in trees]
    return Parsed(vectors, distances, depths, [np.ones(len(heads), bool) for heads in trees], np.arange(count) // 3)


def test_distances_are_those_of_walking_up():
    generator = np.random.default_rng(1)
    for n in (1, 2, 7, 13):
        heads = random_heads(n, generator)
        expected = [[probe_trees.distance(heads, a, b) for b in range(n)] for a in range(n)]
        np.testing.assert_array_equal(tree_distances(heads), expected)


def test_spanning_trees_are_minimal():
    generator = np.random.default_rng(4)
    for n in (2, 3, 7, 11):
        distances = generator.random((n, n))
        distances = distances + distances.T
        kept = generator.random(n) > 0.2
        kept[:2] = True
        graph = networkx.Graph()
        words = np.flatnonzero(kept)
        graph.add_weighted_edges_from((a, b, distances[a, b]) for a in words for b in words if a < b)
        expected = sum(d["weight"] for _, _, d in networkx.minimum_spanning_edges(graph))
        found = spanning_tree(distances, kept)
        assert len(found) == len(words) - 1
        assert sum(distances[a, b] for a, b in found) == pytest.approx(expected)
    assert spanning_tree(np.zeros((1, 1)), np.ones(1, bool)) == set()
    assert spanning_tree(np.zeros((4, 4)), np.zeros(4, bool)) == set()


def test_words_left_out_are_bridged_in_both_trees():
    """a <- b <- c, b left out: the only edge is a - c, in both."""
    gold = tree_distances((2, 3, 0))
    assert edges_found(gold, gold, np.array([True, False, True])) == (1, 1)
    assert edges_found(gold, gold, np.array([True, True, True])) == (2, 2)


def test_a_path_indicator_embedding_has_the_tree_in_it():
    parsed = planted(17)
    for place in range(len(parsed)):
        np.testing.assert_allclose(mapped_distances(torch.eye(DIM))(parsed.vectors[place]), parsed.distances[place])
    found = judge(parsed, mapped_distances(torch.eye(DIM)), mapped_depths(torch.eye(DIM)))
    assert float(found.edges.ratio) == 1.0
    assert found.distance_spearman == pytest.approx(1.0)
    assert found.depth_spearman == pytest.approx(1.0)
    assert float(found.roots.ratio) == 1.0


def test_the_map_that_undoes_a_mixing_is_found():
    mix = np.random.default_rng(5).normal(size=(DIM, DIM)) * np.logspace(-0.7, 0.7, DIM)
    parsed = planted(120, mix=mix)
    place = np.arange(len(parsed))
    train, held_out, report = (parsed.take(place % 4 == k) for k in (0, 1, 2))
    untrained = judge(report, mapped_distances(torch.eye(DIM)), mapped_depths(torch.eye(DIM)))
    distance, depth = (fit_map(train, held_out, depth=depth) for depth in (False, True))
    found = judge(report, mapped_distances(distance), mapped_depths(depth))
    assert float(untrained.edges.ratio) < 0.8
    assert float(found.edges.ratio) > 0.95
    assert found.distance_spearman > 0.9
    assert float(found.roots.ratio) > 0.9
    assert torch.equal(fit_map(train, held_out), distance)
    narrow = fit_map(train, held_out, rank=3)
    assert narrow.shape == (DIM, 3)
    assert float(judge(report, mapped_distances(narrow), mapped_depths(depth)).edges.ratio) < 0.95


def test_depths_are_fitted_by_squared_norms():
    parsed = planted(60)
    place = np.arange(len(parsed))
    train, held_out, report = (parsed.take(place % 4 == k) for k in (0, 1, 2))
    depth = mapped_depths(fit_map(train, held_out, depth=True))
    errors = [np.abs(depth(report.vectors[i]) - report.depths[i]).mean() for i in range(len(report))]
    assert np.mean(errors) < 0.3


def test_training_ends_when_five_epochs_have_brought_nothing(monkeypatch):
    epochs = []
    original = structural._shuffled
    monkeypatch.setattr(structural, "_shuffled", lambda n, g: epochs.append(n) or original(n, g))
    parsed = planted(12)
    silent = Parsed([torch.zeros_like(v) for v in parsed.vectors], *(getattr(parsed, n) for n in _OTHERS))
    fit_map(silent, silent)
    assert len(epochs) == 1 + structural.PATIENCE  # the first is the best so far, whatever it brings


_OTHERS = ("distances", "depths", "kept", "cluster")


def test_rank_correlations_are_averaged_within_and_over_lengths():
    generator = np.random.default_rng(6)
    score, expected = Spearman(), {}
    for n in (4, 5, 5, 7):
        predicted, gold = generator.random((n, n)), generator.integers(4, size=(n, n)).astype(float)
        gold[0] = 1.0  # a row that does not vary has no correlation
        score.add(predicted, gold)
        rows = [stats.spearmanr(predicted[i], gold[i]).statistic for i in range(1, n)]
        expected.setdefault(n, []).extend(rows)
    means = {n: np.mean(values) for n, values in expected.items()}
    assert score.by_length() == pytest.approx(means)
    assert score.mean() == pytest.approx(np.mean([means[5], means[7]]))
    assert np.isnan(Spearman().mean())


def test_a_sentence_of_one_word_has_a_root_and_no_edge():
    one = Parsed([torch.zeros(1, 2)], [np.zeros((1, 1))], [np.zeros(1)], [np.ones(1, bool)], np.zeros(1, int))
    found = judge(one, mapped_distances(torch.eye(2)), mapped_depths(torch.eye(2)))
    assert np.isnan(found.edges.ratio)
    assert found.roots.ratio == 1.0


def test_the_table_of_a_tiny_model(some_sentences):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    short = [s for s in some_sentences if len(s.text) < 60]
    found = structural_probe(model, short, rank=5, max_epochs=2)
    names = ["words in a chain", "word embeddings", "state 0", "state 1", "state 2", "context 0", "context 1"]
    assert list(found["representation"].values) == names
    for name in ("uuas", "root_accuracy"):
        assert ((found[name] >= 0) & (found[name] <= 1)).all()
    assert ((found["uuas_low"] < found["uuas"]) & (found["uuas"] < found["uuas_high"])).all()
    assert found["uuas"].sel(representation="words in a chain") > 0.3
    with pytest.raises(InputError, match="without trees"):
        structural_probe(model, [Sentence("a", ("no", "tree"))])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"representations": ("sate",)}, "near names: state"),
        ({"rank": 0}, "1 or more"),
        ({}, "sentences of two words or more"),
    ],
)
def test_what_cannot_be_trained_says_why(options, told):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    words = [Sentence(f"s{i}", (f"w{i}",), heads=(0,), deprels=("root",)) for i in range(23)]
    with pytest.raises(InputError, match=told):
        structural_probe(model, words, cluster="sentence", **options)


@pytest.mark.shared
def test_a_chain_of_words_scores_what_is_known_of_the_treebank(shared_data):
    """Linear-chain UUAS of EWT dev: 43.0 %."""
    from attnprobe import read_conllu
    from attnprobe.probes.structural import _chain_depths, _chain_distances

    sentences = list(read_conllu(shared_data / "ud" / "en_ewt" / "en_ewt-ud-dev.conllu"))
    trees = [s.heads for s in sentences]
    kept = [np.array([x not in _NOT_WORDS for x in s.xpos]) for s in sentences]
    vectors = [torch.zeros(len(heads), 1) for heads in trees]
    depths = [np.array(depths_of(heads), dtype=float) for heads in trees]
    parsed = Parsed(vectors, [tree_distances(heads) for heads in trees], depths, kept, np.arange(len(trees)))
    assert float(judge(parsed, _chain_distances, _chain_depths).edges.ratio) == pytest.approx(0.430, abs=0.002)


_NOT_WORDS = ("''", ",", ".", ":", "``", "-LRB-", "-RRB-")
"""Tags that Hewitt and Manning leave out."""
