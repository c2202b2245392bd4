"""Patterns packed for the viewer: bytes for weights with a scale per row, 16 bits for q and k, and the error that this makes.

A weight w of a row is stored as the whole number nearest to levels * sqrt(w / largest); the page shows scale * code**2, with the scale
chosen so that the row's sum is kept. So small weights keep their size, and hidden mass adds up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.errors import InputError, explain
from attnprobe.report._arena import Arena, number
from attnprobe.report._view_choice import Choice
from attnprobe.report._view_stacks import Axis, Neurons, Stack

BITS = (8, 16)
NEURON_LIMIT = 200_000
"""Numbers (q, k and what is added to the scores) up to which the neuron view is put into a page unasked."""
VECTOR_LEVELS = 2**16 - 1


@dataclass(frozen=True)
class Coded:
    """Weights as whole numbers, and what that costs."""

    codes: np.ndarray
    """Unsigned whole numbers, [head query key]."""
    scale: np.ndarray
    """[head query]; weight = scale * code**2."""
    largest_error: float
    """Largest difference between a weight and what the page shows."""
    error_sum: float


def coded(pattern: np.ndarray, bits: int = 8) -> Coded:
    """Pack weights [head query key]; undefined ones become 0, and count as exact."""
    levels = 2**bits - 1
    weights = np.clip(np.nan_to_num(pattern.astype(np.float64)), 0.0, None)
    largest = weights.max(-1, keepdims=True)
    codes = np.rint(np.sqrt(weights / np.where(largest > 0, largest, 1.0)) * levels)
    squares = (codes**2).sum(-1)
    scale = (weights.sum(-1) / np.where(squares > 0, squares, 1.0)).astype(np.float32)
    error = np.abs(codes**2 * scale[..., None] - weights)
    return Coded(
        codes.astype(np.uint8 if bits == 8 else np.uint16), scale, float(error.max(initial=0.0)), float(error.sum())
    )


def collect(choice: Choice, *, bits: int, neurons: bool | None) -> tuple[dict[str, Any], Arena]:
    """The page's data as plain values that refer to arrays in one block, and that block.

    `neurons` puts q and k in (True: raises where there are none), leaves them out (False), or decides by size (None).
    """
    if bits not in BITS:
        raise InputError(explain("cannot store weights so", expected="bits=8 or bits=16", got=f"bits={bits}"))
    arena = Arena()
    state = _neurons(choice.stacks, neurons)
    errors: list[tuple[float, float]] = []
    stacks = [_stack(stack, arena, bits, state == "yes", errors) for stack in choice.stacks]
    axes = {axis.name: _axis(axis) for stack in choice.stacks for axis in (stack.key, stack.query)}
    cells = sum(stack.cells for stack in choice.stacks)
    window = choice.window
    data = {
        "stacks": stacks,
        "axes": axes,
        "neurons": state,
        "error": {
            "bits": bits,
            "largest": number(max(largest for largest, _ in errors), 2),
            "mean": number(sum(total for _, total in errors) / max(1, cells), 2),
        },
        "choice": {
            "window": None if window is None else [window[0], window[1] - 1],
            "length": choice.length,
            "automatic": choice.automatic,
            "shown": choice.heads_shown,
            "total": choice.heads_total,
        },
    }
    return data, arena


def _neurons(stacks: tuple[Stack, ...], wish: bool | None) -> str:
    """Whether q and k go into the page: `yes`, or why not: `absent`, `large`, `off`."""
    if wish is False:
        return "off"
    held = [module.neurons for stack in stacks for module in stack.modules]
    known = [neurons for neurons in held if neurons is not None]
    if len(known) < len(held):
        if wish:
            expected = "a view with q, k and scores, as `capture(...).view(neurons=True)` makes it"
            raise InputError(explain("no neuron view without q and k", expected=expected, got="patterns alone"))
        return "absent"
    fits = sum(neurons.size for neurons in known) <= NEURON_LIMIT
    return "yes" if wish or fits else "large"


def _axis(axis: Axis) -> dict[str, Any]:
    return {
        "tokens": list(axis.tokens),
        "word": axis.word_index.tolist(),
        "words": {int(place): axis.words[place] for place in sorted(set(axis.word_index.tolist())) if place >= 0},
        "special": axis.special.astype(int).tolist(),
        "segments": list(axis.segments),
        "unnamed": axis.unnamed,
        "start": axis.start,
    }


def _stack(
    stack: Stack, arena: Arena, bits: int, with_neurons: bool, errors: list[tuple[float, float]]
) -> dict[str, Any]:
    modules = []
    for module in stack.modules:
        packed = coded(module.pattern, bits)
        errors.append((packed.largest_error, packed.error_sum))
        modules.append(
            {
                "layer": module.layer,
                "index": module.index,
                "source": module.source,
                "heads": list(module.heads),
                "codes": arena.add(packed.codes),
                "scale": arena.add(packed.scale),
                "total": arena.add(np.round(module.total, 5)),
                "neurons": _vectors(module.neurons, arena) if with_neurons and module.neurons else None,
            }
        )
    return {
        "kind": stack.kind,
        "query": stack.query.name,
        "key": stack.key.name,
        "causal": stack.causal,
        "steps": stack.steps.tolist(),
        "modules": modules,
    }


def _vectors(neurons: Neurons, arena: Arena) -> dict[str, Any]:
    """The vectors of every head as 16 bit numbers between their extremes, and what is added to the scores."""
    parts = {name: _packed_vectors(values, arena) for name, values in (("q", neurons.q), ("k", neurons.k))}
    scale, dim = number(neurons.scale), neurons.q.shape[-1]
    return {**parts, "added": arena.add(np.round(neurons.added, 4)), "scale": scale, "dim": dim}


def _packed_vectors(values: np.ndarray, arena: Arena) -> dict[str, Any]:
    known = np.nan_to_num(values.astype(np.float64))
    low = known.min(axis=(1, 2), keepdims=True)
    step = (known.max(axis=(1, 2), keepdims=True) - low) / VECTOR_LEVELS
    codes = np.rint((known - low) / np.where(step > 0, step, 1.0)).astype(np.uint16)
    return {"codes": arena.add(codes), "low": arena.add(low[:, 0, 0]), "step": arena.add(step[:, 0, 0])}
