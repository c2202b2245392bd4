"""Plain text as `Sentence`s: one paragraph a line, words found by a simple rule.

The rule is there so that patterns can be shown and measured by word without a treebank. It is no linguistic tokenizer: "don't"
stays one word, and languages that write without spaces come out as one word a character (Han) or a phrase (Thai).
"""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Iterator
from functools import lru_cache

from attnprobe.records import Sentence
from attnprobe.text.source import Corpus, Reading, Source, TextFile, files_of, lines_of

LOOK_AHEAD = 1000
"""Lines of a file in which a blank line between paragraphs must come for blank lines to divide documents."""

_SHAPE = re.compile(r"h|[wd](?:[wdmz]|['.](?=[wd])|(?<=d),(?=d))*|\.+|-+|[^ ]m*(?:z[^ ]m*)*")
"""A word in the shape of a text (see `_kind`), tried in this order: a Han character; letters and digits with the marks on them,
and with apostrophes, points and, between digits, commas inside; dots; hyphens; any other character with its marks, and what
joiners tie to it (emoji)."""


def read_text(source: Source) -> Corpus:
    """Paragraphs of text files, one a line, streamed: iterate over what this returns, as often as needed.

    Blank lines divide documents. A file without any in its first 1,000 lines has no documents, and each paragraph stands for
    itself in intervals and splits. Words are found by `split_words`; the text is kept as it is. `source` is a path, a glob, a
    list of them, or `-` for standard input; .gz and .xz are read as they are.
    """
    return Corpus(files_of(source), lambda file: text_sentences)


def text_sentences(file: TextFile, reading: Reading) -> Iterator[Sentence]:
    """The paragraphs of one file."""
    lines = (line for _, line in lines_of(file))
    ahead = deque(line for line, _ in zip(lines, range(LOOK_AHEAD), strict=False))
    divided = "" in "\n".join(map(str.strip, ahead)).strip().split("\n")
    document = ""
    for line in _chained(ahead, lines):
        if not line.strip():
            document = ""
            continue
        if divided and not document:
            document = reading.documents.unique("")
        reading.met += 1
        yield paragraph(line, f"s{reading.met}", document)


def _chained(ahead: deque[str], lines: Iterator[str]) -> Iterator[str]:
    while ahead:
        yield ahead.popleft()
    yield from lines


def paragraph(text: str, identity: str, document: str = "") -> Sentence:
    """A paragraph as a sentence without annotation."""
    text = text.strip()
    return Sentence(id=identity, words=split_words(text), document=document, text=text)


def split_words(text: str) -> tuple[str, ...]:
    """Words and punctuation marks of a text, by their characters.

    A word is a run of letters, digits and the marks on them, with an apostrophe or point inside ("don't", "U.S", "3.14"), and a
    comma inside a number. Han characters are words of their own, and so is every other visible character, except that dots and
    hyphens in a row stay together and emoji tied by joiners do.

    >>> split_words("Don't pay 1,000, wait...")
    ("Don't", 'pay', '1,000', ',', 'wait', '...')
    """
    shape = "".join(map(_kind, text))
    return tuple(text[match.start() : match.end()] for match in _SHAPE.finditer(shape))


@lru_cache(maxsize=65_536)
def _kind(character: str) -> str:
    """One letter for what a character may do in a word."""
    if character.isspace():
        return " "
    if character in "'’":
        return "'"
    if character in ".,-":
        return character
    category = unicodedata.category(character)
    if character in "\u200c\u200d":
        return "z"
    if category[0] == "M" or "\U0001f3fb" <= character <= "\U0001f3ff":  # the latter are skin tones
        return "m"
    if category == "Lo" and unicodedata.name(character, "").startswith("CJK "):
        return "h"
    if category[0] in "LN":
        return "d" if category == "Nd" else "w"
    return " " if category in ("Cc", "Cf") else "o"
