"""Marks of a batch's tokens: segments of a pair, the shortest mention around a word."""

from dataclasses import replace

import numpy as np
import torch

from attnprobe.heads.cases import Cases
from attnprobe.heads.prepared import entities_of, prepare
from attnprobe.heads.relations import choose
from attnprobe.records import Sentence
from attnprobe.text.batching import collate
from tests.heads.conftest import encode_by_hand

NESTED = Sentence(
    "n",
    ("the", "dog", "of", "Ann", "Lee", "slept"),
    misc=({"Entity": "(e1-x-2"}, {}, {}, {"Entity": "(e2-x-1"}, {"Entity": "e2)e1)"}, {}),
    metadata={"global.Entity": "eid-etype-head"},
)
PAIR = Sentence("p", ("a", "b", "c", "d"), segments=(0, 0, 1, 1))


def test_a_word_belongs_to_the_shortest_mention_around_it():
    assert entities_of(NESTED).tolist() == [0, 0, 0, 1, 1, -1]
    assert entities_of(PAIR).tolist() == [-1] * 4


def test_marks_are_spread_over_the_pieces_of_their_words():
    batch = collate([encode_by_hand(NESTED, [1, 2, 1, 0, 1, 1]), encode_by_hand(PAIR, [1, 1, 2, 1])], pad_id=0)
    prepared = prepare(batch, (3, 5), None, torch.device("cpu"), entities=True)
    assert prepared.entities.tolist() == [[-1, 0, 0, 0, 0, 1, -1, -1], [-1] * 8]
    assert prepared.segments.tolist() == [[-1] * 8, [-1, 0, 0, 1, 1, 1, -1, -1]]
    assert prepared.sentences == batch.sentences
    assert prepared.members.tolist() == [3, 5]


def test_marks_are_left_out_where_there_is_no_use_for_them():
    prepared = prepare(collate([encode_by_hand(NESTED, [1] * 6)], pad_id=0), (0,), None, torch.device("cpu"))
    assert (prepared.entities, prepared.segments, prepared.pieces) == (None, None, None)


def test_words_can_be_had_without_a_single_case():
    items = [encode_by_hand(PAIR, [1, 0, 2, 1])]
    prepared = prepare(collate(items, pad_id=0), (0,), Cases(items, choose(["dep"])), torch.device("cpu"))
    assert prepared.n_cases.tolist() == [0, 0]
    assert prepared.pieces.share.tolist() == [[1, 0, 0.5, 1, 0]]
    assert prepared.pieces.first.tolist() == [[1, 1, 2, 4, 1]]
    assert [(w.tolist(), t.tolist()) for w, t in prepared.pieces.later] == [([[2]], [[3]])]


def test_token_types_are_given_only_where_they_tell_segments_apart():
    """GPT-2 accepts token types, though its tokenizer gives none, and would add the embedding of token 0 for each zero."""
    batch = collate([encode_by_hand(PAIR, [1] * 4)], pad_id=0)
    assert set(prepare(batch, (0,), None, torch.device("cpu")).inputs) == {"input_ids", "attention_mask"}
    typed = replace(batch, token_types=np.array([[0, 0, 0, 1, 1, 1]]))
    assert prepare(typed, (0,), None, torch.device("cpu")).inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]
