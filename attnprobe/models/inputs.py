"""From texts, sentences or raw model inputs to the tensors a model takes, with the tokens and words they are about."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnprobe.errors import InputError, explain
from attnprobe.models.load import Model
from attnprobe.records import Sentence, WordAlignment


@dataclass(frozen=True)
class Encoded:
    """One padded batch: model inputs, and what each position is."""

    inputs: Mapping[str, Any]
    tokens: tuple[tuple[str, ...], ...]
    """Tokens of each sequence as text to show, padding included; empty for inputs that are not text."""
    real: Bool[Tensor, "batch token"]
    """False at padding."""
    special: Bool[Tensor, "batch token"]
    words: tuple[tuple[str, ...], ...]
    alignments: tuple[WordAlignment, ...]
    segments: Int[Tensor, "batch token"] | None = None
    target_tokens: tuple[tuple[str, ...], ...] = ()
    """Tokens given to the decoder of an encoder-decoder model."""
    target_real: Bool[Tensor, "batch token"] | None = None
    unknown_share: float = 0.0
    """Share of the real, non-special tokens that the vocabulary does not know."""

    @property
    def batch_size(self) -> int:
        return self.real.shape[0]

    @property
    def length(self) -> int:
        return self.real.shape[1]

    def trimmed_alignment(self, index: int) -> WordAlignment:
        """Alignment of one sequence with its padding cut off."""
        alignment = self.alignments[index]
        return WordAlignment(alignment.word_index[self.real[index].cpu().numpy()], alignment.n_words)

    def forward_inputs(self, model: Model) -> dict[str, Any]:
        """The inputs, with the cache switched off where the model has one."""
        accepted = inspect.signature(model.backbone.forward).parameters
        return {**self.inputs, **({"use_cache": False} if "use_cache" in accepted else {})}


def encode(
    model: Model, text: str | Sentence | Iterable[str | Sentence], *, text_pair: str | None = None
) -> Encoded:
    """Tokenize texts or sentences to one padded batch.

    A `Sentence` is tokenized word by word; a text as the tokenizer likes it, and its words are then the tokenizer's own pre-split units. `text_pair` is
    the second segment, or the target of an encoder-decoder model. Raises `InputError` for an empty text, a text over the model's limit, or a model
    without tokenizer.
    """
    texts = [text] if isinstance(text, (str, Sentence)) else list(text)
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer: pass token ids, `capture(model, input_ids=...)`.")
    if not texts:
        raise InputError(explain("nothing to capture", expected="at least one text", got="none"))
    for item in texts:
        if not (len(item) if isinstance(item, Sentence) else item.strip()):
            raise InputError(explain("cannot capture an empty text", expected="at least one word", got=repr(str(item)[:40])))
    split = isinstance(texts[0], Sentence)
    if any(isinstance(item, Sentence) != split for item in texts):
        raise InputError("A batch holds either texts or sentences, not both.")
    pair_is_target = bool(getattr(model.config, "is_encoder_decoder", False))
    encoding = _tokenize(tokenizer, texts, None if pair_is_target else text_pair, split)
    _refuse_too_long(model, encoding["input_ids"])
    fills = {"input_ids": tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0}
    padded = {key: _padded(tokenizer, rows, fills.get(key, 0)) for key, rows in encoding.items() if isinstance(rows, list)}
    targets = _target(model, text_pair, len(texts)) if pair_is_target else {}
    return _described(model, encoding, padded, texts, targets)


def _tokenize(tokenizer: Any, texts: list[Any], pair: str | None, split: bool) -> Any:
    """Token ids of each text, not padded: padding is ours, since a tokenizer may have no padding token of its own."""
    items = [list(item.words) for item in texts] if split else texts
    options: dict[str, Any] = {"is_split_into_words": True} if split else {}
    if pair is not None:
        options["text_pair"] = [pair] * len(items)
    return tokenizer(items, padding=False, truncation=False, return_attention_mask=True, **options)


def _padded(tokenizer: Any, rows: list[list[int]], fill: int) -> Tensor:
    length = max(len(row) for row in rows)
    left = getattr(tokenizer, "padding_side", "right") == "left"
    return torch.tensor([[fill] * (length - len(row)) + row if left else row + [fill] * (length - len(row)) for row in rows])


def accepted_inputs(model: Model) -> set[str]:
    """Names of inputs the model takes; tokenizers give token types also for models that have none."""
    return set(inspect.signature(model.module.forward).parameters) | set(inspect.signature(model.backbone.forward).parameters)


def _refuse_too_long(model: Model, rows: list[list[int]]) -> None:
    length, limit = max(map(len, rows)), model.max_length
    if limit is not None and length > limit:
        raise InputError(
            explain(
                f"the text is too long for {model.name}",
                expected=f"at most {limit} tokens",
                got=f"{length}",
                remedy="Split it: a truncated text would be analysed as if it ended there",
            )
        )


def _target(model: Model, text: str | None, batch: int) -> dict[str, Tensor]:
    """What the decoder of an encoder-decoder model reads: the target text shifted right, or its start token alone."""
    start = getattr(model.config, "decoder_start_token_id", None)
    start = start if start is not None else getattr(model.config, "pad_token_id", None) or 0
    ids = [] if text is None else list(model.tokenizer(text_target=text)["input_ids"])  # type: ignore[misc]
    return {"decoder_input_ids": torch.tensor([[start, *ids]] * batch, device=model.device)}


def _described(
    model: Model, encoding: Any, padded: dict[str, Tensor], texts: list[Any], targets: dict[str, Tensor]
) -> Encoded:
    tokenizer, ids = model.tokenizer, padded["input_ids"]
    real = padded["attention_mask"].bool()
    alignments, words, special = [], [], torch.zeros_like(real)
    for row, item in enumerate(texts):
        alignment, row_words = _align_row(encoding, row, item, tokenizer)
        index = np.full(real.shape[1], -1)
        index[real[row].numpy()] = alignment.word_index
        alignments.append(WordAlignment(index, alignment.n_words))
        words.append(row_words)
        special[row] = real[row] & torch.from_numpy(index < 0)
    target = targets.get("decoder_input_ids")
    inside = real & ~special
    unknown = (ids == tokenizer.unk_token_id) & inside if tokenizer.unk_token_id is not None else torch.zeros_like(inside)
    types = padded.get("token_type_ids")
    accepted = accepted_inputs(model)
    return Encoded(
        inputs={key: value.to(model.device) for key, value in {**padded, **targets}.items() if key in accepted},
        tokens=tuple(show_tokens(tokenizer, row) for row in ids.tolist()),
        real=real,
        special=special,
        words=tuple(words),
        alignments=tuple(alignments),
        segments=types if types is not None and int(types.max()) > 0 else None,
        target_tokens=tuple(show_tokens(tokenizer, row) for row in target.tolist()) if target is not None else (),
        target_real=torch.ones_like(target, dtype=torch.bool) if target is not None else None,
        unknown_share=float(unknown.sum() / inside.sum().clamp(min=1)),
    )


def _align_row(encoding: Any, row: int, item: Any, tokenizer: Any) -> tuple[WordAlignment, tuple[str, ...]]:
    ids = encoding["input_ids"][row]
    try:
        units = encoding.word_ids(row)
        sequences = encoding.sequence_ids(row)
    except (ValueError, AttributeError):  # a slow tokenizer knows no words: every ordinary token is one
        specials = set(tokenizer.all_special_ids)
        kept = [i for i, token in enumerate(ids) if token not in specials]
        index = np.full(len(ids), -1)
        index[kept] = np.arange(len(kept))
        return WordAlignment(index, len(kept)), show_tokens(tokenizer, [ids[i] for i in kept])
    if isinstance(item, Sentence):
        return WordAlignment(np.array([-1 if unit is None else unit for unit in units]), len(item)), item.words
    # units are counted anew in each segment: number the pairs (segment, unit) in order of appearance
    order: dict[tuple[int, int], int] = {}
    index = np.full(len(units), -1)
    for i, (unit, sequence) in enumerate(zip(units, sequences, strict=True)):
        if unit is not None:
            index[i] = order.setdefault((sequence or 0, unit), len(order))
    pieces: list[list[int]] = [[] for _ in order]
    for i, word in enumerate(index):
        if word >= 0:
            pieces[word].append(ids[i])
    return WordAlignment(index, len(order)), tuple(tokenizer.decode(part).strip() for part in pieces)


def show_tokens(tokenizer: Any, ids: list[int]) -> tuple[str, ...]:
    """Tokens as text to show: the vocabulary's own spelling, byte-level pieces decoded to what they stand for where that is text."""
    shown = []
    for token, raw in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if isinstance(raw, str) and raw.startswith("##"):
            shown.append(raw)
            continue
        text = tokenizer.decode([token])
        shown.append(text if text.strip() and "\ufffd" not in text else str(raw))
    return tuple(shown)


def from_model_inputs(model: Model, inputs: Mapping[str, Any], *, describe: bool = True) -> Encoded:
    """A batch from the model's own inputs: lists become tensors, all move to the model's device.

    `describe=False` leaves tokens and words out, which costs more than a small forward pass.
    """
    if not inputs:
        raise InputError(explain("nothing to capture", expected="a text, or model inputs by name", got="neither"))
    tensors = {
        key: torch.as_tensor(value).to(model.device) if isinstance(value, (Tensor, list, tuple, np.ndarray)) else value
        for key, value in inputs.items()
    }
    ids = tensors.get("input_ids")
    if ids is None:
        main = next((value for value in tensors.values() if isinstance(value, Tensor) and value.ndim > 1), None)
        batch = 1 if main is None else main.shape[0]
        return _wordless(tensors, torch.ones(batch, 0, dtype=torch.bool), ())
    if ids.ndim != 2 or ids.numel() == 0:
        raise InputError(explain("wrong input_ids", expected="[batch token], not empty", got=str(tuple(ids.shape))))
    limit = model.max_length
    if limit is not None and ids.shape[1] > limit:
        raise InputError(explain(f"the input is too long for {model.name}", expected=f"at most {limit} tokens", got=str(ids.shape[1])))
    mask = tensors.get("attention_mask")
    if mask is None:
        _warn_unmasked_padding(model, ids)
    real = mask.bool().cpu() if mask is not None and mask.ndim == 2 else torch.ones(ids.shape, dtype=torch.bool)
    if not describe:
        return Encoded(tensors, (), real, torch.zeros_like(real), (), ())
    tokens = tuple(
        show_tokens(model.tokenizer, row) if model.tokenizer is not None else tuple(map(str, row)) for row in ids.tolist()
    )
    return _wordless(tensors, real, tokens, special_ids=() if model.tokenizer is None else model.tokenizer.all_special_ids)


def _wordless(inputs: dict[str, Any], real: Tensor, tokens: tuple[tuple[str, ...], ...], special_ids: Iterable[int] = ()) -> Encoded:
    """Inputs whose words are not known: each ordinary token counts as a word."""
    ids = inputs.get("input_ids")
    special = torch.zeros_like(real)
    if ids is not None and special_ids:
        special = torch.isin(ids.cpu(), torch.tensor(list(special_ids))) & real
    alignments, words = [], []
    for row in range(real.shape[0]):
        ordinary = (real[row] & ~special[row]).numpy()
        index = np.where(ordinary, np.cumsum(ordinary) - 1, -1)
        alignments.append(WordAlignment(index, int(ordinary.sum())))
        words.append(tuple(token for token, kept in zip(tokens[row], ordinary, strict=True) if kept) if tokens else ())
    target = inputs.get("decoder_input_ids")
    return Encoded(
        inputs=inputs,
        tokens=tokens,
        real=real,
        special=special,
        words=tuple(words),
        alignments=tuple(alignments),
        target_tokens=tuple(tuple(map(str, row)) for row in target.tolist()) if target is not None else (),
        target_real=torch.ones_like(target, dtype=torch.bool) if target is not None else None,
    )


def _warn_unmasked_padding(model: Model, ids: Tensor) -> None:
    pad = getattr(model.tokenizer, "pad_token_id", None)
    pad = pad if pad is not None else getattr(model.config, "pad_token_id", None)
    if pad is not None and ids.shape[0] > 1 and bool((ids == pad).any()):
        warnings.warn("input_ids hold padding and no attention_mask was given: padding takes part in attention.", stacklevel=4)


