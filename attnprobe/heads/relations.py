"""Relations: word pairs of a sentence that a head may connect.

Each is a function `Sentence -> Relation` (or several) under `@relation`; one scorer, one baseline and one test serve them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from attnprobe.errors import InputError, near_names
from attnprobe.records import Relation, Sentence
from attnprobe.registry import RELATIONS, RelationFamily, relation

UNIVERSAL = (
    *("acl", "advcl", "advmod", "amod", "appos", "aux", "case", "cc", "ccomp", "clf", "compound", "conj", "cop", "csubj"),
    *("dep", "det", "discourse", "dislocated", "expl", "fixed", "flat", "goeswith", "iobj", "list", "mark", "nmod", "nsubj"),
    *("nummod", "obj", "obl", "orphan", "parataxis", "punct", "reparandum", "vocative", "xcomp"),
)
"""The relations of Universal Dependencies v2, but for `root`, which no head can point at."""


@relation(kind="syntax", source="Universal Dependencies v2, full labels", labels=("ALL", *UNIVERSAL))
def dep(sentence: Sentence) -> Iterator[Relation]:
    """Dependent and head of every relation by its full label (`dep:nsubj:pass`); `dep:ALL` joins them, the root left out."""
    yield from _by_label("dep", sentence, sentence.deprels)
    yield from _everything("dep:ALL", sentence, leave_out=())


@relation(kind="syntax", source="Universal Dependencies v2, universal labels", labels=("ALL-punct", *UNIVERSAL))
def udep(sentence: Sentence) -> Iterator[Relation]:
    """Dependent and head by the universal part of the label (`udep:nsubj`); `udep:ALL-punct` joins all but punctuation."""
    yield from _by_label("udep", sentence, [label.split(":")[0] for label in sentence.deprels])
    yield from _everything("udep:ALL-punct", sentence, leave_out=("punct",))


def _by_label(family: str, sentence: Sentence, labels: Sequence[str]) -> Iterator[Relation]:
    heads = np.asarray(sentence.heads, dtype=np.int64)
    named = np.asarray(labels, dtype=object)
    for label in dict.fromkeys(labels):
        dependents = np.flatnonzero((named == label) & (heads > 0))
        if len(dependents):
            yield Relation(f"{family}:{label}", dependents, heads[dependents] - 1)


def _everything(name: str, sentence: Sentence, leave_out: tuple[str, ...]) -> Iterator[Relation]:
    heads = np.asarray(sentence.heads, dtype=np.int64)
    left = np.array([label.split(":")[0] in leave_out for label in sentence.deprels], dtype=bool)
    dependents = np.flatnonzero((heads > 0) & ~left) if len(heads) else np.empty(0, dtype=np.int64)
    if len(dependents):
        yield Relation(name, dependents, heads[dependents] - 1)


def relations_of(sentence: Sentence, wanted: Sequence[tuple[RelationFamily, frozenset[str] | None]]) -> list[Relation]:
    """The relations of one sentence from the chosen families, those not asked for left out."""
    found: list[Relation] = []
    for family, names in wanted:
        result = family.function(sentence)
        several = [result] if isinstance(result, Relation) else list(result)
        found += [item for item in several if names is None or item.name in names]
    return found


def choose(names: Iterable[str]) -> list[tuple[RelationFamily, frozenset[str] | None]]:
    """Families and the names wanted of each: `dep` takes the whole family, `dep:obj` one label of it.

    Raises `InputError` for an unknown family, or a label whose universal part the family does not know, listing the near ones.
    """
    chosen: dict[str, set[str] | None] = {}
    for name in names:
        family, _, label = name.partition(":")
        entry = RELATIONS[family]
        if not label:
            chosen[family] = None
            continue
        if entry.labels and label not in entry.labels and label.split(":")[0] not in entry.labels:
            known = [f"{family}:{known}" for known in entry.labels]
            raise InputError(f"unknown relation {name!r}; {near_names(name, known)}.")
        wanted = chosen.setdefault(family, set())
        if wanted is not None:
            wanted.add(name)
    return [(RELATIONS[family], None if wanted is None else frozenset(wanted)) for family, wanted in chosen.items()]
