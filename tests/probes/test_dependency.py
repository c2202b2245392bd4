"""The attention-only dependency probe: its loss, planted heads, baselines, and the whole on a tiny model."""

import numpy as np
import pytest
import torch

from attnprobe.errors import InputError
from attnprobe.models.capture import capture
from attnprobe.probes.dependency import (
    DIRECTIONS,
    Weights,
    _Group,
    _Objective,
    _Parts,
    _scale,
    dependency_probe,
    fit_dependency,
    offset_hits,
)
from attnprobe.probes.maps import Maps, attention_maps
from attnprobe.records import Sentence
from attnprobe.text.align import encode
from tests.oracles import probe_trees
from tests.tiny import byte_tokenizer, tiny_model

HEADS, SENTENCES = 5, 61


def random_tree(n, generator):
    """0-based governors of a random tree; n stands for the root."""
    order = generator.permutation(n)
    governor = np.full(n, n)
    for place in range(1, n):
        governor[order[place]] = order[generator.integers(place)]
    return governor


def made_up(plant=None, seed=1, sizes=(3, 5, 7)):
    """Random attention over random trees; `plant(attention, governor)` may write into the attention of a sentence."""
    generator = np.random.default_rng(seed)
    groups, start = [], 0
    for n in sizes:
        attention = generator.dirichlet(np.ones(n + 1), size=(SENTENCES, n, HEADS)).transpose(0, 1, 3, 2)
        special, attention = attention[:, :, n], attention[:, :, :n].copy()
        governors = np.stack([random_tree(n, generator) for _ in range(SENTENCES)])
        if plant is not None:
            for i in range(SENTENCES):
                plant(attention[i], special[i], governors[i])
        groups.append(
            Maps(
                torch.from_numpy(attention).float(),
                torch.from_numpy(special).float(),
                torch.from_numpy(governors),
                torch.ones(SENTENCES, n, dtype=torch.bool),
                torch.arange(start, start + SENTENCES),
            )
        )
        start += SENTENCES
    place = np.arange(start)
    return groups, _Parts(place % 5 < 2, place % 5 == 2, place % 5 > 2, place)


def plant_head(attention, special, governor):
    """Head 3: the dependent attends to its governor; root and special tokens alike."""
    attention[:, :, 3] = 0.05
    special[:, 3] = 0.05
    for word, head in enumerate(governor):
        if head < len(governor):
            attention[word, head, 3] = 0.9
        else:
            special[word, 3] = 0.9


def plant_back(attention, special, governor):
    """Head 2: the governor attends to its dependents."""
    plant_head(attention, special, governor)
    attention[:, :, 2] = attention[:, :, 3].T
    special[:, 2] = special[:, 3]
    attention[:, :, 3] = 0.2
    special[:, 3] = 0.2


@pytest.mark.parametrize("inputs", [0, 2])
def test_loss_and_gradient_are_those_of_the_definition(inputs):
    groups, _ = made_up(sizes=(3, 5))
    generator = torch.Generator().manual_seed(0)
    vectors = (
        [torch.randn(n, inputs, generator=generator) for n in (3, 5) for _ in range(SENTENCES)] if inputs else None
    )
    groups[0].counted[:, 1] = False
    ready = [_Group.of(group, vectors) for group in groups]
    scale = _scale(ready)
    objective = _Objective(ready, scale, 3.0)
    point = 0.3 * torch.randn(1, 1, len(scale), generator=generator)
    value, gradient = objective(point, torch.arange(1))
    weights = Weights.unpacked(point[0, 0] / scale, HEADS, 1 + 2 * inputs)
    expected = []
    for group in groups:
        for i in range(SENTENCES):
            own = None if vectors is None else vectors[int(group.place[i])].numpy()
            losses = probe_trees.dependency_losses(
                group.attention[i].numpy(),
                group.special[i].numpy(),
                group.governor[i].numpy(),
                weights.pair[0].numpy(),
                weights.pair[1].numpy(),
                weights.root.numpy(),
                float(weights.bias),
                own,
            )
            expected += losses[group.counted[i].numpy()].tolist()
    penalty = 1.5 / len(expected) * float(point[0, 0, :-1].square().sum())
    assert value.item() == pytest.approx(np.mean(expected) + penalty, rel=1e-5)
    step = torch.randn(point.shape, generator=generator)
    ahead, behind = (objective(point + sign * 1e-2 * step, torch.arange(1))[0].item() for sign in (1, -1))
    assert (ahead - behind) / 2e-2 == pytest.approx((gradient * step).sum().item(), rel=1e-2)


@pytest.mark.parametrize(("plant", "head", "direction"), [(plant_head, 3, 0), (plant_back, 2, 1)])
def test_one_informative_head_gives_all_governors_and_takes_the_weight(plant, head, direction):
    groups, parts = made_up(plant)
    found = fit_dependency(groups, parts)
    assert found.uas == 1.0
    weights = found.weights.pair[:, :, 0]
    others = weights.clone()
    others[direction, head] = 0
    assert weights[direction, head] > 5 * others.abs().max()
    assert weights[direction, head] > 0


def test_attention_that_tells_nothing_finds_no_more_than_chance():
    groups, parts = made_up()
    found = fit_dependency(groups, parts)
    # a random governor among 3, 5 or 7 candidates (others and the root) is right about that often
    chance = np.average([1 / 3, 1 / 5, 1 / 7], weights=[3, 5, 7])
    assert abs(found.uas - chance) < 0.06
    _, high = found.hits.interval()
    assert high > chance


def test_embeddings_let_weights_depend_on_words():
    """Which of two heads points at the governor is told by the dependent's embedding."""
    generator = np.random.default_rng(3)
    signs = [generator.choice([-1.0, 1.0], size=n) for n in (3, 5, 7) for _ in range(SENTENCES)]
    count = iter(signs)

    def plant(attention, special, governor):
        sign = next(count)
        special[:, :2] = 0.0
        attention[:, :, :2] = 0.1
        for word, head in enumerate(governor):
            wrong = (head + 1) % len(governor) if head < len(governor) else word
            right, other = (0, 1) if sign[word] > 0 else (1, 0)
            if head < len(governor):
                attention[word, head, right] = 0.9
            else:
                special[word, :2] = 0.9
            attention[word, wrong, other] = 0.9

    groups, parts = made_up(plant)
    vectors = [torch.from_numpy(sign)[:, None].float() for sign in signs]
    assert fit_dependency(groups, parts, vectors=vectors).uas > 0.95
    assert fit_dependency(groups, parts).uas < 0.75


def test_offsets_out_of_the_sentence_are_wrong():
    groups, parts = made_up(sizes=(3,))
    chain = torch.tensor([1, 2, 3]).expand(SENTENCES, 3)  # each word governs the one before, the last one is the root
    maps = Maps(groups[0].attention, groups[0].special, chain, groups[0].counted, groups[0].place)
    assert float(offset_hits([maps], 1, parts.cluster).ratio) == pytest.approx(2 / 3)
    assert float(offset_hits([maps], 2, parts.cluster).ratio) == 0.0


def test_maps_sum_to_words_and_average_from_words():
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    sentences = [
        Sentence("a", ("ab", "c", "def"), heads=(2, 0, 2), deprels=("det", "root", "punct")),
        Sentence("b", ("x", "yz"), heads=(0, 1), deprels=("root", "obj")),
        Sentence("c", ("no", "tree")),
    ]
    encoded = list(encode(model.tokenizer, sentences))
    maps, heads = attention_maps(model, encoded)
    assert heads == [3, 3]
    assert [group.n_words for group in maps] == [2, 3]
    [first] = [group for group in maps if group.n_words == 3]
    assert first.governor.tolist() == [[1, 3, 1]]
    assert first.counted.tolist() == [[True, True, False]]
    index = encoded[0].alignment.word_index
    for layer, call in enumerate(capture(model, sentences[0]).layers):
        pattern = call.pattern[0].numpy()
        for word in range(3):
            rows = pattern[:, index == word].mean(1)
            expected = np.stack([rows[:, index == key].sum(1) for key in range(3)])
            got = first.attention[0, word, :, 3 * layer : 3 * layer + 3]
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
            special = first.special[0, word, 3 * layer : 3 * layer + 3]
            np.testing.assert_allclose(special, rows[:, index < 0].sum(1), rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(got.sum(0) + special, 1.0, rtol=1e-4)


def test_too_large_maps_and_corpora_without_trees_are_refused(some_sentences):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    encoded = list(encode(model.tokenizer, [s for s in some_sentences if len(s.text) < 90]))
    with pytest.raises(InputError, match="max_bytes"):
        attention_maps(model, encoded, max_bytes=1000)
    with pytest.raises(InputError, match="without trees"):
        attention_maps(model, list(encode(model.tokenizer, [Sentence("c", ("no", "tree"))])))


def test_the_table_of_a_tiny_model(some_sentences):
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    short = [s for s in some_sentences if len(s.text) < 90]
    found = dependency_probe(model, short, penalties=(10.0,))
    assert found["weight"].dims == ("direction", "layer", "head")
    assert found["weight"].shape == (2, 2, 3)
    assert list(found["direction"].values) == list(DIRECTIONS)
    assert found["uas_low"] < found["uas"] < found["uas_high"]
    assert 0.05 < found["uas"] < 1  # attention of a tiny random model tells little
    assert found["random"].dims == ("weights",)
    assert found["offset_accuracy"] >= found["right_branching"] or found["offset"] != 1
    with_words = dependency_probe(model, short, penalties=(10.0,), embeddings=3)
    assert with_words.attrs["embeddings"] == 3
    assert with_words["uas"] != found["uas"]
    assert found.equals(dependency_probe(model, short, penalties=(10.0,)))
