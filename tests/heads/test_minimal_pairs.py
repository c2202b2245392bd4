"""Accuracy on minimal pairs and its change under ablation: loops over single sentences, the interval by simulation, a model trained to agree."""

import json
from itertools import product

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from attnprobe import capture, load
from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.heads.minimal_pairs import ALL, change_interval, pair_accuracy
from attnprobe.text.benchmarks_blimp import MinimalPair, read_blimp
from tests.oracles import importance_weights as oracle
from tests.tiny import HEAD_DIM, build, byte_tokenizer

TEXTS = [
    ("the cat", "cat the"),
    ("two dogs run", "two dog"),
    ("a", "bc d"),
    ("she sees it", "she see it"),
    ("we", "us"),
]
HEADED = {"gpt2": "GPT2LMHeadModel", "bert": "BertForMaskedLM"}


@pytest.fixture
def pairs():
    paradigms = ("order", "number", "order", "number", "order")
    return [
        MinimalPair(good, bad, paradigm, "", "", str(number))
        for number, ((good, bad), paradigm) in enumerate(zip(TEXTS, paradigms, strict=True))
    ]


def language_model(family):
    tokenizer = byte_tokenizer(specials=family == "bert")
    if family == "gpt2":
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return load((build(family, head=HEADED[family]), tokenizer))


@torch.no_grad()
def score_alone(model, family, text):
    """Log-likelihood of one text, token by token, without padding."""
    ids = torch.tensor([model.tokenizer(text)["input_ids"]])
    total = 0.0
    for place, token in enumerate(ids[0].tolist()):
        if token in model.tokenizer.all_special_ids or (family == "gpt2" and place == 0):
            continue
        given, read = ids.clone(), place - 1
        if family == "bert":
            given[0, place], read = model.tokenizer.mask_token_id, place
        total += float(torch.log_softmax(model.module(input_ids=given).logits[0, read].double(), -1)[token])
    return total


@pytest.mark.parametrize("family", list(HEADED))
def test_scores_equal_single_sentences_and_a_zeroed_projection(family, pairs):
    model = language_model(family)
    found = pair_accuracy(model, pairs)

    def margins():
        return np.array([score_alone(model, family, p.good) - score_alone(model, family, p.bad) for p in pairs])

    before = margins()
    assert found["paradigm"].values.tolist() == ["order", "number", ALL]
    assert found["n"].values.tolist() == [3, 2, 5]
    assert float(found["margin"].sel(paradigm=ALL)) == pytest.approx(before.mean(), abs=1e-5)
    assert float(found["accuracy"].sel(paradigm=ALL)) == np.mean(before > 0)
    assert float(found["margin"].sel(paradigm="number")) == pytest.approx(before[[1, 3]].mean(), abs=1e-5)
    for layer, head in product(range(2), range(3)):
        with oracle.gated(model.module, family, layer, head, HEAD_DIM, 0.0):
            after = margins()
        one = found.sel(paradigm=ALL, layer=layer, head=head)
        assert float(one["margin_change"]) == pytest.approx((after - before).mean(), abs=1e-5)
        assert float(one["change"]) == pytest.approx(np.mean(after > 0) - np.mean(before > 0))
        assert float(one["change_low"]) < float(one["change"]) < float(one["change_high"])
    assert float(np.abs(found["margin_change"]).min()) > 1e-3


def test_mean_ablation_differs_and_is_told(pairs):
    model = language_model("gpt2")
    zero, mean = (pair_accuracy(model, pairs, how=how) for how in ("zero", "mean"))
    assert (zero.attrs["how"], mean.attrs["how"], mean.attrs["watch"]) == ("zero", "mean", "causal-lm")
    assert not np.allclose(zero["margin_change"], mean["margin_change"], atol=1e-3)
    np.testing.assert_array_equal(zero["margin"], mean["margin"])


def test_what_cannot_be_scored_is_refused(minilm, pairs):
    with pytest.raises(InputError, match="no language-model head.*head='causal-lm'"):
        pair_accuracy(minilm, pairs)
    with pytest.raises(InputError, match="no minimal pair"):
        pair_accuracy(language_model("gpt2"), [])


@pytest.mark.parametrize(("gain", "loss"), [(0.0, 0.0), (0.02, 0.02), (0.05, 0.3), (0.3, 0.35), (0.0, 0.5)])
def test_intervals_of_a_change_cover_it(gain, loss):
    generator = np.random.default_rng(5)
    drawn = generator.multinomial(120, [gain, loss, 1 - gain - loss], 4000)
    low, high = change_interval(drawn[:, 0], drawn[:, 1], 120)
    assert 0.94 <= np.mean((low <= gain - loss) & (gain - loss <= high)) <= 1.0
    assert (high - low).min() > 0.02
    if gain + loss > 0.2:
        assert np.mean((low <= gain - loss) & (gain - loss <= high)) <= 0.97


NOUNS, VERBS = ("dog", "cat", "boy", "girl", "fox", "king", "cook", "bird"), ("run", "sleep", "sing", "jump", "fall")
PLACES, ADJECTIVES = ("near", "behind", "with"), ("big", "old", "red", "shy")


def agreement(generator, n, *, attracted=True):
    """Sentences whose verb agrees with the first noun, past a second one, and the same with the wrong verb: (good, bad)."""
    made = []
    for _ in range(n):
        plural, other = generator.integers(2, size=2)
        first, second = generator.choice(NOUNS, 2)
        words = ["the", *([str(generator.choice(ADJECTIVES))] if generator.random() < 0.5 else [])]
        words += [f"{first}s" if plural else str(first)]
        if attracted:
            words += [str(generator.choice(PLACES)), "the", f"{second}s" if other else str(second)]
        verb = str(generator.choice(VERBS))
        forms = (f"{verb}s", verb) if not plural else (verb, f"{verb}s")
        made.append(tuple(" ".join(["<s>", *words, form]) for form in forms))
    return made


def word_tokenizer():
    words = ["<pad>", "<s>", "the", *ADJECTIVES, *PLACES, *(w + s for w in (*NOUNS, *VERBS) for s in ("", "s"))]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = ["input_ids", "attention_mask"]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", model_input_names=names
    )


def untrained(tokenizer):
    torch.manual_seed(3)
    sizes = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    config = transformers.GPT2Config(vocab_size=len(tokenizer), bos_token_id=1, eos_token_id=1, attn_pdrop=0.0, **sizes)
    config._attn_implementation = "eager"
    return transformers.GPT2LMHeadModel(config).eval()


def train(module, tokenizer, generator, steps):
    optimiser = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for step in range(steps):
        texts = [good for good, _ in agreement(generator, 64, attracted=step % 2 == 0)]
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        loss = module(**batch, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


def subject_share(model, text):
    """Weight of the subject for the token that the verb is predicted from, [layer head]."""
    place = next(i for i, word in enumerate(text.split()) if word.removesuffix("s") in NOUNS)
    return np.stack([layer.pattern[0, :, -2, place].numpy() for layer in capture(model, text).layers])


@pytest.mark.slow
def test_a_head_that_a_trained_model_needs_for_agreement_is_found(tmp_path, tell):
    generator = np.random.default_rng(11)
    tokenizer = word_tokenizer()
    lines = [
        {
            "sentence_good": good,
            "sentence_bad": bad,
            "UID": name,
            "linguistics_term": "agreement",
            "field": "morphology",
        }
        for name, attracted in (("attractor", True), ("plain", False))
        for good, bad in agreement(generator, 300, attracted=attracted)
    ]
    for name in ("attractor", "plain"):
        own = [json.dumps({**line, "pairID": str(i)}) for i, line in enumerate(lines) if line["UID"] == name]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(own))
    pairs = list(read_blimp(tmp_path))
    module = untrained(tokenizer)
    before = pair_accuracy((module, tokenizer), pairs)
    assert float(before["accuracy"].sel(paradigm=ALL)) == pytest.approx(0.5, abs=0.12)
    train(module, tokenizer, generator, 600)
    found = pair_accuracy((module.eval(), tokenizer), pairs)
    assert float(found["accuracy"].sel(paradigm="attractor")) >= 0.98
    change = found["change"].sel(paradigm="attractor")
    layer, head = np.unravel_index(int(change.values.argmin()), change.shape)
    one = found.sel(paradigm="attractor", layer=layer, head=head)
    tell(
        f"accuracy {found['accuracy'].values.round(3)} for {found['paradigm'].values}; without L{layer}H{head}: "
        f"{float(one['change']):+.3f} [{float(one['change_low']):+.3f}, {float(one['change_high']):+.3f}]; all: {change.values.round(3).tolist()}"
    )
    assert float(one["change_high"]) < -0.2
    assert float(one["p_adjusted"]) < 1e-6
    looks = [subject_share((module, tokenizer), pair.good) for pair in pairs[:40]]
    assert np.unravel_index(int(np.mean(looks, 0).argmax()), change.shape) == (layer, head)
    assert float(np.nanmin(before["change_high"].sel(paradigm="attractor"))) > -0.2


def test_too_little_memory_is_told(pairs):
    """Beyond the first pass, which only looks at the modules."""
    model, passes = language_model("bert"), []

    def greedy(*_rest):
        passes.append(True)
        if len(passes) > 1:
            torch.empty(1 << 60, dtype=torch.uint8)

    model.module.base_model.register_forward_hook(greedy)
    with pytest.raises(EnvironmentFailure, match="too little memory for this batch at cpu: got .*Use smaller batches"):
        pair_accuracy(model, pairs)
