"""Profiles: label evidence and probe evidence joined, agreement by fixed rules, entropy against selectivity."""

import json

import numpy as np
import pytest
import xarray as xr
from scipy import stats

from attnprobe.errors import InputError
from attnprobe.probes.profile import AGREEMENT, head_profiles, profile_groups, rank_correlation

LAYERS, HEADS = 2, 3
TASKS, KINDS = ("position", "upos", "deprel", "ner"), ("position", "syntax", "syntax", "semantics")


def label(family, name):
    return {"family": family, "label": name, "score": 0.9, "low": 0.8, "high": 0.95, "n": 500}


LABELS = {
    (0, 0): [label("position", "previous token")],
    (0, 1): [label("syntax", "dep:obj (dep->head)"), label("sink", "[CLS]")],
    (1, 0): [label("broad", "broad")],
}


def tables():
    texts = np.empty((LAYERS, HEADS), dtype=object)
    for place in np.ndindex(LAYERS, HEADS):
        miss = None if place in LABELS else label("broad", "broad")
        texts[place] = json.dumps({"labels": LABELS.get(place, []), "nearest_miss": miss})
    coordinates = {"layer": [0, 1], "head": [0, 1, 2]}
    labels = xr.Dataset({"labels": (["layer", "head"], texts.astype(str))}, coordinates)
    entropy = np.array([[0.1, 0.5, 0.9], [0.85, 0.6, np.nan]])
    columns = {"": 0.0, "_low": -0.03, "_high": 0.03}
    metrics = xr.Dataset(
        {f"entropy_normalised{end}": (["layer", "head"], entropy + shift) for end, shift in columns.items()},
        coordinates,
    )
    return labels, metrics, probes(coordinates)


def probes(coordinates):
    shape = (len(TASKS), 1, LAYERS, HEADS)
    dims = ["task", "site", "layer", "head"]
    accuracy = np.full(shape, 0.5)
    selectivity = np.full(shape, 0.1)
    accuracy[1, 0, 0, 1] = 0.9  # upos holds for L0H1
    accuracy[2, 0, 0, 1] = 0.8  # so does deprel, more selective
    selectivity[2, 0, 0, 1] = 0.3
    accuracy[3, 0, 1, 2] = 0.95  # ner holds for L1H2, which has no label
    accuracy[1, 0, 1, 1], selectivity[1, 0, 1, 1] = 0.9, 0.01  # accurate, not selective
    q = np.full(shape, 0.01)
    q[1, 0, 1, 1] = 0.2
    accuracy[0, 0, 0, 2] = 0.68  # over the majority, under a random model
    accuracy[0, 0, 1] = np.nan  # position was not fitted in layer 1
    random = np.full((2, *shape), 0.45)
    random[1, 0] = 0.7
    variables = {name: (dims, accuracy) for name in ("accuracy", "control")}
    variables |= {"accuracy_low": (dims, accuracy - 0.02), "accuracy_high": (dims, accuracy + 0.02)}
    variables |= {"selectivity": (dims, selectivity), "selectivity_low": (dims, selectivity - 0.05)}
    variables |= {
        "selectivity_q": (dims, q),
        "selectivity_high": (dims, selectivity + 0.05),
        "random": (["weights", *dims], random),
    }
    variables |= {name: (["task"], np.array([0.6] * 4)) for name in ("majority", "ceiling", "embedding_accuracy", "n")}
    return xr.Dataset(
        variables,
        {
            **coordinates,
            "task": list(TASKS),
            "task_kind": ("task", list(KINDS)),
            "site": ["context"],
            "weights": ["embeddings_kept", "all_random"],
        },
    )


@pytest.fixture(scope="module")
def found():
    labels, metrics, table = tables()
    return head_profiles(labels, table, metrics)


def test_agreement_follows_the_rules(found):
    agreement = found["agreement"]
    assert agreement.dims == ("evidence", "layer", "head")
    assert set(np.unique(agreement.values)) <= set(AGREEMENT)
    expected = {
        ("position", 0, 0): "attention only",
        ("syntax", 0, 1): "both",
        ("semantics", 1, 2): "probe only",
        ("syntax", 1, 1): "neither",  # selectivity may be 0
        ("position", 0, 2): "neither",  # a model with random weights does as well
        ("position", 1, 0): "not probed",
        ("syntax", 0, 0): "neither",
    }
    for (kind, layer, head), value in expected.items():
        assert agreement.sel(evidence=kind, layer=layer, head=head) == value


def test_the_record_carries_every_number_behind_it(found):
    record = json.loads(str(found["profile"].sel(layer=0, head=1).values))
    assert [finding["label"] for finding in record["syntax"]["attention"]] == ["dep:obj (dep->head)"]
    first, second = record["syntax"]["probe"]
    assert (first["task"], second["task"]) == ("deprel", "upos")
    assert first["holds"]
    assert first["random_all_random"] == 0.45
    assert {"accuracy_low", "control", "selectivity_high", "majority", "ceiling", "embedding_accuracy", "n"} <= set(
        first
    )
    assert [finding["family"] for finding in record["other"]] == ["sink"]
    unlabelled = json.loads(str(found["profile"].sel(layer=1, head=2).values))
    assert unlabelled["nearest_miss"]["family"] == "broad"


def test_verdicts_say_what_is_shown_and_what_is_not(found):
    said = found["verdict"]
    assert said.sel(layer=0, head=1) == (
        "syntax: looks there (dep:obj (dep->head)) and also carries deprel (selectivity 0.30); sink: [CLS]"
    )
    assert said.sel(layer=0, head=0) == (
        "position: looks there (previous token); its output is not shown to carry anything of this kind"
    )
    assert said.sel(layer=1, head=2) == "semantics: carries ner (selectivity 0.10), without a label for looking there"
    assert said.sel(layer=1, head=1) == "nothing shown"
    assert said.sel(layer=1, head=0) == "broad: broad"


def test_entropy_classes_need_their_whole_interval(found):
    assert found["entropy_class"].values.tolist() == [["focused", "mixed", "broad"], ["broad", "mixed", "unknown"]]


def test_entropy_goes_with_selectivity_over_heads(found):
    labels, metrics, table = tables()
    entropy = metrics["entropy_normalised"].values.ravel()
    kept = np.isfinite(entropy)
    expected = stats.spearmanr(entropy[kept], table["selectivity"].sel(task="upos").values.ravel()[kept]).statistic
    assert found["correlation"].sel(task="upos") == pytest.approx(expected)
    assert found["correlation_n"].sel(task="upos") == 5
    assert np.isnan(found["correlation"].sel(task="ner"))  # the same for all heads


def test_the_interval_of_a_rank_correlation_covers():
    """Pairs with a known Spearman correlation (normal, rho = 6 / pi * asin(r / 2)): covered in about 95 % of draws."""
    generator = np.random.default_rng(1)
    r, n, draws = 0.6, 72, 1000
    truth = 6 / np.pi * np.arcsin(r / 2)
    covered = 0
    for _ in range(draws):
        x = generator.normal(size=n)
        _, low, high, _ = rank_correlation(x, r * x + np.sqrt(1 - r * r) * generator.normal(size=n))
        covered += low <= truth <= high
    assert 0.93 <= covered / draws <= 0.97
    assert np.isnan(rank_correlation(np.arange(3.0), np.arange(3.0))[0])


def test_layers_and_heads_are_matched_by_name_not_by_place():
    labels, metrics, table = tables()
    later = head_profiles(labels, table.isel(layer=[1]), metrics)
    assert later["agreement"].sel(evidence="semantics", layer=1, head=2) == "probe only"
    assert later["agreement"].sel(evidence="syntax", layer=0, head=1) == "attention only"


def test_missing_parts_are_named():
    labels, metrics, table = tables()
    with pytest.raises(InputError, match="'contxt' was not probed; near names: context"):
        head_profiles(labels, table, metrics, site="contxt")
    with pytest.raises(InputError, match="entropy_normalised"):
        head_profiles(labels, table, metrics.drop_vars("entropy_normalised_low"))


def test_profiles_of_a_study_are_made_of_what_it_holds():
    labels, metrics, table = tables()
    whole = {"labels": labels, "metrics": metrics, "probes": table}
    assert profile_groups(whole)["profiles"].equals(head_profiles(labels, table, metrics))
    for name in whole:
        assert profile_groups({key: part for key, part in whole.items() if key != name}) == {}
    elsewhere = table.assign_coords(site=["q"])
    assert profile_groups({**whole, "probes": elsewhere})["profiles"].attrs["site"] == "q"
    with pytest.warns(UserWarning, match="no head profiles.*entropy_normalised"):
        assert profile_groups({**whole, "metrics": metrics.drop_vars("entropy_normalised")}) == {}
