"""Why attention is built as it is, as numbers: scaling, saturation, order, and a context per target word.

Small experiments for notebooks and tests. Each takes a generator for its draws and returns what it measured beside what theory
says; none touches a pretrained model, though `equivariance` takes one as a callable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnprobe.attention.measures import entropy_of
from attnprobe.errors import InputError, explain


@dataclass(frozen=True)
class ProductVariance:
    """Variance of q . k over random vectors, measured and by theory, without and with the factor 1 / sqrt(dim)."""

    dim: int
    plain: float
    """Measured variance of q . k."""
    plain_expected: float
    """dim * variance(q) * variance(k): the sum of dim independent products of mean 0."""
    scaled: float
    """Measured variance of q . k / sqrt(dim)."""
    scaled_expected: float
    """variance(q) * variance(k): 1 for standard normal vectors, whatever the dim."""


def product_variance(
    dim: int, *, pairs: int = 10000, sd: float = 1.0, generator: torch.Generator | None = None
) -> ProductVariance:
    """Variance of q . k for vectors of `dim` independent normal numbers of standard deviation `sd`, over `pairs` draws.

    Source: Vaswani et al. 2017, section 3.2.1, footnote 4.

    >>> product_variance(16, generator=torch.Generator().manual_seed(0)).plain_expected
    16.0
    """
    q, k = (sd * torch.randn(pairs, dim, generator=generator, dtype=torch.float64) for _ in range(2))
    plain = float((q * k).sum(-1).var())
    return ProductVariance(dim, plain, dim * sd**4, plain / dim, sd**4)


@dataclass(frozen=True)
class Saturation:
    """The softmax of growing scores, one entry per factor."""

    factors: Float[Tensor, " factor"]
    """What the scores were multiplied with."""
    largest: Float[Tensor, " factor"]
    """Largest probability, in 1/n..1; goes to 1 as scores grow."""
    jacobian_norm: Float[Tensor, " factor"]
    """Frobenius norm of the softmax's Jacobian: how much of a gradient comes through; goes to 0 as scores grow."""


def saturation(scores: Float[Tensor, " key"], factors: Float[Tensor, " factor"]) -> Saturation:
    """Largest probability of softmax(a * scores) and norm of its Jacobian, for each factor a.

    Past a few units the softmax is a one-hot and passes no gradient: the reason for dividing by sqrt(dim). Ties stay ties: the
    Jacobian of two equal largest scores does not vanish. Computed in float64. Source: Vaswani et al. 2017, section 3.2.1.

    >>> [round(p, 4) for p in saturation(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 10.0])).largest.tolist()]
    [0.5761, 0.787, 0.9999]
    """
    p = torch.softmax(factors.double()[:, None] * scores.double(), dim=-1)
    return Saturation(factors, p.amax(-1), torch.linalg.matrix_norm(softmax_jacobian(p)))


def softmax_jacobian(p: Float[Tensor, "*batch key"]) -> Float[Tensor, "*batch key key"]:
    """Derivative of softmax probabilities by the scores: d p_i / d s_j = p_i (1[i = j] - p_j).

    Symmetric; rows sum to 0; 0 throughout for a one-hot.

    >>> softmax_jacobian(torch.tensor([0.5, 0.5])).tolist()
    [[0.25, -0.25], [-0.25, 0.25]]
    """
    return torch.diag_embed(p) - p[..., :, None] * p[..., None, :]


@dataclass(frozen=True)
class EntropyByDim:
    """Mean entropy of attention weights over random queries and keys, one entry per dimension, in nats."""

    dims: tuple[int, ...]
    plain: Float[Tensor, " dim"]
    """Scores q . k: falls towards 0 as dimensions are added."""
    scaled: Float[Tensor, " dim"]
    """Scores q . k / sqrt(dim): stays where it is."""
    uniform: float
    """Log of the number of keys: the most it can be."""


def entropy_by_dim(
    dims: Sequence[int], *, n_keys: int = 64, n_queries: int = 256, generator: torch.Generator | None = None
) -> EntropyByDim:
    """Entropy of softmax(q . k), and of softmax(q . k / sqrt(dim)), for standard normal q and k of each dimension.

    >>> found = entropy_by_dim([4, 256], generator=torch.Generator().manual_seed(0))
    >>> bool(found.plain[1] < 0.5), bool(found.scaled[1] > 3.5)
    (True, True)
    """
    plain, scaled = [], []
    for dim in dims:
        q, k = (torch.randn(n, dim, generator=generator, dtype=torch.float64) for n in (n_queries, n_keys))
        scores = q @ k.T
        plain.append(entropy_of(torch.softmax(scores, -1)).mean())
        scaled.append(entropy_of(torch.softmax(scores / math.sqrt(dim), -1)).mean())
    return EntropyByDim(tuple(dims), torch.stack(plain), torch.stack(scaled), math.log(n_keys))


@dataclass(frozen=True)
class Equivariance:
    """Whether reordering the input only reorders the output."""

    difference: float
    """Largest |f(x permuted) - f(x) permuted|, in units of the output."""
    tolerance: float
    """What rounding may cause: 1e-5 of the largest |output|, wider or narrower with the dtype's precision."""
    permutation: Int[Tensor, " position"]

    @property
    def holds(self) -> bool:
        return self.difference <= self.tolerance


def equivariance(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    permutation: Int[Tensor, " position"] | None = None,
    generator: torch.Generator | None = None,
) -> Equivariance:
    """Test whether `function` knows the order of its input: compare f(x permuted) with f(x) permuted, along axis 1.

    `x` [batch position ...] may be vectors or token ids; the output is [batch position ...] in floating point. True for
    attention without position encoding, false for BERT, true again once its position embeddings are zeroed. `permutation`: an
    order to test; drawn otherwise, never the identity. Raises `InputError` where there is nothing to reorder or the permutation
    is none.

    >>> equivariance(lambda x: x.cumsum(1), torch.arange(3.0)[None, :, None]).holds
    False
    """
    length = x.shape[1]
    order = _other_order(length, generator) if permutation is None else permutation
    if not torch.equal(order.sort().values.cpu(), torch.arange(length)) or torch.equal(
        order.cpu(), torch.arange(length)
    ):
        raise InputError(
            explain(
                "cannot reorder the input",
                expected=f"a new order of positions 0..{length - 1}",
                got=str(order.tolist()),
            )
        )
    with torch.no_grad():
        expected, got = function(x)[:, order], function(x[:, order])
    tolerance = 1e-5 * torch.finfo(got.dtype).eps / torch.finfo(torch.float32).eps * float(expected.abs().max())
    return Equivariance(float((got - expected).abs().max()), tolerance, order)


def contexts_per_target(
    weights: Float[Tensor, "target source"], states: Float[Tensor, "source dim"]
) -> Float[Tensor, "target dim"]:
    """A context for each target word: C_i = sum over source words of a_ij h_j, its own mixture of the source states.

    Source: Bahdanau et al. 2015, section 3.1, equation 5.

    >>> contexts_per_target(torch.tensor([[0.6, 0.2, 0.2]]), torch.eye(3)).tolist()
    [[0.6000000238418579, 0.20000000298023224, 0.20000000298023224]]
    """
    return weights @ states


FIXED_CONTEXTS: dict[str, Callable[[Tensor], Tensor]] = {
    "last": lambda states: states[-1],
    "mean": lambda states: states.mean(0),
}
"""How an encoder without attention sums up its source: its last state, or the mean of all."""


def fixed_context(
    states: Float[Tensor, "source dim"], n_targets: int, *, how: str = "last"
) -> Float[Tensor, "target dim"]:
    """One context for all target words, as an encoder-decoder without attention has it: the same row `n_targets` times.

    `how`: `last` state of the source (Sutskever et al. 2014), or the `mean` of all. Raises `InputError` for another.

    >>> fixed_context(torch.eye(2), 2).tolist()
    [[0.0, 1.0], [0.0, 1.0]]
    """
    if how not in FIXED_CONTEXTS:
        raise InputError(explain("unknown fixed context", expected=" | ".join(FIXED_CONTEXTS), got=repr(how)))
    return FIXED_CONTEXTS[how](states).expand(n_targets, -1)


def _other_order(length: int, generator: torch.Generator | None) -> Int[Tensor, " position"]:
    """A random order that is not the identity; the identity where there is no other."""
    while length > 1:
        order = torch.randperm(length, generator=generator)
        if not torch.equal(order, torch.arange(length)):
            return order
    return torch.arange(length)
