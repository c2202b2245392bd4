"""Products of two tensors, however they were written, as left @ right^T over shared lead axes: matmul, bmm and einsum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from torch import Tensor


@dataclass(frozen=True)
class Contraction:
    """left [*lead row inner] @ right [*lead column inner]^T, and how its result lies in the model's."""

    left: Tensor
    right: Tensor
    to_model: Callable[[Tensor], Tensor]
    """From [*lead row column] to the model's order of axes."""
    from_model: Callable[[Tensor], Tensor]
    """The other way."""
    left_to_model: Callable[[Tensor], Tensor]
    """From the axes of `left` to the model's left operand."""
    right_to_model: Callable[[Tensor], Tensor]
    left_from_model: Callable[[Tensor], Tensor]
    right_from_model: Callable[[Tensor], Tensor]
    plain: bool
    """Whether all of these leave a tensor as it is, but for the last two axes of the right operand."""

    def turned(self) -> Contraction:
        """The same product with its sides exchanged: (left @ right^T)^T = right @ left^T."""
        return Contraction(
            self.right,
            self.left,
            lambda t: self.to_model(_flip(t)),
            lambda t: _flip(self.from_model(t)),
            self.right_to_model,
            self.left_to_model,
            self.right_from_model,
            self.left_from_model,
            False,
        )


def _flip(tensor: Tensor) -> Tensor:
    return tensor.transpose(-1, -2)


def _same(tensor: Tensor) -> Tensor:
    return tensor


def of_matmul(left: Tensor, right: Tensor) -> Contraction | None:
    """A product left @ right of matrices, or stacks of them; None where either is a vector."""
    if left.ndim < 2 or right.ndim < 2:
        return None
    return Contraction(left, _flip(right), _same, _same, _same, _flip, _same, _flip, True)


def of_einsum(equation: str, left: Tensor, right: Tensor) -> Contraction | None:
    """An einsum of two tensors; None where nothing is contracted, or an axis is summed on one side only."""
    letters = _letters(equation, left, right)
    if letters is None:
        return None
    ours, theirs, out = letters
    lead = [a for a in out if a in ours and a in theirs]
    rows, columns = ([a for a in out if a in side and a not in lead] for side in (ours, theirs))
    inner = [a for a in ours if a in theirs and a not in out]
    whole = (set(ours) == {*lead, *rows, *inner}) and (set(theirs) == {*lead, *columns, *inner})
    if not (inner and rows and columns and whole):
        return None
    sizes = dict(zip(ours, left.shape, strict=True)) | dict(zip(theirs, right.shape, strict=True))
    to_left, from_left = _reordering(lead, rows, inner, ours, sizes)
    to_right, from_right = _reordering(lead, columns, inner, theirs, sizes)
    to_model, from_model = _reordering(lead, rows, columns, out, sizes)
    return Contraction(
        from_left(left), from_right(right), to_model, from_model, to_left, to_right, from_left, from_right, False
    )


def _reordering(
    lead: list[str], rows: list[str], columns: list[str], own: str, sizes: dict[str, int]
) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]:
    """Ways between [*lead row column], rows and columns flat, and the order of axes `own`."""
    order = [*lead, *rows, *columns]
    shape = [sizes[a] for a in order]
    flat = [*shape[: len(lead)], prod(sizes[a] for a in rows), prod(sizes[a] for a in columns)]
    out, back = [order.index(a) for a in own], [own.index(a) for a in order]

    def from_own(tensor: Tensor) -> Tensor:
        turned = tensor.permute(back)
        return turned if len(flat) == len(order) else turned.reshape(flat)

    def to_own(tensor: Tensor) -> Tensor:
        return (tensor if len(flat) == len(order) else tensor.reshape(shape)).permute(out)

    return to_own, from_own


def _letters(equation: str, left: Tensor, right: Tensor) -> tuple[str, str, str] | None:
    """Letters of both operands and of the result, an ellipsis written out; None where one repeats or there is no arrow."""
    before, arrow, out = equation.replace(" ", "").partition("->")
    sides = before.split(",")
    if not arrow or len(sides) != 2:
        return None
    hidden = [t.ndim - len(side.replace("...", "")) for side, t in zip(sides, (left, right), strict=True)]
    spare = "".join(a for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if a not in equation)[: max(0, *hidden)]
    ours, theirs = (s.replace("...", spare[len(spare) - n :]) for s, n in zip(sides, hidden, strict=True))
    written = (ours, theirs, out.replace("...", spare))
    if any(len(set(side)) != len(side) for side in written) or not all(a in ours + theirs for a in written[2]):
        return None
    return written
