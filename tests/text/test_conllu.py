import tracemalloc
from collections import Counter

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprobe.errors import InputError
from attnprobe.text.conllu import fault_of_tree, read_conllu
from attnprobe.text.drops import Drops

GOOD = """
# newdoc id = d1
# sent_id = d1-1
# text = Dogs don't bark.
1   Dogs  dog  NOUN  NNS _  4 nsubj _ _
2-3 don't _    _     _   _  _ _     _ _
2   do    do   AUX   VBP Tense=Pres|VerbForm=Fin 4 aux _ _
3   n't   not  PART  RB  _  4 advmod _ _
4   bark  bark VERB  VB  _  0 root  _ SpaceAfter=No|Cxn=a=b|Bare
4.1 _     _    _     _   _  _ _     0:root _
5   .     .    PUNCT .   _  4 punct _ _
"""


def tree(heads, identity="x"):
    rows = [f"{i} w{i} _ _ _ _ {head} dep _ _" for i, head in enumerate(heads, start=1)]
    return "\n".join([f"# sent_id = {identity}", *rows])


def test_fields_of_a_sentence(conllu):
    [sentence] = read_conllu(conllu(GOOD))
    assert sentence.id == "d1-1"
    assert sentence.document == "d1"
    assert sentence.text == "Dogs don't bark."
    assert sentence.words == ("Dogs", "do", "n't", "bark", ".")
    assert sentence.lemmas == ("dog", "do", "not", "bark", ".")
    assert sentence.upos == ("NOUN", "AUX", "PART", "VERB", "PUNCT")
    assert sentence.heads == (4, 4, 4, 0, 4)
    assert sentence.deprels == ("nsubj", "aux", "advmod", "root", "punct")
    assert sentence.feats[1] == {"Tense": "Pres", "VerbForm": "Fin"}
    assert sentence.feats[0] == {}
    assert sentence.misc[3] == {"SpaceAfter": "No", "Cxn": "a=b", "Bare": ""}
    assert sentence.metadata["sent_id"] == "d1-1"


def test_words_without_any_annotation_have_no_heads(conllu):
    [sentence] = read_conllu(conllu("1 a _ _ _ _ _ _ _ _\n2 _ _ _ _ _ _ _ _ _"))
    assert sentence.words == ("a", "_")
    assert (sentence.heads, sentence.deprels, sentence.upos, sentence.feats) == ((), (), (), ())
    assert sentence.id == "s1"


def test_the_word_underscore_keeps_its_lemma(conllu):
    [sentence] = read_conllu(conllu("1 _ _ SYM _ _ 0 root _ _\n2 b _ X _ _ 1 dep _ _\n3 c c X _ _ 1 dep _ _"))
    assert sentence.lemmas == ("_", "", "c")


def test_a_word_may_hold_spaces(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("1\tin  spite of\tx\tX\t_\t_\t0\troot\t_\tGloss=a  b\n", encoding="utf-8")
    [sentence] = read_conllu(path)
    assert sentence.words == ("in  spite of",)
    assert sentence.misc == ({"Gloss": "a  b"},)


def test_documents_run_on_and_repeated_ids_are_told_apart(conllu):
    def one(*comments):
        return "\n".join([*comments, "1 a _ _ _ _ 0 root _ _"])

    first = conllu(
        one(),
        one("# newdoc id = d"),
        one(),
        one("# newdoc id = e"),
        one("# newdoc id = d"),
        one("# newdoc"),
        one("# newdoc"),
    )
    second = conllu(one(), one("# newdoc id = d"), name="b.conllu")
    documents = [sentence.document for sentence in read_conllu([first, second])]
    assert documents == ["", "d", "d", "e", "d #2", "document 1", "document 2", "", "d #3"]
    assert len({sentence.id for sentence in read_conllu([first, second])}) == 9


def test_a_newdoc_counts_even_where_its_sentence_is_left_out(conllu):
    path = conllu("# newdoc id = d\n1 a _ _ _ _ 0 root _ _", "# newdoc id = e\n" + tree([2, 1]), tree([0]))
    assert [sentence.document for sentence in read_conllu(path, skip_invalid=True)] == ["d", "e"]


def test_global_comments_reach_the_sentences_after_them_in_their_file(conllu):
    one = "1 a _ _ _ _ 0 root _ _"
    first = conllu(one, f"# global.Entity = GRP-etype\n{one}", one, f"# global.Entity = eid\n{one}")
    second = conllu(one, name="b.conllu")
    found = [sentence.metadata.get("global.Entity") for sentence in read_conllu([first, second])]
    assert found == [None, "GRP-etype", "GRP-etype", "eid", None]


BROKEN = [
    (tree([2, 3, 2]), "broken tree: cycle", 3, "the cycle 2 -> 3 -> 2"),
    (tree([0, 0, 1]), "broken tree: several roots", 3, "2, words 1, 2"),
    (tree([0, 5, 1]), "broken tree: head out of range", 3, "5"),
    (tree([0, -1, 1]), "broken tree: head out of range", 3, "-1"),
    (tree([0, "_", 1]), "broken tree: no head", 3, "'_'"),
    (tree([0, "one", 1]), "broken tree: no head", 3, "'one'"),
    ("# sent_id = x\n1 a _ _ _ _ 0 root _ _\n3 b _ _ _ _ 1 dep _ _", "broken ids", 3, "'3'"),
    ("# sent_id = x\n1 a _ _ _ _ 0 root _ _\nz b _ _ _ _ 1 dep _ _", "broken ids", 3, "'z'"),
    ("# sent_id = x\n1 a _ _ _ _ 0 root _ _\n_ b _ _ _ _ 1 dep _ _", "broken ids", 3, "'_'"),
    ("# sent_id = x\n1 a _ _ _ _ 0 root _ _\n2 b _ _ _ _ 1 dep", "not CoNLL-U", 3, "8: '2\\tb"),
    ("# sent_id = x\n1.1 a _ _ _ _ 0 root _ _", "no words", 2, "none"),
]


@pytest.mark.parametrize(("text", "reason", "line", "got"), BROKEN, ids=[f"{b[1]} {b[3]}" for b in BROKEN])
def test_a_broken_sentence_is_named_with_its_place_and_the_way_out(conllu, text, reason, line, got):
    path = conllu(GOOD, text)
    before = path.read_text().split("\n\n")[0].count("\n") + 2
    with pytest.raises(InputError) as caught:
        list(read_conllu(path))
    message = str(caught.value)
    for part in (reason, "'x'", f"{path}:{before + line}:", f"got {got}", "expected ", "--skip-invalid"):
        assert part in message


@pytest.mark.parametrize(("text", "reason", "line", "got"), BROKEN, ids=[f"{b[1]} {b[3]}" for b in BROKEN])
def test_a_broken_sentence_is_left_out_and_counted_when_asked(conllu, text, reason, line, got):
    told = Drops()
    corpus = read_conllu(conllu(text, GOOD, text), skip_invalid=True, on_drop=told.add)
    for _ in range(2):
        assert [sentence.id for sentence in corpus] == ["d1-1"]
        assert corpus.drops.counts == {reason: 2}
    assert told.counts == {reason: 4}
    assert corpus.drops.examples[reason][0].endswith(f"a.conllu:{line}")


def test_an_empty_column_is_named(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("1\ta\t\tX\t_\t_\t0\troot\t_\t_\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"empty column, at .*:1: expected LEMMA or _, got nothing"):
        list(read_conllu(path))


def test_a_file_in_which_nothing_can_be_used_is_refused_even_when_skipping(conllu):
    path = conllu(tree([2, 1]), tree([0, 0]), tree([0, 0]))
    with pytest.raises(InputError, match=r"got none of 3 \(broken tree: cycle: 1, broken tree: several roots: 2\)"):
        list(read_conllu(path, skip_invalid=True))


def test_running_text_is_not_conllu(tmp_path):
    path = tmp_path / "a.conllu"
    path.write_text("A line of text.\n" * 7)
    with pytest.raises(InputError, match=r"not CoNLL-U, at .*a.conllu:1: expected 10 columns divided by tabs, got 1"):
        list(read_conllu(path))


def test_a_file_without_a_blank_line_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("attnprobe.text.conllu.LONGEST_SENTENCE", 23)
    path = tmp_path / "a.conllu"
    path.write_text("A line of text.\n" * 29)
    with pytest.raises(InputError, match="23 lines without a blank one"):
        list(read_conllu(path, skip_invalid=True))


def test_comments_alone_are_no_corpus(conllu):
    with pytest.raises(InputError, match="expected sentences, got none"):
        list(read_conllu(conllu("# newdoc id = a")))


@given(st.lists(st.integers(0, 7), min_size=1, max_size=7))
def test_trees_are_judged_as_a_graph_library_judges_them(heads):
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(heads) + 1))
    graph.add_edges_from((head, word) for word, head in enumerate(heads, start=1))
    inside = max(heads) <= len(heads)
    right = inside and nx.is_arborescence(graph) and heads.count(0) == 1
    assert (fault_of_tree(heads) is None) == right


def test_memory_does_not_grow_with_the_corpus(tmp_path):
    block = "\n".join(f"{i}\tword{i}\t_\tX\t_\t_\t{i - 1}\tdep\t_\t_" for i in range(1, 24))
    peaks = []
    for n in (211, 2111):
        path = tmp_path / f"{n}.conllu"
        path.write_text(f"{block}\n\n" * n)
        tracemalloc.start()
        assert sum(1 for _ in read_conllu(path)) == n
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.2 * peaks[0]
    assert peaks[1] < (tmp_path / "2111.conllu").stat().st_size / 3


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "sentences", "words", "documents"),
    [
        ("en_ewt/en_ewt-ud-dev", 2001, 25147, 318),
        ("en_ewt/en_ewt-ud-train", 12544, 204577, 540),
        ("de_gsd/de_gsd-ud-dev", 799, None, 1),
        ("zh_gsdsimp/zh_gsdsimp-ud-dev", 500, None, 1),
    ],
)
def test_public_treebanks_are_read_whole(treebanks, name, sentences, words, documents):
    found = list(read_conllu(treebanks / f"{name}.conllu"))
    assert len(found) == sentences
    assert words in (None, sum(map(len, found)))
    assert len({sentence.document for sentence in found}) == documents
    assert all(len(sentence.heads) == len(sentence.deprels) == len(sentence) for sentence in found)


@pytest.mark.shared
def test_relations_are_counted_as_the_reference_counts_them(treebanks):
    counts = Counter(
        deprel for sentence in read_conllu(treebanks / "en_ewt/en_ewt-ud-dev.conllu") for deprel in sentence.deprels
    )
    expected = {"case": 2015, "nsubj": 1958, "det": 1817, "advmod": 1353, "obj": 1211, "conj": 916, "compound": 898}
    assert {name: counts[name] for name in expected} == expected
    assert sum(counts.values()) - counts["root"] == 23146
