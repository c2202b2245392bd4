import gzip
import io
import json
import lzma
import os
import threading
from importlib.util import find_spec
from itertools import cycle, islice

import pytest

from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.text.corpus import read_corpus
from attnprobe.text.hub import read_dataset

TREE = "1\ta\t_\tX\t_\t_\t0\troot\t_\t_\n\n"


def lines(*records):
    return "".join(f"{json.dumps(record)}\n" for record in records)


def test_the_suffix_tells_the_format(tmp_path):
    (tmp_path / "a.conllu").write_text(TREE)
    (tmp_path / "b.txt").write_text("one two\n")
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines({"text": "three"}).encode()))
    found = list(read_corpus([tmp_path / "a.conllu", tmp_path / "b.txt", tmp_path / "c.jsonl.gz"]))
    assert [sentence.words for sentence in found] == [("a",), ("one", "two"), ("three",)]
    assert [sentence.id for sentence in found] == ["s1", "s2", "s3"]


def test_a_format_may_be_said(tmp_path):
    (tmp_path / "a.dat").write_text(TREE)
    [sentence] = read_corpus(tmp_path / "a.dat", "conllu")
    assert sentence.heads == (0,)
    assert len(list(read_corpus(tmp_path / "a.dat", format="text"))) == 1
    with pytest.raises(
        InputError,
        match="cannot tell the format at .*a.dat: expected .*.conllu .*, got .dat. Rename the file; or give it on standard input",
    ):
        read_corpus(tmp_path / "a.dat")
    with pytest.raises(InputError, match="unknown corpus format 'conlu': got near names: conllu"):
        read_corpus(tmp_path / "a.dat", "conlu")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("\n# text = a\n" + TREE, ("a",)),
        (lines({"text": "one two"}), ("one", "two")),
        ("# A title\nand text\n", ("#", "A", "title")),
        ("1 thing\n", ("1", "thing")),
    ],
)
def test_standard_input_is_told_by_its_first_lines(monkeypatch, data, words):
    for payload in (data.encode(), gzip.compress(data.encode())):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(payload)))
        assert next(iter(read_corpus("-"))).words == words
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with pytest.raises(InputError, match="got an empty file"):
        list(read_corpus("-"))


def test_json_lines_with_words_carry_their_annotation(tmp_path):
    path = tmp_path / "a.jsonl"
    full = {
        "id": "x",
        "document": "d",
        "text": "Dogs bark.",
        "words": ["Dogs", "bark", "."],
        "upos": ["NOUN", "VERB", "PUNCT"],
        "heads": [2, 0, 2],
        "deprels": ["nsubj", "root", "punct"],
        "segments": [0, 0, 1],
        "score": 3,
    }
    path.write_text(lines(full, {"words": ["a"], "upos": None}) + "\n")
    first, second = read_corpus(path)
    assert (first.id, first.document, first.text, first.words) == ("x", "d", "Dogs bark.", ("Dogs", "bark", "."))
    assert (first.upos, first.heads, first.deprels) == (
        ("NOUN", "VERB", "PUNCT"),
        (2, 0, 2),
        ("nsubj", "root", "punct"),
    )
    assert (first.segments, first.metadata) == ((0, 0, 1), {"sent_id": "x"})
    assert (second.id, second.upos, second.metadata) == ("s2", (), {})


def test_a_text_of_several_lines_is_a_document(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        lines({"text": "one\n\ntwo"}, {"id": "r", "text": "a\nb\n"}, {"id": "q", "text": "c\n"}, {"text": "d"})
    )
    found = [(sentence.id, sentence.document, sentence.text) for sentence in read_corpus(path)]
    assert found == [
        ("s1", "document 1", "one"),
        ("s2", "document 1", "two"),
        ("r-1", "r", "a"),
        ("r-2", "r", "b"),
        ("q", "", "c"),
        ("s6", "", "d"),
    ]


BAD = [
    ("{not json", "not JSON", "a JSON object a line, got Expecting property name"),
    ('["a"]', "no words", "got list"),
    ("{}", "no words", "got the keys none"),
    ('{"txt": "a"}', "no words", "got the keys txt"),
    ('{"text": "  "}', "no words", "got the keys text"),
    ('{"text": 3}', "wrong text", "expected a string, got int"),
    ('{"id": 3, "text": "a"}', "wrong id", "expected a string, got int"),
    ('{"words": "a b"}', "wrong words", "expected a list of str, got str"),
    ('{"words": []}', "wrong words", "got 0 values"),
    ('{"words": ["a", 3]}', "wrong words", "got 2 values"),
    ('{"words": ["a", "b"], "upos": ["X"]}', "wrong upos", "expected a list of str, 2 of them, got 1 values"),
    ('{"words": ["a"], "heads": [true]}', "wrong heads", "expected a list of int, 1 of them"),
    ('{"text": "cut \\ud83d"}', "not Unicode", "expected whole characters, got half of a character, '\\ud83d'"),
    ('{"text": ' + 40_000 * "[" + 40_000 * "]" + "}", "not JSON", "a JSON object a line, got maximum recursion depth"),
    ('{"words": ["a"], "segments": [' + 5000 * "9" + "]}", "not JSON", "got Exceeds the limit"),
    ('{"words": ["a"], "segments": [' + 30 * "9" + "]}", "wrong segments", "got 1 values"),
    ('{"words": ["a"], "heads": [' + 30 * "9" + "]}", "wrong heads", "got 1 values"),
    ('{"words": ["a", "b"], "heads": [2, 1]}', "broken tree: cycle", "got the cycle 1 -> 2 -> 1"),
]


@pytest.mark.parametrize(("line", "reason", "message"), BAD, ids=[bad[0][:40] for bad in BAD])
def test_records_that_cannot_be_used(tmp_path, line, reason, message):
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"text": "fine"}}\n{line}\n{{"words": ["too"]}}\n')
    with pytest.raises(InputError) as caught:
        list(read_corpus(path))
    for part in (reason, message, f"{path}:2:"):
        assert part in str(caught.value)
    corpus = read_corpus(path, skip_invalid=True)
    assert [sentence.words for sentence in corpus] == [("fine",), ("too",)]
    assert corpus.drops.counts == {reason: 1}


def test_parquet_is_read_where_pyarrow_is_installed_and_refused_where_not(tmp_path):
    path = tmp_path / "a.parquet"
    if find_spec("pyarrow") is None:
        path.write_bytes(b"PAR1")
        with pytest.raises(
            EnvironmentFailure, match="cannot read Parquet at .*a.parquet: expected pyarrow, got none. Install"
        ):
            list(read_corpus(path))
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"text": f"line {i}", "words": None, "score": i} for i in range(701)] + [
        {"text": "", "words": ["a", "b"], "score": 0}
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    found = list(read_corpus(path))
    assert [sentence.words for sentence in found[-2:]] == [("line", "700"), ("a", "b")]
    assert len(found) == 702
    path.write_bytes(b"not parquet at all")
    with pytest.raises(InputError, match="expected Parquet"):
        list(read_corpus(path))
    pq.write_table(pa.table({"sentence": ["a b"], "score": [1]}), path)
    told = r"a.parquet: expected a column `words` or `text`, got sentence, score. Rename"
    with pytest.raises(InputError, match=told):
        list(read_corpus(path, skip_invalid=True))
    two_bytes = (pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe"))
    pq.write_table(pa.table({"text": pa.StringArray.from_buffers(1, *two_bytes)}), path)
    with pytest.raises(InputError, match="expected Parquet, got 'utf-8' codec can't decode byte 0xff"):
        list(read_corpus(path))


PIECES = {
    "a.conllu": TREE.encode(),
    "a.txt": b"one two\n",
    "a.jsonl": b'{"text": "one two"}\n',
    "b.conllu.gz": gzip.compress(TREE.encode() * 500),
    "b.jsonl.xz": lzma.compress(b'{"text": "one two"}\n' * 500),
}


@pytest.mark.parametrize("name", PIECES)
def test_a_file_is_read_as_a_stream(tmp_path, name):
    """A pipe whose writer has far more to say than is asked for: it must not get to the end."""
    path = tmp_path / name
    os.mkfifo(path)
    ended = []

    def endless():
        with path.open("wb", buffering=0) as stream:
            try:
                for piece in islice(cycle([PIECES[name]]), 200_000):
                    stream.write(piece)
                ended.append(True)
            except BrokenPipeError:
                return

    writer = threading.Thread(target=endless, daemon=True)
    writer.start()
    sentences = iter(read_corpus(path))
    assert len(list(islice(sentences, 2500))) == 2500
    sentences.close()
    writer.join(timeout=30)
    assert not writer.is_alive()
    assert not ended


def test_parquet_is_read_as_a_stream(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    path = tmp_path / "a.parquet"
    table = pa.table({"text": [f"row {i} " + "x" * 500 for i in range(80_000)]})
    size = table.nbytes
    pq.write_table(table, path, row_group_size=1000)
    del table
    before = pa.total_allocated_bytes()
    sentences = iter(read_corpus(path))
    peak = 0
    for _ in range(3000):
        next(sentences)
        peak = max(peak, pa.total_allocated_bytes() - before)
    assert 0 < peak < size / 10
    sentences.close()


def rows():
    return [{"text": "one two", "score": 3}, {"text": "three\nfour"}]


def test_rows_of_any_kind_are_a_corpus():
    def endless():
        for i in range(10):
            yield {"text": f"row {i}"}
        raise AssertionError("read on without being asked")

    assert [sentence.words for sentence in islice(read_dataset(endless()), 10)][-1] == ("row", "9")
    corpus = read_dataset([*rows(), {"no": 1}], name="mine", skip_invalid=True)
    for _ in range(2):
        assert [sentence.text for sentence in corpus] == ["one two", "three", "four"]
        assert corpus.drops.counts == {"no words": 1}
    with pytest.raises(InputError, match="unusable sentence, no words, at mine:3"):
        list(read_dataset([*rows(), {"no": 1}], name="mine"))
    with pytest.raises(InputError, match="cannot read the corpus at data set in memory: expected sentences, got none"):
        list(read_dataset([]))


@pytest.mark.parametrize("name", ["dataset:", "dataset:a::b", "dataset:a:b:c:d"])
def test_names_of_data_sets_have_a_form(name):
    with pytest.raises(InputError, match=f"expected dataset:NAME, .*got {name}"):
        read_corpus(name)


def test_data_sets_need_their_library(monkeypatch):
    monkeypatch.setattr("attnprobe.text.hub.find_spec", lambda name: None)
    with pytest.raises(EnvironmentFailure, match="cannot read a data set at dataset:a: expected the library datasets"):
        read_corpus("dataset:a")


@pytest.mark.filterwarnings("default")
def test_data_sets_of_the_library_are_read_where_it_is_installed(tmp_path, monkeypatch):
    """Saved to disk with one split or several, as a folder of files, and loaded already."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    expected = [("one", "two"), ("three",), ("four",)]
    whole = datasets.Dataset.from_list([{"score": 0, "id": "", "words": None, **row} for row in rows()])
    whole.save_to_disk(tmp_path / "one")
    datasets.DatasetDict(train=whole, test=whole.select([0])).save_to_disk(tmp_path / "two")
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "train.jsonl").write_text(lines(*rows()))
    for corpus in (
        read_dataset(whole),
        read_dataset(whole.to_iterable_dataset()),
        read_corpus(f"dataset:{tmp_path / 'one'}"),
        read_corpus(f"dataset:{tmp_path / 'two'}:train"),
        read_corpus(f"dataset:{tmp_path / 'three'}"),
        read_corpus(f"dataset:{tmp_path / 'three'}:train"),
    ):
        for _ in range(2):
            assert [sentence.words for sentence in corpus] == expected
    with pytest.raises(InputError, match="which split at .*two: expected .*two:SPLIT, got the splits train, test"):
        read_corpus(f"dataset:{tmp_path / 'two'}")
    for wrong in ("two:dev", "three:dev", "nowhere"):
        with pytest.raises(InputError, match=f"cannot read a data set at .*{wrong}: expected dataset:NAME"):
            list(read_corpus(f"dataset:{tmp_path}/{wrong}"))
    whole.rename_column("text", "sentence").remove_columns("words").save_to_disk(tmp_path / "four")
    with pytest.raises(InputError, match="expected a column `words` or `text`, got .*sentence.*rename_column"):
        read_corpus(f"dataset:{tmp_path / 'four'}")
