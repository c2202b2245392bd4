"""`probe`: what can be read off each head, as a study of its own or added to one that says where the heads look."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprobe.commands.measuring import BUNDLED, check_writable, names_in, progress_bar
from attnprobe.commands.options import (
    Attn,
    Corpus,
    Debug,
    Device,
    Dtype,
    Json,
    MaxSentences,
    ModelName,
    Quiet,
    Resume,
    Seed,
    SkipInvalid,
    Unverified,
)
from attnprobe.commands.studies import gathered
from attnprobe.errors import InputError, explain, near_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import xarray as xr

    from attnprobe.models.load import Model
    from attnprobe.probes.use import Head
    from attnprobe.records import Sentence, Study
    from attnprobe.registry import ProbeTask

ALSO = ("dependency", "structural")


def probe(
    context: typer.Context,
    model: ModelName,
    out: Annotated[
        Path | None, typer.Option("--out", help="Study file (netCDF-4) to write. Default with --into: that file.")
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into", help="Add the probes, and a profile of each head, to this study of the same model and corpus."
        ),
    ] = None,
    corpus: Corpus = None,
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            help="Comma-separated tasks (`attnprobe list tasks`), or feats:NAME, misc:KEY (a key of the MISC column), ner:FILE (IOB2), "
            "supersense:FILE (STREUSLE).",
        ),
    ] = None,
    sites: Annotated[str, typer.Option("--sites", help="Comma-separated: q, k, v, context.")] = "context",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of held-out clusters and control labels.")] = 3,
    pieces: Annotated[
        str, typer.Option("--pieces", help="Vector of a word: mean, first or last of its pieces.")
    ] = "mean",
    mdl: Annotated[bool, typer.Option("--mdl/--no-mdl", help="Code lengths and learning curves.")] = True,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="What stands or falls together: document (default), or sentence.")
    ] = None,
    also: Annotated[
        str | None,
        typer.Option("--also", help="dependency: trees out of all heads' attention; structural: trees out of vectors."),
    ] = None,
    use: Annotated[
        str | None,
        typer.Option(
            "--use", help="Take heads out and probe the final states again: best (of each task), or L2H8,L4H1."
        ),
    ] = None,
    how: Annotated[
        str, typer.Option("--how", help="With --use, how heads are taken out: mean, zero or uniform.")
    ] = "mean",
    head: Annotated[
        str | None,
        typer.Option("--head", help="Task head to load, such as masked-lm: --use then watches its loss too."),
    ] = None,
    max_sentences: MaxSentences = None,
    seed: Seed = 0,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    skip_invalid: SkipInvalid = False,
    resume: Resume = False,
    unverified: Unverified = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """What can be read off each head's vectors, beside what a control task, the majority and random weights give."""
    from attnprobe.checkpoint import alone, checkpoints
    from attnprobe.probes.run import DEFAULT_TASKS
    from attnprobe.probes.tasks import choose_tasks

    asked = _Asked(
        tasks=tuple(choose_tasks(names_in(tasks) or DEFAULT_TASKS)),
        also=tuple(names_in(also) or ()),
        use=None if use is None else _heads_in(use),
        how=how,
        options={"sites": names_in(sites) or ["context"], "seeds": seeds, "seed": seed, "pieces": pieces, "mdl": mdl},
    )
    path = out or into
    if path is None:
        raise InputError("nowhere to write the probes: give --out, or --into an existing study.")
    check_writable(path)
    parts = path.with_name(f"{path.name}.probes")
    with alone(path):
        study, given = _joined(into, dict(context.params))
        with checkpoints(parts, "probes", resume=resume) as store, progress_bar(quiet) as progress:
            asked.options.update(cluster=given["cluster"], checkpoints=store.folder / "steps", progress=progress)
            gathered(partial(asked.compute, study), **{**given, "out": path, "study": study})
            store.remove()


def _joined(into: Path | None, given: dict[str, Any]) -> tuple[Study | None, dict[str, Any]]:
    """The study to add to, and the options, those not given taken from that study."""
    from attnprobe.records import open_study

    if into is None:
        return None, {**given, "cluster": given["cluster"] or "document"}
    study = open_study(into)
    plan = json.loads(str(study.attributes.get("plan", "{}")))
    for name in ("max_sentences", "cluster"):
        own, wanted = plan.get(name), given[name]
        if wanted is not None and wanted != own:
            option = f"--{name.replace('_', '-')}"
            expected = f"{option} {own}, or none" if own is not None else f"no {option}"
            remedy = "Leave it out, or write a file of its own with --out"
            what = "probes of other sentences do not belong in this study"
            raise InputError(explain(what, where=str(into), expected=expected, got=f"{wanted}", remedy=remedy))
        given[name] = own
    corpus = str(study.attributes.get("corpus", BUNDLED))
    if not given["corpus"] and corpus != BUNDLED:
        given["corpus"] = _given_as(corpus)
    return study, {**given, "cluster": given["cluster"] or "document"}


def _given_as(called: str) -> list[str]:
    """What was given as `--corpus` for a corpus of this name: `corpus_of` backwards. A comma may stand in the name of a file."""
    given, parts = [], called.split(", ")
    while parts:
        ends = (end for end in range(len(parts), 1, -1) if os.path.isfile(", ".join(parts[:end])))
        end = next(ends, 1)
        given.append(", ".join(parts[:end]))
        del parts[:end]
    return given


@dataclass(frozen=True)
class _Asked:
    """What is to be computed."""

    tasks: tuple[ProbeTask, ...]
    also: tuple[str, ...]
    use: list[Head] | None
    """Heads to take out; an empty list stands for the best of each task."""
    how: str
    options: dict[str, Any]

    def __post_init__(self) -> None:
        for name in self.also:
            if name not in ALSO:
                raise InputError(f"unknown kind of probe {name!r}; {near_names(name, ALSO)}.")

    def compute(self, study: Study | None, model: Model, corpus: Iterable[Sentence]) -> dict[str, xr.Dataset]:
        """The tables, by group."""
        from attnprobe.probes import dependency_probe, structural_probe
        from attnprobe.probes.profile import profile_groups
        from attnprobe.probes.run import probe as probe_heads

        sentences = list(corpus)
        found = {"probes": probe_heads(model, sentences, tasks=self.tasks, **self.options)}
        if study is not None:
            measured = {name: study[name] for name in ("labels", "metrics") if name in study}
            found |= profile_groups({**measured, **found})
        also = {"dependency": dependency_probe, "structural": structural_probe}
        shared = {name: self.options[name] for name in ("cluster", "seed")}
        found |= {name: also[name](model, sentences, **shared) for name in self.also}
        if self.use is not None:
            found["use"] = self._used(model, sentences, found["probes"], shared)
        return {f"/{name}": table for name, table in found.items()}

    def _used(
        self, model: Model, sentences: Sequence[Sentence], table: xr.Dataset, shared: dict[str, Any]
    ) -> xr.Dataset:
        from attnprobe.heads._watch import losses_of, watched_of
        from attnprobe.probes.use import best_head, over_tasks, probe_against_use

        watch = None if watched_of(model).name == "states" else partial(losses_of, seed=shared["seed"])
        failed = json.loads(table.attrs["not_probed"])
        tasks = [task for task in self.tasks if task.level == "word" and task.name not in failed]
        if not tasks:
            raise InputError(explain("no task for --use", expected="a task of words that could be probed", got="none"))
        return over_tasks(
            probe_against_use(
                model,
                sentences,
                task=task,
                heads=self.use or [best_head(table, task.name)],
                how=self.how,
                watch=watch,
                **shared,
            )
            for task in tasks
        )


def _heads_in(text: str) -> list[Head]:
    """`L2H8,L4H1` as (layer, head); nothing for `best`."""
    if text == "best":
        return []
    found = [re.fullmatch(r"L(\d+)H(\d+)", name) for name in names_in(text) or [""]]
    if not all(found):
        raise InputError(explain("cannot read --use", expected="best, or heads such as L2H8,L4H1", got=repr(text)))
    return [(int(match[1]), int(match[2])) for match in found if match]
