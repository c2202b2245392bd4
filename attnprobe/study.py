"""`run`: from a model and a corpus to a study: verified, planned, measured in one pass, tabulated.

The corpus is read twice: once to lay down the batch plan (`planning`), once to measure it (`sharding`). Nothing grows with the corpus but the
digest of the plan. `gather` makes a study of other tables that are computed over a corpus.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xarray as xr

from attnprobe.checkpoint import Checkpoints, checkpoints
from attnprobe.errors import InputError, explain
from attnprobe.heads._groups import GroupTotals
from attnprobe.heads.alongside import Again, extra_tables, late_tables, refuse_unknown_extras
from attnprobe.heads.corpora import passages_of
from attnprobe.heads.evidence import Evidence
from attnprobe.heads.examples import example_tables
from attnprobe.heads.metrics import default_metrics, with_hidden
from attnprobe.heads.relations import annotated, choose
from attnprobe.heads.scorers import refuse_unknown_scorers
from attnprobe.heads.specialise import label_table
from attnprobe.heads.tables import ShardSums
from attnprobe.heads.tabulate import MARGIN, best_table, metric_tables, relation_table
from attnprobe.models.capture import as_model
from attnprobe.models.load import Model
from attnprobe.models.verify import require
from attnprobe.planning import (
    DEFAULT_RELATIONS,
    Job,
    Options,
    Planned,
    Progress,
    lay_plan,
    limited,
    shards_of,
    warn_of_an_empty_split,
    warn_of_copies,
)
from attnprobe.probes.profile import profile_groups
from attnprobe.probes.run import Task, probe, refuse_unprobed
from attnprobe.probes.tasks import choose_tasks
from attnprobe.provenance import provenance_of, run_key, verification_table, verify_on
from attnprobe.records import Provenance, Sentence, Study, Verification
from attnprobe.registry import METRICS
from attnprobe.sharding import Engine, Repeat, in_process, measure_all
from attnprobe.text.batching import PlanOptions
from attnprobe.text.drops import Drops


def run(
    model: Model | str | tuple[Any, Any],
    sentences: Iterable[Sentence],
    *,
    metrics: Sequence[str] | None = None,
    relations: Sequence[str] | None = None,
    scorers: Sequence[str] = ("weights",),
    extras: Sequence[str] = (),
    unit: str = "sentence",
    sinks: str = "kept",
    cluster: str = "document",
    seed: int = 0,
    max_sentences: int | None = None,
    batch_tokens: int = 2048,
    shard_sentences: int = 2048,
    margin: float = MARGIN,
    examples: int = 6,
    importance: int = 0,
    controls: bool = False,
    causal: bool = False,
    probes: Sequence[Task] = (),
    totals: bool = False,
    unverified: bool = False,
    corpus: str | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Study:
    """Measure every head of `model` over `sentences` and return the study.

    `sentences` is an iterable that can be read twice (a list, or what `read_conllu` and `read_text` return); a plain iterator is read into
    memory. `metrics` and `relations` name registered ones; by default all metrics but those for marked tokens (`entity_mass`, and `segment_mass`
    unless the corpus holds pairs) and `dep`, `udep`; a corpus without trees gives no relations. `scorers` says what relations are read off:
    `weights`, `norms`, `rollout`, or, slow, `flow` and `value_zeroing`. `extras` names what is measured besides (see
    `heads.alongside.EXTRAS`), such as `trees`. `unit` is `sentence`, or `passage`:
    consecutive sentences of a document are read together, as many as the model takes, so that coreference can cross them.
    `sinks` is `kept`, or `both` to measure again with special tokens taken out and rows renormalised; `hidden_mass` then says what they held.
    `cluster` is `document` (sentences of a
    document stand or fall together) or `sentence`. `batch_tokens` bounds a batch, `shard_sentences` a shard (what is checkpointed, or sent to a
    worker, at a time). `margin` is the gain over the best offset that a syntactic label asks for.

    Off by default, since each runs the model many times more: `importance` is a number of sentences to measure the importance of heads on
    (`heads.importance`); `controls` repeats the run with two random-weights models, and `causal` takes each head with a syntactic or semantic
    label out; both add their evidence to the labels. `probes` names probe tasks: what can be read off each head's context, with its controls
    (`probes.probe` has more options, and code lengths), and `/profiles`, which joins that with the labels and the entropy of each head. `totals` keeps totals of groups of clusters, which `heads.compare` needs to pair two
    studies; shards then hold about 16 sentences.

    With `out` the study is also written there, and each finished shard is kept beside it until then, so that an interrupted run goes on with
    `resume`; the result is the same bits. `engine` runs the shards elsewhere than in this process (`attnprobe.engines`).

    The capture is verified first, on built-in texts and on the first, the longest and a random batch of the corpus; `VerificationError`
    stops the run unless `unverified` is set. Raises `InputError` for unknown names or a corpus of which nothing is left.
    """
    model = as_model(model)
    _fix_threads()
    _refuse_unknown("view of sinks", sinks, ("kept", "both"))
    _refuse_unknown("unit", unit, ("sentence", "passage"))
    if iter(sentences) is sentences:
        sentences = list(sentences)
    options = Options(
        metrics=with_hidden(default_metrics() if metrics is None else metrics, sinks),
        relations=tuple(relations) if relations is not None else DEFAULT_RELATIONS,
        scorers=tuple(scorers),
        extras=tuple(extras),
        unit=unit,
        sinks=sinks,
        cluster=cluster,
        seed=seed,
        max_sentences=max_sentences,
        margin=margin,
        examples=examples,
        plan=PlanOptions(batch_tokens=batch_tokens, window=min(shard_sentences, 16) if totals else shard_sentences),
    )
    refuse_unknown_names(options.metrics, options.relations, options.scorers, options.extras)
    tasks = choose_tasks(probes) if probes else []
    if tasks:
        refuse_unprobed(limited(sentences, max_sentences), tasks, cluster)
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer, so a corpus of words cannot be run through it.")
    sentences = annotated(sentences, options.relations)
    if unit == "passage":
        sentences = passages_of(sentences, model.tokenizer, model.longest_text)
    planned = lay_plan(model, sentences, options)
    if metrics is None and planned.pairs:
        options = replace(options, metrics=with_hidden(default_metrics(pairs=True), sinks))
    checked = verify_on(model, planned)
    if not unverified:
        require(checked)
    provenance = provenance_of(model, sentences, options, planned, corpus)

    evidence = Evidence(importance, controls, causal)
    probed = partial(_probed, model, tasks, options, progress)

    def measured(store: Checkpoints | None) -> Study:
        kept = GroupTotals() if totals else None
        each = kept.add if kept is not None else None
        sums = measure_all(model, sentences, options, planned, engine or in_process, store, progress, each)
        tree = _tree(model, sums, checked, provenance, options, planned)
        again = Repeat(sentences, options, planned, engine or in_process, unverified)
        labels, items = tree["labels"].to_dataset(), partial(again.items, model)
        _add(tree, evidence.tables(model, labels, items, again.tables, cluster=cluster, seed=seed))
        _add(tree, _late(model, sentences, options, planned, tree))
        if tasks:
            _add(tree, probed(limited(sentences, max_sentences), tree, store))
        if kept is not None:
            _add(tree, {"totals": kept.finish(options.scorers)})
        return Study(tree)

    if out is None:
        return measured(None)
    with checkpoints(Path(out), run_key(provenance, totals=totals), resume=resume) as store:
        study = measured(store)
        study.save(out)
        store.remove()
    return study


def refuse_unknown_names(
    metrics: Iterable[str], relations: Iterable[str], scorers: Iterable[str], extras: Iterable[str]
) -> None:
    """Raise `InputError` for a name that `run` does not know, before anything is loaded or read."""
    for name in metrics:
        METRICS[name]
    choose(relations)
    refuse_unknown_scorers(scorers)
    refuse_unknown_extras(extras)


def _fix_threads() -> None:
    """Keep the number of threads as it is: told so, MKL no longer takes fewer on a busy machine, which would change the last bits."""
    torch.set_num_threads(torch.get_num_threads())


def _refuse_unknown(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InputError(explain(f"unknown {what}", expected=" or ".join(known), got=repr(name)))


def _add(tree: xr.DataTree, groups: dict[str, xr.Dataset]) -> None:
    for name, table in groups.items():
        tree[name] = xr.DataTree(table)


def _late(
    model: Model, sentences: Iterable[Sentence], options: Options, planned: Planned, tree: xr.DataTree
) -> dict[str, xr.Dataset]:
    """What extras make out of the first tables and the corpus run once more."""

    def jobs() -> Iterable[Job]:
        return planned.kept if planned.kept is not None else shards_of(model, sentences, options, Drops())

    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    return (
        late_tables(options.extras, groups, Again(model, jobs, options.cluster, len(planned.examples)))
        if options.extras
        else {}
    )


def _probed(
    model: Model,
    tasks: Sequence[Task],
    options: Options,
    progress: Progress | None,
    sentences: Iterable[Sentence],
    tree: xr.DataTree,
    store: Checkpoints | None,
) -> dict[str, xr.Dataset]:
    """Probes of the same corpus, split in the same way, and the profiles they make with the tables there are."""
    groups = {name: node.to_dataset() for name, node in tree.children.items()}
    groups["probes"] = probe(
        model,
        sentences,
        tasks=tasks,
        sites=("context",),
        mdl=False,
        cluster=options.cluster,
        seed=options.seed,
        batch_tokens=options.plan.batch_tokens,
        checkpoints=None if store is None else store.folder / "probes",
        progress=None if progress is None else lambda done, total, _: progress(done, total),
    )
    return {"probes": groups["probes"], **profile_groups(groups)}


def gather(
    model: Model | str | tuple[Any, Any],
    sentences: Iterable[Sentence],
    compute: Callable[[Model, Iterable[Sentence]], dict[str, xr.Dataset]],
    *,
    seed: int = 0,
    cluster: str = "document",
    max_sentences: int | None = None,
    unverified: bool = False,
    corpus: str | None = None,
    into: Study | None = None,
) -> Study:
    """A study of other tables: `compute(model, sentences)` gives them by group, after the capture has been verified as in `run`.

    `into` is a study that they are added to (a new one is returned); raises `InputError`, before anything is computed, where it is of another
    model or corpus.
    """
    model = as_model(model)
    _fix_threads()
    if iter(sentences) is sentences:
        sentences = list(sentences)
    options = Options((), (), cluster=cluster, seed=seed, max_sentences=max_sentences, examples=0)
    planned = lay_plan(model, sentences, options)
    checked = verify_on(model, planned)
    if not unverified:
        require(checked)
    attributes = provenance_of(model, sentences, options, planned, corpus).as_attributes()
    if into is not None:
        _refuse_others(into.attributes, attributes)
    groups = compute(model, limited(sentences, max_sentences))
    if into is not None:
        tree = into.tree.copy()
        _add(tree, {name.strip("/"): table for name, table in groups.items()})
        return Study(tree)
    whole = {"/": xr.Dataset(attrs=attributes), "/verification": verification_table(checked), **groups}
    return Study(xr.DataTree.from_dict(whole))


def _refuse_others(study: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Tables of one study are of one model and one corpus."""
    for name, what in (("model_sha256", "model"), ("corpus_sha256", "corpus")):
        if study.get(name) != new[name]:
            told = {"expected": f"{study.get(what)} ({name} {study.get(name)})", "got": f"{new[what]} ({new[name]})"}
            raise InputError(explain(f"cannot add to a study of another {what}", **told))


def _tree(
    model: Model, sums: ShardSums, checked: Verification, provenance: Provenance, options: Options, planned: Planned
) -> xr.DataTree:
    whole, by_split = metric_tables(sums)
    relations = relation_table(sums, options.scorers, margin=options.margin)
    groups: dict[str, xr.Dataset] = {
        "/verification": verification_table(checked),
        "/metrics": whole,
        "/metrics_by_split": by_split,
        "/labels": label_table(by_split, relations, margin=options.margin),
    }
    if relations is not None:
        groups["/relations"] = relations
        groups["/best"] = best_table(relations)
    groups |= extra_tables(options.extras, sums)
    groups |= example_tables(model, planned.examples)
    attributes = provenance.as_attributes()
    attributes |= {
        "documents": sum(planned.documents.values()),
        **{f"documents_{split}": n for split, n in planned.documents.items()},
        "tokens": planned.tokens,
        "unknown_tokens": planned.unknown,
        "repeated_sentences": planned.repeated,
        "repeated_documents": planned.repeated_documents,
        "cases_without_token": int(sums.counts.get("cases_without_token", 0)),
    }
    warn_of_copies(planned)
    warn_of_an_empty_split(planned, options.cluster)
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attributes), **groups})
