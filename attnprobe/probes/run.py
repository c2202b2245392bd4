"""`probe`: linear probes on every head, at every site, for every task, with their controls, in one call."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

from attnprobe.errors import InputError, explain, near_names
from attnprobe.models.capture import ModelLike, as_model
from attnprobe.models.model import Model
from attnprobe.probes.controls import RANDOM_WEIGHTS, ceiling, majority, random_weights
from attnprobe.probes.corpus import Corpus, prepare
from attnprobe.probes.evaluate import Plan, score
from attnprobe.probes.examples import Clusters, Examples
from attnprobe.probes.features import SITES, Features, extract
from attnprobe.probes.linear import PENALTIES, check_penalties
from attnprobe.probes.mdl import UNITS
from attnprobe.probes.table import Against, Scores, faults_as_json
from attnprobe.probes.tasks import WordLabels, choose_tasks
from attnprobe.probes.word_embeddings import principal_axes
from attnprobe.records import Sentence
from attnprobe.registry import ProbeTask
from attnprobe.text.batching import PlanOptions

DEFAULT_TASKS = ("upos", "deprel", "position", "tree_depth", "ner")
Task = str | ProbeTask | Callable[[Sentence], WordLabels]
Progress = Callable[[int, int, str], None]
"""Told (steps done, steps in all, what is next): a step is one site of one layer."""


def probe(
    model: ModelLike,
    sentences: Iterable[Sentence],
    *,
    tasks: Sequence[Task] = DEFAULT_TASKS,
    sites: Sequence[str] = SITES,
    seeds: int = 3,
    penalties: Sequence[float] = PENALTIES,
    pieces: str = "mean",
    states: bool = True,
    mdl: bool = True,
    unit: str = "bits",
    cluster: str = "document",
    batch_tokens: int = 2048,
    scratch: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Probe every head of `model` for what the tasks ask, and return the `/probes` table.

    For each task, site, layer and head: a multinomial logistic regression on the head's own vectors, trained on the `select` half of the
    corpus (one cluster in five chooses the penalty) and judged on `report`. Beside each accuracy stand, always: the accuracy on a control
    task (one random label per word type) with its `ceiling`, `selectivity` (their difference), `majority`, the word `embedding` without
    position reduced to the heads' dimension, and the same probes on two models with `random` weights. Everything but the random weights is
    done for `seeds` seeds: each holds out other clusters and draws other control labels.

    `tasks` are names, tasks, or functions `Sentence -> labels` (see `choose_tasks`). `sites`: q, k, v, context. `pieces` says how a word's
    pieces become its vector: mean, first or last. `states` probes hidden states too. `mdl` adds code lengths and learning curves (first seed),
    in bits or in the mixed `unit` "reference" of the published code. Vectors of all words are kept in a folder under `scratch` meanwhile.

    A task that cannot be fitted (no labels, one class, nothing in one of the splits) is NaN, and the attribute `not_probed` says why. Raises
    `InputError` where this holds for all, for labels of the wrong length, and for a corpus that cannot be split.
    """
    model = as_model(model)
    corpus = prepare(model, sentences, choose_tasks(tasks), cluster)
    options = _Options(
        sites=tuple(sites),
        pieces=pieces,
        states=states,
        mdl=mdl,
        penalties=tuple(penalties),
        unit=unit,
        batch=batch_tokens,
    )
    plan = _plan(corpus, options, seeds, model.device)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="attnprobe-") as folder:
        return _probed(model, corpus, plan, options, Path(folder), progress)


@dataclass(frozen=True)
class _Options:
    sites: tuple[str, ...]
    pieces: str
    states: bool
    mdl: bool
    penalties: tuple[float, ...]
    unit: str
    batch: int


def _plan(corpus: Corpus, options: _Options, seeds: int, device: torch.device) -> Plan:
    if seeds < 1:
        raise InputError(explain("wrong number of seeds", expected="1 or more", got=str(seeds)))
    if options.unit not in UNITS:
        raise InputError(f"unknown unit {options.unit!r}; {near_names(options.unit, UNITS)}.")
    check_penalties(options.penalties)
    numbers = tuple(range(seeds))
    faults = tuple(
        next((fault for seed in numbers if (fault := examples.fault(corpus.clusters, seed))), None)
        for examples in corpus.examples
    )
    if all(faults):
        told = "; ".join(f"{e.task.name}: {fault}" for e, fault in zip(corpus.examples, faults, strict=True))
        remedy = "See `attnprobe list probes` for what each task reads"
        raise InputError(explain("nothing can be probed on this corpus", got=told, remedy=remedy))
    return Plan(corpus.examples, corpus.clusters, numbers, options.penalties, options.mdl, options.unit, faults, device)


def _probed(
    model: Model, corpus: Corpus, plan: Plan, options: _Options, folder: Path, progress: Progress | None
) -> xr.Dataset:
    features = _extracted(model, corpus, options, folder / "trained", options.states)
    per_model = len(features.layers) * len(options.sites)
    states = features.states if options.states else 0
    steps = _Steps(per_model * (1 + len(RANDOM_WEIGHTS)) + 1 + states, progress)
    steps.next("word embeddings")
    embedding = score(_reduced(features, corpus.clusters, plan.seeds[0], _head_dim(features, options)), plan)
    heads = _scored_heads(features, plan, options, steps, "trained")
    of_states = []
    for place in range(states):
        steps.next(f"hidden states {place}")
        of_states.append(score(features.state(place), replace(plan, mdl=False)))
    random = {}
    for kind in RANDOM_WEIGHTS:
        drawn = random_weights(model, kind, seed=plan.seeds[0])
        untrained = _extracted(drawn, corpus, options, folder / kind, False)
        random[kind] = _scored_heads(untrained, plan, options, steps, kind, task_only=True)
    steps.finish()
    names = [examples.task.name for examples in corpus.examples]
    kinds = [examples.task.kind for examples in corpus.examples]
    attributes = _attributes(corpus, plan, options, names)
    return Scores(
        names, kinds, features.layers, heads, random, embedding, of_states, _against(plan), attributes
    ).dataset()


class _Steps:
    """Counts the steps of a run, for who watches it."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total, self._progress, self._begun = total, progress, 0

    def next(self, what: str) -> None:
        if self._progress is not None:
            self._progress(self._begun, self._total, what)
        self._begun += 1

    def finish(self) -> None:
        if self._progress is not None:
            self._progress(self._total, self._total, "done")


def _extracted(model: Model, corpus: Corpus, options: _Options, folder: Path, states: bool) -> Features:
    folder.mkdir()
    return extract(
        model,
        corpus.encoded,
        folder,
        sites=options.sites,
        pieces=options.pieces,
        states=states,
        embedding=folder.name == "trained",
        plan=PlanOptions(batch_tokens=options.batch),
    )


def _scored_heads(
    features: Features, plan: Plan, options: _Options, steps: _Steps, what: str, *, task_only: bool = False
) -> dict[str, list[dict[str, np.ndarray]]]:
    found: dict[str, list[dict[str, np.ndarray]]] = {}
    for site in options.sites:
        found[site] = []
        for place in range(len(features.layers)):
            steps.next(f"{what}, {site} of layer {features.layers[place].layer}")
            found[site].append(score(features.heads(site, place), plan, task_only=task_only))
            features.forget(site, place)
    return found


def _head_dim(features: Features, options: _Options) -> int:
    """Greatest dimension of a head's vectors among the sites: the embeddings are not given less."""
    return max(features.heads(site, 0).shape[2] for site in options.sites)


def _reduced(features: Features, clusters: Clusters, seed: int, dim: int) -> np.ndarray:
    """Word embeddings along their first principal axes over the training words, [row 1 dim]."""
    cluster = clusters.of_sentence[features.rows.sentence]
    train = ~clusters.report[cluster] & ~clusters.held_out(seed)[cluster]
    return principal_axes(np.asarray(features.embedding()[:, 0]), train, dim)[:, None]


def _against(plan: Plan) -> Against:
    columns: dict[str, list[float]] = {}
    for examples, fault in zip(plan.examples, plan.faults, strict=True):
        found = _label_facts(examples, plan, fault)
        for name, value in found.items():
            columns.setdefault(name, []).append(value)
    return Against(**{name: np.array(values) for name, values in columns.items()})


def _label_facts(examples: Examples, plan: Plan, fault: str | None) -> dict[str, float]:
    """What can be said of a task from its labels alone; means over seeds."""
    rows: list[dict[str, float]] = []
    for seed in plan.seeds:
        parts = examples.parts(plan.clusters, seed)
        y, control = examples.y, examples.control(plan.clusters, seed) if not fault else examples.y
        kinds = (examples.type[parts.train], control[parts.train], examples.type[parts.report], control[parts.report])
        rows.append(
            {
                "majority": np.nan if fault else majority(y[parts.train], y[parts.report]),
                "ceiling": np.nan if fault else ceiling(*kinds),
                "n": len(parts.report),
                "n_train": len(parts.train),
                "n_classes": len(np.unique(y[parts.train])),
                "unseen": int((~np.isin(y[parts.report], y[parts.train])).sum()),
            }
        )
    means = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
    return {**means, "no_vector": float(examples.left_out)}


def _attributes(corpus: Corpus, plan: Plan, options: _Options, names: Sequence[str]) -> dict[str, Any]:
    return {
        "seeds": len(plan.seeds),
        "penalties": np.array(plan.penalties),
        "pieces": options.pieces,
        "code_unit": options.unit,
        "not_probed": faults_as_json(names, plan.faults),
        "sentences": len(corpus.encoded),
        "sentences_dropped": json.dumps(corpus.drops.counts),
        "clusters_select": int((~corpus.clusters.report).sum()),
        "clusters_report": int(corpus.clusters.report.sum()),
    }
