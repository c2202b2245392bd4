"""Whether a whole tree can be read off vectors by one linear map: the structural probe of Hewitt and Manning 2019.

Squared distances between mapped vectors are fitted to distances in the tree, or squared norms to depths, by the mean absolute error over
pairs (words) of a sentence. Adam at 1e-3; the rate falls tenfold whenever the held-out loss does not improve, and training ends when it has
not improved by 1e-4 for five epochs. Unlike the published code, vectors are brought to size 1 first (the map absorbs it, but the rate does
not), and an epoch has at least 100 batches, so that a small corpus is not given up after a few steps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnprobe.errors import InputError, explain, near_names
from attnprobe.models.capture import ModelLike, as_model
from attnprobe.probes.examples import Clusters
from attnprobe.probes.features import SITES, Features, extract
from attnprobe.probes.tasks import depths_of
from attnprobe.probes.trees import Spearman, edges_found, tree_distances
from attnprobe.records import Sentence
from attnprobe.stream import RatioSums
from attnprobe.text.align import encode

LEARNING_RATE, FACTOR = 1e-3, 0.1
BATCH = 20
"""Sentences of a batch."""
EPOCH = 100
"""Fewest batches of an epoch; a small corpus is gone through several times."""
PATIENCE, IMPROVEMENT = 5, 1e-4


@dataclass(frozen=True)
class Parsed:
    """Sentences with vectors and trees; words without vectors have been taken out of both."""

    vectors: list[Tensor]
    """[word dim] of each sentence."""
    distances: list[np.ndarray]
    """Arcs between words, [word word]."""
    depths: list[np.ndarray]
    """Arcs to the root, [word]."""
    kept: list[np.ndarray]
    """Words that count in trees and roots: no punctuation."""
    cluster: np.ndarray

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, chosen: np.ndarray) -> Parsed:
        places = np.flatnonzero(chosen)
        pick: Callable[[list], list] = lambda values: [values[place] for place in places]  # noqa: E731
        return Parsed(
            pick(self.vectors), pick(self.distances), pick(self.depths), pick(self.kept), self.cluster[places]
        )


def fit_map(
    train: Parsed,
    held_out: Parsed,
    *,
    depth: bool = False,
    rank: int | None = None,
    seed: int = 0,
    max_epochs: int = 40,
) -> Float[Tensor, "dim rank"]:
    """The linear map whose squared distances (or, with `depth`, squared norms) are nearest to the trees'.

    `rank` is the dimension mapped to, that of the vectors by default. Sentences of one word say nothing about distances and are left out.
    """
    dim = train.vectors[0].shape[1]
    generator = torch.Generator().manual_seed(seed)
    weight = torch.empty(dim, rank or dim).uniform_(-0.05, 0.05, generator=generator).requires_grad_()
    optimiser = torch.optim.Adam([weight], lr=LEARNING_RATE)
    size = torch.cat(train.vectors).square().mean().sqrt().clamp(min=1e-12)
    batches, check = _batches(train, depth, size), _batches(held_out, depth, size)
    best, best_weight, waited = float("inf"), weight.detach().clone(), 0
    for _ in range(max_epochs):
        for place in _shuffled(len(batches), generator):
            optimiser.zero_grad()
            _loss(weight, batches[place], depth).backward()
            optimiser.step()
        with torch.no_grad():
            loss = sum(_loss(weight, batch, depth).item() * len(batch[0]) for batch in check) / len(held_out)
        if loss < best - IMPROVEMENT:
            best, best_weight, waited = loss, weight.detach().clone(), 0
            continue
        waited += 1
        if waited >= PATIENCE:
            break
        for settings in optimiser.param_groups:
            settings["lr"] *= FACTOR
        optimiser.state.clear()  # as the published code: a new optimiser at the lower rate
    return best_weight / size


def _shuffled(n: int, generator: torch.Generator) -> list[int]:
    """Batches of an epoch in random order."""
    return [place for _ in range(-(-EPOCH // n)) for place in torch.randperm(n, generator=generator).tolist()]


Padded = tuple[Tensor, Tensor, Tensor]
"""Vectors [sentence word dim], what is to be matched, and which of it counts, divided by its number in the sentence."""


def _batches(parsed: Parsed, depth: bool, size: Tensor) -> list[Padded]:
    by_length = np.argsort([len(vectors) for vectors in parsed.vectors], kind="stable").tolist()
    order = [place for place in by_length if depth or len(parsed.vectors[place]) > 1]
    return [_padded(parsed, order[start : start + BATCH], depth, size) for start in range(0, len(order), BATCH)]


def _padded(parsed: Parsed, places: Sequence[int], depth: bool, size: Tensor) -> Padded:
    longest = max(len(parsed.vectors[place]) for place in places)
    x = torch.zeros(len(places), longest, parsed.vectors[0].shape[1])
    shape = (len(places), longest) if depth else (len(places), longest, longest)
    target, weight = torch.zeros(shape), torch.zeros(shape)
    for row, place in enumerate(places):
        n = len(parsed.vectors[place])
        x[row, :n] = parsed.vectors[place] / size
        own = (row, slice(n)) if depth else (row, slice(n), slice(n))
        target[own] = torch.from_numpy((parsed.depths if depth else parsed.distances)[place]).float()
        weight[own] = 1 / n if depth else 1 / n**2
    return x, target, weight


def _loss(weight: Tensor, batch: Padded, depth: bool) -> Tensor:
    x, target, share = batch
    mapped = x @ weight
    predicted = mapped.square().sum(-1) if depth else _squared_distances(mapped)
    return ((predicted - target).abs() * share).sum() / len(x)


def _squared_distances(mapped: Float[Tensor, "*sentence word rank"]) -> Float[Tensor, "*sentence word word"]:
    return (mapped[..., :, None, :] - mapped[..., None, :, :]).square().sum(-1)


@dataclass(frozen=True)
class TreeScores:
    """How well trees are read off vectors."""

    edges: RatioSums
    """Undirected edges found (UUAS), over clusters."""
    distance_spearman: float
    """Mean rank correlation of distances, words within lengths, lengths 5 to 50 (DSpr)."""
    depth_spearman: float
    """The same of depths (NSpr)."""
    roots: RatioSums
    """Sentences whose least deep word is the root, over clusters."""


def judge(
    parsed: Parsed, distance: Callable[[Tensor], np.ndarray], depth: Callable[[Tensor], np.ndarray]
) -> TreeScores:
    """Scores of predicted distances [word word] and depths [word], as functions of a sentence's vectors."""
    n_clusters = int(parsed.cluster.max(initial=0)) + 1
    edges, roots = np.zeros((2, n_clusters)), np.zeros((2, n_clusters))
    of_distances, of_depths = Spearman(), Spearman()
    for place in range(len(parsed)):
        distances, depths = distance(parsed.vectors[place]), depth(parsed.vectors[place])
        kept, cluster = parsed.kept[place], parsed.cluster[place]
        edges[:, cluster] += edges_found(distances, parsed.distances[place], kept)
        of_distances.add(distances, parsed.distances[place])
        of_depths.add(depths, parsed.depths[place])
        if kept.any():
            guess = np.flatnonzero(kept)[depths[kept].argmin()]
            roots[:, cluster] += (parsed.depths[place][guess] == 0, 1)
    sums = (RatioSums.of(*edges), RatioSums.of(*roots))
    return TreeScores(sums[0], of_distances.mean(), of_depths.mean(), sums[1])


def mapped_distances(weight: Tensor) -> Callable[[Tensor], np.ndarray]:
    """Squared distances after a linear map."""
    return lambda vectors: _squared_distances(vectors @ weight).numpy()


def mapped_depths(weight: Tensor) -> Callable[[Tensor], np.ndarray]:
    """Squared norms after a linear map."""
    return lambda vectors: (vectors @ weight).square().sum(-1).numpy()


def structural_probe(
    model: ModelLike,
    sentences: Iterable[Sentence],
    *,
    representations: Sequence[str] = ("state", "context"),
    rank: int | None = None,
    cluster: str = "document",
    seed: int = 0,
    max_epochs: int = 40,
    scratch: str | None = None,
) -> xr.Dataset:
    """Train structural probes on layer states and on concatenated heads, and judge them on the `report` half of the corpus.

    `representations`: `state` (hidden states) or a site of the heads (`context`, `q`, `k`, `v`), all heads of a layer joined. Gives `uuas`
    with interval, `distance_spearman`, `depth_spearman`, `root_accuracy`, and the same of two baselines: a chain of words, and probes on word
    embeddings without position. Words without a piece, and punctuation (in trees and roots), are left out.

    Raises `InputError` for a corpus without trees, or one that cannot be split.
    """
    known = ("state", *SITES)
    for name in representations:
        if name not in known:
            raise InputError(f"unknown representation {name!r}; {near_names(name, known)}.")
    if rank is not None and rank < 1:
        raise InputError(explain("wrong rank of the structural probe", expected="1 or more", got=str(rank)))
    model = as_model(model)
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer, so a corpus of words cannot be run through it.")
    encoded = list(encode(model.tokenizer, sentences, max_length=model.max_length))
    kept = [item for item in encoded if item.sentence.heads]
    if not kept:
        raise InputError(explain("no structural probe without trees", expected="a corpus with heads", got="none"))
    clusters = Clusters.of([item.sentence for item in kept], cluster)
    sites = [name for name in representations if name != "state"]
    with tempfile.TemporaryDirectory(dir=scratch, prefix="attnprobe-") as folder:
        features = extract(model, kept, Path(folder), sites=sites, states="state" in representations)
        return _table(features, [item.sentence for item in kept], clusters, representations, rank, seed, max_epochs)


def _table(
    features: Features,
    sentences: Sequence[Sentence],
    clusters: Clusters,
    representations: Sequence[str],
    rank: int | None,
    seed: int,
    max_epochs: int,
) -> xr.Dataset:
    def scores(x: np.ndarray) -> TreeScores:
        parsed = parsed_of(x, features, sentences, clusters.of_sentence)
        held, report = clusters.held_out(seed)[parsed.cluster], clusters.report[parsed.cluster]
        parts = parsed.take(~held & ~report), parsed.take(held)
        if any(not any(len(vectors) > 1 for vectors in part.vectors) for part in (*parts, parsed.take(report))):
            expected = "sentences of two words or more to train on, to stop by and to report on"
            raise InputError(
                explain("too few trees for the structural probe", expected=expected, got="none in one part")
            )
        maps = [fit_map(*parts, depth=depth, rank=rank, seed=seed, max_epochs=max_epochs) for depth in (False, True)]
        return judge(parsed.take(report), mapped_distances(maps[0]), mapped_depths(maps[1]))

    parsed = parsed_of(features.embedding(), features, sentences, clusters.of_sentence)
    chain = judge(parsed.take(clusters.report[parsed.cluster]), _chain_distances, _chain_depths)
    rows: dict[str, TreeScores] = {"words in a chain": chain, "word embeddings": scores(features.embedding())}
    for name in representations:
        count = features.states if name == "state" else len(features.layers)
        for place in range(count):
            x = features.state(place) if name == "state" else features.heads(name, place)
            rows[f"{name} {place}"] = scores(x)
    return _dataset(rows)


def parsed_of(x: np.ndarray, features: Features, sentences: Sequence[Sentence], cluster: np.ndarray) -> Parsed:
    """Vectors [row head dim], heads joined, with the trees of their sentences; sentences of which no word has a vector are left out."""
    found = Parsed([], [], [], [], np.empty(0, dtype=np.int64))
    places = []
    for place, sentence in enumerate(sentences):
        rows = slice(features.rows.first[place], features.rows.first[place + 1])
        words = features.rows.word[rows]
        if not len(words):
            continue
        found.vectors.append(torch.from_numpy(np.array(x[rows]).reshape(len(words), -1)))
        found.distances.append(tree_distances(sentence.heads)[np.ix_(words, words)])
        found.depths.append(np.array(depths_of(sentence.heads), dtype=np.float64)[words])
        labels = sentence.deprels or ("",) * len(sentence)
        found.kept.append(np.array([not labels[word].startswith("punct") for word in words]))
        places.append(cluster[place])
    return Parsed(found.vectors, found.distances, found.depths, found.kept, np.array(places, dtype=np.int64))


def _chain_distances(vectors: Tensor) -> np.ndarray:
    place = np.arange(len(vectors), dtype=np.float64)
    return np.abs(place[:, None] - place[None])


def _chain_depths(vectors: Tensor) -> np.ndarray:
    return np.arange(len(vectors), dtype=np.float64)


def _dataset(rows: dict[str, TreeScores]) -> xr.Dataset:
    share: dict[str, object] = {"unit": "share", "limits": np.array([0.0, 1.0])}
    correlation: dict[str, object] = {"unit": "Spearman's rank correlation", "limits": np.array([-1.0, 1.0])}
    scores = list(rows.values())
    columns: dict[str, tuple[list[float], dict[str, object]]] = {
        "uuas": ([float(s.edges.ratio) for s in scores], {**share, "note": "undirected edges, punctuation left out"}),
        "uuas_low": ([float(s.edges.interval()[0]) for s in scores], share),
        "uuas_high": ([float(s.edges.interval()[1]) for s in scores], share),
        "distance_spearman": ([s.distance_spearman for s in scores], correlation),
        "depth_spearman": ([s.depth_spearman for s in scores], correlation),
        "root_accuracy": ([float(s.roots.ratio) for s in scores], share),
        "edges": ([float(s.edges.n) for s in scores], {"unit": "edges"}),
        "sentences": ([float(s.roots.n) for s in scores], {"unit": "sentences"}),
    }
    variables = {name: (["representation"], np.array(values), notes) for name, (values, notes) in columns.items()}
    return xr.Dataset(variables, {"representation": list(rows)})
