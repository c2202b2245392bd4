"""Attention between words as features of word pairs: one number per head for "how much does this word attend to that one?".

To a word: the sum over its pieces; from a word: the mean over its pieces (Clark et al. 2019, section 4.1). Kept in memory, sentences of
one length together: sentences times words squared times heads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import pattern_of
from attnprobe.errors import InputError, explain
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import from_model_inputs
from attnprobe.models.model import Model
from attnprobe.probes.features import model_inputs, pad_id
from attnprobe.text.align import Encoded
from attnprobe.text.batching import PlanOptions, cluster_of, collate, plan_shards

MAX_BYTES = 8 * 2**30
"""Memory that the maps may take unless told otherwise."""


@dataclass(frozen=True)
class Maps:
    """Attention maps of sentences of one length, with their trees."""

    attention: Float[Tensor, "sentence query_word key_word head"]
    """Heads of all layers, layer by layer."""
    special: Float[Tensor, "sentence word head"]
    """What each word gives to special tokens."""
    governor: Int[Tensor, "sentence word"]
    """0-based governor of each word; the number of words stands for the root."""
    counted: Bool[Tensor, "sentence word"]
    """Words that are trained on and scored: no punctuation, and with a piece, as has their governor."""
    place: Int[Tensor, " sentence"]
    """Place of each sentence in the corpus."""

    @property
    def n_words(self) -> int:
        return self.governor.shape[1]

    def take(self, chosen: Bool[np.ndarray, " corpus"]) -> Maps:
        """Those of sentences whose place in the corpus is chosen."""
        kept = torch.from_numpy(chosen)[self.place]
        parts = (self.attention, self.special, self.governor, self.counted, self.place)
        return Maps(*(part[kept] for part in parts))


def attention_maps(
    model: Model, encoded: Sequence[Encoded], *, max_bytes: int = MAX_BYTES, plan: PlanOptions | None = None
) -> tuple[list[Maps], list[int]]:
    """Maps of every sentence with a tree of two words or more, and the number of heads of each layer.

    Raises `InputError` where none has a tree, or the maps would take more than `max_bytes`.
    """
    parsed = [place for place, item in enumerate(encoded) if len(item.sentence.heads) > 1]
    if not parsed:
        raise InputError(explain("no dependency probe without trees", expected="a corpus with heads", got="none"))
    found: dict[int, list[tuple[Tensor, Tensor, int]]] = {}
    heads: list[int] = []
    chosen = [encoded[place] for place in parsed]
    jobs = plan_shards(
        chosen, length=len, cluster=lambda item: cluster_of(item.sentence), options=plan or PlanOptions()
    )
    for shard, members in jobs:
        for batch in shard.batches:
            maps, heads = _of_batch(model, [members[place] for place in batch])
            _refuse_over(max_bytes, chosen, sum(heads))
            for (attention, special), place in zip(maps, batch, strict=True):
                found.setdefault(attention.shape[0], []).append((attention, special, parsed[shard.start + place]))
    return [_stacked(group, encoded) for _, group in sorted(found.items())], heads


def _refuse_over(max_bytes: int, chosen: Sequence[Encoded], heads: int) -> None:
    needed = 4 * heads * sum(len(item.sentence) ** 2 for item in chosen)
    if needed > max_bytes:
        got = f"{needed / 2**30:.1f} GB for {len(chosen)} sentences and {heads} heads"
        remedy = "Use fewer or shorter sentences, or raise `max_bytes`"
        expected = f"at most {max_bytes / 2**30:.1f} GB"
        raise InputError(
            explain("the attention maps would take too much memory", expected=expected, got=got, remedy=remedy)
        )


def _of_batch(model: Model, items: Sequence[Encoded]) -> tuple[list[tuple[Tensor, Tensor]], list[int]]:
    """For each sentence, attention [query_word key_word head] and what goes to special tokens [word head]."""
    batch = collate(items, pad_id=pad_id(model))
    index = torch.from_numpy(batch.word_index)
    special = ((index < 0) & torch.from_numpy(batch.attention_mask).bool()).float()
    to = torch.zeros(*index.shape, max(len(item.sentence) for item in items))
    to.scatter_(2, index.clamp(min=0)[..., None], (index >= 0).float()[..., None])
    pieces = to.sum(1).clamp(min=1)
    words: list[Tensor] = []
    outside: list[Tensor] = []

    def take(call: AttentionCall) -> None:
        if call.kind != "cross" and call.pattern is None:
            pattern = pattern_of(call)
        elif call.kind != "cross":
            assert call.pattern is not None
            pattern = call.pattern
        else:
            return
        if pattern.shape[-2:] != (index.shape[1], index.shape[1]):
            return  # the decoder of a two-stack model
        rows = torch.einsum("bqw,bhqk->bhwk", to, pattern.float().cpu()) / pieces[:, None, :, None]
        words.append(torch.einsum("bhwk,bkv->bwvh", rows, to))
        outside.append(torch.einsum("bhwk,bk->bwh", rows, special))

    run_forward(model, from_model_inputs(model, model_inputs(model, batch), describe=False), take)
    joined, left = torch.cat(words, dim=3), torch.cat(outside, dim=2)
    sizes = [len(item.sentence) for item in items]
    maps = [(joined[i, :n, :n].clone(), left[i, :n].clone()) for i, n in enumerate(sizes)]
    return maps, [part.shape[3] for part in words]


def _stacked(group: Sequence[tuple[Tensor, Tensor, int]], encoded: Sequence[Encoded]) -> Maps:
    sentences = [encoded[place] for _, _, place in group]
    n = group[0][0].shape[0]
    heads = torch.tensor([item.sentence.heads for item in sentences])
    governor = torch.where(heads > 0, heads - 1, n)
    has_piece = torch.tensor(np.stack([item.alignment.pieces > 0 for item in sentences]))
    reached = torch.cat([has_piece, torch.ones(len(group), 1, dtype=torch.bool)], dim=1).gather(1, governor)
    punctuation = torch.tensor([[label.startswith("punct") for label in item.sentence.deprels] for item in sentences])
    counted = has_piece & reached & ~(punctuation if punctuation.numel() else torch.zeros_like(has_piece))
    place = torch.tensor([place for _, _, place in group])
    return Maps(torch.stack([a for a, _, _ in group]), torch.stack([s for _, s, _ in group]), governor, counted, place)
