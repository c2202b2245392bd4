"""Relations: word pairs of a sentence that a head may connect.

Each is a function `Sentence -> Relation` (or several) under `@relation`; one scorer, one baseline and one test serve them all. The
functions stand in `relations_dependencies`, `relations_reference` and `relations_words`; here they are chosen by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from attnprobe.errors import InputError, near_names
from attnprobe.heads import relations_dependencies, relations_reference, relations_words  # registers them
from attnprobe.heads.corpora import RANK, with_ranks
from attnprobe.records import Relation, Sentence
from attnprobe.registry import RELATIONS, RelationFamily

UNIVERSAL = relations_dependencies.UNIVERSAL
RIVALS, RIVALS_OF = relations_reference.RIVALS, relations_reference.RIVALS_OF

Chosen = Sequence[tuple[RelationFamily, frozenset[str] | None]]
"""Families with the names wanted of each; None: all of them."""


def relations_of(sentence: Sentence, wanted: Chosen) -> list[Relation]:
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


def annotated(sentences: Iterable[Sentence], names: Iterable[str]) -> Iterable[Sentence]:
    """The corpus with what these relations need and it lacks: frequency ranks for `rare`, counted in the corpus itself."""
    families = {name.partition(":")[0] for name in names}
    if relations_words.rare.name not in families:
        return sentences
    if any(RANK in own for sentence in islice(sentences, 20) for own in sentence.misc):
        return sentences
    return with_ranks(sentences)
