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
from attnprobe.models.families import FAMILIES, HookRoute, family_of
from attnprobe.models.interface import RawCall


@contextmanager
def hooking(model: nn.Module, recorder: Callable[[RawCall], None]) -> Iterator[None]:
    """Hand every self-attention of `model` to `recorder`, put together from hooks, until the context ends."""
    family = str(getattr(model.config, "model_type", ""))
    route = family_of(family).hooks
    if route is None:
        raise CaptureError(
            explain(
                f"the family {family!r} cannot be captured by hooks",
                expected="one of " + ", ".join(name for name, row in FAMILIES.items() if row.hooks),
                remedy="Use route='interface'",
            )
        )
    handles: list[Any] = []
    try:
        for name, module in model.named_modules():
            if all(isinstance(getattr(module, part, None), nn.Linear) for part in (route.query, route.key, route.value)):
                handles += _hook_module(model, name, module, route, recorder)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hook_module(
    model: nn.Module, name: str, module: nn.Module, route: HookRoute, recorder: Callable[[RawCall], None]
) -> list[Any]:
    """Hooks on one self-attention module. They fire in the order q, k, v, output; which comes first ends the call differs by family."""
    held: dict[str, Any] = {}

    def keep(part: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
            held[part] = output.detach()

        return hook

    def keep_mask(_module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
        held["mask"] = options.get("attention_mask", inputs[1] if len(inputs) > 1 else None)

    def keep_context(_module: nn.Module, inputs: tuple[Any, ...]) -> None:
        held["context"] = inputs[0].detach()
        finish()

    def keep_weights(_module: nn.Module, _inputs: Any, output: Any) -> None:
        held["weights"] = output[1] if isinstance(output, tuple) and len(output) > 1 else None
        finish()

    def finish() -> None:
        if "context" in held and "weights" in held:
            recorder(_assemble(module, held, route))
            held.clear()

    output_module = _relative(model, name, route.output)
    return [
        module.register_forward_pre_hook(keep_mask, with_kwargs=True),
        getattr(module, route.query).register_forward_hook(keep("q")),
        getattr(module, route.key).register_forward_hook(keep("k")),
        getattr(module, route.value).register_forward_hook(keep("v")),
        module.register_forward_hook(keep_weights),
        output_module.register_forward_pre_hook(keep_context),
    ]


def _relative(model: nn.Module, name: str, path: str) -> nn.Module:
    if path.startswith("^"):
        return model.get_submodule(f"{name.rpartition('.')[0]}.{path[1:]}".lstrip("."))
    return model.get_submodule(f"{name}.{path}")


def _assemble(module: nn.Module, held: dict[str, Any], route: HookRoute) -> RawCall:
    size: int = module.attention_head_size  # type: ignore[assignment]

    def split(flat: Tensor) -> Tensor:
        return flat.view(*flat.shape[:-1], -1, size).transpose(1, 2)

    mask, weights = held["mask"], held["weights"]
    return RawCall(
        module=module,
        q=split(held["q"]),
        k=split(held["k"]),
        v=split(held["v"]),
        mask=mask,
        scaling=float(module.scaling),  # type: ignore[arg-type]
        softcap=None,
        sinks=None,
        position_bias=None,
        causal=False,
        implementation=str(module.config._attn_implementation),  # type: ignore[union-attr]
        out=held["context"].view(*held["context"].shape[:-1], -1, size),
        weights=weights.detach() if isinstance(weights, Tensor) else None,
    )
