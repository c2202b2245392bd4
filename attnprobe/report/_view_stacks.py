"""What viewers draw, in order: one stack of attention modules per kind, over named axes. `_view_joining` makes them from a `PatternView`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

KINDS = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Axis:
    """The positions along one side of a pattern."""

    name: str
    """source or target."""
    tokens: tuple[str, ...]
    word_index: np.ndarray
    """Word of each position, int [position]; -1 for special tokens."""
    words: tuple[str, ...]
    special: np.ndarray
    """bool [position]"""
    segments: tuple[int, ...] = ()
    """Segment of each position; empty where the input is one text."""
    unnamed: int = 0
    """How many positions at the end were generated, with a text that the capture does not hold."""
    start: int = 0
    """Place of the first position kept in the whole sequence."""

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, kept: slice) -> Axis:
        """Some of the positions; `start` remembers where they were."""
        return replace(
            self,
            tokens=self.tokens[kept],
            word_index=self.word_index[kept],
            special=self.special[kept],
            segments=self.segments[kept],
            unnamed=max(0, kept.stop - max(kept.start, len(self) - self.unnamed)),
            start=self.start + kept.start,
        )


@dataclass(frozen=True)
class Neurons:
    """What a module's weights are computed from: softmax(scale * q.k + added)."""

    q: np.ndarray
    """[head query dim]"""
    k: np.ndarray
    """[head key dim]"""
    added: np.ndarray
    """Mask and position bias, [head query key]; minus infinity hides the key."""
    scale: float

    @property
    def size(self) -> int:
        """Numbers held; what is added counts once where it is the same for all heads."""
        same = bool((self.added == self.added[:1]).all())
        return self.q.size + self.k.size + (self.added[0] if same else self.added).size


@dataclass(frozen=True)
class Module:
    """One attention module with all its generation steps."""

    layer: int
    """Place in execution order: the L of `L2H8`."""
    index: int
    """Place among the modules of its kind."""
    source: str
    """Where the pattern comes from: `model` or `recomputed`."""
    heads: tuple[int, ...]
    """Numbers of the heads held."""
    pattern: np.ndarray
    """[head query key]; NaN rows are queries that see nothing."""
    total: np.ndarray
    """Sum of each whole row, [head query]: 1, or less where a learned sink takes the rest; stays when keys are cut away."""
    neurons: Neurons | None = None

    def with_heads(self, numbers: Sequence[int]) -> Module:
        """Only these heads, by number."""
        places = [self.heads.index(number) for number in numbers]
        inside = self.neurons
        if inside is not None:
            inside = replace(inside, q=inside.q[places], k=inside.k[places], added=inside.added[places])
        return replace(
            self, heads=tuple(numbers), pattern=self.pattern[places], total=self.total[places], neurons=inside
        )

    def cut(self, rows: slice, columns: slice) -> Module:
        """Only these queries and keys; `total` still says what the whole rows held."""
        inside = self.neurons
        if inside is not None:
            inside = replace(inside, q=inside.q[:, rows], k=inside.k[:, columns], added=inside.added[:, rows, columns])
        return replace(self, pattern=self.pattern[:, rows, columns], total=self.total[:, rows], neurons=inside)


@dataclass(frozen=True)
class Stack:
    """All attention modules of one kind."""

    kind: str
    query: Axis
    key: Axis
    steps: np.ndarray
    """Generation step in which each query was computed, int [query]."""
    modules: tuple[Module, ...]

    @property
    def cells(self) -> int:
        """Weights held."""
        return sum(len(module.heads) for module in self.modules) * len(self.query) * len(self.key)

    @property
    def causal(self) -> bool:
        """Whether no query of a decoder looks at a later key."""
        return self.kind == "decoder" and not any(
            np.triu(np.nan_to_num(module.pattern), k=1).any() for module in self.modules
        )

    def cut(self, window: tuple[int, int]) -> Stack:
        """The stack over a window of its tokens; a sequence that ends before the window keeps its last token."""

        def within(axis: Axis) -> slice:
            return slice(min(window[0], len(axis) - 1), min(window[1], len(axis)))

        rows, columns = within(self.query), within(self.key)
        return replace(
            self,
            query=self.query.cut(rows),
            key=self.key.cut(columns),
            steps=self.steps[rows],
            modules=tuple(module.cut(rows, columns) for module in self.modules),
        )
