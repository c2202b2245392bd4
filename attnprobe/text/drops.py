"""Counting what is left out: every dropped sentence has a reason, and the reason is shown in the report."""

from __future__ import annotations

import json
from collections.abc import Callable

OnDrop = Callable[[str, str], None]
"""Told (reason, where) of each sentence left out; `Drops.add` is one."""


class Drops:
    """Counts sentences left out, by reason; pass `drops.add` wherever an `on_drop` is asked for.

    >>> drops = Drops()
    >>> drops.add("too long", "a.conllu:17")
    >>> drops.counts
    {'too long': 1}
    """

    def __init__(self, examples: int = 5) -> None:
        self.counts: dict[str, int] = {}
        """Reason -> number of sentences."""
        self.examples: dict[str, list[str]] = {}
        """Reason -> where the first few were."""
        self._keep = examples

    def add(self, reason: str, where: str = "") -> None:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        places = self.examples.setdefault(reason, [])
        if where and len(places) < self._keep:
            places.append(where)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def as_json(self) -> str:
        """Reason -> count, as the study file stores it."""
        return json.dumps(dict(sorted(self.counts.items())))
