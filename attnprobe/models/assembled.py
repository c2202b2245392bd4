"""A chain of operations seen by the flow route, brought into the order of axes of `AttentionCall`.

The product gives q and k, the steps between product and softmax give scale and bias, the product with the values gives v, pattern and
context. Tensors are views of the model's own wherever the model kept their order, else gathered by index.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attnprobe.attention.call import Step
from attnprobe.models.scores import (
    Expected,
    Frame,
    Noted,
    Unreadable,
    Weights,
    column_numbers,
    frame_of,
    moved,
    row_numbers,
)


@dataclass(frozen=True)
class Entering:
    """What enters the softmax of one attention, [batch head query|key dim]."""

    q: Tensor
    k: Tensor
    scale: float
    bias: Tensor | None
    steps: tuple[Step, ...] | None
    """None where they cannot be repeated on `q`."""
    frame: Frame


@dataclass(frozen=True)
class Mixing:
    """The product of weights [*lead query key] and values [*lead key dim], and how its axes become ours."""

    pattern: Tensor
    """[batch head query key]"""
    v: Tensor
    """[batch head key dim], or one head that all share."""
    out_of: Callable[[Tensor], Tensor]
    """From the model's product [*lead query dim] to [batch head query dim]."""
    back: Callable[[Tensor], Tensor]
    """The other way."""
    values_back: Callable[[Tensor], Tensor]
    """From [batch head key dim] to the model's values [*lead key dim]."""


def entering(weights: Weights, expected: Expected) -> Entering:
    """q, k, scale and bias of a softmax; raises `Unreadable` where the steps are no such thing."""
    frame = frame_of(weights, expected)
    q, k = _operands(weights, frame)
    steps = _placed(weights, frame)
    scale, bias, factor = _added_up(steps, q.dtype)
    if factor is not None:  # a scale of its own for each head or query is part of the queries
        q = q * factor
    return Entering(q, k, scale, bias, None if factor is not None else steps, frame)


def _operands(weights: Weights, frame: Frame) -> tuple[Tensor, Tensor]:
    product, noted = weights.scores.product, weights.scores.noted
    queries, keys, lead = product.queries, product.keys, product.lead
    ordered = all(n.keeps_order for n in noted if n.view is not None) and weights.shape[-2:] == product.shape[-2:]
    if ordered and frame.order == tuple(range(len(frame.order))):
        q = frame.rows(queries.expand(*lead, *queries.shape[-2:]))
        if len(lead) == 2 and lead == (frame.batch, frame.heads) and keys.shape[-3] < frame.heads:
            return q, keys.expand(frame.batch, keys.shape[-3], *keys.shape[-2:])
        return q, frame.rows(keys.expand(*lead, *keys.shape[-2:]))
    rows, columns = (_in_frame(numbers(product), noted, frame) for numbers in (row_numbers, column_numbers))
    if not _constant(rows, -1):  # the softmax runs over what came in as queries
        queries, keys, rows, columns = keys, queries, columns, rows
    if not (_constant(rows, -1) and _constant(columns, -2)):
        raise Unreadable("the axes of the scores are mixed")
    return _gathered(queries, lead, rows[..., 0]), _gathered(keys, lead, columns[..., 0, :])


def _in_frame(numbers: Tensor, noted: tuple[Noted, ...], frame: Frame) -> Tensor:
    return frame.four(moved(numbers, noted))


def _constant(numbers: Tensor, axis: int) -> bool:
    return bool((numbers == numbers.narrow(axis, 0, 1)).all())


def _gathered(operand: Tensor, lead: tuple[int, ...], numbers: Tensor) -> Tensor:
    flat = operand.expand(*lead, *operand.shape[-2:]).reshape(-1, operand.shape[-1])
    return flat[numbers.to(flat.device)]


def _placed(weights: Weights, frame: Frame) -> tuple[Step, ...]:
    """The steps up to the softmax, their operands taken through the views that came after them."""
    noted = weights.scores.noted
    placed = []
    for place, entry in enumerate(noted):
        if entry.step is None:
            continue
        later = tuple(n for n in noted[place + 1 :] if n.view is not None)

        def put(value: Tensor, entry: Noted = entry, later: tuple[Noted, ...] = later) -> Tensor:
            return frame.four(moved(value.expand(entry.shape), later) if later else value)

        placed.append(on_tensors(entry.step, put))
    return tuple(placed)


def on_tensors(step: Step, put: Callable[[Tensor], Tensor]) -> Step:
    """The step with its operands changed; single numbers stay."""
    value = put(step.value) if isinstance(step.value, Tensor) and step.value.ndim else step.value
    return Step(step.name, value, None if step.where is None else put(step.where), step.factors)


@dataclass
class _Sum:
    """What steps come to together: scale * product + bias, and a scale by head or query."""

    dtype: torch.dtype
    """Half precision is added up in float32: what was rounded in between was rounded by the model, and is repeated by the replay."""
    scale: float = 1.0
    factor: Tensor | None = None
    bias: Tensor | None = None

    def add(self, value: Any, times: float = 1.0) -> None:
        value = torch.as_tensor(value).to(self.dtype) * times
        self.bias = value if self.bias is None else self.bias + value

    def multiply(self, value: Any, inverse: bool) -> None:
        if isinstance(value, Tensor) and value.ndim and value.shape[-1] > 1 and bool((value == value[..., :1]).all()):
            value = value[..., :1]  # expanded on the way through a view
        if isinstance(value, Tensor) and value.ndim and value.shape[-1] > 1:
            if not bool(((value == 0) | (value == 1)).all()):
                raise Unreadable("scores are multiplied key by key")
            self.fill(value == 0, 0.0)
        elif isinstance(value, Tensor) and value.ndim:
            by = 1 / value.to(self.dtype) if inverse else value.to(self.dtype)
            self.factor = by if self.factor is None else self.factor * by
            self.bias = None if self.bias is None else self.bias * by
        else:
            number = 1 / float(value) if inverse else float(value)
            self.scale *= number
            self.bias = None if self.bias is None else self.bias * number

    def fill(self, where: Tensor, value: Any) -> None:
        before = torch.zeros((), dtype=self.dtype, device=where.device) if self.bias is None else self.bias
        self.bias = torch.where(where, torch.as_tensor(value).to(before), before)


def _added_up(steps: tuple[Step, ...], dtype: torch.dtype) -> tuple[float, Tensor | None, Tensor | None]:
    """Scale, bias, and a scale by head or query, that the steps come to together."""
    total = _Sum(torch.promote_types(dtype, torch.float32))
    for step in steps:
        if step.name in ("multiply", "divide"):
            total.multiply(step.value, step.name == "divide")
        elif step.name == "add":
            total.add(step.value)
        elif step.name == "fused":
            total.add(step.value, step.factors[0])
            total.scale *= step.factors[1]
        elif step.name == "fill":
            assert step.where is not None
            total.fill(step.where, step.value)
    bias = total.bias if total.bias is not None and total.bias.ndim else None  # one number for all keys changes nothing
    return total.scale, bias, total.factor


def mixing(weights: Weights, pattern: Tensor, v: Tensor, frame: Frame) -> Mixing:
    """The product of a tensor of weights [*lead query key] with values; raises `Unreadable` where rows or keys were left out."""
    *lead, n_queries, n_keys = pattern.shape
    shape = (frame.batch, frame.heads, frame.queries, frame.sizes[-1])
    ordered = all(n.keeps_order for n in weights.noted if n.view is not None)
    if pattern.numel() != shape[0] * shape[1] * shape[2] * shape[3]:
        raise Unreadable("some of the weights are not used")
    dim = v.shape[-1]
    if ordered and (n_queries, n_keys) == shape[2:] and frame.order == tuple(range(len(frame.order))):
        shared = tuple(lead) == shape[:2] and v.ndim >= 3 and v.shape[-3] < frame.heads
        whole = v.expand(*lead[:-1], v.shape[-3], n_keys, dim) if shared else v.expand(*lead, n_keys, dim)
        return Mixing(
            pattern.reshape(shape),
            whole if shared else whole.reshape(*shape[:2], n_keys, dim),
            lambda out: out.reshape(*shape[:3], -1),
            lambda ours: ours.reshape(*lead, n_queries, -1),
            lambda ours: (
                ours.reshape(*lead[:-1], v.shape[-3], n_keys, dim) if shared else ours.reshape(*lead, n_keys, dim)
            ),
        )
    rows = moved(frame.index("query", n_keys), weights.noted)
    keys = moved(frame.index("key", n_keys), weights.noted)
    if tuple(rows.shape) != tuple(pattern.shape) or not (_constant(rows, -1) and _constant(keys, -2)):
        raise Unreadable("its weights are normalised over another axis than the one they mix, or their axes are mixed")
    rows, keys = rows[..., 0].to(v.device), keys[..., 0, :].to(v.device)

    def scattered(values: Tensor, numbers: Tensor, total: int) -> Tensor:
        whole = values.new_zeros(total, values.shape[-1])
        whole[numbers.flatten()] = values.reshape(-1, values.shape[-1])
        return whole.reshape(*shape[:2], -1, values.shape[-1])

    in_order = torch.gather(pattern, -1, (keys % n_keys).argsort(-1)[..., None, :].expand(pattern.shape))
    n_rows, n_columns = shape[0] * shape[1] * shape[2], shape[0] * shape[1] * n_keys
    return Mixing(
        scattered(in_order, rows, n_rows),
        scattered(v.expand(*lead, n_keys, dim), keys, n_columns),
        lambda out: scattered(out, rows, n_rows),
        lambda ours: ours.reshape(n_rows, -1)[rows],
        lambda ours: ours.reshape(n_columns, -1)[keys],
    )
