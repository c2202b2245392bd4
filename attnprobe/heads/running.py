"""Running the batches of a shard through a model, with a measurer that takes every attention call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attnprobe.attention.call import AttentionCall
from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import ShardMeasurer
from attnprobe.heads.prepared import Prepared, prepare
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import accepted_inputs, from_model_inputs
from attnprobe.models.model import Model
from attnprobe.text.align import Encoded
from attnprobe.text.batching import SPLITS, Batch, Shard, collate, split_of_sentence


def run_through(
    model: Model,
    shard: Shard,
    members: Sequence[Encoded],
    measurer: ShardMeasurer,
    cases: Cases | None,
    *,
    entities: bool = False,
    advance: Callable[[int], None] | None = None,
) -> None:
    """Run every batch of the shard; `cases` may be empty where words are needed all the same, None where not."""
    for batch in shard.batches:
        prepared = prepare_for(model, [members[place] for place in batch], batch, cases, entities=entities)
        measurer.start(prepared)
        encoded = from_model_inputs(model, inputs_for(model, prepared), describe=False)

        def add(call: AttentionCall, prepared: Prepared = prepared) -> None:
            measurer.add(call, prepared)

        run_forward(model, encoded, add)
        if advance is not None:
            advance(len(batch))


def prepare_for(
    model: Model, sentences: Sequence[Encoded], places: Sequence[int], cases: Cases | None, *, entities: bool = False
) -> Prepared:
    """One batch of these sentences as the model reads them; arguments as of `prepare`."""
    batch = padded(model, sentences)
    return prepare(batch, places, cases, model.device, entities=entities, decoder_start=model.decoder_start)


def padded(model: Model, sentences: Sequence[Encoded]) -> Batch:
    """One batch of these sentences, padded as the model's tokenizer would."""
    pad = getattr(model.tokenizer, "pad_token_id", None)
    return collate(sentences, pad_id=0 if pad is None else pad)


def inputs_for(model: Model, prepared: Prepared) -> dict[str, Any]:
    """The inputs of a batch that the model takes."""
    names = accepted_inputs(model)
    return {name: value for name, value in prepared.inputs.items() if name in names}


def splits_of(members: Sequence[Encoded], cluster: str) -> np.ndarray:
    """Number of each sentence's split."""
    return np.array([SPLITS.index(split_of_sentence(item.sentence, cluster)) for item in members])
