"""Labels where there is no syntax, and standard errors where clusters are resampled: with the real attention of the embedded model."""

import numpy as np
import pytest
from scipy import stats

from attnprobe import read_conllu, run
from attnprobe.data import path
from attnprobe.heads.specialise import relations_held
from attnprobe.heads.tabulate import MARGIN, MINIMUM_N, relation_table
from attnprobe.stream import RatioSums
from tests.heads.calibration import Redrawable

REDRAWS = 200
RESAMPLES = 4000
SHUFFLES = 25


@pytest.fixture(scope="module")
def bundled():
    return [sentence for sentence, _ in zip(read_conllu(path("bundled")), range(60), strict=False)]


def test_indexing_the_most_attended_words_equals_a_run(minilm_sdpa, bundled):
    treebank = Redrawable.of(minilm_sdpa, bundled)
    table = relation_table(treebank.sums(treebank.key), ("weights",))
    study = run(minilm_sdpa, bundled, metrics=["entropy"], examples=0)
    for name in ("hits", "n", "offset_hits", "baseline", "difference", "difference_low", "p_adjusted", "chance"):
        np.testing.assert_array_equal(table[name].values, study["relations"][name].values, err_msg=name)


def test_redraws_keep_distances_and_lose_the_trees(minilm_sdpa, bundled):
    treebank = Redrawable.of(minilm_sdpa, bundled)
    query = np.array(treebank.cases.query)
    before, n = treebank.key - query, 0
    for drawn in treebank.redraws(np.random.default_rng(3), 20):
        assert all(
            treebank.has_token[s][k] and k != q for s, k, q in zip(treebank.cases.sentence, drawn, query, strict=True)
        )
        for label in np.unique(treebank.labels):
            own = treebank.labels == label
            assert set((drawn - query)[own]) <= set(before[own])
        det = treebank.labels == "det"
        assert np.mean((drawn - query)[det] == 1) == pytest.approx(np.mean(before[det] == 1), abs=0.15)
        n += np.mean(drawn == treebank.key)
    assert n / 20 < 0.6


@pytest.fixture(scope="module")
def ewt(minilm_sdpa, shared_data):
    return Redrawable.of(minilm_sdpa, read_conllu(shared_data / "ud" / "en_ewt" / "en_ewt-ud-dev.conllu"))


def labelled(treebank, key):
    """Whether any head gets a syntactic label, and whether any would without correction and margin."""
    table = relation_table(treebank.sums(key), ("weights",))
    report = table.sel(split="report")
    uncorrected = (report["difference_low"] > 0) & (report["n"] >= MINIMUM_N)
    return bool(relations_held(table, MARGIN).any()), bool(uncorrected.any())


@pytest.mark.slow
@pytest.mark.shared
def test_trees_without_syntax_give_no_syntactic_labels(ewt, tell):
    generator = np.random.default_rng(71)
    found = np.array([labelled(ewt, key) for key in ewt.redraws(generator, REDRAWS)])
    with_label, uncorrected = map(int, found.sum(0))
    interval = stats.binomtest(with_label, REDRAWS).proportion_ci(method="exact")
    twin = stats.binomtest(uncorrected, REDRAWS).proportion_ci(method="exact")
    tell(f"{with_label} of {REDRAWS} redraws with a label, {interval}; uncorrected {uncorrected}, {twin}")
    assert interval.low <= 0.05
    assert twin.low > 0.05
    assert labelled(ewt, ewt.key) == (True, True)


@pytest.mark.slow
@pytest.mark.shared
def test_standard_errors_are_those_of_a_cluster_bootstrap(ewt, tell):
    generator = np.random.default_rng(72)
    off, effects = [], []
    for name, own in ewt.cases.of_relation.items():
        if len(own) < MINIMUM_N:
            continue
        hits, n = ewt.of_clusters(name)
        hits = hits.reshape(len(n), -1)
        sums = RatioSums.of(hits, n[:, None])
        drawn = generator.multinomial(len(n), np.full(len(n), 1 / len(n)), RESAMPLES).astype(float)
        resampled = (drawn @ hits) / (drawn @ n)[:, None]
        chosen = (sums.ratio > 0.05) & (sums.ratio < 0.95)
        error, ratio = sums.standard_error[chosen], sums.ratio[chosen]
        off.append(error / resampled[:, chosen].std(0, ddof=1) - 1)
        effects.append(error**2 * len(own) / (ratio * (1 - ratio)))
    off, effects = np.concatenate(off), np.concatenate(effects)
    tell(f"{len(off)} cells; error over bootstrap's - 1: {np.quantile(off, [0, 0.025, 0.5, 0.975, 1]).round(3)}")
    tell(f"design effects: {np.quantile(effects, [0.025, 0.25, 0.5, 0.75, 0.975]).round(2)}")
    assert np.abs(off).max() < 0.10


def holding_chance(treebank, key, names):
    """Share of 95 % intervals, over relations, directions and heads, that hold what a random choice would score."""
    covered = []
    for name in names:
        hits, n = treebank.of_clusters(name, key)
        low, high = RatioSums.of(hits.reshape(len(n), -1), n[:, None]).interval()
        chance = treebank.cases.chance[treebank.cases.of_relation[name]].mean()
        covered.append((low <= chance) & (chance <= high))
    return float(np.mean(covered))


@pytest.mark.slow
@pytest.mark.shared
def test_accuracies_on_shuffled_heads_are_those_of_chance(ewt, tell):
    """Heads drawn from all other words of the sentence, each as likely: no relation is left, nor any preference for a distance."""
    generator = np.random.default_rng(73)
    names = [name for name, own in ewt.cases.of_relation.items() if len(own) >= MINIMUM_N]
    shuffles = [ewt.shuffled(generator) for _ in range(SHUFFLES)]
    share = float(np.mean([holding_chance(ewt, key, names) for key in shuffles]))
    own = holding_chance(ewt, ewt.key, names)
    tell(f"{share:.4f} of {SHUFFLES} x {len(names)} x 144 intervals hold chance; with the true heads {own:.4f}")
    assert 0.93 <= share <= 0.97
    assert own < 0.5
    assert not any(labelled(ewt, key)[0] for key in shuffles)
