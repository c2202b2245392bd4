"""What a family must have added to its scores, computed from its weights and the formula of its paper, to hold its bias against.

By flow the bias of a call is what the model added. That it is also what it should be is a check of its own, for the families whose
row in `families.py` names a formula: each function here takes the module, what it was given, and gives the bias in float64, on the CPU
where the device has none.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import visible_of
from attnprobe.attention.positions import distance_buckets
from attnprobe.attention.precision import exact, exact_device
from attnprobe.attention.relative import (
    alibi_slopes,
    disentangled_bias,
    log_distance_buckets,
    transformer_xl_bias,
)
from attnprobe.models.families import family_of

Formula = Callable[[nn.Module, Any, Mapping[str, Any], AttentionCall], Tensor | None]
"""(model, attention module, its arguments by name, the call) -> bias [#batch #head #query key]; None where it does not apply."""


def bias_error(model: nn.Module, call: AttentionCall, given: tuple[Any, Any] | None, rows: Tensor) -> float:
    """Largest difference of the bias that was added from the family's formula, over visible keys; NaN where there is none.

    What is the same for all keys of a row is left out of account: the softmax does not see it.
    """
    formula = FORMULAS.get(family_of(str(getattr(getattr(model, "config", None), "model_type", ""))).bias or "")
    if formula is None or given is None or call.bias is None or not bool(rows.any()):
        return float("nan")
    module = model.get_submodule(call.module)
    device, bias = exact_device(call.q.device), exact(call.bias)
    call, rows, given = call.to(device), rows.to(device), tree_map_only(Tensor, lambda tensor: tensor.to(device), given)
    arguments = inspect.signature(module.forward).bind(*given[0], **given[1]).arguments
    with torch.no_grad():
        expected = formula(model, module, {**arguments.pop("kwargs", {}), **arguments}, call)
    if expected is None:
        return float("nan")
    visible = visible_of(call).expand(call.q.shape[0], call.q.shape[1], call.q.shape[2], call.k.shape[2])
    off = (bias - expected).expand(visible.shape).masked_fill(~visible, 0.0)
    level = off.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp_min(1)
    return float((off - level).masked_fill(~visible, 0.0).abs().amax(-1)[rows].max())


def _distance(call: AttentionCall) -> Tensor:
    """Query position - key position."""
    queries, keys = (torch.arange(n, device=call.q.device) for n in (call.q.shape[2], call.k.shape[2]))
    return queries[:, None] - keys


def _alibi(_model: nn.Module, _module: Any, _given: Mapping[str, Any], call: AttentionCall) -> Tensor:
    slopes = alibi_slopes(call.n_heads).to(call.q.device)
    return -slopes[None, :, None, None] * _distance(call)


def _buckets(model: Any, _module: Any, _given: Mapping[str, Any], call: AttentionCall) -> Tensor:
    """MPNet: one table of 32 buckets for all layers."""
    table = next(m for name, m in model.named_modules() if name.endswith("relative_attention_bias"))
    buckets = distance_buckets(-_distance(call), n_buckets=table.num_embeddings)
    return exact(table.weight)[buckets].permute(2, 0, 1)[None]


def _disentangled(model: Any, module: Any, given: Mapping[str, Any], call: AttentionCall) -> Tensor | None:
    """DeBERTa: queries, keys and the vectors of positions are projected anew from the module's weights."""
    table, states = given.get("rel_embeddings"), given["hidden_states"]
    if table is None or given.get("query_states") is not None or call.q.shape[2] != call.k.shape[2]:
        return None
    distance, kinds = _distance(call), module.pos_att_type
    if hasattr(module, "in_proj"):
        q, k = _one_projection(module, states)
        span = min(call.k.shape[2], module.max_relative_positions)
        table = table[module.max_relative_positions - span : module.max_relative_positions + span]
        by_key, by_query = getattr(module, "pos_proj", None), getattr(module, "pos_q_proj", None)
    else:
        q, k = (_by_head(_linear(part, states), call.n_heads) for part in (module.query_proj, module.key_proj))
        span = module.pos_ebd_size
        if module.position_buckets > 0:
            distance = log_distance_buckets(
                distance, n_buckets=module.position_buckets, max_distance=module.max_relative_positions
            )
        table = table[: 2 * span]
        shared = module.share_att_key
        by_key = module.key_proj if shared else getattr(module, "pos_key_proj", None)
        by_query = module.query_proj if shared else getattr(module, "pos_query_proj", None)
    terms = 1 + sum(kind in kinds for kind in ("c2p", "p2c"))
    place = (distance + span).clamp(0, 2 * span - 1)
    pos_k, pos_q = (
        _by_head(_linear(part, table[None]), call.n_heads)[0] if kind in kinds else None
        for kind, part in (("c2p", by_key), ("p2c", by_query))
    )
    return disentangled_bias(q, k, place, (terms * q.shape[-1]) ** -0.5, pos_k=pos_k, pos_q=pos_q)


def _one_projection(module: Any, states: Tensor) -> tuple[Tensor, Tensor]:
    """DeBERTa's first version: one projection whose output is cut into heads, and each head into query, key and value."""
    heads = module.num_attention_heads
    flat = _by_head(_linear(module.in_proj, states), heads)
    q, k, _ = flat.chunk(3, dim=-1)
    return q + exact(module.q_bias).view(heads, 1, -1), k


def _transformer_xl(_model: Any, module: Any, given: Mapping[str, Any], call: AttentionCall) -> Tensor | None:
    """XLNet, one stream and no memory."""
    if given.get("g") is not None or given.get("mems") is not None:
        return None

    def heads(states: Tensor, weight: Tensor) -> Tensor:
        return torch.einsum("ibh,hnd->bnid", exact(states), exact(weight))

    def offset(name: str) -> Tensor:
        return exact(getattr(module, name))[:, None, :]

    q, positions = heads(given["h"], module.q), heads(given["r"], module.r)
    segment = given.get("seg_mat")
    place = call.k.shape[2] - _distance(call)
    return transformer_xl_bias(
        q + offset("r_r_bias"),
        positions.expand(q.shape[0], -1, -1, -1),
        place,
        float(module.scale),
        q_segment=None if segment is None else q + offset("r_s_bias"),
        segments=None if segment is None else exact(module.seg_embed).transpose(0, 1),
        segment=None if segment is None else segment.argmax(-1).permute(2, 0, 1),
    )


def _linear(part: Any, states: Tensor) -> Tensor:
    out = exact(states) @ exact(part.weight).T
    return out if part.bias is None else out + exact(part.bias)


def _by_head(flat: Tensor, heads: int) -> Tensor:
    return flat.view(*flat.shape[:-1], heads, -1).transpose(-2, -3)


FORMULAS: dict[str, Formula] = {
    "alibi": _alibi,
    "buckets": _buckets,
    "disentangled": _disentangled,
    "transformer-xl": _transformer_xl,
}
"""By the name that a family's row gives."""
