"""What the comparisons of all layers come to: one `Verification`, of one batch or of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from attnprobe.errors import VerificationError, explain
from attnprobe.models.captured import Capture
from attnprobe.records import Verification


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
    bias_max_abs: float = float("nan")
    problems: tuple[str, ...] = ()
    """What is wrong beside the differences above."""


def summarise(taken: Capture, checks: list[LayerCheck], note: str | None, remarks: Sequence[str] = ()) -> Verification:
    """The record of a batch; `note` says why patterns were not compared, where they were not, `remarks` what else to know."""
    names = [f.name for f in fields(LayerCheck) if f.name != "problems"]
    columns = {name: np.array([getattr(check, name) for check in checks]) for name in names}
    compared = note is not None or not np.isnan(columns["pattern_max_abs"]).any()
    pattern_ok = ~(columns["pattern_max_abs"] > columns["pattern_tolerance"])  # NaN: not compared, and `note` says so
    context_ok = columns["context_max_abs"] <= columns["context_tolerance"]
    problems = [f"layer {i}: {problem}" for i, check in enumerate(checks) for problem in check.problems]
    problems += [f"not captured: {missed}" for missed in taken.not_captured]
    return Verification(
        model=taken.model,
        family=taken.family,
        attn_implementation=taken.attn_implementation,
        dtype=taken.dtype,
        kind=tuple(call.kind for call in taken.layers),
        index=np.array([call.index for call in taken.layers]),
        ok=bool(pattern_ok.all() and context_ok.all() and compared and not problems),
        notes=(*([note] if note else []), *problems, *remarks),
        **columns,
    )


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
    """One record for several batches: per layer the differences that come nearest to their tolerance (or pass it by most), the
    sum of the rows; ok only if all are.
    """
    parts = list(verifications)
    merged: dict[str, Any] = {}
    for what in ("pattern", "context"):
        off, limit = (
            np.stack([getattr(part, f"{what}_{name}") for part in parts]) for name in ("max_abs", "tolerance")
        )
        # a NaN of the context is a failure; a pattern is NaN where it was not compared
        share = np.where(np.isnan(off), np.inf if what == "context" else -1.0, off / limit)
        worst = share.argmax(0)[None]
        merged[f"{what}_max_abs"] = np.take_along_axis(off, worst, 0)[0]
        merged[f"{what}_tolerance"] = np.take_along_axis(limit, worst, 0)[0]
    for name in ("row_sum_max_error", "max_score", "bias_max_abs"):
        merged[name] = np.fmax.reduce([getattr(part, name) for part in parts])
    return replace(
        parts[0],
        **merged,
        bitwise=np.all([part.bitwise for part in parts], axis=0),
        rows_checked=np.sum([part.rows_checked for part in parts], axis=0),
        rows_excluded=np.sum([part.rows_excluded for part in parts], axis=0),
        ok=all(part.ok for part in parts),
        notes=tuple(dict.fromkeys(note for part in parts for note in part.notes)),
    )
