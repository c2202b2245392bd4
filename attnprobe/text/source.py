"""Files as numbered lines: names, globs, lists, standard input and compression, read as a stream.

Nothing here knows a format. Whatever a user can get wrong about a file (missing, empty, binary, cut off) is an `InputError`
that names it; the readers of this package then only deal with lines.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import lzma
import os
import sys
import tempfile
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnprobe.errors import EnvironmentFailure, InputError, explain
from attnprobe.records import Sentence
from attnprobe.text.drops import Drops, OnDrop

Source = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""A path, a glob, `-` for standard input, or several of them."""

LONGEST_LINE = 1 << 24
"""Bytes of a line beyond which a file is taken for binary rather than read on."""

_GZIP, _XZ = b"\x1f\x8b", b"\xfd7zXZ\x00"
_AGAIN = " #"


class Spool:
    """Standard input as lines that can be read again: what has been read is kept in a temporary file."""

    def __init__(self) -> None:
        self._source: Any = None
        self._kept: Any = None
        self._end = 0

    def lines(self, *, only_kept: bool = False) -> Iterator[bytes]:
        """From the first; with `only_kept`, as far as some reading has come."""
        if self._source is None:
            self._source = _decompressed(_standard_input())
            self._kept = tempfile.TemporaryFile()  # noqa: SIM115 - as long as there are readers
            weakref.finalize(self, self._kept.close)
        place = 0
        while True:
            if place < self._end:
                self._kept.seek(place)
                line = self._kept.readline(LONGEST_LINE)
            elif only_kept or not (line := self._source.readline(LONGEST_LINE)):
                return
            else:
                self._kept.seek(place)
                self._kept.write(line)
                self._end += len(line)
            place += len(line)
            yield line


def _standard_input() -> Any:
    stream = getattr(sys.stdin, "buffer", None) or io.BytesIO(sys.stdin.read().encode())
    return stream if hasattr(stream, "peek") else io.BufferedReader(stream)


def _decompressed(stream: Any) -> Any:
    """The stream of the bytes within gzip or xz, or the stream itself."""
    start = stream.peek(len(_XZ))[: len(_XZ)]
    if start.startswith(_GZIP):
        return gzip.GzipFile(fileobj=stream)
    return lzma.LZMAFile(stream) if start == _XZ else stream


@dataclass(frozen=True)
class TextFile:
    """A file to read, or standard input."""

    name: str
    """Name as given, for messages."""
    path: Path | None
    """None: standard input."""
    lines: Iterator[tuple[int, str]] | None = field(default=None, repr=False, compare=False)
    """Numbered lines where reading has begun already (to tell the format of standard input)."""
    spool: Spool = field(default_factory=Spool, repr=False, compare=False)
    """Standard input itself."""

    @property
    def suffix(self) -> str:
        """Suffix that tells the format, compression left out: `.conllu` for `a.conllu.gz`."""
        stem = self.name.lower().removesuffix(".gz").removesuffix(".xz")
        return Path(stem).suffix


def files_of(source: Source) -> tuple[TextFile, ...]:
    """The files a source names, in the order given, those of a glob sorted; raises `InputError` for one that is not there."""
    if isinstance(source, (str, os.PathLike)):
        found = _expand(os.fspath(source))
    else:
        found = [file for item in source for file in _expand(os.fspath(item))]
    if not found:
        raise InputError(explain("cannot read the corpus", expected="at least one file", got="an empty list"))
    return tuple(found)


def _expand(name: str) -> list[TextFile]:
    if name == "-":
        return [TextFile("standard input", None)]
    path = Path(name)
    if path.is_dir():
        remedy = f"Name the files, for example {os.path.join(name, '*.conllu')!r}"
        raise InputError(
            explain("cannot read the corpus", where=name, expected="a file", got="a folder", remedy=remedy)
        )
    if path.exists():
        return [TextFile(name, path)]
    matches = sorted(match for match in glob.glob(name, recursive=True) if os.path.isfile(match))
    if not matches:
        raise InputError(explain("cannot read the corpus", where=name, expected="a file", got="nothing there"))
    return [TextFile(match, Path(match)) for match in matches]


def raw_lines(file: TextFile) -> Iterator[bytes]:
    """The lines of a file as bytes, line end included; gzip and xz are known by their first bytes."""
    try:
        if file.path is None:
            yield from file.spool.lines()
            return
        with file.path.open("rb") as whole, closing(_decompressed(whole)) as stream:
            while line := stream.readline(LONGEST_LINE):
                yield line
    except (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError) as error:
        raise InputError(
            explain("cannot read the corpus", where=file.name, expected="a whole compressed file", got=str(error))
        ) from error
    except OSError as error:
        got = error.strerror or str(error)
        raise EnvironmentFailure(explain("cannot read the corpus", where=file.name, got=got)) from error


def lines_of(file: TextFile) -> Iterator[tuple[int, str]]:
    """Numbered lines of a UTF-8 file, from 1, without their ends (LF, CRLF or CR); `InputError` where it is empty or not text."""
    if file.lines is not None:
        yield from file.lines
        return
    number = 0
    for number, raw in enumerate(_split_at_returns(raw_lines(file)), start=1):
        if number == 1:
            raw = raw.removeprefix(b"\xef\xbb\xbf")
        yield number, _text(raw, f"{file.name}:{number}")
    if number == 0:
        raise InputError(explain("cannot read the corpus", where=file.name, expected="text", got="an empty file"))


def _split_at_returns(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Lines that a bare CR ends, as old Macs wrote them and some exports do, apart; a file of such lines comes in long pieces."""
    rest = b""
    for raw in lines:
        raw, rest = rest + raw, b""
        if b"\r" not in raw.rstrip(b"\r\n"):
            yield raw
            continue
        ended = raw.endswith(b"\n")
        *whole, last = (raw.rstrip(b"\r\n") if ended else raw[:-1]).split(b"\r")
        yield from whole
        if ended:
            yield last
        else:  # it may go on in the next piece
            rest = last + raw[-1:]
    if rest:
        yield rest


def _text(raw: bytes, where: str) -> str:
    got = None
    try:
        line = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        got = f"byte 0x{raw[error.start]:02x}"
    else:
        if "\0" in line:
            got = "a zero byte"
        elif len(raw) >= LONGEST_LINE:
            got = f"a line of {LONGEST_LINE >> 20} MiB or more"
    if got is not None:
        raise InputError(
            explain(
                "cannot read the corpus", where=where, expected="text in UTF-8", got=got, remedy="Is it a binary file?"
            )
        )
    return line.rstrip("\r\n")


class DocumentNames:
    """Gives each document of a corpus a name of its own: an id met again gets ` #2`, ` #3`, ..., one without id a number.

    Of each name only a 64-bit digest is kept, so that very many documents fit in memory.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._repeats: dict[str, int] = {}
        self._unnamed = 0

    def unique(self, given: str) -> str:
        if not given:
            self._unnamed += 1
            given = f"document {self._unnamed}"
        name = given
        while (key := int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest())) in self._seen:
            self._repeats[given] = self._repeats.get(given, 1) + 1
            name = f"{given}{_AGAIN}{self._repeats[given]}"
        self._seen.add(key)
        return name


def name_as_given(document: str) -> str:
    """A document's name without the mark that `DocumentNames` gave it.

    >>> name_as_given("weblog-17 #2")
    'weblog-17'
    """
    head, mark, tail = document.rpartition(_AGAIN)
    return head if mark and tail.isdecimal() else document


@dataclass
class Reading:
    """One reading of a corpus under way: what its files share, and what becomes of a sentence that cannot be used."""

    skip_invalid: bool
    drops: Drops
    on_drop: OnDrop | None
    documents: DocumentNames = field(default_factory=DocumentNames)
    met: int = 0
    """Sentences met so far, usable or not."""

    def refuse(self, bad: Unusable, file: TextFile, identity: str = "") -> None:
        """Count a sentence as left out, or raise `InputError` where nothing may be."""
        where = file.name if bad.line is None else f"{file.name}:{bad.line}"
        if not self.skip_invalid:
            what = f"unusable sentence {identity!r}, {bad.reason}," if identity else f"unusable sentence, {bad.reason},"
            remedy = "Correct the file, or leave such sentences out with --skip-invalid (skip_invalid=True)"
            raise InputError(explain(what, where=where, expected=bad.expected, got=bad.got, remedy=remedy)) from bad
        self.drops.add(bad.reason, where)
        if self.on_drop is not None:
            self.on_drop(bad.reason, where)


class Unusable(Exception):
    """Raised within a reader for one sentence; never leaves it (see `Reading.refuse`)."""

    def __init__(self, reason: str, line: int | None, *, expected: str, got: str) -> None:
        super().__init__(reason)
        self.reason, self.line, self.expected, self.got = reason, line, expected, got


Reader = Callable[[TextFile, Reading], Iterator[Sentence]]
"""Sentences of one file; one per format."""


@dataclass(frozen=True)
class Corpus:
    """Sentences of one or more files, read anew, one at a time, at each `iter`.

    Standard input is kept on disk as it is read, so that it too can be read again. What was left out so far is in `drops`, which starts
    afresh with each reading.
    """

    files: tuple[TextFile, ...]
    reader: Callable[[TextFile], Reader] = field(repr=False)
    """Which reader a file needs."""
    skip_invalid: bool = False
    on_drop: OnDrop | None = field(default=None, repr=False)
    drops: Drops = field(default_factory=Drops, compare=False)
    """Sentences left out in the reading under way, by reason."""

    @property
    def name(self) -> str:
        """The file as given, or the first and how many more."""
        first, more = self.files[0].name, len(self.files) - 1
        return f"{first} and {more} more" if more else first

    def __iter__(self) -> Iterator[Sentence]:
        self.drops.counts.clear()
        self.drops.examples.clear()
        return self._read(Reading(self.skip_invalid, self.drops, self.on_drop))

    def _read(self, reading: Reading) -> Iterator[Sentence]:
        kept = 0
        for file in self.files:
            before = reading.met
            for sentence in self.reader(file)(file, reading):
                kept += 1
                yield sentence
            if reading.met == before:
                raise InputError(explain("cannot read the corpus", where=file.name, expected="sentences", got="none"))
        if not kept:
            reasons = ", ".join(f"{reason}: {n}" for reason, n in self.drops.counts.items())
            got = f"none of {reading.met} ({reasons})"
            raise InputError(explain("cannot use the corpus", where=self.name, expected="valid sentences", got=got))

    def sha256(self) -> str:
        """SHA-256 of the files' text, decompressed, one after another; of standard input, of what has been read so far."""
        digest = hashlib.sha256()
        for file in self.files:
            for line in raw_lines(file) if file.path is not None else file.spool.lines(only_kept=True):
                digest.update(line)
        return digest.hexdigest()
