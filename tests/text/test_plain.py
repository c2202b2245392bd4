import pytest

from attnprobe.text.plain import read_text, split_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don't stop!", ("Don't", "stop", "!")),
        ("'quoted' rock 'n' roll", ("'", "quoted", "'", "rock", "'", "n", "'", "roll")),
        ("U.S.A. 3.14, 1,000,000 a,b", ("U.S.A", ".", "3.14", ",", "1,000,000", "a", ",", "b")),
        ("wait... well-known -- (x)", ("wait", "...", "well", "-", "known", "--", "(", "x", ")")),
        ("今天，好。", ("今", "天", "，", "好", "。")),
        ("第3章a", ("第", "3", "章", "a")),
        ("カタカナ 日本", ("カタカナ", "日", "本")),
        ("cafe\u0301! हिन्दी", ("cafe\u0301", "!", "हिन्दी")),
        ("👩‍👩‍👧 👍🏽! ❤️!", ("👩‍👩‍👧", "👍🏽", "!", "❤️", "!")),
        ("[SEP] <s>", ("[", "SEP", "]", "<", "s", ">")),
        ("a\u200bb \u00ad \ufffd\x0b", ("a", "b", "\ufffd")),
        ("  ", ()),
        ("", ()),
        ("\u0301", ("\u0301",)),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_words_of_a_text(text, words):
    assert split_words(text) == words


def test_splitting_loses_nothing_one_can_see():
    text = "".join(map(chr, range(33, 3001)))
    visible = [c for c in text if not c.isspace() and c not in "\x7f" and not 0x80 <= ord(c) < 0xA0]
    kept = "".join(split_words(text))
    assert set(visible) - set(kept) <= set(
        "\u00ad\u0600\u0601\u0602\u0603\u0604\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    )


def documents_of(path, text):
    path.write_text(text)
    return [(sentence.id, sentence.document, sentence.text) for sentence in read_text(path)]


def test_blank_lines_divide_documents(tmp_path):
    found = documents_of(tmp_path / "a.txt", "\none\n  two \n\n\nthree\n")
    assert found == [("s1", "document 1", "one"), ("s2", "document 1", "two"), ("s3", "document 2", "three")]


def test_a_file_without_blank_lines_has_no_documents(tmp_path):
    assert documents_of(tmp_path / "a.txt", "\n\none\ntwo\n\n") == [("s1", "", "one"), ("s2", "", "two")]


def test_a_blank_line_must_come_early(tmp_path, monkeypatch):
    monkeypatch.setattr("attnprobe.text.plain.LOOK_AHEAD", 5)
    early, late = "a\n" * 3 + "\n" + "b\n" * 7, "a\n" * 5 + "\n" + "b\n" * 7
    assert {document for _, document, _ in documents_of(tmp_path / "a.txt", early)} == {"document 1", "document 2"}
    assert {document for _, document, _ in documents_of(tmp_path / "a.txt", late)} == {""}
    assert len(documents_of(tmp_path / "a.txt", late)) == 12


def test_documents_end_with_their_file(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text("x\n\ny\n")
    found = [(sentence.id, sentence.document) for sentence in read_text([tmp_path / "a.txt", tmp_path / "b.txt"])]
    assert found == [("s1", "document 1"), ("s2", "document 2"), ("s3", "document 3"), ("s4", "document 4")]
