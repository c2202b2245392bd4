"""How much of a dependency tree all heads know together: the attention-only probe of Clark et al. 2019, section 5.

The governor of a word is predicted out of nothing but attention between the two words, in both directions, weighted head by head: p(head i |
dependent j) goes with exp(sum over heads k of w_k a_k(j -> i) + u_k a_k(i -> j)). Optionally each weight depends linearly on both words'
embeddings. Each word's governor is chosen by itself; nothing makes it a tree. The objective is convex, and fitted to its optimum here with
an L2 penalty (the paper: one pass of Adam); the root is scored by what the word gives to special tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from torch import Tensor

from attnprobe.errors import InputError
from attnprobe.models.capture import ModelLike, as_model
from attnprobe.probes.controls import RANDOM_WEIGHTS, random_weights
from attnprobe.probes.examples import Clusters
from attnprobe.probes.linear import check_penalties
from attnprobe.probes.maps import MAX_BYTES, Maps, attention_maps
from attnprobe.probes.solver import minimise
from attnprobe.probes.word_embeddings import reduced_embeddings
from attnprobe.records import Sentence
from attnprobe.stream import RatioSums
from attnprobe.text.align import encode

DIRECTIONS = ("dep->head", "head->dep")
PENALTIES = (1e4, 1e3, 1e2, 10.0, 1.0, 0.1)
OFFSETS = tuple(offset for offset in range(-10, 11) if offset)
GAP, MAX_PASSES = 1e-5, 200


@dataclass(frozen=True)
class Weights:
    """What the probe has learned."""

    pair: Float[Tensor, "direction head input"]
    """Weight of each head, for the attention of the dependent to the head and back; input 0 is the constant, the others are the embeddings
    of head and dependent."""
    root: Float[Tensor, " head"]
    """Weight of what each head gives from the word to special tokens."""
    bias: Float[Tensor, ""]
    """Of the root."""

    @classmethod
    def unpacked(cls, flat: Tensor, heads: int, inputs: int) -> Weights:
        pair, root, bias = flat.split([2 * heads * inputs, heads, 1])
        return cls(pair.view(2, heads, inputs), root, bias[0])


def dependency_probe(
    model: ModelLike,
    sentences: Iterable[Sentence],
    *,
    embeddings: int = 0,
    penalties: Sequence[float] = PENALTIES,
    cluster: str = "document",
    seed: int = 0,
    max_bytes: int = MAX_BYTES,
) -> xr.Dataset:
    """Train the attention-only dependency probe and judge it on the `report` half of the corpus.

    `embeddings` is the number of dimensions to which the model's word embeddings are reduced (0: attention alone). Gives `uas` (share of
    words, punctuation left out, whose governor is found; the root counts as one) with interval; `right_branching` (the next word),
    `offset_accuracy` (the one `offset` that is best in training); `random`, the same probe on models with random weights; and `weight`,
    the weight of each head in each direction (at mean embeddings), in units of log odds per unit of attention.

    Raises `InputError` for a corpus without trees, or one that cannot be split.
    """
    model = as_model(model)
    check_penalties(penalties)
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer, so a corpus of words cannot be run through it.")
    encoded = list(encode(model.tokenizer, sentences, max_length=model.max_length))
    clusters = Clusters.of([item.sentence for item in encoded], cluster)
    parts = _Parts.of(clusters, seed)
    vectors = reduced_embeddings(model, encoded, embeddings, parts.train) if embeddings else None
    maps, heads = attention_maps(model, encoded, max_bytes=max_bytes)
    fitted = fit_dependency(maps, parts, penalties=penalties, vectors=vectors)
    random = []
    for kind in RANDOM_WEIGHTS:
        drawn, _ = attention_maps(random_weights(model, kind, seed=seed), encoded, max_bytes=max_bytes)
        random.append(fit_dependency(drawn, parts, penalties=penalties, vectors=vectors).uas)
    return _dataset(fitted, maps, parts, heads, random, embeddings)


@dataclass(frozen=True)
class _Parts:
    """Which sentences of the corpus train, choose the penalty, and are reported on; and their clusters."""

    train: np.ndarray
    held_out: np.ndarray
    report: np.ndarray
    cluster: np.ndarray

    @classmethod
    def of(cls, clusters: Clusters, seed: int) -> _Parts:
        cluster = clusters.of_sentence
        held, report = clusters.held_out(seed)[cluster], clusters.report[cluster]
        return cls(~held & ~report, held, report, cluster)


@dataclass(frozen=True)
class DependencyFit:
    """A fitted probe with its scores on the report split."""

    weights: Weights
    penalty: float
    hits: RatioSums
    """Governors found, over clusters."""

    @property
    def uas(self) -> float:
        return float(self.hits.ratio)


def fit_dependency(
    maps: Sequence[Maps],
    parts: _Parts,
    *,
    penalties: Sequence[float] = PENALTIES,
    vectors: Sequence[Tensor] | None = None,
) -> DependencyFit:
    """Fit the probe on maps, choose the penalty on the held-out sentences, judge it on the others.

    `vectors` holds the reduced embeddings of each sentence's words, [word dim], by place in the corpus.
    """
    train, held_out, report = (
        [_Group.of(group, vectors) for whole in maps if len((group := whole.take(chosen)).place)]
        for chosen in (parts.train, parts.held_out, parts.report)
    )
    if not train or not held_out or not report:
        raise InputError(
            "The dependency probe needs trees in every part of the corpus: to train, to choose the penalty, to report on."
        )
    scale = _scale(train)
    point = torch.zeros(1, 1, len(scale))
    best: tuple[float, float, Tensor] | None = None
    for penalty in sorted(set(penalties), reverse=True):
        objective = _Objective(train, scale, penalty)
        point = minimise(objective, point, _Flat(), gap=GAP, max_passes=MAX_PASSES).point
        loss = _Objective(held_out, scale, 0.0)(point, torch.arange(1))[0].item()
        if best is not None and loss >= best[0]:
            break
        best = (loss, penalty, point)
    assert best is not None
    weights = Weights.unpacked(best[2][0, 0] / scale, train[0].heads, train[0].inputs)
    return DependencyFit(weights, best[1], _judged(report, weights, parts.cluster))


@dataclass(frozen=True)
class _Group:
    """Sentences of one length, ready to be scored."""

    maps: Maps
    inputs_of_head: Tensor | None
    """[sentence word dim]; None without embeddings."""

    @classmethod
    def of(cls, maps: Maps, vectors: Sequence[Tensor] | None) -> _Group:
        return cls(maps, None if vectors is None else torch.stack([vectors[place] for place in maps.place.tolist()]))

    @property
    def heads(self) -> int:
        return self.maps.attention.shape[3]

    @property
    def inputs(self) -> int:
        return 1 if self.inputs_of_head is None else 1 + 2 * self.inputs_of_head.shape[2]

    def pairs(self) -> Tensor | None:
        """1, embedding of the head, embedding of the dependent, [sentence dependent head input]; None without embeddings."""
        if self.inputs_of_head is None:
            return None
        v = self.inputs_of_head
        n = v.shape[1]
        head, dependent = v[:, None].expand(-1, n, -1, -1), v[:, :, None].expand(-1, -1, n, -1)
        return torch.cat([torch.ones_like(head[..., :1]), head, dependent], dim=3)

    def scores(self, weights: Weights) -> Tensor:
        """Score of every candidate, [sentence dependent candidate]; the last one is the root, a word itself is none."""
        a, pairs = self.maps.attention, self.pairs()
        there, back = a @ weights.pair[0], a @ weights.pair[1]
        back = back.transpose(1, 2)
        both = (there + back).squeeze(3) if pairs is None else ((there + back) * pairs).sum(3)
        n = both.shape[1]
        both = both.masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
        root = self.maps.special @ weights.root + weights.bias
        return torch.cat([both, root[..., None]], dim=2)

    def gradient(self, residual: Tensor) -> Tensor:
        """Of the scores, weighted by `residual` [sentence dependent candidate], flat."""
        inside, root = residual[..., :-1], residual[..., -1]
        a, pairs = self.maps.attention, self.pairs()
        weighted = inside[..., None] if pairs is None else inside[..., None] * pairs
        there = torch.einsum("sdhk,sdhi->ki", a, weighted)
        back = torch.einsum("shdk,sdhi->ki", a, weighted)
        of_root = torch.einsum("sdk,sd->k", self.maps.special, root)
        return torch.cat([there.flatten(), back.flatten(), of_root, root.sum()[None]])


def _scale(train: Sequence[_Group]) -> Tensor:
    """Root mean square of every feature over training pairs: weights are penalised as if all heads' attention had size 1."""
    heads, inputs = train[0].heads, train[0].inputs
    total, n, special, words = torch.zeros(heads, inputs), 0, torch.zeros(heads), 0
    for group in train:
        pairs = group.pairs()
        squares = group.maps.attention.square()
        ones = torch.ones(*squares.shape[:3], 1)
        total += torch.einsum("sdhk,sdhi->ki", squares, ones if pairs is None else pairs.square())
        n += squares[..., 0].numel()
        special += group.maps.special.square().sum((0, 1))
        words += group.maps.special[..., 0].numel()
    pair, root = (total / n).sqrt().clamp(min=1e-6), (special / words).sqrt().clamp(min=1e-6)
    return torch.cat([pair.flatten(), pair.flatten(), root, torch.ones(1)])


class _Flat:
    """No preconditioning: features have been given size 1."""

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient.clone()

    def keep(self, which: Tensor) -> None:
        """One problem only."""


@dataclass(frozen=True)
class _Objective:
    """Mean loss of the governors, with a penalty, at scaled weights."""

    groups: Sequence[_Group]
    scale: Tensor
    penalty: float

    def __call__(self, points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        point = points[0, 0]
        weights = Weights.unpacked(point / self.scale, self.groups[0].heads, self.groups[0].inputs)
        words = sum(int(group.maps.counted.sum()) for group in self.groups)
        loss, gradient = 0.0, torch.zeros_like(point)
        for group in self.groups:
            log_p = torch.log_softmax(group.scores(weights), dim=2)
            true = log_p.gather(2, group.maps.governor[..., None]).squeeze(2)
            loss -= true[group.maps.counted].double().sum().item()
            residual = log_p.exp()
            residual.scatter_add_(2, group.maps.governor[..., None], torch.full_like(true, -1.0)[..., None])
            gradient += group.gradient(residual * group.maps.counted[..., None])
        decay = torch.full_like(point, self.penalty / words)
        decay[-1] = 0.0  # the root's bias is free
        loss = loss / words + 0.5 * (decay * point.square()).sum().item()
        return torch.tensor([loss], dtype=torch.float64), (gradient / self.scale / words + decay * point)[None, None]


def _judged(groups: Sequence[_Group], weights: Weights, cluster: np.ndarray) -> RatioSums:
    """Governors found, the lowest candidate where several have the greatest score."""
    found = [(group.maps, group.scores(weights).argmax(2)) for group in groups]
    return _by_cluster([(maps, chosen == maps.governor) for maps, chosen in found], cluster)


def _by_cluster(hits: Sequence[tuple[Maps, Tensor]], cluster: np.ndarray) -> RatioSums:
    y, n = np.zeros(int(cluster.max()) + 1), np.zeros(int(cluster.max()) + 1)
    for maps, right in hits:
        of = cluster[maps.place.numpy()]
        np.add.at(y, of, (right & maps.counted).sum(1).numpy())
        np.add.at(n, of, maps.counted.sum(1).numpy())
    return RatioSums.of(y, n)


def offset_hits(maps: Sequence[Maps], offset: int, cluster: np.ndarray) -> RatioSums:
    """Governors found by always taking the word at this offset; out of the sentence is wrong."""
    return _by_cluster(
        [(group, group.governor == _shifted(group, offset)) for group in maps if len(group.place)], cluster
    )


def _shifted(maps: Maps, offset: int) -> Tensor:
    place = torch.arange(maps.n_words) + offset
    return torch.where((place >= 0) & (place < maps.n_words), place, -1)


def _dataset(
    fitted: DependencyFit,
    maps: Sequence[Maps],
    parts: _Parts,
    heads: Sequence[int],
    random: Sequence[float],
    embeddings: int,
) -> xr.Dataset:
    select, report = ([group.take(chosen) for group in maps] for chosen in (parts.train | parts.held_out, parts.report))
    shares = [float(offset_hits(select, offset, parts.cluster).ratio) for offset in OFFSETS]
    offset = OFFSETS[int(np.nanargmax(shares))]
    low, high = fitted.hits.interval()
    weight = np.full((2, len(heads), max(heads)), np.nan)
    root = np.full((len(heads), max(heads)), np.nan)
    start = 0
    for layer, count in enumerate(heads):
        weight[:, layer, :count] = fitted.weights.pair[:, start : start + count, 0].numpy()
        root[layer, :count] = fitted.weights.root[start : start + count].numpy()
        start += count
    share = {"unit": "share", "limits": np.array([0.0, 1.0])}
    logit = {"unit": "log odds per unit of attention"}
    variables = {
        "uas": ((), fitted.uas, {**share, "note": "punctuation left out, the root counted; no tree constraint"}),
        "uas_low": ((), float(low), share),
        "uas_high": ((), float(high), share),
        "n": ((), float(fitted.hits.n), {"unit": "words"}),
        "right_branching": ((), float(offset_hits(report, 1, parts.cluster).ratio), share),
        "offset_accuracy": ((), float(offset_hits(report, offset, parts.cluster).ratio), share),
        "offset": ((), offset, {"unit": "words", "note": "best in training"}),
        "random": (["weights"], np.array(random), {**share, "note": "the same probe on a model with random weights"}),
        "weight": (["direction", "layer", "head"], weight, logit),
        "root_weight": (["layer", "head"], root, logit),
        "penalty": ((), fitted.penalty),
    }
    coordinates = {
        "direction": list(DIRECTIONS),
        "layer": np.arange(len(heads)),
        "head": np.arange(max(heads)),
        "weights": list(RANDOM_WEIGHTS),
    }
    return xr.Dataset(variables, coordinates, attrs={"embeddings": embeddings})
