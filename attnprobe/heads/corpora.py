"""Corpora made out of corpora: passages of several sentences, words with their frequency ranks, random words said twice.

A passage is a `Sentence` whose words are those of its sentences in a row. Trees stay apart: heads are moved along with their words, so a
passage has as many roots as sentences, and `spans_of` tells where each begins and ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from typing import Any

import numpy as np

from attnprobe.errors import InputError, explain
from attnprobe.records import Sentence
from attnprobe.text.align import align, encode, punctuation_of

STARTS = "passage starts"
"""Key in `Sentence.metadata` under which a passage keeps the first word of each of its sentences."""
RANK = "Rank"
"""Key in `Sentence.misc` under which a word's frequency rank stands, 1 for the commonest."""

LONGEST_PASSAGE = 512
"""Tokens of a passage for a model that would take more."""

_PER_WORD = ("lemmas", "upos", "xpos", "feats", "deprels", "misc")


@dataclass(frozen=True)
class View:
    """A corpus seen through a function: read anew at each `iter`. Other attributes (`name`, `sha256`, `drops`) are the corpus's."""

    source: Iterable[Sentence]
    function: Callable[[Iterable[Sentence]], Iterator[Sentence]]
    note: str
    """What was done, for the study."""

    def __iter__(self) -> Iterator[Sentence]:
        return self.function(self.source)

    def __getattr__(self, name: str) -> Any:
        if name == "source":  # not there yet while a copy is being built
            raise AttributeError(name)
        return getattr(self.source, name)


def passages(sentences: Iterable[Sentence], max_tokens: int, *, length: Callable[[Sentence], int] = len) -> View:
    """Consecutive sentences of each document joined up to `max_tokens` tokens, as `length` counts them (its default counts words).

    A sentence without a document, or one that is a pair of segments, stays alone, and so does one longer than `max_tokens`. Raises
    `InputError` where `max_tokens` is no positive number.

    >>> [len(p) for p in passages([Sentence(str(i), ("a", "b"), document="d") for i in range(3)], 5)]
    [4, 2]
    """
    if max_tokens < 1:
        raise InputError(explain("wrong length of passages", expected="1 token or more", got=str(max_tokens)))

    def stream(source: Iterable[Sentence]) -> Iterator[Sentence]:
        group: list[Sentence] = []
        tokens = 0
        for sentence in source:
            more = length(sentence)
            if group and (tokens + more > max_tokens or not _go_together(group[-1], sentence)):
                yield joined(group)
                group, tokens = [], 0
            group.append(sentence)
            tokens += more
        if group:
            yield joined(group)

    return View(sentences, stream, f"sentences of a document joined up to {max_tokens} tokens")


def passages_of(sentences: Iterable[Sentence], tokenizer: Any, limit: int | None) -> View:
    """Passages as long as a model takes: up to `limit` tokens, special tokens counted, or `LONGEST_PASSAGE` where it has none."""

    def length(sentence: Sentence) -> int:
        return sum(int((found.alignment.word_index >= 0).sum()) for found in encode(tokenizer, [sentence]))

    special = len(align(tokenizer, ("a",))) - length(Sentence("", ("a",)))
    return passages(sentences, min(limit or LONGEST_PASSAGE, LONGEST_PASSAGE) - special, length=length)


def notes_of(sentences: Any) -> list[str]:
    """What was made of a corpus before it was run, outermost first."""
    notes = []
    while isinstance(sentences, View):
        notes.append(sentences.note)
        sentences = sentences.source
    return notes


def _go_together(before: Sentence, after: Sentence) -> bool:
    """Same document, no segments, and the same annotation."""
    if not before.document or before.document != after.document or before.segments or after.segments:
        return False
    return all(bool(getattr(before, name)) == bool(getattr(after, name)) for name in (*_PER_WORD, "heads"))


def joined(group: Sequence[Sentence]) -> Sentence:
    """These sentences as one passage; a single one as it is. The id names the first and the last; the metadata are the first one's."""
    first = group[0]
    if len(group) == 1:
        return first
    starts = [0, *accumulate(len(sentence) for sentence in group)][:-1]
    heads = tuple(
        head + start if head else 0 for sentence, start in zip(group, starts, strict=True) for head in sentence.heads
    )
    of_words: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(sentence, name) for sentence in group)) for name in _PER_WORD
    }
    return replace(
        first,
        id=f"{first.id}..{group[-1].id}",
        words=tuple(chain.from_iterable(sentence.words for sentence in group)),
        text=" ".join(sentence.text for sentence in group if sentence.text),
        heads=heads,
        metadata={**first.metadata, STARTS: " ".join(map(str, starts))},
        **of_words,
    )


def spans_of(sentence: Sentence) -> tuple[tuple[int, int], ...]:
    """First word and one past the last of each sentence of a passage; of the whole where it is a single sentence."""
    starts = [int(start) for start in sentence.metadata.get(STARTS, "0").split()]
    return tuple(zip(starts, [*starts[1:], len(sentence)], strict=True))


def same_sentence(sentence: Sentence) -> np.ndarray | None:
    """Which words of a passage stand in one sentence, bool [word word]; None where it is a single sentence."""
    spans = spans_of(sentence)
    if len(spans) == 1:
        return None
    number = np.repeat(np.arange(len(spans)), [stop - start for start, stop in spans])
    return number[:, None] == number[None, :]


def word_counts(sentences: Iterable[Sentence]) -> Counter[str]:
    """How often each word occurs, letter case and punctuation apart."""
    counts: Counter[str] = Counter()
    for sentence in sentences:
        ordinary = ~punctuation_of(sentence)
        counts.update(word.casefold() for word, kept in zip(sentence.words, ordinary, strict=True) if kept)
    return counts


def with_ranks(sentences: Iterable[Sentence], counts: Mapping[str, int] | None = None) -> View:
    """The corpus with each word's frequency rank in MISC `Rank`: 1 for the commonest word, words of one count sharing the first rank.

    `counts` is a frequency table (word in lower case -> count), or None: the corpus is counted itself, which reads it once. A word that
    the table lacks counts as 0 and ranks behind all others; punctuation gets no rank.
    """
    table = word_counts(sentences) if counts is None else counts
    values = np.sort(np.array([count for count in table.values() if count > 0], dtype=np.int64))[::-1]
    rank_of = {int(count): int(np.searchsorted(-values, -count)) + 1 for count in np.unique(values)}
    rank_of[0] = len(values) + 1
    source = f"counted in the corpus itself, {len(table)} words" if counts is None else f"as given, {len(table)} words"
    return View(
        sentences, lambda found: (_ranked(sentence, table, rank_of) for sentence in found), f"word frequencies {source}"
    )


def _ranked(sentence: Sentence, table: Mapping[str, int], rank_of: Mapping[int, int]) -> Sentence:
    ordinary = ~punctuation_of(sentence)
    misc = sentence.misc or ({},) * len(sentence)
    ranked = (
        {**own, RANK: str(rank_of[max(table.get(word.casefold(), 0), 0)])} if kept else own
        for own, word, kept in zip(misc, sentence.words, ordinary, strict=True)
    )
    return replace(sentence, misc=tuple(ranked))


def random_repeats(
    words: Sequence[str], *, length: int = 25, sentences: int = 100, times: int = 2, seed: int = 0
) -> list[Sentence]:
    """Sentences of random words without order or meaning, each said `times` times over: what only induction and copying can predict.

    Each draws `length` different words of `words`. Each is a document of its own. Raises `InputError` where there are too few words.
    Source: Olsson et al. 2022 (repeated random tokens).

    >>> random_repeats(["a", "b", "c"], length=2, sentences=1)[0].words
    ('c', 'b', 'c', 'b')
    """
    choices = sorted(set(words))
    if len(choices) < length or length < 2 or times < 2:
        got = f"{len(choices)} different words, length {length}, {times} times"
        raise InputError(
            explain("cannot draw random words", expected=f"at least {max(length, 2)} words, twice", got=got)
        )
    generator = np.random.default_rng(seed)
    made = []
    for number in range(sentences):
        drawn = [choices[i] for i in generator.choice(len(choices), length, replace=False)]
        made.append(Sentence(f"random-{number}", tuple(drawn * times), document=f"random-{number}"))
    return made
