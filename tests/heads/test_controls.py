"""Random-weights controls: what is drawn anew, what is kept, and that their scores stand beside the right labels."""

import json

import numpy as np
import pytest
import torch
import xarray as xr

from attnprobe import run
from attnprobe.errors import InputError
from attnprobe.heads.controls import CONTROLS, add_control_scores, control_table, random_weights
from attnprobe.models.load import load
from attnprobe.records import Sentence
from tests.tiny import byte_tokenizer, tiny_model

SENTENCES = [
    Sentence(
        f"s{d}-{i}",
        ("the", "dog", "saw", "a", "cat", str(3 * d + i)),
        document=f"d{d}",
        heads=(2, 3, 0, 5, 3, 3),
        deprels=("det", "nsubj", "root", "det", "obj", "obl"),
    )
    for d in range(8)
    for i in range(3)
]
OF_BLOCKS = {"bert": "encoder.layer.", "gpt2": "h.", "llama": "layers.", "distilbert": "transformer.layer."}


def measured(model):
    study = run(model, SENTENCES, metrics=["entropy", "offset_mass"], relations=["dep"], examples=0)
    return {"metrics": study["metrics"], "relations": study["relations"]}


@pytest.mark.parametrize("family", OF_BLOCKS)
def test_embeddings_are_kept_or_drawn_and_blocks_are_always_drawn(family):
    model = tiny_model(family)
    kept, drawn = (random_weights(model, kind).module.state_dict() for kind in CONTROLS)
    own = model.module.state_dict()
    assert set(own) == set(kept) == set(drawn)
    inside = 0
    for name, weight in own.items():
        if weight.ndim < 2:  # biases start at 0 and norms at 1, whoever draws
            continue
        in_block = name.startswith(OF_BLOCKS[family])
        inside += in_block
        assert torch.equal(kept[name], weight) == (not in_block), name
        assert not torch.equal(drawn[name], weight), name
    assert inside


def test_weights_start_as_the_configuration_says(minilm):
    drawn = random_weights(minilm, "all_random").module
    weight = drawn.encoder.layer[3].attention.self.query.weight
    assert float(weight.detach().std()) == pytest.approx(minilm.config.initializer_range, rel=0.02)
    assert float(drawn.encoder.layer[3].attention.self.query.bias.detach().abs().max()) == 0.0
    assert float(minilm.module.encoder.layer[3].attention.self.query.weight.detach().std()) > 0.03


def test_blocks_get_the_very_input_of_the_model_where_embeddings_are_kept(minilm):
    ids = torch.tensor([[101, 1996, 4937, 2938, 102]])
    with torch.no_grad():
        own, kept, drawn = (
            model.module(input_ids=ids, output_hidden_states=True).hidden_states
            for model in (minilm, *(random_weights(minilm, kind) for kind in CONTROLS))
        )
    assert torch.equal(own[0], kept[0])
    assert not torch.allclose(own[0], drawn[0], atol=0.01)
    assert not torch.allclose(own[1], kept[1], atol=0.01)


def test_a_draw_depends_on_its_seed_and_leaves_the_rest_alone():
    model = tiny_model("bert")
    before = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    first, again, other = (random_weights(model, "all_random", seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.rand(3), wanted)
    assert first.sha256 == again.sha256 != other.sha256
    assert first.sha256 != model.sha256
    assert all(torch.equal(weight, before[name]) for name, weight in model.module.state_dict().items())
    assert first.name.endswith("(all_random, seed 3)")


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_a_control_runs_as_the_model_does(attn):
    model = tiny_model("bert", attn=attn)
    model.module.to(torch.float64)
    control = random_weights(model, "embeddings_kept")
    assert control.attn_implementation == attn
    assert control.dtype == "float64"
    assert control.tokenizer is model.tokenizer
    assert not control.module.training
    assert control.module.config is not model.module.config


def test_unknown_kinds_and_models_without_blocks_are_refused():
    model = tiny_model("bert")
    with pytest.raises(InputError, match="unknown control 'all_radom'; near names: all_random"):
        random_weights(model, "all_radom")

    class Flat(torch.nn.Module):
        def __init__(self, config):
            super().__init__()
            self.config, self.only = config, torch.nn.Linear(2, 2)

    flat = load((Flat(model.config), None))
    random_weights(flat, "all_random")
    with pytest.raises(
        InputError, match="cannot tell the embeddings of .* expected a list of blocks, got none in Flat"
    ):
        random_weights(flat, "embeddings_kept")


@pytest.fixture(scope="module")
def controlled():
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    return model, control_table(model, measured, seed=5)


def test_scores_are_those_of_a_run_over_the_random_model(controlled):
    model, table = controlled
    assert list(table["control"].values) == list(CONTROLS)
    assert table.attrs["seed"] == 5
    for kind in CONTROLS:
        control = random_weights(model, kind, seed=5)
        assert json.loads(table.attrs["model_sha256"])[kind] == control.sha256
        alone = measured(control)
        for name in ("entropy", "entropy_low", "offset_mass"):
            np.testing.assert_array_equal(table[name].sel(control=kind), alone["metrics"][name])
        for name in ("accuracy", "low", "high", "difference"):
            np.testing.assert_array_equal(table[name].sel(control=kind), alone["relations"][name])
    first, second = (table["accuracy"].sel(control=kind).values for kind in CONTROLS)
    assert not np.array_equal(first, second)
    assert table["entropy"].attrs["unit"] == "nats"


def test_the_best_head_is_chosen_on_select_and_reported_on_report(controlled):
    _, table = controlled
    for kind in CONTROLS:
        for relation in table["relation"].values:
            one = table["accuracy"].sel(control=kind, relation=relation, scorer="weights")
            where = np.unravel_index(int(one.sel(split="select").values.argmax()), one.sel(split="select").shape)
            wanted = one.sel(split="report").values[where]
            assert float(table["best"].sel(control=kind, relation=relation, scorer="weights")) == wanted


def labels_with(layer, head, *labels):
    told = np.full((2, 3), json.dumps({"labels": [], "nearest_miss": None}), dtype=object)
    told[layer, head] = json.dumps({"labels": labels, "nearest_miss": None})
    return xr.Dataset({"labels": (["layer", "head"], told.astype(str))}, attrs={"rules": "{}"})


def test_labels_get_the_scores_of_the_controls(controlled):
    _, table = controlled
    labels = labels_with(
        1,
        2,
        {"family": "syntax", "relation": "dep:obj", "direction": "head->dep", "scorer": "weights"},
        {"family": "position", "metric": "offset_mass", "offset": -1},
        {"family": "broad", "metric": "entropy"},
    )
    found = add_control_scores(labels, table)
    relational, positional, broad = json.loads(str(found["labels"].values[1, 2]))["labels"]
    for kind in CONTROLS:
        one = table.sel(control=kind)
        score = one["accuracy"].sel(
            split="report", scorer="weights", relation="dep:obj", direction="head->dep", layer=1, head=2
        )
        assert relational["controls"][kind] == {
            "score": float(score),
            "best": float(one["best"].sel(relation="dep:obj", scorer="weights")),
        }
        mass = one["offset_mass"].sel(offset=-1)
        assert positional["controls"][kind] == {"score": float(mass[1, 2]), "best": float(mass.max())}
        assert broad["controls"][kind] == {"score": float(one["entropy"][1, 2]), "best": float(one["entropy"].max())}
    assert json.loads(str(found["labels"].values[0, 0])) == {"labels": [], "nearest_miss": None}
    assert found.attrs["rules"] == "{}"


def test_a_corpus_without_trees_gives_metrics_alone():
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    table = control_table(
        model, lambda control: {"metrics": measured(control)["metrics"], "relations": None}, kinds=["all_random"]
    )
    assert "accuracy" not in table
    assert dict(table.sizes) == {"control": 1, "layer": 2, "head": 3, "offset": 20}
