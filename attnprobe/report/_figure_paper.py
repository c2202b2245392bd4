"""The sheet that every figure is drawn on: column widths, type sizes, colours, and a `Figure` that knows its caption and its data.

matplotlib reads much of its style while it draws and saves, so the style is put on for building, drawing and saving alike, and
whatever the user has set elsewhere is left as it was.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib import rc_context, rcParamsDefault
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import TextToPath
from matplotlib.transforms import Affine2D, Bbox

from attnprobe.errors import EnvironmentFailure, InputError, explain
from attnprobe.report._figure_colours import INK, RULE, SOFT
from attnprobe.report._figure_fonts import Fonts, fonts_for

WIDTHS = {"single": 3.3, "double": 7.0}
"""Column widths of most journals and proceedings, in inches."""
TALLEST = 9.0
"""Text height of a page, in inches."""
POINT = 72
"""Points to an inch."""
TEXT, SMALL, TINY, LEAST = 7.0, 6.2, 5.6, 5.0
"""Type sizes in points; nothing is set smaller than the last."""

_KEPT = ("backend", "interactive", "toolbar", "webagg", "keymap", "tk", "docstring", "savefig.directory", "animation")
"""Settings that belong to the user's session, not to how a figure looks."""
_STYLE: dict[str, Any] = {
    **{key: INK for key in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")},
    **{"axes.edgecolor": SOFT, "xtick.color": SOFT, "ytick.color": SOFT, "axes.linewidth": 0.5, "grid.color": RULE},
    **{f"{axis}tick.{part}": value for axis in "xy" for part, value in (("major.width", 0.5), ("major.size", 2.0))},
    **{f"{axis}tick.{part}": value for axis in "xy" for part, value in (("labelsize", SMALL), ("major.pad", 2.0))},
    **{
        "font.size": TEXT,
        "axes.labelsize": TEXT,
        "axes.titlesize": TEXT,
        "legend.fontsize": SMALL,
        "axes.labelpad": 2.5,
    },
    **{"axes.titlelocation": "left", "axes.titlepad": 4.0, "axes.titleweight": "bold", "hatch.linewidth": 0.4},
    **{"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "grid.linewidth": 0.4},
    **{"text.parse_math": False, "axes.axisbelow": True, "lines.linewidth": 1.0, "savefig.dpi": 300, "figure.dpi": 150},
    **{"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": "attnprobe"},
    **{"text.hinting": "no_hinting"},
}
"""Fonts are embedded whole letters (TrueType) in PDF and PS, outlines in SVG: no viewer needs to have them installed.
Unhinted, letters are as wide in pixels as they are in print: hinted ones were up to 7 % wider, and left the sheet.
"""


@contextmanager
def style(fonts: Fonts) -> Iterator[None]:
    """The defaults of matplotlib with ours over them, whatever the user has set; put back afterwards."""
    settings: dict[Any, Any] = {key: rcParamsDefault[key] for key in rcParamsDefault if not key.startswith(_KEPT)}
    with rc_context(settings | _STYLE | {"font.family": list(fonts.families)}):
        yield


class PaperFigure(Figure):
    """A matplotlib `Figure` with its caption, its alternative text and the numbers behind it.

    A subclass, because matplotlib reads fonts and embedding from global settings when it draws and saves: so `.savefig("a.pdf")` is right
    wherever it is called. PNG, SVG and PDF carry the alternative text in their metadata and no date, so equal data give equal files.
    """

    name: str
    """Short name, usable as a file name: `atlas-entropy`."""
    caption: str
    """What is shown, with counts, baseline or chance level, and unit: text to put under the figure."""
    alt: str
    """The figure in a sentence or two, for readers who cannot see it."""
    table: pd.DataFrame
    """Every number drawn, one row for each mark."""

    page: Bbox | None
    """What is saved of the sheet, in inches; None: the sheet as it is."""

    def __init__(self, name: str, width: str, height: float, fonts: Fonts, **options: Any) -> None:
        super().__init__(figsize=(column(width), height), **options)
        self.name, self.fonts = name, fonts
        self.caption, self.alt, self.table, self.page = "", "", pd.DataFrame(), None

    def tell(self, *, caption: str, alt: str, table: pd.DataFrame) -> None:
        """Put caption, alternative text and data on the figure."""
        self.caption, self.alt, self.table = caption, alt, table

    def draw(self, renderer: Any) -> None:
        with style(self.fonts):
            super().draw(renderer)

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save as matplotlib does, fonts embedded, with title and alternative text in the file."""
        kind = options.get("format") or (Path(fname).suffix[1:] if isinstance(fname, (str, os.PathLike)) else "png")
        options.setdefault("metadata", self._metadata(str(kind).lower()))
        options.setdefault("bbox_inches", self.page)
        with style(self.fonts):
            try:
                super().savefig(fname, **options)
            except OSError as error:
                remedy = "Check the folder and the free space"
                raise EnvironmentFailure(
                    explain("cannot write the figure", where=str(fname), got=str(error), remedy=remedy)
                ) from error

    def inches(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """Axes at a place given in inches from the upper left corner."""
        w, h = self.get_size_inches()
        return self.add_axes((left / w, 1 - (top + height) / h, width / w, height / h), **options)

    def as_card(self, margin: float = 0.14) -> PaperFigure:
        """Set the figure on a white card with round corners, for pages with a light or a dark background; returns the figure."""
        wide, high = self.get_size_inches()
        edge = margin - 0.01
        round_ = f"round,pad={edge},rounding_size={edge}"
        card = FancyBboxPatch((0, 0), wide, high, boxstyle=round_, fc="white", ec=RULE, lw=0.6)
        in_inches = Affine2D().scale(1 / wide, 1 / high) + self.transFigure
        card.set(transform=in_inches, zorder=-10, clip_on=False)
        self.add_artist(card)
        self.patch.set_visible(False)
        self.page = Bbox.from_extents(-margin, -margin, wide + margin, high + margin)
        return self

    def _metadata(self, kind: str) -> dict[str, Any]:
        if kind in ("svg", "svgz"):
            return {"Title": self.name, "Description": self.alt, "Creator": "attnprobe", "Date": None}
        if kind == "pdf":
            return {"Title": self.name, "Subject": self.alt, "Creator": "attnprobe", "CreationDate": None}
        return {"Title": self.name, "Description": self.alt, "Software": "attnprobe"} if kind == "png" else {}

    def _repr_png_(self) -> bytes:
        """What a notebook shows."""
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=150)
        return buffer.getvalue()


@contextmanager
def paper(name: str, width: str, height: float, words: Iterable[str] = (), **options: Any) -> Iterator[PaperFigure]:
    """An empty figure to be drawn on inside the `with`; `words` are the texts in it that may be in any script."""
    fonts = fonts_for(words)
    with style(fonts):
        yield PaperFigure(name, width, height, fonts, **options)


def column(width: str) -> float:
    """Width of a column in inches."""
    if width not in WIDTHS:
        raise InputError(explain("unknown figure width", expected=" or ".join(WIDTHS), got=repr(width)))
    return WIDTHS[width]


def note(axes: Axes, text: str, at: tuple[Any, Any], offset: tuple[float, float] = (0, 0), **options: Any) -> None:
    """Text at a distance in points from a place, which may lie outside the axes."""
    axes.annotate(text, at, offset, textcoords="offset points", annotation_clip=False, **options)


def text_width(text: str, size: float, weight: str = "normal") -> float:
    """Width of one line in points, in the fonts of the style that is on."""
    prop = FontProperties(size=size, weight=weight)
    return float(TextToPath().get_text_width_height_descent(text, prop, ismath=False)[0])


def fitting(text: str, width: float, largest: float, weight: str = "normal") -> float | None:
    """The size up to `largest` at which `text` is at most `width` points wide; None where it would fall under the least size."""
    wide = text_width(text, largest, weight)
    size = largest if wide <= width else largest * width / wide
    return size if size >= LEAST - 0.05 else None


def shortened(text: str, width: float, size: float) -> str:
    """The text, its end replaced by an ellipsis where it is wider than `width` points."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"
