"""Our own layers filled with a model's weights: the formula, run on what a pretrained layer has learned.

Where the weights lie is a row in `families.py`; numbers that reach the attention function (heads, scale, soft cap, sinks) are read
from a captured call, not derived.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.multihead import EncoderBlock, MultiHeadAttention, Rotate
from attnprobe.errors import InputError, explain
from attnprobe.models.capture import ModelLike, as_model, record
from attnprobe.models.families import FAMILIES, Family, Projections, family_of, relative
from attnprobe.models.model import Model

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
"""Names that configurations give to activations, and ours."""


def attention_of(model: ModelLike, layer: int) -> MultiHeadAttention:
    """The attention of one layer of a model, as a layer of ours over a copy of its weights.

    `layer` counts attention modules in execution order. What the module is given in the model (`x`, the embedded or normalised
    hidden states) gives the module's output, the output projection included; causal masks and sliding windows are built in,
    padding goes in as `key_mask`.

    Raises `InputError` for a family without a row in `families.py`, or a layer the model does not have.

    >>> from attnprobe import load
    >>> attention_of(load("minilm"), 2)(torch.zeros(1, 5, 384)).output.shape
    torch.Size([1, 5, 384])
    """
    model = as_model(model)
    row = _row(model)
    return _attention(model, _call_of(model, layer), row.projections)  # type: ignore[arg-type]


def encoder_block_of(model: ModelLike, layer: int) -> EncoderBlock:
    """The whole block around one layer's attention: residuals, norms and feed-forward layer, over a copy of the model's weights.

    The hidden states that enter the block give those that leave it. Raises `InputError` as `attention_of` does, and for a
    family whose block is built otherwise (gated feed-forward layers, parallel branches).

    >>> from attnprobe import load
    >>> encoder_block_of(load("minilm"), 2)(torch.zeros(1, 5, 384)).hidden.shape
    torch.Size([1, 5, 384])
    """
    model = as_model(model)
    row = _row(model)
    parts = row.block
    if parts is None:
        built = ", ".join(name for name, other in FAMILIES.items() if other.block)
        what = f"the block of the family {model.family!r} is not an `EncoderBlock`"
        raise InputError(explain(what, expected=f"one of {built}", remedy="Use `attention_of`"))
    call = _call_of(model, layer)
    norms = [relative(model.module, call.module, path) for path in (parts.attention_norm, parts.feed_forward_norm)]
    linear = [relative(model.module, call.module, path) for path in (parts.widen, parts.narrow)]
    attention = _attention(model, call, row.projections)  # type: ignore[arg-type]
    width, dim = _weights(linear[0])[0].shape
    block = EncoderBlock(
        dim,
        feed_forward=width,
        pre_norm=parts.pre_norm,
        activation=_activation(model, parts.activation),
        norm_eps=float(norms[0].eps),  # type: ignore[arg-type]
        attention=attention,
    )
    for ours, theirs in ((block.attention_norm, norms[0]), (block.feed_forward_norm, norms[1])):
        ours.load_state_dict(theirs.state_dict())
    for mine, other in ((block.widen, linear[0]), (block.narrow, linear[1])):
        _fill(mine, *_weights(other))
    return _frozen(block, call.q)


def _row(model: Model) -> Family:
    row = family_of(model.family)
    if row.projections is None:
        known = ", ".join(name for name, other in FAMILIES.items() if other.projections)
        remedy = "Add a row to attnprobe/models/families.py: the paths of the projections"
        what = f"no layer can be built from the family {model.family!r}"
        raise InputError(explain(what, expected=f"one of {known}", remedy=remedy))
    return row


def _call_of(model: Model, layer: int) -> AttentionCall:
    """The call that the layer makes in a forward pass over as little as the model takes."""
    calls: list[AttentionCall] = []
    record(model, [_least_inputs(model)], each=lambda call, _batch: calls.append(call))
    if not 0 <= layer < len(calls):
        raise InputError(explain(f"no layer {layer} in {model.name}", expected=f"0 to {len(calls) - 1}"))
    return calls[layer]


def _least_inputs(model: Model) -> dict[str, Any]:
    if getattr(model.module, "main_input_name", "input_ids") == "pixel_values":
        size = model.config.image_size
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        return {"pixel_values": torch.zeros(1, model.config.num_channels, height, width)}
    inputs: dict[str, Any] = {"input_ids": [[1, 2]], "attention_mask": [[1, 1]]}
    if getattr(model.config, "add_cross_attention", False):
        inputs["encoder_hidden_states"] = torch.zeros(1, 2, model.config.hidden_size)
    return inputs


def _attention(model: Model, call: AttentionCall, parts: Projections) -> MultiHeadAttention:
    at = {
        name: relative(model.module, call.module, getattr(parts, name)) for name in ("query", "key", "value", "output")
    }
    heads, kv_heads, head_dim = call.q.shape[1], call.k.shape[1], call.q.shape[-1]
    projections = [_weights(at[name]) for name in ("query", "key", "value")]
    if parts.query == parts.key == parts.value:
        sizes = [count * head_dim for count in (heads, kv_heads, kv_heads)]
        weights, biases = projections[0]
        cut = [None] * 3 if biases is None else biases.split(sizes)
        projections = list(zip(weights.split(sizes), cut, strict=True))
    out_weight, out_bias = _weights(at["output"])
    attention = MultiHeadAttention(
        projections[0][0].shape[1],
        heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        key_dim=projections[1][0].shape[1],
        bias=projections[0][1] is not None,
        out_bias=out_bias is not None,
        scale=call.scale,
        softcap=call.softcap,
        sinks=call.sinks is not None,
        window=_window(model, call),
        causal=call.kind == "decoder",
        rotate=_rotation(model, call, parts),
    )
    for ours, (weight, bias) in zip((attention.query, attention.key, attention.value), projections, strict=True):
        _fill(ours, weight, bias)
    _fill(attention.output, out_weight, out_bias)
    if attention.sinks is not None and call.sinks is not None:
        attention.sinks.data.copy_(call.sinks)
    return _frozen(attention, call.q)


def _weights(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight [out in] and bias of a linear map; GPT-2's Conv1D stores [in out]."""
    weight: Tensor = module.weight  # type: ignore[assignment]
    turned = type(module).__name__ == "Conv1D"
    return (weight.T if turned else weight).detach(), None if module.bias is None else module.bias.detach()  # type: ignore[operator]


def _fill(linear: nn.Linear, weight: Tensor, bias: Tensor | None) -> None:
    linear.weight.data.copy_(weight)
    if linear.bias is not None and bias is not None:
        linear.bias.data.copy_(bias)


def _frozen(module: Any, like: Tensor) -> Any:
    """In the dtype and place of the model, for looking at, not for training."""
    return module.to(like.device, like.dtype).eval().requires_grad_(False)


def _activation(model: Model, name: str) -> str:
    asked = getattr(model.config, name)
    if asked not in ACTIVATIONS:
        what = f"the activation {asked!r} of {model.name} is not one of ours"
        raise InputError(explain(what, expected=" | ".join(ACTIVATIONS), got=repr(asked)))
    return ACTIVATIONS[asked]


def _window(model: Model, call: AttentionCall) -> int | None:
    """How many keys a causal layer sees at most, where the module says, or the configuration for all layers at once."""
    module = model.module.get_submodule(call.module)
    every = None if getattr(model.config, "layer_types", None) else getattr(model.config, "sliding_window", None)
    window = getattr(module, "sliding_window", every)
    return window if isinstance(window, int) and call.kind == "decoder" else None


def _rotation(model: Model, call: AttentionCall, parts: Projections) -> Rotate | None:
    """What happens to queries and keys between projection and product: norms per head, then rotation by position."""
    if not parts.rotary and parts.query_norm is None and parts.key_norm is None:
        return None
    norms = [
        None if path is None else relative(model.module, call.module, path)
        for path in (parts.query_norm, parts.key_norm)
    ]
    embed: Any = model.backbone.rotary_emb if parts.rotary else None

    def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (x if norm is None else norm(x) for norm, x in zip(norms, (q, k), strict=True))
        if embed is None:
            return q, k
        cos, sin = embed(q, torch.arange(q.shape[2], device=q.device)[None])
        return _turned(q, cos, sin), _turned(k, cos, sin)

    return rotate


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Each pair (i, i + dim / 2) of a vector turned by its angle. Source: Su et al. 2021, in the layout of Llama."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]
