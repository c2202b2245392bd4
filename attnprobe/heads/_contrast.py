"""A difference of two means over words, with its error over clusters, and the same against other heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Contrast:
    """Differences of ratios, one per column, and how far the first column lies over the mean of the others."""

    difference: np.ndarray
    """y / n - z / m of each column; NaN where n or m is 0."""
    error: np.ndarray
    """Linearised standard error over clusters; NaN with fewer than two."""
    excess: float
    """First difference minus the mean of the others; NaN where there are none."""
    excess_error: float
    clusters: int


def contrast(sums: np.ndarray, cluster: Sequence[str]) -> Contrast:
    """Contrast of sums [4 sentence column], which hold y, n, z, m; `cluster` names the cluster of each sentence."""
    _, numbers = np.unique(np.array(cluster, dtype=object).astype(str), return_inverse=True)
    clusters = int(numbers.max()) + 1 if len(numbers) else 0
    member = (numbers[:, None] == np.arange(clusters)).astype(np.float64)
    y, n, z, m = np.einsum("psk,sc->pck", sums, member)
    with np.errstate(divide="ignore", invalid="ignore"):
        first, second = y.sum(0) / n.sum(0), z.sum(0) / m.sum(0)
        residuals = (y - first * n) / n.sum(0) - (z - second * m) / m.sum(0)
    d, alone = first - second, sums.shape[2] < 2
    excess = np.nan if alone else d[0] - d[1:].mean()
    own = residuals[:, 0] - (np.nan if alone else residuals[:, 1:].mean(1))
    factor = clusters / (clusters - 1) if clusters > 1 else np.nan
    return Contrast(
        d,
        np.sqrt(factor * np.square(residuals).sum(0)),
        float(excess),
        float(np.sqrt(factor * np.square(own).sum())),
        clusters,
    )


def number(value: Any) -> float | None:
    """A plain number for JSON; None where it is undefined."""
    return float(value) if np.isfinite(value) else None
