"""Who watches the forward passes of one context: a recorder, editors, and the hooks that count passes.

A context is what `contextvars` calls one: a thread, or a task. Everything that listens asks here whether the code running now is
its own, so that two threads that capture one model at once, or a capture inside a capture, see only their own records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

AUTO, INTERFACE, FLOW, HOOKS = "auto", "interface", "flow", "hooks"
"""Routes by which attention is seen; `auto` is the interface where a module uses it, and the flow of tensors elsewhere."""


@dataclass(frozen=True)
class Scope:
    """What is listening in this context."""

    recorder: Callable[[Any], None] | None = None
    """Takes every attention call; an inner one hides the outer one."""
    route: str = INTERFACE
    """By which route the calls come to `recorder`."""
    editors: tuple[Any, ...] = ()
    """Run every attention call, first opened first: each gets what those before it made of the function."""
    flow: Any = None
    """The torch function mode that acts in this context; others on torch's stack do not."""


_NOTHING = Scope()
_SCOPE: ContextVar[Scope] = ContextVar("attnprobe_scope", default=_NOTHING)


def current() -> Scope:
    """The scope of the running code."""
    return _SCOPE.get()


@contextmanager
def _entered(scope: Scope) -> Iterator[None]:
    token = _SCOPE.set(scope)
    try:
        yield
    finally:
        _SCOPE.reset(token)


@contextmanager
def listening(recorder: Callable[[Any], None], route: str) -> Iterator[None]:
    """Send the attention calls of this context to `recorder`, and to no other."""
    with _entered(replace(current(), recorder=recorder, route=route)):
        yield


@contextmanager
def edited_by(editor: Any) -> Iterator[None]:
    """Let `editor` run the attention calls of this context, after the editors opened before it."""
    with _entered(replace(current(), editors=(*current().editors, editor))):
        yield


@contextmanager
def flowing(mode: Any) -> Iterator[None]:
    """Let `mode` act in this context."""
    with _entered(replace(current(), flow=mode)):
        yield


@contextmanager
def quietly() -> Iterator[None]:
    """Nothing listens: around recorders and editors, which may run models of their own."""
    with _entered(_NOTHING):
        yield
