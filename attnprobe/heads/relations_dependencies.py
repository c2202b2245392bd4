"""Relations of the dependency tree: a dependent and its head."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from attnprobe.heads.corpora import same_sentence
from attnprobe.records import Relation, Sentence
from attnprobe.registry import relation

# fmt: off
UNIVERSAL = (
    "acl", "advcl", "advmod", "amod", "appos", "aux", "case", "cc", "ccomp", "clf", "compound", "conj", "cop", "csubj", "dep", "det",
    "discourse", "dislocated", "expl", "fixed", "flat", "goeswith", "iobj", "list", "mark", "nmod", "nsubj", "nummod", "obj", "obl",
    "orphan", "parataxis", "punct", "reparandum", "vocative", "xcomp",
)
# fmt: on
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
    candidates = same_sentence(sentence)
    for label in dict.fromkeys(labels):
        dependents = np.flatnonzero((named == label) & (heads > 0))
        if len(dependents):
            yield Relation(f"{family}:{label}", dependents, heads[dependents] - 1, candidates)


def _everything(name: str, sentence: Sentence, leave_out: tuple[str, ...]) -> Iterator[Relation]:
    heads = np.asarray(sentence.heads, dtype=np.int64)
    left = np.array([label.split(":")[0] in leave_out for label in sentence.deprels], dtype=bool)
    dependents = np.flatnonzero((heads > 0) & ~left) if len(heads) else np.empty(0, dtype=np.int64)
    if len(dependents):
        yield Relation(name, dependents, heads[dependents] - 1, same_sentence(sentence))
