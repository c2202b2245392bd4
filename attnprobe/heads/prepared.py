"""One batch with everything that measuring its layers needs: model inputs, roles, marks and words of its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnprobe.attention.call import Role
from attnprobe.heads.cases import Cases
from attnprobe.heads.pieces import Pieces
from attnprobe.records import Sentence
from attnprobe.text.align import Encoded
from attnprobe.text.batching import Batch, with_start
from attnprobe.text.entities import mentions_of


@dataclass(frozen=True)
class Prepared:
    """One batch with what every layer needs of it, on the model's device."""

    inputs: dict[str, Tensor]
    roles: Tensor
    """`Role` of each token, [batch key]."""
    keep: Tensor
    """Rows that count in metrics, bool [batch query]."""
    real: Tensor
    """False at padding, bool [batch key]."""
    members: Tensor
    """Places of the batch's sentences in the shard, [batch]."""
    span: np.ndarray
    """First row of each sentence that counts or is of a word, and the one after its last, [batch 2]; (0, 0) where none is."""
    pieces: Pieces | None
    """The pieces of each word; None where words are not needed."""
    n_cases: np.ndarray | None
    """Cumulated number of cases up to each sentence of the batch, [batch + 1]."""
    case_rows: tuple[Tensor, ...] = ()
    """(place in the shard's table, sentence of the batch, query word, key words [case word], candidates [case word])."""
    segments: Tensor | None = None
    """Segment of each word's token, -1 elsewhere, [batch key]; None where no sentence is a pair."""
    entities: Tensor | None = None
    """Mention that each token belongs to, -1 elsewhere, [batch key]; None where not asked for."""
    sentences: tuple[Encoded, ...] = ()
    """The batch's sentences."""
    decoder: Prepared | None = None
    """The same as a decoder beside the encoder reads it, its start token in front; None for models of one stack."""


def prepare(
    batch: Batch,
    members: Sequence[int],
    cases: Cases | None,
    device: torch.device,
    *,
    entities: bool = False,
    decoder_start: int | None = None,
) -> Prepared:
    """Tensors for one batch; `members` are the places of its sentences in the shard. `cases=None`: words are not needed.

    `decoder_start`: the model has a decoder beside its encoder, which reads the same sentences after this token (as in training to give back
    what was read).
    """
    roles = torch.from_numpy(batch.roles).to(device)
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if (
        batch.token_types.any()
    ):  # GPT-2 takes token types its tokenizer never gives, and would add the embedding of token 0
        inputs["token_type_ids"] = batch.token_types
    tensors = {key: torch.from_numpy(value).to(device) for key, value in inputs.items()}
    words: dict[str, Any] = {"pieces": None, "n_cases": None}
    if cases is not None:
        words = _prepare_words(batch, members, cases, device)
    decoder = None
    if decoder_start is not None:
        started = with_start(batch, decoder_start)
        decoder = prepare(started, members, None, device, entities=entities)
        if cases is not None:  # the same questions about the same words; only their tokens are one further
            decoder = replace(decoder, **{**words, "pieces": _pieces(started, device)})
        tensors |= {f"decoder_{name}": decoder.inputs[name] for name in ("input_ids", "attention_mask")}
    pairs = any(item.sentence.segments for item in batch.sentences)
    return Prepared(
        tensors,
        roles,
        roles <= Role.PUNCT,
        roles != Role.PAD,
        torch.tensor(list(members), device=device),
        _span((batch.roles <= Role.PUNCT) | (batch.word_index >= 0)),
        **words,
        segments=_of_tokens(batch, _segments_of, device) if pairs else None,
        entities=_of_tokens(batch, entities_of, device) if entities else None,
        sentences=batch.sentences,
        decoder=decoder,
    )


def _span(keep: np.ndarray) -> np.ndarray:
    end = keep.shape[1] - keep[:, ::-1].argmax(1)
    return np.stack([keep.argmax(1), np.where(keep.any(1), end, 0)], 1)


def _of_tokens(batch: Batch, of_words: Callable[[Sentence], np.ndarray], device: torch.device) -> Tensor:
    """A number per word, spread over its tokens; -1 for special tokens and padding, [batch key]."""
    table = np.full(batch.word_index.shape, -1, dtype=np.int64)
    for row, item in enumerate(batch.sentences):
        index = batch.word_index[row]
        inside = index >= 0
        table[row, inside] = of_words(item.sentence)[index[inside]]
    return torch.from_numpy(table).to(device)


def _segments_of(sentence: Sentence) -> np.ndarray:
    return np.array(sentence.segments or (-1,) * len(sentence), dtype=np.int64)


def entities_of(sentence: Sentence) -> np.ndarray:
    """Number of the shortest mention that each word belongs to, -1 where it is in none, int [word]."""
    numbers = np.full(len(sentence), -1, dtype=np.int64)
    mentions = mentions_of(sentence)
    for number in sorted(range(len(mentions)), key=lambda i: -len(mentions[i].words)):
        numbers[list(mentions[number].words)] = number
    return numbers


def _n_words(batch: Batch) -> int:
    return max(item.alignment.n_words for item in batch.sentences)


def _pieces(batch: Batch, device: torch.device) -> Pieces:
    return Pieces.of(batch.word_index, _n_words(batch), device)


def _prepare_words(batch: Batch, members: Sequence[int], cases: Cases, device: torch.device) -> dict[str, Any]:
    table = cases.of(members, _n_words(batch))
    rows = (table.place, table.sentence, table.query, table.keys, table.candidates)
    return {
        "pieces": _pieces(batch, device),
        "n_cases": table.cumulated,
        "case_rows": tuple(torch.from_numpy(part).to(device) for part in rows),
    }
