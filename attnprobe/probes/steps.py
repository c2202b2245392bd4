"""The steps of a long run: counted for who watches, and kept on disk so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import os
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attnprobe.errors import EnvironmentFailure, InputError, explain

Progress = Callable[[int, int, str], None]
"""Told (steps done, steps in all, what is next): a step is one site of one layer; 0 in all while that is not known."""
Numbers = dict[str, np.ndarray]


class Steps:
    """Runs steps one after the other; with a folder, a step that is finished there is read instead.

    `key` says what the numbers depend on; a folder that was begun for another key is refused.
    """

    def __init__(self, progress: Progress | None, folder: Path | None, key: str) -> None:
        self._total, self._progress, self._begun = 0, progress, 0
        self._folder = folder
        if folder is not None:
            _claim(folder, key)

    def expect(self, total: int) -> None:
        """How many steps there are in all."""
        self._total = total

    def tell(self, what: str) -> None:
        """Tell who watches what is going on."""
        if self._progress is not None:
            self._progress(self._begun, self._total, what)

    def run(self, name: str, compute: Callable[[], Numbers]) -> Numbers:
        """The numbers of a step."""
        self.tell(name)
        self._begun += 1
        if self._folder is None:
            return compute()
        path = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.npz"
        stored = _read(path) if path.is_file() else None
        if stored is not None:
            return stored
        numbers = compute()
        _write(path, numbers)
        return numbers

    def finish(self) -> None:
        """Tell who watches that all is done."""
        self.tell("done")


def _claim(folder: Path, key: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        known = folder / "key.json"
        if not known.is_file():
            known.write_text(key, encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailure(explain("cannot keep finished steps", where=str(folder), got=str(error))) from error
    if known.read_text(encoding="utf-8") != key:
        remedy = "Name another folder, or delete it to begin anew"
        got = "those of another model, corpus, or other options"
        expected = "finished steps of this run"
        raise InputError(explain("cannot resume", where=str(folder), expected=expected, got=got, remedy=remedy))


def _read(path: Path) -> Numbers | None:
    """The numbers of a finished step; None, and a warning, where the file is damaged."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, LookupError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        what = explain("a finished step is damaged", where=str(path), got=f"{type(error).__name__}: {error}")
        warnings.warn(f"{what} The result is not touched: it is computed again.", stacklevel=2)
        return None


def _write(path: Path, numbers: Numbers) -> None:
    temporary = path.with_name(f".{uuid.uuid4().hex[:8]}.part")
    try:
        with temporary.open("wb") as stream:
            np.savez(stream, **numbers)  # type: ignore[arg-type]
        os.replace(temporary, path)
    except OSError as error:
        remedy = "Free some space and run again: finished steps are kept"
        raise EnvironmentFailure(
            explain("cannot keep a finished step", where=str(path.parent), got=str(error), remedy=remedy)
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
