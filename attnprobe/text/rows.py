"""Records (objects of JSON lines, rows of tables and data sets) as `Sentence`s; what a record may carry is in `read_corpus`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnprobe.errors import InputError, explain
from attnprobe.records import Sentence
from attnprobe.text.conllu import fault_of_tree
from attnprobe.text.plain import paragraph
from attnprobe.text.source import Reading, TextFile, Unusable

_PER_WORD = {"upos": str, "xpos": str, "lemmas": str, "deprels": str, "heads": int, "segments": int}
_TEXTS = ("id", "document", "text")
KEYS = (*_TEXTS, "words", *_PER_WORD)
"""What is read of a record; anything else in it is left alone."""

_HUGE = 1 << 31
"""Numbers of words and segments are far below it; what is not would overflow an array."""


def refuse_without_words(columns: Sequence[str], where: str, remedy: str) -> None:
    """Raise for a table of which nothing could be read."""
    if not {"words", "text"} & set(columns):
        expected, got = "a column `words` or `text`", ", ".join(columns) or "no columns"
        raise InputError(explain("cannot read the corpus", where=where, expected=expected, got=got, remedy=remedy))


def records_of(file: TextFile, records: Iterable[tuple[int, Any]], reading: Reading, parse: Any) -> Iterator[Sentence]:
    for number, raw in records:
        try:
            found = _sentences_of(parse(number, raw), number, reading)
        except Unusable as bad:
            reading.met += 1
            reading.refuse(bad, file)
        else:
            yield from found


def _sentences_of(record: Any, number: int, reading: Reading) -> Sequence[Sentence]:
    """The sentence of a record with words, the paragraphs of one with a text."""
    expected = "an object with `words` (a list of strings) or `text` (a string)"
    if not isinstance(record, Mapping):
        raise Unusable("no words", number, expected=expected, got=type(record).__name__)
    for name in _TEXTS:
        if not isinstance(record.get(name) or "", str):
            raise Unusable(f"wrong {name}", number, expected="a string", got=type(record[name]).__name__)
    identity, document, text = (record.get(name) or "" for name in _TEXTS)
    metadata = {"sent_id": identity} if identity else {}
    if record.get("words") is not None:
        words = _listed(record, "words", str, number)
        columns = {name: _listed(record, name, kind, number, len(words)) for name, kind in _PER_WORD.items()}
        if columns["heads"] and (fault := fault_of_tree(columns["heads"])) is not None:
            raise Unusable(f"broken tree: {fault.kind}", number, expected=fault.expected, got=fault.got)
        reading.met += 1
        identity = identity or f"s{reading.met}"
        return [Sentence(identity, words, document, text, metadata=metadata, **columns)]
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise Unusable("no words", number, expected=expected, got=f"the keys {', '.join(map(str, record)) or 'none'}")
    if len(lines) > 1 and not document:
        document = reading.documents.unique(identity)
    found = []
    for place, line in enumerate(lines, start=1):
        reading.met += 1
        name = f"{identity}-{place}" if identity and len(lines) > 1 else identity or f"s{reading.met}"
        found.append(replace(paragraph(line, name, document), metadata=metadata))
    return found


def _listed(
    record: Mapping[str, Any], name: str, kind: type, number: int, length: int | None = None
) -> tuple[Any, ...]:
    """A list of a record, checked; () where it has none."""
    values = record.get(name)
    if values is None:
        return ()
    right = isinstance(values, list) and all(_fits(value, kind) for value in values)
    if not right or (length is None and not values) or (length is not None and len(values) not in (0, length)):
        expected = f"a list of {kind.__name__}" + (f", {length} of them" if length is not None else "")
        got = f"{len(values)} values" if isinstance(values, list) else type(values).__name__
        raise Unusable(f"wrong {name}", number, expected=expected, got=got)
    return tuple(values)


def _fits(value: Any, kind: type) -> bool:
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and abs(value) < _HUGE
    return isinstance(value, kind)
