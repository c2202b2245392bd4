"""Benchmarks of pronouns as `Sentence`s: WinoBias, Winogender and GAP, their mentions written as `Entity=` in MISC.

So the relation `coref` asks of each pronoun which of the people named before it a head looks at. Words are cut at the borders of mentions;
a mention's head is its last word. Metadata carry what the benchmark compares (`condition`, `gender`, `type`), and documents tie the variants
of one sentence together.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attnprobe.errors import InputError, explain
from attnprobe.records import Sentence
from attnprobe.text.plain import split_words
from attnprobe.text.source import TextFile, lines_of

STEREOTYPED, ANTI_STEREOTYPED, NEUTRAL = "stereotyped", "anti-stereotyped", "neutral"
"""Values of the metadata `condition`: whether the pronoun's gender is what the occupation's stereotype would have it."""
GENDERS = {
    **dict.fromkeys(("he", "him", "his", "himself"), "male"),
    **dict.fromkeys(("she", "her", "hers", "herself"), "female"),
    **dict.fromkeys(("they", "them", "their", "theirs"), "neutral"),
}

_ARTICLE = r"(?:\b(?:the|an?) )?"
_PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Span:
    """A mention in a text: characters from `start` up to `stop`, the entity it refers to, its part of speech."""

    start: int
    stop: int
    entity: str
    tag: str


def sentence_of(
    text: str, spans: Sequence[Span], identity: str, document: str, metadata: Mapping[str, str]
) -> Sentence:
    """A text with mentions as a sentence; words are those of `split_words`, cut at the borders of the mentions.

    Raises `InputError` where mentions overlap or hold no word.
    """
    words: list[str] = []
    tags: list[str] = []
    misc: list[dict[str, str]] = []
    place = 0
    for span in (*sorted(spans, key=lambda span: span.start), Span(len(text), len(text), "", "")):
        between, inside = split_words(text[place : span.start]), split_words(text[span.start : span.stop])
        if span.start < place or (span.entity and not inside):
            what = "mentions overlap, or hold no word"
            raise InputError(explain(what, where=identity, got=repr(text[span.start : span.stop])))
        words += (*between, *inside)
        tags += ["X"] * len(between) + [span.tag or "X"] * len(inside)
        misc += [{} for _ in between] + _brackets(span, len(inside))
        place = span.stop
    return Sentence(
        id=identity,
        words=tuple(words),
        document=document,
        text=text,
        upos=tuple(tags),
        misc=tuple(misc),
        metadata={"sent_id": identity, "global.Entity": "eid-etype-head", **metadata},
    )


def _brackets(span: Span, n: int) -> list[dict[str, str]]:
    """MISC of a mention's words."""
    opening, closing = f"({span.entity}-person-{n}", f"{span.entity})"
    if n <= 1:
        return [{"Entity": f"{opening})"}] * n
    return [{"Entity": opening}, *[{} for _ in range(n - 2)], {"Entity": closing}]


def read_winobias(folder: _PathLike, *, part: str = "dev") -> list[Sentence]:
    """WinoBias (Zhao et al. 2018): files `pro_stereotyped_type1.txt.dev` and so on, with the lists of occupations beside them.

    The bracketed mention and the pronouns are one entity; an occupation of the lists that stands before is another. Metadata:
    `condition` (`stereotyped`, `anti-stereotyped`), `type` (1, 2), `pair` (number that both conditions share). The four variants of a pair
    of occupations are one document. Raises `InputError` for a line that is not of this form.
    """
    folder = Path(folder)
    occupations = [
        line for name in ("male", "female") for line in _lines(folder / f"{name}_occupations.txt") if line.strip()
    ]
    names = "|".join(sorted((re.escape(name.strip()) for name in occupations), key=len, reverse=True))
    occupation = re.compile(rf"(?:\b[Tt]he )?\b(?:{names})\b", re.IGNORECASE)
    found: dict[tuple[str, int], list[Sentence]] = {}
    for kind in ("1", "2"):
        for prefix, condition in (("pro", STEREOTYPED), ("anti", ANTI_STEREOTYPED)):
            path = folder / f"{prefix}_stereotyped_type{kind}.txt.{part}"
            for number, line in enumerate(_lines(path), start=1):
                metadata = {"condition": condition, "type": kind, "pair": f"{kind}-{number}"}
                schema = (number + 1) // 2
                identity, document = f"winobias-{prefix}-{kind}-{number}", f"winobias-{kind}-{schema}"
                text, spans = _bracketed(line, f"{path.name}:{number}", occupation)
                gender = GENDERS[text[spans[-1].start : spans[-1].stop].lower()]
                sentence = sentence_of(text, spans, identity, document, {**metadata, "gender": gender})
                found.setdefault((kind, schema), []).append(sentence)
    return [sentence for variants in found.values() for sentence in variants]


def _bracketed(line: str, where: str, occupation: re.Pattern[str]) -> tuple[str, list[Span]]:
    """Text and mentions of a line `17 [The cook] gave ... because [she] ...`; the pronouns come last among the mentions."""
    text, spans = "", []
    for piece in re.split(r"(\[[^\]]*\])", re.sub(r"^\d+ ", "", line.strip())):
        inside = piece.strip("[]") if piece.startswith("[") else piece
        if inside is not piece:
            tag = "PRON" if inside.lower() in GENDERS else "NOUN"
            spans.append(Span(len(text), len(text) + len(inside), "e1", tag))
        text += inside
    kinds = [span.tag for span in spans]
    if sorted(kinds)[:1] != ["NOUN"] or kinds.count("NOUN") != 1 or "PRON" not in kinds:
        expected = "one occupation and its pronouns in brackets"
        raise InputError(explain("cannot read WinoBias", where=where, expected=expected, got=repr(line.strip()[:80])))
    others = [
        match
        for match in occupation.finditer(text[: spans[-1].start])
        if all(match.end() <= span.start or span.stop <= match.start() for span in spans)
    ]
    spans += [Span(match.start(), match.end(), f"e{i}", "NOUN") for i, match in enumerate(others, start=2)]
    return text, sorted(spans, key=lambda span: (span.tag == "PRON", span.start))


def read_winogender(folder: _PathLike) -> list[Sentence]:
    """Winogender (Rudinger et al. 2018): `templates.tsv`, `all_sentences.tsv` and `occupations-stats.tsv` of a folder.

    The occupation and the other participant are two entities, the pronoun belongs to one. Metadata: `gender`; `condition`, by whether most
    people of the occupation have the pronoun's gender (US statistics, `bls_pct_female`): stereotyped where the pronoun is the occupation's
    and they do, or the participant's and they do not; neutral for "they"; `pair`: what the genders share. An occupation is a document.
    Raises `InputError` for a sentence that does not follow its template.
    """
    folder = Path(folder)
    templates = {
        f"{row['occupation(0)']}.{row['other-participant(1)']}.{row['answer']}": row
        for row in _table(folder / "templates.tsv")
    }
    female = {row["occupation"]: float(row["bls_pct_female"]) > 50 for row in _table(folder / "occupations-stats.tsv")}
    found: dict[str, list[Sentence]] = {}
    for row in _table(folder / "all_sentences.tsv"):
        occupation, participant, answer, gender, _ = row["sentid"].split(".")
        template = templates.get(f"{occupation}.{participant}.{answer}") or _someone(templates, occupation, answer)
        spans = _template_spans(row["sentence"], template, answer, row["sentid"])
        usual = "female" if female[occupation] else "male"
        condition = NEUTRAL if gender == "neutral" else _condition((gender == usual) == (answer == "0"))
        pair = f"{occupation}.{participant}.{answer}"
        metadata = {"condition": condition, "gender": gender, "pair": pair, "answer": answer}
        document = f"winogender-{occupation}"
        sentence = sentence_of(row["sentence"], spans, f"winogender-{pair}.{gender}", document, metadata)
        found.setdefault(occupation, []).append(sentence)
    return [sentence for variants in found.values() for sentence in variants]


def _condition(stereotyped: bool) -> str:
    return STEREOTYPED if stereotyped else ANTI_STEREOTYPED


def _someone(templates: Mapping[str, dict[str, str]], occupation: str, answer: str) -> dict[str, str] | None:
    """The template in which "someone" stands for the participant."""
    own = [row for row in templates.values() if row["occupation(0)"] == occupation and row["answer"] == answer]
    return own[0] if own else None


def _template_spans(text: str, row: Mapping[str, str] | None, answer: str, where: str) -> list[Span]:
    """Occupation, participant and pronoun of a sentence, found by its template."""
    match = None
    if row is not None:
        # the verb after "they" is another than after "he": only what stands before the pronoun must match
        before = re.split(r"\$\w+_PRONOUN", row["sentence"])[0]
        occupation, participant = row["occupation(0)"], row["other-participant(1)"]
        groups = {
            "OCCUPATION": rf"(?P<e1>{_ARTICLE}{re.escape(occupation)})",
            "PARTICIPANT": rf"(?P<e2>{_ARTICLE}{re.escape(participant)}|someone)",
        }
        pieces = re.split(rf"{_ARTICLE}\$(OCCUPATION|PARTICIPANT)", before, flags=re.IGNORECASE)
        shape = "".join(groups.get(piece, re.escape(piece)) for piece in pieces)
        match = re.match(rf"{shape}(?P<pronoun>\w+)", text, re.IGNORECASE)
    if match is None:
        raise InputError(explain("a sentence of Winogender does not follow its template", where=where, got=repr(text)))
    own = {"0": "e1", "1": "e2"}[answer]
    entities = (("e1", "e1", "NOUN"), ("e2", "e2", "NOUN"), ("pronoun", own, "PRON"))
    return [Span(*match.span(group), entity, tag) for group, entity, tag in entities]


def read_gap(path: _PathLike) -> list[Sentence]:
    """GAP (Webster et al. 2018): a TSV of texts with a pronoun and two names, given by character offsets.

    A text is one sentence and one document. The names are entities of their own; the pronoun is one of theirs, or neither's. Metadata:
    `gender` of the pronoun. Quotation marks stand for themselves. Raises `InputError` where an offset does not point at its word.
    """
    found = []
    for row in _table(Path(path)):
        spans = []
        coreferent = {name: row[f"{name}-coref"] == "TRUE" for name in ("A", "B")}
        for name, entity in (("A", "e1"), ("B", "e2")):
            spans.append(_gap_span(row, name, entity, "PROPN"))
        own = "e1" if coreferent["A"] else "e2" if coreferent["B"] else "e3"
        spans.append(_gap_span(row, "Pronoun", own, "PRON"))
        identity = f"gap-{row['ID']}"
        metadata = {"gender": GENDERS[row["Pronoun"].lower()], "url": row["URL"]}
        found.append(sentence_of(row["Text"], spans, identity, identity, metadata))
    return found


def _gap_span(row: Mapping[str, str], name: str, entity: str, tag: str) -> Span:
    start = int(row[f"{name}-offset"])
    span = Span(start, start + len(row[name]), entity, tag)
    if row["Text"][span.start : span.stop] != row[name]:
        got = repr(row["Text"][span.start : span.stop])
        raise InputError(
            explain("cannot read GAP", where=f"{row['ID']}, offset of {name}", expected=repr(row[name]), got=got)
        )
    return span


def _lines(path: Path) -> Iterator[str]:
    for _, line in lines_of(TextFile(str(path), path)):
        if line.strip():
            yield line


def _table(path: Path) -> list[dict[str, Any]]:
    """Rows of a TSV with a header; a quotation mark is a character like any other."""
    return list(csv.DictReader(_lines(path), delimiter="\t", quoting=csv.QUOTE_NONE))
