import gzip
import hashlib
import io
import lzma

import pytest

from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.text import source
from attnprobe.text.plain import read_text
from attnprobe.text.source import DocumentNames, files_of, lines_of, name_as_given, raw_lines


def words(corpus):
    return [sentence.words for sentence in corpus]


def stdin_of(monkeypatch, data: bytes):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))


def test_paths_globs_and_lists(tmp_path):
    for name in ("b.txt", "a.txt", "c.md", "sub[1].txt"):
        (tmp_path / name).write_text(f"{name[0]}\n")
    assert words(read_text(tmp_path / "b.txt")) == [("b",)]
    assert words(read_text(str(tmp_path / "[ab].txt"))) == [("a",), ("b",)]
    assert words(read_text([tmp_path / "c.md", str(tmp_path / "[ab]*")])) == [("c",), ("a",), ("b",)]
    assert words(read_text(tmp_path / "sub[1].txt")) == [("s",)]
    assert read_text([tmp_path / "c.md", tmp_path / "a.txt"]).name == f"{tmp_path / 'c.md'} and 1 more"


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("nowhere.txt", "nowhere.txt: expected a file, got nothing there"),
        ("*.none", "expected a file, got nothing there"),
        (".", r"expected a file, got a folder. Name the files"),
        ([], "expected at least one file, got an empty list"),
    ],
)
def test_what_is_not_there_is_refused_at_once(tmp_path, monkeypatch, names, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=message):
        read_text(names)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bytes], ids=["gz", "xz", "plain"])
def test_compression_is_seen_in_the_bytes(tmp_path, monkeypatch, pack):
    text = "é one\n\ntwo\r\n\n\nthree"
    path = tmp_path / "a.txt"
    path.write_bytes(pack(text.encode()))
    corpus = read_text(path)
    expected = [("é", "one"), ("two",), ("three",)]
    assert words(corpus) == expected
    assert words(corpus) == expected
    assert corpus.sha256() == hashlib.sha256(text.encode()).hexdigest()
    stdin_of(monkeypatch, pack(text.encode()))
    assert words(read_text("-")) == expected


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bytes], ids=["gz", "xz", "plain"])
def test_standard_input_can_be_read_again(monkeypatch, pack):
    text = b"one\ntwo\r\nthree"
    stdin_of(monkeypatch, pack(text))
    corpus = read_text("-")
    assert corpus.sha256() == hashlib.sha256(b"").hexdigest()  # nothing has been read yet
    assert words(corpus) == [("one",), ("two",), ("three",)]
    assert words(corpus) == [("one",), ("two",), ("three",)]
    assert corpus.sha256() == hashlib.sha256(text).hexdigest()


def test_readings_of_standard_input_do_not_disturb_each_other(monkeypatch):
    """The first stops early, the second overtakes it: each gets every line once, and nothing is read before it is asked for."""
    stdin_of(monkeypatch, b"".join(b"%d\n" % i for i in range(5000)))
    [file] = files_of("-")
    first, second = raw_lines(file), raw_lines(file)
    begun = [next(first) for _ in range(3)]
    overtaking = [next(second) for _ in range(4000)]
    begun += list(first)
    overtaking += list(second)
    assert begun == overtaking == [b"%d\n" % i for i in range(5000)]


def test_endless_standard_input_is_read_only_as_far_as_asked(monkeypatch):
    class Endless(io.RawIOBase):
        given = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            self.given += 1
            assert self.given < 100, "read on without being asked"
            chunk = b"more words\n" * (len(buffer) // 11)
            buffer[: len(chunk)] = chunk
            return len(chunk)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    sentences = iter(read_text("-"))
    assert [next(sentences).words for _ in range(50)] == [("more", "words")] * 50


def test_standard_input_may_be_a_string(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("é\n"))
    assert words(read_text("-")) == [("é",)]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"a.txt: expected text, got an empty file"),
        (b"fine\nbad \xff\n", r"a.txt:2: expected text in UTF-8, got byte 0xff. Is it a binary file"),
        ("\ufeffa\n".encode("utf-16-le"), r"a.txt:1: expected text in UTF-8"),
        (b"a\x00b\n", r"a.txt:1: expected text in UTF-8, got a zero byte"),
        (b"\n\n \n", r"expected sentences, got none"),
        (gzip.compress(b"a line\n" * 97)[:-11], "expected a whole compressed file"),
        (lzma.compress(b"a line\n" * 97)[:-11], "expected a whole compressed file"),
        (b"\x1f\x8b\x08 no gzip", "expected a whole compressed file"),
    ],
    ids=["empty", "latin", "utf16", "zero", "blank", "cut gz", "cut xz", "no gz"],
)
def test_what_is_not_text_is_refused(tmp_path, data, message):
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(InputError, match=message):
        list(read_text(path))


def test_an_endless_line_is_not_read_on(tmp_path, monkeypatch):
    monkeypatch.setattr(source, "LONGEST_LINE", 1 << 20)
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * (3 << 20))
    with pytest.raises(InputError, match="got a line of 1 MiB or more"):
        list(read_text(path))


def test_a_disk_that_fails_is_the_environments_fault(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("a\n")

    def broken(stream):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(source, "_decompressed", broken)
    with pytest.raises(EnvironmentFailure, match="a.txt: got Input/output error"):
        list(raw_lines(files_of(path)[0]))


def test_lines_are_numbered_and_no_other_separator_ends_them(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffa\u2028b\x0bc\r\n\nd".encode())
    assert list(lines_of(files_of(path)[0])) == [(1, "a\u2028b\x0bc"), (2, ""), (3, "d")]


@pytest.mark.parametrize("longest", [1 << 24, 10, 9, 8, 7])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"one\rtwo\r\rsix\r", ["one", "two", "", "six"]),
        (b"one\rtwo", ["one", "two"]),
        (b"one\r\ntwo\rsix\n\nten\r\n", ["one", "two", "six", "", "ten"]),
        (b"\r\rone\r", ["", "", "one"]),
        (b"two\rsi\r\nx\n", ["two", "si", "x"]),
        (b"one\r\r\ntwo\r\n", ["one", "two"]),
    ],
)
def test_a_bare_return_ends_a_line_too(tmp_path, monkeypatch, data, lines, longest):
    """Wherever a long piece is cut."""
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    monkeypatch.setattr(source, "LONGEST_LINE", longest)
    assert [line for _, line in lines_of(files_of(path)[0])] == lines


def test_suffixes_see_through_compression():
    assert [source.TextFile(name, None).suffix for name in ("A.CONLLU.gz", "b.txt.xz", "c", "d.gz")] == [
        ".conllu",
        ".txt",
        "",
        "",
    ]


def test_document_names_are_unique_and_can_be_undone():
    names = DocumentNames()
    given = ["a", "b", "a", "", "a #2", "a", "", "document 1"]
    unique = [names.unique(name) for name in given]
    assert unique == ["a", "b", "a #2", "document 1", "a #2 #2", "a #3", "document 2", "document 1 #2"]
    assert len(set(unique)) == len(unique)
    assert [name_as_given(name) for name in unique[:3]] == ["a", "b", "a"]
    assert name_as_given("no #mark") == "no #mark"
