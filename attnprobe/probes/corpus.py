"""A corpus ready to be probed: encoded for a model, split by clusters, its words labelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attnprobe.errors import InputError
from attnprobe.models.model import Model
from attnprobe.probes.examples import Clusters, Examples
from attnprobe.probes.features import WordRows
from attnprobe.probes.tasks import label
from attnprobe.records import Sentence
from attnprobe.registry import ProbeTask
from attnprobe.text.align import Encoded, encode
from attnprobe.text.drops import Drops


@dataclass(frozen=True)
class Corpus:
    """The corpus as it is probed."""

    encoded: list[Encoded]
    clusters: Clusters
    examples: tuple[Examples, ...]
    drops: Drops


def prepare(model: Model, sentences: Iterable[Sentence], tasks: Sequence[ProbeTask], cluster: str) -> Corpus:
    """Encode the sentences, split them, label their words; `InputError` for a model without tokenizer."""
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer, so a corpus of words cannot be run through it.")
    drops = Drops()
    encoded = list(encode(model.tokenizer, sentences, max_length=model.max_length, on_drop=drops.add))
    kept = [item.sentence for item in encoded]
    clusters = Clusters.of(kept, cluster)
    rows = WordRows.of(encoded)
    examples = tuple(Examples.of(task, label(task, kept), kept, rows, clusters) for task in tasks)
    return Corpus(encoded, clusters, examples, drops)
