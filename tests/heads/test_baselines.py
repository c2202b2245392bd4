"""What a head must beat: offsets for every relation, mentions for coreference, and how chance is counted."""

import json

import numpy as np
import pytest
import torch
import xarray as xr

from attnprobe.heads.baselines import NAMES
from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import ShardMeasurer, prepare
from attnprobe.heads.metrics import OFFSETS
from attnprobe.heads.relations import RIVALS, choose
from attnprobe.heads.specialise import label_table
from attnprobe.heads.tables import fold
from attnprobe.heads.tabulate import MARGIN, best_table, metric_tables, relation_table
from attnprobe.records import Sentence
from attnprobe.registry import METRICS
from attnprobe.text.batching import collate
from tests.heads.conftest import call_of, encode_by_hand
from tests.oracles import heads_relations as oracle

HEADS = ("antecedent", "nearest", "same word", "previous")
LENGTH, N_SENTENCES = 14, 240


def make_mentions(generator, number):
    """A sentence with six one-word mentions of three entities; half of the repeats use the same word."""
    places = np.sort(generator.choice(LENGTH, 6, replace=False))
    entities = generator.permutation([0, 0, 0, 1, 1, 2])
    words, misc, tags = [f"w{i}" for i in range(LENGTH)], [{} for _ in range(LENGTH)], ["NOUN"] * LENGTH
    for place, entity in zip(places, entities, strict=True):
        misc[place] = {"Entity": f"(e{entity}-x-1)"}
        words[place] = f"name{entity}" if generator.random() < 0.5 else f"he{place}"
        tags[place] = "PROPN" if words[place].startswith("name") else "PRON"
    return Sentence(
        f"s{number}", tuple(words), upos=tuple(tags), misc=tuple(misc), metadata={"global.Entity": "eid-etype-head"}
    )


def facts_of(sentence):
    found = oracle.mentions([own.get("Entity", "") for own in sentence.misc])
    return oracle.antecedents(found)


def planted(item):
    """One layer [1 head token token]: each head looks where its name says, from every query of a coreference case."""
    n = len(item)
    pattern = np.full((len(HEADS), n, n), 0.01 / n)
    pairs, heads = facts_of(item.sentence)
    for head, name in enumerate(HEADS):
        for query in range(LENGTH):
            keys = [key for q, key in pairs if q == query]
            target = {
                "antecedent": keys[0] if keys else None,
                "nearest": oracle.nearest(query, heads),
                "same word": oracle.nearest(query, heads, item.sentence.words),
                "previous": query - 1 if query else None,
            }[name]
            if target is not None:
                pattern[head, query + 1, target + 1] += 1
    return torch.from_numpy(pattern / pattern.sum(-1, keepdims=True))[None].float()


@pytest.fixture(scope="module")
def corpus():
    generator = np.random.default_rng(41)
    return [encode_by_hand(make_mentions(generator, number), [1] * LENGTH) for number in range(N_SENTENCES)]


@pytest.fixture(scope="module")
def sums(corpus):
    return summed(corpus, lambda number: number % 2)


def summed(corpus, split):
    """Sums of two shards, every sentence a cluster; `split` gives the split of each by its number."""
    shards = []
    for start in (0, N_SENTENCES // 3):
        items = corpus[: N_SENTENCES // 3] if start == 0 else corpus[N_SENTENCES // 3 :]
        cases = Cases(items, choose(["coref", "coref_words", "duplicate"]))
        measurer = ShardMeasurer(list(METRICS), cases, {"weights": None}, len(items))
        members = tuple(range(len(items)))
        prepared = prepare(collate(items, pad_id=0), members, cases, torch.device("cpu"))
        measurer.add(call_of([planted(item) for item in items], 0, prepared.roles), prepared)
        number = np.arange(len(items))
        shards.append(measurer.finish(number, split(number)))
    return fold(shards)


@pytest.fixture(scope="module")
def relations(sums):
    return relation_table(sums, ("weights",))


def test_rivals_and_chance_equal_loops(corpus, relations):
    wanted = {name: 0.0 for name in ("n", "nearest", "same-word", "chance", "chance of words")}
    for item in corpus:
        pairs, heads = facts_of(item.sentence)
        for query in sorted({query for query, _ in pairs}):
            keys = {key for q, key in pairs if q == query}
            wanted["n"] += 1
            wanted["nearest"] += oracle.nearest(query, heads) in keys
            wanted["same-word"] += oracle.nearest(query, heads, item.sentence.words) in keys
            wanted["chance"] += len(keys) / sum(head < query for head in heads)
            wanted["chance of words"] += len(keys) / query
    whole = relations.sel(split="all")
    mentions, words = whole.sel(relation="coref:antecedent"), whole.sel(relation="coref_words:antecedent")
    assert int(mentions["n"]) == int(words["n"]) == wanted["n"]
    for rival in RIVALS:
        assert (
            int(mentions["rival_hits"].sel(rival=rival)) == wanted[rival] == int(words["rival_hits"].sel(rival=rival))
        )
    assert float(mentions["chance"]) == pytest.approx(wanted["chance"] / wanted["n"])
    assert float(words["chance"]) == pytest.approx(wanted["chance of words"] / wanted["n"])
    assert bool(whole.sel(relation="duplicate")["rival_hits"].isnull().all())
    assert float(whole.sel(relation="duplicate")["chance"]) > 0


def test_heads_that_do_what_a_baseline_does_score_what_it_scores(relations):
    accuracy = relations["accuracy"].sel(scorer="weights", direction="dep->head", layer=0, split="all")
    hits = relations["rival_hits"].sel(split="all") / relations["n"].sel(split="all")
    for kind in ("antecedent", "pronoun", "proper"):
        name = f"coref:{kind}"
        assert float(accuracy.sel(relation=name, head=HEADS.index("antecedent"))) == 1.0
        found = float(accuracy.sel(relation=name, head=HEADS.index("nearest")))
        assert found == pytest.approx(float(hits.sel(relation=name, rival="nearest")))


def test_the_baseline_is_the_best_of_offsets_and_rivals_on_select(relations):
    names = [str(name) for name in relations["relation"].values]
    assert {"coref:antecedent", "coref:pronoun", "coref:proper", "duplicate"} <= set(names)
    for name in names:
        one = relations.sel(relation=name)
        for split, judged in (("select", "select"), ("select", "report"), ("all", "all")):
            hits = np.concatenate(
                [one["offset_hits"].sel(split=split), np.nan_to_num(one["rival_hits"].sel(split=split))]
            )
            place = int(np.argmax(hits))
            again = np.concatenate(
                [one["offset_hits"].sel(split=judged), np.nan_to_num(one["rival_hits"].sel(split=judged))]
            )
            assert str(one["baseline_name"].sel(split=judged).values) == NAMES[place]
            assert float(one["baseline"].sel(split=judged)) == pytest.approx(
                again[place] / float(one["n"].sel(split=judged))
            )
            offset = float(one["baseline_offset"].sel(split=judged))
            assert np.isnan(offset) if place >= len(OFFSETS) else offset == OFFSETS[place]
    assert str(relations["baseline_name"].sel(split="report", relation="coref:proper").values) in RIVALS


def test_differences_are_paired_with_the_chosen_baseline(relations, sums):
    """A head that copies the baseline differs from it nowhere: no difference, no error, p = 1 or not tested."""
    one = relations.sel(relation="coref:antecedent", split="all", scorer="weights", direction="dep->head", layer=0)
    name = str(one["baseline_name"].values)
    assert name == "nearest"  # it always chooses something, as the head does
    copy = one.sel(head=HEADS.index("nearest"))
    assert float(copy["difference"]) == float(copy["difference_low"]) == float(copy["difference_high"]) == 0
    gold = one.sel(head=HEADS.index("antecedent"))
    assert float(gold["difference"]) == pytest.approx(1 - float(one["baseline"]))
    assert float(gold["difference_low"]) > 0


def test_only_the_head_that_finds_antecedents_is_labelled_with_them(sums, relations):
    labels = label_table(metric_tables(sums)[1], relations, margin=MARGIN)
    found = {
        head: [
            item
            for item in json.loads(str(labels["labels"].values[0, place]))["labels"]
            if item["family"] == "semantics"
        ]
        for place, head in enumerate(HEADS)
    }
    assert {item["relation"] for item in found["antecedent"]} >= {"coref:antecedent", "coref:pronoun", "coref:proper"}
    assert all(item["baseline_name"] in NAMES for item in found["antecedent"])
    assert not [item for item in found["nearest"] if item["relation"] == "coref:antecedent"]
    assert not found["previous"]


def test_the_table_of_best_heads_names_the_baseline(relations):
    best = best_table(relations).sel(relation="coref:antecedent")
    report = relations.sel(relation="coref:antecedent", split="report")
    assert int(best["head"]) == HEADS.index("antecedent")
    assert str(best["baseline_name"].values) == str(report["baseline_name"].values)


def test_without_a_case_on_select_nothing_is_chosen_and_nothing_is_found(corpus, relations):
    alone = relation_table(summed(corpus, lambda number: 0 * number + 1), ("weights",))
    whole, report = (alone.sel(split=split) for split in ("all", "report"))
    for name in ("accuracy", "baseline", "baseline_offset", "baseline_name", "difference", "difference_low"):
        xr.testing.assert_equal(whole[name].drop_vars("split"), relations[name].sel(split="all").drop_vars("split"))
    xr.testing.assert_equal(report["accuracy"].drop_vars("split"), whole["accuracy"].drop_vars("split"))
    for name in ("baseline", "baseline_offset", "difference", "difference_low", "difference_high"):
        assert report[name].isnull().all(), name
    assert (report["baseline_name"] == "").all()
    assert alone["p_adjusted"].isnull().all()

    best = best_table(alone)
    for name, value in best.drop_vars("relation").items():
        expected = {"n": whole["n"].values, "n_select": 0.0, "layer": -1, "head": -1}
        if value.dtype.kind == "f" and name not in expected:
            assert value.isnull().all(), name
        else:
            assert (value.values == expected.get(name, "")).all(), name


def test_without_a_case_on_report_the_choice_stands_and_is_not_judged(corpus, relations):
    alone = best_table(relation_table(summed(corpus, lambda number: 0 * number), ("weights",)))
    assert int(alone["head"].sel(relation="coref:antecedent")) == HEADS.index("antecedent")
    assert alone["accuracy"].isnull().all()
    assert alone["difference"].isnull().all()
    assert (alone["accuracy_select"] > 0).any()


def test_a_mention_without_token_is_no_case_and_no_candidate(corpus):
    sentence = Sentence(
        "s",
        ("he", "x", "she", "he"),
        misc=({"Entity": "(a-x-1)"}, {}, {"Entity": "(b-x-1)"}, {"Entity": "(a-x-1)"}),
        metadata={"global.Entity": "eid-etype-head"},
    )
    whole = Cases([encode_by_hand(sentence, [1, 1, 1, 1])], choose(["coref"]))
    assert whole.keys == [(0,)]
    assert whole.chance.tolist() == [0.5]
    no_rival = Cases([encode_by_hand(sentence, [1, 1, 0, 1])], choose(["coref"]))
    assert no_rival.chance.tolist() == [1.0]
    no_key = Cases([encode_by_hand(sentence, [0, 1, 1, 1])], choose(["coref"]))
    assert (len(no_key), no_key.left_out, no_key.of_relation) == (0, 1, {})
    assert no_key.rival_hits("coref:antecedent") is None


def test_by_chance_one_of_the_other_words_with_a_token_is_right():
    sentence = Sentence("s", tuple("abcd"), heads=(2, 0, 2, 3), deprels=("det", "root", "obj", "det"))
    assert Cases([encode_by_hand(sentence, [1, 2, 0, 1])], choose(["dep:det"])).chance.tolist() == [1 / 2]
