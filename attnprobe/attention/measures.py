"""Numbers about distributions over keys: how spread one is, how far two are apart, how far away it looks.

Every function takes weights whose last axis is the key axis and gives one number per row. Rows are taken as distributions: where
they sum to less than 1 (sinks) or off 1 by rounding (half precision) they are divided by their sum. A row without mass (its
query sees nothing) gives NaN.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LN2 = math.log(2.0)


def entropy_of(
    pattern: Float[Tensor, "*batch key"], *, where: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*batch"]:
    """Entropy of each row, in nats: minus the sum over keys of p ln p, with 0 ln 0 = 0.

    In 0..log n for n visible keys: 0 exactly when one key takes everything, log n when all share equally. `where`: the keys
    that count (broadcast to the pattern); the others are left out and the rest divided by its sum. NaN where no key has mass.
    Computed in the dtype of the pattern. Source: Clark et al. 2019, section 3.2 (there with smoothing, here without).

    >>> [round(h, 4) for h in entropy_of(torch.tensor([[0.0, 1.0, 0.0], [0.25, 0.25, 0.5]])).tolist()]
    [0.0, 1.0397]
    """
    kept = pattern if where is None else torch.where(where, pattern, 0.0)
    total = kept.sum(-1)
    # H(p / total) = ln total - sum of p ln p / total: exactly 0 for one-hot rows. (`special.entr` is no vector code on a CPU.)
    logarithm = kept.clamp_min(torch.finfo(kept.dtype).tiny).log()
    entropy = (torch.log(total) - (kept * logarithm).sum(-1) / total).clamp_min(0.0)
    return torch.where(total > 0, entropy, torch.nan)


def normalised_entropy_of(
    pattern: Float[Tensor, "*batch key"], *, where: Bool[Tensor, "..."] | None = None
) -> Float[Tensor, "*batch"]:
    """Entropy of each row over the log of its number of visible keys: H / log n, without unit.

    In 0..1: 1 when the visible keys share equally, however many they are, so that lengths can be compared. `where`: the visible
    keys; all by default. NaN where fewer than two keys are visible (0 / 0) or none has mass. Source: Shannon 1948 (relative entropy of a
    source).

    >>> normalised_entropy_of(torch.tensor([[0.5, 0.5, 0.0, 0.0]]), where=torch.tensor([True, True, False, False])).tolist()
    [1.0]
    """
    entropy = entropy_of(pattern, where=where)
    if where is None:
        n = torch.full_like(entropy, pattern.shape[-1])
    else:
        n = where.expand(pattern.shape).sum(-1).to(entropy.dtype)
    return torch.where(n > 1, (entropy / torch.log(n.clamp_min(2.0))).clamp_max(1.0), torch.nan)


def jensen_shannon_divergence(
    p: Float[Tensor, "*#batch key"], q: Float[Tensor, "*#batch key"]
) -> Float[Tensor, "*batch"]:
    """Jensen-Shannon divergence of two rows, in nats: half KL(p | m) plus half KL(q | m), m = (p + q) / 2.

    In 0..ln 2: 0 for equal rows, ln 2 for rows that share no key; symmetric. The axes before the keys broadcast. NaN where
    either row has no mass. Source: Lin 1991; for heads, Clark et al. 2019, section 6 (there summed over tokens).

    >>> jensen_shannon_divergence(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).item() == torch.tensor(LN2).item()
    True
    """
    p, q = _distribution(p), _distribution(q)
    # p / m = 1 + d and q / m = 1 - d: with log1p the two terms cancel to second order, so that near rows are told apart.
    d = torch.where(p + q > 0, (p - q) / (p + q), 0.0)
    terms = torch.special.xlog1py(p, d) + torch.special.xlog1py(q, -d)
    defined = ~(p + q).isnan().any(-1)
    return torch.where(defined, (0.5 * terms.sum(-1)).clamp(0.0, LN2), torch.nan)


def jensen_shannon_distance(
    p: Float[Tensor, "*#batch key"], q: Float[Tensor, "*#batch key"]
) -> Float[Tensor, "*batch"]:
    """Square root of the Jensen-Shannon divergence: a metric (it keeps the triangle inequality), in 0..sqrt(ln 2).

    NaN where either row has no mass. Source: Endres and Schindelin 2003.

    >>> jensen_shannon_distance(torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5])).item()
    0.0
    """
    return jensen_shannon_divergence(p, q).sqrt()


def total_variation(p: Float[Tensor, "*#batch key"], q: Float[Tensor, "*#batch key"]) -> Float[Tensor, "*batch"]:
    """Total variation distance of two rows: half the sum of |p - q|, the mass that would have to move.

    In 0..1: 0 for equal rows, 1 for rows that share no key. NaN where either row has no mass. Source: Jain and Wallace 2019
    (there for model outputs).

    >>> total_variation(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0])).item()
    0.5
    """
    return 0.5 * (_distribution(p) - _distribution(q)).abs().sum(-1)


def distance_of(
    pattern: Float[Tensor, "*batch query key"],
    *,
    query_index: Int[Tensor, " query"] | None = None,
    where: Bool[Tensor, "..."] | None = None,
    signed: bool = False,
) -> Float[Tensor, "*batch query"]:
    """Mean distance between a query and the keys it looks at, in tokens: sum over keys of p |key - query|.

    In 0..keys - 1; `signed`: sum of p (key - query), negative where it looks back. `query_index`: place of each row's own token
    among the keys; the rows are the first tokens by default. `where`: the keys that count. NaN where no key has mass.
    Source: Vig and Belinkov 2019.

    >>> distance_of(torch.tensor([[0.0, 0.0, 1.0], [0.5, 0.0, 0.5]])).tolist()
    [2.0, 1.0]
    """
    kept = pattern if where is None else torch.where(where, pattern, 0.0)
    n_queries, n_keys = pattern.shape[-2:]
    index = torch.arange(n_queries, device=pattern.device) if query_index is None else query_index
    steps = (torch.arange(n_keys, device=pattern.device) - index[:, None]).to(pattern.dtype)
    total = kept.sum(-1)
    mean = (kept * (steps if signed else steps.abs())).sum(-1) / total
    return torch.where(total > 0, mean, torch.nan)


def _distribution(rows: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch key"]:
    """Rows divided by their sum; NaN throughout where there is no mass."""
    total = rows.sum(-1, keepdim=True)
    return rows / torch.where(total > 0, total, torch.nan)
