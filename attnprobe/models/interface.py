"""The seam in transformers through which attention is seen and edited: its registry of attention functions.

Every model on the interface asks `AttentionInterface` for its attention function in each forward pass. The wrapper installed here
answers with the very function the registry holds, unless this thread's context has a recorder or an editor, in which case the function
is run between the two. The wrapper is put in place once, by the first capture, and stays: it is the only process-wide change, inert
outside a capture. (Wrapping and unwrapping per capture loses records between threads; registering a name of one's own changes model
outputs, because models test that name and look up a mask function under it.)
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class RawCall:
    """The arguments and results of one attention function call, as the model passed them."""

    module: nn.Module
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    """Float (added), bool (True: may be seen) or None."""
    scaling: float
    softcap: float | None
    sinks: Tensor | None
    position_bias: Tensor | None
    causal: bool
    """Whether the function itself hides later keys, because no mask was passed."""
    implementation: str
    out: Tensor
    """[batch query head value_dim]"""
    weights: Tensor | None
    """Pattern as the function returned it; None where it reports none."""


Editor = Callable[[nn.Module, Callable[..., tuple[Tensor, Tensor | None]], tuple[Any, ...], dict[str, Any]], tuple[Tensor, Any]]
"""`(module, function, arguments, keywords) -> (out, weights)`: runs the function itself, changed or not."""

_RECORDER: ContextVar[Callable[[RawCall], None] | None] = ContextVar("attnprobe_recorder", default=None)
_EDITOR: ContextVar[Editor | None] = ContextVar("attnprobe_editor", default=None)
_INSTALLING = threading.Lock()


@contextmanager
def recording(recorder: Callable[[RawCall], None]) -> Iterator[None]:
    """Hand every attention call of this thread's context to `recorder`; an inner recording hides the outer one."""
    _install()
    token = _RECORDER.set(recorder)
    try:
        yield
    finally:
        _RECORDER.reset(token)


@contextmanager
def editing(editor: Editor) -> Iterator[None]:
    """Let `editor` run every attention call of this thread's context; a recording inside sees what the editor let through."""
    _install()
    token = _EDITOR.set(editor)
    try:
        yield
    finally:
        _EDITOR.reset(token)


def _install() -> None:
    from transformers.modeling_utils import AttentionInterface

    with _INSTALLING:
        if getattr(AttentionInterface.get_interface, "_attnprobe", False):
            return
        original = AttentionInterface.get_interface
        original_item = AttentionInterface.__getitem__

        @wraps(original)
        def get_interface(self: Any, attn_implementation: Any, default: Callable[..., Any]) -> Callable[..., Any]:
            recorder, editor = _RECORDER.get(), _EDITOR.get()
            if recorder is None and editor is None:
                return original(self, attn_implementation, default)
            with _plain_items():
                function = original(self, attn_implementation, default)
            return _seam(function, str(attn_implementation or "eager"), recorder, editor)

        @wraps(original_item)
        def item(self: Any, key: str) -> Callable[..., Any]:
            function = original_item(self, key)
            recorder, editor = _RECORDER.get(), _EDITOR.get()
            if (recorder is None and editor is None) or _PLAIN.get():
                return function
            return _seam(function, key, recorder, editor)

        get_interface._attnprobe = True  # type: ignore[attr-defined]
        AttentionInterface.get_interface = get_interface  # type: ignore[method-assign]
        AttentionInterface.__getitem__ = item  # type: ignore[method-assign]


_PLAIN: ContextVar[bool] = ContextVar("attnprobe_plain", default=False)


@contextmanager
def _plain_items() -> Iterator[None]:
    """`get_interface` looks its function up by item: give it the bare one, so that nothing is recorded twice."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def _seam(
    function: Callable[..., Any], implementation: str, recorder: Callable[[RawCall], None] | None, editor: Editor | None
) -> Callable[..., Any]:
    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        arguments = (query, key, value, *rest)
        seen: dict[str, Any] = {}

        def run(module: nn.Module, *arguments: Any, **options: Any) -> Any:
            seen.update(arguments=arguments, options=options)
            return function(module, *arguments, **options)

        result = editor(module, run, arguments, options) if editor else run(module, *arguments, **options)
        if recorder is not None:
            recorder(_raw(function, implementation, module, seen["arguments"], seen["options"], result))
        return result

    return attention


def _raw(
    function: Callable[..., Any],
    implementation: str,
    module: nn.Module,
    arguments: tuple[Any, ...],
    options: dict[str, Any],
    result: tuple[Tensor, Tensor | None],
) -> RawCall:
    q, k, v, *rest = arguments
    if rest:
        names = [name for name in inspect.signature(function).parameters][4:]
        options = {**dict(zip(names, rest, strict=False)), **options}
    mask = options.get("attention_mask")
    scaling = options.get("scaling")
    told = options.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if told is None else told)
    out, weights = result
    return RawCall(
        module=module,
        q=q.detach(),
        k=k.detach(),
        v=v.detach(),
        mask=mask if isinstance(mask, Tensor) else None,
        scaling=float(q.shape[-1] ** -0.5 if scaling is None else scaling),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
        position_bias=options.get("position_bias"),
        causal=causal and mask is None and implementation != "eager" and q.shape[2] > 1,
        implementation=implementation,
        out=out.detach(),
        weights=weights.detach() if isinstance(weights, torch.Tensor) else None,
    )
