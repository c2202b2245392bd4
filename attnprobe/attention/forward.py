"""Scores, pattern and context from an `AttentionCall`: our own product, whole or by blocks of query rows, and the replay.

Two ways through the same formula. `scores_of`, `pattern_of`, `context_of` and `recompute` are our maths: grouped heads share
their keys without a copy, and a row that sees nothing is zero. `replay` repeats, in the model's dtype and order of operations,
what transformers' eager attention does, so that the two can be compared bit for bit. Neither calls the model's attention
function nor `scaled_dot_product_attention`: a check that ran the code under test would check nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnprobe.attention.call import AttentionCall, Step
from attnprobe.attention.measures import entropy_of
from attnprobe.attention.precision import exact_device
from attnprobe.errors import InputError, explain

HIDDEN_BELOW = -9e3
"""A bias at or below this hides its key. Models write -1e4, -1e9, finfo(dtype).min or -inf, in any dtype and with a position
bias on top: bfloat16 makes -9984 of -1e4, and the minimum of float16 is -65504."""


class Scratch:
    """Memory that blocks of scores and weights take turns in: fresh pages cost a block as much as its exponentials.

    What lies in it is gone with the next block.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, shape: Sequence[int]) -> Tensor:
        """A tensor of this shape, its contents arbitrary, in the dtype and on the device of `like`."""
        n, held = math.prod(shape), self._held.get(name)
        if held is None or held.numel() < n or held.dtype != like.dtype or held.device != like.device:
            held = self._held[name] = like.new_empty(n)
        return held[:n].view(*shape)


def scores_of(call: AttentionCall, rows: slice | None = None) -> Float[Tensor, "batch head query key"]:
    """Scores before the softmax, everything added: cap(q . k * scale) + bias, in the dtype of the call.

    cap(s) = softcap * tanh(s / softcap) where the family caps, else s. `rows` takes a block of the query rows; all by default.
    Dimensionless (the logits of the softmax). Sinks are no part of it.

    >>> import torch
    >>> call = AttentionCall(0, "encoder", 0, 0, torch.eye(2)[None, None], 3 * torch.eye(2)[None, None],
    ...     torch.eye(2)[None, None], 0.5, None, None, None, None, torch.zeros(1, 1, 2, 2))
    >>> scores_of(call)[0, 0].tolist()
    [[1.5, 0.0], [0.0, 1.5]]
    """
    return _scores(call, rows, None if call.bias is None else _rows(call.bias, rows))


def _scores(call: AttentionCall, rows: slice | None, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
    q, k = _rows(call.q, rows), call.k.transpose(-1, -2)
    if call.softcap is None:
        return _shared_product(q, k, call.scale, bias, out)
    scores = _shared_product(q, k, call.scale, None, out)
    scores = torch.tanh(scores / call.softcap) * call.softcap
    return scores if bias is None else scores + bias


def visible_of(call: AttentionCall, rows: slice | None = None) -> Bool[Tensor, "#batch #head query key"]:
    """Which keys each query may see: `call.visible`, or read off the bias (above `HIDDEN_BELOW`) where the call has none."""
    n_rows = len(range(call.q.shape[2])[rows or slice(None)])
    if call.visible is not None:
        return _rows(call.visible, rows)
    if call.bias is not None:
        return (_rows(call.bias, rows) > HIDDEN_BELOW).expand(-1, -1, n_rows, -1)
    return torch.ones(1, 1, n_rows, call.k.shape[2], dtype=torch.bool, device=call.q.device)


def blind_rows(call: AttentionCall, rows: slice | None = None) -> Bool[Tensor, "#batch #head query 1"] | None:
    """Which queries see no key; None where all see one. Asks the device, which waits for it."""
    if call.bias is None and call.visible is None:
        return None
    blind = ~visible_of(call, rows).any(-1, keepdim=True)
    return blind if blind.any() else None


def pattern_of(
    call: AttentionCall, rows: slice | None = None, *, blind: Tensor | EllipsisType | None = ...
) -> Float[Tensor, "batch head query key"]:
    """Weights after the softmax: exp(score) / (sum over keys of exp(score) + exp(sink)), in the dtype of the call.

    Each in 0..1. A row sums to 1; to less where the family has sinks; to 0 (all weights 0) where the query sees no key, which
    models treat in different ways: `replay` gives what eager attention does with it. `blind` is what `blind_rows` gives, for callers who
    have it from another layer.

    >>> import torch
    >>> call = AttentionCall(0, "encoder", 0, 0, torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), torch.zeros(1, 1, 2, 3),
    ...     1.0, torch.tensor([[[[0.0, -1e9], [-1e9, -1e9]]]]), None, None, None, torch.zeros(1, 1, 2, 3))
    >>> pattern_of(call)[0, 0].tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    scores = scores_of(call, rows)
    if call.sinks is None:
        pattern = torch.softmax(scores, dim=-1)
    else:
        pattern = torch.softmax(_with_sinks(scores, call.sinks, rows), dim=-1)[..., :-1]
    if isinstance(blind, EllipsisType):
        blind = blind_rows(call, rows)
    return pattern if blind is None else pattern.masked_fill(blind, 0.0)


def pattern_and_entropy_of(
    call: AttentionCall,
    rows: slice | None = None,
    *,
    blind: Tensor | EllipsisType | None = ...,
    scratch: Scratch | None = None,
) -> tuple[Float[Tensor, "batch head query key"], Float[Tensor, "batch head query"]]:
    """The pattern as `pattern_of` has it, and the entropy of its rows as `entropy_of` has it, in nats; NaN where the query sees no key.

    The entropy comes from the scores s below the row's greatest: ln Z - sum of exp(s) s / Z, with Z the sum of exp(s); two terms that are
    never negative, both 0 where one key takes everything. That saves the logarithm of every weight. Not for gradients: it works in place, in
    `scratch` where that is given.

    >>> import torch
    >>> call = AttentionCall(0, "encoder", 0, 0, torch.zeros(1, 1, 1, 3), torch.zeros(1, 1, 4, 3), torch.zeros(1, 1, 4, 3),
    ...     1.0, None, None, None, None, torch.zeros(1, 1, 1, 3))
    >>> pattern, entropy = pattern_and_entropy_of(call)
    >>> pattern.tolist(), round(entropy.item(), 4)
    ([[[[0.25, 0.25, 0.25, 0.25]]]], 1.3863)
    """
    if isinstance(blind, EllipsisType):
        blind = blind_rows(call, rows)
    if call.sinks is not None:
        pattern = pattern_of(call, rows, blind=blind)
        return pattern, entropy_of(pattern)
    scratch = Scratch() if scratch is None else scratch
    shape = (*_rows(call.q, rows).shape[:3], call.k.shape[2])
    bias = None
    if call.bias is not None:  # -inf times a weight of 0 would be no number
        bias = _rows(call.bias, rows).clamp_min(torch.finfo(call.bias.dtype).min / 4)
    scores = _scores(call, rows, bias, scratch.take("scores", call.q, shape))
    scores -= scores.amax(-1, keepdim=True)
    pattern = torch.exp(scores, out=scratch.take("pattern", call.q, shape))
    total = pattern.sum(-1, keepdim=True)
    entropy = (torch.log(total) - scores.mul_(pattern).sum(-1, keepdim=True) / total)[..., 0]
    pattern *= total.reciprocal()
    if blind is not None:
        pattern, entropy = pattern.masked_fill_(blind, 0.0), entropy.masked_fill(blind[..., 0], torch.nan)
    return pattern, entropy


def context_of(
    call: AttentionCall,
    pattern: Float[Tensor, "batch head query key"] | None = None,
    rows: slice | None = None,
) -> Float[Tensor, "batch head query value_dim"]:
    """Context of each head: pattern @ v, the mixture of value vectors before the output projection, in units of v.

    `pattern` of those rows, where the caller has it already; else it is computed. 0 where the query sees no key.
    """
    return _shared_product(pattern_of(call, rows) if pattern is None else pattern, call.v)


def recompute(
    call: AttentionCall, *, dtype: torch.dtype | None = None, rows: slice | None = None
) -> tuple[Float[Tensor, "batch head query key"], Float[Tensor, "batch head query value_dim"]]:
    """Pattern and context from q, k, v and what is added to the scores, in `dtype` (float64, which `inputs_as` may compute on the CPU).

    In float64 the scores of a half-precision call cannot overflow, masks written as finfo(dtype).min or -inf stay what they are,
    and a row that sees nothing is zero, not NaN. `rows` takes a block of the query rows, for instance one of
    `iter_row_blocks`; to walk many blocks, cast the call once with `inputs_as`.
    """
    exact = inputs_as(call, dtype or torch.float64)
    pattern = pattern_of(exact, rows)
    return pattern, context_of(exact, pattern)


def inputs_as(call: AttentionCall, dtype: torch.dtype) -> AttentionCall:
    """The call with q, k, v, bias and sinks cast to `dtype`; the model's own pattern and context are left as they are.

    A call on a device without float64 (MPS) is moved to the CPU for that.
    """
    if dtype == torch.float64:
        call = call.to(exact_device(call.q.device))
    names = ("q", "k", "v", "bias", "sinks")
    cast = {name: value.to(dtype) for name in names if (value := getattr(call, name)) is not None}
    return replace(call, **cast)


def iter_row_blocks(call: AttentionCall, max_elements: int) -> Iterator[slice]:
    """Slices of query rows, in order, whose patterns hold at most `max_elements` weights over batch and heads.

    A block has one row at least, however large. Together they cover every row once.

    >>> import torch
    >>> call = AttentionCall(0, "encoder", 0, 0, torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 7, 3), torch.zeros(1, 2, 7, 3),
    ...     1.0, None, None, None, None, torch.zeros(1, 2, 5, 3))
    >>> [(s.start, s.stop) for s in iter_row_blocks(call, 30)]
    [(0, 2), (2, 4), (4, 5)]
    """
    if max_elements < 1:
        raise InputError(
            explain("cannot cut the rows into blocks", expected="max_elements >= 1", got=str(max_elements))
        )
    batch, heads, n_rows, _ = call.q.shape
    step = max(1, max_elements // max(1, batch * heads * call.k.shape[2]))
    for start in range(0, n_rows, step):
        yield slice(start, min(start + step, n_rows))


def replay(
    call: AttentionCall,
    *,
    softmax_dtype: torch.dtype | None = None,
    score_dtype: torch.dtype | None = None,
    shift: bool | None = None,
) -> tuple[Float[Tensor, "batch head query key"], Float[Tensor, "batch head query value_dim"]]:
    """Pattern and context by the operations of transformers' `eager_attention_forward`, in their order and dtype.

    Read in 5.24: keys and values repeated per group; matmul(q, k^T) * scale; / softcap, tanh, * softcap; + bias; sinks
    concatenated; softmax; cast to the dtype of v; matmul with v. Bit for bit equal to eager on the same device and threads.

    `softmax_dtype`: float32 for the families that upcast the softmax (Llama, Gemma, ViT, ...); None: the dtype of the scores
    (BERT, GPT-2, T5, ...). No difference in a float32 model, nor on a CPU, whose softmax upcasts inside. `score_dtype`: float32 for those that upcast q and k (GPT-J).
    `shift`: subtract each row's maximum before the softmax, as GPT-OSS does (seen in half precision); None: where heads have
    sinks. A row that sees nothing comes out as the model makes it: uniform where the mask is finfo.min, zero where it is -inf
    (sdpa's answer; a plain softmax would give NaN). A call that carries the model's own `steps` is replayed by those instead.
    """
    if call.steps is not None:
        return _replay_steps(call, call.steps)
    groups = call.groups
    k = call.k if groups == 1 else call.k.repeat_interleave(groups, dim=1)
    v = call.v if groups == 1 else call.v.repeat_interleave(groups, dim=1)
    q = call.q if score_dtype is None else call.q.to(score_dtype)
    k = k if score_dtype is None else k.to(score_dtype)
    scores = torch.matmul(q, k.transpose(2, 3)) * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if call.bias is not None:
        scores = scores + call.bias
    if call.sinks is not None:
        scores = _with_sinks(scores, call.sinks)
    if shift if shift is not None else call.sinks is not None and call.sinks.ndim == 1:
        scores = scores - scores.max(dim=-1, keepdim=True).values
    pattern = torch.softmax(scores, dim=-1, dtype=softmax_dtype or scores.dtype)
    pattern = (pattern if call.sinks is None else pattern[..., :-1]).to(v.dtype)
    if call.bias is not None:
        empty = (call.bias == -torch.inf).all(-1, keepdim=True)
        pattern = pattern.masked_fill(empty, 0.0) if empty.any() else pattern
    return pattern, torch.matmul(pattern, v)


_STEPS: dict[str, Callable[[Tensor, Step], Tensor]] = {
    "multiply": lambda scores, step: scores * step.value,
    "divide": lambda scores, step: scores / step.value,
    "add": lambda scores, step: scores + step.value,
    "floor": lambda scores, step: torch.maximum(scores, torch.as_tensor(step.value).to(scores)),
    "clamp": lambda scores, step: scores.clamp(*step.factors),
    "fill": lambda scores, step: _filled(scores, step.where, step.value),
    "cast": lambda scores, step: scores.to(step.value),
    "softmax": lambda scores, step: torch.softmax(scores, dim=-1, dtype=step.value),
}
"""What each step of a call does; `fused` is a way to take the product."""


def _filled(scores: Tensor, where: Tensor | None, value: Any) -> Tensor:
    assert where is not None
    if isinstance(value, Tensor) and value.ndim:
        return torch.where(where, value, scores)
    return scores.masked_fill(where, value)


def _replay_steps(call: AttentionCall, steps: tuple[Step, ...]) -> tuple[Tensor, Tensor]:
    """Pattern and context by the steps that the model took, on the captured q, k and v."""
    # one head that all share is left to matmul, as models leave it: a copy lies in memory in another order
    k, v = (t if t.shape[1] in (1, call.n_heads) else t.repeat_interleave(call.groups, dim=1) for t in (call.k, call.v))
    keys = k.transpose(2, 3)
    if steps and steps[0].name == "fused":
        added, (beta, alpha) = steps[0].value, steps[0].factors
        shape = (*call.q.shape[:3], k.shape[2])
        flat = added.expand(shape).flatten(0, 1)
        scores = torch.baddbmm(flat, call.q.flatten(0, 1), keys.flatten(0, 1), beta=beta, alpha=alpha).view(shape)
        steps = steps[1:]
    else:
        scores = torch.matmul(call.q, keys)
    for step in steps:
        scores = _STEPS[step.name](scores, step)
    return scores, torch.matmul(scores, v)


def _rows(tensor: Tensor, rows: slice | None) -> Tensor:
    """A block of rows of a [.. .. query ..] tensor; a query axis of 1 stands for every row and stays."""
    return tensor if rows is None or tensor.shape[2] == 1 else tensor[:, :, rows]


def _shared_product(
    left: Float[Tensor, "batch head query inner"],
    right: Float[Tensor, "batch kv_head inner outer"],
    scale: float = 1.0,
    bias: Float[Tensor, "#batch #head #query #outer"] | None = None,
    out: Float[Tensor, "batch head query outer"] | None = None,
) -> Float[Tensor, "batch head query outer"]:
    """Product left @ right * scale + bias, where consecutive heads of `left` share a head of `right`, without repeating `right`.

    Scale and bias are part of the product: on their own each would read and write everything once more.
    """
    batch, heads, n_rows, inner = left.shape
    kv_heads, outer = right.shape[1], right.shape[-1]
    out = left.new_empty(batch, heads, n_rows, outer) if out is None else out
    if bias is not None:
        out.copy_(bias)
    shape = (batch * kv_heads, heads // kv_heads * n_rows, outer)
    left, right = left.reshape(*shape[:2], inner), right.reshape(shape[0], inner, outer)
    out.view(shape).baddbmm_(left, right, beta=0 if bias is None else 1, alpha=scale)
    return out


def _with_sinks(
    scores: Float[Tensor, "batch head query key"],
    sinks: Float[Tensor, " head"] | Float[Tensor, "batch head all_queries 1"],
    rows: slice | None = None,
) -> Float[Tensor, "batch head query keys_and_sink"]:
    """Scores with a sink as one more key at the end: each head's own, or each query's."""
    batch, _, n_rows, _ = scores.shape
    each = sinks.reshape(1, -1, 1, 1).expand(batch, -1, n_rows, -1) if sinks.ndim == 1 else _rows(sinks, rows)
    return torch.cat([scores, each], dim=-1)
