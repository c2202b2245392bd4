"""A model's word embeddings, without position, reduced to a few dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from attnprobe.models.model import Model
from attnprobe.text.align import Encoded


def principal_axes(vectors: np.ndarray, train: np.ndarray, dim: int) -> np.ndarray:
    """Vectors [row dim] along the first principal axes of the training rows, about their mean."""
    centred = vectors.astype(np.float64) - vectors[train].mean(0, dtype=np.float64)
    _, axes = np.linalg.eigh(centred[train].T @ centred[train])
    return (centred @ axes[:, ::-1][:, :dim]).astype(np.float32)


def reduced_embeddings(model: Model, encoded: Sequence[Encoded], dim: int, train: np.ndarray) -> list[Tensor]:
    """For each sentence, [word dim]: the mean embedding of each word's pieces (0 without pieces), reduced on training sentences."""
    table = model.backbone.get_input_embeddings().weight.detach().float().cpu()  # type: ignore[operator]
    whole = []
    for item in encoded:
        inside = item.alignment.word_index >= 0
        total = torch.zeros(item.alignment.n_words, table.shape[1])
        total.index_add_(0, torch.from_numpy(item.alignment.word_index[inside]), table[item.input_ids[inside]])
        whole.append(total / torch.from_numpy(item.alignment.pieces).clamp(min=1)[:, None])
    sizes = [len(vectors) for vectors in whole]
    reduced = principal_axes(torch.cat(whole).numpy(), np.repeat(train, sizes), dim)
    reduced /= reduced.std() + 1e-12
    return list(torch.from_numpy(reduced).split(sizes))
