"""`run`: from a model and a corpus to a study: verified, planned, measured in one pass, tabulated.

The corpus is read twice: once to lay down the batch plan (and to count what is left out), once to run it. Shards are measured one after
another and folded in the order of the plan; nothing grows with the corpus but the digest of the plan.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import platform
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr

import attnprobe
from attnprobe.checkpoint import Checkpoints, checkpoints
from attnprobe.errors import InputError, explain
from attnprobe.heads.cases import Cases
from attnprobe.heads.corpora import notes_of, passages_of
from attnprobe.heads.examples import example_tables
from attnprobe.heads.measure import Prepared, ShardMeasurer, prepare
from attnprobe.heads.metrics import default_metrics
from attnprobe.heads.relations import annotated, choose
from attnprobe.heads.scorers import refuse_unknown_scorers, scorers_of
from attnprobe.heads.specialise import label_table
from attnprobe.heads.tables import SPLIT_NAMES, ShardSums
from attnprobe.heads.tabulate import MARGIN, best_table, layer_coordinates, metric_tables, relation_table
from attnprobe.models.capture import as_model, run_forward
from attnprobe.models.inputs import from_model_inputs
from attnprobe.models.load import Model
from attnprobe.models.verify import merge, require, verify
from attnprobe.records import Provenance, Sentence, Study, Verification
from attnprobe.registry import METRICS
from attnprobe.text.align import Encoded, encode
from attnprobe.text.batching import PlanDigest, PlanOptions, Shard, cluster_of, collate, plan_shards, split_of_sentence
from attnprobe.text.drops import Drops

DEFAULT_RELATIONS = ("dep", "udep")
Progress = Callable[[int, int], None]
"""Told (sentences done, sentences in all)."""
Job = tuple[Shard, tuple[Encoded, ...]]
"""One shard with its sentences."""
Advance = Callable[[int], None]
"""Told how many more sentences are done."""
Engine = Callable[[Model, "Options", Iterator[Job], Advance], Iterator[tuple[int, ShardSums]]]
"""`(model, options, jobs, advance) -> (shard index, its sums)`, in any order; see `engines` for others than `in_process`."""


@dataclass(frozen=True)
class Options:
    """What a run depends on; stored in the study."""

    metrics: tuple[str, ...]
    relations: tuple[str, ...]
    scorers: tuple[str, ...] = ("weights",)
    unit: str = "sentence"
    sinks: str = "kept"
    cluster: str = "document"
    seed: int = 0
    max_sentences: int | None = None
    margin: float = MARGIN
    examples: int = 6
    plan: PlanOptions = field(default_factory=PlanOptions)


@dataclass
class Planned:
    """What the first reading of the corpus gives."""

    sha256: str
    """Hash of the batch plan."""
    sentences: int
    tokens: int
    unknown: int
    drops: Drops
    documents: int
    repeated: int
    """Sentences whose text was met before in the corpus (the first million are looked at)."""
    pairs: int
    """Sentences that are pairs of segments."""
    batches: list[list[Encoded]]
    """The first, the longest and one random batch, for verification."""
    examples: list[Encoded]
    kept: list[Job] | None
    """The shards themselves where the corpus is small, so that it need not be tokenized again."""


SMALL = 4096
"""Sentences of a corpus that is kept between the two readings."""


def run(
    model: Model | str | tuple[Any, Any],
    sentences: Iterable[Sentence],
    *,
    metrics: Sequence[str] | None = None,
    relations: Sequence[str] | None = None,
    scorers: Sequence[str] = ("weights",),
    unit: str = "sentence",
    sinks: str = "kept",
    cluster: str = "document",
    seed: int = 0,
    max_sentences: int | None = None,
    batch_tokens: int = 2048,
    shard_sentences: int = 2048,
    margin: float = MARGIN,
    examples: int = 6,
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
    `weights`, `norms`, `rollout`, or, slow, `flow` and `value_zeroing`. `unit` is `sentence`, or `passage`:
    consecutive sentences of a document are read together, as many as the model takes, so that coreference can cross them.
    `sinks` is `kept`, or `both` to measure again with special tokens taken out and rows renormalised. `cluster` is `document` (sentences of a
    document stand or fall together) or `sentence`. `batch_tokens` bounds a batch, `shard_sentences` a shard (what is checkpointed, or sent to a
    worker, at a time). `margin` is the gain over the best offset that a syntactic label asks for.

    With `out` the study is also written there, and each finished shard is kept beside it until then, so that an interrupted run goes on with
    `resume`; the result is the same bits. `engine` runs the shards elsewhere than in this process (`attnprobe.engines`).

    The capture is verified first, on built-in texts and on the first, the longest and a random batch of the corpus; `VerificationError`
    stops the run unless `unverified` is set. Raises `InputError` for unknown names or a corpus of which nothing is left.
    """
    model = as_model(model)
    _refuse_unknown("view of sinks", sinks, ("kept", "both"))
    _refuse_unknown("unit", unit, ("sentence", "passage"))
    if iter(sentences) is sentences:
        sentences = list(sentences)
    options = Options(
        metrics=tuple(metrics) if metrics is not None else default_metrics(),
        relations=tuple(relations) if relations is not None else DEFAULT_RELATIONS,
        scorers=tuple(scorers),
        unit=unit,
        sinks=sinks,
        cluster=cluster,
        seed=seed,
        max_sentences=max_sentences,
        margin=margin,
        examples=examples,
        plan=PlanOptions(batch_tokens=batch_tokens, window=shard_sentences),
    )
    for name in options.metrics:
        METRICS[name]
    choose(options.relations)
    refuse_unknown_scorers(options.scorers)
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer, so a corpus of words cannot be run through it.")
    sentences = annotated(sentences, options.relations)
    if unit == "passage":
        sentences = passages_of(sentences, model.tokenizer, model.max_length)
    planned = lay_plan(model, sentences, options)
    if metrics is None and planned.pairs:
        options = replace(options, metrics=default_metrics(pairs=True))
    checked = _verify(model, planned)
    if not unverified:
        require(checked)
    provenance = _provenance(model, sentences, options, planned, corpus)

    def measured(store: Checkpoints | None) -> Study:
        sums = _measure_all(model, sentences, options, planned, engine or in_process, store, progress)
        return Study(_tree(model, sums, checked, provenance, options, planned))

    if out is None:
        return measured(None)
    with checkpoints(Path(out), _key(provenance), resume=resume) as store:
        study = measured(store)
        study.save(out)
        store.remove()
    return study


def _refuse_unknown(what: str, name: str, known: tuple[str, ...]) -> None:
    if name not in known:
        raise InputError(explain(f"unknown {what}", expected=" or ".join(known), got=repr(name)))


def _key(provenance: Provenance) -> str:
    """What a finished shard depends on."""
    names = ("model_sha256", "attn_implementation", "dtype", "device", "plan", "versions")
    return json.dumps({name: getattr(provenance, name) for name in names}, indent=1)


def lay_plan(model: Model, sentences: Iterable[Sentence], options: Options) -> Planned:
    """First reading: what is kept and left out, the plan and its hash, and the batches to verify on."""
    digest, drops = PlanDigest(options.plan), Drops()
    generator = np.random.default_rng(options.seed)
    planned = Planned("", 0, 0, 0, drops, 0, 0, 0, [], [], [])
    first: list[Encoded] = []
    longest: list[Encoded] = []
    drawn: list[Encoded] = []
    seen: set[int] = set()
    batches = 0
    for shard, members in _shards(model, sentences, options, drops):
        digest.add(shard)
        planned.documents += len(set(shard.clusters))
        for item in members:
            planned.tokens += len(item)
            planned.unknown += item.n_unknown
            planned.pairs += any(item.sentence.segments)
            key = hash(item.sentence.words)
            planned.repeated += key in seen
            if len(seen) < 1_000_000:
                seen.add(key)
        for batch in shard.batches:
            batches += 1
            texts = [members[place] for place in batch]
            first = first or texts
            if not longest or len(texts[0]) > len(longest[0]):
                longest = texts
            if generator.random() < 1 / batches:
                drawn = texts
        planned.sentences += len(members)
        if planned.kept is not None:
            planned.kept.append((shard, members))
            if planned.sentences > SMALL:
                planned.kept = None
        _collect_examples(planned.examples, members, options.examples)
    if not planned.sentences:
        got = ", ".join(f"{count} {reason}" for reason, count in drops.counts.items()) or "an empty corpus"
        raise InputError(explain("no sentence is left to analyse", expected="at least one", got=got))
    planned.sha256 = digest.sha256
    planned.batches = [_short(batch) for batch in (first, longest, drawn)]
    return planned


def _short(batch: list[Encoded], limit: int = 8) -> list[Encoded]:
    """A few sentences of a batch, its longest and shortest among them: enough to verify on."""
    return batch if len(batch) <= limit else [*batch[: limit // 2], *batch[-(limit // 2) :]]


def _collect_examples(examples: list[Encoded], members: Sequence[Encoded], wanted: int) -> None:
    """The first sentences of middling length with a verb and few repeats: legible at a glance."""
    for item in members:
        if len(examples) >= wanted:
            return
        if 6 <= len(item.sentence) <= 18 and len(item) <= 28:
            examples.append(item)


def _shards(model: Model, sentences: Iterable[Sentence], options: Options, drops: Drops) -> Iterator[Job]:
    encoded = encode(
        model.tokenizer, _limited(sentences, options.max_sentences), max_length=model.max_length, on_drop=drops.add
    )
    return plan_shards(
        encoded, length=len, cluster=lambda item: cluster_of(item.sentence, options.cluster), options=options.plan
    )


def _limited(sentences: Iterable[Sentence], limit: int | None) -> Iterator[Sentence]:
    for number, sentence in enumerate(sentences):
        if limit is not None and number >= limit:
            return
        yield sentence


def _verify(model: Model, planned: Planned) -> Verification:
    parts = [verify(model)]
    for batch in planned.batches:
        parts.append(
            verify(model, **_inputs(model, prepare(_padded(model, batch), range(len(batch)), None, model.device)))
        )
    return merge(parts)


def _padded(model: Model, batch: Sequence[Encoded]) -> Any:
    pad = getattr(model.tokenizer, "pad_token_id", None)
    return collate(batch, pad_id=0 if pad is None else pad)


def _inputs(model: Model, prepared: Prepared) -> dict[str, Any]:
    from attnprobe.models.inputs import accepted_inputs

    names = accepted_inputs(model)
    return {key: value for key, value in prepared.inputs.items() if key in names}


def _measure_all(
    model: Model,
    sentences: Iterable[Sentence],
    options: Options,
    planned: Planned,
    engine: Engine,
    store: Checkpoints | None,
    progress: Progress | None,
) -> ShardSums:
    """Every shard's sums, from the store or from the engine, folded in the order of the plan."""
    shards = planned.kept if planned.kept is not None else _shards(model, sentences, options, Drops())
    done = 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(done, planned.sentences)

    def jobs() -> Iterator[Job]:
        for shard, members in shards:
            if store is not None and (found := store.load(shard.index)) is not None:
                advance(len(shard))
                fold.add(shard.index, found)
            else:
                yield shard, members

    fold = Fold()
    for index, sums in engine(model, options, jobs(), advance):
        if store is not None:
            store.save(index, sums)
        fold.add(index, sums)
    return fold.finish()


class Fold:
    """Adds shards up in the order of the plan, in whatever order they come."""

    def __init__(self) -> None:
        self._total: ShardSums | None = None
        self._next = 0
        self._waiting: dict[int, ShardSums] = {}

    def add(self, index: int, sums: ShardSums) -> None:
        self._waiting[index] = sums
        while self._next in self._waiting:
            following = self._waiting.pop(self._next)
            self._total = following if self._total is None else self._total.merge(following)
            self._next += 1

    def finish(self) -> ShardSums:
        assert self._total is not None
        assert not self._waiting
        return self._total


def in_process(
    model: Model, options: Options, jobs: Iterator[Job], advance: Advance
) -> Iterator[tuple[int, ShardSums]]:
    """The plain engine: one shard after another, here."""
    for shard, members in jobs:
        yield shard.index, measure_shard(model, shard, members, options, advance)


def measure_shard(
    model: Model,
    shard: Shard,
    members: Sequence[Encoded],
    options: Options,
    advance: Advance | None = None,
) -> ShardSums:
    """Run one shard through the model and return its sums; the same for every engine."""
    cases = Cases(members, choose(options.relations))
    scorers = scorers_of(model, options.scorers)
    metrics = [METRICS[name] for name in options.metrics]
    measurer = ShardMeasurer(metrics, cases, scorers, len(members), without_sinks=options.sinks == "both")
    for batch in shard.batches:
        prepared = prepare(
            _padded(model, [members[place] for place in batch]),
            batch,
            cases if len(cases) else None,
            model.device,
            entities="entity_mass" in options.metrics,
        )
        measurer.start(prepared)
        encoded = from_model_inputs(model, _inputs(model, prepared), describe=False)
        run_forward(model, encoded, lambda call, prepared=prepared: measurer.add(call, prepared))  # type: ignore[misc]
        if advance is not None:
            advance(len(batch))
    split = np.array([SPLIT_NAMES.index(split_of_sentence(item.sentence, options.cluster)) for item in members])
    sums = measurer.finish(np.array(shard.clusters), split)
    sums.counts.update(cases_without_token=cases.left_out)
    return sums


def _provenance(
    model: Model, sentences: Iterable[Sentence], options: Options, planned: Planned, corpus: str | None
) -> Provenance:
    name = corpus or str(getattr(sentences, "name", "sentences in memory"))
    hashed = getattr(sentences, "sha256", None)
    dropped = dict(planned.drops.counts)
    for reason, count in getattr(getattr(sentences, "drops", None), "counts", {}).items():
        dropped[reason] = dropped.get(reason, 0) + count
    plan = {**asdict(options), "sha256": planned.sha256, "torch_threads": torch.get_num_threads()}
    plan["corpus_as_read"] = notes_of(sentences)
    libraries = ("torch", "transformers", "tokenizers", "numpy", "xarray")
    versions = {"attnprobe": attnprobe.__version__, "python": platform.python_version()}
    versions |= {library: version(library) for library in libraries}
    return Provenance(
        model=model.name,
        model_sha256=model.sha256,
        family=model.family,
        tokenizer=type(model.tokenizer).__name__,
        attn_implementation=model.attn_implementation,
        dtype=model.dtype,
        device=str(model.device),
        corpus=name,
        corpus_sha256=str(hashed()) if callable(hashed) else _words_sha256(sentences),
        label_scheme="Universal Dependencies v2",
        seed=options.seed,
        plan=json.dumps(plan),
        versions=json.dumps(versions),
        sentences_kept=planned.sentences,
        sentences_dropped=json.dumps(dict(sorted(dropped.items()))),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _words_sha256(sentences: Iterable[Sentence]) -> str:
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update(json.dumps([sentence.id, sentence.words, sentence.heads, sentence.deprels]).encode())
    return digest.hexdigest()


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
    groups |= example_tables(model, planned.examples)
    attributes = provenance.as_attributes()
    attributes |= {
        "documents": planned.documents,
        "tokens": planned.tokens,
        "unknown_tokens": planned.unknown,
        "repeated_sentences": planned.repeated,
        "cases_without_token": int(sums.counts.get("cases_without_token", 0)),
    }
    if planned.repeated > 0.05 * planned.sentences:
        warnings.warn(
            f"{planned.repeated} of {planned.sentences} sentences repeat an earlier one: intervals are too narrow if they are copies.",
            stacklevel=3,
        )
    return xr.DataTree.from_dict({"/": xr.Dataset(attrs=attributes), **groups})


def verification_table(checked: Verification) -> xr.Dataset:
    """`/verification` of a study."""
    names = (
        *(
            "pattern_max_abs",
            "context_max_abs",
            "pattern_tolerance",
            "context_tolerance",
            "row_sum_max_error",
            "bitwise",
        ),
        *("rows_checked", "rows_excluded", "max_score"),
    )
    variables = {name: ("layer", np.asarray(getattr(checked, name))) for name in names}
    variables["bitwise"] = ("layer", checked.bitwise.astype(np.int8))
    coordinates = {
        "layer": np.arange(checked.n_layers),
        "kind": ("layer", list(checked.kind)),
        "index": ("layer", checked.index),
    }
    return xr.Dataset(variables, coordinates, attrs={"ok": int(checked.ok), "notes": json.dumps(list(checked.notes))})


__all__ = ["Options", "layer_coordinates", "measure_shard", "run", "verification_table"]
