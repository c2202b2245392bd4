"""What enters and leaves each block of a stack of layers, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import CaptureError, explain
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import from_model_inputs
from attnprobe.models.model import Model


@dataclass
class Blocks:
    """The blocks around a model's attention modules: found at the first run, then watched at each."""

    model: Model
    _names: dict[str, None] = field(default_factory=dict)

    def run(
        self, inputs: Mapping[str, Any], each: Callable[[AttentionCall], None] = lambda call: None
    ) -> list[tuple[Tensor, Tensor]]:
        """One forward pass: hidden states before and after each block, [batch token dim]; attention calls go to `each`."""
        encoded = from_model_inputs(self.model, inputs, describe=False)
        if not self._names:
            run_forward(self.model, encoded, self._note)
        found: list[tuple[Tensor, Tensor]] = []

        def after(_block: nn.Module, given: tuple[Any, ...], options: dict[str, Any], result: Any) -> None:
            before = given[0] if given else options["hidden_states"]
            found.append((before.detach(), (result[0] if isinstance(result, tuple) else result).detach()))

        with ExitStack() as stack:
            for name in self._names:
                hook = self.model.module.get_submodule(name).register_forward_hook(after, with_kwargs=True)
                stack.callback(hook.remove)
            run_forward(self.model, encoded, each)
        return found

    def _note(self, call: AttentionCall) -> None:
        self._names[block_of(self.model.module, call.module)] = None


def block_of(root: nn.Module, attention: str) -> str:
    """Name of the block around an attention module: the element, holding it, of the innermost list of modules."""
    parts = attention.split(".")
    for end in range(len(parts), 0, -1):
        if isinstance(root.get_submodule(".".join(parts[: end - 1])), nn.ModuleList):
            return ".".join(parts[:end])
    raise CaptureError(
        explain("cannot find the block around an attention module", where=attention, got="no list of blocks")
    )
