"""Norms of moved vectors: the identities of the definition, the full tensor as oracle, exact zeros."""

import numpy as np
import pytest
import torch
from torch import nn

from attnprobe.attention import (
    MultiHeadAttention,
    PostNorm,
    head_norms,
    layer_norms,
    mixing,
    moved_vectors,
    split_projection,
)
from attnprobe.errors import InputError
from tests.oracles import attention_flow as oracle

BATCH, HEADS, LENGTH, KEYS, VALUE_DIM, DIM = 2, 6, 5, 7, 11, 13
CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def parts(draw):
    pattern = torch.softmax(2 * draw(BATCH, HEADS, LENGTH, KEYS), -1)
    return pattern, draw(BATCH, HEADS, KEYS, VALUE_DIM), draw(DIM, HEADS * VALUE_DIM)


@pytest.mark.parametrize("kv_heads", [6, 2, 1])
def test_norms_equal_the_full_tensor(draw, parts, kv_heads):
    pattern, v, w_out = parts
    v = v[:, :kv_heads]
    moved = moved_vectors(v, split_projection(w_out, HEADS))
    repeated = v.repeat_interleave(HEADS // kv_heads, 1).numpy()
    sliced = np.stack([w_out.numpy()[:, h * VALUE_DIM : (h + 1) * VALUE_DIM].T for h in range(HEADS)])
    full = oracle.moved(pattern.numpy(), repeated, sliced)
    np.testing.assert_allclose(head_norms(pattern, moved), np.linalg.norm(full, axis=-1), **CLOSE)
    np.testing.assert_allclose(layer_norms(pattern, moved), np.linalg.norm(full.sum(1), axis=-1), **CLOSE)
    assert (layer_norms(pattern, moved) <= head_norms(pattern, moved).sum(1) + 1e-12).all()


def test_moved_vectors_add_up_to_the_layer_less_its_constant(draw):
    """Sum over heads and keys of alpha f, plus the output bias, is what the layer puts out; the value bias is in."""
    layer = MultiHeadAttention(DIM * 2, 2).double()
    x = draw(BATCH, LENGTH, DIM * 2)
    attended = layer(x)
    v = layer.value(x).unflatten(-1, (2, DIM)).transpose(1, 2)
    moved = moved_vectors(v, split_projection(layer.output.weight, 2))
    total = torch.einsum("bhqk,bhkd->bqd", attended.weights, moved) + layer.output.bias
    torch.testing.assert_close(total, attended.output, **CLOSE)


def test_a_zero_value_moves_nothing_whatever_its_weight(parts):
    pattern, v, w_out = parts
    pattern, v = pattern.clone(), v.clone()
    v[:, :, 3] = 0
    pattern[:] = torch.eye(KEYS)[3]
    moved = moved_vectors(v, split_projection(w_out, HEADS))
    assert torch.equal(head_norms(pattern, moved), torch.zeros_like(pattern))
    assert torch.equal(layer_norms(pattern, moved), torch.zeros_like(pattern[:, 0]))


def test_an_orthogonal_projection_of_one_head_keeps_lengths(draw):
    w_out = torch.linalg.qr(draw(DIM, DIM)).Q
    pattern, v = torch.softmax(draw(BATCH, 1, LENGTH, KEYS), -1), draw(BATCH, 1, KEYS, DIM)
    expected = pattern * v.norm(dim=-1)[:, :, None]
    moved = moved_vectors(v, split_projection(w_out, 1))
    torch.testing.assert_close(head_norms(pattern, moved), expected, **CLOSE)
    torch.testing.assert_close(layer_norms(pattern, moved), expected[:, 0], **CLOSE)


@pytest.fixture
def block(draw, parts):
    pattern, v, w_out = parts[0][..., :LENGTH], parts[1][:, :, :LENGTH], parts[2]
    pattern = pattern / pattern.sum(-1, keepdim=True)
    return pattern, moved_vectors(v, split_projection(w_out, HEADS)), draw(BATCH, LENGTH, DIM)


def full_tensor(pattern, moved):
    return (pattern[..., None] * moved[:, :, None]).numpy()


def test_mixing_of_a_pre_norm_block_equals_the_full_tensor(block):
    pattern, moved, x = block
    norms, ratio = oracle.mixing(full_tensor(pattern, moved), x.numpy())
    found = mixing(pattern, moved, x)
    np.testing.assert_allclose(found.norms, norms, **CLOSE)
    np.testing.assert_allclose(found.ratio, ratio, **CLOSE)


@pytest.mark.parametrize("eps", [1e-12, 0.1])
@pytest.mark.parametrize("with_bias", [False, True])
def test_mixing_of_a_post_norm_block_equals_the_full_tensor(draw, block, eps, with_bias):
    pattern, moved, x = block
    weight, bias = draw(DIM), draw(DIM) if with_bias else torch.zeros(DIM).double()
    expected = oracle.mixing(full_tensor(pattern, moved), x.numpy(), (weight.numpy(), eps, bias.numpy()))
    found = mixing(pattern, moved, x, norm=PostNorm(weight, eps, bias if with_bias else None))
    np.testing.assert_allclose(found.norms, expected[0], **CLOSE)
    np.testing.assert_allclose(found.ratio, expected[1], **CLOSE)


def test_the_parts_of_a_post_norm_block_add_up_to_its_layer_norm(draw, block):
    """One token: its own part, with the constant parts put back, is the LayerNorm's output."""
    pattern, moved, x = torch.ones(BATCH, HEADS, 1, 1).double(), block[1][:, :, :1], block[2][:, :1]
    norm = nn.LayerNorm(DIM, eps=1e-5).double()
    with torch.no_grad():
        norm.weight.copy_(draw(DIM))
    whole = norm(moved.sum(1) + x)
    found = mixing(pattern, moved, x, norm=PostNorm(norm.weight.detach(), 1e-5))
    torch.testing.assert_close(found.norms[..., 0], whole.norm(dim=-1).detach(), **CLOSE)
    assert torch.equal(found.ratio, torch.zeros(BATCH, 1, dtype=torch.float64))


def test_looking_only_at_oneself_mixes_exactly_nothing(block):
    _, moved, x = block
    identity = torch.eye(LENGTH, dtype=torch.float64).expand(BATCH, HEADS, LENGTH, LENGTH)
    assert torch.equal(mixing(identity, moved, x).ratio, torch.zeros(BATCH, LENGTH, dtype=torch.float64))
    weight = torch.ones(DIM).double()
    found = mixing(identity, moved, x, norm=PostNorm(weight, 1e-5))
    assert torch.equal(found.ratio, torch.zeros(BATCH, LENGTH, dtype=torch.float64))


def test_errors_name_the_parts(draw, parts):
    pattern, v, w_out = parts
    moved = moved_vectors(v, split_projection(w_out, HEADS))
    with pytest.raises(InputError, match=r"expected a pattern of 5 queries and keys.*got 5 queries, 7 keys"):
        mixing(pattern, moved, draw(BATCH, LENGTH, DIM))
    with pytest.raises(InputError, match=r"expected a width divisible by 4, got 66"):
        split_projection(w_out, 4)
