"""Sentences of captions that every figure needs: what was run, on how much, how sure, and whether the capture was verified."""

from __future__ import annotations

import json

import numpy as np

from attnprobe.records import Study
from attnprobe.report._figure_values import HeadValues, head_name, table_of

COUNTED_FROM = "Layers and heads count from 0."


def sample(study: Study) -> str:
    """`minilm over the bundled treebank (754 sentences)`."""
    about = study.attributes
    return f"{about.get('model', 'a model')} over {about.get('corpus', 'a corpus')} ({sentences(study)})"


def sentences(study: Study) -> str:
    kept = study.attributes.get("sentences_kept")
    return "number of sentences not recorded" if kept is None else f"{int(kept):,} sentence{'s' * (int(kept) != 1)}"


def checked(study: Study) -> str:
    """Whether recomputed attention matched the model's."""
    if "verification" not in study:
        return "The capture was not verified."
    table = table_of(study, "verification")
    worst = table["pattern_max_abs"].values if "pattern_max_abs" in table else np.array([])
    largest = f" (largest difference {np.nanmax(worst):.1e})" if np.isfinite(worst).any() else ""
    return (
        f"Recomputed attention matches the model's{largest}."
        if study.verified
        else "VERIFICATION FAILED: the capture does not match the model."
    )


def intervals(study: Study) -> str:
    """What an interval is."""
    try:
        unit = json.loads(str(study.attributes.get("plan", "{}"))).get("cluster", "document")
    except (ValueError, AttributeError):
        unit = "document"
    return f"95 % intervals, clustered by {unit}"


def counts(values: HeadValues) -> str:
    """`15,119 query rows a head`, or their range."""
    known = values.count[np.isfinite(values.count) & (values.count > 0)]
    if not known.size:
        return f"number of {values.counted} not recorded"
    low, high = int(known.min()), int(known.max())
    return f"{low:,} {values.counted} a head" if low == high else f"{low:,} to {high:,} {values.counted} a head"


def against(values: HeadValues) -> str:
    """Chance level or baseline."""
    if values.chance is None:
        return f"{values.note}."
    return f"{values.note}. {values.reference} {values.chance:.3g}: {values.chance_name}."


def size_of(values: HeadValues) -> str:
    return f"{values.shape[0]} layers by {values.shape[1]} heads"


def extremes(values: HeadValues) -> str:
    """The lowest and the highest head, for alternative texts."""
    if not np.isfinite(values.value).any():
        return "No head has a value."
    parts = []
    for word, place in (("lowest", np.nanargmin(values.value)), ("highest", np.nanargmax(values.value))):
        at = np.unravel_index(int(place), values.shape)
        parts.append(f"{word} {values.value[at]:.3g} at {head_name(*at)}")
    return f"The {parts[0]}, the {parts[1]}."
