"""Head importance against rescaled weights and differences, one sentence at a time."""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch

from attnprobe.errors import CaptureError, EnvironmentFailure, InputError
from attnprobe.heads import _watch, importance
from attnprobe.heads.importance import KINDS, measure_importance
from attnprobe.models.interface import editing
from attnprobe.models.intervene import ablating
from attnprobe.models.load import load
from attnprobe.records import Sentence
from attnprobe.text.align import encode
from tests.oracles import importance_weights as oracle
from tests.tiny import HEAD_DIM, LAYERS, build, byte_tokenizer

HEADED = {
    "bert": "BertForMaskedLM",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "bloom": "BloomForCausalLM",  # off the attention-function interface
}
SENTENCES = [
    Sentence(f"{document}{number}", tuple(words.split()), document=document)
    for document, number, words in (
        ("a", 1, "rain fell"),
        ("a", 2, "she let him go on"),
        ("b", 1, "no"),
        ("c", 1, "we all sat by the old pier"),
        ("c", 2, "it is I"),
        ("c", 3, "I"),
    )
]


def tiny(family="bert", head=None, *, dtype=torch.float64, attn="eager", **changes):
    module = build(family, head=head, attn=attn, **changes).to(dtype)
    tokenizer = byte_tokenizer(specials=family == "bert")
    if family != "bert":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return load((module, tokenizer))


def items_of(model):
    return list(encode(model.tokenizer, SENTENCES, max_length=model.max_length))


def heads_of(found):
    return [(layer, head) for layer in range(LAYERS) for head in range(found.sizes["head"])]


def scored(model, item, seed=0):
    """What the model reads of one sentence, and (place, target) of what is scored."""
    data = _watch.given(model, [item], _watch.watched_of(model), seed)
    pairs = [(place, int(data.targets[0, place])) for place in torch.nonzero(data.scored[0]).flatten().tolist()]
    return data.inputs["input_ids"][0].tolist(), pairs


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_zero_ablation_of_states_is_zeroing_the_output_projection(attn):
    model = tiny(dtype=torch.float32, attn=attn)
    found = measure_importance(model, SENTENCES, kinds=["ablation_zero"])
    assert found.attrs["unit"] == "1"
    assert found.attrs["watch"] == "states"
    assert found.attrs["n"] == 6
    for layer, head in heads_of(found):
        wanted = []
        for item in items_of(model):
            before = oracle.states(model.module, item.input_ids.tolist())
            with oracle.gated(model.module, "bert", layer, head, HEAD_DIM, 0.0):
                wanted.append(oracle.turned(before, oracle.states(model.module, item.input_ids.tolist())))
        assert float(found["ablation_zero"][layer, head]) == pytest.approx(np.mean(wanted), abs=1e-6)
    assert float(found["ablation_zero"].min()) > 1e-4  # the sharpened heads all matter, so the check can fail


def test_states_themselves_are_those_of_a_zeroed_projection():
    model = tiny(dtype=torch.float32)
    ids = items_of(model)[3].input_ids
    with ablating(model, [(1, 2)], how="zero"), torch.no_grad():
        ours = model.module(input_ids=torch.tensor(ids[None])).last_hidden_state
    with oracle.gated(model.module, "bert", 1, 2, HEAD_DIM, 0.0):
        theirs = oracle.states(model.module, ids.tolist())
    torch.testing.assert_close(ours[0].double(), theirs, atol=1e-6, rtol=0)


def test_with_every_head_out_attention_gives_its_bias():
    model = tiny(dtype=torch.float32)
    seen = []
    dense = oracle.projection(model.module, "bert", 1)
    handle = dense.register_forward_hook(lambda _, __, output: seen.append(output))
    ids = torch.tensor(items_of(model)[1].input_ids[None])
    with ablating(model, [(1, head) for head in range(3)], how="zero"), torch.no_grad():
        model.module(input_ids=ids)
    model.module(input_ids=ids)
    handle.remove()
    assert torch.equal(seen[0], dense.bias.expand_as(seen[0]))
    assert not torch.allclose(seen[1], seen[0], atol=0.1)


@pytest.mark.parametrize("family", HEADED)
def test_gradient_of_a_loss_is_the_central_difference_of_a_gate_in_each_sentence(family):
    model = tiny(family, HEADED[family])
    found = measure_importance(model, SENTENCES, kinds=["gradient", "ablation_zero"])
    assert found.attrs["unit"] == "nats"
    assert found.attrs["n"] == (6 if family == "bert" else 5)  # a single token has no next one
    assert found["gradient"].attrs["order"] == 1
    # llama's norms and bloom's softmax compute in float32: a smaller step would drown in their rounding
    step, within, rounding = (5e-3, 1e-3, 1e-6) if family in ("llama", "bloom") else (1e-4, 1e-6, 1e-10)
    full, signs = [], set()
    for layer, head in heads_of(found):
        slopes, rises = [], []
        for item in items_of(model):
            ids, pairs = scored(model, item)
            if not pairs:  # one token has no next one
                continue
            value = partial(oracle.loss, model.module, ids, pairs)
            gate = partial(oracle.gated, model.module, family, layer, head, HEAD_DIM)
            slopes.append(oracle.slope(value, gate, step))
            with gate(0.0):
                rises.append(value())
            rises[-1] -= value()
            full.append(value())
        signs |= set(np.sign(slopes))
        assert float(found["gradient"][layer, head]) == pytest.approx(np.mean(np.abs(slopes)), rel=within)
        assert float(found["ablation_zero"][layer, head]) == pytest.approx(np.mean(rises), abs=rounding)
    assert float(found["full"]) == pytest.approx(np.mean(full), abs=rounding)
    assert signs == {-1.0, 1.0}  # or the absolute value would not have been tested


def test_gradient_of_states_is_half_the_bend_of_one_minus_cosine(monkeypatch):
    model = tiny()

    def every_direction(run, data, seen, sentences):
        """All unit directions in place of random ones: the mean square slope along them is exact."""
        for token in range(seen.shape[1]):
            for dim in range(seen.shape[2]):
                unit = torch.zeros_like(seen)
                unit[:, token, dim] = data.scored[:, token] / data.scored.sum(1).sqrt()
                yield unit

    wanted = {}
    for layer in range(LAYERS):
        for head in range(3):
            bends = []
            for item in items_of(model):
                ids = item.input_ids.tolist()
                before = oracle.states(model.module, ids)
                gate = partial(oracle.gated, model.module, "bert", layer, head, HEAD_DIM)
                bends.append(
                    oracle.bend(
                        lambda ids=ids, before=before: oracle.turned(before, oracle.states(model.module, ids)), gate
                    )
                )
            wanted[layer, head] = np.mean(bends) / 2
    drawn = measure_importance(model, SENTENCES, kinds=["gradient"], probes=300)
    monkeypatch.setattr(importance, "_directions", every_direction)
    exact = measure_importance(model, SENTENCES, kinds=["gradient"], probes=1)
    assert exact["gradient"].attrs["order"] == 2
    for (layer, head), value in wanted.items():
        assert float(exact["gradient"][layer, head]) == pytest.approx(value, rel=2e-4)
        assert float(drawn["gradient"][layer, head]) == pytest.approx(value, rel=0.2)
    assert np.mean(drawn["gradient"].values / exact["gradient"].values) == pytest.approx(1.0, abs=0.05)


def test_mean_and_uniform_ablation_are_what_their_weights_say():
    model = tiny()
    found = measure_importance(model, SENTENCES, kinds=["ablation_mean", "ablation_uniform"])
    items = [item.input_ids.tolist() for item in items_of(model)]
    before = [oracle.states(model.module, ids) for ids in items]
    for layer, head in heads_of(found):
        part = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
        z = [
            oracle.contexts(model.module, "bert", layer, {"input_ids": torch.tensor([ids])})[0, :, part]
            for ids in items
        ]
        changes = {
            "ablation_mean": oracle.put(model.module, "bert", layer, head, HEAD_DIM, torch.cat(z).mean(0)),
            "ablation_uniform": oracle.levelled(model.module, "bert", layer, head, HEAD_DIM),
        }
        for kind, changed in changes.items():
            with changed:
                wanted = [
                    oracle.turned(a, oracle.states(model.module, ids)) for a, ids in zip(before, items, strict=True)
                ]
            assert float(found[kind][layer, head]) == pytest.approx(np.mean(wanted), abs=1e-9)


@pytest.mark.parametrize(("family", "head"), [("bert", None), ("bert", HEADED["bert"]), ("gpt2", HEADED["gpt2"])])
def test_neither_batches_nor_the_order_of_sentences_change_anything(family, head):
    model = tiny(family, head)
    together = measure_importance(model, SENTENCES)
    for other in (
        measure_importance(model, SENTENCES, batch_tokens=1),
        measure_importance(model, [*SENTENCES[3:], *SENTENCES[:3]], batch_tokens=30),
    ):
        for name, values in together.data_vars.items():
            np.testing.assert_allclose(other[name], values, atol=1e-9, err_msg=name)


def test_kinds_asked_for_alone_are_those_asked_for_together():
    model = tiny()
    together = measure_importance(model, SENTENCES)
    for kind in KINDS:
        alone = measure_importance(model, SENTENCES, kinds=[kind])
        np.testing.assert_array_equal(alone[kind], together[kind])
        assert not {other for other in KINDS if other != kind} & set(alone.data_vars)


def test_a_dead_head_scores_nothing_and_a_dead_layer_has_no_shares():
    model = tiny()
    value = oracle.projection(model.module, "bert", 1, oracle.VALUE)
    value.weight.data[:HEAD_DIM] = 0.0
    value.bias.data[:HEAD_DIM] = 0.0
    found = measure_importance(model, SENTENCES)
    for kind in KINDS:
        assert float(found[kind][1, 0]) == 0.0
        assert float(found[kind][1, 1]) > 1e-5
    np.testing.assert_allclose(np.square(found["gradient_normalised"]).sum("head"), 1.0)
    value.weight.data[:] = 0.0
    value.bias.data[:] = 0.0
    found = measure_importance(model, SENTENCES, kinds=["gradient"])
    assert found["gradient_normalised"][1].isnull().all()
    assert found["gradient_normalised"][0].notnull().all()


def test_head_mask_does_nothing_and_is_not_what_ablation_uses(minilm):
    """transformers takes `head_mask` and ignores it, so that every head would seem to matter as little as any other."""
    ids = torch.tensor([[101, 1996, 4937, 2938, 102]])
    with torch.no_grad():
        plain = minilm.module(input_ids=ids).last_hidden_state
        masked = minilm.module(input_ids=ids, head_mask=torch.zeros(6, 12)).last_hidden_state
        with ablating(minilm, [(layer, head) for layer in range(6) for head in range(12)]):
            ours = minilm.module(input_ids=ids).last_hidden_state
    assert torch.equal(plain, masked)
    assert not torch.allclose(plain, ours, atol=0.1)


def test_an_ablation_without_effect_is_refused(monkeypatch):
    model = tiny()
    monkeypatch.setattr(importance, "ablating", lambda *_, **__: nullcontext())
    with pytest.raises(CaptureError, match="taking out every head of .* changes nothing: expected another output"):
        measure_importance(model, SENTENCES)


def test_intervals_are_over_clusters():
    model = tiny()
    by_document = measure_importance(model, SENTENCES, kinds=["ablation_zero"])
    by_sentence = measure_importance(model, SENTENCES, kinds=["ablation_zero"], cluster="sentence")
    assert (by_document.attrs["clusters"], by_sentence.attrs["clusters"]) == (3, 6)
    np.testing.assert_allclose(by_document["ablation_zero"], by_sentence["ablation_zero"], rtol=1e-12)
    assert not np.allclose(by_document["ablation_zero_high"], by_sentence["ablation_zero_high"])
    for found in (by_document, by_sentence):
        low, value, high = (found[f"ablation_zero{end}"].values for end in ("_low", "", "_high"))
        assert (low >= 0).all()
        assert ((low < value) & (value < high)).all()
    alone = measure_importance(model, SENTENCES[:2], kinds=["ablation_zero"])
    assert alone["ablation_zero_low"].isnull().all()  # one cluster has no spread


def test_the_sample_is_drawn_by_the_sentences_and_the_seed_alone():
    model = tiny()
    items = items_of(model)
    names = [item.sentence.id for item in _watch.sample(items, 3, 0)]
    assert len(names) == 3
    assert names == [item.sentence.id for item in items if item.sentence.id in names]  # in the order of the corpus
    assert {item.sentence.id for item in _watch.sample(items[::-1], 3, 0)} == set(names)
    assert len({tuple(item.sentence.id for item in _watch.sample(items, 3, seed)) for seed in range(9)}) > 1
    found = measure_importance(model, SENTENCES, kinds=["ablation_zero"], max_sentences=3)
    assert found.attrs["n"] == 3


def test_what_is_masked_depends_on_the_seed():
    model = tiny("bert", HEADED["bert"])
    drawn = [scored(model, items_of(model)[3], seed) for seed in range(4)]
    assert len({tuple(place for place, _ in pairs) for _, pairs in drawn}) > 1
    for ids, pairs in drawn:
        assert len(pairs) == 4 == round(0.15 * 26)  # 26 bytes, spaces included
        assert all(ids[place] == model.tokenizer.mask_token_id != target for place, target in pairs)
    shortest = scored(model, items_of(model)[2])
    assert len(shortest[1]) == 1


def test_progress_is_told_to_the_end():
    told = []
    measure_importance(tiny(), SENTENCES, kinds=["gradient"], batch_tokens=20, progress=lambda *at: told.append(at))
    assert told[-1] == (6, 6)
    assert len(told) > 1


def test_a_head_in_memory_and_a_named_one_watch_the_same():
    assert _watch.watched_of(tiny("gpt2", HEADED["gpt2"])).name == "causal-lm"
    assert _watch.watched_of(tiny("bert", HEADED["bert"])).name == "masked-lm"
    assert _watch.watched_of(tiny("bert", HEADED["bert"]), "states").name == "states"
    for head in (None, "BertForSequenceClassification"):
        assert _watch.watched_of(tiny("bert", head)).name == "states"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kinds": ["gradiant"]}, "unknown kind of importance 'gradiant'; near names: gradient"),
        ({"watch": "state"}, "unknown quantity to watch 'state'; near names: states"),
        ({"watch": "causal-lm"}, "no head for the quantity 'causal-lm': expected states.*head='causal-lm'"),
        ({"probes": 0}, "nothing to measure importance on"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        measure_importance(tiny(), SENTENCES, **options)


def test_models_that_cannot_be_watched_are_refused():
    with pytest.raises(InputError, match="has no tokenizer"):
        measure_importance(load((build("bert"), None)), SENTENCES)
    with pytest.raises(InputError, match="cannot watch an encoder-decoder model"):
        measure_importance(load((build("bart"), byte_tokenizer())), SENTENCES)
    with pytest.raises(InputError, match="nothing to measure importance on"):
        measure_importance(tiny(), [])
    model = tiny("bert", HEADED["bert"])
    model.tokenizer.mask_token = None
    with pytest.raises(InputError, match="has no mask token"):
        measure_importance(model, SENTENCES)


def test_nothing_of_the_model_is_changed():
    model = tiny("bert", HEADED["bert"])
    before = {name: weight.clone() for name, weight in model.module.state_dict().items()}
    measure_importance(model, SENTENCES)
    for name, weight in model.module.state_dict().items():
        assert torch.equal(weight, before[name])
    assert all(weight.grad is None for weight in model.module.parameters())
    with editing(lambda call, run: run(call)), torch.no_grad():
        model.module(input_ids=torch.tensor([[1, 9, 2]]))


def exhausted(model, after, *, backward=False):
    """From the `after`th pass on, the model's embeddings, or their gradient, ask for more memory than there is."""
    passes = []

    def greedy(*_rest):
        return torch.empty(1 << 60, dtype=torch.uint8)

    def hook(_module, _inputs, output):
        passes.append(True)
        if len(passes) <= after:
            return
        if not backward:
            greedy()
        elif output[0].requires_grad:
            output[0].register_hook(greedy)

    return model.module.base_model.encoder.register_forward_hook(hook)


@pytest.mark.parametrize(
    ("kind", "after", "backward"),
    [("ablation_zero", 1, False), ("ablation_zero", 4, False), ("gradient", 3, True)],
)
def test_too_little_memory_is_told(kind, after, backward):
    """In the first look at the model, in taking heads out, and where gradients are taken."""
    model = tiny("bert")
    told = r"too little memory for this batch at cpu: got \d sequences of \d+ tokens .*Use smaller batches"
    hook = exhausted(model, after, backward=backward)
    with pytest.raises(EnvironmentFailure, match=told):
        measure_importance(model, SENTENCES, kinds=[kind])
    hook.remove()
    measure_importance(model, SENTENCES, kinds=[kind])
