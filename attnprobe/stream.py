"""Mergeable sums: what a shard leaves behind, and what is made of them in the end.

An accumulator holds plain float64 sums over clusters and nothing else; two are merged by adding, in the order of the plan, so that
every engine gives the same bits. Intervals come from the same sums, by the ratio estimator with clusters as sampling units.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy import stats

CONFIDENCE = 0.95


@dataclass(frozen=True)
class RatioSums:
    """Sums over clusters for a ratio of totals, sum(y) / sum(n): one ratio per element of the arrays."""

    y: np.ndarray
    """Sum over clusters of the cluster's total (hits, or values of a metric)."""
    y_squared: np.ndarray
    y_times_n: np.ndarray
    n: np.ndarray
    """Sum over clusters of the cluster's count."""
    n_squared: np.ndarray
    clusters: np.ndarray
    """Number of clusters with a count over 0."""

    @classmethod
    def of(cls, y: np.ndarray, n: np.ndarray) -> RatioSums:
        """Sums over the first axis: `y` and `n` are totals of each cluster, [cluster ...], and broadcast to each other."""
        y, n = np.broadcast_arrays(np.asarray(y, np.float64), np.asarray(n, np.float64))
        return cls(
            y.sum(0), (y * y).sum(0), (y * n).sum(0), n.sum(0), (n * n).sum(0), (n > 0).sum(0).astype(np.float64)
        )

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> RatioSums:
        return cls(*(np.zeros(shape) for _ in fields(cls)))

    def merge(self, other: RatioSums) -> RatioSums:
        return RatioSums(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def ratio(self) -> np.ndarray:
        """sum(y) / sum(n); NaN where nothing was counted."""
        return _divide(self.y, self.n)

    @property
    def standard_error(self) -> np.ndarray:
        """Linearised standard error of the ratio over clusters; NaN with fewer than two clusters."""
        return _standard_error(self.ratio, self.y_squared, self.y_times_n, self.n_squared, self.n, self.clusters)

    def interval(self, limits: tuple[float | None, float | None] = (0.0, 1.0)) -> tuple[np.ndarray, np.ndarray]:
        """95 % interval of the ratio.

        For a share (limits 0 and 1), Wilson's on the effective n, with Student's t at clusters - 1 degrees of freedom: never of zero
        width, also at 0 and 1. Else ratio +- t * standard error, cut at the limits. NaN with fewer than two clusters.
        """
        t = t_quantile(self.clusters)
        if limits == (0.0, 1.0):
            return wilson(self.ratio, effective_n(self.ratio, self.standard_error, self.n), t)
        half = t * self.standard_error
        low, high = limits
        return np.clip(self.ratio - half, low, None), np.clip(self.ratio + half, None, high)


@dataclass(frozen=True)
class PairedSums:
    """Sums over clusters for the difference of two hit counts on the same cases: heads against each fixed offset."""

    product: np.ndarray
    """Sum over clusters of hits of the head times hits of the offset, [... offset] per head."""

    @classmethod
    def of(cls, hits: np.ndarray, offset_hits: np.ndarray) -> PairedSums:
        """`hits` [cluster head...], `offset_hits` [cluster offset]."""
        return cls(np.tensordot(np.asarray(hits, np.float64), np.asarray(offset_hits, np.float64), axes=(0, 0)))

    def merge(self, other: PairedSums) -> PairedSums:
        return PairedSums(self.product + other.product)


def difference(head: RatioSums, offset: RatioSums, product: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Head accuracy minus offset accuracy on the same cases, and its cluster-robust standard error.

    `offset` holds the sums of one offset, broadcast against the heads; `product` the sum over clusters of the two hit counts.
    """
    d = _divide(head.y - offset.y, head.n)
    squared = head.y_squared - 2 * product + offset.y_squared
    times_n = head.y_times_n - offset.y_times_n
    return d, _standard_error(d, squared, times_n, head.n_squared, head.n, head.clusters)


def _standard_error(
    ratio: np.ndarray,
    squared: np.ndarray,
    times_n: np.ndarray,
    n_squared: np.ndarray,
    n: np.ndarray,
    clusters: np.ndarray,
) -> np.ndarray:
    residuals = np.maximum(squared - 2 * ratio * times_n + ratio * ratio * n_squared, 0.0)
    # rounding leaves a trace where all residuals are 0: below it the error is 0
    residuals = np.where(residuals <= 1e-12 * np.abs(squared), 0.0, residuals)
    correction = _divide(clusters, clusters - 1)
    return np.where(clusters > 1, _divide(np.sqrt(correction * residuals), n), np.nan)


def t_quantile(clusters: Any) -> np.ndarray:
    """Two-sided 95 % quantile of Student's t with clusters - 1 degrees of freedom; NaN with fewer than two clusters."""
    clusters = np.asarray(clusters, np.float64)
    quantile = stats.t.ppf(0.5 + CONFIDENCE / 2, np.maximum(clusters - 1, 1))
    return np.where(clusters > 1, quantile, np.nan)


def effective_n(p: np.ndarray, standard_error: np.ndarray, n: np.ndarray) -> np.ndarray:
    """The effective n, n over the design effect: p (1 - p) / standard_error^2. Where the error is 0 (all clusters agree) the design effect is 1."""
    variance = p * (1 - p)
    known = (standard_error > 0) & (variance > 0)
    return np.where(known, _divide(variance, np.square(standard_error)), n)


def wilson(p: np.ndarray, n: np.ndarray, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval of a share p on n cases with quantile t."""
    square = t * t
    centre = _divide(p + _divide(square, 2 * n), 1 + _divide(square, n))
    half = _divide(
        t * np.sqrt(np.maximum(_divide(p * (1 - p), n) + _divide(square, 4 * n * n), 0.0)), 1 + _divide(square, n)
    )
    return np.clip(centre - half, 0.0, 1.0), np.clip(centre + half, 0.0, 1.0)


def p_value(d: np.ndarray, standard_error: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """One-sided p of "the difference is not over 0" by Student's t with clusters - 1 degrees of freedom; NaN where undefined.

    Where every cluster shows the same difference the error is 0: p is 0 for a positive difference, 1 otherwise.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        p = stats.t.sf(d / standard_error, np.maximum(clusters - 1, 1))
    p = np.where(standard_error == 0, np.where(d > 0, 0.0, 1.0), p)
    return np.where((clusters > 1) & np.isfinite(d), p, np.nan)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's adjusted p over all entries that are not NaN; NaN stays."""
    flat = np.asarray(p, np.float64).ravel()
    adjusted = np.full_like(flat, np.nan)
    tested = np.flatnonzero(~np.isnan(flat))
    order = tested[np.argsort(flat[tested], kind="stable")]
    factors = len(order) - np.arange(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(flat[order] * factors), 1.0)
    return adjusted.reshape(np.shape(p))


def _divide(a: Any, b: Any) -> np.ndarray:
    """Quotient a / b, NaN where b is 0."""
    a, b = np.broadcast_arrays(np.asarray(a, np.float64), np.asarray(b, np.float64))
    return np.divide(a, b, out=np.full(a.shape, np.nan), where=b != 0)
