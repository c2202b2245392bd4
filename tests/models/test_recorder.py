"""From raw calls to attention calls: masks of every form, kinds, and the counting of layers and steps."""

import weakref
from types import SimpleNamespace

import pytest
import torch

from attnprobe.attention.forward import recompute
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import from_model_inputs
from attnprobe.models.interface import Pending, RawCall, raw_call
from attnprobe.models.load import load
from attnprobe.models.recorder import Order, Recorder, mask_parts
from tests.models.test_capture import generating

QUERIES, KEYS, DIM = 5, 7, 3


class Root(torch.nn.Module):
    """A module tree with a configuration, to name modules by."""

    def __init__(self, names=("attention",), **config):
        super().__init__()
        self.config = SimpleNamespace(**config)
        for name in names:
            self.add_module(name, torch.nn.Identity())


def raw(**changes):
    q, k = torch.randn(2, 1, QUERIES, DIM), torch.randn(2, 1, KEYS, DIM)
    parts = {
        "module": torch.nn.Identity(),
        "q": q,
        "k": k,
        "v": k,
        "mask": None,
        "scaling": 0.5,
        "softcap": None,
        "sinks": None,
        "position_bias": None,
        "is_causal": False,
        "implementation": "sdpa",
        "out": torch.zeros(2, QUERIES, 1, DIM),
        "weights": None,
    }
    return RawCall(**{**parts, **changes})


@pytest.fixture(autouse=True)
def seeded():
    with torch.random.fork_rng():
        torch.manual_seed(11)
        yield


def test_no_mask():
    assert mask_parts(raw()) == (None, None)
    assert mask_parts(raw(implementation="eager", is_causal=True)) == (None, None)  # eager hides by its mask alone
    bias, visible = mask_parts(raw(is_causal=True))
    assert torch.equal(visible[0, 0], torch.ones(QUERIES, KEYS).tril().bool())
    assert torch.equal(bias == 0, visible)
    assert torch.equal(mask_parts(raw(is_causal=None))[1], visible)
    one = raw(is_causal=True, q=torch.randn(2, 1, 1, DIM))
    assert mask_parts(one) == (None, None)


def test_float_masks_are_added_as_they_are():
    mask = torch.zeros(2, 1, QUERIES, KEYS)
    mask[0, 0, :, 4:] = torch.finfo(torch.float32).min
    mask[1, 0, :, 2] = -3.0
    bias, visible = mask_parts(raw(mask=mask))
    assert torch.equal(bias, mask)
    assert visible.sum(-1)[:, 0].tolist() == [[4] * QUERIES, [7] * QUERIES]


def test_bool_masks_hide_under_sdpa_and_are_numbers_under_eager():
    mask = torch.rand(2, 1, QUERIES, KEYS) > 0.3
    bias, visible = mask_parts(raw(mask=mask))
    assert torch.equal(visible, mask)
    assert set(bias.unique().tolist()) == {0.0, float("-inf")}
    with pytest.warns(UserWarning, match="Identity passes a bool mask to eager attention"):
        bias, visible = mask_parts(raw(mask=mask, implementation="eager"))
    assert torch.equal(bias, mask.float())
    assert visible is None


def test_masks_of_keys_alone_and_of_more_keys_than_there_are():
    keys = torch.ones(2, KEYS, dtype=torch.bool)
    keys[1, 3:] = False
    _, visible = mask_parts(raw(mask=keys))
    assert visible.shape == (2, 1, 1, KEYS)
    assert torch.equal(visible[:, 0, 0], keys)
    longer = torch.nn.functional.pad(keys, (0, 4))[:, None, None, :]  # made for a cache that is not full
    assert torch.equal(mask_parts(raw(mask=longer))[1], visible)


def test_position_bias_and_mask_add_up():
    position, mask = torch.randn(1, 1, QUERIES, KEYS), torch.rand(2, 1, QUERIES, KEYS) > 0.3
    calls = []
    recorder = Recorder(Root(), calls.append)
    given = raw(mask=mask, position_bias=position)
    recorder(given)
    recorder(raw(position_bias=position))
    expected = (
        (given.q @ given.k.transpose(-1, -2) * 0.5 + position).masked_fill(~mask, -torch.inf).double().softmax(-1)
    )
    torch.testing.assert_close(recompute(calls[0])[0], expected.double(), rtol=0, atol=1e-6)
    assert torch.equal(calls[1].bias, position)


def kinds(names, raws, **config):
    root, calls = Root(names, **config), []
    recorder = Recorder(root, calls.append)
    for name, change in raws:
        recorder(raw(module=root.get_submodule(name), **change))
    return [(call.kind, call.index, call.module) for call in calls]


def test_kinds_of_one_stack():
    assert kinds(["a"], [("a", {"is_causal": False})]) == [("encoder", 0, "a")]
    assert kinds(["a"], [("a", {"is_causal": True})]) == [("decoder", 0, "a")]
    assert kinds(["decoder_only"], [("decoder_only", {"is_causal": False})]) == [("encoder", 0, "decoder_only")]
    named = ["layer_crossattention", "encoder_attn", "EncDecAttention", "cross_attn"]
    assert [kind for kind, _, _ in kinds(named, [(name, {}) for name in named])] == ["cross"] * 4


def test_a_module_that_does_not_say_is_judged_by_its_mask():
    causal = torch.zeros(1, 1, QUERIES, QUERIES).masked_fill(torch.ones(QUERIES, QUERIES).triu(1).bool(), -1e9)
    square = {"k": torch.randn(2, 1, QUERIES, DIM), "v": torch.randn(2, 1, QUERIES, DIM), "is_causal": None}
    given = [
        ("a", {**square, "mask": causal, "implementation": "eager"}),
        ("a", {**square, "mask": torch.zeros_like(causal), "implementation": "eager"}),
        ("a", {**square, "implementation": "eager"}),
        ("a", {**square, "implementation": "sdpa"}),
    ]
    assert [kind for kind, _, _ in kinds(["a"], given)] == ["decoder", "encoder", "encoder", "decoder"]


def test_weights_of_another_shape_are_no_pattern():
    """Some functions return something else in their place."""
    calls = []
    recorder = Recorder(Root(), calls.append)
    recorder(raw(weights=torch.zeros(2, 1, QUERIES, KEYS + 1)))
    recorder(raw(weights=torch.zeros(2, 1, QUERIES, KEYS)))
    assert [call.pattern_source for call in calls] == [None, "model"]


def test_arguments_by_place_or_by_name():
    """What a module passes by place is read by the names of the function."""
    q, mask = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 2, 2)

    def function(module, query, key, value, attention_mask, scaling=None, dropout=0.0, is_causal=None, **options):
        return query.transpose(1, 2), None

    module = torch.nn.Identity()
    by_place = Pending(module, function, "sdpa", q, q, q, (mask, 0.3, 0.0, True), {})
    by_name = Pending(
        module, function, "sdpa", q, q, q, (), {"attention_mask": mask, "scaling": 0.3, "is_causal": True}
    )
    for call in (by_place, by_name):
        seen = raw_call(call, call.run())
        assert (seen.scaling, seen.is_causal) == (0.3, True)
        assert torch.equal(seen.mask, mask)
    bare = raw_call(Pending(module, function, "sdpa", q, q, q, (None,), {}), (q, None))
    assert (bare.scaling, bare.is_causal, bare.mask) == (0.5, None, None)  # sdpa's own default scale


def test_what_a_call_says_goes_before_what_its_module_says():
    module = torch.nn.Identity()
    module.is_causal = True
    q = torch.zeros(1, 1, 2, 4)

    def function(module, query, key, value, attention_mask=None, **options):
        return query.transpose(1, 2), None

    assert raw_call(Pending(module, function, "sdpa", q, q, q, (), {}), (q, None)).hides_later
    assert not raw_call(Pending(module, function, "sdpa", q, q, q, (), {"is_causal": False}), (q, None)).hides_later


def counted(*events):
    """Numbers and steps of calls, where an event is a pass that starts (with or without encoder states) or a call."""
    order, seen = Order(), []
    for event in events:
        if event == "call":
            step = order.step
            seen.append((order.take(), step))
        else:
            order.start(event == "given states")
    return seen


def test_counting():
    one_pass = ["pass", "call", "call"]
    assert counted("call", "call") == [(0, 0), (1, 0)]
    assert counted(*one_pass, *one_pass) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    encoder, step = ["pass", "call", "call"], ["given states", "call"]
    assert counted(*encoder, *step, *step) == [(0, 0), (1, 0), (2, 0), (2, 1)]
    assert counted(*step, *step) == [(0, 0), (0, 1)]  # states from elsewhere
    assert counted(*encoder, *step, *step, *encoder, *step)[4:] == [(0, 2), (1, 2), (2, 2)]


def test_masks_are_let_go_after_each_pass():
    model = load((generating("gpt2"), None))
    biases, left = [], []

    def each(call):
        if call.layer == 0:
            left.append(sum(reference() is not None for reference in biases))
            biases.append(weakref.ref(call.bias))

    ids = torch.tensor([[9, 10, 11]])
    encoded = from_model_inputs(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    run_forward(model, encoded, each, max_new_tokens=4)
    assert left == [0, 0, 0, 0]


@pytest.mark.parametrize("route", ["interface", "flow", "hooks"])
def test_what_is_measured_is_not_cast_where_the_model_is(minilm, route):
    seen = []

    def note(call):
        one = torch.full((2, 2), 1 + 2**-12)  # bfloat16 has no such number
        seen.append((call.q.dtype, bool((one @ torch.eye(2) == one).all())))

    encoded = from_model_inputs(minilm, {"input_ids": [[101, 1996, 4937, 102]]})
    with torch.autocast("cpu", dtype=torch.bfloat16):
        run_forward(minilm, encoded, note, route=route)
        assert torch.is_autocast_enabled("cpu")
    assert seen == [(torch.bfloat16, True)] * 6
