"""Captures on disk: everything comes back, and can be verified again."""

import json
import os
from dataclasses import fields

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import EnvironmentFailure, InputError, VerificationError
from attnprobe.models import saved
from attnprobe.models.capture import capture
from attnprobe.models.load import load
from attnprobe.models.saved import load_capture
from attnprobe.models.verify import require, verify
from attnprobe.records import Sentence
from tests.models.test_capture import generating
from tests.models.test_routes import assert_same_calls
from tests.tiny import TINY, byte_tokenizer, inputs_for, tiny_model

TEXTS = ["The keys to the cabinet are on the table.", "Why?"]


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b) and a.dtype == b.dtype
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "word_index"):
        return np.array_equal(a.word_index, b.word_index) and a.n_words == b.n_words
    return a == b


def assert_same_captures(a, b):
    assert_same_calls(a.layers, b.layers)
    for name in ("model", "family", "dtype", "attn_implementation", "route"):
        assert getattr(a, name) == getattr(b, name)
    for field in fields(a.encoded):
        assert same(getattr(a.encoded, field.name), getattr(b.encoded, field.name)), field.name


@pytest.mark.parametrize("attn", ["eager", "sdpa"])
def test_minilm_comes_back_and_is_verified_again(attn, tmp_path):
    taken = capture(load("minilm", attn=attn), TEXTS)
    path = tmp_path / "c.safetensors"
    assert taken.save(path) == path
    back = load_capture(path)
    assert_same_captures(taken, back)
    checked = verify(back)
    assert checked.ok
    assert checked.bitwise.all() == (attn == "eager")
    assert np.isnan(checked.pattern_max_abs).all() == (attn == "sdpa")
    assert (checked.context_max_abs <= checked.context_tolerance).all()
    assert checked.rows_excluded.tolist() == verify(taken).rows_excluded.tolist()
    assert [block.pattern.shape for block in back.view(1).blocks] == [(12, 4, 4)] * 6


@pytest.mark.parametrize("family", [name for name, tiny in TINY.items() if tiny.on_interface])
def test_every_family_comes_back(family, tmp_path):
    taken = capture(tiny_model(family), **inputs_for(family))
    back = load_capture(taken.save(tmp_path / "c.safetensors"))
    assert_same_captures(taken, back)
    assert verify(back).ok


def test_pairs_sentences_targets_and_steps_come_back(tmp_path):
    pair = capture("minilm", [Sentence("s", ("Who", "", "came"), segments=(0, 0, 1)), Sentence("t", ("日本",))])
    two = capture(tiny_model("bart", tokenizer=byte_tokenizer()), ["abc", "d"], text_pair="xy")
    steps = capture(load((generating("gpt2"), byte_tokenizer(specials=False))), "abc", max_new_tokens=2)
    for number, taken in enumerate((pair, two, steps)):
        back = load_capture(taken.save(tmp_path / f"{number}.safetensors"))
        assert_same_captures(taken, back)
        assert verify(back).ok


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_other_dtypes_come_back(dtype, tmp_path):
    taken = capture(load("minilm", dtype=dtype, attn="eager"), TEXTS)
    back = load_capture(taken.save(tmp_path / "c.safetensors"))
    assert_same_captures(taken, back)
    assert verify(back).ok
    assert verify(back).bitwise.all()


def test_without_patterns(tmp_path):
    taken = capture("minilm", TEXTS, pattern=False)
    back = load_capture(taken.save(tmp_path / "c.safetensors"))
    assert all(call.pattern is None for call in back.layers)
    assert verify(back).ok


def test_the_names_in_the_file(tmp_path):
    """Others read them: names are a contract."""
    taken = capture(tiny_model("gpt-oss"), **inputs_for("gpt-oss"))
    path = taken.save(tmp_path / "c.safetensors")
    names = {
        f"layer.{n}.{part}"
        for n in range(2)
        for part in ("q", "k", "v", "bias", "pattern", "context", "visible", "sinks")
    }
    assert load_file(path).keys() == names | {"input_ids", "attention_mask"}
    with safe_open(path, framework="pt") as stored:
        about = stored.metadata()
    assert about["attnprobe_capture"] == "1"
    assert (about["model"], about["family"], about["dtype"]) == ("GptOssModel", "gpt_oss", "float32")
    layers = json.loads(about["layers"])
    assert layers[1]["scale"] == taken.layer(1).scale
    assert {*(field.name for field in fields(AttentionCall)), "order"} == {*layers[0], *saved._TENSORS}
    assert {"tokens", "words", "alignments", "real", "special"} <= about.keys()


def test_what_was_changed_afterwards_is_found(tmp_path):
    """Each tensor that is compared: a file with one number changed is not verified."""
    for attn in ("eager", "sdpa"):
        path = capture(load("minilm", attn=attn), TEXTS).save(tmp_path / "c.safetensors")
        with safe_open(path, framework="pt") as stored:
            about = stored.metadata()
        for part in ("q", "k", "v", "pattern", "context"):
            tensors = load_file(path)
            tensors[f"layer.3.{part}"][0, 2, 1] += 0.5
            save_file(tensors, tmp_path / "changed.safetensors", metadata=about)
            checked = verify(load_capture(tmp_path / "changed.safetensors"))
            assert not checked.ok, (attn, part)
            with pytest.raises(VerificationError):
                require(checked)


def test_no_half_written_file_is_left(tmp_path, monkeypatch):
    taken = capture("minilm", "Why?")
    path = tmp_path / "c.safetensors"
    path.write_text("before")

    def fail(tensors, name, metadata):
        name.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saved, "save_file", fail)
    with pytest.raises(EnvironmentFailure, match=r"cannot write the capture at .*No space left.*free space"):
        taken.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["c.safetensors"]
    assert path.read_text() == "before"


def test_an_old_file_is_replaced_not_written_over(tmp_path):
    """Whoever has the old one open, or linked, keeps it whole."""
    path = tmp_path / "c.safetensors"
    path.write_text("before")
    os.link(path, tmp_path / "link")
    capture("minilm", "Why?").save(path)
    assert (tmp_path / "link").read_text() == "before"
    assert len(load_capture(path).layers) == 6


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(EnvironmentFailure, match="cannot write the capture"):
        capture("minilm", "Why?").save(tmp_path / "gone" / "c.safetensors")


@pytest.mark.parametrize("given", [os.fspath, lambda path: path])
def test_a_missing_file(tmp_path, given):
    with pytest.raises(InputError, match=r"cannot open the capture at .*gone: expected a file, got nothing there"):
        load_capture(given(tmp_path / "gone"))


def spoilt(tmp_path, change):
    path = capture("minilm", "Why?").save(tmp_path / "c.safetensors")
    with safe_open(path, framework="pt") as stored:
        about = dict(stored.metadata())
    tensors = load_file(path)
    change(tensors, about)
    save_file(tensors, path, metadata=about or None)
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t, a: a.pop("attnprobe_capture"),
            "got no format number. Is it a capture written by `attnprobe capture`",
        ),
        (lambda t, a: a.clear(), "got no format number"),
        (lambda t, a: a.update(attnprobe_capture="2"), "expected format 1 or older, got format 2. Update attnprobe"),
        (lambda t, a: a.update(attnprobe_capture="x"), "got format x"),
        (lambda t, a: t.pop("layer.2.k"), "layer 2 is not complete"),
        (lambda t, a: a.pop("layers"), "expected a safetensors file written by attnprobe, got 'layers'"),
        (lambda t, a: a.update(layers="no json"), "expected a safetensors file written by attnprobe"),
        (lambda t, a: a.update(real="null"), "it does not say which tokens are padding"),
    ],
)
def test_files_that_are_no_capture(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        load_capture(spoilt(tmp_path, change))


@pytest.mark.parametrize("content", [b"", b"not safetensors", b"\x10" * 100])
def test_files_that_are_no_safetensors(tmp_path, content):
    path = tmp_path / "c.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match="expected a safetensors file written by attnprobe"):
        load_capture(path)


def test_a_file_cut_short(tmp_path):
    path = capture("minilm", "Why?").save(tmp_path / "c.safetensors")
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(InputError, match="cannot open the capture"):
        load_capture(path)


def test_public_names():
    import attnprobe.models as models

    assert all(callable(getattr(models, name)) for name in models.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = models.nothing
