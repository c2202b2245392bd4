"""One record per head: what its attention shows, what a probe reads off it, how focused it is, and whether these agree.

Pure functions over tables of a study (`/labels`, `/metrics`, `/probes`); nothing is measured here. The two kinds of evidence answer two
questions: attention evidence says where a head looks, a probe what its output carries. They need not agree, and that is shown.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr
from scipy import stats

from attnprobe.errors import InputError, explain, near_names

KINDS = ("position", "syntax", "semantics")
AGREEMENT = ("both", "attention only", "probe only", "neither", "not probed")
FOCUSED, BROAD = 0.4, 0.8
"""Normalised entropy under (upper bound) or over (lower bound) which a head is focused or broad."""
FALSE_DISCOVERIES = 0.05
"""Share of false findings allowed among the probes that are said to read something."""


def profile_groups(groups: Mapping[str, xr.Dataset]) -> dict[str, xr.Dataset]:
    """`/profiles` of a study that holds `/labels`, `/metrics` and `/probes`; nothing where it lacks one of them.

    The probes are those on `context`, what a head gives; on the first site where that one was not probed. A study without the metric
    `entropy_normalised` gets no profiles, and a warning.
    """
    if not {"labels", "metrics", "probes"} <= set(groups):
        return {}
    sites = [str(name) for name in groups["probes"]["site"].values]
    site = "context" if "context" in sites else sites[0]
    try:
        return {"profiles": head_profiles(groups["labels"], groups["probes"], groups["metrics"], site=site)}
    except InputError as error:  # the probes took long: they are not thrown away for this
        warnings.warn(f"no head profiles: {error}", stacklevel=2)
        return {}


def head_profiles(labels: xr.Dataset, probes: xr.Dataset, metrics: xr.Dataset, *, site: str = "context") -> xr.Dataset:
    """`/profiles`: every head's evidence joined.

    `labels` is `/labels`, `probes` the table of `probe`, `metrics` the `/metrics` group with `entropy_normalised`. A probe's evidence for a
    kind (position, syntax, semantics) is any task of that kind that holds: selectivity over 0 with a false discovery rate under .05 (over all
    heads and tasks of the table), and accuracy's lower bound over the majority and over both models with random weights. Gives `profile(layer, head)`, a JSON text with all evidence and its numbers;
    `verdict(layer, head)` in words; `agreement(kind, layer, head)`, one of `AGREEMENT`; `entropy_class(layer, head)`; and over all heads, for
    each task, Spearman's `correlation(task)` of normalised entropy with selectivity, with interval.

    Raises `InputError` for a site that was not probed.
    """
    sites = [str(name) for name in probes["site"].values]
    if site not in sites:
        raise InputError(f"the site {site!r} was not probed; {near_names(site, sites)}.")
    here = probes.sel(site=site).reindex(layer=labels["layer"].values, head=labels["head"].values)
    entropy = _entropy(metrics).reindex(layer=labels["layer"].values, head=labels["head"].values)
    shape = (labels.sizes["layer"], labels.sizes["head"])
    texts, verdicts, classes = (np.empty(shape, dtype=object) for _ in range(3))
    agreement = np.empty((len(KINDS), *shape), dtype=object)
    for layer, head in np.ndindex(shape):
        found = json.loads(str(labels["labels"].values[layer, head]))
        record = _profile(found, here.isel(layer=layer, head=head), _at(entropy, layer, head))
        texts[layer, head] = json.dumps(record)
        verdicts[layer, head] = record["verdict"]
        classes[layer, head] = record["entropy"]["class"]
        agreement[:, layer, head] = [record[kind]["agreement"] for kind in KINDS]
    variables: dict[str, Any] = {
        "profile": (["layer", "head"], texts.astype(str)),
        "verdict": (["layer", "head"], verdicts.astype(str)),
        "entropy_class": (["layer", "head"], classes.astype(str)),
        "agreement": (["evidence", "layer", "head"], agreement.astype(str)),
        **_correlations(here, entropy),
    }
    coordinates: dict[str, Any] = {
        name: labels.coords[name] for name in ("layer", "kind", "index", "head") if name in labels.coords
    }
    coordinates |= {"evidence": list(KINDS), "task": probes["task"].values}
    return xr.Dataset(variables, coordinates, attrs={"site": site, "rules": json.dumps(RULES)})


RULES = {
    "attention": "a label of that kind (see /labels)",
    "probe": f"a task of that kind with selectivity_q < {FALSE_DISCOVERIES}, and accuracy's lower bound over the majority and over both "
    "models with random weights",
    "focused": f"upper bound of the normalised entropy <= {FOCUSED}",
    "broad": f"lower bound of the normalised entropy >= {BROAD}",
}


def _entropy(metrics: xr.Dataset) -> xr.Dataset:
    names = ["entropy_normalised", "entropy_normalised_low", "entropy_normalised_high"]
    if any(name not in metrics for name in names):
        expected = "the metric entropy_normalised with its interval"
        raise InputError(explain("cannot profile heads", expected=expected, got=", ".join(map(str, metrics)) or "none"))
    return (metrics.sel(sinks="kept") if "sinks" in metrics.dims else metrics)[names]


def _at(entropy: xr.Dataset, layer: int, head: int) -> dict[str, Any]:
    value, low, high = (float(entropy[name].values[layer, head]) for name in entropy)
    if not np.isfinite([value, low, high]).all():
        return {"value": _number(value), "low": _number(low), "high": _number(high), "class": "unknown"}
    named = "focused" if high <= FOCUSED else "broad" if low >= BROAD else "mixed"
    return {"value": value, "low": low, "high": high, "class": named}


def _profile(found: dict[str, Any], probes: xr.Dataset, entropy: dict[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"entropy": entropy}
    for kind in KINDS:
        labelled = [finding for finding in found["labels"] if finding["family"] == kind]
        tasks = list(_probe_evidence(probes, kind))
        held = [task for task in tasks if task["holds"]]
        record[kind] = {"attention": labelled, "probe": tasks, "agreement": _agreement(labelled, held, tasks)}
    record["other"] = [finding for finding in found["labels"] if finding["family"] not in KINDS]
    record["nearest_miss"] = found.get("nearest_miss")
    record["verdict"] = _verdict(record)
    return record


def _probe_evidence(probes: xr.Dataset, kind: str) -> Iterator[dict[str, Any]]:
    """The tasks of a kind, most selective first (by the lower bound), each with what it is held against."""
    found: list[dict[str, Any]] = []
    for place in np.flatnonzero(probes["task_kind"].values == kind):
        here = probes.isel(task=int(place))
        numbers: dict[str, float] = {name: float(here[name]) for name in _NUMBERS}
        numbers |= {f"random_{name}": float(here["random"].sel(weights=name)) for name in here["weights"].values}
        if not np.isfinite(numbers["accuracy"]):
            continue
        against = [value for name, value in numbers.items() if name == "majority" or name.startswith("random_")]
        holds = numbers["selectivity_q"] < FALSE_DISCOVERIES and numbers["accuracy_low"] > np.nanmax(against)
        found.append({"task": str(here["task"].values), **numbers, "holds": bool(holds)})
    yield from sorted(found, key=lambda task: -task["selectivity_low"])


_NUMBERS = (
    *(
        "accuracy",
        "accuracy_low",
        "accuracy_high",
        "control",
        "selectivity",
        "selectivity_low",
        "selectivity_high",
        "selectivity_q",
    ),
    *("majority", "ceiling", "embedding_accuracy", "n"),
)


def _agreement(labelled: list[Any], held: list[Any], tasks: list[Any]) -> str:
    if not tasks:
        return "not probed" if not labelled else "attention only"
    return AGREEMENT[(0 if held else 1) if labelled else (2 if held else 3)]


def _verdict(record: dict[str, Any]) -> str:
    """What can be said of a head, in a few words."""
    said = []
    for kind in KINDS:
        evidence, agreement = record[kind], record[kind]["agreement"]
        if agreement in ("neither", "not probed"):
            continue
        if agreement == "both":
            said.append(f"{kind}: looks there ({_labels(evidence)}) and also carries {_task(evidence)}")
        elif agreement == "attention only":
            probed = "its output is not shown to carry anything of this kind" if evidence["probe"] else "not probed"
            said.append(f"{kind}: looks there ({_labels(evidence)}); {probed}")
        else:
            said.append(f"{kind}: carries {_task(evidence)}, without a label for looking there")
    said += [f"{finding['family']}: {finding['label']}" for finding in record["other"]]
    return "; ".join(said) or "nothing shown"


def _labels(evidence: dict[str, Any]) -> str:
    return ", ".join(finding["label"] for finding in evidence["attention"])


def _task(evidence: dict[str, Any]) -> str:
    best = next(task for task in evidence["probe"] if task["holds"])
    return f"{best['task']} (selectivity {best['selectivity']:.2f})"


def _correlations(probes: xr.Dataset, entropy: xr.Dataset) -> dict[str, Any]:
    """For each task, how entropy goes with selectivity over all heads."""
    rows = [
        rank_correlation(entropy["entropy_normalised"].values, probes["selectivity"].isel(task=task).values)
        for task in range(probes.sizes["task"])
    ]
    value, low, high, n = (np.array(column) for column in zip(*rows, strict=True))
    notes = {"unit": "Spearman's rank correlation", "limits": np.array([-1.0, 1.0])}
    note = "of normalised entropy with selectivity, over heads"
    return {
        "correlation": (["task"], value, {**notes, "note": note}),
        "correlation_low": (["task"], low, notes),
        "correlation_high": (["task"], high, notes),
        "correlation_n": (["task"], n, {"unit": "heads"}),
    }


def rank_correlation(a: np.ndarray, b: np.ndarray) -> tuple[float, float, float, int]:
    """Spearman's correlation of the pairs that are finite, its 95 % interval (Bonett and Wright 2000), and their number.

    NaN with fewer than 4 pairs, or where one side does not vary.

    >>> rank_correlation(np.arange(9.0), np.arange(9.0))[0]
    1.0
    """
    a, b = np.ravel(a), np.ravel(b)
    kept = np.isfinite(a) & np.isfinite(b)
    n = int(kept.sum())
    if n < 4 or np.ptp(a[kept]) == 0 or np.ptp(b[kept]) == 0:
        return np.nan, np.nan, np.nan, n
    rho = float(np.clip(stats.spearmanr(a[kept], b[kept]).statistic, -1, 1))
    half = stats.norm.ppf(0.975) * np.sqrt((1 + rho**2 / 2) / (n - 3))
    centre = np.arctanh(np.clip(rho, -1 + 1e-12, 1 - 1e-12))
    return rho, float(np.tanh(centre - half)), float(np.tanh(centre + half)), n


def _number(value: float) -> float | None:
    return value if np.isfinite(value) else None
