"""Attention in loops over NumPy numbers, one weight at a time, from the papers' formulas."""

import math

import numpy as np


def softmax_row(scores, visible, sink=None):
    """Weights of one row; zeros where nothing is visible."""
    seen = [s for s, v in zip(scores, visible, strict=True) if v]
    if not seen:
        return np.zeros(len(scores))
    top = max(seen) if sink is None else max(*seen, sink)
    total = sum(math.exp(s - top) for s in seen) + (0.0 if sink is None else math.exp(sink - top))
    return np.array([math.exp(s - top) / total if v else 0.0 for s, v in zip(scores, visible, strict=True)])


def attention(q, k, v, *, scale, bias=None, visible=None, softcap=None, sinks=None):
    """Pattern and context of [batch head query dim] arrays; consecutive heads share the key heads."""
    batch, heads, n_queries, _ = q.shape
    n_keys, shared = k.shape[2], heads // k.shape[1]
    shape = (batch, heads, n_queries, n_keys)
    bias = np.zeros(shape) if bias is None else np.broadcast_to(bias, shape)
    visible = np.ones(shape, bool) if visible is None else np.broadcast_to(visible, shape)
    pattern, context = np.zeros(shape), np.zeros((batch, heads, n_queries, v.shape[-1]))
    for b in range(batch):
        for h in range(heads):
            for i in range(n_queries):
                scores = []
                for j in range(n_keys):
                    s = float(np.dot(q[b, h, i], k[b, h // shared, j])) * scale
                    s = s if softcap is None else softcap * math.tanh(s / softcap)
                    scores.append(s + bias[b, h, i, j])
                row = softmax_row(scores, visible[b, h, i], None if sinks is None else sinks[h])
                pattern[b, h, i] = row
                context[b, h, i] = sum(row[j] * v[b, h // shared, j] for j in range(n_keys))
    return pattern, context


def additive(q, k, w_query, w_key, v, b):
    """Bahdanau et al. 2015: v . tanh(W_q q + W_k k + b) of every query and key."""
    return np.array([[v @ np.tanh(w_query @ a + w_key @ c + b) for c in k] for a in q])


def bilinear(q, k, w):
    """Luong et al. 2015, general: q^T W k."""
    return np.array([[a @ w @ c for c in k] for a in q])


def cosine(q, k):
    return np.array([[a @ c / (np.linalg.norm(a) * np.linalg.norm(c)) for c in k] for a in q])


def sinusoidal(length, dim, base=10000.0):
    """Vaswani et al. 2017, section 3.5."""
    table = np.zeros((length, dim))
    for position in range(length):
        for i in range(dim):
            angle = position / base ** (2 * (i // 2) / dim)
            table[position, i] = math.sin(angle) if i % 2 == 0 else math.cos(angle)
    return table


def layer_norm(x, weight, bias, eps):
    mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(var + eps) * weight + bias
