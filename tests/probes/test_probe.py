"""`probe` from model and corpus to the table: shapes, controls, seeds, what is said of what could not be probed."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import xarray as xr

from attnprobe.errors import InputError
from attnprobe.probes import probe
from attnprobe.probes.table import Scores
from attnprobe.records import Sentence
from attnprobe.text.batching import split_of_sentence
from tests.tiny import HEAD_DIM, byte_tokenizer, tiny_model


def capital(sentence):
    """A task of one's own."""
    return ["capital" if word[0].isupper() else "small" for word in sentence.words]


@pytest.fixture(scope="module")
def tiny():
    return tiny_model("bert", tokenizer=byte_tokenizer())


@pytest.fixture(scope="module")
def short_sentences(some_sentences):
    return [sentence for sentence in some_sentences if len(sentence.text) < 90]


@pytest.fixture(scope="module")
def table(tiny, short_sentences):
    return probe(
        tiny,
        short_sentences,
        tasks=["upos", capital, "arc", "supersense"],
        sites=("v", "context"),
        seeds=2,
        penalties=(100, 1),
    )


def test_the_table_has_the_shape_others_rely_on(table):
    assert table["accuracy"].dims == table["control"].dims == ("task", "site", "layer", "head")
    assert table["ceiling"].dims == table["majority"].dims == ("task",)
    names = ("selectivity", "seed_sd", "codelength_bits", "compression", "compression_unigram")
    for name in (*names, "accuracy_low", "accuracy_high", "control_low", "selectivity_low", "selectivity_high"):
        assert table[name].dims == ("task", "site", "layer", "head")
    assert table["random"].dims == ("weights", "task", "site", "layer", "head")
    assert table["state_accuracy"].dims == ("task", "state")
    assert table["embedding_accuracy"].dims == ("task",)
    assert table["curve_accuracy"].dims == ("task", "site", "layer", "head", "portion")
    assert list(table["task"].values) == ["upos", "capital", "arc", "supersense"]
    assert list(table["task_kind"].values) == ["syntax", "own", "syntax", "semantics"]
    assert list(table["weights"].values) == ["embeddings_kept", "all_random"]
    assert table["layer"].values.tolist() == [0, 1]
    assert table["state"].values.tolist() == [0, 1, 2]
    assert table["codelength_bits"].attrs["unit"] == "bits"


def test_numbers_lie_where_they_must(table):
    probed = table.drop_sel(task="supersense")
    for name in ("accuracy", "control"):
        assert ((probed[f"{name}_low"] <= probed[name]) & (probed[name] <= probed[f"{name}_high"])).all()
        assert ((probed[name] >= 0) & (probed[name] <= 1)).all()
    np.testing.assert_allclose(probed["selectivity"], probed["accuracy"] - probed["control"], atol=1e-12)
    assert ((probed["majority"] > 0) & (probed["majority"] < 1)).all()
    assert ((probed["ceiling"] > 0.5) & (probed["ceiling"] < 1)).all()
    assert (probed["n"] > 300).all()
    assert probed["n_classes"].sel(task="capital") == 2
    # a word's first letter can be read off its embedding; a random model knows it no better than its embeddings tell
    best = probed["accuracy"].sel(task="capital").max()
    assert best > probed["majority"].sel(task="capital") + 0.02


def test_false_findings_are_bounded_over_the_whole_table(table):
    p, q = (table[name].values.ravel() for name in ("selectivity_p", "selectivity_q"))
    tested = np.isfinite(p)
    assert (np.isfinite(q) == tested).all()
    order = np.argsort(p[tested])
    scaled = p[tested][order] * tested.sum() / np.arange(1, tested.sum() + 1)
    np.testing.assert_allclose(q[tested][order], np.minimum.accumulate(scaled[::-1])[::-1].clip(max=1))
    wrong = table["selectivity"].values < 0
    assert (table["selectivity_p"].values[wrong] > 0.5).all()


def test_another_seed_holds_out_and_draws_others(tiny, short_sentences, table):
    options = {"tasks": ["upos"], "sites": ("q",), "states": False, "penalties": (10,), "mdl": False}
    both = probe(tiny, short_sentences, **options, seeds=2)
    apart = [probe(tiny, short_sentences, **options, seeds=1, seed=seed) for seed in (0, 1)]
    assert not np.array_equal(apart[0]["control"], apart[1]["control"])
    np.testing.assert_allclose(both["control"], (apart[0]["control"] + apart[1]["control"]) / 2)
    assert apart[1].attrs["seed"] == 1


def test_what_could_not_be_probed_is_nan_and_said(table):
    assert json.loads(table.attrs["not_probed"]) == {"supersense": "no labels in the corpus"}
    for name in ("accuracy", "control", "random", "compression", "ceiling", "embedding_accuracy", "state_accuracy"):
        assert np.isnan(table[name].sel(task="supersense")).all()
    assert table["n"].sel(task="supersense") == 0


def test_an_accuracy_cannot_be_shown_without_its_controls(table):
    with pytest.raises(TypeError, match="missing"):
        Scores(["upos"], ["syntax"], [], {})
    assert not [entry.name for entry in fields(Scores) if entry.default_factory is not entry.default]


def test_the_same_call_gives_the_same_table_and_saves(tiny, short_sentences, tmp_path):
    options = {"tasks": ["upos"], "sites": ("q",), "seeds": 1, "states": False, "penalties": (10,), "scratch": tmp_path}
    steps = []
    first = probe(tiny, short_sentences, **options, progress=lambda *told: steps.append(told))
    xr.testing.assert_identical(first, probe(tiny, short_sentences, **options))
    assert list(tmp_path.iterdir()) == []
    assert steps[0] == (0, 0, "running the model")
    assert len([what for _, _, what in steps if "random weights, " in what]) == 2
    numbers = [done for done, _, what in steps if "running" not in what]
    assert numbers == list(range(len(numbers)))
    assert steps[-1] == (len(numbers) - 1, len(numbers) - 1, "done")
    first.to_netcdf(tmp_path / "p.nc", engine="h5netcdf")
    xr.testing.assert_equal(xr.open_dataset(tmp_path / "p.nc", engine="h5netcdf").load(), first)
    without = probe(tiny, short_sentences, **options, mdl=False)
    assert "compression" not in without
    np.testing.assert_array_equal(without["accuracy"], first["accuracy"])


def test_an_interrupted_run_goes_on_and_gives_the_same_table(tiny, short_sentences, tmp_path, monkeypatch):
    from attnprobe.probes import run

    options = {"tasks": ["upos"], "sites": ("q",), "seeds": 1, "states": False, "penalties": (10,), "mdl": False}
    expected = probe(tiny, short_sentences, **options)
    done = []

    def until_the_third(x, plan, **more):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(True)
        return original(x, plan, **more)

    original = run.score
    monkeypatch.setattr(run, "score", until_the_third)
    with pytest.raises(KeyboardInterrupt):
        probe(tiny, short_sentences, **options, checkpoints=tmp_path / "kept")
    done.clear()
    monkeypatch.setattr(run, "score", lambda x, plan, **more: done.append(True) or original(x, plan, **more))
    xr.testing.assert_identical(probe(tiny, short_sentences, **options, checkpoints=tmp_path / "kept"), expected)
    assert (
        len(done) == 7 - 2
    )  # word embeddings, two layers, and these twice with random weights, two of them done before
    with pytest.raises(InputError, match="cannot resume"):
        probe(tiny, short_sentences, **{**options, "penalties": (1,)}, checkpoints=tmp_path / "kept")
    [first, *_] = (tmp_path / "kept").glob("*.npz")
    for damaged in (b"broken", first.read_bytes()[:-100]):
        first.write_bytes(damaged)
        with pytest.warns(UserWarning, match="damaged.*computed again"):
            again = probe(tiny, short_sentences, **options, checkpoints=tmp_path / "kept")
        xr.testing.assert_identical(again, expected)


def test_a_broken_head_is_named_and_nan(tiny, short_sentences):
    broken = tiny_model("bert", tokenizer=byte_tokenizer())
    with torch.no_grad():
        broken.module.encoder.layer[1].attention.self.value.weight[HEAD_DIM + 1] = float("inf")
    options = {"tasks": ["upos", "supersense"], "sites": ("v",), "seeds": 1, "states": False, "mdl": False}
    with pytest.warns(UserWarning, match="v of layer 1: vectors of heads 1 are not all finite"):
        found = probe(broken, short_sentences, **options, penalties=(10,))
    nan = np.isnan(found["accuracy"].sel(task="upos", site="v").values)
    assert nan.tolist() == [[False] * 3, [False, True, False]]


def test_heads_that_share_a_key_head_share_its_numbers(short_sentences):
    llama = tiny_model("llama", tokenizer=byte_tokenizer())
    found = probe(
        llama, short_sentences, tasks=["upos"], sites=("k", "q"), seeds=1, states=False, mdl=False, penalties=(10,)
    )
    keys, queries = (found["accuracy"].sel(site=site, task="upos").values for site in ("k", "q"))
    np.testing.assert_array_equal(keys[:, 0], keys[:, 1])
    np.testing.assert_array_equal(keys[:, 2], keys[:, 3])
    assert not np.array_equal(keys[:, 1], keys[:, 2])
    assert not np.array_equal(queries[:, 0], queries[:, 1])


def test_sentences_left_out_are_counted_and_report_is_held_out(tiny, short_sentences):
    long = Sentence("long", ("x" * 300,), document="d")
    found = probe(
        tiny, [*short_sentences, long], tasks=["upos"], sites=("q",), seeds=1, states=False, mdl=False, penalties=(10,)
    )
    assert json.loads(found.attrs["sentences_dropped"]) == {"too long": 1}
    expected = sum(len(s) for s in short_sentences if split_of_sentence(s) == "report")
    assert found["n"].sel(task="upos") == expected


def test_control_labels_are_not_the_tasks(table):
    """A published control once ran the task itself: then the two accuracies are the same everywhere."""
    probed = table.drop_sel(task="supersense")
    assert (probed["control"] != probed["accuracy"]).mean() > 0.9


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tasks": ["supersense"]}, "nothing can be probed.*supersense: no labels in the corpus"),
        ({"tasks": ["upso"]}, "near names: upos"),
        ({"seeds": 0}, "1 or more"),
        ({"sites": ("z",)}, "unknown choice 'z'"),
        ({"sites": ()}, "each once, of q, k, v, context"),
        ({"sites": "q"}, "a list of names"),
        ({"sites": ("q", "q")}, "each once"),
        ({"penalties": ()}, "positive numbers"),
        ({"penalties": (float("inf"),)}, "positive numbers"),
        ({"unit": "kbits"}, "unknown unit"),
    ],
)
def test_wrong_options_are_refused(tiny, short_sentences, changes, told):
    options = {"tasks": ["upos"], "sites": ("q",), "seeds": 1, "states": False, "penalties": (10,), **changes}
    with pytest.raises(InputError, match=told):
        probe(tiny, short_sentences, **options)


def test_wrong_options_are_refused_before_the_model_runs(tiny, short_sentences, monkeypatch):
    monkeypatch.setattr("attnprobe.probes.features.run_forward", lambda *_: pytest.fail("the model ran"))
    with pytest.raises(InputError, match="positive"):
        probe(tiny, short_sentences, tasks=["upos"], penalties=(-1,))


def test_a_model_without_tokenizer_is_refused(tiny, short_sentences):
    with pytest.raises(InputError, match="no tokenizer"):
        probe(replace(tiny, tokenizer=None), short_sentences)
