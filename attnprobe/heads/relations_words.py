"""Relations between words of any text: repeats, what followed them, forms of one lemma, the rarest word.

Words are compared without letter case; punctuation neither asks nor answers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from attnprobe.heads.corpora import RANK
from attnprobe.records import Relation, Sentence
from attnprobe.registry import relation
from attnprobe.text.align import punctuation_of

COMMON = 500
"""A sentence's rarest word counts as rare when its frequency rank is beyond this (Voita et al. 2019)."""


@relation(kind="position", source="Wang et al. 2023 (duplicate token heads)")
def duplicate(sentence: Sentence) -> Iterator[Relation]:
    """A repeated word (query) and the same word earlier (key). Candidates: all earlier words."""
    same = _same(_folded(sentence))
    query, key = np.nonzero(np.tril(same, -1))
    yield from _relation("duplicate", query, key, _earlier(len(sentence)))


@relation(kind="position", source="Olsson et al. 2022 (induction heads)")
def induction(sentence: Sentence) -> Iterator[Relation]:
    """A repeated word (query) and the word that followed its earlier occurrence (key). Candidates: all earlier words."""
    same = _same(_folded(sentence))
    query, before = np.nonzero(np.tril(same, -2))
    yield from _relation("induction", query, before + 1, _earlier(len(sentence)))


@relation(kind="semantics", source="string identity, letter case apart")
def repeated(sentence: Sentence) -> Iterator[Relation]:
    """A word and the same word elsewhere in the sentence, before or after it. Candidates: all other words."""
    query, key = np.nonzero(_same(_folded(sentence)))
    yield from _relation("repeated", query, key)


@relation(kind="semantics", source="lemmas of the treebank")
def same_lemma(sentence: Sentence) -> Iterator[Relation]:
    """A word and another form of its lemma elsewhere in the sentence (saw, seen). Candidates: all other words."""
    if not sentence.lemmas:
        return
    forms = _folded(sentence)
    lemmas = ["" if not form else lemma.casefold() for lemma, form in zip(sentence.lemmas, forms, strict=True)]
    query, key = np.nonzero(_same(lemmas) & ~_same(forms))
    yield from _relation("same_lemma", query, key)


@relation(kind="semantics", source="Voita et al. 2019, section 5.3", labels=("rarest", "two-rarest"))
def rare(sentence: Sentence) -> Iterator[Relation]:
    """Every word and the sentence's rarest (`rare:rarest`), or one of its two rarest (`rare:two-rarest`). Candidates: all other words.

    Rarity is the frequency rank that `with_ranks` writes into MISC; `run` counts the corpus itself where ranks are missing. Only
    sentences whose rarest word ranks beyond 500. Words that tie for rarest are all right answers.
    """
    ranks = np.array([int(own.get(RANK, 0)) for own in sentence.misc], dtype=np.int64)
    asking = np.flatnonzero(ranks)
    if len(asking) < 2 or ranks.max() <= COMMON:
        return
    second = np.sort(ranks)[-2]
    for label, least in (("rarest", ranks.max()), ("two-rarest", second)):
        keys = np.flatnonzero(ranks >= least)
        query, key = (found.ravel() for found in np.meshgrid(asking, keys, indexing="ij"))
        other = query != key
        yield from _relation(f"rare:{label}", query[other], key[other])


def _folded(sentence: Sentence) -> list[str]:
    """Words without letter case; punctuation is empty."""
    return [
        "" if mark else word.casefold() for word, mark in zip(sentence.words, punctuation_of(sentence), strict=True)
    ]


def _same(texts: list[str]) -> np.ndarray:
    """Which pairs of different places hold the same text, bool [word word]; empty texts equal nothing."""
    array = np.array(texts, dtype=object)
    same = (array[:, None] == array[None, :]) & (array != "")[:, None]
    np.fill_diagonal(same, False)
    return same


def _earlier(n: int) -> np.ndarray:
    return np.tri(n, k=-1, dtype=bool)


def _relation(
    name: str, query: np.ndarray, key: np.ndarray, candidates: np.ndarray | None = None
) -> Iterator[Relation]:
    if len(query):
        yield Relation(name, query, key, candidates)
