"""Scorers: what a relation is read off. The weights are one choice; norms, rollout, flow and value zeroing are others.

Each gives, for every query token, a number at least 0 for each key token; how words, candidates and ties are dealt with is the same for all.
`rollout` and `norms` are per head; `flow` and `value_zeroing` take a layer's heads together, so that every head of a layer shows one value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.flow import attention_flow, value_zeroing
from attnprobe.attention.norms import split_projection
from attnprobe.errors import InputError, explain, near_names
from attnprobe.heads._blocks import Blocks
from attnprobe.heads.measure import Prepared, Scorer
from attnprobe.models.inputs import accepted_inputs
from attnprobe.models.intervene import zeroing_values
from attnprobe.models.model import Model
from attnprobe.models.modules import attention_of

FLOW_TOKENS = 32
"""Longest sentence, in tokens, for which flows are solved: one takes about a second per layer."""


def weights(model: Model) -> None:
    """The attention weights themselves.

    Source: Clark et al. 2019, section 4.
    """


class Norms:
    """Length of the vector that each head moves from key to query: weight times the length of the key's value after the output projection.

    Exact: |v W| is |v R|, R the triangle of a QR decomposition of the head's slice W of the projection, no longer than the head is wide.
    Source: Kobayashi et al. 2020, section 3 (value bias in, output bias out).
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self._triangles: dict[int, Tensor] = {}
        self._triangle(0)  # refuses a family whose projections are not known before anything runs

    def start(self, prepared: Prepared) -> None:
        pass

    def __call__(self, call: AttentionCall, pattern: Tensor, rows: slice, members: slice) -> Tensor:
        triangle = self._triangle(call.layer).to(call.v)
        lengths = torch.linalg.vector_norm(call.v.repeat_interleave(call.groups, dim=1) @ triangle, dim=-1)
        return pattern * lengths[:, :, None, :]

    def _triangle(self, layer: int) -> Tensor:
        if layer not in self._triangles:
            attention = attention_of(self.model, layer)
            slices = split_projection(attention.output.weight.float(), attention.heads)
            self._triangles[layer] = torch.linalg.qr(slices.transpose(1, 2), mode="r").R.transpose(1, 2)
        return self._triangles[layer]


class Rollout:
    """How much of each input token reaches a position through one head and all heads of the layers below, residual 1/2.

    Source: Abnar and Zuidema 2020, section 3 and appendix (a single head).
    """

    def __init__(self, model: Model) -> None:
        _refuse_two_stacks(model, "rollout")
        self._below: Tensor | None = None
        self._here: Tensor | None = None
        self._layer = 0

    def start(self, prepared: Prepared) -> None:
        batch, n = prepared.roles.shape
        self._here = torch.eye(n, device=prepared.roles.device).expand(batch, n, n).clone()
        self._layer = -1

    def __call__(self, call: AttentionCall, pattern: Tensor, rows: slice, members: slice) -> Tensor:
        assert self._here is not None
        if call.layer != self._layer:  # the layer below is complete
            self._layer, self._below = call.layer, self._here
            self._here = torch.zeros_like(self._below)
        assert self._below is not None
        through = _with_residual(pattern, rows) @ self._below[members, None].to(pattern)
        self._here[members, rows] = (_with_residual(pattern.mean(1), rows) @ self._below[members].to(pattern)).to(
            self._here
        )
        return through


def _with_residual(pattern: Tensor, rows: slice) -> Tensor:
    """Some rows of a pattern with the residual mixed in: (A + I) / 2, divided by its sum."""
    own = torch.eye(pattern.shape[-1], dtype=pattern.dtype, device=pattern.device)[rows]
    mixed = 0.5 * (pattern + own)
    return mixed / mixed.sum(-1, keepdim=True)


class Flow:
    """Maximum flow from a position to each input token, weights taken as capacities; all heads of a layer together.

    Sentences of at most `FLOW_TOKENS` tokens: raises `InputError` for a longer one. Source: Abnar and Zuidema 2020, section 3.
    """

    def __init__(self, model: Model) -> None:
        _refuse_two_stacks(model, "flow")
        self._stack: dict[int, list[Tensor]] = {}
        self._lengths: list[int] = []

    def start(self, prepared: Prepared) -> None:
        self._lengths = prepared.real.sum(-1).tolist()
        longest = max(self._lengths)
        if longest > FLOW_TOKENS:
            raise InputError(
                explain(
                    "the sentence is too long for attention flow",
                    expected=f"at most {FLOW_TOKENS} tokens",
                    got=str(longest),
                    remedy="Leave longer sentences out of the corpus, or use the scorer 'rollout'",
                )
            )
        self._stack = {row: [] for row in range(len(self._lengths))}

    def __call__(self, call: AttentionCall, pattern: Tensor, rows: slice, members: slice) -> Tensor:
        scores = torch.zeros_like(pattern)
        for row in range(members.start, members.stop):
            n = self._lengths[row]
            self._stack[row].append(pattern[row - members.start, :, :n, :n].mean(0, keepdim=True))
            scores[row - members.start, :, :n, :n] = attention_flow(torch.stack(self._stack[row])).to(scores)
        return scores


class ValueZeroing:
    """How much a layer's output at a position turns when a token's values are zeroed in all heads; rows divided by their sum.

    Each token of each layer costs a forward pass. A row that nothing changes scores 0. Source: Mohebbi et al. 2023, section 3.
    """

    def __init__(self, model: Model) -> None:
        _refuse_two_stacks(model, "value_zeroing")
        self.model = model
        self.blocks = Blocks(model)
        self._scores: list[Tensor] = []

    def start(self, prepared: Prepared) -> None:
        names = accepted_inputs(self.model)
        inputs = {name: value for name, value in prepared.inputs.items() if name in names}
        whole = [after for _, after in self.blocks.run(inputs)]
        self._scores = []
        for layer in range(len(whole)):

            def run(position: int | None, layer: int = layer) -> Tensor:
                if position is None:
                    return whole[layer]
                with zeroing_values(self.model, [layer], [position]):
                    return self.blocks.run(inputs)[layer][1]

            self._scores.append(value_zeroing(run, prepared.roles.shape[1]).nan_to_num(0.0))

    def __call__(self, call: AttentionCall, pattern: Tensor, rows: slice, members: slice) -> Tensor:
        return self._scores[call.layer][members, None, rows].to(pattern).expand_as(pattern)


def _refuse_two_stacks(model: Model, name: str) -> None:
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError(
            explain(f"the scorer {name!r} follows one stack of layers", got=f"{model.family}, an encoder and a decoder")
        )


SCORERS: dict[str, Callable[[Model], Scorer | None]] = {
    "weights": weights,
    "norms": Norms,
    "rollout": Rollout,
    "flow": Flow,
    "value_zeroing": ValueZeroing,
}
"""Name -> what makes the scorer for a model; None: the weights themselves."""


def scorers_of(model: Model, names: Iterable[str]) -> dict[str, Scorer | None]:
    """Scorers by name, made for this model. Raises `InputError` for an unknown name, or a model that one does not fit."""
    refuse_unknown_scorers(names)
    return {name: SCORERS[name](model) for name in names}


def refuse_unknown_scorers(names: Iterable[str]) -> None:
    for name in names:
        if name not in SCORERS:
            raise InputError(f"unknown scorer {name!r}; {near_names(name, SCORERS)}.")
