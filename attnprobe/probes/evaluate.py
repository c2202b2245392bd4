"""Fitting and judging all probes of one site of one layer: tasks with their control tasks, seed after seed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from attnprobe.probes.examples import Clusters, Examples, Parts
from attnprobe.probes.linear import PENALTIES, Fit, Scaler, fit
from attnprobe.probes.mdl import FRACTIONS, Codes, block_ends, code_length, mixed_losses, unigram_losses
from attnprobe.probes.softmax import Words, one_thread
from attnprobe.stream import RatioSums, p_value, t_quantile

HELD_ELEMENTS = 2**25
"""Numbers of vectors that are held at once (heads times examples times dim): 128 MB; with more, heads are taken a few at a time."""


@dataclass(frozen=True)
class Plan:
    """What is probed, and how."""

    examples: tuple[Examples, ...]
    clusters: Clusters
    seeds: tuple[int, ...]
    penalties: tuple[float, ...] = PENALTIES
    mdl: bool = True
    unit: str = "bits"
    faults: tuple[str | None, ...] = ()
    """Why a task cannot be fitted; None where it can."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


@dataclass(frozen=True)
class Vectors:
    """Standardised vectors of the examples of one task, [head example dim]."""

    train: Tensor
    held_out: Tensor
    report: Tensor

    @classmethod
    def of(cls, x: np.ndarray, rows: np.ndarray, parts: Parts, device: torch.device) -> Vectors:
        """`x` is [row head dim]. For pairs, the two words' vectors and their product are joined (Liu et al. 2019)."""
        raw = [_gathered(x, rows[places]).to(device) for places in (parts.train, parts.held_out, parts.report)]
        scaler = Scaler.of(raw[0])
        return cls(*(scaler(part) for part in raw))


def _gathered(x: np.ndarray, rows: np.ndarray) -> Tensor:
    if rows.ndim == 1:
        return torch.from_numpy(np.ascontiguousarray(x[rows].transpose(1, 0, 2)))
    query, key = (x[rows[:, side]].transpose(1, 0, 2) for side in (0, 1))
    return torch.from_numpy(np.concatenate([query, key, query * key], axis=2))


@dataclass(frozen=True)
class Probe:
    """Probes of all heads for one labelling: they give a class of those met in training, that one where there was but one."""

    fitted: Fit | None
    """None where training met one class only: there is nothing to fit."""
    known: np.ndarray
    """The classes met in training, in order."""

    @classmethod
    def of(
        cls, vectors: Vectors, y: np.ndarray, parts: Parts, penalties: Sequence[float], first: int | None = None
    ) -> Probe:
        """Fitted on the first training examples (all by default), the penalty chosen on held-out examples of known classes."""
        y_train = y[parts.train[:first]]
        known = np.unique(y_train)
        if len(known) < 2:
            return cls(None, known)
        seen = np.flatnonzero(np.isin(y[parts.held_out], known))
        held_out = _words(vectors.held_out[:, seen], y[parts.held_out][seen], known) if len(seen) else None
        chosen = penalties if held_out is not None else (max(penalties),)
        return cls(fit(_words(vectors.train[:, :first], y_train, known), penalties=chosen, held_out=held_out), known)

    def penalty(self, n_heads: int) -> np.ndarray:
        """The penalty of each head; NaN where nothing was fitted."""
        return np.full(n_heads, np.nan) if self.fitted is None else self.fitted.penalty.cpu().double().numpy()

    def hits(self, x: Tensor, y: np.ndarray) -> np.ndarray:
        """Whether each example gets its class, [head example]; a class not met in training is never hit."""
        if self.fitted is None:
            return np.tile(self.known[0] == y, (len(x), 1))
        dummy = torch.zeros(len(y), dtype=torch.int64, device=x.device)
        given = self.fitted.predict(Words(x, dummy, len(self.known))).cpu().numpy()
        return self.known[given] == y

    def losses(self, x: Tensor, y: np.ndarray, seen: int, n_classes: int) -> np.ndarray:
        """Loss of each example in the online code, in nats, [head example]."""
        known = np.isin(y, self.known)
        if self.fitted is None:
            return np.tile(mixed_losses(np.zeros(len(y)), known, seen, n_classes), (len(x), 1))
        words = _words(x, np.where(known, y, self.known[0]), self.known)
        return mixed_losses(self.fitted.log_losses(words).cpu().numpy(), known, seen, n_classes)


def _words(x: Tensor, y: np.ndarray, known: np.ndarray) -> Words:
    return Words(x, torch.from_numpy(np.searchsorted(known, y)).to(x.device), len(known))


@one_thread()
def score(x: np.ndarray, plan: Plan, *, task_only: bool = False) -> dict[str, np.ndarray]:
    """Every number of one site of one layer, [task head] (and [task head portion]); NaN for tasks that cannot be fitted.

    `x` holds the vectors, [row head dim]; a head of which one is not finite gets NaN. With `task_only`, nothing but `accuracy` on the first seed: for models with random weights.
    """
    undefined = ~np.isfinite(x).all(axis=(0, 2))
    if undefined.any():
        x = np.where(undefined[:, None], np.float32(0), x)
    columns: list[list[dict[str, np.ndarray]]] = []
    for examples, fault in zip(plan.examples, plan.faults, strict=True):
        parts = [] if fault else [_score_some(x[:, heads], examples, plan, task_only) for heads in _some(x, examples)]
        columns.append(parts)
    n_heads = x.shape[1]
    joined = [_joined(parts) for parts in columns]
    shapes = next(({name: array.shape[1:] for name, array in found.items()} for found in joined if found), {})
    nothing = {name: np.full((n_heads, *shape), np.nan) for name, shape in shapes.items()}
    stacked = {name: np.stack([(found or nothing)[name] for found in joined]) for name in shapes}
    for array in stacked.values():
        array[:, undefined] = np.nan
    return stacked


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]} if parts else {}


def _some(x: np.ndarray, examples: Examples) -> Iterator[slice]:
    """Heads, as many at a time as fit into memory."""
    dim = x.shape[2] * (1 if examples.rows.ndim == 1 else 3)
    step = max(1, HELD_ELEMENTS // max(1, len(examples) * dim))
    for start in range(0, x.shape[1], step):
        yield slice(start, start + step)


def _score_some(x: np.ndarray, examples: Examples, plan: Plan, task_only: bool) -> dict[str, np.ndarray]:
    task, control = _Tally(plan), _Tally(plan)
    codes: dict[str, Codes] = {}
    for seed in plan.seeds[:1] if task_only else plan.seeds:
        parts = examples.parts(plan.clusters, seed)
        parts = Parts(_in_order(examples, parts.train, plan.clusters.order(seed)), parts.held_out, parts.report)
        vectors = Vectors.of(x, examples.rows, parts, plan.device)
        labellings = [("", examples.y, task)]
        if not task_only:
            labellings.append(("control_", examples.control(plan.clusters, seed), control))
        for prefix, y, tally in labellings:
            probe = Probe.of(vectors, y, parts, plan.penalties)
            hits = probe.hits(vectors.report, y[parts.report])
            tally.add(hits, examples.cluster[parts.report], probe.penalty(len(hits)))
            if plan.mdl and not task_only and seed == plan.seeds[0]:
                codes[prefix] = _coded(vectors, y, examples, parts, plan, hits.mean(1))
    if task_only:
        return {"accuracy": task.accuracy}
    return {**_compared(task, control), **_lengths(codes)}


def _in_order(examples: Examples, places: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Training examples cluster by cluster, in the order of the seed."""
    rank = np.empty(int(examples.cluster.max()) + 1, dtype=np.int64)
    kept = order[order < len(rank)]
    rank[kept] = np.arange(len(kept))
    return places[np.argsort(rank[examples.cluster[places]], kind="stable")]


class _Tally:
    """Hits of one labelling, summed over seeds for every cluster."""

    def __init__(self, plan: Plan) -> None:
        self._n_clusters = len(plan.clusters.report)
        self._hits: np.ndarray | None = None
        self.n = np.zeros(self._n_clusters)
        self.by_seed: list[np.ndarray] = []
        self.penalty: list[np.ndarray] = []

    def add(self, hits: np.ndarray, cluster: np.ndarray, penalty: np.ndarray) -> None:
        sums = np.stack([np.bincount(cluster, row, self._n_clusters) for row in hits], axis=1)
        self._hits = sums if self._hits is None else self._hits + sums
        self.n = np.bincount(cluster, minlength=self._n_clusters).astype(np.float64)
        self.by_seed.append(hits.mean(1))
        self.penalty.append(penalty)

    @property
    def hits(self) -> np.ndarray:
        """Mean over seeds of the hits in each cluster, [cluster head]."""
        assert self._hits is not None
        return self._hits / len(self.by_seed)

    @property
    def accuracy(self) -> np.ndarray:
        return np.mean(self.by_seed, axis=0)

    @property
    def seed_sd(self) -> np.ndarray:
        """Standard deviation over seeds; NaN for one seed."""
        one = len(self.by_seed) < 2
        return np.full_like(self.by_seed[0], np.nan) if one else np.std(self.by_seed, axis=0, ddof=1)


def _compared(task: _Tally, control: _Tally) -> dict[str, np.ndarray]:
    """Accuracies of task and control, and their difference, with intervals.

    Wilson's for the two shares. The interval of the difference adds, to the variance over clusters, that of one draw of control labels
    (estimated over seeds): a task that is itself such a draw must be found to be no better than the control.
    """
    found: dict[str, np.ndarray] = {}
    for name, tally in (("accuracy", task), ("control", control)):
        sums = RatioSums.of(tally.hits, tally.n[:, None])
        low, high = sums.interval()
        found |= {name: sums.ratio, f"{name}_low": low, f"{name}_high": high}
    sums = RatioSums.of(task.hits - control.hits, task.n[:, None])
    error, freedom = _error(sums, np.subtract(task.by_seed, control.by_seed))
    half = t_quantile(freedom + 1) * error
    found["selectivity"] = sums.ratio
    found["selectivity_p"] = p_value(sums.ratio, error, freedom + 1)
    found["selectivity_low"] = np.clip(sums.ratio - half, -1, 1)
    found["selectivity_high"] = np.clip(sums.ratio + half, -1, 1)
    found |= {"seed_sd": task.seed_sd, "control_seed_sd": control.seed_sd}
    return {**found, "penalty": task.penalty[0], "control_penalty": control.penalty[0]}


def _error(sums: RatioSums, by_seed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Standard error from the variance over clusters and that of one draw over seeds, and its degrees of freedom after Welch."""
    n_seeds = len(by_seed)
    over_clusters = sums.standard_error**2
    if n_seeds < 2:
        return np.sqrt(over_clusters), sums.clusters - 1
    of_draws = by_seed.var(axis=0, ddof=1) * (1 + 1 / n_seeds)
    total = over_clusters + of_draws
    spread = over_clusters**2 / np.maximum(sums.clusters - 1, 1) + of_draws**2 / (n_seeds - 1)
    freedom = np.where(spread > 0, total**2 / np.where(spread > 0, spread, 1.0), n_seeds - 1)
    return np.sqrt(total), freedom


def _coded(vectors: Vectors, y: np.ndarray, examples: Examples, parts: Parts, plan: Plan, whole: np.ndarray) -> Codes:
    """Online code of the training labels, and the learning curve on `report`; `whole` is the accuracy with all of them."""
    trained = y[parts.train]
    n_classes = max(2, len(np.unique(trained)))
    dense = np.searchsorted(np.unique(trained), trained)
    ends = block_ends(examples.cluster[parts.train])
    losses, curve = [], {int(ends[-1]): whole}
    for start, end in zip(ends[:-1], ends[1:], strict=True):
        probe = Probe.of(vectors, y, parts, plan.penalties, first=int(start))
        loss = probe.losses(vectors.train[:, start:end], trained[start:end], int(start), n_classes)
        curve[int(start)] = probe.hits(vectors.report, y[parts.report]).mean(1)
        losses.append(loss.sum(1))
    first = int(ends[0])
    at = ends[np.searchsorted(ends, np.ceil(np.array(FRACTIONS) * len(trained) - 1e-9).clip(1))]
    stacked = np.stack(losses, axis=1) if losses else np.zeros((len(whole), 0))
    return Codes(
        bits=code_length(first, n_classes, stacked, unit=plan.unit),
        uniform=len(trained) * float(np.log2(n_classes)),
        unigram=float(code_length(first, n_classes, unigram_losses(dense, ends, n_classes), unit=plan.unit)),
        words=at,
        accuracy=np.stack([curve[int(end)] for end in at], axis=1),
    )


def _lengths(codes: dict[str, Codes]) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for prefix, code in codes.items():
        found[f"{prefix}codelength_bits"] = code.bits
        found[f"{prefix}compression"] = code.compression
        found[f"{prefix}compression_unigram"] = code.compression_unigram
        found[f"{prefix}curve_accuracy"] = code.accuracy
    if codes:
        found["curve_words"] = np.tile(codes[""].words.astype(np.float64), (len(codes[""].bits), 1))
    return found
