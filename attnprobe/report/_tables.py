"""Tables that the page shows without any script: relations, verification, metrics, provenance, what was left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray as xr

from attnprobe.records import Study
from attnprobe.report._arena import number, parsed
from attnprobe.report._payload import dataset_of, minimum_of
from attnprobe.report._words import MISSING, Words, arrow, count, p_value, percent, points, signed, span, tiny

ATTRIBUTES = (
    *("model", "model_sha256", "family", "tokenizer", "attn_implementation", "dtype", "device"),
    *("corpus", "corpus_sha256", "label_scheme", "seed", "created", "format"),
)
COUNTED = (
    *("sentences_kept", "documents", "documents_select", "documents_report", "tokens", "unknown_tokens"),
    *("repeated_sentences", "cases_without_token"),
)
ENOUGH_UNKNOWN = 0.05


def cell(text: Any, value: Any = None, **more: str) -> dict[str, Any]:
    """One cell: what is shown, the bare value behind it (for sorting and CSV), and what may go with it."""
    parts = {"href": "", "note": "", "mark": "", "relation": ""}
    return {"text": str(text), "value": text if value is None else value, **parts, **more}


def figure_cell(value: Any, show: Callable[[Any], str], **more: str) -> dict[str, Any]:
    """A number: shown short, kept in full."""
    bare = number(value)
    return cell(show(value), "" if bare is None else bare, **more)


def row(cells: list[dict[str, Any]], few: bool = False) -> dict[str, Any]:
    """One row; `few` marks a relation with too few cases to be tested."""
    return {"cells": cells, "few": few}


def column(label: str, kind: str = "number", title: str = "") -> dict[str, str]:
    return {"label": label, "kind": kind, "title": title}


def best_table(study: Study, words: Words) -> dict[str, Any] | None:
    """For each relation the head chosen on `select` and what it does on `report`; None where the study has no `/best`."""
    if "best" not in study or "accuracy" not in study["best"]:
        return None
    best = dataset_of(study, "best")
    rules = dataset_of(study, "relations").attrs if "relations" in study else {}
    minimum = minimum_of(study)
    rows = [_best_row(best.isel(relation=place), minimum, words) for place in range(best.sizes["relation"])]
    names = (
        "relation",
        "meaning",
        "head",
        "direction",
        "accuracy",
        "interval",
        "n",
        "baseline",
        "gain",
        "gain_interval",
        "p",
    )
    kinds = {"relation": "text", "meaning": "text", "head": "text", "direction": "text"}
    columns = [
        column(words(f"best.{name}"), kinds.get(name, "number"), words.get(f"best.{name}.title")) for name in names
    ]
    margin = percent(rules.get("margin", 0.05), 0)
    return {"id": "best", "columns": columns, "rows": rows, "minimum": minimum, "margin": margin}


def _best_row(best: xr.Dataset, minimum: int, words: Words) -> dict[str, Any]:
    name, direction = str(best["relation"].values), str(best["direction"].values)
    found = int(best["layer"]) >= 0
    head = f"L{int(best['layer'])}H{int(best['head'])}"
    value = {key: float(best[key]) for key in best.data_vars if best[key].dtype.kind in "fi"}
    offset = signed(value.get("baseline_offset"))
    baseline = figure_cell(value["baseline"], percent, note="" if offset == MISSING else f"@{offset}")
    passed = value["p_adjusted"] < 0.05 and value["difference"] > 0
    cells = [
        cell(name, relation=name),
        cell(words.gloss(name)),
        cell(head, href=f"#{head}") if found else cell(MISSING, "", note=words("best.not_chosen")),
        cell(arrow(direction) or MISSING, direction),
        figure_cell(value["accuracy"], percent),
        cell(span(value["low"], value["high"]), _between(value["low"], value["high"])),
        figure_cell(value["n"], count),
        baseline,
        figure_cell(value["difference"], points, mark=words("best.passed") if passed else ""),
        cell(
            span(value["difference_low"], value["difference_high"], points),
            _between(value["difference_low"], value["difference_high"]),
        ),
        figure_cell(value["p_adjusted"], p_value),
    ]
    return row(cells, few=not value["n"] >= minimum)


def _between(low: float, high: float) -> str:
    """An interval in full, for CSV."""
    return "" if number(low) is None or number(high) is None else f"{number(low)} {number(high)}"


def verification_table(study: Study, words: Words) -> dict[str, Any] | None:
    """Differences and tolerances for each attention module."""
    if "verification" not in study:
        return None
    table = dataset_of(study, "verification")
    shown: dict[str, Callable[[Any], str]] = {
        **dict.fromkeys(("pattern_max_abs", "pattern_tolerance", "context_max_abs", "context_tolerance"), tiny),
        **{
            "row_sum_max_error": tiny,
            "rows_checked": count,
            "rows_excluded": count,
            "max_score": lambda v: f"{float(v):.1f}",
        },
    }
    names = [name for name in shown if name in table and table[name].dims == ("layer",)]
    columns = [column(words("word.layer"), "text"), *(column(words(f"verify.{name}")) for name in names)]
    rows = [
        row([cell(_layer(table, place)), *(figure_cell(table[name].values[place], shown[name]) for name in names)])
        for place in range(table.sizes.get("layer", 0))
    ]
    if "bitwise" in table:
        columns.append(column(words("verify.bitwise.column"), "text"))
        for one, same in zip(rows, table["bitwise"].values, strict=False):
            one["cells"].append(cell(words("word.yes") if same else words("word.no")))
    return {"id": "verification", "columns": columns, "rows": rows}


def _layer(table: xr.Dataset, place: int) -> str:
    kind = str(table.coords["kind"].values[place]) if "kind" in table.coords else ""
    return f"L{place} {kind}".strip()


def metric_table(data: dict[str, Any], words: Words) -> dict[str, Any] | None:
    """What each metric means, with unit, limits and source."""
    measures = [measure for measure in data["measures"] if measure["group"] == "metrics"]
    if not measures:
        return None
    columns = [column(words(f"metric.column.{name}"), "text") for name in ("name", "meaning", "unit", "source")]
    rows = []
    for measure in measures:
        name = measure["name"]
        meaning = words.get(f"metric.{name}.meaning") or measure["note"] or words("metric.unknown")
        title = words.get(f"metric.{name}", name)
        unit = words.get(f"unit.{measure['unit']}", measure["unit"])
        rows.append(row([cell(title, name), cell(meaning), cell(unit), cell(measure["source"])]))
    return {"id": "metrics", "columns": columns, "rows": rows}


def provenance_table(study: Study, words: Words) -> dict[str, Any]:
    """Every root attribute of the study, its JSON laid open."""
    attributes = dict(study.attributes)
    rows = [
        (words(f"origin.{name}"), attributes.pop(name)) for name in ATTRIBUTES if str(attributes.get(name, "")) != ""
    ]
    for name in ("versions", "plan"):
        read = parsed(attributes.pop(name, ""), {})
        for key, value in _flat(read if isinstance(read, dict) else {}):
            rows.append((words(f"origin.{name}") + " · " + key, value))
    for name in (*COUNTED, "sentences_dropped"):
        attributes.pop(name, None)
    rows += [(name, value) for name, value in attributes.items() if str(value) != "" and name not in ATTRIBUTES]
    columns = [column(words("origin.name"), "text"), column(words("origin.value"), "text")]
    return {"id": "provenance", "columns": columns, "rows": [row([cell(name), cell(value)]) for name, value in rows]}


def _flat(read: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in read.items():
        if isinstance(value, dict):
            found += _flat(value, f"{before}{key}.")
        else:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found.append((before + key, MISSING if value is None or not text else text))
    return found


def counts_table(study: Study, words: Words) -> dict[str, Any]:
    """Sentences kept and left out with reasons, unknown tokens, repeats, ties, cases without mass."""
    attributes = study.attributes
    rows = [_counted(words(f"count.{name}"), attributes.get(name), words(f"count.{name}.note")) for name in COUNTED]
    dropped = parsed(attributes.get("sentences_dropped"), {})
    dropped = dropped if isinstance(dropped, dict) else {}
    total = sum(int(number(value) or 0) for value in dropped.values())
    rows.insert(1, _counted(words("count.dropped"), total, words("count.dropped.note")))
    for place, (reason, value) in enumerate(dropped.items()):
        shown = words.get(f"drop.{reason}", str(reason))
        rows.insert(2 + place, _counted("— " + shown, value, words("count.reason")))
    tokens, unknown = number(attributes.get("tokens", np.nan)), number(attributes.get("unknown_tokens", np.nan))
    if tokens and unknown is not None:
        rows[COUNTED.index("unknown_tokens") + 1 + len(dropped)]["cells"][1]["text"] += (
            f" ({percent(unknown / tokens)})"
        )
    columns = [
        column(words("count.what"), "text"),
        column(words("count.number")),
        column(words("count.meaning"), "text"),
    ]
    return {"id": "counts", "columns": columns, "rows": rows + _cases(study, words) + _weak_cases(study, words)}


def _counted(name: str, value: Any, note: str) -> dict[str, Any]:
    found = np.nan if value is None else float(value)
    return row([cell(name), figure_cell(found, count), cell(note)])


def _cases(study: Study, words: Words) -> list[dict[str, Any]]:
    """Cases of all relations on each half of the corpus."""
    table = dataset_of(study, "relations") if "relations" in study else xr.Dataset()
    note = words("count.cases.note", minimum=minimum_of(study))
    return [
        _counted(words(f"count.cases_{split}"), table["n"].sel(split=split).sum(), note)
        for split in ("select", "report")
        if "n" in table and split in table.get("split", ())
    ]


def _weak_cases(study: Study, words: Words) -> list[dict[str, Any]]:
    """Ties and cases without mass, summed over heads, relations and directions of the whole corpus."""
    rows: list[dict[str, Any]] = []
    if "relations" not in study:
        return rows
    table = dataset_of(study, "relations")
    table = table.sel(split="all") if "split" in table.dims and "all" in table["split"].values else table
    for name in ("ties", "no_mass"):
        if name in table and "n" in table:
            cases = float(table["n"].broadcast_like(table[name]).sum())
            found = float(table[name].sum())
            rows.append(_counted(words(f"count.{name}"), found, words(f"count.{name}.note", of=count(cases))))
    return rows


def unknown_share(study: Study) -> float:
    """Share of tokens that the tokenizer did not know; 0 where not counted."""
    tokens, unknown = (
        number(study.attributes.get("tokens", np.nan)),
        number(study.attributes.get("unknown_tokens", np.nan)),
    )
    return float(unknown) / float(tokens) if tokens and unknown is not None else 0.0
