"""The steps of a long run: counted for who watches, and kept on disk so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

import numpy as np

from attnprobe.errors import EnvironmentFailure, InputError, explain

Progress = Callable[[int, int, str], None]
"""Told (steps done, steps in all, what is next): a step is one site of one layer."""
Numbers = dict[str, np.ndarray]


class Steps:
    """Runs steps one after the other; with a folder, a step that is finished there is read instead.

    `key` says what the numbers depend on; a folder that was begun for another key is refused.
    """

    def __init__(self, total: int, progress: Progress | None, folder: Path | None, key: str) -> None:
        self._total, self._progress, self._begun = total, progress, 0
        self._folder = folder
        if folder is not None:
            _claim(folder, key)

    def run(self, name: str, compute: Callable[[], Numbers]) -> Numbers:
        """The numbers of a step."""
        if self._progress is not None:
            self._progress(self._begun, self._total, name)
        self._begun += 1
        if self._folder is None:
            return compute()
        path = self._folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.npz"
        if path.is_file():
            return _read(path)
        numbers = compute()
        _write(path, numbers)
        return numbers

    def finish(self) -> None:
        """Tell who watches that all is done."""
        if self._progress is not None:
            self._progress(self._total, self._total, "done")


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


def _read(path: Path) -> Numbers:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except (OSError, ValueError, KeyError, EOFError) as error:
        remedy = "Delete that file and resume"
        raise EnvironmentFailure(
            explain("cannot read a finished step", where=str(path), got=str(error), remedy=remedy)
        ) from error


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
