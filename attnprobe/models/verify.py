"""Showing that what was captured is what the model did, before anything is analysed.

Three independent comparisons, none of our numbers against themselves:

- the *replay* repeats eager attention's operations in the model's dtype and must give its pattern and context bit for bit;
- the *recomputation* in float64, by our own maths, must agree with the model's pattern and context within a tolerance that
  grows with the size of the scores;
- the context must be what the output projection was given.

Where the model runs an attention function that reports no pattern (sdpa), its pattern is that of an eager twin: the same weights in a
second module tree, run on the same inputs.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import recompute, replay, scores_of, visible_of
from attnprobe.errors import CaptureError, InputError, VerificationError, explain
from attnprobe.models.capture import Capture, as_model, record, run_forward
from attnprobe.models.inputs import Encoded, encode, from_model_inputs
from attnprobe.models.load import Model
from attnprobe.records import Sentence, Verification

PROBE_TEXTS = (
    "The keys to the old cabinet are on the table, said Anna, and nobody else knew where she had hidden them.",
    "Rain fell.",
    "When the letter that the clerk had lost was found, it was already too late to answer it.",
    "Why?",
)
"""Texts of unequal lengths, so that the batch is padded: a mask that is not applied shows nowhere else."""


@dataclass(frozen=True)
class LayerCheck:
    """The comparisons of one attention module over one batch."""

    pattern_max_abs: float
    context_max_abs: float
    pattern_tolerance: float
    context_tolerance: float
    row_sum_max_error: float
    bitwise: bool
    rows_checked: int
    rows_excluded: int
    max_score: float
    problems: tuple[str, ...] = ()


def verify(
    model: Model | Capture | str | tuple[Any, Any] | nn.Module,
    texts: str | Sentence | Iterable[str | Sentence] | None = None,
    *,
    route: str = "interface",
    **model_inputs: Any,
) -> Verification:
    """Recompute attention from what was captured and compare it with what the model did, module by module.

    `texts` (or model inputs by name) are run as one padded batch; by default four texts of unequal lengths. A saved `Capture` can be verified
    again: its own pattern and context are then the model's side. Texts that need no padding are joined by the built-in ones. Differences are absolute; tolerances are
    delta = 1e-5 * eps(dtype) / eps(float32) + eps(dtype) * max|score| for the pattern and delta * max|v| for the context; in half precision
    the same-dtype replay stands in for float64. Padding rows and rows that see nothing are excluded and counted.

    Returns the record whether it is `ok` or not; see `require`. Raises as `capture` does.

    >>> from attnprobe import load
    >>> verify(load("minilm")).ok
    True
    """
    if isinstance(model, Capture):
        return _verify_capture(model)
    model = as_model(model)
    if texts is None and not model_inputs:
        return _verify_batch(model, _probe(model), route)
    encoded = from_model_inputs(model, model_inputs) if texts is None else encode(model, texts)
    given = _verify_batch(model, encoded, route)
    if texts is None or not bool(encoded.real.all()):
        return given
    # without padding a mask that is not applied shows nowhere: the built-in probe is run as well
    return merge([given, _verify_batch(model, _probe(model), route)])


def _verify_batch(model: Model, encoded: Encoded, route: str) -> Verification:
    taken, fed = _take(model, encoded, route)
    twin, note = _eager_twin(model, taken)
    checks = [
        check_layer(call, other, _real_rows(taken, call), fed.get(call.layer))
        for call, other in zip(taken.layers, twin, strict=True)
    ]
    return _summarise(taken, checks, note)


def require(verification: Verification) -> Verification:
    """The same record if it is ok; else `VerificationError` naming the first layer that differs."""
    if verification.ok:
        return verification
    v = verification
    for i in range(v.n_layers):
        for what in ("pattern", "context"):
            off, limit = getattr(v, f"{what}_max_abs")[i], getattr(v, f"{what}_tolerance")[i]
            if off > limit or (not np.isfinite(off) and what == "context"):
                raise VerificationError(
                    explain(
                        f"the recomputed {what} differs from the model's",
                        where=f"layer {i} ({v.kind[i]} {v.index[i]})",
                        expected=f"at most {limit:.1e} ({v.dtype})",
                        got=f"{off:.1e}",
                        remedy=f"The family {v.family!r} may do something to attention that reaches no argument of its attention function",
                    )
                )
    raise VerificationError(explain("the capture does not match the model", got="; ".join(v.notes) or "see the record"))


def merge(verifications: Iterable[Verification]) -> Verification:
    """One record for several batches: the worst difference, the sum of the rows, ok only if all are."""
    parts = list(verifications)
    first = parts[0]

    def worst(name: str) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # all-NaN columns stay NaN
            return np.nanmax(np.stack([getattr(part, name) for part in parts]), axis=0)

    names = ("pattern_max_abs", "context_max_abs", "pattern_tolerance", "context_tolerance", "row_sum_max_error", "max_score")
    return replace(
        first,
        **{name: worst(name) for name in names},
        bitwise=np.all([part.bitwise for part in parts], axis=0),
        rows_checked=np.sum([part.rows_checked for part in parts], axis=0),
        rows_excluded=np.sum([part.rows_excluded for part in parts], axis=0),
        ok=all(part.ok for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )


def check_layer(call: AttentionCall, twin: AttentionCall | None, real: Tensor | None, fed: Tensor | None) -> LayerCheck:
    """Compare one captured call with the model's own numbers.

    `twin` is the call whose pattern the model reported (the call itself under eager), None where there is none; `real` marks query
    positions that are not padding, [batch query]; `fed` is what the output projection was given, [batch query head*dim].
    """
    half = call.q.dtype in (torch.float16, torch.bfloat16)
    seeing = visible_of(call).any(-1).expand(call.q.shape[0], call.q.shape[1], -1)
    rows = seeing if real is None else seeing & real.to(seeing.device)[:, None, :]
    ours, our_context = recompute(call)
    context = call.context
    problems: list[str] = []
    bitwise, replayed = (False, None) if twin is None else _replay(twin, rows)
    if half and replayed is not None:
        # float64 is no yardstick for half-precision scores: the model's own rounding is the larger error
        pattern_error = _worst(replayed - twin.pattern, rows)  # type: ignore[union-attr, operator]
    else:
        pattern_error = _worst(ours - twin.pattern.to(ours), rows) if twin is not None and twin.pattern is not None else float("nan")
    limits = _tolerances(call, rows, half)
    row_sum = float("nan")
    if twin is not None and twin.pattern is not None:
        if call.sinks is None:
            row_sum = _worst(twin.pattern.sum(-1, dtype=torch.float32) - 1.0, rows)
            if row_sum > (1e-4 if not half else 0.05):
                problems.append(f"rows of the model's pattern do not sum to 1 (off by {row_sum:.1e}): dropout left on?")
        leaked = _leak(twin, rows)
        if leaked:
            problems.append(f"hidden keys carry up to {leaked:.1e} of the weight")
    flat = context.transpose(1, 2).reshape(context.shape[0], context.shape[2], -1)
    if fed is not None and fed.shape == flat.shape and not torch.equal(fed, flat):
        problems.append("the output projection was given something other than the captured context")
    return LayerCheck(
        pattern_max_abs=pattern_error,
        context_max_abs=_worst(our_context - context.to(our_context), rows),
        pattern_tolerance=limits[0],
        context_tolerance=limits[1],
        row_sum_max_error=row_sum,
        bitwise=bitwise,
        rows_checked=int(rows.sum()),
        rows_excluded=int(rows.numel() - rows.sum()),
        max_score=limits[2],
        problems=tuple(problems),
    )


def _replay(twin: AttentionCall, rows: Tensor) -> tuple[bool, Tensor | None]:
    """Whether repeating eager's operations gives the model's pattern and context bit for bit, and the nearest replayed pattern."""
    if twin.pattern is None:
        return False, None
    best: Tensor | None = None
    for softmax_dtype in (None, torch.float32):  # families differ in where they round; in float32 the two are one
        pattern, context = replay(twin, softmax_dtype=softmax_dtype)
        if torch.equal(pattern, twin.pattern) and torch.equal(context, twin.context):
            return True, pattern
        if best is None or _worst(pattern - twin.pattern, rows) < _worst(best - twin.pattern, rows):
            best = pattern
    return False, best


def _worst(difference: Tensor, rows: Tensor) -> float:
    """Largest absolute value over the rows that count; NaN if any of them is not a number."""
    if difference.ndim == 4:
        difference = difference.abs().amax(-1)
    chosen = difference.abs()[rows]
    return float(chosen.max()) if chosen.numel() else 0.0


def _leak(twin: AttentionCall, rows: Tensor) -> float:
    """Largest weight on a key that may not be seen; exactly 0 where masks work."""
    assert twin.pattern is not None
    hidden = ~visible_of(twin)
    if not bool(hidden.any()):
        return 0.0
    return _worst(torch.where(hidden, twin.pattern, torch.zeros_like(twin.pattern)), rows)


def _tolerances(call: AttentionCall, rows: Tensor, half: bool) -> tuple[float, float, float]:
    """Tolerance of pattern and context, and the largest |score| over visible keys."""
    exact = call.to(torch.float64) if call.q.device.type != "mps" else call.to(torch.float32)
    scores = scores_of(exact).masked_fill(~visible_of(call), 0.0)
    largest = float(scores.abs().amax(-1)[rows].max()) if bool(rows.any()) else 0.0
    max_v = float(call.v.abs().max())
    eps = torch.finfo(call.q.dtype).eps
    if half:
        return 2 * eps, (8 if call.implementation == "eager" else 1) * eps * max_v, largest
    delta = 1e-5 * eps / torch.finfo(torch.float32).eps + eps * largest
    return delta, delta * max_v, largest


def _real_rows(taken: Capture, call: AttentionCall) -> Tensor | None:
    """Query positions that are not padding, where they are positions of the text; None where all count."""
    encoded = taken.encoded
    real = encoded.target_real if call.kind in ("decoder", "cross") and encoded.target_real is not None else encoded.real
    return real if real.shape[1] == call.q.shape[2] else None


def _eager_twin(model: Model, taken: Capture) -> tuple[list[AttentionCall | None], str | None]:
    """Calls with the model's own pattern: the captured ones, or those of an eager twin on the same inputs."""
    if all(call.pattern is not None for call in taken.layers):
        return list(taken.layers), None
    calls: list[AttentionCall | None] = []
    try:
        twin = _share_weights(model, "eager")
        record(twin, [taken.encoded.inputs], each=lambda call, _batch: calls.append(call))
    except (InputError, CaptureError, ValueError, TypeError, AttributeError) as error:
        return [None] * len(taken.layers), f"no eager twin, so the pattern itself is not compared: {str(error).splitlines()[0]}"
    if len(calls) != len(taken.layers) or any(call is None or call.pattern is None for call in calls):
        return [None] * len(taken.layers), "the eager twin reported no pattern, so the pattern itself is not compared"
    return calls, None


def _share_weights(model: Model, implementation: str) -> Model:
    """A second module tree over the same tensors, with its own configuration, running another attention function."""
    tensors = [*model.module.parameters(), *model.module.buffers()]
    module = copy.deepcopy(model.module, {id(tensor): tensor for tensor in tensors})
    module.set_attn_implementation(implementation)  # type: ignore[operator]
    if getattr(module.config, "_attn_implementation", None) != implementation:
        raise CaptureError(explain("the family does not switch its attention function", expected=implementation))
    return replace(model, module=module)


class _Watch:
    """Notes what each attention module's output projection is given: the input of the first linear map run after its attention."""

    def __init__(self, model: Model) -> None:
        self.fed: dict[int, Tensor] = {}
        self.waiting: int | None = None
        linear = [m for m in model.module.modules() if isinstance(m, nn.Linear) or type(m).__name__ == "Conv1D"]
        self._handles = [module.register_forward_pre_hook(self._before) for module in linear]

    def _before(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self.waiting is not None and inputs and isinstance(inputs[0], Tensor):
            self.fed[self.waiting] = inputs[0].detach()
            self.waiting = None

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


def _take(model: Model, encoded: Encoded, route: str) -> tuple[Capture, dict[int, Tensor]]:
    """A capture without recomputed patterns, and what the output projections were given (interface route: with hooks it is the same thing)."""
    calls: list[AttentionCall] = []
    watch = _Watch(model) if route == "interface" else None

    def keep(call: AttentionCall) -> None:
        calls.append(call)
        if watch is not None:
            watch.waiting = call.layer

    try:
        run_forward(model, encoded, keep, route=route)
    finally:
        if watch is not None:
            watch.close()
    taken = Capture(tuple(calls), encoded, model.name, model.family, model.dtype, model.attn_implementation, route)
    return taken, watch.fed if watch is not None else {}


def _verify_capture(taken: Capture) -> Verification:
    own = [call if call.pattern_source == "model" else None for call in taken.layers]
    note = None if all(own) else "the model reported no pattern, so the pattern itself is not compared"
    return _summarise(
        taken, [check_layer(call, twin, _real_rows(taken, call), None) for call, twin in zip(taken.layers, own, strict=True)], note
    )


def _summarise(taken: Capture, checks: list[LayerCheck], note: str | None) -> Verification:
    def array(name: str) -> np.ndarray:
        return np.array([getattr(check, name) for check in checks])

    pattern_ok = ~(array("pattern_max_abs") > array("pattern_tolerance"))  # NaN: not compared, and `note` says so
    context_ok = array("context_max_abs") <= array("context_tolerance")
    problems = [f"layer {i}: {problem}" for i, check in enumerate(checks) for problem in check.problems]
    names = [f.name for f in fields(LayerCheck) if f.name != "problems"]
    compared = note is not None or not bool(np.isnan(array("pattern_max_abs")).any())
    return Verification(
        model=taken.model,
        family=taken.family,
        attn_implementation=taken.attn_implementation,
        dtype=taken.dtype,
        kind=tuple(call.kind for call in taken.layers),
        index=np.array([call.index for call in taken.layers]),
        ok=bool(pattern_ok.all() and context_ok.all() and compared and not problems),
        notes=tuple(([note] if note else []) + problems),
        **{name: array(name) for name in names},
    )


def _probe(model: Model) -> Encoded:
    """The built-in probe batch: four texts of unequal lengths, or token ids drawn with a fixed seed where there is no tokenizer."""
    if model.tokenizer is not None:
        return encode(model, list(PROBE_TEXTS))
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    size = getattr(config, "vocab_size", None)
    if not isinstance(size, int):
        raise InputError(f"{model.name} has no tokenizer and takes no token ids: pass its inputs by name.")
    lengths = [n for n in (23, 3, 17, 5) if n <= (model.max_length or 23)]
    ids = torch.randint(size, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]).long()
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids[:, :7]
    return from_model_inputs(model, inputs)
