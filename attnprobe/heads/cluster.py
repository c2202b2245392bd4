"""Heads that look alike: Jensen-Shannon distances between all heads, clusters of them, and a map in two dimensions."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnprobe.attention.call import AttentionCall, Rows
from attnprobe.attention.measures import jensen_shannon_divergence
from attnprobe.heads.prepared import Prepared
from attnprobe.heads.tables import ShardSums
from attnprobe.heads.tabulate import layer_coordinates
from attnprobe.stream import RatioSums
from attnprobe.text.align import Encoded

SENTENCES = 100
"""Sentences of a shard that are compared, evenly spaced: every pair of heads costs a divergence per row."""
ROWS = 32
"""Rows of a sentence that are compared, evenly spaced among those that count."""
MOST_CLUSTERS = 12
SEED = 0


class Clusters:
    """Collects the divergence of every pair of heads of one kind, summed over rows."""

    needs_words = False

    def __init__(self, items: Sequence[Encoded]) -> None:
        stride = max(1, -(-len(items) // SENTENCES))
        self._chosen = set(range(0, len(items), stride))
        self._parts: dict[int, dict[int, list[Tensor]]] = {}
        """Sentence -> layer -> chosen rows, [head row key], on the device until they are compared."""
        self._modules: dict[int, tuple[str, int]] = {}
        self._last: tuple[Encoded, ...] = ()
        """The batch whose rows are being gathered."""
        self._divergence: np.ndarray | None = None
        self._rows: np.ndarray | None = None

    def rows(self, call: AttentionCall, rows: Rows, prepared: Prepared, members: slice) -> None:
        if prepared.sentences is not self._last:
            self._compare()
            self._last = prepared.sentences
        self._modules[call.layer] = (call.kind, rows.pattern.shape[1])
        wanted = rows.once("spaced rows", lambda: self._wanted(rows, prepared, members), of_tokens=True)
        for row, place, index, n in wanted:
            part = rows.pattern[row, :, index, :n]
            self._parts.setdefault(place, {}).setdefault(call.layer, []).append(part)

    def _wanted(self, rows: Rows, prepared: Prepared, members: slice) -> list[tuple[int, int, Tensor, int]]:
        """Of each sentence that is compared: its row of the part, its place, which of this block's rows, and its tokens."""
        places, lengths = prepared.members[members].tolist(), prepared.real[members].sum(-1).tolist()
        keep, block = prepared.keep[members].cpu(), rows.query_index.cpu()
        return [
            (row, place, torch.nonzero(_spaced(keep[row])[block]).flatten().to(rows.pattern.device), n)
            for row, (place, n) in enumerate(zip(places, lengths, strict=True))
            if place in self._chosen
        ]

    def words(self, call: AttentionCall, words: Tensor, prepared: Prepared, members: slice) -> None:
        pass

    def finish(self, cluster: np.ndarray, split: np.ndarray) -> dict[str, RatioSums | np.ndarray]:
        self._compare()
        widest = max(heads for _, heads in self._modules.values())
        size = len(self._modules) * widest
        empty = np.zeros((size, size))
        found = self._divergence, self._rows
        return {
            name: empty if table is None else table for name, table in zip(("divergence", "rows"), found, strict=True)
        }

    def _compare(self) -> None:
        """Compare all layers of the sentences gathered, then let their patterns go."""
        if not self._parts:
            return
        layers = sorted(self._modules)
        widest = max(heads for _, heads in self._modules.values())
        if self._divergence is None or self._rows is None:
            self._divergence, self._rows = np.zeros((2, len(layers) * widest, len(layers) * widest))
        for kind in {kind for kind, _ in self._modules.values()}:
            own = [layer for layer in layers if self._modules[layer][0] == kind]
            index = np.concatenate([layer * widest + np.arange(self._modules[layer][1]) for layer in own])
            for of_layer in self._parts.values():
                patterns = torch.cat([torch.cat(of_layer[layer], dim=1) for layer in own]).cpu().double()
                total, n = _divergences(patterns)
                self._divergence[np.ix_(index, index)] += total
                self._rows[np.ix_(index, index)] += n
        self._parts = {}


def _spaced(keep: Tensor) -> Tensor:
    """At most `ROWS` of the rows that count, evenly spaced, bool [query]."""
    places = torch.nonzero(keep).flatten()
    if len(places) > ROWS:
        places = places[torch.linspace(0, len(places) - 1, ROWS).round().long()]
    chosen = torch.zeros_like(keep)
    chosen[places] = True
    return chosen


def _divergences(patterns: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Sum over rows of the divergence of every two heads [head row key], and the rows in which it is defined, [head head]."""
    heads = len(patterns)
    total, n = np.zeros((2, heads, heads))
    for head in range(heads - 1):
        found = jensen_shannon_divergence(patterns[head][None], patterns[head + 1 :]).numpy()
        total[head, head + 1 :], n[head, head + 1 :] = np.nansum(found, 1), (~np.isnan(found)).sum(1)
    itself = (patterns.sum(-1) > 0).sum(1).numpy()
    return total + total.T, n + n.T + np.diag(itself)


def cluster_table(sums: ShardSums) -> xr.Dataset:
    """`/clusters`: `distance(head_a, head_b)`, the root of the mean divergence over rows; `cluster` and `embedding` of each head.

    Heads of different kinds (encoder, decoder, cross) see different keys and have no distance (NaN); clusters and map are made of the heads
    of the most frequent kind. Source: Clark et al. 2019, section 6 (there summed over tokens, without the root).
    """
    found = sums.extras["clusters"]
    divergence, rows = np.asarray(found["divergence"]), np.asarray(found["rows"])
    mean = np.divide(divergence, rows, out=np.full(divergence.shape, np.nan), where=rows > 0)
    distance = np.sqrt(mean)
    shape = len(sums.modules), max(heads for _, _, heads in sums.modules)
    cluster, embedding = np.full(len(distance), -1), np.full((len(distance), 2), np.nan)
    chosen = _of_one_kind(sums, rows)
    attributes: dict[str, Any] = {"seed": SEED, "linkage": "average", "unit": "sqrt(nats)", "rows": float(rows.max())}
    if len(chosen) > 2:
        own = distance[np.ix_(chosen, chosen)]
        cluster[chosen], attributes["silhouette"] = clusters_of(own)
        embedding[chosen], attributes["stress"] = layout_of(own)
    names = [f"L{layer}H{head}" for layer in range(shape[0]) for head in range(shape[1])]
    dims = ["layer", "head"]
    variables = {
        "distance": (
            ["head_a", "head_b"],
            distance,
            {"unit": "sqrt(nats)", "limits": np.array([0.0, np.sqrt(np.log(2))])},
        ),
        "cluster": (dims, cluster.reshape(shape), {"unit": "number of the cluster, -1: none"}),
        "embedding": ([*dims, "axis"], embedding.reshape(*shape, 2), {"unit": "sqrt(nats)"}),
    }
    coordinates = {**layer_coordinates(sums), "head_a": names, "head_b": names, "axis": ["x", "y"]}
    return xr.Dataset(variables, coordinates, attrs=attributes)


def _of_one_kind(sums: ShardSums, rows: np.ndarray) -> np.ndarray:
    """Heads of the most frequent kind of module that were compared."""
    kinds = [kind for kind, _, _ in sums.modules]
    kind = max(dict.fromkeys(kinds), key=kinds.count)
    widest = len(rows) // len(kinds)
    own = np.repeat([found == kind for found in kinds], widest)
    return np.flatnonzero(own & (rows.diagonal() > 0))


def clusters_of(distance: np.ndarray) -> tuple[np.ndarray, float]:
    """Average-linkage clusters, as many as give the best mean silhouette (2 to 12), numbered by size; and that silhouette.

    All in one cluster, with NaN, where no two heads differ.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform
    from sklearn.metrics import silhouette_score

    tree = linkage(squareform(distance, checks=False), method="average")
    best, found = -np.inf, np.ones(len(distance), dtype=int)
    for n in range(2, min(MOST_CLUSTERS, len(distance) - 1) + 1):
        labels = fcluster(tree, n, criterion="maxclust")
        if len(np.unique(labels)) > 1:
            value = float(silhouette_score(distance, labels, metric="precomputed"))
            if value > best:
                best, found = value, labels
    names, counts = np.unique(found, return_counts=True)
    order = names[np.argsort(-counts, kind="stable")]
    number = {int(name): place for place, name in enumerate(order)}
    return np.array([number[int(label)] for label in found]), best if np.isfinite(best) else float("nan")


def layout_of(distance: np.ndarray) -> tuple[np.ndarray, float]:
    """Places in the plane whose distances come near those given (metric multidimensional scaling, fixed seed), and the stress left."""
    from sklearn.manifold import MDS

    if not distance.any():  # all alike: nothing to lay apart, and a division by 0 in there
        return np.zeros((len(distance), 2)), 0.0
    options: dict[str, Any] = {"n_components": 2, "random_state": SEED}
    if "metric_mds" in inspect.signature(MDS).parameters:  # scikit-learn 1.8 renamed the arguments
        options |= {"metric_mds": True, "metric": "precomputed", "init": "classical_mds", "n_init": 1}
    else:
        options |= {"metric": True, "dissimilarity": "precomputed", "n_init": 4, "normalized_stress": "auto"}
    found = MDS(**options).fit(distance)
    return found.embedding_, float(found.stress_)
