"""Mixing ratios against vectors built one by one, post-LN and pre-LN."""

import numpy as np
import pytest
import torch

from attnprobe import capture
from attnprobe.errors import InputError
from attnprobe.heads.mixing import STAGES, mixing_ratios
from attnprobe.text.align import CLS, SEP, encode
from tests.heads.test_scorers import SENTENCES, slices_of
from tests.oracles import heads_scorers as oracle
from tests.tiny import byte_tokenizer, tiny_model


def by_hand(model, specials):
    """Ratios of every counted token, [token stage layer], by loops over whole sentences."""
    rows = []
    for sentence in SENTENCES:
        [item] = encode(model.tokenizer, [sentence])
        taken = capture(model, sentence)
        states = model.backbone(torch.from_numpy(item.input_ids)[None], output_hidden_states=True).hidden_states
        of_layers = []
        for layer, call in enumerate(taken.layers):
            pattern, v = call.pattern[0].double().numpy(), call.v[0].double().numpy()
            slices = slices_of(model, layer, call.n_heads)
            x = states[layer][0].detach().double().numpy()
            own = pattern.mean(0).diagonal()
            last = np.full(len(x), np.nan)
            if model.family == "bert":
                output = model.backbone.encoder.layer[layer].attention.output
                norm = (
                    output.LayerNorm.weight.detach().numpy(),
                    output.LayerNorm.eps,
                    output.dense.bias.detach().numpy(),
                )
                last = oracle.mixing(pattern, v, slices, x, norm)
            stages = [
                1 - own,
                oracle.mixing(pattern, v, slices, 0 * x),
                (1 - own) / 2,
                oracle.mixing(pattern, v, slices, x),
                last,
            ]
            of_layers.append(np.stack(stages, -1))
        counted = np.ones(len(item), bool) if specials else ~np.isin(item.roles, (CLS, SEP))
        rows.append(np.stack(of_layers, -1)[counted])
    return np.concatenate(rows)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("specials", [True, False])
def test_ratios_equal_loops_over_every_vector(family, specials):
    model = tiny_model(family, tokenizer=byte_tokenizer(specials=family == "bert"), attn="sdpa")
    table = mixing_ratios(model, SENTENCES, specials=specials)
    wanted = by_hand(model, specials)
    np.testing.assert_allclose(table["ratio"], wanted.mean(0), atol=1e-5)
    np.testing.assert_allclose(table["smallest"], wanted.min(0), atol=1e-5)
    np.testing.assert_allclose(table["largest"], wanted.max(0), atol=1e-5)
    assert bool((table["n"].sel(stage="norms") == len(wanted)).all())
    assert bool(table["ratio"].sel(stage=STAGES[-1]).isnull().all()) == (family == "gpt2")
    known = table.sel(stage=list(STAGES[:4]))
    assert bool(((known["low"] <= known["ratio"]) & (known["ratio"] <= known["high"])).all())


def test_padding_changes_nothing():
    model = tiny_model("bert", tokenizer=byte_tokenizer(), attn="sdpa")
    whole, alone = mixing_ratios(model, SENTENCES), mixing_ratios(model, SENTENCES, batch_tokens=1)
    for name in ("ratio", "low", "high", "smallest", "largest", "n"):
        np.testing.assert_allclose(whole[name], alone[name], atol=1e-5)


def test_unknown_blocks_and_empty_corpora_are_refused():
    with pytest.raises(InputError, match="the block of the family 'llama' is not described.*bert"):
        mixing_ratios(tiny_model("llama", tokenizer=byte_tokenizer(specials=False), attn="sdpa"), SENTENCES)
    with pytest.raises(InputError, match="no sentence is left to measure"):
        mixing_ratios(tiny_model("bert", tokenizer=byte_tokenizer(), attn="sdpa"), [])
