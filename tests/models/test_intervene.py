"""Interventions: against the same change made by other means, and never silently nothing."""

import threading

import pytest
import torch

from attnprobe.attention import value_zeroing
from attnprobe.errors import CaptureError, InputError
from attnprobe.models.capture import capture
from attnprobe.models.interface import editing
from attnprobe.models.intervene import ablating, mean_contexts, replacing_patterns, zeroing_values
from attnprobe.models.load import load
from tests.models.test_capture import generating
from tests.tiny import HEAD_DIM, HEADS, LAYERS, TINY, build, inputs_for, tiny_model

RUNS = [
    ("bert", "eager"),
    ("bert", "sdpa"),
    ("gpt2", "eager"),
    ("llama", "sdpa"),
    ("albert", "sdpa"),
    ("bart", "eager"),
]


def run(model, inputs):
    with torch.no_grad():
        return model.module(**inputs).last_hidden_state


def slice_of_projection_zeroed(model, layer, heads):
    """The same model without the columns of the output projection that chosen heads feed (BERT)."""
    other = tiny_model("bert", attn=model.attn_implementation)
    weight = other.module.encoder.layer[layer].attention.output.dense.weight
    for head in heads:
        weight.data[:, head * HEAD_DIM : (head + 1) * HEAD_DIM] = 0.0
    return other


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize(("layer", "heads"), [(0, [1]), (1, [0, 2])])
def test_zeroing_z_equals_zeroing_its_slice_of_the_projection(attn, layer, heads):
    model, inputs = tiny_model("bert", attn=attn), inputs_for("bert")
    honest = run(model, inputs)
    with ablating(model, [(layer, head) for head in heads]):
        ablated = run(model, inputs)
    expected = run(slice_of_projection_zeroed(model, layer, heads), inputs)
    torch.testing.assert_close(ablated, expected, rtol=0, atol=1e-6)
    assert (ablated - honest).abs().max() > 0.1  # head_mask would change nothing
    assert torch.equal(run(model, inputs), honest)


def test_zeroing_a_head_of_minilm_equals_zeroing_its_slice():
    model = load("minilm")
    encoded = dict(model.tokenizer(["The keys are on the table.", "Why?"], padding=True, return_tensors="pt"))
    with ablating(model, [(2, 8)]):
        ablated = run(model, encoded)
    model.module.encoder.layer[2].attention.output.dense.weight.data[:, 8 * 32 : 9 * 32] = 0.0
    torch.testing.assert_close(ablated, run(model, encoded), rtol=0, atol=1e-6)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_ablating_all_heads_leaves_the_output_bias(attn):
    model, inputs = tiny_model("bert", attn=attn), inputs_for("bert")
    dense, gave = model.module.encoder.layer[1].attention.output.dense, []
    dense.register_forward_hook(lambda _module, _inputs, output: gave.append(output))
    with ablating(model, [(1, head) for head in range(HEADS)]):
        run(model, inputs)
    assert torch.equal(gave[0], dense.bias.expand_as(gave[0]))


def test_head_mask_does_nothing():
    """transformers #41076: accepted and ignored; whoever ablates by it finds that no head matters."""
    model, inputs = tiny_model("bert"), inputs_for("bert")
    assert torch.equal(run(model, {**inputs, "head_mask": torch.zeros(LAYERS, HEADS)}), run(model, inputs))


@pytest.mark.parametrize(("family", "attn"), RUNS)
@pytest.mark.parametrize("how", ["zero", "mean", "uniform"])
def test_only_the_chosen_head_changes(family, attn, how):
    model, inputs = tiny_model(family, attn=attn), inputs_for(family)
    means = mean_contexts(model, [inputs]) if how == "mean" else None
    honest = capture(model, **inputs)
    last = len(honest.layers) - 1
    with ablating(model, [(last, 1)], how=how, means=means):
        changed = capture(model, **inputs)
    for before, after in zip(honest.layers[:last], changed.layers[:last], strict=True):
        assert torch.equal(before.context, after.context)
    before, after = honest.layer(last), changed.layer(last)
    others = [head for head in range(before.n_heads) if head != 1]
    assert torch.equal(before.context[:, others], after.context[:, others])
    assert not torch.equal(before.context[:, 1], after.context[:, 1])
    assert torch.equal(before.q, after.q)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
def test_mean_ablation_gives_the_mean(family):
    """Over real tokens of all batches, in float64; the same vector at each position."""
    model = tiny_model(family)
    batches = [inputs_for(family, seed=seed, lengths=lengths) for seed, lengths in ((1, (7, 3)), (2, (5, 4, 2)))]
    means = mean_contexts(model, batches)
    taken = [capture(model, **batch) for batch in batches]
    for layer, mean in means.items():
        rows = []
        for one in taken:
            call = one.layer(layer)
            real = one.encoded.target_real if call.kind in ("decoder", "cross") and family == "t5" else one.encoded.real
            rows.append(call.context.transpose(1, 2)[real].double())
        expected = torch.cat(rows).mean(0)
        torch.testing.assert_close(mean, expected, rtol=0, atol=1e-12)
        assert mean.dtype == torch.float64
    assert sorted(means) == list(range(len(taken[0].layers)))
    with ablating(model, [(1, 2), (1, 0)], how="mean", means=means):
        z = capture(model, **batches[0]).layer(1).context
    for head in (0, 2):
        assert torch.equal(z[:, head], means[1][head].float().expand_as(z[:, head]))


@pytest.mark.parametrize(("family", "attn"), RUNS)
@pytest.mark.parametrize("padding", ["right", "left", "none"])
def test_uniform_ablation_is_the_mean_of_visible_values(family, attn, padding):
    model, inputs = tiny_model(family, attn=attn), inputs_for(family, padding=padding)
    honest = capture(model, **inputs).layer(1)
    with ablating(model, [(1, 2)], how="uniform"):
        changed = capture(model, **inputs).layer(1)
    visible = torch.ones(1, 1, 1, 1).bool() if honest.visible is None else honest.visible
    visible = visible.expand(honest.q.shape[0], 1, honest.q.shape[2], honest.k.shape[2])
    values = honest.v[:, 2 // honest.groups]
    for b in range(len(values)):
        for i in range(honest.q.shape[2]):
            seen = visible[b, 0, i]
            expected = values[b, seen].mean(0) if seen.any() else honest.context[b, 2, i]
            torch.testing.assert_close(changed.context[b, 2, i], expected, rtol=0, atol=1e-5)
            if seen.any() and attn == "eager":
                torch.testing.assert_close(changed.pattern[b, 2, i], seen / seen.sum())


@pytest.mark.parametrize(("family", "attn"), RUNS)
def test_replacing_a_pattern(family, attn):
    model, inputs = tiny_model(family, attn=attn), inputs_for(family)
    honest = capture(model, **inputs).layer(1)
    generator = torch.Generator().manual_seed(4)
    shape = honest.pattern[:, 0].shape
    one = torch.rand(shape, generator=generator)
    with replacing_patterns(model, {(1, 0): one, (1, 2): one[0]}):
        changed = capture(model, **inputs).layer(1)
    values = honest.v.repeat_interleave(honest.groups, dim=1)
    torch.testing.assert_close(changed.context[:, 0], one @ values[:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(changed.context[:, 2], one[0] @ values[:, 2], rtol=0, atol=1e-5)
    assert torch.equal(changed.context[:, 1], honest.context[:, 1])
    if attn == "eager":
        assert torch.equal(changed.pattern[:, 0], one)
        assert torch.equal(changed.pattern[:, 1], honest.pattern[:, 1])


def test_replacing_a_pattern_by_itself_changes_nothing():
    for attn in ("eager", "sdpa"):
        model, inputs = tiny_model("bert", attn=attn), inputs_for("bert")
        patterns = {
            (layer, head): capture(model, **inputs).layer(layer).pattern[:, head] for layer, head in ((0, 1), (1, 2))
        }
        honest = run(model, inputs)
        with replacing_patterns(model, patterns):
            torch.testing.assert_close(run(model, inputs), honest, rtol=0, atol=2e-5)


@pytest.mark.parametrize(("family", "attn"), RUNS)
def test_zeroing_values(family, attn):
    """Patterns stay; the context loses what the chosen keys gave."""
    model, inputs = tiny_model(family, attn=attn), inputs_for(family)
    honest = capture(model, **inputs).layer(1)
    with zeroing_values(model, [1], [0, 3]):
        changed = capture(model, **inputs).layer(1)
    torch.testing.assert_close(changed.pattern, honest.pattern, rtol=0, atol=1e-6)
    values = honest.v.repeat_interleave(honest.groups, dim=1).clone()
    values[:, :, [0, 3]] = 0.0
    torch.testing.assert_close(changed.context, honest.pattern @ values, rtol=0, atol=1e-5)
    which = torch.zeros(honest.q.shape[0], honest.k.shape[2], dtype=torch.bool)
    which[1, 2] = True
    with zeroing_values(model, [1], which):
        once = capture(model, **inputs).layer(1)
    assert torch.equal(once.v[1, :, 2], torch.zeros_like(once.v[1, :, 2]))
    assert torch.equal(once.v[0], honest.v[0])


def test_value_zeroing_of_a_layer():
    """The seam serves Mohebbi's measure: layer outputs with v_j = 0, by a whole forward pass."""
    model = tiny_model("bert")
    ids = torch.tensor([[9, 10, 11, 12]])

    def layer_one(j):
        if j is None:
            return model.module(input_ids=ids, output_hidden_states=True).hidden_states[2]
        with zeroing_values(model, [1], [j]):
            return model.module(input_ids=ids, output_hidden_states=True).hidden_states[2]

    changes = value_zeroing(layer_one, 4)
    assert changes.shape == (1, 4, 4)
    torch.testing.assert_close(changes.sum(-1), torch.ones(1, 4, dtype=torch.float64))


def test_interventions_add_up():
    model, inputs = tiny_model("bert"), inputs_for("bert")
    with ablating(model, [(0, 1)]), ablating(model, [(1, 2)]):
        nested = capture(model, **inputs)
    with ablating(model, [(0, 1), (1, 2)]):
        together = capture(model, **inputs)
    for a, b in zip(nested.layers, together.layers, strict=True):
        assert torch.equal(a.context, b.context)
    with ablating(model, [(1, 1)]), zeroing_values(model, [1], range(11)):
        assert (capture(model, **inputs).layer(1).context == 0).all()


def test_layers_are_counted_anew_in_every_pass():
    model, inputs = tiny_model("albert"), inputs_for("albert")
    with ablating(model, [(1, 0)]):
        first, second = run(model, inputs), run(model, inputs)
        third = capture(model, **inputs)
    assert torch.equal(first, second)
    assert (third.layer(1).context[:, 0] == 0).all()
    assert (third.layer(0).context[:, 0] != 0).any()


@pytest.mark.parametrize("family", ["gpt2", "t5", "bart"])
def test_every_step_of_a_generation_is_changed(family):
    """Also a second generation in the same block, whose encoder runs alone again."""
    model = load((generating(family), None))
    ids = torch.tensor([[9, 10, 11]])
    last = 1 if family == "gpt2" else 6
    options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 3}
    with ablating(model, [(last, 1), (0, 2)]):
        taken = [capture(model, **options) for _ in range(2)]
    for one in taken:
        for call in one.layers:
            assert (call.context[:, 1] == 0).all() == (call.layer == last), (call.layer, call.step)
            assert (call.context[:, 2] == 0).all() == (call.layer == 0), (call.layer, call.step)
    assert max(call.step for call in taken[1].layers) == 2


def test_other_models_in_the_block_are_not_changed():
    model, other, inputs = tiny_model("bert"), tiny_model("bert"), inputs_for("bert")
    honest = run(other, inputs)
    with ablating(model, [(0, 1)]):
        assert torch.equal(run(other, inputs), honest)
        ablated = run(model, inputs)
        assert torch.equal(run(other, inputs), honest)
        assert torch.equal(run(model, inputs), ablated)
    assert not torch.equal(ablated, honest)


def test_a_capture_inside_each_is_changed_only_by_its_own_block():
    """What `each` runs while the outer pass is under way does not disturb its numbering."""
    model, inputs = tiny_model("bert"), inputs_for("bert")
    from attnprobe.models.capture import record

    seen = []

    def each(call, batch):
        run(model, inputs)
        seen.append((call.layer, bool((call.context[:, 1] == 0).all())))

    with ablating(model, [(1, 1)]):
        record(model, [inputs], each=each)
    assert seen == [(0, False), (1, True)]


def test_gradients_flow_through():
    model, inputs = tiny_model("bert"), inputs_for("bert")
    with ablating(model, [(0, 1)]):
        model.module(**inputs).last_hidden_state.sum().backward()
    value = model.module.encoder.layer[0].attention.self.value.weight.grad
    assert (value[HEAD_DIM : 2 * HEAD_DIM] == 0).all()
    assert (value[:HEAD_DIM] != 0).any()


@pytest.mark.parametrize("how", ["zero", "uniform"])
def test_what_the_model_gave_is_not_written_to(how):
    """An editor opened before keeps what it let through: a change makes numbers of its own."""
    model, inputs, kept = tiny_model("bert"), inputs_for("bert"), []

    def keep(call, function):
        out, weights = function(call)
        kept.append((out, out.clone(), weights, weights.clone()))
        return out, weights

    with editing(keep), ablating(model, [(0, 1), (1, 2)], how=how):
        run(model, inputs)
    for out, out_before, weights, weights_before in kept:
        assert torch.equal(out, out_before)
        assert torch.equal(weights, weights_before)


def test_a_mask_of_its_own_for_each_head():
    """Uniform over what that head may see, not over what the first one may."""
    model = tiny_model("bert")
    visible = torch.ones(1, HEADS, 4, 4).bool()
    visible[:, 1, :, 2:] = False
    inputs = {"input_ids": torch.tensor([[9, 10, 11, 12]])}
    inputs["attention_mask"] = torch.zeros(1, HEADS, 4, 4).masked_fill(~visible, torch.finfo(torch.float32).min)
    with ablating(model, [(0, 1), (0, 2)], how="uniform"):
        call = capture(model, **inputs).layer(0)
    assert call.pattern[0, 1, 0].tolist() == [0.5, 0.5, 0.0, 0.0]
    assert call.pattern[0, 2, 0].tolist() == [0.25] * 4


def test_nothing_is_left_after_an_exception():
    model, inputs = tiny_model("bert"), inputs_for("bert")
    honest = run(model, inputs)
    with pytest.raises(ZeroDivisionError), ablating(model, [(0, 1)]):
        raise ZeroDivisionError
    assert torch.equal(run(model, inputs), honest)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_what_never_ran_is_told():
    model, inputs = tiny_model("bert"), inputs_for("bert")
    with (
        pytest.raises(
            CaptureError, match=r"layer 7 of BertModel was to be changed and never ran.*got 1 of 2 layers changed"
        ),
        ablating(model, [(0, 1), (7, 0)]),
    ):
        run(model, inputs)
    never = r"layer 0 .*never ran: expected a forward pass.*got 0 of 1"
    with pytest.raises(CaptureError, match=never), ablating(model, [(0, 1)]):
        pass


def test_another_thread_is_not_changed():
    model, inputs, results = tiny_model("bert"), inputs_for("bert"), []
    honest = run(model, inputs)
    with ablating(model, [(0, 1)]):
        thread = threading.Thread(target=lambda: results.append(run(model, inputs)))
        thread.start()
        thread.join()
        assert not torch.equal(run(model, inputs), honest)
    assert torch.equal(results[0], honest)


def test_four_threads_ablate_a_head_each():
    model, inputs = tiny_model("bert"), inputs_for("bert")
    jobs = [(layer, head) for layer in range(2) for head in range(2)]
    expected = []
    for job in jobs:
        with ablating(model, [job]):
            expected.append(run(model, inputs))
    start, wrong = threading.Barrier(4), []

    def work(place):
        start.wait()
        for _ in range(30):
            with ablating(model, [jobs[place]]):
                if not torch.equal(run(model, inputs), expected[place]):
                    wrong.append(place)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ([], {}, r"no head to change: expected at least one \(layer, head\)"),
        ([(0, 1)], {"how": "zeros"}, r"unknown way to ablate 'zeros'; near names: zero"),
        (
            [(0, 1)],
            {"how": "mean"},
            r"no mean to put in place of a head: .*got none for layer 0. Pass means=mean_contexts",
        ),
        ([(0, 1)], {"how": "mean", "means": {1: torch.zeros(3, 10)}}, r"got none for layer 0"),
    ],
)
def test_wrong_requests(heads, options, message):
    with pytest.raises(InputError, match=message):
        ablating(tiny_model("bert"), heads, **options)


def test_wrong_heads_positions_and_patterns():
    model, inputs = tiny_model("bert"), inputs_for("bert")
    for head in (3, -1):
        with (
            pytest.raises(InputError, match=rf"no head {head} in layer 0: expected 0 to 2"),
            ablating(model, [(0, head)]),
        ):
            run(model, inputs)
    with pytest.raises(InputError, match=r"no key position 11: expected 0 to 10"), zeroing_values(model, [0], [2, 11]):
        run(model, inputs)
    wrong = torch.zeros(3, 4, dtype=torch.bool)
    positions = r"wrong key positions: expected bool \(3, 11\), got \(3, 4\)"
    with pytest.raises(InputError, match=positions), zeroing_values(model, [0], wrong):
        run(model, inputs)
    with (
        pytest.raises(
            InputError, match=r"does not fit at layer 0 head 1: expected \(11, 11\) or \(3, 11, 11\), got \(4, 4\)"
        ),
        replacing_patterns(model, {(0, 1): torch.zeros(4, 4)}),
    ):
        run(model, inputs)


def test_train_mode_is_refused():
    module = build("bert").train()
    with pytest.raises(CaptureError, match="train mode"):
        ablating(module, [(0, 1)])


def test_tiny_has_what_the_runs_name():
    assert all(name in TINY for name, _ in RUNS)
