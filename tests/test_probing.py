"""Probes and attention evidence in one study: by `run`, by the command line, added later, interrupted and resumed."""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from attnprobe import open_study, run
from attnprobe.checkpoint import alone, checkpoints
from attnprobe.errors import InputError
from attnprobe.probes import probe
from attnprobe.probes.profile import head_profiles
from attnprobe.study import gather
from tests.probes.conftest import some_sentences, treebank  # noqa: F401
from tests.test_cli import attnprobe  # noqa: F401
from tests.tiny import byte_tokenizer, tiny_model

SMALL = ("--seeds", 1, "--no-mdl", "--quiet")
MEASURED = (
    "--metrics",
    "entropy_normalised,offset_argmax",
    "--relations",
    "dep:det",
    "--cluster",
    "sentence",
    "--max-sentences",
    24,
    "--quiet",
)


@pytest.fixture(scope="module")
def tiny():
    return tiny_model("bert", tokenizer=byte_tokenizer())


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """The same model on disk."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    tiny.module.save_pretrained(path)
    tiny.tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def sentences(some_sentences):  # noqa: F811
    return [sentence for sentence in some_sentences if len(sentence.text) < 90]


def test_run_probes_the_same_corpus_and_joins_the_evidence(tiny, sentences, tmp_path):
    told = []
    study = run(
        tiny,
        sentences,
        metrics=["entropy_normalised"],
        relations=["dep:det"],
        probes=["upos", len_of_word],
        max_sentences=24,
        cluster="sentence",
        out=tmp_path / "s.nc",
        progress=lambda done, total: told.append((done, total)),
    )
    alone = probe(
        tiny, sentences[:24], tasks=["upos", len_of_word], sites=("context",), cluster="sentence", seeds=3, mdl=False
    )
    xr.testing.assert_identical(study["probes"], alone)
    expected = head_profiles(study["labels"], study["probes"], study["metrics"])
    assert study["profiles"].equals(expected)
    assert open_study(tmp_path / "s.nc")["profiles"].equals(expected)
    assert list(tmp_path.iterdir()) == [tmp_path / "s.nc"]
    assert told[-1][0] == told[-1][1]


def test_what_cannot_be_probed_is_said_before_anything_is_measured(tiny, sentences, monkeypatch):
    monkeypatch.setattr("attnprobe.study.measure_all", lambda *_, **__: pytest.fail("measured"))
    one = [sentence for sentence in sentences if sentence.document == sentences[0].document]
    for corpus, tasks, told in (
        (sentences, ["upso"], "near names: upos"),
        (one, ["upos"], "cannot split the corpus"),
        (sentences, ["supersense"], "nothing can be probed.*supersense: no labels"),
    ):
        with pytest.raises(InputError, match=told):
            run(tiny, corpus, probes=tasks)


def len_of_word(sentence):
    return [str(min(len(word), 5)) for word in sentence.words]


def test_an_interrupted_run_goes_on_in_the_middle_of_its_probes(tiny, sentences, tmp_path, monkeypatch):
    from attnprobe.probes import run as probing

    options = {"metrics": ["entropy_normalised"], "relations": ["dep:det"], "probes": ["upos"]}
    expected = run(tiny, sentences[:24], **options, cluster="sentence")
    original, done = probing.score, []

    def until_the_third(x, plan, **more):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(True)
        return original(x, plan, **more)

    monkeypatch.setattr(probing, "score", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        run(tiny, sentences[:24], **options, cluster="sentence", out=tmp_path / "s.nc")
    done.clear()
    monkeypatch.setattr(probing, "score", lambda x, plan, **more: done.append(True) or original(x, plan, **more))
    found = run(tiny, sentences[:24], **options, cluster="sentence", out=tmp_path / "s.nc", resume=True)
    xr.testing.assert_identical(found["probes"], expected["probes"])
    assert len(done) == 1 + 2 + 3 + 2 * 2 - 2  # embeddings, layers, states, layers with random weights; two done before
    assert list(tmp_path.iterdir()) == [tmp_path / "s.nc"]


def test_tables_of_another_model_or_corpus_are_not_added(tiny, sentences):
    study = gather(tiny, sentences, lambda model, corpus: {"/a": xr.Dataset()})
    with pytest.raises(InputError, match="study of another model"):
        gather(tiny_model("gpt2", tokenizer=byte_tokenizer()), sentences, _never, into=study)
    with pytest.raises(InputError, match="study of another corpus"):
        gather(tiny, sentences[1:], _never, into=study)
    both = gather(tiny, sentences, lambda model, corpus: {"/b": xr.Dataset()}, into=study)
    assert both.groups == ["verification", "a", "b"]
    assert both.attributes == study.attributes
    assert "b" not in study


def _never(model, corpus):
    pytest.fail("computed before it was refused")


def test_probes_are_added_to_a_study_of_heads_from_the_command_line(attnprobe, folder):  # noqa: F811
    assert attnprobe("heads", folder, "--out", "s.nc", *MEASURED)[0] == 0
    before = open_study("s.nc")
    code, out, err = attnprobe(
        "probe", folder, "--into", "s.nc", "--tasks", "upos,misc:NER", *SMALL, "--use", "L1H2", "--json"
    )
    assert code == 0, err
    assert set(json.loads(out)["groups"]) >= {"labels", "metrics", "probes", "profiles", "use"}
    study = open_study("s.nc")
    assert study["metrics"].equals(before["metrics"])
    assert study["profiles"]["verdict"].shape == (2, 3)
    assert (
        study["probes"].attrs["sentences"] == int(study.attributes["sentences_kept"]) < 24
    )  # --max-sentences of the study
    assert json.loads(study["probes"].attrs["not_probed"]) == {"misc:NER": "no labels in the corpus"}
    assert study["use"]["task"].values.tolist() == ["upos"]
    assert study["use"]["layer"].values.tolist() == [1]
    assert sorted(path.name for path in Path().iterdir()) == ["s.nc"]
    code, _, err = attnprobe("probe", folder, "--into", "s.nc", "--tasks", "upos", *SMALL, "--max-sentences", 5)
    assert code == 2
    assert "probes of other sentences do not belong in this study at s.nc: expected --max-sentences" in err
    code, _, err = attnprobe("probe", folder, "--into", "s.nc", "--corpus", _corpus(), "--tasks", "upos", *SMALL)
    assert code == 2
    assert "study of another corpus" in err


def test_probes_are_added_to_a_study_of_several_files_without_naming_them_again(attnprobe, folder):  # noqa: F811
    blocks = Path(_corpus()).read_text(encoding="utf-8").split("\n\n")
    for name, part in (("a, with a comma.conllu", blocks[:6]), ("b.conllu", blocks[6:12])):
        Path(name).write_text("\n\n".join(part) + "\n\n", encoding="utf-8")
    both = ("--corpus", "a, with a comma.conllu", "--corpus", "b.conllu")
    assert attnprobe("heads", folder, "--out", "s.nc", *both, *MEASURED)[0] == 0
    code, _, err = attnprobe("probe", folder, "--into", "s.nc", "--tasks", "upos", *SMALL)
    assert code == 0, err
    assert "probes" in open_study("s.nc")


@pytest.mark.parametrize(
    "asked",
    [
        ("probe", "minilm", "--out", "s.nc", "--tasks", "upos"),
        ("probe", "minilm", "--into", "s.nc"),
        ("importance", "minilm", "--out", "s.nc"),
        ("heads", "minilm", "--out", "s.nc", "--max-sentences", 2, "--metrics", "entropy"),
    ],
    ids=lambda asked: " ".join(map(str, asked[:3])),
)
@pytest.mark.parametrize("first", [partial(checkpoints, key="heads", resume=False), alone])
def test_two_commands_do_not_write_one_study(attnprobe, monkeypatch, asked, first):  # noqa: F811
    """Whichever came first: one that keeps shards, which stay, or one that does not."""
    if asked[0] != "heads":  # `run` needs the model before it locks
        monkeypatch.setattr("attnprobe.models.load.load", lambda *_, **__: pytest.fail("loaded"))
    with first(Path("s.nc")):
        code, _, err = attnprobe(*asked)
        assert code == 2, err
        assert "another run is writing the same result at s.nc" in err
        assert [path.name for path in Path("s.nc.parts").iterdir() if path.name != "key"] == ["lock"]


def _corpus():
    """Short sentences under short names, enough of them to be split."""
    rows = [
        f"# newdoc id = d{i}\n# sent_id = s{i}\n1\tDogs\tdog\tNOUN\t_\t_\t2\tnsubj\t_\tNER={'ab'[i % 2]}\n"
        f"2\tbark\tbark\tVERB\t_\t_\t0\troot\t_\tNER=b\n"
        for i in range(12)
    ]
    Path("own.conllu").write_text("\n".join(rows) + "\n")
    return "own.conllu"


def test_labels_from_files_and_columns_and_trees_from_the_command_line(attnprobe, folder):  # noqa: F811
    corpus = _corpus()
    Path("own.iob2").write_text(
        "".join(f"# sent_id = s{i}\n1\tDogs\tB-{'XY'[i % 2]}\n2\tbark\tO\n\n" for i in range(12))
    )
    tasks = "misc:NER,ner:own.iob2,position"
    options = ("--sites", "q,v", "--pieces", "first", "--seed", 1, "--also", "dependency", *SMALL)
    code, _, err = attnprobe("probe", folder, "--corpus", corpus, "--tasks", tasks, *options, "--out", "p.nc")
    assert code == 0, err
    study = open_study("p.nc")
    assert study["probes"]["task"].values.tolist() == ["misc:NER", "ner:own.iob2", "position"]
    assert study["probes"]["site"].values.tolist() == ["q", "v"]
    assert (study["probes"].attrs["pieces"], study["probes"].attrs["seed"]) == ("first", 1)
    assert np.isfinite(study["dependency"]["uas"])
    assert "profiles" not in study


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "give --out, or --into"),
        (("--out", "p.nc", "--also", "structure"), "near names: structural"),
        (("--out", "p.nc", "--use", "L1H"), "heads such as L2H8,L4H1"),
        (("--out", "p.nc", "--tasks", "upso"), "near names: upos"),
        (("--into", "gone.nc"), "gone.nc"),
        (("--out", "p.nc", "--tasks", "ner:gone.iob2"), "gone.iob2"),
        (
            (
                "--out",
                "no/such/p.nc",
            ),
            "existing folder",
        ),
    ],
)
def test_wrong_use_of_probe_is_refused_before_the_model_is_loaded(attnprobe, monkeypatch, options, told):  # noqa: F811
    monkeypatch.setattr("attnprobe.models.load.load", lambda *_, **__: pytest.fail("loaded"))
    code, out, err = attnprobe("probe", "minilm", *options)
    assert code == 2, err
    assert out == ""
    assert told in err
    assert list(Path().iterdir()) == []
