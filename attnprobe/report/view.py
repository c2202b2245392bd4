"""`view`: the attention patterns of one text as a page of its own, for the browser and for notebooks.

The page holds its style, its script and its data, asks for nothing from a network and forbids itself to. It needs no JavaScript library.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from markupsafe import Markup

import attnprobe
from attnprobe.errors import InputError, explain
from attnprobe.records import PatternView
from attnprobe.report._arena import script_json
from attnprobe.report._view_choice import LONG, MAX_CELLS, choose
from attnprobe.report._view_document import joined, policy, template, write_page
from attnprobe.report._view_joining import stacks_of
from attnprobe.report._view_payload import collect

STYLES = ("page/base.css", "view/view.css")
SCRIPTS = (
    *("page/dom.js", "page/words.js", "page/data.js", "page/colour.js", "page/theme.js"),
    *(
        f"view/{name}.js"
        for name in ("shades", "model", "state", "controls", "grid", "sheet", "lines", "reading", "neurons", "main")
    ),
)
"""Scripts in the order they are joined; the first ones are the report page's own."""
LANGUAGES = ("en", "zh")
FRAME_HEIGHT = 820
"""Pixels that a notebook gives the page."""


@dataclass(frozen=True)
class View:
    """A page that shows attention patterns; a notebook draws it where it stands."""

    html: str
    """The whole document: it opens with no network."""
    height: int = FRAME_HEIGHT
    """Pixels of a notebook's frame."""

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page to a file, under a temporary name first, then renamed."""
        return write_page(self.html, path)

    def _repr_html_(self) -> str:
        """The page in a frame that may run its own script and reach nothing of the notebook around it."""
        style = f"width:100%;height:{self.height}px;border:0"
        return f'<iframe sandbox="allow-scripts" title="Attention patterns" style="{style}" srcdoc="{html.escape(self.html)}"></iframe>'


def view(
    source: PatternView | Any,
    *,
    index: int = 0,
    layers: Iterable[int] | None = None,
    heads: Iterable[int | str] | None = None,
    window: tuple[int, int] | None = None,
    neurons: bool | None = None,
    bits: int = 8,
    max_cells: int = MAX_CELLS,
    title: str | None = None,
    lang: str = "en",
    height: int = FRAME_HEIGHT,
) -> View:
    """Show the attention of every head over one text: all heads, one head as a matrix or as lines, and how its weights come about.

    `source` is a `PatternView`, or a capture (whose sequence `index` is taken). `layers` (places in execution order) and `heads` (numbers,
    or names such as `"L2H8"`) choose what is shown, `window` which tokens, `(first, end)`. Without any of the three, texts beyond 128
    tokens are shown by their first 128, and the page says so. `neurons` puts q and k in: None does where the source has them and they are
    few. `bits` is 8 or 16: how finely weights are stored; the page states the error. `lang` is `en` or `zh`.

    Raises `InputError` for what there is not to show, and where the page would hold more than `max_cells` weights.

    >>> import numpy as np
    >>> from attnprobe.records import PatternBlock, WordAlignment
    >>> block = PatternBlock(0, "encoder", 0, 0, np.full((1, 2, 2), 0.5, dtype=np.float32), "model")
    >>> pattern = PatternView("tiny", (block,), ("a", "b"), WordAlignment(np.array([0, 1]), 2), ("a", "b"), np.zeros(2, dtype=bool))
    >>> view(pattern).html.startswith("<!doctype html>")
    True
    """
    if lang not in LANGUAGES:
        raise InputError(explain("unknown page language", expected=" or ".join(LANGUAGES), got=repr(lang)))
    pattern = pattern_view(source, index, neurons)
    choice = choose(stacks_of(pattern), layers=layers, heads=heads, window=window, max_cells=max_cells)
    data, arena = collect(choice, bits=bits, neurons=neurons)
    words = _words(lang)
    heading = title or words["page.title"].replace("{model}", pattern.model)
    page = {**data, "model": pattern.model, "lang": lang, "words": words}
    style, script = joined(STYLES), f'\n(() => {{\n"use strict";\n{joined(SCRIPTS)}\n}})();\n'
    text = template("view.html").render(
        lang={"en": "en", "zh": "zh-Hans"}[lang],
        words=words,
        title=heading,
        version=attnprobe.__version__,
        policy=policy([script], [style]),
        style=Markup(style),
        script=Markup(script),
        data=Markup(script_json(page)),
        patterns=Markup(script_json(arena.as_record())),
    )
    return View(text, height)


def pattern_view(source: PatternView | Any, index: int, neurons: bool | None) -> PatternView:
    """The view itself, or what a capture makes of one of its sequences; q and k of long texts only where asked for."""
    if isinstance(source, PatternView):
        if index:
            raise InputError(explain("a view holds one sequence", expected="index=0", got=f"index={index}"))
        return source
    make = getattr(source, "view", None)
    if not callable(make):
        raise InputError(
            explain("nothing that can be shown", expected="a PatternView or a capture", got=type(source).__name__)
        )
    if neurons is None:
        plain: PatternView = make(index)
        return plain if len(plain.tokens) > LONG else make(index, neurons=True)
    made: PatternView = make(index, neurons=neurons)
    return made


@cache
def _words(lang: str) -> dict[str, str]:
    """The page's texts by key."""
    text = files("attnprobe.report").joinpath("assets", "view", f"{lang}.json").read_text(encoding="utf-8")
    loaded: dict[str, str] = json.loads(text)
    return loaded
