"""Inputs for a model of any type, found by trying: combinations of candidates, until the forward pass runs.

How many placeholders an image takes is read off the error that miscounting gives.
"""

from __future__ import annotations

import inspect
import itertools
import re
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from families.exceptions import INPUTS, PLACEHOLDERS
from families.forms import BATCH, FORMS, FRAMES, Ask

ATTEMPTS = 60

_COUNT = re.compile(
    r"(?:n_\w+_)?tokens:?\s*=?\s*(\d+)\D+?(?:n_\w+_)?features:?\s*=?\s*(?:torch\.Size\(\[)?(\d+)", re.IGNORECASE
)

OPTIONAL = (
    "input_ids",
    "attention_mask",
    "decoder_input_ids",
    "pixel_values",
    "image_grid_thw",
    "bbox",
    "mm_token_type_ids",
    "input_features",
    "input_values",
    "image_sizes",
    "input_features_mask",
    "feature_attention_mask",
    "aspect_ratio_ids",
    "aspect_ratio_mask",
    "pixel_attention_mask",
    "spatial_shapes",
    "future_values",
    "future_time_features",
    "flattened_patches",
    "high_res_pixel_values",
)
"""Inputs that are given wherever the model takes them, whether it needs them or not."""

ABSENT = object()
"""The last candidate of an input that need not be given."""

ALWAYS = ("input_ids", "decoder_input_ids", "pixel_values")
"""Optional inputs that are not left out."""


def names_of(module: nn.Module) -> tuple[list[str], list[str]]:
    """Inputs that the forward needs, and those it may have."""
    parameters = [
        p
        for p in inspect.signature(module.forward).parameters.values()
        if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    return [p.name for p in parameters if p.default is p.empty], [
        p.name for p in parameters if p.default is not p.empty
    ]


class NoInputs(Exception):
    """No combination of inputs ran."""


def find_inputs(module: nn.Module, *, parts: bool = True, vectors: bool = False) -> dict[str, Any]:
    """Inputs with which the forward pass runs. Raises `NoInputs` with what was said where none does.

    `parts` says whether images and sound go along with a text, `vectors` whether vectors stand for the text.
    """
    needed, optional = names_of(module)
    model_type = module.config.model_type
    names = needed + [n for n in optional if n in OPTIONAL or n in INPUTS.get(model_type, ())]
    if vectors:
        names = ["inputs_embeds", *(n for n in names if n == "attention_mask" or (n in needed and n != "input_ids"))]
    elif "input_ids" in names and not parts:
        names = [n for n in names if n in needed or n in ("input_ids", "attention_mask", "decoder_input_ids", "bbox")]
    elif (
        "input_ids" not in names
        and "inputs_embeds" in optional
        and not {"pixel_values", "input_features", "input_values"} & set(names)
    ):
        names.append("inputs_embeds")
    unknown = [n for n in names if n not in FORMS]
    if unknown:
        raise NoInputs(f"no form for the input {unknown[0]!r}")
    search = _Search(module, names, needed)
    for choice in itertools.islice(search.choices(), ATTEMPTS):
        found = search.attempt(choice)
        if found is not None:
            return found
    raise NoInputs(search.error)


class _Search:
    """Tries combinations of candidates, and remembers what the model said of those that did not run."""

    def __init__(self, module: nn.Module, names: list[str], needed: list[str]) -> None:
        self.module, self.names, self.needed = module, names, needed
        self.placeholders = PLACEHOLDERS.get(module.config.model_type, 0)
        self.errors: list[tuple[int, str]] = []

    @property
    def error(self) -> str:
        """What was said of the first combination, and of the one that went furthest."""
        return " | ".join(dict.fromkeys((self.errors[0][1], max(self.errors)[1])))

    def candidates(self) -> dict[str, list[Any]]:
        ask = Ask(self.module.config, self.placeholders, bool({"image_grid_thw", "grid_thw"} & set(self.names)))
        forms = {name: list(FORMS[name](ask)) for name in self.names}
        for name in self.names:
            if name not in self.needed and name not in ALWAYS:
                forms[name].append(ABSENT)
        return forms

    def choices(self) -> Iterator[tuple[int, ...]]:
        found = list(self.candidates().values())

        def cost(choice: tuple[int, ...]) -> float:
            return sum(1.5 if found[n][i] is ABSENT else i for n, i in enumerate(choice))

        return iter(sorted(itertools.product(*(range(len(one)) for one in found)), key=cost))

    def _per_row(self, features: int) -> int:
        """Placeholders for each text; some models count the elements of features, not the features."""
        width = Ask(self.module.config).text("hidden_size", default=64)
        if features > 400 and features % width == 0:
            features //= width
        return max(1, min(features // BATCH, 400))

    def attempt(self, choice: tuple[int, ...]) -> dict[str, Any] | None:
        picked = {name: found[i] for (name, found), i in zip(self.candidates().items(), choice, strict=True)}
        inputs = {name: value for name, value in picked.items() if value is not ABSENT}
        if "use_cache" in inspect.signature(self.module.forward).parameters:
            inputs["use_cache"] = False
        if "attention_mask" in inputs and "input_ids" not in inputs:
            inputs = _mask_of(inputs)
        try:
            with torch.no_grad():
                self.module(**inputs)
            return inputs
        except NotImplementedError:
            raise
        except Exception as caught:
            told = _COUNT.search(str(caught))
            if told and self.placeholders == 0 and "input_ids" in inputs:
                self.placeholders = self._per_row(int(told.group(2)))
                return self.attempt(choice)
            trace = traceback.extract_tb(caught.__traceback__)
            where = f"{trace[-1].filename.rpartition('/')[2]}:{trace[-1].lineno}"
            self.errors.append(
                (len(trace), f"{type(caught).__name__}: {' '.join(str(caught).split())[:140]} ({where})")
            )
            return None


def _mask_of(inputs: dict[str, Any]) -> dict[str, Any]:
    """A mask for sound or vectors: as long as what it masks."""
    other = next(
        (
            value
            for name, value in inputs.items()
            if name != "attention_mask" and isinstance(value, Tensor) and value.ndim > 1
        ),
        None,
    )
    if other is None:
        return inputs
    sizes = list(other.shape[1:])
    length = sizes[0] if len(sizes) == 1 or FRAMES not in sizes else FRAMES
    mask = torch.ones(BATCH, length, dtype=torch.long)
    mask[1, length * 3 // 4 :] = 0
    return {**inputs, "attention_mask": mask}
