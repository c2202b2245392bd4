"""Passages, frequency ranks, random repeats."""

from dataclasses import replace

import numpy as np
import pytest

from attnprobe import read_conllu
from attnprobe.errors import InputError
from attnprobe.heads.corpora import RANK, passages, random_repeats, same_sentence, spans_of, with_ranks, word_counts
from attnprobe.heads.relations import annotated
from attnprobe.records import Sentence
from attnprobe.text.batching import cluster_of, split_of_sentence


def sentence(number, document="d", n=3, **changes):
    words = tuple(f"w{number}.{i}" for i in range(n))
    made = Sentence(
        f"s{number}",
        words,
        document=document,
        text=" ".join(words),
        heads=(0, *range(1, n)),
        deprels=("root", *["dep"] * (n - 1)),
        metadata={"sent_id": f"s{number}", "genre": "x"},
    )
    return replace(made, **changes)


def test_passages_fill_up_and_never_cross_a_document():
    corpus = [
        sentence(0),
        sentence(1),
        sentence(2),
        sentence(3, "e"),
        sentence(4, "e", n=9),
        sentence(5, ""),
        sentence(6, ""),
    ]
    found = list(passages(corpus, 7))
    assert [item.id for item in found] == ["s0..s1", "s2", "s3", "s4", "s5", "s6"]
    assert [item for item in found[1:]] == corpus[2:]
    by_tens = list(passages(corpus, 29, length=lambda item: 10))
    assert [item.id for item in by_tens] == ["s0..s1", "s2", "s3..s4", "s5", "s6"]


def test_a_passage_keeps_every_word_with_its_annotation():
    corpus = [sentence(0), sentence(1, n=2), sentence(2, n=4)]
    [passage] = passages(corpus, 100)
    assert passage.words == tuple(word for item in corpus for word in item.words)
    assert passage.deprels == tuple(label for item in corpus for label in item.deprels)
    assert passage.text == " ".join(item.text for item in corpus)
    assert spans_of(passage) == ((0, 3), (3, 5), (5, 9))
    assert [i for i, head in enumerate(passage.heads) if head == 0] == [0, 3, 5]
    for (start, stop), item in zip(spans_of(passage), corpus, strict=True):
        assert tuple(head - start if head else 0 for head in passage.heads[start:stop]) == item.heads
    assert passage.metadata["genre"] == "x"
    assert (passage.lemmas, passage.misc, passage.segments) == ((), (), ())
    together = same_sentence(passage)
    for i in range(9):
        for j in range(9):
            assert together[i, j] == any(start <= i < stop and start <= j < stop for start, stop in spans_of(passage))


def test_a_passage_stands_where_its_sentences_stood():
    corpus = [sentence(0), sentence(1)]
    [passage] = passages(corpus, 100)
    assert cluster_of(passage) == cluster_of(corpus[0])
    assert split_of_sentence(passage) == split_of_sentence(corpus[0])
    assert spans_of(corpus[0]) == ((0, 3),)
    assert same_sentence(corpus[0]) is None


def test_sentences_annotated_otherwise_and_pairs_stay_apart():
    bare = sentence(1, heads=(), deprels=())
    pair = sentence(2, segments=(0, 0, 1))
    assert [item.id for item in passages([sentence(0), bare, pair, sentence(3)], 100)] == ["s0", "s1", "s2", "s3"]


@pytest.mark.parametrize("limit", [0, -3])
def test_passages_of_no_length_are_refused(limit):
    with pytest.raises(InputError, match="wrong length of passages: expected 1 token or more"):
        passages([], limit)


def test_a_view_is_read_as_often_as_its_corpus_and_shows_its_attributes(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("# newdoc id = d\n" + "1\ta\ta\tX\t_\t_\t0\troot\t_\t_\n\n" * 3)
    corpus = read_conllu(path)
    view = passages(corpus, 2)
    assert [len(item) for item in view] == [len(item) for item in view] == [2, 1]
    assert view.sha256() == corpus.sha256()
    assert view.drops is corpus.drops
    with pytest.raises(AttributeError):
        view.nothing  # noqa: B018
    assert "joined up to 2 tokens" in view.note


def test_counts_leave_case_and_punctuation_out():
    corpus = [Sentence("1", ("The", "cat", ",", "the")), Sentence("2", ("CAT", "...", "the"))]
    assert dict(word_counts(corpus)) == {"the": 3, "cat": 2}


def test_ranks_share_the_first_place_of_their_count():
    corpus = [Sentence("1", ("a", "a", "b", "c", "!", "d"), misc=({"X": "1"},) + ({},) * 5)]
    [ranked] = with_ranks(corpus)
    assert [own.get(RANK) for own in ranked.misc] == ["1", "1", "2", "2", None, "2"]
    assert ranked.misc[0]["X"] == "1"
    [given] = with_ranks(corpus, {"b": 9, "x": 7, "a": 7, "zero": 0})
    assert [own.get(RANK) for own in given.misc] == ["2", "2", "1", "4", None, "4"]
    assert "as given, 4 words" in with_ranks(corpus, {"b": 9, "x": 7, "a": 7, "zero": 0}).note


def test_ranks_are_added_only_for_rare_and_only_where_missing():
    corpus = [Sentence("0", ("!",)), Sentence("1", ("a", "b"))]
    assert annotated(corpus, ["dep", "duplicate"]) is corpus
    ranked = annotated(corpus, ["dep", "rare:rarest"])
    assert [own[RANK] for own in list(ranked)[1].misc] == ["1", "1"]
    assert "counted in the corpus itself, 2 words" in ranked.note
    assert annotated(ranked, ["rare"]) is ranked


def test_random_repeats_say_every_word_twice():
    made = random_repeats([f"w{i}" for i in range(30)], length=7, sentences=11, times=3, seed=5)
    assert len({item.document for item in made}) == 11
    for item in made:
        assert item.words[:7] == item.words[7:14] == item.words[14:]
        assert len(set(item.words)) == 7
    assert made == random_repeats([f"w{i}" for i in range(30)], length=7, sentences=11, times=3, seed=5)
    assert made != random_repeats([f"w{i}" for i in range(30)], length=7, sentences=11, times=3, seed=6)
    assert len({item.words for item in made}) == 11
    uses = np.unique([word for item in made for word in item.words])
    assert len(uses) > 20


@pytest.mark.parametrize("options", [{"length": 1}, {"times": 1}, {"length": 4}])
def test_too_few_random_words_are_refused(options):
    with pytest.raises(InputError, match="cannot draw random words"):
        random_repeats(["a", "b", "a", "c"], **{"length": 2, **options})
