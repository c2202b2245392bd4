"""The comparisons of one attention module: recomputed against the model's own, with the tolerances that hold for it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import recompute, replay, scores_of, visible_of

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
    """What is wrong beside the differences above."""


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
    seeing = visible_of(call).any(-1).expand(call.q.shape[0], call.q.shape[1], call.q.shape[2])
    rows = seeing if real is None else seeing & real.to(seeing.device)[:, None, :]
    pattern, context = recompute(call)
    tolerances = tolerances_of(call, rows)
    pattern_error = row_sum = float("nan")
    bitwise, problems = False, _fed_problems(call, fed)
    if twin is not None and twin.pattern is not None:
        bitwise, replayed = _replay(twin, rows)
        # float64 is no yardstick for half-precision scores: the model's own rounding is the larger error
        pattern_error = _worst((replayed if call.q.dtype in HALF else pattern) - twin.pattern, rows)
        row_sum = _worst(twin.pattern.sum(-1, dtype=pattern.dtype) - pattern.sum(-1), rows)
        problems += _pattern_problems(twin, rows, row_sum)
    return LayerCheck(
        pattern_max_abs=pattern_error,
        context_max_abs=_worst(context - call.context, rows),
        pattern_tolerance=tolerances[0],
        context_tolerance=tolerances[1],
        row_sum_max_error=row_sum,
        bitwise=bitwise,
        rows_checked=int(rows.sum()),
        rows_excluded=int(rows.numel() - rows.sum()),
        max_score=tolerances[2],
        problems=tuple(problems),
    )


def tolerances_of(call: AttentionCall, rows: Bool[Tensor, "batch head query"]) -> tuple[float, float, float]:
    """Tolerance of pattern and of context, and the largest |score| over visible keys.

    delta = 1e-5 * eps(dtype) / eps(float32) + eps(dtype) * max|score| for the pattern, delta * max|v| for the context. In half
    precision the pattern is judged by replay, within 2 eps, and the context within 8 eps (eager) or 1 eps (sdpa, which keeps
    its scores in float32) of max|v|.
    """
    exact = call.to(torch.float32 if call.q.device.type == "mps" else torch.float64)
    scores = scores_of(exact).masked_fill(~visible_of(call), 0.0)
    largest = float(scores.abs().amax(-1)[rows].max()) if bool(rows.any()) else 0.0
    max_v, eps = float(call.v.abs().max()), torch.finfo(call.q.dtype).eps
    if call.q.dtype in HALF:
        return 2 * eps, (8 if call.implementation == "eager" else 1) * eps * max_v, largest
    delta = FLOAT32_TOLERANCE * eps / torch.finfo(torch.float32).eps + eps * largest
    return delta, delta * max_v, largest


def _replay(twin: AttentionCall, rows: Tensor) -> tuple[bool, Tensor]:
    """Whether repeating eager's operations gives the model's pattern and context bit for bit, and the nearest replayed pattern."""
    assert twin.pattern is not None
    best, least = twin.pattern, float("inf")
    for softmax_dtype, score_dtype in REPLAYS if twin.q.dtype in HALF else REPLAYS[:1]:
        pattern, context = replay(twin, softmax_dtype=softmax_dtype, score_dtype=score_dtype)
        if torch.equal(pattern, twin.pattern) and torch.equal(context, twin.context):
            return True, pattern
        error = _worst(pattern - twin.pattern, rows)
        if not error >= least:
            best, least = pattern, error
    return False, best


def _worst(difference: Tensor, rows: Tensor) -> float:
    """Largest absolute value over the rows that count; NaN if any of them is not a number."""
    if difference.ndim == 4:
        difference = difference.abs().amax(-1)
    chosen = difference.abs()[rows]
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
    flat = call.context.transpose(1, 2).flatten(2)
    if fed is None or fed.shape != flat.shape or torch.equal(fed, flat):
        return []
    return ["the output projection was given something other than the captured context"]
