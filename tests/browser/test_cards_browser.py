"""What a card, the layers and the map hold where a study has more than metrics, in a real Chromium; and the page of a comparison."""

import json
import re

import numpy as np
import pytest
import xarray as xr

from attnprobe import data, read_conllu, run
from attnprobe.heads.compare import compare
from attnprobe.report.page import write_report
from tests.browser.test_page_browser import cell, open_twin, point_at, shown, tip
from tests.report.test_page_studies import (
    HOSTILE,
    SCRIPT,
    STUDIES,
    compared,
    example,
    extras,
    groups_of,
    profiled,
    study_of,
)

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    return {
        name: write_report(STUDIES[name](), folder / f"{name}.html")
        for name in ("extras", "profiled", "compared", "alike")
    }


@pytest.fixture
def opened(pages, open_page):
    found = open_page(pages["extras"], fragment="#L0H1")
    yield found.page
    assert found.complaints == []
    assert found.requests == []


def labels(layer, head):
    return json.loads(str(extras()["labels"]["labels"].values[layer, head]))["labels"]


def sentences(page):
    page.wait_for_selector("#card .shown svg")
    return page.locator("#card .shown > div")


def test_a_relations_sentences_show_right_and_wrong_choices(opened):
    rows = sentences(opened)
    assert rows.locator(".shown-kind").all_inner_texts() == ["Best · 1 of 2 right", "Counter-example · 0 of 1 right"]
    best, worst = rows.nth(0), rows.nth(1)
    assert best.locator(".arc.right").count() == 1
    assert best.locator(".arc.wrong").count() == 1
    assert best.locator(".tree-arc").count() == 2  # what should be linked, below the words
    assert worst.locator(".arc").count() == 0
    assert "?" in worst.locator("svg").text_content()  # chosen: not known
    dashes = "node => getComputedStyle(node).strokeDasharray"
    assert best.locator(".arc.wrong path").first.evaluate(dashes) != best.locator(".arc.right path").first.evaluate(
        dashes
    )
    open_twin(opened, "#card .figure:has(.shown)")
    table = opened.locator("#card .figure:has(.shown) .twin tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(one => one.dataset.value))"
    )
    pattern = (
        extras()["examples"]["e1"]["pattern"].values[0, 1].astype(float) / 255
    )  # [CLS] Rain fell on old roof ##s [SEP]
    assert table[0][:3] == ["Best", "fell", "Rain"]
    assert float(table[0][3]) == pytest.approx(pattern[2, 1], abs=1e-6)
    assert table[1][:3] == ["Best", "roof", "fell"]
    assert float(table[1][3]) == pytest.approx(pattern[5:7, 2].mean(), abs=1e-6)  # the mean over its two tokens
    assert [row[5] for row in table] == ["yes", "no", "no"]
    assert table[2][2] == "–"


def test_the_other_direction_looks_the_other_way(opened):
    sentences(opened)
    opened.locator("#card section:has(.shown) select").select_option("1")
    assert opened.locator("#card .shown-kind").all_inner_texts() == ["Typical · 1 of 2 right"]
    open_twin(opened, "#card .figure:has(.shown)")
    rows = opened.locator("#card .figure:has(.shown) .twin tbody tr").evaluate_all(
        "rows => rows.map(row => [row.cells[1].textContent, row.cells[2].textContent])"
    )
    assert rows == [["Rain", "fell"], ["fell", "roof"]]


def test_a_position_label_marks_every_token_that_looks_where_it_says(opened):
    cell(opened, 0, 0).click()
    rows = sentences(opened)
    pattern = extras()["examples"]["e1"]["pattern"].values[0, 0]
    hits = [int(pattern[q].argmax()) == q - 1 for q in range(1, 7)]
    assert sum(hits) >= 2
    assert rows.nth(0).locator(".arc.right").count() == sum(hits)
    assert rows.nth(0).locator(".arc").count() == len(hits)
    assert rows.count() == 3
    assert "50.0% over 4 tokens" in rows.nth(0).inner_text()
    assert "Lowest (it fails in none)" in rows.nth(2).inner_text()  # it holds from 50%
    cell(opened, 0, 2).click()  # broad: the whole pattern
    opened.wait_for_selector("#card .shown canvas[data-drawn='8']")


def test_a_nearest_miss_says_what_it_lacks(opened):
    cell(opened, 0, 3).click()
    text = opened.locator("#card").inner_text()
    assert "Nearest miss" in text
    assert "What it lacks: the gain may be chance" in text


def test_a_sentence_opens_in_the_pattern_viewer(opened):
    sentences(opened).nth(0).get_by_role("button", name="Whole pattern").click()
    opened.wait_for_selector(".thumb-button canvas[data-drawn='8']")
    assert opened.locator("label.sentence:has(:checked)").inner_text() == "Rain fell on old roof"


def test_hostile_words_behind_a_label_show_as_themselves(open_page, tmp_path):
    study = extras()
    study.tree["examples/e1"] = xr.DataTree(example(np.random.default_rng(7), 3, 5, HOSTILE))
    table = study.tree["labels"].to_dataset()
    study.tree["labels"] = xr.DataTree(table.assign(labels=table["labels"].str.replace("dep:nsubj", f"dep:{SCRIPT}")))
    found = open_page(write_report(study, tmp_path / "hostile.html"), fragment="#L0H1")
    page = found.page
    sentences(page)
    drawn = page.locator("#card .shown svg").first.locator(".arc-word").all_text_contents()
    assert [text for text in drawn if text != "…"] == HOSTILE[: len([text for text in drawn if text != "…"])]
    assert SCRIPT in drawn
    assert SCRIPT in page.locator("#card").inner_text()
    page.locator("#card section:has(.shown) select").select_option("1")
    with page.expect_download():
        page.locator("#card .figure:has(.shown)").get_by_role("button", name="SVG").click()
    assert page.locator("img, b").count() == 0
    assert "taken" not in page.title()
    assert found.complaints == []
    assert found.requests == []


def test_distributions_shapes_and_neighbours_are_the_studys(opened):
    study = extras()
    for name, bins in (("distance", 6), ("entropy", 9)):
        figure = f".figure-{name}-distribution-L0H1"
        open_twin(opened, figure)
        values = opened.locator(f"{figure} tbody tr").evaluate_all(
            "rows => rows.map(row => Number(row.cells[1].dataset.value))"
        )
        np.testing.assert_allclose(values, study["histograms"][name].values[0, 1][: len(values)], rtol=1e-5)
        assert len(values) == bins
    text = opened.locator("#card").inner_text()
    assert "Diagonal." in text
    away = study["clusters"]["distance"].values[1]
    nearest = [f"L{place // 5}H{place % 5}" for place in np.argsort(away) if place != 1][:5]
    found = opened.locator("#card table[data-name='near-L0H1'] tbody th").all_inner_texts()
    assert found == nearest


def test_probes_stand_beside_control_and_majority(opened):
    block = opened.locator("#card section:has(> .figure-probes-L0H1)")
    assert block.locator(".bar").count() == 2
    assert block.locator(".diamond").count() == 2
    accuracy = extras()["probes"]["accuracy"]
    assert f"{float(accuracy[0, 1, 0, 1]) * 100:.1f}%" in block.locator("svg").text_content()
    block.locator("select").select_option(label="queries")
    assert f"{float(accuracy[0, 0, 0, 1]) * 100:.1f}%" in block.locator("svg").text_content()
    assert "part of speech" in block.locator("svg").text_content()
    assert "mine" in block.locator("svg").text_content()
    assert "curve_accuracy" in opened.locator("#methods").inner_text()  # left out, and said so


def test_a_probes_table_has_random_weights_and_counts(pages, open_page):
    page = open_page(pages["profiled"], fragment="#L0H1").page
    open_twin(page, ".figure-probes-L0H1")
    table = page.locator(".figure-probes-L0H1 .twin table")
    columns = table.locator("thead th").all_inner_texts()
    first = [one.get_attribute("data-value") for one in table.locator("tbody tr").nth(1).locator("th, td").all()]
    row = dict(zip(columns, first, strict=True))
    assert row["n"] == "470"
    for place, kind in enumerate(("all weights random", "embeddings kept")):
        stored = float(profiled()["probes"]["random"][place, 1, 0, 0, 1])
        assert float(row[f"Accuracy, random weights ({kind})"]) == pytest.approx(stored, rel=1e-6)


def test_a_place_says_which_tokens_it_counts(opened):
    told = "Rows of special tokens are not counted"
    assert told not in opened.locator("#card").inner_text()  # L0H1 has relations only
    cell(opened, 0, 0).click()
    assert told in opened.locator("#card").inner_text()


def test_untested_numbers_say_why(opened):
    assert "adj. p –: not tested, the gain on the select half is under 5%" in opened.locator("#card").inner_text()


def test_importance_gives_rank_and_what_was_watched(opened):
    text = opened.locator("#card table[data-name='importance-L0H1']").inner_text()
    values = extras()["importance"]["ablation_mean"].values
    rank = int((values > values[0, 1]).sum()) + 1
    assert f"{rank} of 15" in text
    assert "1 − cosine of the final states, mean over the tokens (n = 60 sentences)" in text


def points(value):
    return f"{value * 100:+.1f}".replace("-", "−")


def between(low, high):
    return f"({points(low)} – {points(high)})"


def test_the_verdict_joins_labels_and_probes_with_the_studys_numbers(pages, open_page):
    found = open_page(pages["profiled"], fragment="#L0H1")
    card = found.page.locator("#card section.block").first  # at the top of the card
    record = json.loads(str(profiled()["profiles"]["profile"].values[0, 1]))
    [task] = record["syntax"]["probe"]
    text = card.inner_text()
    assert record["syntax"]["agreement"] == "both"
    assert (
        f"its output also carries part of speech ({points(task['selectivity'])} points over the control task)" in text
    )
    assert "carries it" not in text
    assert "another draw of the meaningless labels (3 seeds)" in text
    assert "other documents alone (19 on the report half)" in text
    assert f"{record['entropy']['value']:.3f}" in text
    rows = card.locator("table[data-name='verdict-L0H1'] tbody tr")
    assert [" ".join(one.split()) for one in rows.locator("th").all_inner_texts()] == [
        "Position neither",
        "Syntax both are of this kind",
        "Semantics not probed",
    ]
    labels, probes = rows.nth(1).locator("td").all_inner_texts()
    for label in record["syntax"]["attention"]:
        assert f"{points(label['difference'])} {between(label['difference_low'], label['difference_high'])}" in labels
    assert f"{points(task['selectivity'])} {between(task['selectivity_low'], task['selectivity_high'])}" in probes
    assert "n = 470" in probes
    assert "✓" in probes
    [missed] = record["position"]["probe"]
    assert not missed["holds"]
    unheld = rows.nth(0).locator("td").nth(1).inner_text()
    assert points(missed["selectivity"]) in unheld
    assert "✓" not in unheld
    assert (found.complaints, found.overflow()) == ([], 0)


def test_use_is_told_of_the_heads_it_was_asked_of(pages, open_page):
    page = open_page(pages["profiled"], fragment="#L0H1").page
    use = profiled()["use"]
    card = page.locator("#card section.block").first
    assert "Used: without this head" in card.inner_text()
    cells = card.locator("table[data-name='use-L0H1'] tbody td").all_inner_texts()
    for name, told in zip(("change", "random_change", "difference"), cells[1:4], strict=True):
        low, high = (float(use[f"{name}_{end}"][0]) for end in ("low", "high"))
        assert told.split() == [points(float(use[name][0])), *between(low, high)[1:-1].split()]
    assert cells[0] == "80.0%"
    assert cells[-1] == "527"
    card.page.evaluate("location.hash = '#L2H3'")
    page.wait_for_selector("table[data-name='use-L2H3']")
    assert "Not shown to be used" in page.locator("#card section.block").first.inner_text()
    card.page.evaluate("location.hash = '#L1H0'")
    page.wait_for_selector("table[data-name='verdict-L1H0']")
    links = page.locator("#card section.block").first.locator("a[href^='#L']")
    assert links.all_inner_texts() == ["L0H1", "L2H3"]


def test_layers_say_how_entropy_goes_with_selectivity(pages, open_page):
    page = open_page(pages["profiled"]).page
    table = profiled()["profiles"]
    items = page.locator("#focus li").all_inner_texts()
    for place, text in enumerate(items):
        value, low, high = (f"{float(table[f'correlation{end}'][place]):.2f}" for end in ("", "_low", "_high"))
        assert f"correlation of {value} (Spearman, 95% interval {low} – {high})".replace("-", "−") in text
        assert "over 15 heads" in text
    assert len(items) == 2


def test_the_map_places_every_head_and_lists_the_groups(opened):
    opened.locator("#clusters").scroll_into_view_if_needed()
    assert opened.locator("#clusters-app circle.spot").count() == 15
    groups = extras()["clusters"]["cluster"].values
    rows = opened.locator("#clusters-app table.groups tbody tr")
    assert rows.count() == len(np.unique(groups))
    sizes = [int(value) for value in rows.evaluate_all("rows => rows.map(row => row.cells[1].dataset.value)")]
    assert sizes == [int((groups == group).sum()) for group in np.unique(groups)]
    rows.first.locator("a").first.click()
    layer, head = np.argwhere(groups == groups.min())[0]
    opened.locator("#card-title", has_text=re.compile(rf"^L{layer}H{head}\b")).wait_for()


NAMES = {
    "importance": ("gradient_normalised", "gradient", "ablation_zero", "ablation_mean", "ablation_uniform"),
    "trees": ("uas", "uuas"),
    "controls": ("entropy", "accuracy"),
    "probes": (
        *("accuracy", "control", "selectivity", "selectivity_p", "selectivity_q", "codelength_bits", "compression"),
        *("compression_unigram", "control_codelength_bits", "control_compression", "control_compression_unigram"),
        "random",
    ),
    "patterns": ("vertical", "diagonal", "lines", "block", "vertical_even", "diagonal_even"),
    "histograms": ("distance", "offset", "entropy"),
    "clusters": ("cluster",),
}
"""What a run with every extra offers in the atlas, by group, beside the metrics."""


def with_all_groups():
    study = extras()
    for group, names in NAMES.items():
        study.tree[group] = xr.DataTree(xr.Dataset({name: (("layer", "head"), np.zeros((3, 5))) for name in names}))
    return study


def menu(page):
    return page.locator("#atlas-show option").all_inner_texts()


def raw(options, names):
    return [text for text in options if text.split(": ")[-1].split("：")[-1] in names or "_" in text]


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_menu_of_a_study_with_all_groups_has_no_raw_names(lang, open_page, tmp_path):
    options = menu(open_page(write_report(with_all_groups(), tmp_path / "all.html", lang=lang)).page)
    assert len(options) > sum(map(len, NAMES.values()))
    assert raw(options, {name for names in NAMES.values() for name in names}) == []
    if lang == "en":
        assert {"Probes: Accuracy", "Probes: Control task", "Random-weights controls: Entropy"} < set(options)


@pytest.mark.slow
def test_a_real_runs_menu_has_no_raw_names(minilm, open_page, tmp_path):
    corpus = list(read_conllu(data.path("bundled")))[:60]
    extra = ["clusters", "patterns", "trees", "histograms"]
    study = run(
        *(minilm, corpus), extras=extra, importance=2, controls=True, probes=["upos"], cluster="sentence", examples=0
    )
    found = {str(name) for group in (*NAMES, "metrics") for name in study[group].data_vars}
    of_codes = ("codelength", "compression")  # `attnprobe probe` adds these
    assert {name for names in NAMES.values() for name in names if not any(part in name for part in of_codes)} <= found
    assert raw(menu(open_page(write_report(study, tmp_path / "real.html")).page), found) == []


def grouped(clusters):
    study = extras()
    table = study.tree["clusters"].to_dataset()
    study.tree["clusters"] = xr.DataTree(table.assign(cluster=(("layer", "head"), np.reshape(clusters, (3, 5)))))
    return study


def test_a_label_is_a_groups_only_where_more_than_half_carry_it(open_page, tmp_path):
    """Heads 0, 4, 8 and 12 look at the token before; of group 0 that is one of two, of group 1 two of three."""
    page = open_page(write_report(grouped([0, 2, 2, 0, 1, 1, 2, 2, 1, *[2] * 6]), tmp_path / "groups.html")).page
    rows = page.locator("#clusters-app table.groups tbody tr")
    common = [row.locator("td").nth(1).inner_text() for row in rows.all()]
    assert common == ["none that most of them carry", "prev (2)", "none that most of them carry"]
    assert page.get_by_text("no groups to speak of").count() == 0


def test_one_group_and_one_head_are_no_groups(open_page, tmp_path):
    page = open_page(write_report(grouped([*[0] * 14, 1]), tmp_path / "one.html")).page
    assert "no groups to speak of: 14 of 15 heads" in page.locator("#clusters-app").inner_text()


def test_depth_follows_any_measure(opened):
    opened.select_option("#depth-show", label="Syntax: gain on its best relation")
    assert opened.locator(".figure-depth circle").count() == 15
    open_twin(opened, ".figure-depth")
    values = opened.locator(".figure-depth tbody tr").evaluate_all(
        "rows => rows.map(row => Number(row.cells[1].dataset.value))"
    )
    table = extras()["relations"].sel(scorer="weights")
    own = [
        name
        for name, n in zip(table["relation"].values, table["n"].sel(split="report").values, strict=True)
        if n >= 100
    ]
    own = [name for name in own if not name.startswith("coref")]
    chosen = (table["accuracy"] - table["baseline"]).sel(split="select", relation=own)
    gains = table["difference"].sel(split="report", relation=own)
    flat = chosen.stack(place=("relation", "direction")).argmax("place")
    expected = gains.stack(place=("relation", "direction")).isel(place=flat).transpose("layer", "head").values.ravel()
    np.testing.assert_allclose(values, expected, rtol=1e-5)
    opened.select_option("#depth-show", label="Probe: part of speech")
    assert opened.locator(".figure-depth figcaption").inner_text().startswith("Probe: part of speech:")


def test_a_comparison_shows_differences_on_a_two_way_scale(pages, open_page):
    found = open_page(pages["compared"])
    page, study = found.page, compared()
    shown(page, "Entropy")
    drawn = page.locator("table.atlas td .value").all_inner_texts()
    expected = study["metrics"]["entropy"].values.ravel()
    np.testing.assert_allclose([float(text.replace("−", "-")) for text in drawn], expected, atol=0.005)
    apart = (study["metrics"]["entropy_low"] > 0) | (study["metrics"]["entropy_high"] < 0)
    assert page.locator("table.atlas td.marked").count() == int(apart.sum())
    colours = page.locator("table.atlas td").evaluate_all(
        "cells => cells.map(one => getComputedStyle(one).backgroundColor)"
    )
    rgb = np.array([[int(part) for part in colour[4:-1].split(",")] for colour in colours])
    more, less = expected.argmax(), expected.argmin()
    assert rgb[more][0] > rgb[more][2]  # warm: more
    assert rgb[less][0] < rgb[less][2]  # cold: less
    shown(page, "Difference of accuracies")
    page.select_option("[data-dim=relation]", label="dep:obj")
    difference = study["relations"]["difference"].sel(
        split="report", relation="dep:obj", scorer="weights", direction="dep->head"
    )
    point_at(page, cell(page, 1, 2))
    assert f"{float(difference[1, 2]) * 100:+.1f}".replace("-", "−") in tip(page)
    assert found.complaints == []
    assert found.requests == []
    assert found.overflow() <= 0


def test_the_scale_of_differences_has_zero_in_its_middle_even_where_nothing_differs(tmp_path, open_page):
    same = study_of(groups_of())
    page = open_page(write_report(compare(same, same), tmp_path / "same.html")).page
    shown(page, "Entropy")
    assert set(page.locator("table.atlas td .value").all_inner_texts()) == {"0"}
    least, *_, most = page.locator(".legend svg text").evaluate_all("all => all.map(one => one.textContent)")
    assert least.startswith("−"), (least, most)


def test_small_differences_do_not_read_as_nothing(pages, open_page):
    page, study = open_page(pages["alike"]).page, STUDIES["alike"]()
    shown(page, "Entropy")
    entropy = study["metrics"]["entropy"].values.ravel()
    drawn = [float(text.replace("−", "-")) for text in page.locator("table.atlas td .value").all_inner_texts()]
    np.testing.assert_allclose(drawn, entropy, atol=0.00051)
    assert [np.sign(value) for value in drawn] == list(np.sign(entropy.round(3)))
    shown(page, "Difference of accuracies")
    assert set(page.locator("table.atlas td .value").all_inner_texts()) == {"+0.03"}
    assert page.locator("#table-best tbody tr td:nth-child(7)").first.inner_text().startswith("+0.03")


def test_a_comparisons_card_tells_what_changed(pages, open_page):
    page = open_page(pages["compared"], fragment="#L0H0").page
    text = page.locator("#card").inner_text()
    assert "Kept: previous token." in text
    for part in ("Counterpart in B", "B minus A", "Relations that changed most"):
        assert part in text
    study = compared()
    entropy = float(study["metrics"]["entropy"][0, 0])
    found = (
        page.locator("table[data-name='differences-L0H0'] tbody tr")
        .first.locator("td")
        .first.get_attribute("data-value")
    )
    assert float(found) == pytest.approx(entropy, rel=1e-5)
    assert page.locator("#table-best tbody tr").count() == study["best"].sizes["relation"]
    assert "tiny-two" in page.locator("#table-sides").inner_text()
    assert page.locator("nav a").all_inner_texts() == ["Summary", "Atlas", "Relations", "Methods"]
