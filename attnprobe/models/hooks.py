"""The second route: forward hooks on the query, key and value projections and on the attention output.

Only for families whose q and k enter the product as the projections give them (BERT and its kin, by their row in `families.py`). It
sees the same numbers as `interface.py` by other means, and so checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from attnprobe.errors import CaptureError, explain
from attnprobe.models import scope
from attnprobe.models.families import FAMILIES, Projections, family_of, relative
from attnprobe.models.interface import RawCall


@contextmanager
def hooking(model: nn.Module, recorder: Callable[[RawCall], None]) -> Iterator[None]:
    """Hand every self-attention of `model` in this context to `recorder`, put together from hooks.

    Raises `CaptureError` for a family without this route, and for a decoder, whose mask of later keys no hook sees.
    """
    parts = _projections(model)
    handles: list[Any] = []
    try:
        for name, module in model.named_modules():
            if all(
                isinstance(getattr(module, part, None), nn.Linear) for part in (parts.query, parts.key, parts.value)
            ):
                handles += _Hooks(model, name, module, parts, recorder).handles
        with scope.listening(recorder, scope.HOOKS):
            yield
    finally:
        for handle in handles:
            handle.remove()


def _projections(model: nn.Module) -> Projections:
    family = str(getattr(model.config, "model_type", ""))
    row = family_of(family)
    if not row.by_hooks or row.projections is None:
        raise CaptureError(
            explain(
                f"the family {family!r} cannot be captured by hooks",
                expected="one of " + ", ".join(name for name, row in FAMILIES.items() if row.by_hooks),
                remedy="Use route='interface'",
            )
        )
    if getattr(model.config, "is_decoder", False) or getattr(model.config, "add_cross_attention", False):
        raise CaptureError(explain("a decoder cannot be captured by hooks", remedy="Use route='interface'"))
    return row.projections


class _Hooks:
    """Hooks on one self-attention module: what they see of a call is put together when both its ends are known."""

    def __init__(
        self, model: nn.Module, name: str, module: nn.Module, parts: Projections, recorder: Callable[[RawCall], None]
    ) -> None:
        self.module, self.recorder = module, recorder
        self.held: dict[str, Any] = {}
        self.handles = [
            module.register_forward_pre_hook(self._keep_mask, with_kwargs=True),
            module.register_forward_hook(self._keep_weights),
            relative(model, name, parts.output).register_forward_pre_hook(self._keep_context),
            *(
                relative(model, name, path).register_forward_hook(self._keep(part))
                for part, path in (("q", parts.query), ("k", parts.key), ("v", parts.value))
            ),
        ]

    @property
    def _mine(self) -> bool:
        """Whether the forward pass running now is the one listened to: another thread's fires the same hooks."""
        return scope.current().recorder is self.recorder

    def _keep_mask(self, _module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any] | None = None) -> None:
        # without options: torch has noted the hook and not yet that it wants them, and another thread runs the module
        if self._mine and options is not None:
            self.held = {"mask": options.get("attention_mask", inputs[1] if len(inputs) > 1 else None)}

    def _keep(self, part: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            if self._mine:
                self.held[part] = output.detach()

        return hook

    def _keep_context(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._mine:
            self.held["context"] = inputs[0].detach()
            self._finish()

    def _keep_weights(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if self._mine:
            self.held["weights"] = output[1] if isinstance(output, tuple) and len(output) > 1 else None
            self._finish()

    def _finish(self) -> None:
        """The output projection lies outside the module in BERT, inside in DistilBERT: either may come last."""
        if "context" in self.held and "weights" in self.held:
            raw = self._assemble()
            self.held = {}
            with scope.quietly():
                self.recorder(raw)

    def _assemble(self) -> RawCall:
        module, held = self.module, self.held
        size: int = module.attention_head_size  # type: ignore[assignment]

        def split(flat: Tensor) -> Tensor:
            return flat.view(*flat.shape[:-1], -1, size)

        q, k, v = (split(held[part]).transpose(1, 2) for part in ("q", "k", "v"))
        weights = held["weights"]
        return RawCall(
            module=module,
            q=q,
            k=k,
            v=v,
            mask=held["mask"],
            scaling=float(module.scaling),  # type: ignore[arg-type]
            softcap=None,
            sinks=None,
            position_bias=None,
            is_causal=False,
            implementation=str(module.config._attn_implementation),  # type: ignore[union-attr]
            out=split(held["context"]),
            weights=weights.detach() if isinstance(weights, Tensor) else None,
            route=scope.HOOKS,
        )
