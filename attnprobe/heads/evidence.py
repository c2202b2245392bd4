"""What a study can be asked to measure besides its one pass: importance, random-weights controls, causal checks of its labels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import xarray as xr

from attnprobe.heads import _watch
from attnprobe.heads.causal import add_causal_checks
from attnprobe.heads.controls import Tables, add_control_scores, control_table
from attnprobe.heads.importance import importance_table
from attnprobe.models.model import Model
from attnprobe.text.align import Encoded


@dataclass(frozen=True)
class Evidence:
    """What is asked for."""

    importance: int = 0
    """Sentences to measure importance on; 0: none."""
    controls: bool = False
    causal: bool = False

    def tables(
        self,
        model: Model,
        labels: xr.Dataset,
        items: Callable[[], Iterable[Encoded]],
        measure: Callable[[Model], Tables],
        *,
        cluster: str,
        seed: int,
    ) -> dict[str, xr.Dataset]:
        """The groups to add to a study, its `labels` with their new evidence among them.

        `items` reads the corpus once more; `measure` repeats the study's pass with another model.
        """
        groups: dict[str, xr.Dataset] = {}
        if self.importance:
            chosen = _watch.sample(items(), self.importance, seed)
            groups["importance"] = importance_table(model, chosen, cluster=cluster, seed=seed)
        if self.controls:
            groups["controls"] = control_table(model, measure, seed=seed)
            labels = groups["labels"] = add_control_scores(labels, groups["controls"])
        if self.causal:
            groups["labels"] = add_causal_checks(model, labels, items(), cluster=cluster, seed=seed)
        return groups
