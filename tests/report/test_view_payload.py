"""Weights packed and read again: within the stated error, sums kept, nothing lost."""

import base64
import json
import zlib

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.report import _view_payload
from attnprobe.report._view_choice import choose
from attnprobe.report._view_joining import stacks_of
from attnprobe.report._view_payload import coded, collect
from tests.report.test_view_stacks import long_view, random_block, sentence_view, translated_view, view_of

CASES = {
    "sharp": np.random.default_rng(1).dirichlet(np.full(37, 0.05), (3, 11)),
    "flat": np.random.default_rng(2).dirichlet(np.full(37, 50.0), (3, 11)),
    "uniform": np.full((1, 2, 64), 1 / 64),
    "one": np.eye(5)[None],
    "sink": np.random.default_rng(3).dirichlet(np.ones(7), (2, 5))[..., :-1],
    "faint": np.concatenate([np.full((1, 1, 1), 0.999), np.full((1, 1, 100), 1e-5)], axis=-1),
}


def unpacked(reference, record):
    """An array of the block, by its reference."""
    block = zlib.decompress(base64.b64decode(record["deflated"]))
    count = int(np.prod(reference["stored"]))
    values = np.frombuffer(block, dtype=f"<{reference['type']}", count=count, offset=reference["at"])
    return np.broadcast_to(values.reshape(reference["stored"]), reference["shape"])


def decoded(packed):
    return packed.codes.astype(float) ** 2 * packed.scale[..., None]


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("case", CASES)
def test_weights_come_back_within_the_stated_error_and_rows_keep_their_sum(case, bits):
    pattern = CASES[case]
    packed = coded(pattern, bits)
    shown = decoded(packed)
    error = np.abs(shown - pattern)
    assert packed.codes.dtype == {8: np.uint8, 16: np.uint16}[bits]
    assert packed.largest_error == pytest.approx(error.max(), rel=1e-6, abs=1e-12)
    assert packed.error_sum == pytest.approx(error.sum(), rel=1e-6, abs=1e-12)
    assert error.max() < {8: 6e-3, 16: 3e-5}[bits]
    np.testing.assert_allclose(shown.sum(-1), pattern.sum(-1), rtol=1e-6)


def test_faint_weights_keep_their_size():
    shown = decoded(coded(CASES["faint"]))[0, 0, 1:]
    np.testing.assert_allclose(shown, 1e-5, rtol=0.6)
    assert shown.min() > 0


def test_undefined_rows_are_empty_and_said_to_be_undefined():
    block = random_block(np.random.default_rng(4), 2, 3, 3)
    block.pattern[0, 1] = np.nan
    data, arena = collected(view_of([block], "abc"))
    module = data["stacks"][0]["modules"][0]
    record = arena.as_record()
    total = unpacked(module["total"], record)
    assert np.isnan(total[0, 1])
    assert np.isfinite(total[1]).all()
    assert not unpacked(module["codes"], record)[0, 1].any()


def collected(view, bits=8, neurons=None, **wish):
    wishes = {"layers": None, "heads": None, "window": None, **wish}
    return collect(choose(stacks_of(view), **wishes), bits=bits, neurons=neurons)


def test_every_head_of_every_kind_is_in_the_block():
    view = translated_view()
    data, arena = collected(view)
    record = arena.as_record()
    worst = 0.0
    for stack in data["stacks"]:
        for module in stack["modules"]:
            block = next(b for b in view.blocks if b.layer == module["layer"])
            shown = unpacked(module["codes"], record).astype(float) ** 2 * unpacked(module["scale"], record)[..., None]
            worst = max(worst, np.abs(shown - block.pattern).max())
            assert (module["index"], module["heads"], stack["kind"]) == (block.index, [0, 1, 2], block.kind)
    assert data["error"]["largest"] == pytest.approx(worst, rel=0.05)
    assert data["axes"]["target"]["tokens"] == ["<s>", "le", "chat", "dort"]
    json.dumps(data, allow_nan=False)


def test_scores_can_be_computed_from_what_is_packed():
    view = sentence_view()
    data, arena = collected(view)
    record = arena.as_record()
    assert data["neurons"] == "yes"
    for module, block in zip(data["stacks"][0]["modules"], view.blocks, strict=True):
        held = module["neurons"]

        def vectors(name, held=held):
            parts = {part: unpacked(held[name][part], record) for part in ("codes", "low", "step")}
            return parts["low"][:, None, None] + parts["step"][:, None, None] * parts["codes"]

        scores = np.einsum("hqd,hkd->hqk", vectors("q"), vectors("k")) * held["scale"] + unpacked(held["added"], record)
        np.testing.assert_allclose(scores, block.scores, atol=2e-3)


def test_neurons_are_packed_by_wish_and_by_size(monkeypatch):
    assert collected(sentence_view(), neurons=False)[0]["neurons"] == "off"
    assert collected(long_view(9))[0]["neurons"] == "absent"
    with pytest.raises(InputError, match="no neuron view without q and k.*neurons=True"):
        collected(long_view(9), neurons=True)
    size = sum(module.neurons.size for module in stacks_of(sentence_view())[0].modules)
    assert size == 3 * (2 * 5 * 8 * 7 + 8 * 8)
    monkeypatch.setattr(_view_payload, "NEURON_LIMIT", size)
    assert collected(sentence_view())[0]["neurons"] == "yes"
    monkeypatch.setattr(_view_payload, "NEURON_LIMIT", size - 1)
    data, _ = collected(sentence_view())
    assert data["neurons"] == "large"
    assert data["stacks"][0]["modules"][0]["neurons"] is None
    assert collected(sentence_view(), neurons=True)[0]["neurons"] == "yes"


def test_a_window_says_what_lies_outside():
    view = long_view(50)
    data, arena = collected(view, window=(10, 30))
    record = arena.as_record()
    module = data["stacks"][0]["modules"][0]
    np.testing.assert_allclose(unpacked(module["total"], record), 1, atol=1e-4)
    inside = (unpacked(module["codes"], record).astype(float) ** 2 * unpacked(module["scale"], record)[..., None]).sum(
        -1
    )
    np.testing.assert_allclose(inside, view.blocks[0].pattern[:, 10:30, 10:30].sum(-1), rtol=1e-4)
    assert data["choice"] == {"window": [10, 29], "length": 50, "automatic": False, "shown": 6, "total": 6}
    assert data["axes"]["source"]["start"] == 10


def test_other_ways_to_store_are_refused():
    with pytest.raises(InputError, match="bits=8 or bits=16, got bits=4"):
        collected(sentence_view(), bits=4)
