"""Attention that goes past the interface: seen as it flows, verified like any other, and nothing of it left behind."""

import threading

import pytest
import torch
from torch import nn

from attnprobe.models import scope
from attnprobe.models.capture import capture
from attnprobe.models.load import load
from attnprobe.models.verify import verify
from tests.models.test_routes import assert_same_calls
from tests.tiny import TINY, build, inputs_for, tiny_model

OFF = [name for name, tiny in TINY.items() if not tiny.on_interface]


def options(family):
    """Settings under which a family attends off the interface."""
    return {"attn": "eager"} if family != "gpt2-upcast" else {}


@pytest.mark.parametrize("padding", ["right", "left", "none"])
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
