"""The viewer's page as a text: safe, whole, small, the same from a capture as from a view, without torch."""

import html
import json
import re
import subprocess
import sys
from importlib.resources import files

import numpy as np
import pytest

import attnprobe
from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.report.view import LANGUAGES, SCRIPTS, View, view
from tests.report.test_view_stacks import (
    HOSTILE,
    SCRIPT,
    hostile_view,
    long_view,
    pair_view,
    sentence_view,
    translated_view,
)
from tests.tiny import byte_tokenizer, tiny_model


def data_of(page):
    text = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', page.html, re.DOTALL)[1]
    return json.loads(text)


def asset(name):
    return files("attnprobe.report").joinpath("assets", *name.split("/")).read_text(encoding="utf-8")


def test_the_page_is_a_whole_document_with_a_policy_for_exactly_its_script_and_style():
    text = view(sentence_view()).html
    assert text.startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")
    policy = html.unescape(re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', text)[1])
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert len(re.findall("sha256-", policy)) == 2
    assert re.findall(r"<script[^>]*>", text) == [
        '<script type="application/json" id="page-data">',
        '<script type="application/json" id="view-patterns">',
        "<script>",
    ]
    assert " style=" not in text


def test_no_address_is_in_the_page_but_the_name_of_svg():
    text = view(sentence_view()).html
    assert set(re.findall(r"https?://[^\s\"'<`]+", text)) == {"http://www.w3.org/2000/svg"}


def test_hostile_tokens_model_and_title_stay_text():
    source = hostile_view()
    object.__setattr__(source, "model", SCRIPT)
    text = view(source).html
    assert text.count("<script") == 3
    assert text.count("</script") == 3
    assert "<img" not in text
    assert "\u2028" not in text
    assert data_of(view(source))["axes"]["source"]["tokens"] == list(HOSTILE)
    assert html.escape(SCRIPT) in view(source, title=SCRIPT).html.replace("&#34;", "&quot;").replace("&#39;", "&#x27;")


def test_a_lone_surrogate_can_be_saved(tmp_path):
    source = sentence_view()
    object.__setattr__(source, "model", "m\udcff")
    assert "&#56575;" in view(source).save(tmp_path / "page.html").read_text(encoding="utf-8")


def test_saving_leaves_one_file_and_says_what_went_wrong(tmp_path):
    page = view(sentence_view())
    target = page.save(tmp_path / "v.html")
    assert target.read_text(encoding="utf-8") == page.html
    assert [path.name for path in tmp_path.iterdir()] == ["v.html"]
    with pytest.raises(InputError, match="cannot write the page.*a folder"):
        page.save(tmp_path)
    with pytest.raises(EnvironmentFailure, match="cannot write the page.*Check that the folder exists"):
        page.save(tmp_path / "none" / "v.html")


def test_a_save_that_fails_leaves_the_old_page_and_nothing_else(tmp_path, monkeypatch):
    target = tmp_path / "v.html"
    target.write_text("old", encoding="utf-8")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(EnvironmentFailure, match="disk full"):
        view(sentence_view()).save(target)
    assert target.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["v.html"]


def test_a_notebook_gets_the_page_in_a_frame_that_reaches_nothing():
    page = view(hostile_view(), height=500)
    shown = page._repr_html_()
    tag = re.fullmatch(
        r'<iframe sandbox="allow-scripts" title="[^"]+" style="([^"]*)" srcdoc="([^"]*)"></iframe>', shown
    )
    assert "height:500px" in tag[1]
    assert html.unescape(tag[2]) == page.html
    assert "require(" not in shown
    assert "requirejs" not in shown


@pytest.mark.parametrize("bits", [8, 16])
def test_the_stated_error_depends_on_the_bits(bits):
    error = data_of(view(sentence_view(), bits=bits))["error"]
    assert error["bits"] == bits
    assert 0 < error["mean"] < error["largest"] < {8: 6e-3, 16: 3e-5}[bits]


def test_twelve_layers_of_twelve_heads_over_64_tokens_fit_a_megabyte():
    page = view(long_view(64, layers=12, heads=12))
    assert len(page.html) < 1_000_000
    assert len(data_of(page)["stacks"][0]["modules"]) == 12


def test_options_reach_the_page():
    source = translated_view()
    data = data_of(view(source, layers=[3, 4], heads=["L3H1", 2], window=(1, 4), neurons=False, title="Mine"))
    assert [(s["kind"], [(m["layer"], m["heads"]) for m in s["modules"]]) for s in data["stacks"]] == [
        ("decoder", [(3, [1, 2])]),
        ("cross", [(4, [2])]),
    ]
    assert data["choice"]["window"] == [1, 3]
    assert data["neurons"] == "off"
    text = view(source, title="Mine", lang="zh").html
    assert "<title>Mine</title>" in text
    assert '<html lang="zh-Hans">' in text
    with pytest.raises(InputError, match="at most 10"):
        view(source, layers=[0], max_cells=10)
    with pytest.raises(InputError, match="unknown page language.*en or zh.*'de'"):
        view(source, lang="de")
    with pytest.raises(InputError, match=r"nothing that can be shown.*a PatternView or a capture.*got dict"):
        view({})
    with pytest.raises(InputError, match="holds one sequence.*index=1"):
        view(source, index=1)


def test_pairs_of_texts_keep_their_segments():
    data = data_of(view(pair_view()))
    assert data["axes"]["source"]["segments"] == [0, 0, 0, 0, 0, 1, 1, 1]


class TestOfCaptures:
    """Anything with `.view()` is taken as it is, batches by index."""

    def test_a_capture_of_the_embedded_model(self, minilm):
        taken = attnprobe.capture(minilm, ["The cat sat.", "An unbelievably long tail twitched."])
        page = attnprobe.view(taken, index=1)
        assert isinstance(page, View)
        data = data_of(page)
        assert data["axes"]["source"]["tokens"] == list(taken.view(1).tokens)
        assert "##" in "".join(data["axes"]["source"]["tokens"])
        assert data["neurons"] == "yes"
        assert data_of(view(taken.view(1)))["neurons"] == "absent"
        assert data_of(view(taken, index=1, neurons=False))["neurons"] == "off"

    def test_long_captures_are_not_asked_for_q_and_k(self):
        asked = []

        class Taken:
            def view(self, index, *, neurons=False):
                asked.append(neurons)
                return long_view(130)

        view(Taken())
        assert asked == [False]

    def test_a_generation_of_a_tiny_decoder(self):
        model = tiny_model("gpt2", tokenizer=byte_tokenizer(specials=False), head="GPT2LMHeadModel")
        data = data_of(view(attnprobe.capture(model, "Hello", max_new_tokens=3)))
        (stack,) = data["stacks"]
        assert stack["causal"]
        assert sorted(set(stack["steps"])) == [0, 1, 2]
        assert len(data["axes"]["source"]["tokens"]) == 7

    def test_a_translation_with_unequal_depths(self):
        model = tiny_model("t5", tokenizer=byte_tokenizer(specials=False))
        data = data_of(view(attnprobe.capture(model, "Hello wo", text_pair="Bon")))
        assert [(s["kind"], len(s["modules"])) for s in data["stacks"]] == [
            ("encoder", 3),
            ("decoder", 2),
            ("cross", 2),
        ]
        assert (data["stacks"][2]["query"], data["stacks"][2]["key"]) == ("target", "source")


def test_nothing_of_the_viewer_imports_torch():
    script = """
import sys
import numpy as np
from attnprobe.records import PatternBlock, PatternView, WordAlignment
from attnprobe import view, to_bertviz
block = PatternBlock(0, "encoder", 0, 0, np.full((1, 2, 2), 0.5, dtype=np.float32), "model")
source = PatternView("m", (block,), ("a", "b"), WordAlignment(np.array([0, 1]), 2), ("a", "b"), np.zeros(2, dtype=bool))
view(source), to_bertviz(source)
assert "torch" not in sys.modules and "IPython" not in sys.modules, "a heavy import"
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_both_languages_have_the_same_texts_and_the_scripts_use_no_others():
    tables = {lang: json.loads(asset(f"view/{lang}.json")) for lang in LANGUAGES}
    plural = {key for key in tables["en"] if key.endswith(".one")}
    assert set(tables["en"]) - plural == set(tables["zh"])
    for key, text in tables["zh"].items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", tables["en"][key])), key
    code = "\n".join(asset(name) for name in SCRIPTS if name.startswith("view/"))
    used = set(re.findall(r"\bt\((?:[^()\"`]*\? )?\"([\w.]+)\"", code)) | set(
        re.findall(r"[?:] \"((?:\w+\.)+\w+)\"", code)
    )
    assert len(used) > 50
    assert used <= set(tables["en"]), used - set(tables["en"])


def test_words_and_tokens_are_only_ever_put_in_place_as_text():
    for name in SCRIPTS:
        code = asset(name)
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in code, name


def test_a_view_is_made_without_changing_its_source():
    source = sentence_view()
    before = [block.pattern.copy() for block in source.blocks]
    view(source)
    for block, kept in zip(source.blocks, before, strict=True):
        np.testing.assert_array_equal(block.pattern, kept)
