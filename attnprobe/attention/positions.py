"""Position for attention, which by itself knows none: encodings added to the tokens, and biases added to the scores."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnprobe.errors import InputError, explain


def sinusoidal_positions(length: int, dim: int, *, base: float = 10000.0) -> Float[Tensor, "position dim"]:
    """Sine and cosine of each position at geometrically spaced wavelengths.

    Dimension 2i is sin(position / base^(2i / dim)), dimension 2i + 1 the cosine of the same angle; in -1..1, no unit. The
    product of two positions depends on their distance alone. An odd `dim` ends with a sine.
    Source: Vaswani et al. 2017, section 3.5.

    >>> sinusoidal_positions(2, 2)[0].tolist()
    [0.0, 1.0]
    """
    rates = base ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * rates
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)
    return waves[:, :dim].to(torch.get_default_dtype())


class LearnedPositions(nn.Module):
    """A learned vector per position, added to the token vectors, as in BERT and GPT-2.

    >>> import torch
    >>> LearnedPositions(5, 3)(torch.zeros(2, 4, 3)).shape
    torch.Size([2, 4, 3])
    """

    def __init__(self, max_length: int, dim: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_length, dim)

    def forward(self, x: Float[Tensor, "batch position dim"]) -> Float[Tensor, "batch position dim"]:
        """Add the vector of each position. Raises `InputError` for a sequence longer than the table."""
        length = x.shape[-2]
        if length > self.table.num_embeddings:
            raise InputError(
                explain(
                    "the sequence is longer than the position table",
                    expected=f"at most {self.table.num_embeddings} positions",
                    got=str(length),
                )
            )
        return x + self.table.weight[:length]


class RelativePositionBias(nn.Module):
    """A learned number per head and distance bucket, added to the scores.

    Distances below half the buckets of a direction have one each; farther ones share buckets that widen logarithmically up to
    `max_distance`, beyond which all share the last. `bidirectional`: half the buckets for keys after the query; else keys
    after it count as distance 0 (for causal attention, which hides them). Source: Raffel et al. 2020 (T5), section 2.1.

    >>> RelativePositionBias(heads=2)(3, 5).shape
    torch.Size([1, 2, 3, 5])
    """

    def __init__(self, heads: int, *, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(n_buckets, heads)
        self.max_distance = max_distance
        self.bidirectional = bidirectional

    def forward(self, n_queries: int, n_keys: int) -> Float[Tensor, "1 head query key"]:
        """The bias of every query and key; the queries are the last of the keys' positions where there are fewer."""
        device = self.table.weight.device
        queries = torch.arange(n_keys - n_queries, n_keys, device=device)[:, None]
        ahead = torch.arange(n_keys, device=device) - queries
        buckets = distance_buckets(
            ahead,
            n_buckets=self.table.num_embeddings,
            max_distance=self.max_distance,
            bidirectional=self.bidirectional,
        )
        return self.table(buckets).permute(2, 0, 1)[None]


def distance_buckets(
    ahead: Int[Tensor, "query key"], *, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
) -> Int[Tensor, "query key"]:
    """Bucket of each distance key - query, in 0..n_buckets - 1, by the rule that `RelativePositionBias` states.

    Raises `InputError` where `max_distance` leaves no room for the wide buckets.

    >>> distance_buckets(torch.tensor([[0, -1, 1, -200, 200]])).tolist()
    [[0, 1, 17, 15, 31]]
    """
    side = n_buckets // 2 if bidirectional else n_buckets
    exact = side // 2
    if exact < 1 or max_distance <= exact:
        raise InputError(
            explain(
                "the buckets do not cover the distances",
                expected="4 buckets (2 one-way) at least, and max_distance above the distances with one bucket each",
                got=f"n_buckets={n_buckets}, max_distance={max_distance}",
            )
        )
    offset = torch.where(ahead > 0, side, 0) if bidirectional else torch.zeros_like(ahead)
    distance = ahead.abs() if bidirectional else (-ahead).clamp_min(0)
    # float32, in this order, as T5 computes it: a distance on a border must fall on the same side.
    growth = torch.log(distance.clamp_min(1).float() / exact) / math.log(max_distance / exact)
    wide = (exact + (growth * (side - exact)).long()).clamp_max(side - 1)
    return offset + torch.where(distance < exact, distance, wide)
