"""Captures on disk: one safetensors file with everything that is needed to verify the capture again.

Tensors: `layer.N.q`, `.k`, `.v`, `.context`, and `.bias`, `.pattern`, `.visible`, `.sinks`, `.step.M.value`, `.step.M.where` where the
call has them, N counting the calls of the capture; the tensors given to the model under their own names (`input_ids`, `attention_mask`, ...). The rest is
JSON in the file's metadata.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attnprobe.attention.call import AttentionCall, Step
from attnprobe.errors import EnvironmentFailure, InputError, explain
from attnprobe.models.captured import Capture
from attnprobe.models.inputs import Encoded
from attnprobe.records import WordAlignment

CAPTURE_FORMAT = 1
"""Number of the file's format; raised when a reader of the old one would go wrong."""

_TENSORS = ("q", "k", "v", "bias", "sinks", "pattern", "context", "visible")
_VALUES = (
    "layer",
    "kind",
    "index",
    "step",
    "scale",
    "softcap",
    "implementation",
    "pattern_source",
    "module",
)
_ORDERED = ("q", "k", "v")
"""Tensors whose order of axes in memory is kept: a product in half precision rounds by it, and the replay is bit for bit."""
_ABOUT = ("model", "family", "dtype", "attn_implementation", "route")


def save_capture(taken: Capture, path: str | os.PathLike[str]) -> Path:
    """Write a capture to one file: to a temporary name first, then renamed, so that no half-written file is left.

    Raises `EnvironmentFailure` where the file cannot be written.
    """
    path = Path(path)
    tensors: dict[str, Tensor] = {}
    for number, call in enumerate(taken.layers):
        parts = {name: getattr(call, name) for name in _TENSORS}
        parts |= _step_tensors(call)
        tensors |= {f"layer.{number}.{name}": value for name, value in parts.items() if value is not None}
    tensors |= {name: value for name, value in taken.encoded.inputs.items() if isinstance(value, Tensor)}
    # safetensors refuses tensors that share memory, as one mask does between layers
    tensors = {
        name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
    }
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        save_file(tensors, temporary, metadata=_metadata(taken))
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        remedy = "Check the folder and the free space"
        raise EnvironmentFailure(
            explain("cannot write the capture", where=str(path), got=str(error), remedy=remedy)
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _metadata(taken: Capture) -> dict[str, str]:
    """Safetensors keeps strings only; everything but plain names is JSON."""
    encoded = taken.encoded
    values = {
        "layers": [
            {
                **{name: getattr(call, name) for name in _VALUES},
                "order": {name: _order(getattr(call, name)) for name in _ORDERED},
                "steps": None if call.steps is None else [_step_values(step) for step in call.steps],
            }
            for call in taken.layers
        ],
        "tokens": encoded.tokens,
        "words": encoded.words,
        "alignments": [
            {"word_index": alignment.word_index.tolist(), "n_words": alignment.n_words}
            for alignment in encoded.alignments
        ],
        "real": encoded.real.int().tolist(),
        "special": encoded.special.int().tolist(),
        "segments": None if encoded.segments is None else encoded.segments.tolist(),
        "target_tokens": encoded.target_tokens,
        "target_real": None if encoded.target_real is None else encoded.target_real.int().tolist(),
        "unknown_share": encoded.unknown_share,
        "not_captured": taken.not_captured,
    }
    about = {name: str(getattr(taken, name)) for name in _ABOUT}
    return {
        "attnprobe_capture": str(CAPTURE_FORMAT),
        **about,
        **{key: json.dumps(value) for key, value in values.items()},
    }


def _step_tensors(call: AttentionCall) -> dict[str, Tensor | None]:
    parts: dict[str, Tensor | None] = {}
    for number, step in enumerate(call.steps or ()):
        parts[f"step.{number}.value"] = step.value if isinstance(step.value, Tensor) else None
        parts[f"step.{number}.where"] = step.where
    return parts


def _step_values(step: Step) -> dict[str, Any]:
    """What of a step is no tensor; a dtype by its name."""
    value = None if isinstance(step.value, Tensor) else step.value
    named = str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else value
    return {"name": step.name, "value": named, "factors": step.factors}


def _step(stored: dict[str, Any], value: Tensor | None, where: Tensor | None) -> Step:
    plain = stored["value"]
    if isinstance(plain, str):
        plain = getattr(torch, plain)
    return Step(stored["name"], plain if value is None else value, where, tuple(stored["factors"]))


def _order(tensor: Tensor) -> list[int]:
    """Axes of a tensor from the one that moves farthest in memory to the one that moves least."""
    strides: tuple[int, ...] = tensor.stride()
    return sorted(range(tensor.ndim), key=lambda axis: -strides[axis])


def _in_order(tensor: Tensor, order: list[int]) -> Tensor:
    """The same numbers, lying in memory in that order of axes."""
    return tensor.permute(order).contiguous().permute([order.index(axis) for axis in range(tensor.ndim)])


def load_capture(path: str | os.PathLike[str]) -> Capture:
    """Read a capture written by `Capture.save` or `attnprobe capture`.

    Raises `InputError` where the file is missing, is no capture, is broken, or is of a newer format than this version reads.

    >>> import tempfile
    >>> from attnprobe import capture
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     written = capture("minilm", "the cat sat").save(f"{folder}/cat.safetensors")
    ...     len(load_capture(written).layers)
    6
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(explain("cannot open the capture", where=str(path), expected="a file", got="nothing there"))
    try:
        with safe_open(path, framework="pt") as stored:
            about = stored.metadata() or {}
            _check_format(path, about.get("attnprobe_capture"))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - the file is no mapping
        return _rebuilt(tensors, about)
    except (SafetensorError, OSError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, InputError):
            raise
        expected = "a safetensors file written by attnprobe"
        raise InputError(
            explain("cannot open the capture", where=str(path), expected=expected, got=str(error))
        ) from error


def _check_format(path: Path, found: str | None) -> None:
    if found is None or not found.isdecimal() or int(found) > CAPTURE_FORMAT:
        raise InputError(
            explain(
                "cannot read this capture",
                where=str(path),
                expected=f"format {CAPTURE_FORMAT} or older",
                got="no format number" if found is None else f"format {found}",
                remedy="Update attnprobe" if found is not None else "Is it a capture written by `attnprobe capture`?",
            )
        )


def _rebuilt(tensors: dict[str, Tensor], about: dict[str, str]) -> Capture:
    calls = []
    for number, values in enumerate(json.loads(about["layers"])):
        parts: dict[str, Any] = {name: tensors.pop(f"layer.{number}.{name}", None) for name in _TENSORS}
        if any(parts[name] is None for name in ("q", "k", "v", "context")):
            raise ValueError(f"layer {number} is not complete")
        parts |= {name: _in_order(parts[name], order) for name, order in values.pop("order").items()}
        stored = values.pop("steps", None)
        steps = (
            None
            if stored is None
            else tuple(
                _step(
                    step,
                    tensors.pop(f"layer.{number}.step.{place}.value", None),
                    tensors.pop(f"layer.{number}.step.{place}.where", None),
                )
                for place, step in enumerate(stored)
            )
        )
        calls.append(AttentionCall(**parts, **values, steps=steps))
    missed = tuple(json.loads(about.get("not_captured", "[]")))
    named = {name: about[name] for name in _ABOUT}
    return Capture(tuple(calls), _encoded(tensors, about), **named, not_captured=missed)


def _encoded(inputs: dict[str, Tensor], about: dict[str, str]) -> Encoded:
    def read(name: str) -> Any:
        return json.loads(about[name])

    def tensor(name: str, dtype: torch.dtype) -> Tensor | None:
        value = read(name)
        return None if value is None else torch.tensor(value, dtype=dtype)

    def rows(name: str) -> tuple[tuple[str, ...], ...]:
        return tuple(map(tuple, read(name)))

    real, special = tensor("real", torch.bool), tensor("special", torch.bool)
    if real is None or special is None:
        raise ValueError("it does not say which tokens are padding")
    alignments = tuple(
        WordAlignment(np.array(stored["word_index"], dtype=np.int64), stored["n_words"])
        for stored in read("alignments")
    )
    return Encoded(
        inputs=inputs,
        tokens=rows("tokens"),
        real=real,
        special=special,
        words=rows("words"),
        alignments=alignments,
        segments=tensor("segments", torch.int64),
        target_tokens=rows("target_tokens"),
        target_real=tensor("target_real", torch.bool),
        unknown_share=read("unknown_share"),
    )
