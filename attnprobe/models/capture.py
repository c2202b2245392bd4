"""Running a model and taking its attention: `capture` keeps everything, `record` hands over each layer and keeps nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import CaptureError, InputError, explain, near_names
from attnprobe.models import scope
from attnprobe.models.budget import DEFAULT_BUDGET, estimate_bytes, refuse_over, tell_need
from attnprobe.models.captured import Capture, with_pattern
from attnprobe.models.flow import flowing
from attnprobe.models.hooks import hooking
from attnprobe.models.inputs import Encoded, accepted_inputs, from_model_inputs
from attnprobe.models.interface import recording
from attnprobe.models.load import load
from attnprobe.models.memory import enough_memory
from attnprobe.models.model import Model
from attnprobe.models.recorder import Recorder, counting_passes
from attnprobe.models.texts import Text, encode

ModelLike = Model | str | tuple[Any, Any] | nn.Module
"""Whatever names a model: see `as_model`."""

ROUTES = (scope.AUTO, scope.INTERFACE, scope.FLOW, scope.HOOKS)
"""By what means calls are seen."""


def capture(
    model: ModelLike,
    text: Text | Iterable[Text] | None = None,
    *,
    text_pair: str | None = None,
    route: str = scope.AUTO,
    pattern: bool = True,
    max_new_tokens: int | None = None,
    max_bytes: int = DEFAULT_BUDGET,
    **model_inputs: Any,
) -> Capture:
    """Run the model once and keep q, k, v, bias, pattern and context of every attention module.

    `text` is a text, a `Sentence` (its words are kept), or several of either (one padded batch); or pass the model's own inputs
    by name (`input_ids=...`, `pixel_values=...`). Where the model reports no pattern (sdpa), it is recomputed from the captured
    q and k and marked so; `pattern=False` leaves it None. `max_new_tokens` generates greedily and keeps every step. `route` is
    `auto` (the attention-function interface where a module uses it, the flow of tensors elsewhere), one of the two, or `hooks`
    (BERT-like).

    The model's outputs are the same bits as without capture; its configuration is not touched. What will be kept is logged (INFO, by
    `attnprobe.models.budget`) before the model runs.

    Raises `CaptureError` in train mode, when nothing was captured, or when more than `max_bytes` would be kept; `InputError`
    for empty or too long texts, and inputs the model does not take.

    >>> from attnprobe import load
    >>> taken = capture(load("minilm"), "the cat sat")
    >>> len(taken.layers), tuple(taken.layer(0).q.shape)
    (6, (1, 12, 5, 32))
    """
    model = as_model(model)
    encoded = inputs_of(model, text, model_inputs, text_pair=text_pair)
    target = 0 if encoded.target_real is None else encoded.target_real.shape[1]
    needed = estimate_bytes(model, encoded.batch_size, encoded.length, target=target, max_new_tokens=max_new_tokens)
    refuse_over(needed, max_bytes)
    tell_need(needed)
    calls: list[AttentionCall] = []
    kept = 0

    def keep(call: AttentionCall) -> None:
        nonlocal kept
        if pattern and call.pattern is None:
            call = with_pattern(call)
        kept += sum(t.nbytes for t in (call.q, call.k, call.v, call.context, call.pattern) if t is not None)
        refuse_over(kept, max_bytes)
        calls.append(call)

    seen = run_forward(model, encoded, keep, route=route, max_new_tokens=max_new_tokens)
    return captured(model, encoded, calls, seen)


def record(
    model: ModelLike,
    batches: Iterable[Mapping[str, Any]],
    each: Callable[[AttentionCall, Mapping[str, Any]], None],
    *,
    route: str = scope.AUTO,
) -> int:
    """Run the model over `batches` and call `each(call, batch)` for every attention module as it is computed; nothing is kept.

    A batch is a mapping of model inputs (`input_ids`, `attention_mask`, ...), as tensors or nested lists. Returns the number of
    batches run. Raises as `capture` does; an exception in `each` ends the run and leaves the model as it was.

    >>> from attnprobe import load
    >>> layers = []
    >>> record(load("minilm"), [{"input_ids": [[101, 1996, 4937, 102]]}], each=lambda call, batch: layers.append(call.layer))
    1
    >>> layers
    [0, 1, 2, 3, 4, 5]
    """
    model = as_model(model)
    done = 0
    for batch in batches:

        def hand_over(call: AttentionCall, batch: Mapping[str, Any] = batch) -> None:
            each(call, batch)

        run_forward(model, from_model_inputs(model, batch, describe=False), hand_over, route=route)
        done += 1
    return done


def inputs_of(
    model: Model, text: Text | Iterable[Text] | None, model_inputs: Mapping[str, Any], *, text_pair: str | None = None
) -> Encoded:
    """A batch of a text, or of the model's own inputs by name, whichever is given."""
    if text is not None and not model_inputs:
        return encode(model, text, text_pair=text_pair)
    if text is None and text_pair is None:
        return from_model_inputs(model, model_inputs)
    expected = "either texts or model inputs by name"
    raise InputError(
        explain("cannot tell what to run", expected=expected, got=", ".join(model_inputs) or "text_pair alone")
    )


def run_forward(
    model: Model,
    encoded: Encoded,
    each: Callable[[AttentionCall], None],
    *,
    route: str = scope.AUTO,
    max_new_tokens: int | None = None,
) -> Recorder:
    """One forward pass (or a generation) with every attention call handed to `each`; raises where none came.

    Returns the recorder, which knows by which routes calls came and which modules could not be read. Raises `EnvironmentFailure` where the
    device has too little memory for the batch.
    """
    recorder = Recorder(model.module, each)
    recorder.batch = encoded.batch_size
    with enough_memory(model, encoded.real), _listening(model, recorder, route), torch.no_grad():
        if max_new_tokens is None:
            model.backbone(**encoded.inputs)
        else:
            _generate(model, encoded, recorder, max_new_tokens)
    if recorder.seen == 0:
        raise _nothing_captured(model, recorder, route)
    return recorder


def captured(model: Model, encoded: Encoded, calls: list[AttentionCall], seen: Recorder) -> Capture:
    """What one run gave, as a record."""
    return Capture(
        tuple(calls),
        encoded,
        model.name,
        model.family,
        model.dtype,
        model.attn_implementation,
        "+".join(sorted(set(seen.routes.values()))),
        tuple(f"{name}: {reason}" for name, reason in seen.not_captured.items()),
    )


def _nothing_captured(model: Model, recorder: Recorder, route: str) -> CaptureError:
    missed = [f"{name}: {reason}" for name, reason in recorder.not_captured.items()]
    return CaptureError(
        explain(
            f"the forward pass of {model.name} ran, and no attention was captured",
            expected=f"at least one call by the route {route!r}",
            got=f"none (family {model.family!r}, {model.attn_implementation})",
            remedy=f"Attention was seen that is no softmax over all keys: {missed[0]}"
            if missed
            else "The family computes attention in a way that is not followed, or its forward ran in another thread",
        )
    )


def as_model(model: ModelLike) -> Model:
    """A `Model` from whatever a caller has: a name is loaded, a bare module is taken without a tokenizer.

    Refuses train mode, and a default device of torch that is not the CPU.
    """
    default = torch.get_default_device()
    if default.type != "cpu":
        remedy = "Call `torch.set_default_device('cpu')`; the model itself goes where `load(..., device=...)` puts it"
        what = "torch's default device would take what belongs on the CPU"
        raise InputError(explain(what, expected="cpu", got=str(default), remedy=remedy))
    if not isinstance(model, Model):
        model = load((model, None)) if isinstance(model, nn.Module) else load(model)
    training = next((name for name, module in model.module.named_modules() if module.training), None)
    if training is not None:
        raise CaptureError(
            explain(
                "cannot capture a model in train mode",
                where=training or "the model itself",
                expected="evaluation mode (dropout would falsify the weights)",
                remedy="Call `model.module.eval()` first",
            )
        )
    return model


def _listening(model: Model, recorder: Recorder, route: str) -> AbstractContextManager[None]:
    if route not in ROUTES:
        raise InputError(f"unknown route {route!r}; {near_names(route, ROUTES)}.")
    if route == scope.HOOKS:
        return hooking(model.module, recorder)
    return recording(recorder) if route == scope.INTERFACE else _following(model, recorder, route)


@contextmanager
def _following(model: Model, recorder: Recorder, route: str) -> Iterator[None]:
    with recording(recorder, route), flowing(model.module):
        yield


def _generate(model: Model, encoded: Encoded, recorder: Recorder, max_new_tokens: int) -> None:
    if not getattr(model.module, "can_generate", lambda: False)():
        remedy = "Load it with head='causal-lm' or head='seq2seq-lm'"
        raise CaptureError(explain(f"{model.name} cannot generate", remedy=remedy))
    if max_new_tokens < 1:
        raise InputError(explain("nothing to generate", expected="max_new_tokens >= 1", got=str(max_new_tokens)))
    two_stacks = getattr(model.config, "is_encoder_decoder", False)
    if not two_stacks and encoded.length and not bool(encoded.real[:, -1].all()):
        remedy = "Set `model.tokenizer.padding_side = 'left'`"
        raise InputError(explain("cannot go on from texts that are padded on the right", remedy=remedy))
    accepted = accepted_inputs(model)
    inputs = {name: value for name, value in encoded.inputs.items() if name in accepted}
    with counting_passes(model.backbone, recorder.start, lambda: scope.current().recorder is recorder):
        model.module.generate(  # type: ignore[operator]
            **inputs, max_new_tokens=max_new_tokens, min_new_tokens=max_new_tokens, do_sample=False, num_beams=1
        )
