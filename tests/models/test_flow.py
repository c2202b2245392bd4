"""Attention that goes past the interface: seen as it flows, verified like any other, and nothing of it left behind."""

import threading
from dataclasses import replace

import pytest
import torch
import transformers
from torch import nn

from attnprobe.errors import CaptureError
from attnprobe.models import recorder, scope
from attnprobe.models.capture import capture
from attnprobe.models.intervene import ablating, replacing_patterns, zeroing_values
from attnprobe.models.load import load
from attnprobe.models.saved import load_capture
from attnprobe.models.verify import verify
from tests.models.test_routes import assert_same_calls
from tests.tiny import TINY, build, inputs_for, sharpen, tiny_model

SLOW = pytest.mark.slow
OFF = [name for name, tiny in TINY.items() if not tiny.on_interface]


@pytest.mark.parametrize("padding", ["right", "left", pytest.param("none", marks=SLOW)])
@pytest.mark.parametrize("family", OFF)
def test_families_off_the_interface_are_verified(family, padding):
    model, inputs = tiny_model(family), inputs_for(family, padding=padding)
    checked = verify(model, **inputs)
    assert checked.ok, checked.notes
    assert checked.notes == ()
    assert checked.n_layers == 2
    assert (checked.pattern_max_abs < 1e-5).all()
    assert checked.bitwise.all()


@pytest.mark.parametrize("family", OFF)
def test_outputs_are_the_same_bits(family):
    model, inputs = tiny_model(family), inputs_for(family)
    with torch.no_grad():
        before = model.module(**inputs)[0]
        taken = capture(model, **inputs)
        assert torch.equal(model.module(**inputs)[0], before)
    assert taken.route == "flow"
    inside = []
    hook = model.module.register_forward_hook(lambda _module, _inputs, output: inside.append(output[0]))
    capture(model, **inputs)
    hook.remove()
    assert torch.equal(inside[0], before)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5", "modernbert", "whisper"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_flow_is_a_second_route_to_families_on_the_interface(family, attn):
    model, inputs = tiny_model(family, attn=attn), inputs_for(family)
    by_interface, by_flow = capture(model, **inputs), capture(model, route="flow", **inputs)
    assert (by_interface.route, by_flow.route) == ("interface", "flow")
    for one, other in zip(by_interface.layers, by_flow.layers, strict=True):
        assert (one.module, one.kind, one.index) == (other.module, other.kind, other.index)
        assert all(torch.equal(getattr(one, part), getattr(other, part)) for part in ("q", "pattern", "context"))


@pytest.mark.parametrize("family", OFF)
def test_hidden_keys_have_no_weight(family):
    taken = capture(tiny_model(family), **inputs_for(family))
    for call in taken.layers:
        padding = ~taken.encoded.real[:, None, None, :].expand(call.pattern.shape)
        real = taken.encoded.real[:, None, :, None].expand(call.pattern.shape)
        assert float(call.pattern[padding & real].abs().max()) == 0.0
        if TINY[family].causal:
            assert float(call.pattern.triu(1)[real].abs().max()) == 0.0


class Pooled(nn.Module):
    """A BERT whose states go through torch's own attention module: a pooling head as in SigLIP, or a layer of it."""

    def __init__(self, kind):
        super().__init__()
        self.bert, self.kind = build("bert"), kind
        self.config = self.bert.config
        torch.manual_seed(3)
        self.pool = nn.MultiheadAttention(30, 2, batch_first=kind != "length first")
        self.probe = nn.Parameter(torch.randn(1, 1, 30))

    def forward(self, input_ids, attention_mask=None):
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
        query = self.probe.expand(len(states), 1, -1)
        if self.kind == "pooling":
            return self.pool(query, states, states)
        if self.kind == "length first":
            states = states.transpose(0, 1)
        hidden = attention_mask == 0 if self.kind == "masked" else None
        return self.pool(states, states, states, key_padding_mask=hidden, need_weights=self.kind != "no weights")


@pytest.mark.parametrize("kind", ["pooling", "length first", "fused", "masked", "no weights"])
def test_attention_outside_the_interface_is_captured_too(kind):
    model, inputs = load((Pooled(kind).eval(), None)), inputs_for("bert")
    with torch.no_grad():
        before = model.module(**inputs)
    seen = []
    hook = model.module.register_forward_hook(lambda _module, _inputs, output: seen.append(output[0]))
    taken = capture(model, **inputs)
    hook.remove()
    assert torch.equal(seen[0], before[0])
    assert taken.route == "flow+interface"
    assert [call.module for call in taken.layers][2:] == ["pool"]
    if before[1] is not None:
        torch.testing.assert_close(taken.layer(-1).pattern.mean(1), before[1], rtol=0, atol=1e-6)
    assert verify(model, **inputs).ok


def test_nothing_is_left_behind():
    before = (scope.current(), torch._C._len_torch_function_stack(), torch.matmul, nn.functional.softmax)
    model = tiny_model("mpnet")
    capture(model, **inputs_for("mpnet"))
    with pytest.raises(RuntimeError, match="stop"):
        from attnprobe.models.capture import record

        def stop(call, batch):
            raise RuntimeError("stop")

        record(model, [inputs_for("mpnet")], each=stop)
    assert before == (scope.current(), torch._C._len_torch_function_stack(), torch.matmul, nn.functional.softmax)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_threads_see_their_own_flow():
    model = tiny_model("mpnet")
    inputs = [inputs_for("mpnet", seed=seed) for seed in range(3)]
    expected = [capture(model, **given).layers for given in inputs]
    wrong, start = [], threading.Barrier(3)

    def work(place):
        start.wait()
        for _ in range(10):
            try:
                for one, other in zip(capture(model, **inputs[place]).layers, expected[place], strict=True):
                    assert torch.equal(one.context, other.context)
                    assert torch.equal(one.bias, other.bias)
            except BaseException as error:  # noqa: BLE001 - told to the main thread
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_capture_inside_a_capture():
    model, other, inner = tiny_model("mpnet"), tiny_model("bert"), []
    from attnprobe.models.capture import record

    def each(call, batch):
        inner.append(capture(other, **inputs_for("bert")).layers)
        inner.append(capture(model, **inputs_for("mpnet")).layers)

    record(model, [inputs_for("mpnet")], each=each)
    assert [len(layers) for layers in inner] == [2] * 4
    assert_same_calls(inner[0], inner[2])


FORMULAS = {
    "deberta": "disentangled_att_bias",
    "deberta-v2": "disentangled_attention_bias",
    "mpnet": None,
    "xlnet": "rel_shift_bnij",
    "bloom": None,
    "mpt": None,
}
"""Families whose position bias is held against a formula, and the method of the attention module that makes it."""


@pytest.mark.parametrize("padding", ["right", pytest.param("left", marks=SLOW), pytest.param("none", marks=SLOW)])
@pytest.mark.parametrize("family", FORMULAS)
def test_the_position_bias_is_what_its_formula_gives(family, padding):
    checked = verify(tiny_model(family), **inputs_for(family, padding=padding))
    assert checked.ok
    assert (checked.bias_max_abs < 2e-6).all()
    assert torch.isnan(torch.tensor(verify(tiny_model("bert"), **inputs_for("bert")).bias_max_abs)).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"position_buckets": 4, "max_relative_positions": 11},
        {"position_buckets": 6, "share_att_key": True},
        {"pos_att_type": ["c2p"]},
        {"pos_att_type": ["p2c"]},
    ],
)
def test_the_kinds_of_disentangled_attention(changes):
    checked = verify(tiny_model("deberta-v2", **changes), **inputs_for("deberta-v2"))
    assert checked.ok
    assert (checked.bias_max_abs < 2e-6).all()


@pytest.mark.parametrize("family", [family for family, method in FORMULAS.items() if method])
def test_a_model_that_adds_another_bias_is_caught(family, monkeypatch):
    """Its pattern is what its scores give, and its scores are not what the family's should be."""
    model, inputs = tiny_model(family), inputs_for(family)
    kind = type(model.module.get_submodule(capture(model, **inputs).layer(0).module))
    honest = getattr(kind, FORMULAS[family])
    static = isinstance(kind.__dict__[FORMULAS[family]], staticmethod)

    def wrong(*arguments, **options):
        return 0.5 * honest(*arguments, **options)

    monkeypatch.setattr(kind, FORMULAS[family], staticmethod(wrong) if static else wrong)
    checked = verify(model, **inputs)
    assert not checked.ok
    assert (checked.pattern_max_abs < checked.pattern_tolerance).all()
    assert sum("the position bias is not what its formula gives" in note for note in checked.notes) == 2


def test_a_dropped_term_and_a_missing_slope_are_caught(monkeypatch):
    from transformers.models.bloom import modeling_bloom

    model = tiny_model("deberta-v2")
    for layer in model.module.encoder.layer:
        layer.attention.self.pos_att_type = ["p2c"]  # content to position is left out, the scale is another
    assert verify(model, **inputs_for("deberta-v2")).ok  # a model of its own, and the formula follows its setting
    model.module.encoder.layer[1].attention.self.pos_key_proj.register_forward_hook(lambda _m, _i, output: output * 0)
    for layer in model.module.encoder.layer:
        layer.attention.self.pos_att_type = ["c2p", "p2c"]
    checked = verify(model, **inputs_for("deberta-v2"))
    assert not checked.ok
    assert checked.bias_max_abs[0] < 1e-6 < 0.1 < checked.bias_max_abs[1]

    honest = modeling_bloom.build_alibi_tensor
    monkeypatch.setattr(
        modeling_bloom, "build_alibi_tensor", lambda *arguments, **options: 0 * honest(*arguments, **options)
    )
    monkeypatch.setattr(
        type(tiny_model("bloom").module),
        "build_alibi_tensor",
        lambda _self, *arguments, **options: 0 * honest(*arguments, **options),
    )
    checked = verify(tiny_model("bloom"), **inputs_for("bloom"))
    assert not checked.ok
    assert (checked.bias_max_abs > 0.01).all()


MISTAKES = {
    "wrong scale": lambda call: replace(call, scale=2 * call.scale, steps=None),
    "no bias": lambda call: replace(call, bias=None, visible=None, steps=None),
    "mask alone": lambda call: replace(
        call, bias=torch.zeros_like(call.bias).masked_fill(~call.visible, -1e9), steps=None
    ),
    "q and k swapped": lambda call: replace(call, q=call.k.expand_as(call.q), k=call.q),
    "heads rolled by one": lambda call: replace(call, q=call.q.roll(1, 1)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("family", ["deberta-v2", "bloom", "xlnet"])
def test_a_mistake_in_what_is_captured_is_caught(family, mistake, monkeypatch):
    model, inputs = tiny_model(family), inputs_for(family)
    honest = recorder.AttentionCall
    monkeypatch.setattr(recorder, "AttentionCall", lambda **parts: MISTAKES[mistake](honest(**parts)))
    checked = verify(model, **inputs)
    assert not checked.ok
    assert not checked.bitwise.any()
    assert (checked.pattern_max_abs > 1e3 * checked.pattern_tolerance).all()


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=SLOW)])
@pytest.mark.parametrize("family", OFF)
def test_half_precision_is_replayed(family, dtype):
    model = load((build(family).to(getattr(torch, dtype)), None))
    checked = verify(model, **inputs_for(family))
    assert checked.ok, checked.notes
    assert checked.bitwise.all()


@pytest.mark.parametrize("family", ["mpnet", "falcon", "bloom", "xlnet", "deberta-v2"])
def test_interventions_work_off_the_interface(family):
    model, inputs = tiny_model(family), inputs_for(family)
    honest = capture(model, **inputs)
    first, second = honest.layers
    with ablating(model, [(1, 2)]):
        taken = capture(model, **inputs)
    assert torch.equal(taken.layer(0).context, first.context)
    assert float(taken.layer(1).context[:, 2].abs().max()) == 0.0
    assert torch.equal(taken.layer(1).context[:, :2], second.context[:, :2])
    values = first.v.expand(-1, first.n_heads, -1, -1)
    with zeroing_values(model, [0], [1]):
        taken = capture(model, **inputs)
    torch.testing.assert_close(
        taken.layer(0).context, first.pattern @ values.index_fill(2, torch.tensor([1]), 0.0), rtol=0, atol=1e-5
    )
    assert not torch.equal(taken.layer(1).q, second.q)
    pattern = torch.rand(11, 11, generator=torch.Generator().manual_seed(2))
    with replacing_patterns(model, {(0, 1): pattern}):
        taken = capture(model, **inputs)
    torch.testing.assert_close(taken.layer(0).context[:, 1], pattern @ values[:, 1], rtol=0, atol=1e-5)
    assert torch.equal(taken.layer(0).context[:, 0], first.context[:, 0])
    with torch.no_grad():
        bare = model.module(**inputs)[0]
        with ablating(model, [(0, 0)], how="uniform"):
            changed = model.module(**inputs)[0]
        assert not torch.equal(bare, changed)
        assert torch.equal(bare, model.module(**inputs)[0])


def test_windows_are_refused_with_a_reason():
    config = transformers.LongformerConfig(
        attention_window=4,
        vocab_size=263,
        hidden_size=30,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=37,
    )
    model = load((sharpen(transformers.LongformerModel(config)).eval(), None))
    ids = torch.randint(9, 200, (1, 8), generator=torch.Generator().manual_seed(1))
    with pytest.raises(
        CaptureError, match=r"no attention was captured.*no softmax over all keys: encoder.layer.0.*by `"
    ):
        capture(model, input_ids=ids)


def test_a_model_that_attends_by_windows_in_part_is_not_verified():
    config = transformers.LEDConfig(
        vocab_size=263,
        d_model=30,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=37,
        decoder_ffn_dim=37,
        attention_window=4,
    )
    model = load((sharpen(transformers.LEDModel(config)).eval(), None))
    ids = torch.randint(9, 200, (1, 8), generator=torch.Generator().manual_seed(1))
    taken = capture(model, input_ids=ids, decoder_input_ids=ids[:, :5])
    assert [call.kind for call in taken.layers] == ["decoder", "cross"]
    assert len(taken.not_captured) == 1
    checked = verify(model, input_ids=ids, decoder_input_ids=ids[:, :5])
    assert not checked.ok
    assert any("not captured: encoder.layers.0" in note for note in checked.notes)


@pytest.mark.parametrize("family", ["xlnet", "bloom", "gpt2-upcast", "deberta-v2"])
def test_saved_and_verified_again(family, tmp_path):
    """With the model's own steps: the replay of a saved capture is bit for bit too."""
    taken = capture(load((build(family).to(torch.bfloat16), None)), **inputs_for(family))
    back = load_capture(taken.save(tmp_path / "taken.safetensors"))
    assert verify(back).ok
    assert verify(back).bitwise.all()
    assert (back.route, back.not_captured) == ("flow", ())


class Mixing(nn.Module):
    """A BERT with one more module behind it that mixes its states by a product of activations."""

    def __init__(self, mix):
        super().__init__()
        self.bert, self.mix, self.part = build("bert"), mix, nn.Sequential()
        self.config = self.bert.config

    def forward(self, input_ids, attention_mask=None):
        states = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
        return self.mix(states @ states.transpose(1, 2) / 30, states)


@pytest.mark.parametrize(
    ("mix", "reason"),
    [
        (lambda s, x: torch.exp(s - torch.logsumexp(s, -1, keepdim=True)) @ x, "by `exp`"),
        (lambda s, x: torch.softmax(torch.tanh(s), -1) @ x, "by `tanh`"),
        (lambda s, x: torch.softmax(s, 1) @ x, "normalised over another axis"),
        (lambda s, x: torch.softmax(s, -1) @ torch.softmax(s, -1) @ x, "multiplied with other weights"),
        (lambda s, x: torch.softmax(s * torch.arange(11.0), -1) @ x, "multiplied key by key"),
        (lambda s, x: s.exp() @ x, None),
        (lambda s, x: s @ x, None),
        (lambda s, x: nn.functional.relu(s) @ x, None),
    ],
)
def test_what_is_attention_and_cannot_be_read_is_told(mix, reason):
    model, inputs = load((Mixing(mix).eval(), None)), inputs_for("bert")
    taken = capture(model, **inputs)
    assert [call.module.partition(".")[0] for call in taken.layers] == ["bert", "bert"]
    assert len(taken.not_captured) == (reason is not None)
    assert reason is None or reason in taken.not_captured[0]
    assert verify(model, **inputs).ok == (reason is None)


@pytest.mark.parametrize(
    "mix",
    [
        lambda s, x: torch.softmax(s, -1) @ x,
        lambda s, x: torch.softmax(s.transpose(1, 2), -1) @ x,
        lambda s, x: torch.softmax(s, 1).transpose(1, 2) @ x,
        lambda s, x: (x.transpose(1, 2) @ torch.softmax(s, -1).transpose(1, 2)).transpose(1, 2),
        lambda s, x: torch.einsum("bij,bjd->bid", torch.softmax((s - s.max()).clamp(-50, 50), -1), x),
        lambda s, x: torch.softmax(torch.where(s > 0, s, -1e9), dim=-1) @ x,
        lambda s, x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True, scale=0.3),
        lambda s, x: torch.softmax(s.view(3, 11, 1, 11).expand(3, 11, 1, 11).flatten(1, 2), -1) @ x,
    ],
)
def test_the_forms_that_are_read(mix):
    model, inputs = load((Mixing(mix).eval(), None)), inputs_for("bert")
    taken = capture(model, **inputs)
    assert len(taken.layers) == 3
    assert taken.not_captured == ()
    with torch.no_grad():
        output = model.module(**inputs)
    assert torch.equal(taken.layer(2).context.transpose(1, 2).flatten(2), output)
    assert verify(model, **inputs).ok
    with ablating(model, [(2, 0)]):
        assert float(capture(model, **inputs).layer(2).context.abs().max()) == 0.0
