"""Vectors of words: the mean (first, last) of their pieces, in the order of the corpus, the same as a capture gives."""

import resource

import numpy as np
import pytest
import torch

from attnprobe.errors import EnvironmentFailure, InputError
from attnprobe.models.capture import capture
from attnprobe.probes import features
from attnprobe.probes.features import SITES, WordRows, extract
from attnprobe.records import Sentence
from attnprobe.text.align import encode
from attnprobe.text.batching import PlanOptions
from tests.tiny import byte_tokenizer, tiny_model

SENTENCES = [
    Sentence("s0", ("ab", "c", "\u200b", "defg"), document="d0"),
    Sentence("s1", ("x",), document="d0"),
    Sentence("s2", ("longer", "words", "here", "."), document="d1"),
    Sentence("s3", ("hi", "you"), document="d2"),
]


def extracted(model, folder, sentences=SENTENCES, **options):
    encoded = list(encode(model.tokenizer, sentences))
    folder.mkdir()
    return encoded, extract(model, encoded, folder, **options)


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "t5"])
def test_vectors_are_the_mean_of_a_captures_pieces(family, tmp_path):
    model = tiny_model(family, tokenizer=byte_tokenizer())
    encoded, found = extracted(model, tmp_path / "f", plan=PlanOptions(batch_tokens=31))
    layers = [call for call in capture(model, SENTENCES[0]).layers if call.kind == "encoder" or family != "t5"]
    if family == "t5":
        layers = [call for call in layers if call.kind == "encoder"]
    assert [info.layer for info in found.layers] == [call.layer for call in layers]
    for place, item in enumerate(encoded):
        [single] = [capture(model, item.sentence)]
        index = torch.from_numpy(item.alignment.word_index)
        for layer, info in enumerate(found.layers):
            call = single.layer(info.layer)
            for site in SITES:
                rows = found.heads(site, layer)[found.rows.first[place] : found.rows.first[place + 1]]
                for row, word in enumerate(np.flatnonzero(item.alignment.pieces)):
                    expected = getattr(call, site)[0][:, index == word].mean(1)
                    np.testing.assert_allclose(rows[row], expected, rtol=1e-4, atol=1e-5)


def test_first_and_last_pieces(tmp_path):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    call = capture(model, SENTENCES[2]).layer(1)
    index = list(encode(model.tokenizer, [SENTENCES[2]]))[0].alignment.word_index
    for pieces, place in (("first", 0), ("last", -1)):
        _, found = extracted(model, tmp_path / pieces, sites=("v",), pieces=pieces)
        row = found.rows.find([2], [1])[0]
        token = np.flatnonzero(index == 1)[place]
        np.testing.assert_allclose(found.heads("v", 1)[row], call.v[0, :, token], rtol=1e-4, atol=1e-5)


def test_states_and_embeddings(tmp_path):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    encoded, found = extracted(model, tmp_path / "f", sites=("q",))
    ids = torch.from_numpy(encoded[1].input_ids)[None]
    with torch.no_grad():
        states = model.module(input_ids=ids, output_hidden_states=True).hidden_states
    row = found.rows.first[1]
    assert found.states == len(states) == 3
    for place, state in enumerate(states):
        np.testing.assert_allclose(found.state(place)[row, 0], state[0, 1], rtol=1e-4, atol=1e-5)
    table = model.module.embeddings.word_embeddings.weight
    np.testing.assert_allclose(found.embedding()[row, 0], table[ids[0, 1]].detach(), rtol=1e-6)


def test_vectors_do_not_depend_on_batches(tmp_path):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    _, small = extracted(model, tmp_path / "small", plan=PlanOptions(batch_tokens=1))
    _, large = extracted(model, tmp_path / "large")
    for site in SITES:
        np.testing.assert_allclose(small.heads(site, 1), large.heads(site, 1), rtol=1e-4, atol=1e-5)


def test_key_heads_that_are_shared_are_kept_once(tmp_path):
    model = tiny_model("llama", tokenizer=byte_tokenizer())
    _, found = extracted(model, tmp_path / "f")
    assert found.heads("q", 0).shape[1] == found.layers[0].heads == 4
    assert found.heads("k", 0).shape[1] == 2
    assert found.layers[0].groups == 2


def test_rows_are_found_by_sentence_and_word(minilm_sdpa):
    rows = WordRows.of(list(encode(minilm_sdpa.tokenizer, SENTENCES)))
    assert rows.first.tolist() == [0, 3, 4, 8, 10]  # the zero-width space has no piece
    assert rows.find([0, 0, 0, 2, 3, 3], [1, 2, 3, 0, 1, 9]).tolist() == [1, -1, 2, 4, 9, -1]


def test_unknown_sites_and_pieces_are_refused(tmp_path):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    with pytest.raises(InputError, match="near names: context"):
        extracted(model, tmp_path / "a", sites=("contxt",))
    with pytest.raises(InputError, match="near names: mean"):
        extracted(model, tmp_path / "b", pieces="means")


def test_a_full_disk_is_said_before_anything_is_written(tmp_path, monkeypatch):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    usage = features.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(features.shutil, "disk_usage", lambda folder: usage._replace(free=100))
    with pytest.raises(EnvironmentFailure, match="scratch="):
        extracted(model, tmp_path / "f")


def test_the_space_of_all_vectors_is_taken_at_once(tmp_path):
    """A file with holes fits on a disk that cannot take what is to be written into it."""
    files = features._Files(tmp_path, 100_000)
    files.write("q-0", slice(0, 1), torch.zeros(1, 2, 5))
    assert (tmp_path / "q-0.npy").stat().st_blocks * 512 >= 100_000 * 2 * 5 * 4


def test_a_disk_that_takes_no_more_is_told(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(EnvironmentFailure, match="cannot keep the vectors .*File too large.*TMPDIR"):
            features._Files(tmp_path, 1000).write("q-0", slice(0, 1), torch.zeros(1, 2, 5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_vectors_do_not_keep_the_model_changed(tmp_path):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    hooks = len(model.module._forward_hooks)
    extracted(model, tmp_path / "f")
    assert len(model.module._forward_hooks) == hooks
    assert not model.config.output_hidden_states
