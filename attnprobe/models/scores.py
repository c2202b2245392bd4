"""What the flow route knows of a tensor between the product of queries and keys and the product with the values.

`Scores` and `Weights` are notes on tensors of a running model: the product a tensor came from, and the steps since. Nothing here
runs a model's operation; a finished chain is brought into the order of axes of `AttentionCall` by `Frame`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from attnprobe.attention.call import Step

View = Callable[[Tensor], Tensor]
"""A change of shape or order that leaves the numbers as they are."""


class Unreadable(Exception):
    """A chain of operations that is not a product, scaled, biased and normalised: the message says what it is."""


@dataclass(frozen=True)
class Product:
    """queries @ keys^T, [*lead query key], operands as the model multiplied them."""

    queries: Tensor
    """[*lead query dim]; lead axes may be 1 where they are shared."""
    keys: Tensor
    """[*lead key dim]"""

    @property
    def lead(self) -> tuple[int, ...]:
        return tuple(torch.broadcast_shapes(self.queries.shape[:-2], self.keys.shape[:-2]))

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.lead, self.queries.shape[-2], self.keys.shape[-2])


@dataclass(frozen=True)
class Noted:
    """One step with the shape of the tensor it was taken on."""

    step: Step | None
    """None: a view."""
    view: View | None
    shape: tuple[int, ...]
    keeps_order: bool = True
    """Of a view: whether the numbers follow one another as before (reshape), so that no index is needed to undo it."""


@dataclass(frozen=True)
class Scores:
    """A tensor that is a product of queries and keys after some steps."""

    product: Product
    noted: tuple[Noted, ...] = ()

    def then(self, noted: Noted) -> Scores:
        """The note after one more step."""
        return replace(self, noted=(*self.noted, noted))


@dataclass(frozen=True)
class Weights:
    """A tensor that is the softmax of `scores` along its axis `dim`, after some steps."""

    scores: Scores
    shape: tuple[int, ...]
    """Of the tensor that the softmax was taken of."""
    dim: int
    dtype: torch.dtype | None
    """In which the softmax was taken; None: that of the scores."""
    noted: tuple[Noted, ...] = ()

    def then(self, noted: Noted) -> Weights:
        """The note after one more step."""
        return replace(self, noted=(*self.noted, noted))


@dataclass(frozen=True)
class Lost:
    """A tensor made of scores or weights by an operation that is not followed."""

    operation: str
    normalised: bool
    """Whether it came through a softmax."""


Note = Scores | Weights | Lost


@dataclass(frozen=True)
class Frame:
    """How the axes of a tensor of scores become [batch head query key]."""

    order: tuple[int, ...]
    """Its axes, sorted into lead, query, key."""
    sizes: tuple[int, ...]
    """Their sizes, in that order."""
    n_lead: int
    batch: int
    heads: int

    @property
    def queries(self) -> int:
        return prod(self.sizes[self.n_lead : -1])

    def four(self, tensor: Tensor) -> Tensor:
        """A tensor that broadcasts to the scores, as [batch head query key], axes of size 1 kept where they can be."""
        missing = len(self.order) - tensor.ndim
        tensor = tensor.reshape((1,) * missing + tuple(tensor.shape)).permute(self.order)
        lead, rows = tuple(tensor.shape[: self.n_lead]), tuple(tensor.shape[self.n_lead : -1])
        if len(rows) > 1 and prod(rows) > 1:
            rows = self.sizes[self.n_lead : -1]
        heads = (self.batch, self.heads) if prod(lead) > 1 else (1, 1)
        if len(lead) == 2 and self.sizes[:2] == (self.batch, self.heads):
            heads = (lead[0], lead[1])
        elif prod(lead) > 1:
            lead = self.sizes[: self.n_lead]
        return tensor.expand(*lead, *rows, -1).reshape(*heads, prod(rows), tensor.shape[-1])

    def rows(self, tensor: Tensor) -> Tensor:
        """Something per row, [*lead query dim] in the order of the frame, as [batch head query dim]."""
        return tensor.reshape(self.batch, self.heads, -1, tensor.shape[-1])

    def index(self, per: str, n_keys: int) -> Tensor:
        """For each element of the scores, in their own order of axes, the number of its row (`query`) or column (`key`)."""
        lead = self.batch * self.heads
        if per == "query":
            numbers = torch.arange(lead * self.queries).reshape(*self.sizes[:-1], 1)
        else:
            ones = (1,) * (len(self.sizes) - 1 - self.n_lead)
            numbers = torch.arange(lead * n_keys).reshape(*self.sizes[: self.n_lead], *ones, n_keys)
        whole = numbers.expand(*self.sizes[:-1], n_keys)
        return whole.permute([self.order.index(axis) for axis in range(len(self.order))])


Expected = tuple[int | None, int | None]
"""How many sequences and heads there should be, as far as that is known."""


def frame_of(weights: Weights, expected: Expected) -> Frame:
    """Which axes of the scores are lead, query and key, and how the lead is batch and head."""
    shape, product = weights.shape, weights.scores.product
    key = weights.dim % len(shape)
    others = [axis for axis in range(len(shape)) if axis != key]
    views = [noted for noted in weights.scores.noted if noted.view is not None]
    if not views or (all(v.keeps_order for v in views) and shape[-2:] == product.shape[-2:]):
        query = [axis for axis in others if axis == len(shape) - 2]
        if key != len(shape) - 1:
            query = [axis for axis in others if axis == len(shape) - 1]
    else:
        query = _query_axes(weights, key, others)
    lead = [axis for axis in others if axis not in query]
    order = (*lead, *query, key)
    sizes = tuple(shape[axis] for axis in order)
    return Frame(order, sizes, len(lead), *batch_and_heads(sizes[: len(lead)], expected))


def _query_axes(weights: Weights, key: int, others: list[int]) -> list[int]:
    """Axes along which the row of the product changes and not its lead."""
    product = weights.scores.product
    index = moved(row_numbers(product), weights.scores.noted)
    swapped = index.shape[key] > 1 and bool((index.select(key, 0) != index.select(key, -1)).any())
    n_rows = product.shape[-1] if swapped else product.shape[-2]
    index = moved(column_numbers(product), weights.scores.noted) if swapped else index
    start = [0] * index.ndim
    found = []
    for axis in others:
        along: list[int | slice] = list(start)
        along[axis] = slice(None)
        numbers = index[tuple(along)]
        if len(numbers) > 1 and int(numbers[0]) // n_rows == int(numbers[-1]) // n_rows:
            found.append(axis)
    return found or [max(others)]


def batch_and_heads(lead: tuple[int, ...], expected: Expected) -> tuple[int, int]:
    """How many of the leading axes' places are batch and how many heads."""
    total, (batch, heads) = prod(lead), expected
    if len(lead) == 2:
        return lead[0], lead[1]
    if len(lead) > 2:
        return (lead[0], total // lead[0]) if heads == total // lead[0] else (total // lead[-1], lead[-1])
    if total == batch:
        return total, 1
    return (total // heads, heads) if heads and total % heads == 0 else (total, 1)


def row_numbers(product: Product) -> Tensor:
    """Number of the row of the queries that each element of the product comes from, [*lead query key]."""
    *lead, n_queries, _ = product.shape
    return torch.arange(prod(lead) * n_queries).reshape(*lead, n_queries, 1).expand(product.shape)


def column_numbers(product: Product) -> Tensor:
    """Number of the row of the keys that each element of the product comes from, [*lead query key]."""
    *lead, _, n_keys = product.shape
    return torch.arange(prod(lead) * n_keys).reshape(*lead, 1, n_keys).expand(product.shape)


def moved(tensor: Tensor, noted: tuple[Noted, ...]) -> Tensor:
    """A tensor of the shape that the first step was taken on, taken through the views."""
    for entry in noted:
        if entry.view is not None:
            tensor = entry.view(tensor)
    return tensor
