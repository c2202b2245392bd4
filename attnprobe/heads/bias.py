"""Whether heads find antecedents by stereotype: accuracy under conditions that differ in a pronoun's gender only, and the gap between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.errors import InputError, explain
from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import ShardMeasurer
from attnprobe.heads.relations import RIVALS, choose
from attnprobe.heads.running import run_through
from attnprobe.heads.tables import DIRECTIONS, by_cluster
from attnprobe.models.capture import ModelLike, as_model
from attnprobe.records import Sentence
from attnprobe.stream import RatioSums, t_quantile
from attnprobe.text.align import encode
from attnprobe.text.batching import PlanOptions, cluster_of, plan_shards


@dataclass(frozen=True)
class _Counts:
    """Hits and cases of every cluster under every condition."""

    hits: np.ndarray
    """[cluster condition direction layer head]."""
    rivals: np.ndarray
    """[cluster condition rival]."""
    n: np.ndarray
    """[cluster condition]."""
    chance: np.ndarray
    """[cluster condition]."""
    modules: tuple[tuple[str, int, int], ...]


def accuracy_by(
    model: ModelLike,
    sentences: Iterable[Sentence],
    conditions: Sequence[str] = ("stereotyped", "anti-stereotyped"),
    *,
    by: str = "condition",
    relation: str = "coref:pronoun",
    batch_tokens: int = 2048,
) -> xr.Dataset:
    """Accuracy of every head under each condition, and the gap between the first two.

    `conditions` are values of the metadata `by`; sentences with other values are left out. `accuracy(condition, direction, layer, head)` with
    `low`, `high`, and `n`, `chance` and `rival_accuracy` of each condition; `gap(direction, layer, head)`: the first condition's accuracy minus
    the second's, in -1..1, with an interval over documents that takes into account that a document's sentences are variants of one another.
    Sentences of a document must stand together, as the readers of `text.benchmarks` give them. Raises `InputError` where a condition has no
    case. Source: Zhao et al. 2018, Rudinger et al. 2018.
    """
    model = as_model(model)
    wanted = list(conditions)
    if len(wanted) < 2 or len(set(wanted)) < len(wanted):
        raise InputError(explain("cannot compare conditions", expected="two different ones or more", got=repr(wanted)))
    chosen = (sentence for sentence in sentences if sentence.metadata.get(by) in wanted)
    encoded = encode(model.tokenizer, chosen, max_length=model.longest_text)
    parts = []
    for shard, members in plan_shards(
        encoded,
        length=len,
        cluster=lambda item: cluster_of(item.sentence),
        options=PlanOptions(batch_tokens=batch_tokens),
    ):
        cases = Cases(members, choose([relation]))
        measurer = ShardMeasurer([], cases, {"weights": None}, len(members))
        run_through(model, shard, members, measurer, cases)
        if relation in cases.of_relation:
            number = [wanted.index(item.sentence.metadata[by]) for item in members]
            parts.append(_counts(cases, measurer, relation, np.array(shard.clusters), np.array(number), len(wanted)))
    empty = (
        wanted
        if not parts
        else [name for name, n in zip(wanted, sum(part.n.sum(0) for part in parts), strict=True) if not n]
    )
    if empty:
        raise InputError(
            explain(f"no case of {relation!r} under {empty[0]!r}", expected=f"metadata {by!r} and mentions")
        )
    return _table(parts, wanted)


def _counts(
    cases: Cases, measurer: ShardMeasurer, relation: str, cluster: np.ndarray, number: np.ndarray, n_conditions: int
) -> _Counts:
    own = cases.of_relation[relation]
    hits = measurer.case_hits()[own, 0]
    sentence = cases.sentence[own]
    rivals = cases.rival_hits(relation)
    if rivals is None:
        rivals = np.zeros((len(own), len(RIVALS)))
    under = number[sentence][:, None] == np.arange(n_conditions)
    starts = np.flatnonzero(np.diff(cluster[sentence], prepend=-1))

    def split(values: np.ndarray) -> np.ndarray:
        """[case ...] -> [cluster condition ...]."""
        shape = (*under.shape, *[1] * (values.ndim - 1))
        return by_cluster(values[:, None] * under.reshape(shape), starts)

    return _Counts(
        split(hits), split(rivals), split(np.ones(len(own))), split(cases.chance[own]), tuple(measurer.modules)
    )


def _table(parts: Sequence[_Counts], conditions: Sequence[str]) -> xr.Dataset:
    hits, rivals, n, chance = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("hits", "rivals", "n", "chance")
    )
    cases = n[..., None, None, None]
    sums = RatioSums.of(hits, cases)
    low, high = sums.interval()
    total = n.sum(0)
    gap, half = _gap(hits[:, :2], cases[:, :2])
    dims = ["condition", "direction", "layer", "head"]
    unit = {"unit": "share", "limits": np.array([0.0, 1.0])}
    variables: dict[str, Any] = {
        "accuracy": (dims, sums.ratio, unit),
        "low": (dims, low),
        "high": (dims, high),
        "n": ("condition", total, {"unit": "cases"}),
        "chance": ("condition", chance.sum(0) / total, {"unit": "share"}),
        "rival_accuracy": (["condition", "rival"], rivals.sum(0) / total[:, None], {"unit": "share"}),
        "gap": (dims[1:], gap, {"unit": "share", "note": f"{conditions[0]} minus {conditions[1]}"}),
        "gap_low": (dims[1:], np.clip(gap - half, -1, 1)),
        "gap_high": (dims[1:], np.clip(gap + half, -1, 1)),
    }
    modules = parts[0].modules
    coordinates = {
        "condition": list(conditions),
        "direction": list(DIRECTIONS),
        "rival": list(RIVALS),
        "layer": np.arange(len(modules)),
        "kind": ("layer", [kind for kind, _, _ in modules]),
        "index": ("layer", [index for _, index, _ in modules]),
        "head": np.arange(hits.shape[-1]),
    }
    return xr.Dataset(variables, coordinates)


def _gap(hits: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Difference of the two conditions' accuracies and half its 95 % interval: clusters are units, variants within one covary."""
    total = n.sum(0)
    ratio = hits.sum(0) / total
    residual = (hits - ratio * n) / total
    clusters = len(hits)
    apart = residual[:, 0] - residual[:, 1]
    if clusters < 2:
        return ratio[0] - ratio[1], np.full(ratio.shape[1:], np.nan)
    error = np.sqrt(clusters / (clusters - 1) * np.square(apart).sum(0))
    return ratio[0] - ratio[1], t_quantile(clusters) * error
