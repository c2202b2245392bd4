"""Capture: what it takes is what the model did, and the model is as it was."""

import copy
from dataclasses import fields

import pytest
import torch
import transformers

from attnprobe.attention.call import AttentionCall
from attnprobe.attention.forward import recompute
from attnprobe.errors import CaptureError, EnvironmentFailure, InputError
from attnprobe.models.capture import as_model, capture, estimate_bytes, record
from attnprobe.models.interface import Pending, raw_call
from attnprobe.models.load import load
from attnprobe.models.verify import verify
from tests.tiny import HEAD_DIM, HEADS, LAYERS, TINY, build, byte_tokenizer, inputs_for, sharpen, tiny_model

ON_INTERFACE = [name for name, tiny in TINY.items() if tiny.on_interface]
RUNS = [
    (name, attn) for name in ON_INTERFACE for attn in ("eager", "sdpa") if attn == "eager" or not TINY[name].eager_only
]
TEXTS = ["The keys to the cabinet are on the table.", "Why?", "Rain fell on the roof, and then it stopped."]


def forward(model, **inputs):
    with torch.no_grad():
        return model.backbone(**inputs)


def tensors_of(output):
    """Every tensor of a model's output, in order."""
    if isinstance(output, torch.Tensor):
        return [output]
    values = output.values() if isinstance(output, dict) else output if isinstance(output, (tuple, list)) else []
    return [tensor for value in values for tensor in tensors_of(value)]


def same_outputs(a, b):
    left, right = tensors_of(a), tensors_of(b)
    return len(left) == len(right) > 0 and all(torch.equal(x, y) for x, y in zip(left, right, strict=True))


class Outputs:
    """Keeps what a module's forward gave, each time."""

    def __init__(self, module):
        self.seen = []
        self.handle = module.register_forward_hook(lambda _module, _inputs, output: self.seen.append(output))


@pytest.mark.parametrize(
    ("family", "attn", "padding"),
    [
        (*run, padding)
        for run in RUNS
        for padding in (("right", "left", "none") if TINY[run[0]].reads == "text" else ("none",))
    ],
)
def test_every_family_under_capture(family, attn, padding):
    """Outputs the same bits with and without, and verified: replay equal to eager in every layer, float64 within tolerance."""
    model = tiny_model(family, attn=attn)
    inputs = inputs_for(family, padding=padding)
    bare = forward(model, **inputs)
    seen = Outputs(model.backbone)
    capture(model, **inputs)
    seen.handle.remove()
    assert same_outputs(seen.seen[0].last_hidden_state, bare.last_hidden_state)
    assert model.attn_implementation == attn
    checked = verify(model, **inputs)
    assert checked.ok, checked.notes
    assert checked.bitwise.all()
    assert checked.pattern_max_abs.max() < 5e-6
    assert (checked.context_max_abs < 0.1 * checked.context_tolerance).all()
    assert checked.max_score.max() > 2  # sharp enough for a mistake to show


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_outputs_of_minilm_are_the_same_bits(attn):
    model = load("minilm", attn=attn)
    encoded = model.tokenizer(TEXTS, padding=True, return_tensors="pt")
    bare = forward(model, **encoded)
    seen = Outputs(model.module)
    capture(model, TEXTS)
    capture(model, TEXTS, route="hooks")
    again = forward(model, **encoded)
    assert all(same_outputs(output, bare) for output in (*seen.seen, again))
    assert len(seen.seen) == 3


@pytest.mark.parametrize("route", ["interface", "hooks"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_configuration_and_modules_are_untouched(attn, route):
    """Also after an exception while the pass runs."""

    class Stop(Exception):
        pass

    def stop(call, batch):
        if call.layer == 1:
            raise Stop

    model = tiny_model("bert", attn=attn, tokenizer=byte_tokenizer())
    before = copy.deepcopy(model.config.to_dict()), model.config._attn_implementation
    weights = {key: value.clone() for key, value in model.module.state_dict().items()}
    capture(model, "some text", route=route)
    with pytest.raises(Stop):
        record(model, [inputs_for("bert")], each=stop, route=route)
    assert (model.config.to_dict(), model.config._attn_implementation) == before
    assert all(torch.equal(value, weights[key]) for key, value in model.module.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.module.modules())
    assert len(capture(model, "some text", route=route).layers) == LAYERS  # and the next one works


def test_the_library_gets_its_own_functions_back_outside_a_capture():
    """Nothing is left behind but an inert gate (TransformerLens #1795)."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    def eager():
        """Stands for a model's own eager function."""

    capture(tiny_model("bert", attn="sdpa"), input_ids=[[9, 10]])
    assert ALL_ATTENTION_FUNCTIONS.get_interface("sdpa", eager) is sdpa_attention_forward
    assert ALL_ATTENTION_FUNCTIONS.get_interface("eager", eager) is eager
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention_forward
    assert "eager" not in ALL_ATTENTION_FUNCTIONS


def test_what_a_capture_holds(minilm):
    taken = capture(minilm, ["The cat sat.", "Dogs"])
    assert (taken.model, taken.family, taken.dtype, taken.attn_implementation) == ("minilm", "bert", "float32", "eager")
    assert taken.tokens[1] == ("[CLS]", "dogs", "[SEP]", "[PAD]", "[PAD]", "[PAD]")
    assert taken.input_ids.shape == taken.attention_mask.shape == (2, 6)
    assert [call.layer for call in taken.layers] == list(range(6))
    call = taken.layer(-1)
    assert call is taken.layers[5]
    assert (call.kind, call.index, call.step, call.module) == ("encoder", 5, 0, "encoder.layer.5.attention.self")
    assert call.q.shape == call.k.shape == call.v.shape == call.context.shape == (2, 12, 6, 32)
    assert call.pattern.shape == (2, 12, 6, 6)
    assert call.scale == 32**-0.5
    assert (call.implementation, call.pattern_source) == ("eager", "model")
    assert not any(t.requires_grad for t in vars(call).values() if isinstance(t, torch.Tensor))
    with pytest.raises(InputError, match="no layer 6: expected 0 to 5"):
        taken.layer(6)


def test_patterns_of_sdpa_are_marked_as_recomputed(minilm, minilm_sdpa):
    recomputed, reported = capture(minilm_sdpa, TEXTS), capture(minilm, TEXTS)
    for ours, theirs in zip(recomputed.layers, reported.layers, strict=True):
        assert ours.pattern_source == "recomputed"
        torch.testing.assert_close(ours.pattern[:, :, :3], theirs.pattern[:, :, :3], atol=1e-5, rtol=0)
    left_out = capture(minilm_sdpa, TEXTS, pattern=False)
    assert all(call.pattern is None and call.pattern_source is None for call in left_out.layers)
    assert capture(minilm, TEXTS, pattern=False).layer(0).pattern_source == "model"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_patterns_of_half_precision_under_sdpa_are_recomputed_in_float32(dtype):
    """As sdpa computes its scores: eager in bfloat16 is off by several hundredths."""
    taken = capture(load("minilm", attn="sdpa", dtype=dtype), TEXTS)
    for call in taken.layers:
        assert call.pattern.dtype == torch.float32
        torch.testing.assert_close(call.pattern.double(), recompute(call)[0], rtol=0, atol=1e-5)
    assert verify(taken).ok


def test_patterns_equal_output_attentions(minilm):
    encoded = minilm.tokenizer(TEXTS, padding=True, return_tensors="pt")
    reported = forward(minilm, **encoded, output_attentions=True).attentions
    for call, weights in zip(capture(minilm, TEXTS).layers, reported, strict=True):
        assert torch.equal(call.pattern, weights)


def test_capture_under_sdpa_where_the_library_gives_nothing(minilm_sdpa):
    """transformers #30978: output_attentions under sdpa is an empty tuple and a log line."""
    encoded = minilm_sdpa.tokenizer(TEXTS, padding=True, return_tensors="pt")
    assert not forward(minilm_sdpa, **encoded, output_attentions=True).attentions
    assert all(call.pattern is not None for call in capture(minilm_sdpa, TEXTS).layers)


def test_train_mode_is_refused():
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    model.module.train()
    for run in (
        lambda: capture(model, "text"),
        lambda: record(model, [{"input_ids": [[9]]}], each=print),
        lambda: verify(model),
    ):
        with pytest.raises(CaptureError, match=r"in train mode at the model itself: expected evaluation mode.*eval"):
            run()
    model.module.eval()
    model.module.encoder.layer[1].train()
    with pytest.raises(CaptureError, match=r"in train mode at encoder.layer.1"):
        capture(model, "text")


def test_models_given_otherwise():
    module, tokenizer = build("bert"), byte_tokenizer()
    assert as_model(module).module is module
    assert as_model((module, tokenizer)).tokenizer is tokenizer
    assert as_model("minilm").name == "minilm"
    assert len(capture((module, tokenizer), "text").layers) == len(capture(module, input_ids=[[9]]).layers) == LAYERS


def test_a_task_head_is_not_run():
    """Its attention is that of the bare model, and the vocabulary projection costs more than all the rest."""
    module = build("bert", head="BertForMaskedLM")
    ran = Outputs(module.cls)
    taken = capture(module, **inputs_for("bert"))
    assert ran.seen == []
    assert [call.module for call in taken.layers] == [f"bert.encoder.layer.{i}.attention.self" for i in range(LAYERS)]


def test_what_is_run_where_the_base_is_only_a_part():
    """DINOv3 calls its stack of layers the base; that takes hidden states and would leave the embedding out."""
    config = transformers.DINOv3ViTConfig(
        hidden_size=36, intermediate_size=37, num_hidden_layers=2, num_attention_heads=3, image_size=14, patch_size=7
    )
    model = load((sharpen(transformers.DINOv3ViTModel(config)).eval(), None))
    assert model.module.base_model is not model.module
    assert model.backbone is model.module
    pixels = torch.randn(2, 3, 14, 14, generator=torch.Generator().manual_seed(1))
    assert len(capture(model, pixel_values=pixels).layers) == 2


def test_a_batch_of_one_word(minilm):
    taken = capture(minilm, "Why")
    assert taken.layer(0).pattern.shape == (1, 12, 3, 3)
    assert verify(minilm, "Why").ok


def test_causal_models_never_look_ahead():
    """transformers #30652: with the mask left to sdpa's own flag, a fallback lost it."""
    for family, attn in RUNS:
        if not TINY[family].causal:
            continue
        for padding in ("none", "right"):
            taken = capture(tiny_model(family, attn=attn), **inputs_for(family, padding=padding))
            for call in taken.layers:
                assert call.kind == "decoder"
                seeing = call.visible.any(-1).expand(call.pattern.shape[:3])  # behind a window, padding sees nothing
                assert (call.pattern.triu(1)[seeing] == 0).all(), (family, attn, padding)
                assert seeing.all() or "sliding_window" in TINY[family].settings
                assert call.pattern.diagonal(dim1=-2, dim2=-1).max() > 0.2


def test_the_mask_left_to_sdpa_is_rebuilt():
    taken = capture(tiny_model("llama", attn="sdpa"), **inputs_for("llama", padding="none"))
    assert taken.layer(0).visible.shape == (1, 1, 11, 11)
    assert torch.equal(taken.layer(0).visible[0, 0], torch.ones(11, 11).tril().bool())
    assert (taken.layer(0).bias == -torch.inf).sum() == 55


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_rows_that_see_nothing_are_left_out_and_counted(family, attn):
    """Left padding under a causal mask: eager gives such rows 1/n everywhere, sdpa 0; neither is attention."""
    model = tiny_model(family, attn=attn)
    inputs = inputs_for(family, padding="left", lengths=(11, 7, 2))
    call = capture(model, **inputs).layer(0)
    empty = (inputs["attention_mask"] == 0)[:, None, :].expand(-1, call.n_heads, -1)
    assert torch.equal(~call.visible.any(-1).expand(-1, call.n_heads, -1), empty)
    rows = call.pattern[empty]
    assert (rows == (1 / 11 if attn == "eager" else 0)).all() or attn == "eager" and (rows - 1 / 11).abs().max() < 1e-6
    checked = verify(model, **inputs)
    assert checked.ok
    assert checked.rows_excluded.tolist() == [call.n_heads * (4 + 9)] * LAYERS
    assert checked.rows_checked.tolist() == [call.n_heads * (11 + 7 + 2)] * LAYERS


def test_keys_of_padding_get_exactly_nothing():
    for family, attn in RUNS:
        if TINY[family].reads != "text" or TINY[family].causal:
            continue
        inputs = inputs_for(family)
        for call in capture(tiny_model(family, attn=attn), **inputs).layers:
            if call.kind != "decoder":
                hidden = (inputs["attention_mask"] == 0)[:, None, None, :]
                seeing = torch.ones(1, 1, 1).bool() if call.visible is None else call.visible.any(-1)
                assert (call.pattern.masked_fill(~hidden, 0)[seeing.expand(call.pattern.shape[:3])] == 0).all(), (
                    family,
                    attn,
                )


@pytest.mark.parametrize("family", ["t5", "bart", "marian", "whisper"])
def test_kinds_of_encoder_decoder_models(family):
    """Three encoder layers and two decoder layers: told apart by kind, whatever the numbers of layers."""
    taken = capture(tiny_model(family, attn="sdpa"), **inputs_for(family))
    assert [(call.kind, call.index) for call in taken.layers] == [
        *(("encoder", i) for i in range(3)),
        *((kind, i) for i in range(2) for kind in ("decoder", "cross")),
    ]
    assert [call.layer for call in taken.layers] == list(range(7))
    n_source, n_target = taken.layer(0).k.shape[2], taken.layer(3).q.shape[2]
    assert n_source != n_target
    for call in taken.layers:
        shape = {"encoder": (n_source, n_source), "decoder": (n_target, n_target), "cross": (n_target, n_source)}
        assert call.pattern.shape[-2:] == shape[call.kind]
    assert taken.layer(4).scale == (1.0 if family in ("t5", "whisper") else HEAD_DIM**-0.5)


def test_a_decoder_with_cross_attention_of_its_own():
    """BERT as a decoder over given encoder states: no encoder in this model."""
    model = tiny_model("bert", is_decoder=True, add_cross_attention=True)
    states = torch.randn(2, 7, 30, generator=torch.Generator().manual_seed(1))
    taken = capture(model, input_ids=[[9, 10, 11], [12, 13, 14]], encoder_hidden_states=states)
    assert [(call.kind, call.index) for call in taken.layers] == [
        (k, i) for i in range(2) for k in ("decoder", "cross")
    ]
    assert taken.layer(1).pattern.shape == (2, HEADS, 3, 7)


def test_one_module_called_for_every_layer():
    """ALBERT shares one module between layers: told apart by call order, not by name."""
    taken = capture(tiny_model("albert"), **inputs_for("albert"))
    assert [call.layer for call in taken.layers] == [call.index for call in taken.layers] == [0, 1]
    assert taken.layer(0).module == taken.layer(1).module
    assert not torch.equal(taken.layer(0).q, taken.layer(1).q)


def test_grouped_heads_keep_their_own_number():
    call = capture(tiny_model("llama"), **inputs_for("llama")).layer(1)
    assert call.q.shape == (3, 4, 11, HEAD_DIM)
    assert call.k.shape == call.v.shape == (3, 2, 11, HEAD_DIM)
    assert call.groups == 2


def test_what_changes_the_softmax_is_carried():
    gemma, oss = (capture(tiny_model(name), **inputs_for(name)) for name in ("gemma2", "gpt-oss"))
    assert gemma.layer(0).softcap == 50.0
    assert gemma.layer(0).scale == 17**-0.5
    assert oss.layer(0).sinks.shape == (4,)
    assert (oss.layer(0).pattern[0].sum(-1) < 1 - 1e-4).any()
    t5 = capture(tiny_model("t5"), **inputs_for("t5", padding="none"))
    assert t5.layer(0).bias.shape == (1, HEADS, 11, 11)
    assert t5.layer(0).bias.std() > 0.1
    window = capture(tiny_model("mistral", attn="sdpa"), **inputs_for("mistral", padding="none")).layer(0)
    assert window.visible[0, 0].sum(-1).tolist() == [1, 2, 3, 4, 5, 5, 5, 5, 5, 5, 5]


def generating(family, **options):
    classes = {
        "gpt2": "GPT2LMHeadModel",
        "llama": "LlamaForCausalLM",
        "t5": "T5ForConditionalGeneration",
        "bart": "BartForConditionalGeneration",
    }
    return build(family, head=classes[family], **options)


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_generation_gives_every_step(family, attn):
    model = load((generating(family, attn=attn), byte_tokenizer(specials=False, padding_side="left")))
    taken = capture(model, ["abcd", "xy"], max_new_tokens=3)
    shapes = [(call.step, call.layer, call.index, *call.pattern.shape[-2:]) for call in taken.layers]
    lengths = [(4, 4), (1, 5), (1, 6)]
    assert shapes == [(step, i, i, *lengths[step]) for step in range(3) for i in range(LAYERS)]
    assert verify(taken).ok
    assert [block.step for block in taken.view(1).blocks] == [0, 0, 1, 1, 2, 2]
    assert taken.view(1).blocks[0].pattern.shape[-2:] == (2, 2)
    assert taken.view(1).blocks[-1].pattern.shape[-2:] == (1, 4)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_generation_after_padding_is_that_of_the_text_alone(family):
    tokenizer = byte_tokenizer(specials=False, padding_side="left")
    model = load((generating(family), tokenizer))
    together, alone = capture(model, ["abcd", "xy"], max_new_tokens=3), capture(model, "xy", max_new_tokens=3)
    for both, one in zip(together.layers, alone.layers, strict=True):
        rows, columns = one.pattern.shape[-2:]
        torch.testing.assert_close(both.pattern[1:, :, -rows:, -columns:], one.pattern, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_step_of_one_token_sees_all_before_it(family):
    """Without padding there is no mask, and the flag that hides later keys means nothing for a single query."""
    model = load((generating(family, attn="sdpa"), byte_tokenizer(specials=False)))
    taken = capture(model, "abcd", max_new_tokens=3)
    assert [call.visible is None for call in taken.layers] == [False] * LAYERS + [True] * 2 * LAYERS
    assert (taken.layers[-1].pattern > 0).all()
    assert verify(taken).ok


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_generation_of_encoder_decoder_models(family):
    """The encoder runs once; its layers belong to step 0, and later steps go on counting after them."""
    taken = capture(load((generating(family), byte_tokenizer())), "abcd", max_new_tokens=2)
    expected = [(0, i, "encoder", i) for i in range(3)]
    expected += [
        (step, 3 + 2 * i + j, kind, i)
        for step in range(2)
        for i in range(2)
        for j, kind in enumerate(("decoder", "cross"))
    ]
    assert [(call.step, call.layer, call.kind, call.index) for call in taken.layers] == expected
    assert taken.layers[-1].k.shape[2] == 6
    assert verify(taken).ok


def test_generation_is_what_the_model_generates():
    module = generating("gpt2")
    ids = torch.tensor([[9, 10, 11]])
    options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "pad_token_id": 2}
    seen = Outputs(module)
    bare = module.generate(ids, attention_mask=torch.ones_like(ids), **options)
    alone = [output.logits for output in seen.seen]
    seen.seen.clear()
    capture((module, None), input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=4)
    assert all(torch.equal(a, b.logits) for a, b in zip(alone, seen.seen, strict=True))
    assert bare.shape == (1, 7)


def test_generation_that_cannot_be():
    with pytest.raises(CaptureError, match=r"BertModel cannot generate. Load it with head='causal-lm'"):
        capture(tiny_model("bert", tokenizer=byte_tokenizer()), "text", max_new_tokens=2)
    model = load((generating("gpt2"), byte_tokenizer(specials=False)))
    with pytest.raises(InputError, match="expected max_new_tokens >= 1, got 0"):
        capture(model, "text", max_new_tokens=0)
    with pytest.raises(InputError, match="padded on the right.*padding_side = 'left'"):
        capture(model, ["text", "a longer text"], max_new_tokens=2)


@pytest.mark.parametrize("family", [name for name, tiny in TINY.items() if not tiny.on_interface])
def test_a_family_off_the_interface_is_not_seen_there(family):
    with pytest.raises(
        CaptureError, match=r"ran, and no attention was captured: expected at least one call by the route 'interface'"
    ):
        capture(tiny_model(family), **inputs_for(family), route="interface")


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention", "paged|eager"])
def test_an_attention_function_that_hides_its_mask_is_refused(name):
    """Those functions hide keys by other means than a mask, or cut the padding out; what is captured would be wrong."""
    module = torch.nn.Identity()
    q = torch.zeros(1, 1, 2, 3)

    def function(module, query, key, value, attention_mask=None, **options):
        return query.transpose(1, 2), None

    call = Pending(module, function, name, q, q, q, (None,), {})
    with pytest.raises(CaptureError, match=r"does not show which keys it hides: expected sdpa or eager.*attn='sdpa'"):
        raw_call(call, call.run())
    mask = object()  # a BlockMask
    call = Pending(module, function, "sdpa", q, q, q, (mask,), {})
    with pytest.raises(CaptureError, match="does not show which keys it hides"):
        raw_call(call, call.run())


def test_the_budget_is_refused_before_and_kept_during_the_run(minilm):
    ran = Outputs(minilm.module)
    with pytest.raises(CaptureError, match=r"keep too much: expected at most 1 MB, got \d+ MB or more.*use `record`"):
        capture(minilm, ["word " * 200] * 3, max_bytes=2**20)
    ran.handle.remove()
    assert ran.seen == []
    vit = tiny_model("vit")
    assert estimate_bytes(vit, 3, 0) == 0  # a model without tokens: only what comes out tells
    calls = capture(vit, **inputs_for("vit")).layers
    needed = sum(t.nbytes for call in calls for t in (call.q, call.k, call.v, call.context, call.pattern))
    assert capture(vit, **inputs_for("vit"), max_bytes=needed)
    with pytest.raises(CaptureError, match="keep too much"):
        capture(vit, **inputs_for("vit"), max_bytes=needed - 1)


def test_the_estimate_is_what_minilm_takes(minilm):
    taken = capture(minilm, ["The cat sat.", "Dogs"])
    needed = sum(t.nbytes for call in taken.layers for t in (call.q, call.k, call.v, call.context, call.pattern))
    assert estimate_bytes(minilm, 2, 6) == needed


def kept(taken):
    """Bytes that the tensors of a capture keep alive, each once."""
    tensors = [getattr(call, f.name) for call in taken.layers for f in fields(AttentionCall)]
    tensors += [value for call in taken.layers for step in call.steps or () for value in (step.value, step.where)]
    storages = [value.untyped_storage() for value in tensors if isinstance(value, torch.Tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


@pytest.mark.parametrize("family", [name for name, tiny in TINY.items() if tiny.reads == "text"])
@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_the_estimate_is_near_what_is_kept(family, attn):
    """Between what is foretold and twice as much, whatever the numbers of heads, layers and stacks."""
    if attn == "sdpa" and (TINY[family].eager_only or not TINY[family].on_interface):
        return
    model = tiny_model(family, attn=attn)
    taken = capture(model, **inputs_for(family))
    target = 0 if taken.encoded.target_real is None else 7
    told = estimate_bytes(model, 3, 11, target=target)
    needed = sum(t.nbytes for call in taken.layers for t in (call.q, call.k, call.v, call.context, call.pattern))
    assert needed == told
    assert told <= kept(taken) <= 2 * told


@pytest.mark.parametrize(("family", "head"), [("gpt2", "GPT2LMHeadModel"), ("bart", "BartForConditionalGeneration")])
def test_the_estimate_of_a_generation_counts_its_steps(family, head):
    model = tiny_model(family, head=head)
    ids = inputs_for(family, padding="none")["input_ids"]
    taken = capture(model, input_ids=ids, max_new_tokens=5)
    needed = sum(t.nbytes for call in taken.layers for t in (call.q, call.k, call.v, call.context, call.pattern))
    assert needed == estimate_bytes(model, 3, 11, target=1, max_new_tokens=5)


def test_half_precision_keeps_recomputed_patterns_in_float32():
    for attn in ("eager", "sdpa"):
        model = load((build("bert", attn=attn).to(torch.bfloat16), None))
        taken = capture(model, **inputs_for("bert"))
        assert estimate_bytes(model, 3, 11) <= kept(taken) <= 1.1 * estimate_bytes(model, 3, 11)


def test_what_will_be_kept_is_told_before_the_model_runs(minilm, caplog):
    caplog.set_level("INFO", "attnprobe")
    heard = []
    hook = minilm.module.register_forward_pre_hook(lambda *_: heard.extend(caplog.messages))
    capture(minilm, ["The cat sat on the mat. " * 30])
    hook.remove()
    assert heard == ["about 19.8 MB will be kept"]
    capture(tiny_model("vit"), **inputs_for("vit"))
    assert caplog.messages[1:] == ["an amount that the configuration does not tell will be kept"]


def test_unknown_routes(minilm):
    with pytest.raises(InputError, match="unknown route 'hoks'; near names: hooks"):
        capture(minilm, "text", route="hoks")


def test_a_view_is_one_sequence_without_padding(minilm):
    taken = capture(minilm, ["The cat sat.", "Dogs bark"])
    view = taken.view(1)
    assert view.tokens == ("[CLS]", "dogs", "bark", "[SEP]")
    assert view.words == ("dogs", "bark")
    assert view.alignment.word_index.tolist() == [-1, 0, 1, -1]
    assert view.special.tolist() == [True, False, False, True]
    assert [(block.layer, block.kind, block.source) for block in view.blocks] == [
        (i, "encoder", "model") for i in range(6)
    ]
    assert (view.blocks[2].pattern == taken.layer(2).pattern[1, :, :4, :4].numpy()).all()
    assert view.blocks[0].scores is None
    with pytest.raises(InputError, match="no sequence 2 in this capture: expected 0 to 1"):
        taken.view(2)


def test_a_view_with_neurons_holds_what_the_scores_are_made_of():
    taken = capture(tiny_model("llama"), **inputs_for("llama", padding="none"))
    block = taken.view(2, neurons=True).blocks[1]
    assert block.q.shape == block.k.shape == (4, 11, HEAD_DIM)
    scores = torch.from_numpy(block.scores)
    raw = torch.from_numpy(block.q) @ torch.from_numpy(block.k).transpose(-1, -2) * block.scale
    torch.testing.assert_close(scores.tril(), raw.tril(), atol=1e-4, rtol=0)
    torch.testing.assert_close(scores.softmax(-1), torch.from_numpy(block.pattern), atol=1e-5, rtol=0)


def test_a_view_of_a_capture_without_patterns(minilm_sdpa):
    view = capture(minilm_sdpa, "The cat sat.", pattern=False).view()
    assert view.blocks[0].source == "recomputed"
    assert view.blocks[0].pattern.shape == (12, 6, 6)


def test_a_view_of_two_sequences():
    model = tiny_model("bart", tokenizer=byte_tokenizer())
    view = capture(model, ["abcd", "x"], text_pair="yz").view(1)
    assert [(b.kind, b.pattern.shape) for b in view.blocks] == [
        *[("encoder", (3, 3, 3))] * 3,
        *[("decoder", (3, 5, 5)), ("cross", (3, 5, 3))] * 2,
    ]
    assert len(view.target_tokens) == 5


def test_a_view_cuts_the_padding_of_source_and_target():
    mask, target = torch.ones(2, 6, dtype=torch.int64), torch.ones(2, 7, dtype=torch.int64)
    mask[1, 3:], target[1, 4:] = 0, 0
    ids = {"input_ids": torch.full((2, 6), 9), "decoder_input_ids": torch.full((2, 7), 10)}
    model = tiny_model("bart", tokenizer=byte_tokenizer())
    view = capture(model, **ids, attention_mask=mask, decoder_attention_mask=target).view(1)
    assert {b.kind: b.pattern.shape[-2:] for b in view.blocks} == {
        "encoder": (3, 3),
        "decoder": (4, 4),
        "cross": (4, 3),
    }
    assert (len(view.tokens), len(view.target_tokens)) == (3, 4)
    checked = verify(model, **ids, attention_mask=mask, decoder_attention_mask=target)
    assert checked.ok
    assert dict(zip(checked.kind, checked.rows_excluded.tolist(), strict=True)) == {
        "encoder": 9,
        "decoder": 9,
        "cross": 9,
    }


def test_half_precision_views_are_float32():
    model = load((build("bert").to(torch.bfloat16), byte_tokenizer()))
    assert capture(model, "abc").view().blocks[0].pattern.dtype == "float32"


def test_nothing_is_written_to_what_was_captured(minilm):
    taken = capture(minilm, TEXTS)
    before = [[t.clone() if isinstance(t, torch.Tensor) else t for t in vars(call).values()] for call in taken.layers]
    taken.view(neurons=True)
    verify(taken)
    for call, old in zip(taken.layers, before, strict=True):
        for field, value in zip(fields(AttentionCall), old, strict=True):
            now = getattr(call, field.name)
            assert torch.equal(now, value) if isinstance(value, torch.Tensor) else now == value


def test_too_little_memory_says_for_what_and_what_to_do(minilm):
    batches = [{"input_ids": [[101, 1996, 4937, 102]] * 3}]

    def greedy(call, batch):
        torch.empty(1 << 60, dtype=torch.uint8)

    told = r"too little memory for this batch at cpu: got 3 sequences of 4 tokens \(.*allocate.*\). Use smaller batches"
    with pytest.raises(EnvironmentFailure, match=told) as caught:
        record(minilm, batches, greedy)
    assert isinstance(caught.value.__cause__, RuntimeError)

    def wrong(call, batch):
        torch.ones(2) + torch.ones(3)

    with pytest.raises(RuntimeError, match="must match the size"):
        record(minilm, batches, wrong)


def test_too_little_memory_for_what_has_no_tokens_does_not_count_any():
    vit = tiny_model("vit")

    def greedy(call, batch):
        torch.empty(1 << 60, dtype=torch.uint8)

    told = r"got \d images or sounds \(.*\). Use fewer at a time, or"
    with pytest.raises(EnvironmentFailure, match=told):
        record(vit, [inputs_for("vit")], greedy)
