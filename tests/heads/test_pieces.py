"""Scores between words against sums over the tokens of each, one by one."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnprobe.heads.pieces import Pieces

HEADS = 3


def by_hand(scores, word_index, n_words):
    """[batch head word word]: the sum over a key word's pieces, the mean over a query word's."""
    found = np.zeros((*scores.shape[:2], n_words, n_words))
    for b, words in enumerate(word_index):
        for query in range(n_words):
            for key in range(n_words):
                rows, columns = np.flatnonzero(words == query), np.flatnonzero(words == key)
                if len(rows) and len(columns):
                    found[b, :, query, key] = scores[b][:, rows][:, :, columns].sum((1, 2)) / len(rows)
    return found


def between_words(scores, word_index, n_words, cuts, start=0, members=slice(None)):
    """The same by `Pieces`, rows given in blocks that end at `cuts`."""
    pieces = Pieces.of(word_index, n_words, torch.device("cpu")).take(members)
    edges = [start, *cuts]
    blocks = [
        pieces.sum_keys(torch.from_numpy(scores[members][:, :, a:b])) for a, b in zip(edges, edges[1:], strict=False)
    ]
    return pieces.mean_queries(torch.cat(blocks, 2), start).numpy()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_words_are_sums_and_means_of_their_pieces(data):
    """Any order of pieces, words without any, sentences without words; rows in blocks; single sentences out of a batch."""
    batch, n_keys, n_words = (data.draw(st.integers(1, most)) for most in (3, 9, 5))
    index = st.lists(st.integers(-1, n_words - 1), min_size=n_keys, max_size=n_keys)
    word_index = np.array([data.draw(index) for _ in range(batch)])
    seed = data.draw(st.integers(0, 1000))
    scores = np.random.default_rng(seed).random((batch, HEADS, n_keys, n_keys), dtype=np.float32)
    expected = by_hand(scores, word_index, n_words)
    cut = data.draw(st.integers(1, n_keys))
    got = between_words(scores, word_index, n_words, sorted({cut, n_keys}))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    member = data.draw(st.integers(0, batch - 1))
    one = slice(member, member + 1)
    np.testing.assert_allclose(
        between_words(scores, word_index, n_words, [n_keys], members=one), expected[one], rtol=1e-6
    )


@pytest.mark.parametrize("start", [0, 1])
def test_rows_of_special_tokens_at_the_ends_may_be_missing(start):
    word_index = np.array([[-1, 0, 0, 1, -1, -1], [-1, 0, 1, 2, 2, -1]])
    scores = np.random.default_rng(4).random((2, HEADS, 6, 6), dtype=np.float32)
    got = between_words(scores, word_index, 3, [5], start=start)
    np.testing.assert_allclose(got, by_hand(scores, word_index, 3), rtol=1e-6)


def test_what_is_thrown_away_leaves_no_trace():
    """Words without a token read 0 whatever lies on other tokens."""
    scores = np.full((1, 1, 4, 4), 1e30, dtype=np.float32)
    got = between_words(scores, np.array([[-1, 1, 1, -1]]), 3, [4])
    assert got[0, 0, [0, 2]].tolist() == [[0.0] * 3] * 2
    assert got[0, 0, :, [0, 2]].tolist() == [[0.0] * 3] * 2
    assert got[0, 0, 1, 1] == pytest.approx(2e30)
