"""Shapes, histograms and divergences of patterns by loops; imports nothing from attnprobe."""

import numpy as np
from scipy.spatial.distance import jensenshannon


def shape_of(pattern, counted, segments=None):
    """Sums over the counted rows of one pattern [query key]: vertical, diagonal, lines, within, between, rows."""
    n = len(pattern)
    rows = [i for i in range(n) if counted[i]]
    columns = [sum(pattern[i, j] for i in rows) for j in range(n)]
    top = int(np.argmax(columns))
    diagonal = sum(pattern[i, j] for i in rows for j in range(n) if abs(i - j) <= 1)
    away = sum(pattern[i, top] for i in rows if abs(i - top) > 1)
    within = between = 0.0
    if segments is not None:
        for i in rows:
            for j in range(n):
                if segments[i] >= 0 and segments[j] >= 0:
                    between += pattern[i, j]
                    within += pattern[i, j] * (segments[i] == segments[j])
    return {
        "vertical": max(columns),
        "diagonal": diagonal,
        "lines": diagonal + away,
        "within": within,
        "between": between,
        "diagonal_even": sum(sum(abs(i - j) <= 1 for j in range(n)) / n for i in rows),
        "vertical_even": len(rows) / n,
        "n": len(rows),
    }


def binned(value, edges):
    """Place of the last edge that is not over the value."""
    return max(place for place, edge in enumerate(edges) if edge <= value)


def divergence(a, b, rows):
    """Sum over rows of the Jensen-Shannon divergence in nats, by scipy."""
    return sum(jensenshannon(a[i], b[i]) ** 2 for i in rows)
