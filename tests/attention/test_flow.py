"""Rollout, flow and value zeroing: closed forms, loops, networkx."""

import numpy as np
import pytest
import torch

from attnprobe.attention import (
    EncoderBlock,
    MultiHeadAttention,
    attention_flow,
    head_rollout,
    rollout,
    value_zeroing,
    with_residual,
)
from attnprobe.errors import InputError
from tests.oracles import attention_flow as oracle

LAYERS, HEADS, LENGTH, DIM = 3, 2, 5, 7
CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def patterns(draw):
    return torch.softmax(2 * draw(LAYERS, HEADS, LENGTH, LENGTH), -1)


@pytest.mark.parametrize("residual", [0.5, 0.0, 0.3])
def test_rollout_equals_the_loops(patterns, residual):
    np.testing.assert_allclose(
        rollout(patterns, residual=residual), oracle.rollout(patterns.numpy(), residual), **CLOSE
    )
    torch.testing.assert_close(rollout(patterns).sum(-1), torch.ones(LAYERS, LENGTH, dtype=torch.float64), **CLOSE)


def test_rollout_of_uniform_layers_has_a_closed_form():
    uniform = torch.full((11, HEADS, LENGTH, LENGTH), 1 / LENGTH, dtype=torch.float64)
    for depth, found in enumerate(rollout(uniform), start=1):
        expected = 0.5**depth * torch.eye(LENGTH, dtype=torch.float64) + (1 - 0.5**depth) / LENGTH
        torch.testing.assert_close(found, expected, **CLOSE)


def test_rollout_of_identities_is_the_identity():
    identity = torch.eye(LENGTH).expand(LAYERS, HEADS, LENGTH, LENGTH)
    assert torch.equal(rollout(identity), torch.eye(LENGTH).expand(LAYERS, LENGTH, LENGTH))


@pytest.mark.parametrize("residual", [0.5, 0.2])
def test_head_rollout_averages_to_the_rollout_of_all(patterns, residual):
    by_head = head_rollout(patterns, residual=residual)
    torch.testing.assert_close(by_head.mean(1), rollout(patterns, residual=residual), **CLOSE)
    below = oracle.rollout(patterns.numpy(), residual)[1]
    np.testing.assert_allclose(by_head[2, 1], oracle.mixed(patterns[2, 1].numpy(), residual) @ below, **CLOSE)


def test_batches_roll_out_as_their_sentences(draw):
    patterns = torch.softmax(draw(LAYERS, 2, HEADS, LENGTH, LENGTH), -1)
    torch.testing.assert_close(rollout(patterns)[:, 1], rollout(patterns[:, 1]), **CLOSE)
    torch.testing.assert_close(head_rollout(patterns)[:, 1], head_rollout(patterns[:, 1]), **CLOSE)


def test_rows_that_see_nothing_keep_themselves(patterns):
    blind = patterns.clone()
    blind[1, :, 2] = 0
    assert torch.equal(with_residual(blind[1, 0])[2], torch.eye(LENGTH, dtype=torch.float64)[2])
    torch.testing.assert_close(rollout(blind)[1, 2], rollout(blind)[0, 2], **CLOSE)


@pytest.mark.parametrize("residual", [0.5, 0.1])
def test_flow_equals_networkx(patterns, residual):
    found = attention_flow(patterns, residual=residual)
    np.testing.assert_allclose(found, oracle.attention_flow(patterns.numpy(), residual), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.sum(-1), torch.ones(LENGTH, dtype=torch.float64), **CLOSE)


def test_flow_of_one_layer_is_its_row(patterns):
    for layer in (0, -LAYERS):
        found = attention_flow(patterns, layer=layer)
        torch.testing.assert_close(found, with_residual(patterns[0].mean(0)), rtol=0, atol=2e-7)
    middle = attention_flow(patterns, layer=1)
    torch.testing.assert_close(middle, attention_flow(patterns[:2]), **CLOSE)
    assert (middle - attention_flow(patterns)).abs().max() > 0.01


def test_flow_finds_the_bottleneck():
    """Everything must pass one position, whose edges are the limit: a product would give less."""
    to_first = torch.zeros(3, 3, dtype=torch.float64)
    to_first[:, 0] = 1
    spread = torch.tensor([[0.6, 0.3, 0.1]] * 3, dtype=torch.float64)
    flow = attention_flow(torch.stack([spread, to_first])[:, None], residual=0.0)
    torch.testing.assert_close(flow, spread, rtol=0, atol=1e-7)


def test_chaining_needs_self_attention_and_a_share(draw):
    with pytest.raises(InputError, match=r"expected as many queries as keys, got 5 and 7"):
        rollout(torch.softmax(draw(LAYERS, HEADS, 5, 7), -1))
    with pytest.raises(InputError, match=r"expected 0\.\.1, got 1\.5"):
        with_residual(torch.eye(3), 1.5)


def zeroed_block(block, x):
    """`layer(j)` of a post-LN block: its output with the value vector of token j set to zero."""

    def layer(j):
        if j is None:
            return block(x).hidden
        keep = torch.ones(x.shape[1], 1, dtype=x.dtype)
        keep[j] = 0
        handle = block.attention.value.register_forward_hook(lambda module, inputs, output: output * keep)
        try:
            return block(x).hidden
        finally:
            handle.remove()

    return layer


def sharpened(module, draw):
    module = module.double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * draw(*parameter.shape))
    return module


def test_value_zeroing_is_zero_exactly_where_nobody_looks(draw):
    """Causal: a later token changes nothing before it, after feed-forward and norms too."""
    block = sharpened(EncoderBlock(DIM * 2, attention=MultiHeadAttention(DIM * 2, 2, causal=True)), draw)
    scores = value_zeroing(zeroed_block(block, draw(2, LENGTH, DIM * 2)), LENGTH)
    assert torch.equal(scores.triu(1), torch.zeros_like(scores))
    assert (scores.tril() > 0).sum() == 2 * LENGTH * (LENGTH + 1) // 2
    torch.testing.assert_close(scores.sum(-1), torch.ones(2, LENGTH, dtype=torch.float64), **CLOSE)


def test_value_zeroing_has_a_closed_form_without_norm_and_feed_forward(draw):
    pattern, v, x = torch.softmax(draw(LENGTH, LENGTH), -1), draw(LENGTH, DIM), draw(LENGTH, DIM)
    v[3] = 0  # a value of zero: taking it away changes nothing

    def layer(j):
        kept = v.clone()
        if j is not None:
            kept[j] = 0
        return (pattern @ kept + x)[None]

    expected = np.zeros((LENGTH, LENGTH))
    whole = (pattern @ v + x).numpy()
    for i in range(LENGTH):
        for j in range(LENGTH):
            less = whole[i] - pattern[i, j].item() * v[j].numpy()
            expected[i, j] = 1 - whole[i] @ less / np.linalg.norm(whole[i]) / np.linalg.norm(less)
    expected /= expected.sum(1, keepdims=True)
    found = value_zeroing(layer, LENGTH)
    np.testing.assert_allclose(found[0], expected, **CLOSE)
    assert torch.equal(found[0, :, 3], torch.zeros(LENGTH, dtype=torch.float64))


def test_a_row_that_nothing_changes_is_nan():
    x = torch.eye(3)[None]
    found = value_zeroing(lambda j: x if j != 1 else x * torch.tensor([1.0, 1.0, -1.0]), 3)
    assert found[0, :2].isnan().all()
    assert found[0, 2].tolist() == [0.0, 1.0, 0.0]
