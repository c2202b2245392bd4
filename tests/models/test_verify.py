"""Verification: what it compares, within which tolerance, and that nothing is compared with itself."""

import copy
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from attnprobe.attention.forward import recompute, replay
from attnprobe.errors import VerificationError
from attnprobe.models import twin as twins
from attnprobe.models import verify as checks
from attnprobe.models.capture import capture, run_forward
from attnprobe.models.interface import editing
from attnprobe.models.load import load
from attnprobe.models.outcome import LayerCheck, summarise
from attnprobe.models.texts import encode
from attnprobe.models.verify import PROBE_TEXTS, check_layer, merge, require, tolerances_of, verify
from attnprobe.records import Sentence
from tests.tiny import TINY, build, byte_tokenizer, inputs_for, sharpen, tiny_model

HALF = ("bfloat16", "float16")
DEEP = {"llama": {"num_hidden_layers": 32}, "t5": {"num_layers": 12, "num_decoder_layers": 12}}


def cast(model, dtype):
    """The same model in another dtype, its module copied."""
    return load((copy.deepcopy(model.module).to(getattr(torch, dtype)), model.tokenizer))


@pytest.mark.parametrize(
    "texts", [None, "Why?", ["A b c.", "Yes"], "word " * 500], ids=["probe", "short", "two", "long"]
)
def test_minilm_under_eager_is_equal_bit_for_bit(minilm, texts):
    checked = verify(minilm, texts)
    assert checked.ok
    assert checked.bitwise.all()
    assert checked.pattern_max_abs.max() < 5e-6
    assert checked.context_max_abs.max() < 5e-6
    assert checked.row_sum_max_error.max() < 2e-6
    assert checked.notes == ()


def test_minilm_under_sdpa(minilm_sdpa):
    checked = verify(minilm_sdpa)
    assert checked.ok
    assert checked.bitwise.all()  # of the twin
    assert checked.pattern_max_abs.max() < 5e-6
    assert checked.context_max_abs.max() < 5e-6
    assert (checked.attn_implementation, checked.dtype, checked.family) == ("sdpa", "float32", "bert")


@pytest.mark.parametrize("route", ["interface", "hooks"])
def test_either_route(minilm, minilm_sdpa, route):
    for model in (minilm, minilm_sdpa):
        assert verify(model, route=route).ok


def test_the_probe_is_padded(minilm):
    lengths = encode(minilm, list(PROBE_TEXTS)).real.sum(-1)
    assert len(set(lengths.tolist())) == len(PROBE_TEXTS)


def test_rows_are_counted(minilm):
    """Over batch and heads; padding left out. Texts without padding are joined by the probe."""
    real = encode(minilm, list(PROBE_TEXTS)).real
    probe = verify(minilm)
    assert probe.rows_checked.tolist() == [12 * int(real.sum())] * 6
    assert probe.rows_excluded.tolist() == [12 * int((~real).sum())] * 6
    padded = verify(minilm, ["the cat sat", "dogs"])
    assert (padded.rows_checked[0], padded.rows_excluded[0]) == (12 * 8, 12 * 2)
    joined = verify(minilm, "the cat sat")
    assert (joined.rows_checked[0], joined.rows_excluded[0]) == (12 * 5 + probe.rows_checked[0], probe.rows_excluded[0])


def test_sentences_and_model_inputs(minilm):
    assert verify(minilm, [Sentence("s", ("The", "cat")), Sentence("t", ("Why",))]).ok
    ids = [[101, 1996, 4937, 102], [101, 2339, 102, 0]]
    assert verify(minilm, input_ids=ids, attention_mask=[[1, 1, 1, 1], [1, 1, 1, 0]]).rows_checked[0] == 12 * 7


@pytest.mark.parametrize(("limit", "rows"), [(101, 3), (30, 2), (6, 2)])
def test_the_probe_of_a_model_that_reads_little(limit, rows):
    """Texts that fit, or token ids where fewer than two do."""
    model = tiny_model("bert", tokenizer=byte_tokenizer(max_length=limit))
    checked = verify(model)
    assert checked.ok
    assert checked.rows_excluded.max() > 0
    assert checks._probe(model).batch_size == rows


def test_the_probe_of_two_sequences_has_a_target():
    """A decoder that reads its start token alone attends to nothing else."""
    model = tiny_model("bart", tokenizer=byte_tokenizer())
    assert checks._probe(model).inputs["decoder_input_ids"].shape[1] > 3
    assert verify(model).rows_checked[3] > 3 * 3


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_the_probe_of_a_model_without_tokenizer(family):
    checked = verify(tiny_model(family))
    assert checked.ok
    assert checked.rows_excluded.max() > 0


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_tolerance_formula(minilm, dtype):
    """By hand: delta = 1e-5 * eps / eps(float32) + eps * max|score|; delta * max|v| for the context."""
    model = cast(minilm, dtype)
    taken = capture(model, ["The keys are on the table.", "Why?"])
    eps = np.finfo(dtype).eps
    for call in taken.layers:
        rows = taken.encoded.real[:, None].expand(-1, 12, -1)
        q, k = call.q.double(), call.k.double()
        scores = (q @ k.transpose(-1, -2) * call.scale).abs()
        visible = (taken.encoded.real[:, None, None, :] & rows[..., None]).expand_as(scores)
        largest = float(scores[visible].max())
        delta = 1e-5 * eps / np.finfo("float32").eps + eps * largest
        pattern, context, found = tolerances_of(call, rows)
        assert found == pytest.approx(largest, rel=1e-6)
        assert pattern == pytest.approx(delta, rel=1e-6)
        assert context == pytest.approx(delta * float(call.v.abs().max()), rel=1e-6)
    checked = verify(taken)
    assert checked.pattern_tolerance[0] == pytest.approx(tolerances_of(taken.layer(0), rows)[0])
    if dtype == "float64":
        assert checked.pattern_tolerance.max() < 1e-13
        assert verify(model).ok


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_half_precision_by_replay(minilm, minilm_sdpa, dtype, attn):
    """Bit for bit in the model's own dtype; float64 differs by up to 7 % there, which is the model's rounding, not ours."""
    model = cast({"eager": minilm, "sdpa": minilm_sdpa}[attn], dtype)
    checked = verify(model)
    eps = torch.finfo(getattr(torch, dtype)).eps
    assert checked.ok
    assert checked.bitwise.all()
    assert checked.pattern_max_abs.max() == 0.0
    assert checked.pattern_tolerance.tolist() == [2 * eps] * 6
    call = capture(model, list(PROBE_TEXTS)).layer(2)
    ratio = checked.context_tolerance[2] / (eps * float(call.v.abs().max()))
    assert ratio == pytest.approx(8 if attn == "eager" else 1)
    if dtype == "bfloat16" and attn == "eager":
        exact, _ = recompute(call)
        assert (exact - call.pattern).abs().max() > 100 * checks.FLOAT32_TOLERANCE


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "qwen3", "gemma2", "gpt-oss", "t5", "bart", "vit"])
def test_half_precision_of_families_that_round_elsewhere(family, dtype):
    """Llama and its kin take the softmax in float32, GPT-OSS subtracts the maximum first."""
    module = build(family).to(getattr(torch, dtype))
    inputs = inputs_for(family, padding="right")
    for name in ("pixel_values", "input_features"):
        if name in inputs:
            inputs[name] = inputs[name].to(getattr(torch, dtype))
    checked = verify((module, None), **inputs)
    assert checked.ok, checked.notes
    assert checked.bitwise.all()


@pytest.mark.parametrize("family", DEEP)
def test_a_deep_model_under_sdpa_does_not_drift_out_of_tolerance(family, monkeypatch):
    """Sharp models of 12 or 32 layers: the twin is given the hidden states of the run it checks."""
    model = tiny_model(family, attn="sdpa", **DEEP[family])
    checked = verify(model, **inputs_for(family))
    assert checked.ok
    assert (checked.pattern_max_abs / checked.pattern_tolerance).max() < 0.2
    monkeypatch.setattr(twins, "_forced", lambda *_: nullcontext())  # control: left to itself
    alone = verify(model, **inputs_for(family))
    assert (alone.pattern_max_abs / alone.pattern_tolerance).max() > 1


def test_the_twin_keeps_its_own_masks():
    """Only hidden states are handed on: sdpa's masks and biases are made for sdpa."""
    states, mask = torch.ones(2, 5, 3), torch.ones(2, 1, 5, 5)
    assert twins._hidden_states(states, 0 * states) is states
    own = 0 * mask
    assert twins._hidden_states(mask, own) is own
    ids = torch.zeros(2, 5, dtype=torch.int64)
    assert twins._hidden_states(ids + 1, ids) is ids
    other = torch.zeros(2, 4, 3)
    assert twins._hidden_states(states, other) is other
    assert twins._hidden_states(None, own) is own
    assert twins._hidden_states(states, None) is None


def test_the_twin_is_not_the_run_it_checks(minilm_sdpa):
    """Weights shared, not copied; the model's configuration untouched; the pattern the twin's own."""
    before = minilm_sdpa.attn_implementation
    other = twins._share_weights(minilm_sdpa, "eager")
    assert other.module is not minilm_sdpa.module
    assert other.attn_implementation == "eager"
    assert minilm_sdpa.attn_implementation == before == "sdpa"
    ours = dict(minilm_sdpa.module.named_parameters())
    assert all(weight is ours[name] for name, weight in other.module.named_parameters())


def test_without_an_eager_twin_the_pattern_is_not_compared(monkeypatch):
    """And that is said: never our pattern against itself."""
    model = tiny_model("bert", attn="sdpa", tokenizer=byte_tokenizer())

    def refuse(*_):
        raise ValueError("no eager here")

    monkeypatch.setattr(type(model.module), "set_attn_implementation", refuse)
    checked = verify(model)
    assert np.isnan(checked.pattern_max_abs).all()
    assert np.isnan(checked.row_sum_max_error).all()
    assert not checked.bitwise.any()
    assert checked.ok  # the context was compared
    assert checked.notes == ("no eager twin, so the pattern itself is not compared: no eager here",)
    assert checked.as_json()["layers"][0]["pattern_max_abs"] is None


def test_a_twin_that_stays_on_sdpa_is_none(monkeypatch):
    model = tiny_model("bert", attn="sdpa", tokenizer=byte_tokenizer())
    monkeypatch.setattr(type(model.module), "set_attn_implementation", lambda *_: None)
    assert "does not switch its attention function" in verify(model).notes[0]


def test_a_twin_that_reports_no_pattern_is_none(minilm_sdpa):
    with editing(lambda call, run: (run(call)[0], None)):
        checked = verify(minilm_sdpa)
    assert checked.ok
    assert checked.notes == ("the eager twin reported no pattern, so the pattern itself is not compared",)
    assert np.isnan(checked.pattern_max_abs).all()


def test_a_context_from_the_wrong_module_is_found(minilm):
    """What no comparison of a capture with itself can find: the output projection was fed something else."""
    taken = capture(minilm, "The cat sat.")
    call, other = taken.layer(2), taken.layer(3)
    fed = call.context.transpose(1, 2).flatten(2)
    assert check_layer(call, call, None, fed).problems == ()
    assert check_layer(call, call, None, None).problems == ()
    assert check_layer(other, other, None, fed).problems == (
        "the output projection was given something other than the captured context",
    )


def test_the_input_of_every_output_projection_is_seen():
    """In every family: verification compares it, or this test says where it does not."""
    for family, tiny in TINY.items():
        if not tiny.on_interface:
            continue
        model = tiny_model(family)
        calls, watch = [], twins.Watch()

        def keep(call, calls=calls, watch=watch):
            calls.append(call)
            watch.called(call)

        with watch.watching(model):
            run_forward(model, checks.inputs_of(model, None, inputs_for(family)), keep)
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())
        for call in calls:
            assert torch.equal(watch.fed[call.layer], call.context.transpose(1, 2).flatten(2)), (family, call.layer)


def test_a_model_that_changes_the_context_before_the_projection_is_told(minilm):
    """A gate on the output reaches no argument of the attention function: attention is verified, what heads write is not."""
    handle = minilm.module.encoder.layer[1].attention.output.dense.register_forward_pre_hook(
        lambda _module, inputs: (inputs[0] * 0.5,)
    )
    try:
        checked = verify(minilm)
    finally:
        handle.remove()
    assert checked.ok
    assert checked.notes == ("layer 1: the model changes the context before the output projection (gate or norm)",)


def test_a_projection_that_is_given_another_layers_context_fails(minilm):
    """What a capture that took one module for another would look like."""
    layers, kept = minilm.module.encoder.layer, []
    handles = [
        layers[0].attention.output.dense.register_forward_pre_hook(lambda _module, inputs: kept.append(inputs[0])),
        layers[1].attention.output.dense.register_forward_pre_hook(lambda _module, inputs: (kept[-1],)),
    ]
    try:
        checked = verify(minilm)
    finally:
        for handle in handles:
            handle.remove()
    assert not checked.ok
    assert checked.notes == ("layer 1: the output projection was given something other than the captured context",)
    with pytest.raises(VerificationError, match="does not match the model: got layer 1: the output projection"):
        require(checked)


def test_a_projection_that_is_given_the_heads_in_another_order_fails(minilm):
    """What a capture that mixed up heads would look like; a gate it is not, since the numbers are the same."""
    handle = minilm.module.encoder.layer[1].attention.output.dense.register_forward_pre_hook(
        lambda _module, inputs: (inputs[0].unflatten(-1, (12, 32)).flip(-2).flatten(-2),)
    )
    try:
        checked = verify(minilm)
    finally:
        handle.remove()
    assert not checked.ok
    assert checked.notes == ("layer 1: the output projection was given something other than the captured context",)


def test_a_family_with_a_gate_on_its_heads_is_verified():
    """AFMoE multiplies the context by a gate before the output projection."""
    config = transformers.AfmoeConfig(
        vocab_size=101, hidden_size=32, intermediate_size=36, moe_intermediate_size=12, num_hidden_layers=2,
        num_dense_layers=1, num_attention_heads=4, num_key_value_heads=4, head_dim=8, num_experts=2,
        num_experts_per_tok=1, num_shared_experts=1, pad_token_id=0, layer_types=["sliding_attention", "full_attention"],
    )  # fmt: skip
    checked = verify((sharpen(transformers.AfmoeModel(config)).eval(), None))
    assert checked.ok
    assert len(checked.notes) == 2
    assert all("changes the context" in note for note in checked.notes)


def test_bit_for_bit_means_pattern_and_context(minilm):
    """The last bit of one number is enough to lose it, in either; the float64 comparison does not mind."""
    call = capture(minilm, "The cat sat.").layer(2)
    assert check_layer(call, call, None, None).bitwise
    for name in ("pattern", "context"):
        moved = getattr(call, name).clone()
        moved[0, 3, 1, 2] = torch.nextafter(moved[0, 3, 1, 2], torch.tensor(9.0))
        other = replace(call, **{name: moved})
        checked = check_layer(other, other, None, None)
        assert not checked.bitwise
        assert checked.problems == ()
        assert checked.pattern_max_abs < checked.pattern_tolerance


def test_a_pattern_that_is_no_number_is_a_problem(minilm):
    call = capture(minilm, "The cat sat.").layer(2)
    broken = replace(call, pattern=call.pattern.clone().fill_(float("nan")))
    assert any("do not sum to 1 (off by nan)" in problem for problem in check_layer(call, broken, None, None).problems)


def test_families_that_take_their_scores_in_float32(minilm):
    """GPT-J's order of operations in half precision, which the plain replay does not repeat."""
    call = capture(cast(minilm, "bfloat16"), list(PROBE_TEXTS)).layer(0)
    pattern, context = replay(call, score_dtype=torch.float32, softmax_dtype=torch.float32)
    other = replace(call, pattern=pattern, context=context)
    assert not torch.equal(replay(call)[0], pattern)
    assert check_layer(other, other, None, None).bitwise


@pytest.mark.parametrize(
    ("change", "ok"),
    [
        ({}, True),
        ({"pattern_max_abs": 2e-5}, False),
        ({"context_max_abs": 2e-5}, False),
        ({"context_max_abs": float("nan")}, False),
        ({"pattern_max_abs": float("nan")}, False),
        ({"problems": ("something",)}, False),
    ],
)
def test_each_comparison_alone_decides(minilm, change, ok):
    taken = capture(minilm, "Why?")
    good = LayerCheck(1e-6, 1e-6, 1e-5, 1e-5, 1e-7, True, 36, 0, 9.0)
    assert summarise(taken, [good] * 5 + [replace(good, **change)], None).ok == ok
    unseen = replace(good, pattern_max_abs=float("nan"))
    assert summarise(taken, [unseen] * 6, "why it was not compared").ok


def test_a_context_that_is_no_number_fails():
    def spoil(call, run):
        out, weights = run(call)
        return out * float("nan"), weights

    with editing(spoil):
        checked = verify(tiny_model("bert"), **inputs_for("bert"))
    assert not checked.ok
    with pytest.raises(VerificationError, match=r"the recomputed context differs.*layer 0 \(encoder 0\).*got nan"):
        require(checked)


def test_require_names_the_first_layer_that_differs(minilm):
    checked = verify(minilm)
    assert require(checked) is checked
    off = checked.pattern_max_abs.copy()
    off[3] = 0.2
    with pytest.raises(VerificationError) as refused:
        require(replace(checked, ok=False, pattern_max_abs=off))
    told = str(refused.value)
    assert "the recomputed pattern differs from the model's at layer 3 (encoder 3)" in told
    assert "expected at most 1.1e-05 (float32), got 2.0e-01" in told
    assert "'bert'" in told
    with pytest.raises(VerificationError, match="got see the record"):
        require(replace(checked, ok=False))


def test_merging_keeps_the_worst_against_its_own_tolerance(minilm):
    checked = verify(minilm)
    n = checked.n_layers

    def with_pattern(off, limit, ok=True):
        return replace(checked, pattern_max_abs=np.full(n, off), pattern_tolerance=np.full(n, limit), ok=ok)

    small, large = with_pattern(4e-6, 5e-6), with_pattern(5e-6, 5e-5)
    merged = merge([small, large])
    assert merged.pattern_max_abs.tolist() == [4e-6] * n  # 80 % of its tolerance, against 10 %
    assert merged.pattern_tolerance.tolist() == [5e-6] * n
    assert merged.rows_checked.tolist() == (2 * checked.rows_checked).tolist()
    assert merged.ok
    failed = merge([large, with_pattern(2e-5, 1e-5, ok=False)])
    assert not failed.ok
    assert failed.pattern_max_abs[0] > failed.pattern_tolerance[0]  # a failure never looks like a pass
    with pytest.raises(VerificationError):
        require(failed)
    partly = merge([with_pattern(np.nan, 1e-5), small])
    assert partly.pattern_max_abs.tolist() == [4e-6] * n
    assert np.isnan(merge([with_pattern(np.nan, 1e-5)]).pattern_max_abs).all()
    lost = merge([checked, replace(checked, context_max_abs=np.full(n, np.nan), ok=False)])
    assert np.isnan(lost.context_max_abs).all()
    noted = merge([replace(checked, notes=("a", "b")), replace(checked, notes=("b", "c"))])
    assert noted.notes == ("a", "b", "c")


def test_rows_with_sinks_sum_to_what_ours_do():
    checked = verify(tiny_model("gpt-oss"), **inputs_for("gpt-oss"))
    assert checked.row_sum_max_error.max() < 1e-5  # sinks counted in


def test_the_json_of_the_command_line(minilm):
    told = verify(minilm).as_json()
    assert told["ok"] is True
    assert [layer["index"] for layer in told["layers"]] == list(range(6))
    assert all(layer["bitwise"] is True for layer in told["layers"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_on_a_device(attn, dtype):
    assert verify(load("minilm", attn=attn, dtype=dtype, device="auto")).ok


@pytest.mark.parametrize(
    "text",
    [
        "👩‍👩‍👧",
        "don't",
        "U.S.A.",
        "北京大学",
        "שלום עולם",
        "x" * 300,
        "<b>&amp;</b></script>",
        "A, naïve [MASK] AllenNLP sentence.",
        "a [SEP] b",
    ],
)
def test_texts_that_broke_other_tools(minilm, text):
    taken = capture(minilm, [text, "dogs bark"])
    assert verify(taken).ok
    view = taken.view(0)
    assert len(view.tokens) == len(view.alignment.word_index) == view.blocks[0].pattern.shape[-1]
    assert view.alignment.n_words == len(view.words)
