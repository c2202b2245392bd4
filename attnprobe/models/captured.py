"""`Capture`: all attention of one batch, with the tokens it is about."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import inputs_as, pattern_of, scores_of
from attnprobe.errors import InputError, explain
from attnprobe.models.inputs import Encoded
from attnprobe.records import PatternBlock, PatternView


@dataclass(frozen=True)
class Capture:
    """All attention of one batch: one `AttentionCall` per module (and generation step), with the tokens they are about."""

    layers: tuple[AttentionCall, ...]
    encoded: Encoded
    model: str
    family: str
    dtype: str
    attn_implementation: str
    route: str = "interface"
    """By which route calls came: interface, flow, flow+interface or hooks."""
    not_captured: tuple[str, ...] = ()
    """Modules whose attention was seen and could not be read, with the reason."""

    def layer(self, i: int) -> AttentionCall:
        """The attention of module `i` in execution order."""
        if not -len(self.layers) <= i < len(self.layers):
            raise InputError(explain(f"no layer {i}", expected=f"0 to {len(self.layers) - 1}"))
        return self.layers[i]

    @property
    def tokens(self) -> tuple[tuple[str, ...], ...]:
        """Tokens of each sequence, padding included."""
        return self.encoded.tokens

    @property
    def input_ids(self) -> Tensor | None:
        return self.encoded.inputs.get("input_ids")

    @property
    def attention_mask(self) -> Tensor | None:
        return self.encoded.inputs.get("attention_mask")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one safetensors file, whole or not at all; `load_capture` reads it, `verify` can then verify it again."""
        from attnprobe.models.saved import save_capture

        return save_capture(self, path)

    def view(self, index: int = 0, *, neurons: bool = False) -> PatternView:
        """NumPy view of one sequence with padding cut off, for viewers; `neurons` adds q, k and scores."""
        encoded = self.encoded
        if not 0 <= index < encoded.batch_size:
            raise InputError(explain(f"no sequence {index} in this capture", expected=f"0 to {encoded.batch_size - 1}"))
        keep = encoded.real[index]
        target = encoded.target_real[index] if encoded.target_real is not None else keep
        tokens = encoded.tokens[index] if encoded.tokens else ()
        return PatternView(
            model=self.model,
            blocks=tuple(_block(call, index, keep, target, neurons) for call in self.layers),
            tokens=_kept(tokens, keep),
            alignment=encoded.trimmed_alignment(index),
            words=encoded.words[index],
            special=encoded.special[index][keep].numpy(),
            target_tokens=_kept(encoded.target_tokens[index], target) if encoded.target_tokens else (),
            segments=tuple(encoded.segments[index][keep].tolist()) if encoded.segments is not None else (),
        )


def with_pattern(call: AttentionCall) -> AttentionCall:
    """The call with the pattern that its q and k give: in float32 at least, as sdpa keeps its scores in half precision."""
    exact = inputs_as(call, torch.promote_types(call.q.dtype, torch.float32))
    return replace(call, pattern=pattern_of(exact), pattern_source="recomputed")


def real_rows(encoded: Encoded, call: AttentionCall) -> Tensor | None:
    """Which of a call's queries are no padding, [batch query], where they are tokens of the text; None where all count."""
    target = call.kind in ("decoder", "cross") and encoded.target_real is not None
    real = encoded.target_real if target else encoded.real
    fits = real is not None and real.shape == (call.q.shape[0], call.q.shape[2])
    return real if fits else None


def _kept(tokens: tuple[str, ...], keep: Tensor) -> tuple[str, ...]:
    return tuple(token for token, kept in zip(tokens, keep.tolist(), strict=True) if kept) if tokens else ()


def _block(call: AttentionCall, index: int, keep: Tensor, target: Tensor, neurons: bool) -> PatternBlock:
    """One sequence of a call. The real positions are known for prompt and source; generated ones are all real."""
    if call.pattern is None:
        call = with_pattern(call)
    assert call.pattern is not None
    rows = _positions(target if call.kind in ("decoder", "cross") else keep, call.q.shape[2])
    columns = _positions(target if call.kind == "decoder" else keep, call.k.shape[2])

    def cut(plane: Tensor) -> Any:
        return plane[index].float().cpu()[:, rows][:, :, columns].numpy()

    extra: dict[str, Any] = {}
    if neurons:
        k = call.k[index].float().cpu().repeat_interleave(call.groups, dim=0)
        extra = {
            "scores": cut(scores_of(call)),
            "q": call.q[index].float().cpu()[:, rows].numpy(),
            "k": k[:, columns].numpy(),
            "scale": call.scale,
        }
    source = call.pattern_source or "model"
    return PatternBlock(call.layer, call.kind, call.index, call.step, cut(call.pattern), source, **extra)


def _positions(keep: Tensor, length: int) -> Tensor:
    """Indices of real positions along an axis of `length`, which is longer than `keep` after generation, shorter for one step."""
    if length < len(keep):
        return torch.arange(length)
    grown = torch.cat([keep.cpu(), torch.ones(length - len(keep), dtype=torch.bool)])
    return torch.nonzero(grown).squeeze(-1)
