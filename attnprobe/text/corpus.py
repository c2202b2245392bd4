"""Any corpus by the suffix of its files: CoNLL-U, text, JSON lines, Parquet; or a data set by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from attnprobe.errors import EnvironmentFailure, InputError, explain, near_names
from attnprobe.records import Sentence
from attnprobe.text.conllu import conllu_sentences
from attnprobe.text.drops import OnDrop
from attnprobe.text.hub import DATASET, DatasetCorpus, read_dataset
from attnprobe.text.plain import text_sentences
from attnprobe.text.rows import KEYS, records_of, refuse_without_words
from attnprobe.text.source import Corpus, Reader, Reading, Source, TextFile, Unusable, files_of, lines_of

_ROWS_AT_A_TIME = 256


def read_corpus(
    source: Source, format: str | None = None, *, skip_invalid: bool = False, on_drop: OnDrop | None = None
) -> Corpus | DatasetCorpus:
    """Sentences of a corpus, streamed; the format is told by each file's suffix unless `format` says it.

    | format | suffix | a sentence is |
    |---|---|---|
    | `conllu` | .conllu .conll | a tree (see `read_conllu`) |
    | `text` | .txt .text | a line (see `read_text`) |
    | `jsonl` | .jsonl .ndjson | an object with `words` (a list) or `text` |
    | `parquet` | .parquet | a row with a column `words` or `text`; needs pyarrow |

    Behind any of them .gz or .xz may follow (not Parquet). Objects and rows may also carry `id`, `document`, and for words
    `upos`, `xpos`, `lemmas`, `heads` (1-based, 0 for the root), `deprels`, `segments`; a text of several lines is a document of
    paragraphs. On standard input (`-`) the format is told by the first lines. What is left out with `skip_invalid` is counted in
    `.drops`. `dataset:NAME` is a data set of the library `datasets`, with the same columns as Parquet (see `read_dataset`).
    """
    if isinstance(source, str) and source.startswith(DATASET):
        return read_dataset(source, skip_invalid=skip_invalid, on_drop=on_drop)
    if format is not None and format not in _READERS:
        raise InputError(explain(f"unknown corpus format {format!r}", got=near_names(format, _READERS)))

    def reader_of(file: TextFile) -> Reader:
        if format is None and file.path is None:
            return _sniffing
        return _READERS[format or _format_of(file)]

    files = files_of(source)
    for file in files:
        reader_of(file)
    return Corpus(files, reader_of, skip_invalid, on_drop)


def _format_of(file: TextFile) -> str:
    found = _SUFFIXES.get(file.suffix)
    if found is None:
        remedy = (
            "Rename the file; or give it on standard input (`-`), where the first lines tell; or say `format` in Python"
        )
        expected = f"one of the suffixes {' '.join(_SUFFIXES)}"
        raise InputError(
            explain(
                "cannot tell the format", where=file.name, expected=expected, got=file.suffix or "none", remedy=remedy
            )
        )
    return found


def _sniffing(file: TextFile, reading: Reading) -> Iterator[Sentence]:
    """Standard input: numbered lines with tabs are CoNLL-U, comments apart, a brace begins JSON, anything else is text."""
    lines = lines_of(file)
    start: list[tuple[int, str]] = []
    first = ""
    for number, line in lines:
        start.append((number, line))
        if line.strip() and not line.startswith("#"):
            first = line.strip()
            break
    format = "jsonl" if first.startswith("{") else "conllu" if first[:1].isdigit() and "\t" in first else "text"
    return _READERS[format](replace(file, lines=chain(start, lines)), reading)


def _jsonl_sentences(file: TextFile, reading: Reading) -> Iterator[Sentence]:
    def records() -> Iterator[tuple[int, Any]]:
        for number, line in lines_of(file):
            if line.strip():
                yield number, line

    return records_of(file, records(), reading, _parsed)


def _parsed(number: int, line: str) -> Any:
    try:
        found = json.loads(line)
        if "\\u" in line:  # half of a pair of escapes, as cut-off messages have it, is no character
            json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        got = f"half of a character, {ascii(error.object[error.start])}"
        raise Unusable("not Unicode", number, expected="whole characters", got=got) from error
    except (
        ValueError,
        RecursionError,
    ) as error:  # beside broken JSON, numbers of thousands of digits and very deep lists
        got = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
        raise Unusable("not JSON", number, expected="a JSON object a line", got=got) from error
    return found


def _parquet_sentences(file: TextFile, reading: Reading) -> Iterator[Sentence]:
    if find_spec("pyarrow") is None:
        remedy = "Install pyarrow, or turn the file into JSON lines"
        raise EnvironmentFailure(
            explain("cannot read Parquet", where=file.name, expected="pyarrow", got="none", remedy=remedy)
        )
    if file.path is None:
        raise InputError(explain("cannot read Parquet from standard input", remedy="Save it to a file"))
    yield from records_of(file, _parquet_rows(file.path), reading, lambda number, row: row)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            columns = [name for name in table.schema_arrow.names if name in KEYS]
            refuse_without_words(table.schema_arrow.names, str(path), "Rename one of them")
            number = 0
            for batch in table.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise InputError(
            explain("cannot read the corpus", where=str(path), expected="Parquet", got=str(error))
        ) from error


_READERS: dict[str, Reader] = {
    "conllu": conllu_sentences,
    "text": text_sentences,
    "jsonl": _jsonl_sentences,
    "parquet": _parquet_sentences,
}
_SUFFIXES = {
    ".conllu": "conllu",
    ".conll": "conllu",
    ".txt": "text",
    ".text": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}
