"""Measures of rows of weights in loops, from their definitions."""

import math

import numpy as np


def entropy(row, where=None):
    """Minus the sum of p ln p of the row over its sum; NaN without mass."""
    kept = [float(p) for i, p in enumerate(row) if where is None or where[i]]
    total = math.fsum(kept)
    if total == 0:
        return math.nan
    return -math.fsum(p / total * math.log(p / total) for p in kept if p > 0)


def normalised_entropy(row, where=None):
    n = len(row) if where is None else int(np.sum(where))
    return math.nan if n < 2 else entropy(row, where) / math.log(n)


def jensen_shannon(p, q):
    """Half KL(p | m) plus half KL(q | m), in nats."""
    p, q = np.asarray(p, float) / np.sum(p), np.asarray(q, float) / np.sum(q)
    m = (p + q) / 2
    return sum(0.5 * math.fsum(a * math.log(a / c) for a, c in zip(r, m, strict=True) if a > 0) for r in (p, q))


def mean_distance(row, position, where=None, signed=False):
    kept = [float(p) if where is None or where[j] else 0.0 for j, p in enumerate(row)]
    steps = [j - position if signed else abs(j - position) for j in range(len(row))]
    total = math.fsum(kept)
    return math.nan if total == 0 else math.fsum(p * s for p, s in zip(kept, steps, strict=True)) / total


def jacobian_norm(p):
    """Frobenius norm of diag(p) - p p^T, entry by entry."""
    n = len(p)
    return math.sqrt(math.fsum((p[i] * ((i == j) - p[j])) ** 2 for i in range(n) for j in range(n)))
