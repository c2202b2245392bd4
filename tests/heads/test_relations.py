"""Relations of words and of meaning: known answers, loops, and the bundled treebank."""

from importlib.resources import files

import numpy as np
import pytest

from attnprobe import read_conllu
from attnprobe.errors import InputError
from attnprobe.heads.corpora import passages, with_ranks
from attnprobe.heads.relations import RIVALS, RIVALS_OF, choose, relations_of
from attnprobe.heads.relations_reference import kind_of
from attnprobe.records import Sentence
from attnprobe.text.align import punctuation_of
from tests.oracles import heads_relations as oracle


def pairs_of(sentence, *names):
    """Relation name -> set of (query, key)."""
    found = relations_of(sentence, choose(names))
    return {item.name: set(zip(item.query.tolist(), item.key.tolist(), strict=True)) for item in found}


@pytest.fixture(scope="module")
def treebank():
    return list(read_conllu(str(files("attnprobe") / "data/treebank/en_attnprobe.conllu")))


def test_repeats_of_a_sentence_known_by_heart():
    sentence = Sentence("s", ("The", "cat", "saw", "the", "the", "dog", ",", "the", ",", "CAT"))
    found = pairs_of(sentence, "duplicate", "induction", "repeated")
    assert found["duplicate"] == {(3, 0), (4, 0), (4, 3), (7, 0), (7, 3), (7, 4), (9, 1)}
    # after an earlier "the" came cat (1), the (4) and dog (5); the "the" right before is not followed by another word first
    assert found["induction"] == {(3, 1), (4, 1), (7, 1), (7, 4), (7, 5), (9, 2)}
    assert (0, 7) in found["repeated"]
    assert len(found["repeated"]) == 2 * len(found["duplicate"])
    assert not any(6 in pair or 8 in pair for pairs in found.values() for pair in pairs if pair != (7, 8))


def test_only_earlier_words_are_candidates_of_duplicate_and_induction():
    sentence = Sentence("s", tuple("abcab"))
    for item in relations_of(sentence, choose(["duplicate", "induction"])):
        np.testing.assert_array_equal(item.candidates, np.tri(5, k=-1, dtype=bool))
    assert relations_of(sentence, choose(["repeated"]))[0].candidates is None


def test_word_relations_equal_loops_over_the_treebank(treebank):
    for sentence in treebank:
        marks = punctuation_of(sentence).tolist()
        found = pairs_of(sentence, "duplicate", "induction", "repeated", "same_lemma")
        wanted = dict(zip(("duplicate", "induction", "repeated"), oracle.repeats(sentence.words, marks), strict=True))
        wanted["same_lemma"] = oracle.same_lemma(sentence.words, sentence.lemmas, marks)
        assert found == {name: pairs for name, pairs in wanted.items() if pairs}


def test_rare_words_equal_a_loop_with_a_given_table(treebank):
    words = sorted({w.lower() for s in treebank for w in s.words})
    counts = {word: 1 + (7 * i) % 911 for i, word in enumerate(words) if i % 10}  # a tenth is unknown to the table
    n = 0
    for sentence in with_ranks(treebank[:150], counts):
        ranks = oracle.ranks_of(sentence.words, counts)
        ranks = [0 if mark else rank for rank, mark in zip(ranks, punctuation_of(sentence), strict=True)]
        assert [int(own.get("Rank", 0)) for own in sentence.misc] == ranks
        found = pairs_of(sentence, "rare")
        for label, how_many in (("rarest", 1), ("two-rarest", 2)):
            assert found.get(f"rare:{label}", set()) == oracle.rarest(ranks, how_many, 500)
        n += len(found)
    assert n > 100


def test_a_sentence_of_common_words_has_no_rare_one():
    sentence = Sentence("s", ("a", "b", "c"), misc=({"Rank": "499"}, {"Rank": "500"}, {"Rank": "3"}))
    assert pairs_of(sentence, "rare") == {}
    rarer = Sentence("s", ("a", "b", "c"), misc=({"Rank": "499"}, {"Rank": "501"}, {"Rank": "3"}))
    assert pairs_of(rarer, "rare") == {
        "rare:rarest": {(0, 1), (2, 1)},
        "rare:two-rarest": {(0, 1), (1, 0), (2, 1), (2, 0)},
    }


def coreferent(entities, words=None, upos=()):
    words = words or [f"w{i}" for i in range(len(entities))]
    misc = tuple({"Entity": value} if value else {} for value in entities)
    return Sentence("s", tuple(words), misc=misc, upos=tuple(upos), metadata={"global.Entity": "eid-etype-head"})


def test_antecedents_of_a_sentence_known_by_heart():
    words = ["Ann", "Lee", "met", "the", "man", "who", "knew", "her", "dog", ".", "Lee", "ran"]
    entities = [
        "(e1-person-2",
        "e1)",
        "",
        "(e2-person-2",
        "",
        "",
        "",
        "(e3-animal-2(e1-person-1)",
        "e3)e2)",
        "",
        "(e1-person-1)",
        "",
    ]
    tags = ["PROPN", "PROPN", "VERB", "DET", "NOUN", "PRON", "VERB", "PRON", "NOUN", "PUNCT", "PROPN", "VERB"]
    sentence = coreferent(entities, words, tags)
    found = pairs_of(sentence, "coref", "coref_words")
    assert found["coref:antecedent"] == {(7, 1), (10, 1), (10, 7)}
    assert found["coref:pronoun"] == {(7, 1)}
    assert found["coref:proper"] == {(10, 1), (10, 7)}
    assert "coref:nominal" not in found
    assert found["coref_words:antecedent"] == found["coref:antecedent"]
    among_mentions, among_words = relations_of(sentence, choose(["coref:antecedent", "coref_words:antecedent"]))
    assert np.flatnonzero(among_mentions.candidates[10]).tolist() == [1, 4, 7, 8]
    assert np.flatnonzero(among_words.candidates[10]).tolist() == list(range(10))
    # nearest before "her" is the man, before the last "Lee" the dog; the same word is found for Lee only
    assert RIVALS == ("nearest", "same-word")
    assert RIVALS_OF["coref"](sentence, among_mentions) == {7: (4, -1), 10: (8, 1)}


def test_a_possessive_determiner_is_a_pronoun():
    sentence = Sentence("s", ("sein", "Hund"), upos=("DET", "NOUN"), feats=({"PronType": "Prs"}, {}))
    assert [kind_of(sentence, i) for i in (0, 1)] == ["pronoun", "nominal"]
    assert kind_of(Sentence("s", ("der",), upos=("DET",), feats=({"PronType": "Art"},)), 0) == "nominal"


def test_without_parts_of_speech_antecedents_are_not_split():
    assert set(pairs_of(coreferent(["(e1-x-1)", "(e1-x-1)"]), "coref")) == {"coref:antecedent"}


def test_coreference_equals_loops_over_the_treebank(treebank):
    n = 0
    for sentence in treebank:
        found = oracle.mentions([own.get("Entity", "") for own in sentence.misc])
        wanted, heads = oracle.antecedents(found)
        ours = pairs_of(sentence, "coref")
        assert ours.get("coref:antecedent", set()) == wanted
        n += len({query for query, _ in wanted})
        kinds = [ours.get(f"coref:{kind}", set()) for kind in ("pronoun", "proper", "nominal")]
        assert set().union(*kinds) == wanted
        assert sum(map(len, kinds)) == len(wanted)
        for item in relations_of(sentence, choose(["coref:antecedent"])):
            for query, chosen in RIVALS_OF["coref"](sentence, item).items():
                near, same = oracle.nearest(query, heads), oracle.nearest(query, heads, sentence.words)
                assert chosen == (-1 if near is None else near, -1 if same is None else same)
                assert np.flatnonzero(item.candidates[query]).tolist() == [head for head in heads if head < query]
    assert n >= 100  # enough to test a label on


def test_arguments_equal_a_loop_over_the_treebank(treebank):
    n = 0
    for sentence in treebank:
        wanted = {}
        for predicate, own in enumerate(sentence.misc):
            for role, value in own.items():
                if role[:3] == "ARG":
                    for place in value.split(","):
                        wanted.setdefault(f"args:{role}", set()).add((int(place) - 1, predicate))
        if wanted:
            wanted["args:ALL"] = set().union(*wanted.values())
        assert pairs_of(sentence, "args") == wanted
        n += len(wanted.get("args:ALL", ()))
    assert n > 500


@pytest.mark.parametrize("value", ["0", "3", "x", "1,9", ""])
def test_an_argument_outside_the_sentence_is_refused(value):
    sentence = Sentence("odd", ("Ann", "ran"), misc=({}, {"ARG0": value}))
    with pytest.raises(InputError, match=r"cannot read an argument.*'odd', word 2.*numbers 1 to 2"):
        pairs_of(sentence, "args")


def test_in_a_passage_trees_stay_apart_and_coreference_does_not():
    one = Sentence(
        "1",
        ("Ann", "ran"),
        document="d",
        heads=(2, 0),
        deprels=("nsubj", "root"),
        misc=({"Entity": "(e1-x-1)"}, {"ARG0": "1"}),
    )
    two = Sentence(
        "2",
        ("She", "fell"),
        document="d",
        heads=(2, 0),
        deprels=("nsubj", "root"),
        misc=({"Entity": "(e1-x-1)"}, {"ARG1": "1"}),
    )
    [passage] = passages([one, two], 10)
    assert pairs_of(passage, "dep:nsubj", "coref", "args") == {
        "dep:nsubj": {(0, 1), (2, 3)},
        "coref:antecedent": {(2, 0)},
        "args:ARG0": {(0, 1)},
        "args:ARG1": {(2, 3)},
        "args:ALL": {(0, 1), (2, 3)},
    }
    [nsubj] = relations_of(passage, choose(["dep:nsubj"]))
    assert nsubj.candidates.tolist() == [[True, True, False, False]] * 2 + [[False, False, True, True]] * 2
