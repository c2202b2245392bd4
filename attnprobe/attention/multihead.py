"""Multi-head attention and the encoder block around it, to be trained, taught with, or filled with a model's own weights.

Split into heads, attend in parallel, concatenate, project. No dropout: these layers are for analysis. `models.attention_of`
fills a `MultiHeadAttention` from a pretrained layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attnprobe.attention.functional import attend
from attnprobe.attention.positions import RelativePositionBias
from attnprobe.attention.similarity import scaled_dot
from attnprobe.errors import InputError, explain, near_names

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(q, k), both [batch head position head_dim] -> q and k as they enter the product: rotary positions, norms of q and k."""


@dataclass(frozen=True)
class HeadsAttended:
    """What a multi-head layer gives, head by head and put together."""

    output: Float[Tensor, "batch query out_dim"]
    """The heads' contexts side by side, through the output projection."""
    context: Float[Tensor, "batch head query value_dim"]
    """weights @ v of each head, before the output projection."""
    weights: Float[Tensor, "batch head query key"]
    """After the softmax."""
    empty: Bool[Tensor, "batch head query"]
    """Rows that see no key; their weights and context are 0."""


class MultiHeadAttention(nn.Module):
    """Attention in several heads at once: output = W_O [head_1; ...; head_h] + b_O, head_i = attend(x W_Q^i, y W_K^i, y W_V^i).

    `kv_heads` below `heads` shares keys and values between consecutive heads (grouped; 1: multi-query). `head_dim`: dim / heads
    by default. `key_dim`: width of the source, where it is not `dim`. `bias`, `out_bias`: constants of the projections.
    `scale`: factor of the product, 1 / sqrt(head_dim) by default. `softcap`, `window`, `causal`: as in `attend`. `sinks`: a
    learned score per head that takes weight from the keys. `relative`: a bias by distance. `rotate`: see `Rotate`.
    Raises `InputError` where the numbers do not divide. Source: Vaswani et al. 2017, section 3.2.2; grouped: Ainslie et al.
    2023; sinks: GPT-OSS.

    >>> import torch
    >>> layer = MultiHeadAttention(16)
    >>> attended = layer(torch.zeros(3, 5, 16))
    >>> attended.output.shape, attended.weights.shape
    (torch.Size([3, 5, 16]), torch.Size([3, 8, 5, 5]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        key_dim: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        window: int | None = None,
        causal: bool = False,
        relative: RelativePositionBias | None = None,
        rotate: Rotate | None = None,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        self.head_dim = _head_dim(dim, heads, self.kv_heads, head_dim)
        self.scale = 1.0 / math.sqrt(self.head_dim) if scale is None else scale
        self.softcap, self.window, self.causal = softcap, window, causal
        self.query = nn.Linear(dim, heads * self.head_dim, bias=bias)
        self.key = nn.Linear(key_dim or dim, self.kv_heads * self.head_dim, bias=bias)
        self.value = nn.Linear(key_dim or dim, self.kv_heads * self.head_dim, bias=bias)
        self.output = nn.Linear(heads * self.head_dim, dim, bias=bias if out_bias is None else out_bias)
        self.sinks = nn.Parameter(torch.zeros(heads)) if sinks else None
        self.relative = relative
        self.rotate = rotate

    def forward(
        self,
        x: Float[Tensor, "batch query dim"],
        source: Float[Tensor, "batch key key_dim"] | None = None,
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "batch key"] | None = None,
        bias: Float[Tensor, "..."] | None = None,
    ) -> HeadsAttended:
        """Attend from each position of `x` over `source` (over `x` itself where there is none: self-attention).

        `mask`: True where the query may see the key, and `bias`, added to the scores: both broadcast to [batch head query key].
        `key_mask`: True where the key is a real token, not padding; it holds besides `mask`.
        """
        if key_mask is not None:
            mask = key_mask[:, None, None, :] if mask is None else mask & key_mask[:, None, None, :]
        source = x if source is None else source
        q = self._split(self.query(x), self.heads)
        k = self._split(self.key(source), self.kv_heads)
        v = self._split(self.value(source), self.kv_heads)
        if self.rotate is not None:
            q, k = self.rotate(q, k)
        if self.relative is not None:
            distance = self.relative(q.shape[2], k.shape[2])
            bias = distance if bias is None else bias + distance
        groups = self.heads // self.kv_heads
        attended = attend(
            q,
            k.repeat_interleave(groups, dim=1),
            v.repeat_interleave(groups, dim=1),
            similarity=partial(scaled_dot, scale=self.scale),
            mask=mask,
            bias=bias,
            softcap=self.softcap,
            sinks=self.sinks,
            window=self.window,
            causal=self.causal,
        )
        together = attended.context.transpose(1, 2).flatten(2)
        return HeadsAttended(self.output(together), attended.context, attended.weights, attended.empty)

    def _split(self, x: Float[Tensor, "batch position width"], heads: int) -> Float[Tensor, "batch heads position dim"]:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),
    "relu": nn.functional.relu,
    "silu": nn.functional.silu,
}
"""Names of the feed-forward layer's non-linearity."""


@dataclass(frozen=True)
class BlockOutput:
    """What an encoder block gives, and the attention inside it."""

    hidden: Float[Tensor, "batch position dim"]
    attended: HeadsAttended


class EncoderBlock(nn.Module):
    """Attention and a feed-forward layer, each with a residual and a LayerNorm.

    Post-LN (BERT): x = LN(x + attention(x)), x = LN(x + feed_forward(x)). Pre-LN (GPT-2, ViT; `pre_norm=True`):
    x = x + attention(LN(x)), x = x + feed_forward(LN(x)). feed_forward(x) = W_2 activation(W_1 x + b_1) + b_2.
    `feed_forward`: its inner width, 4 * dim by default. `attention`: a layer of your own; else `heads` heads.
    Raises `InputError` for an unknown activation. Source: Vaswani et al. 2017, section 3.1; pre-LN: Xiong et al. 2020.

    >>> import torch
    >>> EncoderBlock(16)(torch.zeros(3, 5, 16)).hidden.shape
    torch.Size([3, 5, 16])
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        *,
        feed_forward: int | None = None,
        pre_norm: bool = False,
        activation: str = "gelu",
        norm_eps: float = 1e-5,
        attention: MultiHeadAttention | None = None,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise InputError(f"unknown activation {activation!r}; {near_names(activation, ACTIVATIONS)}.")
        self.attention = MultiHeadAttention(dim, heads) if attention is None else attention
        self.attention_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.widen = nn.Linear(dim, feed_forward or 4 * dim)
        self.narrow = nn.Linear(feed_forward or 4 * dim, dim)
        self.feed_forward_norm = nn.LayerNorm(dim, eps=norm_eps)
        self.pre_norm = pre_norm
        self.activation = activation

    def forward(
        self,
        x: Float[Tensor, "batch position dim"],
        *,
        mask: Bool[Tensor, "..."] | None = None,
        key_mask: Bool[Tensor, "batch position"] | None = None,
        bias: Float[Tensor, "..."] | None = None,
    ) -> BlockOutput:
        """The block's output and its attention; `mask`, `key_mask` and `bias` as in `MultiHeadAttention`."""
        if self.pre_norm:
            attended = self.attention(self.attention_norm(x), mask=mask, key_mask=key_mask, bias=bias)
            x = x + attended.output
            return BlockOutput(x + self._feed_forward(self.feed_forward_norm(x)), attended)
        attended = self.attention(x, mask=mask, key_mask=key_mask, bias=bias)
        x = self.attention_norm(x + attended.output)
        return BlockOutput(self.feed_forward_norm(x + self._feed_forward(x)), attended)

    def _feed_forward(self, x: Float[Tensor, "batch position dim"]) -> Float[Tensor, "batch position dim"]:
        return self.narrow(ACTIVATIONS[self.activation](self.widen(x)))


def _head_dim(dim: int, heads: int, kv_heads: int, head_dim: int | None) -> int:
    if heads < 1 or kv_heads < 1 or heads % kv_heads:
        raise InputError(
            explain(
                "the heads cannot share keys evenly",
                expected="kv_heads that divides heads",
                got=f"heads={heads}, kv_heads={kv_heads}",
            )
        )
    if head_dim is None and dim % heads:
        raise InputError(
            explain(
                "the width does not split into heads",
                expected=f"dim divisible by {heads}",
                got=str(dim),
                remedy="Choose the number of heads, or give head_dim",
            )
        )
    return head_dim or dim // heads
