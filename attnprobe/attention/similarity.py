"""How well a query and a key fit: the named choices that `attend` takes.

A similarity is a callable of query [*batch query dim] and key [*batch key key_dim] that gives scores [*batch query key]:
a plain function where it has no parameters, a frozen record with its weights where it has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.errors import InputError, explain

Similarity = Callable[[Tensor, Tensor], Tensor]
"""(query [*batch query dim], key [*batch key key_dim]) -> scores [*batch query key]."""


def dot(
    query: Float[Tensor, "*batch query dim"], key: Float[Tensor, "*batch key dim"]
) -> Float[Tensor, "*batch query key"]:
    """Dot product q . k. Its variance is the number of dimensions where those of q and k are independent with variance 1.

    Raises `InputError` where query and key differ in their number of dimensions. Source: Luong et al. 2015, section 3.1.

    >>> dot(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
    [[11.0, 2.0]]
    """
    if query.shape[-1] != key.shape[-1]:
        raise InputError(
            explain(
                "query and key cannot be multiplied",
                expected=f"keys of {query.shape[-1]} dimensions, as the queries",
                got=str(key.shape[-1]),
                remedy="Use Bilinear or Additive for unequal dimensions",
            )
        )
    return torch.matmul(query, key.transpose(-1, -2))


def scaled_dot(
    query: Float[Tensor, "*batch query dim"], key: Float[Tensor, "*batch key dim"], *, scale: float | None = None
) -> Float[Tensor, "*batch query key"]:
    """Dot product times `scale`, 1 / sqrt(dim) by default: keeps the variance at 1 and the softmax away from saturation.

    dim is that of one head, never of the whole model. Source: Vaswani et al. 2017, section 3.2.1.

    >>> scaled_dot(torch.ones(1, 4), torch.ones(1, 4)).tolist()
    [[2.0]]
    """
    return dot(query, key) * (1.0 / math.sqrt(query.shape[-1]) if scale is None else scale)


def cosine(
    query: Float[Tensor, "*batch query dim"], key: Float[Tensor, "*batch key dim"], *, scale: float = 1.0
) -> Float[Tensor, "*batch query key"]:
    """Cosine of the angle between q and k, times `scale`: in -scale..scale, whatever the lengths of q and k.

    0 for a vector of zeros. Source: Graves et al. 2014 (content-based addressing), section 3.3.1, where `scale` is beta.

    >>> cosine(torch.tensor([[3.0, 0.0]]), torch.tensor([[7.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 0.0]]
    """
    return dot(_unit(query), _unit(key)) * scale


@dataclass(frozen=True)
class Additive:
    """Additive attention, a one-layer perceptron on query and key: v . tanh(W_q q + W_k k + b).

    Bounded by the sum of |v|. Query and key may differ in dimension. Source: Bahdanau et al. 2015, section 3.1, appendix A.1.2.

    >>> Additive(torch.ones(1, 2), torch.ones(1, 3), torch.tensor([2.0]))(torch.ones(5, 2), torch.ones(7, 3)).shape
    torch.Size([5, 7])
    """

    w_query: Float[Tensor, "hidden dim"]
    w_key: Float[Tensor, "hidden key_dim"]
    v: Float[Tensor, " hidden"]
    bias: Float[Tensor, " hidden"] | None = None

    @classmethod
    def random(
        cls,
        dim: int,
        key_dim: int | None = None,
        *,
        hidden: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Additive:
        """Weights drawn from a normal distribution of variance 1 / inputs; `hidden` units, as many as `dim` by default."""
        key_dim, hidden = key_dim or dim, hidden or dim
        return cls(
            torch.randn(hidden, dim, generator=generator) / math.sqrt(dim),
            torch.randn(hidden, key_dim, generator=generator) / math.sqrt(key_dim),
            torch.randn(hidden, generator=generator) / math.sqrt(hidden),
            torch.zeros(hidden),
        )

    def __call__(
        self, query: Float[Tensor, "*batch query dim"], key: Float[Tensor, "*batch key key_dim"]
    ) -> Float[Tensor, "*batch query key"]:
        inside = (query @ self.w_query.T)[..., :, None, :] + (key @ self.w_key.T)[..., None, :, :]
        return torch.tanh(inside if self.bias is None else inside + self.bias) @ self.v


@dataclass(frozen=True)
class Bilinear:
    """Bilinear (general) attention: q . W k. With W the identity it is the dot product.

    Query and key may differ in dimension. Source: Luong et al. 2015, section 3.1, "general".

    >>> Bilinear(torch.tensor([[0.0, 2.0]]))(torch.tensor([[3.0]]), torch.tensor([[5.0, 7.0]])).tolist()
    [[42.0]]
    """

    weight: Float[Tensor, "dim key_dim"]

    @classmethod
    def random(cls, dim: int, key_dim: int | None = None, *, generator: torch.Generator | None = None) -> Bilinear:
        """Weights drawn from a normal distribution of variance 1 / key dimensions."""
        key_dim = key_dim or dim
        return cls(torch.randn(dim, key_dim, generator=generator) / math.sqrt(key_dim))

    def __call__(
        self, query: Float[Tensor, "*batch query dim"], key: Float[Tensor, "*batch key key_dim"]
    ) -> Float[Tensor, "*batch query key"]:
        return torch.matmul(query @ self.weight, key.transpose(-1, -2))


SIMILARITIES: dict[str, Similarity | type[Additive] | type[Bilinear]] = {
    "dot": dot,
    "scaled_dot": scaled_dot,
    "cosine": cosine,
    "additive": Additive,
    "bilinear": Bilinear,
}
"""The named choices; those with parameters are classes, to be built with their weights or with `.random(...)`."""


def _unit(vectors: Float[Tensor, "*batch n dim"]) -> Float[Tensor, "*batch n dim"]:
    """Vectors divided by their length; zeros stay zeros."""
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    return vectors / torch.where(length > 0, length, torch.ones_like(length))
