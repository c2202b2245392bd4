"""Tasks: labels of words and pairs, tasks by name, files of labels, and what is wrong with labels."""

import pytest

from attnprobe.errors import InputError
from attnprobe.probes.labels import read_iob2, read_supersenses
from attnprobe.probes.tasks import choose_tasks, depths_of, label
from attnprobe.records import Sentence
from attnprobe.registry import PROBE_TASKS, ProbeTask, probe_task

SENTENCE = Sentence(
    "s1",
    ("The", "two", "cats", "saw", "a", "cat"),
    document="d",
    upos=("DET", "NUM", "NOUN", "VERB", "DET", ""),
    xpos=("DT", "CD", "NNS", "VBD", "DT", "NN"),
    feats=({}, {"Number": "Plur"}, {"Number": "Plur", "Odd": "Yes"}, {"Tense": "Past"}, {}, {"Number": "Sing"}),
    heads=(3, 3, 4, 0, 6, 4),
    deprels=("det", "nummod", "nsubj", "root", "det", "obj"),
    misc=(
        {"Entity": "(1-animal"},
        {"Entity": "(2-number)"},
        {"Entity": "1)"},
        {},
        {"Entity": "(1-animal"},
        {"Entity": "1)"},
    ),
    metadata={"global.Entity": "eid-etype"},
)
BARE = Sentence("bare", ("No", "annotation"))


def labels_of(name, *sentences):
    return label(choose_tasks([name])[0], sentences or [SENTENCE])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("upos", ["DET", "NUM", "NOUN", "VERB", "DET"]),  # an empty tag is no label
        ("xpos", ["DT", "CD", "NNS", "VBD", "DT", "NN"]),
        ("deprel", ["det", "nummod", "nsubj", "root", "det", "obj"]),
        ("feats:Number", ["Plur", "Plur", "Sing"]),
        ("feats:Odd", ["Yes"]),
        ("misc:Entity", ["(1-animal", "(2-number)", "1)", "(1-animal", "1)"]),
        ("position", ["0", "1", "2-3", "2-3", "4-7", "4-7"]),
        ("sentence_length", ["6-10"] * 6),
        ("tree_depth", ["2", "2", "1", "0", "2", "1"]),
        ("ner", ["animal", "number", "animal", "O", "animal", "animal"]),
        ("supersense", []),
    ],
)
def test_labels_of_words(name, expected):
    assert list(labels_of(name).labels) == expected


@pytest.mark.parametrize(
    "name",
    ["upos", "xpos", "deprel", "feats:Number", "misc:Entity", "tree_depth", "ner", "supersense", "arc", "same_entity"],
)
def test_a_sentence_without_the_annotation_has_no_labels(name):
    assert labels_of(name, BARE).labels == ()


@pytest.mark.parametrize(
    ("words", "place", "expected"), [(5, 0, "0-5"), (51, 50, "51+"), (50, 0, "31-50"), (6, 0, "6-10"), (17, 3, "16-20")]
)
def test_bins_of_length(words, place, expected):
    assert labels_of("sentence_length", Sentence("s", ("w",) * words)).labels[place] == expected


def test_bins_of_position_and_depth():
    chain = Sentence("s", ("w",) * 35, heads=tuple(range(35)))
    assert [labels_of("position", chain).labels[i] for i in (7, 8, 15, 16, 31, 32, 34)] == [
        *("4-7", "8-15", "8-15", "16-31", "16-31", "32+", "32+")
    ]
    assert [labels_of("tree_depth", chain).labels[i] for i in (0, 5, 6, 34)] == ["0", "5", "6+", "6+"]


def test_depths_of_a_deep_tree_do_not_recurse():
    assert depths_of(tuple(range(3000)))[-1] == 2999
    assert depths_of(tuple(range(2, 3001)) + (0,))[0] == 2999


def test_arcs_are_the_governors_and_as_many_other_words_always_the_same():
    found = labels_of("arc")
    pairs = list(zip(found.query, found.key, found.labels, strict=True))
    assert [(q, k) for q, k, text in pairs if text == "arc"] == [(0, 2), (1, 2), (2, 3), (4, 5), (5, 3)]
    others = [(q, k) for q, k, text in pairs if text == "none"]
    assert len(others) == 5
    assert all(k not in (q, SENTENCE.heads[q] - 1) for q, k in others)
    assert labels_of("arc") == found
    two_words = Sentence("s", ("a", "b"), heads=(0, 1))
    assert labels_of("arc", two_words).labels == ("arc",)  # there is no other word


def test_mentions_of_one_entity_are_paired_and_told_from_others():
    found = labels_of("same_entity")
    assert list(zip(found.query, found.key, found.labels, strict=True)) == [(5, 2, "same"), (5, 1, "other")]


def test_an_iob2_file_gives_types_where_its_words_are_the_treebanks(tmp_path):
    path = tmp_path / "a.iob2"
    path.write_text(
        "# sent_id = s1\n# text = x\n1\tThe\tO\n2\ttwo\tO\n3\tcats\tB-LOC\n4\tsaw\tO\n5\ta\tB-PER\n6\tcat\tI-PER\n\n"
        "# sent_id = bare\n1\tOther\tB-ORG\t-\n2\twords\tO\n"
    )
    assert read_iob2(path)["bare"] == (("Other", "words"), ("ORG", "O"))
    [task] = choose_tasks([f"ner:{path}"])
    assert task.name == "ner:a.iob2"
    found = label(task, [SENTENCE, BARE])
    assert found.labels == ("O", "O", "LOC", "O", "PER", "PER")
    assert set(found.sentence) == {0}


def test_a_streusle_file_gives_supersenses_of_the_words_that_have_one(tmp_path):
    path = tmp_path / "a.conllulex"
    rows = [["1", "Dr."], ["2", "Who"], ["3", "left"], ["3.1", "x"]]
    senses = ["n.PERSON", "_", "v.motion", "v.none"]
    lines = ["\t".join([*row, *["_"] * 11, sense, *["_"] * 5]) for row, sense in zip(rows, senses, strict=True)]
    path.write_text("# sent_id = s9\n" + "\n".join(lines) + "\n\n")
    assert read_supersenses(path) == {"s9": (("Dr.", "Who", "left"), ("n.PERSON", None, "v.motion"))}
    found = label(choose_tasks([f"supersense:{path}"])[0], [Sentence("s9", ("Dr.", "Who", "left"))])
    assert found.labels == ("n.PERSON", "v.motion")
    assert found.query == (0, 2)


@pytest.mark.parametrize("line", ["1\tThe", "one\tThe\tO", "The O"])
def test_a_file_of_another_shape_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "a.iob2"
    path.write_text(f"# sent_id = s1\n1\tThe\tO\n{line}\n")
    with pytest.raises(InputError, match=r"a\.iob2:3.*IOB2"):
        read_iob2(path)


@pytest.mark.shared
def test_public_files_fit_the_treebank(shared_data):
    from attnprobe import read_conllu

    sentences = list(read_conllu(shared_data / "ud" / "en_ewt" / "en_ewt-ud-dev.conllu"))
    ner, sense = choose_tasks(
        [f"ner:{shared_data}/ner/en_ewt-ud-dev.iob2", f"supersense:{shared_data}/supersense/streusle.ud_dev.conllulex"]
    )
    found = label(ner, sentences)
    assert set(found.labels) == {"O", "PER", "ORG", "LOC"}
    assert len(set(found.sentence)) == 1998
    assert len(set(label(sense, sentences).labels)) > 30


def test_tasks_by_name_by_function_and_as_they_are():
    def shape(sentence):
        return ["capital" if word[0].isupper() else "small" for word in sentence.words]

    own = ProbeTask("own", shape, "word", "own", "a test")
    tasks = choose_tasks(["upos", "feats:Number", shape, own, "misc:Entity"])
    assert [task.name for task in tasks] == ["upos", "feats:Number", "shape", "own", "misc:Entity"]
    assert label(tasks[2], [SENTENCE]).labels == ("capital", *["small"] * 5)
    assert {f"feats:{name}" for name in ("Number", "Tense")} <= {task.name for task in choose_tasks(["feats"])}
    assert {PROBE_TASKS[name].kind for name in ("upos", "position", "ner")} == {"syntax", "position", "semantics"}


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["upso"], "near names: upos"),
        (["feat:Number"], "near names"),
        (["feats:"], "unknown probe task"),
        (["upos", "upos"], "'upos' twice"),
        ([], "got none"),
        ("upos", "a list of names"),
    ],
)
def test_what_cannot_be_chosen_says_why(names, told):
    with pytest.raises(InputError, match=told):
        choose_tasks(names)


def test_labels_of_the_wrong_length_name_sentence_and_function():
    def short(sentence):
        return ["x"] * (len(sentence) - 1)

    with pytest.raises(InputError, match=r"'short' does not fit.*'s1'.*test_tasks\.py:\d+.*6 labels.*got 5"):
        labels_of(short)


@pytest.mark.parametrize("given", ["NNNNNN", 7])
def test_what_is_no_list_of_labels_is_refused(given):
    with pytest.raises(
        InputError, match=r"gives no labels at sentence 's1' \(.*test_tasks\.py:\d+.*a list of labels.*" + str(given)
    ):
        labels_of(lambda sentence: given)


def test_none_and_nan_are_no_labels():
    assert labels_of(lambda sentence: None).labels == ()
    assert labels_of(lambda sentence: [None, float("nan"), 3, "", "x", 0]).query == (2, 3, 4, 5)


def test_pairs_out_of_the_sentence_name_sentence_and_pair():
    @probe_task(level="pair", kind="semantics", source="a test", name="too far")
    def too_far(sentence):
        yield 0, len(sentence), "x"

    try:
        with pytest.raises(InputError, match=r"'too far' does not fit.*words from 0 to 5.*\(0, 6\)"):
            labels_of("too far")
    finally:
        PROBE_TASKS.remove("too far")
