"""The result of probing as one labelled table: no accuracy without what it must be held against."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
import xarray as xr
from scipy import stats

from attnprobe.probes.controls import RANDOM_WEIGHTS
from attnprobe.probes.features import LayerInfo
from attnprobe.probes.mdl import FRACTIONS

SHARE: dict[str, Any] = {"unit": "share", "limits": np.array([0.0, 1.0])}


@dataclass(frozen=True)
class Against:
    """What every accuracy on a task is held against that does not depend on the head; all arrays are [task]."""

    majority: np.ndarray
    """Accuracy of the commonest class of the training words."""
    ceiling: np.ndarray
    """The most any probe can reach on the control task, whose labels of new word types nobody can know."""
    n: np.ndarray
    """Examples reported on."""
    n_train: np.ndarray
    n_classes: np.ndarray
    """Classes met in training."""
    unseen: np.ndarray
    """Examples reported on whose class was not met in training; they count as wrong."""
    no_vector: np.ndarray
    """Labels left out because their word has no piece."""

    NOTES: ClassVar[dict[str, dict[str, Any]]] = {
        "majority": {**SHARE, "note": "accuracy of the commonest class of the training words"},
        "ceiling": {**SHARE, "note": "the most that can be reached on the control task"},
        "n": {"unit": "examples", "note": "reported on"},
        "n_train": {"unit": "examples"},
        "n_classes": {"unit": "classes", "note": "met in training"},
        "unseen": {"unit": "examples", "note": "reported on, of a class not met in training; counted as wrong"},
        "no_vector": {"unit": "labels", "note": "left out: the word has no piece"},
    }


@dataclass(frozen=True)
class Scores:
    """Everything that was measured. There is no way to make the table without one of these."""

    tasks: Sequence[str]
    kinds: Sequence[str]
    layers: Sequence[LayerInfo]
    heads: Mapping[str, Sequence[Mapping[str, np.ndarray]]]
    """Site -> for each layer, the numbers of `evaluate.score`, [task head]."""
    random: Mapping[str, Mapping[str, Sequence[Mapping[str, np.ndarray]]]]
    """Kind of random weights -> the same, `accuracy` only."""
    embedding: Mapping[str, np.ndarray]
    """Numbers of the word embeddings, reduced to the heads' dimension, [task 1]."""
    states: Sequence[Mapping[str, np.ndarray]]
    """Numbers of the hidden states, [task 1] each; empty where not asked for."""
    against: Against
    attributes: Mapping[str, object]

    def dataset(self) -> xr.Dataset:
        """The `/probes` table: `accuracy(task, site, layer, head)` with its controls."""
        n_heads = max(info.heads for info in self.layers)
        variables: dict[str, tuple[list[str], np.ndarray, dict[str, Any]]] = {}
        for name, array in _over_heads(self.heads, self.layers, n_heads).items():
            if name == "curve_words":
                variables[name] = (["task", "portion"], array[:, 0, 0, 0], {"unit": "examples"})
            else:
                dims = ["task", "site", "layer", "head", *(["portion"] if array.ndim == 5 else [])]
                variables[name] = (dims, array, _attributes(name))
        adjusted = _adjusted(variables["selectivity_p"][1])
        variables["selectivity_q"] = (variables["selectivity_p"][0], adjusted, _attributes("selectivity_q"))
        drawn = [_over_heads(self.random[kind], self.layers, n_heads)["accuracy"] for kind in RANDOM_WEIGHTS]
        note = {**SHARE, "note": "accuracy of the same probes on a model with random weights"}
        variables["random"] = (["weights", "task", "site", "layer", "head"], np.stack(drawn), note)
        for name in _compared_names(self.embedding):
            note = {**_attributes(name), "note": "word embeddings without position, reduced to the heads' dimension"}
            variables[f"embedding_{name}"] = (["task"], self.embedding[name][:, 0], note)
        for name in _compared_names(self.states[0]) if self.states else ():
            stacked = np.stack([state[name][:, 0] for state in self.states], axis=1)
            variables[f"state_{name}"] = (["task", "state"], stacked, _attributes(name))
        for entry in fields(Against):
            variables[entry.name] = (["task"], getattr(self.against, entry.name), Against.NOTES[entry.name])
        return xr.Dataset(variables, self._coordinates(n_heads, variables), attrs=dict(self.attributes))

    def _coordinates(self, n_heads: int, variables: Mapping[str, object]) -> dict[str, Any]:
        coordinates: dict[str, Any] = {
            "task": list(self.tasks),
            "task_kind": ("task", list(self.kinds)),
            "site": list(self.heads),
            "layer": [info.layer for info in self.layers],
            "kind": ("layer", [info.kind for info in self.layers]),
            "index": ("layer", [info.index for info in self.layers]),
            "head": np.arange(n_heads),
            "weights": list(RANDOM_WEIGHTS),
        }
        if self.states:
            coordinates["state"] = np.arange(len(self.states))
        if "curve_accuracy" in variables:
            coordinates["portion"] = list(FRACTIONS)
        return coordinates


def _over_heads(
    sites: Mapping[str, Sequence[Mapping[str, np.ndarray]]], layers: Sequence[LayerInfo], n_heads: int
) -> dict[str, np.ndarray]:
    """Site by site and layer by layer to [task site layer head ...]; NaN for heads a layer does not have."""
    names = [name for found in next(iter(sites.values())) for name in found]
    joined: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(names):
        by_site = []
        for found in sites.values():
            by_layer = [_all_heads(found[i][name], info, n_heads) for i, info in enumerate(layers)]
            by_site.append(np.stack(by_layer, axis=1))
        joined[name] = np.stack(by_site, axis=1)
    return joined


def _all_heads(array: np.ndarray, info: LayerInfo, n_heads: int) -> np.ndarray:
    """[task head ...] with a key head's numbers for every head that shares it, and NaN up to `n_heads`."""
    if array.shape[1] < info.heads:
        array = np.repeat(array, info.heads // array.shape[1], axis=1)
    padding = [(0, 0), (0, n_heads - array.shape[1]), *[(0, 0)] * (array.ndim - 2)]
    return np.pad(array, padding, constant_values=np.nan)


def _adjusted(p: np.ndarray) -> np.ndarray:
    """Benjamini and Hochberg's adjusted p over all that are defined: the share of false findings among those up to it."""
    found, tested = np.full(p.shape, np.nan), np.isfinite(p)
    if tested.any():
        found[tested] = stats.false_discovery_control(p[tested])
    return found


def _compared_names(found: Mapping[str, np.ndarray]) -> list[str]:
    return [name for name in found if "curve" not in name]


def _attributes(name: str) -> dict[str, Any]:
    if name.endswith("codelength_bits"):
        return {"unit": "bits", "note": "online code of the training labels"}
    if "compression" in name:
        against = "the same code with class frequencies alone" if name.endswith("unigram") else "n log2 K"
        return {"unit": "ratio", "note": f"{against}, over the online code"}
    if name.endswith("penalty"):
        return {"unit": "penalty on squared weights over 2, as 1 / C of scikit-learn", "note": "first seed"}
    if name == "selectivity_p":
        return {"unit": "p", "limits": np.array([0.0, 1.0]), "note": "one-sided, of selectivity not over 0"}
    if name == "selectivity_q":
        note = "selectivity_p after Benjamini and Hochberg, over all tasks, sites and heads of the table"
        return {"unit": "p", "limits": np.array([0.0, 1.0]), "note": note}
    if name.startswith("selectivity"):
        return {"unit": "share", "limits": np.array([-1.0, 1.0]), "note": "accuracy minus control accuracy"}
    if name.endswith("seed_sd"):
        return {"unit": "share", "note": "standard deviation over seeds"}
    return dict(SHARE)


def faults_as_json(tasks: Sequence[str], faults: Sequence[str | None]) -> str:
    """Task -> why it was not probed."""
    return json.dumps({task: fault for task, fault in zip(tasks, faults, strict=True) if fault})
