"""One padded batch: the tensors a model takes, with the tokens and words they are about; here from the model's own inputs.

Texts and sentences are encoded in `texts.py`.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnprobe.errors import InputError, explain, near_names
from attnprobe.models.model import Model
from attnprobe.records import WordAlignment


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
    target_real: Bool[Tensor, "batch target_token"] | None = None
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
        return WordAlignment(alignment.word_index[self.real[index].numpy()], alignment.n_words)


def refuse_too_long(model: Model, length: int, what: str) -> None:
    """Raise for a sequence of more tokens than the model reads."""
    limit = model.max_length
    if limit is not None and length > limit:
        raise InputError(
            explain(
                f"the {what} is too long for {model.name}",
                expected=f"at most {limit} tokens",
                got=f"{length}",
                remedy="Split it: a truncated text would be analysed as if it ended there",
            )
        )


def refuse_unknown_ids(model: Model, ids: Tensor, what: str) -> None:
    """Raise for token ids that the model has no vector for, before a device does it without a word of why."""
    size = getattr(model.text_config, "vocab_size", None)
    if isinstance(size, int) and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        got = f"{int(ids.min())} to {int(ids.max())}"
        raise InputError(explain(what, expected=f"token ids from 0 to {size - 1}", got=got))


def show_tokens(tokenizer: Any, ids: list[int]) -> tuple[str, ...]:
    """Tokens as text to show: a WordPiece as the vocabulary spells it, others decoded where that gives text."""
    shown = []
    for token, raw in zip(ids, tokenizer.convert_ids_to_tokens(ids), strict=True):
        if isinstance(raw, str) and raw.startswith("##"):
            shown.append(raw)
            continue
        text = tokenizer.decode([token])
        shown.append(text if text.strip() and "\ufffd" not in text else str(raw))
    return tuple(shown)


def accepted_inputs(model: Model) -> set[str]:
    """Names of inputs the model's forward takes; tokenizers give token types also for models that have none."""
    return {p.name for p in model.forward_parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def _passed_on(model: Model) -> set[str]:
    """Names that the model's forward hands on without naming them itself."""
    from transformers.utils import TransformersKwargs

    passes_on = any(p.kind == p.VAR_KEYWORD for p in model.forward_parameters)
    return set(TransformersKwargs.__annotations__) if passes_on else set()


def forward_inputs(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a pass whose cache nobody reads: switched off where the model has one, which may change the last bits.

    (Keys from a cache lie in memory in another order, for which torch may choose another kernel.)
    """
    return {**inputs, **({"use_cache": False} if "use_cache" in accepted_inputs(model) else {})}


def from_model_inputs(model: Model, inputs: Mapping[str, Any], *, describe: bool = True) -> Encoded:
    """A batch from the model's own inputs: lists become tensors, all move to the model's device.

    `describe=False` leaves tokens and words out, which costs more than a small forward pass. Raises `InputError` for names
    the model does not take, and for token ids that do not fit it.
    """
    tensors = _tensors(model, inputs)
    ids, target = tensors.get("input_ids"), tensors.get("decoder_input_ids")
    if ids is None:
        main = next((value for value in tensors.values() if isinstance(value, Tensor) and value.ndim > 1), None)
        real = torch.ones(1 if main is None else main.shape[0], 0, dtype=torch.bool)
    else:
        real = _real(model, ids, tensors.get("attention_mask"))
    target_real = None
    if target is not None:
        target_real = _real(model, target, tensors.get("decoder_attention_mask"), "decoder_input_ids")
    special = torch.zeros_like(real)
    if not describe:
        return Encoded(tensors, (), real, special, (), (), target_real=target_real)
    if ids is not None and model.tokenizer is not None:
        special = torch.isin(ids.cpu(), torch.tensor(model.tokenizer.all_special_ids)) & real
    tokens = _shown(model, ids)
    alignments, words = _tokens_as_words(tokens, real, special)
    return Encoded(
        tensors, tokens, real, special, words, alignments, target_tokens=_shown(model, target), target_real=target_real
    )


def _tensors(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    if not inputs:
        raise InputError(explain("nothing to capture", expected="a text, or model inputs by name", got="neither"))
    named = accepted_inputs(model)  # none where a wrapper takes whatever it is given
    known = named | _passed_on(model)
    tensors: dict[str, Any] = {}
    for name, value in inputs.items():
        if named and name not in known:
            raise InputError(f"{model.name} takes no input {name!r}; {near_names(name, known)}.")
        if isinstance(value, (Tensor, list, tuple, np.ndarray)):
            try:
                value = torch.as_tensor(value).to(model.device)
            except (ValueError, TypeError) as error:
                expected = "numbers, rows of equal length"
                raise InputError(
                    explain(f"cannot make a tensor of {name}", expected=expected, got=str(error))
                ) from error
        tensors[name] = value
    return tensors


def _real(model: Model, ids: Tensor, mask: Tensor | None, name: str = "input_ids") -> Tensor:
    """Which tokens are no padding, after checks of the ids."""
    if ids.ndim not in (2, 3 if _reads_codes(model) else 2) or ids.numel() == 0:
        raise InputError(explain(f"wrong {name}", expected="[batch token], not empty", got=str(tuple(ids.shape))))
    if ids.ndim == 3:  # out of code books of their own: their sizes are not the vocabulary's
        ids = ids[..., 0]
    else:
        refuse_unknown_ids(model, ids, f"wrong {name}")
    refuse_too_long(model, ids.shape[1], "input")
    if mask is None:
        if name == "input_ids":
            _warn_unmasked_padding(model, ids)
        return torch.ones(ids.shape, dtype=torch.bool)
    if mask.ndim != 2:  # a mask of the user's own per query: it says nothing about padding
        return torch.ones(ids.shape, dtype=torch.bool)
    if _reads_codes(model) and mask.shape[1] == ids.shape[1] and ids.shape[0] % mask.shape[0] == 0:
        return mask.bool().cpu()  # the codes of a position in rows below each other (MusicGen)
    if mask.shape != ids.shape:
        raise InputError(explain("wrong mask", expected=f"{tuple(ids.shape)} as {name}", got=str(tuple(mask.shape))))
    return mask.bool().cpu()


def _reads_codes(model: Model) -> bool:
    """Whether the model may take several codes a position, as models of sound do."""
    parts = [model.config, *(getattr(model.config, name, None) for name in getattr(model.config, "sub_configs", ()))]
    return any(hasattr(part, key) for part in parts for key in ("num_codebooks", "num_channels", "codebook_size"))


def _warn_unmasked_padding(model: Model, ids: Tensor) -> None:
    pad = getattr(model.tokenizer, "pad_token_id", None)
    pad = pad if pad is not None else getattr(model.text_config, "pad_token_id", None)
    meant = {getattr(model.text_config, f"{name}_token_id", None) for name in ("bos", "eos", "sep", "cls")}
    if pad is not None and pad not in meant and bool((ids[:, [0, -1]] == pad).any()):
        warnings.warn(
            "input_ids hold padding and no attention_mask was given: padding takes part in attention.", stacklevel=5
        )


def _shown(model: Model, ids: Tensor | None) -> tuple[tuple[str, ...], ...]:
    """Tokens to show; their numbers where there is no tokenizer."""
    if ids is None:
        return ()
    return tuple(
        tuple(map(str, row)) if model.tokenizer is None else show_tokens(model.tokenizer, row) for row in ids.tolist()
    )


def _tokens_as_words(
    tokens: tuple[tuple[str, ...], ...], real: Tensor, special: Tensor
) -> tuple[tuple[WordAlignment, ...], tuple[tuple[str, ...], ...]]:
    """Words of inputs whose words are not known: each ordinary token counts as one."""
    alignments, words = [], []
    for row, ordinary in enumerate((real & ~special).numpy()):
        alignments.append(WordAlignment(np.where(ordinary, np.cumsum(ordinary) - 1, -1), int(ordinary.sum())))
        words.append(tuple(token for token, kept in zip(tokens[row], ordinary, strict=True) if kept) if tokens else ())
    return tuple(alignments), tuple(words)
