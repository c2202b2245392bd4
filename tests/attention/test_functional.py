"""`attend` against loops, torch's own, and its own promises: stability, masks, empty rows, gradients."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from attnprobe.attention import attend, masked_softmax, position_mask
from attnprobe.errors import InputError
from tests.oracles import attention_core as oracle

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 2, 3, 5, 7, 11, 13
CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def qkv(draw):
    return 2 * draw(BATCH, HEADS, QUERIES, DIM), draw(BATCH, HEADS, KEYS, DIM), draw(BATCH, HEADS, KEYS, VALUE_DIM)


def test_everything_at_once_equals_the_loops(draw, qkv):
    q, k, v = qkv
    visible, bias, sinks = draw(BATCH, 1, QUERIES, KEYS) > -0.3, draw(BATCH, HEADS, QUERIES, KEYS), draw(HEADS)
    attended = attend(q, k, v, mask=visible, bias=bias, softcap=1.7, sinks=sinks, window=3, causal=True)
    ahead = np.arange(KEYS)[None] - (np.arange(QUERIES)[:, None] + KEYS - QUERIES)
    seen = visible.numpy() & (ahead <= 0) & (abs(ahead) < 3)
    pattern, context = oracle.attention(
        q.numpy(), k.numpy(), v.numpy(), scale=DIM**-0.5, bias=bias.numpy(), visible=seen, softcap=1.7,
        sinks=sinks.numpy(),
    )  # fmt: skip
    np.testing.assert_allclose(attended.weights, pattern, **CLOSE)
    np.testing.assert_allclose(attended.context, context, **CLOSE)
    np.testing.assert_array_equal(attended.empty, np.broadcast_to(~seen.any(-1), attended.empty.shape))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_agrees_with_torch_sdpa(draw, qkv, causal, masked):
    q, k, v = qkv[0], qkv[1][:, :, :QUERIES], qkv[2][:, :, :QUERIES]
    mask = (draw(BATCH, 1, QUERIES, QUERIES) > -1) | torch.eye(QUERIES).bool()
    both = mask & torch.ones(QUERIES, QUERIES).tril().bool() if causal else mask
    attended = attend(q, k, v, mask=mask if masked else None, causal=causal)
    expected = F.scaled_dot_product_attention(
        q, k, v, attn_mask=both if masked else None, is_causal=causal and not masked
    )
    torch.testing.assert_close(attended.context, expected, **CLOSE)


def test_gradients_agree_with_torch_sdpa(qkv, draw):
    ours, theirs = ([t.clone().requires_grad_() for t in qkv] for _ in range(2))
    mask = (draw(BATCH, 1, QUERIES, KEYS) > -0.5) | (torch.arange(KEYS) == 0)
    probe = draw(BATCH, HEADS, QUERIES, VALUE_DIM)
    (attend(*ours, mask=mask).context * probe).sum().backward()
    (F.scaled_dot_product_attention(*theirs, attn_mask=mask) * probe).sum().backward()
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, **CLOSE)


@pytest.mark.parametrize("options", [{}, {"softcap": 1.3}, {"causal": True, "window": 2}, {"similarity": "cosine"}])
def test_gradcheck(draw, options):
    q, k, v = (draw(2, n, d).requires_grad_() for n, d in ((3, 5), (3, 5), (3, 2)))
    sinks, bias = draw(2).requires_grad_(), draw(2, 3, 3).requires_grad_()

    def context(q, k, v, sinks, bias):
        return attend(q, k, v, sinks=sinks, bias=bias, **options).context

    assert torch.autograd.gradcheck(context, (q, k, v, sinks, bias))


def test_gradients_stay_finite_where_a_row_sees_nothing(draw):
    q, k, v = (draw(3, 5).requires_grad_() for _ in range(3))
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    attend(q, k, v, mask=mask).context.sum().backward()
    assert all(t.grad.isfinite().all() for t in (q, k, v))
    assert torch.equal(q.grad[1], torch.zeros(5, dtype=torch.float64))


@pytest.mark.parametrize("top", [88.0, 89.0, 1e4, 3e38])
def test_large_scores_do_not_overflow(top):
    scores = torch.tensor([[top, top, -top, 0.0]])
    torch.testing.assert_close(masked_softmax(scores)[0], torch.tensor([[0.5, 0.5, 0.0, 0.0]]), rtol=0, atol=1e-37)


def test_a_bare_exponential_overflows_at_89_in_float32():
    """Control for the test above."""
    assert torch.tensor(88.0).exp().isfinite()
    assert torch.tensor(89.0).exp().isinf()


def test_hidden_keys_get_exactly_nothing_and_the_rest_sums_to_one(draw, qkv):
    q, k, v = qkv
    mask = (draw(BATCH, HEADS, QUERIES, KEYS) > 0) | (torch.arange(KEYS) == 3)
    weights = attend(q, k, v, mask=mask).weights
    assert (weights[~mask] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(BATCH, HEADS, QUERIES, dtype=torch.float64), **CLOSE)
    assert torch.equal(weights, attend(q, k, v, bias=torch.zeros(1).masked_fill(~mask, float("-inf")).double()).weights)


@pytest.mark.parametrize(("empty_rows", "value"), [("zero", 0.0), ("uniform", 1 / KEYS), ("nan", math.nan)])
def test_rows_that_see_nothing_are_filled_as_asked_and_reported(qkv, empty_rows, value):
    mask = torch.ones(QUERIES, KEYS, dtype=torch.bool)
    mask[2] = False
    attended = attend(*qkv, mask=mask, empty_rows=empty_rows)
    expected = torch.full((BATCH, HEADS, KEYS), value, dtype=torch.float64)
    torch.testing.assert_close(attended.weights[:, :, 2], expected, equal_nan=True)
    assert attended.empty[:, :, 2].all()
    assert attended.empty.sum() == BATCH * HEADS
    assert torch.equal(attended.context[:, :, 2].isnan().any(), torch.tensor(empty_rows == "nan"))


def test_a_nan_score_shows():
    assert masked_softmax(torch.tensor([[math.nan, 1.0]]))[0].isnan().all()


def test_self_and_cross_attention_are_one_function(draw):
    source, target = draw(KEYS, DIM), draw(QUERIES, DIM)
    cross = attend(target, source, source)
    assert cross.context.shape == (QUERIES, DIM)
    itself = attend(source, source, source)
    torch.testing.assert_close(attend(torch.cat([source, target]), source, source).context[:KEYS], itself.context)
    torch.testing.assert_close(attend(torch.cat([source, target]), source, source).context[KEYS:], cross.context)


def test_position_masks():
    assert position_mask(3, 3).all()
    assert position_mask(2, 4, causal=True).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert position_mask(4, 4, window=2).int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
    assert position_mask(4, 4, window=3, causal=True).sum(-1).tolist() == [1, 2, 3, 3]
    with pytest.raises(InputError, match=r"expected window >= 1, got 0"):
        position_mask(2, 2, window=0)


@pytest.mark.usefixtures("unchecked")
def test_errors_name_the_parts(draw):
    q, v = draw(3, 5), draw(2, 5)
    with pytest.raises(InputError, match=r"differ in length: expected 3 values, got 2"):
        attend(q, q, v)
    with pytest.raises(InputError, match=r"mask is not bool.*got torch.int64.*additive mask as `bias`"):
        attend(q, q, q, mask=torch.ones(3, 3, dtype=torch.int64))
    with pytest.raises(InputError, match=r"broadcasts to \(3, 3\), got \(2, 3\)"):
        attend(q, q, q, mask=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(InputError, match=r"empty rows 'zeros'; near names: zero"):
        attend(q, q, q, empty_rows="zeros")
