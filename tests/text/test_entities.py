import pytest

from attnprobe.errors import InputError
from attnprobe.records import Sentence
from attnprobe.text.conllu import read_conllu
from attnprobe.text.drops import Drops
from attnprobe.text.entities import chains_of, mentions_of

GUM = "GRP-etype-infstat-salience-centering-minspan-link-identity"


def sentence(entities, *, header="eid-etype-head-other", heads=(), identity="x", document="d"):
    misc = tuple({"Entity": value} if value else {} for value in entities)
    words = tuple(f"w{i}" for i in range(len(entities)))
    metadata = {"global.Entity": header} if header else {}
    return Sentence(identity, words, document, misc=misc, heads=heads, metadata=metadata)


def short(mentions):
    return [(mention.cluster, mention.type, mention.start, mention.end, mention.head) for mention in mentions]


def test_gum_brackets_nest_and_close_by_cluster():
    entities = [
        "(7-abstract-new-nnnss-cf6-2-coref(3-abstract-giv:act-sssss-cf1-1-coref)",
        "",
        "(6-place-new-nnnnn-cf2-1-coref-Paris_%28x%29-y",
        "7)6)",
        "(9-person-acc:inf-nnnnn-cf3-1-sgl)",
    ]
    found = mentions_of(sentence(entities, header=GUM, heads=(2, 5, 4, 2, 0)))
    assert short(found) == [
        ("7", "abstract", 0, 4, 1),
        ("3", "abstract", 0, 1, 0),
        ("6", "place", 2, 4, 3),
        ("9", "person", 4, 5, 4),
    ]
    assert found[1].fields == {
        "GRP": "3",
        "etype": "abstract",
        "infstat": "giv:act",
        "salience": "sssss",
        "centering": "cf1",
        "minspan": "1",
        "link": "coref",
    }
    assert found[2].fields["identity"] == "Paris_%28x%29-y"


def test_corefud_names_the_head_and_may_leave_the_type_out():
    entities = ["(e1-person-2-", "e1)(e2--1-x)", "(e3-place-1-"]
    entities[2] += "(e4-place-1-)e3)"
    assert short(mentions_of(sentence(entities, heads=(0, 1, 1)))) == [
        ("e1", "person", 0, 2, 1),
        ("e2", "", 1, 2, 1),
        ("e3", "place", 2, 3, 2),
        ("e4", "place", 2, 3, 2),
    ]


def test_a_cluster_may_nest_in_itself_and_mentions_may_cross():
    found = mentions_of(sentence(["(e1-person-", "(e2-place-", "(e1-person-1-)", "e1)", "e2)"]))
    assert short(found) == [("e1", "person", 0, 4, 3), ("e2", "place", 1, 5, 4), ("e1", "person", 2, 3, 2)]


def test_a_mention_with_gaps_is_one():
    entities = ["(e5[1/2]-person-3-)", "", "(e5[2/2]-person-3-", "e5[2/2])", "(e5-person-1-)"]
    first, second = mentions_of(sentence(entities))
    assert (first.cluster, first.words, first.head, first.start, first.end) == ("e5", (0, 2, 3), 3, 0, 4)
    assert second.words == (4,)


def test_without_a_head_field_the_tree_tells_and_without_a_tree_the_last_word():
    entities = ["(1-x", "", "1)"]
    assert mentions_of(sentence(entities, header=GUM, heads=(3, 1, 0)))[0].head == 2
    assert mentions_of(sentence(entities, header=GUM, heads=(2, 0, 2)))[0].head == 1
    assert mentions_of(sentence(entities, header=None))[0].head == 2


@pytest.mark.parametrize(
    ("entities", "message"),
    [
        (["(e1-person-1-", ""], r"\(e1 of word 1 never closed"),
        (["", "e1)"], r"e1\) without its opening bracket at word 2"),
        (["(e1-person-1-)", "e1)"], r"e1\) without its opening bracket at word 2"),
        (["(e1-person-1-)e2", ""], r"'e2' at word 1, neither an opening nor a closing bracket"),
        (["()", ""], r"'\(\)' at word 1, neither"),
        (["(e1-person-3-", "e1)"], r"head '3' in a mention of 2 words, the first of them word 1"),
        (["(e1-person-0-)", ""], r"head '0' in a mention of 1 words"),
        (["(e1-person-x-)", ""], r"head 'x' in a mention of 1 words"),
        (["(e1[1/2]-person-1-)", ""], r"1 of 2 parts of e1"),
    ],
)
def test_broken_annotation_is_named_or_left_out(entities, message):
    broken = sentence(entities)
    with pytest.raises(InputError, match=f"broken entity annotation at sentence 'x': got {message}.*--skip-invalid"):
        mentions_of(broken)
    drops = Drops()
    assert mentions_of(broken, skip_invalid=True, on_drop=drops.add) == ()
    assert drops.counts == {"broken entity annotation": 1}
    assert drops.examples == {"broken entity annotation": ["x"]}


def test_sentences_without_annotation_have_no_mentions():
    assert mentions_of(Sentence("x", ("a", "b"))) == ()
    assert mentions_of(sentence(["", ""])) == ()


def test_chains_run_through_a_document_and_no_further(conllu):
    path = conllu(
        f"# newdoc id = a\n# global.Entity = {GUM}\n# sent_id = a1\n"
        "1 Ann _ _ _ _ 2 nsubj _ Entity=(1-person-new-s-cf1-1-ana)\n2 saw _ _ _ _ 0 root _ _\n"
        "3 her _ _ _ _ 4 nmod _ Entity=(2-object-new-s-cf2-2-sgl(1-person-giv:act-s-cf1-1-ana)\n4 hat _ _ _ _ 2 obj _ Entity=2)",
        "# sent_id = a2\n1 She _ _ _ _ 2 nsubj _ Entity=(1-person-giv:act-s-cf1-1-ana)\n2 ran _ _ _ _ 0 root _ _",
        "# newdoc id = b\n# sent_id = b1\n1 It _ _ _ _ 2 nsubj _ Entity=(1-event-giv:act-s-cf1-1-ana)\n2 is _ _ _ _ 0 root _ _",
    )
    chains = chains_of(read_conllu(path))
    assert {key: [(place, *mention.words) for place, mention in chain] for key, chain in chains.items()} == {
        ("a", "1"): [(0, 0), (0, 2), (1, 0)],
        ("a", "2"): [(0, 2, 3)],
        ("b", "1"): [(2, 0)],
    }
