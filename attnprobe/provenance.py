"""What a study says of where it comes from: the model and the corpus, how they were read, and that the capture was shown to match the model."""

from __future__ import annotations

import datetime
import hashlib
import json
import platform
from collections.abc import Iterable
from dataclasses import asdict
from importlib.metadata import version

import numpy as np
import torch
import xarray as xr

import attnprobe
from attnprobe.heads.corpora import notes_of
from attnprobe.heads.running import inputs_for, prepare_for
from attnprobe.models.load import Model
from attnprobe.models.verify import merge, verify
from attnprobe.planning import Options, Planned, limited
from attnprobe.records import Provenance, Sentence, Verification


def provenance_of(
    model: Model, sentences: Iterable[Sentence], options: Options, planned: Planned, corpus: str | None
) -> Provenance:
    """All that the root of a study says, for a corpus called `corpus`."""
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
        corpus_sha256=str(hashed()) if callable(hashed) else _sha256(limited(sentences, options.max_sentences)),
        label_scheme="Universal Dependencies v2",
        seed=options.seed,
        plan=json.dumps(plan),
        versions=json.dumps(versions),
        sentences_kept=planned.sentences,
        sentences_dropped=json.dumps(dict(sorted(dropped.items()))),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _sha256(sentences: Iterable[Sentence]) -> str:
    """Hash of all that a sentence carries, where there is no file to hash."""
    digest = hashlib.sha256()
    for sentence in sentences:
        digest.update(json.dumps(list(vars(sentence).values()), default=dict).encode())
    return digest.hexdigest()


def run_key(provenance: Provenance, *, totals: bool) -> str:
    """What a finished shard depends on; and `totals`, which are made of single shards, not of the sums that take their place."""
    names = ("model_sha256", "attn_implementation", "dtype", "device", "corpus_sha256", "plan", "versions")
    return json.dumps({**{name: getattr(provenance, name) for name in names}, "totals": totals}, indent=1)


def verify_on(model: Model, planned: Planned) -> Verification:
    """Verify the capture on the built-in texts and on the batches of the corpus that the plan set aside for it."""
    parts = [verify(model)]
    for batch in planned.batches:
        parts.append(verify(model, **inputs_for(model, prepare_for(model, batch, range(len(batch)), None))))
    return merge(parts)


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
