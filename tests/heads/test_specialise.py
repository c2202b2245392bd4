"""Labels at their thresholds, and what choosing the best of many heads does to a score."""

import json

import numpy as np
import pytest

from attnprobe.heads.answers import relation_sums
from attnprobe.heads.metrics import OFFSETS, TARGETS
from attnprobe.heads.specialise import label_table
from attnprobe.heads.tables import ShardSums, by_split
from attnprobe.heads.tabulate import MARGIN, best_table, metric_tables, relation_table
from attnprobe.registry import METRICS

CLUSTERS, ROWS = 200, 100
"""Clusters, half of them of each split, and rows of each."""


def labels_at(metric, place, value, *, select=None, rows=ROWS, absent=()):
    """Labels of one head whose metric is `value` at one place of its extra dimension, and 0 elsewhere, in every cluster of `report`.

    At the places `absent` nothing was counted.
    """
    split = np.arange(CLUSTERS) % 2
    wanted = np.where(split == 0, value if select is None else select, value)
    extra = METRICS[metric].extra
    shape = (CLUSTERS, 1, 1, *([len(extra[1])] if extra else []))
    y = np.zeros(shape)
    y[(slice(None), 0, 0, *([place] if extra else []))] = wanted * rows
    n = np.full(shape, float(rows))
    n[..., list(absent)] = 0.0
    sums = ShardSums({metric: by_split(y, n, split)}, {}, (("encoder", 0, 1),))
    table = label_table(metric_tables(sums)[1], None, margin=MARGIN)
    return json.loads(str(table["labels"].values[0, 0]))


RULES = [
    ("offset_argmax", OFFSETS.index(-1), 0.90, "position", "previous token"),
    ("offset_mass", OFFSETS.index(1), 0.50, "position", "next token"),
    ("special_argmax", TARGETS.index("self"), 0.90, "position", "itself"),
    ("special_mass", TARGETS.index("self"), 0.50, "position", "itself"),
    ("special_mass", TARGETS.index("sep"), 0.60, "sink", "[SEP]"),
    ("entropy_normalised", None, 0.80, "broad", "broad"),
]


@pytest.mark.parametrize(("metric", "place", "threshold", "family", "label"), RULES)
def test_a_label_begins_where_the_lower_bound_reaches_its_threshold(metric, place, threshold, family, label):
    """Clusters agree, so that Wilson's interval on 10,000 rows is about a point wide: 2 points over are enough, half a point is not."""
    [found] = labels_at(metric, place, threshold + 0.02)["labels"]
    assert (found["family"], found["label"], found["n"]) == (family, label, ROWS * CLUSTERS // 2)
    assert threshold <= found["low"] < found["score"] == pytest.approx(threshold + 0.02)
    for value in (threshold, threshold + 0.004, threshold - 0.01):
        told = labels_at(metric, place, value)
        assert told["labels"] == []
        assert (told["nearest_miss"]["family"], told["nearest_miss"]["label"]) == (family, label)
        assert told["nearest_miss"]["short_by"] == pytest.approx(threshold - told["nearest_miss"]["low"])


def test_the_first_token_is_a_sink_where_it_is_no_special_token():
    first, cls = (TARGETS.index(name) for name in ("first", "cls"))
    [found] = labels_at("special_mass", first, 0.7, absent=[cls])["labels"]
    assert (found["family"], found["label"]) == ("sink", "first token")
    assert labels_at("special_mass", first, 0.7)["labels"] == []  # [CLS] is the first token, and has a label of its own


def test_the_rule_must_hold_on_report():
    place = OFFSETS.index(-1)
    assert labels_at("offset_mass", place, 0.9, select=0.1)["labels"]
    assert not labels_at("offset_mass", place, 0.1, select=0.9)["labels"]


def test_under_a_hundred_rows_nothing_is_labelled():
    place = OFFSETS.index(-1)
    assert labels_at("offset_mass", place, 0.99, rows=1.0)["labels"]  # 100 rows on report
    told = labels_at("offset_mass", place, 0.99, rows=0.99)
    assert told == {"labels": [], "nearest_miss": None}


def test_the_best_of_many_heads_of_no_merit_reads_high_on_select_and_honestly_on_report():
    """288 candidates that are right in 40 % of 116 cases each: the best of them reads over 50 % where it was chosen."""
    generator, n = np.random.default_rng(17), 116
    chosen, judged = [], []
    for _ in range(40):
        hits = generator.random((2 * n, 1, 2, 12, 12)) < 0.4
        offsets = generator.random((2 * n, len(OFFSETS))) < 0.3
        split, nothing = np.arange(2 * n) % 2, np.zeros_like(hits)
        sums = relation_sums((hits, nothing, nothing), (offsets, None, np.full(2 * n, 0.1)), np.arange(2 * n), split)
        modules = tuple(("encoder", layer, 12) for layer in range(12))
        best = best_table(relation_table(ShardSums({}, {"dep:prt": sums}, modules), ("weights",)))
        chosen.append(float(best["accuracy_select"][0]))
        judged.append(float(best["accuracy"][0]))
    assert np.mean(chosen) == pytest.approx(0.53, abs=0.02)
    assert np.mean(judged) == pytest.approx(0.40, abs=0.02)
