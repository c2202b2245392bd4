"""The model's own numbers to compare with: what its modules were given, and the pattern of an eager twin.

Under sdpa a model reports no pattern. The twin is a second module tree over the same weights that runs eager attention. It is
given, module by module, the very hidden states that the first run had: left to itself it would drift away by rounding, layer by
layer (by more than the tolerance in deep models), and the drift would be taken for an error of the attention.
"""

from __future__ import annotations

import copy
import threading
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import CaptureError, InputError, explain
from attnprobe.models.capture import run_forward
from attnprobe.models.captured import Capture
from attnprobe.models.model import Model

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a module's forward, by place and by name."""


class Watch:
    """Notes, during a forward pass, what each attention module was given and what its output projection was fed.

    The output projection is the first linear map that runs after an attention call.
    """

    def __init__(self) -> None:
        self.fed: dict[int, Tensor] = {}
        self.given: dict[int, Given] = {}
        self._open: dict[str, Given] = {}
        self._waiting: int | None = None
        self._thread = threading.get_ident()

    @contextmanager
    def watching(self, model: Model) -> Iterator[None]:
        """Hooks on every module of the model until the block ends."""
        handles: list[Any] = []
        try:
            for name, module in model.module.named_modules():
                handles.append(module.register_forward_pre_hook(partial(self._before, name), with_kwargs=True))
                handles.append(module.register_forward_hook(partial(self._after, name), always_call=True))
            yield
        finally:
            for handle in handles:
                handle.remove()

    def called(self, call: AttentionCall) -> None:
        """An attention call was made: its module is the one that is running."""
        if call.module and call.module in self._open:
            self.given[call.layer] = self._open[call.module]
        self._waiting = call.layer

    def _before(
        self, name: str, module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any] | None = None
    ) -> None:
        if threading.get_ident() != self._thread or options is None:  # another thread, which may call without options
            return
        self._open[name] = (inputs, options)
        linear = isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"
        if linear and self._waiting is not None and inputs and isinstance(inputs[0], Tensor):
            self.fed[self._waiting] = inputs[0].detach()
            self._waiting = None

    def _after(self, name: str, *_: Any) -> None:
        if threading.get_ident() == self._thread:
            self._open.pop(name, None)


def eager_twin(
    model: Model, taken: Capture, given: dict[int, Given]
) -> tuple[Sequence[AttentionCall | None], str | None]:
    """Calls with the model's own pattern: the captured ones, or those of an eager twin given the same hidden states.

    Where neither can be had, None for each layer, and why.
    """
    if all(call.pattern is not None for call in taken.layers):
        return taken.layers, None
    calls: list[AttentionCall] = []
    nothing = [None] * len(taken.layers)
    try:
        twin = _share_weights(model, "eager")
        with _forced(twin.module, taken, given):
            run_forward(twin, taken.encoded, calls.append)
    except (InputError, CaptureError, ValueError, TypeError, AttributeError) as error:
        return nothing, f"no eager twin, so the pattern itself is not compared: {str(error).splitlines()[0]}"
    if len(calls) != len(taken.layers) or any(call.pattern is None for call in calls):
        return nothing, "the eager twin reported no pattern, so the pattern itself is not compared"
    return calls, None


def _share_weights(model: Model, implementation: str) -> Model:
    """A second module tree over the same tensors, with its own configuration, running another attention function."""
    tensors = [*model.module.parameters(), *model.module.buffers()]
    module = copy.deepcopy(model.module, {id(tensor): tensor for tensor in tensors})
    module.set_attn_implementation(implementation)  # type: ignore[operator]
    if getattr(module.config, "_attn_implementation", None) != implementation:
        raise CaptureError(explain("the family does not switch its attention function", expected=implementation))
    return replace(model, module=module)


@contextmanager
def _forced(module: nn.Module, taken: Capture, given: dict[int, Given]) -> Iterator[None]:
    """Attention modules get the hidden states that the first run gave them, call by call."""
    queues: defaultdict[str, deque[Given]] = defaultdict(deque)
    for call in taken.layers:
        if call.layer in given:
            queues[call.module].append(given[call.layer])

    def before(
        queue: deque[Given], _module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> Given | None:
        if not queue:
            return None
        own_inputs, own_options = queue.popleft()
        inputs = tuple(map(_hidden_states, own_inputs, inputs)) + inputs[len(own_inputs) :]
        return inputs, {name: _hidden_states(own_options.get(name), value) for name, value in options.items()}

    handles = [
        module.get_submodule(name).register_forward_pre_hook(partial(before, queue), with_kwargs=True)
        for name, queue in queues.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hidden_states(first: Any, twin: Any) -> Any:
    """The first run's tensor where both are hidden states [.. token width]; masks and biases have more axes, and stay the twin's."""
    if not (isinstance(first, Tensor) and isinstance(twin, Tensor)):
        return twin
    same = first.shape == twin.shape and first.dtype == twin.dtype
    return first if same and twin.is_floating_point() and twin.ndim in (2, 3) else twin


def changed_contexts(calls: list[AttentionCall], fed: dict[int, Tensor]) -> tuple[dict[int, Tensor], list[str]]:
    """Inputs of output projections to compare with contexts, and remarks on those that a model makes of the context first.

    A gate or a norm after attention is the model's own doing, and no call's context. The context of another call is a mistake, as
    it would be of a capture that took one module for another; so are the same numbers in another order, as of one that mixed up heads.
    """
    contexts = {call.layer: flat_context(call).nan_to_num() for call in calls}
    compared, remarks = {}, []
    for call in calls:
        given, own = fed.get(call.layer), contexts[call.layer]
        if given is None or given.shape != own.shape:
            continue
        known = given.nan_to_num()  # where padding is no number, it is none on both sides
        if torch.equal(known, own):
            continue
        if _reordered(known, own) or any(torch.equal(known, other) for other in contexts.values()):
            compared[call.layer] = given
        else:
            remarks.append(
                f"layer {call.layer}: the model changes the context before the output projection (gate or norm)"
            )
    return compared, remarks


def _reordered(a: Tensor, b: Tensor) -> bool:
    """Whether both hold the same numbers for each token."""
    return torch.equal(a.sort(-1).values, b.sort(-1).values)


def flat_context(call: AttentionCall) -> Tensor:
    """The context as an output projection takes it, [batch query head*dim]."""
    return call.context.transpose(1, 2).flatten(2)
