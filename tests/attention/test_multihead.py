"""The layer and the block against torch's own modules, loops, and transformers' BERT and GPT-2-like layers."""

import numpy as np
import pytest
import torch
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from attnprobe.attention import EncoderBlock, MultiHeadAttention, RelativePositionBias
from attnprobe.errors import InputError
from tests.oracles import attention_core as oracle

BATCH, HEADS, LENGTH, SOURCE, HEAD_DIM = 2, 3, 5, 7, 11
DIM = HEADS * HEAD_DIM
CLOSE = {"rtol": 0, "atol": 1e-12}


def sharpened(module, draw):
    """The module in float64 with weights large enough for a mistake to show."""
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.3 * draw(*parameter.shape))
    return module


def fill(ours, theirs, key_dim=DIM):
    """Weights of a `torch.nn.MultiheadAttention` into ours."""
    if theirs.in_proj_weight is None:
        weights = theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight
    else:
        weights = theirs.in_proj_weight.chunk(3)
    with torch.no_grad():
        for layer, weight, bias in zip(
            (ours.query, ours.key, ours.value), weights, theirs.in_proj_bias.chunk(3), strict=True
        ):
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        ours.output.load_state_dict(theirs.out_proj.state_dict())
    return ours


@pytest.mark.parametrize("key_dim", [DIM, 13])
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_torch_in_values_and_gradients(draw, key_dim, masked):
    theirs = sharpened(nn.MultiheadAttention(DIM, HEADS, kdim=key_dim, vdim=key_dim, batch_first=True), draw)
    ours = fill(MultiHeadAttention(DIM, HEADS, key_dim=key_dim).double(), theirs)
    x, source, probe = draw(BATCH, LENGTH, DIM), draw(BATCH, SOURCE, key_dim), draw(BATCH, LENGTH, DIM)
    real = torch.tensor([[True] * 7, [True] * 3 + [False] * 4])
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    attended = ours(a, source, key_mask=real if masked else None)
    expected, weights = theirs(
        b, source, source, key_padding_mask=~real if masked else None, average_attn_weights=False
    )
    torch.testing.assert_close(attended.output, expected, **CLOSE)
    torch.testing.assert_close(attended.weights, weights, **CLOSE)
    (attended.output * probe).sum().backward()
    (expected * probe).sum().backward()
    torch.testing.assert_close(a.grad, b.grad, **CLOSE)
    torch.testing.assert_close(ours.output.weight.grad, theirs.out_proj.weight.grad, **CLOSE)
    grad = theirs.q_proj_weight.grad if theirs.in_proj_weight is None else theirs.in_proj_weight.grad.chunk(3)[0]
    torch.testing.assert_close(ours.query.weight.grad, grad, **CLOSE)


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
def test_grouped_heads_with_everything_equal_the_loops(draw, kv_heads):
    heads, dim = 6, 66
    relative = RelativePositionBias(heads, n_buckets=14, max_distance=41)
    layer = MultiHeadAttention(
        dim, heads, kv_heads=kv_heads, head_dim=13, bias=False, out_bias=True, scale=0.41, softcap=1.9, sinks=True,
        window=3, causal=True, relative=relative,
    )  # fmt: skip
    sharpened(layer, draw)
    x, bias = draw(BATCH, LENGTH, dim), draw(BATCH, heads, LENGTH, LENGTH)

    def split(projected, n):
        return projected.reshape(BATCH, LENGTH, n, 13).transpose(0, 2, 1, 3)

    weights = [m.weight.detach().numpy() for m in (layer.query, layer.key, layer.value)]
    q, k, v = (split(x.numpy() @ w.T, n) for w, n in zip(weights, (heads, kv_heads, kv_heads), strict=True))
    ahead = np.arange(LENGTH)[None] - np.arange(LENGTH)[:, None]
    pattern, context = oracle.attention(
        q, k, v, scale=0.41, softcap=1.9, sinks=layer.sinks.detach().numpy(), visible=(ahead <= 0) & (ahead > -3),
        bias=bias.numpy() + relative(LENGTH, LENGTH).detach().numpy(),
    )  # fmt: skip
    attended = layer(x, bias=bias)
    together = context.transpose(0, 2, 1, 3).reshape(BATCH, LENGTH, heads * 13)
    output = together @ layer.output.weight.detach().numpy().T + layer.output.bias.detach().numpy()
    np.testing.assert_allclose(attended.weights.detach(), pattern, **CLOSE)
    np.testing.assert_allclose(attended.context.detach(), context, **CLOSE)
    np.testing.assert_allclose(attended.output.detach(), output, **CLOSE)


def test_heads_that_share_keys_equal_heads_that_repeat_them(draw):
    shared = sharpened(MultiHeadAttention(DIM, HEADS, kv_heads=1), draw)
    repeated = MultiHeadAttention(DIM, HEADS).double()
    with torch.no_grad():
        for name in ("query", "output"):
            getattr(repeated, name).load_state_dict(getattr(shared, name).state_dict())
        for name in ("key", "value"):
            getattr(repeated, name).weight.copy_(getattr(shared, name).weight.repeat(HEADS, 1))
            getattr(repeated, name).bias.copy_(getattr(shared, name).bias.repeat(HEADS))
    x = draw(BATCH, LENGTH, DIM)
    torch.testing.assert_close(shared(x).output, repeated(x).output, **CLOSE)


def test_eight_heads_by_default_and_gradcheck(draw):
    layer = sharpened(MultiHeadAttention(16, kv_heads=4, sinks=True), draw)
    assert layer.heads == 8
    x = draw(1, 3, 16).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x).output, (x,))


def test_rotate_acts_on_split_queries_and_keys(draw):
    layer = sharpened(MultiHeadAttention(DIM, HEADS, rotate=lambda q, k: (2 * q, k.flip(2))), draw)
    plain = sharpened(MultiHeadAttention(DIM, HEADS), draw)
    plain.load_state_dict(layer.state_dict())
    plain.scale *= 2
    x = draw(BATCH, LENGTH, DIM)
    torch.testing.assert_close(layer(x).weights, plain(x).weights.flip(-1), **CLOSE)


def test_key_mask_and_mask_hold_together(draw):
    layer = sharpened(MultiHeadAttention(DIM, HEADS), draw)
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    weights = layer(draw(BATCH, LENGTH, DIM), mask=torch.ones(LENGTH, LENGTH).tril().bool(), key_mask=real).weights
    assert (weights.triu(1) == 0).all()
    assert (weights[1, :, :, 2:] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, LENGTH, dtype=torch.float64), **CLOSE)


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
def test_the_block_agrees_with_torch(draw, pre_norm, activation):
    theirs = nn.TransformerEncoderLayer(
        DIM, HEADS, 17, dropout=0.0, activation=activation, norm_first=pre_norm, batch_first=True, layer_norm_eps=1e-6
    )
    theirs = sharpened(theirs, draw).train()  # eval takes a fused path
    ours = EncoderBlock(DIM, HEADS, feed_forward=17, pre_norm=pre_norm, activation=activation, norm_eps=1e-6).double()
    fill(ours.attention, theirs.self_attn)
    pairs = {"attention_norm": "norm1", "feed_forward_norm": "norm2", "widen": "linear1", "narrow": "linear2"}
    for name, other in pairs.items():
        getattr(ours, name).load_state_dict(getattr(theirs, other).state_dict())
    x, real = draw(BATCH, LENGTH, DIM), torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    expected = theirs(x, src_key_padding_mask=~real)
    torch.testing.assert_close(ours(x, key_mask=real).hidden, expected, **CLOSE)


def test_the_block_reproduces_a_bert_layer(draw):
    config = BertConfig(hidden_size=DIM, num_attention_heads=HEADS, intermediate_size=17, _attn_implementation="eager")
    theirs = sharpened(BertLayer(config), draw).eval()
    ours = EncoderBlock(DIM, HEADS, feed_forward=17, norm_eps=config.layer_norm_eps).double()
    pairs = {
        ours.attention.query: theirs.attention.self.query,
        ours.attention.key: theirs.attention.self.key,
        ours.attention.value: theirs.attention.self.value,
        ours.attention.output: theirs.attention.output.dense,
        ours.attention_norm: theirs.attention.output.LayerNorm,
        ours.widen: theirs.intermediate.dense,
        ours.narrow: theirs.output.dense,
        ours.feed_forward_norm: theirs.output.LayerNorm,
    }
    for mine, other in pairs.items():
        mine.load_state_dict(other.state_dict())
    x = draw(BATCH, LENGTH, DIM)
    theirs_out = theirs(x)
    theirs_out = theirs_out[0] if isinstance(theirs_out, tuple) else theirs_out
    torch.testing.assert_close(ours(x).hidden, theirs_out, **CLOSE)


def test_errors_name_the_parts():
    with pytest.raises(InputError, match=r"kv_heads that divides heads, got heads=6, kv_heads=4"):
        MultiHeadAttention(12, 6, kv_heads=4)
    with pytest.raises(InputError, match=r"expected dim divisible by 8, got 13.*head_dim"):
        MultiHeadAttention(13)
    assert MultiHeadAttention(13, head_dim=5).output.in_features == 40
    with pytest.raises(InputError, match=r"unknown activation 'gelo'; near names: gelu"):
        EncoderBlock(16, activation="gelo")
