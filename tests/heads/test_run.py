"""`run` over passages, with relations that need a frequency table, on pairs and on marked tokens."""

import json
from importlib.resources import files

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from attnprobe import capture, read_conllu, run
from attnprobe.errors import InputError
from attnprobe.heads.corpora import passages_of, with_ranks
from attnprobe.heads.metrics import OPT_IN, default_metrics
from attnprobe.records import Sentence
from attnprobe.text.align import encode, punctuation_of
from tests.tiny import byte_tokenizer, tiny_model


@pytest.fixture(scope="module")
def treebank():
    return list(read_conllu(str(files("attnprobe") / "data/treebank/en_attnprobe.conllu")))


@pytest.fixture(scope="module")
def by_passage(minilm, treebank):
    return run(
        minilm, treebank[:120], metrics=["entropy"], relations=["dep:nsubj", "coref"], unit="passage", examples=0
    )


def test_coreference_crosses_sentences_only_in_passages(minilm, treebank, by_passage):
    alone = run(minilm, treebank[:120], metrics=["entropy"], relations=["dep:nsubj", "coref"], examples=0)
    n = [study["relations"]["n"].sel(split="all") for study in (alone, by_passage)]
    assert int(n[1].sel(relation="coref:antecedent")) > 2 * int(n[0].sel(relation="coref:antecedent"))
    assert int(n[1].sel(relation="dep:nsubj")) == int(n[0].sel(relation="dep:nsubj"))
    assert by_passage.attributes["sentences_kept"] < 40
    plan = json.loads(by_passage.attributes["plan"])
    assert plan["unit"] == "passage"
    assert plan["corpus_as_read"] == ["sentences of a document joined up to 510 tokens"]
    assert json.loads(alone.attributes["plan"])["corpus_as_read"] == []


def test_passages_fill_the_model_and_never_more(minilm, treebank):
    found = list(encode(minilm.tokenizer, passages_of(treebank[:120], minilm.tokenizer, 64)))
    lengths = [len(item) for item in found]
    assert max(lengths) <= 64
    assert np.mean([length > 40 for length in lengths]) > 0.6
    assert sum(len(item.sentence) for item in found) == sum(map(len, treebank[:120]))
    odd = [Sentence("a", ("\u200b",), document="d"), Sentence("b", ("word",), document="d")]
    assert [item.words for item in passages_of(odd, minilm.tokenizer, None)] == [("\u200b", "word")]


def test_rare_words_are_counted_in_the_corpus_or_taken_from_a_table(minilm, treebank):
    options = {"metrics": ["entropy"], "relations": ["rare"], "examples": 0}
    counted = run(minilm, treebank[:20], **options)
    assert json.loads(counted.attributes["plan"])["corpus_as_read"][0].startswith(
        "word frequencies counted in the corpus"
    )
    assert "relations" not in counted  # so few words are all among the 500 commonest
    common = {f"word{i}": 1000 for i in range(500)}
    table = {**common, **{word.casefold(): 1 + len(word) for item in treebank[:20] for word in item.words}}
    given = run(minilm, with_ranks(treebank[:20], table), **options)
    assert json.loads(given.attributes["plan"])["corpus_as_read"] == [f"word frequencies as given, {len(table)} words"]
    words = sum(not mark for item in treebank[:20] for mark in punctuation_of(item))
    n = int(given["relations"]["n"].sel(split="all", relation="rare:rarest"))
    assert words - 20 <= n <= words  # every word asks, the rarest itself only where another one ties with it


def test_pairs_get_their_segments_measured_and_others_do_not(minilm):
    pairs = [
        Sentence(f"p{i}", ("a", "dog", str(i), "no", "cat", "slept"), document=f"d{i}", segments=(0, 0, 0, 1, 1, 1))
        for i in range(6)
    ]
    study = run(minilm, pairs, examples=0)
    mass = study["metrics"]["segment_mass"]
    assert mass.dims == ("layer", "head", "segment")
    special = study["metrics"]["special_mass"].sel(target=["cls", "sep"]).sum("target")
    np.testing.assert_allclose(mass.sum("segment") + special, 1, atol=1e-5)
    plain = [Sentence(item.id, item.words, document=item.document) for item in pairs]
    assert "segment_mass" not in run(minilm, plain, examples=0)["metrics"]
    assert set(default_metrics()) == set(default_metrics(pairs=True)) - {"segment_mass"}
    assert not set(default_metrics()) & set(OPT_IN)


def test_what_the_view_without_sinks_hides_is_told(minilm, treebank):
    study = run(
        minilm, treebank[:9], metrics=["special_mass"], relations=(), sinks="both", cluster="sentence", examples=0
    )
    hidden, mass = study["metrics"]["hidden_mass"], study["metrics"]["special_mass"]
    np.testing.assert_allclose(
        hidden.sel(sinks="kept"), mass.sel(sinks="kept", target=["cls", "sep"]).sum("target"), rtol=1e-6
    )
    assert float(hidden.sel(sinks="kept").max()) > 0.5
    assert float(hidden.sel(sinks="removed").max()) == 0.0
    assert bool((study["metrics"]["hidden_mass_low"].sel(sinks="kept") < hidden.sel(sinks="kept")).all())


def test_mass_on_entities_is_measured_where_asked_for(minilm, treebank):
    study = run(minilm, treebank[:60], metrics=["entity_mass"], relations=[], examples=0)
    mass = study["metrics"]["entity_mass"]
    assert mass.dims == ("layer", "head", "entity")
    assert bool(mass.notnull().all())
    assert float(mass.max()) > 0.05
    assert study["metrics"]["entity_mass"].attrs["unit"] == "share over base rate"


def test_unknown_units_are_refused(minilm, treebank):
    with pytest.raises(InputError, match="unknown unit: expected sentence or passage, got 'word'"):
        run(minilm, treebank[:3], unit="word")


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_a_run_measures_what_a_capture_shows(family):
    model = tiny_model(family, tokenizer=byte_tokenizer(specials=family == "bert"), attn="sdpa")
    texts = [Sentence("a", ("ab", "c", "de")), Sentence("b", ("f", "gh", "ab", "i", "j"))]
    study = run(model, texts, metrics=["entropy"], relations=[], examples=0)
    rows = []
    for text in texts:
        taken = capture(model, text)
        counted = slice(1, -1) if family == "bert" else slice(None)
        rows.append(np.stack([entropy(call.pattern[0].numpy(), axis=-1)[:, counted] for call in taken.layers]))
    np.testing.assert_allclose(study["metrics"]["entropy"], np.concatenate(rows, -1).mean(-1), atol=1e-5)


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_a_decoder_beside_an_encoder_reads_the_same_words(family):
    """After its start token, as it was trained to; each row and key is that of its own word, by hand from captured patterns."""
    model = tiny_model(family, tokenizer=byte_tokenizer(specials=False), attn="sdpa")
    texts = [
        Sentence(
            "a", ("ab", "c", "de", "f", "g", "h"), heads=(2, 0, 2, 6, 4, 2), deprels=("obj", "root", *["obj"] * 4)
        ),
        Sentence(
            "b", tuple("fghij") + ("kl", "m"), heads=(3, 1, 0, 5, 3, 7, 3), deprels=("obj", "obj", "root", *["obj"] * 4)
        ),
    ]
    chosen = {"metrics": ["entropy", "offset_mass"], "relations": ["dep:obj"]}
    study = run(model, texts, **chosen, cluster="sentence", extras=["clusters", "patterns", "trees", "histograms"])
    metrics, relations = study["metrics"], study["relations"].sel(split="all", scorer="weights", relation="dep:obj")
    assert set(metrics["kind"].values) == {"encoder", "decoder", "cross"}
    entropies, back, hits = [], [], np.zeros(metrics["entropy"].shape)
    for number, item in enumerate(encode(model.tokenizer, texts)):
        ids = torch.tensor(item.input_ids)[None]
        started = torch.cat([torch.tensor([[model.decoder_start]]), ids], 1)
        patterns = [call.pattern[0].numpy() for call in capture(model, input_ids=ids, decoder_input_ids=started).layers]
        rows = [p if p.shape[1] == len(item) else p[:, 1:] for p in patterns]
        entropies.append(np.stack([entropy(p, axis=-1) for p in rows]))
        square = np.stack([p[..., -len(item) :] for p in rows])
        back.append(square[..., np.arange(1, len(item)), np.arange(len(item) - 1)])
        np.testing.assert_allclose(study[f"examples/e{number}"]["pattern"] / 255, square, atol=1 / 500)
        member = (item.alignment.word_index == np.arange(len(item.sentence))[:, None]).astype(float)
        words = member / member.sum(1, keepdims=True) @ square @ member.T
        words[..., np.arange(len(words[0, 0])), np.arange(len(words[0, 0]))] = -1
        for word, head in enumerate(item.sentence.heads):
            if head:
                row = words[..., word, :]  # a decoder's first word may look at no other
                hits += (row.argmax(-1) == head - 1) & (row.max(-1) > 0)
    np.testing.assert_allclose(metrics["entropy"], np.concatenate(entropies, -1).mean(-1), atol=1e-5)
    offset = metrics["offset_mass"].sel(offset=-1)
    np.testing.assert_allclose(offset, np.concatenate(back, -1).mean(-1), atol=1e-5)
    np.testing.assert_array_equal(relations["hits"].sel(direction="dep->head"), hits)
