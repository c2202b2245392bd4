"""The head of the page: what was run, whether it was verified, and what was found, in three plain sentences."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.records import Study
from attnprobe.report._arena import parsed
from attnprobe.report._payload import dataset_of, minimum_of
from attnprobe.report._words import Words, arrow, count, percent, points, tiny

SIGNIFICANT = 0.05
LABELLING = ("offset_argmax", "offset_mass", "special_argmax", "special_mass", "entropy_normalised")
"""Metrics that labels are given by."""
TELLING = ("syntax", "semantics", "position", "sink", "broad")
"""Families in the order in which the summary names them."""


def verification(study: Study, words: Words) -> dict[str, Any]:
    """The badge: `ok`, or loud (failed, empty, absent), with its figures and the notes of the check."""
    if "verification" not in study:
        return _badge("absent", words, words("verify.absent"), [])
    table = dataset_of(study, "verification")
    notes = [str(note) for note in parsed(table.attrs.get("notes"), [])]
    compared = np.isfinite(_values(table, "pattern_max_abs"))
    if not study.verified:
        return _badge("failed", words, _figures(table, words) if compared.any() else words("verify.nothing"), notes)
    if not compared.any():
        return _badge("empty", words, words("verify.nothing"), notes)
    text = _figures(table, words)
    if not compared.all():
        text += words("list.sentence") + words("verify.partly", n=int((~compared).sum()), of=len(compared))
    return _badge("ok", words, text, notes)


def _badge(status: str, words: Words, text: str, notes: list[str]) -> dict[str, Any]:
    return {
        "status": status,
        "loud": status != "ok",
        "headline": words(f"verify.{status}.headline"),
        "text": text,
        "reason": "" if status == "ok" else words(f"verify.{status}.reason"),
        "consequence": "" if status == "ok" else words("verify.consequence"),
        "notes": notes,
    }


def _values(table: xr.Dataset, name: str) -> np.ndarray:
    found: np.ndarray = np.asarray(table[name].values, dtype=np.float64) if name in table else np.full(1, np.nan)
    return found


def _figures(table: xr.Dataset, words: Words) -> str:
    """Largest difference against its tolerance, rows compared and layers that match bit for bit."""
    difference, tolerance = _values(table, "pattern_max_abs"), _values(table, "pattern_tolerance")
    context, allowed = _values(table, "context_max_abs"), _values(table, "context_tolerance")
    worst = (
        int(np.nanargmax(difference / np.where(tolerance > 0, tolerance, np.nan)))
        if np.isfinite(tolerance).any()
        else 0
    )
    text = words(
        "verify.figures",
        difference=tiny(difference[worst]),
        tolerance=tiny(tolerance[min(worst, len(tolerance) - 1)]),
        layer=worst,
        rows=count(np.nansum(_values(table, "rows_checked"))),
    )
    if np.isfinite(context).any():
        place = int(np.nanargmax(context))
        text += words("list.sentence") + words(
            "verify.context", difference=tiny(context[place]), tolerance=tiny(allowed[place])
        )
    if "bitwise" in table:
        same = _values(table, "bitwise")
        text += words("list.sentence") + words("verify.bitwise", n=int(np.nansum(same)), of=len(same))
    return text


def key_figures(study: Study, data: dict[str, Any], words: Words) -> list[dict[str, str]]:
    """The numbers under the title: heads, sentences, tokens, labelled heads."""
    attributes = study.attributes
    total = len(data["layers"]) * data["heads"]
    figures = [
        {"value": count(total), "name": words("figure.heads", layers=len(data["layers"]), heads=data["heads"])},
        {"value": count(attributes.get("sentences_kept")), "name": words("figure.sentences")},
        {"value": count(attributes.get("tokens")), "name": words("figure.tokens")},
    ]
    if data["labels"] is not None:
        labelled = sum(bool(cell["labels"]) for row in data["labels"] for cell in row)
        figures.append({"value": f"{labelled} / {total}", "name": words("figure.labelled")})
    if data["relations"] is not None:
        figures.append({"value": count(len(data["relations"]["names"])), "name": words("figure.relations")})
    return figures


def summary(study: Study, data: dict[str, Any], badge: dict[str, Any], words: Words) -> list[str]:
    """What was run, what the heads do, and the clearest single finding: three sentences for a reader without training."""
    attributes = study.attributes
    ran = words(
        "summary.ran",
        model=data["model"],
        heads=len(data["layers"]) * data["heads"],
        layers=len(data["layers"]),
        sentences=count(attributes.get("sentences_kept")),
    )
    return [
        ran + words("list.sentence") + words(f"summary.verify.{badge['status']}"),
        what_heads_do(data, words, _too_few(study, words)),
        _finding(study, words),
    ]


def what_heads_do(data: dict[str, Any], words: Words, too_few: str = "") -> str:
    """How many heads earned a label of each family, more than one, and none; why none did (`too_few`, where that is why)."""
    if data["labels"] is None:
        return words("summary.no_labels")
    cells = [cell for row in data["labels"] for cell in row]
    of_heads = [{str(label.get("family")): None for label in cell["labels"]} for cell in cells]
    families = Counter(family for own in of_heads for family in own)
    order = [*(family for family in TELLING if family in families), *(f for f in families if f not in TELLING)]
    parts = [
        words.get(f"summary.family.{family}", family + ": {n}").replace("{n}", str(families[family]))
        for family in order
    ]
    if not parts:
        return words("summary.none_labelled", of=len(cells), why=too_few or words("summary.too_weak"))
    several = sum(len(own) > 1 for own in of_heads)
    return words(
        "summary.labels",
        list=words("list.comma").join(parts),
        several=words("summary.several", n=several) if several else "",
        none=sum(not own for own in of_heads),
        of=len(cells),
    )


def _too_few(study: Study, words: Words) -> str:
    """That no rule of a label had cases enough on `report` to be tested; empty where one had, or the study does not tell."""
    found: list[float] = []
    for group, names in (("metrics_by_split", [f"{name}_count" for name in LABELLING]), ("relations", ["n"])):
        table = dataset_of(study, group) if group in study else xr.Dataset()
        for name in names:
            if name in table and "report" in table.get("split", ()):
                found.append(float(np.nan_to_num(table[name].sel(split="report").values).max(initial=0)))
    minimum, most = minimum_of(study), max(found, default=np.inf)
    return words("summary.too_few", minimum=minimum, n=count(most)) if most < minimum else ""


def _without_finding(study: Study, words: Words) -> str:
    """Why no relation passed: nothing was chosen, too few cases to test, or no head was good enough."""
    best, minimum = dataset_of(study, "best"), minimum_of(study)
    if best.sizes.get("relation") and "n" in best:
        if (best["layer"].values < 0).all():
            return words("summary.nothing_chosen")
        if np.nan_to_num(best["n"].values).max() < minimum:
            return words("summary.nothing_tested", minimum=minimum)
    return words("summary.no_finding")


def _finding(study: Study, words: Words) -> str:
    """The relation that a head follows furthest beyond the best fixed distance; else what entropy tells."""
    place = clearest(study)
    if place is None:
        return _by_entropy(study, words) if "best" not in study else _without_finding(study, words)
    best = dataset_of(study, "best").isel(relation=place)
    name = str(best["relation"].values)
    return words(
        "summary.finding",
        head=f"L{int(best['layer'])}H{int(best['head'])}",
        relation=name,
        gloss=words.gloss(name) or name,
        direction=words.get(f"direction.{best['direction'].values}.plain", arrow(str(best["direction"].values))),
        accuracy=percent(best["accuracy"]),
        baseline=percent(best["baseline"]),
        gain=points(best["difference"]).lstrip("+"),
    )


def clearest(study: Study) -> int | None:
    """Place in `/best` of the tested relation with the largest gain on `report`; None where no relation passed its test."""
    if "best" not in study or "difference" not in study["best"]:
        return None
    best = dataset_of(study, "best")
    enough = best["n"].values >= minimum_of(study)
    passed = (best["p_adjusted"].values < SIGNIFICANT) & enough & (best["difference"].values > 0)
    if not passed.any():
        return None
    return int(np.where(passed, best["difference"].values, -np.inf).argmax())


def _by_entropy(study: Study, words: Words) -> str:
    if "metrics" not in study or "entropy" not in study["metrics"]:
        return words("summary.nothing")
    entropy = study["metrics"]["entropy"]
    entropy = (
        entropy.isel({dim: 0 for dim in entropy.dims if dim not in ("layer", "head")}).transpose("layer", "head").values
    )
    if not np.isfinite(entropy).any():
        return words("summary.nothing")
    low, high = (
        np.unravel_index(int(place), entropy.shape) for place in (np.nanargmin(entropy), np.nanargmax(entropy))
    )
    return words(
        "summary.entropy",
        narrow=f"L{low[0]}H{low[1]}",
        low=f"{entropy[low]:.2f}",
        broad=f"L{high[0]}H{high[1]}",
        high=f"{entropy[high]:.2f}",
    )
