"""Captured calls made by hand, for the tests of this folder."""

import torch

from attnprobe.attention import AttentionCall

HIDDEN = torch.finfo(torch.float32).min


def make_call(q, k, v, *, scale=None, bias=None, softcap=None, sinks=None, visible=None, implementation="eager"):
    """A call without the model's own pattern; its context is zeros."""
    context = torch.zeros(*q.shape[:3], v.shape[-1], dtype=q.dtype)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return AttentionCall(
        0, "encoder", 0, 0, q, k, v, scale, bias, softcap, sinks, None, context, visible, implementation
    )


def padding_bias(lengths, n_keys, dtype=torch.float32, value=None):
    """[batch 1 1 key]-like additive mask, expanded by the caller, as eager models build it from lengths."""
    hidden = torch.arange(n_keys)[None] >= torch.tensor(lengths)[:, None]
    value = torch.finfo(dtype).min if value is None else value
    return torch.zeros(len(lengths), n_keys, dtype=dtype).masked_fill(hidden, value)[:, None, None, :]


def causal_bias(n, dtype=torch.float32, value=None):
    value = torch.finfo(dtype).min if value is None else value
    return torch.zeros(n, n, dtype=dtype).masked_fill(torch.ones(n, n).triu(1).bool(), value)[None, None]
