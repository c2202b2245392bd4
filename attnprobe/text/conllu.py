"""CoNLL-U files as `Sentence`s, one at a time, each tree checked before it is handed on.

Fields are parsed by the `conllu` package. Lines are cut here, because its line reader also cuts at two spaces, accepts any
number of columns and forgets line numbers, which messages need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from conllu.exceptions import ParseException
from conllu.parser import parse_comment_line, parse_id_value, parse_int_value

from attnprobe.errors import InputError, explain
from attnprobe.records import Sentence
from attnprobe.text.drops import OnDrop
from attnprobe.text.source import Corpus, Reading, Source, TextFile, Unusable, files_of, lines_of

COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
LONGEST_SENTENCE = 100_000
"""Lines without a blank one beyond which a file is taken not to be CoNLL-U."""


def read_conllu(source: Source, *, skip_invalid: bool = False, on_drop: OnDrop | None = None) -> Corpus:
    """Sentences of CoNLL-U files, streamed: iterate over what this returns, as often as needed.

    `source` is a path, a glob, a list of them, or `-` for standard input; .gz and .xz are read as they are. Words are the lines
    with an integer id; multiword tokens and empty nodes are left out. A tree must have ids 1, 2, 3, ..., one root, heads within
    the sentence and no cycle; a sentence whose heads are all `_` has none and passes. `# newdoc id` names the document of the
    sentences that follow (a name met again gets ` #2`); `# global.*` comments are repeated in the metadata of every sentence
    after them.

    An invalid sentence raises `InputError` with file, line and `sent_id`. With `skip_invalid` it is left out, counted by reason
    in `.drops` and reported to `on_drop(reason, where)`; a corpus with no valid sentence at all still raises.
    """
    return Corpus(files_of(source), lambda file: conllu_sentences, skip_invalid, on_drop)


@dataclass
class _Scope:
    """What comments leave behind for the sentences after them."""

    document: str = ""
    shared: dict[str, str] = field(default_factory=dict)
    """The `global.*` comments in force."""


def conllu_sentences(file: TextFile, reading: Reading) -> Iterator[Sentence]:
    """The sentences of one file."""
    scope = _Scope()
    for comments, rows in _blocks(file):
        metadata = _metadata(comments, scope, reading)
        if not rows:
            continue
        reading.met += 1
        try:
            sentence = _sentence(rows, metadata, scope.document, f"s{reading.met}")
        except Unusable as bad:
            reading.refuse(bad, file, metadata.get("sent_id", ""))
        else:
            yield sentence


def _blocks(file: TextFile) -> Iterator[tuple[list[str], list[tuple[int, str]]]]:
    """Comments and numbered word lines of each run of lines between blank ones."""
    comments: list[str] = []
    rows: list[tuple[int, str]] = []
    for number, line in lines_of(file):
        if not line.strip():
            if comments or rows:
                yield comments, rows
            comments, rows = [], []
        elif line.startswith("#") and not rows:
            comments.append(line)
        else:
            rows.append((number, line))
            if len(rows) > LONGEST_SENTENCE:
                got = f"{LONGEST_SENTENCE} lines without a blank one"
                raise InputError(explain("cannot read the corpus", where=file.name, expected="CoNLL-U", got=got))
    if comments or rows:
        yield comments, rows


def _metadata(comments: list[str], scope: _Scope, reading: Reading) -> dict[str, str]:
    """`key = value` comments, those in force for the whole file included; a `newdoc` changes the document."""
    metadata = {}
    for comment in comments:
        for key, value in parse_comment_line(comment):
            if key in ("newdoc", "newdoc id"):
                scope.document = reading.documents.unique(value or "")
            metadata[key] = value or ""
    scope.shared.update((key, value) for key, value in metadata.items() if key.startswith("global."))
    return {**scope.shared, **metadata}


def _sentence(rows: list[tuple[int, str]], metadata: dict[str, str], document: str, number: str) -> Sentence:
    words = [word for row in rows if (word := _columns(*row))]
    if not words:
        raise Unusable("no words", rows[0][0], expected="a line with an integer ID", got="none")
    lines = [line for line, _ in words]
    columns = list(zip(*(fields for _, fields in words), strict=True))
    for place, (line, written) in enumerate(zip(lines, columns[0], strict=True), start=1):
        if written != str(place):
            raise Unusable("broken ids", line, expected=f"ID {place}", got=repr(written))
    return Sentence(
        id=metadata.get("sent_id") or number,
        words=columns[1],
        document=document,
        text=metadata.get("text", ""),
        lemmas=_annotated(columns[2], columns[1]),
        upos=_annotated(columns[3]),
        xpos=_annotated(columns[4]),
        feats=_pairs(columns[5]),
        heads=_heads(columns[6], lines),
        deprels=_annotated(columns[7]),
        misc=_pairs(columns[9]),
        metadata=metadata,
    )


def _columns(number: int, line: str) -> tuple[int, list[str]] | None:
    """The ten fields of a word; None for a multiword token or an empty node."""
    fields = line.split("\t")
    if len(fields) != len(COLUMNS):
        raise Unusable(
            "not CoNLL-U",
            number,
            expected=f"{len(COLUMNS)} columns divided by tabs",
            got=f"{len(fields)}: {line[:40]!r}",
        )
    if "" in fields:
        raise Unusable("empty column", number, expected=f"{COLUMNS[fields.index('')]} or _", got="nothing")
    try:
        identity = parse_id_value(fields[0])
    except ParseException:
        identity = None
    if identity is None:
        raise Unusable("broken ids", number, expected="an ID such as 3, 3-4 or 3.1", got=repr(fields[0]))
    return (number, fields) if isinstance(identity, int) else None


def _annotated(column: tuple[str, ...], forms: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A column with `_` as the empty string, except as the lemma of the word `_`; () where nothing is annotated."""
    if all(value == "_" for value in column):
        return ()
    if forms:
        return tuple("" if value == "_" != form else value for value, form in zip(column, forms, strict=True))
    return tuple("" if value == "_" else value for value in column)


def _pairs(column: tuple[str, ...]) -> tuple[Mapping[str, str], ...]:
    """`a=b|c=d` of each word; values keep further `=` signs, a bare name has an empty value; () where nothing is annotated."""
    if all(value == "_" for value in column):
        return ()
    found = []
    for value in column:
        parts = (part.partition("=") for part in value.split("|") if part != "_")
        found.append({name: rest for name, _, rest in parts if name})
    return tuple(found)


def _heads(column: tuple[str, ...], lines: list[int]) -> tuple[int, ...]:
    if all(value == "_" for value in column):
        return ()
    heads = []
    for number, value in zip(lines, column, strict=True):
        try:
            head = parse_int_value(value)
        except ParseException:
            head = None
        if head is None:
            raise Unusable("broken tree: no head", number, expected="a number as HEAD", got=repr(value))
        heads.append(head)
    if (fault := fault_of_tree(heads)) is not None:
        raise Unusable(f"broken tree: {fault.kind}", lines[fault.word], expected=fault.expected, got=fault.got)
    return tuple(heads)


@dataclass(frozen=True)
class TreeFault:
    """Why governors do not form a tree."""

    kind: str
    """head out of range, several roots, or cycle (which is also what a tree without root has)."""
    word: int
    """0-based word at which it shows."""
    expected: str
    got: str


def fault_of_tree(heads: Sequence[int]) -> TreeFault | None:
    """The first reason why `heads` (1-based, 0 for the root) is no tree with one root; None where it is one.

    >>> fault_of_tree([2, 0, 2]) is None
    True
    >>> fault_of_tree([2, 1, 0]).kind
    'cycle'
    """
    for word, head in enumerate(heads):
        if not 0 <= head <= len(heads):
            return TreeFault("head out of range", word, f"a head from 0 to {len(heads)}", str(head))
    roots = [word for word, head in enumerate(heads) if head == 0]
    if len(roots) > 1:
        got = f"{len(roots)}, words {', '.join(str(root + 1) for root in roots[:5])}"
        return TreeFault("several roots", roots[1], "one root", got)
    done = set(roots)
    for word in range(len(heads)):
        path: list[int] = []
        while word not in done and word not in path:
            path.append(word)
            word = heads[word] - 1
        if word in path:
            round_trip = [place + 1 for place in (*path[path.index(word) :], word)]
            return TreeFault(
                "cycle", word, "one root and no cycle", f"the cycle {' -> '.join(map(str, round_trip[:12]))}"
            )
        done.update(path)
    return None
