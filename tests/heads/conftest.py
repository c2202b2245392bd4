"""Small sentences and batches whose patterns are made up, to hold the measuring code to loops."""

import numpy as np
import pytest
import torch

from attnprobe.attention.call import AttentionCall
from attnprobe.records import Sentence, WordAlignment
from attnprobe.text.align import CLS, PAD, PUNCT, SEP, WORD, Encoded

LAYERS, HEADS = 2, 3


def make_sentence(name, document, heads, deprels):
    words = tuple(f"w{i}" for i in range(len(heads)))
    return Sentence(name, words, document=document, heads=tuple(heads), deprels=tuple(deprels))


def encode_by_hand(sentence, pieces):
    """[CLS], then `pieces[w]` tokens for word w (0: none), then [SEP]; the last word counts as punctuation."""
    index = np.array([-1, *np.repeat(np.arange(len(pieces)), pieces), -1])
    roles = np.where(index == len(pieces) - 1, PUNCT, WORD).astype(np.int8)
    roles[0], roles[-1] = CLS, SEP
    ids = np.arange(len(index))
    return Encoded(sentence, ids, np.zeros_like(ids), WordAlignment(index, len(pieces)), roles, 0)


@pytest.fixture
def corpus():
    """Seven sentences in four documents; words of 0 to 3 pieces, a one-word sentence, a label that occurs once."""
    plans = [
        ("a1", "a", [2, 0, 2, 5, 3], ["det", "root", "obj", "det", "nmod"], [1, 1, 2, 1, 1]),
        ("a2", "a", [0], ["root"], [1]),
        ("b1", "b", [2, 3, 0, 3], ["det", "nsubj:pass", "root", "punct"], [3, 1, 1, 1]),
        ("b2", "b", [3, 3, 0, 5, 3], ["advmod", "nsubj", "root", "det", "obj"], [1, 0, 2, 1, 1]),
        ("c1", "c", [2, 0, 4, 2, 2], ["nsubj", "root", "det", "obj", "punct"], [2, 1, 1, 3, 1]),
        ("c2", "c", [0, 1], ["root", "punct"], [1, 1]),
        ("d1", "d", [4, 1, 2, 0, 4, 5], ["csubj", "obj", "det", "root", "obj", "punct"], [1, 1, 1, 1, 2, 1]),
    ]
    return [encode_by_hand(make_sentence(*plan[:4]), plan[4]) for plan in plans]


def sharp_patterns(encoded, seed):
    """One random peaked pattern per sentence, [layer head token token]."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.softmax(5 * torch.randn(LAYERS, HEADS, len(item), len(item), generator=generator), -1) for item in encoded
    ]


def call_of(patterns, layer, roles):
    """An attention call that reports the given patterns, padded to one batch."""
    batch, longest = roles.shape
    heads = patterns[0].shape[1]
    pattern = torch.zeros(batch, heads, longest, longest)
    for b, own in enumerate(patterns):
        n = own.shape[-1]
        pattern[b, :, :n, :n] = own[layer]
        pattern[b, :, n:, :n] = 1 / n  # a padding query: looks like attention, must not count
    visible = (roles != PAD)[:, None, None, :].expand(batch, 1, longest, longest)
    q = torch.zeros(batch, heads, longest, 2)
    return AttentionCall(
        layer, "encoder", layer, 0, q, q, q, 1.0, None, None, None, pattern, q, visible, pattern_source="model"
    )
