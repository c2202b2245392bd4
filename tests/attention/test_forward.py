"""Recompute and replay: against loops in float64, against transformers' own eager functions bit for bit, in the traps."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers.models.bert.modeling_bert import eager_attention_forward as bert_eager
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma2_eager
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss_eager
from transformers.models.gptj.modeling_gptj import eager_attention_forward as gptj_eager
from transformers.models.llama.modeling_llama import eager_attention_forward as llama_eager

from attnprobe.attention import (
    context_of,
    entropy_of,
    inputs_as,
    iter_row_blocks,
    pattern_of,
    recompute,
    replay,
    scores_of,
    visible_of,
)
from attnprobe.attention.forward import Scratch, pattern_and_entropy_of
from attnprobe.errors import InputError
from tests.attention.calls import causal_bias, make_call, padding_bias
from tests.oracles import attention_core as oracle

BATCH, HEADS, QUERIES, KEYS, DIM, VALUE_DIM = 3, 10, 7, 13, 11, 17
CLOSE = {"rtol": 0, "atol": 1e-12}


def sharp(draw, kv_heads=HEADS, dtype=torch.float64):
    q, k, v = draw(BATCH, HEADS, QUERIES, DIM), draw(BATCH, kv_heads, KEYS, DIM), draw(BATCH, kv_heads, KEYS, VALUE_DIM)
    return (3 * q).to(dtype), k.to(dtype), v.to(dtype)


@pytest.mark.parametrize("kv_heads", [10, 5, 1])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_recompute_equals_the_loops(draw, kv_heads, softcap, with_sinks):
    q, k, v = sharp(draw, kv_heads)
    bias, sinks = draw(BATCH, HEADS, QUERIES, KEYS), draw(HEADS) if with_sinks else None
    visible = draw(BATCH, 1, QUERIES, KEYS) > -0.5
    visible[1, 0, 2] = False
    added = bias.masked_fill(~visible, float("-inf"))
    call = make_call(q, k, v, bias=added, softcap=softcap, sinks=sinks, scale=0.7)
    pattern, context = recompute(call)
    expected = oracle.attention(
        q.numpy(), k.numpy(), v.numpy(), scale=0.7, bias=bias.numpy(), visible=visible.numpy(), softcap=softcap,
        sinks=None if sinks is None else sinks.numpy(),
    )  # fmt: skip
    np.testing.assert_allclose(pattern.numpy(), expected[0], **CLOSE)
    np.testing.assert_allclose(context.numpy(), expected[1], **CLOSE)


def test_sinks_of_each_query_whole_and_by_blocks_of_rows(draw):
    """A sink per query that is the same for all queries of a head is the head's sink; blocks of rows take their own."""
    q, k, v = draw(BATCH, HEADS, QUERIES, 3), draw(BATCH, HEADS, KEYS, 3), draw(BATCH, HEADS, KEYS, 5)
    each, sinks = draw(BATCH, HEADS, QUERIES, 1), draw(HEADS)
    same = make_call(q, k, v, sinks=sinks[None, :, None, None].expand(BATCH, HEADS, QUERIES, 1))
    torch.testing.assert_close(recompute(same), recompute(make_call(q, k, v, sinks=sinks)))
    call = make_call(q, k, v, sinks=each)
    whole = pattern_of(call)
    for rows in (slice(0, 2), slice(2, QUERIES)):
        torch.testing.assert_close(pattern_of(call, rows), whole[:, :, rows])
    torch.testing.assert_close(replay(call)[0], whole)


def test_rows_with_sinks_sum_to_less_than_one(draw):
    q, k, v = sharp(draw)
    without, _ = recompute(make_call(q, k, v))
    with_sinks, _ = recompute(make_call(q, k, v, sinks=draw(HEADS)))
    torch.testing.assert_close(without.sum(-1), torch.ones(BATCH, HEADS, QUERIES, dtype=torch.float64), **CLOSE)
    assert (with_sinks.sum(-1) < 1 - 1e-9).all()
    assert (with_sinks.sum(-1) > 0).all()


@pytest.mark.parametrize("kv_heads", [10, 2])
@pytest.mark.parametrize("max_elements", [1, 500, 10**6])
def test_blocks_of_rows_cover_the_whole(draw, kv_heads, max_elements):
    q, k, v = sharp(draw, kv_heads)
    call = make_call(q, k, v, bias=draw(BATCH, 1, QUERIES, KEYS), softcap=3.0, sinks=draw(HEADS))
    blocks = list(iter_row_blocks(call, max_elements))
    assert [i for block in blocks for i in range(block.start, block.stop)] == list(range(QUERIES))
    assert all(BATCH * HEADS * (b.stop - b.start) * KEYS <= max_elements or b.stop - b.start == 1 for b in blocks)
    whole_pattern, whole_context = recompute(call)
    torch.testing.assert_close(torch.cat([pattern_of(call, b) for b in blocks], 2), whole_pattern, **CLOSE)
    torch.testing.assert_close(torch.cat([context_of(call, rows=b) for b in blocks], 2), whole_context, **CLOSE)
    torch.testing.assert_close(torch.cat([recompute(call, rows=b)[1] for b in blocks], 2), whole_context, **CLOSE)


@pytest.mark.parametrize("value", [None, -torch.inf])
@pytest.mark.parametrize("options", [{}, {"softcap": 3.0}, {"sinks": True}], ids=str)
def test_pattern_and_entropy_in_one_pass_are_those_of_two(draw, options, value):
    """Hidden keys, a row that sees nothing, a row that is one-hot; memory used again for blocks of other sizes."""
    q, k, v = sharp(draw, 5)
    q[0, 0, 3] *= 1e6  # one key takes everything
    bias = padding_bias([13, 5, 2], KEYS, torch.float64, value).expand(BATCH, 1, QUERIES, KEYS).clone()
    bias[1, :, 4] = torch.finfo(torch.float64).min if value is None else value
    options = {**options, "sinks": draw(HEADS)} if options.get("sinks") else options
    call = make_call(q, k, v, bias=bias, visible=bias > -1e3, **options)
    scratch = Scratch()
    for block in (slice(0, 5), slice(5, 6), slice(0, QUERIES)):
        pattern, entropy = pattern_and_entropy_of(call, block, scratch=scratch)
        torch.testing.assert_close(pattern, pattern_of(call, block), **CLOSE)
        torch.testing.assert_close(entropy, entropy_of(pattern_of(call, block)), equal_nan=True, **CLOSE)
    assert bool(entropy[1, :, 4].isnan().all())
    assert int(entropy.isnan().sum()) == HEADS
    assert options or entropy[0, 0, 3] == 0


def test_a_bias_of_one_query_row_holds_for_all_blocks(draw):
    q, k, v = sharp(draw)
    bias = padding_bias([13, 5, 2], KEYS, torch.float64)
    call = make_call(q, k, v, bias=bias)
    assert pattern_of(call)[1, :, :, 5:].abs().max() == 0
    torch.testing.assert_close(pattern_of(call, slice(2, 5)), pattern_of(call)[:, :, 2:5], **CLOSE)
    torch.testing.assert_close(scores_of(call, slice(2, 5))[0], scores_of(call)[0, :, 2:5], **CLOSE)


def test_blocks_of_no_size_are_refused(draw):
    with pytest.raises(InputError, match=r"expected max_elements >= 1, got 0"):
        list(iter_row_blocks(make_call(*sharp(draw)), 0))


EAGER = {
    "bert": (bert_eager, HEADS, {}, {}),
    "llama": (llama_eager, 5, {}, {"softmax_dtype": torch.float32}),
    "gemma2": (gemma2_eager, 5, {"softcap": 2.0}, {"softmax_dtype": torch.float32}),
    "gpt_oss": (gpt_oss_eager, 2, {"sinks": True}, {}),
    "gptj": (gptj_eager, HEADS, {}, {"score_dtype": torch.float32}),
}


@pytest.mark.parametrize("family", EAGER)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_replay_equals_eager_bit_for_bit(draw, family, dtype):
    eager, kv_heads, extras, how = EAGER[family]
    q, k, v = sharp(draw, kv_heads, dtype)
    bias = padding_bias([13, 5, 2], KEYS, dtype).expand(-1, -1, QUERIES, -1).clone()
    bias[2, :, 3] = torch.finfo(dtype).min  # a row that sees nothing: eager makes it uniform
    sinks = draw(HEADS).to(dtype) if "sinks" in extras else None
    module = SimpleNamespace(num_key_value_groups=HEADS // kv_heads, training=False, sinks=sinks)
    options = {"softcap": extras["softcap"]} if "softcap" in extras else {}
    out, weights = eager(module, q, k, v, bias, scaling=0.37, dropout=0.0, **options)
    call = make_call(q, k, v, scale=0.37, bias=bias, softcap=extras.get("softcap"), sinks=sinks)
    pattern, context = replay(call, **how)
    assert torch.equal(pattern, weights)
    assert torch.equal(context.transpose(1, 2), out)


@pytest.mark.parametrize("family", ["gptj", "gpt_oss"])
def test_the_upcasts_of_a_family_can_be_seen(draw, family):
    """Control for the test above: with the family's own option left out, half precision differs."""
    eager, kv_heads, extras, how = EAGER[family]
    q, k, v = sharp(draw, kv_heads, torch.bfloat16)
    sinks = draw(HEADS).to(torch.bfloat16) if "sinks" in extras else None
    module = SimpleNamespace(num_key_value_groups=HEADS // kv_heads, training=False, sinks=sinks)
    _, weights = eager(module, q, k, v, None, scaling=0.37, dropout=0.0)
    wrong = {"shift": False} if family == "gpt_oss" else {}
    assert not torch.equal(replay(make_call(q, k, v, scale=0.37, sinks=sinks), **wrong)[0], weights)


def test_rows_that_see_nothing(draw):
    """Zero in our maths; in the replay what the model makes of them: uniform for finfo.min, zero for -inf."""
    q, k, v = sharp(draw, dtype=torch.float32)
    hide_row = torch.zeros(BATCH, 1, QUERIES, KEYS)
    hide_row[1, :, 4] = 1.0
    for value, replayed in ((torch.finfo(torch.float32).min, 1 / KEYS), (float("-inf"), 0.0)):
        call = make_call(q, k, v, bias=torch.zeros(1).masked_fill(hide_row.bool(), value))
        for dtype in (torch.float32, None):
            pattern, context = recompute(call, dtype=dtype)
            assert torch.equal(pattern[1, :, 4], torch.zeros_like(pattern[1, :, 4]))
            assert torch.equal(context[1, :, 4], torch.zeros_like(context[1, :, 4]))
        torch.testing.assert_close(replay(call)[0][1, :, 4], torch.full((HEADS, KEYS), replayed))
        assert not replay(call)[1].isnan().any()
        assert visible_of(call).any(-1).sum() == BATCH * QUERIES - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("to", [torch.float64, torch.float16])
def test_a_cast_does_not_change_what_is_hidden(draw, dtype, to):
    """finfo.min of one dtype is a finite number or -inf in another; hidden keys and empty rows stay what they were."""
    q, k, v = sharp(draw, dtype=dtype)
    bias = causal_bias(KEYS, dtype)[:, :, :QUERIES].clone()
    bias[..., 5, :] = torch.finfo(dtype).min
    pattern, context = recompute(make_call(q, k, v, bias=bias), dtype=to)
    assert torch.equal(pattern.triu(1), torch.zeros_like(pattern))
    assert torch.equal(pattern[:, :, 5], torch.zeros_like(pattern[:, :, 5]))
    assert not context.isnan().any()
    assert inputs_as(make_call(q, k, v, bias=bias), to).q.dtype == to


def test_float64_is_immune_to_the_overflow_of_half_precision(draw):
    """Scores of 32 times the usual overflow float16 before the scale is applied."""
    q, k, v = sharp(draw, dtype=torch.float16)
    call = make_call(32 * q, 400 * k, v)
    assert scores_of(call).isinf().any()
    assert replay(call)[0].isnan().any()
    pattern, context = recompute(call)
    assert not context.isnan().any()
    torch.testing.assert_close(pattern.sum(-1), torch.ones(BATCH, HEADS, QUERIES, dtype=torch.float64), **CLOSE)


def test_visibility_given_or_read_off_the_bias(draw):
    q, k, v = sharp(draw)
    assert visible_of(make_call(q, k, v)).all()
    assert visible_of(make_call(q, k, v), slice(1, 4)).shape == (1, 1, 3, KEYS)
    by_bias = visible_of(make_call(q, k, v, bias=padding_bias([13, 5, 2], KEYS, torch.float64)))
    assert by_bias.sum(-1).tolist() == [[[n] * QUERIES] for n in (13, 5, 2)]
    given = draw(BATCH, 1, QUERIES, KEYS) > 0
    assert torch.equal(visible_of(make_call(q, k, v, visible=given), slice(3, 5)), given[:, :, 3:5])
    assert visible_of(make_call(q, k, v, bias=draw(BATCH, HEADS, QUERIES, KEYS) * 100)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [-1e4, -65504.0, float("-inf")])
def test_every_way_of_writing_a_mask_is_read(draw, dtype, value):
    """-1e4 is -9984 in bfloat16, and a position bias may lie on top of it."""
    q, k, v = sharp(draw, dtype=dtype)
    bias = padding_bias([13, 5, 2], KEYS, dtype, value) + 40 * draw(1, HEADS, QUERIES, KEYS).to(dtype)
    assert visible_of(make_call(q, k, v, bias=bias)).sum(-1)[:, 0, 0].tolist() == [13, 5, 2]


@pytest.mark.parametrize("kv_heads", [10, 5])
def test_recompute_agrees_with_torch_sdpa(draw, kv_heads):
    q, k, v = sharp(draw, kv_heads)
    visible = draw(BATCH, 1, QUERIES, KEYS) > -0.5
    call = make_call(q, k, v, bias=torch.zeros(1).masked_fill(~visible, float("-inf")).double(), scale=0.3)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(recompute(call)[1], expected, **CLOSE)


def test_inputs_are_not_written_to(draw):
    q, k, v = sharp(draw)
    bias = padding_bias([13, 5, 2], KEYS, torch.float64)
    call = make_call(q, k, v, bias=bias, sinks=draw(HEADS), softcap=5.0)
    before = [t.clone() for t in (call.q, call.k, call.v, call.bias, call.sinks)]
    recompute(call)
    replay(call)
    assert all(torch.equal(a, b) for a, b in zip(before, (call.q, call.k, call.v, call.bias, call.sinks), strict=True))
