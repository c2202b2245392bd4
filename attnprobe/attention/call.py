"""What one attention module computed (`AttentionCall`) and a block of its rows (`Rows`).

These two records are the seam between capture and analysis. Nothing here computes; see `forward.py` for that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

T = TypeVar("T")


class Role(IntEnum):
    """What a token is, for metrics that treat kinds of token apart."""

    WORD = 0
    PUNCT = 1
    """A piece of a word made of punctuation only."""
    CLS = 2
    SEP = 3
    SPECIAL = 4
    """Any other special token."""
    PAD = 5


@dataclass(frozen=True)
class Step:
    """One operation on the scores on their way to the pattern, in the model's own order: see `AttentionCall.steps`."""

    name: str
    """multiply, divide, add, floor (the larger of the two), clamp, fill, cast, softmax; fused: add first and then the product, in one."""
    value: Any = None
    """By what: a number, or a tensor [#batch #head #query #key]. Of cast and softmax: the dtype (None: as it is)."""
    where: Tensor | None = None
    """Of fill: which scores get the value, bool, of the same axes."""
    factors: tuple[float, float] = (1.0, 1.0)
    """Of fused: value * factors[0] + product * factors[1]. Of clamp: the limits."""


@dataclass(frozen=True)
class AttentionCall:
    """Everything that entered and left the attention product of one module in one forward pass.

    Tensors are detached and never written to. What a family lacks is None.
    """

    layer: int
    """Place in execution order over all attention modules of the pass, 0-based."""
    kind: str
    """encoder, decoder or cross."""
    index: int
    """Place among the modules of the same kind."""
    step: int
    """Generation step, 0 in an ordinary pass."""
    q: Float[Tensor, "batch head query dim"]
    """Queries as they enter the product (rotary positions and norms applied)."""
    k: Float[Tensor, "batch kv_head key dim"]
    """Keys as they enter the product; fewer heads than `q` where heads share them."""
    v: Float[Tensor, "batch kv_head key value_dim"]
    scale: float
    """What the product is multiplied with, as the model passed it."""
    bias: Float[Tensor, "#batch #head #query key"] | None
    """Everything added to the scaled scores: mask and position bias together, in the form the model's own implementation added it."""
    softcap: float | None
    """Scores become softcap * tanh(scores / softcap) before the bias is added; None: not capped."""
    sinks: Float[Tensor, " head"] | Float[Tensor, "batch head query 1"] | None
    """A score per head (learned), or per query (computed), that takes part in the softmax and is then dropped; rows then sum to
    less than 1."""
    pattern: Float[Tensor, "batch head query key"] | None
    """Weights after the softmax; None where neither reported by the model nor recomputed yet."""
    context: Float[Tensor, "batch head query value_dim"]
    """The model's own pattern @ v, before the output projection."""
    visible: Bool[Tensor, "#batch #head query key"] | None = None
    """Which keys each query may see; None: all of them."""
    implementation: str = "eager"
    """Which attention function the model ran: eager, sdpa, ..."""
    pattern_source: str | None = None
    """`model` or `recomputed`; None while `pattern` is None."""
    module: str = ""
    """Dotted name of the module in its model; shared modules repeat it."""
    steps: tuple[Step, ...] | None = None
    """What the model did between the product q . k and the pattern, for the replay; None: times `scale`, plus `bias`, softmax."""

    @property
    def n_heads(self) -> int:
        return self.q.shape[1]

    @property
    def groups(self) -> int:
        """How many query heads share one key head."""
        return self.q.shape[1] // self.k.shape[1]

    def to(self, *args: object, **kwargs: object) -> AttentionCall:
        """The same call with every floating-point tensor moved or cast, as `Tensor.to`."""
        moved = {
            name: value.to(*args, **kwargs)
            for name in ("q", "k", "v", "bias", "sinks", "pattern", "context")
            if (value := getattr(self, name)) is not None
        }
        if self.q.device != moved["q"].device:
            device = moved["q"].device
            if self.visible is not None:
                moved["visible"] = self.visible.to(device)
            if self.steps is not None:
                moved["steps"] = tuple(_step_on(step, device) for step in self.steps)
        return replace(self, **moved)


def _step_on(step: Step, device: torch.device) -> Step:
    value = step.value.to(device) if isinstance(step.value, Tensor) else step.value
    return replace(step, value=value, where=None if step.where is None else step.where.to(device))


@dataclass(frozen=True)
class Rows:
    """A block of pattern rows with what a metric may need to know of their tokens."""

    pattern: Float[Tensor, "batch head query key"]
    visible: Bool[Tensor, " batch #head query key"]
    """Which keys each query may see (padding never)."""
    query_index: Int[Tensor, " query"]
    """Place of each row's own token among the keys."""
    roles: Int[Tensor, "batch key"]
    """`Role` of each key token."""
    keep: Bool[Tensor, "batch query"]
    """Rows that count in averages: real tokens that are not special and see at least one key."""
    segments: Int[Tensor, "batch key"] | None = None
    """Segment of each word's token in a sentence pair, -1 for special tokens and padding; None: not known."""
    entities: Int[Tensor, "batch key"] | None = None
    """Which mention of an entity each token belongs to, -1 where it is in none; None: not known."""

    _here: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What metrics worked out of these rows."""
    _tokens: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What metrics worked out of all but the pattern; the layers of a batch share it."""

    def once(self, name: str, work_out: Callable[[], T], *, of_tokens: bool = False) -> T:
        """What `work_out` gives, worked out by the first who asks for it by this name: several metrics may need the same.

        `of_tokens`: it depends on all but the pattern, so that the next layers of the batch need not work it out again.

        >>> rows = Rows(torch.eye(2)[None, None], torch.ones(1, 1, 2, 2, dtype=torch.bool), torch.arange(2),
        ...     torch.zeros(1, 2, dtype=torch.long), torch.ones(1, 2, dtype=torch.bool))
        >>> rows.once("top", lambda: rows.pattern.argmax(-1)) is rows.once("top", lambda: rows.pattern.argmax(-1))
        True
        """
        known = self._tokens if of_tokens else self._here
        if name not in known:
            known[name] = work_out()
        return known[name]

    def with_pattern(self, pattern: Float[Tensor, "batch head query key"], **known: Any) -> Rows:
        """The same rows in another layer; `known`: what is known of them already, by the names of `once`."""
        rows = replace(self, pattern=pattern)
        rows._here.update(known)
        object.__setattr__(rows, "_tokens", self._tokens)
        return rows

    @property
    def n_visible(self) -> Int[Tensor, " batch #head query"]:
        return self.once("n_visible", lambda: self.visible.sum(-1), of_tokens=True)

    @property
    def first(self) -> Int[Tensor, " batch"]:
        """Place of each sequence's first token that is not padding."""
        return self.once("first", lambda: (self.roles != Role.PAD).to(torch.int8).argmax(-1), of_tokens=True)
