"""What figures show: the numbers of the study and no others, counted, held against a baseline, and nothing outside the sheet."""

import json
import re

import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text

from attnprobe.errors import InputError
from attnprobe.records import PatternBlock, PatternView, Study, WordAlignment
from attnprobe.report import _figure_fonts, figures
from attnprobe.report._figure_colours import DIVERGING, INK, SEQUENTIAL, contrast, luminance, wants_white
from attnprobe.report._figure_grid import nice_ticks, number
from attnprobe.report._figure_labels import labels_of
from attnprobe.report._figure_values import slug
from tests.report.test_page_studies import (
    STUDIES,
    best,
    groups_of,
    large,
    nothing_chosen,
    profiled,
    relations,
    study_of,
    whole,
)

LAYERS, HEADS = 3, 5
LEAST_POINTS = 4.9


def rich(seed: int = 0) -> Study:
    """A study with every part that a figure can be drawn of; 2001 sentences, 3 layers of 5 heads."""
    random = np.random.default_rng(seed)
    groups = groups_of(LAYERS, HEADS, seed)
    plain = ["layer", "head"]
    groups["/metrics"]["entropy"].values[:] = random.uniform(0.1, 3, (LAYERS, HEADS))
    for end, shift in (("low", -0.02), ("high", 0.02)):
        groups["/metrics"][f"entropy_{end}"].values[:] = groups["/metrics"]["entropy"].values + shift
    groups["/metrics"]["entropy_normalised"].values[:] = random.uniform(0.1, 0.9, (LAYERS, HEADS))
    best = groups["/best"]
    best["layer"].values[:], best["head"].values[:] = [0, 2, 1, 2], [3, 4, 1, 0]
    sites = {"task": ["upos", "deprel"], "site": ["context", "q"]}
    full = ["task", "site", *plain]
    groups["/probes"] = xr.Dataset(
        {
            "accuracy": (full, random.uniform(0.3, 0.9, (2, 2, LAYERS, HEADS)), {"unit": "share"}),
            "selectivity": (full, random.uniform(-0.1, 0.5, (2, 2, LAYERS, HEADS)), {"unit": "share"}),
            "majority": ("task", [0.21, 0.33]),
            "n": ("task", [777, 555]),
        },
        sites,
    )
    groups["/clusters"] = xr.Dataset(
        {
            "cluster": (plain, random.integers(0, 3, (LAYERS, HEADS))),
            "embedding": ([*plain, "axis"], random.normal(0, 1, (LAYERS, HEADS, 2))),
        }
    )
    return study_of(groups)


def toy_view(words, heads: int = 2) -> PatternView:
    n = len(words)
    weights = np.random.default_rng(3).dirichlet(np.full(n, 0.4), (heads, n)).astype(np.float32)
    blocks = tuple(PatternBlock(layer, "encoder", layer, 0, weights, "model") for layer in range(2))
    return PatternView("toy", blocks, tuple(words), WordAlignment(np.arange(n), n), tuple(words), np.zeros(n, bool))


DRAWN = {
    "atlas": lambda study, width: figures.atlas(study, width=width),
    "atlas_labels": lambda study, width: figures.atlas(study, "labels", width=width),
    "atlas_relation": lambda study, width: figures.atlas(study, "dep:obj", width=width),
    "atlas_target": lambda study, width: figures.atlas(study, "special_mass", target="cls", width=width),
    "atlas_signed": lambda study, width: figures.atlas(study, "signed_distance", labels=False, width=width),
    "comparison": lambda study, width: figures.comparison(study, rich(1), width=width),
    "probe_grid": lambda study, width: figures.probe_grid(study, width=width),
    "probe_accuracy": lambda study, width: figures.probe_grid(study, "deprel", value="accuracy", site="q", width=width),
    "entropy_by_layer": lambda study, width: figures.entropy_by_layer(study, width=width),
    "distance_histograms": lambda study, width: figures.distance_histograms(study, width=width),
    "relation_bars": lambda study, width: figures.relation_bars(study, width=width),
    "head_profile": lambda study, width: figures.head_profile(study, 1, 2, width=width),
    "head_evidence": lambda study, width: figures.head_profile(profiled(), 0, 1, width=width),
    "learning_curve": lambda study, width: figures.learning_curve(profiled(), "upos", width=width),
    "heat_map": lambda study, width: figures.heat_map(study, 1, 2, width=width),
    "heat_map_words": lambda study, width: figures.heat_map(study, 1, 2, example="e1", level="word", width=width),
    "cluster_map": lambda study, width: figures.cluster_map(study, width=width),
}


@pytest.fixture(scope="module")
def study() -> Study:
    return rich()


def shown(figure: Figure) -> list[Text]:
    """Texts that a reader sees, ticks and legends too; not the ticks that matplotlib keeps beyond the ends of an axis."""
    figure.draw_without_rendering()
    hidden = set()
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            if not low - 1e-9 <= tick.get_loc() <= high + 1e-9:
                hidden |= {id(tick.label1), id(tick.label2)}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden
    ]


def of_fonts(warning) -> bool:
    """Whether a warning is ours: of a missing font, or of a matplotlib too old to join letters."""
    return "no installed font" in str(warning.message) or "unjoined" in str(warning.message)


def cell_texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in shown(figure)]


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("name", DRAWN)
def test_each_figure_tells_what_it_shows(study, name, width):
    drawn = DRAWN[name](study, width)
    assert isinstance(drawn, Figure)
    assert drawn.get_size_inches()[0] == pytest.approx({"single": 3.3, "double": 7.0}[width])
    assert drawn.get_size_inches()[1] <= 9.0
    assert len(drawn.table) > 0
    assert re.fullmatch(r"[\w.+-]+", drawn.name)
    assert drawn.alt.strip()
    assert re.search(r"(share|nats|tokens|rows)", drawn.caption) or name == "cluster_map"
    assert re.search(r"(chance|Chance|baseline|uniform|Uniform|Baseline|0: no|Thresholds|majority)", drawn.caption), (
        drawn.caption
    )
    if not name.startswith("heat_map"):
        assert "2,001 sentences" in drawn.caption
        assert "Recomputed attention matches" in drawn.caption
    assert "count from 0" in drawn.caption
    assert "nan" not in drawn.caption.lower()


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("family", [*_figure_fonts.PREFERRED[1:], _figure_fonts.BUNDLED])
def test_no_text_leaves_the_sheet_or_is_too_small_to_read(study, name, width, family, monkeypatch):
    """In each family that plain text may come out in (Arial is as wide as Liberation Sans); DejaVu Sans is there where no other is."""
    if family not in _figure_fonts._installed():
        pytest.skip(f"{family} is not installed")
    monkeypatch.setattr(_figure_fonts, "PREFERRED", (family,))
    _figure_fonts._chain.cache_clear()
    try:
        check_texts(DRAWN[name](study, width))
    finally:
        _figure_fonts._chain.cache_clear()


def check_texts(figure: Figure) -> None:
    texts = shown(figure)
    assert len(texts) > 3
    wide, high = figure.get_size_inches() * figure.dpi
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 > -2, text
        assert box.y0 > -2, text
        assert box.x1 < wide + 2, text
        assert box.y1 < high + 2, text
        assert text.get_fontsize() >= LEAST_POINTS, text


def test_a_text_outside_is_found_out():
    """The check of the test above can fail."""
    for place, size in (((0.99, 0.5), 7), ((0.1, 0.5), 3)):
        figure = figures.entropy_by_layer(rich(), width="single")
        figure.text(*place, "far too long to fit", size=size)
        with pytest.raises(AssertionError):
            check_texts(figure)


@pytest.mark.parametrize("width", ["single", "double"])
@pytest.mark.parametrize("by", ["entropy", "labels"])
def test_texts_stay_in_their_cells_in_a_large_model(by, width):
    study = large()
    labels = study["labels"]["labels"]
    study.tree["labels/labels"] = labels.copy(data=np.char.replace(labels.values, ":obj", ":nsubj:outer"))
    drawn = figures.atlas(study, by, width=width)
    check_texts(drawn)
    grid = drawn.axes[0]
    inside = [text for text in grid.texts if text.get_text() not in ("Head", "Layer")]
    assert len(inside) > 384
    cell = grid.get_window_extent().width / 16
    for text in inside:
        assert text.get_window_extent().width <= cell + 1, text.get_text()
    for head in inside[:40]:
        others = [other for other in inside if other is not head and other.xy == head.xy]
        for other in others:
            assert not head.get_window_extent().padded(-1).overlaps(other.get_window_extent().padded(-1)), (
                head.get_text()
            )


def test_atlas_is_the_metric(study):
    drawn = figures.atlas(study, labels=False)
    metrics = study["metrics"]
    for row in drawn.table.itertuples():
        at = {"layer": row.layer, "head": row.head}
        assert row.value == float(metrics["entropy"].sel(at))
        assert row.low == float(metrics["entropy_low"].sel(at))
        assert row.high == float(metrics["entropy_high"].sel(at))
        assert row.n == 54321
        assert row.unit == "nats"
    assert len(drawn.table) == LAYERS * HEADS
    texts = cell_texts(drawn)
    for value in study["metrics"]["entropy"].values.ravel():
        assert f"{value:.2f}" in texts
    assert "54,321 query rows a head" in drawn.caption


def test_cells_stand_where_their_head_is(study):
    drawn = figures.atlas(study, labels=False)
    grid = drawn.axes[0]
    values = study["metrics"]["entropy"].values
    placed = {
        (round(text.xy[1]), round(text.xy[0])): text.get_text()
        for text in grid.texts
        if text.get_text() not in ("Head", "Layer")
    }
    assert placed == {place: f"{value:.2f}" for place, value in np.ndenumerate(values)}
    assert grid.get_ylim() == (LAYERS - 0.5, -0.5)
    mesh = grid.collections[0].get_array()
    order = luminance(np.asarray(mesh).reshape(LAYERS, HEADS, 3)).ravel()
    assert (np.argsort(-order) == np.argsort(values.ravel())).all(), "the greater the value, the darker"


def test_atlas_of_labels_is_the_labels(study):
    table = figures.atlas(study, "labels").table
    for row in table.itertuples():
        record = json.loads(str(study["labels"]["labels"].values[row.layer, row.head]))
        assert row.family == (record["labels"][0]["family"] if record["labels"] else "unlabelled")
        if record["labels"]:
            assert row.label_score == record["labels"][0]["score"]
            assert row.label_n == record["labels"][0]["n"]
        assert row.nearest_miss == (record["nearest_miss"]["label"] if record["nearest_miss"] else "")
    assert set(table["family"]) == {"position", "syntax", "unlabelled"}


def test_a_universal_relation_beside_its_full_label_is_one_label(study):
    found = labels_of(study, "test").ravel()
    assert [label.text for label in found[1].labels] == ["dep:obj (dep->head)"]
    assert len(json.loads(str(study["labels"]["labels"].values[0, 1]))["labels"]) == 2
    assert found[1].labels[0].short == "obj↑"


def test_atlas_of_a_relation_is_the_report_split_against_its_baseline(study):
    drawn = figures.atlas(study, "dep:obj")
    here = study["relations"].sel(split="report", relation="dep:obj", scorer="weights", direction="dep->head")
    assert drawn.table["value"].to_numpy() == pytest.approx(here["accuracy"].values.ravel())
    assert (drawn.table["passed"].to_numpy() == (here["accuracy"].values - 0.25 > 0.05).ravel()).all()
    assert "0.25" in drawn.caption
    assert "always the word at −1" in drawn.caption
    assert f"{int(here['n']):,} cases" in drawn.caption
    other = figures.atlas(study, "dep:obj", direction="head->dep", split="all")
    there = study["relations"].sel(split="all", relation="dep:obj", scorer="weights", direction="head->dep")
    assert other.table["value"].to_numpy() == pytest.approx(there["accuracy"].values.ravel())


def test_comparison_is_second_minus_first(study):
    other = rich(1)
    metrics = other.tree["metrics"]
    for end, shift in (("", 0.03), ("_low", 0.01), ("_high", 0.05)):  # overlapping intervals, at two heads
        metrics[f"entropy{end}"].values[0, 0] = study["metrics"]["entropy"].values[0, 0] + shift
        metrics[f"entropy{end}"].values[0, 1] = study["metrics"]["entropy"].values[0, 1] + shift - 0.06
    drawn = figures.comparison(study, other)
    change = other["metrics"]["entropy"].values - study["metrics"]["entropy"].values
    assert drawn.table["change"].to_numpy() == pytest.approx(change.ravel())
    assert (drawn.table["intervals_apart"].to_numpy() == (np.abs(change) > 0.04).ravel()).all()
    bold = [text.get_text() for text in drawn.axes[0].texts if text.get_fontweight() == "bold"]
    assert len(bold) == int((np.abs(change) > 0.04).sum())


def test_entropy_by_layer_has_every_head_and_the_mean(study):
    drawn = figures.entropy_by_layer(study)
    values = study["metrics"]["entropy"].values
    rows = drawn.table[drawn.table["metric"] == "entropy"]
    assert rows["value"].to_numpy() == pytest.approx(values.ravel())
    axes = drawn.axes[0]
    dots = next(part for part in axes.collections if isinstance(part, PathCollection))
    assert np.asarray(dots.get_offsets())[:, 1] == pytest.approx(values.ravel())
    assert axes.lines[0].get_ydata() == pytest.approx(values.mean(axis=1))
    assert "nats" in axes.get_ylabel()


def test_relation_bars_are_the_chosen_heads(study):
    drawn = figures.relation_bars(study, ["dep:obj", "coref:antecedent"])
    best = study["best"]
    for row in drawn.table.itertuples():
        here = best.sel(relation=row.relation)
        for name in ("accuracy", "low", "high", "n", "baseline", "difference"):
            assert getattr(row, name) == float(here[name])
        assert (row.layer, row.head) == (int(here["layer"]), int(here["head"]))
    assert list(drawn.table["relation"]) == ["dep:obj", "coref:antecedent"]
    widths = [patch.get_width() for patch in drawn.axes[0].patches]
    assert widths == pytest.approx(list(drawn.table["accuracy"]))
    assert "L2H4 ↑" in cell_texts(drawn)


def test_relation_bars_have_a_dash_where_no_head_was_chosen():
    drawn = figures.relation_bars(nothing_chosen())
    assert "no head was chosen" in drawn.caption
    assert "–" in cell_texts(drawn)
    assert not any("nan" in text or "L-1" in text for text in [*cell_texts(drawn), drawn.alt])
    assert figures.atlas(nothing_chosen(), "dep:obj").caption


def test_relation_bars_leave_out_relations_with_few_cases(study):
    n = study["best"]["n"]
    kept = list(figures.relation_bars(study).table["relation"])
    assert kept == [
        str(name)
        for name in n["relation"].values
        if float(n.sel(relation=name)) >= 100 and not str(name).startswith("udep")
    ]
    assert len(kept) < n.size


def test_relation_bars_keep_relations_of_other_families():
    names = {f"dep:r{number_}": "syntax" for number_ in range(40)} | {"coref:antecedent": "semantics"}
    table = relations(np.random.default_rng(0), LAYERS, HEADS, names=names)
    table["n"][:] = 500
    shown_ = list(
        figures.relation_bars(study_of(groups_of() | {"/relations": table, "/best": best(table)})).table["relation"]
    )
    assert len(shown_) == 20
    assert shown_[-1] == "coref:antecedent"
    assert shown_[:3] == ["dep:r0", "dep:r1", "dep:r2"]


def test_a_rival_baseline_is_told_in_words(study):
    groups = groups_of()
    named = groups["/relations"]["baseline_offset"].astype(str).copy(data=np.full((3, 4), "nearest"))
    groups["/relations"] = groups["/relations"].assign(
        baseline_name=named, chance=groups["/relations"]["baseline"] * 0.5
    )
    caption = figures.atlas(study_of(groups), "coref:antecedent").caption
    assert "Baseline 0.25: the nearest mention before" in caption
    assert "random choice would score 0.125" in caption


def test_distances_are_the_offset_mass(study):
    drawn = figures.distance_histograms(study)
    mass = study["metrics"]["offset_mass"]
    assert len(drawn.table) == mass.size
    for row in drawn.table.sample(20, random_state=0).itertuples():
        assert row.value == float(mass.sel(layer=row.layer, head=row.head, offset=row.offset))


def test_distances_come_from_histograms_where_there_are_some(study):
    groups = groups_of()
    counted = np.random.default_rng(5).integers(0, 90, (3, 5, 7))
    places = {"distance_bin": np.arange(7), "layer": range(3), "head": range(5)}
    groups["/histograms"] = xr.Dataset({"distance": (["layer", "head", "distance_bin"], counted)}, places)
    table = figures.distance_histograms(study_of(groups)).table
    assert table["value"].to_numpy() == pytest.approx(counted.ravel())
    assert set(table["unit"]) == {"rows"}


def test_probe_grid_is_the_chosen_task_and_site(study):
    drawn = figures.probe_grid(study, "deprel", value="accuracy", site="q")
    assert drawn.table["value"].to_numpy() == pytest.approx(study["probes"]["accuracy"].values[1, 1].ravel())
    assert "0.33" in drawn.caption
    assert "555 test items" in drawn.caption


def test_head_profile_has_offsets_targets_and_relations(study):
    table = figures.head_profile(study, 1, 2).table
    metrics = study["metrics"].sel(layer=1, head=2)
    offsets = table[table["panel"] == "offset_mass"]
    assert offsets["value"].to_numpy() == pytest.approx(metrics["offset_mass"].values)
    targets = table[table["panel"] == "special_mass"]
    assert targets["value"].to_numpy() == pytest.approx(metrics["special_mass"].values)
    relations = study["relations"].sel(layer=1, head=2, scorer="weights")
    for row in table[table["panel"] == "relations"].itertuples():
        here = relations.sel(relation=row.relation, direction=row.direction)
        assert row.accuracy == float(here["accuracy"].sel(split="report"))
        gains = relations["difference"].sel(split="select", relation=row.relation)
        assert row.select_gain == float(gains.max()), "chosen on select"


def test_head_profile_has_the_probes_and_the_verdict():
    study = profiled()
    drawn = figures.head_profile(study, 0, 1)
    table = drawn.table[drawn.table["panel"] == "probes"].set_index("task")
    probes = study["probes"].sel(site="context", layer=0, head=1)
    assert list(table.index) == ["position", "upos"]
    for name in ("accuracy", "accuracy_low", "control", "selectivity", "selectivity_high", "majority", "n"):
        assert table[name].to_numpy(float) == pytest.approx(probes[name].values), name
    assert list(table["holds"]) == [False, True]
    verdict = str(study["profiles"]["verdict"].values[0, 1]).replace("->", "→")
    assert f"Verdict: {verdict}." in drawn.caption
    assert "position: n = 480, upos: n = 470" in drawn.caption
    bars = [bar.get_width() for bar in drawn.axes[-1].patches]
    assert bars == pytest.approx(probes["accuracy"].values)
    [control] = [line.get_xdata() for line in drawn.axes[-1].lines]
    assert control == pytest.approx(probes["control"].values)
    without = study_of({f"/{name}": study[name] for name in study.groups if name != "examples"}, "profiles")
    assert "probes" not in set(figures.head_profile(without, 0, 1).table["panel"])


def test_learning_curve_is_every_head_s_with_the_best_compressed_marked():
    study = profiled()
    probes = study["probes"].sel(task="upos", site="context")
    drawn = figures.learning_curve(study, "upos")
    best = np.unravel_index(int(probes["compression"].values.argmax()), (3, 5))
    assert f"blue: L{best[0]}H{best[1]};" in drawn.caption
    places = [0, 2, 3]  # the first two portions are one block
    for row in drawn.table.itertuples():
        point = places[[60, 125, 250].index(row.examples)]
        assert row.accuracy == probes["curve_accuracy"].values[row.layer, row.head, point]
        assert row.control == probes["control_curve_accuracy"].values[row.layer, row.head, point]
    assert len(drawn.table) == 45
    marked = [line for line in drawn.axes[0].lines if line.get_marker() == "o"][0]
    assert marked.get_ydata() == pytest.approx(probes["curve_accuracy"].values[best][places])
    other = figures.learning_curve(study, "upos", head=(2, 0))
    marked = [line for line in other.axes[0].lines if line.get_marker() == "o"][0]
    assert marked.get_ydata() == pytest.approx(probes["curve_accuracy"].values[2, 0][places])


def test_heat_map_is_the_pattern():
    view = toy_view(["one", "two", "three", "four"])
    drawn = figures.heat_map(view, 1, 1)
    assert drawn.table["weight"].to_numpy() == pytest.approx(view.blocks[1].pattern[1].ravel())
    assert list(drawn.table["key_text"][:4]) == list(view.tokens)
    assert "0.250" in drawn.caption


def test_words_of_a_heat_map_add_up_keys_and_average_queries(study):
    tokens = figures.heat_map(study, 0, 0).table.pivot_table(index="query", columns="key", values="weight").to_numpy()
    words = (
        figures.heat_map(study, 0, 0, level="word")
        .table.pivot_table(index="query", columns="key", values="weight")
        .to_numpy()
    )
    assert tokens.shape == (6, 6)  # [CLS] The cat sat ##s [SEP]
    assert words.shape == (5, 5)
    assert words[1, 3] == pytest.approx(tokens[1, 3] + tokens[1, 4])
    assert words[3, 1] == pytest.approx((tokens[3, 1] + tokens[4, 1]) / 2)
    assert words.sum(axis=1) == pytest.approx(np.ones(5), abs=6 / 255)


def test_cross_attention_has_the_target_down_and_the_source_across():
    pattern = np.random.default_rng(0).dirichlet(np.ones(3), (2, 2)).astype(np.float32)
    block = PatternBlock(0, "cross", 0, 0, pattern, "model")
    alignment = WordAlignment(np.arange(3), 3)
    view = PatternView("t5", (block,), ("a", "b", "c"), alignment, ("a", "b", "c"), np.zeros(3, bool), ("X", "Y"))
    table = figures.heat_map(view, 0, 1).table
    assert list(table["query_text"].unique()) == ["X", "Y"]
    assert list(table["key_text"].unique()) == ["a", "b", "c"]
    with pytest.raises(InputError, match="merge to words"):
        figures.heat_map(view, 0, 1, level="word")


def test_clusters_are_the_study_s(study):
    table = figures.cluster_map(study).table
    assert table[["x", "y"]].to_numpy() == pytest.approx(study["clusters"]["embedding"].values.reshape(-1, 2))
    assert (table["cluster"].to_numpy() == study["clusters"]["cluster"].values.ravel()).all()


MISSING = {
    "atlas": ("metrics", lambda s: figures.atlas(s), "attnprobe heads"),
    "labels": ("labels", lambda s: figures.atlas(s, "labels"), "attnprobe heads"),
    "comparison": ("metrics", lambda s: figures.comparison(s, s), "attnprobe heads"),
    "entropy": ("metrics", figures.entropy_by_layer, "attnprobe heads"),
    "distances": ("metrics", figures.distance_histograms, "attnprobe heads"),
    "relations": ("best", figures.relation_bars, "--corpus"),
    "clusters": ("clusters", figures.cluster_map, "attnprobe heads"),
    "probes": ("probes", figures.probe_grid, "attnprobe probe"),
    "profile": ("metrics", lambda s: figures.head_profile(s, 0, 0), "attnprobe heads"),
    "pattern": ("examples", lambda s: figures.heat_map(s, 0, 0), "capture"),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_missing_part_says_what_to_run(name):
    group, draw, remedy = MISSING[name]
    without = "relations" if group == "metrics" and name in ("atlas", "comparison") else group
    with pytest.raises(InputError, match=f"/{group}.*{remedy}"):
        draw(study_of(groups_of(), group, without, "best" if without == "relations" else group))


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda s: figures.atlas(s, "entrpy"), "near names: entropy"),
        (lambda s: figures.atlas(s, "special_mass"), "expected a target, got none.*self, first, cls"),
        (lambda s: figures.atlas(s, "special_mass", target="pad"), "got 'pad'"),
        (lambda s: figures.atlas(s, "entropy", offset=1), "offset.*one number for each head"),
        (lambda s: figures.atlas(s, "labels", offset=1), "no coordinates"),
        (lambda s: figures.atlas(s, width="wide"), "single or double, got 'wide'"),
        (lambda s: figures.relation_bars(s, ["dep:subj"]), "near names.*dep:obj"),
        (lambda s: figures.relation_bars(s, []), "at least one relation"),
        (lambda s: figures.relation_bars(s, width="wide"), "single or double"),
        (lambda s: figures.head_profile(s, 3, 0), "a layer from 0 to 2 and a head from 0 to 4, got L3H0"),
        (lambda s: figures.head_profile(s, 0, -1), "got L0H-1"),
        (lambda s: figures.heat_map(s, 0, 5), "a head from 0 to 4, got L0H5"),
        (lambda s: figures.heat_map(s, 0, 0, example="e9"), "no example 'e9'"),
        (lambda s: figures.heat_map(s, 0, 0, level="letter"), "token or word, got 'letter'"),
        (lambda s: figures.heat_map("text", 0, 0), "a PatternView .*got str"),
        (lambda s: figures.heat_map(toy_view(["a", "b"]), 7, 0), "a layer from 0 to 1"),
        (lambda s: figures.probe_grid(s, "ner"), "upos, deprel"),
        (lambda s: figures.probe_grid(s, value="f1"), "one of accuracy, selectivity, got 'f1'"),
        (lambda s: figures.learning_curve(s), "attnprobe probe MODEL --into"),
        (lambda s: figures.learning_curve(profiled(), "ner"), "position, upos"),
        (lambda s: figures.learning_curve(profiled(), head=(3, 0)), "a layer from 0 to 2"),
        (lambda s: figures.comparison(s, study_of(groups_of(2, 3))), "3 x 5 and 2 x 3"),
    ],
)
def test_wrong_use_says_what_is_right(study, draw, message):
    with pytest.raises(InputError, match=re.compile(message, re.DOTALL)):
        draw(study)


def test_an_example_may_be_drawn_by_itself(study):
    whole_study = figures.heat_map(study, 0, 1, example="e1").table
    assert figures.heat_map(study["examples"]["e1"], 0, 1).table.equals(whole_study)
    assert figures.heat_map(study["examples"]["e1"].to_dataset(), 0, 1).table.equals(whole_study)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_is_drawn_or_says_why_not(name, recwarn):
    """Undefined numbers, hostile names, missing parts: a figure, or an `InputError`; nothing else, and no warning but of glyphs."""
    study = STUDIES[name]()
    for number_, draw in enumerate(DRAWN.values()):
        try:
            drawn = draw(study, ("single", "double")[number_ % 2])
        except InputError:
            continue
        drawn.draw_without_rendering()
        assert drawn.caption
    assert all(of_fonts(warning) for warning in recwarn)


def test_a_comparison_is_refused_with_what_to_use():
    for draw in (figures.atlas, figures.entropy_by_layer, figures.relation_bars):
        with pytest.raises(InputError, match="got a comparison of two studies.*figures.comparison"):
            draw(STUDIES["compared"]())


def test_a_head_that_is_not_there_is_grey_and_has_a_dash():
    drawn = figures.atlas(STUDIES["encoder_decoder"](), labels=False)
    last = [text.get_text() for text in drawn.axes[0].texts if text.xy == (2, 3)]
    assert last == ["–"]
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["enc 0", "enc 1", "dec 0", "cross 0"]


def test_verification_is_told(study):
    for name, words in (("failed", "VERIFICATION FAILED"), ("no_verification", "not verified")):
        assert words in figures.entropy_by_layer(STUDIES[name]()).caption
    assert "matches" in figures.entropy_by_layer(study).caption


def test_chance_is_marked_where_there_is_one(study):
    drawn = figures.atlas(study, "dep:obj")
    assert "baseline" in cell_texts(drawn)
    bar = drawn.axes[1]
    assert bar.lines[0].get_xdata() == pytest.approx([0.25])
    assert "uniform" not in cell_texts(figures.atlas(study, "entropy"))
    assert "uniform" in cell_texts(figures.atlas(study, "entropy_normalised"))


def test_scales_are_ordered_by_lightness():
    steps = luminance(SEQUENTIAL(np.linspace(0, 1, 64))[:, :3])
    assert (np.diff(steps) < 0).all()
    half = luminance(DIVERGING(np.linspace(0, 0.5, 32))[:, :3])
    assert (np.diff(half) > 0).all()


@pytest.mark.parametrize("scale", [SEQUENTIAL, DIVERGING], ids=lambda scale: scale.name)
def test_text_stands_out_on_every_colour(scale):
    colours = scale(np.linspace(0, 1, 256))[:, :3]
    ink = np.where(wants_white(colours)[:, None], np.ones(3), np.zeros(3))
    assert contrast(colours, ink).min() >= 4.5


def test_cells_are_written_in_black_or_white():
    written = {text.get_color() for text in figures.atlas(rich(), "entropy").axes[0].texts}
    assert {"black", "white"} <= written
    assert INK not in written  # a dark grey would not stand out on middling colours


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.00"),
        (-0.001, "0.00"),
        (1.005, "1.00"),
        (-3.456, "−3.46"),
        (12.34, "12.3"),
        (123.4, "123"),
        (np.nan, "–"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.003), (-0.2, 0.2), (0, 2.94), (13, 17), (-71, 71), (0, 750)])
def test_ticks_are_round_and_inside(low, high):
    ticks = nice_ticks(low, high)
    assert 3 <= len(ticks) <= 7
    assert min(ticks) >= low - 1e-9
    assert max(ticks) <= high + 1e-9


def test_names_are_safe_for_files():
    assert slug("dep:<b>obj</b>", "a_b", -1) == "dep-b-obj-b--a-b--1"
    assert slug("../..", "") == "figure"
    drawn = figures.atlas(STUDIES["hostile"](), "dep:<b>obj</b>")
    assert "/" not in drawn.name


def test_the_user_s_arrays_are_left_alone():
    study = whole()
    before = study.tree.copy(deep=True)
    figures.atlas(study)
    figures.relation_bars(study)
    figures.head_profile(study, 0, 0)
    assert study.tree.identical(before)


def test_long_words_are_cut_and_many_are_thinned():
    long = figures.heat_map(toy_view(["Donaudampfschifffahrtsgesellschaftskapitän", "x"]), 0, 0)
    check_texts(long)
    assert any(text.endswith("…") for text in cell_texts(long))
    assert "Donaudampfschifffahrtsgesellschaftskapitän" in set(long.table["key_text"])
    many = figures.heat_map(toy_view([f"w{i}" for i in range(97)]), 0, 0)
    check_texts(many)
    assert len([text for text in cell_texts(many) if text.startswith("w")]) < 2 * 97
