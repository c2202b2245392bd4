"""Probe tasks: what a probe is asked to read off a vector, as functions `Sentence -> labels` under `@probe_task`.

A task of words gives one label per word, None where a word has none, or nothing at all for a sentence without that annotation. A task of
pairs gives (query word, key word, label). Labels out of other files are in `labels.py`; control labels are in `controls.py`.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from attnprobe.errors import InputError, explain, near_names
from attnprobe.probes.labels import ner_from, supersense_from
from attnprobe.records import Sentence
from attnprobe.registry import PROBE_TASKS, ProbeTask, location, probe_task
from attnprobe.text.entities import mentions_of

FEATURES = (
    *(
        "Abbr",
        "Animacy",
        "Aspect",
        "Case",
        "Clusivity",
        "Definite",
        "Degree",
        "Deixis",
        "DeixisRef",
        "Evident",
        "ExtPos",
    ),
    *(
        "Foreign",
        "Gender",
        "Mood",
        "NounClass",
        "Number",
        "NumType",
        "Person",
        "Polarity",
        "Polite",
        "Poss",
        "PronType",
    ),
    *("Reflex", "Tense", "Typo", "VerbForm", "Voice"),
)
"""The universal features of Universal Dependencies v2; others are taken by name too."""

POSITION_BINS = (1, 2, 4, 8, 16, 32)
LENGTH_BINS = (6, 11, 16, 21, 31, 51)
DEPTH_BINS = (1, 2, 3, 4, 5, 6)

UD = "Universal Dependencies v2"
WordLabels = Sequence[str | None]
PairLabels = Iterable[tuple[int, int, str]]


@probe_task(level="word", kind="syntax", source=UD)
def upos(sentence: Sentence) -> WordLabels:
    """Universal part of speech."""
    return _filled(sentence.upos)


@probe_task(level="word", kind="syntax", source="the treebank's own tags")
def xpos(sentence: Sentence) -> WordLabels:
    """Part of speech in the treebank's own tags."""
    return _filled(sentence.xpos)


@probe_task(level="word", kind="syntax", source=UD)
def deprel(sentence: Sentence) -> WordLabels:
    """Relation of each word to its governor, subtype included; the root's is `root`."""
    return _filled(sentence.deprels)


def feature_task(feature: str) -> ProbeTask:
    """The task `feats:FEATURE`: its value, on the words that have that feature."""

    def value(sentence: Sentence) -> WordLabels:
        return [feats.get(feature) for feats in sentence.feats]

    return ProbeTask(f"feats:{feature}", value, "word", "syntax", UD)


for _feature in FEATURES:
    PROBE_TASKS.add(feature_task(_feature))


@probe_task(level="word", kind="position", source="place in the sentence, in powers of two")
def position(sentence: Sentence) -> WordLabels:
    """Place of the word, counted from 0: 0, 1, 2-3, 4-7, 8-15, 16-31, 32+."""
    return [_binned(place, POSITION_BINS) for place in range(len(sentence))]


@probe_task(level="word", kind="position", source="Conneau et al. 2018, SentLen")
def sentence_length(sentence: Sentence) -> WordLabels:
    """Words of the sentence, the same for each: 0-5, 6-10, 11-15, 16-20, 21-30, 31-50, 51+."""
    return [_binned(len(sentence), LENGTH_BINS)] * len(sentence)


@probe_task(level="word", kind="syntax", source="Conneau et al. 2018, TreeDepth, for single words")
def tree_depth(sentence: Sentence) -> WordLabels:
    """Arcs between the word and the root: 0 to 5, 6+."""
    return [_binned(depth, DEPTH_BINS) for depth in depths_of(sentence.heads)]


@probe_task(level="word", kind="semantics", source="MISC: NER=, or the entity types of Entity=")
def ner(sentence: Sentence) -> WordLabels:
    """Type of the entity a word is part of, the innermost where they nest; O outside. `ner:FILE` reads an IOB2 file."""
    if any("NER" in misc for misc in sentence.misc):
        return [misc.get("NER", "O").split("-")[-1] for misc in sentence.misc]
    if "global.Entity" not in sentence.metadata and not any("Entity" in misc for misc in sentence.misc):
        return ()
    labels = ["O"] * len(sentence)
    for mention in sorted(mentions_of(sentence), key=lambda mention: -len(mention.words)):
        for word in mention.words:
            labels[word] = mention.type or "entity"
    return labels


@probe_task(level="word", kind="semantics", source="STREUSLE (Schneider et al. 2018)")
def supersense(sentence: Sentence) -> WordLabels:
    """Supersense out of MISC Supersense=, on the words that have one. `supersense:FILE` reads a file of STREUSLE (.conllulex)."""
    return [misc.get("Supersense") for misc in sentence.misc]


@probe_task(level="pair", kind="syntax", source="Liu et al. 2019, arc prediction")
def arc(sentence: Sentence) -> PairLabels:
    """Each word with its governor (`arc`) and with another word drawn at random (`none`)."""
    for word, head in enumerate(sentence.heads):
        if head > 0:
            yield word, head - 1, "arc"
            others = [other for other in range(len(sentence)) if other not in (word, head - 1)]
            if others:
                yield word, _drawn(sentence, word, others), "none"


@probe_task(level="pair", kind="semantics", source="Liu et al. 2019, coreference arc prediction")
def same_entity(sentence: Sentence) -> PairLabels:
    """Head words of two mentions of one entity (`same`), and of the second with a mention of another (`other`), as many."""
    mentions = {mention.head: mention.cluster for mention in mentions_of(sentence)}
    places = sorted(mentions)
    for i, second in enumerate(places):
        others = [first for first in places[:i] if mentions[first] != mentions[second]]
        for first in places[:i]:
            if mentions[first] == mentions[second] and others:
                yield second, first, "same"
                yield second, _drawn(sentence, second, others), "other"


def depths_of(heads: Sequence[int]) -> list[int]:
    """Arcs between each word and the root, for heads that form a tree (1-based, 0 for the root).

    >>> depths_of([2, 0, 2, 3])
    [1, 0, 1, 2]
    """
    depths: dict[int, int] = {}
    for word in range(len(heads)):
        path = []
        while word not in depths and heads[word] > 0:
            path.append(word)
            word = heads[word] - 1
        depth = depths.setdefault(word, 0)
        for place, below in enumerate(reversed(path), start=1):
            depths[below] = depth + place
    return [depths[word] for word in range(len(heads))]


def choose_tasks(names: Iterable[str | ProbeTask | Callable[[Sentence], WordLabels]]) -> list[ProbeTask]:
    """Tasks by name, or as they are.

    Besides registered names: `feats:FEATURE`, `misc:KEY` (a key of the MISC column), `ner:FILE` (IOB2), `supersense:FILE` (STREUSLE).
    `feats` alone stands for all universal features. A plain function `Sentence -> labels` becomes a task of words under its own name.
    Raises `InputError` for an unknown name, listing the near ones, or a name that comes twice.
    """
    if isinstance(names, str):
        raise InputError(explain("cannot choose the probe tasks", expected="a list of names", got=repr(names)))
    tasks: list[ProbeTask] = []
    for name in names:
        if isinstance(name, ProbeTask):
            tasks.append(name)
        elif callable(name):
            tasks.append(ProbeTask(getattr(name, "__name__", "labels"), name, "word", "own", "the user's own labels"))
        elif name == "feats":
            tasks += [PROBE_TASKS[f"feats:{feature}"] for feature in FEATURES]
        else:
            tasks.append(_named(name))
    twice = {task.name for task in tasks if sum(other.name == task.name for other in tasks) > 1}
    if twice or not tasks:
        got = f"{sorted(twice)[0]!r} twice" if twice else "none"
        raise InputError(explain("cannot choose the probe tasks", expected="at least one, each once", got=got))
    return tasks


def _named(name: str) -> ProbeTask:
    family, colon, argument = name.partition(":")
    if name in PROBE_TASKS or not colon:
        return PROBE_TASKS[name]
    if family not in _FAMILIES or not argument:
        known = [*PROBE_TASKS.names(), *(f"{family}:..." for family in _FAMILIES)]
        raise InputError(f"unknown probe task {name!r}; {near_names(name, known)}.")
    return _FAMILIES[family](argument)


def misc_task(key: str) -> ProbeTask:
    """The task `misc:KEY`: the value of that key in the MISC column, on the words that have it."""

    def value(sentence: Sentence) -> WordLabels:
        return [misc.get(key) for misc in sentence.misc]

    return ProbeTask(f"misc:{key}", value, "word", "own", f"MISC {key}=")


_FAMILIES: dict[str, Callable[[str], ProbeTask]] = {
    "feats": feature_task,
    "misc": misc_task,
    "ner": ner_from,
    "supersense": supersense_from,
}


@dataclass(frozen=True)
class Labelled:
    """The labels of a task over a corpus, in the order of the sentences."""

    labels: tuple[str, ...]
    sentence: tuple[int, ...]
    """Place of each label's sentence."""
    query: tuple[int, ...]
    """Its word; of a pair, the query word."""
    key: tuple[int, ...]
    """Of a pair, the key word; empty for tasks of words."""


def label(task: ProbeTask, sentences: Iterable[Sentence]) -> Labelled:
    """The labels of all sentences; empty where the corpus has none.

    Raises `InputError`, with the function's file and line, for a number of labels that differs from the number of words, or for pairs
    out of the sentence.
    """
    found: list[tuple[str, int, int, int]] = []
    for number, sentence in enumerate(sentences):
        given = _given(task, sentence)
        items = _pairs(task, sentence, given) if task.level == "pair" else _words(task, sentence, given)
        found += [(text, number, query, key) for text, query, key in items]
    labels, places, queries, keys = zip(*found, strict=True) if found else ((), (), (), ())
    return Labelled(labels, places, queries, keys if task.level == "pair" else ())


def _given(task: ProbeTask, sentence: Sentence) -> Any:
    """What the task's function gives; None is taken for nothing."""
    given = task.function(sentence)
    if isinstance(given, str) or not isinstance(given, Iterable | None):
        where = f"sentence {sentence.id!r} ({location(task)})"
        expected = "a list of labels, one per word (None for a word without one)"
        what = f"the task {task.name!r} gives no labels"
        raise InputError(explain(what, where=where, expected=expected, got=repr(given)[:40]))
    return () if given is None else given


def _words(task: ProbeTask, sentence: Sentence, given: WordLabels) -> Iterator[tuple[str, int, int]]:
    given = list(given)
    if given and len(given) != len(sentence):
        where = f"sentence {sentence.id!r} ({location(task)})"
        expected = f"{len(sentence)} labels, one per word, or none"
        what = f"the task {task.name!r} does not fit its sentence"
        raise InputError(explain(what, where=where, expected=expected, got=str(len(given))))
    return (
        (str(text), word, -1) for word, text in enumerate(given) if text is not None and text == text
    )  # NaN is none


def _pairs(task: ProbeTask, sentence: Sentence, given: PairLabels) -> Iterator[tuple[str, int, int]]:
    for query, key, text in given:
        if not (0 <= query < len(sentence) and 0 <= key < len(sentence)):
            where = f"sentence {sentence.id!r} ({location(task)})"
            expected = f"words from 0 to {len(sentence) - 1}"
            what = f"the task {task.name!r} does not fit its sentence"
            raise InputError(explain(what, where=where, expected=expected, got=f"the pair ({query}, {key})"))
        yield str(text), query, key


def _filled(values: Sequence[str]) -> WordLabels:
    return [value or None for value in values]


def _binned(value: int, bins: Sequence[int]) -> str:
    """`low-high` of the bin a value falls in; `bins` are the lowest values of all but the first."""
    place = bisect_right(bins, value)
    low = bins[place - 1] if place else 0
    if place == len(bins):
        return f"{low}+"
    return f"{low}-{bins[place] - 1}" if bins[place] - 1 > low else str(low)


def _drawn(sentence: Sentence, word: int, choices: Sequence[int]) -> int:
    """One of the choices, always the same for the same word of the same sentence."""
    return random.Random(f"{sentence.id}|{' '.join(sentence.words)}|{word}").choice(choices)
