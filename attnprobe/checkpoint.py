"""Finished shards on disk: each one file, written to a temporary name and renamed, so that a killed run loses only the shard in hand.

The folder stands beside the result (`study.nc.parts`), holds a key that says what the shards belong to, and is locked while a run works on it.
Plain arrays and JSON, no pickle.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attnprobe.errors import EnvironmentFailure, InputError, explain
from attnprobe.heads import tables
from attnprobe.stream import RatioSums

_CLASSES = {"RatioSums": RatioSums, **{name: entry for name, entry in vars(tables).items() if is_dataclass(entry)}}


class Checkpoints:
    """The finished shards of one run."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key

    def load(self, index: int) -> tables.ShardSums | None:
        """The sums of a shard, bit for bit as they were saved; None where it is not finished."""
        path = self._path(index)
        if not path.is_file():
            return None
        try:
            with np.load(path, allow_pickle=False) as stored:
                return _unpack(json.loads(str(stored["structure"])), stored)
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise EnvironmentFailure(
                explain(
                    "cannot read a checkpoint", where=str(path), got=str(error), remedy="Delete that file and resume"
                )
            ) from error

    def save(self, index: int, sums: tables.ShardSums) -> None:
        arrays: dict[str, np.ndarray] = {}
        structure = _pack(sums, arrays)
        temporary = self.folder / f".{uuid.uuid4().hex[:8]}.part"
        try:
            with temporary.open("wb") as stream:
                np.savez(stream, allow_pickle=False, structure=np.array(json.dumps(structure)), **arrays)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self._path(index))
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
    refused. Without it, left-over shards are deleted.
    """
    folder = result.with_name(f"{result.name}.parts")
    try:
        folder.mkdir(exist_ok=True)
        with (folder / "lock").open("a") as lock:
            _lock(lock.fileno(), result)
            _claim(folder, key, resume)
            yield Checkpoints(folder, key)
    except (PermissionError, NotADirectoryError) as error:
        raise EnvironmentFailure(explain("cannot keep checkpoints", where=str(folder), got=str(error))) from error


def _lock(descriptor: int, result: Path) -> None:
    try:
        import fcntl
    except ImportError:  # no advisory locks on this system: a second run is not noticed
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
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
                got="others",
                remedy="Run without --resume to start again",
            )
        )
    if not resume or found is None:
        for path in folder.iterdir():
            if path.name != "lock":
                path.unlink()
        try:
            note.write_text(key)
        except OSError as error:
            raise EnvironmentFailure(explain("cannot keep checkpoints", where=str(folder), got=str(error))) from error


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
