"""Example sentences of a study: a few whole patterns, small enough to be drawn in a page."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import xarray as xr

from attnprobe.heads.running import inputs_for, prepare_for
from attnprobe.models.capture import capture
from attnprobe.models.load import Model
from attnprobe.text.align import CLS, Encoded

WORDS, TOKENS = (6, 18), 28
"""Words, from and to, and most tokens, of a sentence that can be taken in at a glance."""
LEVELS = 255
"""Weights are stored as whole numbers 0..255: value / 255, off by at most 1 / 510."""


def legible(item: Encoded) -> bool:
    """Whether a sentence is of middling length."""
    return WORDS[0] <= len(item.sentence) <= WORDS[1] and len(item) <= TOKENS


def example_tables(model: Model, examples: Sequence[Encoded], *, first: int = 0) -> dict[str, xr.Dataset]:
    """`/examples/eN` for each sentence: `pattern(layer, head, query, key)` as uint8, with words, tokens and tree as JSON.

    N counts from `first`. Rows and keys are the sentence's tokens; what a decoder beside an encoder gives to its start token is left out.
    """
    tables: dict[str, xr.Dataset] = {}
    for number, item in enumerate(examples, start=first):
        view = capture(model, **inputs_for(model, prepare_for(model, [item], [0], None))).view()
        n, heads = len(view.tokens), max(block.pattern.shape[0] for block in view.blocks)
        pattern = np.zeros((len(view.blocks), heads, n, n), dtype=np.uint8)
        for place, block in enumerate(view.blocks):
            # a decoder's start token comes before those of the sentence, and is left out
            pattern[place, : len(block.pattern)] = np.rint(block.pattern[..., -n:, -n:] * LEVELS)
        sentence = item.sentence
        attributes = {
            "id": sentence.id,
            "document": sentence.document,
            "tokens": json.dumps(list(view.tokens)),
            "words": json.dumps(list(sentence.words)),
            "word_index": item.alignment.word_index.astype(np.int32),
            "special": (item.roles >= CLS).astype(np.int8),
            "heads": json.dumps(list(sentence.heads)),
            "deprels": json.dumps(list(sentence.deprels)),
            "scale": LEVELS,
            "source": view.blocks[0].source,
        }
        tables[f"/examples/e{number}"] = xr.Dataset(
            {"pattern": (["layer", "head", "query", "key"], pattern)}, attrs=attributes
        )
    return tables
