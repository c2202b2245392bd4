"""A sample of the sweep over all model types, and the script around it: isolated, resumed, and honest in its totals.

The whole sweep is run by hand (`scripts/sweep_families.py`); its table is in `docs/families.md`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"

SAMPLE = {
    "albert": ("verified", 2, "interface"),
    "bart": ("verified", 6, "interface"),
    "bloom": ("verified", 2, "flow"),
    "clip": ("verified", 4, "interface"),
    "deberta-v2": ("verified", 2, "flow"),
    "deepseek_v3": ("verified", 2, "interface"),
    "detr": ("verified", 6, "interface"),
    "dia": ("verified", 6, "interface"),
    "falcon": ("verified", 2, "flow"),
    "gemma2": ("verified", 2, "interface"),
    "gpt2": ("verified", 2, "interface"),
    "gpt_oss": ("verified", 2, "interface"),
    "granite_swa": ("verified", 2, "interface"),
    "inkling2_text": ("verified", 6, "interface"),
    "jamba": ("verified", 1, "interface"),
    "llava": ("verified", 4, "interface"),
    "longformer": ("refused", None, ""),
    "mamba": ("no attention", None, ""),
    "mixtral": ("verified", 2, "interface"),
    "mpnet": ("verified", 2, "flow"),
    "musicgen_decoder": ("verified", 2, "interface"),
    "qwen2_vl": ("verified", 6, "interface"),
    "qwen3_next": ("verified", 1, "interface"),
    "resnet": ("no attention", None, ""),
    "siglip": ("verified", 5, "interface 4, flow 1"),
    "t5": ("verified", 6, "interface"),
    "time_series_transformer": ("verified", 6, "interface"),
    "vit": ("verified", 2, "interface"),
    "wav2vec2": ("verified", 2, "interface"),
    "whisper": ("verified", 6, "interface"),
}
"""Thirty of all kinds: what the sweep says of each, how many attention calls, and by which route they are seen."""


@pytest.fixture(scope="module")
def sweep():
    """The script as a module."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import sweep_families

        yield sweep_families
    finally:
        sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def table(sweep):
    return sweep.table


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", SAMPLE)
def test_a_type_of_the_sample(sweep, table, model_type):
    found = sweep.examine(model_type)
    assert found["stage"] == "ran", found.get("reason")
    assert found["inputs"] == "all"
    got = table.verdict(found), found["eager"].get("calls"), table.route(found)
    assert got == SAMPLE[model_type], table.why(found)
    if got[0] == "verified":
        assert found["eager"]["share"] is None or found["eager"]["share"] < 0.5
        assert found["sdpa"].get("ok", "refused" in found["sdpa"])
        assert found["eager"]["rows"] > 20
    json.dumps(found)


def test_there_are_thirty_and_all_are_registered(sweep):
    assert len(SAMPLE) == 30
    assert set(SAMPLE) <= set(sweep.registered())
    assert len(sweep.registered()) > 800


def test_weights_are_the_same_for_both_attention_functions_and_sharp(sweep):
    kind = sweep.model_class("bert")
    eager, sdpa = (sweep.configs.build(kind, "bert", "narrow", attn) for attn in ("eager", "sdpa"))
    for (name, one), other in zip(eager.named_parameters(), sdpa.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert 0.28 < float(eager.encoder.layer[0].attention.self.query.weight.detach().std()) < 0.32


def test_one_layer_of_each_kind_is_kept(sweep):
    """Gemma 2 alternates two kinds, Jamba mixes attention in: both kinds are left."""
    assert sweep.configs.tiny_config("gemma2", "narrow").layer_types == ["sliding_attention", "full_attention"]
    assert set(sweep.configs.tiny_config("qwen3_next", "narrow").layer_types) == {"linear_attention", "full_attention"}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore")
def test_types_that_hang_die_or_raise_are_told_and_the_rest_goes_on(sweep, tmp_path, monkeypatch):
    def examine(name):
        if name == "hangs":
            time.sleep(30)
        if name == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "raises":
            raise RuntimeError("out of luck")
        return {"type": name, "stage": "not run", "reason": "nothing"}

    monkeypatch.setattr(sweep, "examine", examine)
    monkeypatch.setattr(sweep, "SECONDS", 1)
    out = tmp_path / "families.jsonl"
    sweep.sweep(["hangs", "killed", "raises", "fine"], out, 2)
    told = {r["type"]: (r["stage"], r["reason"]) for r in map(json.loads, out.read_text().splitlines())}
    assert told == {
        "hangs": ("died", "over 1 s"),
        "killed": ("died", "killed by signal 9"),
        "raises": ("died", "RuntimeError: out of luck"),
        "fine": ("not run", "nothing"),
    }


def test_types_that_have_a_result_are_not_run_again(sweep, tmp_path, monkeypatch):
    out, ran = tmp_path / "families.jsonl", []
    out.write_text(json.dumps({"type": "bert"}) + "\n")
    monkeypatch.setattr(sweep, "warm", lambda: None)
    monkeypatch.setattr(sweep, "sweep", lambda types, _out, jobs: ran.append((list(types), jobs)))
    assert sweep.main(["--out", str(out), "--types", "bert", "gpt2", "--jobs", "3"]) == 0
    assert ran == [(["gpt2"], 3)]


def result(name, *, on=2, calls=2, ok=True, notes=(), sdpa=None, error=None):
    """A result as `measure` gives it."""
    eager = {"ok": ok, "calls": calls, "context": 1e-6, "bitwise": ok, "notes": list(notes)}
    eager = {"error": error} if error else eager
    return {"type": name, "stage": "ran", "inputs": "all", "interface_calls": on, "eager": eager, "sdpa": sdpa or eager}


def test_totals_name_their_denominators(table):
    results = [
        result("all_on"),
        result("outside", on=0),
        result("mixed", calls=3),
        result("partly", ok=False, notes=["not captured: pool: no"]),
        result("differs", ok=False, notes=["layer 0: hidden keys carry weight"]),
        result("nothing", on=0, error="the forward pass ran, and no attention was captured"),
        result("refused", on=0, error="no attention was captured; Attention was seen that is none"),
        result("no_sdpa", sdpa={"refused": "not offered"}),
        {"type": "broken", "stage": "not built", "reason": "ImportError: timm | here"},
    ]
    assert [table.verdict(r) for r in results] == [
        "verified", "verified", "verified", "partly", "differs", "no attention", "refused", "verified", "not run",
    ]  # fmt: skip
    said = "\n".join(table.totals(results))
    assert "9 model types are registered; 8 of them could be built small and run, and 7 of those attend." in said
    assert "On the attention-function interface: 5 of 7; 3 of these 5 are verified (60.0 %)." in said
    assert "in 3; 2 attend partly outside it, and 2 wholly" in said
    assert "4 of 7 (57.1 %); 4 of these 4 with the same bits" in said
    assert "The rest of the 7: 1 partly" in said
    assert "3 of 6 verified" in said
    assert "ImportError: timm / here" in table.row(results[-1])
    assert "interface 2, flow 1" in table.row(results[2])


def test_the_table_goes_between_its_markers(table, tmp_path):
    page = tmp_path / "families.md"
    page.write_text(f"# Before\n\n{table.BEGIN}\nold\n{table.END}\n\nAfter\n")
    table.write(page, table.table([result("bert")], "head"))
    text = page.read_text()
    assert text.startswith("# Before\n\n")
    assert text.endswith("\n\nAfter\n")
    assert "old" not in text
    assert "| `bert` | verified | 2 | 1e-06 | same bits | 1e-06 | interface |" in text
    page.write_text("no markers")
    with pytest.raises(ValueError, match="has no markers"):
        table.write(page, "x")
