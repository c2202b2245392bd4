"""What families add to scores by position, as formulas: ALiBi, disentangled attention, Transformer-XL's position and segment terms.

Each gives the bias [batch head query key] from vectors and distances alone, so that a bias that a model added can be held against
what its paper says. Learned buckets (T5, MPNet) are in `positions.py`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor


def alibi_slopes(heads: int) -> Float[Tensor, " head"]:
    """Slope of each head: 2^(-8 h / n) for h = 1..n, n heads; where n is no power of two, those of the power below, then every
    other one of the power above.

    In float64. The bias of a key is -slope * distance. Source: Press et al. 2022 (ALiBi), section 3.

    >>> alibi_slopes(2).tolist()
    [0.0625, 0.00390625]
    """
    whole = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * h / whole) for h in range(1, whole + 1)]
    slopes += [2.0 ** (-4 * h / whole) for h in range(1, 2 * (heads - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float64)


def log_distance_buckets(
    distance: Int[Tensor, "query key"], *, n_buckets: int, max_distance: int
) -> Int[Tensor, "query key"]:
    """Bucket of each signed distance: itself up to half the buckets, beyond that growing with its logarithm, same sign.

    sign(d) (m + ceil((m - 1) log(|d| / m) / log((max_distance - 1) / m))), m half the buckets. Source: DeBERTa-v2.

    >>> log_distance_buckets(torch.tensor([[0, 3, 4, 9, -15]]), n_buckets=8, max_distance=16).tolist()
    [[0, 3, 4, 6, -7]]
    """
    middle = n_buckets // 2
    far = distance.abs().clamp_min(middle)
    # float32, in this order, as the family computes it: a distance on a border must fall on the same side
    growth = torch.log(far / middle) / torch.log(torch.tensor((max_distance - 1) / middle))
    wide = (torch.ceil(growth * (middle - 1)) + middle).long() * distance.sign()
    return torch.where(distance.abs() <= middle, distance, wide)


def disentangled_bias(
    q: Float[Tensor, "batch head query dim"],
    k: Float[Tensor, "batch head key dim"],
    place: Int[Tensor, "query key"],
    scale: float,
    *,
    pos_k: Float[Tensor, "head position dim"] | None,
    pos_q: Float[Tensor, "head position dim"] | None,
) -> Float[Tensor, "batch head query key"]:
    """Content to position and position to content: scale * (q_i . pos_k[p(i, j)] + k_j . pos_q[p(i, j)]).

    `place` is p, the row of the table for the distance i - j; a term whose vectors are None is left out. With the product q . k
    itself, `scale` is 1 / sqrt(terms * dim). Source: He et al. 2021 (DeBERTa), section 3.1, equations 3 and 4.

    >>> one = torch.ones(1, 1, 2, 1)
    >>> disentangled_bias(one, one, torch.tensor([[1, 0], [2, 1]]), 0.5, pos_k=torch.tensor([[[1.0], [2.0], [3.0]]]), pos_q=None)[0, 0].tolist()
    [[1.0, 0.5], [1.5, 1.0]]
    """
    bias = q.new_zeros(*q.shape[:3], k.shape[2])
    if pos_k is not None:
        bias = bias + _looked_up(q @ pos_k.transpose(-1, -2), place)
    if pos_q is not None:
        bias = bias + _looked_up(k @ pos_q.transpose(-1, -2), place.T).transpose(-1, -2)
    return scale * bias


def transformer_xl_bias(
    q_position: Float[Tensor, "batch head query dim"],
    positions: Float[Tensor, "batch head position dim"],
    place: Int[Tensor, "query key"],
    scale: float,
    *,
    q_segment: Float[Tensor, "batch head query dim"] | None = None,
    segments: Float[Tensor, "head segment dim"] | None = None,
    segment: Int[Tensor, "batch query key"] | None = None,
) -> Float[Tensor, "batch head query key"]:
    """Position and segment terms: scale * ((q_i + u) . r[p(i, j)] + (q_i + w) . s[same segment or not]).

    `q_position` and `q_segment` are the queries with their learned offsets u and w added; `segment` chooses the row of
    `segments`. Sources: Dai et al. 2019 (Transformer-XL), section 3.3; Yang et al. 2019 (XLNet), section 2.5.

    >>> one = torch.ones(1, 1, 1, 1)
    >>> transformer_xl_bias(one, torch.tensor([[[[3.0], [5.0]]]]), torch.tensor([[1, 0]]), 1.0)[0, 0].tolist()
    [[5.0, 3.0]]
    """
    bias = _looked_up(q_position @ positions.transpose(-1, -2), place)
    if q_segment is not None and segments is not None and segment is not None:
        by_segment = q_segment @ segments.transpose(-1, -2)
        bias = bias + torch.gather(by_segment, -1, segment[:, None].expand(-1, q_segment.shape[1], -1, -1))
    return scale * bias


def _looked_up(
    products: Float[Tensor, "batch head row position"], place: Int[Tensor, "row column"]
) -> Float[Tensor, "batch head row column"]:
    """The product of each row with the position that each column asks for."""
    return torch.gather(products, -1, place.expand(*products.shape[:2], -1, -1))
