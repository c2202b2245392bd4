"""Probe against use: a head whose output goes nowhere changes nothing, and everything is paired with the whole model."""

import numpy as np
import pytest
import torch
import xarray as xr

from attnprobe.errors import InputError
from attnprobe.models.intervene import ablating
from attnprobe.probes.features import WordRows
from attnprobe.probes.use import best_head, final_states, over_tasks, probe_against_use
from attnprobe.text.align import encode
from tests.tiny import HEAD_DIM, byte_tokenizer, tiny_model


@pytest.fixture(scope="module")
def sentences(some_sentences):
    return [sentence for sentence in some_sentences if len(sentence.text) < 90]


@pytest.fixture(scope="module")
def model():
    """Head 1 of layer 1 is computed and thrown away: its columns of the output projection are 0."""
    made = tiny_model("bert", tokenizer=byte_tokenizer())
    with torch.no_grad():
        made.module.encoder.layer[1].attention.output.dense.weight[:, HEAD_DIM : 2 * HEAD_DIM] = 0
    return made


@pytest.fixture(scope="module")
def found(model, sentences):
    cases = [(1, 1), (1, 0), (0, 2)]
    return probe_against_use(
        model, sentences, task="upos", heads=cases, how="zero", random_heads=2, penalties=(100.0, 1.0), max_sentences=41
    )


def test_a_head_whose_output_goes_nowhere_changes_nothing(found):
    dead = found.isel(case=0)
    assert dead["change"] == dead["change_low"] == dead["change_high"] == 0
    assert dead["states"] == 0
    assert dead["random_states"] > 1e-4


def test_other_heads_turn_the_states_and_the_intervals_hold_the_change(found):
    assert (found["states"].isel(case=[1, 2]) > 1e-4).all()
    for name in ("change", "random_change", "difference"):
        assert (found[f"{name}_low"] <= found[name]).all()
        assert (found[name] <= found[f"{name}_high"]).all()
    np.testing.assert_allclose(found["difference"], found["change"] - found["random_change"], atol=1e-12)
    assert found["layer"].values.tolist() == [1, 1, 0]
    assert found["head"].values.tolist() == [1, 0, 2]
    assert list(found.attrs["random_heads"]) == [2, 2, 2]  # all others of a layer of three heads
    # two cases of one layer: the dead head is among the random heads of the other
    assert found["random_states"][1] < found["random_states"][0] + found["states"][1]


def test_final_states_are_the_models_own(model, sentences):
    encoded = list(encode(model.tokenizer, sentences[:7]))
    rows = WordRows.of(encoded)
    states = final_states(model, encoded, rows)
    item = encoded[3]
    with torch.no_grad():
        own = model.module(input_ids=torch.from_numpy(item.input_ids)[None]).last_hidden_state[0]
    expected = own[torch.from_numpy(item.alignment.word_index) == 2].mean(0)
    np.testing.assert_allclose(states[rows.first[3] + 2], expected, rtol=1e-4, atol=1e-5)
    with ablating(model, [(1, 0)]):
        without = final_states(model, encoded, rows)
    assert np.abs(without - states).max() > 1e-3


def test_a_loss_is_watched_with_the_head_and_without(model, sentences):
    seen = []

    def watch(watched, encoded):
        seen.append(len(encoded))
        ids = torch.from_numpy(encoded[0].input_ids)[None]
        with torch.no_grad():
            size = watched.module(input_ids=ids).last_hidden_state.square().mean().item()
        return np.full(len(encoded), size * len(seen)), np.full(len(encoded), 2.0)

    found = probe_against_use(
        model, sentences, task="upos", heads=[(0, 0)], how="uniform", random_heads=1, penalties=(10.0,), watch=watch
    )
    assert len(set(seen)) == 1
    assert len(seen) == 3  # whole, without the head, without a random one
    assert found["loss"].attrs["unit"] == "nats"
    assert found["loss"].item() != 0


def test_mean_ablation_runs_and_the_whole_is_the_same_twice(model, sentences):
    options = {"task": "upos", "heads": [(0, 1)], "random_heads": 1, "penalties": (10.0,), "max_sentences": 23}
    first, second = (probe_against_use(model, sentences, **options) for _ in range(2))
    assert first.equals(second)
    assert first.attrs["how"] == "mean"
    assert first["accuracy"] > 0


def test_results_of_several_tasks_make_one_table(model, sentences, found):
    other = probe_against_use(model, sentences, task="position", heads=[(0, 1)], random_heads=1, penalties=(10.0,))
    whole = over_tasks([found, other])
    assert whole["task"].values.tolist() == ["upos"] * 3 + ["position"]
    assert whole["layer"].values.tolist() == [1, 1, 0, 0]
    assert list(whole.attrs["random_heads"]) == [2, 2, 2, 1]
    for name in ("accuracy", "majority", "n"):
        assert whole[name].values.tolist() == [float(found[name])] * 3 + [float(other[name])]
    np.testing.assert_array_equal(whole["change"], [*found["change"], *other["change"]])
    assert whole["states"].attrs["unit"] == "1 - cosine"


def test_the_best_head_of_a_task_is_the_most_selective_on_context():
    selectivity = np.array([[[[0.9, 0.9], [0.9, 0.9]], [[0.1, np.nan], [0.3, 0.2]]]])
    coordinates = {"task": ["upos"], "site": ["q", "context"], "layer": [0, 4], "head": [0, 1]}
    table = xr.Dataset({"selectivity": (["task", "site", "layer", "head"], selectivity)}, coordinates)
    assert best_head(table, "upos") == (4, 0)
    assert best_head(table.sel(site=["q"]), "upos") == (0, 0)


def test_a_sample_without_labels_is_refused(model, sentences):
    drawn = []

    def watch(_model, encoded):
        drawn.extend(item.sentence.id for item in encoded)
        return np.zeros(len(encoded)), np.ones(len(encoded))

    def rare(sentence):
        return () if sentence.id in drawn else ["x", *["y"] * (len(sentence) - 1)]

    options = {"heads": [(0, 0)], "penalties": (10.0,), "max_sentences": 1, "how": "zero", "random_heads": 0}
    probe_against_use(model, sentences, task="upos", watch=watch, **options)
    with pytest.raises(InputError, match="none of the 1 sentences.*'rare'.*max_sentences"):
        probe_against_use(model, sentences, task=rare, **options)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"heads": []}, "at least one head"),
        ({"how": "remove"}, "zero, mean, uniform"),
        ({"heads": [(1, 3)]}, "no head 3 in layer 1"),
        ({"heads": [(2, 0)]}, "no head 0 in layer 2"),
        ({"max_sentences": 0}, "at least one sentence"),
        ({"random_heads": -1}, "no fewer than 0 heads"),
        ({"task": "supersense"}, "no labels in the corpus"),
        ({"task": "arc"}, "tasks of words"),
    ],
)
def test_what_cannot_be_done_says_why(model, sentences, changes, told):
    with pytest.raises(InputError, match=told):
        probe_against_use(model, sentences, **{"task": "upos", "heads": [(0, 0)], "penalties": (10.0,), **changes})
