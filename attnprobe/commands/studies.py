"""More that can be asked about heads: `importance`, and `compare` for two studies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnprobe.commands.measuring import check_writable, corpus_of, names_in
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
    Seed,
    SkipInvalid,
    Unverified,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    import xarray as xr

    from attnprobe.models.load import Model
    from attnprobe.records import Sentence, Study

StudyOut = Annotated[Path, typer.Option("--out", help="Study file (netCDF-4) to write.")]


def importance(
    context: typer.Context,
    model: ModelName,
    out: StudyOut,
    corpus: Corpus = None,
    kinds: Annotated[
        str | None,
        typer.Option("--kinds", help="Of gradient, ablation_zero, ablation_mean, ablation_uniform; default: all."),
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", help="Task head to load, such as masked-lm: its loss is watched.")
    ] = None,
    sentences: Annotated[int, typer.Option("--sentences", min=1, help="Sentences drawn from the corpus.")] = 100,
    max_sentences: MaxSentences = None,
    seed: Seed = 0,
    device: Device = "cpu",
    attn: Attn = None,
    dtype: Dtype = None,
    skip_invalid: SkipInvalid = False,
    unverified: Unverified = False,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """How much hangs on each head: gradients of a gate, and ablation to zero, mean or uniform attention."""
    check_writable(out)
    from attnprobe.checkpoint import alone
    from attnprobe.heads.importance import KINDS, measure_importance

    def compute(loaded: Model, corpus: Iterable[Sentence]) -> dict[str, xr.Dataset]:
        chosen = names_in(kinds) or list(KINDS)
        return {"/importance": measure_importance(loaded, corpus, kinds=chosen, max_sentences=sentences, seed=seed)}

    with alone(out):
        gathered(compute, **context.params)


def compare(
    first: Annotated[Path, typer.Argument(help="A study file.")],
    second: Annotated[Path, typer.Argument(help="Another one.")],
    out: Annotated[
        Path, typer.Option("--out", help="Comparison to write: a page (.html), else a study file (netCDF-4).")
    ],
    align: Annotated[
        str | None,
        typer.Option("--align", help="index, or match: heads by what they do. Default: index where shapes agree."),
    ] = None,
    lang: Annotated[str, typer.Option("--lang", help="Language of the page: en or zh.")] = "en",
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Two studies: differences with intervals, heads matched by what they do, labels gained and lost."""
    from attnprobe.heads.compare import compare as compare_studies
    from attnprobe.records import open_study, too_wide
    from attnprobe.report.page import write_report

    check_writable(out)
    found = compare_studies(open_study(first), open_study(second), align=align)
    if out.suffix.lower() in (".html", ".htm"):
        write_report(found, out, lang=lang)
    else:
        found.save(out)
    told = _compared(found, out)
    if as_json:
        print(json.dumps(told))
        return
    print(f"compared by {told['align']}, {told['pairing']}")
    wide = too_wide(found)
    if wide:
        print(
            "Both read the same sentences but are not paired, so these intervals are too wide: run both with --totals."
        )
    for name, (apart, cells) in told["apart"].items():
        chance = "" if wide else " (by chance at most about one in twenty)"
        print(f"{name}: the interval excludes 0 in {apart} of {cells}{chance}")
    for what in ("gained", "lost"):
        print(f"labels {what}: {', '.join(told[what]) or 'none'}")
    if told["untested"]:
        print(f"labels that one study alone had the cases for: {', '.join(told['untested'])}")
    print(f"comparison: {told['comparison']}")


def _compared(found: Study, out: Path) -> dict[str, Any]:
    """What a comparison comes to: where it was written, how it was paired, how many cells differ, what became of labels."""
    tables = {"best": found["best"]["difference"]} if "best" in found else {}
    tables |= {
        str(name): values for name, values in found["metrics"].data_vars.items() if "exclude_zero" in values.attrs
    }
    apart = {
        name: [int(values.attrs[part]) for part in ("exclude_zero", "cells")]
        for name, values in tables.items()
        if not name.endswith(("_low", "_high"))
    }
    changes: dict[str, list[str]] = {"gained": [], "lost": [], "untested": []}
    labels = found["labels"]["labels"] if "labels" in found else ()
    for row in labels:
        for one in row:
            own = json.loads(str(one.values))
            for what, names in changes.items():
                names += [f"L{int(one['layer'])}H{int(one['head'])} {label['label']}" for label in own[what]]
    how = {name: found.attributes[name] for name in ("align", "pairing")}
    return {"comparison": str(out.resolve()), **how, "apart": apart, **changes}


def gathered(
    compute: Any,
    *,
    model: str,
    out: Path,
    corpus: list[str] | None,
    max_sentences: int | None,
    seed: int,
    device: str,
    attn: str | None,
    dtype: str | None,
    skip_invalid: bool,
    unverified: bool,
    as_json: bool,
    head: str | None = None,
    cluster: str = "document",
    study: Study | None = None,
    **_elsewhere: Any,
) -> None:
    """Compute tables over a corpus and write them to `out`: a study of their own, or together with those of `study`."""
    from attnprobe.models.load import load
    from attnprobe.study import gather

    source, called = corpus_of(corpus, skip_invalid)
    loaded = load(model, head=head, attn=attn, dtype=dtype, device=device)
    found = gather(
        loaded,
        source,
        compute,
        seed=seed,
        cluster=cluster,
        max_sentences=max_sentences,
        unverified=unverified,
        corpus=called,
        into=study,
    )
    found.save(out)
    told = {"study": str(out.resolve()), "groups": found.groups, "verified": found.verified}
    print(json.dumps(told) if as_json else f"study: {told['study']}")
