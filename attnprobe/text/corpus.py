"""Any corpus by the suffix of its files: CoNLL-U, text, JSON lines, Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from attnprobe.errors import EnvironmentFailure, InputError, explain, near_names
from attnprobe.records import Sentence
from attnprobe.text.conllu import conllu_sentences, fault_of_tree
from attnprobe.text.drops import OnDrop
from attnprobe.text.plain import paragraph, text_sentences
from attnprobe.text.source import Corpus, Reader, Reading, Source, TextFile, Unusable, files_of, lines_of

_ROWS_AT_A_TIME = 256
_PER_WORD = {"upos": str, "xpos": str, "lemmas": str, "deprels": str, "heads": int, "segments": int}
_TEXTS = ("id", "document", "text")


def read_corpus(
    source: Source, format: str | None = None, *, skip_invalid: bool = False, on_drop: OnDrop | None = None
) -> Corpus:
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
    `.drops`.
    """
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
        remedy = f"Say its format: {', '.join(_READERS)}"
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

    return _records(file, records(), reading, _parsed)


def _parsed(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        got = f"{error.msg} at column {error.colno}"
        raise Unusable("not JSON", number, expected="a JSON object a line", got=got) from error


def _parquet_sentences(file: TextFile, reading: Reading) -> Iterator[Sentence]:
    if find_spec("pyarrow") is None:
        remedy = "Install pyarrow, or turn the file into JSON lines"
        raise EnvironmentFailure(
            explain("cannot read Parquet", where=file.name, expected="pyarrow", got="none", remedy=remedy)
        )
    if file.path is None:
        raise InputError(explain("cannot read Parquet from standard input", remedy="Save it to a file"))
    yield from _records(file, _parquet_rows(file.path), reading, lambda number, row: row)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as table:
            columns = [name for name in table.schema_arrow.names if name in (*_TEXTS, "words", *_PER_WORD)]
            number = 0
            for batch in table.iter_batches(batch_size=_ROWS_AT_A_TIME, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
    except pa.ArrowException as error:
        raise InputError(
            explain("cannot read the corpus", where=str(path), expected="Parquet", got=str(error))
        ) from error


def _records(file: TextFile, records: Iterable[tuple[int, Any]], reading: Reading, parse: Any) -> Iterator[Sentence]:
    for number, raw in records:
        try:
            found = _sentences_of(parse(number, raw), number, reading)
        except Unusable as bad:
            reading.met += 1
            reading.refuse(bad, file)
        else:
            yield from found


def _sentences_of(record: Any, number: int, reading: Reading) -> Sequence[Sentence]:
    """The sentence of a record with words, the paragraphs of one with a text."""
    expected = "an object with `words` (a list of strings) or `text` (a string)"
    if not isinstance(record, Mapping):
        raise Unusable("no words", number, expected=expected, got=type(record).__name__)
    for name in _TEXTS:
        if not isinstance(record.get(name) or "", str):
            raise Unusable(f"wrong {name}", number, expected="a string", got=type(record[name]).__name__)
    identity, document, text = (record.get(name) or "" for name in _TEXTS)
    metadata = {"sent_id": identity} if identity else {}
    if record.get("words") is not None:
        words = _listed(record, "words", str, number)
        columns = {name: _listed(record, name, kind, number, len(words)) for name, kind in _PER_WORD.items()}
        if columns["heads"] and (fault := fault_of_tree(columns["heads"])) is not None:
            raise Unusable(f"broken tree: {fault.kind}", number, expected=fault.expected, got=fault.got)
        reading.met += 1
        identity = identity or f"s{reading.met}"
        return [Sentence(identity, words, document, text, metadata=metadata, **columns)]
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise Unusable("no words", number, expected=expected, got=f"the keys {', '.join(map(str, record)) or 'none'}")
    if len(lines) > 1 and not document:
        document = reading.documents.unique(identity)
    found = []
    for place, line in enumerate(lines, start=1):
        reading.met += 1
        name = f"{identity}-{place}" if identity and len(lines) > 1 else identity or f"s{reading.met}"
        found.append(replace(paragraph(line, name, document), metadata=metadata))
    return found


def _listed(
    record: Mapping[str, Any], name: str, kind: type, number: int, length: int | None = None
) -> tuple[Any, ...]:
    """A list of a record, checked; () where it has none."""
    values = record.get(name)
    if values is None:
        return ()
    right = isinstance(values, list) and all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    )
    if not right or (length is None and not values) or (length is not None and len(values) not in (0, length)):
        expected = f"a list of {kind.__name__}" + (f", {length} of them" if length is not None else "")
        got = f"{len(values)} values" if isinstance(values, list) else type(values).__name__
        raise Unusable(f"wrong {name}", number, expected=expected, got=got)
    return tuple(values)


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
