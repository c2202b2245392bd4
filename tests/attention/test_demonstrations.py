"""The numbers that the lessons quote, and that each demonstration can also come out the other way."""

import numpy as np
import pytest
import torch

from attnprobe.attention import (
    LearnedPositions,
    MultiHeadAttention,
    attend,
    contexts_per_target,
    entropy_by_dim,
    entropy_of,
    equivariance,
    fixed_context,
    product_variance,
    saturation,
    scaled_dot,
    sinusoidal_positions,
    softmax_jacobian,
)
from attnprobe.errors import InputError
from tests.oracles import attention_measures as oracle


def seeded(seed=11):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dim", [3, 61, 509])
@pytest.mark.parametrize("sd", [1.0, 0.5])
def test_the_variance_of_a_product_is_the_number_of_dimensions(dim, sd):
    found = product_variance(dim, pairs=20011, sd=sd, generator=seeded())
    assert found.plain_expected == pytest.approx(dim * sd**4)
    assert found.scaled_expected == pytest.approx(sd**4)
    # The relative sd of a variance over n draws is sqrt((kurtosis - 1) / n): 2.8% at dim 3, 1% at many.
    assert found.plain == pytest.approx(found.plain_expected, rel=0.07)
    assert found.scaled == pytest.approx(found.scaled_expected, rel=0.07)


def test_saturation_values():
    """softmax([a, a, 2a]); texts that give 0.999 at a = 2 are wrong."""
    found = saturation(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0, 5.0, 10.0]))
    np.testing.assert_allclose(found.largest, [0.5761, 0.7870, 0.9094, 0.9867, 0.9999], atol=5e-5)
    closed = 1 / (1 + 2 * np.exp(-found.factors.numpy()))
    np.testing.assert_allclose(found.largest, closed, rtol=1e-6)
    assert (found.jacobian_norm.diff() < 0).all()
    assert found.jacobian_norm[-1] < 2e-4
    p = np.exp([1, 1, 2]) / np.exp([1, 1, 2]).sum()
    assert found.jacobian_norm[0].item() == pytest.approx(oracle.jacobian_norm(p), rel=1e-12)


def test_two_equal_winners_keep_their_gradient():
    found = saturation(torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1000.0]))
    assert found.largest.item() == pytest.approx(0.5)
    assert found.jacobian_norm.item() == pytest.approx(0.5)


def test_the_jacobian_is_that_of_autograd(draw):
    scores = draw(5)
    expected = torch.autograd.functional.jacobian(lambda s: torch.softmax(s, -1), scores)
    torch.testing.assert_close(softmax_jacobian(torch.softmax(scores, -1)), expected)


def test_entropy_falls_with_the_dimension_only_without_the_scale():
    found = entropy_by_dim([2, 31, 127, 509], n_keys=37, n_queries=101, generator=seeded())
    assert (found.plain.diff() < -0.1).all()
    assert found.plain[-1] < 0.2
    assert (found.scaled - found.scaled.mean()).abs().max() < 0.2
    assert found.scaled.max() < found.uniform == pytest.approx(np.log(37))


def test_dividing_by_the_model_width_flattens_the_weights(draw):
    """The tutorial mistake: sqrt(hidden size) for sqrt(head dimension) makes 12 heads nearly uniform."""
    q, k = draw(1, 101, 64), draw(1, 37, 64)
    right = entropy_of(attend(q, k, k).weights).mean()
    wrong = entropy_of(attend(q, k, k, similarity=lambda q, k: scaled_dot(q, k, scale=768**-0.5)).weights).mean()
    assert np.log(37) - wrong < 0.1 * (np.log(37) - right)


def test_the_bare_layer_is_equivariant_and_one_with_positions_is_not(draw):
    layer, x = MultiHeadAttention(24, 3).double(), 5 * draw(2, 11, 24)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(0.3 * draw(*parameter.shape))
    bare = equivariance(lambda x: layer(x).output, x, generator=seeded())
    assert bare.holds
    assert bare.difference < 1e-10
    positions = sinusoidal_positions(11, 24).double()
    learned = LearnedPositions(11, 24).double()
    for encoded in (lambda x: layer(x + positions).output, lambda x: layer(learned(x)).output):
        found = equivariance(encoded, x, generator=seeded())
        assert not found.holds
        assert found.difference > 1e-2
    causal = MultiHeadAttention(24, 3, causal=True).double()
    causal.load_state_dict(layer.state_dict())
    assert not equivariance(lambda x: causal(x).output, x, generator=seeded()).holds


def test_equivariance_of_token_ids_and_a_given_order():
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    table = torch.randn(7, 3, generator=seeded())
    assert equivariance(lambda ids: table[ids], ids, permutation=torch.tensor([4, 3, 2, 1, 0])).holds
    found = equivariance(lambda ids: table[ids].cumsum(1), ids, permutation=torch.tensor([1, 0, 2, 3, 4]))
    assert not found.holds
    assert found.permutation.tolist() == [1, 0, 2, 3, 4]


def test_the_drawn_order_is_never_the_identity():
    for seed in range(20):
        assert equivariance(lambda x: x, torch.zeros(1, 2), generator=seeded(seed)).permutation.tolist() == [1, 0]


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 0, 2], [0, 1]])
def test_orders_that_are_none_are_refused(order):
    with pytest.raises(InputError, match=r"expected a new order of positions 0\.\.2, got \["):
        equivariance(lambda x: x, torch.zeros(1, 3), permutation=torch.tensor(order))


def test_one_token_has_no_other_order():
    with pytest.raises(InputError, match="cannot reorder"):
        equivariance(lambda x: x, torch.zeros(1, 1))


def test_tom_chase_jerry(draw):
    """A context per target word is that word's mixture of the source states; a fixed context is the same for all three."""
    states = draw(3, 7)
    weights = torch.tensor([[0.6, 0.2, 0.2], [0.2, 0.7, 0.1], [0.3, 0.2, 0.5]], dtype=torch.float64)
    contexts = contexts_per_target(weights, states)
    tom, chase, jerry = states
    torch.testing.assert_close(contexts[0], 0.6 * tom + 0.2 * chase + 0.2 * jerry)
    torch.testing.assert_close(contexts[1], 0.2 * tom + 0.7 * chase + 0.1 * jerry)
    torch.testing.assert_close(contexts[2], 0.3 * tom + 0.2 * chase + 0.5 * jerry)
    for how, expected in (("last", jerry), ("mean", states.mean(0))):
        fixed = fixed_context(states, 3, how=how)
        assert all(torch.equal(row, expected) for row in fixed)
    assert not torch.allclose(contexts[0], contexts[1])
    with pytest.raises(InputError, match=r"expected last \| mean, got 'first'"):
        fixed_context(states, 3, how="first")
