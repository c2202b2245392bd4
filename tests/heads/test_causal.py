"""Causal checks of labels against ablation by weights, word by word, and on a head whose use is planted."""

import json
from functools import partial

import numpy as np
import pytest
import torch
import xarray as xr

from attnprobe.heads import _watch
from attnprobe.heads._contrast import contrast
from attnprobe.heads.causal import add_causal_checks, by_word
from attnprobe.models.load import load
from attnprobe.records import Sentence
from attnprobe.stream import t_quantile
from attnprobe.text.align import encode
from attnprobe.text.batching import split_of_sentence
from tests.heads.conftest import encode_by_hand, make_sentence
from tests.oracles import importance_weights as oracle
from tests.tiny import HEAD_DIM, build, byte_tokenizer

FAMILY_OF_HEAD = {"bert": "BertForMaskedLM", "gpt2": "GPT2LMHeadModel"}


def tiny(family="bert", head=None, **changes):
    module = build(family, head=head, **changes).double()
    tokenizer = byte_tokenizer(specials=family == "bert")
    if family != "bert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return load((module, tokenizer))


def corpus_of(n=24, seed=5):
    """Short sentences of letters, two to a document; `obj` hangs on the word `y`, wherever it stands."""
    generator = np.random.default_rng(seed)
    sentences = []
    for number in range(n):
        words = ["x", "y", *generator.choice(list("abcd"), generator.integers(1, 4))]
        order = generator.permutation(len(words))
        words = [words[place] for place in order]
        root = words.index("y")
        heads = [0 if place == root else root + 1 for place in range(len(words))]
        labels = ["root" if word == "y" else "obj" if word == "x" else "advmod" for word in words]
        sentences.append(
            Sentence(f"s{number}", tuple(words), document=f"d{number // 2}", heads=tuple(heads), deprels=tuple(labels))
        )
    return sentences


SENTENCES = corpus_of()


def items_of(model, sentences=SENTENCES):
    return list(encode(model.tokenizer, sentences, max_length=model.max_length))


def labelled(*claims, shape=(2, 3)):
    """A table of labels: (layer, head, relation, direction) each."""
    told = np.empty(shape, dtype=object)
    for place in np.ndindex(*shape):
        told[place] = {"labels": [{"family": "broad", "label": "broad", "metric": "entropy"}], "nearest_miss": None}
    for layer, head, relation, direction in claims:
        label = {
            "family": "syntax",
            "label": relation,
            "relation": relation,
            "direction": direction,
            "scorer": "weights",
        }
        told[layer, head]["labels"].append(label)
    texts = np.vectorize(json.dumps, otypes=[object])(told).astype(str)
    return xr.Dataset({"labels": (["layer", "head"], texts)}, attrs={"rules": "{}"})


def evidence_of(table, layer, head, place=1):
    return json.loads(str(table["labels"].values[layer, head]))["labels"][place]["causal"]


def reported(items, relation="obj"):
    return [
        item
        for item in items
        if relation in item.sentence.deprels and split_of_sentence(item.sentence, "document") == "report"
    ]


def losses(module, family, ids, places, targets):
    """-log p of each target at its place."""
    with torch.no_grad():
        logits = module(input_ids=torch.tensor([ids])).logits[0]
    return {p: float(torch.logsumexp(logits[p], 0) - logits[p, t]) for p, t in zip(places, targets, strict=True)}


def expected(model, family, layer, heads, items, *, loss):
    """(here, elsewhere) of each head at `x` and at the other words, by ablation of the weights."""
    plain = [item.input_ids.tolist() for item in items]
    z = torch.cat(
        [oracle.contexts(model.module, family, layer, {"input_ids": torch.tensor([ids])})[0] for ids in plain]
    )
    found = []
    for head in heads:
        mean = z[:, head * HEAD_DIM : (head + 1) * HEAD_DIM].mean(0)
        pairs = {True: [], False: []}
        for item, ids in zip(items, plain, strict=True):
            if loss:
                data = _watch.given(model, [item], _watch.watched_of(model), 0)
                ids = data.inputs["input_ids"][0].tolist()
                places = torch.nonzero(data.scored[0]).flatten().tolist()
                measure = partial(losses, model.module, family, ids, places, data.targets[0, places].tolist())
            else:
                measure = partial(oracle.states, model.module, ids)
            before = measure()
            with oracle.put(model.module, family, layer, head, HEAD_DIM, mean):
                after = measure()
            for word, text in enumerate(item.sentence.words):
                values = []
                for token in np.flatnonzero(item.alignment.word_index == word):
                    if loss and token in before:
                        values.append(after[token] - before[token])
                    elif not loss:
                        values.append(oracle.turned(before[token : token + 1], after[token : token + 1]))
                if values:
                    pairs[text == "x"].append(np.mean(values))
        found.append((np.mean(pairs[True]), np.mean(pairs[False])))
    return found


@pytest.mark.parametrize(("family", "headed"), [("bert", False), ("bert", True), ("gpt2", True)])
def test_evidence_is_that_of_ablated_weights_word_by_word(family, headed):
    model = tiny(family, FAMILY_OF_HEAD[family] if headed else None)
    items = items_of(model)
    table = add_causal_checks(model, labelled((1, 2, "dep:obj", "dep->head")), items)
    evidence = evidence_of(table, 1, 2)
    assert evidence["random_heads"] == [0, 1]
    chosen = reported(items)
    assert evidence["sentences"] == len(chosen)
    assert evidence["n"] == len(chosen)
    assert ("loss" in evidence) == headed
    for told, loss in [(evidence, False), *([(evidence["loss"], True)] if headed else [])]:
        (here, elsewhere), *others = expected(model, family, 1, [2, 0, 1], chosen, loss=loss)
        assert told["here"] == pytest.approx(here, abs=1e-9)
        assert told["elsewhere"] == pytest.approx(elsewhere, abs=1e-9)
        assert told["difference"] == pytest.approx(here - elsewhere, abs=1e-9)
        random = np.mean([a - b for a, b in others])
        assert told["random_difference"] == pytest.approx(random, abs=1e-9)
        assert told["excess"] == pytest.approx(here - elsewhere - random, abs=1e-9)
        assert told["low"] < told["difference"] < told["high"]
        assert told["excess_low"] < told["excess"] < told["excess_high"]
        assert told["unit"] == ("nats" if loss else "1")


def plant(model, reader, read):
    """Head (0, 0) made to look from `reader` at `read` and take a large value, from all other words at the first token and take nothing."""
    module, tokenizer = model.module, model.tokenizer
    words = ["<s>", "</s>", "Ġ", *"abcdxy"]
    ids = tokenizer.convert_tokens_to_ids(words)
    embeddings = module.embeddings
    for table in (embeddings.position_embeddings, embeddings.token_type_embeddings):
        table.weight.data.zero_()
    with torch.no_grad():
        inputs = embeddings(torch.tensor([ids]))[0]
    wanted = {name: torch.zeros(len(words), HEAD_DIM, dtype=torch.float64) for name in ("query", "key", "value")}
    wanted["query"][:, 1] = 9.0
    wanted["query"][words.index(reader)] = 9.0 * torch.eye(HEAD_DIM)[0]
    wanted["key"][words.index(read), 0] = 9.0
    wanted["key"][words.index("<s>"), 1] = 9.0
    wanted["value"][words.index(read)] = 3.0
    for name, rows in wanted.items():
        linear = getattr(module.encoder.layer[0].attention.self, name)
        linear.weight.data[:HEAD_DIM] = torch.linalg.lstsq(inputs, rows).solution.T
        linear.bias.data[:HEAD_DIM] = 0.0
    return model


def test_a_planted_head_is_supported_and_a_head_of_its_layer_is_not():
    model = plant(tiny(num_hidden_layers=1), "x", "y")
    table = add_causal_checks(
        model,
        labelled((0, 0, "dep:obj", "dep->head"), (0, 1, "dep:obj", "dep->head"), shape=(1, 3)),
        items_of(model),
    )
    planted, other = evidence_of(table, 0, 0), evidence_of(table, 0, 1)
    assert planted["supported"]
    assert planted["excess_low"] > 0
    assert planted["here"] > 3 * planted["elsewhere"]
    assert not other["supported"]
    assert other["excess"] < 0


def test_a_head_that_reads_at_the_governing_word_shows_there():
    model = plant(tiny(num_hidden_layers=1), "y", "x")  # `y` governs and looks for its dependent
    claims = labelled((0, 0, "dep:obj", "head->dep"), (0, 0, "dep:obj", "dep->head"), shape=(1, 3))
    table = add_causal_checks(model, claims, items_of(model))
    evidence = evidence_of(table, 0, 0)
    assert evidence["at_heads"]["supported"]
    assert not evidence["supported"]
    assert evidence["at_heads"]["difference"] > 0.2 > 0 > evidence["difference"]
    assert "at_heads" not in evidence_of(table, 0, 0, place=2)


def test_neither_order_nor_batches_change_the_evidence():
    model = tiny("bert", FAMILY_OF_HEAD["bert"])
    claims, items = labelled((1, 2, "dep:obj", "head->dep")), items_of(model)
    one = evidence_of(add_causal_checks(model, claims, items, max_sentences=7), 1, 2)
    other = evidence_of(add_causal_checks(model, claims, iter(items[::-1]), max_sentences=7, batch_tokens=9), 1, 2)
    assert one["sentences"] == 7

    def compare(a, b):
        for key, value in a.items():
            if isinstance(value, dict):
                compare(value, b[key])
            else:
                assert b[key] == (pytest.approx(value, abs=1e-9) if isinstance(value, float) else value), key

    compare(one, other)
    assert (
        len(
            {
                evidence_of(add_causal_checks(model, claims, items, max_sentences=7, seed=s), 1, 2)["here"]
                for s in range(3)
            }
        )
        == 3
    )


def test_relations_share_sentences_and_each_keeps_to_its_own_limit():
    model = tiny()
    rare = [item.sentence for item in items_of(model)]
    rare = [
        Sentence(
            s.id,
            s.words,
            document=s.document,
            heads=s.heads,
            deprels=tuple(r.replace("advmod", "det") for r in s.deprels),
        )
        if number % 5 == 0
        else s
        for number, s in enumerate(rare)
    ]
    items = items_of(model, rare)
    both = labelled((0, 1, "dep:obj", "dep->head"), (1, 0, "dep:det", "dep->head"))
    table = add_causal_checks(model, both, items, max_sentences=9)
    assert evidence_of(table, 0, 1)["sentences"] == 9
    assert evidence_of(table, 1, 0)["sentences"] == len(reported(items, "det")) < 9
    apart = add_causal_checks(model, both, items, max_sentences=9, batch_tokens=1)
    for layer, head in ((0, 1), (1, 0)):
        for name in ("here", "elsewhere", "excess"):
            value = evidence_of(table, layer, head)[name]
            assert evidence_of(apart, layer, head)[name] == pytest.approx(value, abs=1e-9)
    alone = add_causal_checks(model, labelled((0, 1, "dep:obj", "dep->head")), items, max_sentences=9)
    # the mean that stands in for the head is over all sentences used, so only nearly the same
    assert evidence_of(table, 0, 1)["here"] == pytest.approx(evidence_of(alone, 0, 1)["here"], rel=0.1)


def test_other_labels_are_left_alone_and_nothing_runs_for_them():
    labels = labelled()
    table = add_causal_checks(None, labels, [])
    assert (table["labels"].values == labels["labels"].values).all()
    assert json.loads(table.attrs["causal"])["ablation"] == "mean"
    checked = add_causal_checks(tiny(), labelled((0, 0, "dep:obj", "dep->head")), items_of(tiny()))
    assert "causal" not in json.loads(str(checked["labels"].values[0, 0]))["labels"][0]
    assert checked.attrs["rules"] == "{}"


def test_a_relation_that_no_sentence_holds_is_undefined():
    model = tiny()
    table = add_causal_checks(model, labelled((0, 0, "dep:iobj", "dep->head")), items_of(model))
    evidence = evidence_of(table, 0, 0)
    assert evidence["n"] == evidence["sentences"] == 0
    assert evidence["difference"] is None
    assert evidence["excess_low"] is None
    assert evidence["supported"] is False


def test_one_cluster_has_no_interval_and_one_head_nothing_to_be_held_against():
    model = tiny(num_attention_heads=1, hidden_size=HEAD_DIM)
    items = [
        item
        for item in reported(items_of(model))
        if item.sentence.document == reported(items_of(model))[0].sentence.document
    ]
    evidence = evidence_of(
        add_causal_checks(model, labelled((0, 0, "dep:obj", "dep->head"), shape=(2, 1)), items), 0, 0
    )
    assert evidence["difference"] is not None
    assert evidence["low"] is None
    assert evidence["excess"] is None
    assert evidence["random_heads"] == []


def test_random_heads_are_of_the_layer_and_as_many_as_asked_for():
    model = tiny(num_attention_heads=6, hidden_size=6 * HEAD_DIM)
    claims, items = labelled((1, 4, "dep:obj", "dep->head"), shape=(2, 6)), items_of(model)
    drawn = [
        evidence_of(add_causal_checks(model, claims, items, random_heads=3, seed=s), 1, 4)["random_heads"]
        for s in range(6)
    ]
    assert all(len(set(heads)) == 3 and 4 not in heads and set(heads) < set(range(6)) for heads in drawn)
    assert len({tuple(heads) for heads in drawn}) > 1
    assert evidence_of(add_causal_checks(model, claims, items), 1, 4)["random_heads"] == [0, 1, 2, 3, 5]


def test_progress_is_told_to_the_end():
    told = []
    model = tiny("bert", FAMILY_OF_HEAD["bert"])
    add_causal_checks(
        model, labelled((0, 0, "dep:obj", "dep->head")), items_of(model), progress=lambda *at: told.append(at)
    )
    assert told[-1][0] == told[-1][1]
    assert [at[0] for at in told] == sorted(at[0] for at in told)


def test_values_of_words_are_means_over_their_pieces():
    item = encode_by_hand(make_sentence("a", "a", [2, 0, 2], ["obj", "root", "punct"]), [2, 0, 3])
    values = np.array([9.0, 1.0, 3.0, 2.0, np.nan, 4.0, 9.0, np.nan, 7.0])  # padding runs on
    np.testing.assert_array_equal(by_word(values, item), [2.0, np.nan, 3.0])
    np.testing.assert_array_equal(by_word(np.full(7, np.nan), item), [np.nan] * 3)


def simulated(generator, clusters, true):
    """Sums [4 sentence 3]: two sentences a cluster, both moved by the cluster; the first column lies `true` higher here."""
    sums = np.zeros((4, 2 * clusters, 3))
    shift = np.repeat(generator.normal(size=(clusters, 3)), 2, axis=0)
    sums[1] = generator.integers(1, 5, size=(2 * clusters, 1))
    sums[3] = generator.integers(3, 20, size=(2 * clusters, 1))
    noise = generator.normal(size=(2, 2 * clusters, 3))
    sums[0] = sums[1] * (shift + np.array([true, 0, 0])) + np.sqrt(sums[1]) * noise[0]
    sums[2] = np.sqrt(sums[3]) * noise[1]
    return sums, [str(number // 2) for number in range(2 * clusters)]


def test_contrast_is_a_difference_of_means_and_its_error_is_the_jackknifes():
    sums, names = simulated(np.random.default_rng(3), 60, 0.5)
    found = contrast(sums, names)
    y, n, z, m = sums.sum(1)
    np.testing.assert_allclose(found.difference, y / n - z / m)
    assert found.excess == pytest.approx(found.difference[0] - found.difference[1:].mean())
    left = [
        contrast(sums[:, [name != out for name in names]], [name for name in names if name != out])
        for out in map(str, range(60))
    ]
    for ours, values in (
        (found.error, [one.difference for one in left]),
        (found.excess_error, [one.excess for one in left]),
    ):
        jackknife = np.sqrt(59 / 60 * np.square(values - np.mean(values, 0)).sum(0))
        np.testing.assert_allclose(ours, jackknife, rtol=0.05)


def test_error_of_few_clusters_is_the_sum_over_their_residuals():
    sums, names = simulated(np.random.default_rng(8), 4, 0.5)
    found = contrast(sums, names)
    y, n, z, m = sums.sum(1)
    residuals = np.zeros((4, 3))
    for sentence, name in enumerate(names):
        own = sums[:, sentence]
        residuals[int(name)] += (own[0] - y / n * own[1]) / n - (own[2] - z / m * own[3]) / m
    np.testing.assert_allclose(found.error, np.sqrt(4 / 3 * np.square(residuals).sum(0)), rtol=1e-10)
    own = residuals[:, 0] - residuals[:, 1:].mean(1)
    assert found.excess_error == pytest.approx(np.sqrt(4 / 3 * np.square(own).sum()), rel=1e-10)


def test_intervals_cover_what_they_say():
    generator = np.random.default_rng(11)
    covered = 0
    for _ in range(600):
        found = contrast(*simulated(generator, 40, 0.5))
        covered += abs(found.excess - 0.5) <= float(t_quantile(found.clusters)) * found.excess_error
    assert 0.925 <= covered / 600 <= 0.975
