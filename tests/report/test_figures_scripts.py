"""The scripts that verify a model, draw its atlas and export figures, run as a user runs them."""

import json
import re
import runpy
from pathlib import Path

import pytest

from attnprobe.records import open_study
from tests.report.test_figures import rich

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str):
    return runpy.run_path(str(SCRIPTS / f"{name}.py"))["main"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("studies")
    return [str(rich(seed).save(folder / f"{seed}.nc")) for seed in (0, 1)]


def test_verify_model_says_it_matches(capsys):
    assert script("verify_model")(["minilm", "--text", "Rain fell.", "--attn", "eager"]) == 0
    out = capsys.readouterr().out
    assert "matches the model" in out
    assert len(re.findall(r"^layer \d .*replay bit for bit$", out, re.MULTILINE)) == 6


def test_verify_model_prints_json(capsys):
    assert script("verify_model")(["minilm", "--text", "Rain fell.", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True


def test_verify_model_fails_where_the_model_is_unknown(capsys):
    assert script("verify_model")(["no/such/folder/here"]) in (2, 3)
    assert capsys.readouterr().err.startswith("verify_model: ")


def test_head_atlas_draws_a_saved_study(saved, tmp_path, capsys):
    given = [saved[0], "--by", "special_mass", "--at", "target=cls", "--width", "single", "--card"]
    given += ["--table", str(tmp_path / "a.csv"), "--out", str(tmp_path / "a.svg")]
    assert script("head_atlas")(given) == 0
    assert (tmp_path / "a.svg").read_text(encoding="utf-8").count("<svg") == 1
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").count("\n") == 16
    assert "Attention to [CLS] (share)" in capsys.readouterr().out


def test_head_atlas_measures_a_model(tmp_path, capsys):
    assert (
        script("head_atlas")(["minilm", "--max-sentences", "7", "--dpi", "50", "--out", str(tmp_path / "a.png")]) == 0
    )
    assert (tmp_path / "a.png").stat().st_size > 1000
    assert "7 sentences" in capsys.readouterr().out


def test_head_atlas_reads_offsets_as_numbers(saved, tmp_path, capsys):
    given = [saved[0], "--by", "offset_mass", "--at", "offset=-1", "--out", str(tmp_path / "a.pdf")]
    assert script("head_atlas")(given) == 0
    assert script("head_atlas")([saved[0], "--by", "entrpy"]) == 2
    assert "near names: entropy" in capsys.readouterr().err


def test_export_figures_writes_figures_and_comparisons(saved, tmp_path, capsys):
    given = [
        saved[0],
        "--against",
        saved[1],
        "--by",
        "entropy",
        "--by",
        "dep:obj",
        "--head",
        "L1H2",
        "--width",
        "single",
    ]
    assert script("export_figures")([*given, "--out", str(tmp_path)]) == 0
    names = {path.stem for path in tmp_path.glob("*.pdf")}
    assert {"head-L1H2", "comparison-entropy", "comparison-dep-obj-dep-to-head", "cluster-map"} <= names
    assert f"{len(list(tmp_path.iterdir()))} files" in capsys.readouterr().out
    assert open_study(saved[0]).groups


def test_export_figures_wants_heads_by_name(saved, tmp_path, capsys):
    assert script("export_figures")([saved[0], "--head", "8", "--out", str(tmp_path)]) == 2
    assert "such as L2H8" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
