"""Two routes to the same numbers, and who sees what when captures run inside one another or side by side."""

import threading
import weakref
from dataclasses import fields

import pytest
import torch

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import CaptureError
from attnprobe.models import scope
from attnprobe.models.capture import capture, record, run_forward
from attnprobe.models.hooks import hooking
from attnprobe.models.inputs import from_model_inputs
from attnprobe.models.interface import editing, recording
from attnprobe.models.intervene import ablating
from attnprobe.models.load import load
from tests.tiny import LAYERS, byte_tokenizer, inputs_for, tiny_model

TEXTS = ["The keys to the cabinet are on the table.", "Why?", "Rain fell on the roof, and then it stopped."]
BY_HOOKS = ("bert", "roberta", "camembert", "xlm-roberta", "electra", "distilbert", "albert")


def assert_same_calls(first, second):
    assert len(first) == len(second) > 0
    for a, b in zip(first, second, strict=True):
        for field in fields(AttentionCall):
            x, y = getattr(a, field.name), getattr(b, field.name)
            same = (
                torch.equal(x, y) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else x is y or x == y
            )
            assert same, (a.layer, field.name)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("texts", [TEXTS, ["Why?"]], ids=["padded", "unpadded"])
def test_routes_agree_bit_for_bit_on_minilm(attn, texts):
    model = load("minilm", attn=attn)
    by_interface, by_hooks = capture(model, texts), capture(model, texts, route="hooks")
    assert (by_interface.route, by_hooks.route) == ("interface", "hooks")
    assert_same_calls(by_interface.layers, by_hooks.layers)


@pytest.mark.parametrize("family", BY_HOOKS)
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_routes_agree_on_every_family_with_hooks(family, attn):
    model = tiny_model(family, attn=attn)
    inputs = inputs_for(family)
    assert_same_calls(capture(model, **inputs).layers, capture(model, route="hooks", **inputs).layers)


def test_the_routes_are_two_ways(minilm, monkeypatch):
    """With one of them cut, the other still sees everything: neither is the other in disguise."""
    from attnprobe.models import hooks, interface

    honest = capture(minilm, "Why?")
    with monkeypatch.context() as cut:
        cut.setattr(interface, "_listening", lambda: None)
        assert_same_calls(capture(minilm, "Why?", route="hooks").layers, honest.layers)
        with pytest.raises(CaptureError, match="no attention was captured"):
            capture(minilm, "Why?", route="interface")
    monkeypatch.setattr(hooks._Hooks, "_mine", False)
    assert_same_calls(capture(minilm, "Why?").layers, honest.layers)
    with pytest.raises(CaptureError, match="by the route 'hooks'"):
        capture(minilm, "Why?", route="hooks")


def test_families_and_decoders_without_hooks():
    with pytest.raises(
        CaptureError, match=r"family 'gpt2' cannot be captured by hooks: expected one of bert.*route='interface'"
    ):
        capture(tiny_model("gpt2"), input_ids=[[9, 10]], route="hooks")
    with pytest.raises(CaptureError, match=r"a decoder cannot be captured by hooks"):
        capture(tiny_model("bert-decoder", attn="sdpa"), input_ids=[[9, 10]], route="hooks")


@pytest.mark.parametrize("inner_route", ["interface", "hooks"])
@pytest.mark.parametrize("outer_route", ["interface", "hooks"])
def test_nested_captures_see_their_own_records(outer_route, inner_route):
    """A capture inside `each` of another, of the same model: both whole, in order, unmixed."""
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    outer, inner = [], []

    def each(call, batch):
        outer.append(call)
        inner.append(capture(model, "another text", route=inner_route))

    assert record(model, [inputs_for("bert")] * 2, each=each, route=outer_route) == 2
    assert_same_calls(outer, list(capture(model, **inputs_for("bert"), pattern=False).layers) * 2)
    for taken in inner:
        assert_same_calls(taken.layers, capture(model, "another text").layers)


@pytest.mark.parametrize("route", ["interface", "hooks"])
def test_what_each_runs_for_itself_is_not_recorded(route):
    model = tiny_model("bert")
    seen = []

    def each(call, batch):
        seen.append(call.layer)
        with torch.no_grad():
            model.module(input_ids=torch.tensor([[9, 10]]))

    record(model, [inputs_for("bert")], each=each, route=route)
    assert seen == [0, 1]


def test_generation_inside_a_capture_does_not_count_for_it():
    from tests.models.test_capture import generating

    model = load((generating("gpt2"), None))
    inputs = {"input_ids": torch.tensor([[9, 10, 11]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    seen = []

    def each(call, batch):
        seen.append((call.layer, call.step))
        capture(model, **inputs, max_new_tokens=2)

    record(model, [inputs], each=each)
    assert seen == [(0, 0), (1, 0)]


def test_passes_inside_a_generation_are_no_steps_of_it():
    """What `each` runs, and what another thread runs, of the same model."""
    from tests.models.test_capture import generating

    model = load((generating("gpt2"), None))
    inputs = {"input_ids": torch.tensor([[9, 10, 11]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
    seen = []

    def run_bare():
        with torch.no_grad():
            model.module(**inputs)

    def each(call):
        seen.append((call.layer, call.step))
        run_bare()
        thread = threading.Thread(target=run_bare)
        thread.start()
        thread.join()

    run_forward(model, from_model_inputs(model, inputs), each, max_new_tokens=3)
    assert seen == [(layer, step) for step in range(3) for layer in range(LAYERS)]


@pytest.mark.parametrize("route", ["interface", "hooks"])
def test_threads_see_their_own_records(route):
    """4 threads, one model, 60 captures each (transformers #42673)."""
    model = tiny_model("bert")
    inputs = [inputs_for("bert", seed=seed) for seed in range(4)]
    expected = [capture(model, route=route, **given).layers for given in inputs]
    start, wrong = threading.Barrier(4), []

    def work(place):
        start.wait()
        for _ in range(60):
            try:
                assert_same_calls(capture(model, route=route, **inputs[place]).layers, expected[place])
            except BaseException as error:  # noqa: BLE001 - told to the main thread
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, f"{len(wrong)} of 240 wrong, first: {wrong[0]!r}"
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())


def test_hooks_bear_being_called_before_torch_knows_what_they_want():
    """torch notes a hook first and that it wants keywords second; a pass in another thread may come between."""
    model, inputs = tiny_model("bert"), inputs_for("bert")
    with hooking(model.module, lambda raw: None):
        attention = model.module.encoder.layer[0].attention.self
        attention._forward_pre_hooks_with_kwargs.clear()
        done = []
        thread = threading.Thread(target=lambda: done.append(model.module(**inputs)))
        thread.start()
        thread.join()
    assert done
    with ablating(model, [(0, 1)]), torch.no_grad():
        kept = dict(model.module._forward_pre_hooks_with_kwargs)
        model.module._forward_pre_hooks_with_kwargs.clear()
        thread = threading.Thread(target=lambda: done.append(model.module(**inputs)))
        thread.start()
        thread.join()
        model.module._forward_pre_hooks_with_kwargs.update(kept)
        model.module(**inputs)
    assert len(done) == 2


def test_threads_that_do_not_capture_are_not_recorded():
    model, stop = tiny_model("bert"), threading.Event()
    inputs = inputs_for("bert")

    def run_bare():
        while not stop.is_set():
            with torch.no_grad():
                model.module(**inputs)

    thread = threading.Thread(target=run_bare)
    thread.start()
    try:
        for route in ("interface", "hooks"):
            for _ in range(30):
                assert len(capture(model, route=route, **inputs).layers) == LAYERS
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize("route", ["interface", "hooks"])
def test_a_forward_in_another_thread_raises(route):
    """DataParallel does that: a context does not go along (no record, and it is said)."""
    model = tiny_model("bert")
    honest = type(model.module).forward

    def elsewhere(*arguments, **options):
        with torch.no_grad():
            thread = threading.Thread(target=honest, args=(model.module, *arguments), kwargs=options)
            thread.start()
            thread.join()

    model.module.forward = elsewhere
    with pytest.raises(CaptureError, match=r"no attention was captured.*its forward ran in another thread"):
        capture(model, input_ids=[[9, 10]], route=route)


def test_recordings_of_a_pass_that_the_caller_runs():
    """The seam by itself: inner hides outer, and both end with their block."""
    model, outer, inner = tiny_model("bert", attn="sdpa"), [], []
    ids = torch.tensor([[9, 10, 11]])
    with torch.no_grad():
        with recording(outer.append):
            model.module(input_ids=ids)
            with recording(inner.append):
                model.module(input_ids=ids)
            model.module(input_ids=ids)
        model.module(input_ids=ids)
    assert (len(outer), len(inner)) == (2 * LAYERS, LAYERS)
    assert all(raw.implementation == "sdpa" for raw in (*outer, *inner))
    assert scope.current() == scope.Scope()


def test_recorded_tensors_hold_no_graph():
    model, seen = tiny_model("gpt-oss"), []
    with recording(seen.append):
        output = model.module(**inputs_for("gpt-oss")).last_hidden_state
    assert output.requires_grad
    for raw in seen:
        parts = [raw.q, raw.k, raw.v, raw.mask, raw.sinks, raw.out, raw.weights]
        assert all(isinstance(part, torch.Tensor) and not part.requires_grad for part in parts)


def test_editors_add_up_in_the_order_they_were_opened():
    model = tiny_model("bert")
    order = []

    def editor(name, factor):
        def run(call, function):
            out, weights = function(call)
            order.append(name)
            return factor * out + 1, weights

        return run

    honest = capture(model, input_ids=[[9, 10, 11]]).layer(0).context
    with editing(editor("first", 2)), editing(editor("second", 3)):
        changed = capture(model, input_ids=[[9, 10, 11]]).layer(0).context
    assert order == ["first", "second"] * LAYERS
    torch.testing.assert_close(changed, 3 * (2 * honest + 1) + 1)
    assert torch.equal(capture(model, input_ids=[[9, 10, 11]]).layer(0).context, honest)


def test_a_module_that_indexes_the_registry_is_seen_once():
    """A few models take the function by item; get_interface takes it by item too."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    q, seen = torch.zeros(1, 1, 2, 4), []
    module = torch.nn.Identity()
    with recording(seen.append):
        ALL_ATTENTION_FUNCTIONS["sdpa"](module, q, q, q, None, scaling=0.5)
        assert len(seen) == 1
        ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", None)(module, q, q, q, None, scaling=0.5)
    assert len(seen) == 2
    assert seen[0].hides_later  # no mask, and nothing says that later keys may be seen


def test_record_hands_over_each_layer_with_its_batch():
    model = tiny_model("bert")
    batches = [inputs_for("bert", seed=seed, lengths=(n, 3)) for seed, n in ((1, 5), (2, 7))]
    seen = []
    assert record(model, iter(batches), each=lambda call, batch: seen.append((call.layer, call.q.shape[2], batch))) == 2
    assert [(layer, n) for layer, n, _ in seen] == [(0, 5), (1, 5), (0, 7), (1, 7)]
    assert seen[0][2] is batches[0]
    assert seen[3][2] is batches[1]
    assert record(model, [], each=print) == 0


@pytest.mark.parametrize("route", ["interface", "hooks"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_record_keeps_nothing(attn, route):
    """When a layer is handed over, nothing of the layers before it is left, and nothing at the end."""
    model = tiny_model("bert", attn=attn, num_hidden_layers=5)
    alive, left = [], []

    def each(call, batch):
        left.append(sum(reference() is not None for reference in alive))
        alive.extend(weakref.ref(t) for t in (call, call.q, call.k, call.v, call.context))
        if call.pattern is not None:
            alive.append(weakref.ref(call.pattern))

    record(model, [inputs_for("bert")] * 3, each=each, route=route)
    assert len(left) == 15
    assert max(left) == 0
    assert not any(reference() is not None for reference in alive)


def test_an_exception_in_each_ends_the_run():
    class Stop(Exception):
        pass

    def each(call, batch):
        raise Stop

    model = tiny_model("bert")
    for route in ("interface", "hooks"):
        with pytest.raises(Stop):
            record(model, [inputs_for("bert")], each=each, route=route)
        assert scope.current() == scope.Scope()
