"""Mentions of entities out of MISC `Entity=`, as GUM and CorefUD write them.

`(7-person-new` opens a mention of cluster 7, `7)` closes it, `(3-place-giv)` is a mention of one word; several follow one
another without a space. `# global.Entity` names the fields between the hyphens. What the mentions are for (coreference,
entities) is decided elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from attnprobe.errors import InputError, explain
from attnprobe.records import Sentence
from attnprobe.text.drops import OnDrop

BAD_ENTITIES = "broken entity annotation"
"""Reason for which `mentions_of` leaves the mentions of a sentence out."""

_DEFAULT_FIELDS = "eid-etype"
_ITEM = re.compile(r"\((?P<opened>[^()]+)(?P<at_once>\)?)|(?P<closed>[^()]+)\)")
_PART = re.compile(r"(?P<cluster>.+?)\[(?P<part>\d+)/(?P<parts>\d+)\]")


@dataclass(frozen=True)
class Mention:
    """A mention of an entity in one sentence."""

    cluster: str
    """Entity it refers to; unique within the document only."""
    type: str
    """person, place, ...; empty where not annotated."""
    words: tuple[int, ...]
    """Its words, 0-based; with gaps where the mention has them."""
    head: int
    """Its head word: as annotated; else the first word whose governor lies outside; else the last word."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Everything annotated, by the names of `# global.Entity`."""

    @property
    def start(self) -> int:
        return self.words[0]

    @property
    def end(self) -> int:
        """One past its last word."""
        return self.words[-1] + 1


@dataclass
class _Open:
    """A mention, or a part of one, whose closing bracket has not come yet."""

    spec: list[str]
    start: int


class _Malformed(Exception):
    """Brackets that do not match, with the word at which it shows."""


def mentions_of(
    sentence: Sentence, *, skip_invalid: bool = False, on_drop: OnDrop | None = None
) -> tuple[Mention, ...]:
    """The mentions of a sentence, outer ones first, in the order of their first words.

    Brackets are matched by cluster, so mentions may cross; parts of a mention with gaps (`e5[1/2]`) are put together. Broken
    brackets raise `InputError` with the `sent_id` and the word, or, with `skip_invalid`, all mentions of the sentence are left
    out and told to `on_drop(reason, sent_id)`. So are brackets of mentions that begin at an empty node, since empty nodes are
    not read.
    """
    try:
        return tuple(sorted(_mentions(sentence), key=lambda mention: (mention.start, -mention.end, mention.cluster)))
    except _Malformed as bad:
        if not skip_invalid:
            remedy = "Correct the file, or leave such mentions out with --skip-invalid (skip_invalid=True)"
            raise InputError(
                explain(f"{BAD_ENTITIES}", where=f"sentence {sentence.id!r}", got=str(bad), remedy=remedy)
            ) from bad
        if on_drop is not None:
            on_drop(BAD_ENTITIES, sentence.id)
        return ()


def chains_of(
    sentences: Iterable[Sentence], *, skip_invalid: bool = False, on_drop: OnDrop | None = None
) -> dict[tuple[str, str], list[tuple[int, Mention]]]:
    """Mentions by (document, cluster), each with the place of its sentence among `sentences`, in the order of the text."""
    chains: dict[tuple[str, str], list[tuple[int, Mention]]] = {}
    for place, sentence in enumerate(sentences):
        for mention in mentions_of(sentence, skip_invalid=skip_invalid, on_drop=on_drop):
            chains.setdefault((sentence.document, mention.cluster), []).append((place, mention))
    return chains


def _mentions(sentence: Sentence) -> list[Mention]:
    names = sentence.metadata.get("global.Entity", _DEFAULT_FIELDS).split("-")
    opened: dict[str, list[_Open]] = {}
    whole: list[Mention] = []
    parts: dict[str, list[tuple[_Open, int]]] = {}

    def close(identity: str, word: int) -> None:
        if not opened.get(identity):
            raise _Malformed(f"{identity}) without its opening bracket at word {word + 1}")
        mention = opened[identity].pop()
        if match := _PART.fullmatch(identity):
            parts.setdefault(f"{match['cluster']}/{match['parts']}", []).append((mention, word))
        else:
            whole.append(_mention(sentence, names, identity, mention.spec, range(mention.start, word + 1)))

    for word, misc in enumerate(sentence.misc):
        for match in _items(misc.get("Entity", ""), word):
            if match["closed"]:
                close(match["closed"], word)
                continue
            spec = match["opened"].split("-", len(names) - 1)
            opened.setdefault(spec[0], []).append(_Open(spec, word))
            if match["at_once"]:
                close(spec[0], word)
    left = [f"({identity} of word {mention.start + 1}" for identity, stack in opened.items() for mention in stack]
    if left:
        raise _Malformed(f"{', '.join(left)} never closed")
    return whole + [_joined(sentence, names, key, found) for key, found in parts.items()]


def _items(value: str, word: int) -> Iterable[re.Match[str]]:
    place = 0
    while place < len(value):
        match = _ITEM.match(value, place)
        if match is None:
            raise _Malformed(f"{value[place:]!r} at word {word + 1}, neither an opening nor a closing bracket")
        yield match
        place = match.end()


def _joined(sentence: Sentence, names: Sequence[str], key: str, found: list[tuple[_Open, int]]) -> Mention:
    """One mention out of its parts."""
    cluster, _, parts = key.rpartition("/")
    if len(found) != int(parts):
        raise _Malformed(f"{len(found)} of {parts} parts of {cluster}")
    words = sorted({word for mention, last in found for word in range(mention.start, last + 1)})
    first = min((mention for mention, _ in found), key=lambda mention: mention.start)
    return _mention(sentence, names, cluster, first.spec, words)


def _mention(
    sentence: Sentence, names: Sequence[str], cluster: str, spec: Sequence[str], words: Sequence[int]
) -> Mention:
    fields = dict(zip(names, spec, strict=False))
    return Mention(
        cluster=cluster,
        type=fields.get("etype", fields.get("entity", "")),
        words=tuple(words),
        head=_head(sentence, fields.get("head", ""), words),
        fields=fields,
    )


def _head(sentence: Sentence, given: str, words: Sequence[int]) -> int:
    if given:
        if not given.isdecimal() or not 1 <= int(given) <= len(words):
            raise _Malformed(
                f"head {given!r} in a mention of {len(words)} words, the first of them word {words[0] + 1}"
            )
        return words[int(given) - 1]
    inside = set(words)
    outward = (word for word in words if sentence.heads and sentence.heads[word] - 1 not in inside)
    return next(outward, words[-1])
