"""BLiMP: minimal pairs of an acceptable and an unacceptable sentence, out of its zip file or single files."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from attnprobe.errors import EnvironmentFailure, InputError, explain, near_names


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences that differ in one point, of which a language model should prefer the first."""

    good: str
    bad: str
    paradigm: str
    """Name of the contrast (`UID`), one of 67."""
    phenomenon: str
    """What it is about (`linguistics_term`), such as binding."""
    field: str
    """morphology, syntax, semantics or syntax_semantics."""
    number: str
    """`pairID`, within the paradigm."""


def read_blimp(path: str | os.PathLike[str], paradigms: Iterable[str] | None = None) -> Iterator[MinimalPair]:
    """Pairs of the paradigms named (None: all), from BLiMP's zip, a folder of its .jsonl files, or one of these (Warstadt et al. 2020).

    Raises `InputError` for a paradigm that is not there (near names are listed) and for a line that is no pair, with file and line.
    """
    files = _files(Path(path))
    names = list(files) if paradigms is None else list(paradigms)
    for name in names:
        if name not in files:
            raise InputError(f"unknown paradigm {name!r}; {near_names(name, files)}.")
    return (pair for name in names for pair in _pairs(files[name]))


@dataclass(frozen=True)
class _File:
    """One paradigm's lines: a file, or a member of a zip."""

    path: Path
    member: str | None = None

    def read(self) -> str:
        if self.member is None:
            return self.path.read_text(encoding="utf-8")
        with zipfile.ZipFile(self.path) as archive:
            return archive.read(self.member).decode("utf-8")


def _files(path: Path) -> dict[str, _File]:
    """Paradigm -> its file. The published zip also holds the shadow files of macOS, which are not text."""
    try:
        if path.is_dir():
            found = {file.stem: _File(file) for file in sorted(path.glob("*.jsonl"))}
        elif zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                members = [PurePosixPath(name) for name in archive.namelist() if not name.startswith("__MACOSX")]
            found = {member.stem: _File(path, str(member)) for member in sorted(members) if member.suffix == ".jsonl"}
        else:
            found = {path.stem: _File(path)} if path.is_file() else {}
    except (OSError, zipfile.BadZipFile) as error:
        raise EnvironmentFailure(explain("cannot read BLiMP", where=str(path), got=str(error))) from error
    if not found:
        raise InputError(explain("cannot read BLiMP", where=str(path), expected="its zip, or .jsonl files", got="none"))
    return found


def _pairs(file: _File) -> Iterator[MinimalPair]:
    for number, line in enumerate(file.read().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            yield MinimalPair(
                row["sentence_good"],
                row["sentence_bad"],
                row["UID"],
                row["linguistics_term"],
                row["field"],
                str(row["pairID"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            where = f"{file.member or file.path}:{number}"
            raise InputError(
                explain("cannot read BLiMP", where=where, expected="a minimal pair", got=str(error))
            ) from error
