"""A layer x head grid of coloured cells with text in them: the ground of the atlas, the comparison and the probe grid."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from attnprobe.report._figure_colours import INK, SOFT, Scale, wants_white
from attnprobe.report._figure_paper import (
    LEAST,
    POINT,
    SMALL,
    TALLEST,
    TEXT,
    TINY,
    PaperFigure,
    column,
    fitting,
    note,
    shortened,
    text_width,
)

LEFT, TOP, RIGHT = 0.42, 0.56, 0.03
"""Margins around the cells, in inches: layer names; colour bar and head numbers; nothing."""
BAR = 0.2
"""Middle of title and colour bar, in inches from the top."""
ROOM = 0.87
"""Share of a cell's width that text may take."""


@dataclass(frozen=True)
class Cells:
    """Where the cells of a grid lie, in inches."""

    layers: int
    heads: int
    width: float
    """Width of one cell."""
    height: float
    left: float
    bottom: float
    """Space under the cells."""

    @classmethod
    def of(cls, shape: tuple[int, int], width: str, *, lines: int, names: Sequence[str], bottom: float = 0.04) -> Cells:
        """Cells that fill a column, tall enough for `lines` of text, and together never taller than a page."""
        layers, heads = shape
        left = LEFT + max(0, max(map(len, names), default=1) - 2) * 0.04
        wide = min((column(width) - left - RIGHT) / heads, 0.75)
        tall = 0.08 + 0.105 * lines if wide * POINT > 9 else wide
        return cls(layers, heads, wide, min(tall, (TALLEST - TOP - bottom) / layers), left, bottom)

    @property
    def points(self) -> tuple[float, float]:
        """Width for text, and height, of one cell in points."""
        return self.width * POINT * ROOM, self.height * POINT

    @property
    def right(self) -> float:
        return self.left + self.width * self.heads

    @property
    def figure_height(self) -> float:
        return TOP + self.layers * self.height + self.bottom

    def size_for(self, texts: np.ndarray, lines: int, weight: str = "normal") -> float | None:
        """The one type size at which all these texts fit their cells; None where that is under the least."""
        wide, high = self.points
        largest = min(SMALL if lines > 1 else TEXT, high / lines / 1.12)
        sizes = [fitting(text, wide, largest, weight) for text in {str(text) for text in texts.ravel()} - {""}]
        return None if None in sizes or largest < LEAST - 0.05 else min([largest, *(size for size in sizes if size)])


def draw_cells(figure: PaperFigure, cells: Cells, rgb: np.ndarray, names: Sequence[str]) -> Axes:
    """Coloured cells with layer and head numbers around them, layer 0 at the top."""
    size = (cells.width * cells.heads, cells.height * cells.layers)
    axes = figure.inches(cells.left, TOP, *size, xlim=(-0.5, cells.heads - 0.5), ylim=(cells.layers - 0.5, -0.5))
    gap = min(0.8, 0.05 * min(cells.width, cells.height) * POINT)
    x, y = np.arange(cells.heads + 1) - 0.5, np.arange(cells.layers + 1) - 0.5
    axes.pcolormesh(x, y, rgb, edgecolors="white", linewidth=gap)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=SMALL, pad=2.5)
    axes.xaxis.tick_top()
    every = [_step(cells.width * POINT, 2.2 * TINY), _step(cells.height * POINT, 1.1 * TINY)]
    axes.set_xticks(range(0, cells.heads, every[0]))
    axes.set_yticks(range(0, cells.layers, every[1]), labels=list(names)[:: every[1]])
    outside: dict[str, Any] = {"xycoords": "axes fraction", "fontsize": SMALL, "color": SOFT}
    note(axes, "Head", (0, 1), (-3, 2.5), ha="right", va="bottom", **outside)
    note(axes, "Layer", (0, 0.5), (-cells.left * POINT + 5, 0), ha="center", va="center", rotation=90, **outside)
    for place in range(1, cells.layers):
        if " " in names[place] and names[place].split(" ")[0] != names[place - 1].split(" ")[0]:
            axes.axhline(place - 0.5, color=INK, linewidth=0.8)
    return axes


def _step(room: float, needed: float) -> int:
    """One tick in how many may be named."""
    return next(step for step in (1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100, 1000) if step * room >= needed)


@dataclass(frozen=True)
class Line:
    """One line of text of every cell."""

    texts: np.ndarray
    """[layer head]; empty where a cell lacks this line."""
    size: float
    weight: np.ndarray
    """normal or bold, [layer head]."""


def write_cells(axes: Axes, cells: Cells, rgb: np.ndarray, lines: Sequence[Line]) -> None:
    """The lines of every cell, in its middle; dark or light as the ground asks."""
    white = wants_white(rgb)
    step = max((line.size for line in lines), default=0.0) * 1.2
    for place in np.ndindex(rgb.shape[:2]):
        there = [line for line in lines if line.texts[place]]
        for number_, line in enumerate(there):
            note(
                axes,
                str(line.texts[place]),
                (place[1], place[0]),
                (0, ((len(there) - 1) / 2 - number_) * step - 0.35 * line.size),
                ha="center",
                fontsize=line.size,
                fontweight=line.weight[place],
                color="white" if white[place] else "black",
            )


def write_corners(axes: Axes, rgb: np.ndarray, texts: np.ndarray) -> None:
    """A small text in the lower right corner of each cell."""
    white = wants_white(rgb)
    for place in zip(*np.nonzero(texts != ""), strict=True):
        note(
            axes,
            texts[place],
            (place[1] + 0.46, place[0] + 0.5),
            (0, 2.6),
            ha="right",
            fontsize=LEAST,
            color="white" if white[place] else "black",
        )


def draw_title(figure: PaperFigure, title: str, room: float) -> None:
    """The bold words at the upper left, made smaller where they are wider than `room` inches."""
    wide, high = figure.get_size_inches()
    size = fitting(title, room * POINT, TEXT + 0.5, "bold") or LEAST
    figure.text(
        0.02 / wide, 1 - BAR / high, cut(title, "", room * POINT, size), size=size, weight="bold", va="center_baseline"
    )


def draw_scale(
    figure: PaperFigure,
    scale: Scale,
    title: str,
    right: float,
    *,
    mark: float | None = None,
    mark_name: str = "",
    signed: bool = False,
) -> None:
    """The head of a grid: what the colour means at the left, the colour bar up to `right`, a triangle at chance level."""
    length = min(1.7, 0.36 * right)
    draw_title(figure, title, right - length - 0.25)
    axes = figure.inches(right - length - 0.1, BAR - 0.04, length, 0.08, xlim=(scale.low, scale.high), ylim=(0, 1))
    steps = np.linspace(scale.low, scale.high, 129)
    axes.pcolormesh(steps, [0, 1], scale.rgb((steps[1:] + steps[:-1])[None] / 2), edgecolors="face", linewidth=0.2)
    axes.spines[:].set(visible=True, color=SOFT, linewidth=0.3)
    axes.set_yticks([])
    ticks = nice_ticks(scale.low, scale.high)
    axes.set_xticks(ticks, labels=[tick_text(tick, signed=signed) for tick in ticks], fontsize=TINY)
    axes.tick_params(length=1.5, pad=1)
    if mark is not None and scale.low <= mark <= scale.high:
        axes.plot([mark], [1.3], marker="v", markersize=3.2, color=INK, clip_on=False, markeredgewidth=0)
        share = (mark - scale.low) / (scale.high - scale.low)
        side = "right" if share > 0.75 else "left" if share < 0.25 else "center"
        note(axes, mark_name, (mark, 1.3), (0, 2.5), ha=side, fontsize=LEAST, color=SOFT)


def draw_foot(figure: PaperFigure, text: str) -> None:
    """A line of explanation under the cells."""
    wide, high = figure.get_size_inches()
    room = (wide - 0.06) * POINT
    size = fitting(text, room, TINY) or LEAST
    figure.text(0.02 / wide, 0.06 / high, shortened(text, room + 1, size), size=size, color=SOFT)


def nice_ticks(low: float, high: float) -> list[float]:
    """A few round numbers between two ends."""
    span = high - low
    power = 10.0 ** np.floor(np.log10(span))
    for step in (power * factor for factor in (5, 2.5, 2, 1, 0.5)):
        first = np.ceil(low / step - 1e-9)
        ticks = step * np.arange(first, np.floor(high / step + 1e-9) + 1)
        if len(ticks) >= 3:
            break
    return [float(round(tick, 10)) + 0.0 for tick in ticks]


def tick_text(value: float, *, signed: bool = False) -> str:
    return (f"{value:+g}" if signed and value else f"{value:g}").replace("-", "−")


def number(value: float, *, signed: bool = False) -> str:
    """A number short enough for a cell: two decimals under 10, fewer above; a dash where undefined."""
    if not np.isfinite(value):
        return "–"
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    text = f"{value:+.{decimals}f}" if signed else f"{value:.{decimals}f}"
    zero = f"{0:.{decimals}f}"
    return zero if text.lstrip("+-") == zero else text.replace("-", "−")


def texts_of(values: np.ndarray, show: Callable[[float], str] = number) -> np.ndarray:
    """The text of every number, object array."""
    texts = np.empty(values.shape, dtype=object)
    for place in np.ndindex(values.shape):
        texts[place] = show(float(values[place]))
    return texts


def number_line(cells: Cells, texts: np.ndarray, lines: int = 1, bold: np.ndarray | None = None) -> list[Line]:
    """The line of numbers, in one size; nothing where the cells are too small for type that can be read."""
    size = cells.size_for(texts, lines, "bold" if bold is not None and bold.any() else "normal")
    weight = np.where(np.zeros(texts.shape, bool) if bold is None else bold, "bold", "normal")
    return [] if size is None else [Line(texts, size, weight)]


def cut(text: str, end: str, wide: float, size: float) -> str:
    """Text and end in bold, the text cut with an ellipsis where both together are wider than `wide` points."""
    if text_width(text + end, size, "bold") <= wide + 0.5:
        return text + end
    while text and text_width(text + "…" + end, size, "bold") > wide:
        text = text[:-1]
    return text.rstrip() + "…" + end
