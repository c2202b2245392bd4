"""Word labels out of files that are no CoNLL-U: named entities in IOB2, supersenses in STREUSLE's CoNLL-U-Lex.

A sentence of such a file is found by its `sent_id`, and used where its words are those of the treebank; others have no labels.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attnprobe.errors import InputError, explain
from attnprobe.records import Sentence
from attnprobe.registry import ProbeTask
from attnprobe.text.source import files_of, lines_of

Path = str | os.PathLike[str]
Tagged = Mapping[str, tuple[tuple[str, ...], tuple[str | None, ...]]]
"""`sent_id` -> words and labels."""


@dataclass(frozen=True)
class _Format:
    """Which columns of a line hold what."""

    columns: int
    label: int
    empty: str
    """What stands where a word has no label."""
    expected: str


_IOB2 = _Format(3, 2, "", "a word number, a word and an IOB2 tag, divided by tabs")
_CONLLULEX = _Format(19, 13, "_", "the 19 columns of CoNLL-U-Lex")


def read_iob2(path: Path) -> Tagged:
    """Words and tags of each sentence of an IOB2 file (`# sent_id = ...`, then `number TAB word TAB tag ...`).

    The tags are cut to the type: PER for B-PER and I-PER, O outside. Raises `InputError` for a line of another shape.
    """
    tagged = _read(path, _IOB2)
    return {
        name: (words, tuple(tag and tag.split("-", 1)[-1] for tag in tags)) for name, (words, tags) in tagged.items()
    }


def read_supersenses(path: Path) -> Tagged:
    """Words and supersenses (column SS; None for none) of each sentence of a CoNLL-U-Lex file, as STREUSLE is distributed.

    Raises `InputError` for a line of another shape.
    """
    return _read(path, _CONLLULEX)


def ner_from(path: str) -> ProbeTask:
    """The task `ner:FILE`."""
    return _task(f"ner:{os.path.basename(path)}", read_iob2(path), "IOB2 file")


def supersense_from(path: str) -> ProbeTask:
    """The task `supersense:FILE`."""
    return _task(f"supersense:{os.path.basename(path)}", read_supersenses(path), "STREUSLE (Schneider et al. 2018)")


def _task(name: str, tagged: Tagged, source: str) -> ProbeTask:
    def labels(sentence: Sentence) -> Sequence[str | None]:
        words, found = tagged.get(sentence.id, ((), ()))
        return found if words == sentence.words else ()

    return ProbeTask(name, labels, "word", "semantics", source)


def _read(path: Path, format: _Format) -> Tagged:
    found: dict[str, tuple[tuple[str, ...], tuple[str | None, ...]]] = {}
    identity, rows = "", []
    [file] = files_of(path)
    for number, line in [*lines_of(file), (0, "")]:
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            identity = value.strip() if key.strip() == "sent_id" else identity
        elif line.strip():
            fields = line.split("\t")
            if len(fields) < format.columns or not fields[0].replace(".", "").replace("-", "").isdecimal():
                where = f"{file.name}:{number}"
                raise InputError(
                    explain("cannot read the labels", where=where, expected=format.expected, got=repr(line[:40]))
                )
            if fields[0].isdecimal():
                label = fields[format.label]
                rows.append((fields[1], None if label == format.empty else label))
        elif rows:
            words, labels = zip(*rows, strict=True)
            found[identity], rows = (words, labels), []
    return found
