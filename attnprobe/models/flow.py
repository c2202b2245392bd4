"""The third route: what flows from a product through a softmax into another product, seen as torch runs it.

For families that compute attention themselves, and for attention outside the interface in models that are on it. A torch function
mode sees every operation of this thread while it is open and runs it as it is; tensors that come from a product of two
activations are noted (`scores.py`), and when one of them, normalised, is multiplied with a third, that is an attention call. Nothing is
patched, and outputs are the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from attnprobe.models import scope
from attnprobe.models.contraction import Contraction
from attnprobe.models.endings import Ending, Fused, Last, running_module
from attnprobe.models.interface import Pending, RawCall, Result, edited
from attnprobe.models.operations import HANDLERS
from attnprobe.models.scores import Lost, Note, Scores, Unreadable, Weights

_ENDS = frozenset(
    (
        "linear",
        "layer_norm",
        "rms_norm",
        "group_norm",
        "batch_norm",
        "conv1d",
        "conv2d",
        "gelu",
        "relu",
        "silu",
        "embedding",
    )
)
"""Operations on hidden states: what came of scores and is given to one of these was no attention."""


class Flow(TorchFunctionMode):
    """Sees the operations of one context, as long as that context's scope names it."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: Any = WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if scope.current().flow is not self:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        handler = HANDLERS.get(name)
        if handler is not None:
            return handler(self, func, args, kwargs)
        if name == "scaled_dot_product_attention":
            return self._fused(func, args, kwargs)
        if func is functional.multi_head_attention_forward:
            with self:
                return _SEEN_INSIDE(*args, **kwargs)
        result = func(*args, **kwargs)
        if self.notes.data:
            self.follow_blindly(func, args, result)
        return result

    def note_of(self, value: Any) -> Note | None:
        """What is known of a tensor, None for other things."""
        return self.notes.get(value) if isinstance(value, Tensor) else None

    def follow_blindly(self, func: Any, args: Any, result: Any) -> None:
        """What becomes of scores by an operation that is not followed."""
        given = [part for arg in args for part in (arg if isinstance(arg, (tuple, list)) else (arg,))]
        note = next((found for part in given if (found := self.note_of(part)) is not None), None)
        if note is None:
            return
        name = getattr(func, "__name__", str(func))
        if name in _ENDS:
            return
        normalised = isinstance(note, Weights) or (isinstance(note, Lost) and note.normalised) or _by_hand(name, note)
        lost = Lost(name, normalised)
        if name == "__setitem__":
            result = args[0]
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, Tensor) and part.is_floating_point() and part.ndim > 1:
                self.notes[part] = lost

    def miss(self, reason: str, module: nn.Module | None = None) -> None:
        """Tell the recorder of attention that was seen and cannot be read."""
        missed = getattr(scope.current().recorder, "missed", None)
        if missed is not None:
            missed(module or running_module(), reason)

    def attended(
        self,
        weights: Weights,
        product: Contraction,
        func: Any,
        args: Any,
        kwargs: Any,
        operands: list[Tensor],
        place: int,
    ) -> Any:
        """The product of weights and values: an attention call, made here; `place` is that of the weights."""
        module = running_module()
        try:
            call = Ending(module, weights, product, Last(func, args, kwargs, operands, place))
        except (Unreadable, RuntimeError) as error:
            self.miss(str(error).splitlines()[0], module)
            return func(*args, **kwargs)
        result = self._made(call.pending, call.raw)
        return call.in_model(result)

    def _fused(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The attention function of torch, called by the model itself."""
        call = Fused(running_module(), func, args, kwargs)
        if call.pending is None:
            return func(*args, **kwargs)
        return call.in_model(self._made(call.pending, call.raw))

    def _made(self, pending: Pending, raw: Callable[[Pending, Result], RawCall]) -> Result:
        """Make a call between editors and recorder."""
        now = scope.current()
        with scope.quietly():
            made, result = edited(now.editors, pending)
            if now.recorder is not None and now.route in (scope.AUTO, scope.FLOW):
                now.recorder(raw(made, result))
        return result


def _by_hand(name: str, note: Note) -> bool:
    """Whether this is a softmax written out: exp(scores - log of the sum of their exp), the last step being the same for a row."""
    if name != "exp" or not isinstance(note, Scores) or not note.noted or note.noted[-1].step is None:
        return False
    last = note.noted[-1].step
    return last.name == "add" and isinstance(last.value, Tensor) and last.value.ndim > 1 and last.value.shape[-1] == 1


_SEEN_INSIDE = FunctionType(
    functional.multi_head_attention_forward.__code__,
    {**functional.__dict__, "has_torch_function": lambda *_: False},
    "multi_head_attention_forward",
    functional.multi_head_attention_forward.__defaults__,
)
"""torch's function as it is, except that a mode sees what it does and not only that it is called."""


@contextmanager
def flowing(root: nn.Module) -> Iterator[None]:
    """Follow the operations of this context; one mode serves all that listen in it."""
    mode = scope.current().flow
    if mode is not None:
        with _fast_paths(root, mode):
            yield
        return
    mode = Flow()
    with _fast_paths(root, mode), scope.flowing(mode), mode:
        yield


@contextmanager
def _fast_paths(root: nn.Module, mode: Flow) -> Iterator[None]:
    """Let `nn.MultiheadAttention` run as it would without a mode, on its fused path; what it did is then run again in the open.

    Its outputs stay the same bits. Where something edits, it runs in the open at once.
    """
    opened: list[Any] = []

    def before(_module: nn.Module, _inputs: Any, _options: Any = None) -> None:
        now = scope.current()
        if now.flow is mode and not now.editors:
            opened.append(torch._C.DisableTorchFunction())
            opened[-1].__enter__()

    def after(module: nn.Module, inputs: Any, options: Any, result: Any = None) -> None:
        if scope.current().flow is not mode or not opened:
            return
        opened.pop().__exit__(None, None, None)
        if result is None:  # it raised
            return
        again = type(module).forward(module, *inputs, **options)
        if not torch.allclose(again[0], result[0], rtol=1e-3, atol=1e-4, equal_nan=True):
            mode.miss("its fused kernel gives something else than its parts", module)

    handles: list[Any] = []
    try:
        for module in root.modules():
            if isinstance(module, nn.MultiheadAttention):
                handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
                handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()
