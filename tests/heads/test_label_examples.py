"""Best, typical and worst sentences of a label: loops over captures, ties, and how many are kept."""

import json
from importlib.resources import files

import numpy as np
import pytest
import xarray as xr

import attnprobe.heads.label_examples as module
from attnprobe import capture, read_conllu, run
from attnprobe.heads.examples import legible
from attnprobe.heads.label_examples import _chosen, _pick, label_examples
from attnprobe.text.align import encode
from tests.oracles import relation_scores

PREVIOUS = {"family": "position", "label": "previous token", "metric": "offset_argmax", "offset": -1, "score": 0.9}
DET = {
    "family": "syntax",
    "label": "dep:det (dep->head)",
    "relation": "dep:det",
    "direction": "dep->head",
    "scorer": "weights",
    "score": 0.6,
}
AMOD = {**DET, "relation": "dep:amod", "direction": "head->dep", "label": "dep:amod (head->dep)", "score": 0.5}


@pytest.fixture(scope="module")
def items(minilm):
    corpus = read_conllu(str(files("attnprobe") / "data/treebank/en_attnprobe.conllu"))
    return [item for item, _ in zip(encode(minilm.tokenizer, corpus), range(90), strict=False)]


def table(labels):
    """`/labels` of 6 layers and 12 heads with these labels: {(layer, head): [label]}."""
    texts = np.full((6, 12), json.dumps({"labels": [], "nearest_miss": None}), dtype=object)
    for place, own in labels.items():
        texts[place] = json.dumps({"labels": own, "nearest_miss": None})
    return xr.Dataset({"labels": (["layer", "head"], texts.astype(str))}, attrs={"rules": "told"})


def score(model, item, label, layer, head):
    """(score, n) of one sentence, from a capture of it alone."""
    sentence, pattern = item.sentence, capture(model, item.sentence).layer(layer).pattern[0, head].numpy()
    if label is PREVIOUS:
        hits = [int(pattern[i].argmax() == i - 1) for i in range(2, len(item) - 1)]
        return np.mean(hits), len(hits)
    name = label["relation"].split(":")[1]
    pairs = [
        (i, h - 1) for i, (h, r) in enumerate(zip(sentence.heads, sentence.deprels, strict=True)) if h and r == name
    ]
    found = relation_scores.hits(pattern, item.alignment.word_index.tolist(), len(sentence), pairs, label["direction"])
    return (np.mean(list(found.values())), len(found)) if found else (np.nan, 0)


@pytest.fixture(scope="module")
def groups(minilm, items):
    return label_examples(minilm, table({(0, 2): [PREVIOUS], (2, 8): [DET, AMOD]}), iter(items), taken=6)


@pytest.mark.parametrize(("layer", "head", "number", "label"), [(0, 2, 0, PREVIOUS), (2, 8, 0, DET), (2, 8, 1, AMOD)])
def test_sentences_are_those_with_the_highest_nearest_and_lowest_score(
    minilm, items, groups, layer, head, number, label
):
    pool = [item for item in items if legible(item)]
    wanted = np.array([score(minilm, item, label, layer, head) for item in pool])
    chosen = json.loads(str(groups["labels"]["labels"].values[layer, head]))["labels"][number]["examples"]
    assert set(chosen) == {"best", "typical", "worst"}
    assert len({one["example"] for one in chosen.values()}) == 3
    known = wanted[~np.isnan(wanted[:, 0])]
    assert chosen["best"]["score"] == pytest.approx(known[:, 0].max())
    assert chosen["best"]["n"] == known[known[:, 0] == known[:, 0].max()][:, 1].max()
    assert chosen["worst"]["score"] == pytest.approx(known[:, 0].min())
    rest = np.delete(known[:, 0], [known[:, 0].argmax(), known[:, 0].argmin()])
    nearest = np.abs(rest - label["score"]).min()
    assert abs(chosen["typical"]["score"] - label["score"]) == pytest.approx(nearest, abs=1e-6)
    for one in chosen.values():
        example = groups[f"examples/{one['example']}"]
        [place] = [i for i, item in enumerate(pool) if item.sentence.id == example.attrs["id"]]
        assert (one["score"], one["n"]) == pytest.approx(tuple(wanted[place]))


@pytest.mark.parametrize(("number", "label"), [(0, DET), (1, AMOD)])
def test_cases_tell_which_words_made_the_score(minilm, items, groups, number, label):
    """Word by word against a capture: who looks, what is right, and what the head takes instead."""
    found = json.loads(str(groups["labels"]["labels"].values[2, 8]))["labels"][number]["examples"]
    own = label["relation"].split(":")[1]
    for one in found.values():
        of_id = groups[f"examples/{one['example']}"].attrs["id"]
        [item] = [item for item in items if legible(item) and item.sentence.id == of_id]
        sentence, index = item.sentence, np.array(item.alignment.word_index)
        pattern = capture(minilm, sentence).layer(2).pattern[0, 8].numpy()
        words = range(len(sentence))
        weights = np.array([[pattern[index == q][:, index == k].sum(1).mean() for k in words] for q in words])
        weights = weights if label["direction"] == "dep->head" else weights.T
        np.fill_diagonal(weights, -1)
        cases = {case["word"]: case for case in one["cases"]}
        assert sorted(cases) == [
            i for i, (h, r) in enumerate(zip(sentence.heads, sentence.deprels, strict=True)) if h and r == own
        ]
        for word, case in cases.items():
            assert case["right"] == [sentence.heads[word] - 1]
            assert case["chosen"] == weights[word].argmax()
            assert case["hit"] == (case["chosen"] in case["right"])
        assert np.mean([case["hit"] for case in cases.values()]) == pytest.approx(one["score"])


def test_what_is_chosen_agrees_with_the_score_and_with_what_may_be_chosen():
    weights = np.array([0.5, 0.2, 0.2, 0.1])
    every = np.ones(4, dtype=bool)
    assert _chosen(weights, 3, [1], every, hit=False) == 0
    assert _chosen(weights, 0, [2], every, hit=True) == 2  # equal weights, of which rounding may prefer the other
    assert _chosen(weights, 0, [1], every, hit=False) == 2
    assert _chosen(weights, 3, [1], np.array([False, True, True, True]), hit=False) == 2
    assert _chosen(weights, 3, [1], np.array([False, True, False, True]), hit=False) is None


def test_examples_are_whole_patterns_and_go_on_counting(minilm, groups):
    names = [name for name in groups if name.startswith("examples/")]
    assert names == [f"examples/e{6 + number}" for number in range(len(names))]
    assert 3 <= len(names) <= 9
    for name in names:
        pattern = groups[name]["pattern"]
        assert pattern.dtype == np.uint8
        assert pattern.sizes["layer"], pattern.sizes["head"] == (6, 12)
        np.testing.assert_allclose(pattern.values.sum(-1) / 255, 1, atol=0.06)
    assert groups["labels"].attrs == {"rules": "told"}


def test_no_more_sentences_are_kept_than_the_limit(minilm, items, monkeypatch):
    monkeypatch.setattr(module, "MOST", 4)
    labels = {(layer, head): [PREVIOUS, DET] for layer in range(3) for head in range(3)}
    groups = label_examples(minilm, table(labels), iter(items))
    names = {name.split("/")[1] for name in groups if name.startswith("examples/")}
    assert len(names) <= 5  # the limit is looked at before each label's picks are made
    for layer, head in labels:
        for label in json.loads(str(groups["labels"]["labels"].values[layer, head]))["labels"]:
            assert {one["example"] for one in label["examples"].values()} <= names


def test_ties_go_to_the_sentence_with_most_cases_and_then_to_the_first():
    values = np.array([1.0, 1.0, np.nan, 1.0, 0.0, 0.0, 0.5])
    n = np.array([2.0, 5.0, 0.0, 5.0, 1.0, 3.0, 1.0])
    kept = []
    assert _pick(values, n, 0.6, kept) == {"best": 1, "worst": 5, "typical": 6}
    assert kept == [1, 5, 6]
    assert _pick(np.full(3, np.nan), np.zeros(3), 0.5, kept) == {}
    assert _pick(np.array([0.3]), np.ones(1), 0.5, []) == {"best": 0}


def test_without_labels_or_legible_sentences_nothing_is_added(minilm, items):
    assert label_examples(minilm, table({}), iter(items)) == {}
    assert label_examples(minilm, table({(0, 2): [PREVIOUS]}), iter([])) == {}


def test_a_run_gives_its_labels_their_sentences(minilm):
    corpus = read_conllu(str(files("attnprobe") / "data/treebank/en_attnprobe.conllu"))
    metrics = ["offset_argmax", "special_mass"]
    study = run(
        minilm, corpus, metrics=metrics, relations=["dep:det"], extras=["examples"], examples=2, max_sentences=120
    )
    names = set(study.tree["examples"].children)
    assert {"e0", "e1"} < names
    found = 0
    for text in study["labels"]["labels"].values.ravel():
        for label in json.loads(str(text))["labels"]:
            found += 1
            assert {one["example"] for one in label["examples"].values()} <= names - {"e0", "e1"}
    assert found
    plain = run(minilm, corpus, metrics=metrics, relations=["dep:det"], examples=2, max_sentences=120)
    np.testing.assert_array_equal(plain["metrics"]["offset_argmax"], study["metrics"]["offset_argmax"])
