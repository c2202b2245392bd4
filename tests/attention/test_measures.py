"""Measures against loops, scipy, and answers known beforehand (one-hot, uniform, disjoint)."""

import math

import numpy as np
import pytest
import scipy.spatial.distance
import scipy.stats
import torch

from attnprobe.attention import (
    distance_of,
    entropy_of,
    jensen_shannon_distance,
    jensen_shannon_divergence,
    normalised_entropy_of,
    total_variation,
)
from tests.oracles import attention_measures as oracle

BATCH, HEADS, QUERIES, KEYS = 2, 3, 5, 7
CLOSE = {"rtol": 0, "atol": 1e-12}


@pytest.fixture
def pattern(draw):
    return torch.softmax(3 * draw(BATCH, HEADS, QUERIES, KEYS), -1)


def rows_of(pattern):
    return pattern.reshape(-1, pattern.shape[-1]).numpy()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("n", [2, 7, 131])
def test_entropy_of_one_hot_and_uniform_rows(dtype, n):
    one_hot = torch.eye(n, dtype=dtype)
    assert torch.equal(entropy_of(one_hot), torch.zeros(n, dtype=dtype))
    assert torch.equal(normalised_entropy_of(one_hot), torch.zeros(n, dtype=dtype))
    uniform = torch.full((1, n), 1 / n, dtype=dtype)
    assert entropy_of(uniform).item() == pytest.approx(math.log(n), rel=4 * torch.finfo(dtype).eps)
    assert normalised_entropy_of(uniform).item() == pytest.approx(1, rel=4 * torch.finfo(dtype).eps)


def test_entropy_equals_the_loops_and_scipy(draw, pattern):
    expected = np.array([oracle.entropy(row) for row in rows_of(pattern)])
    np.testing.assert_allclose(entropy_of(pattern).flatten(), expected, **CLOSE)
    np.testing.assert_allclose(entropy_of(pattern), scipy.stats.entropy(pattern.numpy(), axis=-1), **CLOSE)
    where = draw(BATCH, 1, QUERIES, KEYS) > 0
    spread = where.expand(pattern.shape).reshape(-1, KEYS).numpy()
    for function, slow in ((entropy_of, oracle.entropy), (normalised_entropy_of, oracle.normalised_entropy)):
        expected = [slow(row, seen) for row, seen in zip(rows_of(pattern), spread, strict=True)]
        np.testing.assert_allclose(function(pattern, where=where).flatten(), expected, **CLOSE)


def test_rows_off_one_are_taken_as_distributions(pattern):
    """Sinks take weight away; float16 rounds. The entropy is that of what is left."""
    torch.testing.assert_close(entropy_of(0.3 * pattern), entropy_of(pattern), **CLOSE)
    halved = pattern.half()
    torch.testing.assert_close(entropy_of(halved.double()), entropy_of(pattern), rtol=0, atol=1e-3)


def test_zeros_of_half_precision_are_no_infinity():
    row = torch.tensor([[1.0, 1e-9, 0.0]]).half()
    assert entropy_of(row).item() == 0.0


def test_causal_uniform_rows():
    pattern = torch.ones(KEYS, KEYS, dtype=torch.float64).tril()
    where = pattern.bool()
    pattern = pattern / pattern.sum(-1, keepdim=True)
    expected = [math.log(i + 1) for i in range(KEYS)]
    np.testing.assert_allclose(entropy_of(pattern, where=where), expected, **CLOSE)
    normalised = normalised_entropy_of(pattern, where=where)
    assert normalised[0].isnan()
    torch.testing.assert_close(normalised[1:], torch.ones(KEYS - 1, dtype=torch.float64), **CLOSE)


def test_more_padding_changes_nothing(pattern):
    padded = torch.cat([pattern, torch.zeros_like(pattern)], -1)
    where = torch.arange(2 * KEYS) < KEYS
    for function in (entropy_of, normalised_entropy_of, distance_of):
        torch.testing.assert_close(function(padded, where=where), function(pattern), **CLOSE)
    assert (normalised_entropy_of(padded) < normalised_entropy_of(pattern)).all()


def test_a_row_that_sees_nothing_is_nan_and_alone(pattern):
    blind = pattern.clone()
    blind[1, 2, 3] = 0
    for function in (entropy_of, normalised_entropy_of, distance_of):
        assert function(blind).isnan().sum() == 1
        assert function(blind)[1, 2, 3].isnan()
    for function in (jensen_shannon_divergence, jensen_shannon_distance, total_variation):
        for pair in ((blind, pattern), (pattern, blind)):
            assert function(*pair)[1, 2, 3].isnan()
            assert function(*pair).isnan().sum() == 1
    assert entropy_of(pattern, where=torch.zeros(KEYS, dtype=torch.bool)).isnan().all()


def test_jensen_shannon_equals_the_loops_and_scipy(draw, pattern):
    other = torch.softmax(3 * draw(BATCH, HEADS, QUERIES, KEYS), -1)
    expected = np.array([oracle.jensen_shannon(p, q) for p, q in zip(rows_of(pattern), rows_of(other), strict=True)])
    np.testing.assert_allclose(jensen_shannon_divergence(pattern, other).flatten(), expected, **CLOSE)
    by_scipy = scipy.spatial.distance.jensenshannon(pattern.numpy(), other.numpy(), axis=-1)
    np.testing.assert_allclose(jensen_shannon_distance(pattern, other), by_scipy, **CLOSE)
    torch.testing.assert_close(
        jensen_shannon_divergence(0.4 * pattern, other), jensen_shannon_divergence(pattern, other)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_jensen_shannon_of_equal_and_disjoint_rows(dtype, pattern):
    p = pattern.to(dtype)
    assert torch.equal(jensen_shannon_divergence(p, p), torch.zeros(p.shape[:-1], dtype=dtype))
    one_hot = torch.eye(KEYS, dtype=dtype)
    divergences = jensen_shannon_divergence(one_hot[:, None], one_hot[None])
    expected = torch.full((KEYS, KEYS), math.log(2), dtype=dtype).fill_diagonal_(0)
    assert torch.equal(divergences, expected)


def test_jensen_shannon_tells_near_rows_apart_in_float32(draw):
    p = torch.softmax(draw(KEYS), -1)
    near = torch.softmax(p.log() + 1e-4 * draw(KEYS), -1)
    exact = oracle.jensen_shannon(p.numpy(), near.numpy())
    assert 1e-11 < exact < 1e-8
    found = jensen_shannon_divergence(p.float(), near.float()).item()
    assert found == pytest.approx(exact, rel=0.05)


def test_jensen_shannon_is_symmetric_and_its_root_a_metric(draw):
    rows = torch.softmax(3 * draw(23, KEYS), -1)
    divergence = jensen_shannon_divergence(rows[:, None], rows[None])
    torch.testing.assert_close(divergence, divergence.T, **CLOSE)
    distance = jensen_shannon_distance(rows[:, None], rows[None])
    assert (distance[:, None, :] <= distance[:, :, None] + distance[None, :, :].transpose(-1, -2) + 1e-12).all()
    triangle = divergence[:, None, :] - divergence[:, :, None] - divergence[None, :, :].transpose(-1, -2)
    assert (triangle > 1e-3).any(), "without the root the inequality fails somewhere: the test can see it"


def test_total_variation(draw, pattern):
    other = torch.softmax(3 * draw(BATCH, HEADS, QUERIES, KEYS), -1)
    expected = np.abs(pattern.numpy() - other.numpy()).sum(-1) / 2
    np.testing.assert_allclose(total_variation(pattern, other), expected, **CLOSE)
    one_hot = torch.eye(KEYS)
    assert torch.equal(total_variation(one_hot[:1], one_hot), (torch.arange(KEYS) != 0).float())


def test_distance_equals_the_loops(draw, pattern):
    index, where = torch.tensor([6, 2, 3, 0, 5]), draw(BATCH, 1, QUERIES, KEYS) > -0.5
    spread = where.expand(pattern.shape).reshape(-1, KEYS).numpy()
    positions = index.repeat(BATCH * HEADS).tolist()
    for signed in (False, True):
        expected = [
            oracle.mean_distance(row, at, seen, signed)
            for row, at, seen in zip(rows_of(pattern), positions, spread, strict=True)
        ]
        found = distance_of(pattern, query_index=index, where=where, signed=signed)
        np.testing.assert_allclose(found.flatten(), expected, **CLOSE)


def test_a_previous_token_head_looks_one_back():
    pattern = torch.eye(KEYS).roll(-1, dims=1)[1:]
    index = torch.arange(1, KEYS)
    assert torch.equal(distance_of(pattern, query_index=index, signed=True), torch.full((KEYS - 1,), -1.0))
    assert torch.equal(distance_of(pattern, query_index=index), torch.ones(KEYS - 1))


def test_rounding_does_not_leave_the_range():
    """One visible key beside a sink, and uniform rows, in float32: without care -5e-7 and 1.0000004."""
    alone = torch.rand(5003, 1, generator=torch.Generator().manual_seed(1))
    assert (entropy_of(alone) >= 0).all()
    for n in range(2, 400):
        assert normalised_entropy_of(torch.full((n,), 1 / n)) <= 1
