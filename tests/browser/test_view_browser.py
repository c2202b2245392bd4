"""The viewer in a real Chromium, network off: what it draws, what it says of what it does not draw, pointer, keys, addresses."""

import re

import numpy as np
import pytest

from attnprobe.records import PatternBlock
from attnprobe.report.view import view
from tests.report.test_view_stacks import (
    HOSTILE,
    generated_view,
    hostile_view,
    long_view,
    pair_view,
    random_block,
    sentence_view,
    softmax,
    translated_view,
    view_of,
)

pytestmark = pytest.mark.browser


def undefined_view():
    block = random_block(np.random.default_rng(20), 2, 4, 4)
    block.pattern[:, 2] = np.nan
    return view_of([block], "abcd")


def sinking_view():
    """Rows that give a fifth of their weight to a learned sink."""
    block = random_block(np.random.default_rng(21), 2, 4, 4)
    block.pattern[:] *= 0.8
    return view_of([block], "abcd")


def lone_view():
    """One special token and nothing else; the heads of its two layers differ in number."""
    random = np.random.default_rng(22)
    blocks = [random_block(random, 2 + layer, 1, 1, layer=layer) for layer in range(2)]
    return view_of(blocks, ("[CLS]",), special=np.array([True]))


def biased_view():
    """A model that scales by 1 and adds a position bias."""
    random = np.random.default_rng(23)
    block = random_block(random, 2, 5, 5, scale=1.0)
    scores = block.scores + random.normal(0, 2, (2, 5, 5)).astype(np.float32)
    return view_of([PatternBlock(0, "encoder", 0, 0, softmax(scores), "model", scores, block.q, block.k, 1.0)], "abcde")


MADE = {
    "lone": lambda: view(lone_view()),
    "biased": lambda: view(biased_view()),
    "sentence": lambda: view(sentence_view()),
    "sentence-zh": lambda: view(sentence_view(), lang="zh"),
    "pair": lambda: view(pair_view()),
    "generated": lambda: view(generated_view()[0]),
    "translated": lambda: view(translated_view()),
    "hostile": lambda: view(hostile_view()),
    "undefined": lambda: view(undefined_view()),
    "sink": lambda: view(sinking_view()),
    "chosen": lambda: view(sentence_view(), heads=["L0H1", "L2H4"]),
    "windowed": lambda: view(long_view(150)),
    "long": lambda: view(long_view(512, heads=2), heads=["L0H0", "L1H1"]),
    "bare": lambda: view(long_view(9)),
}


def wide_view(heads):
    return view_of(
        [random_block(np.random.default_rng(24), heads, 9, 9, layer=layer) for layer in range(3)], "abcdefghi"
    )


@pytest.mark.parametrize("heads", [12, 16])
@pytest.mark.parametrize("width", [1280, 2000])
def test_no_column_of_heads_is_cut(heads, width, open_page, tmp_path):
    page = open_page(view(wide_view(heads)).save(tmp_path / "wide.html"), width=width).page
    assert page.locator("#grid thead th").count() == heads + 1
    assert page.evaluate("[document.getElementById('grid')].map((one) => one.scrollWidth - one.clientWidth)") == [0]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("views")

    def path(name):
        target = folder / f"{name}.html"
        return target if target.exists() else MADE[name]().save(target)

    return path


@pytest.fixture
def opened(pages, open_page):
    """Opens a page; at the end nothing may have been complained of or asked for."""
    found = []

    def opener(name, **options):
        found.append(open_page(pages(name), **options))
        return found[-1].page

    yield opener
    for one in found:
        assert one.complaints == []
        assert one.requests == []
        assert one.page.locator("#failure").is_hidden()


def show(page, name):
    page.locator(f"[data-view={name}]").click()


def choose(page, head):
    page.evaluate("head => { location.hash = head }", f"#{head}")
    page.locator("#head-title", has_text=re.compile(f"^{head}$")).wait_for()


def size(page):
    """Pixels of a matrix cell."""
    return int(page.locator("#size").input_value())


def hover(page, row, column):
    """Points at a cell of the matrix and gives the value shown."""
    box = page.locator(".sheet-body").bounding_box()
    cell = size(page)
    page.mouse.move(box["x"] + (column + 0.5) * cell, box["y"] + (row + 0.5) * cell)
    page.wait_for_selector("#tip:not([hidden])")
    return numbers([page.locator("#tip .tip-weight").inner_text()])[0]


def numbers(texts):
    return [float(text.replace("−", "-").lstrip("<")) for text in texts]


def settle(page):
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def mass(page):
    settle(page)
    return page.locator("#mass").inner_text()


def shares(text):
    return [float(share) / 100 for share in re.findall(r"([\d.]+)%", text)]


def merged(pattern, groups):
    """Summed over the keys of a group, averaged over its queries."""
    return np.array(
        [[np.mean([sum(pattern[q, k] for k in keys) for q in queries]) for keys in groups] for queries in groups]
    )


WORDS = [[0], [1], [2, 3, 4], [5], [6], [7]]
TOLERANCE = 0.004


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (768, "dark"), (1280, "light"), (2000, "dark")])
@pytest.mark.parametrize("name", MADE)
def test_no_view_overflows_complains_or_asks(name, width, scheme, pages, open_page):
    found = open_page(pages(name), width=width, scheme=scheme)
    for one in ("lines", "neurons", "matrix"):
        show(found.page, one)
        settle(found.page)
        assert found.overflow() <= 0, one
    assert found.complaints == []
    assert found.requests == []
    assert found.page.locator("#failure").is_hidden()


def test_overflow_and_complaints_would_be_seen(pages, open_page):
    found = open_page(pages("sentence"), width=320)
    found.page.evaluate(
        "document.querySelector('main').append(Object.assign(document.createElement('pre'), {textContent: 'x'.repeat(999)}))"
    )
    assert found.overflow() > 0
    found.page.evaluate("fetch('https://example.org').catch(() => 0)")
    found.page.wait_for_timeout(100)
    assert any("Content Security Policy" in text for text in found.complaints)


def test_every_head_is_drawn_and_every_weight_of_the_chosen_one(opened):
    page = opened("sentence")
    assert page.locator("table.heads [data-place]").count() == 15
    assert page.locator("table.heads canvas").evaluate_all("all => all.map((one) => one.dataset.drawn)") == ["8x8"] * 15
    assert page.locator(".sheet-body canvas").get_attribute("data-cells") == "64"
    labels = page.locator(".sheet-side .sheet-label").all_inner_texts()
    assert labels == page.locator(".sheet-top .sheet-label").all_inner_texts() == list(sentence_view().tokens)


def test_colours_follow_the_weights(opened):
    page = opened("sentence")
    choose(page, "L1H2")
    pattern = sentence_view().blocks[1].pattern[2]
    light = page.evaluate(
        """([n, cell]) => {
          const canvas = document.querySelector(".sheet-body canvas");
          const ratio = canvas.width / canvas.clientWidth;
          const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          return Array.from({ length: n * n }, (_, i) => {
            const at = 4 * ((Math.floor(i / n) * cell * ratio + 3) * width + (i % n) * cell * ratio + 3);
            return 0.3 * data[at] + 0.6 * data[at + 1] + 0.1 * data[at + 2];
          });
        }""",
        [8, size(page)],
    )
    order = np.argsort(pattern.ravel())
    assert np.all(np.diff(np.array(light)[order]) <= 2.5)
    assert light[order[-1]] < light[order[0]] - 40


@pytest.mark.parametrize("head", ["L0H0", "L2H4"])
def test_hovering_shows_the_weights_of_the_pattern(opened, head):
    page = opened("sentence", fragment=f"#{head}")
    assert page.locator("#head-title").inner_text() == head
    pattern = sentence_view().blocks[int(head[1])].pattern[int(head[3])]
    for row, column in [(0, 0), (3, 5), (7, 2), (4, 7)]:
        assert hover(page, row, column) == pytest.approx(pattern[row, column], abs=TOLERANCE)
        assert (
            page.locator("#tip .pair-line").inner_text()
            == f"{sentence_view().tokens[row]} → {sentence_view().tokens[column]}"
        )


def test_words_are_summed_over_keys_and_averaged_over_queries(opened):
    page = opened("sentence", fragment="#L1H3")
    page.locator("[data-words=true]").click()
    assert page.locator(".sheet-side .sheet-label").all_inner_texts() == [
        "[CLS]",
        "the",
        "unbelievable",
        "cat",
        "sat",
        "[SEP]",
    ]
    expected = merged(sentence_view().blocks[1].pattern[3], WORDS)
    for row, column in [(2, 2), (2, 0), (0, 2), (5, 4)]:
        assert hover(page, row, column) == pytest.approx(expected[row, column], abs=TOLERANCE)
    np.testing.assert_allclose(expected.sum(-1), 1, atol=1e-5)
    page.locator("[data-words=false]").click()
    assert page.locator(".sheet-side .sheet-label").count() == 8


def test_hidden_tokens_take_their_mass_with_them_and_it_is_stated(opened):
    page = opened("sentence", fragment="#L1H3")
    assert mass(page) == "L1H3: all of the weight is shown."
    page.locator("[data-hide='[CLS]']").check()
    page.locator("[data-hide='[SEP]']").check()
    pattern = sentence_view().blocks[1].pattern[3]
    inside = pattern[1:7, 1:7]
    away = 1 - inside.sum(-1).mean()
    assert shares(mass(page)) == pytest.approx([away, away], abs=0.002)
    assert page.locator(".sheet-body canvas").get_attribute("data-cells") == "36"
    assert hover(page, 0, 1) == pytest.approx(inside[0, 1], abs=TOLERANCE)
    average = 1 - np.mean([block.pattern[:, 1:7, 1:7].sum(-1).mean() for block in sentence_view().blocks])
    assert shares(page.locator("#grid-note").inner_text()) == pytest.approx([average], abs=0.002)
    page.locator("#renormalise").check()
    assert "scaled to 1" in mass(page)
    scaled = inside / inside.sum(-1, keepdims=True)
    for row, column in [(0, 1), (3, 3), (5, 0)]:
        assert hover(page, row, column) == pytest.approx(scaled[row, column], abs=2 * TOLERANCE)


def test_nothing_can_be_scaled_while_all_is_shown(opened):
    page = opened("sentence")
    assert page.locator("#renormalise").is_disabled()
    page.locator("[data-hide='[CLS]']").check()
    assert page.locator("#renormalise").is_enabled()


def test_the_threshold_states_the_weight_it_drops(opened):
    page = opened("sentence", fragment="#L2H1")
    page.locator("#least").fill("50")
    least = 0.5 * 0.5**2
    pattern = sentence_view().blocks[2].pattern[1]
    kept = pattern >= least
    text = mass(page)
    assert f"Below {least:.3f}" in text
    assert shares(text) == pytest.approx([1 - pattern[kept].sum() / pattern.sum()], abs=0.004)
    assert f"{kept.sum()} of 64 cells" in text
    assert page.locator(".sheet-body canvas").get_attribute("data-cells") == str(kept.sum())
    assert page.locator("#least").get_attribute("aria-valuetext") == "0.125"


def test_pairs_show_one_direction_and_say_what_goes_to_the_other_text(opened):
    page = opened("pair", fragment="#L1H2")
    page.locator("#pair").select_option("1>0")
    pattern = pair_view().blocks[1].pattern[2][5:, :5]
    assert page.locator(".sheet-side .sheet-label").all_inner_texts() == ["d", "e", "[SEP]"]
    assert page.locator(".sheet-top .sheet-label").all_inner_texts() == ["[CLS]", "a", "b", "c", "[SEP]"]
    away = 1 - pattern.sum(-1).mean()
    assert "on the other text" in mass(page)
    assert shares(mass(page)) == pytest.approx([away, away], abs=0.002)
    assert hover(page, 1, 3) == pytest.approx(pattern[1, 3], abs=TOLERANCE)


def test_steps_of_a_generation_show_their_queries(opened):
    page = opened("generated", fragment="#L1H1")
    assert "generated" in page.locator("#notices").inner_text()
    assert page.locator(".sheet-side .sheet-label").all_inner_texts() == ["H", "e", "l", "l", "o", "+1", "+2", "+3"]
    assert page.locator(".sheet-body canvas").get_attribute("data-cells") == str(8 * 9 // 2), (
        "keys that come later are not drawn"
    )
    page.locator("#step").select_option("2")
    assert page.locator(".sheet-side .sheet-label").all_inner_texts() == ["+2"]
    _, full = generated_view()
    assert hover(page, 0, 4) == pytest.approx(full[1].pattern[1][6, 4], abs=TOLERANCE)


def test_encoder_decoder_and_cross_attention_each_have_their_heads(opened):
    page = opened("translated")
    assert page.locator("table.heads tbody tr").count() == 3
    page.locator("#kind").select_option("2")
    assert page.locator("table.heads tbody th").all_inner_texts() == ["L4", "L6"]
    assert page.locator("#head-title").inner_text() == "L4H0"
    assert page.locator(".sheet-side .sheet-label").all_inner_texts() == ["<s>", "le", "chat", "dort"]
    block = next(b for b in translated_view().blocks if b.layer == 4)
    assert hover(page, 3, 4) == pytest.approx(block.pattern[0][3, 4], abs=TOLERANCE)
    choose(page, "L5H2")
    assert page.locator("table.heads tbody th").all_inner_texts() == ["L3", "L5"]
    assert page.locator("#kind").input_value() == "1"


def test_lines_are_drawn_from_a_least_weight_and_count_what_they_carry(opened):
    page = opened("sentence", fragment="#L0H2")
    show(page, "lines")
    pattern = sentence_view().blocks[0].pattern[2]
    drawn = pattern >= 0.01
    assert int(page.locator("#lines canvas").get_attribute("data-lines")) == pytest.approx(drawn.sum(), abs=1)
    assert shares(page.locator("#lines-note").inner_text()) == pytest.approx(
        [pattern[drawn].sum() / pattern.sum()], abs=0.004
    )
    page.locator("#least").fill("60")
    settle(page)
    assert int(page.locator("#lines canvas").get_attribute("data-lines")) == (pattern >= 0.18).sum()


def test_a_token_in_focus_shows_its_lines_and_the_weight_beside_each_other_token(opened):
    page = opened("sentence", fragment="#L0H2")
    show(page, "lines")
    pattern = sentence_view().blocks[0].pattern[2]
    query = page.locator(".queries button").nth(5)
    query.click()
    assert query.get_attribute("aria-pressed") == "true"
    page.mouse.move(2, 2)
    weights = page.locator(".keys .lines-weight").all_inner_texts()
    assert numbers(weights) == pytest.approx(list(pattern[5]), abs=TOLERANCE)
    assert page.locator("#lines canvas").get_attribute("data-lines") == str((pattern[5] >= 0.001).sum())
    page.locator(".keys button").nth(0).click()
    page.mouse.move(2, 2)
    assert numbers(page.locator(".queries .lines-weight").all_inner_texts()) == pytest.approx(
        list(pattern[:, 0]), abs=TOLERANCE
    )
    page.keyboard.press("Escape")
    settle(page)
    assert page.locator(".lines-side [aria-pressed=true]").count() == 0


def test_reading_lists_the_strongest_of_the_focus(opened):
    page = opened("sentence", fragment="#L2H0")
    pattern = sentence_view().blocks[2].pattern[0]
    first = page.locator(".bar-weight").first.inner_text()
    assert float(first) == pytest.approx(pattern.max(), abs=TOLERANCE)
    page.locator(".sheet-side .sheet-label").nth(6).click()
    assert page.locator("#reading-query").inner_text() == "sat looks at"
    shown = numbers(page.locator("[aria-labelledby=reading-query] .bar-weight").all_inner_texts())
    assert shown == pytest.approx(sorted(pattern[6], reverse=True), abs=TOLERANCE)
    page.locator(".sheet-top .sheet-label").nth(1).click()
    assert page.locator("#reading-key").inner_text() == "Who looks at the"
    shown = numbers(page.locator("[aria-labelledby=reading-key] .bar-weight").all_inner_texts())
    assert shown == pytest.approx(sorted(pattern[:, 1], reverse=True), abs=TOLERANCE)


def test_neurons_show_the_whole_way_from_q_and_k_to_the_weight(opened):
    page = opened("sentence", fragment="#L1H4")
    show(page, "neurons")
    page.locator("#neuron-query").select_option("5")
    block = sentence_view().blocks[1]
    products = block.k[4] @ block.q[4][5]
    rows = page.locator("#neurons tbody tr")
    assert rows.count() == 8
    for key in (0, 3, 7):
        dot, scaled, added, score, weight = numbers(rows.nth(key).locator("td.number").all_inner_texts())
        assert dot == pytest.approx(products[key], abs=0.01)
        assert scaled == pytest.approx(products[key] * 7**-0.5, abs=0.003)
        assert added == 0
        assert score == pytest.approx(block.scores[4][5, key], abs=0.003)
        assert weight == pytest.approx(block.pattern[4][5, key], abs=TOLERANCE)
    assert page.locator("#neurons canvas").evaluate_all("all => all.map((one) => one.dataset.drawn)") == ["1", "8", "8"]
    assert "0.3780 = 1/√7" in page.locator(".neurons-holder > .small").inner_text()


def test_neurons_name_masked_keys_and_leave_no_key_out(opened):
    page = opened("generated", fragment="#L0H0")
    page.locator("[data-hide=first]").check()
    show(page, "neurons")
    page.locator("#neuron-query").select_option("6")
    rows = page.locator("#neurons tbody tr")
    assert rows.count() == 8
    assert [rows.nth(key).locator("td.number").nth(2).inner_text() == "masked" for key in range(8)] == [False] * 7 + [
        True
    ]
    products = page.locator("#neurons canvas").last.bounding_box()
    page.mouse.move(products["x"] + 4, products["y"] + 13)
    page.wait_for_selector("#tip:not([hidden])")
    _, full = generated_view()
    q, k = full[0].q[0][6, 0], full[0].k[0][0, 0]
    shown = numbers(re.findall(r"[−-]?\d+\.\d+", page.locator("#tip").inner_text()))
    assert shown == pytest.approx([q, k, q * k], abs=0.002)


def test_pages_without_q_and_k_say_so(opened):
    page = opened("bare")
    show(page, "neurons")
    assert "neurons=True" in page.locator("#neurons").inner_text()


def test_the_grid_is_walked_with_arrows_and_a_head_opened_with_enter(opened):
    page = opened("sentence")
    page.locator("table.heads [tabindex='0']").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "L1H1"
    page.keyboard.press("End")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator("#head-title").inner_text() == "L2H4"
    assert page.evaluate("location.hash") == "#L2H4"
    assert page.locator("table.heads [aria-selected=true]").get_attribute("aria-label") == "L2H4"
    assert page.locator("table.heads [tabindex='0']").count() == 1


def test_the_matrix_is_walked_with_arrows_and_spoken(opened):
    page = opened("sentence", fragment="#L0H1")
    pattern = sentence_view().blocks[0].pattern[1]
    page.locator("#sheet").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowDown"):
        page.keyboard.press(key)
    spoken = page.locator("#live").inner_text()
    assert spoken.startswith("un → the: ")
    assert numbers([spoken.split(": ")[1]])[0] == pytest.approx(pattern[2, 1], abs=TOLERANCE)
    page.keyboard.press("Enter")
    assert page.locator(".sheet-side .chosen").count() == 1
    assert page.locator(".sheet-top .chosen").inner_text() == "the"
    page.keyboard.press("End")
    assert "→ [SEP]" in page.locator("#live").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".sheet-label.chosen").count() == 0


def test_lines_are_walked_with_arrows(opened):
    page = opened("sentence")
    show(page, "lines")
    page.locator(".queries button").first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.locator(".queries [aria-pressed=true] bdi").inner_text() == "un"
    assert page.locator(".queries [tabindex='0']").count() == 1


def test_every_control_can_be_reached_with_tab(opened):
    page = opened("pair")
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.dataset.hide || document.activeElement.dataset.view || document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
            )
        )
    for wanted in ("pair", "[CLS]", "least", "matrix", "lines", "neurons", "sheet", "size", "L0H0", "Next head"):
        assert wanted in reached, wanted


def test_steps_to_the_next_head_go_round(opened):
    page = opened("chosen")
    assert page.locator("#head-title").inner_text() == "L0H1"
    page.locator("button.step").last.click()
    assert page.locator("#head-title").inner_text() == "L2H4"
    page.locator("button.step").last.click()
    assert page.locator("#head-title").inner_text() == "L0H1"
    assert page.locator("table.heads .none").count() == 2
    assert "2 of the model's 15 heads" in page.locator("#notices").inner_text()


def test_addresses_that_name_no_head_are_let_be(opened):
    page = opened("sentence", fragment="#L9H9")
    assert page.locator("#head-title").inner_text() == "L0H0"


def test_hostile_tokens_show_as_themselves(opened):
    page = opened("hostile")
    shown = page.locator(".sheet-side .sheet-label").evaluate_all("all => all.map((one) => one.textContent)")
    assert shown == ["U+2028" if token == "\u2028" else token for token in HOSTILE]
    for name in ("lines", "neurons", "matrix"):
        show(page, name)
    hover(page, 0, 1)
    assert page.locator("#tip .pair-line").inner_text() == f"{HOSTILE[0]} → {HOSTILE[1]}"
    assert page.title() == "Attention of tiny"
    assert page.locator("main img").count() == 0


def test_queries_that_see_nothing_are_struck_out_and_counted(opened):
    page = opened("undefined")
    assert "1 query sees nothing" in mass(page)
    assert page.locator(".sheet-body canvas").get_attribute("data-cells") == "12"
    box = page.locator(".sheet-body").bounding_box()
    page.mouse.move(box["x"] + 0.5 * size(page), box["y"] + 2.5 * size(page))
    assert page.locator("#tip .tip-weight").inner_text() == "undefined"


def test_learned_sinks_are_stated(opened):
    assert "20.0% on the learned sink" in mass(opened("sink"))


def test_long_texts_say_which_part_is_shown_and_what_lies_outside(opened):
    page = opened("windowed", fragment="#L1H0")
    assert "150 tokens" in page.locator("#notices").inner_text()
    assert "0 to 127" in page.locator("#notices").inner_text()
    pattern = long_view(150).blocks[1].pattern[0][:128, :128]
    away = 1 - pattern.sum(-1).mean()
    assert shares(mass(page)) == pytest.approx([away, away], abs=0.002)
    assert "not on this page" in mass(page)


def test_512_tokens_are_drawn_by_what_is_in_view(opened):
    page = opened("long", fragment="#L1H1")
    canvas = page.locator(".sheet-body canvas")
    pattern = long_view(512, heads=2).blocks[1].pattern[1]
    assert 500 < int(canvas.get_attribute("data-in-view")) < 10_000
    before = canvas.evaluate("one => one.toDataURL()")
    page.evaluate("document.getElementById('sheet').scrollTo(3000, 3000)")
    settle(page)
    assert canvas.evaluate("one => one.toDataURL()") != before
    cell = size(page)
    frame = page.locator("#sheet").bounding_box()
    body = page.locator(".sheet-body").bounding_box()
    x, y = frame["x"] + 300, frame["y"] + 300
    row, column = int((y - body["y"]) // cell), int((x - body["x"]) // cell)
    assert row > 250
    assert column > 250
    assert hover(page, row, column) == pytest.approx(pattern[row, column], abs=TOLERANCE)
    page.get_by_role("button", name="Fit").click()
    assert size(page) == 1
    show(page, "lines")
    assert 100 < int(page.locator("#lines canvas").get_attribute("data-lines")) <= 20_000


def test_themes_change_the_drawing(opened):
    page = opened("sentence", scheme="dark")
    point = "document.querySelector('.sheet-body canvas').toDataURL()"
    before = page.evaluate(point)
    page.locator("button.theme").click()
    settle(page)
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate(point) != before


def test_a_notebook_frame_runs_it_alone(chromium, tmp_path):
    outer = tmp_path / "notebook.html"
    outer.write_text(f"<!doctype html><title>notebook</title><body>{MADE['hostile']()._repr_html_()}", encoding="utf-8")
    context = chromium.new_context(offline=True)
    page = context.new_page()
    complaints = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(outer.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("html[data-ready]").wait_for(state="attached")
    frame.locator("[data-view=lines]").click()
    frame.locator("table.heads [data-place]").last.click()
    assert frame.locator("#head-title").inner_text() == "L1H1"
    assert complaints == []
    assert page.title() == "notebook"
    context.close()


def test_the_largest_weights_are_listed_whole_when_asked(opened):
    page = opened("sentence", fragment="#L2H3")
    page.locator(".reading .link").first.click()
    shown = numbers(page.locator("[aria-labelledby=reading-query] .bar-weight").all_inner_texts())
    expected = sorted(sentence_view().blocks[2].pattern[3].ravel(), reverse=True)
    assert shown == pytest.approx(expected, abs=TOLERANCE)
    means = numbers(page.locator("[aria-labelledby=reading-key] .bar-weight").all_inner_texts())
    assert means == pytest.approx(sorted(sentence_view().blocks[2].pattern[3].mean(0), reverse=True), abs=TOLERANCE)


@pytest.mark.parametrize("name", ["matrix", "lines", "neurons"])
def test_nothing_left_to_draw_is_drawn_as_nothing(opened, name):
    page = opened("lone")
    show(page, name)
    page.locator("[data-hide='[CLS]']").check()
    page.locator("#renormalise").check()
    page.locator("button.step").last.click()
    settle(page)
    assert page.locator("table.heads [data-place]").count() == 5
    assert page.locator("table.heads .none").count() == 1
    if name == "matrix":
        assert page.locator(".sheet-label").count() == 0
    if name == "lines":
        assert page.locator("#lines canvas").get_attribute("data-lines") == "0"


def test_the_first_token_of_a_text_without_specials_can_be_hidden(opened):
    page = opened("generated", fragment="#L1H0")
    page.locator("[data-hide=first]").check()
    assert page.locator(".sheet-side .sheet-label").first.inner_text() == "e"
    pattern = generated_view()[1][1].pattern[0]
    away = pattern[1:, 0].mean()
    assert shares(mass(page)) == pytest.approx([away, away], abs=0.002)


def test_neurons_show_what_is_added_to_the_scaled_product(opened):
    page = opened("biased", fragment="#L0H1")
    show(page, "neurons")
    page.locator("#neuron-query").select_option("2")
    block = biased_view().blocks[0]
    products = block.k[1] @ block.q[1][2]
    rows = page.locator("#neurons tbody tr")
    for key in range(5):
        _, scaled, added, score, weight = numbers(rows.nth(key).locator("td.number").all_inner_texts())
        assert scaled == pytest.approx(products[key], abs=0.005)
        assert added == pytest.approx(block.scores[1][2, key] - products[key], abs=0.002)
        assert score == pytest.approx(block.scores[1][2, key], abs=0.005)
        assert weight == pytest.approx(block.pattern[1][2, key], abs=TOLERANCE)
    assert "√" not in page.locator(".neurons-holder > .small").inner_text()
