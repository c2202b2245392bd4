"""Finished shards on disk: each one file, written to a temporary name and renamed, so that a killed run loses only the shard in hand.

The folder stands beside the result (`study.nc.parts`), holds a key that says what the shards belong to, and is locked while a run works on it.
Shards that are added up already may be replaced by their sum, so that a long run does not fill the disk. Plain arrays and JSON, no pickle.
"""

from __future__ import annotations

import errno
import glob
import json
import os
import shutil
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.errors import EnvironmentFailure, InputError, explain
from attnprobe.heads import tables
from attnprobe.stream import RatioSums

_CLASSES = {"RatioSums": RatioSums, **{name: entry for name, entry in vars(tables).items() if is_dataclass(entry)}}
_BROKEN = (OSError, ValueError, LookupError, EOFError, TypeError, RuntimeError, zipfile.BadZipFile, zlib.error)
"""What reading a damaged archive may raise."""
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Checkpoints:
    """The finished shards of one run."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key

    def load(self, index: int) -> tables.ShardSums | None:
        """The sums of a shard, bit for bit as they were saved; None where it is not finished, or damaged (then with a warning)."""
        return self._read(self._path(index), "it is measured again")

    def save(self, index: int, sums: tables.ShardSums) -> None:
        self._write(self._path(index), sums)

    def folded(self) -> tuple[int, tables.ShardSums | None]:
        """How many shards, from the first, are kept as one sum, and that sum."""
        for path in sorted(self.folder.glob("total-*.npz"), reverse=True):
            total = self._read(path, "the shards in it are measured again")
            if total is not None:
                return int(path.stem.removeprefix("total-")), total
        return 0, None

    def fold(self, n: int, total: tables.ShardSums) -> None:
        """Keep the sum of the first `n` shards instead of them."""
        path = self.folder / f"total-{n:06d}.npz"
        self._write(path, total)
        for old in (*self.folder.glob("total-*.npz"), *map(self._path, range(n))):
            if old != path:
                old.unlink(missing_ok=True)

    def _read(self, path: Path, remedy: str) -> tables.ShardSums | None:
        if not path.is_file():
            return None
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                return _unpack(json.loads(str(stored["structure"])), stored)
        except _BROKEN as error:
            what = explain("a checkpoint is damaged", where=str(path), got=f"{type(error).__name__}: {error}")
            warnings.warn(f"{what} The result is not touched: {remedy}.", stacklevel=2)
            return None

    def _write(self, path: Path, sums: tables.ShardSums) -> None:
        arrays: dict[str, np.ndarray] = {}
        structure = _pack(sums, arrays)
        temporary = self.folder / f".{uuid.uuid4().hex[:8]}.part"
        try:
            with temporary.open("wb") as stream:
                np.savez(stream, allow_pickle=False, structure=np.array(json.dumps(structure)), **arrays)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except OSError as error:
            raise EnvironmentFailure(
                explain(
                    "cannot save a checkpoint",
                    where=str(self.folder),
                    got=str(error),
                    remedy="Free some space and run again with --resume: finished shards are kept",
                )
            ) from error
        finally:
            temporary.unlink(missing_ok=True)

    def remove(self) -> None:
        """Forget the shards: the study they were for is written."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, index: int) -> Path:
        return self.folder / f"shard-{index:06d}.npz"


@contextmanager
def checkpoints(result: Path, key: str, *, resume: bool) -> Iterator[Checkpoints]:
    """The checkpoints of the run that will write `result`, locked against a second run.

    `key` says what a shard depends on (model, options, plan). With `resume`, shards of the same key are kept; shards of another key are
    refused. Without it, left-over shards are deleted. A run refused before it finished anything leaves nothing behind.
    """
    with ExitStack() as stack:
        folder = _folder_of(result)
        with _told(folder):
            _hold(stack, result)
            _claim(folder, key, resume)
            for stale in result.parent.glob(
                f".{glob.escape(result.name)}.*.part"
            ):  # of a run killed while it wrote the result
                stale.unlink(missing_ok=True)
        store = Checkpoints(folder, key)
        try:
            yield store
        except InputError:
            if {path.name for path in folder.glob("*")} <= {"lock", "key"}:
                store.remove()
            raise


@contextmanager
def alone(result: Path) -> Iterator[None]:
    """The lock of `checkpoints`, for a run that keeps no shards: while it lasts nobody else writes `result`. Shards kept there stay."""
    with ExitStack() as stack:
        with _told(_folder_of(result)):
            _hold(stack, result)
        try:
            yield
        finally:
            if [path.name for path in _folder_of(result).glob("*")] == ["lock"]:
                Checkpoints(_folder_of(result), "").remove()


def _folder_of(result: Path) -> Path:
    return result.with_name(f"{result.name}.parts")


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "Choose another --out, or free some space: finished shards are kept for --resume"
        raise EnvironmentFailure(
            explain("cannot keep checkpoints", where=str(folder), got=error.strerror or str(error), remedy=remedy)
        ) from error


def _hold(stack: ExitStack, result: Path) -> None:
    """Lock the result against a second run, as long as the stack lasts."""
    folder = _folder_of(result)
    folder.mkdir(exist_ok=True)
    lock = stack.enter_context((folder / "lock").open("a"))
    _lock(lock.fileno(), result)


def _lock(descriptor: int, result: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system: a second run is not noticed
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _HELD:  # a file system without locks
            warnings.warn(
                f"{result}: cannot lock ({error.strerror}), so a second run on it would not be noticed.", stacklevel=3
            )
            return
        raise InputError(
            explain(
                "another run is writing the same result",
                where=str(result),
                remedy="Wait for it, or choose another --out",
            )
        ) from None


def _claim(folder: Path, key: str, resume: bool) -> None:
    note = folder / "key"
    found = note.read_text() if note.is_file() else None
    if resume and found not in (None, key):
        raise InputError(
            explain(
                "cannot resume",
                where=str(folder),
                expected="the same model, corpus and options as the interrupted run",
                got=_difference(str(found), key),
                remedy="Run without --resume to start again",
            )
        )
    if not resume or found is None:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != "lock":
                path.unlink()
        temporary = folder / "key.part"
        temporary.write_text(key)
        os.replace(temporary, note)


def _difference(found: str, key: str) -> str:
    """In what two keys differ, by name: "seed was 0, is 1"."""
    before, now = _flat(found), _flat(key)
    names = [name for name in dict.fromkeys((*before, *now)) if before.get(name) != now.get(name)]
    told = [name for name in names if name not in _FOLLOWS and _FOLLOWS_ONE.get(name) not in names] or names
    parts = [f"{name} was {before.get(name, 'not there')}, is {now.get(name, 'not there')}" for name in told[:6]]
    return "; ".join(parts) or "another key"


_FOLLOWS = ("plan.sha256", "corpus_sha256")
"""Hashes: named only where nothing that a person has chosen differs."""
_FOLLOWS_ONE = {"plan.plan.window": "totals"}
"""What is not named where the option it follows from differs."""


def _flat(stored: Any, name: str = "") -> dict[str, str]:
    """The values of nested JSON by dotted name, JSON within strings opened too."""
    if isinstance(stored, str) and stored[:1] == "{":
        try:
            stored = json.loads(stored)
        except ValueError:
            return {name: stored}
    if not isinstance(stored, dict):
        return {name: str(stored)}
    parts = [_flat(value, f"{name}.{key}" if name else key) for key, value in stored.items()]
    return {key: value for part in parts for key, value in part.items()}


def _pack(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A record as JSON, its arrays moved to `arrays`."""
    if isinstance(value, np.ndarray):
        arrays[f"a{len(arrays)}"] = value
        return {"array": f"a{len(arrays) - 1}"}
    if is_dataclass(value):
        return {
            "record": type(value).__name__,
            "of": {f.name: _pack(getattr(value, f.name), arrays) for f in fields(value)},
        }
    if isinstance(value, dict):
        return {"items": [[key, _pack(item, arrays)] for key, item in value.items()]}
    if isinstance(value, tuple | list):
        return {"tuple": [_pack(item, arrays) for item in value]}
    return {"value": value.item() if isinstance(value, np.generic) else value}


def _unpack(stored: Any, arrays: Any) -> Any:
    if "array" in stored:
        return arrays[stored["array"]]
    if "record" in stored:
        record: Any = _CLASSES[stored["record"]]
        return record(**{name: _unpack(item, arrays) for name, item in stored["of"].items()})
    if "items" in stored:
        return {key: _unpack(item, arrays) for key, item in stored["items"]}
    if "tuple" in stored:
        return tuple(_unpack(item, arrays) for item in stored["tuple"])
    return stored["value"]
