"""Sentences that show what a label is about: where its head does best, where it does as usual, and where it fails.

They are looked for among the first legible sentences of the corpus, run once more after the labels are known.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.heads.cases import Cases
from attnprobe.heads.examples import example_tables, legible
from attnprobe.heads.measure import ShardMeasurer
from attnprobe.heads.relations import choose
from attnprobe.heads.running import run_through
from attnprobe.heads.scorers import scorers_of
from attnprobe.heads.tables import DIRECTIONS
from attnprobe.models.model import Model
from attnprobe.registry import METRICS
from attnprobe.text.align import Encoded
from attnprobe.text.batching import PlanOptions, plan_shards

POOL = 300
"""Sentences looked through."""
MOST = 24
"""Sentences kept, for all labels together."""

Label = dict[str, Any]


def label_examples(
    model: Model, labels: xr.Dataset, items: Iterable[Encoded], *, taken: int = 0
) -> dict[str, xr.Dataset]:
    """`/labels` with `examples` (best, typical, worst: name of the example, score, n) in each label, and the sentences as `/examples/eN`.

    `taken`: example sentences that the study has already; N goes on from there. A label without a scored sentence gets none. Best and worst
    are the highest and the lowest score, with the most cases where scores are equal; typical is the nearest to the label's own score. At
    most 24 sentences are kept: once they are, labels choose among these. A label on a relation also gets `cases`: for each the word that
    looks (head->dep: that is looked at), the right words, whether the head chose one, and the word it chose (see `_chosen`).
    """
    texts = labels["labels"].values
    parsed = [[json.loads(str(text)) for text in row] for row in texts]
    found = [
        (layer, head, label)
        for layer, row in enumerate(parsed)
        for head, own in enumerate(row)
        for label in own["labels"]
    ]
    pool = list(islice((item for item in items if legible(item)), POOL))
    if not found or not pool:
        return {}
    scores = _Scores(model, pool, [label for _, _, label in found])
    kept: list[int] = []
    for layer, head, label in found:
        values, n = scores.of(label, layer, head)
        label["examples"] = {
            kind: {"example": f"e{taken + kept.index(place)}", "score": float(values[place]), "n": int(n[place])}
            for kind, place in _pick(values, n, float(label["score"]), kept).items()
        }
    tables = example_tables(model, [pool[place] for place in kept], first=taken)
    examples = {name.strip("/"): table for name, table in tables.items()}
    for layer, head, label in found:
        for shown in label["examples"].values() if "relation" in label else ():
            place = kept[int(shown["example"][1:]) - taken]
            pattern = examples[f"examples/{shown['example']}"]["pattern"][layer, head].values
            shown["cases"] = scores.cases_of(label, layer, head, place, pattern)
    written = np.array([[json.dumps(own) for own in row] for row in parsed])
    return {"labels": labels.assign(labels=(labels["labels"].dims, written)), **examples}


def _pick(values: np.ndarray, n: np.ndarray, usual: float, kept: list[int]) -> dict[str, int]:
    """Places of the best, the typical and the worst sentence, all different; chosen ones are added to `kept`."""
    picked: dict[str, int] = {}
    for kind, badness in (("best", -values), ("worst", values), ("typical", np.abs(values - usual))):
        open_to = np.flatnonzero(~np.isnan(values))
        open_to = open_to[~np.isin(open_to, list(picked.values()))]
        if len(kept) >= MOST:
            open_to = open_to[np.isin(open_to, kept)]
        if len(open_to):
            best = open_to[np.lexsort((open_to, -n[open_to], badness[open_to]))[0]]
            picked[kind] = int(best)
            if picked[kind] not in kept:
                kept.append(picked[kind])
    return picked


class _Scores:
    """Scores of the pool's sentences under every label."""

    def __init__(self, model: Model, pool: Sequence[Encoded], labels: Sequence[Label]) -> None:
        metrics = [METRICS[name] for name in dict.fromkeys(label["metric"] for label in labels if "metric" in label)]
        relational = [label for label in labels if "relation" in label]
        self.scorers = list(dict.fromkeys(label["scorer"] for label in relational))
        self.cases = Cases(pool, choose(label["relation"] for label in relational))
        self.measurer = ShardMeasurer(metrics, self.cases, scorers_of(model, self.scorers), len(pool))
        options = PlanOptions(window=len(pool), shard_cost=float("inf"))
        for shard, members in plan_shards(pool, length=len, cluster=lambda item: item.sentence.id, options=options):
            run_through(model, shard, members, self.measurer, self.cases if len(self.cases) else None)
        self._hits = self.measurer.case_hits() if len(self.cases) else None
        self.n_items = len(pool)
        self._pool = pool

    def of(self, label: Mapping[str, Any], layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
        """Score of each sentence (NaN: none) and the cases or rows behind it."""
        if "relation" not in label:
            y, n = (table[:, layer, head] for table in self.measurer.of_sentences(label["metric"]))
            extra = METRICS[label["metric"]].extra
            if extra is not None:
                place = extra[1].index(label[extra[0]])
                y, n = y[:, place], n[:, place]
            return _ratio(y, n), n
        y, n = np.zeros((2, self.n_items))
        own = self.cases.of_relation.get(label["relation"])
        if own is not None and self._hits is not None:
            at = self.scorers.index(label["scorer"]), DIRECTIONS.index(label["direction"]), layer, head
            np.add.at(y, self.cases.sentence[own], self._hits[(own, *at)])
            np.add.at(n, self.cases.sentence[own], 1.0)
        return _ratio(y, n), n

    def cases_of(self, label: Mapping[str, Any], layer: int, head: int, place: int, pattern: np.ndarray) -> list[Label]:
        """The cases of a label in one sentence of the pool: `word`, `right` words, `hit`, `chosen` word (None: not known)."""
        own = self.cases.of_relation.get(label["relation"], np.empty(0, dtype=np.int64))
        weights = _by_words(pattern, self._pool[place])
        weights = weights if label["direction"] == DIRECTIONS[0] else weights.T
        told: list[Label] = []
        for case in own[self.cases.sentence[own] == place].tolist():
            word, right = self.cases.query[case], list(self.cases.keys[case])
            at = self.scorers.index(label["scorer"]), DIRECTIONS.index(label["direction"]), layer, head
            hit = bool(self._hits[(case, *at)]) if self._hits is not None else False
            known = hit or label["scorer"] == "weights"
            chosen = _chosen(weights[word], word, right, self.cases.candidates[case], hit) if known else None
            told.append({"word": word, "right": right, "hit": int(hit), "chosen": chosen})
        return told


def _by_words(pattern: np.ndarray, item: Encoded) -> np.ndarray:
    """Weights of one head between words: summed over a key word's tokens, averaged over a query word's."""
    words = item.alignment.word_index
    member = np.asarray(words)[None, :] == np.arange(len(item.sentence))[:, None]
    summed = member @ pattern.astype(np.float64) @ member.T
    return np.divide(summed, member.sum(1)[:, None], out=np.zeros_like(summed), where=member.any(1)[:, None])


def _chosen(weights: np.ndarray, word: int, right: list[int], candidates: np.ndarray, hit: bool) -> int | None:
    """The word with the most weight; among the right ones where the case is a hit, else among the others, so that rounding of what is stored
    never contradicts the score. None where no other word may be chosen.
    """
    open_to = np.array(candidates, dtype=bool)
    open_to[word] = False
    wanted = np.zeros_like(open_to)
    wanted[right] = True
    open_to &= wanted if hit else ~wanted
    return int(np.where(open_to, weights, -1.0).argmax()) if open_to.any() else None


def _ratio(y: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.divide(y, n, out=np.full(y.shape, np.nan), where=n > 0)
