"""Heads whose function is known: all must be found and rightly named, and heads that only mix offsets get no syntactic label."""

import json

import numpy as np
import pytest
import torch
import xarray as xr

from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import ShardMeasurer, prepare
from attnprobe.heads.relations import choose
from attnprobe.heads.specialise import label_table
from attnprobe.heads.tables import fold
from attnprobe.heads.tabulate import MARGIN, best_table, metric_tables, relation_table
from attnprobe.registry import METRICS
from attnprobe.text.align import PAD
from attnprobe.text.batching import collate
from tests.heads.conftest import call_of, encode_by_hand, make_sentence

HEADS = ("previous", "next", "itself", "cls", "broad", "gold", "transposed", "offsets", "subject")
N_SENTENCES, LENGTH = 240, 11


def random_tree(generator, length):
    """Heads of a random tree: each word but the root hangs on any word before it in a random order."""
    order = generator.permutation(length)
    heads = np.zeros(length, int)
    for rank, word in enumerate(order[1:], start=1):
        heads[word] = order[generator.integers(rank)] + 1
    return heads.tolist()


def planted(item, generator):
    """One layer of patterns [1 head token token], each head doing what its name says (with a little noise)."""
    n = len(item)
    sentence = item.sentence
    pattern = np.full((len(HEADS), n, n), 0.02 / n)
    rows = np.arange(n)
    gold = np.array(
        [h if h else i + 1 for i, h in enumerate(sentence.heads)]
    )  # token of the head: words start at token 1
    for head, name in enumerate(HEADS):
        target = rows.copy()
        if name == "previous":
            target = np.maximum(rows - 1, 0)
        elif name == "next":
            target = np.minimum(rows + 1, n - 1)
        elif name == "cls":
            target = np.zeros(n, int)
        elif name == "gold":
            target[1:-1] = gold
        elif name == "offsets":
            target = np.clip(rows + generator.choice([-3, -2, 2, 3], n), 0, n - 1)
        elif name == "subject":
            wanted = [i for i, label in enumerate(sentence.deprels) if label == "nsubj" and sentence.heads[i]]
            for i in wanted:
                target[i + 1] = gold[i]
        if name == "transposed":
            pattern[head] = 0.5 / n
            for i in range(1, n - 1):
                pattern[head, gold[i - 1], i] += 1.0
        elif name == "broad":
            pattern[head] = 1 / n
        else:
            pattern[head, rows, target] += 1.0
    return torch.from_numpy(pattern / pattern.sum(-1, keepdims=True))[None].float()


@pytest.fixture(scope="module")
def tables():
    generator = np.random.default_rng(29)
    shards = []
    for shard in range(3):
        items = []
        for number in range(N_SENTENCES // 3):
            heads = random_tree(generator, LENGTH)
            labels = ["root" if h == 0 else str(generator.choice(["nsubj", "obj", "amod"])) for h in heads]
            name = f"{shard}-{number}"
            items.append(encode_by_hand(make_sentence(name, name, heads, labels), [1] * LENGTH))
        patterns = [planted(item, generator) for item in items]
        cases = Cases(items, choose(["dep", "udep"]))
        measurer = ShardMeasurer(list(METRICS), cases, {"weights": None}, len(items))
        for start in range(0, len(items), 16):
            batch = tuple(range(start, min(start + 16, len(items))))
            prepared = prepare(collate([items[place] for place in batch], pad_id=0), batch, cases, torch.device("cpu"))
            assert not bool((prepared.roles == PAD).any())
            measurer.add(call_of([patterns[place] for place in batch], 0, prepared.roles), prepared)
        number = np.arange(len(items))
        shards.append(measurer.finish(number, number % 2))
    sums = fold(shards)
    by_split = metric_tables(sums)[1]
    relations = relation_table(sums, ("weights",))
    labels = label_table(by_split, relations, margin=MARGIN)
    return by_split, relations, labels


def labels_of(tables, name):
    return json.loads(str(tables[2]["labels"].values[0, HEADS.index(name)]))


@pytest.mark.parametrize(
    ("head", "family", "label"),
    [
        ("previous", "position", "previous token"),
        ("next", "position", "next token"),
        ("itself", "position", "itself"),
        ("cls", "sink", "[CLS]"),
        ("broad", "broad", "broad"),
    ],
)
def test_planted_heads_get_their_label_and_no_other_family(tables, head, family, label):
    found = labels_of(tables, head)["labels"]
    assert {item["label"] for item in found} == {label}
    assert {item["family"] for item in found} == {family}
    assert all(item["low"] >= item["threshold"] and item["n"] >= 100 for item in found)


def test_a_gold_head_is_right_for_every_relation_in_its_direction_only(tables):
    relations = tables[1]
    gold = relations["accuracy"].sel(split="all", scorer="weights", layer=0, head=HEADS.index("gold"))
    assert bool((gold.sel(direction="dep->head") == 1).all())
    assert bool((gold.sel(direction="head->dep") < 0.7).all())
    transposed = relations["accuracy"].sel(split="all", scorer="weights", layer=0, head=HEADS.index("transposed"))
    assert bool((transposed.sel(direction="head->dep") == 1).all())
    assert bool((transposed.sel(direction="dep->head") < 0.7).all())
    names = {item["relation"] for item in labels_of(tables, "gold")["labels"] if item["family"] == "syntax"}
    assert {"dep:nsubj", "dep:obj", "dep:amod", "dep:ALL"} <= names


def test_a_head_forrelation_sums_is_labelled_with_it(tables):
    found = [item for item in labels_of(tables, "subject")["labels"] if item["family"] == "syntax"]
    names = {item["relation"] for item in found if item["direction"] == "dep->head" and item["score"] > 0.99}
    assert names == {"dep:nsubj", "udep:nsubj"}
    item = next(item for item in found if item["relation"] == "dep:nsubj")
    assert item["difference"] == pytest.approx(item["score"] - item["baseline"], abs=1e-9)
    assert item["p_adjusted"] < 0.05
    assert item["difference_low"] > 0.05


def test_a_head_that_mixes_offsets_gets_no_syntactic_label_but_a_nearest_miss(tables):
    found = labels_of(tables, "offsets")
    assert not [item for item in found["labels"] if item["family"] == "syntax"]
    assert found["nearest_miss"]["short_by"] > 0


def test_a_miss_of_a_relation_says_what_it_missed(tables):
    by_split, relations, _ = tables

    def told(head, changed, margin=MARGIN):
        text = label_table(
            by_split[["entropy", "entropy_low", "entropy_high", "entropy_count"]], changed, margin=margin
        )
        return json.loads(str(text["labels"].values[0, HEADS.index(head)]))

    assert "missed" not in told("gold", relations)["labels"][0]
    short = told("offsets", relations)["nearest_miss"]
    assert (short["missed"], short["short_by"]) == ("gain", pytest.approx(MARGIN - short["difference"]))
    for p, why in ((np.nan, "select"), (0.3, "p")):
        miss = told("gold", relations.assign(p_adjusted=xr.full_like(relations["p_adjusted"], p)))
        assert miss["labels"] == []
        assert (miss["nearest_miss"]["missed"], miss["nearest_miss"]["short_by"]) == (why, 0.0)


def test_best_table_takes_the_gold_head(tables):
    best = best_table(tables[1])
    assert str(best["direction"].sel(relation="dep:obj").values) in ("dep->head", "head->dep")
    assert int(best["head"].sel(relation="dep:obj")) in (HEADS.index("gold"), HEADS.index("transposed"))
    assert float(best["accuracy"].sel(relation="dep:obj")) == 1.0


def test_universal_relations_that_repeat_a_full_label_are_tested_once(tables):
    relations = tables[1]
    same = (
        relations["p_adjusted"].sel(relation="udep:nsubj").values,
        relations["p_adjusted"].sel(relation="dep:nsubj").values,
    )
    np.testing.assert_array_equal(*same)


def test_all_is_the_sum_of_the_splits(tables):
    relations = tables[1]
    for name in ("hits", "n", "offset_hits", "ties", "no_mass"):
        table = relations[name]
        np.testing.assert_array_equal(
            table.sel(split="all"), table.sel(split="select").values + table.sel(split="report").values
        )


def test_the_baseline_on_report_is_the_offset_chosen_on_select(tables):
    relations = tables[1]
    for name in relations["relation"].values:
        one = relations.sel(relation=name)
        rates = one["offset_hits"] / one["n"]
        chosen = one["offset"].values[int(np.argmax(rates.sel(split="select").values))]
        assert one["baseline_offset"].sel(split="report") == chosen
        assert one["baseline"].sel(split="report") == pytest.approx(float(rates.sel(split="report", offset=chosen)))
        assert one["baseline"].sel(split="all") == pytest.approx(float(rates.sel(split="all").max()))
