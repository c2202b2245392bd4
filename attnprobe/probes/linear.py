"""Linear probes: one multinomial logistic regression per head, all heads of a layer in one fit.

What is minimised is scikit-learn's `LogisticRegression` objective: the summed loss plus penalty / 2 times the squared weights, the
intercept free, on features standardised on the training words. So `penalty` is its 1 / C, and the optimum is the same.

A fit goes from the strongest penalty to the weakest. Most steps are taken on a sample of the words in which rare classes are
over-represented (and weighted back); the last few, on all of them, start near the optimum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe.errors import InputError, explain
from attnprobe.probes.softmax import (
    Preconditioner,
    Words,
    aligned,
    log_losses,
    loss_and_gradient,
    one_thread,
    predictions,
)
from attnprobe.probes.solver import minimise

PENALTIES = (1000.0, 100.0, 10.0, 1.0)
"""Penalties to choose from, strongest first."""
GAP = 1e-5
"""Relative distance from the least loss at which a fit ends, as estimated before its last step."""
MAX_PASSES = 200
SAMPLE_SHARE, SMALLEST_SAMPLE = 0.12, 1200
"""Words of the sample on which most steps are taken: this share, at least so many; with fewer words there is no sample."""
RARE_POWER = 0.75
"""A class with n words gets a part of the sample in proportion to n to this power."""
SAMPLE_STEPS, SAMPLE_GAP = (3, 5, 8), 2e-4
"""Passes over the sample between two looks at the curvature, and the gap at which it has told what it can."""


@dataclass(frozen=True)
class Scaler:
    """Mean and scale of each feature over the training words."""

    mean: Float[Tensor, "head dim"]
    scale: Float[Tensor, "head dim"]
    """Standard deviation (divided by n); 1 for a feature that does not vary."""

    @classmethod
    def of(cls, x: Float[Tensor, "head word dim"]) -> Scaler:
        spread, mean = torch.std_mean(x, dim=1, correction=0)
        return cls(mean, torch.where(spread > 1e-7 * mean.abs().clamp(min=1e-30), spread, 1.0))

    def __call__(self, x: Float[Tensor, "head word dim"]) -> Float[Tensor, "head word dim"]:
        return aligned((x - self.mean[:, None]) / self.scale[:, None])


@dataclass(frozen=True)
class Fit:
    """Fitted probes of all heads."""

    weights: Float[Tensor, "head class dim"]
    """For standardised vectors; the intercept last."""
    penalty: Float[Tensor, " head"]
    """The penalty chosen for each head (the only one given, or the one with the least loss on the held-out words)."""
    held_out: Float[Tensor, " head"]
    """Mean loss on the held-out words in nats; NaN where none were given."""
    loss: Float[Tensor, " head"]
    """Mean of the minimised loss, penalty included, on the training words, in nats."""
    converged: Bool[Tensor, " head"]
    passes: Float[Tensor, " head"]
    """Passes over the training words, those over a sample counted in proportion, for all penalties together."""

    def predict(self, words: Words) -> Int[Tensor, "head word"]:
        """Most likely class of each word, the lowest where several are."""
        return predictions(words, self.weights)

    def log_losses(self, words: Words) -> Float[Tensor, "head word"]:
        """Loss of each word in nats; its class must be one that the probes know."""
        return log_losses(words, self.weights)


@dataclass
class _Objective:
    """Mean loss plus penalty, for the heads still in play."""

    words: Words
    heads: Tensor
    decay: float
    """Penalty per training word."""

    def __call__(self, points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        losses, gradient = loss_and_gradient(self.words, points, self.heads[which])
        slopes = points[..., :-1]
        gradient[..., :-1] += self.decay * slopes
        return losses + 0.5 * self.decay * slopes.square().sum((-2, -1)).cpu().double(), gradient

    def curvature(self, points: Tensor) -> Preconditioner:
        return Preconditioner(self.words, points, self.heads, self.decay)


@one_thread()
def fit(
    train: Words,
    *,
    penalties: Sequence[float] = PENALTIES,
    held_out: Words | None = None,
    gap: float = GAP,
    max_passes: int = MAX_PASSES,
) -> Fit:
    """Fit the probes of all heads; every class of `train` must occur in it.

    With several `penalties`, each head takes the one with the least mean loss on the `held_out` words, going from strong to weak until
    that loss rises. Raises `InputError` for several penalties without held-out words, a penalty that is not positive, or fewer than two classes.
    """
    ordered = _checked(train, penalties, held_out)
    n_heads = len(train.x)
    alive = torch.arange(n_heads)
    best = _nothing(train, n_heads)
    path = _Path(train, alive)
    for penalty in ordered:
        found = path.go_on(penalty / len(train), gap, max_passes)
        best.passes[alive] += found.passes
        loss = torch.full((len(alive),), torch.nan)
        if held_out is not None and len(held_out):
            own = Words(held_out.x[alive.to(held_out.x.device)], held_out.y, held_out.n_classes)
            loss = log_losses(own, found.weights).mean(1).cpu()
        better = ~(loss >= best.held_out[alive])
        chosen = alive[better]
        best.weights[chosen], best.penalty[chosen] = found.weights[better], penalty
        best.held_out[chosen], best.loss[chosen] = loss[better], found.loss[better]
        best.converged[chosen] = found.converged[better]
        alive = chosen
        path.keep(better)
        if not len(alive):
            break
    return best


def check_penalties(penalties: Sequence[float]) -> None:
    """Raise `InputError` unless there is a penalty and all are positive and finite."""
    if not penalties or not all(0 < penalty < float("inf") for penalty in penalties):
        raise InputError(explain("wrong penalties", expected="positive numbers", got=str(tuple(penalties))))


def _checked(train: Words, penalties: Sequence[float], held_out: Words | None) -> list[float]:
    check_penalties(penalties)
    if len(set(penalties)) > 1 and (held_out is None or not len(held_out)):
        raise InputError(
            explain("cannot choose among penalties", expected="held-out words", got="none", remedy="Give one penalty")
        )
    present = len(torch.unique(train.y))
    if train.n_classes < 2 or present != train.n_classes:
        got = f"{present} of {train.n_classes}"
        raise InputError(explain("cannot fit a probe", expected="two classes or more, each with a word", got=got))
    return sorted(set(penalties), reverse=True)


def _nothing(train: Words, n_heads: int) -> Fit:
    weights = train.x.new_zeros(n_heads, train.n_classes, train.x.shape[2] + 1)
    nan = torch.full((n_heads,), torch.nan)
    return Fit(weights, nan, nan.clone(), nan.double(), torch.zeros(n_heads, dtype=torch.bool), torch.zeros(n_heads))


@dataclass(frozen=True)
class _Found:
    weights: Tensor
    loss: Tensor
    converged: Tensor
    passes: Tensor


class _Path:
    """The optimum on the sample and on all words, followed from one penalty to the next, for the heads still in play."""

    def __init__(self, train: Words, heads: Tensor) -> None:
        self._train, self._heads = train, heads
        self._sample = _sample(train)
        start = train.x.new_zeros(len(heads), train.n_classes, train.x.shape[2] + 1)
        start[..., -1] = torch.bincount(train.y, minlength=train.n_classes).to(start).log()
        start[..., -1] -= start[..., -1].mean(-1, keepdim=True)
        self._on_sample, self._point, self._started = start, start, False

    def keep(self, which: Tensor) -> None:
        """Forget the other heads."""
        which = which.to(self._point.device)
        self._heads, self._on_sample, self._point = self._heads[which.cpu()], self._on_sample[which], self._point[which]

    def go_on(self, decay: float, gap: float, max_passes: int) -> _Found:
        """The optimum for the next penalty."""
        whole, sample = (_Objective(words, self._heads, decay) for words in (self._train, self._sample))
        passes = torch.zeros(len(self._heads))
        start = self._point
        if self._sample is not self._train:
            before = self._on_sample
            for steps in SAMPLE_STEPS:
                curvature = sample.curvature(self._on_sample)
                found = minimise(sample, self._on_sample, curvature, gap=SAMPLE_GAP, max_passes=steps)
                self._on_sample = found.point
                passes += found.passes * (len(self._sample) / len(self._train))
            # what the new penalty changes on the sample is about what it changes on all words
            start = self._point + self._on_sample - before if self._started else self._on_sample
        found = minimise(whole, start, sample.curvature(start), gap=gap, max_passes=max_passes)
        self._point, self._started = found.point, True
        return _Found(found.point, found.value, found.converged, passes + found.passes)


def _sample(train: Words) -> Words:
    """The words on which most steps are taken, rare classes over-represented and weighted back."""
    wanted = max(int(SAMPLE_SHARE * len(train)), SMALLEST_SAMPLE)
    if len(train) < 2 * wanted:
        return train
    y = train.y.cpu()
    counts = torch.bincount(y, minlength=train.n_classes).double()
    taken = _shares(counts, wanted)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(y), generator=generator)
    order = order[torch.argsort(y[order], stable=True)]
    first = torch.cumsum(counts, 0) - counts
    place = torch.arange(len(y)) - first.long()[y[order]]
    rows = order[place < taken[y[order]]]
    weight = (counts / taken)[y[rows]]
    return train.take(rows.to(train.y.device), weight.to(train.x))


def _shares(counts: Tensor, wanted: int) -> Tensor:
    """How many words of each class to take: in proportion to a power of its size, at most all of them, `wanted` together."""
    size = counts.pow(RARE_POWER)
    low, high = 0.0, float((counts / size).max())
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if float(torch.minimum(middle * size, counts).sum()) > wanted else (middle, high)
    return torch.minimum((low * size).round().clamp(min=1), counts).long()
