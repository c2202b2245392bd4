"""Layers built from a model's weights give what the model's layers give."""

import pytest
import torch

from attnprobe.attention import EncoderBlock, MultiHeadAttention
from attnprobe.errors import InputError
from attnprobe.models.capture import capture
from attnprobe.models.families import FAMILIES, relative
from attnprobe.models.load import load
from attnprobe.models.modules import ACTIVATIONS, attention_of, encoder_block_of
from tests.tiny import HEAD_DIM, LAYERS, TINY, build, inputs_for, tiny_model

WITH_LAYERS = [name for name, row in FAMILIES.items() if row.projections and name in TINY]
WITH_BLOCKS = [name for name, row in FAMILIES.items() if row.block and name in TINY]
CLOSE = {"rtol": 0, "atol": 2e-5}


def hidden_states(output):
    return output[0] if isinstance(output, tuple) else output


class Seen:
    """What a module was given and gave, at each of its calls."""

    def __init__(self, module):
        self.given, self.gave = [], []
        module.register_forward_hook(self.note, with_kwargs=True)

    def note(self, _module, inputs, options, output):
        self.given.append(inputs[0] if inputs else options["hidden_states"])
        self.gave.append(hidden_states(output))


def run_and_see(model, path, inputs):
    """Inputs and outputs of the modules at `path` from each attention module, in layer order."""
    calls = capture(model, **inputs).layers
    seen = {}
    for name in {call.module for call in calls}:
        module = relative(model.module, name, path) if path else model.module.get_submodule(name)
        seen[name] = Seen(module)
    with torch.no_grad():
        model.module(**inputs)
    turns = dict.fromkeys(seen, 0)
    pairs = []
    for call in calls:
        turn = turns[call.module]
        turns[call.module] += 1
        pairs.append((seen[call.module].given[turn], seen[call.module].gave[turn]))
    return calls, pairs


def where_real(model_inputs):
    """Which tokens are real, [batch token]; None where all are."""
    mask = model_inputs.get("attention_mask")
    return None if mask is None else mask.bool()


@pytest.mark.parametrize("padding", ["right", "none"])
@pytest.mark.parametrize("family", WITH_LAYERS)
def test_attention_of_every_layer(family, padding):
    """The weights as captured, and the output of the output projection."""
    model, inputs = tiny_model(family), inputs_for(family, padding=padding)
    real = where_real(inputs)
    own = FAMILIES[family].projections.output
    calls, fed = run_and_see(model, "", inputs)
    _, projected = run_and_see(model, own, inputs)
    for layer in range(LAYERS):
        ours = attention_of(model, layer)
        assert isinstance(ours, MultiHeadAttention)
        with torch.no_grad():
            attended = ours(fed[layer][0], key_mask=real)
        rows = torch.ones(attended.output.shape[:2]).bool() if real is None else real
        torch.testing.assert_close(attended.output[rows], projected[layer][1][rows], **CLOSE)
        weights, theirs = (x.transpose(1, 2)[rows] for x in (attended.weights, calls[layer].pattern))
        torch.testing.assert_close(weights, theirs, **CLOSE)
        assert theirs.max() > 0.5  # sharp, so that a wrong layer could not fit


@pytest.mark.parametrize("padding", ["right", "none"])
@pytest.mark.parametrize("family", WITH_BLOCKS)
def test_the_whole_block_of_every_layer(family, padding):
    """Hidden states in, hidden states out: residuals, norms, feed-forward."""
    climbs = {"bert": "^^", "electra": "^^", "roberta": "^^", "camembert": "^^", "xlm-roberta": "^^"}
    model, inputs = tiny_model(family), inputs_for(family, padding=padding)
    real = where_real(inputs)
    calls = capture(model, **inputs).layers
    blocks = {}
    for name in {call.module for call in calls}:
        up = len(climbs.get(family, "^"))
        blocks[name] = Seen(model.module.get_submodule(name.rsplit(".", up)[0]))
    with torch.no_grad():
        model.module(**inputs)
    for layer, call in enumerate(calls):
        seen = blocks[call.module]
        turn = layer if len(blocks) == 1 else 0
        ours = encoder_block_of(model, layer)
        assert isinstance(ours, EncoderBlock)
        with torch.no_grad():
            out = ours(seen.given[turn], key_mask=real).hidden
        rows = torch.ones(out.shape[:2]).bool() if real is None else real
        torch.testing.assert_close(out[rows], seen.gave[turn][rows], **CLOSE)


def test_minilm_layer_by_layer(minilm):
    """Our six blocks, one after another, are the encoder."""
    encoded = minilm.tokenizer(["The keys are on the table.", "Why?"], padding=True, return_tensors="pt")
    with torch.no_grad():
        states = minilm.module(**encoded, output_hidden_states=True).hidden_states
        x = states[0]
        for layer in range(6):
            x = encoder_block_of(minilm, layer)(x, key_mask=encoded["attention_mask"].bool()).hidden
            rows = encoded["attention_mask"].bool()
            torch.testing.assert_close(x[rows], states[layer + 1][rows], rtol=0, atol=1e-5)


def test_another_layer_does_not_fit(minilm):
    """Control for the test above."""
    encoded = minilm.tokenizer("The keys are on the table.", return_tensors="pt")
    with torch.no_grad():
        states = minilm.module(**encoded, output_hidden_states=True).hidden_states
        assert (encoder_block_of(minilm, 3)(states[2]).hidden - states[3]).abs().max() > 0.1


def test_grouped_heads_positions_and_windows():
    for family, groups in (("llama", 2), ("mistral", 2), ("qwen3", 2)):
        ours = attention_of(tiny_model(family), 1)
        assert (ours.heads, ours.kv_heads, ours.head_dim) == (4, 4 // groups, HEAD_DIM)
        assert ours.causal
        assert ours.window == (5 if family == "mistral" else None)


def test_the_scale_is_the_one_the_model_passes():
    """Not 1 / sqrt(dim): GPT-2 may divide by the layer's number too."""
    model = tiny_model("gpt2", scale_attn_by_inverse_layer_idx=True)
    assert attention_of(model, 1).scale == pytest.approx(HEAD_DIM**-0.5 / 2)


def test_a_cross_attention_takes_its_source():
    """Queries from the target, keys and values from the encoder states."""
    model = tiny_model("bert", is_decoder=True, add_cross_attention=True)
    states = torch.randn(2, 7, 30, generator=torch.Generator().manual_seed(1))
    real = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])
    inputs = {"input_ids": torch.tensor([[9, 10, 11], [12, 13, 14]]), "encoder_hidden_states": states}
    inputs["encoder_attention_mask"] = real.long()
    calls, given = run_and_see(model, "", inputs)
    _, projected = run_and_see(model, "^output.dense", inputs)
    for layer, call in enumerate(calls):
        ours = attention_of(model, layer)
        assert ours.causal == (call.kind == "decoder")
        with torch.no_grad():
            x = given[layer][0]
            attended = ours(x, states, key_mask=real) if call.kind == "cross" else ours(x)
        torch.testing.assert_close(attended.output, projected[layer][1], **CLOSE)


def test_copies_not_the_models_own_weights(minilm):
    ours = attention_of(minilm, 0)
    theirs = minilm.module.encoder.layer[0].attention.self.query.weight
    assert torch.equal(ours.query.weight, theirs)
    assert ours.query.weight.data_ptr() != theirs.data_ptr()
    assert not any(weight.requires_grad for weight in ours.parameters())
    assert not ours.training


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_in_the_dtype_of_the_model(dtype):
    model = load((build("bert").to(dtype), None))
    assert attention_of(model, 0).query.weight.dtype == encoder_block_of(model, 0).widen.weight.dtype == dtype


def test_models_that_cannot_be_built():
    with pytest.raises(
        InputError, match=r"no layer can be built from the family 't5': expected one of bert.*families.py"
    ):
        attention_of(tiny_model("t5"), 0)
    with pytest.raises(
        InputError, match=r"the block of the family 'llama' is not an `EncoderBlock`.*Use `attention_of`"
    ):
        encoder_block_of(tiny_model("llama"), 0)
    with pytest.raises(InputError, match=r"no layer 2 in BertModel: expected 0 to 1"):
        attention_of(tiny_model("bert"), 2)
    with pytest.raises(InputError, match=r"no layer -1"):
        attention_of(tiny_model("bert"), -1)
    with pytest.raises(InputError, match=r"activation 'quick_gelu' of BertModel is not one of ours: expected gelu \|"):
        encoder_block_of(tiny_model("bert", hidden_act="quick_gelu"), 0)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_is_the_models(name):
    model, inputs = tiny_model("bert", hidden_act=name), inputs_for("bert", padding="none")
    seen = Seen(model.module.encoder.layer[0])
    with torch.no_grad():
        model.module(**inputs)
        torch.testing.assert_close(encoder_block_of(model, 0)(seen.given[0]).hidden, seen.gave[0], **CLOSE)


def test_every_family_with_a_row_has_a_tiny_model():
    assert {name for name, row in FAMILIES.items() if row.projections} <= set(TINY)
