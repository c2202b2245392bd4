"""The page's words: one table per language (`assets/page/en.json`, `zh.json`), for the template and for the scripts alike."""

from __future__ import annotations

import json
import math
import re
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np

from attnprobe.errors import InputError, explain

LANGUAGES = ("en", "zh")
PLACE = re.compile(r"\{(\w+)\}")
ON_DISK = re.compile(r"[/.~\\]|[A-Za-z]:[/\\]")
"""How a path begins that is no name of a model or corpus."""
MISSING = "–"
"""What stands for an undefined number."""


class Words:
    """Texts of one language by key: `words("atlas.title")`, `words("heads", n=3)`."""

    def __init__(self, lang: str) -> None:
        if lang not in LANGUAGES:
            raise InputError(explain("unknown page language", expected=" or ".join(LANGUAGES), got=repr(lang)))
        self.lang = lang
        self.table: dict[str, str] = table(lang)

    def __call__(self, key: str, **values: Any) -> str:
        """The text under `key` with `{name}` replaced; `key.one` is taken where `n` is 1 and the table has it."""
        if values.get("n") in (1, "1") and f"{key}.one" in self.table:
            key = f"{key}.one"
        return PLACE.sub(lambda place: str(values.get(place[1], place[0])), self.table[key])

    def get(self, key: str, default: str = "") -> str:
        """The text under `key`, or the default: for names that a user may have added."""
        return self.table.get(key, default)

    def gloss(self, relation: str) -> str:
        """What a relation means, in everyday words; empty where not known. Subtypes fall back to their universal relation."""
        family, _, label = relation.partition(":")
        if family in ("dep", "udep"):
            return self.get(f"rel.{label}") or self.get(f"rel.{label.split(':')[0]}")
        return self.get(f"rel.{relation}") or self.get(f"rel.{family}")

    def label(self, found: dict[str, Any]) -> str:
        """The text of a label: its relation and direction, or the name of what the head looks at."""
        if found.get("relation"):
            return f"{found['relation']} ({arrow(str(found.get('direction', '')))})"
        text = str(found.get("label", "?"))
        return self.get(f"label.{text}", text)


@cache
def table(lang: str) -> dict[str, str]:
    text = files("attnprobe.report").joinpath("assets", "page", f"{lang}.json").read_text(encoding="utf-8")
    loaded: dict[str, str] = json.loads(text)
    return loaded


def short_name(name: str) -> str:
    """A model or corpus as a heading names it: of a path on a disk only its last part; names and hub ids as they are."""
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1] if ON_DISK.match(name) else name


def arrow(direction: str) -> str:
    """`dep->head` as it is shown."""
    return direction.replace("->", "→")


def is_missing(value: Any) -> bool:
    return value is None or not np.isfinite(float(value))


def count(value: Any) -> str:
    """A whole number with thousands set apart."""
    return MISSING if is_missing(value) else f"{float(value):,.0f}"


def percent(value: Any, digits: int = 1) -> str:
    """A share as a percentage."""
    return MISSING if is_missing(value) else f"{float(value) * 100:.{digits}f}%"


def points(value: Any) -> str:
    """A difference of two shares, in percentage points, with its sign; more decimals where one would make it read as nothing."""
    if is_missing(value):
        return MISSING
    size = abs(float(value) * 100)
    digits = min(3, math.ceil(-math.log10(size))) if 0 < size < 0.05 else 1
    shown = f"{float(value) * 100:+.{digits}f}"
    return (shown if float(shown) else shown[1:]).replace("-", "−")


def span(low: Any, high: Any, show: Any = percent) -> str:
    """An interval; the unit is written once."""
    if is_missing(low) or is_missing(high):
        return MISSING
    first, second = show(low), show(high)
    if first.endswith("%") and second.endswith("%"):
        first = first[:-1]
    return f"{first} – {second}"


def p_value(value: Any) -> str:
    """A p value as papers print it."""
    if is_missing(value):
        return MISSING
    return "< .001" if float(value) < 0.001 else f"{float(value):.3f}".replace("0.", ".", 1)


def tiny(value: Any) -> str:
    """A small number with two significant digits, such as a difference near rounding."""
    if is_missing(value):
        return MISSING
    return "0" if float(value) == 0 else f"{float(value):.1e}".replace("e-0", "e-").replace("e+0", "e+")


def signed(value: Any) -> str:
    """A whole offset with its sign."""
    return MISSING if is_missing(value) else f"{float(value):+.0f}".replace("-", "−")
