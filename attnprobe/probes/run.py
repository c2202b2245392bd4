"""`probe`: linear probes on every head, at every site, for every task, with their controls, in one call."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import xarray as xr

import attnprobe
from attnprobe.errors import InputError, explain, near_names
from attnprobe.models.capture import ModelLike, as_model
from attnprobe.models.model import Model
from attnprobe.probes.controls import RANDOM_WEIGHTS, ceiling, majority, random_weights
from attnprobe.probes.corpus import Corpus, prepare
from attnprobe.probes.evaluate import Plan, score
from attnprobe.probes.examples import NO_LABELS, Clusters, Examples
from attnprobe.probes.features import SITES, Features, extract
from attnprobe.probes.linear import PENALTIES, check_penalties
from attnprobe.probes.mdl import UNITS
from attnprobe.probes.steps import Progress, Steps
from attnprobe.probes.table import Against, Scores, faults_as_json
from attnprobe.probes.tasks import WordLabels, choose_tasks, label
from attnprobe.probes.word_embeddings import principal_axes
from attnprobe.records import Sentence
from attnprobe.registry import ProbeTask
from attnprobe.text.batching import PlanOptions

DEFAULT_TASKS = ("upos", "deprel", "position", "tree_depth", "ner")
Task = str | ProbeTask | Callable[[Sentence], WordLabels]


def probe(
    model: ModelLike,
    sentences: Iterable[Sentence],
    *,
    tasks: Sequence[Task] = DEFAULT_TASKS,
    sites: Sequence[str] = SITES,
    seeds: int = 3,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
    pieces: str = "mean",
    states: bool = True,
    mdl: bool = True,
    unit: str = "bits",
    cluster: str = "document",
    batch_tokens: int = 2048,
    scratch: str | os.PathLike[str] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Probe every head of `model` for what the tasks ask, and return the `/probes` table.

    For each task, site, layer and head: a multinomial logistic regression on the head's own vectors, trained on the `select` half of the
    corpus (one cluster in five chooses the penalty) and judged on `report`. Beside each accuracy stand, always: the accuracy on a control
    task (one random label per word type) with its `ceiling`, `selectivity` (their difference), `majority`, the word `embedding` without
    position reduced to the heads' dimension, and the same probes on two models with `random` weights. Everything but the random weights is
    done for `seeds` seeds, from `seed` on: each holds out other clusters and draws other control labels.

    `tasks` are names, tasks, or functions `Sentence -> labels` (see `choose_tasks`). `sites`: q, k, v, context. `pieces` says how a word's
    pieces become its vector: mean, first or last. `states` probes hidden states too. `mdl` adds code lengths and learning curves (first seed),
    in bits or in the mixed `unit` "reference" of the published code. Vectors of all words are kept in a folder under `scratch` meanwhile. With
    `checkpoints`, a folder of that name keeps each finished step (a site of a layer), and the same call goes on from there.

    A task that cannot be fitted (no labels, one class, nothing in one of the splits) is NaN, and the attribute `not_probed` says why. Raises
    `InputError` where this holds for all, for labels of the wrong length, and for a corpus that cannot be split.
    """
    if isinstance(sites, str) or not sites or len(set(sites)) < len(sites):
        expected = f"a list of names, each once, of {', '.join(SITES)}"
        raise InputError(explain("cannot choose the sites", expected=expected, got=repr(sites)))
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
    plan = _plan(corpus, options, seeds, seed, model.device)
    with tempfile.TemporaryDirectory(dir=scratch, prefix="attnprobe-") as folder:
        kept = None if checkpoints is None else Path(checkpoints)
        return _probed(model, corpus, plan, options, Path(folder), kept, progress)


@dataclass(frozen=True)
class _Options:
    sites: tuple[str, ...]
    pieces: str
    states: bool
    mdl: bool
    penalties: tuple[float, ...]
    unit: str
    batch: int


def _plan(corpus: Corpus, options: _Options, seeds: int, seed: int, device: torch.device) -> Plan:
    if seeds < 1:
        raise InputError(explain("wrong number of seeds", expected="1 or more", got=str(seeds)))
    if options.unit not in UNITS:
        raise InputError(f"unknown unit {options.unit!r}; {near_names(options.unit, UNITS)}.")
    check_penalties(options.penalties)
    numbers = tuple(range(seed, seed + seeds))
    faults = tuple(
        next((fault for seed in numbers if (fault := examples.fault(corpus.clusters, seed))), None)
        for examples in corpus.examples
    )
    if all(faults):
        _refuse([examples.task for examples in corpus.examples], faults)
    return Plan(corpus.examples, corpus.clusters, numbers, options.penalties, options.mdl, options.unit, faults, device)


def refuse_unprobed(sentences: Iterable[Sentence], tasks: Sequence[ProbeTask], cluster: str) -> None:
    """Raise `InputError` where `probe` would, as far as that can be told without a model: a corpus not to be split, or without labels."""
    sentences = list(sentences)
    Clusters.of(sentences, cluster)
    if not any(label(task, sentences).labels for task in tasks):
        _refuse(tasks, [NO_LABELS] * len(tasks))


def _refuse(tasks: Sequence[ProbeTask], faults: Sequence[str | None]) -> NoReturn:
    told = "; ".join(f"{task.name}: {fault}" for task, fault in zip(tasks, faults, strict=True))
    remedy = "See `attnprobe list tasks` for what each task reads"
    raise InputError(explain("nothing can be probed on this corpus", got=told, remedy=remedy))


def _probed(
    model: Model,
    corpus: Corpus,
    plan: Plan,
    options: _Options,
    folder: Path,
    checkpoints: Path | None,
    progress: Progress | None,
) -> xr.Dataset:
    steps = Steps(progress, checkpoints, _key(model, plan, options) if checkpoints is not None else "")
    steps.tell("running the model")
    features = _extracted(model, corpus, options, folder / "trained", options.states)
    states = features.states if options.states else 0
    steps.expect(len(features.layers) * len(options.sites) * (1 + len(RANDOM_WEIGHTS)) + 1 + states)
    dim = _head_dim(features, options)
    reduced = _reduced(features, corpus.clusters, plan.seeds[0], dim)
    embedding = steps.run("word embeddings", lambda: score(reduced, plan))
    heads = _scored_heads(features, plan, options, steps, "trained")
    of_states = [
        steps.run(f"hidden states {place}", lambda i=place: score(features.state(i), replace(plan, mdl=False)))  # type: ignore[misc]
        for place in range(states)
    ]
    random = {}
    for kind in RANDOM_WEIGHTS:
        steps.tell(f"running the model with random weights, {kind}")
        drawn = random_weights(model, kind, seed=plan.seeds[0])
        untrained = _extracted(drawn, corpus, options, folder / kind, False)
        random[kind] = _scored_heads(untrained, plan, options, steps, kind, task_only=True)
    steps.finish()
    names, kinds = zip(*((examples.task.name, examples.task.kind) for examples in corpus.examples), strict=True)
    scores = Scores(
        names,
        kinds,
        features.layers,
        heads,
        random,
        embedding,
        of_states,
        _against(plan),
        _attributes(corpus, plan, options, names),
    )
    return scores.dataset()


def _key(model: Model, plan: Plan, options: _Options) -> str:
    """What the numbers of a step depend on."""
    labels = hashlib.sha256()
    for examples in plan.examples:
        labels.update(repr((examples.task.name, examples.classes)).encode())
        for array in (examples.rows, examples.y, examples.cluster, examples.type):
            labels.update(np.ascontiguousarray(array).tobytes())
    told = {
        "model": model.sha256,
        "labels": labels.hexdigest(),
        "report": hashlib.sha256(plan.clusters.report.tobytes()).hexdigest(),
        "seeds": plan.seeds,
        "versions": [attnprobe.__version__, torch.__version__, np.__version__],
        **asdict(options),
    }
    return json.dumps(told, indent=1)


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
    features: Features, plan: Plan, options: _Options, steps: Steps, what: str, *, task_only: bool = False
) -> dict[str, list[dict[str, np.ndarray]]]:
    found: dict[str, list[dict[str, np.ndarray]]] = {}
    for site in options.sites:
        found[site] = []
        for place in range(len(features.layers)):
            name = f"{what}, {site} of layer {features.layers[place].layer}"
            numbers = steps.run(name, lambda s=site, i=place: score(features.heads(s, i), plan, task_only=task_only))  # type: ignore[misc]
            found[site].append(numbers)
            _tell_undefined(numbers["accuracy"], plan, name)
            features.forget(site, place)
    return found


def _tell_undefined(accuracy: np.ndarray, plan: Plan, what: str) -> None:
    fitted = [place for place, fault in enumerate(plan.faults) if fault is None]
    heads = np.flatnonzero(np.isnan(accuracy[fitted]).any(axis=0))
    if len(heads):
        told = ", ".join(map(str, heads))
        warnings.warn(f"{what}: vectors of heads {told} are not all finite; their probes are NaN", stacklevel=2)


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
        "seed": plan.seeds[0],
        "penalties": np.array(plan.penalties),
        "pieces": options.pieces,
        "code_unit": options.unit,
        "not_probed": faults_as_json(names, plan.faults),
        "sentences": len(corpus.encoded),
        "sentences_dropped": json.dumps(corpus.drops.counts),
        "clusters_select": int((~corpus.clusters.report).sum()),
        "clusters_report": int(corpus.clusters.report.sum()),
    }
