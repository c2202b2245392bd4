import numpy as np
import pytest
import torch
from transformers.models.t5.modeling_t5 import T5Attention

from attnprobe.attention import LearnedPositions, RelativePositionBias, distance_buckets, sinusoidal_positions
from attnprobe.errors import InputError
from tests.oracles import attention_core as oracle


@pytest.mark.parametrize("dim", [14, 11])
def test_sinusoids_equal_the_formula(dim):
    np.testing.assert_allclose(sinusoidal_positions(13, dim), oracle.sinusoidal(13, dim), atol=1e-6)
    other = sinusoidal_positions(13, dim, base=100.0)
    np.testing.assert_allclose(other, oracle.sinusoidal(13, dim, base=100.0), atol=1e-6)


def test_the_product_of_two_positions_depends_on_their_distance_alone():
    table = sinusoidal_positions(23, 34)
    products = table @ table.T
    for offset in (1, 5, 11):
        diagonal = products.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-4)
    assert products[0, 1] > products[0, 5]


def test_learned_positions_are_added_and_end():
    layer = LearnedPositions(5, 3)
    x = torch.zeros(2, 4, 3)
    assert torch.equal(layer(x)[1], layer.table.weight[:4])
    with pytest.raises(InputError, match=r"expected at most 5 positions, got 7"):
        layer(torch.zeros(2, 7, 3))


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("n_buckets", "max_distance"), [(32, 128), (14, 41)])
def test_buckets_equal_those_of_t5(bidirectional, n_buckets, max_distance):
    ahead = torch.arange(-300, 301)[None]
    expected = T5Attention._relative_position_bucket(
        ahead, bidirectional=bidirectional, num_buckets=n_buckets, max_distance=max_distance
    )
    found = distance_buckets(ahead, n_buckets=n_buckets, max_distance=max_distance, bidirectional=bidirectional)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_bias_depends_on_the_distance_alone_and_the_queries_are_the_last(bidirectional):
    layer = RelativePositionBias(3, n_buckets=14, max_distance=41, bidirectional=bidirectional)
    bias = layer(11, 11)
    assert bias.shape == (1, 3, 11, 11)
    assert torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1])
    assert torch.equal(layer(2, 11), bias[..., -2:, :])
    assert torch.equal(bias[..., 0, 1], bias[..., 0, 0]) != bidirectional


def test_buckets_that_cannot_cover_are_refused():
    with pytest.raises(InputError, match=r"got n_buckets=32, max_distance=8"):
        RelativePositionBias(3, max_distance=8)(3, 3)
