"""The command line: what it prints, the exit codes, and that nothing half-written is left."""

import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from attnprobe import __version__, open_study
from attnprobe.cli import main

GOOD = """# newdoc id = d
# sent_id = s1
1\tDogs\tdog\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tbark\tbark\tVERB\tVBP\t_\t0\troot\t_\t_
3\t.\t.\tPUNCT\t.\t_\t2\tpunct\t_\t_

# sent_id = s2
1\tCats\tcat\tNOUN\tNNS\t_\t2\tnsubj\t_\t_
2\tsleep\tsleep\tVERB\tVBP\t_\t0\troot\t_\t_

"""


@pytest.fixture
def attnprobe(monkeypatch, capsys, tmp_path):
    """Run the command line in this process, in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["attnprobe", *map(str, arguments)])
        heard = signal.getsignal(signal.SIGINT)
        with pytest.raises(SystemExit) as left, warnings.catch_warnings():
            warnings.simplefilter("default")
            main()
        signal.signal(signal.SIGINT, heard)
        streams = capsys.readouterr()
        return left.value.code, streams.out, streams.err

    return run


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "good.conllu"
    path.write_text(GOOD)
    return path


def test_version_and_help(attnprobe):
    assert attnprobe("--version") == (0, f"{__version__}\n", "")
    code, out, _ = attnprobe("--help")
    assert code == 0
    assert all(name in out for name in ("report", "verify", "capture", "heads", "list"))


def test_verify_prints_the_agreed_json(attnprobe):
    code, out, _ = attnprobe("verify", "minilm", "--text", "the cat sat", "--text", "dogs", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["ok"] is True
    for key in ("model", "family", "attn_implementation", "dtype", "rows_checked", "rows_excluded"):
        assert key in told
    assert len(told["layers"]) == 6
    for i, layer in enumerate(told["layers"]):
        assert layer["layer"] == layer["index"] == i
        assert layer["kind"] == "encoder"
        assert layer["bitwise"] is True
        assert 0 <= layer["pattern_max_abs"] < 5e-6 < layer["pattern_tolerance"]
        assert 0 <= layer["context_max_abs"] < layer["context_tolerance"]
    assert told["rows_checked"] == 6 * 12 * (5 + 3)
    assert told["rows_excluded"] == 6 * 12 * 2


def test_verify_exits_1_where_the_capture_does_not_match(attnprobe, monkeypatch):
    from attnprobe.models import verify

    honest = verify.recompute

    def wrong(call, **options):
        pattern, context = honest(call, **options)
        return pattern, context * 1.01

    monkeypatch.setattr(verify, "recompute", wrong)
    code, out, _ = attnprobe("verify", "minilm")
    assert code == 1
    assert "DOES NOT MATCH" in out
    code, _, err = attnprobe("report", "minilm", "--out", "page.html")
    assert code == 1
    assert "differs from the model's at layer 0" in err
    assert not Path("page.html").exists()
    code, out, _ = attnprobe("report", "minilm", "--max-sentences", 5, "--out", "page.html", "--unverified")
    assert code == 0
    assert "NOT VERIFIED" in out
    assert "unverified" in Path("page.html").read_text().lower()


def test_heads_writes_a_study_and_says_so(attnprobe, corpus):
    code, out, _ = attnprobe("heads", "minilm", "--corpus", corpus, "--out", "s.nc", "--metrics", "entropy", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["verified"] is True
    assert told["sentences_kept"] == 2
    study = open_study("s.nc")
    assert int(study["relations"]["n"].sel(split="all", relation="dep:nsubj")) == 2


def test_pages_of_saved_studies_are_joined_and_compared(attnprobe, tmp_path):
    """No model is loaded: studies of another test's making."""
    from tests.report.test_joined import part
    from tests.report.test_page_studies import groups_of, study_of, whole

    for name, study in (("a", whole()), ("b", study_of(groups_of(seed=1))), ("probes", part())):
        study.save(tmp_path / f"{name}.nc")
    code, out, err = attnprobe("report", "a.nc", "--join", "probes.nc", "--out", "a.html")
    assert code == 0, err
    assert "No probing classifier was trained" not in (tmp_path / "a.html").read_text().split('<script type="app')[0]
    assert attnprobe("report", "a.nc", "--join", "gone.nc", "--out", "a.html")[0] == 2
    code, out, _ = attnprobe("compare", "a.nc", "b.nc", "--out", "page.html", "--lang", "zh")
    assert code == 0
    assert "page.html" in out
    assert "从 A 到 B 有何变化" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert attnprobe("compare", "a.nc", "b.nc", "--out", "both.nc")[0] == 0
    code, out, _ = attnprobe("report", "both.nc", "--out", "again.html", "--json")
    assert json.loads(out) == {"page": str(tmp_path / "again.html")}
    assert "What changed from A to B" in (tmp_path / "again.html").read_text(encoding="utf-8")


def test_a_corpus_may_be_several_files_in_several_formats(attnprobe, corpus, tmp_path):
    (tmp_path / "more.txt").write_text("The old dogs chased two cats .\n")
    chosen = ("--metrics", "entropy", "--json")
    given = ("--corpus", corpus, "--corpus", "more.txt")
    alone = json.loads(attnprobe("heads", "minilm", "--corpus", corpus, "--out", "a.nc", *chosen)[1])
    code, out, _ = attnprobe("heads", "minilm", *given, "--out", "b.nc", *chosen)
    assert code == 0
    both = json.loads(out)
    assert both["sentences_kept"] == alone["sentences_kept"] + 1
    assert both["corpus"] == f"{corpus}, more.txt"


def test_heads_takes_all_that_run_takes_by_name(attnprobe, corpus):
    options = ("--scorers", "weights,norms", "--extras", "patterns,trees", "--unit", "passage", "--sinks", "both")
    options += ("--controls", "--causal", "--cluster", "sentence", "--margin", 0.1, "--totals")
    asked = ("--metrics", "entropy,offset_mass", "--relations", "dep:ALL")
    code, _, err = attnprobe("heads", "minilm", "--corpus", corpus, "--out", "s.nc", *asked, *options)
    assert code == 0, err
    study = open_study("s.nc")
    assert {"patterns", "trees", "controls", "totals"} <= set(study.groups)
    assert list(study["relations"]["scorer"].values) == ["weights", "norms"]
    assert list(study["metrics"]["sinks"].values) == ["kept", "removed"]
    plan = json.loads(study.attributes["plan"])
    assert [plan[name] for name in ("unit", "cluster", "margin")] == ["passage", "sentence", 0.1]
    assert study.attributes["sentences_kept"] == 1


def test_compare_says_what_differs_and_writes_it(attnprobe):
    asked = ("--metrics", "entropy,offset_argmax", "--relations", "dep:det", "--max-sentences", 60, "--totals")
    asked += ("--cluster", "sentence")
    assert attnprobe("heads", "minilm", "--out", "a.nc", *asked)[0] == 0
    assert attnprobe("heads", "minilm", "--out", "b.nc", *asked, "--dtype", "float64")[0] == 0
    code, out, err = attnprobe("compare", "a.nc", "b.nc", "--out", "c.nc", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert (told["align"], told["gained"], told["lost"]) == ("index", [], [])
    assert told["pairing"].startswith("paired over")
    assert set(told["apart"]) == {"best", "entropy", "offset_argmax"}
    assert told["apart"]["entropy"][1] == 72
    found = open_study("c.nc")
    assert float(abs(found["metrics"]["entropy"]).max()) < 1e-4
    assert float(abs(found["best"]["difference"]).max()) < 1e-2
    code, out, _ = attnprobe("compare", "a.nc", "b.nc", "--out", "c.nc")
    assert f"the interval excludes 0 in {told['apart']['entropy'][0]} of 72 (by chance at most" in out
    assert "labels gained: none" in out


def test_report_measures_what_its_page_is_better_for(attnprobe, corpus):
    def groups(*options):
        code, _, err = attnprobe(
            "report", "minilm", "--corpus", corpus, "--out", "page.html", "--study", "s.nc", *options
        )
        assert code == 0, err
        return set(open_study("s.nc").groups)

    cheap = {"patterns", "histograms", "clusters"}
    assert cheap <= groups()
    assert not cheap & groups("--extras", "none")


def test_defaults_are_those_of_run():
    import inspect

    from attnprobe import run
    from attnprobe.commands.measuring import PASSED_ON, heads, report

    of_run = inspect.signature(run).parameters
    for command in (heads, report):
        own = inspect.signature(command).parameters
        assert {name: own[name].default for name in PASSED_ON} == {name: of_run[name].default for name in PASSED_ON}


def test_report_of_a_saved_study_needs_no_model(attnprobe, corpus):
    assert attnprobe("heads", "minilm", "--corpus", corpus, "--out", "s.nc")[0] == 0
    code, out, _ = attnprobe("report", "s.nc", "--out", "page.html")
    assert code == 0
    assert str(Path("page.html").resolve()) in out
    assert Path("page.html").stat().st_size < 2_000_000


def test_capture_writes_what_can_be_verified_again(attnprobe):
    from attnprobe import verify
    from attnprobe.models.saved import load_capture

    code, out, _ = attnprobe(
        "capture", "minilm", "--text", "a cat", "--text", "b", "--out", "c.safetensors", "--attn", "eager"
    )
    assert code == 0
    assert "6 layers" in out
    assert verify(load_capture("c.safetensors")).ok


def test_list_prints_where_each_is_defined(attnprobe):
    code, out, _ = attnprobe("list", "metrics", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["entropy"]["unit"] == "nats"
    assert "heads/metrics.py:" in rows["entropy"]["defined"]
    code, out, _ = attnprobe("list", "relations")
    assert "udep" in out
    code, out, _ = attnprobe("list", "scorers", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert list(rows) == ["weights", "norms", "rollout", "flow", "value_zeroing"]
    assert all("heads/scorers.py:" in row["defined"] and "20" in row["source"] for row in rows.values())
    code, out, _ = attnprobe("list", "extras")
    assert "trees  [groups of a study]" in out
    code, _, err = attnprobe("list", "metricks")
    assert code == 2
    assert "near names: metrics" in err


@pytest.mark.parametrize(
    ("more", "told"),
    [((), "about 0.2 MB will be kept\n"), (("--json",), "about 0.2 MB will be kept\n"), (("--quiet",), "")],
)
def test_capture_says_what_it_will_keep_unless_quiet(attnprobe, more, told):
    code, out, err = attnprobe("capture", "minilm", "--text", "a cat sat", "--out", "c.safetensors", *more)
    assert (code, err) == (0, told)
    assert "MB" not in out


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"", ["empty"]),
        (bytes(range(256)) * 9, ["bad.conllu"]),
        (b"just some text\nand more\n", ["bad.conllu:1", "10"]),
        (GOOD.replace("2\tnsubj", "9\tnsubj", 1).encode(), ["bad.conllu:3", "9"]),
        (GOOD.replace("2\tnsubj", "1\tnsubj", 1).encode(), ["bad.conllu:3"]),
        (GOOD.replace("2\tnsubj", "0\troot", 1).encode(), ["bad.conllu", "root"]),
    ],
    ids=["empty", "binary", "not conllu", "head out of range", "cycle", "two roots"],
)
def test_bad_corpora_are_refused_with_file_and_line(attnprobe, content, parts):
    Path("bad.conllu").write_bytes(content)
    code, out, err = attnprobe("heads", "minilm", "--corpus", "bad.conllu", "--out", "s.nc")
    assert code == 2, err
    assert out == ""
    assert all(part in err for part in parts), err
    assert not Path("s.nc").exists()
    assert [p.name for p in Path().iterdir()] == ["bad.conllu"]


def test_what_ray_cannot_do_is_told_before_the_model_is_loaded(attnprobe, monkeypatch):
    monkeypatch.setattr("attnprobe.models.load.load", lambda *_, **__: pytest.fail("loaded"))
    code, _, err = attnprobe("heads", "minilm", "--out", "s.nc", "--engine", "ray", "--gpus-per-worker", 1)
    assert code == 2, err
    assert "--device cuda and --gpus-per-worker together" in err
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = attnprobe("heads", "minilm", "--out", "s.nc", "--engine", "ray")
    assert code == 2, err
    assert "pip install 'attnprobe[ray]'" in err


def test_skip_invalid_leaves_out_and_counts(attnprobe):
    Path("bad.conllu").write_text(GOOD.replace("2\tnsubj", "9\tnsubj", 1))
    code, out, err = attnprobe("heads", "minilm", "--corpus", "bad.conllu", "--out", "s.nc", "--skip-invalid", "--json")
    told = json.loads(out)
    assert code == 0, err
    assert told["sentences_kept"] == 1
    assert sum(told["sentences_dropped"].values()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("heads", "minilm", "--corpus", "gone.conllu", "--out", "s.nc"), 2, ["gone.conllu"]),
        (("verify", "no-such-model"), 2, ["unknown model", "minilm"]),
        (("verify", "./no/such/folder"), 2, ["no such model"]),
        (("verify", "minilm", "--text", " "), 2, ["empty text"]),
        (("verify", "minilm", "--text", "word " * 600), 2, ["too long", "512"]),
        (("verify", "minilm", "--attn", "egaer"), 2, ["egaer"]),
        (("verify", "minilm", "--dtype", "float23"), 2, ["float23", "near names"]),
        (("verify", "minilm", "--device", "gpu"), 2, ["cpu | cuda"]),
        (("report", "minilm", "--metrics", "entrpy"), 2, ["entrpy", "near names: entropy"]),
        (("report", "minilm", "--relations", "dep:objj"), 2, ["dep:objj", "near names", "dep:obj"]),
        (("heads", "minilm", "--out", "s.nc", "--scorers", "norm"), 2, ["norm", "near names: norms"]),
        (("heads", "minilm", "--out", "s.nc", "--extras", "tree"), 2, ["tree", "near names: trees"]),
        (("heads", "minilm", "--out", "s.nc", "--unit", "page"), 2, ["sentence or passage", "page"]),
        (("heads", "minilm", "--out", "s.nc", "--cluster", "page"), 2, ["document or sentence", "page"]),
        (("heads", "minilm", "--out", "s.nc", "--workers", 2), 2, ["local", "--workers", "--engine ray"]),
        (("report", "minilm", "--address", "auto"), 2, ["local", "--address", "--engine ray"]),
        (("report", "minilm", "--out", "no/such/page.html"), 2, ["existing folder"]),
        (("report", "gone.nc"), 2, ["gone.nc"]),
        (("capture", "minilm"), 2, ["--text"]),
        (("capture", "minilm", "--text", "a cat", "--max-mb", "0.01"), 2, ["would keep too much", "raise", "--max-mb"]),
        (("frobnicate",), 2, ["frobnicate"]),
        (("verify", "minilm", "--frobnicate"), 2, ["--frobnicate"]),
    ],
)
def test_wrong_use_is_refused(attnprobe, arguments, code, parts):
    got, out, err = attnprobe(*arguments)
    assert got == code, err
    assert out == ""
    assert all(part in err for part in parts), err
    assert list(Path().iterdir()) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_environment_failure(attnprobe, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    assert attnprobe("report", "minilm", "--out", folder / "page.html")[0] == 3


def test_an_internal_error_says_how_to_report_it(attnprobe, monkeypatch):
    from attnprobe.models import verify

    def broken(*_arguments, **_options):
        raise ZeroDivisionError("seven")

    monkeypatch.setattr(verify, "verify", broken)
    code, _, err = attnprobe("verify", "minilm")
    assert code == 70
    assert "--debug" in err
    assert "Traceback" not in err


def test_interrupting_gives_130(attnprobe, monkeypatch):
    from attnprobe.models import verify

    def interrupted(*_arguments, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(verify, "verify", interrupted)
    assert attnprobe("verify", "minilm")[0] == 130


def test_help_and_import_pull_in_no_torch():
    script = "import sys, attnprobe.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
    twin = "import sys, attnprobe.stream, torch; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", twin]).returncode == 1
