"""Trees read off single heads, and off heads together: UAS and UUAS against the treebank, with what needs no head at all beside them.

The score of an arc is the word pattern's weight: of the dependent's row (`dep->head`), or of its column (`head->dep`). UAS asks for every
word but the root whether its head is right, in the tree of greatest sum, whose root is the gold one (`given`) or the decoder's own (`free`).
UUAS asks for every gold arc whether it is an edge of the undirected tree of greatest sum. Punctuation is left out (Hewitt and Manning 2019).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor

from attnprobe.attention.call import AttentionCall, Rows
from attnprobe.heads.baselines import with_all
from attnprobe.heads.corpora import spans_of
from attnprobe.heads.decode import ROOTS, GoldTree, arborescence, gold_tree, solver, spanning_edges, undirected_hits
from attnprobe.heads.metrics import OFFSETS
from attnprobe.heads.prepared import Prepared
from attnprobe.heads.tables import DIRECTIONS, ShardSums, by_cluster, by_split, stack_layers
from attnprobe.heads.tabulate import SPLITS, layer_coordinates
from attnprobe.stream import RatioSums
from attnprobe.text.align import Encoded, punctuation_of

SIZES = (1, 2, 4, 8)
"""Numbers of heads in the ensembles of the best heads."""

Member = tuple[str, int, int]
"""Direction, layer and head."""


def trees_of(item: Encoded) -> list[tuple[int, GoldTree]]:
    """First word and tree of each sentence of an item (a passage has several): punctuation and words without a token left out."""
    if not item.sentence.heads:
        return []
    kept = (item.alignment.pieces > 0) & ~punctuation_of(item.sentence)
    found = []
    for start, stop in spans_of(item.sentence):
        heads = [head - start if head else 0 for head in item.sentence.heads[start:stop]]
        tree = gold_tree(heads, kept[start:stop])
        if tree is not None:
            found.append((start, tree))
    return found


def score(weights: np.ndarray, tree: GoldTree) -> tuple[np.ndarray, np.ndarray]:
    """Right heads [root direction head] and right edges [head] of trees decoded from word patterns [head word word] over the tree's words."""
    uas = np.zeros((len(ROOTS), len(DIRECTIONS), len(weights)))
    uuas = np.zeros(len(weights))
    dependents = tree.dependents
    for head, own in enumerate(weights):
        for direction, scores in enumerate((own, own.T)):
            for root, given in enumerate((tree.root, None)):
                found = arborescence(scores, given)
                uas[root, direction, head] = (found[dependents] == tree.heads[dependents]).sum()
        uuas[head] = undirected_hits(spanning_edges(own), tree.heads)
    return uas, uuas


class Trees:
    """Collects UAS and UUAS of every head over a shard, and those of fixed offsets."""

    needs_words = True

    def __init__(self, items: Sequence[Encoded]) -> None:
        self.trees = [trees_of(item) for item in items]
        self._uas: dict[int, np.ndarray] = {}
        self._uuas: dict[int, np.ndarray] = {}

    def rows(self, call: AttentionCall, rows: Rows, prepared: Prepared, members: slice) -> None:
        pass

    def words(self, call: AttentionCall, words: Tensor, prepared: Prepared, members: slice) -> None:
        n, heads = len(self.trees), words.shape[1]
        uas = self._uas.setdefault(call.layer, np.zeros((n, len(ROOTS), len(DIRECTIONS), heads)))
        uuas = self._uuas.setdefault(call.layer, np.zeros((n, heads)))
        table = words.cpu().double().numpy()
        for own, place in zip(table, prepared.members[members].tolist(), strict=True):
            for start, tree in self.trees[place]:
                if len(tree) > 1:
                    kept = start + tree.words
                    directed, undirected = score(own[:, kept[:, None], kept], tree)
                    uas[place] += directed
                    uuas[place] += undirected

    def finish(self, cluster: np.ndarray, split: np.ndarray) -> dict[str, RatioSums | np.ndarray]:
        offsets, chain, n = (
            np.array(part, dtype=np.float64) for part in zip(*map(_by_offset, self.trees), strict=True)
        )
        uas = stack_layers([self._uas[layer] for layer in sorted(self._uas)], axis=3)
        uuas = stack_layers([self._uuas[layer] for layer in sorted(self._uuas)])
        tables = {"uas": uas, "uuas": uuas, "offsets": offsets, "chain": chain}
        return _sums(tables, n, cluster, split)


def _sums(
    tables: Mapping[str, np.ndarray], n: np.ndarray, cluster: np.ndarray, split: np.ndarray
) -> dict[str, RatioSums | np.ndarray]:
    """Sums by split of tables of hits [sentence ...], each over the same n [sentence]."""
    starts = np.flatnonzero(np.diff(cluster, prepend=cluster[0] - 1))
    cases = by_cluster(n, starts)
    return {
        name: by_split(by_cluster(hits, starts), cases.reshape(-1, *[1] * (hits.ndim - 1)), split[starts])
        for name, hits in tables.items()
    }


def _by_offset(trees: list[tuple[int, GoldTree]]) -> tuple[list[int], int, int]:
    """Dependents whose head stands at each offset, arcs between neighbours, dependents; all among the words that count."""
    hits, chain, n = [0] * len(OFFSETS), 0, 0
    for _, tree in trees:
        away = tree.heads[tree.dependents] - tree.dependents
        hits = [count + int((away == offset).sum()) for count, offset in zip(hits, OFFSETS, strict=True)]
        chain += int((np.abs(away) == 1).sum())
        n += len(away)
    return hits, chain, n


def tree_table(sums: ShardSums) -> xr.Dataset | None:
    """`/trees`: UAS and UUAS of every head with intervals, and their baselines; None where the corpus holds no tree."""
    found: dict[str, Any] = {name: with_all(part) for name, part in sums.extras["trees"].items()}  # type: ignore[arg-type]
    n = found["chain"].n
    if not n[-1]:
        return None
    offsets = found["offsets"]
    chosen = np.array([offsets.y[0].argmax()] * 2 + [offsets.y[-1].argmax()])
    defined = np.array([n[0], n[0], n[-1]]) > 0
    variables: dict[str, Any] = {
        "n": ("split", n, {"unit": "words", "note": "words with a head, punctuation left out"}),
        **_scored("uas", ["split", "root", "direction", "layer", "head"], found["uas"]),
        **_scored("uuas", ["split", "layer", "head"], found["uuas"]),
        "offset_uas": (["split", "offset"], offsets.ratio, {"unit": "share", "note": "head at a fixed offset"}),
        "baseline_uas": (
            "split",
            np.where(defined, offsets.ratio[np.arange(3), chosen], np.nan),
            {"unit": "share", "note": "report: best on select; NaN: no word with a head there"},
        ),
        "baseline_offset": ("split", np.where(defined, np.array(OFFSETS)[chosen], np.nan), {"unit": "words"}),
        "chain_uuas": (
            "split",
            found["chain"].ratio,
            {"unit": "share", "note": "each word joined with its neighbours"},
        ),
    }
    coordinates = {
        **layer_coordinates(sums),
        "split": list(SPLITS),
        "root": list(ROOTS),
        "direction": list(DIRECTIONS),
        "offset": list(OFFSETS),
    }
    return xr.Dataset(variables, coordinates, attrs={"solver": solver().name, "words": "punctuation left out"})


def _scored(name: str, dims: list[str], sums: RatioSums) -> dict[str, Any]:
    low, high = sums.interval()
    attributes = {"unit": "share", "limits": np.array([0.0, 1.0])}
    return {name: (dims, sums.ratio, attributes), f"{name}_low": (dims, low), f"{name}_high": (dims, high)}


def choose_ensembles(trees: xr.Dataset, relations: xr.Dataset | None) -> dict[str, list[Member]]:
    """Heads to put together, chosen on `select`: the 1, 2, 4, 8 best by UAS (gold root), and the best one of each universal relation.

    None where `select` holds no word with a head.
    """
    select = trees["uas"].sel(split="select", root="given").transpose("direction", "layer", "head")
    if select.isnull().all():
        return {}
    best_way = np.nan_to_num(select.values, nan=-1.0).argmax(0)
    by_head = np.nan_to_num(select.max("direction").values, nan=-1.0)
    order = np.argsort(-by_head.ravel(), kind="stable")
    places = [np.unravel_index(place, by_head.shape) for place in order[: max(SIZES)]]
    ranked = [(DIRECTIONS[best_way[layer, head]], int(layer), int(head)) for layer, head in places]
    found = {f"best {size}": ranked[:size] for size in SIZES if size <= len(ranked)}
    if relations is not None and "weights" in relations["scorer"].values:
        names = [str(name) for name in relations["relation"].values if str(name).startswith("udep:")]
        table = relations["accuracy"].sel(split="select", scorer="weights")
        chosen: set[Member] = set()
        for name in names:
            values = table.sel(relation=name).transpose("direction", "layer", "head").values
            values = np.nan_to_num(values, nan=-1.0)
            if not name.startswith("udep:ALL") and values.max() >= 0:
                way, layer, head = np.unravel_index(int(values.argmax()), values.shape)
                chosen.add((DIRECTIONS[way], int(layer), int(head)))
        if chosen:
            found["best of each relation"] = sorted(chosen)
    return found


class Ensembles:
    """Collects UAS and UUAS of word patterns of several heads added up, each read in its own direction."""

    needs_words = True

    def __init__(self, items: Sequence[Encoded], ensembles: Sequence[Sequence[Member]]) -> None:
        self.ensembles = ensembles
        self.trees = [trees_of(item) for item in items]
        self._layers = {layer for members in ensembles for _, layer, _ in members}
        self._total: dict[int, np.ndarray] = {}
        self._uas = np.zeros((len(items), len(ROOTS), len(ensembles)))
        self._uuas = np.zeros((len(items), len(ensembles)))

    def rows(self, call: AttentionCall, rows: Rows, prepared: Prepared, members: slice) -> None:
        pass

    def words(self, call: AttentionCall, words: Tensor, prepared: Prepared, members: slice) -> None:
        if call.layer not in self._layers:
            return
        table = words.cpu().double().numpy()
        for own, place in zip(table, prepared.members[members].tolist(), strict=True):
            total = self._total.setdefault(place, np.zeros((len(self.ensembles), *own.shape[1:])))
            for number, chosen in enumerate(self.ensembles):
                for direction, layer, head in chosen:
                    if layer == call.layer:
                        total[number] += own[head] if direction == DIRECTIONS[0] else own[head].T
            if call.layer == max(self._layers):
                self._score(place, self._total.pop(place))

    def _score(self, place: int, total: np.ndarray) -> None:
        for start, tree in self.trees[place]:
            if len(tree) > 1:
                kept = start + tree.words
                directed, undirected = score(total[:, kept[:, None], kept], tree)
                self._uas[place] += directed[:, 0]
                self._uuas[place] += undirected

    def finish(self, cluster: np.ndarray, split: np.ndarray) -> dict[str, RatioSums | np.ndarray]:
        n = np.array([sum(len(tree) - 1 for _, tree in trees) for trees in self.trees], dtype=np.float64)
        return _sums({"uas": self._uas, "uuas": self._uuas}, n, cluster, split)


def with_ensembles(
    trees: xr.Dataset,
    relations: xr.Dataset | None,
    collect: Callable[[Callable[[Sequence[Encoded]], Ensembles]], dict[str, Any]],
) -> xr.Dataset:
    """`/trees` with ensembles of heads: chosen on `select`, measured by `collect`, which runs the corpus once more."""
    chosen = choose_ensembles(trees, relations)
    if not chosen:
        return trees
    sums = {
        name: with_all(part) for name, part in collect(lambda items: Ensembles(items, list(chosen.values()))).items()
    }
    variables = {
        **_scored("ensemble_uas", ["split", "root", "ensemble"], sums["uas"]),
        **_scored("ensemble_uuas", ["split", "ensemble"], sums["uuas"]),
        "ensemble_members": ("ensemble", [json.dumps(members) for members in chosen.values()]),
    }
    return trees.merge(xr.Dataset(variables, {"ensemble": list(chosen)})).assign_attrs(trees.attrs)
