"""Minimising many smooth convex functions at once: limited-memory BFGS, each problem with its own steps and its own end.

What is minimised is decided elsewhere (`linear.py`). A problem's path depends on its own values only, never on those beside it in
the batch, so that results do not change with how many are solved together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Evaluate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""`(points, which) -> (values, gradients)` of the problems numbered by `which`; values in float64 on the CPU."""

SUFFICIENT = 1e-4
"""Share of the decrease promised by the slope that a step must bring (Armijo's rule)."""
SHORTEST_STEP = 1e-5
BELIEVED = 2.0
"""An estimated gap ends a search where the last step brought at most this many times as much, or the estimate is this many times smaller."""


class Precondition(Protocol):
    """About the inverse Hessian, problem by problem."""

    def __call__(self, gradient: Tensor) -> Tensor: ...

    def keep(self, which: Tensor) -> None: ...


@dataclass(frozen=True)
class Minimum:
    """Where the search ended, for each problem."""

    point: Float[Tensor, "problem class dim"]
    value: Float[Tensor, " problem"]
    """Value before the last step."""
    gap: Float[Tensor, " problem"]
    """Estimated distance of the value from the least one, relative to the value, before the last step."""
    converged: Bool[Tensor, " problem"]
    passes: Int[Tensor, " problem"]
    """How often each problem was evaluated."""


class Memory:
    """The last few steps and changes of gradient of each problem: what they say of the curvature."""

    def __init__(self, limit: int) -> None:
        self._pairs: list[tuple[Tensor, Tensor, Tensor]] = []
        self._scale: Tensor | None = None
        self._limit = limit

    def add(self, step: Tensor, change: Tensor, precondition: Precondition) -> None:
        """Remember one step of every problem; one without positive curvature counts for nothing."""
        curvature = _dot(step, change)
        good = curvature > 1e-10 * torch.sqrt(_dot(step, step) * _dot(change, change))
        inverse = torch.where(good, 1 / torch.where(good, curvature, 1.0), 0.0)
        scale = curvature / _dot(change, precondition(change)).clamp(min=1e-30)
        before = torch.ones_like(scale) if self._scale is None else self._scale
        self._scale = torch.where(good, scale, before)
        self._pairs = [*self._pairs[1 - self._limit :], (step, change, inverse)]

    def keep(self, which: Tensor) -> None:
        """Forget the other problems."""
        self._pairs = [(step[which], change[which], inverse[which]) for step, change, inverse in self._pairs]
        self._scale = None if self._scale is None else self._scale[which]

    def direction(self, gradient: Tensor, precondition: Precondition) -> Tensor:
        """Minus the inverse Hessian, as the steps so far suggest it, times the gradient."""
        rest = gradient.clone()
        weights = []
        for step, change, inverse in reversed(self._pairs):
            weights.append(inverse * _dot(step, rest))
            rest -= weights[-1][:, None, None] * change
        found = precondition(rest)
        if self._scale is not None:
            found *= self._scale[:, None, None]
        for (step, change, inverse), weight in zip(self._pairs, reversed(weights), strict=True):
            found += (weight - inverse * _dot(change, found))[:, None, None] * step
        return found.neg_()


def minimise(
    evaluate: Evaluate, start: Tensor, precondition: Precondition, *, gap: float, max_passes: int, memory: int = 16
) -> Minimum:
    """Minimise every problem until its value is estimated to lie within `gap` (relative) of the least one.

    The estimate is half the slope along the next step, as for a parabola; it is believed once the last step brought little too. The next
    step is still taken then, unchecked: so near the end it helps.
    """
    n = len(start)
    which = torch.arange(n)
    result = Minimum(
        start.clone(),
        torch.full((n,), torch.inf, dtype=torch.float64),
        torch.full((n,), torch.inf, dtype=torch.float64),
        torch.zeros(n, dtype=torch.bool),
        torch.ones(n, dtype=torch.int64),
    )
    point, remembered = start.clone(), Memory(memory)
    value, gradient = evaluate(point, which)
    brought = torch.full_like(value, torch.inf)
    while True:
        direction = remembered.direction(gradient, precondition)
        slope = _dot(gradient, direction).cpu().double()
        result.value[which] = value
        result.gap[which] = -0.5 * slope / value.clamp(min=1e-12)
        done = (result.gap[which] <= gap) & (brought <= BELIEVED * gap * value) | (result.gap[which] <= gap / BELIEVED)
        result.converged[which[done]] = True
        result.point[which[done]] = point[done] + direction[done]
        kept = torch.nonzero(~done & (result.passes[which] < max_passes) & (slope < 0)).squeeze(-1)
        if len(kept) < len(which):
            which, point, value, gradient = which[kept], point[kept], value[kept], gradient[kept]
            direction, slope = direction[kept], slope[kept]
            remembered.keep(kept)
            precondition.keep(kept)
        if not len(which):
            return result
        step, values, change, spent = _line_search(evaluate, point, value, gradient, direction, slope, which)
        value, brought = values, value - values
        result.passes[which] += spent
        point, gradient = point + step, gradient + change
        result.point[which] = point
        remembered.add(step, change, precondition)


def _line_search(
    evaluate: Evaluate, point: Tensor, value: Tensor, gradient: Tensor, direction: Tensor, slope: Tensor, which: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The full step where it brings enough, else a shorter one, by the parabola through what is known.

    Gives the step, the new value, the change of the gradient, and the evaluations spent; where no step helps, none is taken.
    """
    values, gradients = evaluate(point + direction, which)
    length, spent = torch.ones_like(slope), torch.ones(len(which), dtype=torch.int64)
    trying = torch.nonzero(~(values <= value + SUFFICIENT * slope)).squeeze(-1)
    while len(trying):
        excess = values[trying] - value[trying] - length[trying] * slope[trying]
        best = torch.nan_to_num(-0.5 * slope[trying] * length[trying] ** 2 / excess, 0.0)
        length[trying] = torch.minimum(torch.maximum(best, 0.1 * length[trying]), 0.5 * length[trying])
        given_up = trying[length[trying] < SHORTEST_STEP]
        length[given_up], values[given_up], gradients[given_up] = 0.0, value[given_up], gradient[given_up]
        spent[given_up] = torch.iinfo(torch.int64).max // 2  # over any limit: ends the search of this problem
        trying = trying[length[trying] >= SHORTEST_STEP]
        if len(trying):
            short = _scaled(direction[trying], length[trying])
            values[trying], gradients[trying] = evaluate(point[trying] + short, which[trying])
            spent[trying] += 1
        enough = values[trying] <= value[trying] + SUFFICIENT * length[trying] * slope[trying]
        trying = trying[~enough]
    return _scaled(direction, length), values, gradients - gradient, spent


def _scaled(direction: Tensor, length: Tensor) -> Tensor:
    return direction * length.to(direction)[:, None, None] if bool((length != 1).any()) else direction


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum((-2, -1))
