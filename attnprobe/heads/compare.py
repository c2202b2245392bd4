"""Comparing two studies: checkpoints of one model, two models, or one model on two corpora."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.errors import InputError, explain, near_names
from attnprobe.heads._groups import paired_difference
from attnprobe.heads._matching import match_heads
from attnprobe.heads.tabulate import MINIMUM_N
from attnprobe.records import STUDY_FORMAT, Study

ALIGN = ("index", "match")
SIDES = ("model", "model_sha256", "family", "dtype", "corpus", "corpus_sha256", "label_scheme", "sentences_kept")
"""Root attributes of each study that a comparison repeats, as `a_model`, `b_model`, ..."""


def compare(a: Study, b: Study, *, align: str | None = None) -> Study:
    """The second study minus the first, with 95 % intervals: a `Study` of its own, to be saved and opened like any other.

    `/metrics`: for each metric that both hold, its difference per head with `_low` and `_high`. `/relations`: `difference` of the accuracies
    (split, scorer, relation, direction, layer, head) with `low` and `high`. `/best`: the same for each relation's best head, chosen in each
    study on `select`. `/matches`: which head of `b` does most nearly what a head of `a` does (see `match_heads`). `/labels`: as JSON, what each
    head gained, lost and kept, and `untested`, what only one study had the cases to say; the attribute `heads` lists each label's heads in both.

    `align` says which head of `b` stands against a head of `a`: `index` (the same layer and number; the default where the shapes agree) or
    `match`. Intervals are paired by group of clusters where both studies are of one corpus and plan and hold `/totals`
    (`run(..., totals=True)`); else the studies count as independent, which is too wide where they share a corpus. The attribute `pairing` says
    which. They are not corrected for the number of cells: each variable tells how many there are and how many exclude 0.

    Raises `InputError` for an unknown `align`, and for `index` where the shapes differ. Source of the independent intervals: Newcombe 1998.
    """
    shapes = [tuple(study["metrics"].sizes[dim] for dim in ("layer", "head")) for study in (a, b)]
    align = align or ("index" if shapes[0] == shapes[1] else "match")
    if align not in ALIGN:
        raise InputError(f"unknown way to align heads {align!r}; {near_names(align, ALIGN)}.")
    if align == "index" and shapes[0] != shapes[1]:
        got = " and ".join(f"{layers} x {heads}" for layers, heads in shapes)
        what = "cannot compare these studies head by head"
        raise InputError(explain(what, expected="equally many layers and heads", got=got, remedy="Use align='match'"))
    matches = match_heads(a, b)
    pair = _Pair(a, b, matches if align == "match" else None)
    groups = {"/matches": matches, "/metrics": pair.metrics()}
    if "relations" in a and "relations" in b:
        groups |= {"/relations": pair.relations(), "/best": pair.best()}
    if "labels" in a and "labels" in b:
        groups["/labels"] = pair.labels()
    attributes: dict[str, Any] = {"format": STUDY_FORMAT, "kind": "comparison", "align": align, "pairing": pair.pairing}
    attributes["model"] = f"{b.attributes['model']} minus {a.attributes['model']}"
    for side, study in (("a", a), ("b", b)):
        attributes |= {f"{side}_{name}": study.attributes[name] for name in SIDES if name in study.attributes}
        attributes[f"{side}_verified"] = int(study.verified)
    return Study(xr.DataTree.from_dict({"/": xr.Dataset(attrs=attributes), **groups}))


class _Pair:
    """Two studies whose heads are aligned."""

    def __init__(self, a: Study, b: Study, matches: xr.Dataset | None) -> None:
        self.a, self.b, self.matches = a, b, matches
        reason = _unpaired(a, b)
        self.paired = not reason
        groups = a["totals"].attrs["groups"] if self.paired else 0
        self.pairing = f"paired over {groups} groups of clusters" if self.paired else f"independent: {reason}"

    def aligned(self, values: xr.DataArray) -> xr.DataArray:
        """Values of `b` at the places of `a`; NaN at heads without a counterpart."""
        if self.matches is None or "head" not in values.dims:
            return values
        there = self.matches["layer_b"].notnull()
        at = {f"{dim}": self.matches[f"{dim}_b"].fillna(0).astype(int) for dim in ("layer", "head")}
        own = {dim: self.matches[dim] for dim in ("layer", "head")}
        bare = values.drop_vars(["layer", "head", "kind", "index"], errors="ignore")
        return bare.isel(at).where(there).assign_coords(own).transpose(*values.dims)

    def metrics(self) -> xr.Dataset:
        """`/metrics` of the comparison."""
        first, second = (_without_views(study["metrics"]) for study in (self.a, self.b))
        found: dict[str, xr.DataArray] = {}
        for name in map(str, first.data_vars):
            if name not in second or f"{name}_low" not in first:
                continue
            if self.paired and f"{name}_total" in self.a["totals"]:
                every = self._paired(f"{name}_total", f"{name}_n")
                d, low, high = (values.sel(split="all", drop=True) for values in every)
            else:
                d, low, high = _independent(
                    [first[name + end] for end in ("", "_low", "_high")],
                    [self.aligned(second[name + end]) for end in ("", "_low", "_high")],
                )
            dims = first[name].dims
            told = {key: first[name].attrs[key] for key in ("unit", "source") if key in first[name].attrs}
            told |= _counted(low, high)
            for end, values in (("", d), ("_low", low), ("_high", high)):
                found[name + end] = values.transpose(*dims).assign_attrs(told)
        return xr.Dataset(found)

    def relations(self) -> xr.Dataset:
        """`/relations` of the comparison."""
        first, second = (study["relations"] for study in (self.a, self.b))
        first, second = (
            table[["accuracy", "low", "high", "n"]] for table in xr.align(first, second, exclude=["layer", "head"])
        )
        names = ("accuracy", "low", "high")
        if self.paired:
            d, low, high = self._paired("hits", "cases")
        else:
            d, low, high = _independent([first[name] for name in names], [self.aligned(second[name]) for name in names])
        dims = first["accuracy"].dims
        told = {"unit": "share", **_counted(low, high)}
        found = {
            name: values.transpose(*dims).assign_attrs(told)
            for name, values in (("difference", d), ("low", low), ("high", high))
        }
        found |= {"a": first["accuracy"], "b": self.aligned(second["accuracy"]), "n_a": first["n"], "n_b": second["n"]}
        return xr.Dataset(found)

    def _paired(self, total: str, n: str) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
        """Difference of two ratios of totals with its interval, for each split and for all."""
        ours = [_with_all(self.a["totals"][name]) for name in (total, n)]
        return paired_difference(*ours, *(self.aligned(_with_all(self.b["totals"][name])) for name in (total, n)))

    def best(self) -> xr.Dataset:
        """`/best` of the comparison: accuracy on `report` of the head each study chose on `select` (-1: none)."""
        first, second = xr.align(self.a["best"], self.b["best"], join="inner")
        names = ("accuracy", "low", "high")
        d, low, high = _independent([first[name] for name in names], [second[name] for name in names])
        if self.paired:
            sums = [part for study, table in ((self.a, first), (self.b, second)) for part in _best_totals(study, table)]
            d, low, high = paired_difference(*sums)
        chosen = (first["layer"] >= 0) & (second["layer"] >= 0)
        d, low, high = (values.where(chosen) for values in (d, low, high))
        told = {"unit": "share", **_counted(low, high)}
        found = {name: values.assign_attrs(told) for name, values in (("difference", d), ("low", low), ("high", high))}
        for side, table in (("a", first), ("b", second)):
            found |= {f"{name}_{side}": table[name] for name in ("accuracy", "layer", "head", "direction", "scorer")}
        return xr.Dataset(found).reset_coords(drop=True)

    def labels(self) -> xr.Dataset:
        """`/labels` of the comparison."""
        ours, theirs = (_labels_of(study) for study in (self.a, self.b))
        unsaid = {"a": _untested(self.a, self.b), "b": _untested(self.b, self.a)}
        told = np.empty(ours.shape, dtype=object)
        for layer, head in np.ndindex(*ours.shape):
            place = self._counterpart(layer, head)
            before, after = ours[layer, head], {} if place is None else theirs[place]
            gained = [key for key in after if key not in before]
            lost = [key for key in before if key not in after]
            told[layer, head] = json.dumps(
                {
                    "gained": [after[key] for key in gained if key not in unsaid["a"]],
                    "lost": [before[key] for key in lost if key not in unsaid["b"]],
                    "kept": [after[key] for key in after if key in before],
                    "untested": [
                        *(after[key] for key in gained if key in unsaid["a"]),
                        *(before[key] for key in lost if key in unsaid["b"]),
                    ],
                }
            )
        heads = {side: dict(_by_label(table)) for side, table in (("a", ours), ("b", theirs))}
        every = sorted({label for own in heads.values() for label in own})
        summary = {label: {side: own.get(label, []) for side, own in heads.items()} for label in every}
        coordinates = {dim: self.a["labels"][dim].values for dim in ("layer", "head")}
        return xr.Dataset(
            {"labels": (["layer", "head"], told.astype(str))}, coordinates, {"heads": json.dumps(summary)}
        )

    def _counterpart(self, layer: int, head: int) -> tuple[int, int] | None:
        if self.matches is None:
            return layer, head
        place = [float(self.matches[name][layer, head]) for name in ("layer_b", "head_b")]
        return None if np.isnan(place[0]) else (int(place[0]), int(place[1]))


def _unpaired(a: Study, b: Study) -> str:
    """Why two studies cannot be paired; empty where they can."""
    if a.attributes.get("corpus_sha256") != b.attributes.get("corpus_sha256"):
        return "two corpora"
    plans = [json.loads(str(study.attributes.get("plan", "{}"))).get("sha256") for study in (a, b)]
    if plans[0] is None or plans[0] != plans[1]:
        return "two batch plans (tokenizers or options differ)"
    if "totals" not in a or "totals" not in b:
        return "totals of groups of clusters were not kept (totals=True, --totals)"
    return ""


def _independent(a: list[xr.DataArray], b: list[xr.DataArray]) -> tuple[xr.DataArray, xr.DataArray, xr.DataArray]:
    """The second minus the first, from (value, low, high) of each: the distances to the far bounds, squared and added."""
    (a_value, a_low, a_high), (b_value, b_low, b_high) = a, b
    d = b_value - a_value
    low = d - np.sqrt(np.square(b_value - b_low) + np.square(a_high - a_value))
    return d, low, d + np.sqrt(np.square(b_high - b_value) + np.square(a_value - a_low))


def _counted(low: xr.DataArray, high: xr.DataArray) -> dict[str, int]:
    """How many cells have an interval, and how many of those exclude 0; by chance alone at most about one in twenty does,
    fewer where differences are often exactly 0, and next to none where the intervals are `too_wide`.
    """
    return {"cells": int((low.notnull() & high.notnull()).sum()), "exclude_zero": int(((low > 0) | (high < 0)).sum())}


def _with_all(totals: xr.DataArray) -> xr.DataArray:
    """The totals of each split, and of both together."""
    totals = totals.astype(float)
    return xr.concat([totals, totals.sum("split").assign_coords(split="all")], "split")


def _without_views(table: xr.Dataset) -> xr.Dataset:
    return table.sel(sinks="kept", drop=True) if "sinks" in table.dims else table


def _best_totals(study: Study, best: xr.Dataset) -> tuple[xr.DataArray, xr.DataArray]:
    """Hits and cases on `report` of each relation's best head, by group."""
    report = study["totals"].sel(split="report", relation=best["relation"])
    found = best["layer"] >= 0
    dims = ("scorer", "direction", "layer", "head")
    place = {name: best[name].where(found, report[name].values[0]).astype(best[name].dtype) for name in dims}
    hits = report["hits"].sel(place).astype(float)
    return hits.reset_coords(drop=True), report["cases"].astype(float).reset_coords(drop=True)


def _labels_of(study: Study) -> np.ndarray:
    """Labels of each head by (family, label), each with its score on `report`, [layer head]."""
    table = study["labels"]["labels"].values
    found = np.empty(table.shape, dtype=object)
    for place in np.ndindex(*table.shape):
        labels = json.loads(str(table[place]))["labels"]
        found[place] = {
            (label["family"], label["label"]): {
                key: label.get(key) for key in ("family", "label", "score", "low", "high")
            }
            for label in labels
        }
    return found


def _untested(study: Study, other: Study) -> set[tuple[str, str]]:
    """Labels of `other`, (family, label), of which `study` cannot say whether a head holds them: it did not measure them, or on too few cases."""
    known: dict[tuple[str, str], bool] = {}
    for text in other["labels"]["labels"].values.ravel():
        for label in json.loads(str(text))["labels"]:
            key = label["family"], label["label"]
            known[key] = known.get(key, False) or _tested(study, label)
    return {key for key, tested in known.items() if not tested}


def _tested(study: Study, label: dict[str, Any]) -> bool:
    """Whether a study had the cases to judge what this label was read off."""
    if "relation" in label:
        name = label["relation"]
        if "relations" not in study or name not in study["relations"]["relation"]:
            return False
        n = study["relations"]["n"].sel(relation=name)
        return bool(n.sel(split="select") > 0 and n.sel(split="report") >= MINIMUM_N)
    if "metric" in label:
        if "metrics_by_split" not in study:
            return label["metric"] in study["metrics"]
        counts = _without_views(study["metrics_by_split"]).get(f"{label['metric']}_count")
        where = {dim: label[dim] for dim in ("offset", "target") if dim in label}
        return counts is not None and bool(counts.sel(split="report", **where).max() >= MINIMUM_N)
    return True


def _by_label(table: np.ndarray) -> Iterator[tuple[str, list[str]]]:
    names = sorted({label for entry in table.flat for _, label in entry})
    for name in names:
        holders = [
            f"L{layer}H{head}"
            for (layer, head), entry in np.ndenumerate(table)
            if any(label == name for _, label in entry)
        ]
        yield name, holders
