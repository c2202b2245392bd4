"""Labels: what the evidence allows to say of each head, by fixed rules; else `unlabelled`, with the nearest miss.

Choices (offset, relation, direction) are made on the `select` split, and the rule must hold on `report`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.heads.tabulate import MINIMUM_N

FAMILIES = ("position", "sink", "broad", "syntax", "semantics")
ARGMAX_SHARE = 0.90
"""Lower bound of the argmax share that makes a positional head (Voita et al. 2019)."""
MASS_SHARE = 0.50
"""Lower bound of the mass that makes a positional head (Clark et al. 2019)."""
SINK_SHARE = 0.60
"""Lower bound of the mass on one target that makes a sink head (Clark et al. 2019)."""
BROAD_ENTROPY = 0.80
"""Lower bound of the normalised entropy that makes a broad head."""
SIGNIFICANCE = 0.05
SINK_TARGETS = ("first", "cls", "sep", "punct")


def label_table(metrics: xr.Dataset, relations: xr.Dataset | None, *, margin: float) -> xr.Dataset:
    """`/labels`: one JSON text per head, `{"labels": [...], "nearest_miss": {...} | null}`.

    `metrics` is `/metrics_by_split`, `relations` the `/relations` table or None. Every label and the nearest miss carry the score on `report`
    with interval and n, the threshold or baseline it is held against, and the score on `select`.
    """
    n_layers, n_heads = metrics.sizes["layer"], metrics.sizes["head"]
    texts = np.empty((n_layers, n_heads), dtype=object)
    if "sinks" in metrics.dims:
        metrics = metrics.sel(sinks="kept")
    holds = None if relations is None else relations_held(relations, margin)
    for layer in range(n_layers):
        for head in range(n_heads):
            findings = list(_findings(metrics, layer, head))
            if relations is not None and holds is not None:
                findings += _relational(relations, holds, layer, head, margin)
            labels = [finding for finding in findings if finding["holds"]]
            missed = [finding for finding in findings if not finding["holds"] and np.isfinite(finding["short_by"])]
            nearest = min(missed, key=lambda finding: finding["short_by"], default=None) if not labels else None
            texts[layer, head] = json.dumps({"labels": labels, "nearest_miss": nearest})
    attributes = {
        "rules": json.dumps(
            {
                "position": f"lower bound of the argmax share >= {ARGMAX_SHARE} or of the mass >= {MASS_SHARE} at one offset, or on itself",
                "sink": f"lower bound of the mass on one target >= {SINK_SHARE}",
                "broad": f"lower bound of the normalised entropy >= {BROAD_ENTROPY}",
                "syntax, semantics": f"paired test p < {SIGNIFICANCE} after Holm and a gain >= {margin} over the best baseline (offsets; "
                "for coreference also the nearest mention and the same word)",
                "all": f"at least {MINIMUM_N} cases on report",
            }
        )
    }
    coordinates = {name: metrics.coords[name] for name in ("layer", "kind", "index", "head")}
    return xr.Dataset({"labels": (["layer", "head"], texts.astype(str))}, coordinates, attrs=attributes)


def relations_held(relations: xr.Dataset, margin: float) -> xr.DataArray:
    """Where the rule of syntax and semantics holds, bool (scorer, relation, direction, layer, head); see `label_table`."""
    report = relations.sel(split="report")
    passed = (relations["p_adjusted"] < SIGNIFICANCE) & (report["difference"] >= margin) & (report["n"] >= MINIMUM_N)
    return passed.transpose("scorer", "relation", "direction", "layer", "head")


def _findings(metrics: xr.Dataset, layer: int, head: int) -> Iterator[dict[str, Any]]:
    here = metrics.isel(layer=layer, head=head)
    for metric, threshold in (("offset_argmax", ARGMAX_SHARE), ("offset_mass", MASS_SHARE)):
        if metric in here:
            yield from _best_of(here, metric, "offset", threshold, "position")
    if "special_argmax" in here:
        yield _on_target(here, "special_argmax", "self", ARGMAX_SHARE, "position")
    if "special_mass" in here:
        yield _on_target(here, "special_mass", "self", MASS_SHARE, "position")
        has_cls = float(here["special_mass_count"].sel(split="report", target="cls")) > 0
        for target in SINK_TARGETS:
            if target != "first" or not has_cls:
                yield _on_target(here, "special_mass", target, SINK_SHARE, "sink")
    if "entropy_normalised" in here:
        yield _finding(here, "entropy_normalised", {}, BROAD_ENTROPY, "broad", "broad")


def _best_of(here: xr.Dataset, metric: str, dim: str, threshold: float, family: str) -> Iterator[dict[str, Any]]:
    """The rule at the offset that is best on `select`; none where `select` has no rows to choose on."""
    values = here[metric].sel(split="select").values
    if np.isnan(values).all():
        return
    place = int(np.argmax(np.where(np.isnan(values), -1.0, values)))
    offset = int(here[dim].values[place])
    names = {-1: "previous token", 1: "next token"}
    yield _finding(here, metric, {dim: offset}, threshold, family, names.get(offset, f"offset {offset:+d}"))


def _on_target(here: xr.Dataset, metric: str, target: str, threshold: float, family: str) -> dict[str, Any]:
    names = {"self": "itself", "first": "first token", "cls": "[CLS]", "sep": "[SEP]", "punct": "punctuation"}
    return _finding(here, metric, {"target": target}, threshold, family, names[target])


def _finding(
    here: xr.Dataset, metric: str, where: dict[str, Any], threshold: float, family: str, label: str
) -> dict[str, Any]:
    def at(suffix: str, split: str) -> float:
        return float(here[metric + suffix].sel(split=split, **where))

    low, n = at("_low", "report"), at("_count", "report")
    return {
        "family": family,
        "label": label,
        "metric": metric,
        **where,
        "score": _number(at("", "report")),
        "low": _number(low),
        "high": _number(at("_high", "report")),
        "n": int(n),
        "threshold": threshold,
        "select": _number(at("", "select")),
        "holds": bool(low >= threshold and n >= MINIMUM_N),
        "short_by": float(threshold - low) if n >= MINIMUM_N else float("inf"),
    }


def _relational(
    relations: xr.Dataset, holds: xr.DataArray, layer: int, head: int, margin: float
) -> Iterator[dict[str, Any]]:
    """Every relation that this head passes; where there is none, the one it misses by least."""
    here = relations.isel(layer=layer, head=head)
    passed = holds.values[..., layer, head]
    for place in zip(*np.nonzero(passed), strict=True):
        yield _relation_finding(here, place, margin, True)
    gain, selected = (
        here["difference"].sel(split=split).transpose("scorer", "relation", "direction").values
        for split in ("report", "select")
    )
    enough = (here["n"].sel(split="report").values >= MINIMUM_N)[None, :, None]
    tried = np.where(enough & np.isfinite(selected) & np.isfinite(gain), selected, -np.inf)
    if np.isfinite(tried).any() and not passed.any():
        yield _relation_finding(here, np.unravel_index(int(tried.argmax()), tried.shape), margin, False)


def _relation_finding(here: xr.Dataset, place: tuple[Any, ...], margin: float, holds: bool) -> dict[str, Any]:
    scorer, relation, direction = (int(i) for i in place)
    cell = here.isel(scorer=scorer, relation=relation, direction=direction)
    report, select = cell.sel(split="report"), cell.sel(split="select")
    name, way = str(cell["relation"].values), str(cell["direction"].values)
    gain = float(report["difference"])
    return {
        "family": str(cell["relation_kind"].values),
        "label": f"{name} ({way})",
        "relation": name,
        "direction": way,
        "scorer": str(cell["scorer"].values),
        "score": _number(report["accuracy"]),
        "low": _number(report["low"]),
        "high": _number(report["high"]),
        "n": int(report["n"]),
        "baseline": _number(report["baseline"]),
        "baseline_offset": _number(report["baseline_offset"]),
        "baseline_name": str(report["baseline_name"].values),
        "difference": _number(gain),
        "difference_low": _number(report["difference_low"]),
        "difference_high": _number(report["difference_high"]),
        "p_adjusted": _number(cell["p_adjusted"]),
        "select": _number(select["accuracy"]),
        "threshold": margin,
        "holds": holds,
        "short_by": max(float(margin - gain), 0.0),
        **({} if holds else {"missed": _missed(cell, gain, margin)}),
    }


def _missed(cell: xr.Dataset, gain: float, margin: float) -> str:
    """Why a relation gives no label: `gain` on report, gain on `select` (so that it was not tested), or `p` after Holm."""
    if gain < margin:
        return "gain"
    return "p" if np.isfinite(cell["p_adjusted"]) else "select"


def _number(value: Any) -> float | None:
    value = float(value)
    return value if np.isfinite(value) else None
