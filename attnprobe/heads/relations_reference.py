"""Relations of meaning that a corpus annotates: a mention and its antecedent, an argument and its predicate."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from attnprobe.errors import InputError, explain
from attnprobe.heads.corpora import spans_of
from attnprobe.records import Relation, Sentence
from attnprobe.registry import relation
from attnprobe.text.entities import Mention, mentions_of

KINDS_OF_MENTION = ("pronoun", "proper", "nominal")
RIVALS = ("nearest", "same-word")
"""Baselines of a relation besides fixed offsets: the nearest mention before, the nearest one with the same head word."""

_ROLE = re.compile(r"ARG\d")
_COREFERENCE = "Clark et al. 2019, section 4.3"


@relation(kind="semantics", source=_COREFERENCE, labels=("antecedent", *KINDS_OF_MENTION))
def coref(sentence: Sentence) -> Iterator[Relation]:
    """Head word of a mention (query) and head words of its entity's earlier mentions (key). Candidates: heads of earlier mentions.

    Out of `Entity=` in MISC. `coref:pronoun`, `coref:proper` and `coref:nominal` split `coref:antecedent` by the mention's head word.
    """
    return _antecedents("coref", sentence, among_mentions=True)


@relation(kind="semantics", source=_COREFERENCE, labels=("antecedent", *KINDS_OF_MENTION))
def coref_words(sentence: Sentence) -> Iterator[Relation]:
    """As `coref`, with every earlier word a candidate."""
    return _antecedents("coref_words", sentence, among_mentions=False)


@relation(kind="semantics", source="PropBank roles in MISC (ARG0=head)", labels=("ALL", "ARG0", "ARG1", "ARG2"))
def args(sentence: Sentence) -> Iterator[Relation]:
    """Head word of an argument (query) and its predicate (key), out of MISC `ARG0=8` on the predicate. Candidates: all other words.

    The number counts from 1 in the sentence; several are divided by commas. `args:ALL` joins the roles. Raises `InputError` for a
    number outside the sentence.
    """
    pairs: dict[str, list[tuple[int, int]]] = {}
    for start, stop in spans_of(sentence):
        for predicate in range(start, stop) if sentence.misc else ():
            for role, value in sentence.misc[predicate].items():
                if _ROLE.fullmatch(role):
                    found = _arguments(sentence, predicate, role, value, stop - start)
                    pairs.setdefault(role, []).extend((start + place, predicate) for place in found)
    if pairs:
        pairs["ALL"] = list(dict.fromkeys(pair for found in pairs.values() for pair in found))
    for role, of_role in pairs.items():
        query, key = np.array(sorted(of_role), dtype=np.int64).T
        other = query != key
        if other.any():
            yield Relation(f"args:{role}", query[other], key[other])


def _arguments(sentence: Sentence, predicate: int, role: str, value: str, n: int) -> list[int]:
    places = value.split(",")
    if not all(place.isdecimal() and 1 <= int(place) <= n for place in places):
        where = f"sentence {sentence.id!r}, word {predicate + 1}"
        got = f"{role}={value}"
        raise InputError(explain("cannot read an argument", where=where, expected=f"numbers 1 to {n}", got=got))
    return [int(place) - 1 for place in places]


def _antecedents(family: str, sentence: Sentence, *, among_mentions: bool) -> Iterator[Relation]:
    mentions = mentions_of(sentence)
    pairs = _pairs(mentions)
    if not len(pairs):
        return
    n = len(sentence)
    candidates = np.tri(n, k=-1, dtype=bool)
    if among_mentions:
        candidates[:, ~_is_head(mentions, n)] = False
    yield Relation(f"{family}:antecedent", pairs[:, 0], pairs[:, 1], candidates)
    if not sentence.upos:
        return
    kinds = np.array([kind_of(sentence, query) for query in pairs[:, 0]])
    for kind in KINDS_OF_MENTION:
        own = pairs[kinds == kind]
        if len(own):
            yield Relation(f"{family}:{kind}", own[:, 0], own[:, 1], candidates)


def _pairs(mentions: tuple[Mention, ...]) -> np.ndarray:
    """Head words of each mention and of every mention of the same entity whose head stands before it, [pair 2], in order."""
    heads: dict[str, set[int]] = {}
    for mention in mentions:
        heads.setdefault(mention.cluster, set()).add(mention.head)
    found = {(query, key) for entity in heads.values() for query in entity for key in entity if key < query}
    return np.array(sorted(found), dtype=np.int64)


def _is_head(mentions: tuple[Mention, ...], n: int) -> np.ndarray:
    marked = np.zeros(n, dtype=bool)
    marked[[mention.head for mention in mentions]] = True
    return marked


def kind_of(sentence: Sentence, head: int) -> str:
    """pronoun, proper or nominal, by the part of speech of a mention's head word (a possessive determiner counts as a pronoun)."""
    tag = sentence.upos[head]
    personal = bool(sentence.feats) and sentence.feats[head].get("PronType") == "Prs"
    if tag == "PRON" or (tag == "DET" and personal):
        return "pronoun"
    return "proper" if tag == "PROPN" else "nominal"


def mention_rivals(sentence: Sentence, relation: Relation) -> dict[int, tuple[int, int]]:
    """What the baselines of `RIVALS` choose for each query of a coreference relation: a word, or -1 for none.

    Both take the nearest mention whose head stands before the query; the second only among those with the same head word, letter
    case apart. Source: Clark et al. 2019, section 4.3 (nearest, head match).
    """
    heads = np.flatnonzero(_is_head(mentions_of(sentence), len(sentence)))
    folded = [sentence.words[head].casefold() for head in heads]
    chosen = {}
    for query in np.unique(relation.query):
        before = [(int(head), word) for head, word in zip(heads, folded, strict=True) if head < query]
        match = [head for head, word in before if word == sentence.words[query].casefold()]
        chosen[int(query)] = (before[-1][0] if before else -1, match[-1] if match else -1)
    return chosen


RIVALS_OF = {"coref": mention_rivals, "coref_words": mention_rivals}
"""Families with baselines of their own."""
