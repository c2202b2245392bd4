"""From raw calls, as either route sees them, to `AttentionCall`: kinds, order, masks and biases made explicit."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import HIDDEN_BELOW
from attnprobe.models import scope
from attnprobe.models.interface import RawCall

_CROSS = ("crossattention", "encoder_attn", "encdecattention", "cross_attn", "cross_attention", "crossattn")


class Order:
    """Counts attention calls from the start of each forward pass, and passes from the start of a generation."""

    def __init__(self) -> None:
        self.count = 0
        """Calls so far in this pass; those of an encoder that ran before it included."""
        self.step = 0
        self._encoder = 0
        self._started = self._decoding = False

    def start(self, encoder_ran: bool) -> None:
        """A forward pass starts. `generate` runs an encoder once, alone, and each later pass is then given its output."""
        if encoder_ran and not self._decoding:
            self._encoder = self.count
        else:
            self.step += self._started
            self._encoder = self._encoder if encoder_ran else 0
            self.count = self._encoder
        self._started, self._decoding = True, encoder_ran

    def take(self) -> int:
        """Number of the next call."""
        self.count += 1
        return self.count - 1


class Recorder:
    """Numbers the attention calls of one run of a model and hands each to `each` as an `AttentionCall`."""

    def __init__(self, root: nn.Module, each: Callable[[AttentionCall], None]) -> None:
        self.each = each
        self.seen = 0
        self.batch: int | None = None
        """Sequences in the batch that runs, where that is known."""
        self.order = Order()
        self.routes: dict[int, str] = {}
        """By which route each call came."""
        self.not_captured: dict[str, str] = {}
        """Modules whose attention was seen and could not be read, by name, and why."""
        self._names = {id(module): name for name, module in root.named_modules()}
        self._encoder_decoder = bool(getattr(root.config, "is_encoder_decoder", False))
        self._of_kind: Counter[str] = Counter()
        self._masks: dict[tuple[Any, ...], tuple[Any, Tensor | None, Tensor | None]] = {}
        self._hiding: dict[int, bool] = {}
        """Whether a prepared mask hides all later keys, by its id: asking makes the host wait for the device."""

    def __call__(self, raw: RawCall) -> None:
        name = self._names.get(id(raw.module), "")
        bias, visible = self._bias(raw)
        kind = self._kind(name, raw, visible)
        weights = raw.weights if _reported(raw) else None
        call = AttentionCall(
            layer=self.order.take(),
            kind=kind,
            index=self._of_kind[kind],
            step=self.order.step,
            q=raw.q,
            k=raw.k,
            v=raw.v,
            scale=raw.scaling,
            bias=bias,
            softcap=raw.softcap,
            sinks=raw.sinks,
            pattern=weights,
            context=raw.out.transpose(1, 2),
            visible=visible,
            implementation=raw.implementation,
            pattern_source=None if weights is None else "model",
            module=name,
            steps=raw.steps,
        )
        self.routes[call.layer] = raw.route
        self._of_kind[kind] += 1
        self.seen += 1
        device = raw.q.device.type
        # casting is what a caller wishes for the model: what is measured keeps its precision
        with torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext():
            self.each(call)

    def missed(self, module: nn.Module, reason: str) -> None:
        """Attention that cannot be read was seen in a module."""
        self.not_captured.setdefault(self._names.get(id(module), type(module).__name__), reason)

    def start(self, encoder_ran: bool) -> None:
        """A forward pass starts; see `Order`."""
        self.order.start(encoder_ran)
        self._of_kind = Counter({"encoder": self.order.count})
        self._masks.clear()
        self._hiding.clear()

    def _kind(self, name: str, raw: RawCall, visible: Tensor | None) -> str:
        lowered = name.lower()
        if getattr(raw.module, "is_cross_attention", False) or any(mark in lowered for mark in _CROSS):
            return "cross"
        if self._encoder_decoder:
            return "decoder" if "decoder" in lowered else "encoder"
        if raw.is_causal is None:  # no word from the module: what matters is whether later keys are hidden
            return "decoder" if raw.q.shape[2] > 1 and self._hides_later(raw, visible) else "encoder"
        return "decoder" if raw.is_causal else "encoder"

    def _hides_later(self, raw: RawCall, visible: Tensor | None) -> bool:
        if visible is None:
            return False
        if raw.route == scope.FLOW:  # a mask of its own in every call
            return not bool(visible.triu(1).any())
        if id(visible) not in self._hiding:
            self._hiding[id(visible)] = not bool(visible.triu(1).any())
        return self._hiding[id(visible)]

    def _bias(self, raw: RawCall) -> tuple[Tensor | None, Tensor | None]:
        """What is added to the scores, and which keys may be seen; one mask serves many layers, so it is prepared once."""
        if raw.route == scope.FLOW:  # a bias of its own in every call
            bias, visible = mask_parts(raw)
            return bias, None if visible is None else visible.expand(-1, -1, *_plane(raw))
        key = (id(raw.mask), raw.implementation, raw.hides_later, *_plane(raw), raw.q.dtype)
        if key not in self._masks:
            self._masks[key] = (raw.mask, *mask_parts(raw))  # the mask is kept, so that no other gets its id
        _, bias, visible = self._masks[key]
        if raw.position_bias is not None:
            bias = raw.position_bias if bias is None else raw.position_bias + bias
        return bias, visible


def _reported(raw: RawCall) -> bool:
    """Whether the weights that came back are those of the output: not of another shape, nor taken before sinks (Granite SWA)."""
    weights = raw.weights
    if weights is None or weights.shape[-2:] != _plane(raw):
        return False
    if raw.sinks is None:
        return True
    shared = raw.v.repeat_interleave(raw.q.shape[1] // raw.v.shape[1], dim=1)
    return torch.allclose((weights @ shared).transpose(1, 2), raw.out, rtol=1e-2, atol=1e-2 * float(raw.v.abs().max()))


def _plane(raw: RawCall) -> tuple[int, int]:
    return raw.q.shape[2], raw.k.shape[2]


def mask_parts(raw: RawCall) -> tuple[Tensor | None, Tensor | None]:
    """What the mask of a call adds to the scores, and which keys it shows (None: all), both [batch head query key]."""
    n_queries, n_keys = _plane(raw)
    mask = raw.mask
    if mask is None:
        if not raw.hides_later:
            return None, None
        # the first query and the first key are aligned, as torch's sdpa has it
        visible = torch.ones(n_queries, n_keys, dtype=torch.bool, device=raw.q.device).tril()[None, None]
        return _hidden(visible, raw.q.dtype), visible
    if mask.ndim == 2:  # [batch key], as a few vision models pass it
        mask = mask[:, None, None, :]
    mask = mask[..., :n_keys]
    if mask.dtype == torch.bool:
        if raw.implementation == "eager":
            warnings.warn(
                f"{type(raw.module).__name__} passes a bool mask to eager attention, which adds it as 0 or 1: nothing is hidden.",
                stacklevel=2,
            )
            return mask.to(raw.q.dtype), None
        return _hidden(mask, raw.q.dtype), mask
    return mask, mask > HIDDEN_BELOW


def _hidden(visible: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, -torch.inf)


@contextmanager
def counting_passes(model: nn.Module, started: Callable[[bool], None], mine: Callable[[], bool]) -> Iterator[None]:
    """Call `started(encoder_ran)` at the start of each forward pass of `model`, or of its encoder alone, that is `mine()`."""
    inside = False

    def before(_module: nn.Module, _inputs: Any, options: dict[str, Any] | None = None) -> None:
        nonlocal inside
        if mine() and options is not None:  # torch may call without, while another thread is registering hooks
            inside = True
            started(options.get("encoder_outputs") is not None)

    def after(*_: Any) -> None:
        nonlocal inside
        if mine():
            inside = False

    def encoder_before(*_: Any) -> None:
        if mine() and not inside:
            started(False)

    handles = [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(after, always_call=True),
    ]
    encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else None  # type: ignore[operator]
    if isinstance(encoder, nn.Module) and encoder is not model:
        handles.append(encoder.register_forward_pre_hook(encoder_before))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
