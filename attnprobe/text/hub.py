"""Data sets of the library `datasets`, where it is installed: by name or already loaded, read as a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from attnprobe.errors import EnvironmentFailure, InputError, explain
from attnprobe.records import Sentence
from attnprobe.text.drops import Drops, OnDrop
from attnprobe.text.rows import KEYS, records_of, refuse_without_words
from attnprobe.text.source import Reading, TextFile

DATASET = "dataset:"
_FORM = "dataset:NAME, dataset:NAME:SPLIT or dataset:NAME:CONFIGURATION:SPLIT"


@dataclass(frozen=True)
class DatasetCorpus:
    """Sentences of a data set, read anew, one row at a time, at each `iter`; what was left out is in `drops`."""

    name: str
    rows: Iterable[Mapping[str, Any]] = field(repr=False)
    skip_invalid: bool = False
    on_drop: OnDrop | None = field(default=None, repr=False)
    drops: Drops = field(default_factory=Drops, compare=False)

    def __iter__(self) -> Iterator[Sentence]:
        self.drops.counts.clear()
        self.drops.examples.clear()
        reading = Reading(self.skip_invalid, self.drops, self.on_drop)
        kept = 0
        for sentence in records_of(TextFile(self.name, None), self._numbered(), reading, _as_read):
            kept += 1
            yield sentence
        if not kept:
            got = ", ".join(f"{reason}: {n}" for reason, n in self.drops.counts.items()) or "none"
            raise InputError(explain("cannot read the corpus", where=self.name, expected="sentences", got=got))

    def _numbered(self) -> Iterator[tuple[int, Any]]:
        try:
            yield from enumerate(self.rows, start=1)
        except OSError as error:  # a shard of the data set that cannot be read, or downloaded, half-way
            raise EnvironmentFailure(explain("cannot read the corpus", where=self.name, got=str(error))) from error


def read_dataset(
    dataset: str | Iterable[Mapping[str, Any]],
    *,
    name: str | None = None,
    skip_invalid: bool = False,
    on_drop: OnDrop | None = None,
) -> DatasetCorpus:
    """Sentences of a data set: one of `datasets` already loaded, anything that gives rows, or a name for `datasets` to load.

    A name is `dataset:NAME`, `dataset:NAME:SPLIT` or `dataset:NAME:CONFIGURATION:SPLIT`; NAME is a hub id, a folder written by
    `save_to_disk`, or a folder of data files. By name it is streamed: nothing is downloaded beyond what is read. Rows have the columns
    that `read_corpus` reads; rename others first (`dataset.rename_column("sentence", "text")`).

    >>> [sentence.words for sentence in read_dataset([{"text": "one two"}])]
    [('one', 'two')]
    """
    if isinstance(dataset, str):
        return DatasetCorpus(dataset, _loaded(dataset), skip_invalid, on_drop)
    return DatasetCorpus(name or "data set in memory", dataset, skip_invalid, on_drop)


def _as_read(_number: int, row: Any) -> Any:
    return row


def _loaded(name: str) -> Iterable[Mapping[str, Any]]:
    parts = name.removeprefix(DATASET).split(":")
    if not name.startswith(DATASET) or not all(parts) or len(parts) > 3:
        raise InputError(explain("cannot tell the data set", expected=_FORM, got=name))
    if find_spec("datasets") is None:
        remedy = "Install datasets, or save the data set as JSON lines"
        raise EnvironmentFailure(
            explain("cannot read a data set", where=name, expected="the library datasets", got="none", remedy=remedy)
        )
    split = parts[-1] if len(parts) > 1 else None
    found = _fetched(name, parts[0], parts[1] if len(parts) == 3 else None, split)
    if isinstance(found, dict):
        if len(found) > 1:
            got = ", ".join(map(str, found))
            raise InputError(explain("which split", where=name, expected=f"{name}:SPLIT", got=f"the splits {got}"))
        [found] = found.values()
    columns = [column for column in found.column_names or () if column in KEYS]
    if found.column_names is not None:
        remedy = 'In Python: read_dataset(dataset.rename_column("sentence", "text"))'
        refuse_without_words(found.column_names, name, remedy)
    return found.select_columns(columns) if columns else found


def _fetched(name: str, path: str, configuration: str | None, split: str | None) -> Any:
    import datasets

    on_disk = any((Path(path) / note).is_file() for note in ("state.json", "dataset_dict.json"))
    try:
        if not on_disk:
            return datasets.load_dataset(path, configuration, split=split, streaming=True)
        found = datasets.load_from_disk(path)
        return found[split] if split is not None and isinstance(found, dict) else found
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise InputError(
            explain("cannot read a data set", where=name, expected=_FORM, got=str(error).split("\n")[0])
        ) from error
    except OSError as error:
        raise EnvironmentFailure(
            explain("cannot read a data set", where=name, got=str(error).split("\n")[0])
        ) from error
