"""Comparing studies: differences and their intervals, heads matched across models, labels gained and lost."""

import copy
import json

import numpy as np
import pytest
import torch
import xarray as xr
from scipy.spatial.distance import jensenshannon

from attnprobe import open_study, run
from attnprobe.errors import InputError
from attnprobe.heads._groups import GroupTotals, paired_difference
from attnprobe.heads._matching import _divergence, match_heads
from attnprobe.heads.compare import _independent, compare
from attnprobe.models.load import load
from attnprobe.records import Sentence, Study, too_wide
from attnprobe.report.page import render
from attnprobe.sharding import in_process
from attnprobe.stream import t_quantile, wilson
from attnprobe.text.batching import split_of_sentence
from tests.tiny import HEAD_DIM, build, byte_tokenizer

HEADS = 3
SENTENCES = [
    Sentence(
        f"s{d}-{i}",
        ("the", "dog", "saw", "a", "cat", str(3 * d + i)),
        document=f"d{d}",
        heads=(2, 3, 0, 5, 3, 3),
        deprels=("det", "nsubj", "root", "det", "obj", "obl"),
    )
    for d in range(12)
    for i in range(2)
]


def studied(module, *, totals=True, sentences=SENTENCES, examples=3, groups=64, **options):
    """A study with totals of groups of clusters, each shard one document."""
    keeper = GroupTotals(groups)

    def keeping(model, chosen, jobs, advance):
        for index, sums in in_process(model, chosen, jobs, advance):
            keeper.add(index, sums)
            yield index, sums

    options = {"metrics": ["entropy", "offset_mass", "distance"], "relations": ["dep"], **options}
    study = run(
        load((module, byte_tokenizer())), sentences, shard_sentences=2, engine=keeping, examples=examples, **options
    )
    if totals:
        study = Study(study.tree.assign({}).copy())
        study.tree["totals"] = xr.DataTree(keeper.finish(("weights",)))
    return study


def test_intervals_of_unpaired_studies_of_one_corpus_are_too_wide():
    first, second = build("bert", num_hidden_layers=1), build("bert", num_hidden_layers=1)
    a, b, alone = studied(first), studied(second), studied(second, totals=False)
    other = studied(second, totals=False, sentences=SENTENCES[:-2])
    assert [too_wide(compare(a, found)) for found in (b, alone, other)] == [False, True, False]
    for found, told in (
        (b, "by chance alone at most about"),
        (alone, "intervals are too wide"),
        (other, "by chance alone"),
    ):
        assert told in render(compare(a, found))


def permuted(module, order):
    """The same function with the heads of each layer in another order."""
    module = copy.deepcopy(module)
    rows = np.concatenate([np.arange(head * HEAD_DIM, (head + 1) * HEAD_DIM) for head in order])
    for layer in module.encoder.layer:
        for part in (layer.attention.self.query, layer.attention.self.key, layer.attention.self.value):
            part.weight.data, part.bias.data = part.weight.data[rows], part.bias.data[rows]
        layer.attention.output.dense.weight.data = layer.attention.output.dense.weight.data[:, rows]
    return module


def shaken(module, layer=1):
    module = copy.deepcopy(module)
    generator = torch.Generator().manual_seed(5)
    weight = module.encoder.layer[layer].attention.self.query.weight.data
    weight += 0.3 * torch.randn(weight.shape, generator=generator)
    return module


@pytest.fixture(scope="module")
def module():
    return build("bert")


@pytest.fixture(scope="module")
def study(module):
    return studied(module)


@pytest.fixture(scope="module")
def other(module):
    return studied(shaken(module))


def test_a_study_minus_itself_is_nothing(study):
    found = compare(study, study)
    assert found.attributes["pairing"] == "paired over 12 groups of clusters"
    for group in ("metrics", "relations", "best"):
        for name in found[group].data_vars:
            if name.startswith(("entropy", "offset", "distance", "difference", "low", "high")):
                values = found[group][name].values
                assert (values[np.isfinite(values)] == 0).all(), name
    assert np.isfinite(found["metrics"]["entropy_low"]).all()
    matches = found["matches"]
    assert (matches["layer_b"] == matches["layer"]).all()
    assert (matches["head_b"] == matches["head"]).all()
    assert (matches["distance"] == 0).all()
    for text in found["labels"]["labels"].values.ravel():
        told = json.loads(str(text))
        assert not told["gained"]
        assert not told["lost"]


def test_differences_are_the_second_minus_the_first(study, other):
    found = compare(study, other)
    for name in ("entropy", "offset_mass", "distance"):
        np.testing.assert_allclose(
            found["metrics"][name], other["metrics"][name] - study["metrics"][name], atol=1e-6, err_msg=name
        )
        assert found["metrics"][name].attrs["unit"] == study["metrics"][name].attrs["unit"]
    relations = found["relations"]
    wanted = other["relations"]["accuracy"] - study["relations"]["accuracy"]
    np.testing.assert_allclose(relations["difference"], wanted, atol=1e-12)
    np.testing.assert_array_equal(relations["a"], study["relations"]["accuracy"])
    np.testing.assert_array_equal(relations["b"], other["relations"]["accuracy"])
    assert np.abs(found["metrics"]["entropy"][0]).max() == 0  # the layer below the shaken one
    assert np.abs(found["metrics"]["entropy"][1]).min() > 0
    best = found["best"]
    for relation in best["relation"].values:
        one = best.sel(relation=relation)
        ends = [float(part["best"]["accuracy"].sel(relation=relation)) for part in (study, other)]
        assert float(one["difference"]) == pytest.approx(ends[1] - ends[0], abs=1e-12)
        assert (float(one["accuracy_a"]), float(one["accuracy_b"])) == tuple(ends)
        assert int(one["head_b"]) == int(other["best"]["head"].sel(relation=relation))


def test_cells_that_exclude_zero_are_counted(study, other):
    entropy = compare(study, other)["metrics"]
    apart = (entropy["entropy_low"] > 0) | (entropy["entropy_high"] < 0)
    assert entropy["entropy"].attrs["cells"] == 6
    assert entropy["entropy"].attrs["exclude_zero"] == int(apart.sum()) == 3


def test_pairing_narrows_the_interval_where_both_studies_share_their_corpus(study, other):
    paired, alone = compare(study, other), compare(_without(study, "totals"), other)
    assert alone.attributes["pairing"].startswith("independent: totals of groups of clusters were not kept")
    np.testing.assert_allclose(paired["metrics"]["distance"], alone["metrics"]["distance"], atol=1e-6)
    width = {
        name: (found["metrics"]["distance_high"] - found["metrics"]["distance_low"]).values
        for name, found in (("paired", paired), ("alone", alone))
    }
    assert width["paired"].mean() < width["alone"].mean()


def _without(study, *groups):
    return Study(
        xr.DataTree.from_dict(
            {"/": study.tree.to_dataset()} | {f"/{g}": study.tree[g] for g in study.groups if g not in groups}
        )
    )


def simulated(generator, groups, true, draws=()):
    """Totals of two studies that move together, [draw group]."""
    shape, dims = (*draws, groups), [*(["draw"] if draws else []), "group"]
    n = generator.integers(20, 60, size=shape).astype(float)
    shared = generator.normal(size=shape)
    sums = []
    for value in (1.0, 1.0 + true):
        sums += [n * (value + shared) + np.sqrt(n) * generator.normal(size=shape), n]
    return [xr.DataArray(part, dims=dims) for part in sums]


def test_paired_error_is_the_jackknifes_over_groups():
    sums = simulated(np.random.default_rng(2), 40, 0.3)
    d, low, high = paired_difference(*sums)
    assert float(d) == pytest.approx(float(sums[2].sum() / sums[3].sum() - sums[0].sum() / sums[1].sum()))
    left = [paired_difference(*(part.drop_isel(group=out) for part in sums))[0] for out in range(40)]
    error = np.sqrt(39 / 40 * np.square(np.array(left) - np.mean(left)).sum())
    assert float(high - low) / 2 == pytest.approx(float(t_quantile(40)) * error, rel=0.05)


def test_paired_error_of_few_groups_is_the_sum_over_their_residuals():
    y_a, n_a, y_b, n_b = sums = simulated(np.random.default_rng(4), 5, 0.3)
    _, low, high = paired_difference(*sums)
    total = 0.0
    for group in range(5):
        b = (y_b[group] - y_b.sum() / n_b.sum() * n_b[group]) / n_b.sum()
        a = (y_a[group] - y_a.sum() / n_a.sum() * n_a[group]) / n_a.sum()
        total += float(b - a) ** 2
    assert float(high - low) / 2 == pytest.approx(2.7764451 * np.sqrt(5 / 4 * total), rel=1e-6)  # t of 4 degrees


def test_paired_intervals_cover_what_they_say():
    _, low, high = paired_difference(*simulated(np.random.default_rng(9), 30, 0.3, draws=(3000,)))
    covered = float(((low <= 0.3) & (high >= 0.3)).mean())
    assert 0.94 <= covered <= 0.96


def test_one_group_has_no_interval_and_empty_groups_are_not_counted():
    one = [xr.DataArray(np.array([2.0]), dims="group")] * 4
    d, low, high = paired_difference(*one)
    assert float(d) == 0
    assert np.isnan([low, high]).all()
    full = simulated(np.random.default_rng(2), 10, 0.3)
    padded = [part.pad(group=(0, 5), constant_values=0.0) for part in full]
    for a, b in zip(paired_difference(*full), paired_difference(*padded), strict=True):
        assert float(a) == pytest.approx(float(b))
    nothing = [xr.DataArray(np.zeros(3), dims="group")] * 4
    assert np.isnan(paired_difference(*nothing)).all()


def test_independent_interval_is_newcombes_worked_example():
    """56 of 70 against 48 of 80: method 10 of Newcombe 1998 gives 0.0524 to 0.3339."""
    ends = []
    for hits, n in ((48, 80), (56, 70)):
        share = np.array(hits / n)
        low, high = wilson(share, np.array(n), np.array(1.959964))
        ends.append([xr.DataArray(value) for value in (share, low, high)])
    d, low, high = _independent(*ends)
    assert float(d) == pytest.approx(0.2)
    assert float(low) == pytest.approx(0.0524, abs=5e-5)
    assert float(high) == pytest.approx(0.3339, abs=5e-5)


@pytest.mark.parametrize("examples", [3, 0])
def test_permuted_heads_are_matched_by_patterns_and_by_profiles(module, study, examples):
    order = [2, 0, 1]
    turned = studied(permuted(module, order), examples=examples)
    found = compare(study, turned, align="match")
    matches = found["matches"]
    method = "Jensen-Shannon distance of patterns on 3" if examples else "Euclidean distance of metric profiles"
    assert matches.attrs["method"].startswith(method)
    np.testing.assert_array_equal(matches["layer_b"], np.arange(2)[:, None].repeat(HEADS, 1))
    np.testing.assert_array_equal(matches["head_b"], [np.argsort(order)] * 2)
    assert float(matches["distance"].max()) < 1e-3 < float(matches["distance_same"].min())
    assert found.attributes["align"] == "match"
    np.testing.assert_allclose(found["metrics"]["entropy"], 0, atol=1e-5)
    np.testing.assert_allclose(found["relations"]["difference"], 0, atol=0.05)
    by_index = compare(study, turned)
    assert by_index.attributes["align"] == "index"
    assert np.abs(by_index["metrics"]["entropy"]).min() > 1e-3


@pytest.mark.parametrize("totals", [True, False])
def test_models_of_other_shapes_are_compared_by_matched_heads(study, totals):
    small = studied(build("bert", num_attention_heads=2, hidden_size=2 * HEAD_DIM), totals=totals)
    found = compare(study, small)
    assert found.attributes["align"] == "match"
    matched = found["matches"]["head_b"].notnull()
    assert int(matched.sum()) == 4
    assert (found["metrics"]["entropy"].notnull() == matched).all()
    for layer, head in np.argwhere(matched.values):
        there = [int(found["matches"][name][layer, head]) for name in ("layer_b", "head_b")]
        change = float(small["metrics"]["entropy"][tuple(there)] - study["metrics"]["entropy"][layer, head])
        assert float(found["metrics"]["entropy"][layer, head]) == pytest.approx(change, abs=1e-6)
        b = small["relations"]["accuracy"].sel(split="all", relation="dep:obj", scorer="weights", direction="dep->head")
        ours = found["relations"]["b"].sel(split="all", relation="dep:obj", scorer="weights", direction="dep->head")
        assert float(ours[layer, head]) == float(b[tuple(there)])
    back = compare(small, study)
    assert back["metrics"]["entropy"].shape == (2, 2)
    assert back["metrics"]["entropy"].notnull().all()
    with pytest.raises(InputError, match="expected equally many layers and heads, got 2 x 3 and 2 x 2"):
        compare(study, small, align="index")


def test_two_corpora_and_two_plans_are_independent(module, study):
    elsewhere = studied(module, sentences=SENTENCES[:20])
    assert compare(study, elsewhere).attributes["pairing"] == "independent: two corpora"
    planned = studied(module, batch_tokens=30)
    assert compare(study, planned).attributes["pairing"].startswith("independent: two batch plans")


@pytest.mark.parametrize("totals", [True, False])
def test_heads_that_were_not_chosen_are_not_compared(module, totals):
    judged = [sentence for sentence in SENTENCES if split_of_sentence(sentence) == "report"]
    alone = studied(module, sentences=judged, totals=totals)
    found = compare(alone, alone)
    assert found.attributes["pairing"].startswith("paired" if totals else "independent")
    assert (found["best"][["layer_a", "head_a", "layer_b", "head_b"]].to_array() == -1).all()
    assert found["best"][["accuracy_a", "accuracy_b", "difference", "low", "high"]].to_array().isnull().all()
    assert "no case on select" in render(found)


def test_relations_and_metrics_that_one_study_lacks_are_left_out(module, study):
    few = studied(module, relations=["dep:obj", "dep:det"], metrics=["entropy"])
    for found in (compare(study, few), compare(few, study)):
        assert set(found["relations"]["relation"].values) == {"dep:obj", "dep:det"}
        assert set(found["metrics"].data_vars) == {"entropy", "entropy_low", "entropy_high"}
        assert float(np.abs(found["relations"]["difference"]).max()) == 0.0
    bare = _without(study, "relations", "best", "labels")
    assert set(compare(bare, study).groups) == {"matches", "metrics"}


def replaced(study, tables):
    """The study with these tables in place of its own."""
    changed = _without(study, *tables)
    for name, table in tables.items():
        changed.tree[name] = xr.DataTree(table)
    return changed


def with_cases(study, n):
    """`/relations` and `/metrics_by_split` of the study, every number of cases replaced."""
    relations, metrics = study["relations"], study["metrics_by_split"]
    counts = {name: xr.full_like(table, n) for name, table in metrics.data_vars.items() if str(name).endswith("_count")}
    return {
        "relations": relations.assign(n=xr.full_like(relations["n"], n)),
        "metrics_by_split": metrics.assign(counts),
    }


def relabelled(study, table):
    """The study with these labels: (layer, head) -> (family, label, score) each, and none elsewhere."""
    told = np.full((2, HEADS), json.dumps({"labels": [], "nearest_miss": None}), dtype=object)
    for (layer, head), names in table.items():
        labels = [{"family": family, "label": label, "score": score, "low": 0.1} for family, label, score in names]
        told[layer, head] = json.dumps({"labels": labels, "nearest_miss": None})
    coordinates = {"layer": range(2), "head": range(HEADS)}
    changed = _without(study, "labels")
    changed.tree["labels"] = xr.DataTree(xr.Dataset({"labels": (["layer", "head"], told.astype(str))}, coordinates))
    return changed


def test_labels_gained_and_lost(study):
    a = relabelled(
        study, {(0, 1): [("position", "next token", 0.95)], (1, 0): [("syntax", "dep:obj (dep->head)", 0.7)]}
    )
    b = relabelled(
        study,
        {
            (0, 1): [("position", "next token", 0.91), ("sink", "[SEP]", 0.8)],
            (1, 2): [("syntax", "dep:obj (dep->head)", 0.6)],
        },
    )
    found = compare(a, b)
    told = [[json.loads(str(text)) for text in row] for row in found["labels"]["labels"].values]
    assert [label["label"] for label in told[0][1]["gained"]] == ["[SEP]"]
    assert [(label["label"], label["score"]) for label in told[0][1]["kept"]] == [("next token", 0.91)]
    assert [label["label"] for label in told[1][0]["lost"]] == ["dep:obj (dep->head)"]
    assert [label["score"] for label in told[1][2]["gained"]] == [0.6]
    heads = json.loads(found["labels"].attrs["heads"])
    assert heads["dep:obj (dep->head)"] == {"a": ["L1H0"], "b": ["L1H2"]}
    assert heads["[SEP]"] == {"a": [], "b": ["L0H1"]}


def test_labels_that_one_study_could_not_judge_are_neither_gained_nor_lost(module, study):
    """The other study measured fewer relations and metrics, or has no trees at all."""
    labels = {
        "dep:det (dep->head)": {"family": "syntax", "relation": "dep:det"},
        "dep:obj (dep->head)": {"family": "syntax", "relation": "dep:obj"},
        "[SEP]": {"family": "sink", "metric": "special_mass", "target": "sep"},
        "broad": {"family": "broad", "metric": "entropy_normalised"},
    }
    told = [{"label": name, "score": 0.9, "low": 0.8, "high": 1.0, **finding} for name, finding in labels.items()]
    texts = relabelled(study, {})["labels"]["labels"].astype(object)
    texts[0, 1] = json.dumps({"labels": told, "nearest_miss": None})
    few = relabelled(studied(module, relations=["dep:det"], metrics=["entropy_normalised"]), {})
    held = {"labels": xr.Dataset({"labels": texts.astype(str)}), **with_cases(study, 120)}
    held, few = replaced(study, held), replaced(few, with_cases(few, 120))
    for found, kind in ((compare(held, few), "lost"), (compare(few, held), "gained")):
        one = json.loads(str(found["labels"]["labels"].values[0, 1]))
        assert {name: [label["label"] for label in one[name]] for name in one} == {
            **{"gained": [], "lost": [], "kept": []},
            kind: ["dep:det (dep->head)", "broad"],
            "untested": ["dep:obj (dep->head)", "[SEP]"],
        }
        assert "Tested in one study only" in render(found)
    few = replaced(few, with_cases(few, 99))
    one = json.loads(str(compare(held, few)["labels"]["labels"].values[0, 1]))
    assert (one["lost"], [label["label"] for label in one["untested"]]) == ([], list(labels))


def test_labels_follow_matched_heads(module, study):
    order = [2, 0, 1]
    turned = relabelled(studied(permuted(module, order)), {(1, order.index(2)): [("broad", "broad", 0.9)]})
    before = relabelled(study, {(1, 2): [("broad", "broad", 0.9)]})
    told = json.loads(str(compare(before, turned, align="match")["labels"]["labels"].values[1, 2]))
    assert [one["label"] for one in told["kept"]] == ["broad"]
    told = json.loads(str(compare(before, turned)["labels"]["labels"].values[1, 2]))
    assert [one["label"] for one in told["lost"]] == ["broad"]


def test_divergence_of_patterns_is_scipys():
    generator = np.random.default_rng(0)
    a, b = (generator.dirichlet(np.full(5, 0.3), size=(heads, 4)) for heads in (2, 3))
    found = _divergence(a, b)
    for i in range(2):
        for j in range(3):
            wanted = np.mean([jensenshannon(a[i, row], b[j, row]) ** 2 for row in range(4)])
            assert found[i, j] == pytest.approx(wanted, abs=1e-12)
    b[1, 2] = np.nan  # a row without weight is left out
    wanted = np.mean([jensenshannon(a[0, row], b[1, row]) ** 2 for row in (0, 1, 3)])
    assert _divergence(a, b)[0, 1] == pytest.approx(wanted, abs=1e-12)


def test_the_assignment_is_the_cheapest_one_to_one(study, other):
    found = match_heads(study, other)
    pairs = set(zip(found["layer_b"].values.ravel(), found["head_b"].values.ravel(), strict=True))
    assert len(pairs) == 6
    assert (found["distance"].sum() <= found["distance_same"].sum() + 1e-12).item()


def test_totals_of_groups_add_up_to_the_study_however_few(module, study):
    few = studied(module, groups=5)
    assert few["totals"].sizes["group"] == 5
    assert study["totals"].sizes["group"] == 12
    for one in (study, few):
        totals = one["totals"]
        mean = totals["entropy_total"].sum(["group", "split"]) / totals["entropy_n"].sum(["group", "split"])
        np.testing.assert_allclose(mean, one["metrics"]["entropy"], rtol=1e-12)
        for split in ("select", "report"):
            hits = one["relations"]["hits"].sel(split=split)
            own = totals["hits"].sel(split=split, relation=hits["relation"]).sum("group")
            np.testing.assert_array_equal(own.transpose(*hits.dims), hits)
            cases = totals["cases"].sel(split=split, relation=hits["relation"]).sum("group")
            np.testing.assert_array_equal(cases, one["relations"]["n"].sel(split=split))


def test_a_comparison_is_saved_and_opened_like_a_study(study, other, tmp_path):
    found = compare(study, other)
    again = open_study(found.save(tmp_path / "c.nc"))
    assert again.attributes == found.attributes
    assert again.attributes["a_model_sha256"] != again.attributes["b_model_sha256"]
    assert again.attributes["model"] == "BertModel minus BertModel"
    for group in ("metrics", "relations", "best", "matches", "labels"):
        for name, values in found[group].data_vars.items():
            np.testing.assert_array_equal(again[group][name].values, values.values)
    with_totals = open_study(study.save(tmp_path / "s.nc"))
    np.testing.assert_array_equal(with_totals["totals"]["hits"], study["totals"]["hits"])


def test_an_unknown_alignment_is_refused(study):
    with pytest.raises(InputError, match="unknown way to align heads 'indx'; near names: index"):
        compare(study, study, align="indx")
