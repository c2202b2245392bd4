"""What the page's figures are drawn from: a study's groups as plain values and packed arrays.

Any study will do: a group, a variable or an attribute that is missing leaves its place empty. Nothing is computed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.records import Study
from attnprobe.report._arena import Arena, number, parsed
from attnprobe.report._payload_profiles import probing_of, profiles_of, use_of
from attnprobe.report._payload_shapes import classes_of, clusters_of, importance_of
from attnprobe.report._words import short_name

FIRST = ("metrics", "importance", "trees", "controls", "probes", "patterns", "histograms", "clusters")
"""Groups of per-head numbers in the order the page offers them; groups it does not know follow."""
SPECIAL = ("verification", "metrics_by_split", "relations", "best", "labels", "profiles", "use", "examples")
"""Groups that have a reader of their own."""
SUFFIXES = ("_low", "_high", "_count", "_sd")
TOO_MANY = 100_000
"""Numbers of one variable from which it is left out of the page (and the page says so)."""
MINIMUM_N = 100
"""Cases under which no relation is tested, where a study does not say (`heads.tabulate` has the same; a page is written without torch)."""
DETAILS = {
    "controls": ("low", "high", "difference"),
    "probes": ("seed_sd", "control_seed_sd", "penalty", "control_penalty", "curve_accuracy", "control_curve_accuracy"),
}
"""Numbers of a group that serve whoever checks it, not whoever reads the page."""
DRAWN = {"clusters": ("embedding",)}
"""Numbers of a group that only its own figure needs."""
PER_SPLIT = ("low", "high", "difference", "difference_low", "difference_high", "ties", "no_mass")
RELATION_DIMS = ("scorer", "relation", "direction", "layer", "head")


def collect(study: Study) -> tuple[dict[str, Any], Arena, Arena]:
    """The page's data, the block of its tables and the block of its example patterns."""
    tables, patterns = Arena(), Arena()
    layers, n_heads = layers_of(study)
    measures, left_out = measures_of(study, (len(layers), n_heads), tables)
    data = {
        "model": short_name(str(study.attributes.get("model", "?"))),
        "layers": layers,
        "heads": n_heads,
        "measures": measures,
        "left_out": left_out,
        "context": context_of(study, tables),
        "relations": relations_of(study, (len(layers), n_heads), tables),
        "labels": labels_of(study, len(layers), n_heads),
        "clusters": clusters_of(study, (len(layers), n_heads), tables),
        "classes": classes_of(study, (len(layers), n_heads)),
        "importance": importance_of(study),
        "profiles": profiles_of(study, (len(layers), n_heads)),
        "probing": probing_of(study),
        "use": use_of(study),
        "examples": examples_of(study, patterns),
        "groups": study.groups,
    }
    return data, tables, patterns


def dataset_of(study: Study, group: str) -> xr.Dataset:
    """One group that the study is known to hold, without the groups inside it."""
    found: xr.Dataset = study.tree[group].to_dataset()
    return found


def minimum_of(study: Study) -> int:
    """Cases on `report` under which no relation is tested."""
    return int(dataset_of(study, "relations").attrs.get("minimum_n", MINIMUM_N)) if "relations" in study else MINIMUM_N


def datasets_of(study: Study, group: str) -> Iterator[tuple[str, xr.Dataset]]:
    """The datasets of a group and of the groups inside it, each with its path."""
    if group in study:
        for node in study.tree[group].subtree:
            yield node.path.strip("/"), node.to_dataset()


def layers_of(study: Study) -> tuple[list[dict[str, Any]], int]:
    """The attention modules in execution order (kind, index within the kind), and the largest number of heads."""
    for group in ("metrics", "labels", "relations", *study.groups):
        for _, dataset in datasets_of(study, group):
            if {"layer", "head"} <= set(dataset.sizes):
                return [_layer(dataset, place) for place in range(dataset.sizes["layer"])], int(dataset.sizes["head"])
    return [], 0


def _layer(dataset: xr.Dataset, place: int) -> dict[str, Any]:
    def at(name: str, default: Any) -> Any:
        return dataset.coords[name].values[place] if name in dataset.coords else default

    return {"kind": str(at("kind", "")), "index": int(at("index", place))}


def measures_of(
    study: Study, shape: tuple[int, int], arena: Arena
) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
    """Every number that is given per layer and head, with the interval and count that go with it; and what was left out, why."""
    measures: list[dict[str, Any]] = []
    left_out: list[dict[str, str]] = []
    groups = [*(g for g in FIRST if g in study), *(g for g in study.groups if g not in (*FIRST, *SPECIAL))]
    for group in groups:
        for path, whole in datasets_of(study, group):
            dataset = _reported(whole)
            for name in map(str, dataset.data_vars):
                variable = dataset[name]
                if not _is_measure(name, variable, dataset) or name in (*DETAILS.get(group, ()), *DRAWN.get(group, ())):
                    continue
                reason = _why_not(variable, shape)
                if reason:
                    left_out.append({"name": f"{path}/{name}", "reason": reason})
                else:
                    measures.append(measure_of(path, name, dataset, arena))
        details = [name for name in DETAILS.get(group, ()) if name in dataset_of(study, group)]
        if details:
            left_out.append({"name": f"{group}: {', '.join(details)}", "reason": "detail"})
    return measures, left_out


def _reported(dataset: xr.Dataset) -> xr.Dataset:
    """The `report` split of a group that tells splits apart: choices were made on the other."""
    if "split" in dataset.dims and "report" in dataset["split"].values:
        return dataset.sel(split="report")
    return dataset


def context_of(study: Study, arena: Arena) -> list[dict[str, Any]]:
    """Numbers that do not depend on the head but belong beside those that do, such as a probe task's majority class."""
    found: list[dict[str, Any]] = []
    for group in (group for group in study.groups if group not in (*SPECIAL, "metrics")):
        for path, whole in datasets_of(study, group):
            dataset = _reported(whole)
            dims = {frozenset(dataset[name].dims) - {"layer", "head"} for name in dataset.data_vars}
            for name in map(str, dataset.data_vars):
                variable = dataset[name]
                alone = not {"layer", "head"} & set(variable.dims) and variable.dtype.kind in "biuf"
                if alone and variable.ndim == 1 and any(set(variable.dims) <= other for other in dims):
                    unit = str(variable.attrs.get("unit", ""))
                    value = arena.add(variable.values)
                    found.append(
                        {"group": path, "name": name, "unit": unit, "dim": str(variable.dims[0]), "value": value}
                    )
    return found


def _is_measure(name: str, variable: xr.DataArray, dataset: xr.Dataset) -> bool:
    if not {"layer", "head"} <= set(variable.dims) or variable.dtype.kind not in "biuf":
        return False
    base = next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), None)
    return name != "count" and (base is None or base not in dataset)


def _why_not(variable: xr.DataArray, shape: tuple[int, int]) -> str:
    if (variable.sizes["layer"], variable.sizes["head"]) != shape:
        return "shape"
    return "size" if variable.size > TOO_MANY else ""


def measure_of(path: str, name: str, dataset: xr.Dataset, arena: Arena) -> dict[str, Any]:
    """One variable as the page reads it, with its interval and count."""
    variable = dataset[name]
    extra = [str(dim) for dim in variable.dims if dim not in ("layer", "head")]
    order = ("layer", "head", *extra)
    attributes = variable.attrs
    measure: dict[str, Any] = {
        "group": path,
        "name": name,
        "unit": str(attributes.get("unit", "")),
        "source": str(attributes.get("source", "")),
        "note": str(attributes.get("note", "")),
        "limits": [number(limit) for limit in np.atleast_1d(attributes.get("limits", [np.nan, np.nan]))],
        "dims": [{"name": dim, "values": [str(value) for value in _coordinate(variable, dim)]} for dim in extra],
        "value": arena.add(variable.transpose(*order).values),
    }
    for suffix in SUFFIXES:
        if name + suffix in dataset:
            part = dataset[name + suffix].broadcast_like(variable).transpose(*order)
            measure[suffix[1:]] = arena.add(part.values)
    return measure


def _coordinate(variable: xr.DataArray, dim: str) -> Any:
    return variable.coords[dim].values if dim in variable.coords else np.arange(variable.sizes[dim])


def relations_of(study: Study, shape: tuple[int, int], arena: Arena) -> dict[str, Any] | None:
    """The `/relations` group: accuracy in every split, the rest on `report`; None where the study holds none."""
    if "relations" not in study or "accuracy" not in study["relations"]:
        return None
    table = dataset_of(study, "relations")
    if "scorer" not in table.dims:
        table = table.expand_dims(scorer=["weights"])
    if (table.sizes["layer"], table.sizes["head"]) != shape or not table.sizes["relation"]:
        return None
    splits = [str(split) for split in table["split"].values]
    report = table.sel(split="report" if "report" in splits else splits[-1])
    found: dict[str, Any] = {
        "names": [str(name) for name in table["relation"].values],
        "kinds": [str(kind) for kind in table["relation_kind"].values] if "relation_kind" in table else [],
        "scorers": [str(name) for name in table["scorer"].values],
        "directions": [str(name) for name in table["direction"].values],
        "splits": splits,
        "margin": number(table.attrs.get("margin", 0.05)),
        "minimum_n": minimum_of(study),
        "accuracy": arena.add(table["accuracy"].transpose("split", *RELATION_DIMS).values),
    }
    for name in ("n", "baseline", "baseline_offset"):
        if name in table:
            found[name] = arena.add(table[name].transpose("split", "relation").values)
    for name in (*PER_SPLIT, "p_adjusted"):
        if name in table:
            found[name] = arena.add(report[name].transpose(*RELATION_DIMS).values)
    return found


def labels_of(study: Study, n_layers: int, n_heads: int) -> list[list[dict[str, Any]]] | None:
    """What `/labels` says of each head, [layer][head]; None where the study holds no labels."""
    if "labels" not in study or "labels" not in study["labels"]:
        return None
    texts = study["labels"]["labels"].transpose("layer", "head").values
    if texts.shape != (n_layers, n_heads):
        return None
    return [[_findings(texts[layer, head]) for head in range(n_heads)] for layer in range(n_layers)]


def _findings(text: Any) -> dict[str, Any]:
    read = parsed(text, {})
    read = read if isinstance(read, Mapping) else {}
    miss = read.get("nearest_miss")
    return {
        "labels": [_finding(label) for label in read.get("labels") or [] if isinstance(label, Mapping)],
        "miss": _finding(miss) if isinstance(miss, Mapping) else None,
    }


def _finding(found: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in found.items() if key not in ("holds", "short_by")}
    return {key: _short(value) for key, value in kept.items()}


def _short(value: Any) -> Any:
    """A value of a label, its numbers rounded to seven digits; lists and tables of them likewise."""
    if isinstance(value, float):
        return number(value)
    if isinstance(value, Mapping):
        return {str(key): _short(item) for key, item in value.items()}
    return [_short(item) for item in value] if isinstance(value, list) else value


def examples_of(study: Study, arena: Arena) -> list[dict[str, Any]]:
    """The example sentences, in order: words, tokens, tree, and the place of the pattern; those that cannot be drawn are left out."""
    found: list[dict[str, Any]] = []
    if "examples" not in study:
        return found
    nodes = sorted(study.tree["examples"].children.items(), key=lambda item: _natural(item[0]))
    for name, node in nodes:
        dataset = node.to_dataset()
        if "pattern" in dataset and set(dataset["pattern"].dims) == {"layer", "head", "query", "key"}:
            example = _example(name, dataset)
            pattern = dataset["pattern"].transpose("layer", "head", "query", "key").values
            if pattern.shape[2] == pattern.shape[3] == len(example["tokens"]):
                found.append({**example, "pattern": arena.add(pattern)})
    return found


def _natural(name: str) -> tuple[str, int]:
    digits = re.search(r"\d+$", name)
    return (name[: digits.start()], int(digits.group())) if digits else (name, -1)


def _example(name: str, dataset: xr.Dataset) -> dict[str, Any]:
    attributes = dataset.attrs
    tokens = [str(token) for token in parsed(attributes.get("tokens"), [])]
    words = [str(word) for word in parsed(attributes.get("words"), [])]
    special = attributes.get("special", np.zeros(len(tokens)))
    return {
        "name": name,
        "id": str(attributes.get("id", name)),
        "document": str(attributes.get("document", "")),
        "tokens": tokens,
        "words": words,
        "word_index": [int(i) for i in np.atleast_1d(attributes.get("word_index", np.full(len(tokens), -1)))],
        "special": [int(i) for i in np.atleast_1d(special)],
        "heads": [int(i) for i in parsed(attributes.get("heads"), [])],
        "deprels": [str(label) for label in parsed(attributes.get("deprels"), [])],
        "scale": number(attributes.get("scale", 255)),
        "source": str(attributes.get("source", "")),
    }
