"""Measuring heads over a corpus: `report` and `heads`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprobe.commands.options import (
    Address,
    Attn,
    BatchTokens,
    Causal,
    Cluster,
    Controls,
    Corpus,
    Debug,
    Device,
    Dtype,
    EngineName,
    Extras,
    GpusPerWorker,
    Importance,
    Json,
    Margin,
    MaxSentences,
    Metrics,
    ModelName,
    Probes,
    Quiet,
    Relations,
    Resume,
    Scorers,
    Seed,
    ShardSentences,
    Sinks,
    SkipInvalid,
    Totals,
    Unit,
    Unverified,
    Workers,
)
from attnprobe.errors import EnvironmentFailure, InputError, explain

if TYPE_CHECKING:
    from attnprobe.records import Sentence, Study


BUNDLED = "bundled treebank"
"""What the corpus of a run without `--corpus` is called."""
REPORT_EXTRAS = "patterns,histograms,clusters,examples"
"""What the page is better for and what costs little beside the pass itself; `trees` take longer than all the rest."""
PASSED_ON = (
    *("unit", "sinks", "controls", "causal", "importance", "cluster", "margin", "totals"),
    *("seed", "max_sentences", "batch_tokens", "shard_sentences", "unverified"),
)
"""Options of the command line that `run` takes under the same name."""


def report(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Short name, folder, hub id, or a saved study (.nc).")] = "minilm",
    corpus: Corpus = None,
    out: Annotated[Path, typer.Option("--out", help="Page to write.")] = Path("attnprobe-report.html"),
    study: Annotated[Path | None, typer.Option("--study", help="Also write the study file here.")] = None,
    figures: Annotated[
        Path | None, typer.Option("--figures", help="Also write every figure, for papers, to this folder.")
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the page: en or zh.")] = "en",
    join: Annotated[
        list[Path] | None,
        typer.Option(
            "--join", help="Also show what this study of the same model holds (probes, importance); repeatable."
        ),
    ] = None,
    metrics: Metrics = None,
    relations: Relations = None,
    scorers: Scorers = "weights",
    extras: Extras = REPORT_EXTRAS,
    unit: Unit = "sentence",
    sinks: Sinks = "kept",
    controls: Controls = False,
    causal: Causal = False,
    importance: Importance = 0,
    cluster: Cluster = "document",
    margin: Margin = 0.05,
    totals: Totals = False,
    probes: Probes = None,
    max_sentences: MaxSentences = None,
    seed: Seed = 0,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = 2048,
    shard_sentences: ShardSentences = 2048,
    skip_invalid: SkipInvalid = False,
    resume: Resume = False,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    unverified: Unverified = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """The main job: capture, verify, measure every head over a treebank, and write one page that opens offline."""
    from attnprobe.records import open_study
    from attnprobe.report._joined import join as join_studies
    from attnprobe.report.page import write_report

    joined = [open_study(path) for path in join or ()]
    check_writable(out, study)
    if resume and study is None:
        raise InputError("--resume needs --study: finished shards are kept beside the study file.")
    found = open_study(model) if model.endswith(".nc") else _run(result=study, **context.params)
    if joined:
        found = join_studies(found, joined)
    page = write_report(found, out, lang=lang)
    if figures is not None:
        from attnprobe.report.figures import save_all

        save_all(found, figures)
    _summarise(found, {"page": str(page.resolve()), **({"study": str(study.resolve())} if study else {})}, as_json)


def heads(
    context: typer.Context,
    model: ModelName,
    out: Annotated[Path, typer.Option("--out", help="Study file (netCDF-4) to write.")],
    corpus: Corpus = None,
    metrics: Metrics = None,
    relations: Relations = None,
    scorers: Scorers = "weights",
    extras: Extras = "none",
    unit: Unit = "sentence",
    sinks: Sinks = "kept",
    controls: Controls = False,
    causal: Causal = False,
    importance: Importance = 0,
    cluster: Cluster = "document",
    margin: Margin = 0.05,
    totals: Totals = False,
    probes: Probes = None,
    max_sentences: MaxSentences = None,
    seed: Seed = 0,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = 2048,
    shard_sentences: ShardSentences = 2048,
    skip_invalid: SkipInvalid = False,
    resume: Resume = False,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    unverified: Unverified = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure every head over a corpus and write the study file."""
    check_writable(out)
    found = _run(result=out, **context.params)
    _summarise(found, {"study": str(out.resolve())}, as_json)


def _run(
    *,
    model: str,
    corpus: list[str] | None,
    metrics: str | None,
    relations: str | None,
    scorers: str,
    extras: str,
    probes: str | None,
    device: str,
    attn: str | None,
    dtype: str | None,
    skip_invalid: bool,
    quiet: bool,
    result: Path | None,
    resume: bool,
    engine: str,
    address: str | None,
    workers: int | None,
    gpus_per_worker: float,
    **others: Any,
) -> Study:
    """The options of `report` and `heads` that say what to measure; those of `PASSED_ON` go to `run` as they are."""
    from attnprobe.engines import engine_of
    from attnprobe.models.load import device_of, load
    from attnprobe.probes.tasks import choose_tasks
    from attnprobe.study import refuse_unknown_names, run

    place = device_of(device)
    chosen = engine_of(engine, address=address, workers=workers, gpus_per_worker=gpus_per_worker, device=place)
    wanted = [name for name in names_in(extras) or () if name != "none"]
    refuse_unknown_names(names_in(metrics) or (), names_in(relations) or (), names_in(scorers) or (), wanted)
    tasks = choose_tasks(names_in(probes) or ()) if probes else []
    sentences, called = corpus_of(corpus, skip_invalid)
    loaded = load(model, attn=attn, dtype=dtype, device=device)
    with progress_bar(quiet) as progress:
        return run(
            loaded,
            sentences,
            metrics=names_in(metrics),
            relations=names_in(relations),
            scorers=names_in(scorers) or ["weights"],
            extras=wanted,
            probes=tasks,
            corpus=called,
            out=result,
            resume=resume,
            engine=chosen,
            progress=progress,
            **{name: others[name] for name in PASSED_ON},
        )


def corpus_of(given: list[str] | None, skip_invalid: bool) -> tuple[Iterable[Sentence], str]:
    """What `--corpus` names, to be read, and what it is called in the study."""
    import attnprobe.data
    from attnprobe.text.corpus import read_corpus

    if not given:
        return read_corpus(attnprobe.data.path("bundled"), skip_invalid=skip_invalid), BUNDLED
    return read_corpus(given[0] if len(given) == 1 else given, skip_invalid=skip_invalid), ", ".join(given)


def names_in(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def check_writable(*paths: Path | None) -> None:
    """Say before the long run, not after it, that its result has nowhere to go."""
    for path in paths:
        if path is None:
            continue
        folder = path.resolve().parent
        if not folder.is_dir():
            raise InputError(
                explain("cannot write the result", where=str(path), expected="an existing folder", got=f"no {folder}")
            )
        if path.is_dir():
            raise InputError(
                explain("cannot write the result", where=str(path), expected="a file name", got="a folder")
            )
        if not os.access(folder, os.W_OK):
            raise EnvironmentFailure(explain("cannot write the result", where=str(path), got=f"{folder} is read-only"))


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Callable[..., None] | None]:
    """A bar on standard error where a person may be looking at it, told (done, in all) and what is going on."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=None)
        yield lambda done, total, what="measuring": bar.update(
            task, completed=done, total=total or None, description=what
        )


def _summarise(study: Study, written: dict[str, str], as_json: bool) -> None:
    if study.attributes.get("kind") == "comparison":
        print(json.dumps(written) if as_json else "\n".join(f"{kind}: {path}" for kind, path in written.items()))
        return
    labels = study["labels"]["labels"].values
    found = [[label["label"] for label in json.loads(str(text))["labels"]] for text in labels.ravel()]
    summary = {
        **written,
        "model": study.attributes["model"],
        "corpus": study.attributes["corpus"],
        "verified": study.verified,
        "sentences_kept": int(study.attributes["sentences_kept"]),
        "sentences_dropped": json.loads(study.attributes["sentences_dropped"]),
        "heads": len(found),
        "heads_labelled": sum(bool(names) for names in found),
    }
    if as_json:
        print(json.dumps(summary))
        return
    state = "verified" if study.verified else "NOT VERIFIED"
    dropped = sum(summary["sentences_dropped"].values())
    print(
        f"{summary['model']} over {summary['sentences_kept']} sentences ({dropped} left out): {state}, {summary['heads_labelled']} of {summary['heads']} heads labelled"
    )
    for kind, path in written.items():
        print(f"{kind}: {path}")
