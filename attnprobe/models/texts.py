"""From texts and sentences to one padded batch: tokens, words, and which token belongs to which word."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnprobe.errors import InputError, explain
from attnprobe.models.inputs import Encoded, accepted_inputs, refuse_too_long, refuse_unknown_ids, show_tokens
from attnprobe.models.model import Model
from attnprobe.records import Sentence, WordAlignment
from attnprobe.text.align import align

Text = str | Sentence


@dataclass(frozen=True)
class _Row:
    """One text as tokens."""

    ids: list[int]
    types: list[int]
    word_index: np.ndarray
    """Word of each token, -1 for special tokens."""
    words: tuple[str, ...]


def encode(model: Model, text: Text | Iterable[Text], *, text_pair: str | None = None) -> Encoded:
    """Tokenize texts or sentences to one padded batch.

    A `Sentence` is tokenized word by word, by `text.align`; a text as the tokenizer likes it, and its words are then the
    tokenizer's own pre-split units. `text_pair` is the second segment, or the target of an encoder-decoder model. Padding
    goes to the side the tokenizer names, and positions are counted from the first token that is not padding.

    Raises `InputError` for an empty text, a text over the model's limit, or a model without tokenizer.
    """
    texts, tokenizer = _texts(text), model.tokenizer
    if tokenizer is None:
        remedy = "Pass token ids: `capture(model, input_ids=...)`"
        raise InputError(explain(f"{model.name} has no tokenizer", got=model.no_tokenizer or None, remedy=remedy))
    start = model.decoder_start
    pair = text_pair if start is None else None
    if pair is not None and any(isinstance(item, Sentence) for item in texts):
        remedy = "Give a `Sentence` with `segments`"
        raise InputError(explain("`text_pair` goes with texts, not with sentences", remedy=remedy))
    rows = [
        _row_of_sentence(model, item) if isinstance(item, Sentence) else _row_of_text(model, item, pair)
        for item in texts
    ]
    target = None if start is None else _target(model, start, text_pair, len(rows))
    return _batch(model, rows, target)


def _texts(text: Any) -> list[Text]:
    texts = [text] if isinstance(text, (str, Sentence)) or not isinstance(text, Iterable) else list(text)
    if not texts:
        raise InputError(explain("nothing to capture", expected="at least one text", got="none"))
    for item in texts:
        if not isinstance(item, (str, Sentence)):
            raise InputError(explain("cannot capture this", expected="a text or a Sentence", got=type(item).__name__))
        if not (len(item) if isinstance(item, Sentence) else item.strip()):
            got = repr(item if isinstance(item, str) else item.id)
            raise InputError(explain("cannot capture an empty text", expected="at least one word", got=got))
    return texts


def _row_of_sentence(model: Model, sentence: Sentence) -> _Row:
    aligned = align(model.tokenizer, sentence, max_length=model.max_length)
    ids, types = aligned.input_ids.tolist(), aligned.token_types.tolist()
    return _Row(ids, types, aligned.alignment.word_index, sentence.words)


def _row_of_text(model: Model, text: str, pair: str | None) -> _Row:
    tokenizer = model.tokenizer
    encoding = tokenizer(text, pair, truncation=False, padding=False, verbose=False)  # type: ignore[misc]
    ids = list(encoding["input_ids"])
    refuse_too_long(model, len(ids), "text")
    index = _units(encoding, ids, tokenizer)
    if not (index >= 0).any():
        raise InputError(explain("no word of the text has a token", expected="at least one", got=repr(text[:40])))
    pieces: list[list[int]] = [[] for _ in range(int(index.max()) + 1)]
    for token, word in zip(ids, index, strict=True):
        if word >= 0:
            pieces[word].append(token)
    words = tuple(tokenizer.decode(part).strip() for part in pieces)  # type: ignore[union-attr]
    return _Row(ids, list(encoding.get("token_type_ids", [0] * len(ids))), index, words)


def _units(encoding: Any, ids: list[int], tokenizer: Any) -> np.ndarray:
    """Number of each token's unit, as the tokenizer split the text; -1 for special tokens."""
    if not getattr(tokenizer, "is_fast", False):  # a tokenizer written in Python knows no units: every token is one
        ordinary = ~np.isin(ids, tokenizer.all_special_ids)
        return np.where(ordinary, np.cumsum(ordinary) - 1, -1)
    # units are counted anew in each segment: number the pairs (segment, unit) in order of appearance
    order: dict[tuple[int, int], int] = {}
    index = np.full(len(ids), -1)
    for i, (unit, sequence) in enumerate(zip(encoding.word_ids(), encoding.sequence_ids(), strict=True)):
        if unit is not None:
            index[i] = order.setdefault((sequence or 0, unit), len(order))
    return index


def _target(model: Model, start: int, text: str | None, batch: int) -> Tensor:
    """What the decoder of an encoder-decoder model reads: its start token, and the target text where there is one."""
    ids = [] if text is None else list(model.tokenizer(text_target=text)["input_ids"])  # type: ignore[misc]
    refuse_too_long(model, 1 + len(ids), "target text")
    return torch.tensor([[start, *ids]] * batch)


def _batch(model: Model, rows: Sequence[_Row], target: Tensor | None) -> Encoded:
    tokenizer = model.tokenizer
    left = getattr(tokenizer, "padding_side", "right") == "left"
    fill = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0  # type: ignore[union-attr]
    ids, types = _padded([row.ids for row in rows], fill, left), _padded([row.types for row in rows], 0, left)
    refuse_unknown_ids(model, ids, f"the tokenizer is not the one of {model.name}")
    words = _padded([row.word_index.tolist() for row in rows], -1, left)
    real = _padded([[1] * len(row.ids) for row in rows], 0, left).bool()
    given = {"input_ids": ids, "attention_mask": real.long()}
    if "token_type_ids" in tokenizer.model_input_names:  # type: ignore[union-attr]
        given["token_type_ids"] = types
    if left and not real.all() and model.first_position == 0:
        given["position_ids"] = (real.cumsum(-1) - 1).clamp(min=0)
    if target is not None:
        given["decoder_input_ids"] = target
    accepted = accepted_inputs(model)
    inside, unknown = words >= 0, getattr(tokenizer, "unk_token_id", None)
    return Encoded(
        inputs={key: value.to(model.device) for key, value in given.items() if key in accepted},
        tokens=tuple(show_tokens(tokenizer, row) for row in ids.tolist()),
        real=real,
        special=real & ~inside,
        words=tuple(row.words for row in rows),
        alignments=tuple(WordAlignment(index, len(row.words)) for index, row in zip(words.numpy(), rows, strict=True)),
        segments=types if int(types.max()) > 0 else None,
        target_tokens=() if target is None else tuple(show_tokens(tokenizer, row) for row in target.tolist()),
        target_real=None if target is None else torch.ones_like(target, dtype=torch.bool),
        unknown_share=0.0 if unknown is None else float((ids == unknown)[inside].float().mean()),
    )


def _padded(rows: list[list[int]], fill: int, left: bool) -> Tensor:
    """Padding is ours: a tokenizer may have no padding token, or files that pad and truncate."""
    length = max(map(len, rows))
    gaps = [[fill] * (length - len(row)) for row in rows]
    return torch.tensor([gap + row if left else row + gap for gap, row in zip(gaps, rows, strict=True)])
