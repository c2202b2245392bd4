"""What the page says of a head by both kinds of evidence: its record in `/profiles`, and the cases of `/use`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.records import Study
from attnprobe.report._arena import number, parsed

KINDS = ("position", "syntax", "semantics")
"""Kinds of evidence in a record; `probes.profile` has the same, but a page is written without scipy and torch."""
LABEL = ("family", "label", "relation", "direction", "offset", "score", "low", "high")
GAIN = ("difference", "difference_low", "difference_high")
PROBE = ("task", "accuracy", "control", "selectivity", "selectivity_low", "selectivity_high", "holds", "n")
CHANGES = ("change", "random_change", "difference", "loss")
INTERVAL = ("", "_low", "_high")


def records_of(study: Study) -> list[list[dict[str, Any]]] | None:
    """The record of every head in `/profiles`, [layer][head]; None where the study holds none."""
    if "profiles" not in study or "profile" not in study["profiles"]:
        return None
    texts = study["profiles"]["profile"].transpose("layer", "head").values
    read = [[parsed(text, {}) for text in row] for row in texts]
    return [[dict(record) if isinstance(record, Mapping) else {} for record in row] for row in read]


def profiles_of(study: Study, shape: tuple[int, int]) -> dict[str, Any] | None:
    """`/profiles` as the page reads it; None where the study holds no profile of these heads."""
    records = records_of(study)
    if records is None or (len(records), len(records[0]) if records else 0) != shape:
        return None
    table = study["profiles"]
    return {
        "heads": [[_record(record) for record in row] for row in records],
        "site": str(table.attrs.get("site", "")),
        "correlations": _correlations(table),
    }


def _record(record: dict[str, Any]) -> dict[str, Any]:
    def kind(found: Any) -> dict[str, Any]:
        found = found if isinstance(found, Mapping) else {}
        return {
            "attention": [_kept(label, (*LABEL, *GAIN)) for label in found.get("attention") or []],
            "probe": [_kept(task, PROBE) for task in found.get("probe") or []],
            "agreement": str(found.get("agreement", "not probed")),
        }

    entropy = record.get("entropy")
    return {
        "entropy": _kept(entropy, ("value", "low", "high", "class")) if isinstance(entropy, Mapping) else None,
        "kinds": {name: kind(record.get(name)) for name in KINDS},
        "other": [_kept(label, LABEL) for label in record.get("other") or []],
    }


def _kept(found: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    values = {name: found[name] for name in names if found.get(name) is not None}
    return {name: number(value) if isinstance(value, float) else value for name, value in values.items()}


def _correlations(table: xr.Dataset) -> list[dict[str, Any]]:
    """For each task, how entropy goes with selectivity over all heads; those that are defined."""
    if "correlation" not in table:
        return []
    rows = [
        {"task": str(task), **{name: number(table[f"correlation{end}"].values[place]) for name, end in _ENDS.items()}}
        for place, task in enumerate(table["task"].values)
    ]
    return [row for row in rows if row["value"] is not None]


_ENDS = {"value": "", "low": "_low", "high": "_high", "n": "_n"}


def probing_of(study: Study) -> dict[str, Any]:
    """How often and on how many documents (or sentences) a study's probes were judged: what their intervals cover."""
    about = study["probes"].attrs if "probes" in study else {}
    unit = parsed(study.attributes.get("plan"), {}).get("cluster", "document")
    known = {name: number(about[key]) for name, key in _JUDGED.items() if key in about}
    return {"cluster": unit if unit in ("document", "sentence") else "document", **known}


_JUDGED = {"seeds": "seeds", "clusters": "clusters_report"}


def use_of(study: Study) -> list[dict[str, Any]] | None:
    """The cases of `/use`, one for each head taken away and task; None where no head was. One task's table has its numbers but once."""
    if "use" not in study or "change" not in study["use"]:
        return None
    table = study["use"]
    tasks = table["task"].values if "task" in table.coords else [table.attrs.get("task", "?")] * table.sizes["case"]
    names = [f"{name}{end}" for name in CHANGES for end in INTERVAL]
    return [
        {
            "layer": int(table["layer"].values[case]),
            "head": int(table["head"].values[case]),
            "task": str(tasks[case]),
            "how": str(table.attrs.get("how", "")),
            **{
                name: number(np.broadcast_to(table[name].values, table.sizes["case"])[case])
                for name in ("accuracy", "n", "states", *names)
                if name in table
            },
        }
        for case in range(table.sizes["case"])
    ]
