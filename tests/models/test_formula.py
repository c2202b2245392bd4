"""What the formula says, on the embedded BERT: order comes from outside, and the scale is that of one head."""

import copy
from dataclasses import replace

import pytest
import torch

from attnprobe.attention import equivariance
from attnprobe.attention.measures import entropy_of
from attnprobe.errors import VerificationError
from attnprobe.models.capture import capture
from attnprobe.models.captured import with_pattern
from attnprobe.models.modules import attention_of
from attnprobe.models.verify import require, verify

TEXT = "The keys to the old cabinet are on the table, said Anna."


def order_matters(module, ids):
    """Whether permuted tokens give other than the permuted output."""
    generator = torch.Generator().manual_seed(3)
    return not equivariance(lambda x: module(input_ids=x).last_hidden_state, ids, generator=generator).holds


def test_bert_knows_the_order_of_its_words_by_its_position_embeddings_alone(minilm):
    """True for a bare layer of its own weights, false for the model, true to rounding once the embeddings are zeroed."""
    ids = minilm.tokenizer(TEXT, return_tensors="pt")["input_ids"]
    layer, x = attention_of(minilm, 2), torch.randn(1, 9, 384, generator=torch.Generator().manual_seed(1))
    assert equivariance(lambda x: layer(x).output, x, generator=torch.Generator().manual_seed(3)).holds
    assert order_matters(minilm.module, ids)
    without = copy.deepcopy(minilm.module)
    without.embeddings.position_embeddings.weight.data.zero_()
    assert not order_matters(without, ids)
    assert order_matters(minilm.module, ids)  # and the copy was one


def test_the_root_of_the_hidden_size_flattens_every_head_and_is_caught(minilm):
    """1/sqrt(384) for 1/sqrt(32): scores 3.5 times too small, wider patterns in every layer, and a verification that fails."""
    honest = capture(minilm, TEXT)
    wrong = replace(
        honest,
        layers=tuple(
            with_pattern(replace(call, scale=384**-0.5, pattern=None, context=call.context)) for call in honest.layers
        ),
    )
    for right, flat in zip(honest.layers, wrong.layers, strict=True):
        before, after = (entropy_of(call.pattern).mean((0, 2)) for call in (right, flat))
        assert (after > before).all()  # each of the 12 heads
        assert (flat.pattern.amax(-1) - right.pattern.amax(-1)).mean() < -0.1
    assert verify(honest).ok
    checked = verify(wrong)
    assert not checked.ok
    assert (checked.context_max_abs > 1e3 * checked.context_tolerance).all()
    with pytest.raises(VerificationError, match="the recomputed context differs"):
        require(checked)
