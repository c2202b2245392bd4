"""Known answers: planted labels, labels by type, labels by chance, constant labels, and every kind of missing class."""

import numpy as np
import pytest
import torch
from sklearn.preprocessing import StandardScaler

from attnprobe.errors import InputError
from attnprobe.probes import evaluate
from attnprobe.probes.evaluate import Plan, Vectors, score
from attnprobe.probes.examples import NO_LABELS, Clusters, Parts
from attnprobe.records import Sentence
from tests.probes.conftest import DIM, HEADS, clustered, examples_of, noise

N = 1201


def planned(*examples, clusters, seeds=(0, 1, 2), **options):
    faults = tuple(next((f for s in seeds if (f := e.fault(clusters, s))), None) for e in examples)
    return Plan(examples, clusters, seeds, faults=faults, **options)


@pytest.fixture
def setting():
    cluster, clusters = clustered(N, 13)
    return cluster, clusters, noise(N)


def test_a_planted_label_is_found_in_its_head_and_nowhere_else(setting):
    cluster, clusters, x = setting
    y = (x[:, 3, 2] > 0).astype(int)
    x[:, 3, 2] += 0.2 * np.sign(x[:, 3, 2])  # a gap between the classes
    found = score(x, planned(examples_of(y, cluster), clusters=clusters))
    accuracy = found["accuracy"][0]
    assert accuracy[3] == 1.0
    assert found["accuracy_low"][0, 3] < 1.0  # an interval is never of zero width
    elsewhere = np.delete(np.arange(HEADS), 3)
    assert (np.abs(accuracy[elsewhere] - 0.5) < 0.06).all()
    assert (found["selectivity_low"][0, elsewhere] < 0.05).all()
    assert found["selectivity_low"][0, 3] > 0.3
    assert found["compression"][0, 3] > 5
    assert (found["compression"][0, elsewhere] < 1.01).all()


def test_labels_random_by_type_are_not_selective():
    """Vectors that only know the word type: such a task is a control task, and its selectivity is 0 within its interval."""
    n, n_types, classes, draws = 2003, 61, 3, 13
    generator = np.random.default_rng(4)
    cluster, clusters = clustered(n, 17)
    types = generator.integers(n_types, size=n)
    vectors = generator.normal(size=(n_types, 2, 41))
    x = (vectors[types] + 0.3 * generator.normal(size=(n, 2, 41))).astype(np.float32)
    tasks = [
        examples_of(generator.integers(classes, size=n_types)[types], cluster, types, name=f"task {i}")
        for i in range(draws)
    ]
    found = score(x, planned(*tasks, clusters=clusters, mdl=False, penalties=(10.0,)))
    assert (found["accuracy"] > 0.7).all()
    assert (found["control"] > 0.7).all()
    covered = (found["selectivity_low"] <= 0) & (found["selectivity_high"] >= 0)
    assert covered.mean() >= 0.9
    assert abs(found["selectivity"].mean()) < 0.02


def test_labels_random_by_token_give_the_majority_rate(setting):
    cluster, clusters, x = setting
    y = np.random.default_rng(6).choice(3, size=N, p=[0.7, 0.2, 0.1])
    found = score(x, planned(examples_of(y, cluster), clusters=clusters))
    share = (y[clusters.report[cluster]] == 0).mean()
    assert (np.abs(found["accuracy"] - share) < 0.02).all()
    assert (found["compression_unigram"] < 1.02).all()
    # n log2 K over the code: about log2 K / H(p)
    entropy = -np.sum([p * np.log2(p) for p in (0.7, 0.2, 0.1)])
    np.testing.assert_allclose(found["compression"][0], np.log2(3) / entropy, rtol=0.06)


def test_uniform_random_labels_compress_to_at_most_one(setting):
    cluster, clusters, x = setting
    y = np.random.default_rng(7).integers(5, size=N)
    found = score(x, planned(examples_of(y, cluster), clusters=clusters))
    assert (found["compression"] <= 1).all()
    assert (found["compression"] > 0.9).all()


def test_the_learning_curve_ends_in_the_accuracy_of_the_first_seed(setting):
    cluster, clusters, x = setting
    y = (x[:, 1, 0] + x[:, 1, 1] > 0).astype(int)
    found = score(x, planned(examples_of(y, cluster), clusters=clusters, seeds=(0,)))
    np.testing.assert_array_equal(found["curve_accuracy"][:, :, -1], found["accuracy"])
    curve = found["curve_accuracy"][0, 1]
    assert curve[-1] > 0.95 > curve[0]
    words = found["curve_words"][0, 0]
    assert (np.diff(words) >= 0).all()
    assert words[-1] == len(examples_of(y, cluster).parts(clusters, 0).train)
    assert np.isnan(found["seed_sd"]).all()  # one seed has no deviation


def test_seeds_hold_out_other_clusters_and_show_their_spread(setting):
    cluster, clusters, x = setting
    y = (x[:, 1, 0] + np.random.default_rng(1).normal(size=N) > 0).astype(int)
    examples = examples_of(y, cluster)
    assert not np.array_equal(clusters.held_out(0), clusters.held_out(1))
    parts = [examples.parts(clusters, seed) for seed in (0, 1)]
    assert np.array_equal(parts[0].report, parts[1].report)
    for part in parts:
        together = np.concatenate([part.train, part.held_out, part.report])
        assert sorted(together) == list(range(N))
        assert not set(cluster[part.train]) & set(cluster[part.held_out])
        assert not set(cluster[part.train]) & set(cluster[part.report])
    found = score(x, planned(examples, clusters=clusters, mdl=False))
    assert (found["seed_sd"][0] > 0).all()
    single = [score(x, planned(examples, clusters=clusters, seeds=(s,), mdl=False))["accuracy"][0] for s in range(3)]
    np.testing.assert_allclose(found["accuracy"][0], np.mean(single, 0))
    np.testing.assert_allclose(found["seed_sd"][0], np.std(single, 0, ddof=1))


def test_the_same_call_twice_and_heads_apart_give_the_same_bits(setting, monkeypatch):
    cluster, clusters, x = setting
    y = np.random.default_rng(9).integers(3, size=N)
    plan = planned(examples_of(y, cluster), clusters=clusters, seeds=(0,))
    together, again = score(x, plan), score(x, plan)
    monkeypatch.setattr(evaluate, "HELD_ELEMENTS", N * DIM * 2)
    by_two = score(x, plan)
    alone = [score(x[:, head : head + 1], plan) for head in range(HEADS)]
    for name, array in together.items():
        np.testing.assert_array_equal(array, again[name])
        np.testing.assert_array_equal(array, by_two[name])
        np.testing.assert_array_equal(array, np.concatenate([part[name] for part in alone], axis=1))


def test_pairs_join_both_words_and_their_product(setting):
    cluster, clusters, x = setting
    generator = np.random.default_rng(2)
    pairs = np.stack([np.arange(N), generator.permutation(N)], axis=1)
    y = (x[pairs[:, 0], 2, 1] * x[pairs[:, 1], 2, 1] > 0).astype(int)  # neither word tells, both together do
    made = examples_of(y, cluster)
    examples = type(made)(**{**vars(made), "rows": pairs})
    found = score(x, planned(examples, clusters=clusters, mdl=False, seeds=(0,)))
    assert found["accuracy"][0, 2] > 0.9
    assert (np.delete(found["accuracy"][0], 2) < 0.6).all()
    vectors = Vectors.of(x, pairs, examples.parts(clusters, 0), torch.device("cpu"))
    assert vectors.train.shape[2] == 3 * DIM


def test_vectors_are_standardised_on_the_training_words_only(setting):
    _, _, x = setting
    parts = Parts(np.arange(700), np.arange(700, 900), np.arange(900, N))
    vectors = Vectors.of(x, np.arange(N), parts, torch.device("cpu"))
    for head in range(HEADS):
        scaler = StandardScaler().fit(x[:700, head])
        np.testing.assert_allclose(vectors.report[head], scaler.transform(x[900:, head]), rtol=1e-4, atol=1e-5)


def test_a_class_seen_once_and_one_missing_from_training_count_as_wrong(setting):
    cluster, clusters, x = setting
    y = (x[:, 0, 0] > 0).astype(int)
    report = np.flatnonzero(clusters.report[cluster])
    y[report[:7]] = 2  # only on report
    train = examples_of(y, cluster).parts(clusters, 0).train
    y[train[0]] = 3  # once, in training
    found = score(x, planned(examples_of(y, cluster), clusters=clusters, seeds=(0,)))
    best = 1 - 7 / len(report)
    assert best - 0.02 <= found["accuracy"][0, 0] <= best
    assert np.isfinite(found["codelength_bits"]).all()


def test_a_class_between_two_others_may_be_missing_from_training(setting):
    """Classes are numbered over the corpus, probes know those of training: 0 and 2 must not be taken for 0 and 1."""
    cluster, clusters, x = setting
    y = 2 * (x[:, 0, 0] > 0).astype(int)
    report = np.flatnonzero(clusters.report[cluster])
    y[report[:7]] = 1
    found = score(x, planned(examples_of(y, cluster), clusters=clusters, seeds=(0,), mdl=False))
    assert found["accuracy"][0, 0] >= 1 - 7 / len(report) - 0.02


def test_control_labels_may_be_one_class_in_training(setting):
    """Few word types, one rare class: the control task may draw the same class for all of them, which leaves nothing to fit."""
    cluster, clusters, x = setting
    y = np.zeros(N, int)
    y[::50] = 1
    examples = examples_of(y, cluster, types=np.arange(N) % 3)
    alike = [seed for seed in range(20) if len(np.unique(examples.control(clusters, seed))) == 1]
    found = score(x, planned(examples, clusters=clusters, seeds=tuple(alike[:2])))
    np.testing.assert_array_equal(found["control"], 1.0)
    assert np.isnan(found["control_penalty"]).all()
    assert np.isfinite(found["selectivity_low"]).all()
    # a label that never changes costs about the first block and is compressed to next to nothing
    assert (found["control_codelength_bits"] < 13 + 15).all()
    assert (found["control_compression"] > 10).all()


def test_a_head_whose_vectors_are_not_finite_is_nan_and_the_others_are_as_without_it(setting):
    cluster, clusters, x = setting
    y = (x[:, 0, 0] > 0).astype(int)
    plan = planned(examples_of(y, cluster), clusters=clusters, seeds=(0,))
    expected = score(x, plan)
    for wrong in (np.nan, np.inf):
        broken = x.copy()
        broken[7, 2, 3] = wrong
        found = score(broken, plan)
        for name, array in found.items():
            assert np.isnan(array[:, 2]).all()
            np.testing.assert_array_equal(np.delete(array, 2, 1), np.delete(expected[name], 2, 1))


def test_tasks_that_cannot_be_fitted_say_why_and_are_nan_beside_those_that_can(setting):
    cluster, clusters, x = setting
    good = examples_of((x[:, 0, 0] > 0).astype(int), cluster)
    constant = examples_of(np.zeros(N, int), cluster)
    nothing = examples_of(np.array([], int), np.array([], int))
    some = clusters.report[cluster]
    only_report = examples_of(good.y[some], cluster[some])
    plan = planned(constant, good, nothing, only_report, clusters=clusters, seeds=(0,))
    assert plan.faults[0] == "one class only: 'c0'"
    assert plan.faults[1] is None
    assert plan.faults[2] == NO_LABELS
    assert plan.faults[3] == "no labels in one of the splits"
    found = score(x, plan)
    for array in found.values():
        assert np.isnan(array[[0, 2, 3]]).all()
    assert np.isfinite(found["accuracy"][1]).all()
    trained = np.where(some, good.y, 1)
    assert examples_of(trained, cluster).fault(clusters, 0) == "one class only in training: 'c1'"


def test_a_corpus_that_cannot_be_split_says_what_to_do():
    one = [Sentence(f"s{i}", ("a",), document="d") for i in range(9)]
    with pytest.raises(InputError, match="cluster='sentence'"):
        Clusters.of(one, "document")
    with pytest.raises(InputError, match="at least two sentences to train on .* Use a corpus of more sentences"):
        Clusters.of(one[:1], "sentence")
    clusters = Clusters.of([Sentence(f"s{i}", (f"a{i}",)) for i in range(40)], "sentence")
    assert 0 < clusters.report.sum() < 40


def test_random_weights_need_only_an_accuracy(setting):
    cluster, clusters, x = setting
    y = (x[:, 0, 0] > 0).astype(int)
    plan = planned(examples_of(y, cluster), clusters=clusters, seeds=(0,))
    found = score(x, plan, task_only=True)
    assert list(found) == ["accuracy"]
    np.testing.assert_array_equal(found["accuracy"], score(x, plan)["accuracy"])
