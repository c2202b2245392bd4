"""Figures for papers, drawn from a saved study alone: `figures.atlas(study).savefig("atlas.pdf")`.

Each function returns a `PaperFigure`: a `matplotlib.figure.Figure` that also has `.caption` (what is shown, with counts, baseline or chance
level, and unit), `.alt` (a text for readers who cannot see it) and `.table` (a pandas DataFrame of every number drawn). `width` is `single`
(3.3 in) or `double` (7 in). Fonts are embedded, scales read without colour vision, and words in any script are drawn in an installed font
that has them; where none has, a warning says so and the character's code is drawn. A part that the study lacks raises `InputError`, which
says what to run. pyplot is not used, and no global setting is changed.

>>> from attnprobe import figures, open_study                                       # doctest: +SKIP
>>> drawn = figures.atlas(open_study("study.nc"), "dep:obj", width="single")        # doctest: +SKIP
>>> drawn.savefig("obj.pdf"); print(drawn.caption); drawn.table.to_csv("obj.csv")   # doctest: +SKIP
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from attnprobe.errors import EnvironmentFailure, InputError, explain
from attnprobe.records import Study
from attnprobe.report._figure_atlas import atlas
from attnprobe.report._figure_bars import relation_bars
from attnprobe.report._figure_clusters import cluster_map
from attnprobe.report._figure_compared import comparison, probe_grid
from attnprobe.report._figure_curves import learning_curve
from attnprobe.report._figure_distances import distance_histograms
from attnprobe.report._figure_layers import entropy_by_layer
from attnprobe.report._figure_paper import PaperFigure, column
from attnprobe.report._figure_pattern import heat_map
from attnprobe.report._figure_profile import head_profile
from attnprobe.report._figure_values import table_of

__all__ = [
    "PaperFigure",
    "atlas",
    "cluster_map",
    "comparison",
    "distance_histograms",
    "entropy_by_layer",
    "head_profile",
    "heat_map",
    "learning_curve",
    "probe_grid",
    "relation_bars",
    "save",
    "save_all",
]
Planned = tuple[str, Callable[..., PaperFigure]]
MOST_HEADS = 6
"""Heads that `save_all` draws one by one unless it is told which."""
INDEX = "figures.txt"
"""File with every caption, and with what was left out and why."""


def save_all(
    study: Study,
    folder: str | os.PathLike[str],
    *,
    width: str = "double",
    heads: Iterable[tuple[int, int]] | None = None,
) -> list[Path]:
    """Write every figure that the study has the parts for: `NAME.svg`, `NAME.pdf`, `NAME.csv` (the numbers) and `NAME.txt` (caption, alt text).

    `heads` are drawn one by one, profile and pattern; by default those that beat the baseline of a relation, the greatest gain first, six
    at most. `figures.txt` lists the captions, and what was left out and why. Returns the paths written.
    """
    column(width)
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(explain("cannot write the figures", where=str(folder), expected="a folder", got="a file"))
    written: list[Path] = []
    told, left_out = [], []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for what, draw in _plan(study, width, heads):
            try:
                drawn = draw()
            except InputError as error:
                left_out.append(f"{what}: {error}")
                continue
            written += save(drawn, folder)
            told.append(f"{drawn.name}\n{drawn.caption}\n")
        missing = ["Left out:", *left_out] if left_out else []
        (folder / INDEX).write_text("\n".join([*told, *missing]) + "\n", encoding="utf-8")
    except OSError as error:
        if isinstance(error, EnvironmentFailure):
            raise
        remedy = "Check the folder and the free space"
        raise EnvironmentFailure(
            explain("cannot write the figures", where=str(folder), got=str(error), remedy=remedy)
        ) from error
    return [*written, folder / INDEX]


def save(drawn: PaperFigure, folder: Path) -> list[Path]:
    """One figure as SVG and PDF, with its numbers as CSV and its caption as text."""
    paths = [folder / f"{drawn.name}{suffix}" for suffix in (".svg", ".pdf", ".csv", ".txt")]
    for path in paths[:2]:
        drawn.savefig(path)
    drawn.table.to_csv(paths[2], index=False)
    paths[3].write_text(f"{drawn.caption}\n\nAlt text: {drawn.alt}\n", encoding="utf-8")
    return paths


def _plan(study: Study, width: str, heads: Iterable[tuple[int, int]] | None) -> list[Planned]:
    """What to draw, in order, each with a name for the list of what was left out."""
    plan: list[Planned] = [("atlas of labels", partial(atlas, study, "labels"))]
    plan += [(f"atlas of {name}", partial(atlas, study, name, **at)) for name, at in _metrics(study)]
    whole = (entropy_by_layer, distance_histograms, relation_bars, cluster_map)
    plan += [(draw.__name__.replace("_", " "), partial(draw, study)) for draw in whole]
    tasks = [str(task) for task in table_of(study, "probes")["task"].values] if "probes" in study else [None]
    plan += [("probe grid", partial(probe_grid, study, task)) for task in tasks]
    plan += [("learning curve", partial(learning_curve, study, task)) for task in tasks]
    for layer, head in _heads(study) if heads is None else heads:
        plan.append((f"head L{layer}H{head}", partial(head_profile, study, layer, head)))
        plan.append((f"pattern of L{layer}H{head}", partial(heat_map, study, layer, head)))
    return [(what, partial(draw, width=width)) for what, draw in plan]


def _metrics(study: Study) -> list[tuple[str, dict[str, Any]]]:
    """Metrics with one number for each head, and attention to each special target; entropy alone where nothing was measured."""
    if "metrics" not in study:
        return [("entropy", {})]
    metrics = table_of(study, "metrics")
    whole = [
        str(name)
        for name in metrics
        if f"{name}_count" in metrics and set(metrics[name].dims) - {"sinks"} == {"layer", "head"}
    ]
    targets = [str(target) for target in metrics["target"].values] if "special_mass" in metrics else []
    return [*((name, {}) for name in whole), *(("special_mass", {"target": target}) for target in targets)]


def _heads(study: Study) -> list[tuple[int, int]]:
    """Heads that beat the baseline of a relation, the greatest gain first."""
    if "best" not in study:
        return []
    best = table_of(study, "best").to_dataframe()
    best = best[best["p_adjusted"] < 0.05].sort_values("difference", ascending=False)
    return list(dict.fromkeys((int(row.layer), int(row.head)) for row in best.itertuples()))[:MOST_HEADS]
