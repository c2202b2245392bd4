"""The labels of each head as figures show them: read from the study, told apart, and short enough for a cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from attnprobe.records import Study
from attnprobe.report._figure_values import part


@dataclass(frozen=True)
class Label:
    """One label of a head, or its nearest miss."""

    family: str
    """position, sink, broad, syntax or semantics."""
    text: str
    """In full: `dep:obj (dep->head)`."""
    short: str
    """As a cell shows it: `obj↑`, ↑ where the dependent looks hardest, ↓ which word looks hardest at the dependent."""
    score: float
    low: float
    high: float
    n: int
    against: float
    """The threshold, or for a relation the baseline."""
    gain: float
    """Accuracy over the baseline; NaN for labels without one."""


@dataclass(frozen=True)
class HeadLabels:
    """The labels of one head, the most telling first; the nearest miss where there are none."""

    labels: tuple[Label, ...]
    nearest: Label | None


def labels_of(study: Study, figure: str) -> np.ndarray:
    """`HeadLabels` of every head, object array [layer head]. A universal relation next to a full label of its own is left out."""
    texts = part(study, "labels", figure)["labels"].values
    found = np.empty(texts.shape, dtype=object)
    for place in np.ndindex(texts.shape):
        record = json.loads(str(texts[place]) or "{}")
        labels = [_label(item) for item in record.get("labels", [])]
        miss = record.get("nearest_miss")
        found[place] = HeadLabels(_told_apart(labels), _label(miss) if miss else None)
    return found


def _label(item: Mapping[str, Any]) -> Label:
    def read(key: str) -> float:
        return float("nan") if item.get(key) is None else float(item[key])

    text = str(item.get("label", ""))
    relation = str(item.get("relation", ""))
    against = read("baseline") if relation else read("threshold")
    short = (
        _short_relation(relation, str(item.get("direction", "")))
        if relation
        else _SHORT.get(text, text.removeprefix("offset ").replace("-", "−") if text.startswith("offset ") else text)
    )
    span = (read("score"), read("low"), read("high"))
    return Label(str(item.get("family", "")), text, short, *span, int(item.get("n") or 0), against, read("difference"))


_SHORT = {
    "previous token": "previous",
    "next token": "next",
    "first token": "first",
    "punctuation": "punct.",
    "itself": "self",
}


def _short_relation(relation: str, direction: str) -> str:
    family, _, label = relation.partition(":")
    name = label if family in ("dep", "udep") and label else relation
    return f"{name.replace('ALL-punct', 'all').replace('ALL', 'all')}{'↓' if direction == 'head->dep' else '↑'}"


def _told_apart(labels: list[Label]) -> tuple[Label, ...]:
    """Without repeats of one finding, relations by their gain, largest first; families in the order of the rules."""
    full = {
        label.text.removeprefix("dep:").split(" ")[0].split(":")[0] for label in labels if label.text.startswith("dep:")
    }
    full |= {"ALL-punct"} if "ALL" in full else set()
    kept: dict[str, Label] = {}
    for label in labels:
        if not (label.text.startswith("udep:") and label.text.removeprefix("udep:").split(" ")[0] in full):
            kept.setdefault(label.text, label)
    order = {name: place for place, name in enumerate(("position", "sink", "broad", "syntax", "semantics"))}
    return tuple(
        sorted(
            kept.values(),
            key=lambda label: (order.get(label.family, 9), -label.gain if label.gain == label.gain else 0),
        )
    )
