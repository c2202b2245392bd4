"""A device that is not here: tensors that say they lie on a GPU, and numbers that the CPU works out.

So that code for a GPU can be held to the CPU's numbers, bit for bit, where there is no GPU. Refused is what a GPU refuses: mixing its tensors
with those of the CPU, NumPy arrays of them, float64 on MPS, operations that torch's own table of kernels does not have there. Counted is what
makes the host wait.

What no stand-in shows: speed, memory, kernels of half precision and their faults, the order of sums. For those there are tests marked `gpu`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchgen
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

ATEN = torch.ops.aten
_COPIES = (ATEN.copy_.default, ATEN._to_copy.default)
_INDEXING = (
    *(ATEN.index.Tensor, ATEN.index_put.default, ATEN.index_put_.default),
    *(ATEN._index_put_impl_.default, ATEN._unsafe_index.Tensor),
)
"""Operations whose indices may lie on the CPU: they are copied to the device."""
_WAITS = (ATEN._local_scalar_dense.default, ATEN.nonzero.default, ATEN.equal.default, ATEN.masked_select.default)
"""Operations whose result the host must wait for; copies between device and CPU come on top."""

_BELOW = torch.device("meta")
"""What torch's own code below Python takes such tensors for: a device that every build knows."""


class Elsewhere(torch.Tensor):
    """A tensor on the device that is not here; `inner` holds its numbers."""

    inner: torch.Tensor
    claimed: torch.device
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=_BELOW,
        )
        made.inner, made.claimed = inner, device
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.claimed

    @property
    def is_meta(self) -> bool:  # type: ignore[override]
        return False

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _work_out(func, args, kwargs or {}, None)

    # torch would turn a list into a tensor on the device below, which has no numbers

    def __getitem__(self, index: Any) -> Any:
        return super().__getitem__(self._here(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(self._here(index), value)

    def _here(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(self._here(part) for part in index)
        return torch.as_tensor(index, device=self.claimed) if isinstance(index, (list, np.ndarray)) else index

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, **_: Any) -> Any:  # type: ignore[override]
        raise TypeError(f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() first")

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.numpy()

    def __repr__(self) -> str:
        return f"{self.inner!r} on {self.device}"


class Device(TorchDispatchMode):
    """While it is entered, there is a device of this type, `cuda` or `mps`; `waits` counts how often the host waited for it."""

    def __init__(self, type_: str) -> None:
        super().__init__()
        self.device = torch.device(type_, 0)
        self.waits = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _work_out(func, args, kwargs or {}, self)


def _work_out(func: Any, args: Any, kwargs: dict[str, Any], mode: Device | None) -> Any:
    """One operation, on the numbers below, its result on the device that it would have been on."""
    flat, shape = tree_flatten((args, kwargs))
    tensors = [one for one in flat if isinstance(one, torch.Tensor)]
    there = [one for one in tensors if isinstance(one, Elsewhere)]
    goal = _goal(kwargs.get("device"), there, mode)
    _refuse(func, args, tensors, there, kwargs)
    if mode is not None:
        mode.waits += _waits(func, args, tensors, goal)
    inner_args, inner_kwargs = tree_unflatten([one.inner if isinstance(one, Elsewhere) else one for one in flat], shape)
    if kwargs.get("device") is not None:
        inner_kwargs = {**inner_kwargs, "device": torch.device("cpu")}
    found = _called(func, inner_args, inner_kwargs)
    into_cpu = func is ATEN.copy_.default and not isinstance(args[0], Elsewhere)
    if goal is None or goal.type == "cpu" or into_cpu:
        return found
    known = {id(one.inner): one for one in there}

    def wrapped(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        if one.dtype == torch.float64 and goal.type == "mps":
            raise TypeError(f"Cannot convert a MPS Tensor to float64, which MPS does not support, in {func}")
        return known[id(one)] if id(one) in known else Elsewhere(one, goal)

    return tree_map(wrapped, found)


def _goal(asked: Any, there: list[Elsewhere], mode: Device | None) -> torch.device | None:
    """The device of the result; None: the CPU, as all tensors are there."""
    if asked is None:
        return there[0].device if there else None
    goal = torch.device(asked)
    if goal == _BELOW:  # torch's own code, which takes the device of a tensor
        return there[0].device if there else mode.device if mode is not None else goal
    return torch.device(goal.type, 0) if goal.type == "cuda" and goal.index is None else goal


def _refuse(func: Any, args: Any, tensors: list[Any], there: list[Elsewhere], kwargs: dict[str, Any]) -> None:
    """Raise for what a device refuses."""
    if not there:
        return
    lost = [one for one in tensors if one.device == _BELOW and not isinstance(one, Elsewhere)]
    assert not lost, f"{func} was given a tensor without numbers, which torch made below Python"
    device = there[0].device
    mixed = [one for one in tensors if not isinstance(one, Elsewhere) and one.ndim]
    if func in _INDEXING and isinstance(args[0], Elsewhere):
        indices = [one for one in args[1] if one is not None]
        mixed = [one for one in mixed if not any(one is index for index in indices)]
    if mixed and func not in _COPIES:
        raise RuntimeError(f"Expected all tensors to be on the same device, but found {device} and cpu in {func}")
    name = str(func).split(".", 1)[1].removesuffix(".default")
    if not has_kernel(name, device.type):
        raise NotImplementedError(f"The operator {name} is not implemented for the {device.type.upper()} device")
    if device.type == "mps" and kwargs.get("dtype") == torch.float64:
        raise TypeError(f"Cannot convert a MPS Tensor to float64, which MPS does not support, in {func}")


@cache
def _kernels() -> dict[str, str]:
    """What torch's own table, which comes with it, says of each operation, by its name."""
    table = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    return {entry.split("(", 1)[0]: entry for entry in re.split("^- func: ", table.read_text(), flags=re.MULTILINE)[1:]}


def has_kernel(name: str, type_: str) -> bool:
    """Whether an operation runs on a type of device: it has a kernel there, or is made of others (which are not looked into)."""
    entry = _kernels().get(name, "")
    delegate = re.search(r"structured_delegate: (\S+)", entry)
    if delegate is not None:
        return has_kernel(delegate[1], type_)
    if type_ == "cuda" and "ufunc_inner_loop:" in entry:  # its kernel is generated
        return True
    _, found, kernels = entry.partition("\n  dispatch:")
    return not found or re.search(rf"\b{type_.upper()}\b|Composite", kernels) is not None


def _waits(func: Any, args: Any, tensors: list[Any], goal: torch.device | None) -> bool:
    """Whether the host waits for the device until this is done: its result is read, or something is copied there or back."""
    sides = {isinstance(one, Elsewhere) for one in tensors}
    if func in _WAITS:
        return True in sides
    if func is ATEN._to_copy.default:
        sides.add(goal is not None and goal.type != "cpu")
    if func in _INDEXING:
        indices = [one for one in args[1] if one is not None]
        masks = any(isinstance(one, Elsewhere) and one.dtype == torch.bool for one in indices)
        return masks or (True in sides and any(not isinstance(one, Elsewhere) for one in indices))
    return func in _COPIES and len(sides) > 1


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    if func is ATEN._fused_sdp_choice.default:
        return 0  # plain mathematics, which is the same everywhere
    if func is ATEN._scaled_dot_product_attention_math_for_mps.default:
        func = ATEN._scaled_dot_product_attention_math.default
    return func(*args, **kwargs)


class _Event:
    """An event on a device that is done as soon as it is recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


@contextmanager
def device_elsewhere(type_: str, patch: pytest.MonkeyPatch) -> Iterator[Device]:
    """There is a device of this type, as far as `load` and torch's factories ask, and its mode is entered."""
    patch.setattr(torch.cuda, "_lazy_init", lambda: None)
    patch.setattr(torch, "Event", _Event)  # generation waits for one on MPS
    patch.setattr("attnprobe.models.load.device_of", torch.device)
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` makes it here, and moves it by an operation that is seen
    try:
        with Device(type_) as mode:
            yield mode
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
