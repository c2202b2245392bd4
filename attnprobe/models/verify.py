"""Showing that what was captured is what the model did, before anything is analysed.

Three independent comparisons, none of our numbers against themselves:

- the *replay* repeats eager attention's operations in the model's dtype and must give its pattern and context bit for bit;
- the *recomputation* in float64, by our own maths, must agree with the model's pattern and context within a tolerance that
  grows with the size of the scores;
- the context must be what the output projection was given.

Where the model runs an attention function that reports no pattern (sdpa), its pattern is that of an eager twin; see `twin.py`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import InputError, VerificationError, explain
from attnprobe.models import scope
from attnprobe.models.capture import ModelLike, as_model, inputs_of, run_forward
from attnprobe.models.captured import Capture
from attnprobe.models.checks import LayerCheck, check_layer
from attnprobe.models.inputs import Encoded, from_model_inputs
from attnprobe.models.model import Model
from attnprobe.models.texts import Text, encode
from attnprobe.models.twin import Watch, eager_twin
from attnprobe.records import Verification

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
    route: str = scope.INTERFACE,
    **model_inputs: Any,
) -> Verification:
    """Recompute attention from what was captured and compare it with what the model did, module by module.

    `texts` (or model inputs by name) are run as one padded batch; by default four texts of unequal lengths. Texts that need no
    padding are joined by the built-in ones. A saved `Capture` can be verified again: its own pattern and context are then the
    model's side. Differences are absolute; see `checks.tolerances_of` for the tolerances, and for half precision. Padding rows
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
        check_layer(call, twin, _real_rows(taken, call), None) for call, twin in zip(taken.layers, own, strict=True)
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
    for name in ("row_sum_max_error", "max_score"):
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


def _verify_batch(model: Model, encoded: Encoded, route: str) -> Verification:
    calls: list[AttentionCall] = []
    watch = Watch()

    def keep(call: AttentionCall) -> None:
        calls.append(call)
        watch.called(call)

    with watch.watching(model):
        run_forward(model, encoded, keep, route=route)
    taken = Capture(tuple(calls), encoded, model.name, model.family, model.dtype, model.attn_implementation, route)
    twin, note = eager_twin(model, taken, watch.given)
    # by hooks, the context is taken from the input of the output projection in the first place
    fed = watch.fed if route == scope.INTERFACE else {}
    checks = [
        check_layer(call, other, _real_rows(taken, call), fed.get(call.layer))
        for call, other in zip(calls, twin, strict=True)
    ]
    return _summarise(taken, checks, note)


def _real_rows(taken: Capture, call: AttentionCall) -> torch.Tensor | None:
    """Query positions that are not padding, where they are positions of the text; None where all count."""
    encoded = taken.encoded
    target = call.kind in ("decoder", "cross") and encoded.target_real is not None
    real = encoded.target_real if target else encoded.real
    return real if real is not None and call.step == 0 and real.shape[1] == call.q.shape[2] else None


def _summarise(taken: Capture, checks: list[LayerCheck], note: str | None) -> Verification:
    names = [f.name for f in fields(LayerCheck) if f.name != "problems"]
    columns = {name: np.array([getattr(check, name) for check in checks]) for name in names}
    compared = note is not None or not np.isnan(columns["pattern_max_abs"]).any()
    pattern_ok = ~(columns["pattern_max_abs"] > columns["pattern_tolerance"])  # NaN: not compared, and `note` says so
    context_ok = columns["context_max_abs"] <= columns["context_tolerance"]
    problems = [f"layer {i}: {problem}" for i, check in enumerate(checks) for problem in check.problems]
    return Verification(
        model=taken.model,
        family=taken.family,
        attn_implementation=taken.attn_implementation,
        dtype=taken.dtype,
        kind=tuple(call.kind for call in taken.layers),
        index=np.array([call.index for call in taken.layers]),
        ok=bool(pattern_ok.all() and context_ok.all() and compared and not problems),
        notes=tuple(([note] if note else []) + problems),
        **columns,
    )


def _probe(model: Model) -> Encoded:
    """The built-in probe batch: four texts of unequal lengths, or token ids drawn with a fixed seed where there is no tokenizer."""
    if model.tokenizer is not None:
        return encode(model, list(PROBE_TEXTS))
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
