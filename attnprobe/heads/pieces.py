"""From tokens to words: which pieces each word of a batch has, and scores between tokens turned into scores between words.

Pieces are gathered one by one, since a product with a table of tokens by words would cost the cube of the length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Pieces:
    """The pieces of every word of a batch; one word more than the longest sentence has takes what is to be thrown away."""

    first: Int[Tensor, "batch word_and_one"]
    """Token of each word's first piece; of a word without any, some token of the sentence."""
    later: tuple[tuple[Int[Tensor, "batch some"], Int[Tensor, "batch some"]], ...]
    """(words, tokens) of all second pieces, of all third ones, ..."""
    share: Float[Tensor, "batch word_and_one"]
    """1 over the number of pieces; 0 for a word without any."""

    @classmethod
    def of(cls, word_index: np.ndarray, n_words: int, device: torch.device) -> Pieces:
        """Of the word of each token, -1 for special ones and padding, [batch key]."""
        rank, count = _ranks(word_index, n_words)
        some = (word_index >= 0).argmax(1)[:, None]
        first = np.tile(some, n_words + 1)
        sentence, token = np.nonzero(rank == 0)
        first[sentence, word_index[sentence, token]] = token
        later = [_padded(rank == number, word_index, n_words, some) for number in range(1, rank.max(initial=0) + 1)]
        share = np.where(count > 0, 1 / np.maximum(count, 1), 0.0).astype(np.float32)
        return cls(
            torch.from_numpy(first).to(device),
            tuple((torch.from_numpy(words).to(device), torch.from_numpy(tokens).to(device)) for words, tokens in later),
            torch.from_numpy(share).to(device),
        )

    def take(self, members: slice) -> Pieces:
        """Of these sentences."""
        later = tuple((words[members], tokens[members]) for words, tokens in self.later)
        return Pieces(self.first[members], later, self.share[members])

    def sum_keys(self, scores: Float[Tensor, "batch head query key"]) -> Float[Tensor, "batch head query word_and_one"]:
        """The sum over the pieces of each key word; for a word without any, something that `mean_queries` throws away."""

        def everywhere(index: Tensor) -> Tensor:
            return index[:, None, None, :].expand(-1, *scores.shape[1:3], -1)

        total = scores.gather(-1, everywhere(self.first))
        for words, tokens in self.later:
            total.scatter_add_(-1, everywhere(words), scores.gather(-1, everywhere(tokens)))
        return total

    def mean_queries(
        self, scores: Float[Tensor, "batch head row word_and_one"], start: int
    ) -> Float[Tensor, "batch head word word"]:
        """The mean over the pieces of each query word of what `sum_keys` gave for the rows from `start` on; 0 for words without pieces."""
        batch, heads, rows, n = scores.shape
        flat = scores.reshape(-1, n)

        def place(index: Tensor, height: int) -> Tensor:
            block = torch.arange(batch * heads, device=index.device).view(batch, heads, 1) * height
            return (block + index[:, None]).flatten()

        total = flat.index_select(0, place(self.first - start, rows))
        for words, tokens in self.later:
            total.index_add_(0, place(words, n), flat.index_select(0, place(tokens - start, rows)))
        share = self.share[:, :-1].to(scores.dtype)
        weight = share[:, None, :, None] * (share > 0)[:, None, None, :]
        return total.view(batch, heads, n, n)[..., :-1, :-1] * weight


def _ranks(word_index: np.ndarray, n_words: int) -> tuple[np.ndarray, np.ndarray]:
    """Which piece of its word each token is, from 0, -1 where it is of none [batch key]; pieces of each word [batch word_and_one]."""
    rank = np.full(word_index.shape, -1)
    count = np.zeros((len(word_index), n_words + 1), dtype=np.int64)
    for token, words in enumerate(word_index.T):
        sentences = np.flatnonzero(words >= 0)
        rank[sentences, token] = count[sentences, words[sentences]]
        count[sentences, words[sentences]] += 1
    return rank, count


def _padded(
    chosen: np.ndarray, word_index: np.ndarray, n_words: int, some: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """(words, tokens) of the chosen tokens, [batch some] each: where a sentence has fewer, one of its tokens goes to the word thrown away."""
    sentence, token = np.nonzero(chosen)
    place = np.arange(len(sentence)) - np.searchsorted(sentence, sentence)
    words = np.full((len(chosen), int(chosen.sum(1).max())), n_words)
    tokens = np.tile(some, words.shape[1])
    words[sentence, place] = word_index[sentence, token]
    tokens[sentence, place] = token
    return words, tokens
