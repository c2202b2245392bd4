"""Each named similarity against its formula in loops."""

import numpy as np
import pytest
import torch

from attnprobe.attention import SIMILARITIES, Additive, Bilinear, attend, cosine, dot, scaled_dot
from attnprobe.errors import InputError
from tests.oracles import attention_core as oracle

QUERIES, KEYS, DIM, KEY_DIM, HIDDEN = 5, 7, 11, 13, 17


def test_the_names_are_these():
    assert list(SIMILARITIES) == ["dot", "scaled_dot", "cosine", "additive", "bilinear"]


def test_products(draw):
    q, k = draw(QUERIES, DIM), draw(KEYS, DIM)
    expected = np.array([[a @ b for b in k.numpy()] for a in q.numpy()])
    np.testing.assert_allclose(dot(q, k), expected, atol=1e-12)
    np.testing.assert_allclose(scaled_dot(q, k), expected / np.sqrt(DIM), atol=1e-12)
    np.testing.assert_allclose(scaled_dot(q, k, scale=0.3), expected * 0.3, atol=1e-12)


def test_cosine_ignores_lengths(draw):
    q, k = draw(QUERIES, DIM), draw(KEYS, DIM)
    np.testing.assert_allclose(cosine(q, k), oracle.cosine(q.numpy(), k.numpy()), atol=1e-12)
    torch.testing.assert_close(cosine(7 * q, 0.01 * k, scale=3.0), 3 * cosine(q, k))
    assert torch.equal(cosine(torch.zeros_like(q), k), torch.zeros(QUERIES, KEYS, dtype=torch.float64))


def test_additive_and_bilinear_take_keys_of_another_width(draw):
    q, k = draw(QUERIES, DIM), draw(KEYS, KEY_DIM)
    w_query, w_key, v, b = draw(HIDDEN, DIM), draw(HIDDEN, KEY_DIM), draw(HIDDEN), draw(HIDDEN)
    weights = [t.numpy() for t in (w_query, w_key, v, b)]
    expected = oracle.additive(q.numpy(), k.numpy(), *weights)
    np.testing.assert_allclose(Additive(w_query, w_key, v, b)(q, k), expected, atol=1e-12)
    no_bias = oracle.additive(q.numpy(), k.numpy(), *weights[:3], np.zeros(HIDDEN))
    np.testing.assert_allclose(Additive(w_query, w_key, v)(q, k), no_bias, atol=1e-12)
    w = draw(DIM, KEY_DIM)
    np.testing.assert_allclose(Bilinear(w)(q, k), oracle.bilinear(q.numpy(), k.numpy(), w.numpy()), atol=1e-12)
    torch.testing.assert_close(Bilinear(torch.eye(DIM).double())(q, q), dot(q, q))


def test_random_weights_come_from_the_generator():
    def build(seed):
        generator = torch.Generator().manual_seed(seed)
        additive = Additive.random(DIM, KEY_DIM, hidden=HIDDEN, generator=generator)
        return additive, Bilinear.random(DIM, KEY_DIM, generator=generator)

    (additive, bilinear), (again, _), (other, _) = build(3), build(3), build(5)
    assert torch.equal(additive.w_key, again.w_key)
    assert not torch.equal(additive.w_key, other.w_key)
    assert additive.w_query.shape == (HIDDEN, DIM)
    assert additive.w_key.shape == (HIDDEN, KEY_DIM)
    assert bilinear.weight.shape == (DIM, KEY_DIM)
    assert Additive.random(DIM).w_key.shape == (DIM, DIM)
    assert Bilinear.random(DIM).weight.shape == (DIM, DIM)


@pytest.mark.parametrize("name", ["dot", "scaled_dot", "cosine", "additive", "bilinear"])
def test_every_similarity_attends_over_batches_and_heads(draw, name):
    q, k, v = draw(2, 3, QUERIES, DIM), draw(2, 3, KEYS, DIM), draw(2, 3, KEYS, 19)
    entry = SIMILARITIES[name]
    chosen = name
    if isinstance(entry, type):
        parts = (draw(HIDDEN, DIM), draw(HIDDEN, DIM), draw(HIDDEN)) if name == "additive" else (draw(DIM, DIM),)
        chosen = entry(*parts)
    attended = attend(q, k, v, similarity=chosen)
    one = attend(q[1, 2], k[1, 2], v[1, 2], similarity=chosen)
    torch.testing.assert_close(attended.context[1, 2], one.context)
    torch.testing.assert_close(attended.weights.sum(-1), torch.ones(2, 3, QUERIES, dtype=torch.float64))


@pytest.mark.usefixtures("unchecked")
def test_errors_name_the_parts(draw):
    q, k, v = draw(QUERIES, DIM), draw(KEYS, KEY_DIM), draw(KEYS, 3)
    with pytest.raises(InputError, match=r"expected keys of 11 dimensions.*got 13.*Bilinear or Additive"):
        dot(q, k)
    with pytest.raises(InputError, match=r"unknown similarity 'scaled'; near names: .*scaled_dot"):
        attend(q, q, q, similarity="scaled")
    with pytest.raises(
        InputError, match=r"'additive' has parameters: expected an instance of Additive.*Additive.random"
    ):
        attend(q, k, v, similarity="additive")
