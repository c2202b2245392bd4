"""The head atlas: every head of a model in one grid, by a metric, by a relation or by label."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from attnprobe.errors import InputError, explain
from attnprobe.records import Study
from attnprobe.report._figure_captions import (
    COUNTED_FROM,
    against,
    checked,
    counts,
    extremes,
    intervals,
    sample,
    size_of,
)
from attnprobe.report._figure_colours import EMPTY, GREEN, ORANGE, PURPLE, SKY, SOFT, YELLOW, Scale, tint
from attnprobe.report._figure_grid import (
    BAR,
    Cells,
    Line,
    cut,
    draw_cells,
    draw_foot,
    draw_scale,
    number,
    number_line,
    texts_of,
    write_cells,
    write_corners,
)
from attnprobe.report._figure_labels import HeadLabels, labels_of
from attnprobe.report._figure_paper import LEAST, POINT, SMALL, PaperFigure, paper, text_width
from attnprobe.report._figure_values import HeadValues, layer_names, part, values_of

FAMILIES = {"position": SKY, "sink": ORANGE, "broad": YELLOW, "syntax": GREEN, "semantics": PURPLE}
CODES = {"position": "P", "sink": "K", "broad": "B", "syntax": "S", "semantics": "M"}
"""What stands in a cell too narrow for the label itself."""
NARROW = 22.0
"""Width of a cell in points under which letters stand for labels."""
ARROWS = "↑ from dependent to head   ↓ word that looks hardest at the dependent   +2  two further"


def atlas(
    study: Study, by: str = "entropy", *, labels: bool = True, width: str = "double", **where: Any
) -> PaperFigure:
    """Every head of a model in one grid, layers down, heads across.

    `by` is a metric (`entropy`), a relation (`dep:obj`: accuracy of every head on the `report` split) or `labels` (colour tells the family
    of a head's first label). Cells show the number and, with `labels=True` and where the study has them, the label. `where` chooses a
    coordinate of a metric's or relation's further dimension: `atlas(study, "special_mass", target="cls")`.
    """
    if by == "labels":
        return _label_atlas(study, width, where)
    values = values_of(study, by, where, "the atlas")
    found = labels_of(study, "the atlas") if labels and "labels" in study and values.passed is None else None
    texts = texts_of(values.value)
    lines = 1 if found is None else 2
    cells = Cells.of(values.shape, width, lines=lines, names=values.layers, bottom=0.04 if found is None else 0.22)
    with paper(f"atlas-{values.name}", width, cells.figure_height, [values.heading, *_words(found)]) as figure:
        scale = Scale.over(values.value, values.chance)
        rgb = scale.rgb(values.value)
        axes = draw_cells(figure, cells, rgb, values.layers)
        numbers = number_line(cells, texts, lines, values.passed)
        write_cells(axes, cells, rgb, [*_label_line(figure, found, cells, dash=False), *numbers])
        _count_further(axes, cells, rgb, found)
        mark_name = "baseline" if values.passed is not None else "uniform"
        draw_scale(
            figure, scale, figure.fonts.shown(values.heading), cells.right, mark=values.chance, mark_name=mark_name
        )
        if found is not None:
            draw_foot(figure, _key(found, cells))
        figure.tell(
            caption=_caption(study, values, found, bool(numbers)),
            alt=f"Grid of {size_of(values)} coloured by {values.heading}. {extremes(values)}",
            table=values.frame() if found is None else values.frame().merge(_label_frame(found), on=["layer", "head"]),
        )
    return figure


def _words(found: np.ndarray | None) -> list[str]:
    return ["↑↓"] if found is None else ["↑↓", *(label.short for head in found.ravel() for label in head.labels)]


def _label_line(figure: PaperFigure, found: np.ndarray | None, cells: Cells, *, dash: bool = True) -> list[Line]:
    """The first label of each head, or the letters of its families where cells are narrow; nothing where not even those fit."""
    wide, high = cells.points
    if found is None or high < 2 * LEAST * 1.1 or wide < 2 * LEAST * 0.75:
        return []
    narrow = wide < NARROW
    labelled = [[_cell_label(figure, head, narrow=narrow) for head in row] for row in found]
    texts = np.array(labelled, dtype=object)
    size = cells.size_for(texts, 2, "bold") or LEAST
    for place in np.ndindex(found.shape):
        text = str(texts[place])
        end = text[-1] if text[-1:] in ("↑", "↓") else ""
        texts[place] = cut(text.removesuffix(end), end, wide, size) if text else "–" if dash else ""
    return [Line(texts, size, np.where(texts == "–", "normal", "bold"))]


def _cell_label(figure: PaperFigure, head: HeadLabels, *, narrow: bool) -> str:
    if not head.labels:
        return ""
    if narrow:
        return "".join(dict.fromkeys(CODES.get(label.family, "?") for label in head.labels))[:2]
    return figure.fonts.shown(head.labels[0].short)


def _count_further(axes: Axes, cells: Cells, rgb: np.ndarray, found: np.ndarray | None) -> None:
    """How many labels a head has besides the one shown, in a corner of its cell."""
    if found is not None and cells.points[0] >= NARROW and cells.points[1] > 2 * LEAST:
        further = [[len(head.labels) - 1 for head in row] for row in found]
        write_corners(axes, rgb, np.array([[f"+{n}" if n > 0 else "" for n in row] for row in further], dtype=object))


def _key(found: np.ndarray, cells: Cells) -> str:
    """What the label texts mean, for the foot of the figure."""
    if cells.points[0] >= NARROW:
        return ARROWS
    families = {label.family for head in found.ravel() for label in head.labels}
    return "     ".join(f"{code}  {family}" for family, code in CODES.items() if family in families)


def _label_frame(found: np.ndarray) -> pd.DataFrame:
    rows = []
    for (layer, head), here in np.ndenumerate(found):
        first = here.labels[0] if here.labels else None
        row: dict[str, Any] = {"layer": layer, "head": head, "labels": "; ".join(label.text for label in here.labels)}
        row["family"] = first.family if first else "unlabelled"
        for name in ("score", "low", "high", "n", "against", "gain"):
            row[f"label_{name}"] = getattr(first, name) if first else np.nan
        row["nearest_miss"] = here.nearest.text if here.nearest else ""
        rows.append(row)
    return pd.DataFrame(rows)


def _caption(study: Study, values: HeadValues, found: np.ndarray | None, numbered: bool) -> str:
    parts = [f"{values.heading} of each head of {sample(study)}; {counts(values)}.", against(values)]
    if found is not None:
        parts.append(
            "Text in a cell: the label that the head earned on the report split (a relation with ↑ where the dependent attends to its head, "
            "↓ where the head attends to its dependent; +n: n further labels; no text: no label)."
        )
    if values.passed is not None:
        parts.append(
            f"Bold, {int(values.passed.sum())} of {values.passed.size} heads: beats the baseline (paired test, p < .05 after Holm)."
        )
    if not numbered:
        parts.append("The numbers are in the table.")
    if values.low is not None:
        parts.append(f"The table has {intervals(study)}.")
    return " ".join([*parts, checked(study), COUNTED_FROM])


def _label_atlas(study: Study, width: str, where: dict[str, Any]) -> PaperFigure:
    if where:
        raise InputError(explain("cannot draw the atlas by labels", expected="no coordinates", got=", ".join(where)))
    found = labels_of(study, "the atlas of labels")
    names = layer_names(part(study, "labels", "the atlas of labels"))
    families = np.array([[head.labels[0].family if head.labels else "" for head in row] for row in found])
    cells = Cells.of(found.shape, width, lines=2, names=names, bottom=0.22)
    scores = np.array(
        [[number(head.labels[0].score) if head.labels else "" for head in row] for row in found], dtype=object
    )
    with paper("atlas-labels", width, cells.figure_height, _words(found)) as figure:
        rgb = np.array(
            [[tint(FAMILIES[name]) if name in FAMILIES else tint(EMPTY, 1) for name in row] for row in families]
        )
        axes = draw_cells(figure, cells, rgb, names)
        _second_families(axes, found)
        write_cells(axes, cells, rgb, [*_label_line(figure, found, cells), *number_line(cells, scores, 2)])
        _count_further(axes, cells, rgb, found)
        _family_key(figure, families, cells)
        draw_foot(
            figure, (ARROWS if cells.points[0] >= NARROW else "corner: a label of a second family") + "     –  no label"
        )
        table = _label_frame(found)
        figure.tell(
            caption=_label_caption(study, table),
            alt=f"Grid of {found.shape[0]} layers by {found.shape[1]} heads coloured by label. Heads with each label first: "
            + ", ".join(f"{count} {family}" for family, count in table["family"].value_counts().items())
            + ".",
            table=table,
        )
    return figure


def _label_caption(study: Study, table: pd.DataFrame) -> str:
    n = table["label_n"].dropna()
    counted = (
        f"{int(n.min()):,} to {int(n.max()):,} rows or cases behind a label" if len(n) else "no head earned a label"
    )
    return (
        f"Labels of the heads of {sample(study)}: {len(n)} of {len(table)} heads have one; {counted}. Colour: family of the first label; "
        "corner: a label of a second family; ↑: the dependent attends to its head; ↓: the head attends to its dependent; "
        "+n: n further labels; –: none. Number: share of attention or of rows on the target for position and sink, normalised entropy for broad, "
        "accuracy (share of cases) for a relation, all on the report split. "
        f"Thresholds, baselines and {intervals(study)} are in the table. {checked(study)} {COUNTED_FROM}"
    )


def _second_families(axes: Axes, found: np.ndarray) -> None:
    """A corner in the colour of a second family."""
    for (layer, head), here in np.ndenumerate(found):
        others = [label.family for label in here.labels if label.family != here.labels[0].family]
        if others:
            x, y, side = head + 0.46, layer - 0.46, 0.17
            axes.fill([x - side, x, x], [y, y, y + 1.5 * side], color=FAMILIES.get(others[0], SOFT), linewidth=0)


def _family_key(figure: PaperFigure, families: np.ndarray, cells: Cells) -> None:
    """Above the cells: each family's colour, letter where cells carry letters, name and count."""
    wide, high = figure.get_size_inches()
    letters = CODES if cells.points[0] < NARROW else {}
    entries = [(name, tint(colour), int((families == name).sum())) for name, colour in FAMILIES.items()]
    entries = [entry for entry in (*entries, ("unlabelled", tint(EMPTY, 1), int((families == "").sum()))) if entry[2]]
    texts = [f"{letters.get(name, '')} {name} {count}".strip() for name, _, count in entries]
    if sum(map(_key_length, texts)) * LEAST / SMALL > wide - 0.03:  # without the counts, which the table has
        texts = [text.rsplit(" ", 1)[0] for text in texts]
    lengths = [_key_length(text) for text in texts]
    squeeze = min(1.0, (wide - 0.03) / sum(lengths))
    left = 0.03
    for (_, colour, _), text, length in zip(entries, texts, lengths, strict=True):
        place = (left / wide, 1 - (BAR + 0.045) / high)
        figure.add_artist(
            Rectangle(place, 0.09 / wide, 0.09 / high, transform=figure.transFigure, fc=colour, ec=SOFT, lw=0.4)
        )
        figure.text((left + 0.13) / wide, 1 - BAR / high, text, size=SMALL * squeeze, va="center_baseline")
        left += length * squeeze


def _key_length(text: str) -> float:
    """Inches that one entry of the key takes."""
    return text_width(text, SMALL) / POINT + 0.27
