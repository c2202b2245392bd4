"""Rollout, flow and vector norms the long way, from Abnar and Zuidema 2020 and Kobayashi et al. 2020, 2021."""

import networkx as nx
import numpy as np


def mixed(pattern, residual=0.5):
    """(1 - r) A + r I, rows divided by their sum, of one [query key] pattern."""
    out = np.array(
        [
            [(1 - residual) * pattern[i, j] + residual * (i == j) for j in range(len(pattern))]
            for i in range(len(pattern))
        ]
    )
    return out / out.sum(1, keepdims=True)


def rollout(patterns, residual=0.5):
    """[layer head query key] -> the product of all layers up to each."""
    below, out = np.eye(patterns.shape[-1]), []
    for layer in patterns:
        below = mixed(sum(layer) / len(layer), residual) @ below
        out.append(below)
    return np.array(out)


def attention_flow(patterns, residual=0.5):
    """Maximum flow between the top and the bottom of the layered graph, pair by pair, in floating point."""
    depth, n = len(patterns), patterns.shape[-1]
    graph = nx.DiGraph()
    for layer in range(depth):
        capacities = mixed(patterns[layer].mean(0), residual)
        for i in range(n):
            for j in range(n):
                graph.add_edge((layer + 1, i), (layer, j), capacity=float(capacities[i, j]))
    flow = np.array([[nx.maximum_flow_value(graph, (depth, i), (0, j)) for j in range(n)] for i in range(n)])
    return flow / flow.sum(1, keepdims=True)


def moved(pattern, v, w_out):
    """Every alpha f vector, [batch head query key dim]: v [batch head key value_dim], w_out [head value_dim dim]."""
    f = np.einsum("bhkv,hvd->bhkd", v, w_out)
    return pattern[..., None] * f[:, :, None]


def mixing(vectors, x, norm=None):
    """Norms and ratio of a block from the full [batch query key dim] tensor; norm: (weight, eps, output bias)."""
    z = vectors.sum(1)
    n = z.shape[1]
    for i in range(n):
        z[:, i, i] += x[:, i]
    if norm is not None:
        weight, eps, out_bias = norm
        spread = np.sqrt((z.sum(2) + out_bias).var(-1) + eps)
        z = (z - z.mean(-1, keepdims=True)) / spread[:, :, None, None] * weight
    ratio = np.zeros(z.shape[:2])
    for b in range(len(z)):
        for i in range(n):
            others = np.linalg.norm(sum(z[b, i, j] for j in range(n) if j != i))
            ratio[b, i] = others / (others + np.linalg.norm(z[b, i, i]))
    return np.linalg.norm(z, axis=-1), ratio
