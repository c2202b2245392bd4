"""The seam in transformers through which attention is seen and edited: its registry of attention functions.

Every model on the interface asks `AttentionInterface` for its attention function in each forward pass. The wrapper installed here
answers with the very function the registry holds, unless something listens in this context (see `scope.py`), in which case the
function is run between editors and recorder. The wrapper is put in place once, by the first capture, and stays: it is the only
process-wide change, inert outside a capture. (Wrapping and unwrapping per capture loses records between threads; registering a
name of one's own changes model outputs, because models test that name and look up a mask function under it.)
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial, wraps
from typing import Any

from torch import Tensor, nn

from attnprobe.attention.call import Step
from attnprobe.errors import CaptureError, explain
from attnprobe.models import scope

Result = tuple[Tensor, Tensor | None]
"""What an attention function gives: out [batch query head value_dim], and the pattern where it reports one."""

_OPAQUE = ("flash", "flex", "paged", "kernels")
"""Parts of the names of attention functions that hide keys by other means than a mask tensor."""


@dataclass(frozen=True)
class Pending:
    """An attention call that is about to be made."""

    module: nn.Module
    """The attention module that calls."""
    function: Callable[..., Result]
    implementation: str
    """Under which name the function was asked for: eager, sdpa, ..."""
    q: Tensor
    k: Tensor
    v: Tensor
    rest: tuple[Any, ...]
    """Further arguments by place, as the module passed them."""
    options: Mapping[str, Any]

    def run(self) -> Result:
        """Call the attention function."""
        out, weights = self.function(self.module, self.q, self.k, self.v, *self.rest, **self.options)
        return out, weights

    def named(self) -> dict[str, Any]:
        """All arguments after the values by name."""
        return {**dict(zip(_names(self.function)[4:], self.rest, strict=False)), **self.options}


@lru_cache(maxsize=64)
def _names(function: Callable[..., Result]) -> tuple[str, ...]:
    """Names of the arguments of an attention function; reading a signature costs as much as a short product."""
    return tuple(inspect.signature(function).parameters)


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
    is_causal: bool | None
    """Whether the module says that it hides later keys; None where it does not say."""
    implementation: str
    out: Tensor
    """[batch query head value_dim]"""
    weights: Tensor | None
    """Pattern as the function returned it; None where it reports none."""
    steps: tuple[Step, ...] | None = None
    """What lies between product and pattern, where that was seen step by step."""
    route: str = scope.INTERFACE

    @property
    def hides_later(self) -> bool:
        """Whether the function itself hides later keys, as all but eager do where no mask is passed and nothing forbids it."""
        unsaid = self.mask is None and self.implementation != "eager" and self.q.shape[2] > 1
        return unsaid and self.is_causal is not False


Editor = Callable[[Pending, Callable[[Pending], Result]], Result]
"""`(call, run) -> result`: calls `run` exactly once, with the call as it is or changed, and gives its result, changed or not."""

_INSTALLING = threading.Lock()
_PLAIN: ContextVar[bool] = ContextVar("attnprobe_plain", default=False)


@contextmanager
def recording(recorder: Callable[[RawCall], None], route: str = scope.INTERFACE) -> Iterator[None]:
    """Hand every attention call of this context to `recorder`; an inner recording hides the outer one."""
    _install()
    with scope.listening(recorder, route):
        yield


@contextmanager
def editing(editor: Editor) -> Iterator[None]:
    """Let `editor` run every attention call of this context; editors add up, and a recording sees what they let through."""
    _install()
    with scope.edited_by(editor):
        yield


def _install() -> None:
    from transformers.modeling_utils import AttentionInterface

    with _INSTALLING:
        if getattr(AttentionInterface.get_interface, "_attnprobe", False):
            return
        original = AttentionInterface.get_interface
        original_item = AttentionInterface.__getitem__

        @wraps(original)
        def get_interface(self: Any, attn_implementation: Any, default: Any) -> Any:
            listening = _listening()
            if listening is None:
                return original(self, attn_implementation, default)
            with _plain_items():
                function = original(self, attn_implementation, default)
            return partial(_seam, listening, function, str(attn_implementation or "eager"))

        @wraps(original_item)
        def item(self: Any, key: Any) -> Any:
            """A few modules index the registry; those get the same seam."""
            function = original_item(self, key)
            listening = None if _PLAIN.get() else _listening()
            return function if listening is None else partial(_seam, listening, function, key)

        get_interface._attnprobe = True  # type: ignore[attr-defined]
        AttentionInterface.get_interface = get_interface  # type: ignore[method-assign]
        AttentionInterface.__getitem__ = item  # type: ignore[method-assign]


def _listening() -> scope.Scope | None:
    now = scope.current()
    return now if now.editors or (now.recorder is not None and now.route in (scope.AUTO, scope.INTERFACE)) else None


@contextmanager
def _plain_items() -> Iterator[None]:
    """`get_interface` looks its function up by item: give it the bare one, so that nothing is recorded twice."""
    token = _PLAIN.set(True)
    try:
        yield
    finally:
        _PLAIN.reset(token)


def _seam(
    listening: scope.Scope,
    function: Callable[..., Result],
    implementation: str,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *rest: Any,
    **options: Any,
) -> Result:
    """One attention call between editors and recorder."""
    with scope.quietly():
        made, result = edited(
            listening.editors, Pending(module, function, implementation, query, key, value, rest, options)
        )
        # by the flow route too: with editors open, the seam is the only place where an edited call can be seen
        if listening.recorder is not None and listening.route != scope.HOOKS:
            listening.recorder(raw_call(made, result))
    return result


def edited(editors: tuple[Editor, ...], call: Pending) -> tuple[Pending, Result]:
    """Make a call through all editors; the call as it was made in the end, and its result."""
    called: list[Pending] = []

    def run(call: Pending) -> Result:
        called.append(call)
        return call.run()

    for editor in editors:
        run = partial(_edit, editor, run)
    result = run(call)
    return called[-1], result


def _edit(editor: Editor, run: Callable[[Pending], Result], call: Pending) -> Result:
    return editor(call, run)


def raw_call(call: Pending, result: Result) -> RawCall:
    """What a recorder sees of a call that was made. Raises `CaptureError` where the mask cannot be read."""
    options = call.named()
    mask = options.get("attention_mask")
    hidden = any(part in call.implementation for part in _OPAQUE)
    if hidden or not (mask is None or isinstance(mask, Tensor)):
        raise CaptureError(
            explain(
                f"the attention function {call.implementation!r} does not show which keys it hides",
                expected="sdpa or eager",
                remedy="Load the model with attn='sdpa'",
            )
        )
    scaling, causal = options.get("scaling"), options.get("is_causal")
    causal = getattr(call.module, "is_causal", None) if causal is None else causal
    sinks = next((options[name] for name in ("s_aux", "sinks") if options.get(name) is not None), None)
    position_bias = options.get("position_bias")
    out, weights = result
    return RawCall(
        module=call.module,
        q=call.q.detach(),
        k=call.k.detach(),
        v=call.v.detach(),
        mask=mask.detach() if mask is not None and mask.requires_grad else mask,  # else the very mask: layers share it
        scaling=float(call.q.shape[-1] ** -0.5 if scaling is None else scaling),
        softcap=options.get("softcap"),
        sinks=None if sinks is None else sinks.detach(),
        position_bias=None if position_bias is None else position_bias.detach(),
        is_causal=None if causal is None else bool(causal),
        implementation=call.implementation,
        out=out.detach(),
        weights=weights.detach() if isinstance(weights, Tensor) else None,
    )
