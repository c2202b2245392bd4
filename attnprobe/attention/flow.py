"""What reaches where: attention followed through the layers, weighed by the vectors it moves, or by what its loss changes.

Pure functions of patterns, values and weights of the output projection. Through the layers: rollout and flow. Within a layer:
norms of the vectors that attention moves, with residual and LayerNorm or without. By intervention: value zeroing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.attention.precision import exact
from attnprobe.errors import InputError, explain

RESOLUTION = 10_000_000
"""Capacity 1 as an integer, for a solver that takes only those: rounding moves a flow by at most about 2e-7 a hop."""


def with_residual(
    pattern: Float[Tensor, "*batch query key"], residual: float = 0.5
) -> Float[Tensor, "*batch query key"]:
    """Pattern with the residual stream mixed in: (1 - residual) A + residual I, rows divided by their sum.

    Rows sum to 1. A query that sees nothing keeps itself. Raises `InputError` unless the pattern is square and `residual` in
    0..1. Source: Abnar and Zuidema 2020, section 3 (residual 0.5).

    >>> with_residual(torch.tensor([[0.0, 1.0], [0.5, 0.5]])).tolist()
    [[0.5, 0.5], [0.25, 0.75]]
    """
    n_queries, n_keys = pattern.shape[-2:]
    if n_queries != n_keys:
        raise InputError(
            explain("attention cannot be chained", expected="as many queries as keys", got=f"{n_queries} and {n_keys}")
        )
    if not 0.0 <= residual <= 1.0:
        raise InputError(explain("the residual is no share", expected="0..1", got=str(residual)))
    mixed = (1.0 - residual) * pattern + residual * torch.eye(n_keys, dtype=pattern.dtype, device=pattern.device)
    return mixed / mixed.sum(-1, keepdim=True)


def rollout(
    patterns: Float[Tensor, "layer *batch head query key"], *, residual: float = 0.5
) -> Float[Tensor, "layer *batch query key"]:
    """How much of each input token is in each position, layer by layer: R_l = A'_l R_(l-1), R_0 = I.

    A' is the mean over heads with the residual mixed in. Rows sum to 1. Entry l is the rollout from the input to the output
    of layer l. Source: Abnar and Zuidema 2020, section 3.

    >>> rollout(torch.full((2, 3, 4, 4), 0.25))[1, 0].tolist()
    [0.4375, 0.1875, 0.1875, 0.1875]
    """
    layers = [with_residual(pattern, residual) for pattern in patterns.mean(-3)]
    for i in range(1, len(layers)):
        layers[i] = layers[i] @ layers[i - 1]
    return torch.stack(layers)


def head_rollout(
    patterns: Float[Tensor, "layer *batch head query key"], *, residual: float = 0.5
) -> Float[Tensor, "layer *batch head query key"]:
    """Rollout through one head at its layer and all heads below: A'_(l, k) R_(l-1). Its mean over heads is `rollout`.

    The mean is exact where the rows of all heads have the same sum, as they do without sinks.
    Source: Abnar and Zuidema 2020, appendix (its formula prints R_l, its text means the layers below).

    >>> head_rollout(torch.eye(4).expand(2, 3, 4, 4))[1, 2].equal(torch.eye(4))
    True
    """
    below = rollout(patterns, residual=residual)[:-1, ..., None, :, :]
    through = with_residual(patterns, residual)
    return torch.cat([through[:1], through[1:] @ below])


def attention_flow(
    patterns: Float[Tensor, "layer head query key"], *, residual: float = 0.5, layer: int = -1
) -> Float[Tensor, "query key"]:
    """Share of each input token in what can flow to each position at the output of `layer`, weights taken as capacities.

    A network with one node per layer and position, edges of capacity A' (as in `rollout`) from each position to those of the
    layer below; the maximum flow from a position to each input token, each pair on its own, then rows divided by their sum.
    In 0..1, float64. One solver run per pair: some hundredths of a second per position at 12 layers and 32 tokens, so keep to
    sentences. Source: Abnar and Zuidema 2020, section 3.

    >>> attention_flow(torch.tensor([[[[0.0, 1.0], [0.5, 0.5]]]])).tolist()
    [[0.5, 0.5], [0.25, 0.75]]
    """
    stack = with_residual(exact(patterns.mean(-3)), residual)[: layer % len(patterns) + 1]
    depth, n, _ = stack.shape
    network = _network(stack.cpu())
    flows = [[_max_flow(network, depth * n + i, j) for j in range(n)] for i in range(n)]
    flow = torch.tensor(flows, dtype=torch.float64)
    return flow / flow.sum(-1, keepdim=True)


def _network(stack: Float[Tensor, "layer query key"]) -> Any:
    """Sparse matrix of integer capacities; node l * n + i is position i at the output of layer l, layer 0 the input."""
    from scipy.sparse import csr_array  # half a second to import, and only the flow needs it

    depth, n, _ = stack.shape
    layer, query, key = torch.meshgrid(torch.arange(depth), torch.arange(n), torch.arange(n), indexing="ij")
    capacities = (stack * RESOLUTION).round().int().flatten().numpy()
    source, target = ((layer + 1) * n + query).int(), (layer * n + key).int()
    ends = (source.flatten().numpy(), target.flatten().numpy())
    return csr_array((capacities, ends), shape=((depth + 1) * n, (depth + 1) * n))


def _max_flow(network: Any, source: int, sink: int) -> float:
    from scipy.sparse.csgraph import maximum_flow

    return maximum_flow(network, source, sink).flow_value / RESOLUTION


def value_zeroing(
    layer: Callable[[int | None], Float[Tensor, "batch query dim"]], n_tokens: int
) -> Float[Tensor, "batch query key"]:
    """How much each output vector of a layer changes when one token's value vectors are set to zero in all heads.

    C_ij = cosine distance of layer()_i and layer(j)_i, rows divided by their sum. `layer(j)` runs the layer, feed-forward and
    norms included, on its ordinary input with v_j = 0; `layer(None)` as it is. In 0..1, rows sum to 1, in float64; NaN for a
    row that nothing changes. The residual is inside: roll the result out with `residual=0`. Source: Mohebbi et al. 2023,
    section 3.

    >>> x = torch.eye(3)[None]
    >>> def layer(j):
    ...     return x if j is None else x + torch.eye(3)[j].outer(torch.ones(3))
    >>> value_zeroing(layer, 3)[0].equal(torch.eye(3, dtype=torch.float64))
    True
    """
    with torch.no_grad():
        whole = _directions(layer(None))
        # Half the squared chord is 1 - cosine, and exactly 0 where nothing changed.
        changes = torch.stack([0.5 * (whole - _directions(layer(j))).square().sum(-1) for j in range(n_tokens)], dim=-1)
    total = changes.sum(-1, keepdim=True)
    return changes / torch.where(total > 0, total, torch.nan)


def _directions(vectors: Float[Tensor, "batch query dim"]) -> Float[Tensor, "batch query dim"]:
    return torch.nn.functional.normalize(exact(vectors), dim=-1)
