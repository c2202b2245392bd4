"""How much a model's attention blocks mix tokens: weights, norms, residual and LayerNorm taken in one after the other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import inputs_as, pattern_of
from attnprobe.attention.norms import PostNorm, mixing, moved_vectors, split_projection
from attnprobe.attention.precision import exact
from attnprobe.errors import InputError, explain
from attnprobe.heads._blocks import Blocks
from attnprobe.heads.prepared import Prepared, prepare
from attnprobe.heads.tables import by_cluster
from attnprobe.models.capture import ModelLike, as_model
from attnprobe.models.families import FAMILIES, family_of, relative
from attnprobe.models.inputs import accepted_inputs
from attnprobe.models.model import Model
from attnprobe.models.modules import attention_of
from attnprobe.records import Sentence
from attnprobe.stream import RatioSums
from attnprobe.text.align import encode
from attnprobe.text.batching import PlanOptions, cluster_of, collate, plan_shards

STAGES = ("weights", "norms", "weights+residual", "norms+residual", "norms+residual+norm")
"""Attention alone by weights and by norms; with the residual; with the LayerNorm after it (post-LN models)."""


def mixing_ratios(
    model: ModelLike,
    sentences: Iterable[Sentence],
    *,
    specials: bool = True,
    batch_tokens: int = 1024,
    cluster: str = "document",
) -> xr.Dataset:
    """Mixing ratio of every attention block over a corpus: the share of an output vector that comes from other tokens.

    `ratio(stage, layer)`: |sum over the other tokens| / (that + |what the token itself gives|), mean over tokens, in 0..1, with interval
    (`low`, `high`), `smallest` and `largest` token and count `n`. Stages are those of `STAGES`; by weights, heads are averaged and the
    residual counts as much as a whole row. The last stage is NaN for pre-LN models, where nothing follows the residual. `specials=False`
    leaves special tokens out of the mean. Raises `InputError` for a family whose block is not described in `models/families.py`.
    Source: Kobayashi et al. 2021, section 4.
    """
    model = as_model(model)
    blocks = _MixingBlocks(model)
    sums: list[RatioSums] = []
    limits: list[np.ndarray] = []
    encoded = encode(model.tokenizer, sentences, max_length=model.max_length)
    options = PlanOptions(batch_tokens=batch_tokens)
    for shard, members in plan_shards(
        encoded, length=len, cluster=lambda item: cluster_of(item.sentence, cluster), options=options
    ):
        totals: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        for batch in shard.batches:
            pad = getattr(model.tokenizer, "pad_token_id", None) or 0
            prepared = prepare(collate([members[i] for i in batch], pad_id=pad), batch, None, model.device)
            ratios = blocks.ratios(prepared)
            counted = (prepared.real if specials else prepared.keep).cpu().numpy()
            for place, own in zip(
                batch, (ratio[kept] for ratio, kept in zip(ratios, counted, strict=True)), strict=True
            ):
                totals[place] = (np.nansum(own, 0), (~np.isnan(own)).sum(0))
                limits.append(np.stack([np.nanmin(own, 0, initial=1.0), np.nanmax(own, 0, initial=0.0)]))
        y, n = (np.stack([totals[place][part] for place in range(len(members))]) for part in (0, 1))
        starts = np.flatnonzero(np.diff(shard.clusters, prepend=-1))
        sums.append(RatioSums.of(by_cluster(y, starts), by_cluster(n, starts)))
    if not sums:
        raise InputError(explain("no sentence is left to measure", expected="at least one", got="none"))
    return _table(sums, np.stack(limits), blocks.modules)


class _MixingBlocks:
    """Mixing ratios of a batch, block by block."""

    def __init__(self, model: Model) -> None:
        row = family_of(model.family)
        if row.block is None or row.projections is None:
            known = ", ".join(name for name, other in FAMILIES.items() if other.block)
            what = f"the block of the family {model.family!r} is not described"
            raise InputError(
                explain(what, expected=f"one of {known}", remedy="Add a row to attnprobe/models/families.py")
            )
        self.model, self.parts = model, row.block
        self.blocks = Blocks(model)
        self.modules: list[tuple[str, int]] = []
        self._weights: dict[int, tuple[Tensor, PostNorm | None]] = {}

    def ratios(self, prepared: Prepared) -> np.ndarray:
        """[batch token stage layer], float64; padding is not left out."""
        names = accepted_inputs(self.model)
        inputs = {name: value for name, value in prepared.inputs.items() if name in names}
        calls: list[AttentionCall] = []
        states = self.blocks.run(inputs, calls.append)
        self.modules = [(call.kind, call.index) for call in calls]
        found = [self._block(call, before) for call, (before, _) in zip(calls, states, strict=True)]
        return torch.stack(found, dim=-1).cpu().numpy()

    def _block(self, call: AttentionCall, residual: Tensor) -> Tensor:
        call = inputs_as(call, torch.float64)
        pattern = pattern_of(call)
        projection, norm = self._of_layer(call)
        moved, residual = moved_vectors(call.v, projection), exact(residual)
        mean, own = pattern.mean(1), torch.diagonal(pattern.mean(1), dim1=-2, dim2=-1)
        total = mean.sum(-1)
        last = (
            mixing(pattern, moved, residual, norm=norm).ratio if norm is not None else torch.full_like(own, torch.nan)
        )
        stages = (
            (total - own) / total,
            mixing(pattern, moved, torch.zeros_like(residual)).ratio,
            (total - own) / (2 * total),
            mixing(pattern, moved, residual).ratio,
            last,
        )
        return torch.stack(stages, dim=-1)

    def _of_layer(self, call: AttentionCall) -> tuple[Tensor, PostNorm | None]:
        if call.layer not in self._weights:
            output: Any = attention_of(self.model, call.layer).output
            norm = None
            if not self.parts.pre_norm:
                after: Any = relative(self.model.module, call.module, self.parts.attention_norm)
                bias = None if output.bias is None else exact(output.bias)
                norm = PostNorm(exact(after.weight.detach()), float(after.eps), bias)
            self._weights[call.layer] = (split_projection(exact(output.weight), call.n_heads), norm)
        return self._weights[call.layer]


def _table(sums: Sequence[RatioSums], limits: np.ndarray, modules: Sequence[tuple[str, int]]) -> xr.Dataset:
    total = sums[0]
    for part in sums[1:]:
        total = total.merge(part)
    low, high = total.interval((0.0, None))
    dims = ["stage", "layer"]
    known = total.n > 0
    variables = {
        "ratio": (dims, total.ratio, {"unit": "share", "limits": np.array([0.0, 1.0])}),
        "low": (dims, low),
        "high": (dims, np.clip(high, None, 1.0)),
        "smallest": (dims, np.where(known, limits[:, 0].min(0), np.nan)),
        "largest": (dims, np.where(known, limits[:, 1].max(0), np.nan)),
        "n": (dims, total.n, {"unit": "tokens"}),
    }
    coordinates = {
        "stage": list(STAGES),
        "layer": np.arange(len(modules)),
        "kind": ("layer", [kind for kind, _ in modules]),
        "index": ("layer", [index for _, index in modules]),
    }
    return xr.Dataset(variables, coordinates, attrs={"source": "Kobayashi et al. 2021"})
