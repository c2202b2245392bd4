"""The bertviz adapter's pages as text: what bertviz is handed, against its own functions; what is refused; what makes it offline."""

import html
import json
import re
from html.parser import HTMLParser
from importlib import metadata

import numpy as np
import pytest

import attnprobe
from attnprobe.errors import InputError
from attnprobe.records import PatternBlock
from attnprobe.report import _view_bertviz
from attnprobe.report.bertviz import DECIMALS, BertvizPage, to_bertviz
from tests.report.test_view_stacks import (
    HOSTILE,
    SCRIPT,
    generated_view,
    hostile_view,
    long_view,
    pair_view,
    sentence_view,
    translated_view,
    view_of,
)


def parameters(page):
    """What each view of the page is handed, by bertviz's names, with the parts of a pair cut out as the page's script does."""
    found = []
    for text in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page.html, re.DOTALL):
        given = json.loads(text)
        unit = given.pop("unit")
        for one in given["attention"]:
            for name in ("attn", "queries", "keys"):
                if name in one:
                    one[name] = np.array(one[name]) / unit
        for one in given["attention"]:
            if "part" in one:
                part = one.pop("part")
                whole, rows, columns = given["attention"][part["of"]], slice(*part["rows"]), slice(*part["columns"])
                one["attn"] = whole["attn"][:, :, rows, columns]
                one["left_text"], one["right_text"] = whole["left_text"][rows], whole["right_text"][columns]
        found.append(given)
    return found


leaves_files_open = pytest.mark.filterwarnings(
    "ignore:unclosed file:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
"""What bertviz's own functions do with their scripts."""


class Elements(HTMLParser):
    """The elements of a page by name."""

    def __init__(self, text):
        super().__init__()
        self.names = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.names.append(tag)


def theirs(kind, **arguments):
    """What bertviz's own function puts into its page; runs where torch is."""
    import bertviz

    made = getattr(bertviz, f"{kind}_view")(html_action="return", prettify_tokens=False, **arguments).data
    text = re.search(r"const params = (\{.*?\}); // HACK", made, re.DOTALL)[1]
    return json.loads(text)


def tensors(blocks, kind="encoder"):
    import torch

    return [torch.from_numpy(block.pattern)[None] for block in blocks if block.kind == kind]


@leaves_files_open
@pytest.mark.parametrize("kind", ["head", "model"])
def test_one_text_is_handed_over_as_bertvizs_own_function_does(kind):
    view = sentence_view()
    (ours,) = parameters(to_bertviz(view, kind))
    expected = theirs(kind, attention=tensors(view.blocks), tokens=list(view.tokens))
    assert ours["include_layers"] == expected["include_layers"] == [0, 1, 2]
    assert ours["default_filter"] == expected["default_filter"]
    if kind == "model":
        assert (ours["include_heads"], ours["total_heads"]) == (expected["include_heads"], expected["total_heads"])
    (got,), (wanted,) = ours["attention"], expected["attention"]
    assert (got["left_text"], got["right_text"]) == (wanted["left_text"], wanted["right_text"])
    np.testing.assert_allclose(got["attn"], wanted["attn"], atol=10**-DECIMALS / 2 + 1e-9)
    assert np.abs(np.array(got["attn"]) - np.array(wanted["attn"])).max() > 0, "rounded"


@leaves_files_open
@pytest.mark.parametrize("kind", ["head", "model"])
def test_a_pair_of_texts_has_bertvizs_five_parts_out_of_one_copy(kind):
    view = pair_view()
    page = to_bertviz(view, kind)
    (ours,) = parameters(page)
    expected = theirs(kind, attention=tensors(view.blocks), tokens=list(view.tokens), sentence_b_start=5)
    assert [one["name"] for one in ours["attention"]] == [one["name"] for one in expected["attention"]]
    for got, wanted in zip(ours["attention"], expected["attention"], strict=True):
        assert (got["left_text"], got["right_text"]) == (wanted["left_text"], wanted["right_text"])
        np.testing.assert_allclose(got["attn"], wanted["attn"], atol=10**-DECIMALS / 2 + 1e-9)
    assert page.html.count('"attn":[') == 1
    assert Elements(page.html).names.count("option") == 5


@pytest.mark.parametrize("kind", ["head", "model", "neuron"])
def test_unequal_depths_lose_no_layer(kind):
    view = translated_view()
    found = parameters(to_bertviz(view, kind))
    held = {one["name"]: (given, one) for given in found for one in given["attention"]}
    assert set(held) == {"Encoder", "Decoder", "Cross"}
    for name, layers in (("Encoder", 3), ("Decoder", 2), ("Cross", 2)):
        given, one = held[name]
        blocks = [block for block in view.blocks if block.kind == name.lower()]
        assert len(blocks) == layers == len(given["include_layers"]) == len(one["attn"])
        np.testing.assert_allclose(one["attn"], [block.pattern for block in blocks], atol=10**-DECIMALS)
    assert held["Cross"][1]["left_text"] == list(view.target_tokens)
    assert held["Cross"][1]["right_text"] == list(view.tokens)


@leaves_files_open
def test_bertvizs_own_function_does_lose_them():
    """The control: fewer encoder layers than decoder layers, and bertviz drops the rest without a word."""
    view = translated_view()
    shallow, deep = tensors(view.blocks, "decoder"), tensors(view.blocks)
    given = {"encoder_tokens": ["a"] * 4, "decoder_tokens": ["b"] * 5}
    made = theirs("head", encoder_attention=shallow, decoder_attention=deep, **given)
    assert [len(one["attn"]) for one in made["attention"]] == [2, 2]


def test_neurons_come_from_our_q_and_k_and_give_the_models_score():
    view = sentence_view()
    (given,) = parameters(to_bertviz(view, "neuron"))
    (one,) = given["attention"]
    assert given["bidirectional"] is True
    for layer, block in enumerate(view.blocks):
        np.testing.assert_allclose(one["keys"][layer], block.k, atol=1e-4)
        np.testing.assert_allclose(one["queries"][layer], block.q, atol=1e-4)
        shown = np.einsum("hqd,hkd->hqk", one["queries"][layer], one["keys"][layer]) / np.sqrt(7)
        np.testing.assert_allclose(shown, block.scores, atol=5e-3)


def test_neurons_of_models_with_another_scale_are_corrected_and_it_is_said():
    source = sentence_view(layers=1)
    block = source.blocks[0]
    scores = np.einsum("hqd,hkd->hqk", block.q, block.k) * 0.5 + 0.25
    other = PatternBlock(
        0, "encoder", 0, 0, block.pattern, "recomputed", scores.astype(np.float32), block.q, block.k, 0.5
    )
    page = to_bertviz(view_of([other], source.tokens), "neuron")
    (given,) = parameters(page)
    one = given["attention"][0]
    shown = np.einsum("hqd,hkd->hqk", one["queries"][0], one["keys"][0]) / np.sqrt(7)
    np.testing.assert_allclose(shown, scores - 0.25, atol=5e-3)
    for note in ("q is multiplied", "adds a position bias", "recomputed", "choose its +"):
        assert note in page.html
    plain = to_bertviz(sentence_view(), "neuron").html
    assert "q is multiplied" not in plain
    assert "position bias" not in plain


def test_causal_decoders_are_drawn_one_way():
    (given,) = parameters(to_bertviz(generated_view()[0], "neuron"))
    assert given["bidirectional"] is False
    assert given["attention"][0]["left_text"] == ["H", "e", "l", "l", "o", "+1", "+2", "+3"]


def test_a_padded_batch_is_trimmed(minilm):
    taken = attnprobe.capture(minilm, ["Short text.", "A text that is quite a bit longer than the other."])
    (given,) = parameters(to_bertviz(taken, "head", index=0))
    one = given["attention"][0]
    assert one["left_text"] == ["[CLS]", "short", "text", ".", "[SEP]"]
    alone = attnprobe.capture(minilm, "Short text.")
    np.testing.assert_allclose(one["attn"], [layer.pattern[0].numpy() for layer in alone.layers], atol=2e-4)
    (given,) = parameters(to_bertviz(taken, "neuron", index=0))
    assert given["attention"][0]["queries"].shape == (6, 12, 5, 32)


def test_hostile_tokens_cannot_leave_the_data():
    source = hostile_view()
    object.__setattr__(source, "model", SCRIPT)
    page = to_bertviz(source, "head")
    assert Elements(page.html).names.count("script") == 1 + 7
    assert "<img" not in page.html
    assert "taken'</script" not in page.html
    (given,) = parameters(page)
    assert given["attention"][0]["left_text"] == list(HOSTILE)


def test_undefined_rows_draw_nothing_and_are_said():
    source = sentence_view()
    source.blocks[0].pattern[:, 3] = np.nan
    page = to_bertviz(source, "model")
    (given,) = parameters(page)
    assert not given["attention"][0]["attn"][0][:, 3].any()
    assert "Queries that see nothing have no lines." in page.html


def test_the_offline_page_holds_its_libraries_and_a_policy_for_exactly_its_scripts():
    text = to_bertviz(sentence_view(), "head").html
    assert text.startswith("<!doctype html>")
    for sign in ("d3js.org v5.7.0", "jQuery v3.7", "RequireJS 2.3"):
        assert sign in text
    assert (
        text.index("d3js.org v5") < text.index("jQuery v3.7") < text.index("RequireJS 2.3") < text.index('define("d3"')
    )
    assert "cdnjs" not in text
    assert "require.config(" not in text.split("RequireJS 2.3")[1].split("</script>", 1)[1]
    policy = html.unescape(re.search(r'Content-Security-Policy" content="(.*?)"', text)[1])
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert policy.count("sha256-") == 7 + 1
    assert Elements(text).names.count("script") == 1 + 7
    assert "<script src" not in text


def test_the_page_for_the_network_loads_as_bertviz_does():
    text = to_bertviz(sentence_view(), "head", offline=False).html
    assert '<script src="https://cdnjs.cloudflare.com/ajax/libs/require.js/2.3.6/require.min.js"></script>' in text
    assert "cdnjs.cloudflare.com/ajax/libs/d3/5.7.0" in text
    assert "d3js.org v5.7.0" not in text
    assert len(text) < 100_000


def test_weights_are_in_the_page_once_and_rounded():
    view = long_view(40, layers=4, heads=4)
    cells = 4 * 4 * 40 * 40
    text = to_bertviz(view, "head", offline=False).html
    assert len(text) < cells * 4 + 60_000
    own = json.dumps([block.pattern.tolist() for block in view.blocks])
    assert len(text) < len(own) / 3


@pytest.mark.parametrize(("kind", "drawn"), [("model", 2 * 3 * 50 * 50), ("head", 3 * 50 * 50)])
def test_pages_that_hang_a_browser_are_refused_unless_told(kind, drawn):
    view = long_view(50)
    with pytest.raises(InputError) as caught:
        to_bertviz(view, kind, max_cells=drawn - 1)
    for part in (
        f"{kind} view",
        f"at most {drawn - 1:,}",
        f"got {drawn:,}",
        "`layers`",
        "`heads`",
        "attnprobe.view",
        "force=True",
    ):
        assert part in str(caught.value)
    assert isinstance(to_bertviz(view, kind, max_cells=drawn), BertvizPage)
    assert isinstance(to_bertviz(view, kind, max_cells=1, force=True), BertvizPage)


def test_the_default_limit_is_about_32_tokens_of_all_heads_of_bert_base():
    to_bertviz(long_view(32, layers=12, heads=12), "model")
    with pytest.raises(InputError, match="hang the browser"):
        to_bertviz(long_view(33, layers=12, heads=12), "model")


def test_layers_and_heads_are_chosen():
    (given,) = parameters(to_bertviz(sentence_view(), "model", layers=[0, 2], heads=[1, 4]))
    assert (given["include_layers"], given["include_heads"], given["total_heads"]) == ([0, 2], [1, 4], 2)
    np.testing.assert_allclose(given["attention"][0]["attn"][1][1], sentence_view().blocks[2].pattern[4], atol=1e-4)


def test_wrong_use_is_refused():
    with pytest.raises(InputError, match="unknown bertviz view 'heads'; near names: head"):
        to_bertviz(sentence_view(), "heads")
    with pytest.raises(InputError, match=r"no neuron view without q and k.*neurons=True"):
        to_bertviz(long_view(5), "neuron")
    with pytest.raises(InputError, match="same heads in every layer"):
        to_bertviz(sentence_view(), heads=["L0H1", "L1H2"])


@pytest.mark.parametrize(
    ("package", "library"), [("mpld3", "d3"), ("xstatic-jquery", "jQuery"), ("nbclassic", "require.js")]
)
def test_a_missing_package_is_named_with_the_extra_to_install(package, library, monkeypatch):
    found = metadata.distribution

    def without(name):
        if name == package:
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "distribution", without)
    with pytest.raises(InputError) as caught:
        to_bertviz(sentence_view())
    for part in (
        f"needs {library}",
        f"the package {package}",
        "not installed",
        "pip install 'attnprobe[bertviz-offline]'",
        "offline=False",
    ):
        assert part in str(caught.value)
    to_bertviz(sentence_view(), offline=False)


def test_a_package_that_carries_something_else_is_noticed(monkeypatch):
    monkeypatch.setitem(_view_bertviz.LIBRARIES, "d3", ("mpld3", "mpld3/js/d3.v3.min.js"))
    with pytest.raises(InputError, match="needs d3 of version 5"):
        to_bertviz(sentence_view())
    monkeypatch.setitem(_view_bertviz.LIBRARIES, "d3", ("mpld3", "mpld3/js/d3.v9.min.js"))
    with pytest.raises(InputError, match="mpld3 no longer carries d3"):
        to_bertviz(sentence_view())


def test_another_bertviz_is_noticed(tmp_path, monkeypatch):
    class Other:
        version = "9.9"

        def locate_file(self, path):
            return tmp_path / path

    (tmp_path / "bertviz").mkdir()
    (tmp_path / "bertviz" / "head_view.js").write_text("draw();", encoding="utf-8")
    found = metadata.distribution
    monkeypatch.setattr(metadata, "distribution", lambda name: Other() if name == "bertviz" else found(name))
    with pytest.raises(
        InputError, match=r"bertviz 9\.9 is not laid out as expected.*PYTHON_PARAMS.*Use bertviz 1\.4\.1"
    ):
        to_bertviz(sentence_view())
    with pytest.raises(InputError, match=r"no such view.*model_view\.js"):
        to_bertviz(sentence_view(), "model")


def test_scripts_of_others_cannot_end_their_element():
    assert (
        _view_bertviz.inline("a = '</script>'; b = '</SCRIPT'; c = '<!-- x'")
        == "a = '<\\/script>'; b = '<\\/SCRIPT'; c = '<\\!-- x'"
    )


def test_saving_and_notebooks(tmp_path):
    page = to_bertviz(hostile_view())
    assert page.save(tmp_path / "b.html").read_text(encoding="utf-8") == page.html
    shown = page._repr_html_()
    assert shown.startswith('<iframe sandbox="allow-scripts" ')
    assert html.unescape(re.search(r'srcdoc="([^"]*)"', shown)[1]) == page.html
