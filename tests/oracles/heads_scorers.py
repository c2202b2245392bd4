"""Scorers by loops, from the papers' definitions; imports nothing from attnprobe."""

import numpy as np


def head_norms(pattern, v, slices):
    """|alpha_ij v_j W^h|: pattern [head query key], v [head key dim], slices [head dim out]."""
    heads, n_queries, n_keys = pattern.shape
    found = np.zeros(pattern.shape)
    for h in range(heads):
        for i in range(n_queries):
            for j in range(n_keys):
                found[h, i, j] = np.linalg.norm(pattern[h, i, j] * (v[h, j] @ slices[h]))
    return found


def head_rollout(patterns):
    """Rollout through one head and all below: patterns [layer head query key] -> the same shape."""
    n = patterns.shape[-1]
    below = np.eye(n)
    found = np.zeros(patterns.shape)
    for layer, heads in enumerate(patterns):
        for h, pattern in enumerate(heads):
            found[layer, h] = _mixed(pattern) @ below
        below = _mixed(heads.mean(0)) @ below
    return found


def _mixed(pattern):
    mixed = 0.5 * pattern + 0.5 * np.eye(len(pattern))
    return mixed / mixed.sum(-1, keepdims=True)


def value_zeroing(whole, changed):
    """whole [query dim], changed[j] [query dim]: 1 - cosine, rows divided by their sum (0 where nothing changes)."""
    n = len(whole)
    found = np.zeros((n, len(changed)))
    for i in range(n):
        for j, other in enumerate(changed):
            a, b = whole[i], other[i]
            found[i, j] = 1 - a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
    total = found.sum(1, keepdims=True)
    return np.divide(found, total, out=np.zeros_like(found), where=total > 1e-12)


def mixing(pattern, v, slices, residual, norm=None):
    """Share that comes from other tokens, by building every moved vector; norm: (gain, eps, out_bias)."""
    heads, n, _ = pattern.shape
    ratios = []
    for i in range(n):
        parts = [sum(pattern[h, i, j] * (v[h, j] @ slices[h]) for h in range(heads)) for j in range(n)]
        parts[i] = parts[i] + residual[i]
        if norm is not None:
            gain, eps, bias = norm
            spread = np.sqrt((sum(parts) + bias).var() + eps)
            parts = [(part - part.mean()) / spread * gain for part in parts]
        own = np.linalg.norm(parts[i])
        others = np.linalg.norm(sum(part for j, part in enumerate(parts) if j != i))
        ratios.append(others / (others + own))
    return np.array(ratios)
