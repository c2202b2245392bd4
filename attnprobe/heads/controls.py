"""Random-weights models of the same shape: what a score is worth that a network gets without having learned anything.

Two of them, since they answer different questions. `all_random` has learned nothing. `embeddings_kept` knows its words and positions, and
mixes them at random: what it scores is owed to the embeddings and the architecture.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from attnprobe.errors import InputError, explain, near_names
from attnprobe.heads._contrast import number
from attnprobe.models.model import Model

CONTROLS = ("embeddings_kept", "all_random")
FROM_RELATIONS = ("accuracy", "low", "high", "difference", "difference_low", "difference_high")
"""Variables of `/relations` that are kept for each control."""

Tables = Mapping[str, xr.Dataset | None]
"""`metrics` and `relations` of one model; a table may be None."""


def random_weights(model: Model, kind: str, *, seed: int = 0) -> Model:
    """A model of the same configuration with weights drawn anew, as its class initialises them.

    `all_random`: every weight is new. `embeddings_kept`: only those of the blocks are; what lies outside the stack of blocks (embeddings, their
    norm, position tables) is the model's own. Depends on `seed` alone and leaves torch's generator as it was.

    Raises `InputError` for an unknown kind, and where a model has no stack of blocks to tell embeddings from.
    Source: Zhang and Bowman 2018; with embeddings kept, Clark et al. 2019, section 5.

    >>> from attnprobe import load
    >>> random_weights(load("minilm"), "all_random").name
    'minilm (all_random, seed 0)'
    """
    if kind not in CONTROLS:
        raise InputError(f"unknown control {kind!r}; {near_names(kind, CONTROLS)}.")
    weights = next(model.module.parameters())
    with torch.random.fork_rng(devices=[]):
        torch.random.default_generator.manual_seed(seed)  # that of the CPU alone: GPUs' are not put back
        module = type(model.module)(copy.deepcopy(model.config))
    module = module.to(weights.device, weights.dtype).eval()
    if kind == "embeddings_kept":
        _keep_embeddings(model, module)
    name = f"{model.name} ({kind}, seed {seed})"
    return replace(model, module=module, name=name, source=None)


def _keep_embeddings(model: Model, module: nn.Module) -> None:
    """Copy what no block holds: weights under an `nn.ModuleList` belong to blocks."""
    stacks = [name for name, part in module.named_modules() if isinstance(part, nn.ModuleList) and len(part)]
    if not stacks:
        what = f"cannot tell the embeddings of {model.name} from its blocks"
        raise InputError(explain(what, expected="a list of blocks", got=f"none in {type(module).__name__}"))
    own = model.module.state_dict()
    inside = tuple(f"{name}." for name in stacks)
    with torch.no_grad():
        for name, weight in module.state_dict().items():
            if not name.startswith(inside):
                weight.copy_(own[name])


def control_table(
    model: Model, measure: Callable[[Model], Tables], *, kinds: Sequence[str] = CONTROLS, seed: int = 0
) -> xr.Dataset:
    """`/controls`: what `measure` finds on each random-weights model, side by side along `control`.

    From `/relations` its accuracies and gains with their intervals (`FROM_RELATIONS`), from `/metrics` every metric with its interval;
    and `best(control, scorer, relation)`: accuracy on `report` of the head and direction that are best on `select`.
    """
    parts, hashes = [], {}
    for kind in kinds:
        control = random_weights(model, kind, seed=seed)
        parts.append(_scores(measure(control)))
        hashes[kind] = control.sha256
    table = xr.concat(
        parts, xr.DataArray(list(kinds), dims="control", name="control"), join="exact", combine_attrs="override"
    )
    for values in table.data_vars.values():
        values.encoding = {"zlib": True, "complevel": 4}
    return table.assign_attrs(seed=seed, model_sha256=json.dumps(hashes))


def _scores(tables: Tables) -> xr.Dataset:
    metrics, relations = tables.get("metrics"), tables.get("relations")
    found: dict[str, xr.DataArray] = {}
    if metrics is not None:
        found |= {str(name): values for name, values in metrics.data_vars.items() if not str(name).endswith("count")}
    if relations is not None:
        found |= {name: relations[name] for name in FROM_RELATIONS}
        found["best"] = _best(relations["accuracy"])
    return xr.Dataset(found)


def _best(accuracy: xr.DataArray) -> xr.DataArray:
    """Accuracy on `report` of what is best on `select`, over directions, layers and heads."""
    flat = accuracy.stack(cell=("direction", "layer", "head"))
    select = flat.sel(split="select")
    where = select.fillna(-1.0).argmax("cell")
    return flat.sel(split="report").isel(cell=where).where(select.notnull().any("cell")).reset_coords(drop=True)


def add_control_scores(labels: xr.Dataset, controls: xr.Dataset) -> xr.Dataset:
    """`/labels` with `controls` in each label: for each control its score at the same place, and that of its own best head.

    For a relation: accuracy on `report` of the same head and direction (`score`), and of the head that is best on `select` (`best`). For a
    metric: its mean over the whole corpus at the same head, and the greatest of all heads.
    """
    told = np.vectorize(json.loads, otypes=[object])(labels["labels"].values)
    kept = controls.sel(sinks="kept") if "sinks" in controls.dims else controls
    for (layer, head), entry in np.ndenumerate(told):
        for label in entry["labels"]:
            of_label = _of_relation if "relation" in label else _of_metric
            label["controls"] = {
                str(kind): of_label(kept.sel(control=kind), label, layer, head) for kind in kept["control"].values
            }
    result = labels.copy()
    result["labels"] = (labels["labels"].dims, np.vectorize(json.dumps, otypes=[object])(told).astype(str))
    return result


def _of_relation(control: xr.Dataset, label: Mapping[str, Any], layer: int, head: int) -> dict[str, float | None]:
    here = {"scorer": label["scorer"], "relation": label["relation"]}
    place = {"split": "report", "direction": label["direction"]}
    score = control["accuracy"].sel(here | place).isel(layer=layer, head=head)
    return {"score": number(score), "best": number(control["best"].sel(here))}


def _of_metric(control: xr.Dataset, label: Mapping[str, Any], layer: int, head: int) -> dict[str, float | None]:
    values = control[label["metric"]]
    values = values.sel({str(dim): label[str(dim)] for dim in values.dims if dim not in ("layer", "head")})
    return {"score": number(values.isel(layer=layer, head=head)), "best": number(values.max())}
