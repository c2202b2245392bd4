"""bertviz's views in a real Chromium with the network off: they draw, they answer, and nothing runs that should not."""

import numpy as np
import pytest

from attnprobe.report.bertviz import to_bertviz
from tests.report.test_view_stacks import (
    HOSTILE,
    generated_view,
    hostile_view,
    pair_view,
    random_block,
    sentence_view,
    translated_view,
    view_of,
)

pytestmark = pytest.mark.browser


def tall_view():
    """One decoder layer over two words and twelve target tokens."""
    random = np.random.default_rng(30)
    decoder = random_block(random, 2, 12, 12, layer=0, kind="decoder", index=0)
    cross = random_block(random, 2, 12, 2, layer=1, kind="cross", index=0)
    return view_of([decoder, cross], "ab", target_tokens=tuple("cdefghijklmn"))


SOURCES = {
    "tall": tall_view,
    "sentence": sentence_view,
    "pair": pair_view,
    "translated": translated_view,
    "generated": lambda: generated_view()[0],
    "hostile": hostile_view,
}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bertviz")

    def path(name, kind):
        target = folder / f"{name}-{kind}.html"
        return target if target.exists() else to_bertviz(SOURCES[name](), kind).save(target)

    return path


@pytest.fixture
def opened(pages, open_page):
    """Opens a page; at the end nothing but bertviz's own chatter may have been said, and nothing asked for."""
    found = []

    def opener(name, kind, **options):
        found.append(open_page(pages(name, kind), **options))
        return found[-1].page

    yield opener
    for one in found:
        assert [text for text in one.complaints if not text.startswith("log: ")] == []
        assert one.requests == []
        assert one.overflow() <= 0


def opacities(page, selector):
    return page.locator(selector).evaluate_all("all => all.map((one) => Number(one.getAttribute('stroke-opacity')))")


@pytest.mark.parametrize("width", [320, 768, 1280])
@pytest.mark.parametrize("kind", ["head", "model", "neuron"])
@pytest.mark.parametrize("name", SOURCES)
def test_every_view_of_every_kind_of_model_draws(name, kind, width, opened):
    page = opened(name, kind, width=width)
    views = 2 if name == "translated" else 1
    assert page.locator("svg").count() == views
    for i in range(views):
        assert page.locator("svg").nth(i).locator("line").count() > 30


def test_head_view_draws_every_weight_of_the_layer_with_its_strength(opened):
    page = opened("sentence", "head")
    pattern = sentence_view().blocks[0].pattern
    assert opacities(page, "#attention line") == pytest.approx(list(pattern.ravel() / 5), abs=2e-5)
    page.locator("#layer").select_option("2")
    assert opacities(page, "#attention line") == pytest.approx(
        list(sentence_view().blocks[2].pattern.ravel() / 5), abs=2e-5
    )


def test_model_view_draws_every_weight_and_enlarges_a_head(opened):
    page = opened("sentence", "model")
    everything = np.concatenate([block.pattern.ravel() for block in sentence_view().blocks])
    assert opacities(page, "line") == pytest.approx(list(everything), abs=6e-5)
    page.locator("#attn_background_1_3").locator("xpath=..").locator("rect").last.click(force=True)
    assert page.locator("text.detail").text_content() == "Layer 1, Head 3"


def test_a_pair_shows_one_direction(opened):
    page = opened("pair", "head")
    page.locator("#filter").select_option(label="Sentence B -> Sentence A")
    expected = pair_view().blocks[0].pattern[:, 5:, :5]
    assert opacities(page, "#attention line") == pytest.approx(list(expected.ravel() / 3), abs=3e-5)
    assert page.locator("#left text").all_text_contents() == ["d", "e", "[SEP]"]


def test_each_of_several_views_answers_for_itself(opened):
    page = opened("translated", "head")
    second = page.locator("#bertviz-1")
    second.locator("#filter").select_option(label="Cross")
    second.locator("#layer").select_option("1")
    cross = [block.pattern for block in translated_view().blocks if block.kind == "cross"][1]
    assert opacities(page, "#bertviz-1 #attention line") == pytest.approx(list(cross.ravel() / 3), abs=3e-5)
    assert page.locator("#bertviz-0 #attention line").count() == 3 * 25
    assert page.locator("#bertviz-0 #layer option").count() == 3


EXPAND = """([root, query]) => {
  const token = document.querySelectorAll(`${root} #collapsed #leftText g`)[query];
  token.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
  [...token.querySelectorAll("rect")].pop().dispatchEvent(new MouseEvent("click", { bubbles: true }));
}"""


@pytest.mark.parametrize(
    ("name", "root", "block"),
    [("sentence", "#bertviz-0", 0), ("translated", "#bertviz-1", 3), ("generated", "#bertviz-0", 0)],
)
def test_neuron_view_computes_with_our_q_and_k(name, root, block, opened):
    page = opened(name, "neuron")
    page.evaluate(EXPAND, [root, 3])
    values = "all => all.map((one) => Number(one.dataset.value))"
    held = (generated_view()[1] if name == "generated" else SOURCES[name]().blocks)[block]
    dots = page.locator(f"{root} .dotproduct").evaluate_all(values)
    seen = held.scores[0][3] > -1e9
    assert np.array(dots)[seen] == pytest.approx(held.scores[0][3][seen], abs=0.005)
    opacity = "all => all.map((one) => Number(one.style.opacity))"
    weights = page.locator(f"{root} #expanded #rightText .highlight").evaluate_all(opacity)
    assert weights == pytest.approx(list(held.pattern[0][3]), abs=1e-4)
    assert page.locator(f"{root} #expanded").get_attribute("visibility") == "visible"


def test_more_queries_than_keys_are_not_cut_off(opened):
    page = opened("tall", "neuron")
    page.locator("#filter").select_option(label="Cross")
    box = page.locator("svg").bounding_box()
    last = page.locator("#collapsed #leftText text").last.bounding_box()
    assert last["y"] + last["height"] <= box["y"] + box["height"]


def test_hostile_tokens_show_as_themselves(opened):
    for kind, places in (("head", "#left text"), ("neuron", "#collapsed #leftText text")):
        page = opened("hostile", kind)
        assert page.locator(places).all_text_contents() == list(HOSTILE)
        assert page.title() == f"tiny: bertviz {kind} view"
        assert page.locator("main img").count() == 0


def test_a_notebook_frame_draws_alone(chromium, tmp_path):
    outer = tmp_path / "notebook.html"
    outer.write_text(
        f"<!doctype html><title>notebook</title><body>{to_bertviz(sentence_view())._repr_html_()}", encoding="utf-8"
    )
    context = chromium.new_context(offline=True)
    page = context.new_page()
    errors = []
    page.on("console", lambda message: message.type == "error" and errors.append(message.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(outer.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(state="attached")
    assert frame.locator("#attention line").count() == 5 * 64
    assert errors == []
    context.close()


def test_without_the_network_a_page_made_for_it_draws_nothing(tmp_path, chromium):
    """The control: what the offline page is for."""
    context = chromium.new_context(offline=True)
    page = context.new_page()
    page.goto(to_bertviz(sentence_view(), offline=False).save(tmp_path / "cdn.html").as_uri())
    page.wait_for_timeout(300)
    assert page.locator("svg").count() == 0
    context.close()
