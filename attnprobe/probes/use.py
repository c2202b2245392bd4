"""Knowing is not using: what happens to a probe on the final layer when a head that carries the label is taken away.

A good probe shows that a head's output carries a label, not that the model needs it there (Elazar et al. 2021). So the head is ablated, and
the same probe, trained on the final states of the whole model, is judged on the final states without the head; beside it, heads of the same
layer drawn at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnprobe.errors import InputError, explain
from attnprobe.models.capture import ModelLike, as_model
from attnprobe.models.intervene import HOW, ablating, mean_contexts
from attnprobe.models.model import Model
from attnprobe.probes.controls import majority
from attnprobe.probes.corpus import Corpus, prepare
from attnprobe.probes.evaluate import Probe, Vectors
from attnprobe.probes.examples import Examples, Parts
from attnprobe.probes.features import Pooling, WordRows, model_inputs, pad_id, run_words
from attnprobe.probes.linear import PENALTIES, Scaler
from attnprobe.probes.tasks import choose_tasks
from attnprobe.records import Sentence
from attnprobe.registry import ProbeTask
from attnprobe.stream import RatioSums
from attnprobe.text.align import Encoded
from attnprobe.text.batching import Batch, PlanOptions, collate, plan_shards

Head = tuple[int, int]
"""(layer, head), counted from 0; layers in execution order."""
SCALARS = ("accuracy", "majority", "n")
Watch = Callable[[Model, Sequence[Encoded]], tuple[np.ndarray, np.ndarray]]
"""A loss to watch as well: its total and its count for each sentence; intervals are over sentences."""


def probe_against_use(
    model: ModelLike,
    sentences: Iterable[Sentence],
    *,
    task: str | ProbeTask | Callable[[Sentence], Sequence[str | None]],
    heads: Sequence[Head],
    how: str = "mean",
    random_heads: int = 5,
    penalties: Sequence[float] = PENALTIES,
    cluster: str = "document",
    seed: int = 0,
    max_sentences: int = 300,
    watch: Watch | None = None,
) -> xr.Dataset:
    """Ablate each head and say what changes in the probe for `task` on the model's final states.

    The probe is trained once, on the whole model. For each head (and `random_heads` others of its layer) the final states of at most
    `max_sentences` sentences of the `report` half are computed without it: `change` is accuracy without the head minus accuracy with it,
    paired by cluster, with interval; `difference` that change minus the mean change for random heads; `states` 1 - cosine of the final states
    (mean over words). `how`: zero, mean or uniform. `watch` adds what a loss does, as `loss`.

    Raises `InputError` for a task that cannot be fitted, an unknown `how`, or a head the model does not have.
    """
    model = as_model(model)
    if not heads or how not in HOW:
        got = f"{len(heads)} heads, how={how!r}"
        raise InputError(explain("cannot ablate", expected=f"at least one head, how one of {', '.join(HOW)}", got=got))
    if max_sentences < 1 or random_heads < 0:
        got = f"max_sentences={max_sentences}, random_heads={random_heads}"
        raise InputError(explain("wrong numbers", expected="at least one sentence, no fewer than 0 heads", got=got))
    [chosen] = choose_tasks([task])
    corpus = prepare(model, sentences, [chosen], cluster)
    [examples] = corpus.examples
    fault = examples.fault(corpus.clusters, seed)
    if fault is not None:
        raise InputError(explain(f"the task {chosen.name!r} cannot be probed on this corpus", got=fault))
    setting = _Setting.of(model, corpus, examples, seed, penalties, max_sentences, watch)
    means = mean_contexts(model, setting.training_batches()) if how == "mean" else None
    n_heads = setting.heads_of_layers()
    whole, outcomes = setting.outcome(), dict[Head, _Outcome]()

    def without(head: Head) -> _Outcome:
        if head not in outcomes:
            with ablating(model, [head], how=how, means=means):
                outcomes[head] = setting.outcome()
        return outcomes[head]

    beside = [_beside(head, n_heads, random_heads, seed) for head in heads]
    rows = [(head, without(head), [without(o) for o in others]) for head, others in zip(heads, beside, strict=True)]
    return _dataset(rows, whole, setting, {"task": chosen.name, "how": how})


def best_head(table: xr.Dataset, task: str) -> Head:
    """The head of which `task` is read with most selectivity, in a `/probes` table; on `context`, or else on the first site probed."""
    sites = [str(name) for name in table["site"].values]
    values = table["selectivity"].sel(task=task, site="context" if "context" in sites else sites[0])
    layer, head = np.unravel_index(int(np.nanargmax(values.values)), values.shape)
    return int(table["layer"].values[layer]), int(table["head"].values[head])


def over_tasks(found: Iterable[xr.Dataset]) -> xr.Dataset:
    """The results of `probe_against_use` for several tasks as one table: every case with its `task` and the numbers of the whole model."""
    tables = []
    for table in found:
        n = table.sizes["case"]
        whole = {name: ("case", np.repeat(table[name].values, n), table[name].attrs) for name in SCALARS}
        tables.append(table.assign(whole).assign_coords(task=("case", [table.attrs["task"]] * n)))
    attributes = {"how": tables[0].attrs["how"]}
    attributes["random_heads"] = [n for table in tables for n in table.attrs["random_heads"]]
    return xr.concat([table.drop_attrs(deep=False) for table in tables], "case").assign_attrs(attributes)


def _beside(head: Head, n_heads: Mapping[int, int], wanted: int, seed: int) -> list[Head]:
    """Other heads of the same layer, drawn at random; `InputError` for a head the model does not have."""
    layer, number = head
    if layer not in n_heads or not 0 <= number < n_heads[layer]:
        expected = ", ".join(f"layer {i}: heads 0 to {n - 1}" for i, n in list(n_heads.items())[:3])
        raise InputError(explain(f"no head {number} in layer {layer}", expected=expected))
    others = [(layer, other) for other in range(n_heads[layer]) if other != number]
    drawn = np.random.default_rng([seed, *head]).permutation(len(others))[:wanted]
    return [others[i] for i in sorted(drawn)]


@dataclass(frozen=True)
class _Outcome:
    """What one model, whole or with a head taken away, does on the report sentences."""

    hits: np.ndarray
    """Labels found, by cluster."""
    states: Tensor
    """Final states of all words, at unit length, [row dim]."""
    loss: tuple[np.ndarray, np.ndarray] | None


@dataclass(frozen=True)
class _Setting:
    """The trained probe, and everything needed to judge it again."""

    model: Model
    train: list[Encoded]
    report: list[Encoded]
    rows: WordRows
    """Of the report sentences."""
    probe: Probe
    scaler: Scaler
    example_rows: np.ndarray
    y: np.ndarray
    cluster: np.ndarray
    """Cluster of each example reported on."""
    majority: float
    watch: Watch | None

    @classmethod
    def of(
        cls,
        model: Model,
        corpus: Corpus,
        examples: Examples,
        seed: int,
        penalties: Sequence[float],
        max_sentences: int,
        watch: Watch | None,
    ) -> _Setting:
        if examples.rows.ndim != 1:
            raise InputError(
                explain("probe against use is for tasks of words", got=f"{examples.task.name!r}, of pairs")
            )
        clusters, parts = corpus.clusters, examples.parts(corpus.clusters, seed)
        vectors = final_states(model, corpus.encoded, WordRows.of(corpus.encoded))[:, None]
        scaler = Scaler.of(torch.from_numpy(vectors[examples.rows[parts.train]]).transpose(0, 1))
        probe = Probe.of(Vectors.of(vectors, examples.rows, parts, torch.device("cpu")), examples.y, parts, penalties)
        reported = np.flatnonzero(clusters.report[clusters.of_sentence])
        places = np.sort(np.random.default_rng(seed).permutation(reported)[:max_sentences])
        kept = [corpus.encoded[place] for place in places]
        found = _moved(examples, parts, WordRows.of(corpus.encoded), places)
        if not len(found[1]):
            remedy = "Raise max_sentences"
            what = f"none of the {len(places)} sentences drawn has a label of the task {examples.task.name!r}"
            raise InputError(explain(what, remedy=remedy))
        return cls(
            model,
            [corpus.encoded[place] for place in np.flatnonzero(~clusters.report[clusters.of_sentence])],
            kept,
            WordRows.of(kept),
            probe,
            scaler,
            found[0],
            examples.y[found[1]],
            examples.cluster[found[1]],
            majority(examples.y[parts.train], examples.y[found[1]]),
            watch,
        )

    def outcome(self) -> _Outcome:
        """The probe and the loss on the report sentences, as the model is now."""
        states = final_states(self.model, self.report, self.rows)
        x = self.scaler(torch.from_numpy(states[self.example_rows][None]))
        hits = np.bincount(self.cluster, self.probe.hits(x, self.y)[0], minlength=int(self.cluster.max()) + 1)
        unit = torch.nn.functional.normalize(torch.from_numpy(states).double(), dim=-1)
        return _Outcome(hits, unit, None if self.watch is None else self.watch(self.model, self.report))

    def training_batches(self) -> Iterator[Mapping[str, Any]]:
        """Model inputs of the sentences not reported on."""
        for batch, _ in _batches(self.model, self.train):
            yield model_inputs(self.model, batch)

    def heads_of_layers(self) -> dict[int, int]:
        """Layer -> number of heads, of the attention modules the words go through."""
        batch, _ = next(_batches(self.model, self.report))
        found = run_words(self.model, Pooling(batch, "mean"), ("context",))
        return {info.layer: info.heads for info in found.layers.values()}


def _moved(examples: Examples, parts: Parts, rows: WordRows, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Report examples whose sentence is among `places`: their rows in files of these sentences alone, and their places."""
    order = np.full(len(rows.first), -1)
    order[places] = np.arange(len(places))
    sizes = np.diff(rows.first)[places]
    start = np.concatenate([[0], np.cumsum(sizes)])
    sentence = rows.sentence[examples.rows[parts.report]]
    kept = order[sentence] >= 0
    chosen, sentence = parts.report[kept], sentence[kept]
    return examples.rows[chosen] - rows.first[sentence] + start[order[sentence]], chosen


def final_states(model: Model, encoded: Sequence[Encoded], rows: WordRows) -> np.ndarray:
    """Hidden states of the last layer for every word with a piece (mean of its pieces), [row dim]."""
    states: np.ndarray | None = None
    for batch, places in _batches(model, encoded):
        found = run_words(model, Pooling(batch, "mean"), (), states=True)
        last = found.values[f"state-{found.states - 1}"][:, 0].numpy()
        if states is None:
            states = np.empty((len(rows), last.shape[1]), np.float32)
        where = np.concatenate([np.arange(rows.first[place], rows.first[place + 1]) for place in places])
        states[where] = last
    assert states is not None
    return states


def _batches(model: Model, encoded: Sequence[Encoded]) -> Iterator[tuple[Batch, list[int]]]:
    """Padded batches with the places of their sentences."""
    for shard, members in plan_shards(
        encoded, length=len, cluster=lambda item: item.sentence.id, options=PlanOptions()
    ):
        for batch in shard.batches:
            yield collate([members[i] for i in batch], pad_id=pad_id(model)), [shard.start + i for i in batch]


def _dataset(
    rows: Sequence[tuple[Head, _Outcome, Sequence[_Outcome]]],
    whole: _Outcome,
    setting: _Setting,
    attributes: dict[str, Any],
) -> xr.Dataset:
    n = np.bincount(setting.cluster, minlength=len(whole.hits)).astype(np.float64)
    columns: dict[str, list[float]] = {}
    for _, own, others in rows:
        random = np.mean([other.hits for other in others], axis=0) if others else np.full_like(own.hits, np.nan)
        numbers = {
            **_with_interval("change", own.hits - whole.hits, n),
            **_with_interval("random_change", random - whole.hits, n),
            **_with_interval("difference", own.hits - random, n),
            "states": _turned(own, whole),
            "random_states": float(np.mean([_turned(other, whole) for other in others])) if others else np.nan,
        }
        if own.loss is not None and whole.loss is not None:
            numbers |= _with_interval("loss", own.loss[0] - whole.loss[0], whole.loss[1], (None, None))
        for name, value in numbers.items():
            columns.setdefault(name, []).append(value)
    share = {"unit": "share", "limits": np.array([-1.0, 1.0])}
    units = {"states": {"unit": "1 - cosine"}, "random_states": {"unit": "1 - cosine"}, "loss": {"unit": "nats"}}
    variables = {name: (["case"], np.array(values), units.get(name, share)) for name, values in columns.items()}
    scalars = {
        "accuracy": ((), float(whole.hits.sum() / n.sum()), {"unit": "share", "note": "of the whole model"}),
        "majority": ((), setting.majority, {"unit": "share"}),
        "n": ((), float(n.sum()), {"unit": "words"}),
    }
    coordinates = {
        "layer": ("case", [head[0] for head, _, _ in rows]),
        "head": ("case", [head[1] for head, _, _ in rows]),
    }
    attributes = {**attributes, "random_heads": [len(others) for _, _, others in rows]}
    return xr.Dataset({**variables, **scalars}, coordinates, attrs=attributes)


def _with_interval(
    name: str, y: np.ndarray, n: np.ndarray, limits: tuple[float | None, float | None] = (-1.0, 1.0)
) -> dict[str, float]:
    sums = RatioSums.of(y, n)
    low, high = sums.interval(limits)
    return {name: float(sums.ratio), f"{name}_low": float(low), f"{name}_high": float(high)}


def _turned(own: _Outcome, whole: _Outcome) -> float:
    """Mean of 1 - cosine over words: half the squared distance of unit vectors, without its cancellation."""
    return float(0.5 * (own.states - whole.states).square().sum(-1).mean())
