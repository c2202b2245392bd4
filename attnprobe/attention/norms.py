"""Norms of the vectors that attention moves: a large weight on a small vector moves little (Kobayashi et al. 2020, 2021).

f_h(x_j) = v_j^h W_O^h is what head h would move from token j under weight 1: the value vector, its bias in, through the head's
slice of the output projection, its bias left out. Everything here is exact without building the [query key dim] tensor of moved
vectors: norms of sums over heads come from the products of the heads' vectors, one [head head] matrix per token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.errors import InputError, explain


def split_projection(weight: Float[Tensor, "dim width"], heads: int) -> Float[Tensor, "head value_dim dim"]:
    """Each head's slice of an output projection, from the weight of its `torch.nn.Linear`: v of a head times it is f.

    Raises `InputError` where the width does not split into the heads.

    >>> split_projection(torch.arange(6.0).reshape(1, 6), 2)[1, :, 0].tolist()
    [3.0, 4.0, 5.0]
    """
    if weight.shape[1] % heads:
        raise InputError(
            explain(
                "the projection does not split into heads",
                expected=f"a width divisible by {heads}",
                got=str(weight.shape[1]),
            )
        )
    return weight.T.unflatten(0, (heads, -1))


def moved_vectors(
    v: Float[Tensor, "batch kv_head key value_dim"], projection: Float[Tensor, "head value_dim dim"]
) -> Float[Tensor, "batch head key dim"]:
    """f_h(x_j) = v_j^h W_O^h: what each head would move from each token under weight 1, in units of the residual stream.

    Heads that share values (grouped) are given each its own. Source: Kobayashi et al. 2020, section 3.

    >>> moved_vectors(torch.ones(1, 1, 1, 2), torch.ones(3, 2, 1)).flatten().tolist()
    [2.0, 2.0, 2.0]
    """
    return v.repeat_interleave(projection.shape[0] // v.shape[1], dim=1) @ projection


def head_norms(
    pattern: Float[Tensor, "batch head query key"], moved: Float[Tensor, "batch head key dim"]
) -> Float[Tensor, "batch head query key"]:
    """Length of the vector that each head moves from key to query: |alpha f| = alpha |f|.

    At least 0, in units of the residual stream. 0 for a token whose value is 0, whatever its weight. `moved` comes from
    `moved_vectors`. Source: Kobayashi et al. 2020, section 3.

    >>> head_norms(torch.full((1, 1, 1, 1), 0.5), torch.tensor([[[[3.0, 4.0]]]])).item()
    2.5
    """
    return pattern * torch.linalg.vector_norm(moved, dim=-1)[:, :, None, :]


def layer_norms(
    pattern: Float[Tensor, "batch head query key"], moved: Float[Tensor, "batch head key dim"]
) -> Float[Tensor, "batch query key"]:
    """Length of the vector that all heads together move from key to query: |sum over heads of alpha f|.

    Equals sqrt(alpha^T G_j alpha), G_j the products of the heads' vectors at token j. At least 0; at most the sum of
    `head_norms`, less where heads cancel (to sqrt(eps) of that sum: pass float64 where it matters). Source: Kobayashi et al. 2020, section 3, appendix.

    >>> layer_norms(torch.ones(1, 2, 1, 1), torch.tensor([[[[3.0, 4.0]], [[-3.0, -4.0]]]])).item()
    0.0
    """
    by_token = moved.transpose(1, 2)
    products = by_token @ by_token.transpose(-1, -2)
    weights = pattern.permute(0, 3, 1, 2)  # [batch key head query]
    return (weights * (products @ weights)).sum(2).clamp_min(0.0).sqrt().transpose(1, 2)


@dataclass(frozen=True)
class Mixing:
    """How an attention block mixes tokens, its residual and LayerNorm included."""

    norms: Float[Tensor, "batch query key"]
    """Length of what each token (on the diagonal: attention to itself and the residual) puts into each output vector."""
    ratio: Float[Tensor, "batch query"]
    """|from the other tokens together| / (that + |from itself|), in 0..1: 0 keeps, 1 mixes."""


@dataclass(frozen=True)
class PostNorm:
    """The LayerNorm after the residual of a post-LN block (BERT)."""

    weight: Float[Tensor, " dim"]
    """Gain, gamma. The constant beta belongs to no token and is left out."""
    eps: float
    out_bias: Float[Tensor, " dim"] | None = None
    """Constant of the output projection: part of what is normalised, credited to no token."""


def mixing(
    pattern: Float[Tensor, "batch head query key"],
    moved: Float[Tensor, "batch head key dim"],
    residual: Float[Tensor, "batch query dim"],
    *,
    norm: PostNorm | None = None,
) -> Mixing:
    """What each token puts into each output vector of an attention block, and how much of it comes from other tokens.

    z_ij = sum over heads of alpha f_h(x_j), + x_i where j = i. Post-LN (`norm` given): each z_ij minus its own mean, divided by
    the standard deviation of the whole vector that the LayerNorm normalised, times its gain. Pre-LN (`norm=None`; v was made
    from the normalised input): z_ij as it is, since nothing follows the residual. Ratio: length of the sum over j != i against
    the length of z_ii; NaN where both are 0. Self-attention only: raises `InputError` where queries and keys differ in number.
    Source: Kobayashi et al. 2021, section 3.

    >>> found = mixing(torch.tensor([[[[0.0, 1.0], [1.0, 0.0]]]]), torch.eye(2)[None, None], torch.eye(2)[None])
    >>> found.ratio.tolist()
    [[0.5, 0.5]]
    """
    if pattern.shape[-1] != residual.shape[1] or pattern.shape[-2] != residual.shape[1]:
        raise InputError(
            explain(
                "the block does not mix a sequence with itself",
                expected=f"a pattern of {residual.shape[1]} queries and keys, as the residual",
                got=f"{pattern.shape[-2]} queries, {pattern.shape[-1]} keys",
            )
        )
    weight_on_self = pattern.diagonal(dim1=-2, dim2=-1)
    own = (weight_on_self[..., None] * moved).sum(1) + residual
    rest = ((pattern - torch.diag_embed(weight_on_self)) @ moved).sum(1)
    norms = layer_norms(pattern, moved)
    if norm is not None:
        spread = _spread(own + rest, norm)
        own, rest = (_centred(part) * norm.weight / spread for part in (own, rest))
        norms = layer_norms(pattern, _centred(moved) * norm.weight) / spread
    itself, others = (torch.linalg.vector_norm(part, dim=-1) for part in (own, rest))
    both = others + itself
    norms = torch.diagonal_scatter(norms, itself, dim1=-2, dim2=-1)
    return Mixing(norms, others / torch.where(both > 0, both, torch.nan))


def _centred(vectors: Tensor) -> Tensor:
    return vectors - vectors.mean(-1, keepdim=True)


def _spread(total: Float[Tensor, "batch query dim"], norm: PostNorm) -> Float[Tensor, "batch query 1"]:
    """Standard deviation that the LayerNorm divided by."""
    whole = total if norm.out_bias is None else total + norm.out_bias
    return (whole.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
