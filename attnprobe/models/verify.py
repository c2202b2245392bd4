"""Showing that what was captured is what the model did, before anything is analysed.

Three independent comparisons, none of our numbers against themselves:

- the *replay* repeats eager attention's operations in the model's dtype and must give its pattern and context bit for bit;
- the *recomputation* in float64, by our own maths, must agree with the model's pattern and context within a tolerance that
  grows with the size of the scores;
- the context must be what the output projection was given, where the model puts nothing in between; a gate or a norm there is
  noted, the context of another call is a failure.

Where the model runs an attention function that reports no pattern (sdpa), its pattern is that of an eager twin; see `twin.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import inputs_as, recompute, replay, scores_of, visible_of
from attnprobe.errors import InputError
from attnprobe.models import scope
from attnprobe.models.biases import bias_error
from attnprobe.models.capture import ModelLike, as_model, captured, inputs_of, run_forward
from attnprobe.models.captured import Capture, real_rows
from attnprobe.models.inputs import Encoded, from_model_inputs
from attnprobe.models.model import Model
from attnprobe.models.outcome import LayerCheck, merge, require, summarise
from attnprobe.models.texts import Text, encode
from attnprobe.models.twin import Watch, changed_contexts, eager_twin, flat_context
from attnprobe.records import Verification

__all__ = ["check_layer", "merge", "require", "tolerances_of", "verify"]

FLOAT32_TOLERANCE = 1e-5
"""Tolerance of a float32 pattern whose scores are small."""
ROW_SUM = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Largest honest error of a row's sum; 0.05 in half precision, which rounds every weight."""
HALF = (torch.float16, torch.bfloat16)
REPLAYS: tuple[tuple[torch.dtype | None, torch.dtype | None], ...] = (
    (None, None),
    (torch.float32, None),
    (torch.float32, torch.float32),
)
"""Where families differ in half precision: the dtype of the softmax, and of the scores."""


PROBE_TEXTS = (
    "The keys to the old cabinet are on the table, said Anna, and nobody else knew where she had hidden them.",
    "Rain fell.",
    "When the letter that the clerk had lost was found, it was already too late to answer it.",
    "Why?",
)
"""Texts of unequal lengths, so that the batch is padded: a mask that is not applied shows nowhere else."""


def verify(
    model: ModelLike | Capture,
    texts: Text | Iterable[Text] | None = None,
    *,
    route: str = scope.AUTO,
    **model_inputs: Any,
) -> Verification:
    """Recompute attention from what was captured and compare it with what the model did, module by module.

    `texts` (or model inputs by name) are run as one padded batch; by default four texts of unequal lengths. Texts that need no
    padding are joined by the built-in ones. A saved `Capture` can be verified again: its own pattern and context are then the
    model's side. Differences are absolute; see `tolerances_of` for the tolerances, and for half precision. Padding rows
    and rows that see nothing are excluded and counted.

    Returns the record whether it is `ok` or not; see `require`. Raises as `capture` does.

    >>> from attnprobe import load
    >>> verify(load("minilm")).ok
    True
    """
    if isinstance(model, Capture):
        return verify_capture(model)
    model = as_model(model)
    if texts is None and not model_inputs:
        return _verify_batch(model, _probe(model), route)
    encoded = inputs_of(model, texts, model_inputs)
    given = _verify_batch(model, encoded, route)
    if texts is None or not bool(encoded.real.all()):
        return given
    # without padding a mask that is not applied shows nowhere: the built-in probe is run as well
    return merge([given, _verify_batch(model, _probe(model), route)])


def verify_capture(taken: Capture) -> Verification:
    """Verify a capture by what it holds: the model's context, and its pattern where the model reported one."""
    own = [call if call.pattern_source == "model" else None for call in taken.layers]
    note = None if all(own) else "the model reported no pattern, so the pattern itself is not compared"
    checks = [
        check_layer(call, twin, real_rows(taken.encoded, call), None)
        for call, twin in zip(taken.layers, own, strict=True)
    ]
    return summarise(taken, checks, note)


def _verify_batch(model: Model, encoded: Encoded, route: str) -> Verification:
    calls: list[AttentionCall] = []
    watch = Watch()

    def keep(call: AttentionCall) -> None:
        calls.append(call)
        watch.called(call)

    with watch.watching(model):
        seen = run_forward(model, encoded, keep, route=route)
    taken = captured(model, encoded, calls, seen)
    twin, note = eager_twin(model, taken, watch.given)
    # by hooks, the context is taken from the input of the output projection in the first place; by flow, it is the product itself,
    # which a module may go on with (an activation, a gate) before it projects
    given = {layer: x for layer, x in watch.fed.items() if seen.routes.get(layer) == scope.INTERFACE}
    fed, remarks = changed_contexts(calls, given)
    checks = [
        _with_bias(
            model, call, watch, check_layer(call, other, real_rows(taken.encoded, call), fed.get(call.layer)), encoded
        )
        for call, other in zip(calls, twin, strict=True)
    ]
    return summarise(taken, checks, note, remarks)


def _with_bias(model: Model, call: AttentionCall, watch: Watch, check: LayerCheck, encoded: Encoded) -> LayerCheck:
    """The position bias held against the family's formula, where it has one; half precision is rounded too much for it."""
    if coarsest(call) in HALF:
        return check
    off = bias_error(model.module, call, watch.given.get(call.layer), _rows_of(call, real_rows(encoded, call)))
    problems = check.problems
    if off > check.pattern_tolerance:
        problems += (f"the position bias is not what its formula gives (off by {off:.1e})",)
    return replace(check, bias_max_abs=off, problems=problems)


def _rows_of(call: AttentionCall, real: Tensor | None) -> Tensor:
    """Rows that are compared, [batch head query]: those that see something and are no padding."""
    seeing = visible_of(call).any(-1).expand(call.q.shape[0], call.q.shape[1], call.q.shape[2])
    return seeing if real is None else seeing & real.to(seeing.device)[:, None, :]


def _probe(model: Model) -> Encoded:
    """The built-in probe batch: texts of unequal lengths, or token ids drawn with a fixed seed where no tokenizer reads two."""
    if model.tokenizer is not None:
        texts = [text for text in PROBE_TEXTS if _fits(model, text)]
        if len(texts) > 1:
            two_stacks = getattr(model.config, "is_encoder_decoder", False)
            return encode(model, texts, text_pair=min(texts, key=len) if two_stacks else None)
    size = getattr(model.text_config, "vocab_size", None)
    if not isinstance(size, int):
        raise InputError(f"{model.name} has no tokenizer and takes no token ids: pass its inputs by name.")
    lengths = [n for n in (23, 3, 17, 5) if n <= (model.max_length or 23)]
    ids = torch.randint(size, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]).long()
    inputs = {"input_ids": ids, "attention_mask": mask}
    if getattr(model.config, "is_encoder_decoder", False):
        inputs["decoder_input_ids"] = ids[:, :7]
    return from_model_inputs(model, inputs)


def _fits(model: Model, text: str) -> bool:
    try:
        encode(model, text)
    except InputError:  # too long for a model that reads little
        return False
    return True


def check_layer(
    call: AttentionCall,
    twin: AttentionCall | None,
    real: Bool[Tensor, "batch query"] | None,
    fed: Tensor | None,
) -> LayerCheck:
    """Compare one captured call with the model's own numbers.

    `twin` is the call whose pattern the model reported (the call itself under eager), None where there is none; `real` marks
    query positions that are not padding; `fed` is what the output projection was given, [batch query head*dim].
    """
    rows = _rows_of(call, real)
    pattern, context = recompute(call)
    tolerances = tolerances_of(call, rows)
    pattern_error = row_sum = float("nan")
    bitwise, problems = False, _fed_problems(call, fed)
    if twin is not None and twin.pattern is not None:
        bitwise, replayed = _replay(twin, rows)
        # float64 is no yardstick for half-precision scores: the model's own rounding is the larger error
        pattern_error = _off(replayed if coarsest(call) in HALF else pattern, twin.pattern, rows)
        own = twin.pattern.to(pattern.device)
        row_sum = _worst(own.sum(-1, dtype=pattern.dtype) - pattern.sum(-1), rows)
        problems += _pattern_problems(twin, rows, row_sum)
    if call.pattern_source == "recomputed" and call.pattern is not None:
        kept = _off(pattern, call.pattern, rows)
        if not kept <= tolerances[0]:
            problems.append(f"the pattern kept is not what q and k give (off by {kept:.1e})")
    return LayerCheck(
        pattern_max_abs=pattern_error,
        context_max_abs=_off(context, call.context, rows),
        pattern_tolerance=tolerances[0],
        context_tolerance=tolerances[1],
        row_sum_max_error=row_sum,
        bitwise=bitwise,
        rows_checked=int(rows.sum()),
        rows_excluded=int(rows.numel() - rows.sum()),
        max_score=tolerances[2],
        problems=tuple(problems),
    )


def coarsest(call: AttentionCall) -> torch.dtype:
    """The dtype with the largest rounding that a call goes through: families that upcast q and k cast the pattern back to that of v."""
    return call.v.dtype if call.v.dtype in HALF else call.q.dtype


def tolerances_of(call: AttentionCall, rows: Bool[Tensor, "batch head query"]) -> tuple[float, float, float]:
    """Tolerance of pattern and of context, and the largest |score| over visible keys.

    delta = 1e-5 * eps(dtype) / eps(float32) + eps(dtype) * max|score| for the pattern, delta * max|v| for the context. In half
    precision the pattern is judged by replay, within 2 eps, and the context within 8 eps (eager) or 1 eps (sdpa, which keeps
    its scores in float32) of max|v|.
    """
    exact = inputs_as(call, torch.float64)
    largest = _worst(scores_of(exact).masked_fill(~visible_of(exact), 0.0), rows)
    # values of padding may be no numbers (a family whose fully masked rows are NaN); a visible one shows in the context
    dtype = coarsest(call)
    max_v, eps = float(call.v.abs().nan_to_num(0.0).max()), torch.finfo(dtype).eps
    if dtype in HALF:
        return 2 * eps, (8 if call.implementation == "eager" else 1) * eps * max_v, largest
    delta = FLOAT32_TOLERANCE * eps / torch.finfo(torch.float32).eps + eps * largest
    return delta, delta * max_v, largest


def _replay(twin: AttentionCall, rows: Tensor) -> tuple[bool, Tensor]:
    """Whether repeating eager's operations gives the model's pattern and context bit for bit, and the nearest replayed pattern."""
    assert twin.pattern is not None
    best, least = twin.pattern, float("inf")
    for softmax_dtype, score_dtype in REPLAYS if coarsest(twin) in HALF else REPLAYS[:1]:
        pattern, context = replay(twin, softmax_dtype=softmax_dtype, score_dtype=score_dtype)
        if torch.equal(pattern, twin.pattern) and torch.equal(context, twin.context):
            return True, pattern
        error = _worst(pattern - twin.pattern, rows)
        if not error >= least:
            best, least = pattern, error
    return False, best


def _off(ours: Tensor, theirs: Tensor, rows: Tensor) -> float:
    """Largest difference over the rows that count; ours is on the CPU where the device has no float64."""
    return _worst(ours - theirs.to(ours.device), rows)


def _worst(difference: Tensor, rows: Tensor) -> float:
    """Largest absolute value over the rows that count; NaN if any of them is not a number."""
    if difference.ndim == 4:
        difference = difference.abs().amax(-1)
    chosen = difference.abs()[rows.to(difference.device)]
    return float(chosen.max()) if chosen.numel() else 0.0


def _pattern_problems(twin: AttentionCall, rows: Tensor, row_sum: float) -> list[str]:
    assert twin.pattern is not None
    problems = []
    if not row_sum <= ROW_SUM.get(twin.pattern.dtype, 0.05):
        problems.append(f"rows of the model's pattern do not sum to 1 (off by {row_sum:.1e}): dropout left on?")
    hidden = ~visible_of(twin)
    leaked = _worst(torch.where(hidden, twin.pattern, 0.0), rows) if bool(hidden.any()) else 0.0
    if leaked != 0.0:
        problems.append(f"hidden keys carry up to {leaked:.1e} of the weight")
    return problems


def _fed_problems(call: AttentionCall, fed: Tensor | None) -> list[str]:
    """Whether the output projection was fed the captured context, where it was seen and has that size."""
    flat = flat_context(call)
    if fed is None or fed.shape != flat.shape or torch.equal(fed, flat):
        return []
    return ["the output projection was given something other than the captured context"]
