"""Shapes of patterns: vertical, diagonal, both, blocks of a sentence pair, or none of these, by thresholds that are told.

The classes are those of Kovaleva et al. 2019, section 4.1, told apart there by a classifier that was never released. Here each is a share
of the attention mass, and "unclassified" stands for what they call heterogeneous.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnprobe.attention.call import AttentionCall, Rows
from attnprobe.heads.prepared import Prepared
from attnprobe.heads.tables import ShardSums, by_cluster, by_split, stack_layers
from attnprobe.heads.tabulate import layer_coordinates
from attnprobe.stream import RatioSums
from attnprobe.text.align import Encoded

FEATURES = {
    "vertical": "mass on each sequence's most attended token",
    "diagonal": "mass on the query itself and its two neighbours",
    "lines": "mass on either",
    "block": "share within the query's own segment of the mass between words of a sentence pair",
}
LINE = 0.50
"""Lower bound of the mass on a line (vertical, diagonal, or both together) that makes a pattern of lines."""
PART = 0.25
"""Lower bound of each of the two in a mixed pattern."""
TWICE = 2.0
"""How many times what even attention gives there must be, lest every pattern of a short sentence be one of lines."""
BLOCK = 0.90
"""Lower bound of the share within segments that makes a block pattern, where lines do not make it something else."""
CLASSES = ("vertical", "diagonal", "mixed", "block", "unclassified")


class Patterns:
    """Collects the features of `FEATURES`, and what even attention would give, sentence by sentence."""

    needs_words = False

    def __init__(self, items: Sequence[Encoded]) -> None:
        self.n_items = len(items)
        self._columns: dict[tuple[int, int], Tensor] = {}
        """(layer, sentence) -> mass of each key over rows, [2 head key]: whole, and away from the diagonal."""
        self._sums: dict[int, list[tuple[list[int], Tensor]]] = {}
        """Layer -> sentences and their sums [sentence head quantity] over some rows, on the device until the end."""

    def rows(self, call: AttentionCall, rows: Rows, prepared: Prepared, members: slice) -> None:
        heads, n_keys = rows.pattern.shape[1], rows.pattern.shape[-1]
        keys = torch.arange(n_keys, device=rows.pattern.device)
        near = (keys - rows.query_index[:, None]).abs() <= 1
        kept = rows.pattern * rows.keep[:, None, :, None]
        beside = kept * near
        columns = torch.stack([kept.sum(2), (kept - beside).sum(2)], 1)
        even = (near & rows.visible).sum(-1) / rows.n_visible.clamp_min(1)
        even_diagonal = (even * rows.keep[:, None]).sum(-1).expand(-1, heads)
        even_column = (rows.keep[:, None] / rows.n_visible.clamp_min(1)).sum(-1).expand(-1, heads)
        within, between = _segments(rows, kept)
        n = rows.keep.sum(-1)[:, None].expand(-1, heads)
        found = torch.stack([beside.sum((2, 3)), even_diagonal, even_column, within, between, n], -1)
        places = rows.once("places", lambda: prepared.members[members].tolist(), of_tokens=True)
        self._sums.setdefault(call.layer, []).append((places, found))
        for row, place in enumerate(places):
            known = self._columns.get((call.layer, place))
            self._columns[call.layer, place] = columns[row] if known is None else known + columns[row]

    def words(self, call: AttentionCall, words: Tensor, prepared: Prepared, members: slice) -> None:
        pass

    def finish(self, cluster: np.ndarray, split: np.ndarray) -> dict[str, RatioSums | np.ndarray]:
        layers = sorted(self._sums)
        names = ("diagonal", "diagonal_even", "vertical_even", "within", "between", "n")
        sums = [self._sums_of(layer) for layer in layers]
        found = {name: [table[..., i] for table in sums] for i, name in enumerate(names)}
        found["vertical"], found["away"] = [], []
        for layer, table in zip(layers, sums, strict=True):
            whole, away = np.zeros((2, *table.shape[:2]))
            for place, columns in enumerate(self._columns_of(layer)):
                top = columns[0].argmax(-1)
                whole[place], away[place] = (mass[np.arange(len(top)), top] for mass in columns)
            found["vertical"].append(whole)
            found["away"].append(away)
        stacked = {name: stack_layers(tables) for name, tables in found.items()}
        stacked["lines"] = stacked["diagonal"] + stacked["away"]
        starts = np.flatnonzero(np.diff(cluster, prepend=cluster[0] - 1))
        totals = {name: by_cluster(table, starts) for name, table in stacked.items()}
        of = {"block": ("within", "between")}
        wanted = ("vertical", "diagonal", "lines", "block", "diagonal_even", "vertical_even")
        pairs = {name: of.get(name, (name, "n")) for name in wanted}
        return {name: by_split(totals[y], totals[n], split[starts]) for name, (y, n) in pairs.items()}

    def _sums_of(self, layer: int) -> np.ndarray:
        """[sentence head quantity], read off the device at once."""
        read = torch.cat([found for _, found in self._sums[layer]]).cpu().double().numpy()
        table = np.zeros((self.n_items, *read.shape[1:]))
        np.add.at(table, [place for places, _ in self._sums[layer] for place in places], read)
        return table

    def _columns_of(self, layer: int) -> list[np.ndarray]:
        """Of each sentence [2 head key], read off the device at once."""
        columns = [self._columns[layer, place] for place in range(self.n_items)]
        read = torch.cat([own.flatten() for own in columns]).cpu().double()
        parts = read.split([own.numel() for own in columns])
        return [part.view(own.shape).numpy() for part, own in zip(parts, columns, strict=True)]


def _segments(rows: Rows, kept: Tensor) -> tuple[Tensor, Tensor]:
    """Mass within segments of a pair and between all its words, [batch head]; 0 where there is no pair."""
    if rows.segments is None:
        nothing = kept.new_zeros(kept.shape[:2])
        return nothing, nothing
    own = rows.segments[:, rows.query_index]
    pair = ((rows.segments == 0).any(-1) & (rows.segments == 1).any(-1))[:, None, None]
    words = (own >= 0)[:, :, None] & (rows.segments >= 0)[:, None, :] & pair
    same = words & (own[:, :, None] == rows.segments[:, None, :])
    within, between = (torch.einsum("bhqk,bqk->bh", kept, marks.to(kept.dtype)) for marks in (same, words))
    return within, between


def pattern_table(sums: ShardSums) -> xr.Dataset:
    """`/patterns`: the features with intervals, over the whole corpus, and the class of each head by the thresholds told with it."""
    found: dict[str, RatioSums] = {}
    for name, part in sums.extras["patterns"].items():
        assert isinstance(part, RatioSums)
        found[name] = RatioSums(*(np.asarray(table).sum(0) for table in vars(part).values()))
    low = {name: part.interval()[0] for name, part in found.items()}
    even = {name: found[f"{name}_even"].ratio for name in ("vertical", "diagonal")}
    dims = ["layer", "head"]
    variables: dict[str, Any] = {}
    for name, about in FEATURES.items():
        limits = {"unit": "share", "limits": np.array([0.0, 1.0]), "about": about}
        variables[name] = (dims, found[name].ratio, limits)
        variables[f"{name}_low"], variables[f"{name}_high"] = ((dims, bound) for bound in found[name].interval())
    for name, values in even.items():
        variables[f"{name}_even"] = (dims, values, {"unit": "share", "about": "what even attention would give"})
    variables["class"] = (dims, classes_of(low, even))
    rules = {
        "mixed": f"lower bounds: vertical and diagonal >= {PART} each, lines >= {LINE}",
        "diagonal": f"else lower bound >= {LINE}",
        "vertical": f"else lower bound >= {LINE}",
        "lines": f"each at least {TWICE} times what even attention gives",
        "block": f"else lower bound >= {BLOCK}, on sentence pairs",
    }
    attributes = {"rules": json.dumps(rules), "source": "classes of Kovaleva et al. 2019"}
    return xr.Dataset(variables, layer_coordinates(sums), attrs=attributes)


def classes_of(low: dict[str, np.ndarray], even: dict[str, np.ndarray]) -> np.ndarray:
    """Class of each head from lower bounds of its features and what even attention gives; the first rule that holds."""
    stands = {name: low[name] >= TWICE * even[name] for name in even}
    both = stands["vertical"] & stands["diagonal"]
    rules = [
        (both & (low["vertical"] >= PART) & (low["diagonal"] >= PART) & (low["lines"] >= LINE), "mixed"),
        (stands["diagonal"] & (low["diagonal"] >= LINE), "diagonal"),
        (stands["vertical"] & (low["vertical"] >= LINE), "vertical"),
        (low["block"] >= BLOCK, "block"),
    ]
    return np.select([rule for rule, _ in rules], [name for _, name in rules], "unclassified")
