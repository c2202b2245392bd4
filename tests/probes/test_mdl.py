"""Online codes: closed forms, units, blocks of whole clusters."""

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.probes.mdl import Codes, block_ends, code_length, mixed_losses, unigram_losses
from tests.oracles import probe_softmax


def test_a_predictor_that_tosses_a_coin_costs_one_bit_a_label():
    assert code_length(3, 2, np.full((5, 7), np.log(2))).tolist() == pytest.approx([10.0] * 5)


def test_code_lengths_are_those_of_a_loop_and_units_differ_by_the_logarithm_of_two():
    losses = np.random.default_rng(1).exponential(size=(2, 11))
    expected = [probe_softmax.online_code([row[:4], row[4:]], 5, 7) for row in losses]
    np.testing.assert_allclose(code_length(5, 7, losses), expected)
    blocks = code_length(0, 7, losses)
    np.testing.assert_allclose(blocks / code_length(0, 7, losses, unit="reference"), 1 / np.log(2))
    with pytest.raises(InputError, match="bits"):
        code_length(5, 7, losses, unit="nats")


def test_the_reference_unit_gives_the_published_mixture():
    """Published: 96.02 "kbits" of which the first block is in bits, the rest in nats; 136.4 in bits (of 1,024), for a first
    block of about 40 sentences."""
    first, n_classes, published = 40 * 24, 45, 96.02 * 1024
    nats = np.array([published - first * np.log2(n_classes)])
    assert code_length(first, n_classes, nats, unit="reference") == pytest.approx(published)
    assert code_length(first, n_classes, nats) / 1024 == pytest.approx(136.4, abs=0.3)


def test_blocks_end_with_a_cluster_at_or_after_their_share():
    cluster = np.repeat([5, 3, 8, 1], [10, 30, 20, 40])
    assert block_ends(cluster, (0.05, 0.1, 0.11, 0.5, 1.0)).tolist() == [10, 40, 60, 100]
    assert block_ends(np.zeros(7, int)).tolist() == [7]
    assert block_ends(np.arange(1000))[:4].tolist() == [1, 2, 4, 8]


def test_a_mixture_knows_what_it_has_seen_and_allows_what_it_has_not():
    losses = mixed_losses(np.array([0.0, 0.0]), np.array([True, False]), 9, 5)
    np.testing.assert_allclose(np.exp(-losses), [(9 + 0.2) / 10, 0.2 / 10])
    # a proper code: over all classes the probabilities add up to 1
    own = np.array([0.5, 0.3, 0.2])
    share = np.exp(-mixed_losses(-np.log(np.append(own, 1.0)), np.array([True] * 3 + [False]), 6, 4))
    assert share.sum() == pytest.approx(1.0)


def test_the_unigram_code_of_labels_drawn_from_a_distribution_costs_its_entropy():
    share = np.array([0.7, 0.2, 0.1])
    y = np.random.default_rng(2).choice(3, size=20_000, p=share)
    ends = block_ends(np.arange(len(y)))
    bits = code_length(int(ends[0]), 3, unigram_losses(y, ends, 3))
    assert bits == pytest.approx(len(y) * -(share * np.log2(share)).sum(), rel=0.01)


def test_a_constant_label_costs_about_the_first_block():
    y, ends = np.zeros(4001, int), block_ends(np.arange(4001) // 10)
    bits = code_length(int(ends[0]), 5, unigram_losses(y, ends, 5))
    assert ends[0] * np.log2(5) <= bits <= ends[0] * np.log2(5) + 10


def test_compressions_are_ratios_to_the_two_codes_without_vectors():
    codes = Codes(np.array([50.0, 200.0]), 100.0, 80.0, np.array([1]), np.zeros((2, 1)))
    assert codes.compression.tolist() == [2.0, 0.5]
    assert codes.compression_unigram.tolist() == [1.6, 0.4]
