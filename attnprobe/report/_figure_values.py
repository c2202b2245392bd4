"""Reading a study for figures: one number per head with interval, count and chance level.

Nothing is computed here; what a study lacks raises `InputError` and says what to run.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

from attnprobe.errors import InputError, explain, near_names
from attnprobe.records import Study

TITLES = {
    "entropy": "Entropy of attention",
    "entropy_normalised": "Normalised entropy",
    "distance": "Attention distance",
    "signed_distance": "Signed attention distance",
    "offset_mass": "Attention at offset",
    "offset_argmax": "Most attended at offset",
    "special_mass": "Attention to",
    "special_argmax": "Most attended",
}
"""Names of metrics as an axis shows them; others show their own name."""
ANCHORS = {
    "entropy": "0: one key takes all; uniform attention gives the log of the number of visible keys",
    "entropy_normalised": "0: one key takes all; 1: uniform attention",
}
UNIFORM = {"entropy_normalised": 1.0}
"""Metrics for which uniform attention reads the same whatever the sentence."""
REMEDIES = {
    "metrics": "Run `attnprobe heads MODEL --out study.nc`, which measures every metric",
    "labels": "Run `attnprobe heads MODEL --out study.nc` with the metrics left at their default",
    "relations": "Run `attnprobe heads MODEL --corpus TREEBANK.conllu --relations dep,udep --out study.nc` on a corpus with trees",
    "best": "Run `attnprobe heads MODEL --corpus TREEBANK.conllu --relations dep,udep --out study.nc` on a corpus with trees",
    "probes": "Run `attnprobe probe MODEL --out study.nc`",
    "clusters": "Run `attnprobe heads MODEL --out study.nc` with a version that clusters heads",
    "examples": "Run `attnprobe heads MODEL --out study.nc`, which keeps a few sentences, or draw `capture(model, text).view()`",
}


@dataclass(frozen=True)
class HeadValues:
    """One number for each head, as the study has it."""

    name: str
    """Name usable in a file name: `entropy`, `dep-obj`."""
    title: str
    """What the number is, as an axis says it."""
    unit: str
    value: np.ndarray
    """[layer head]; NaN where undefined, or where the layer has no such head."""
    low: np.ndarray | None
    """Lower end of the interval, [layer head]."""
    high: np.ndarray | None
    count: np.ndarray
    """Rows or cases behind each number, [layer head]; NaN where the study does not say."""
    counted: str
    """What `count` counts: `query rows`, `cases`."""
    layers: tuple[str, ...]
    """Name of each layer on an axis: its number, with its kind where there are several."""
    chance: float | None = None
    """What a reader should hold the numbers against; None where there is no such number."""
    chance_name: str = ""
    reference: str = "Chance level"
    """What `chance` is: `Chance level`, or the `Baseline` that a head must beat."""
    note: str = ""
    """A sentence for the caption: how to read the numbers."""
    passed: np.ndarray | None = None
    """Which heads passed the paired test, bool [layer head]."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.value.shape

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def frame(self) -> pd.DataFrame:
        """The numbers as a table, one row for each head."""
        layer, head = np.indices(self.shape)
        columns: dict[str, Any] = {"layer": layer.ravel(), "head": head.ravel(), "value": self.value.ravel()}
        for name in ("low", "high", "passed"):
            if (found := getattr(self, name)) is not None:
                columns[name] = found.ravel()
        return pd.DataFrame({**columns, "n": self.count.ravel(), "unit": self.unit})


def refuse_comparison(study: Study, figure: str) -> None:
    """A comparison holds differences, under names that a study gives to the numbers themselves."""
    if study.attributes.get("kind") == "comparison":
        remedy = "Use figures.comparison(a, b) on the two studies, or write_report(comparison, path)"
        raise InputError(
            explain(f"cannot draw {figure}", expected="a study", got="a comparison of two studies", remedy=remedy)
        )


def part(study: Study, group: str, figure: str) -> xr.Dataset:
    """A group of the study; `InputError` with what to run where it is missing."""
    refuse_comparison(study, figure)
    if group not in study:
        raise InputError(
            explain(
                f"cannot draw {figure}",
                expected=f"a study with /{group}",
                got=f"one with {', '.join(study.groups) or 'nothing in it'}",
                remedy=REMEDIES.get(group),
            )
        )
    return table_of(study, group)


def table_of(study: Study, group: str) -> xr.Dataset:
    """A group of the study as one table; an empty one where the study lacks it."""
    return study.tree[group].to_dataset() if group in study else xr.Dataset()


def values_of(study: Study, by: str, where: Mapping[str, Any], figure: str) -> HeadValues:
    """A metric, or the accuracy of a relation, for every head; `where` chooses a coordinate of each further dimension."""
    refuse_comparison(study, figure)
    metrics = table_of(study, "metrics")
    relations = table_of(study, "relations")
    if by in metrics:
        return metric_values(metrics, by, where, figure)
    if "relation" in relations.coords and by in relations["relation"].values:
        return relation_values(study, by, where, figure)
    if not metrics and not relations:
        part(study, "metrics", figure)
    known = [name for name in metrics if not str(name).endswith(("_low", "_high", "count"))]
    names = [*map(str, known), *map(str, relations["relation"].values if "relation" in relations.coords else ())]
    raise InputError(f"cannot draw {figure} by {by!r}: {near_names(by, [*names, 'labels'])}.")


def metric_values(metrics: xr.Dataset, name: str, where: Mapping[str, Any], figure: str) -> HeadValues:
    """One metric; a metric with an extra dimension (`offset_mass`) needs its coordinate (`offset=-1`)."""
    at = chosen(metrics[name], {"sinks": "kept", **where} if "sinks" in metrics[name].dims else where, figure)

    def read(suffix: str) -> np.ndarray | None:
        return metrics[name + suffix].sel(at).values if name + suffix in metrics else None

    count = read("_count")
    extra = "".join(f" {_place(value)}" for dim, value in at.items() if dim != "sinks")
    removed = ", special tokens removed" if at.get("sinks") == "removed" else ""
    value = np.asarray(read(""), dtype=float)
    return HeadValues(
        name=slug(name, *(value for value in at.values() if value != "kept")),
        title=f"{TITLES.get(name, name.replace('_', ' ').capitalize())}{extra}{removed}",
        unit=str(metrics[name].attrs.get("unit", "")),
        value=value,
        low=read("_low"),
        high=read("_high"),
        count=np.full(value.shape, np.nan) if count is None else np.asarray(count, dtype=float),
        counted="query rows",
        layers=layer_names(metrics),
        chance=UNIFORM.get(name),
        chance_name="uniform attention" if name in UNIFORM else "",
        note=ANCHORS.get(name, "No chance level is defined for this metric"),
    )


def relation_values(study: Study, name: str, where: Mapping[str, Any], figure: str) -> HeadValues:
    """Accuracy of every head on one relation, on the `report` split; direction and scorer as chosen on `select` unless given."""
    table = part(study, "relations", figure).sel(relation=name)
    best = table_of(study, "best").sel(relation=name) if "best" in study else None
    defaults = {"split": "report"}
    for dim in ("scorer", "direction"):
        defaults[dim] = str(best[dim].values) if best is not None and dim in best else ""
        defaults[dim] = defaults[dim] or str(table[dim].values[0])  # none was chosen
    at = chosen(table["accuracy"], {**defaults, **where}, figure)
    here = table.sel(at, drop=True)
    n = float(here["n"])
    p = here["p_adjusted"].values if "p_adjusted" in here and at["split"] == "report" else None
    arrow, way = (
        ("↓", "which word looks hardest at the dependent")
        if at["direction"] == "head->dep"
        else ("↑", "where the dependent looks hardest")
    )
    random = f"; a random choice would score {float(here['chance']):.3g}" if "chance" in here else ""
    return HeadValues(
        name=slug(name, at["direction"].replace("->", "-to-")),
        title=f"Accuracy on {name} {arrow}",
        unit="share",
        value=here["accuracy"].values,
        low=here["low"].values,
        high=here["high"].values,
        count=np.where(np.isnan(here["accuracy"].values), 0.0, n),
        counted="cases",
        layers=layer_names(table),
        chance=float(here["baseline"]) if np.isfinite(here["baseline"]) else None,
        chance_name=f"{baseline_name(here)} (share of cases{random})",
        note=f"{arrow}: {way}. Split {at['split']}; scorer {at['scorer']}",
        reference="Baseline",
        passed=None if p is None else (p < 0.05) & (here["difference"].values >= float(table.attrs.get("margin", 0))),
    )


RIVALS = {"nearest": "the nearest mention before", "same-word": "the nearest mention before with the same head word"}


def baseline_name(table: xr.Dataset) -> str:
    """The baseline of one relation in words: the offset, or the rival that did best on `select`."""
    rival = str(table["baseline_name"].values) if "baseline_name" in table else "offset"
    if not rival.startswith("offset"):
        return RIVALS.get(rival, rival) or "none"
    offset = float(table["baseline_offset"]) if "baseline_offset" in table else np.nan
    return f"always the word at {offset:+.0f}".replace("-", "−") if np.isfinite(offset) else "best fixed offset"


def chosen(array: xr.DataArray, where: Mapping[str, Any], figure: str) -> dict[str, Any]:
    """Coordinates of every dimension but layer and head; `InputError` names the one that is missing or not there."""
    dims = [str(dim) for dim in array.dims if dim not in ("layer", "head")]
    for dim in where:
        if dim not in dims:
            got = near_names(dim, dims) if dims else "it has one number for each head"
            raise InputError(
                explain(f"cannot draw {figure}", expected=f"a dimension of {array.name}", got=f"{dim!r}; {got}")
            )
    for dim in dims:
        known = [value.item() for value in array[dim].values]
        if where.get(dim) not in known:
            remedy = f"Choose one: {dim}={known[0]!r}, say; there are {', '.join(map(str, known))}"
            got = "none" if dim not in where else repr(where[dim])
            raise InputError(
                explain(f"cannot draw {figure} by {array.name}", expected=f"a {dim}", got=got, remedy=remedy)
            )
    return {dim: where[dim] for dim in dims}


def layer_names(table: xr.Dataset) -> tuple[str, ...]:
    """Number of each layer; `enc 0`, `dec 0`, `cross 0` where the model has several kinds."""
    kinds = [str(kind) for kind in table["kind"].values] if "kind" in table.coords else []
    if len(set(kinds)) < 2:
        return tuple(str(layer) for layer in table["layer"].values)
    short = {"encoder": "enc", "decoder": "dec"}
    index = table["index"].values if "index" in table.coords else table["layer"].values
    return tuple(f"{short.get(kind, kind)} {int(i)}" for kind, i in zip(kinds, index, strict=True))


def slug(*parts: Any) -> str:
    """A name of letters, digits and dashes, safe in any file system."""
    return re.sub(r"[^\w.+-]+|_", "-", "-".join(map(str, parts))).strip("-.")[:80] or "figure"


def head_name(layer: Any, head: Any) -> str:
    return f"L{int(layer)}H{int(head)}"


def _place(value: Any) -> str:
    return (
        f"{value:+d}".replace("-", "−")
        if isinstance(value, int)
        else {"self": "itself", "cls": "[CLS]", "sep": "[SEP]"}.get(value, str(value))
    )
