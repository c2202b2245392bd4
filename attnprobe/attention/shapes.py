"""The shapes of one attention call, as a table to print."""

from __future__ import annotations

from attnprobe.attention.call import AttentionCall


def describe(call: AttentionCall) -> str:
    """Table of what flows through an attention call, axes and sizes, for printing: `print(describe(call))`.

    Rows: query, key, value, what is added, scores, weights, context, and the output of the concatenated heads before the
    projection, with the formula of each.

    >>> import torch
    >>> call = AttentionCall(0, "encoder", 0, 0, torch.zeros(2, 8, 5, 4), torch.zeros(2, 8, 5, 4), torch.zeros(2, 8, 5, 4),
    ...     0.5, None, None, None, None, torch.zeros(2, 8, 5, 4))
    >>> print(describe(call).splitlines()[2])
    query    batch head query dim         2 x 8 x 5 x 4  q
    """
    batch, heads, n_queries, dim = call.q.shape
    _, kv_heads, n_keys, value_dim = call.v.shape
    added = "mask and position bias" if call.bias is not None else "nothing"
    rows = [
        ("query", "batch head query dim", (batch, heads, n_queries, dim), "q"),
        ("key", "batch kv_head key dim", (batch, kv_heads, n_keys, dim), _shared("k", call)),
        ("value", "batch kv_head key value_dim", (batch, kv_heads, n_keys, value_dim), _shared("v", call)),
        ("scores", "batch head query key", (batch, heads, n_queries, n_keys), f"{_scores(call)}; added: {added}"),
        ("weights", "batch head query key", (batch, heads, n_queries, n_keys), _weights(call)),
        ("context", "batch head query value_dim", (batch, heads, n_queries, value_dim), "weights @ v"),
        (
            "output",
            "batch query head*value_dim",
            (batch, n_queries, heads * value_dim),
            "contexts side by side, then projected",
        ),
    ]
    lines = [("what", "axes", "shape", "how"), *((a, b, " x ".join(map(str, c)), d) for a, b, c, d in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(3)]
    table = ["  ".join([*(line[i].ljust(widths[i]) for i in range(3)), line[3]]).rstrip() for line in lines]
    return "\n".join(
        [f"layer {call.layer}, {call.kind} attention {call.index}, {call.implementation}, {call.q.dtype}", *table]
    )


def _shared(name: str, call: AttentionCall) -> str:
    return name if call.groups == 1 else f"{name}, each shared by {call.groups} heads"


def _scores(call: AttentionCall) -> str:
    product = f"q @ k^T * {call.scale:.6g}"
    return product if call.softcap is None else f"{call.softcap:.6g} * tanh({product} / {call.softcap:.6g})"


def _weights(call: AttentionCall) -> str:
    return "softmax over keys" if call.sinks is None else "softmax over keys and a sink per head, which is then dropped"
