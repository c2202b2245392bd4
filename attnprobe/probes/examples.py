"""From labels to what is fitted and judged: classes, clusters, who trains, who chooses the penalty, who is held out.

Clusters (documents, or sentences) stand or fall together. The `report` half of a corpus is never seen in training; of the `select` half,
one cluster in five is held out to choose the penalty, another fifth for every seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnprobe.errors import InputError, explain
from attnprobe.probes.controls import control_labels
from attnprobe.probes.features import WordRows
from attnprobe.probes.tasks import Labelled
from attnprobe.records import Sentence
from attnprobe.registry import ProbeTask
from attnprobe.text.batching import cluster_of, split_of_sentence

HELD_OUT_SHARE = 0.2
NO_LABELS, ONE_CLASS, NOTHING_HELD_OUT = "no labels in the corpus", "one class only", "no labels in one of the splits"


@dataclass(frozen=True)
class Clusters:
    """Clusters of a corpus's sentences."""

    of_sentence: np.ndarray
    """Number of each sentence's cluster."""
    report: np.ndarray
    """Whether each cluster is of the `report` split."""

    @classmethod
    def of(cls, sentences: Sequence[Sentence], by: str) -> Clusters:
        """Raises `InputError` where fewer than two clusters are left to train on, or none to report on."""
        names = [cluster_of(sentence, by) for sentence in sentences]
        known: dict[str, int] = {}
        of_sentence = np.array([known.setdefault(name, len(known)) for name in names], dtype=np.int64)
        report = np.zeros(len(known), dtype=bool)
        for number, sentence in zip(of_sentence, sentences, strict=True):
            report[number] = split_of_sentence(sentence, by) == "report"
        if (~report).sum() < 2 or not report.any():
            expected = f"at least two {by}s to train on and one to report on (halves are told by a hash of their names)"
            got = f"{(~report).sum()} and {report.sum()}"
            remedy = f"Use a corpus of more {by}s" + (
                ", or cluster='sentence' (--cluster sentence)" if by == "document" else ""
            )
            raise InputError(explain("cannot split the corpus for probing", expected=expected, got=got, remedy=remedy))
        return cls(of_sentence, report)

    def order(self, seed: int) -> np.ndarray:
        """The clusters of the `select` split in the order of this seed: held out come first, then those to train on."""
        select = np.flatnonzero(~self.report)
        return np.random.default_rng([seed, 17]).permutation(select)

    def held_out(self, seed: int) -> np.ndarray:
        """Whether each cluster is held out to choose the penalty."""
        order = self.order(seed)
        chosen = np.zeros(len(self.report), dtype=bool)
        chosen[order[: max(1, round(HELD_OUT_SHARE * len(order)))]] = True
        return chosen


@dataclass(frozen=True)
class Examples:
    """The labelled words (or pairs) of one task that have vectors."""

    task: ProbeTask
    rows: np.ndarray
    """Rows of the vectors: [example], or [example 2] for pairs."""
    y: np.ndarray
    """Class of each example."""
    classes: tuple[str, ...]
    cluster: np.ndarray
    type: np.ndarray
    """Number of the word type of each example's word (its query word)."""
    types: tuple[str, ...]
    left_out: int
    """Labels whose word has no piece, and so no vector."""

    def __len__(self) -> int:
        return len(self.y)

    @classmethod
    def of(
        cls, task: ProbeTask, labelled: Labelled, sentences: Sequence[Sentence], rows: WordRows, clusters: Clusters
    ) -> Examples:
        query = rows.find(labelled.sentence, labelled.query)
        found = query >= 0
        places = query
        if labelled.key:
            key = rows.find(labelled.sentence, labelled.key)
            found &= key >= 0
            places = np.stack([query, key], axis=1)
        classes, y = np.unique(np.asarray(labelled.labels, dtype=object).astype(str)[found], return_inverse=True)
        where = np.asarray(labelled.sentence, dtype=np.int64)[found]
        words = [
            sentences[s].words[w] for s, w, kept in zip(labelled.sentence, labelled.query, found, strict=True) if kept
        ]
        types, numbers = np.unique(np.asarray(words, dtype=object).astype(str), return_inverse=True)
        return cls(
            task,
            places[found],
            y.reshape(-1),
            tuple(classes.tolist()),
            clusters.of_sentence[where],
            numbers.reshape(-1),
            tuple(types.tolist()),
            int((~found).sum()),
        )

    def parts(self, clusters: Clusters, seed: int) -> Parts:
        held, report = clusters.held_out(seed), clusters.report
        return Parts(
            np.flatnonzero(~report[self.cluster] & ~held[self.cluster]),
            np.flatnonzero(held[self.cluster]),
            np.flatnonzero(report[self.cluster]),
        )

    def control(self, clusters: Clusters, seed: int) -> np.ndarray:
        """Control class of each example, drawn by word type from the distribution of classes on `select`."""
        share = np.bincount(self.y[~clusters.report[self.cluster]], minlength=len(self.classes))
        drawn = control_labels(self.types, share, seed=seed, task=self.task.name)
        return drawn[self.type]

    def fault(self, clusters: Clusters, seed: int) -> str | None:
        """Why nothing can be fitted; None where it can."""
        if not len(self):
            return NO_LABELS
        if len(self.classes) < 2:
            return f"{ONE_CLASS}: {self.classes[0]!r}"
        parts = self.parts(clusters, seed)
        if not all(map(len, (parts.train, parts.held_out, parts.report))):
            return NOTHING_HELD_OUT
        trained = np.unique(self.y[parts.train])
        return f"{ONE_CLASS} in training: {self.classes[trained[0]]!r}" if len(trained) < 2 else None


@dataclass(frozen=True)
class Parts:
    """Places of a task's examples that train, choose the penalty, and are reported on."""

    train: np.ndarray
    held_out: np.ndarray
    report: np.ndarray
