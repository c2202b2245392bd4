"""Scorers against loops, on tiny models whose weights are sharp, and what a run makes of them."""

import numpy as np
import pytest
import torch

import attnprobe.heads.measure as measure
from attnprobe import capture, run
from attnprobe.attention.flow import attention_flow
from attnprobe.errors import InputError
from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import ShardMeasurer, prepare
from attnprobe.heads.relations import choose
from attnprobe.heads.scorers import SCORERS, scorers_of
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import from_model_inputs
from attnprobe.records import Sentence
from attnprobe.text.align import encode
from attnprobe.text.batching import collate
from tests.oracles import heads_scorers as oracle
from tests.tiny import byte_tokenizer, tiny_model

SENTENCES = [
    Sentence("a", ("ab", "c", "de"), document="x", heads=(2, 0, 2), deprels=("det", "root", "obj")),
    Sentence(
        "b",
        ("f", "gh", "ab", "i", "j"),
        document="y",
        heads=(2, 0, 2, 5, 3),
        deprels=("det", "root", "obj", "det", "obj"),
    ),
    Sentence("c", ("k", "l"), document="z", heads=(2, 0), deprels=("obj", "root")),
]
OUTPUT = {
    "bert": "encoder.layer.{}.attention.output.dense",
    "gpt2": "h.{}.attn.c_proj",
    "llama": "layers.{}.self_attn.o_proj",
}
VALUE = {"bert": "encoder.layer.{}.attention.self.value"}


@pytest.fixture(scope="module", params=["bert", "gpt2", "llama"])
def model(request):
    return tiny_model(request.param, tokenizer=byte_tokenizer(specials=request.param == "bert"), attn="sdpa")


def scored(model, name, *, part=None, monkeypatch=None):
    """Scores of every sentence, run as one batch: sentence -> [layer head query key]."""
    if part:
        monkeypatch.setattr(measure, "PART_ELEMENTS", part)
    items = list(encode(model.tokenizer, SENTENCES))
    prepared = prepare(collate(items, pad_id=0), range(len(items)), None, torch.device("cpu"))
    scorer = scorers_of(model, [name])[name]
    found = [{} for _ in items]

    class Keeping:
        """Keeps what the scorer gives."""

        needs_words = False

        def start(self, prepared):
            scorer.start(prepared)

        def __call__(self, call, pattern, rows, members):
            scores = scorer(call, pattern, rows, members)
            for row in range(members.start, members.stop):
                table = found[row].setdefault(call.layer, torch.zeros(call.n_heads, call.q.shape[2], call.k.shape[2]))
                table[:, rows] = scores[row - members.start]
            return scores

    cases = Cases(items, choose(["dep"]))
    prepared = prepare(collate(items, pad_id=0), range(len(items)), cases, torch.device("cpu"))
    measurer = ShardMeasurer([], cases, {name: Keeping()}, len(items))
    measurer.start(prepared)
    inputs = {key: value for key, value in prepared.inputs.items() if key != "token_type_ids"}
    run_forward(model, from_model_inputs(model, inputs, describe=False), lambda call: measurer.add(call, prepared))
    lengths = [len(item) for item in items]
    return [
        torch.stack([table[layer][:, :n, :n] for layer in sorted(table)]).double().numpy()
        for table, n in zip(found, lengths, strict=True)
    ]


def captured(model):
    """One capture per sentence, without padding."""
    return [capture(model, sentence) for sentence in SENTENCES]


def slices_of(model, layer, heads):
    """The head's slice of the output projection, [head dim out], straight from the module."""
    module = model.backbone.get_submodule(OUTPUT[model.family].format(layer))
    weight = module.weight.detach() if type(module).__name__ == "Conv1D" else module.weight.detach().T
    return weight.reshape(heads, -1, weight.shape[1]).double().numpy()


def test_norms_equal_the_vectors_built_one_by_one(model):
    for found, taken in zip(scored(model, "norms"), captured(model), strict=True):
        for layer, call in enumerate(taken.layers):
            v = call.v.repeat_interleave(call.groups, dim=1)[0].double().numpy()
            wanted = oracle.head_norms(call.pattern[0].double().numpy(), v, slices_of(model, layer, call.n_heads))
            np.testing.assert_allclose(found[layer], wanted, rtol=1e-4, atol=1e-6)
            assert wanted.max() > 0.1


def test_a_token_without_value_has_no_norm_whatever_its_weight():
    model = tiny_model("bert", tokenizer=byte_tokenizer(), attn="eager")
    for layer in range(2):
        value = model.backbone.get_submodule(VALUE["bert"].format(layer))
        with torch.no_grad():
            value.weight.zero_()
            value.bias.zero_()
    for name in ("norms", "value_zeroing"):
        assert all(float(np.abs(found).max()) == 0 for found in scored(model, name))


@pytest.mark.parametrize("part", [None, 60])
def test_rollout_equals_products_of_whole_patterns(model, part, monkeypatch):
    for found, taken in zip(scored(model, "rollout", part=part, monkeypatch=monkeypatch), captured(model), strict=True):
        patterns = np.stack([call.pattern[0].double().numpy() for call in taken.layers])
        np.testing.assert_allclose(found, oracle.head_rollout(patterns), atol=2e-6)


def test_flow_is_solved_sentence_by_sentence(model):
    for found, taken in zip(scored(model, "flow"), captured(model), strict=True):
        stack = torch.stack([call.pattern[0].double() for call in taken.layers])
        for layer in range(len(stack)):
            wanted = attention_flow(stack, layer=layer)
            for head in range(stack.shape[1]):
                np.testing.assert_allclose(found[layer, head], wanted, atol=1e-5)


def test_value_zeroing_equals_zeroing_in_the_projection_itself():
    model = tiny_model("bert", tokenizer=byte_tokenizer(), attn="sdpa")
    found = scored(model, "value_zeroing")
    for place, sentence in enumerate(SENTENCES):
        [item] = encode(model.tokenizer, [sentence])
        ids = torch.from_numpy(item.input_ids)[None]
        states = model.backbone(ids, output_hidden_states=True).hidden_states
        for layer in range(2):
            value = model.backbone.get_submodule(VALUE["bert"].format(layer))
            changed = []
            for j in range(len(item)):
                marked = torch.arange(len(item))[:, None] == j
                hook = value.register_forward_hook(lambda *a, marked=marked: a[2].masked_fill(marked, 0.0))
                changed.append(
                    model.backbone(ids, output_hidden_states=True).hidden_states[layer + 1][0].detach().double().numpy()
                )
                hook.remove()
            wanted = oracle.value_zeroing(states[layer + 1][0].detach().double().numpy(), changed)
            for head in range(3):
                np.testing.assert_allclose(found[place][layer, head], wanted, atol=1e-4)


def test_value_zeroing_of_a_later_token_changes_nothing_in_a_causal_model():
    model = tiny_model("gpt2", tokenizer=byte_tokenizer(specials=False), attn="eager")
    for found in scored(model, "value_zeroing"):
        later = np.triu(np.ones(found.shape[-2:], bool), 1)
        assert np.all(found[..., later] == 0)
        np.testing.assert_allclose(found.sum(-1), 1, atol=1e-6)


def test_a_run_fills_the_scorer_dimension(model):
    names = ("weights", "norms", "rollout", "flow", "value_zeroing")
    assert tuple(SCORERS) == names
    study = run(model, SENTENCES, metrics=["entropy"], relations=["dep"], scorers=names, examples=0, cluster="sentence")
    assert list(study["relations"]["scorer"].values) == list(names)
    plain = run(model, SENTENCES, metrics=["entropy"], relations=["dep"], examples=0, cluster="sentence")
    np.testing.assert_array_equal(study["relations"]["hits"].sel(scorer=["weights"]), plain["relations"]["hits"])
    accuracy = study["relations"]["accuracy"].sel(split="all", relation="dep:ALL", direction="dep->head")
    for name in ("flow", "value_zeroing"):  # a layer's heads are taken together
        assert float(accuracy.sel(scorer=name).std("head").max()) == 0
    assert float(accuracy.sel(scorer="norms").std("head").max()) > 0
    assert str(study["best"]["scorer"].sel(relation="dep:ALL").values) in names


def test_relations_can_be_read_off_other_scorers_alone(model):
    study = run(model, SENTENCES, metrics=["entropy"], relations=["dep"], scorers=["norms"], examples=0)
    assert list(study["relations"]["scorer"].values) == ["norms"]


def test_scorers_that_do_not_fit_are_refused(model):
    for ask in (lambda: run(model, SENTENCES, scorers=["norm"]), lambda: scorers_of(model, ["norm"])):
        with pytest.raises(InputError, match="unknown scorer 'norm'; near names: norms"):
            ask()
    long = Sentence("long", ("word",) * 12, heads=(0, *[1] * 11), deprels=("root", *["obj"] * 11))
    with pytest.raises(InputError, match="too long for attention flow: expected at most 32 tokens"):
        run(model, [*SENTENCES, long], scorers=["flow"])


def test_a_family_whose_projections_are_not_known_has_no_norms():
    model = tiny_model("opt", tokenizer=byte_tokenizer(specials=False), attn="eager")
    with pytest.raises(InputError, match="no layer can be built from the family 'opt'"):
        scorers_of(model, ["norms"])


@pytest.mark.parametrize("name", ["rollout", "flow", "value_zeroing"])
def test_two_stacks_are_refused(name):
    model = tiny_model("bart", tokenizer=byte_tokenizer(), attn="eager")
    with pytest.raises(InputError, match=f"the scorer '{name}' follows one stack.*bart"):
        scorers_of(model, [name])
