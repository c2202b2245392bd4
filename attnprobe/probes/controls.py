"""What a probe's accuracy is held against: control labels with their ceiling, majority, and models with random weights.

Without them an accuracy says little: a probe may learn the task by itself, or from the identity of words alone (Hewitt and Liang 2019;
Zhang and Bowman 2018).
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from attnprobe.errors import InputError, explain, near_names
from attnprobe.models.model import Model

RANDOM_WEIGHTS = ("embeddings_kept", "all_random")
"""Two controls that are not the same: all layers drawn anew under the trained embeddings, and everything drawn anew."""


def control_labels(types: Sequence[str], share: np.ndarray, *, seed: int, task: str = "") -> np.ndarray:
    """A class for each word type, drawn from the distribution `share` (Hewitt and Liang 2019, section 2).

    Depends on the type, the task's name and the seed alone: a type has its label whatever corpus it is met in.

    >>> bool((control_labels(["a", "b", "a"], np.array([0.5, 0.5]), seed=0)[[0, 2]] >= 0).all())
    True
    """
    edges = np.cumsum(np.asarray(share, dtype=np.float64))
    distinct, place = np.unique(np.asarray(types, dtype=object).astype(str), return_inverse=True)
    drawn = np.array([_uniform(f"{seed}|{task}|{text}") for text in distinct])
    return np.searchsorted(edges / edges[-1], drawn, side="right").clip(max=len(edges) - 1)[place]


def _uniform(text: str) -> float:
    """A number from 0 to 1 out of a text: a random draw that needs no state."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) / 2**64


def ceiling(types_train: np.ndarray, y_train: np.ndarray, types: np.ndarray, y: np.ndarray) -> float:
    """The most a probe that knows every training type by heart gets right: the type's commonest class, or else the commonest of all.

    Types not met in training have labels nobody can know, which is why a control task has a ceiling under 1. NaN without words.
    """
    if not len(y) or not len(y_train):
        return float("nan")
    common = np.bincount(y_train).argmax()
    n_types, n_classes = int(max(types_train.max(), types.max())) + 1, int(max(y_train.max(), y.max())) + 1
    counts = np.zeros((n_types, n_classes))
    np.add.at(counts, (types_train, y_train), 1)
    known = np.where(counts.sum(1) > 0, counts.argmax(1), common)
    return float((known[types] == y).mean())


def majority(y_train: np.ndarray, y: np.ndarray) -> float:
    """Accuracy of always giving the commonest class of the training words; NaN without words."""
    return float((y == np.bincount(y_train).argmax()).mean()) if len(y) and len(y_train) else float("nan")


def random_weights(model: Model, kind: str, *, seed: int) -> Model:
    """The same model with weights drawn anew, as its own code starts them; the caller's model is not touched.

    `embeddings_kept`: only the layers; what lies outside them (embeddings, final norm) stays as trained. `all_random`: everything.
    """
    if kind not in RANDOM_WEIGHTS:
        raise InputError(f"unknown kind of random weights {kind!r}; {near_names(kind, RANDOM_WEIGHTS)}.")
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.random.default_generator.manual_seed(seed)  # that of the CPU alone: GPUs' are not put back
        try:
            module = type(model.module)(copy.deepcopy(model.config))
        except (TypeError, ValueError) as error:
            remedy = "Its class must be made from a configuration alone, as the models of transformers are"
            raise InputError(
                explain(f"cannot draw new weights for {model.name}", got=str(error), remedy=remedy)
            ) from error
        if kind == "embeddings_kept":
            trained = dict(model.module.named_parameters())
            for name, parameter in module.named_parameters():
                if not re.search(r"\.\d+\.", f".{name}"):  # parameters of layers carry the layer's number
                    parameter.copy_(trained[name])
    reference = next(model.module.parameters())
    module = module.to(device=reference.device, dtype=reference.dtype).eval()
    return replace(model, module=module, name=f"{model.name}, {kind}", source=None)
