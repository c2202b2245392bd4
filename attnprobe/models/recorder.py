"""From raw calls, as either route sees them, to `AttentionCall`: kinds, order, masks and biases made explicit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import HIDDEN_BELOW
from attnprobe.models.interface import RawCall

_CROSS = ("crossattention", "encoder_attn", "encdecattention", "cross_attn", "cross_attention", "crossattn")


class Recorder:
    """Numbers the calls of a forward pass and hands each to `each` as an `AttentionCall`."""

    def __init__(self, root: nn.Module, each: Callable[[AttentionCall], None]) -> None:
        self.each = each
        self.seen = 0
        self.step = 0
        self._names = {id(module): name for name, module in root.named_modules()}
        self._encoder_decoder = bool(getattr(root.config, "is_encoder_decoder", False))
        self._layer = 0
        self._of_kind: Counter[str] = Counter()
        self._masks: dict[tuple[Any, ...], tuple[Any, Tensor | None, Tensor | None]] = {}

    def __call__(self, raw: RawCall) -> None:
        name = self._names.get(id(raw.module), "")
        kind = self._kind(name, raw)
        bias, visible = self._bias(raw)
        weights = raw.weights if raw.weights is not None and raw.weights.shape[-2:] == _plane(raw) else None
        call = AttentionCall(
            layer=self._layer,
            kind=kind,
            index=self._of_kind[kind],
            step=self.step,
            q=raw.q,
            k=raw.k,
            v=raw.v,
            scale=raw.scaling,
            bias=bias,
            softcap=raw.softcap,
            sinks=raw.sinks.detach() if raw.sinks is not None else None,
            pattern=weights,
            context=raw.out.transpose(1, 2),
            visible=visible,
            implementation=raw.implementation,
            pattern_source=None if weights is None else "model",
            module=name,
        )
        self._layer += 1
        self._of_kind[kind] += 1
        self.seen += 1
        self.each(call)

    def next_pass(self, *, step: int = 0, skip_encoder: bool = False) -> None:
        """Start counting anew: a new batch, or a generation step (whose encoder does not run again)."""
        encoder = self._of_kind["encoder"] if skip_encoder else 0
        self._layer = encoder
        self._of_kind = Counter({"encoder": encoder})
        self._masks.clear()
        self.step = step

    def _kind(self, name: str, raw: RawCall) -> str:
        lowered = name.lower()
        if getattr(raw.module, "is_cross_attention", False) or any(mark in lowered for mark in _CROSS):
            return "cross"
        if self._encoder_decoder:
            return "decoder" if "decoder" in lowered else "encoder"
        told = getattr(raw.module, "is_causal", None)
        return "decoder" if (told if told is not None else raw.causal) else "encoder"

    def _bias(self, raw: RawCall) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores, and which keys may be seen; one mask serves many layers, so it is prepared once."""
        keys = raw.k.shape[2]
        key = (id(raw.mask), raw.implementation, raw.causal, raw.q.shape[2], keys, raw.q.dtype)
        if key not in self._masks:
            self._masks[key] = (raw.mask, *_mask_parts(raw))
        _, bias, visible = self._masks[key]
        if raw.position_bias is not None:
            position = raw.position_bias.detach()
            bias = position if bias is None else position + bias
        return bias, visible


def _plane(raw: RawCall) -> tuple[int, int]:
    return raw.q.shape[2], raw.k.shape[2]


def _mask_parts(raw: RawCall) -> tuple[Tensor | None, Tensor | None]:
    n_queries, n_keys = _plane(raw)
    mask = raw.mask
    if mask is None:
        if not raw.causal:
            return None, None
        visible = torch.ones(n_queries, n_keys, dtype=torch.bool, device=raw.q.device).tril()[None, None]
        return _hidden(visible, raw.q.dtype), visible
    if mask.ndim == 2:  # [batch key], as a few vision models pass it
        mask = mask[:, None, None, :]
    mask = mask[..., :n_keys].detach()
    if mask.dtype == torch.bool:
        if raw.implementation == "eager":  # eager adds it as 0 or 1: nothing is hidden
            return mask.to(raw.q.dtype), None
        return _hidden(mask, raw.q.dtype), mask
    return mask, mask > HIDDEN_BELOW


def _hidden(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)
