"""Position biases as formulas, against loops written from the papers."""

import math

import pytest
import torch

from attnprobe.attention.relative import (
    alibi_slopes,
    disentangled_bias,
    log_distance_buckets,
    transformer_xl_bias,
)


def draw(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("heads", [1, 2, 8, 16])
def test_slopes_are_a_geometric_sequence(heads):
    assert alibi_slopes(heads).tolist() == [2 ** (-8 * h / heads) for h in range(1, heads + 1)]


@pytest.mark.parametrize(("heads", "below"), [(3, 2), (12, 8), (20, 16)])
def test_slopes_where_heads_are_no_power_of_two(heads, below):
    slopes = alibi_slopes(heads).tolist()
    assert slopes[:below] == alibi_slopes(below).tolist()
    assert slopes[below:] == alibi_slopes(2 * below).tolist()[::2][: heads - below]


def test_far_distances_share_buckets():
    distance = torch.arange(-40, 41)[None]
    buckets = log_distance_buckets(distance, n_buckets=8, max_distance=16)[0]
    for d, bucket in zip(distance[0].tolist(), buckets.tolist(), strict=True):
        wide = 4 + math.ceil(3 * math.log(max(abs(d), 4) / 4) / math.log(15 / 4) - 1e-6)
        assert bucket == (d if abs(d) <= 4 else math.copysign(wide, d)), d
    assert torch.equal(buckets, -buckets.flip(0))


@pytest.mark.parametrize("terms", [("c2p",), ("p2c",), ("c2p", "p2c")])
def test_disentangled_bias_against_a_loop(terms):
    q, k, pos_k, pos_q = draw(2, 3, 5, 7), draw(2, 3, 5, 7, seed=1), draw(3, 11, 7, seed=2), draw(3, 11, 7, seed=3)
    place = torch.arange(5)[:, None] - torch.arange(5) + 5
    got = disentangled_bias(
        q, k, place, 0.3, pos_k=pos_k if "c2p" in terms else None, pos_q=pos_q if "p2c" in terms else None
    )
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (2, 3, 5, 5))).tolist():
        expected = 0.0
        if "c2p" in terms:
            expected += float(q[b, h, i] @ pos_k[h, i - j + 5])
        if "p2c" in terms:
            expected += float(k[b, h, j] @ pos_q[h, i - j + 5])
        assert abs(float(got[b, h, i, j]) - 0.3 * expected) < 1e-12


def test_transformer_xl_bias_against_a_loop():
    q, r, q_segment, segments = (
        draw(2, 3, 5, 7),
        draw(2, 3, 10, 7, seed=1),
        draw(2, 3, 5, 7, seed=2),
        draw(3, 2, 7, seed=3),
    )
    place = 5 - (torch.arange(5)[:, None] - torch.arange(5))
    segment = torch.randint(2, (2, 5, 5), generator=torch.Generator().manual_seed(4))
    got = transformer_xl_bias(q, r, place, 0.3, q_segment=q_segment, segments=segments, segment=segment)
    for b, h, i, j in torch.cartesian_prod(*map(torch.arange, (2, 3, 5, 5))).tolist():
        expected = float(q[b, h, i] @ r[b, h, 5 - i + j]) + float(q_segment[b, h, i] @ segments[h, segment[b, i, j]])
        assert abs(float(got[b, h, i, j]) - 0.3 * expected) < 1e-12
    assert not torch.equal(got, transformer_xl_bias(q, r, place, 0.3))
