"""Description length by online coding: how many bits the labels cost, given the vectors (Voita and Titov 2020).

The first block is sent with a uniform code; each following block with the probe trained on all blocks before it. A probe that needs few
words to become good sends its labels in few bits, so the code rewards what is easy to extract, not only what can be extracted in the end.

Probabilities are mixed with 1 part uniform to t parts of a probe trained on t words, so that a class not met yet costs a finite number of
bits. Blocks are of whole clusters. The unit is the bit; `unit="reference"` imitates the published code, which adds up bits (the first block
and the uniform code) and nats (all others).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnprobe.errors import InputError, near_names

FRACTIONS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.0625, 0.125, 0.25, 0.5, 1.0)
"""Where blocks end, as a share of the examples."""
UNITS = ("bits", "reference")


def block_ends(cluster: np.ndarray, fractions: Sequence[float] = FRACTIONS) -> np.ndarray:
    """Ends of the blocks of examples whose clusters (equal neighbours are one) must not be cut: at or after each fraction.

    >>> block_ends(np.array([4, 4, 4, 9, 9, 2]), (0.1, 0.5, 1.0)).tolist()
    [3, 6]
    """
    n = len(cluster)
    cuts = np.append(np.flatnonzero(np.diff(cluster)) + 1, n)
    wanted = np.ceil(np.asarray(fractions) * n - 1e-9).clip(1, n)
    return np.unique(cuts[np.searchsorted(cuts, wanted)])


def code_length(first: int, n_classes: int, losses: np.ndarray, *, unit: str = "bits") -> np.ndarray:
    """Length of an online code: `first` labels by the uniform code, then blocks with losses in nats (summed over the last axis).

    >>> float(code_length(1, 2, np.full(7, math.log(2))))  # a probe that knows nothing: one bit per label
    8.0
    """
    if unit not in UNITS:
        raise InputError(f"unknown unit {unit!r}; {near_names(unit, UNITS)}.")
    nats = np.asarray(losses, dtype=np.float64).sum(-1)
    return first * math.log2(n_classes) + (nats / math.log(2) if unit == "bits" else nats)


def mixed_losses(log_losses: np.ndarray, known: np.ndarray, seen: int, n_classes: int) -> np.ndarray:
    """Losses in nats of `seen` parts of a probe's probability and one part uniform.

    `log_losses` are the probe's own, [... example]; where `known` is False, the probe has never met the class and gives it probability 0.
    """
    own = np.where(known, np.exp(-np.asarray(log_losses, dtype=np.float64)), 0.0)
    return -np.log((seen * own + 1 / n_classes) / (seen + 1))


def unigram_losses(y: np.ndarray, ends: np.ndarray, n_classes: int) -> np.ndarray:
    """Losses in nats of the same code with nothing but class frequencies: what labels cost without any vector, by block."""
    losses = []
    for start, end in zip(ends[:-1], ends[1:], strict=True):
        share = np.bincount(y[:start], minlength=n_classes) / start
        block = y[start:end]
        with np.errstate(divide="ignore"):
            losses.append(mixed_losses(-np.log(share[block]), share[block] > 0, int(start), n_classes).sum())
    return np.array(losses)


@dataclass(frozen=True)
class Codes:
    """Code lengths of one labelling for every head."""

    bits: np.ndarray
    """Online code, [head], in `unit`."""
    uniform: float
    """n log2 K."""
    unigram: float
    """Online code with class frequencies alone."""
    words: np.ndarray
    """Examples trained on at each point of the learning curve, [portion]."""
    accuracy: np.ndarray
    """Accuracy on `report` of the probe trained on each portion, [head portion]."""

    @property
    def compression(self) -> np.ndarray:
        """Uniform code over online code: 1 where the vectors tell nothing, more where they do."""
        return self.uniform / self.bits

    @property
    def compression_unigram(self) -> np.ndarray:
        """Code with class frequencies alone over online code: over 1 only where the vectors tell more than the frequencies do."""
        return self.unigram / self.bits
