"""What a head must beat: the best fixed offset, and where a relation's family has them, baselines of its own.

The baseline of a relation is whichever of these is best on `select`; `report` is judged against that one. Where `select` holds no case
there is no choice, hence no baseline, and every difference from it is NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from attnprobe.heads.metrics import OFFSETS
from attnprobe.heads.relations import RIVALS
from attnprobe.heads.tables import RelationSums, RivalSums
from attnprobe.stream import RatioSums, difference

NAMES = (*(f"offset {offset:+d}" for offset in OFFSETS), *RIVALS)


def with_all(sums: RatioSums, axis: int = 0) -> RatioSums:
    """The sums with a third split at the end, the two added up."""
    return RatioSums(*(array_with_all(getattr(sums, f.name), axis) for f in fields(RatioSums)))


def array_with_all(array: np.ndarray, axis: int = 0) -> np.ndarray:
    """The array with the sum over `axis` at the end of that axis."""
    return np.concatenate([array, array.sum(axis, keepdims=True)], axis=axis)


def stacked(parts: Sequence[RatioSums], axis: int) -> RatioSums:
    """Sums side by side on a new axis."""
    return RatioSums(*(np.stack([getattr(part, f.name) for part in parts], axis=axis) for f in fields(RatioSums)))


@dataclass(frozen=True)
class Baselines:
    """Every baseline of every relation, and which one each split is judged against."""

    sums: RatioSums
    """Over (split, relation, baseline), offsets first, then rivals; a rival that a family lacks has no hits."""
    product: np.ndarray
    """[split scorer relation direction layer head baseline]."""
    chance: np.ndarray
    """Expected hits of a random choice, [split relation]."""
    has_rivals: np.ndarray
    """bool [relation]."""

    @classmethod
    def of(cls, relations: Sequence[RelationSums]) -> Baselines:
        rivals = [relation.rivals or _no_rivals(relation) for relation in relations]
        hits = [stacked([r.offsets for r in relations], axis=1), stacked([r.hits for r in rivals], axis=1)]
        products = [np.stack([r.product for r in part], axis=2) for part in (relations, rivals)]
        joined = RatioSums(*(np.concatenate([getattr(h, f.name) for h in hits], axis=-1) for f in fields(RatioSums)))
        return cls(
            with_all(joined),
            array_with_all(np.concatenate(products, axis=-1)),
            array_with_all(np.stack([relation.chance for relation in relations], axis=1)),
            np.array([relation.rivals is not None for relation in relations]),
        )

    @property
    def n(self) -> np.ndarray:
        """Cases, [split relation]."""
        return self.sums.n[..., 0]

    @property
    def offsets(self) -> RatioSums:
        return RatioSums(*(getattr(self.sums, f.name)[..., : len(OFFSETS)] for f in fields(RatioSums)))

    @property
    def chosen(self) -> np.ndarray:
        """Place of the baseline, [split relation]: best on `select` for `select` and `report`, best on `all` for `all`."""
        select, whole = self.sums.y[0].argmax(-1), self.sums.y[-1].argmax(-1)
        return np.stack([select, select, whole])

    @property
    def defined(self) -> np.ndarray:
        """Whether there were cases to choose the baseline on, bool [split relation]."""
        return np.stack([self.n[0], self.n[0], self.n[-1]]) > 0

    def differences(self, hits: RatioSums) -> tuple[np.ndarray, np.ndarray]:
        """Accuracy minus that of the chosen baseline, with its standard error, in the shape of `hits`."""
        at = self.chosen

        def of_chosen(array: np.ndarray) -> np.ndarray:
            return np.take_along_axis(array, at[..., None], -1)[..., 0][:, None, :, None, None, None]

        one = RatioSums(*(of_chosen(getattr(self.sums, f.name)) for f in fields(RatioSums)))
        places = at[:, None, :, None, None, None, None]
        d, error = difference(hits, one, np.take_along_axis(self.product, places, -1)[..., 0])
        defined = self.defined[:, None, :, None, None, None]
        return np.where(defined, d, np.nan), np.where(defined, error, np.nan)

    def variables(self) -> dict[str, Any]:
        """The variables of `/relations` that tell of baselines."""
        dims, n, at = ["split", "relation"], self.n, self.chosen
        known = (n > 0) & self.defined
        best = np.where(known, np.take_along_axis(self.sums.ratio, at[..., None], -1)[..., 0], np.nan)
        is_offset = known & (at < len(OFFSETS))
        offset = np.where(is_offset, np.array([*OFFSETS, *[0] * len(RIVALS)])[at], np.nan)
        rivals = np.where(self.has_rivals[:, None], self.sums.y[..., len(OFFSETS) :], np.nan)
        note = "nearest mention before; the same among those with the same head word; NaN: not for this family"
        with np.errstate(invalid="ignore", divide="ignore"):
            chance = self.chance / n
        return {
            "offset_hits": ([*dims, "offset"], self.offsets.y, {"unit": "cases"}),
            "rival_hits": ([*dims, "rival"], rivals, {"unit": "cases", "note": note}),
            "chance": (dims, chance, {"unit": "share", "note": "a random choice among the candidates"}),
            "baseline": (
                dims,
                best,
                {"unit": "share", "note": "report: the baseline chosen on select; NaN: no case there"},
            ),
            "baseline_offset": (
                dims,
                offset,
                {"unit": "words", "note": "NaN: the baseline is no offset, or there is none"},
            ),
            "baseline_name": (dims, np.where(known, np.array(NAMES)[at], "")),
        }


def _no_rivals(relation: RelationSums) -> RivalSums:
    """Rivals that are never right, for a family that has none."""
    counts = {f.name: getattr(relation.offsets, f.name)[..., : len(RIVALS)] for f in fields(RatioSums)}
    none = {name: np.zeros_like(counts[name]) for name in ("y", "y_squared", "y_times_n")}
    return RivalSums(RatioSums(**{**counts, **none}), np.zeros((*relation.product.shape[:-1], len(RIVALS))))
