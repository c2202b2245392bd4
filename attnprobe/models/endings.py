"""The last operation of an attention that the flow route sees: weights times values, or torch's attention function itself.

Each is offered as a `Pending` call, so that editors and recorders of `interface.py` work on it: run again with other values, its
result exchanged, or only looked at.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn

from attnprobe.attention.call import Step
from attnprobe.models import scope
from attnprobe.models.assembled import entering, mixing
from attnprobe.models.contraction import Contraction
from attnprobe.models.interface import Pending, RawCall, Result
from attnprobe.models.scores import Expected, Noted, Weights, batch_and_heads

_HEADS = ("num_attention_heads", "num_heads", "n_heads", "n_head", "heads", "attention_head_count")
"""Under which names modules say how many heads they have."""
_FRAMES = 60
"""How far up the stack a module is looked for."""
_NOWHERE = nn.Module()
"""In place of a module where no module runs."""


def running_module() -> nn.Module:
    """The module that is running: the innermost one that has parts."""
    frame: Any = sys._getframe(1)
    for _ in range(_FRAMES):
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            found = frame.f_locals.get("self")
            if isinstance(found, nn.Module) and found._modules:
                return found
        frame = frame.f_back
        if frame is None:
            break
    return _NOWHERE


def expected_in(module: nn.Module) -> Expected:
    """How many sequences the run has, where its recorder knows, and how many heads a module or its configuration says it has."""
    batch = getattr(scope.current().recorder, "batch", None)
    for holder in (module, getattr(module, "config", None)):
        for name in _HEADS:
            value = getattr(holder, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return batch, value
    return batch, None


@dataclass(frozen=True)
class Last:
    """The model's product of weights and values, as it is called."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operands: list[Tensor]
    place: int
    """Which of the operands the weights are."""

    def run(self, values: Tensor | None) -> Any:
        """Call it, with other values if given."""
        if values is None:
            return self.func(*self.args, **self.kwargs)
        operands = [values if i != self.place else self.operands[i] for i in (0, 1)]
        if isinstance(self.args[0], str):
            return self.func(self.args[0], *operands)
        return operands[0] @ operands[1]


class Ending:
    """One attention call put together from its chain."""

    def __init__(self, module: nn.Module, weights: Weights, product: Contraction, last: Last) -> None:
        self.module, self.product, self.last = module, product, last
        if not product.plain:
            shape = tuple(last.operands[last.place].shape)
            weights = weights.then(Noted(None, product.left_from_model, shape, False))
        self.entering = e = entering(weights, expected_in(module))
        self.mixing = mixing(weights, product.left, product.right.transpose(-1, -2), e.frame)
        self.steps = _steps(e.steps, weights)
        self.v = self.mixing.v.detach()
        self.own: Any = None
        self.ours: Tensor | None = None
        options = {"attention_mask": e.bias, "scaling": e.scale, "is_causal": False}
        self.pending = Pending(module, self._run, "eager", e.q.detach(), e.k.detach(), self.v, (), options)

    def _run(self, _module: nn.Module, _q: Tensor, _k: Tensor, v: Tensor, **_: Any) -> Result:
        values = None
        if v is not self.v:
            values = self.product.right_to_model(self.mixing.values_back(v).transpose(-1, -2))
        self.own = self.last.run(values)
        self.ours = self.mixing.out_of(self.product.from_model(self.own)).transpose(1, 2)
        return self.ours, self.mixing.pattern

    def raw(self, made: Pending, result: Result) -> RawCall:
        """What a recorder sees."""
        e = self.entering
        return RawCall(
            module=self.module,
            q=made.q,
            k=made.k,
            v=made.v.detach(),
            mask=None if e.bias is None else e.bias.detach(),
            scaling=e.scale,
            softcap=None,
            sinks=None,
            position_bias=None,
            is_causal=getattr(self.module, "is_causal", None),
            implementation="eager",
            out=result[0].detach().clone(),  # some modules add to it in place afterwards
            weights=None if result[1] is None else result[1].detach(),
            steps=self.steps,
            route=scope.FLOW,
        )

    def in_model(self, result: Result) -> Any:
        """The result as the model wants it: its own, unless an editor changed it."""
        if result[0] is self.ours:
            return self.own
        return self.product.to_model(self.mixing.back(result[0].transpose(1, 2))).to(self.own)


def _steps(steps: tuple[Step, ...] | None, weights: Weights) -> tuple[Step, ...] | None:
    """All steps from the product to the pattern, for the replay; None where one of them cannot be repeated."""
    after = [noted.step for noted in weights.noted if noted.step is not None]
    if steps is None or any(isinstance(step.value, Tensor) or step.where is not None for step in after):
        return None
    return (*steps, Step("softmax", weights.dtype), *after)


class Fused:
    """A call of torch's attention function."""

    def __init__(self, module: nn.Module, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        q, k, v, self.mask = given["query"], given["key"], given["value"], given.get("attn_mask")
        self.func, self.given, self.module = func, given, module
        self.pending: Pending | None = None
        self.own: Any = None
        self.ours: Tensor | None = None
        if q.ndim < 3:
            return
        self.lead = tuple(q.shape[:-2])
        self.split = batch_and_heads(self.lead, expected_in(module))
        self.causal = bool(given.get("is_causal"))
        scale = given.get("scale")
        options = {
            "attention_mask": self._masked(q, k),
            "scaling": float(q.shape[-1] ** -0.5 if scale is None else scale),
            "is_causal": self.causal,
        }
        self.v = self._four(v).detach()
        self.pending = Pending(
            module, self._run, "sdpa", self._four(q).detach(), self._four(k).detach(), self.v, (), options
        )

    def _four(self, tensor: Tensor) -> Tensor:
        lead = tuple(tensor.shape[:-2])
        if len(self.lead) == 2 and len(lead) == 2:
            return tensor.expand(self.lead[0], *tensor.shape[1:])
        return tensor.expand(*self.lead, *tensor.shape[-2:]).reshape(*self.split, *tensor.shape[-2:])

    def _masked(self, q: Tensor, k: Tensor) -> Tensor | None:
        if self.mask is None:
            return None
        mask = self.mask.reshape((1,) * (q.ndim - self.mask.ndim) + tuple(self.mask.shape))
        if len(self.lead) == 2:
            return mask
        if prod(mask.shape[:-2]) == 1:
            return mask.reshape(1, 1, *mask.shape[-2:])
        return mask.expand(*self.lead, *mask.shape[-2:]).reshape(*self.split, *mask.shape[-2:])

    def _run(self, _module: nn.Module, _q: Tensor, _k: Tensor, v: Tensor, **_: Any) -> Result:
        given = self.given if v is self.v else {**self.given, "value": v.reshape(self.given["value"].shape)}
        self.own = self.func(**given)
        self.ours = self.own.reshape(*self.split, *self.own.shape[-2:]).transpose(1, 2)
        return self.ours, None

    def raw(self, made: Pending, result: Result) -> RawCall:
        """What a recorder sees."""
        mask = made.options["attention_mask"]
        says = getattr(self.module, "is_causal", None)
        return RawCall(
            module=self.module,
            q=made.q,
            k=made.k,
            v=made.v.detach(),
            mask=None if mask is None else mask.detach(),
            scaling=made.options["scaling"],
            softcap=None,
            sinks=None,
            position_bias=None,
            is_causal=self.causal if mask is None else says,
            implementation="sdpa",
            out=result[0].detach(),
            weights=None,
            route=scope.FLOW,
        )

    def in_model(self, result: Result) -> Any:
        """The result as the model wants it: its own, unless an editor changed it."""
        if result[0] is self.ours:
            return self.own
        return result[0].transpose(1, 2).reshape(self.own.shape).to(self.own)
