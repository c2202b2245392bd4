"""Changing what heads do while a model runs: ablation, value zeroing, pattern replacement, on the seam of `interface.py`.

Context managers: while one is open, every forward pass of that model in this context is changed, whoever runs it, and a capture
sees the changed numbers. They add up when nested. Weights are not touched. (`head_mask` does nothing in transformers 5.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.precision import exact
from attnprobe.errors import CaptureError, InputError, explain, near_names
from attnprobe.models import scope
from attnprobe.models.capture import ModelLike, as_model, run_forward
from attnprobe.models.captured import real_rows
from attnprobe.models.flow import flowing
from attnprobe.models.inputs import from_model_inputs
from attnprobe.models.interface import Editor, Pending, Result, editing, raw_call
from attnprobe.models.model import Model
from attnprobe.models.recorder import Order, counting_passes, mask_parts

Head = tuple[int, int]
"""(layer, head), both counted from 0; layers in execution order over all attention modules."""

HOW = ("zero", "mean", "uniform")


def ablating(
    model: ModelLike, heads: Iterable[Head], *, how: str = "zero", means: Mapping[int, Tensor] | None = None
) -> AbstractContextManager[None]:
    """While open, chosen heads give nothing that depends on what they attend to.

    `how` says what their context z (pattern @ v, before the output projection) becomes: `zero`: 0; `mean`: its mean over a
    corpus, the same at each position (`means`, as `mean_contexts` gives it); `uniform`: the mean of the values that the query
    may see, as if it attended to all of them alike. A query that sees nothing keeps what the model gives it.

    Raises `InputError` for an unknown `how`, missing means, or, when the model runs, a head it does not have; `CaptureError` at
    the end of the block where a layer never ran. Source: Michel et al. 2019 (zero), Wang et al. 2022 (mean).

    >>> from attnprobe import capture, load
    >>> model = load("minilm")
    >>> with ablating(model, [(2, 8)]):
    ...     float(capture(model, "the cat sat").layer(2).context[:, 8].abs().max())
    0.0
    """
    if how not in HOW:
        raise InputError(f"unknown way to ablate {how!r}; {near_names(how, HOW)}.")
    by_layer = _by_layer(heads)
    missing = [layer for layer in by_layer if layer not in (means or {})] if how == "mean" else []
    if missing:
        remedy = "Pass means=mean_contexts(model, batches)"
        got = f"none for layer {missing[0]}"
        raise InputError(explain("no mean to put in place of a head", expected="one per layer", got=got, remedy=remedy))
    changes: dict[int, Editor] = {}
    for layer, chosen in by_layer.items():
        value = 0.0 if how == "zero" else means[layer][chosen] if means is not None else None
        change = partial(_level, chosen) if how == "uniform" else partial(_put, chosen, value)
        changes[layer] = partial(_after, layer, chosen, change)
    return _changing(as_model(model), changes)


def mean_contexts(model: ModelLike, batches: Iterable[Mapping[str, Any]]) -> dict[int, Float[Tensor, "head value_dim"]]:
    """Mean context of each head over the tokens of `batches` that are no padding, by layer, in float64: the means of `ablating`.

    Batches are mappings of model inputs, as in `record`. Raises as `record` does.
    """
    model = as_model(model)
    sums: dict[int, Tensor] = {}
    counts: dict[int, int] = {}
    for batch in batches:
        encoded = from_model_inputs(model, batch, describe=False)

        def add(call: AttentionCall, encoded: Any = encoded) -> None:
            real = real_rows(encoded, call)
            z = exact(call.context.transpose(1, 2))
            z = z.flatten(0, 1) if real is None else z[real.to(z.device)]
            sums[call.layer] = sums.get(call.layer, 0.0) + z.sum(0)
            counts[call.layer] = counts.get(call.layer, 0) + len(z)

        run_forward(model, encoded, add)
    return {layer: total / counts[layer] for layer, total in sums.items()}


def zeroing_values(
    model: ModelLike, layers: Iterable[int], positions: Sequence[int] | Tensor
) -> AbstractContextManager[None]:
    """While open, the value vectors of chosen key positions are 0 in all heads of chosen layers; the patterns stay as they are.

    `positions`: numbers of positions, the same in each sequence, or bool [batch key]. Raises `CaptureError` at the end of the
    block where a layer never ran. Source: Mohebbi et al. 2023, section 3.
    """

    def zero(call: Pending, run: Callable[[Pending], Result]) -> Result:
        batch, _, n_keys, _ = call.v.shape
        chosen = torch.as_tensor(positions, device=call.v.device)
        if chosen.dtype != torch.bool:
            outside = chosen[(chosen < 0) | (chosen >= n_keys)]
            if len(outside):
                raise InputError(explain(f"no key position {int(outside[0])}", expected=f"0 to {n_keys - 1}"))
            chosen = torch.isin(torch.arange(n_keys, device=chosen.device), chosen).expand(batch, -1)
        elif chosen.shape != (batch, n_keys):
            expected = f"bool {(batch, n_keys)}"
            raise InputError(explain("wrong key positions", expected=expected, got=str(tuple(chosen.shape))))
        return run(replace(call, v=call.v.masked_fill(chosen[:, None, :, None], 0.0)))

    return _changing(as_model(model), dict.fromkeys(layers, zero))


def replacing_patterns(model: ModelLike, patterns: Mapping[Head, Tensor]) -> AbstractContextManager[None]:
    """While open, chosen heads mix their values by the given patterns instead of their own.

    `patterns`: (layer, head) -> [query key], or [batch query key]; rows need not sum to 1. Raises `InputError` for a pattern that
    does not fit when the model runs, or a head it does not have; `CaptureError` at the end where a layer never ran.
    """
    changes: dict[int, Editor] = {}
    for layer, chosen in _by_layer(patterns).items():

        def change(call: Pending, result: Result, layer: int = layer, chosen: list[int] = chosen) -> Result:
            shape = (call.q.shape[0], call.q.shape[2], call.k.shape[2])
            stacked = [_fitting(patterns[layer, head], shape, layer, head) for head in chosen]
            return _mixed(chosen, call, result, torch.stack(stacked, dim=1).to(call.v))

        changes[layer] = partial(_after, layer, chosen, change)
    return _changing(as_model(model), changes)


def _by_layer(heads: Iterable[Head]) -> dict[int, list[int]]:
    by_layer: dict[int, list[int]] = {}
    for layer, head in sorted(set(heads)):
        by_layer.setdefault(layer, []).append(head)
    if not by_layer:
        raise InputError(explain("no head to change", expected="at least one (layer, head)", got="none"))
    return by_layer


def _after(
    layer: int,
    heads: list[int],
    change: Callable[[Pending, Result], Result],
    call: Pending,
    run: Callable[[Pending], Result],
) -> Result:
    """Run the call, then change what chosen heads gave."""
    wrong = [head for head in heads if not 0 <= head < call.q.shape[1]]
    if wrong:
        raise InputError(explain(f"no head {wrong[0]} in layer {layer}", expected=f"0 to {call.q.shape[1] - 1}"))
    return change(call, run(call))


def _put(heads: list[int], value: Any, _call: Pending, result: Result) -> Result:
    """A value [head value_dim], or a number, in place of the context of chosen heads."""
    out, weights = result
    out = out.clone()
    out[:, :, heads] = value.to(out) if isinstance(value, Tensor) else value
    return out, weights


def _level(heads: list[int], call: Pending, result: Result) -> Result:
    """The same weight on every key that the query may see."""
    _, visible = mask_parts(raw_call(call, result))
    shape = (call.q.shape[0], len(heads), call.q.shape[2], call.k.shape[2])
    if visible is None:
        pattern = call.v.new_ones(shape)
    else:  # a mask of its own for each head, or one for all
        pattern = (visible[:, heads] if visible.shape[1] > 1 else visible).to(call.v).expand(shape)
    total = pattern.sum(-1, keepdim=True)
    return _mixed(heads, call, result, pattern / total.clamp(min=1), total > 0)


def _mixed(heads: list[int], call: Pending, result: Result, pattern: Tensor, where: Tensor | None = None) -> Result:
    """The values mixed by `pattern` [batch chosen query key] in chosen heads, in the rows that `where` names."""
    out, weights = result[0].clone(), result[1]
    groups = call.q.shape[1] // call.v.shape[1]
    mixed = torch.matmul(pattern, call.v[:, [head // groups for head in heads]]).transpose(1, 2)
    rows = None if where is None else where.transpose(1, 2)
    out[:, :, heads] = mixed if rows is None else torch.where(rows, mixed, out[:, :, heads])
    if weights is not None:
        weights = weights.clone()
        weights[:, heads] = pattern if where is None else torch.where(where, pattern, weights[:, heads])
    return out, weights


def _fitting(pattern: Tensor, shape: tuple[int, int, int], layer: int, head: int) -> Tensor:
    if pattern.shape not in (shape, shape[1:]):
        raise InputError(
            explain(
                "the pattern does not fit",
                where=f"layer {layer} head {head}",
                expected=f"{shape[1:]} or {shape}",
                got=str(tuple(pattern.shape)),
            )
        )
    return pattern.expand(shape)


@contextmanager
def _changing(model: Model, changes: Mapping[int, Editor]) -> Iterator[None]:
    """Run the calls of the named layers by their changes, in every forward pass of this model in this context."""
    own = {id(module) for module in model.module.modules()}
    order, ran = Order(), set()

    def editor(call: Pending, run: Callable[[Pending], Result]) -> Result:
        if id(call.module) not in own:
            return run(call)
        layer = order.take()
        if layer not in changes:
            return run(call)
        ran.add(layer)
        return changes[layer](call, run)

    with (
        editing(editor),
        flowing(model.module),
        counting_passes(model.backbone, order.start, lambda: editor in scope.current().editors),
    ):
        yield
    never = sorted(set(changes) - ran)
    if never:
        raise CaptureError(
            explain(
                f"layer {never[0]} of {model.name} was to be changed and never ran",
                expected="a forward pass of the model inside the block, in this thread",
                got=f"{len(ran)} of {len(changes)} layers changed",
                remedy="Layers are counted from 0; a forward pass in another thread is not changed",
            )
        )
