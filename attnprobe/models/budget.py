"""What a capture keeps: foretold from the configuration, told before it runs, and refused beyond a budget."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from attnprobe.errors import CaptureError, explain
from attnprobe.models.model import Model

_log = logging.getLogger(__name__)

DEFAULT_BUDGET = 4 * 2**30
"""Bytes that a capture may keep unless told otherwise."""


def estimate_bytes(model: Model, batch: int, length: int, *, target: int = 0, max_new_tokens: int | None = None) -> int:
    """About how many bytes `capture` keeps: q, k, v, context and the pattern of every layer; 0 where the config does not say.

    `length` tokens a sequence, for an encoder-decoder model also `target` tokens of the decoder; with `max_new_tokens`, a generation from them.
    In float32 what is kept is between this and twice as much: position biases, and masks where layers have their own, are not in it, nor what a
    fused projection of q, k and v keeps alive.
    """
    config = model.text_config
    element = next(model.module.parameters()).element_size()
    # the library's fused functions give no pattern, and it is recomputed in float32 at least
    wide = element if model.attn_implementation == "eager" else max(element, 4)
    if not length:  # images, sound
        return 0
    values = 0
    for side, queries, keys, runs in _runs(model, length, target, max_new_tokens):
        layers = _number(config, f"{side}_layers", *_LAYERS.get(side, ()), "num_hidden_layers")
        heads = _number(config, f"{side}_attention_heads", "num_attention_heads")
        hidden = _number(config, "hidden_size")
        if not (layers and heads and hidden):
            return 0
        dim = _number(config, "head_dim", "d_kv") or hidden // heads
        shared = _number(config, "num_key_value_heads", "num_kv_heads") or heads
        if getattr(config, "multi_query", False) and not getattr(config, "new_decoder_architecture", False):  # Falcon
            shared = 1
        vectors = 2 * dim * (queries * heads + keys * min(shared, heads))
        values += layers * runs * (vectors * element + heads * queries * keys * wide)
    return batch * values


_LAYERS = {"encoder": ("num_layers",), "decoder": ("num_decoder_layers", "num_layers")}
"""What the layers of a stack are called, where not by the name of the stack (T5)."""


def _runs(model: Model, length: int, target: int, new: int | None) -> Iterator[tuple[str, int, int, int]]:
    """(stack, queries, keys, times) of each kind of attention in the passes of a capture."""
    later = max((new or 1) - 1, 0)
    if not getattr(model.config, "is_encoder_decoder", False):
        yield "", length, length, 1
        yield from (("", 1, length + step, 1) for step in range(1, later + 1))
        return
    yield "encoder", length, length, 1
    yield "decoder", target, target, 1
    yield "decoder", target, length, 1
    yield from (("decoder", 1, target + step, 1) for step in range(1, later + 1))
    yield "decoder", 1, length, later


def _number(config: Any, *names: str) -> int:
    """The first of these that the configuration gives as a number; 0 where it gives none."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), 0)


def tell_need(needed: int) -> None:
    """Say what a capture will keep, before it runs."""
    how_much = f"about {needed / 2**20:,.1f} MB" if needed else "an amount that the configuration does not tell"
    _log.info("%s will be kept", how_much)


def refuse_over(needed: int, max_bytes: int) -> None:
    """Raise `CaptureError` where more would be kept than may be."""
    if needed > max_bytes:
        raise CaptureError(
            explain(
                "this capture would keep too much",
                expected=f"at most {max_bytes / 2**20:,.0f} MB",
                got=f"{needed / 2**20:,.0f} MB or more",
                remedy="Capture fewer or shorter texts, use `record`, or raise `max_bytes` (--max-mb)",
            )
        )
