"""The multinomial logistic loss of many heads over the same labelled words: its value, gradient and curvature.

Weights are [head class dim + 1]: the last column is the intercept. Words are taken in blocks small enough to stay in the cache; on
the CPU one head after the other, so that a head's numbers are the same bits whoever stands beside it; elsewhere all heads at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

BLOCK_ELEMENTS, SMALLEST_BLOCK = 2**17, 256
"""Scores (classes times words) held at once for one head on the CPU, about half a megabyte; words at least."""
LOG2_E = 1 / math.log(2)
"""Exponentials are taken to base 2, of scores scaled by this: torch's exp2 is several times faster than its exp on a CPU."""


ALIGNMENT = 64
"""Bytes at whose multiples every head's vectors start: the bits of a product depend on where in memory its factors lie."""


def aligned(x: Float[Tensor, "head word dim"]) -> Float[Tensor, "head word dim"]:
    """The same vectors, on the CPU copied if need be so that every head's start at a multiple of `ALIGNMENT` bytes."""
    heads, n, dim = x.shape
    unit = ALIGNMENT // x.element_size()
    apart = heads < 2 or x.stride(0) % unit == 0
    if x.device.type != "cpu" or (apart and x.data_ptr() % ALIGNMENT == 0 and x.stride()[1:] == (dim, 1)):
        return x
    room = x.new_empty(heads, -(-n * dim // unit) * unit)[:, : n * dim].view(heads, n, dim)
    return room.copy_(x)


@dataclass(frozen=True)
class Words:
    """Labelled words as every head sees them."""

    x: Float[Tensor, "head word dim"]
    """Standardised vectors."""
    y: Int[Tensor, " word"]
    """Class of each word, 0 to n_classes - 1."""
    n_classes: int
    weight: Float[Tensor, " word"] | None = None
    """What each word counts, summing to 1; None: the same."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", aligned(self.x))

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Int[Tensor, " some"], weight: Float[Tensor, " some"] | None = None) -> Words:
        """Some of the words, copied; `weight` is made to sum to 1, so that losses are means."""
        if weight is not None:
            weight = (weight / weight.sum()).to(self.x)
        return Words(self.x[:, rows], self.y[rows], self.n_classes, weight)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch for a while: blocks are so small that more only wait for each other, many times over on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def loss_and_gradient(
    words: Words, weights: Float[Tensor, "some class dim"], heads: Int[Tensor, " some"]
) -> tuple[Float[Tensor, " some"], Float[Tensor, "some class dim"]]:
    """Mean loss in nats (float64, on the CPU) and its gradient, for the heads numbered by `heads`."""
    losses = torch.zeros(len(heads), dtype=torch.float64)
    gradient = torch.zeros_like(weights)
    for place, x, w in _parts(words, weights, heads):
        into = gradient[place]
        for block in _blocks(words, x):
            part, classes, weight = _block(words, x, block)
            scores = _scores(w * LOG2_E, part)
            true = scores.gather(-2, classes)
            top = scores.amax(-2, keepdim=True)
            total = scores.sub_(top).exp2_().sum(-2, keepdim=True)
            surprise = total.log2().add_(top).sub_(true)
            scores.div_(total).scatter_add_(-2, classes, torch.full_like(total, -1.0))
            if weight is not None:
                surprise.mul_(weight)
                scores.mul_(weight)
            losses[place] += surprise.sum((-2, -1)).cpu().double()
            into[..., :-1] += scores @ part
            into[..., -1] += scores.sum(-1)
    share = 1 / len(words) if words.weight is None else 1.0
    return losses * (share / LOG2_E), gradient * share


def log_losses(words: Words, weights: Float[Tensor, "head class dim"]) -> Float[Tensor, "head word"]:
    """Loss of each word in nats, for all heads."""
    found = words.x.new_empty(len(weights), len(words))
    for place, x, w in _parts(words, weights, torch.arange(len(weights))):
        for block in _blocks(words, x):
            part, classes, _ = _block(words, x, block)
            scores = _scores(w, part)
            found[place, ..., block] = torch.logsumexp(scores, -2) - scores.gather(-2, classes).squeeze(-2)
    return found


def predictions(words: Words, weights: Float[Tensor, "head class dim"]) -> Int[Tensor, "head word"]:
    """Class of the greatest score of each word, the lowest where several share it."""
    found = torch.empty(len(weights), len(words), dtype=torch.int64, device=weights.device)
    for place, x, w in _parts(words, weights, torch.arange(len(weights))):
        for block in _blocks(words, x):
            found[place, ..., block] = _scores(w, x[..., block, :]).argmax(-2)
    return found


def _scores(w: Tensor, part: Tensor) -> Tensor:
    """Score of every class for every word, [... class word]."""
    intercept, slopes = w[..., -1:], w[..., :-1]
    return torch.addmm(intercept, slopes, part.mT) if w.ndim == 2 else torch.baddbmm(intercept, slopes, part.mT)


def one_at_a_time(x: Tensor) -> bool:
    """Whether heads are computed one after the other: on the CPU, where that is no slower and keeps their bits apart."""
    return x.device.type == "cpu"


def _parts(words: Words, weights: Tensor, heads: Tensor) -> Iterator[tuple[int | slice, Tensor, Tensor]]:
    """(place among `heads`, vectors, weights): head by head on the CPU, all together elsewhere."""
    if one_at_a_time(words.x):
        for place, head in enumerate(heads.tolist()):
            yield place, words.x[head], weights[place].clone()  # a copy is aligned
    else:
        everyone = len(heads) == len(words.x)
        yield slice(None), words.x if everyone else words.x[heads.to(words.x.device)], weights


def _blocks(words: Words, x: Tensor) -> Iterator[slice]:
    elements = BLOCK_ELEMENTS if x.ndim == 2 else 2**8 * BLOCK_ELEMENTS // len(x)
    step = max(elements // words.n_classes, SMALLEST_BLOCK)
    for start in range(0, len(words), step):
        yield slice(start, min(start + step, len(words)))


def _block(words: Words, x: Tensor, block: slice) -> tuple[Tensor, Tensor, Tensor | None]:
    """Vectors, classes (as an index into scores) and weights of a block of words."""
    classes = words.y[block].expand(*x.shape[:-2], 1, -1)
    return x[..., block, :], classes, None if words.weight is None else words.weight[block]


def matmul(a: Float[Tensor, "head n k"], b: Float[Tensor, "head k m"]) -> Float[Tensor, "head n m"]:
    """Products head by head; on the CPU one at a time and aligned, so that their bits do not depend on the batch."""
    if not one_at_a_time(a):
        return a @ b
    return torch.stack([x.clone() @ y.clone() for x, y in zip(a, b, strict=True)])


def eigen(a: Float[Tensor, "head dim dim"]) -> tuple[Float[Tensor, "head dim"], Float[Tensor, "head dim dim"]]:
    """Eigenvalues and eigenvectors of symmetric matrices, in float64 on the CPU, one at a time and aligned."""
    found = [torch.linalg.eigh(matrix.clone()) for matrix in a.cpu().double()]
    return torch.stack([values for values, _ in found]), torch.stack([vectors for _, vectors in found])


class Preconditioner:
    """About the inverse Hessian at given weights, cheap to take and to apply.

    The Hessian's block of class k is the second moment of the words, each counted by p (1 - p). It is taken as c_k (S_k + m_k m_k'):
    c_k is the sum of these counts, m_k the mean of the words so counted, and S_k their covariance, whose axes are those of the covariance
    pooled over classes. The penalty is added. Blocks between classes are left out, but directions are made to add up to 0 over classes.
    What this leaves of the curvature, the memory of the steps learns.
    """

    POOLED = 0.05
    """Share of the pooled variance in that of each class, so that none is 0."""

    def __init__(
        self, words: Words, weights: Float[Tensor, "some class dim"], heads: Int[Tensor, " some"], decay: float
    ) -> None:
        count, mean, axes, variance = _moments(words, weights, heads)
        self._axes, self._mean = axes, mean
        self._slopes = count[..., None] * variance + (decay + 1e-7)
        self._intercept = count + 1e-7

    def keep(self, which: Tensor) -> None:
        """Forget the other heads."""
        for name in ("_axes", "_mean", "_slopes", "_intercept"):
            setattr(self, name, getattr(self, name)[which])

    def __call__(self, gradient: Float[Tensor, "head class dim"]) -> Float[Tensor, "head class dim"]:
        slopes, intercept = matmul(gradient[..., :-1], self._axes), gradient[..., -1:]
        slopes = (slopes - self._mean * intercept) / self._slopes
        found = torch.empty_like(gradient)
        found[..., :-1] = matmul(slopes, self._axes.mT)
        found[..., -1] = intercept.squeeze(-1) / self._intercept - (self._mean * slopes).sum(-1)
        return found - found.mean(1, keepdim=True)


def _moments(words: Words, weights: Tensor, heads: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For words counted by p (1 - p): the sum of counts, the mean, the axes of the pooled covariance, variances along these.

    Mean and variances are per class, along the axes.
    """
    n, classes, dim = weights.shape[0], weights.shape[1], weights.shape[2] - 1
    count, total = weights.new_zeros(n, classes), weights.new_zeros(n, classes, dim)
    second = weights.new_zeros(n, dim, dim)
    for place, x, w in _parts(words, weights, heads):
        for block in _blocks(words, x):
            part, counted = _counted(words, x, w, block)
            count[place] += counted.sum(-1)
            total[place] += counted @ part
            second[place] += (part.mT * counted.sum(-2, keepdim=True)) @ part
    count = count.clamp(min=1e-30)
    mean = total / count[..., None]
    pooled = (second - matmul((mean * count[..., None]).mT, mean)) / count.sum(-1)[:, None, None]
    values, axes = eigen(pooled)
    axes, values = axes.to(weights), values.clamp(min=0).to(weights)
    square = torch.zeros_like(total)
    for place, x, w in _parts(words, weights, heads):
        for block in _blocks(words, x):
            part, counted = _counted(words, x, w, block)
            square[place] += counted @ (part @ axes[place].clone()).square()
    mean = matmul(mean, axes)
    own = (square / count[..., None] - mean.square()).clamp(min=0)
    return count, mean, axes, torch.lerp(own, values[:, None, :].expand_as(own), Preconditioner.POOLED)


def _counted(words: Words, x: Tensor, w: Tensor, block: slice) -> tuple[Tensor, Tensor]:
    """Vectors of a block of words, and p (1 - p) of every class times the weight of each word."""
    part, _, weight = _block(words, x, block)
    p = torch.softmax(_scores(w, part), -2)
    share = 1 / len(words) if weight is None else weight
    return part, (p - p * p) * share
