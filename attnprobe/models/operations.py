"""Operations that the flow route follows, by name: what each makes of a tensor that is noted as scores or weights.

A handler runs the operation as it is called and returns its result; all it does beside is to write a note. Operations without a
handler lose the thread (`Lost`), which is counted where it ends in attention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnprobe.attention.call import Step
from attnprobe.models.contraction import Contraction, of_einsum, of_matmul
from attnprobe.models.scores import Lost, Noted, Product, Scores, Weights

if TYPE_CHECKING:
    from attnprobe.models.flow import Flow

Handler = Callable[["Flow", Any, tuple[Any, ...], dict[str, Any]], Any]


def _matmul(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    operands = [*args, *kwargs.values()][:2]
    if func.__name__ == "__rmatmul__":
        operands.reverse()
    if not all(isinstance(t, Tensor) for t in operands):
        return func(*args, **kwargs)
    return _product(flow, func, args, kwargs, of_matmul(*operands), operands)


def _einsum(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
    if not isinstance(args[0], str) or len(operands) != 2:
        return _blindly(flow, func, args, kwargs, operands)
    return _product(flow, func, args, kwargs, of_einsum(args[0], *operands), operands)


def _product(
    flow: Flow, func: Any, args: Any, kwargs: Any, contraction: Contraction | None, operands: list[Tensor]
) -> Any:
    """A product: with weights on one side it ends an attention; of two activations it may begin one."""
    notes = [flow.note_of(operand) for operand in operands]
    place = next((i for i in (0, 1) if isinstance(notes[i], Weights)), None)
    mixed = [isinstance(note, Weights) or (isinstance(note, Lost) and note.normalised) for note in notes]
    if all(mixed):  # an approximation made of several softmaxes
        flow.miss("its weights are multiplied with other weights")
        result = func(*args, **kwargs)
        flow.notes[result] = Lost(func.__name__, True)
        return result
    if place is not None and contraction is not None:
        weights = notes[place]
        assert isinstance(weights, Weights)
        return flow.attended(
            weights, contraction if place == 0 else contraction.turned(), func, args, kwargs, operands, place
        )
    lost = next((note for note in notes if isinstance(note, Lost) and note.normalised), None)
    if lost is not None or place is not None:
        flow.miss(
            f"its weights come by `{lost.operation}`" if lost else "its weights are multiplied with something else"
        )
    result = func(*args, **kwargs)
    activations = all(t.is_floating_point() and t.ndim >= 3 and not isinstance(t, nn.Parameter) for t in operands)
    if contraction is not None and activations and isinstance(result, Tensor):
        _begin(flow, result, contraction)
    return result


def _begin(flow: Flow, result: Tensor, contraction: Contraction, *noted: Noted) -> None:
    scores = Scores(Product(contraction.left, contraction.right), noted)
    if not contraction.plain:
        scores = scores.then(Noted(None, contraction.to_model, scores.product.shape, False))
    flow.notes[result] = scores


def _baddbmm(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("input", "batch1", "batch2")
    added, left, right = [args[i] if i < len(args) else kwargs[name] for i, name in enumerate(names)]
    factors = (float(kwargs.get("beta", 1)), float(kwargs.get("alpha", 1)))
    result = func(*args, **kwargs)
    contraction = of_matmul(left, right)
    if contraction is not None and flow.note_of(left) is None:
        added = added if factors[0] else added.new_zeros(())  # torch does not read it then
        _begin(flow, result, contraction, Noted(Step("fused", added, None, factors), None, tuple(result.shape)))
    return result


def _softmax(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = args[0] if args else kwargs["input"]
    note = flow.note_of(given)
    result = func(*args, **kwargs)
    if isinstance(note, Scores):
        dtype = kwargs.get("dtype") or next((a for a in args[1:] if isinstance(a, torch.dtype)), None)
        dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if isinstance(dim, int):
            flow.notes[result] = Weights(note, tuple(given.shape), dim, dtype)
            return result
    if note is not None:
        flow.notes[result] = Lost(note.operation if isinstance(note, Lost) else "softmax", True)
    return result


def _stepping(make: Callable[[Any, Any, Any, dict[str, Any]], Step | None]) -> Handler:
    """A handler of an operation on scores and an operand; `make(operand, scores are first, result, options)` gives the step."""

    def handler(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = [*args, *kwargs.values()]
        notes = [flow.note_of(value) for value in values[:3]]
        place = next((i for i, note in enumerate(notes) if isinstance(note, (Scores, Weights))), None)
        if place is None:
            return _blindly(flow, func, args, kwargs, values)
        note, shape = notes[place], tuple(values[place].shape)
        others = [value for i, value in enumerate(values) if i != place]
        result = func(*args, **kwargs)
        step = make(others, place, result, kwargs)
        if step is None or tuple(result.shape) != shape or isinstance(note, Lost) or note is None:
            _lose(flow, func, note, result)
        else:
            flow.notes[result] = note.then(Noted(step, None, shape))
        return result

    return handler


def _add(others: list[Any], place: int, result: Tensor, kwargs: dict[str, Any]) -> Step | None:
    return Step("add", others[0]) if "alpha" not in kwargs else Step("add", others[0] * kwargs["alpha"])


def _subtract(others: list[Any], place: int, result: Tensor, kwargs: dict[str, Any]) -> Step | None:
    return Step("add", -others[0]) if place == 0 and "alpha" not in kwargs else None


def _multiply(others: list[Any], place: int, result: Tensor, kwargs: dict[str, Any]) -> Step | None:
    return Step("multiply", others[0])


def _divide(others: list[Any], place: int, result: Tensor, kwargs: dict[str, Any]) -> Step | None:
    return Step("divide", others[0]) if place == 0 and "rounding_mode" not in kwargs else None


def _masked_fill(others: list[Any], place: int, result: Tensor, kwargs: dict[str, Any]) -> Step | None:
    return Step("fill", others[1], others[0]) if place == 0 else None


def _where(others: list[Any], place: int, result: Tensor, kwargs: dict[str, Any]) -> Step | None:
    if place == 0:  # scores.where(kept, other)
        return Step("fill", others[1], ~others[0])
    return Step("fill", others[1], ~others[0] if place == 1 else others[0])


def _floor(others: list[Any], place: int, result: Any, kwargs: dict[str, Any]) -> Step | None:
    if not others or not isinstance(result, Tensor) or not isinstance(others[0], (Tensor, float, int)):
        return None
    return Step("floor", others[0]) if len(others) == 1 else None


def _clamp(others: list[Any], place: int, result: Any, kwargs: dict[str, Any]) -> Step | None:
    low, high = [*others, None][:2] if not kwargs else (kwargs.get("min"), kwargs.get("max"))
    if any(isinstance(limit, Tensor) for limit in (low, high)):
        return None
    limits = (float("-inf") if low is None else float(low), float("inf") if high is None else float(high))
    return Step("clamp", None, None, limits)


def _cast(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    note = flow.note_of(args[0])
    if note is not None and isinstance(result, Tensor):
        if result.dtype != args[0].dtype and not isinstance(note, Lost):
            note = note.then(Noted(Step("cast", result.dtype), None, tuple(result.shape)))
        flow.notes[result] = note
    return result


def _unchanged(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*args, **kwargs)
    given: Any = args[0] if args else kwargs.get("input")
    note = flow.note_of(given)
    if note is not None and result is not given:
        flow.notes[result] = note
    return result


def _dropout(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    training = kwargs.get("training", args[2] if len(args) > 2 else True)
    if not training or not p:
        return _unchanged(flow, func, args, kwargs)
    return _blindly(flow, func, args, kwargs, list(args))


def _view(keeps_order: bool) -> Handler:
    def handler(flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        given: Any = args[0] if args else kwargs.get("input")
        note = flow.note_of(given)
        if note is None or not isinstance(result, Tensor) or result is given:
            return result
        if isinstance(note, Lost):
            flow.notes[result] = note
            return result
        rest, options = args[1:], {name: value for name, value in kwargs.items() if name != "input"}

        def view(tensor: Tensor) -> Tensor:
            if func.__name__ in ("view", "_unsafe_view"):  # what is taken through it may lie in another order
                return tensor.reshape(result_shape)
            return func(tensor, *rest, **options)

        result_shape = tuple(result.shape)
        flow.notes[result] = note.then(Noted(None, view, tuple(given.shape), keeps_order))
        return result

    return handler


def _blindly(flow: Flow, func: Any, args: Any, kwargs: Any, given: list[Any]) -> Any:
    """An operation that is not followed: what comes of scores is lost."""
    result = func(*args, **kwargs)
    flow.follow_blindly(func, given, result)
    return result


def _lose(flow: Flow, func: Any, note: Any, result: Any) -> None:
    if isinstance(result, Tensor):
        flow.notes[result] = Lost(func.__name__, isinstance(note, Weights))


_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE = map(_stepping, (_add, _subtract, _multiply, _divide))
_REORDERING = (
    "transpose",
    "permute",
    "movedim",
    "swapaxes",
    "swapdims",
    "__getitem__",
    "__get__",
    "narrow",
    "expand",
    "select",
)
_RESHAPING = ("view", "reshape", "_unsafe_view", "view_as", "unsqueeze", "squeeze", "flatten", "unflatten")

HANDLERS: dict[str, Handler] = {
    **dict.fromkeys(("matmul", "__matmul__", "__rmatmul__", "bmm"), _matmul),
    "einsum": _einsum,
    "baddbmm": _baddbmm,
    **dict.fromkeys(("softmax", "_softmax"), _softmax),
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), _ADD),
    **dict.fromkeys(("sub", "sub_", "subtract", "__sub__", "__isub__"), _SUBTRACT),
    **dict.fromkeys(("mul", "mul_", "multiply", "__mul__", "__rmul__", "__imul__"), _MULTIPLY),
    **dict.fromkeys(
        ("div", "div_", "divide", "true_divide", "__truediv__", "__div__", "__itruediv__", "__idiv__"), _DIVIDE
    ),
    **dict.fromkeys(("masked_fill", "masked_fill_"), _stepping(_masked_fill)),
    "where": _stepping(_where),
    **dict.fromkeys(("maximum", "max", "clamp_min"), _stepping(_floor)),
    **dict.fromkeys(("clamp", "clip", "clamp_"), _stepping(_clamp)),
    **dict.fromkeys(("to", "type", "type_as", "float", "half", "double", "bfloat16"), _cast),
    **dict.fromkeys(("contiguous", "clone", "detach", "alias", "nan_to_num"), _unchanged),
    "dropout": _dropout,
    **dict.fromkeys(_REORDERING, _view(False)),
    **dict.fromkeys(_RESHAPING, _view(True)),
}
"""By the name of the function or method."""
