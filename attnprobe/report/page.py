"""`write_report`: from a saved study to one self-contained HTML page.

The page holds its own style, scripts and data, asks for nothing from a network and forbids itself to. Text of the study reaches the
reader by two ways only: escaped by the template, or as JSON that the scripts put in place as text.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

import attnprobe
from attnprobe.records import Study, open_study
from attnprobe.report import _comparison, _methods, _overview, _tables
from attnprobe.report._arena import Arena, script_json
from attnprobe.report._payload import collect, dataset_of
from attnprobe.report._view_document import joined, policy, template, write_page
from attnprobe.report._words import Words

STYLES = ("base", "tables", "atlas", "figures", "patterns", "cards")
SCRIPTS = (
    *("dom", "words", "data", "colour", "download", "tables", "figure", "charts"),
    *(
        "measures",
        "atlas",
        "card",
        "verdict",
        "checks",
        "sentences",
        "evidence",
        "shapes",
        "groups",
        "probes",
        "relations",
        "matrix",
        "arcs",
        "patterns",
        "layers",
        "clusters",
        "changes",
        "theme",
        "main",
    ),
)
"""Scripts in the order they are joined: each may use what stands before it."""
NOTHING = dict.fromkeys(
    ("comparison", "verification", "metrics", "counts", "provenance", "rules", "caveats", "references", "sides")
)
"""Parts of the template that a page may do without."""


def write_report(
    study: Study | str | os.PathLike[str], path: str | os.PathLike[str], *, lang: str = "en", title: str | None = None
) -> Path:
    """Write the report page of a study, of a comparison, or of the file of either to `path`: one HTML file that opens with no network.

    `lang` is `en` or `zh`; `title` replaces the page's own. The file is written under a temporary name and renamed. Raises `InputError`
    for an unknown language or a path that cannot name a file, `EnvironmentFailure` where it cannot be written.
    """
    return write_page(render(study if isinstance(study, Study) else open_study(study), lang=lang, title=title), path)


def render(study: Study, *, lang: str = "en", title: str | None = None) -> str:
    """The report page of a study, or of a comparison of two (`attnprobe compare`), as text.

    >>> import xarray as xr
    >>> page = render(Study(xr.DataTree.from_dict({"/": xr.Dataset(attrs={"model": "empty"})})))
    >>> "UNVERIFIED" in page
    True
    """
    words = Words(lang)
    if _comparison.is_comparison(study):
        data, tables = _comparison.collect_comparison(study)
        badge, patterns, missing = _comparison.badge(study, words), Arena(), []
        sections, start = _compared_sections(study, data, words), _comparison.start(data)
        named = {"title": words("compare.title"), "heading": words("compare.heading")}
    else:
        data, tables, patterns = collect(study)
        badge = _overview.verification(study, words)
        missing = _methods.missing_groups(study, data, words)
        sections, start = _sections(study, data, badge, words), _start(study, data)
        named = {
            "title": words("page.title", model=data["model"]),
            "heading": words("page.heading", model=data["model"]),
        }
    style, script = _joined(STYLES, "css"), _script()
    page = {**data, "lang": lang, "words": words.table, "missing": missing, "loud": badge["loud"], "start": start}
    for name in ("labels", "profiles"):
        page[name] = None if data.get(name) is None else tables.add(_as_bytes(data[name]))
    return template("page.html").render(
        words=words,
        lang={"en": "en", "zh": "zh-Hans"}[lang],
        title=title or _loudly(named["title"], badge),
        heading=title or named["heading"],
        version=attnprobe.__version__,
        policy=policy([script], [style]),
        style=Markup(style),
        script=Markup(script),
        blocks={
            "page-data": Markup(script_json(page)),
            "page-tables": Markup(script_json(tables.as_record())),
            "page-patterns": Markup(script_json(patterns.as_record())),
        },
        data=data,
        **NOTHING | sections,
        missing=missing,
        badge=badge,
    )


def _as_bytes(value: Any) -> np.ndarray:
    """A value as the bytes of its JSON, for the deflated block."""
    return np.frombuffer(script_json(value).encode("ascii"), dtype=np.uint8)


def _sections(study: Study, data: dict[str, Any], badge: dict[str, Any], words: Words) -> dict[str, Any]:
    """What the template lays out by itself, without any script."""
    return {
        "summary": _overview.summary(study, data, badge, words),
        "figures": _overview.key_figures(study, data, words),
        "verification": _tables.verification_table(study, words),
        "best": _tables.best_table(study, words),
        "metrics": _tables.metric_table(data, words),
        "counts": _tables.counts_table(study, words),
        "provenance": _tables.provenance_table(study, words),
        "methods": _methods.methods(study, data, badge, words),
        "rules": _methods.label_rules(study, words),
        "caveats": _methods.caveats(study, data, badge, words),
        "references": _methods.references(study, data),
    }


def _compared_sections(study: Study, data: dict[str, Any], words: Words) -> dict[str, Any]:
    """The same for a comparison."""
    return {
        "comparison": True,
        "summary": _comparison.summary(study, words),
        "figures": _comparison.key_figures(study, data, words),
        "best": _comparison.best_table(study, words),
        "sides": _comparison.sides_table(study, words),
        "methods": _comparison.methods(study, words),
    }


def _loudly(title: str, badge: dict[str, Any]) -> str:
    return f"UNVERIFIED · {title}" if badge["loud"] else title


def _start(study: Study, data: dict[str, Any]) -> dict[str, Any]:
    """What the page shows first: the head and the relation of the clearest finding, else the first labelled head."""
    place = _overview.clearest(study)
    if place is not None:
        best = dataset_of(study, "best").isel(relation=place)
        names = ("relation", "direction")
        return {"layer": int(best["layer"]), "head": int(best["head"])} | {
            name: str(best[name].values) for name in names
        }
    for layer, row in enumerate(data["labels"] or []):
        for head, found in enumerate(row):
            if found["labels"]:
                return {"layer": layer, "head": head}
    return {"layer": 0, "head": 0}


def _script() -> str:
    """All scripts inside one function, so that nothing they name is global."""
    return f'\n(() => {{\n"use strict";\n{_joined(SCRIPTS, "js")}\n}})();\n'


def _joined(names: tuple[str, ...], kind: str) -> str:
    return joined(tuple(f"page/{name}.{kind}" for name in names))
