"""Name -> entry, for head metrics, relations and probe tasks: the three things users add to.

Only the tables and the decorators live here; the functions that are registered live in `heads/metrics.py`,
`heads/relations.py` and `probes/tasks.py`, or in the user's own module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from attnprobe.errors import InputError, explain, near_names


class Named(Protocol):
    """What a registry needs of an entry."""

    @property
    def name(self) -> str: ...


Entry = TypeVar("Entry", bound=Named)


class Registry(Generic[Entry]):
    """Entries by name, in the order they were added. A duplicate raises; an unknown name lists the near ones."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, Entry] = {}

    def add(self, entry: Entry) -> None:
        if entry.name in self._entries:
            raise InputError(
                explain(
                    f"the {self.kind} {entry.name!r} is registered already",
                    where=location(self._entries[entry.name]),
                    remedy="Choose another name, or remove the first with `.remove(name)`",
                )
            )
        self._entries[entry.name] = entry

    def remove(self, name: str) -> None:
        """Forget an entry, so that a notebook cell that defines it can be run again."""
        self[name]
        del self._entries[name]

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries:
            raise InputError(f"unknown {self.kind} {name!r}; {near_names(name, self._entries)}.")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def names(self) -> list[str]:
        return list(self._entries)


@dataclass(frozen=True)
class HeadMetric:
    """A number per attention row, averaged over a corpus for each head."""

    name: str
    function: Callable[..., Any]
    """`Rows -> values [batch head query]`, or `[batch head query extra]`; NaN where undefined."""
    unit: str
    limits: tuple[float | None, float | None]
    """Least and greatest possible value; None where there is none."""
    source: str
    """Where the definition comes from."""
    extra: tuple[str, tuple[Any, ...]] | None = None
    """Name and coordinates of the extra dimension, such as ("offset", (-10, ..., 10))."""
    pooled: Callable[..., Any] | None = None
    """`Rows -> (total, n)`: what `function` gives, summed over the rows that are kept, and how many of them are defined, [batch head *extra]
    (`n` may be the same for all heads, [batch 1 *extra]). Only where that is cheaper than pooling the values; None: they are pooled."""

    def __call__(self, rows: Any) -> Any:
        return self.function(rows)


@dataclass(frozen=True)
class RelationFamily:
    """A function that reads a sentence and gives the relations it holds, named `family` or `family:label`."""

    name: str
    function: Callable[..., Any]
    """`Sentence -> Relation`, or several of them."""
    kind: str
    """position, syntax or semantics: the family of label that a head may earn with it."""
    source: str
    labels: tuple[str, ...] = ()
    """The labels that can follow the colon, where they are a closed set."""


@dataclass(frozen=True)
class ProbeTask:
    """A labelling of words (or word pairs) that a probe is trained to read off a head's vectors."""

    name: str
    function: Callable[..., Any]
    """`Sentence -> labels`, one per word (None: not labelled), or one per pair."""
    level: str
    """word or pair."""
    kind: str
    """position, syntax or semantics."""
    source: str


METRICS: Registry[HeadMetric] = Registry("head metric")
RELATIONS: Registry[RelationFamily] = Registry("relation")
PROBE_TASKS: Registry[ProbeTask] = Registry("probe task")


def head_metric(
    *,
    unit: str,
    limits: tuple[float | None, float | None],
    source: str,
    extra: tuple[str, tuple[Any, ...]] | None = None,
    pooled: Callable[..., Any] | None = None,
    name: str | None = None,
) -> Callable[[Callable[..., Any]], HeadMetric]:
    """Register a function `Rows -> [batch head query *extra]` as a head metric under its own name.

    The result takes part in every study by `run(..., metrics=[name])`. See `HeadMetric` for the fields.
    """

    def register(function: Callable[..., Any]) -> HeadMetric:
        entry = HeadMetric(name or function.__name__, function, unit, limits, source, extra, pooled)
        METRICS.add(entry)
        return entry

    return register


def relation(
    *, kind: str, source: str, labels: tuple[str, ...] = (), name: str | None = None
) -> Callable[[Callable[..., Any]], RelationFamily]:
    """Register a function `Sentence -> Relation` (or several) as a relation family under its own name."""
    if kind not in KINDS:
        raise InputError(explain("unknown kind of relation", expected=" | ".join(KINDS), got=repr(kind)))

    def register(function: Callable[..., Any]) -> RelationFamily:
        entry = RelationFamily(name or function.__name__, function, kind, source, labels)
        RELATIONS.add(entry)
        return entry

    return register


def probe_task(
    *, level: str, kind: str, source: str, name: str | None = None
) -> Callable[[Callable[..., Any]], ProbeTask]:
    """Register a function `Sentence -> labels` as a probe task under its own name."""
    if level not in ("word", "pair"):
        raise InputError(explain("unknown level of probe task", expected="word | pair", got=repr(level)))
    if kind not in KINDS:
        raise InputError(explain("unknown kind of probe task", expected=" | ".join(KINDS), got=repr(kind)))

    def register(function: Callable[..., Any]) -> ProbeTask:
        entry = ProbeTask(name or function.__name__, function, level, kind, source)
        PROBE_TASKS.add(entry)
        return entry

    return register


KINDS = ("position", "syntax", "semantics")


def location(entry: Any) -> str:
    """File and line where an entry's function, or a function itself, is defined, as `file:line`; "?" where Python cannot tell."""
    function = getattr(entry, "function", entry)
    try:
        return f"{inspect.getsourcefile(function)}:{inspect.getsourcelines(function)[1]}"
    except (OSError, TypeError):
        return "?"
