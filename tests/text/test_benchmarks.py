"""Readers of WinoBias, Winogender, GAP and BLiMP: small files by hand, and the published ones where they are at hand."""

import json
import zipfile
from collections import Counter

import pytest

from attnprobe.errors import InputError
from attnprobe.text.benchmarks import Span, read_gap, read_winobias, read_winogender, sentence_of
from attnprobe.text.benchmarks_blimp import read_blimp
from attnprobe.text.entities import mentions_of


def mentioned(sentence):
    """(cluster, words, head word) of each mention."""
    return [
        (mention.cluster, " ".join(sentence.words[word] for word in mention.words), sentence.words[mention.head])
        for mention in mentions_of(sentence)
    ]


def test_words_are_cut_at_mentions_and_no_character_is_lost():
    text = "Pauline's friend, the old  CEO's aide, saw her."
    starts = [text.index(mention) for mention in ("Pauline", "the old  CEO", "her")]
    spans = [
        Span(starts[0], starts[0] + 7, "e1", "PROPN"),
        Span(starts[1], starts[1] + 12, "e2", "NOUN"),
        Span(starts[2], starts[2] + 3, "e1", "PRON"),
    ]
    found = sentence_of(text, spans, "x", "d", {"k": "v"})
    assert found.words == (
        "Pauline",
        "'",
        "s",
        "friend",
        ",",
        "the",
        "old",
        "CEO",
        "'",
        "s",
        "aide",
        ",",
        "saw",
        "her",
        ".",
    )
    assert mentioned(found) == [("e1", "Pauline", "Pauline"), ("e2", "the old CEO", "CEO"), ("e1", "her", "her")]
    assert [tag for tag in found.upos if tag != "X"] == ["PROPN", "NOUN", "NOUN", "NOUN", "PRON"]
    assert found.metadata == {"sent_id": "x", "global.Entity": "eid-etype-head", "k": "v"}
    assert "".join(found.words) == text.replace(" ", "")


@pytest.mark.parametrize("spans", [[Span(0, 4, "a", "X"), Span(2, 6, "b", "X")], [Span(3, 4, "a", "X")]])
def test_mentions_that_overlap_or_are_empty_are_refused(spans):
    with pytest.raises(InputError, match="mentions overlap, or hold no word: in?.*odd|odd"):
        sentence_of("one two", spans, "odd", "", {})


@pytest.fixture
def winobias(tmp_path):
    lines = {
        "pro_stereotyped_type1": [
            "1 [The CEO] met the nurse because [he] lost [his] key.",
            "2 The CEO met [the nurse] because [she] called.",
        ],
        "anti_stereotyped_type1": [
            "1 [The CEO] met the nurse because [she] lost [her] key.",
            "2 The CEO met [the nurse] because [he] called.",
        ],
        "pro_stereotyped_type2": ["1 A construction worker saw [the nurse] and asked [her] in, as a CEO."],
        "anti_stereotyped_type2": ["1 A construction worker saw [the nurse] and asked [him] in."],
    }
    for name, own in lines.items():
        (tmp_path / f"{name}.txt.dev").write_text("\n".join(own) + "\n")
    (tmp_path / "male_occupations.txt").write_text("worker\nCEO\nconstruction worker\n\n")
    (tmp_path / "female_occupations.txt").write_text("nurse\n")
    return tmp_path


def test_winobias_by_hand(winobias):
    found = read_winobias(winobias)
    assert [item.id for item in found] == [
        *("winobias-pro-1-1", "winobias-pro-1-2", "winobias-anti-1-1", "winobias-anti-1-2"),
        *("winobias-pro-2-1", "winobias-anti-2-1"),
    ]
    assert [item.document for item in found] == ["winobias-1-1"] * 4 + ["winobias-2-1"] * 2
    first = found[0]
    assert first.text == "The CEO met the nurse because he lost his key."
    assert mentioned(first) == [
        ("e1", "The CEO", "CEO"),
        ("e2", "the nurse", "nurse"),
        ("e1", "he", "he"),
        ("e1", "his", "his"),
    ]
    assert mentioned(found[1])[:2] == [("e2", "The CEO", "CEO"), ("e1", "the nurse", "nurse")]
    assert mentioned(found[4])[0] == ("e2", "construction worker", "worker")
    keys = ("condition", "type", "pair", "gender")
    assert tuple(found[0].metadata[key] for key in keys) == ("stereotyped", "1", "1-1", "male")
    assert tuple(found[3].metadata[key] for key in keys) == ("anti-stereotyped", "1", "1-2", "male")


@pytest.mark.parametrize(
    "line",
    [
        "1 The CEO met [the nurse] because she left.",
        "1 [The CEO] met [the nurse].",
        "1 [He] met [the CEO] and [the nurse].",
    ],
)
def test_winobias_lines_of_another_form_are_refused(winobias, line):
    (winobias / "anti_stereotyped_type2.txt.dev").write_text(line)
    with pytest.raises(
        InputError, match=r"cannot read WinoBias.*anti_stereotyped_type2.txt.dev:1.*expected one occupation"
    ):
        read_winobias(winobias)


@pytest.fixture
def winogender(tmp_path):
    (tmp_path / "templates.tsv").write_text(
        "occupation(0)\tother-participant(1)\tanswer\tsentence\n"
        "nurse\tpatient\t1\tThe $OCCUPATION told the $PARTICIPANT that $NOM_PRONOUN was well.\n"
        "nurse\tpatient\t0\tA $PARTICIPANT met the $OCCUPATION to get $POSS_PRONOUN help.\n"
    )
    (tmp_path / "occupations-stats.tsv").write_text("occupation\tbls_pct_female\nnurse\t90.1\n")
    (tmp_path / "all_sentences.tsv").write_text(
        "sentid\tsentence\n"
        "nurse.patient.1.male.txt\tThe nurse told the patient that he was well.\n"
        "nurse.patient.1.neutral.txt\tThe nurse told the patient that they were well.\n"
        "nurse.someone.1.female.txt\tThe nurse told someone that she was well.\n"
        "nurse.someone.0.female.txt\tSomeone met the nurse to get her help.\n"
        "nurse.patient.0.male.txt\tA patient met the nurse to get his help.\n"
    )
    return tmp_path


def test_winogender_by_hand(winogender):
    found = read_winogender(winogender)
    assert mentioned(found[0]) == [("e1", "The nurse", "nurse"), ("e2", "the patient", "patient"), ("e2", "he", "he")]
    assert mentioned(found[1])[2] == ("e2", "they", "they")
    assert mentioned(found[2])[1:] == [("e2", "someone", "someone"), ("e2", "she", "she")]
    assert mentioned(found[3]) == [("e2", "Someone", "Someone"), ("e1", "the nurse", "nurse"), ("e1", "her", "her")]
    assert mentioned(found[4])[0] == ("e2", "A patient", "patient")
    assert [item.metadata["condition"] for item in found] == [
        *("stereotyped", "neutral", "anti-stereotyped", "stereotyped", "anti-stereotyped"),
    ]
    assert {item.document for item in found} == {"winogender-nurse"}


def test_a_sentence_that_leaves_its_template_is_refused(winogender):
    path = winogender / "all_sentences.tsv"
    path.write_text(path.read_text() + "nurse.patient.0.female.txt\tA dog met the nurse to get her help.\n")
    with pytest.raises(InputError, match=r"does not follow its template.*nurse.patient.0.female"):
        read_winogender(winogender)


GAP_HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL\n"


def gap_file(tmp_path, *rows):
    path = tmp_path / "gap.tsv"
    path.write_text(GAP_HEADER + "".join("\t".join(row) + "\n" for row in rows))
    return path


def test_gap_by_hand(tmp_path):
    text = 'Ann "Lee\'s" aide met Bo Ray. He left.'
    row = ("t-1", text, "He", "29", "Ann", "0", "FALSE", "Bo Ray", "21", "TRUE", "http://x")
    neither = ("t-2", text, "He", "29", "Ann", "0", "FALSE", "Bo Ray", "21", "FALSE", "http://x")
    [found, other] = read_gap(gap_file(tmp_path, row, neither))
    assert found.text == text
    assert '"' in found.words
    assert mentioned(found) == [("e1", "Ann", "Ann"), ("e2", "Bo Ray", "Ray"), ("e2", "He", "He")]
    assert mentioned(other)[-1][0] == "e3"
    assert (found.id, found.document, found.metadata["gender"]) == ("gap-t-1", "gap-t-1", "male")


def test_a_wrong_offset_is_refused(tmp_path):
    row = ("t-1", "Ann met Bo. He left.", "He", "11", "Ann", "0", "FALSE", "Bo", "8", "TRUE", "u")
    with pytest.raises(InputError, match=r"cannot read GAP.*t-1, offset of Pronoun.*expected 'He', got ' H'"):
        read_gap(gap_file(tmp_path, row))


def pair(name, number):
    return json.dumps(
        {
            "sentence_good": f"Good {number}.",
            "sentence_bad": f"Bad {number}.",
            "UID": name,
            "linguistics_term": "binding",
            "field": "syntax",
            "pairID": str(number),
        }
    )


def test_blimp_out_of_a_zip_a_folder_and_a_file(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(pair(name, i) for i in range(3)) + "\n")
    path = tmp_path / "BLiMP.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("two", "one"):
            archive.write(tmp_path / f"{name}.jsonl", f"data/{name}.jsonl")
        archive.writestr("__MACOSX/data/._one.jsonl", b"\x00\xb0")
    (tmp_path / "data.txt").write_text("not one of them")
    zipped = list(read_blimp(path))
    assert [item.paradigm for item in zipped] == ["one"] * 3 + ["two"] * 3
    assert zipped == list(read_blimp(tmp_path))
    assert list(read_blimp(tmp_path / "two.jsonl")) == list(read_blimp(path, ["two"])) == zipped[3:]
    assert (zipped[0].good, zipped[0].bad, zipped[0].phenomenon, zipped[0].number) == (
        "Good 0.",
        "Bad 0.",
        "binding",
        "0",
    )


def test_blimp_that_is_none_is_refused(tmp_path):
    (tmp_path / "one.jsonl").write_text(pair("one", 0) + '\n{"sentence_good": "x"}\n')
    with pytest.raises(InputError, match="unknown paradigm 'on'; near names: one"):
        read_blimp(tmp_path, ["on"])
    with pytest.raises(InputError, match=r"cannot read BLiMP.*one.jsonl:2.*a minimal pair"):
        list(read_blimp(tmp_path))
    with pytest.raises(InputError, match="cannot read BLiMP.*expected its zip"):
        read_blimp(tmp_path / "gone.zip")


@pytest.mark.shared
def test_the_published_files_are_read_whole(shared_data):
    winobias = read_winobias(shared_data / "coref/winobias")
    assert Counter(item.metadata["condition"] for item in winobias) == {"stereotyped": 792, "anti-stereotyped": 792}
    assert Counter(len({m.cluster for m in mentions_of(item)}) for item in winobias) == {2: 1584}
    winogender = read_winogender(shared_data / "coref/winogender")
    assert Counter(item.metadata["condition"] for item in winogender) == dict.fromkeys(
        ("stereotyped", "anti-stereotyped", "neutral"), 240
    )
    assert {item.metadata["gender"] for item in winogender} == {"male", "female", "neutral"}
    gap = read_gap(shared_data / "coref/gap/gap-development.tsv")
    assert Counter(item.metadata["gender"] for item in gap) == {"female": 1000, "male": 1000}
    assert sum(len({m.cluster for m in mentions_of(item)}) == 2 for item in gap) == 1799
    pairs = Counter(item.paradigm for item in read_blimp(shared_data / "blimp/BLiMP.zip"))
    assert (len(pairs), set(pairs.values())) == (67, {1000})
    for corpus in (winobias, winogender, gap):
        documents = [item.document for item in corpus]
        runs = 1 + sum(a != b for a, b in zip(documents, documents[1:], strict=False))
        assert runs == len(set(documents))  # the variants of a document stand together
        assert len({item.id for item in corpus}) == len(corpus)
