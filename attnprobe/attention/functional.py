"""Attention as a formula: similarity -> soft cap and bias -> mask -> softmax -> weighted sum.

Plain functions of query, key and value for self-attention (all three from one sequence) and cross-attention (query from the
target, key and value from the source). No parameters beyond those a similarity carries; projections and heads are in
`multihead.py`, what a pretrained model did is in `forward.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnprobe.attention.similarity import SIMILARITIES, Similarity
from attnprobe.errors import InputError, explain, near_names


@dataclass(frozen=True)
class Attended:
    """What attention gives: the mixture of values and the weights that mixed them."""

    context: Float[Tensor, "*batch query value_dim"]
    """weights @ value, in units of the values."""
    weights: Float[Tensor, "*batch query key"]
    """After the softmax, each in 0..1; a row sums to 1 over the keys it may see, to less where there are sinks."""
    empty: Bool[Tensor, "*batch query"]
    """Rows that see no key at all; their weights are what `empty_rows` asked for."""


EMPTY_ROWS: dict[str, Callable[[int], float]] = {
    "zero": lambda n_keys: 0.0,
    "uniform": lambda n_keys: 1.0 / n_keys,
    "nan": lambda n_keys: float("nan"),
}
"""What the weights of a row that sees nothing become: 0 (as sdpa), 1 / keys (as eager with finfo.min), NaN (as a bare softmax)."""


def masked_softmax(
    scores: Float[Tensor, "*batch query key"],
    mask: Bool[Tensor, "..."] | None = None,
    *,
    sinks: Float[Tensor, " head"] | None = None,
    empty_rows: str = "zero",
) -> tuple[Float[Tensor, "*batch query key"], Bool[Tensor, "*batch query"]]:
    """Softmax over the visible keys, and which rows see none: exp(s - max s) / (sum of exp(s - max s) + exp(sink - max s)).

    The largest score is taken off first, so that no score overflows (a bare float32 exponential does at 89). `mask`: True where
    the query may see the key, broadcast against the scores; a score of -inf hides its key too. `sinks`: one extra score per
    head (the axis before query), dropped after the softmax. Weights are in 0..1; hidden keys get exactly 0; gradients stay
    finite. A row without a visible key is set by `empty_rows`: zero, uniform or nan.

    Raises `InputError` for a mask that is not bool (a 0/1 mask added to the scores masks nothing) or an unknown `empty_rows`.

    >>> import torch
    >>> masked_softmax(torch.tensor([[1000.0, 1000.0, 3.0]]), torch.tensor([True, True, False]))[0].tolist()
    [[0.5, 0.5, 0.0]]
    """
    if empty_rows not in EMPTY_ROWS:
        raise InputError(f"unknown way to fill empty rows {empty_rows!r}; {near_names(empty_rows, EMPTY_ROWS)}.")
    visible = scores != -torch.inf  # a NaN stays visible, and shows
    if mask is not None:
        visible = visible & _checked_mask(mask, scores)
    empty = ~visible.any(-1)
    # An empty row comes out of the softmax as NaN; no gradient of it passes this fill, nor the one below.
    seen = scores.masked_fill(~visible, -torch.inf)
    if sinks is None:
        weights = torch.softmax(seen, dim=-1)
    else:
        extra = sinks[:, None, None].expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat([seen, extra], dim=-1), dim=-1)[..., :-1]
    return weights.masked_fill(empty[..., None], EMPTY_ROWS[empty_rows](scores.shape[-1])), empty


def attend(
    query: Float[Tensor, "*batch query dim"],
    key: Float[Tensor, "*batch key key_dim"],
    value: Float[Tensor, "*batch key value_dim"],
    *,
    similarity: str | Similarity = "scaled_dot",
    mask: Bool[Tensor, "..."] | None = None,
    bias: Float[Tensor, "..."] | None = None,
    empty_rows: str = "zero",
    softcap: float | None = None,
    sinks: Float[Tensor, " head"] | None = None,
    window: int | None = None,
    causal: bool = False,
) -> Attended:
    """Attention of each query over the keys, and the mixture of values that it selects.

    weights = softmax over visible keys of (cap(similarity(query, key)) + bias); context = weights @ value, where
    cap(s) = softcap * tanh(s / softcap), or s. Self-attention: query, key and value are made from one sequence;
    cross-attention: query from the target, key and value from the source. Scores are dimensionless, weights in 0..1.

    `similarity`: a name in `SIMILARITIES` (dot, scaled_dot, cosine) or a callable such as `Additive` or `Bilinear`.
    `mask`: True where the query may see the key. `bias` is added to the scores; both broadcast to [*batch query key].
    `causal` and `window` (see `position_mask`) hide keys besides. `empty_rows`, `sinks`: see `masked_softmax`.
    Raises `InputError` for shapes that do not fit, a mask that is not bool, unknown names.
    Source: Vaswani et al. 2017, section 3.2.1; similarities: `SIMILARITIES`.

    >>> import torch
    >>> x = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
    >>> attend(x, x, torch.tensor([[1.0], [2.0]]), causal=True).context.round(decimals=3).tolist()
    [[1.0], [2.0]]
    """
    if key.shape[-2] != value.shape[-2]:
        raise InputError(
            explain("key and value differ in length", expected=f"{key.shape[-2]} values", got=str(value.shape[-2]))
        )
    scores = _named(similarity)(query, key)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    if causal or window is not None:
        near = position_mask(query.shape[-2], key.shape[-2], causal=causal, window=window, device=scores.device)
        mask = near if mask is None else near & _checked_mask(mask, scores)
    weights, empty = masked_softmax(scores, mask, sinks=sinks, empty_rows=empty_rows)
    return Attended(torch.matmul(weights, value), weights, empty)


def position_mask(
    n_queries: int,
    n_keys: int,
    *,
    causal: bool = False,
    window: int | None = None,
    device: torch.device | None = None,
) -> Bool[Tensor, "query key"]:
    """Which keys a query may see by position: none after it if `causal`, only those less than `window` positions away.

    Query i stands at position i + n_keys - n_queries: with a cache, the queries are the last tokens (unlike `is_causal` of
    torch's sdpa, which aligns the first ones; the two agree where the lengths do). A causal window of w shows w keys, the
    query's own among them.

    >>> position_mask(3, 3, causal=True, window=2).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    if window is not None and window < 1:
        raise InputError(explain("the window shows nothing", expected="window >= 1", got=str(window)))
    queries = torch.arange(n_queries, device=device)[:, None] + (n_keys - n_queries)
    ahead = torch.arange(n_keys, device=device) - queries
    visible = torch.ones_like(ahead, dtype=torch.bool)
    if causal:
        visible = visible & (ahead <= 0)
    return visible if window is None else visible & (ahead.abs() < window)


def _named(similarity: str | Similarity) -> Similarity:
    if not isinstance(similarity, str):
        return similarity
    if similarity not in SIMILARITIES:
        raise InputError(f"unknown similarity {similarity!r}; {near_names(similarity, SIMILARITIES)}.")
    entry = SIMILARITIES[similarity]
    if isinstance(entry, type):
        raise InputError(
            explain(
                f"the similarity {similarity!r} has parameters",
                expected=f"an instance of {entry.__name__}",
                got="its name",
                remedy=f"Pass similarity={entry.__name__}.random(...), or one with your own weights",
            )
        )
    return entry


def _checked_mask(mask: Tensor, scores: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise InputError(
            explain(
                "the mask is not bool",
                expected="True where the query may see the key",
                got=str(mask.dtype),
                remedy="Pass `mask != 0`, or an additive mask as `bias`",
            )
        )
    try:
        return mask.expand(scores.shape)
    except RuntimeError as error:
        raise InputError(
            explain(
                "the mask does not fit the scores",
                expected=f"a shape that broadcasts to {tuple(scores.shape)}",
                got=str(tuple(mask.shape)),
            )
        ) from error
