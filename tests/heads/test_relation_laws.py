"""Laws that every registered relation keeps on annotated sentences."""

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.heads.relations import UNIVERSAL, choose, relations_of
from attnprobe.records import Relation, Sentence
from attnprobe.registry import RELATIONS

EVERY = pytest.mark.parametrize("family", list(RELATIONS), ids=lambda family: family.name)

SENTENCE = Sentence(
    "s",
    ("The", "letters", "were", "sent", "by", "Ann", "."),
    lemmas=("the", "letter", "be", "send", "by", "Ann", "."),
    upos=("DET", "NOUN", "AUX", "VERB", "ADP", "PROPN", "PUNCT"),
    heads=(2, 4, 4, 0, 6, 4, 4),
    deprels=("det", "nsubj:pass", "aux:pass", "root", "case", "obl:agent", "punct"),
    misc=tuple({} for _ in range(7)),
)


def found(family, sentence):
    return {item.name: item for item in relations_of(sentence, [(family, None)])}


@EVERY
def test_pairs_are_inside_the_sentence_and_no_word_pairs_with_itself(family):
    for name, item in found(family, SENTENCE).items():
        assert name.split(":")[0] == family.name
        assert isinstance(item, Relation)
        assert len(item.query) == len(item.key) > 0
        assert item.query.min() >= 0
        assert max(item.query.max(), item.key.max()) < len(SENTENCE)
        assert bool((item.query != item.key).all())


@EVERY
def test_a_sentence_without_annotation_gives_nothing_or_needs_none(family):
    bare = Sentence("bare", ("one",))
    assert found(family, bare) == {}


def test_full_and_universal_labels():
    full, universal = found(RELATIONS["dep"], SENTENCE), found(RELATIONS["udep"], SENTENCE)
    assert set(full) == {
        *(f"dep:{label}" for label in ("det", "nsubj:pass", "aux:pass", "case", "obl:agent", "punct", "ALL")),
    }
    assert full["dep:nsubj:pass"].query.tolist() == [1]
    assert full["dep:nsubj:pass"].key.tolist() == [3]
    assert "udep:nsubj" in universal
    assert len(full["dep:ALL"]) == 6  # the root is left out
    assert len(universal["udep:ALL-punct"]) == 5
    np.testing.assert_array_equal(universal["udep:ALL-punct"].query, [0, 1, 2, 4, 5])


def test_choosing_one_label_takes_no_other():
    chosen = relations_of(SENTENCE, choose(["dep:case", "dep:det"]))
    assert [item.name for item in chosen] == ["dep:det", "dep:case"]
    assert len(relations_of(SENTENCE, choose(["dep:case", "dep"]))) == 7


@pytest.mark.parametrize("name", ["depp", "dep:objj", "udep:nsubjj"])
def test_unknown_names_list_the_near_ones(name):
    with pytest.raises(InputError, match="near names: .*(dep|obj|nsubj)"):
        choose([name])


def test_subtypes_of_known_labels_are_let_through():
    assert choose(["dep:nsubj:outer"])[0][1] == frozenset({"dep:nsubj:outer"})
    assert len(UNIVERSAL) == 36
