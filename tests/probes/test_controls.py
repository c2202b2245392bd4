"""Control labels, their ceiling, majority, and models with random weights."""

import numpy as np
import pytest
import torch

from attnprobe.errors import InputError
from attnprobe.probes.controls import ceiling, control_labels, majority, random_weights
from tests.tiny import tiny_model


def test_control_labels_belong_to_the_type_and_the_seed():
    types = ["the", "cat", "the", "a", "cat"]
    share = np.array([1, 1, 1, 1, 1, 1, 1])
    first = control_labels(types, share, seed=0, task="upos")
    assert first[0] == first[2]
    assert first[1] == first[4]
    many = [f"w{i}" for i in range(997)]
    drawn = control_labels(many, share, seed=0)
    assert (control_labels(many[::-1], share, seed=0)[::-1] == drawn).all()
    assert 0.05 < (control_labels(many, share, seed=1) == drawn).mean() < 0.25
    assert 0.05 < (control_labels(many, share, seed=0, task="xpos") == drawn).mean() < 0.25


def test_control_labels_follow_the_distribution():
    share = np.array([1.0, 0.0, 6.0, 3.0])
    drawn = np.bincount(control_labels([f"w{i}" for i in range(20_011)], share, seed=3), minlength=4) / 20_011
    np.testing.assert_allclose(drawn, share / 10, atol=0.012)


def test_the_ceiling_is_what_a_table_of_types_gets_right():
    types_train, y_train = np.array([0, 0, 0, 1, 2]), np.array([1, 1, 0, 2, 1])
    types, y = np.array([0, 1, 2, 3, 3, 0]), np.array([1, 2, 1, 1, 1, 0])  # type 3 is new: the commonest class is 1
    assert ceiling(types_train, y_train, types, y) == pytest.approx(5 / 6)
    assert majority(y_train, y) == pytest.approx(4 / 6)
    assert np.isnan(ceiling(types, y, np.array([], int), np.array([], int)))
    assert np.isnan(majority(y, np.array([], int)))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "albert", "t5"])
def test_random_weights_are_new_in_the_layers_and_kept_or_not_outside(family):
    model = tiny_model(family)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    kept, drawn = (random_weights(model, kind, seed=5) for kind in ("embeddings_kept", "all_random"))
    table = model.module.get_input_embeddings().weight
    assert torch.equal(kept.module.get_input_embeddings().weight, table)
    assert not torch.equal(drawn.module.get_input_embeddings().weight, table)
    inside = [name for name, value in model.module.named_parameters() if value.ndim > 1 and ".0." in f".{name}"]
    assert inside
    for name in inside:
        for other in (kept, drawn):
            assert not torch.equal(other.module.get_parameter(name), model.module.get_parameter(name))
    assert all(torch.equal(before[name], value) for name, value in model.module.state_dict().items())
    assert not kept.module.training


def test_random_weights_depend_on_the_seed_and_leave_the_generator_alone():
    model = tiny_model("bert")
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first, again, other = (random_weights(model, "all_random", seed=seed) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(3), expected)
    name = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(first.module.get_parameter(name), again.module.get_parameter(name))
    assert not torch.equal(first.module.get_parameter(name), other.module.get_parameter(name))


def test_an_unknown_kind_of_random_weights_is_refused():
    with pytest.raises(InputError, match="all_random"):
        random_weights(tiny_model("bert"), "randomised", seed=0)
