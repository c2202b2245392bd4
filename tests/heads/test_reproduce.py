"""Scripts that repeat published analyses: they run, print the published number beside the measured one, and say what differs."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from attnprobe import open_study, read_conllu, run
from attnprobe.data import path
from attnprobe.registry import RELATIONS

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def script(request):
    """The script as a module; relations it registers are forgotten afterwards."""
    before = set(RELATIONS.names())
    spec = importlib.util.spec_from_file_location(request.param, SCRIPTS / f"{request.param}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    for name in set(RELATIONS.names()) - before:
        RELATIONS.remove(name)


@pytest.mark.parametrize("script", ["reproduce_clark2019"], indirect=True)
def test_clark_prints_the_notebooks_numbers_beside_the_best_heads_of_a_run(script, capsys):
    assert script.main(["minilm", "--max-sentences", "40"]) == 0
    printed = capsys.readouterr().out
    study = run(
        "minilm", read_conllu(path("bundled")), max_sentences=40, metrics=["entropy"], relations=["dep"], examples=0
    )
    for relation in ("dep:det", "dep:obj", "dep:ALL"):
        [line] = [line for line in printed.splitlines() if line.startswith(f"{relation} ")]
        best = study["best"].sel(relation=relation)
        assert f"L{int(best['layer'])}H{int(best['head'])} {str(best['direction'].values)}" in line
        assert f"{100 * float(best['accuracy']):.1f} [" in line
    assert "94.3 (51.7)" in printed
    assert re.search(r"auxpass +L3H9 +94\.1 \(82\.5\)", printed)  # the notebook's, not the paper's shifted row
    assert "What differs from the paper" in printed


@pytest.mark.parametrize("script", ["reproduce_voita2019"], indirect=True)
def test_voita_counts_a_verb_that_looks_at_its_subject_from_the_verb(script, capsys):
    assert script.main(["minilm", "--max-sentences", "9"]) == 0
    assert capsys.readouterr().out.count("no case in one half of this corpus") == len(script.PUBLISHED)
    assert script.main(["minilm", "--max-sentences", "120"]) == 0
    printed = capsys.readouterr().out
    assert "L0H2 offset -1: 100.0 %" in printed
    assert re.search(r"verb to subject +WMT 45 \(35\), OpenSubtitles 77 \(45\) +\| L\dH\d+ ", printed)
    assert re.search(r"rarest word .* \| L\dH\d+ ", printed)
    sentence = next(s for s in read_conllu(path("bundled")) if "nsubj" in s.deprels)
    found = {one.name: one for one in script.voita.function(sentence)}
    np.testing.assert_array_equal(found["voita:nsubj"].query, found["voita:nsubj-from-head"].key)
    for query, key in zip(found["voita:nsubj"].query, found["voita:nsubj"].key, strict=True):
        assert sentence.deprels[query] == "nsubj"
        assert sentence.heads[query] == key + 1


@pytest.mark.parametrize("script", ["reproduce_kobayashi2021"], indirect=True)
def test_kobayashi_prints_every_stage_and_layer(script, capsys):
    assert script.main(["minilm", "--max-sentences", "20"]) == 0
    printed = capsys.readouterr().out
    found = script.mixing_ratios("minilm", [s for s, _ in zip(read_conllu(path("bundled")), range(20), strict=False)])
    widest = 100 * np.maximum(found["high"] - found["ratio"], found["ratio"] - found["low"]).max("layer")
    for stage, (name, bert, _) in script.PUBLISHED.items():
        [line] = [line for line in printed.splitlines() if line.split()[:1] == [name]]
        assert f"{bert:.1f}" in line
        shares, _, wide = line.split("|")[1].partition("+-")
        mean, *layers = map(float, shares.split())
        assert float(wide) == pytest.approx(float(widest.sel(stage=stage)), abs=0.051)
        assert len(layers) == 6
        assert mean == pytest.approx(np.mean(layers), abs=0.1)


@pytest.mark.parametrize("script", ["compare_checkpoints"], indirect=True)
def test_two_checkpoints_are_compared_and_written(script, capsys, tmp_path):
    out = tmp_path / "c.nc"
    assert script.main(["minilm", "minilm", "--max-sentences", "40", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"paired over \d+ groups of clusters, heads aligned by index", printed)
    assert "entropy changed (interval without 0) in 0 of 72 heads" in printed
    assert "gained" not in printed
    assert float(open_study(out)["matches"]["distance"].max()) == 0.0


@pytest.mark.parametrize(
    "script",
    ["reproduce_clark2019", "reproduce_voita2019", "reproduce_kobayashi2021", "compare_checkpoints"],
    indirect=True,
)
def test_a_missing_corpus_is_one_line_and_exit_code_two(script, capsys):
    models = ["minilm", "minilm"] if script.__name__ == "compare_checkpoints" else ["minilm"]
    assert script.main([*models, "--corpus", "nowhere.conllu"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"{script.__name__}: ")
    assert "nowhere.conllu" in told
    assert told.count("\n") == 1
