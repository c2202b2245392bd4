"""The report page in a real Chromium, network off: what it draws, says and answers to keys, pointer and addresses."""

import csv
import io
import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from attnprobe.report.page import write_report
from tests.report.test_page_studies import HOSTILE, STUDIES, large, whole

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Path of the page of a study by name and language, written once."""
    folder = tmp_path_factory.mktemp("pages")

    def path(name, lang="en"):
        target = folder / f"{name}-{lang}.html"
        return target if target.exists() else write_report(STUDIES[name](), target, lang=lang)

    return path


@pytest.fixture
def opened(pages, open_page):
    """The whole study's page; afterwards nothing may have been complained of or asked for."""
    found = open_page(pages("whole"))
    yield found
    assert found.complaints == []
    assert found.requests == []


def show_patterns(page):
    page.locator("#patterns-app").scroll_into_view_if_needed()
    page.wait_for_selector(".thumb-button canvas[data-drawn]")


def point_at(page, locator):
    """Bring it into view, let the scrolling settle (it takes tooltips away), then move the pointer onto it."""
    locator.scroll_into_view_if_needed()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box = locator.bounding_box()
    page.mouse.move(box["x"] - 1, box["y"] - 1)
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def open_twin(page, figure):
    """The table beside a figure; it is filled a moment after it is opened."""
    page.locator(f"{figure} summary").click()
    page.wait_for_selector(f"{figure} tbody tr")


def tip(page) -> str:
    page.wait_for_selector("#tip:not([hidden])")
    return page.locator("#tip").inner_text()


def shown(page, what: str) -> None:
    value = page.evaluate(
        "what => [...document.querySelectorAll('#atlas-show option')].find(one => one.textContent === what).value", what
    )
    page.select_option("#atlas-show", value)


def cell(page, layer, head):
    return page.locator(f'td[data-layer="{layer}"][data-head="{head}"]')


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_opens_without_complaint(name, pages, open_page):
    found = open_page(pages(name))
    if found.page.locator(".patterns-grid").count():
        show_patterns(found.page)
    assert found.complaints == []
    assert found.requests == []
    assert found.page.locator("#failure").is_hidden()
    assert found.overflow() <= 0


@pytest.mark.parametrize("width", [320, 768, 1280, 2000])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_width_overflows(width, lang, pages, open_page):
    for name in ("whole", "hostile", "failed"):
        found = open_page(pages(name, lang), width=width)
        show_patterns(found.page)
        found.page.locator("[data-mode=arcs]").click()
        for summary in found.page.locator("details > summary").all():
            if summary.is_visible():
                summary.click()
        assert found.overflow() <= 0, name


def test_no_width_overflows_can_fail(pages, open_page):
    found = open_page(pages("whole"), width=320)
    found.page.evaluate(
        "document.querySelector('main').append(Object.assign(document.createElement('pre'), {textContent: 'x'.repeat(999)}))"
    )
    assert found.overflow() > 0


def test_the_policy_forbids_what_the_page_does_not_do(pages, open_page):
    found = open_page(pages("whole"))
    blocked = found.page.evaluate(
        """async () => {
          const picture = new Image();
          const failed = new Promise((done) => picture.addEventListener("error", () => done(true)));
          picture.src = "https://example.org/x.png";
          const script = document.createElement("script");
          script.textContent = "document.title = 'taken'";
          document.head.append(script);
          const asked = await fetch("https://example.org").then(() => false, () => true);
          return [await failed, asked, document.title];
        }"""
    )
    assert blocked == [True, True, "Attention heads of tiny"]
    for directive in ("script-src", "img-src", "default-src"):
        assert any("Content Security Policy" in text and directive in text for text in found.complaints)
    assert found.requests == []


def test_every_head_has_a_cell_with_number_and_label(opened):
    assert opened.page.locator("table.atlas td").count() == 15
    shown(opened.page, "Entropy")
    study = whole()
    for layer in range(3):
        for head in range(5):
            value, tag = cell(opened.page, layer, head).locator("span").all_inner_texts()
            assert value == f"{float(study['metrics']['entropy'][layer, head]):.2f}"
            assert tag == {0: "prev", 1: "↑ obj", 2: "", 3: ""}[(layer * 5 + head) % 4]


def test_hovering_a_cell_tells_the_studys_numbers(opened):
    study = whole()
    shown(opened.page, "Entropy")
    point_at(opened.page, cell(opened.page, 2, 3))
    metrics = study.tree["metrics"].to_dataset().isel(layer=2, head=3)
    lines = tip(opened.page).split("\n")
    assert lines[0] == f"L2H3 · {float(metrics['entropy']):.3f} nats"
    assert (
        lines[1]
        == f"95% interval {float(metrics['entropy_low']):.3f} – {float(metrics['entropy_high']):.3f} · n = 54,321"
    )
    shown(opened.page, "dep:obj · object and its verb")
    opened.page.locator('#atlas-app select[data-dim="direction"]').select_option("1")
    point_at(opened.page, cell(opened.page, 2, 3))
    found = (
        study.tree["relations"]
        .to_dataset()
        .sel(relation="dep:obj", direction="head->dep", split="report", layer=2, head=3)
    )
    text = tip(opened.page)
    assert f"L2H3 · {float(found['accuracy'].item()) * 100:.2f}%" in text
    assert f"{float(found['difference'].item()) * 100:+.1f}".replace("-", "−") in text
    everywhere = study["relations"]["accuracy"].sel(
        relation="dep:obj", direction="head->dep", split="all", layer=2, head=3
    )
    assert f"all sentences: {everywhere.item() * 100:.2f}%" in text


def test_dimensions_of_a_metric_can_be_chosen(opened):
    study = whole()
    shown(opened.page, "Attention to a special target")
    opened.page.locator('select[data-dim="target"]').select_option(label="punctuation")
    value = float(study["metrics"]["special_mass"].sel(target="punct")[1, 1])
    assert cell(opened.page, 1, 1).locator(".value").inner_text() == f"{value * 100:.1f}"


def test_arrow_keys_walk_the_atlas_and_enter_opens_the_card(opened):
    page = opened.page
    page.locator("table.atlas td[tabindex='0']").focus()
    assert page.locator("table.atlas td[tabindex='0']").count() == 1
    page.keyboard.press("Control+Home")
    place = "() => [document.activeElement.dataset.layer, document.activeElement.dataset.head].join()"
    assert page.evaluate(place) == "0,0"
    for key, expected in [
        ("ArrowDown", "1,0"),
        ("ArrowRight", "1,1"),
        ("End", "1,4"),
        ("ArrowRight", "1,4"),
        ("PageDown", "2,4"),
    ]:
        page.keyboard.press(key)
        assert page.evaluate(place) == expected
    assert tip(page).startswith("L2H4")
    page.keyboard.press("Enter")
    assert page.locator("#card-title").inner_text() == "L2H4"
    assert page.evaluate("document.activeElement.id") == "card-title"
    assert page.evaluate("location.hash") == "#L2H4"
    assert page.locator("td[aria-selected='true']").get_attribute("data-head") == "4"
    page.get_by_role("button", name="back to the atlas").click()
    assert page.evaluate(place) == "2,4"


@pytest.mark.parametrize(("fragment", "title"), [("#L2H3", "L2H3"), ("#l1h0", "L1H0")])
def test_an_address_opens_a_head(fragment, title, pages, open_page):
    found = open_page(pages("whole"), fragment=fragment)
    assert found.page.locator("#card-title").inner_text() == title
    assert found.page.evaluate("document.querySelector('#card').getBoundingClientRect().top") < 300
    found.page.evaluate("location.hash = '#L0H1'")
    found.page.locator("#card-title", has_text="L0H1").wait_for()


def test_an_address_of_no_head_says_so(pages, open_page):
    found = open_page(pages("whole"), fragment="#L9H9")
    assert found.page.locator("#card").inner_text() == "This model has no head L9H9."
    assert found.complaints == []


def test_the_card_gives_label_evidence_and_nearest_miss(opened):
    page = opened.page
    cell(page, 0, 1).click()
    text = page.locator("#card").inner_text()
    for part in (
        "Follows grammar: obj (object and its verb).",
        "74.1%",
        "71.0 – 77.0%",
        "480",
        "36.0%",
        "distance −2",
        "+38.1",
        "< .001",
    ):
        assert part in text
    cell(page, 0, 2).click()
    text = page.locator("#card").inner_text()
    for part in ("It comes closest to broad.", "Nearest miss", "70.0%", "≥ 80%"):
        assert part in text
    page.locator("#card summary", has_text="Not in this study").click()
    assert "No probing classifier was trained" in page.locator("#card").inner_text()


def test_other_analyses_show_on_the_card_where_they_were_run(pages, open_page):
    page = open_page(pages("later_groups")).page
    cell(page, 0, 1).click()
    text = page.locator("#card").inner_text()
    for part in ("0.0123", "0.011 – 0.0136", "0.0041", "✓ yes", "16.1%", "best 22.2%", "best 13.7%"):
        assert part in text
    for part in ("Gradient importance", "furlongs", "agreement"):
        assert part in text
    assert "baseline_name" not in text


def test_the_relation_view_draws_every_head_twice(opened):
    page = opened.page
    page.select_option("#relation-show", label="coref:antecedent · mention and what it refers back to")
    assert page.locator("#relations-app circle").count() == 30
    assert page.locator("#relations-app line.baseline").count() == 2
    study = whole()
    accuracy = study["relations"]["accuracy"].sel(split="report", relation="coref:antecedent", scorer="weights")
    open_twin(page, "#relations-app")
    rows = page.locator("#relations-app tbody tr")
    assert rows.count() == 30
    assert rows.nth(7).locator("td").nth(1).inner_text() == f"{float(accuracy[0, 1, 2]) * 100:.1f}%"


def test_pointing_at_a_dot_names_its_head(opened):
    page = opened.page
    point_at(page, page.locator("#relations-app circle").nth(6))
    assert re.match(r"L\dH\d · \d+\.\d\d%", tip(page))


def test_tables_sort_both_ways_with_the_undefined_last(pages, open_page):
    found = open_page(pages("undefined"))
    page = found.page
    page.locator("#best-tools input[type=checkbox]").check()
    heading = page.locator("#table-best th button", has_text="Accuracy")
    values = "() => [...document.querySelectorAll('#table-best tbody tr')].map(row => row.cells[4].dataset.value)"
    for direction in (-1, 1):
        heading.click()
        found_values = page.evaluate(values)
        assert found_values[-1] == ""
        numbers = [direction * float(value) for value in found_values[:-1]]
        assert numbers == sorted(numbers)
    assert heading.locator("..").get_attribute("aria-sort") == "ascending"


def test_the_relation_table_is_searched_and_leads_to_the_figure(opened):
    page = opened.page
    visible = page.locator("#table-best tbody tr:visible")
    assert visible.count() == 3
    page.locator("#best-tools input[type=checkbox]").check()
    assert visible.count() == 4
    page.locator("#best-tools input[type=search]").fill("MENTION")
    assert visible.count() == 1
    visible.locator("th button").click()
    assert page.evaluate("document.activeElement.id") == "relation-show"
    assert "coref:antecedent" in page.locator(".figure-relation figcaption").inner_text()


def test_patterns_are_drawn_as_the_study_has_them(opened):
    page = opened.page
    show_patterns(page)
    assert page.locator(".thumb-button canvas[data-drawn='6']").count() == 15
    light = page.evaluate(
        """() => [...document.querySelectorAll('.thumb-button canvas')].map((canvas) => {
          const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
          return Array.from({ length: data.length / 4 }, (_, i) => data[4 * i] + data[4 * i + 1] + data[4 * i + 2]);
        })"""
    )
    weights = whole()["examples"]["e0"]["pattern"].values.reshape(15, 36)
    for drawn, stored in zip(light, weights, strict=True):
        order = np.argsort(stored, kind="stable")
        assert (np.diff(np.array(drawn)[order]) <= 0).all()  # the more weight, the darker
        assert len(set(drawn)) > 5


def test_hovering_a_weight_tells_words_and_value(opened):
    page = opened.page
    cell(page, 1, 2).click()
    show_patterns(page)
    canvas = page.locator("canvas.matrix")
    canvas.scroll_into_view_if_needed()
    canvas.focus()
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    weight = int(whole()["examples"]["e0"]["pattern"][1, 2, 2, 3]) / 255
    assert tip(page).split("\n") == ["cat → sat", f"{weight * 100:.1f}%"]
    assert f"cat → sat: {weight * 100:.1f}%" in page.locator("#live").inner_text()
    marker = page.locator(".cursor").bounding_box()
    page.mouse.move(0, 0)
    page.mouse.move(marker["x"] + marker["width"] / 2, marker["y"] + marker["height"] / 2)
    assert tip(page).split("\n") == ["cat → sat", f"{weight * 100:.1f}%"]


def test_a_pattern_s_table_opened_before_it_is_drawn_fills_afterwards(opened):
    page = opened.page
    page.evaluate("document.querySelector('.figure-pattern summary').click()")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    show_patterns(page)
    rows = page.locator(".figure-pattern tbody tr")
    rows.nth(5).wait_for()
    assert rows.count() == 6


def test_words_join_their_pieces(opened):
    page = opened.page
    cell(page, 1, 2).click()
    show_patterns(page)
    page.select_option("#pattern-level", "words")
    open_twin(page, ".figure-pattern")
    pattern = whole()["examples"]["e0"]["pattern"].values[1, 2] / 255  # [CLS] The cat sat ##s [SEP]
    joined = np.stack([pattern[:, 0], pattern[:, 1], pattern[:, 2], pattern[:, 3] + pattern[:, 4], pattern[:, 5]], 1)
    joined = np.stack([joined[0], joined[1], joined[2], (joined[3] + joined[4]) / 2, joined[5]])
    found = page.locator(".figure-pattern tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].slice(1).map(one => Number(one.dataset.value)))"
    )
    np.testing.assert_allclose(found, joined, atol=6e-5)


def test_hiding_special_tokens_states_the_hidden_mass(opened):
    page = opened.page
    cell(page, 1, 2).click()
    show_patterns(page)
    assert "Nothing is hidden" in page.locator("#hidden-mass").inner_text()
    page.locator("#hide-special").check()
    pattern = whole()["examples"]["e0"]["pattern"].values.astype(float)[..., 1:5, :]
    hidden = 1 - pattern[..., 1:5].sum((-1, -2)) / pattern.sum((-1, -2))
    assert f"{hidden.mean() * 100:.1f}% of all attention" in page.locator("#hidden-mass").inner_text()
    assert f"Hidden here: {hidden[1, 2] * 100:.1f}%" in page.locator(".patterns-large").inner_text()
    assert page.locator("canvas.matrix").get_attribute("data-drawn") == "4"
    page.locator("#hide-special").uncheck()
    assert page.locator("canvas.matrix").get_attribute("data-drawn") == "6"


def test_arcs_state_what_they_leave_out(opened):
    page = opened.page
    cell(page, 0, 0).click()
    show_patterns(page)
    page.locator("[data-mode=arcs]").click()
    weights = whole()["examples"]["e0"]["pattern"].values[0, 0] / 255
    assert page.locator(".arcs .arc").count() == int((weights >= 0.1).sum())
    dropped = 1 - weights[weights >= 0.1].sum() / weights.sum()
    assert f"{dropped * 100:.1f}% of the attention in sight" in page.locator(".arc-controls").inner_text()
    assert page.locator(".arcs .tree-arc").count() == 2
    page.locator(".arcs [data-unit='2']").press("Enter")
    assert page.locator(".arcs .arc").count() == int((weights[2] >= 0.1).sum())
    assert page.evaluate("document.activeElement.dataset.unit") == "2"


def test_layer_and_sentence_can_be_chosen(opened):
    page = opened.page
    show_patterns(page)
    page.select_option("#pattern-layer", "1")
    assert page.locator(".thumb-button").count() == 5
    page.locator(".patterns-sentences input[type=search]").fill("rAIN")
    assert page.locator("label.sentence").count() == 1
    assert page.locator("label.sentence mark").inner_text() == "Rain"
    page.locator("label.sentence input").check()
    page.wait_for_selector(".thumb-button canvas[data-drawn='8']")
    page.locator(".patterns-sentences input[type=search]").fill("nowhere")
    assert "No example sentence contains this." in page.locator(".sentence-list").inner_text()


def test_an_enlarged_head_is_the_cards_head_too(opened):
    page = opened.page
    show_patterns(page)
    page.locator('.thumb-button[data-layer="2"][data-head="4"]').click()
    assert page.locator("#large-title").inner_text() == "L2H4"
    assert page.locator("#card-title").inner_text() == "L2H4"


def test_colours_follow_the_system_and_the_button(pages, open_page):
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = (open_page(pages("whole"), scheme=scheme).page for scheme in ("light", "dark"))
    seen = light.evaluate(paper), dark.evaluate(paper)
    assert seen[0] != seen[1]
    box = 'getComputedStyle(document.querySelector(\'td[data-layer="0"][data-head="0"]\')).backgroundColor'
    before = light.evaluate(box)
    light.locator("button.theme").click()  # auto -> light
    assert light.evaluate(paper) == seen[0]
    light.locator("button.theme").click()  # light -> dark
    assert light.evaluate(paper) == seen[1]
    assert light.evaluate(box) != before


def test_labels_stand_out_from_their_cells(pages, open_page):
    """Contrast of at least 4.5 in every cell of every view, in light and dark."""
    contrast = """() => [...document.querySelectorAll('table.atlas td:not(.empty)')].map((cell) => {
      const style = getComputedStyle(cell);
      const light = (colour) => colour.match(/\\d+/g).slice(0, 3).map((value) => {
        const share = value / 255;
        return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
      }).reduce((sum, value, i) => sum + value * [0.2126, 0.7152, 0.0722][i], 0);
      const [a, b] = [light(style.color), light(style.backgroundColor)].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05);
    })"""
    for scheme in ("light", "dark"):
        page = open_page(pages("whole"), scheme=scheme).page
        for view in ("Labels, all families", "Entropy", "Signed distance", "dep:ALL · every relation, root left out"):
            shown(page, view)
            assert min(page.evaluate(contrast)) >= 4.5, (scheme, view)


def test_black_or_white_stands_out_on_every_colour_of_the_scales(open_page, pages):
    """Contrast of at least 4.5 on each step of both scales; the scales follow the page's colours."""
    code = files("attnprobe.report").joinpath("assets", "page", "colour.js").read_text("utf-8")
    least = """(kind) => Math.min(...scale(kind).map((rgb) => {
      const ink = [1, 3, 5].map((at) => parseInt(inkOn(rgb).slice(at, at + 2), 16));
      const [a, b] = [luminance(rgb), luminance(ink)].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05);
    }))"""
    for colours in ("light", "dark"):
        page = open_page(pages("whole"), scheme=colours).page
        for kind in ("sequential", "diverging"):
            assert page.evaluate(f"() => {{ {code}\nreturn ({least})('{kind}'); }}") >= 4.5, (colours, kind)


def read_csv(download) -> list[list[str]]:
    text = Path(download.path()).read_bytes().decode("utf-8-sig")
    return list(csv.reader(io.StringIO(text)))


def test_tables_and_figures_can_be_saved(opened):
    page = opened.page
    shown(page, "Entropy")
    with page.expect_download() as waiting:
        page.locator("#atlas-app").get_by_role("button", name="CSV").click()
    assert waiting.value.suggested_filename == "attnprobe-tiny-atlas-entropy.csv"
    rows = read_csv(waiting.value)
    assert len(rows) == 16
    assert float(rows[1 + 2 * 5 + 3][1]) == np.float32(whole()["metrics"]["entropy"][2, 3])
    with page.expect_download() as waiting:
        page.locator("#table-best").locator("xpath=ancestor::div[@class='table-holder']").get_by_role(
            "button", name="CSV"
        ).click()
    rows = read_csv(waiting.value)
    assert [row[0] for row in rows] == ["Relation", *whole()["best"]["relation"].values]
    for name, ending in (("SVG", "svg"), ("PNG", "png")):
        for figure in ("#atlas-app", "#relations-app", "#layers-app figure >> nth=0"):
            with page.expect_download() as waiting:
                page.locator(figure).get_by_role("button", name=name).click()
            content = Path(waiting.value.path()).read_bytes()
            assert waiting.value.suggested_filename.endswith(ending)
            assert content.startswith(b"\x89PNG" if name == "PNG" else b"<svg")
            assert len(content) > 2000
    show_patterns(page)
    for name in ("SVG", "PNG"):
        with page.expect_download() as waiting:
            page.locator(".figure-pattern").get_by_role("button", name=name).click()
        assert len(Path(waiting.value.path()).read_bytes()) > 2000


def test_hostile_words_show_as_themselves_and_run_nothing(pages, open_page):
    found = open_page(pages("hostile"))
    page = found.page
    title = page.title()
    show_patterns(page)
    assert page.locator("label.sentence bdi").first.inner_text().split() == " ".join(HOSTILE).split()
    page.select_option("#pattern-level", "words")
    open_twin(page, ".figure-pattern")
    first = page.locator(".figure-pattern tbody th").all_text_contents()
    assert first[1:-1] == HOSTILE
    page.locator("[data-mode=arcs]").click()
    assert page.locator(".arc-word").all_text_contents()[1:-1] == HOSTILE
    page.locator("canvas.matrix").evaluate("node => node.dispatchEvent(new Event('x'))")
    page.locator("[data-mode=matrix]").click()
    page.locator("canvas.matrix").focus()
    for place, text in enumerate(HOSTILE):
        page.keyboard.press("ArrowDown")
        assert page.locator("#tip bdi").first.text_content() == text, place
    for option in page.locator("#atlas-show option").all():
        page.select_option("#atlas-show", option.get_attribute("value"))
    cell(page, 0, 1).click()
    with page.expect_download() as waiting:
        page.locator(".figure-pattern > .under").get_by_role("button", name="CSV").click()
    assert [row[0] for row in read_csv(waiting.value)][2:-1] == HOSTILE
    assert page.locator("img, b").count() == 0
    assert page.title() == title
    assert title.endswith("</script><script>document.title='taken'</script>")
    assert found.complaints == []
    assert found.requests == []


def test_without_scripts_the_tables_are_there(pages, open_page):
    page = open_page(pages("whole"), scripts=False).page
    assert page.locator("noscript").count() == 1
    assert page.locator("#table-best tbody tr:visible").count() == 4
    assert page.locator(".badge").is_visible()


def test_a_large_study_opens_fast(tmp_path, open_page):
    """Seconds are not asserted closely: a shared machine may be busy. The page itself took under one when this was written."""
    found = open_page(write_report(large(), tmp_path / "large.html"))
    ready = found.page.evaluate("performance.getEntriesByName('attnprobe-ready')[0].startTime")
    assert ready < 10_000
    assert found.page.locator("table.atlas td").count() == 384
    show_patterns(found.page)
    assert found.page.locator(".thumb-button").count() == 16
    found.page.select_option("#pattern-layer", "all")
    assert found.page.locator(".thumb-button").count() == 384
    assert found.complaints == []
