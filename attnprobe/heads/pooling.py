"""Metrics pooled over the rows of each sentence: a sum and a count for each head, nothing per row."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from attnprobe.attention.call import Rows
from attnprobe.registry import HeadMetric


def pool(metric: HeadMetric, rows: Rows) -> tuple[Tensor, Tensor]:
    """Sum of a metric over the rows that are kept, and how many of them are defined, [batch head *extra]."""
    if metric.pooled is not None:
        total, n = metric.pooled(rows)
        return total, n
    values, keep = metric(rows), rows.keep
    kept = keep[:, None, :].reshape(keep.shape[0], 1, keep.shape[1], *[1] * (values.ndim - 3))
    counted = kept & ~torch.isnan(values)
    return torch.where(counted, values, 0.0).sum(2), counted.sum(2, dtype=torch.float32)


class Pooled:
    """The pooled metrics of a shard's sentences, on the model's device: added to layer by layer, read once at the end."""

    def __init__(self, n_sentences: int) -> None:
        self.n_sentences = n_sentences
        self._tables: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}

    def add(self, name: str, layer: int, found: tuple[Tensor, Tensor], places: Tensor) -> None:
        """Add what `pool` gave for some rows of the sentences at these places."""
        if (name, layer) not in self._tables:
            total, n = (part.new_zeros(self.n_sentences, *part.shape[1:], dtype=torch.float32) for part in found)
            self._tables[name, layer] = total, n
        for table, part in zip(self._tables[name, layer], found, strict=True):
            table.index_add_(0, places, part.to(table.dtype))

    def table(self, name: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """Sums and counts of one layer, [sentence head *extra]."""
        y, n = (part.cpu().numpy() for part in self._tables[name, layer])
        return y, np.broadcast_to(n, y.shape)
