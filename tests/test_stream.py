"""Sums, intervals and tests: against direct formulas, and by simulation of what they promise."""

import numpy as np
import pytest
from scipy import stats

from attnprobe.stream import PairedSums, RatioSums, difference, holm, p_value, t_quantile, wilson


def simulated(seed, clusters=41, size=7, p=0.3):
    generator = np.random.default_rng(seed)
    n = generator.integers(1, size, clusters).astype(float)
    rate = np.clip(generator.normal(p, 0.1, clusters), 0, 1)
    return generator.binomial(n.astype(int), rate).astype(float), n


def test_ratio_and_its_error_equal_the_linearisation():
    y, n = simulated(1)
    sums = RatioSums.of(y, n)
    ratio = y.sum() / n.sum()
    residuals = y - ratio * n
    error = np.sqrt(len(y) / (len(y) - 1) * (residuals**2).sum()) / n.sum()
    assert sums.ratio == pytest.approx(ratio, rel=1e-14)
    assert sums.standard_error == pytest.approx(error, rel=1e-12)


@pytest.mark.parametrize("share", [1e-7, 1e-12])
def test_small_shares_have_the_error_that_large_ones_have(share):
    """Attention far away is a small share of all, not one on which all clusters agree."""
    y, n = simulated(8)
    large, small = RatioSums.of(y, n), RatioSums.of(share * y, n)
    assert small.standard_error / small.ratio == pytest.approx(large.standard_error / large.ratio, rel=1e-12)
    assert small.interval()[1] < 2 * small.ratio


def test_merging_equals_the_whole_and_empty_is_neutral():
    y, n = simulated(2)
    whole = RatioSums.of(y, n)
    parts = RatioSums.empty(()).merge(RatioSums.of(y[:13], n[:13])).merge(RatioSums.of(y[13:], n[13:]))
    for name in ("y", "y_squared", "y_times_n", "n", "n_squared", "clusters"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-14)


def test_a_duplicated_corpus_keeps_the_ratio_and_narrows_the_interval():
    y, n = simulated(3)
    once, twice = RatioSums.of(y, n), RatioSums.of(np.tile(y, 2), np.tile(n, 2))
    assert twice.ratio == pytest.approx(once.ratio)
    (low, high), (low2, high2) = once.interval(), twice.interval()
    assert (high2 - low2) / (high - low) == pytest.approx(1 / np.sqrt(2), rel=0.05)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_the_interval_is_never_of_zero_width(share):
    n = np.full(23, 5.0)
    low, high = RatioSums.of(share * n, n).interval()
    assert high - low > 0.01
    assert 0 <= low <= share <= high <= 1


def test_wilson_equals_the_closed_form_at_one():
    t = 2.1
    low, high = wilson(np.array(1.0), np.array(50.0), np.array(t))
    assert low == pytest.approx(50 / (50 + t * t))
    assert high == pytest.approx(1.0)


def test_wilson_equals_scipys():
    result = stats.binomtest(37, 100).proportion_ci(method="wilson")
    low, high = wilson(np.array(0.37), np.array(100.0), np.array(stats.norm.ppf(0.975)))
    assert (low, high) == pytest.approx((result.low, result.high), abs=1e-12)


def test_nothing_counted_is_nan_and_one_cluster_has_no_interval():
    nothing = RatioSums.of(np.zeros((3, 2)), np.zeros((3, 2)))
    assert np.isnan(nothing.ratio).all()
    assert np.isnan(nothing.interval()[0]).all()
    assert np.isnan(RatioSums.of(np.array([3.0]), np.array([7.0])).interval()[0])
    assert np.isnan(t_quantile(1))


def test_an_unbounded_metric_gets_t_times_the_error_cut_at_its_limits():
    y, n = simulated(4)
    sums = RatioSums.of(y, n)
    low, high = sums.interval((None, None))
    half = stats.t.ppf(0.975, len(y) - 1) * sums.standard_error
    assert (low, high) == pytest.approx((sums.ratio - half, sums.ratio + half))
    assert sums.interval((float(sums.ratio), None))[0] == sums.ratio


def test_the_paired_difference_equals_the_direct_formula():
    y, n = simulated(5)
    other = np.minimum(n, simulated(6)[0])
    sums = RatioSums.of(y, n), RatioSums.of(other, n)
    d, error = difference(*sums, PairedSums.of(y[:, None], other[:, None]).product[0, 0])
    wanted = (y - other).sum() / n.sum()
    residuals = (y - other) - wanted * n
    assert d == pytest.approx(wanted, rel=1e-12)
    assert error == pytest.approx(np.sqrt(len(y) / (len(y) - 1) * (residuals**2).sum()) / n.sum(), rel=1e-9)


def test_identical_scores_differ_by_nothing_and_are_not_significant():
    y, n = simulated(7)
    sums = RatioSums.of(y, n)
    d, error = difference(sums, sums, PairedSums.of(y[:, None], y[:, None]).product[0, 0])
    assert (d, error) == (0.0, 0.0)
    assert p_value(d, error, sums.clusters) == 1.0


def test_holm_equals_the_textbook_and_leaves_nan():
    p = np.array([[0.01, np.nan, 0.04], [0.03, 0.005, np.nan]])
    adjusted = holm(p)
    np.testing.assert_allclose(adjusted[[0, 0, 1, 1], [0, 2, 0, 1]], [0.03, 0.06, 0.06, 0.02])
    assert np.isnan(adjusted[[0, 1], [1, 2]]).all()


def covered(p, clusters, largest, correlation, seed, corpora=1000):
    """Share of simulated corpora whose 95 % interval holds the truth; clusters of 1 to `largest` cases, correlated within."""
    generator = np.random.default_rng(seed)
    n = generator.integers(1, largest + 1, (clusters, corpora))
    spread = 1 / correlation - 1 if correlation else np.inf
    rate = generator.beta(spread * p, spread * (1 - p), n.shape) if correlation else np.full(n.shape, p)
    low, high = RatioSums.of(generator.binomial(n, rate), n).interval()
    assert (n.sum(0) >= 100).all()
    return float(np.mean((low <= p) & (p <= high)))


@pytest.mark.parametrize("correlation", [0.0, 0.05])
@pytest.mark.parametrize("largest", [3, 8])
@pytest.mark.parametrize("clusters", [70, 300])
@pytest.mark.parametrize("p", [0.05, 0.5, 0.9, 0.98])
def test_intervals_cover_the_truth(p, clusters, largest, correlation):
    assert 0.93 <= covered(p, clusters, largest, correlation, seed=101) <= 0.97


def test_intervals_that_take_correlated_cases_for_independent_do_not_cover(monkeypatch):
    monkeypatch.setattr("attnprobe.stream.effective_n", lambda p, error, n: n)
    assert covered(0.5, 70, 8, 0.2, seed=101) < 0.93
