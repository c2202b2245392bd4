"""What `run` measures beyond its one pass when it is asked to, and that it does not otherwise."""

import json
import os

import numpy as np
import pytest

from attnprobe import open_study, run
from attnprobe.heads.compare import compare
from attnprobe.heads.controls import CONTROLS, random_weights
from attnprobe.heads.importance import measure_importance
from tests.heads.test_causal import labelled
from tests.heads.test_compare import SENTENCES
from tests.tiny import byte_tokenizer, tiny_model

OPTIONS = {"metrics": ["entropy", "offset_mass"], "relations": ["dep"], "examples": 1}
ASKED = {"importance": 5, "controls": True, "causal": True, "totals": True}


@pytest.fixture(scope="module")
def model():
    return tiny_model("bert", tokenizer=byte_tokenizer())


@pytest.fixture(scope="module")
def study(model):
    return run(model, SENTENCES, **OPTIONS, **ASKED, margin=-1.0)


def test_nothing_more_is_measured_unless_asked_for(model, study):
    plain = run(model, SENTENCES, **OPTIONS)
    assert not {"importance", "controls", "totals"} & set(plain.groups)
    assert "causal" not in plain["labels"].attrs
    for group in ("metrics", "relations"):
        for name in ("entropy", "accuracy"):
            if name in plain[group]:
                np.testing.assert_allclose(study[group][name], plain[group][name], atol=1e-6)


def test_importance_is_that_of_a_sample_of_the_corpus(model, study):
    wanted = measure_importance(model, SENTENCES, max_sentences=5)
    assert study["importance"].attrs["n"] == 5
    for name, values in wanted.data_vars.items():
        np.testing.assert_allclose(study["importance"][name], values, atol=1e-7)


def test_controls_are_runs_over_the_same_plan(model, study):
    for kind in CONTROLS:
        alone = run(random_weights(model, kind), SENTENCES, **OPTIONS, totals=True, margin=-1.0)
        np.testing.assert_array_equal(study["controls"]["accuracy"].sel(control=kind), alone["relations"]["accuracy"])
        np.testing.assert_array_equal(study["controls"]["entropy"].sel(control=kind), alone["metrics"]["entropy"])
    for text in study["labels"]["labels"].values.ravel():
        assert all(set(label["controls"]) == set(CONTROLS) for label in json.loads(str(text))["labels"])


def test_labels_get_both_kinds_of_evidence(model, monkeypatch):
    """A tiny random model earns no label of syntax, so one is put in where labels are made."""
    labels = labelled((1, 2, "dep:obj", "dep->head"))
    monkeypatch.setattr("attnprobe.study.label_table", lambda *_, **__: labels)
    found = run(model, SENTENCES, **{**OPTIONS, "metrics": ["entropy"]}, controls=True, causal=True)
    assert json.loads(found["labels"].attrs["causal"])["ablation"] == "mean"
    label = json.loads(str(found["labels"]["labels"].values[1, 2]))["labels"][1]
    assert set(label["controls"]) == set(CONTROLS)
    assert label["causal"]["n"] > 0
    assert label["causal"]["random_heads"] == [0, 1]


def test_totals_pair_two_runs_and_survive_an_interruption(model, study, tmp_path):
    assert (
        compare(study, study).attributes["pairing"] == "paired over 2 groups of clusters"
    )  # 24 sentences, 16 to a shard
    path = tmp_path / "s.nc"
    told = []

    def stop(done, total):
        told.append(done)
        if done > len(SENTENCES) / 2:
            raise KeyboardInterrupt

    short = {**OPTIONS, "totals": True, "shard_sentences": 4}
    with pytest.raises(KeyboardInterrupt):
        run(model, SENTENCES, **short, out=path, progress=stop)
    assert os.listdir(tmp_path)
    resumed = run(model, SENTENCES, **short, out=path, resume=True)
    whole = run(model, SENTENCES, **short)
    for name, values in whole["totals"].data_vars.items():
        np.testing.assert_array_equal(resumed["totals"][name], values)
        np.testing.assert_array_equal(open_study(path)["totals"][name], values)
    assert whole["totals"].sizes["group"] == 6
