"""From words to the tokens a model reads, and back: which word each token belongs to.

Words are handed to the tokenizer already split, never cut at a limit, and each token's word is what the tokenizer says it is
(`word_ids`), not guessed from `##` or from offsets. Tokenizers come in as objects with the call of a transformers tokenizer;
nothing here imports transformers or torch.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

import numpy as np

from attnprobe.errors import InputError, explain
from attnprobe.records import Sentence, WordAlignment
from attnprobe.text.drops import OnDrop

WORD, PUNCT, CLS, SEP, SPECIAL, PAD = range(6)
"""What a token is; the values of `attention.call.Role`, which a torch-free module cannot import."""

NO_WORDS, NO_PIECES, TOO_LONG = "no words", "no word has a piece", "too long"
"""Reasons for which `encode` leaves a sentence out."""

_PROBE = ("the", "cat", "sat")
_CHUNK = 256


@dataclass(frozen=True)
class Encoded:
    """One sentence as the model reads it."""

    sentence: Sentence
    input_ids: np.ndarray
    """Token ids, special tokens included, int64 [token]."""
    token_types: np.ndarray
    """Segment of each token (0 or 1) as the tokenizer numbers it, int64 [token]; zeros where it does not."""
    alignment: WordAlignment
    roles: np.ndarray
    """What each token is (`WORD`, `PUNCT`, `CLS`, `SEP`, `SPECIAL`), int8 [token]."""
    n_unknown: int
    """Tokens of words that stand for "not in the vocabulary"."""

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def unknown_share(self) -> float:
        """Unknown tokens over all tokens of words; NaN where there are none."""
        n = int((self.alignment.word_index >= 0).sum())
        return self.n_unknown / n if n else float("nan")


def align(
    tokenizer: Any,
    words: Sequence[str] | Sentence,
    *,
    max_length: int | None = None,
) -> Encoded:
    """Tokens of one sentence, its words given, with the word of each token.

    `max_length` is the most tokens the model reads (None: no limit); nothing is ever cut to fit. Raises `InputError` for a
    sentence without words, without a single piece, or too long: whatever makes `encode` leave a sentence out.
    """
    sentence = words if isinstance(words, Sentence) else Sentence(id="", words=_checked(words))
    [encoded] = _encode_chunk(tokenizer, [sentence], _joins_words(tokenizer))
    reason = _reason(encoded, max_length)
    if reason is not None:
        got = f"{len(encoded)} tokens, {len(sentence)} words"
        expected = None if max_length is None else f"at least one piece and at most {max_length} tokens"
        what = f"cannot use the sentence {' '.join(sentence.words)[:60]!r}: {reason}"
        raise InputError(
            explain(what, expected=expected, got=got, remedy="Shorten or split it" if len(sentence) else None)
        )
    return encoded


def encode(
    tokenizer: Any,
    sentences: Iterable[Sentence],
    *,
    max_length: int | None = None,
    on_drop: OnDrop | None = None,
) -> Iterator[Encoded]:
    """Tokens of each sentence in turn, streamed; sentences that cannot be used are left out and told to `on_drop(reason, id)`.

    Left out are sentences without words, without a single piece, and those of more than `max_length` tokens, specials counted:
    a cut sentence would have a cut tree.
    """
    joins = _joins_words(tokenizer)
    source = iter(sentences)
    while chunk := list(islice(source, _CHUNK)):
        for encoded in _encode_chunk(tokenizer, chunk, joins):
            reason = _reason(encoded, max_length)
            if reason is None:
                yield encoded
            elif on_drop is not None:
                on_drop(reason, encoded.sentence.id)


def _checked(words: Sequence[str]) -> tuple[str, ...]:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        got = "one string" if isinstance(words, str) else f"{type(words).__name__} with other things in it"
        raise InputError(
            explain("cannot align", expected="a list of words", got=got, remedy="Split the text with `split_words`")
        )
    return tuple(words)


def _reason(encoded: Encoded, max_length: int | None) -> str | None:
    if not encoded.sentence.words:
        return NO_WORDS
    if not (encoded.alignment.word_index >= 0).any():
        return NO_PIECES
    return TOO_LONG if max_length is not None and len(encoded) > max_length else None


def _joins_words(tokenizer: Any) -> bool:
    """Whether words must be given a space in front to be read as in running text.

    Byte-level and SentencePiece tokenizers made without a prefix space read pre-split words as if they were glued together
    ("thecatsat"), silently since transformers 5: found by comparing three words given both ways.
    """
    running = _plain_ids(tokenizer, " ".join(_PROBE))
    if _word_ids_of(tokenizer, _PROBE, spaced=False) == running:
        return False
    return _word_ids_of(tokenizer, _PROBE, spaced=True) == running


def _plain_ids(tokenizer: Any, text: str) -> list[int]:
    if not getattr(tokenizer, "is_fast", False):
        return list(tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text)))
    return list(tokenizer(text, add_special_tokens=False, truncation=False, padding=False, verbose=False)["input_ids"])


def _word_ids_of(tokenizer: Any, words: Sequence[str], *, spaced: bool) -> list[int]:
    given = _spaced(words) if spaced else list(words)
    if not getattr(tokenizer, "is_fast", False):
        return [piece for word in given for piece in _plain_ids(tokenizer, word)]
    return list(_call(tokenizer, [given], add_special_tokens=False)["input_ids"][0])


def _spaced(words: Sequence[str]) -> list[str]:
    return [word if place == 0 else f" {word}" for place, word in enumerate(words)]


def _call(tokenizer: Any, words: Any, **options: Any) -> Any:
    """The tokenizer's call for pre-split words; truncation and padding are refused, since files of tokenizers may carry both."""
    return tokenizer(words, is_split_into_words=True, truncation=False, padding=False, verbose=False, **options)


def _encode_chunk(tokenizer: Any, sentences: Sequence[Sentence], joins: bool) -> Iterator[Encoded]:
    if not getattr(tokenizer, "is_fast", False):
        for sentence in sentences:
            yield _encode_slow(tokenizer, sentence, joins)
        return
    singles = [sentence for sentence in sentences if sentence.words and not any(sentence.segments)]
    together = _call(tokenizer, [_given(sentence.words, joins) for sentence in singles]) if singles else None
    row = 0
    for sentence in sentences:
        if not sentence.words:
            yield _finish(tokenizer, sentence, [], [], [])
        elif any(sentence.segments):
            yield _encode_pair(tokenizer, sentence, joins)
        else:
            assert together is not None
            types = together["token_type_ids"][row] if "token_type_ids" in together else []
            yield _finish(tokenizer, sentence, together["input_ids"][row], types, together.word_ids(row))
            row += 1


def _given(words: Sequence[str], joins: bool) -> list[str]:
    return _spaced(words) if joins else list(words)


def _encode_pair(tokenizer: Any, sentence: Sentence, joins: bool) -> Encoded:
    """A sentence pair: words of segment 0, then those of segment 1."""
    first = sum(segment == 0 for segment in sentence.segments)
    if len(sentence.segments) != len(sentence) or sentence.segments != (0,) * first + (1,) * (len(sentence) - first):
        expected = "a segment of 0 or 1 for each word, all zeros first"
        raise InputError(
            explain("cannot read the sentence pair", where=sentence.id, expected=expected, got=str(sentence.segments))
        )
    halves = [_given(half, joins) for half in (sentence.words[:first], sentence.words[first:])]
    out = _call(tokenizer, [halves[0]], text_pair=[halves[1]])
    words = [
        word if word is None or which == 0 else word + first
        for word, which in zip(out.word_ids(0), out.sequence_ids(0), strict=True)
    ]
    return _finish(
        tokenizer, sentence, out["input_ids"][0], out["token_type_ids"][0] if "token_type_ids" in out else [], words
    )


def _encode_slow(tokenizer: Any, sentence: Sentence, joins: bool) -> Encoded:
    """Tokenizers without `word_ids`, written in Python: word by word, special tokens put around afterwards."""
    if any(sentence.segments):
        remedy = "Use the fast tokenizer of this model"
        raise InputError(explain("a tokenizer written in Python cannot encode sentence pairs here", remedy=remedy))
    pieces = [
        (piece, i) for i, word in enumerate(_given(sentence.words, joins)) for piece in _plain_ids(tokenizer, word)
    ]
    inside = [piece for piece, _ in pieces]
    ids = list(tokenizer.build_inputs_with_special_tokens(inside))
    mask = list(tokenizer.get_special_tokens_mask(inside))
    if len(mask) != len(ids) or [piece for piece, special in zip(ids, mask, strict=True) if not special] != inside:
        got = f"{len(ids)} tokens from {len(inside)} pieces, {sum(mask)} of them special"
        remedy = "Use the fast tokenizer of this model"
        raise InputError(explain("cannot tell special tokens from words", where=sentence.id, got=got, remedy=remedy))
    words = iter([word for _, word in pieces])
    return _finish(tokenizer, sentence, ids, [], [None if special else next(words) for special in mask])


def _finish(
    tokenizer: Any, sentence: Sentence, ids: Sequence[int], types: Sequence[int], words: Sequence[int | None]
) -> Encoded:
    word_index = np.array([-1 if word is None else word for word in words], dtype=np.int64)
    input_ids = np.array(ids, dtype=np.int64)
    inside = word_index >= 0
    unknown = getattr(tokenizer, "unk_token_id", None)
    return Encoded(
        sentence=sentence,
        input_ids=input_ids,
        token_types=np.array(types, dtype=np.int64) if len(types) else np.zeros_like(input_ids),
        alignment=WordAlignment(word_index, len(sentence)),
        roles=roles_of(tokenizer, input_ids, word_index, punctuation_of(sentence)),
        n_unknown=0 if unknown is None else int((inside & (input_ids == unknown)).sum()),
    )


def roles_of(tokenizer: Any, input_ids: np.ndarray, word_index: np.ndarray, punctuation: np.ndarray) -> np.ndarray:
    """What each token is, int8 [token]. A literal "[SEP]" in a text belongs to a word, and so is a word."""
    roles = np.full(len(input_ids), SPECIAL, dtype=np.int8)
    separators = [getattr(tokenizer, "sep_token_id", None), getattr(tokenizer, "cls_token_id", None)]
    for role, token in zip((SEP, CLS), separators, strict=True):
        if token is not None:
            roles[input_ids == token] = role
    inside = word_index >= 0
    roles[inside] = np.where(punctuation[word_index[inside]], PUNCT, WORD)
    return roles


def punctuation_of(sentence: Sentence) -> np.ndarray:
    """Which words are punctuation, bool [word]: made of punctuation and symbol characters only, or tagged PUNCT."""
    tags = sentence.upos or ("",) * len(sentence)
    return np.array(
        [tag == "PUNCT" or is_punctuation(word) for word, tag in zip(sentence.words, tags, strict=True)], dtype=bool
    )


@lru_cache(maxsize=65_536)
def is_punctuation(word: str) -> bool:
    """Whether every character of a word is punctuation or a symbol (Unicode categories P and S).

    >>> is_punctuation("--"), is_punctuation("U.S.")
    (True, False)
    """
    return bool(word) and all(unicodedata.category(character)[0] in "PS" for character in word)
