"""The command line: each command calls the library and prints what it found. Exit codes are those of `errors`.

Heavy imports stay inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprobe import __version__
from attnprobe.errors import AttnprobeError, EnvironmentFailure, InputError, explain

if TYPE_CHECKING:
    from attnprobe.records import Study, Verification

app = typer.Typer(
    help="What does each attention head of a pretrained transformer do? Verified capture, measures, evidence.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ModelName = Annotated[str, typer.Argument(help="Short name (minilm), folder, or hub id.")]
Corpus = Annotated[
    str | None,
    typer.Option(
        "--corpus",
        help="CoNLL-U, text, JSON lines or Parquet; a file, a glob, or - for standard input. Default: the bundled treebank.",
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="File to write.")]
Metrics = Annotated[
    str | None, typer.Option("--metrics", help="Comma-separated head metrics; see `attnprobe list metrics`.")
]
Relations = Annotated[
    str | None,
    typer.Option("--relations", help="Comma-separated relations (dep, dep:obj, ...); see `attnprobe list relations`."),
]
MaxSentences = Annotated[int | None, typer.Option("--max-sentences", min=1, help="Use only the first N sentences.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything drawn at random.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, mps or auto.")]
Attn = Annotated[str | None, typer.Option("--attn", help="Attention function: sdpa or eager. Default: the library's.")]
Dtype = Annotated[
    str | None, typer.Option("--dtype", help="float32, float64, bfloat16 or float16. Default: as stored.")
]
BatchTokens = Annotated[int, typer.Option("--batch-tokens", min=1, help="Most tokens of a batch, padding counted.")]
ShardSentences = Annotated[
    int,
    typer.Option(
        "--shard-sentences", min=1, help="Sentences of a shard: what is kept, or sent to a worker, at a time."
    ),
]
SkipInvalid = Annotated[
    bool, typer.Option("--skip-invalid", help="Count and leave out sentences with a broken tree instead of stopping.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted run of the same model, corpus and options.")
]
EngineName = Annotated[str, typer.Option("--engine", help="local, or ray: shards on several processes or machines.")]
Address = Annotated[
    str | None, typer.Option("--address", help="Address of a running Ray cluster; default: one of this machine.")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Ray workers. Default: one for each CPU (or GPU share).")
]
GpusPerWorker = Annotated[float, typer.Option("--gpus-per-worker", min=0.0, help="GPUs that each Ray worker takes.")]
Sinks = Annotated[str, typer.Option("--sinks", help="kept, or both: measure again with special tokens taken out.")]
Unverified = Annotated[
    bool,
    typer.Option("--unverified", help="Go on although the capture does not match the model; the page says so in red."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress on standard error.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Texts = Annotated[list[str] | None, typer.Option("--text", help="A text to run; may be given several times.")]


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        print(__version__)
        raise typer.Exit


@app.command()
def report(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Short name, folder, hub id, or a saved study (.nc).")] = "minilm",
    corpus: Corpus = None,
    out: Annotated[Path, typer.Option("--out", help="Page to write.")] = Path("attnprobe-report.html"),
    study: Annotated[Path | None, typer.Option("--study", help="Also write the study file here.")] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the page: en or zh.")] = "en",
    metrics: Metrics = None,
    relations: Relations = None,
    max_sentences: MaxSentences = None,
    seed: Seed = 0,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = 2048,
    shard_sentences: ShardSentences = 2048,
    sinks: Sinks = "kept",
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
    from attnprobe.report.page import write_report

    _check_writable(out, study)
    if resume and study is None:
        raise InputError("--resume needs --study: finished shards are kept beside the study file.")
    if model.endswith(".nc"):
        from attnprobe.records import open_study

        found = open_study(model)
    else:
        found = _run(result=study, **context.params)
    page = write_report(found, out, lang=lang)
    _summarise(found, {"page": str(page.resolve()), **({"study": str(study.resolve())} if study else {})}, as_json)


@app.command()
def heads(
    context: typer.Context,
    model: ModelName,
    out: Annotated[Path, typer.Option("--out", help="Study file (netCDF-4) to write.")],
    corpus: Corpus = None,
    metrics: Metrics = None,
    relations: Relations = None,
    max_sentences: MaxSentences = None,
    seed: Seed = 0,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    batch_tokens: BatchTokens = 2048,
    shard_sentences: ShardSentences = 2048,
    sinks: Sinks = "kept",
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
    _check_writable(out)
    found = _run(result=out, **context.params)
    _summarise(found, {"study": str(out.resolve())}, as_json)


@app.command()
def verify(
    model: ModelName,
    text: Texts = None,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Recompute attention from captured Q, K, V and compare with the model; exit 1 where they differ."""
    from attnprobe.models.load import load
    from attnprobe.models.verify import verify as verify_model

    checked = verify_model(load(model, attn=attn, dtype=dtype, device=device), text or None)
    if as_json:
        print(json.dumps(checked.as_json(), indent=2))
    else:
        _print_verification(checked)
    if not checked.ok:
        raise typer.Exit(1)


@app.command()
def capture(
    model: ModelName,
    text: Texts = None,
    out: Annotated[Path, typer.Option("--out", help="safetensors file to write.")] = Path("capture.safetensors"),
    route: Annotated[str, typer.Option("--route", help="interface or hooks.")] = "interface",
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Save q, k, v, bias, pattern and context of every layer for one or more texts."""
    from attnprobe.models.capture import capture as capture_model
    from attnprobe.models.load import load

    _check_writable(out)
    if not text:
        raise InputError("nothing to capture: give at least one --text.")
    taken = capture_model(load(model, attn=attn, dtype=dtype, device=device), text, route=route)
    written = taken.save(out)
    result = {
        "capture": str(written.resolve()),
        "layers": len(taken.layers),
        "tokens": [len(row) for row in taken.tokens],
    }
    print(
        json.dumps(result)
        if as_json
        else f"{len(taken.layers)} layers of {len(text)} text(s) saved to {written.resolve()}"
    )


@app.command(name="list")
def list_entries(
    what: Annotated[str, typer.Argument(help="metrics, relations or tasks.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """What can be asked for by name: name, unit or kind, source, and the file and line of its definition."""
    from attnprobe.errors import near_names
    from attnprobe.registry import METRICS, PROBE_TASKS, RELATIONS, location

    tables: dict[str, tuple[str, Any]] = {
        "metrics": ("attnprobe.heads.metrics", METRICS),
        "relations": ("attnprobe.heads.relations", RELATIONS),
        "tasks": ("attnprobe.probes.tasks", PROBE_TASKS),
    }
    if what not in tables:
        raise InputError(f"cannot list {what!r}; {near_names(what, tables)}.")
    from importlib import import_module

    module, registry = tables[what]
    import_module(module)
    rows = [
        {
            "name": entry.name,
            **({"unit": entry.unit} if hasattr(entry, "unit") else {"kind": entry.kind}),
            "about": (entry.function.__doc__ or "").strip().splitlines()[0],
            "source": entry.source,
            "defined": location(entry),
        }
        for entry in registry
    ]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        print(
            f"{row['name']}  [{row.get('unit') or row.get('kind')}]\n    {row['about']}\n    source: {row['source']}\n    {row['defined']}"
        )


def _run(
    *,
    model: str,
    corpus: str | None,
    metrics: str | None,
    relations: str | None,
    device: str,
    attn: str | None,
    dtype: str | None,
    skip_invalid: bool,
    quiet: bool,
    seed: int,
    max_sentences: int | None,
    batch_tokens: int,
    shard_sentences: int,
    sinks: str,
    unverified: bool,
    result: Path | None,
    resume: bool,
    engine: str,
    address: str | None,
    workers: int | None,
    gpus_per_worker: float,
    **_elsewhere: Any,
) -> Study:
    """The options of `report` and `heads` that say what to measure."""
    import attnprobe.data
    from attnprobe.engines import engine_of
    from attnprobe.heads.relations import choose
    from attnprobe.models.load import load
    from attnprobe.registry import METRICS
    from attnprobe.study import run
    from attnprobe.text.corpus import read_corpus

    chosen = engine_of(engine, address=address, workers=workers, gpus_per_worker=gpus_per_worker)
    for name in _names(metrics) or ():
        METRICS[name]
    choose(_names(relations) or ())
    source = corpus if corpus is not None else str(attnprobe.data.path("bundled"))
    sentences = read_corpus(source, skip_invalid=skip_invalid)
    loaded = load(model, attn=attn, dtype=dtype, device=device)
    with _progress(quiet) as progress:
        return run(
            loaded,
            sentences,
            metrics=_names(metrics),
            relations=_names(relations),
            sinks=sinks,
            seed=seed,
            max_sentences=max_sentences,
            batch_tokens=batch_tokens,
            shard_sentences=shard_sentences,
            unverified=unverified,
            corpus=corpus or "bundled treebank",
            out=result,
            resume=resume,
            engine=chosen,
            progress=progress,
        )


def _names(given: str | None) -> list[str] | None:
    return None if given is None else [name.strip() for name in given.split(",") if name.strip()]


def _check_writable(*paths: Path | None) -> None:
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
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error where a person may be looking at it."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("measuring"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("sentences"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("measuring", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print_verification(checked: Verification) -> None:
    verdict = "matches the model" if checked.ok else "DOES NOT MATCH the model"
    print(
        f"{checked.model} ({checked.family}, {checked.attn_implementation}, {checked.dtype}): recomputed attention {verdict}"
    )
    print("layer  kind       pattern      tolerance    context      tolerance    bitwise")
    for i in range(checked.n_layers):
        print(
            f"{i:>5}  {checked.kind[i]:<9}  {checked.pattern_max_abs[i]:<11.1e}  {checked.pattern_tolerance[i]:<11.1e}  "
            f"{checked.context_max_abs[i]:<11.1e}  {checked.context_tolerance[i]:<11.1e}  {'yes' if checked.bitwise[i] else 'no'}"
        )
    print(
        f"{int(checked.rows_checked.sum())} rows checked, {int(checked.rows_excluded.sum())} excluded (padding, or nothing visible)"
    )
    for note in checked.notes:
        print(f"note: {note}")


def _summarise(study: Study, written: dict[str, str], as_json: bool) -> None:
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


def main() -> None:
    """Run the command line and leave with the right exit code."""
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    if debug:
        logging.basicConfig(level=logging.DEBUG)
    warnings.showwarning = lambda message, *_rest, **_options: print(f"warning: {message}", file=sys.stderr)
    try:
        code = app(standalone_mode=False)
    except typer.TyperException as error:
        error.show()
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        print(
            "interrupted; with --out of `heads` or --study of `report`, go on with the same command and --resume",
            file=sys.stderr,
        )
        sys.exit(130)
    except AttnprobeError as error:
        _fail(error, error.exit_code, debug, str(error))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:  # the last border: whatever is left is our fault
        _fail(
            error, 70, debug, f"internal error: {type(error).__name__}: {error}. Run again with --debug and report it."
        )
    sys.exit(code if isinstance(code, int) else 0)


def _fail(error: Exception, code: int, debug: bool, message: str) -> None:
    if debug:
        traceback.print_exception(error)
    print(f"attnprobe: {message}", file=sys.stderr)
    sys.exit(code)
