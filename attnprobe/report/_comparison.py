"""The page of a comparison (`attnprobe compare`): what the second study has more or less of than the first, head by head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.records import Study, too_wide
from attnprobe.report._arena import Arena, number, parsed
from attnprobe.report._payload import MINIMUM_N, dataset_of, layers_of, measure_of
from attnprobe.report._tables import cell, column, figure_cell, row
from attnprobe.report._words import MISSING, Words, arrow, count, percent, points, short_name, span

SIDES = ("model", "model_sha256", "family", "dtype", "corpus", "corpus_sha256", "label_scheme", "sentences_kept")
Item = dict[str, Any]


def is_comparison(study: Study) -> bool:
    return study.attributes.get("kind") == "comparison"


def collect_comparison(study: Study) -> tuple[dict[str, Any], Arena]:
    """The page's data and the block of its tables."""
    tables = Arena()
    layers, n_heads = layers_of(study)
    measures = [*_metric_changes(study, tables), *_relation_changes(study, tables), *_label_changes(study, tables)]
    names = {"layers": layers, "heads": n_heads, "measures": measures, "model": _title(study)}
    empty: dict[str, Any] = {"context": [], "relations": None, "labels": None, "clusters": None, "classes": None}
    cases = {
        str(name): number(n)
        for name, n in zip(*(_report(study, key) for key in ("relation", "n_b")), strict=True)
        if number(n) is not None
    }
    told = {
        "labels": _labels(study),
        "matches": _matches(study, tables),
        "cases": cases,
        "minimum_n": MINIMUM_N,
    }
    data = {**names, **empty, "examples": [], "left_out": [], "importance": None, "comparison": told}
    return {**data, "groups": study.groups}, tables


def _title(study: Study) -> str:
    return f"{_model(study, 'b')} − {_model(study, 'a')}"


def _model(study: Study, side: str) -> str:
    """The model's name; where both have the same, with what tells them apart: the precision, else the weights."""
    both = {one: short_name(str(study.attributes.get(f"{one}_model", "?"))) for one in ("a", "b")}
    if both["a"] == both["b"]:
        for name in ("dtype", "model_sha256"):
            found = {one: str(study.attributes.get(f"{one}_{name}", "?")) for one in both}
            if found["a"] != found["b"]:
                return f"{both[side]} ({found[side][:8]})"
    return both[side]


def _report(study: Study, name: str) -> Any:
    """A column of the report half, by relation; empty where there are no relations."""
    if "relations" not in study:
        return []
    table = dataset_of(study, "relations").sel(split="report")
    return table[name].values


def _metric_changes(study: Study, tables: Arena) -> list[Item]:
    table = dataset_of(study, "metrics")
    names = [str(name) for name in table.data_vars if f"{name}_low" in table]
    measures = [measure_of("metrics", name, table, tables) for name in names]
    for measure in measures:
        measure["unit"] = "points" if measure["unit"] == "share" else measure["unit"]
        measure["limits"] = [None, None]
    return measures


def _relation_changes(study: Study, tables: Arena) -> list[Item]:
    if "relations" not in study:
        return []
    table = dataset_of(study, "relations").sel(split="report")
    renamed = {"difference": table["difference"], "difference_low": table["low"], "difference_high": table["high"]}
    measure = measure_of("relations", "difference", xr.Dataset(renamed), tables)
    return [{**measure, "unit": "points", "limits": [None, None]}]


def _label_changes(study: Study, tables: Arena) -> list[Item]:
    """How many labels each head gained and lost."""
    found = _labels(study)
    if found is None:
        return []
    measures = []
    for name in ("gained", "lost"):
        counts = np.array([[len(one[name]) for one in row_of] for row_of in found])
        table = xr.Dataset({name: (["layer", "head"], counts, {"unit": "labels", "limits": np.array([0.0, np.nan])})})
        measures.append(measure_of("labels", name, table, tables))
    return measures


def _labels(study: Study) -> list[list[dict[str, list[Item]]]] | None:
    if "labels" not in study:
        return None
    texts = dataset_of(study, "labels")["labels"].transpose("layer", "head").values
    return [[_changes(text) for text in row_of] for row_of in texts]


def _changes(text: Any) -> dict[str, list[Item]]:
    read = parsed(text, {})
    kept: dict[str, list[Item]] = {}
    for name in ("gained", "lost", "kept", "untested"):
        labels = read.get(name) if isinstance(read, Mapping) else None
        kept[name] = [
            {key: number(value) if isinstance(value, float) else value for key, value in label.items()}
            for label in labels or []
        ]
    return kept


def _matches(study: Study, tables: Arena) -> Item | None:
    if "matches" not in study:
        return None
    table = dataset_of(study, "matches")
    names = {"layer": "layer_b", "head": "head_b", "distance": "distance", "same": "distance_same"}
    packed = {key: tables.add(table[name].transpose("layer", "head").values) for key, name in names.items()}
    return {**packed, **{name: str(table.attrs.get(name, "")) for name in ("method", "unit")}}


def badge(study: Study, words: Words) -> Item:
    """Whether both studies were verified."""
    sides = [study.attributes.get(f"{side}_verified") for side in ("a", "b")]
    ok = all(bool(side) for side in sides)
    status = "ok" if ok else "absent" if None in sides else "failed"
    text = words(f"compare.verify.{status}", a=_model(study, "a"), b=_model(study, "b"))
    return {
        "status": status,
        "loud": not ok,
        "headline": words(f"verify.{status}.headline"),
        "text": text,
        "reason": "" if ok else text,
        "consequence": "" if ok else words("verify.consequence"),
        "notes": [],
    }


def summary(study: Study, words: Words) -> list[str]:
    """What was compared, how many heads changed what, and the greatest change: sentences for a reader without training."""
    attributes = study.attributes
    told = {"a": _model(study, "a"), "b": _model(study, "b")}
    corpora = [short_name(str(attributes.get(f"{side}_corpus", "?"))) for side in ("a", "b")]
    same = attributes.get("a_corpus_sha256") == attributes.get("b_corpus_sha256")
    parts = [
        words("compare.ran", **told),
        words(f"compare.corpus.{'same' if same else 'two'}", a=corpora[0], b=corpora[1]),
        words(f"compare.align.{attributes.get('align')}"),
    ]
    sentences = [words("list.sentence").join(parts)]
    found = _labels(study)
    if found is not None:
        cells = [one for row_of in found for one in row_of]
        gained, lost = (sum(bool(one[name]) for one in cells) for name in ("gained", "lost"))
        sentences.append(words("compare.labels", gained=gained, lost=lost, of=len(cells)))
    if "relations" in study:
        told = dataset_of(study, "relations")["difference"].attrs
        n, of = count(told.get("exclude_zero")), count(told.get("cells"))
        chance = count(0.05 * float(told.get("cells", 0)))
        sentences.append(words(f"compare.cells{'.wide' if too_wide(study) else ''}", exclude=n, of=of, chance=chance))
    return sentences


def key_figures(study: Study, data: dict[str, Any], words: Words) -> list[dict[str, str]]:
    """The numbers under the title."""
    found = data["comparison"]["labels"] or []
    cells = [one for row_of in found for one in row_of]
    total = len(data["layers"]) * data["heads"]
    figures = [{"value": count(total), "name": words("figure.heads", layers=len(data["layers"]), heads=data["heads"])}]
    for name in ("gained", "lost"):
        figures.append({"value": count(sum(len(one[name]) for one in cells)), "name": words(f"compare.figure.{name}")})
    return figures


def best_table(study: Study, words: Words) -> Item | None:
    """For each relation, what the best head of each study does, and the difference."""
    if "best" not in study or "difference" not in study["best"]:
        return None
    best = dataset_of(study, "best")
    rows = [_best_row(best.isel(relation=place), words) for place in range(best.sizes["relation"])]
    text = {"relation", "meaning", "head_a", "head_b"}
    names = ("relation", "meaning", "head_a", "accuracy_a", "head_b", "accuracy_b", "difference", "interval")
    columns = [column(words(f"compare.best.{name}"), "text" if name in text else "number") for name in names]
    return {"id": "best", "columns": columns, "rows": rows, "minimum": MINIMUM_N}


def _best_row(best: xr.Dataset, words: Words) -> Item:
    name = str(best["relation"].values)
    cells = [cell(name), cell(words.gloss(name))]
    for side in ("a", "b"):
        found = int(best[f"layer_{side}"]) >= 0
        place = f"L{int(best[f'layer_{side}'])}H{int(best[f'head_{side}'])}" if found else MISSING
        direction = arrow(str(best[f"direction_{side}"].values))
        link = {"href": f"#{place}"} if side == "a" and found else {}
        note = direction if found else words("best.not_chosen")
        cells += [cell(place, **link, note=note), figure_cell(best[f"accuracy_{side}"], percent)]
    low, high = float(best["low"]), float(best["high"])
    apart = low > 0 or high < 0
    cells.append(figure_cell(best["difference"], points, mark=words("compare.apart") if apart else ""))
    cells.append(cell(span(low, high, points), "" if number(low) is None else f"{number(low)} {number(high)}"))
    return row(cells)


def sides_table(study: Study, words: Words) -> Item:
    """The two studies side by side."""
    attributes = study.attributes
    columns = [column(words("origin.name"), "text"), *(column(words(f"compare.side.{side}"), "text") for side in "ab")]
    rows = [
        row(
            [cell(words(f"origin.{name}", **{}) if f"origin.{name}" in words.table else name), *_both(attributes, name)]
        )
        for name in SIDES
        if f"a_{name}" in attributes or f"b_{name}" in attributes
    ]
    return {"id": "sides", "columns": columns, "rows": rows}


def _both(attributes: Mapping[str, Any], name: str) -> list[Item]:
    return [cell(attributes.get(f"{side}_{name}", "–")) for side in ("a", "b")]


def methods(study: Study, words: Words) -> list[dict[str, str]]:
    """How the differences came about."""
    align, pairing = str(study.attributes.get("align", "?")), str(study.attributes.get("pairing", "?"))
    paired = "paired" if pairing.startswith("paired") else "independent"
    items = ["difference", f"align.{align}", f"pairing.{paired}", "many"]
    return [
        {
            "title": words(f"compare.method.{item.split('.')[0]}.title"),
            "text": words(f"compare.method.{item}", pairing=pairing),
        }
        for item in items
    ]


def start(data: dict[str, Any]) -> dict[str, Any]:
    """The head that gained or lost most labels."""
    best, place = -1, {"layer": 0, "head": 0}
    for layer, row_of in enumerate(data["comparison"]["labels"] or []):
        for head, found in enumerate(row_of):
            changed = len(found["gained"]) + len(found["lost"])
            if changed > best:
                best, place = changed, {"layer": layer, "head": head}
    return place
