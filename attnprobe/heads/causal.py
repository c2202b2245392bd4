"""Causal check of relational labels: does taking the head out change more at the words of the relation than elsewhere?

A head that reads a relation by its weights need not be used by the model. So each label's head is ablated to its mean, and the change of the
model's outcome at the relation's dependents is held against the change at the other words, and against heads of the same layer drawn
at random.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnprobe.heads import _watch
from attnprobe.heads._contrast import contrast, number
from attnprobe.heads._watch import Given, Watched
from attnprobe.heads.relations import choose, relations_of
from attnprobe.models.intervene import ablating, mean_contexts
from attnprobe.models.model import Model
from attnprobe.stream import t_quantile
from attnprobe.text.align import Encoded
from attnprobe.text.batching import cluster_of, split_of_sentence

FAMILIES = ("syntax", "semantics")
SENTENCES = 300
"""Most sentences that one label is checked on."""
RANDOM_HEADS = 5
"""Heads of the same layer that a label's head is held against."""
BATCH_TOKENS = 1024

Head = tuple[int, int]
Progress = Callable[[int, int], None]
"""Told (sentences done, sentences in all)."""


@dataclass(frozen=True)
class Claim:
    """A label that is checked."""

    layer: int
    head: int
    place: int
    """Place among the head's labels."""
    relation: str
    direction: str
    others: tuple[int, ...] = ()
    """Heads of the layer drawn at random."""

    @property
    def heads(self) -> list[Head]:
        return [(self.layer, head) for head in (self.head, *self.others)]


@dataclass(frozen=True)
class Pool:
    """The sentences that claims are checked on."""

    items: tuple[Encoded, ...]
    words: Mapping[str, Mapping[int, tuple[np.ndarray, np.ndarray]]]
    """Relation -> sentence of the pool -> its dependents and its heads, as words."""
    clusters: tuple[str, ...]


Effects = Mapping[Head, Mapping[int, np.ndarray]]
"""Head taken out -> sentence of the pool -> change at each word, NaN where none is measured."""


def add_causal_checks(
    model: Model,
    labels: xr.Dataset,
    items: Iterable[Encoded],
    *,
    cluster: str = "document",
    seed: int = 0,
    max_sentences: int = SENTENCES,
    random_heads: int = RANDOM_HEADS,
    batch_tokens: int = BATCH_TOKENS,
    progress: Progress | None = None,
) -> xr.Dataset:
    """`/labels` with `causal` in each label of syntax and semantics.

    Each head is ablated to its mean over the sentences used: at most `max_sentences` of the `report` split that hold the relation, drawn by
    `seed`. `difference` is the mean change at the relation's dependents minus that at all other words of those sentences: of the final
    states (1 - cosine, mean over a word's tokens), and under `loss` of the language-model loss in nats where the model has such a head.
    `excess` is `difference` minus its mean over `random_heads` other heads of the layer. Both have 95 % intervals over clusters, by the
    linearised difference of ratios; None with fewer than two. `supported` tells whether the interval of the excess lies above 0. Where the
    head reads the relation at the governing word (`head->dep`), `at_heads` holds the same for those words.
    """
    told = np.vectorize(json.loads, otypes=[object])(labels["labels"].values)
    claims = list(_claims(told))
    result = labels.copy()
    result.attrs["causal"] = json.dumps(
        {"sentences": max_sentences, "random_heads": random_heads, "ablation": "mean", "seed": seed}
    )
    if not claims:
        return result
    pool = _gather(items, {claim.relation for claim in claims}, cluster, seed, max_sentences)
    fitting = _watch.watched_of(model)
    quantities = [_watch.WATCHED["states"], *([fitting] if fitting.name != "states" else [])]
    means = mean_contexts(model, (data.inputs for _, data in _batches(model, pool, quantities[0], seed, batch_tokens)))
    claims = [_against_random(claim, means, seed, random_heads) for claim in claims]
    needed = _needed(claims, pool)
    effects = []
    for part, watched in enumerate(quantities):
        batches = _batches(model, pool, watched, seed, batch_tokens)
        advance = _part_of(progress, part, len(quantities), len(pool.items))
        effects.append(_effects(model, pool, needed, means, batches, advance))
    for claim in claims:
        evidence = _evidence(claim, pool, effects[0], quantities[0])
        if len(quantities) > 1:
            evidence["loss"] = _evidence(claim, pool, effects[1], quantities[1])
        told[claim.layer, claim.head]["labels"][claim.place]["causal"] = evidence
    result["labels"] = (labels["labels"].dims, np.vectorize(json.dumps, otypes=[object])(told).astype(str))
    return result


def _claims(told: np.ndarray) -> Iterator[Claim]:
    for (layer, head), entry in np.ndenumerate(told):
        for place, label in enumerate(entry["labels"]):
            if label["family"] in FAMILIES and "relation" in label:
                yield Claim(layer, head, place, label["relation"], label["direction"])


def _against_random(claim: Claim, means: Mapping[int, Tensor], seed: int, wanted: int) -> Claim:
    """The claim with the heads drawn that it is held against: the same for all labels of a head."""
    others = [head for head in range(len(means.get(claim.layer, ()))) if head != claim.head]
    drawn = np.random.default_rng([seed, claim.layer, claim.head]).permutation(others)[:wanted]
    return replace(claim, others=tuple(sorted(map(int, drawn))))


def _gather(items: Iterable[Encoded], relations: set[str], cluster: str, seed: int, limit: int) -> Pool:
    """The sentences of the `report` split with the lowest random rank among those that hold each relation.

    One rank serves all relations, so that they share sentences as far as they can.
    """
    wanted = choose(sorted(relations))
    lowest: dict[str, list[tuple[int, int]]] = {name: [] for name in relations}
    found: dict[int, tuple[Encoded, dict[str, tuple[np.ndarray, np.ndarray]]]] = {}
    for place, item in enumerate(items):
        if split_of_sentence(item.sentence, cluster) != "report":
            continue
        rank = -int.from_bytes(_watch.rank_of(item.sentence, seed)[:16])
        words = {one.name: (np.unique(one.query), np.unique(one.key)) for one in relations_of(item.sentence, wanted)}
        taken = {name: words[name] for name in sorted(words) if len(words[name][0])}
        for name in taken:
            heapq.heappush(lowest[name], (rank, place))
        found[place] = (item, taken)
        _prune(lowest, found, limit, place % 1000 == 0)
    _prune(lowest, found, limit, True)
    places = sorted(found)
    inside: dict[str, dict[int, tuple[np.ndarray, np.ndarray]]] = {}
    for name, entries in lowest.items():
        inside[name] = {
            places.index(place): found[place][1][name] for _, place in sorted(entries, key=lambda entry: entry[1])
        }
    chosen = tuple(found[place][0] for place in places)
    return Pool(chosen, inside, tuple(cluster_of(item.sentence, cluster) for item in chosen))


def _prune(lowest: dict[str, list[tuple[int, int]]], found: dict[int, Any], limit: int, sweep: bool) -> None:
    """Let go of the highest ranks, and now and then of the sentences that nothing refers to."""
    for entries in lowest.values():
        while len(entries) > limit:
            heapq.heappop(entries)
    if sweep:
        kept = {place for entries in lowest.values() for _, place in entries}
        for place in set(found) - kept:
            del found[place]


def _needed(claims: Iterable[Claim], pool: Pool) -> dict[Head, set[int]]:
    """For each head to take out, the sentences that some claim needs it on."""
    needed: dict[Head, set[int]] = {}
    for claim in claims:
        for head in claim.heads:
            needed.setdefault(head, set()).update(pool.words[claim.relation])
    return dict(sorted(needed.items()))


def _batches(
    model: Model, pool: Pool, watched: Watched, seed: int, batch_tokens: int
) -> Iterator[tuple[list[int], Given]]:
    for places in _watch.batches_of(pool.items, batch_tokens):
        yield places, _watch.given(model, [pool.items[place] for place in places], watched, seed)


def _part_of(progress: Progress | None, part: int, parts: int, n: int) -> Callable[[int], None]:
    return lambda done: progress(part * n + done, parts * n) if progress is not None else None


@torch.no_grad()
def _effects(
    model: Model,
    pool: Pool,
    needed: Mapping[Head, set[int]],
    means: Mapping[int, Tensor],
    batches: Iterable[tuple[list[int], Given]],
    advance: Callable[[int], None],
) -> Effects:
    effects: dict[Head, dict[int, np.ndarray]] = {head: {} for head in needed}
    done = 0
    for places, data in batches:
        before = _watch.observe(model, data)
        for head, sentences in needed.items():
            rows = [row for row, place in enumerate(places) if place in sentences]
            if not rows:
                continue
            part = data.rows(rows)
            with ablating(model, [head], how="mean", means=means):
                after = _watch.observe(model, part)
            changed = torch.where(part.scored, _watch.change(part, after, before[rows]), torch.nan)
            for row, values in zip(rows, changed.cpu().double().numpy(), strict=True):
                effects[head][places[row]] = by_word(values, pool.items[places[row]])
        done += len(places)
        advance(done)
    return effects


def by_word(values: np.ndarray, item: Encoded) -> np.ndarray:
    """Mean over each word's tokens that have a value, [word]; NaN for a word without any. `values` may run on into padding."""
    index, own = item.alignment.word_index, values[: len(item)]
    counted = (index >= 0) & ~np.isnan(own)
    n_words = item.alignment.n_words
    total = np.bincount(index[counted], own[counted], n_words)
    n = np.bincount(index[counted], minlength=n_words)
    return np.divide(total, n, out=np.full(n_words, np.nan), where=n > 0)


def _evidence(claim: Claim, pool: Pool, effects: Effects, watched: Watched) -> dict[str, Any]:
    at_dependents = _contrast(claim, pool, effects, side=0)
    told = {"quantity": watched.quantity, "unit": watched.unit, **at_dependents, "random_heads": list(claim.others)}
    if claim.direction == "head->dep":
        told["at_heads"] = _contrast(claim, pool, effects, side=1)
    return told


def _contrast(claim: Claim, pool: Pool, effects: Effects, *, side: int) -> dict[str, Any]:
    """Change at the relation's words (side 0: dependents, 1: heads) against the other words, and against random heads."""
    sentences = pool.words[claim.relation]
    sums = np.zeros((4, len(sentences), len(claim.heads)))  # change here, words here, change elsewhere, words elsewhere
    for row, (place, words) in enumerate(sentences.items()):
        for column, head in enumerate(claim.heads):
            values = effects[head][place]
            here = np.zeros(len(values), dtype=bool)
            here[words[side]] = True
            for pair, chosen in ((0, here), (2, ~here)):
                counted = chosen & ~np.isnan(values)
                sums[pair, row, column] = values[counted].sum()
                sums[pair + 1, row, column] = counted.sum()
    found = contrast(sums, [pool.clusters[place] for place in sentences])
    half, excess_half = (float(t_quantile(found.clusters)) * error for error in (found.error[0], found.excess_error))
    here, n_here, elsewhere, n_elsewhere = sums[:, :, 0].sum(1)
    d, low = found.difference, found.excess - excess_half
    return {
        "here": number(here / n_here if n_here else np.nan),
        "elsewhere": number(elsewhere / n_elsewhere if n_elsewhere else np.nan),
        "difference": number(d[0]),
        "low": number(d[0] - half),
        "high": number(d[0] + half),
        "random_difference": number(d[1:].mean() if len(d) > 1 else np.nan),
        "excess": number(found.excess),
        "excess_low": number(low),
        "excess_high": number(found.excess + excess_half),
        "supported": bool(low > 0),
        "n": int(n_here),
        "n_elsewhere": int(n_elsewhere),
        "sentences": len(sentences),
        "clusters": found.clusters,
    }
