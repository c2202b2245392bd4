"""Pattern classes, histograms and clusters: planted shapes, loops over rows, laws of distances."""

import json

import numpy as np
import pytest
import torch
from scipy.stats import entropy

import attnprobe.heads.cluster as cluster
import attnprobe.heads.measure as measure
from attnprobe import run
from attnprobe.attention.call import AttentionCall
from attnprobe.heads.cluster import Clusters, cluster_table, clusters_of, layout_of
from attnprobe.heads.histograms import DISTANCES, ENTROPIES, OFFSETS, Histograms, histogram_table
from attnprobe.heads.measure import ShardMeasurer, prepare
from attnprobe.heads.patterns import CLASSES, FEATURES, Patterns, classes_of, pattern_table
from attnprobe.heads.tables import ShardSums, by_split, fold
from attnprobe.records import Sentence, WordAlignment
from attnprobe.text.align import CLS, SEP, Encoded
from attnprobe.text.batching import collate
from tests.heads.conftest import HEADS, LAYERS, call_of, encode_by_hand, sharp_patterns
from tests.oracles import heads_shapes as oracle

CLUSTER, SPLIT = np.array([0, 0, 1, 1, 2, 2, 3]), np.array([0, 0, 1, 1, 0, 0, 1])


def collected(items, patterns, batches, name, make, members=None):
    """Sums of one shard that holds `members`, run in these batches."""
    members = list(range(len(items))) if members is None else members
    own = [items[m] for m in members]
    measurer = ShardMeasurer([], None, {}, len(own), extras={name: make(own)})
    for batch in batches:
        prepared = prepare(collate([own[place] for place in batch], pad_id=0), batch, None, torch.device("cpu"))
        for layer in range(patterns[0].shape[0]):
            measurer.add(call_of([patterns[members[place]] for place in batch], layer, prepared.roles), prepared)
    number = np.arange(len(own)) if len(items) != 7 else CLUSTER[members]
    return measurer.finish(number, number % 2 if len(items) != 7 else SPLIT[members])


def counted(item):
    return [i not in (0, len(item) - 1) for i in range(len(item))]


def in_parts(corpus, patterns, name, make):
    """Two shards, odd batches: what must add up to the whole."""
    return fold(
        [
            collected(corpus, patterns, [(2, 0), (3,), (1,)], name, make, [0, 1, 2, 3]),
            collected(corpus, patterns, [(1, 2), (0,)], name, make, [4, 5, 6]),
        ]
    )


@pytest.mark.parametrize("part", [1_500_000, 30])
def test_features_equal_loops(corpus, part, monkeypatch):
    monkeypatch.setattr(measure, "PART_ELEMENTS", part)
    patterns = sharp_patterns(corpus, 31)
    sums = in_parts(corpus, patterns, "patterns", Patterns)
    for layer in range(LAYERS):
        for head in range(HEADS):
            wanted = [oracle.shape_of(patterns[i][layer, head].numpy(), counted(item)) for i, item in enumerate(corpus)]
            for name in ("vertical", "diagonal", "lines", "diagonal_even", "vertical_even"):
                for split in (0, 1):
                    got = sums.extras["patterns"][name]
                    chosen = [one for one, own in zip(wanted, SPLIT, strict=True) if own == split]
                    assert got.y[split, layer, head] == pytest.approx(sum(one[name] for one in chosen), rel=1e-5)
                    assert got.n[split, layer, head] == sum(one["n"] for one in chosen)
    table = pattern_table(sums)
    assert table["vertical"].dims == ("layer", "head")
    assert bool(table["block"].isnull().all())
    assert set(np.unique(table["class"])) <= set(CLASSES)
    rate = sum(oracle.shape_of(patterns[i][1, 2].numpy(), counted(item))["lines"] for i, item in enumerate(corpus))
    rows = sum(sum(counted(item)) for item in corpus)
    assert float(table["lines"].sel(layer=1, head=2)) == pytest.approx(rate / rows, rel=1e-5)


def test_even_attention_of_a_causal_model_is_even_over_what_it_sees():
    n = 6
    item = encode_by_hand(Sentence("s", tuple("abcd")), [1] * 4)
    visible = torch.ones(n, n, dtype=torch.bool).tril()
    even = (visible / visible.sum(-1, keepdim=True))[None, None]
    prepared = prepare(collate([item], pad_id=0), (0,), None, torch.device("cpu"))
    q = torch.zeros(1, 1, n, 2)
    call = AttentionCall(0, "decoder", 0, 0, q, q, q, 1.0, None, None, None, even, q, visible[None, None])
    measurer = ShardMeasurer([], None, {}, 1, extras={"patterns": Patterns([item])})
    measurer.add(call, prepared)
    sums = measurer.finish(np.array([0]), np.array([0])).extras["patterns"]
    for name in ("diagonal", "diagonal_even"):
        assert sums[name].y[0, 0, 0] == pytest.approx(sum(2 / (i + 1) for i in range(1, 5)))
    assert sums["vertical_even"].y[0, 0, 0] == pytest.approx(sum(1 / (i + 1) for i in range(1, 5)))


SHAPES = ("vertical", "diagonal", "mixed", "block", "even", "noise")


def pair_of_segments(number, first=6, second=8):
    """[CLS] first [SEP] second [SEP], one token a word."""
    n = first + second
    index = np.array([-1, *range(first), -1, *range(first, n), -1])
    roles = np.where(index < 0, SEP, 0).astype(np.int8)
    roles[0] = CLS
    words = Sentence(
        f"p{number}", tuple(f"w{i}" for i in range(n)), document=f"d{number}", segments=(0,) * first + (1,) * second
    )
    types = (np.arange(len(index)) > first + 1).astype(np.int64)
    return Encoded(words, np.arange(len(index)), types, WordAlignment(index, n), roles, 0)


def drawn(item, generator):
    """One layer: each head draws its shape, with a little noise."""
    n = len(item)
    segment = np.repeat([-1, 0, -1, 1, -1], [1, 6, 1, 8, 1])
    pattern = 0.05 * generator.random((len(SHAPES), n, n))
    near = np.abs(np.arange(n)[:, None] - np.arange(n)) == 1
    pattern[0, :, 3] += 5
    pattern[1] += 3 * near
    pattern[2, :, n - 1] += 2
    pattern[2] += 1.0 * near
    pattern[3] += (segment[:, None] == segment) & (segment >= 0)
    pattern[4] = 1.0
    pattern[5] += generator.random((n, n)) ** 6
    return torch.from_numpy(pattern / pattern.sum(-1, keepdims=True))[None].float()


@pytest.fixture(scope="module")
def shapes():
    generator = np.random.default_rng(7)
    items = [pair_of_segments(i) for i in range(30)]
    return items, [drawn(item, generator) for item in items]


def test_planted_shapes_are_told_apart(shapes):
    table = pattern_table(collected(*shapes, [tuple(range(15)), tuple(range(15, 30))], "patterns", Patterns)).sel(
        layer=0
    )
    found = table["class"].values.tolist()
    assert found == ["vertical", "diagonal", "mixed", "block", "unclassified", "unclassified"]
    assert float(table["block"].sel(head=3)) > 0.9
    for name in ("vertical", "diagonal"):
        assert float(table[name].sel(head=4)) == pytest.approx(float(table[f"{name}_even"].sel(head=4)), abs=1e-6)
    assert "lower bound" in json.loads(table.attrs["rules"])["block"]


def test_blocks_equal_loops(shapes):
    items, patterns = shapes
    sums = collected(items, patterns, [tuple(range(30))], "patterns", Patterns).extras["patterns"]["block"]
    segments = [-1, *[0] * 6, -1, *[1] * 8, -1]
    for head in range(len(SHAPES)):
        found = [
            oracle.shape_of(pattern[0, head].numpy(), [s >= 0 for s in segments], segments) for pattern in patterns
        ]
        assert sums.y[:, 0, head].sum() == pytest.approx(sum(one["within"] for one in found), rel=1e-5)
        assert sums.n[:, 0, head].sum() == pytest.approx(sum(one["between"] for one in found), rel=1e-5)


def test_a_sequence_of_one_segment_has_no_blocks(shapes):
    items, patterns = shapes
    one = Sentence("one", tuple("abcd"), document="one", segments=(0,) * 4)
    together = [items[0], encode_by_hand(one, [1] * 4)]
    [own] = sharp_patterns([together[1]], 3)
    own = own.repeat(1, 2, 1, 1)[:1, : len(SHAPES)]
    sums = collected(together, [patterns[0], own], [(0, 1)], "patterns", Patterns).extras["patterns"]["block"]
    alone = collected(items[:1], patterns[:1], [(0,)], "patterns", Patterns).extras["patterns"]["block"]
    np.testing.assert_allclose(sums.n.sum(0), alone.n.sum(0), rtol=1e-6)


def test_a_class_needs_its_lower_bound():
    """Clusters that disagree: the mean is over the threshold, the interval is wide."""

    def table(*hits):
        split = np.arange(20) % 2

        def sums(values):
            return by_split(np.resize(values, (20, 1, 1)), np.full((20, 1, 1), 100.0), split)

        found = {name: sums(hits) for name in FEATURES} | {
            f"{name}_even": sums([5.0]) for name in ("vertical", "diagonal")
        }
        return pattern_table(ShardSums({}, {}, (("encoder", 0, 1),), extras={"patterns": found}))

    assert str(table(90.0)["class"].values[0, 0]) == "mixed"
    doubtful = table(99.0, 99.0, 11.0, 11.0)
    assert float(doubtful["vertical"][0, 0]) > 0.5
    assert str(doubtful["class"].values[0, 0]) == "unclassified"


def test_patterns_are_let_go_batch_by_batch(corpus):
    patterns = sharp_patterns(corpus, 3)
    collector = Clusters(corpus)
    measurer = ShardMeasurer([], None, {}, len(corpus), extras={"clusters": collector})
    for batch in ((0, 1), (2, 3, 4)):
        prepared = prepare(collate([corpus[place] for place in batch], pad_id=0), batch, None, torch.device("cpu"))
        for layer in range(LAYERS):
            measurer.add(call_of([patterns[place] for place in batch], layer, prepared.roles), prepared)
            assert set(collector._parts) == set(batch)


def test_thresholds_are_met_on_the_lower_bound_and_over_even_attention():
    def one(vertical, diagonal, lines, block=np.nan, even=(0.05, 0.1)):
        low = {"vertical": vertical, "diagonal": diagonal, "lines": lines, "block": block}
        low = {name: np.array([[value]]) for name, value in low.items()}
        return classes_of(low, {"vertical": np.array([[even[0]]]), "diagonal": np.array([[even[1]]])})[0, 0]

    assert one(0.5, 0.1, 0.6) == "vertical"
    assert one(0.499, 0.1, 0.6) == "unclassified"
    assert one(0.1, 0.5, 0.6) == "diagonal"
    assert one(0.25, 0.25, 0.5) == "mixed"
    assert one(0.25, 0.24, 0.5) == "unclassified"
    assert one(0.25, 0.25, 0.49) == "unclassified"
    assert one(0.6, 0.55, 0.6, even=(0.05, 0.3)) == "vertical"  # a short sentence: its diagonal is no news
    assert one(0.1, 0.55, 0.6, even=(0.05, 0.3)) == "unclassified"
    assert one(0.1, 0.1, 0.2, 0.9) == "block"
    assert one(np.nan, np.nan, np.nan) == "unclassified"


def test_histograms_equal_loops(corpus):
    patterns = sharp_patterns(corpus, 37)
    table = histogram_table(in_parts(corpus, patterns, "histograms", Histograms))
    for layer in range(LAYERS):
        for head in range(HEADS):
            distance, offset, spread = np.zeros(len(DISTANCES)), np.zeros(len(OFFSETS) + 1), np.zeros(len(ENTROPIES))
            for place, item in enumerate(corpus):
                pattern = patterns[place][layer, head].double().numpy()
                for i in range(1, len(item) - 1):
                    spread[oracle.binned(entropy(pattern[i]), ENTROPIES)] += 1
                    for j in range(len(item)):
                        distance[oracle.binned(abs(i - j), DISTANCES)] += pattern[i, j]
                        offset[OFFSETS.index(j - i) if abs(j - i) <= 10 else -1] += pattern[i, j]
            one = table.sel(layer=layer, head=head)
            np.testing.assert_allclose(one["distance"], distance / distance.sum(), atol=1e-6)
            np.testing.assert_allclose(one["offset"], offset / offset.sum(), atol=1e-6)
            np.testing.assert_allclose(one["entropy"], spread / spread.sum(), atol=1e-12)
    assert table["offset_bin"].values.tolist()[-1] == "beyond"
    np.testing.assert_allclose(table["distance"].sum("distance_bin"), 1)


def test_far_looks_fall_into_the_open_bins():
    item = encode_by_hand(Sentence("far", tuple(f"w{i}" for i in range(70))), [1] * 70)
    pattern = torch.zeros(1, 1, 72, 72)
    pattern[..., 71] = 1
    table = histogram_table(collected([item], [pattern], [(0,)], "histograms", Histograms))
    distances = 71 - np.arange(1, 71)
    wanted = [np.mean([oracle.binned(d, DISTANCES) == place for d in distances]) for place in range(len(DISTANCES))]
    np.testing.assert_allclose(table["distance"][0, 0], wanted)
    assert float(table["offset"].sel(offset_bin="beyond")[0, 0]) == pytest.approx(np.mean(distances > 10))
    assert float(table["entropy"].sel(entropy_bin=0)[0, 0]) == 1


def test_distances_equal_scipy_row_by_row(corpus, monkeypatch):
    patterns = sharp_patterns(corpus, 41)
    for part in (1_500_000, 30):
        monkeypatch.setattr(measure, "PART_ELEMENTS", part)
        table = cluster_table(in_parts(corpus, patterns, "clusters", Clusters))
        heads = [(layer, head) for layer in range(LAYERS) for head in range(HEADS)]
        rows = sum(sum(counted(item)) for item in corpus)
        for a, first in enumerate(heads):
            for b, second in enumerate(heads):
                total = sum(
                    oracle.divergence(
                        pattern[first].double().numpy(), pattern[second].double().numpy(), np.flatnonzero(counted(item))
                    )
                    for pattern, item in zip(patterns, corpus, strict=True)
                )
                assert float(table["distance"][a, b]) ** 2 == pytest.approx(total / rows, abs=1e-9)
    assert table["distance"].coords["head_a"].values.tolist()[:4] == ["L0H0", "L0H1", "L0H2", "L1H0"]


def test_distances_are_a_metric_and_end_at_the_root_of_ln_2(corpus):
    patterns = sharp_patterns(corpus, 43)
    for pattern in patterns:
        n = pattern.shape[-1]
        pattern[0, 0], pattern[0, 1] = torch.eye(n), torch.eye(n).roll(1, 1)  # disjoint one-hots
        pattern[1, 2] = pattern[1, 1]
    distance = cluster_table(collected(corpus, patterns, [tuple(range(7))], "clusters", Clusters))["distance"].values
    assert distance[0, 1] == pytest.approx(np.sqrt(np.log(2)))
    assert distance[4, 5] == 0
    np.testing.assert_array_equal(distance, distance.T)
    np.testing.assert_array_equal(distance.diagonal(), 0)
    for b in range(len(distance)):
        assert np.all(distance <= distance[:, b, None] + distance[None, b] + 1e-12)


def test_planted_groups_of_heads_are_found_and_laid_apart(monkeypatch):
    generator = np.random.default_rng(2)
    items = [encode_by_hand(Sentence(f"s{i}", tuple("abcdefgh"), document=f"s{i}"), [1] * 8) for i in range(9)]
    groups = np.array([0, 1, 2, 0, 1, 2, 0, 0])
    patterns = []
    for _ in items:
        base = generator.random((3, 10, 10)) ** 8
        pattern = base[groups] + 0.02 * generator.random((8, 10, 10))
        patterns.append(torch.from_numpy(pattern / pattern.sum(-1, keepdims=True)).float().reshape(2, 4, 10, 10))
    sums = collected(items, patterns, [tuple(range(9))], "clusters", Clusters)
    table = cluster_table(sums)
    np.testing.assert_array_equal(table["cluster"].values.ravel(), groups)  # numbered by size, then by order
    places = table["embedding"].values.reshape(8, 2)
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    same = groups[:, None] == groups
    assert apart[same].max() < apart[~same].min()
    again = cluster_table(sums)
    np.testing.assert_array_equal(again["embedding"], table["embedding"])
    assert table.attrs["silhouette"] > 0.5
    assert table.attrs["stress"] >= 0


def test_only_a_sample_of_sentences_and_rows_is_compared(monkeypatch):
    monkeypatch.setattr(cluster, "SENTENCES", 3)
    monkeypatch.setattr(cluster, "ROWS", 5)
    items = [encode_by_hand(Sentence(f"s{i}", tuple("abcdefgh"), document=f"s{i}"), [1] * 8) for i in range(8)]
    patterns = sharp_patterns(items, 3)
    table = cluster_table(collected(items, patterns, [(5, 0, 3, 1), (2, 4, 6, 7)], "clusters", Clusters))
    assert table.attrs["rows"] == 3 * 5  # sentences 0, 3, 6
    rows = 1 + np.linspace(0, 7, 5).round().astype(int)
    total = sum(
        oracle.divergence(patterns[i][0, 0].double().numpy(), patterns[i][1, 1].double().numpy(), rows)
        for i in (0, 3, 6)
    )
    assert float(table["distance"].sel(head_a="L0H0", head_b="L1H1")) ** 2 == pytest.approx(total / 15, abs=1e-9)


def test_heads_that_do_not_differ_are_one_cluster():
    labels, silhouette = clusters_of(np.zeros((5, 5)))
    assert (labels.tolist(), np.isnan(silhouette)) == ([0] * 5, True)
    places, stress = layout_of(np.zeros((5, 5)))
    assert places.tolist() == [[0, 0]] * 5
    assert stress == 0


def test_heads_of_different_kinds_have_no_distance():
    item = encode_by_hand(Sentence("s", tuple("abc")), [1, 1, 1])
    [pattern] = sharp_patterns([item], 3)
    measurer = ShardMeasurer([], None, {}, 1, extras={"clusters": Clusters([item])})
    prepared = prepare(collate([item], pad_id=0), (0,), None, torch.device("cpu"))
    for layer, kind in ((0, "encoder"), (1, "decoder")):
        call = call_of([pattern], layer, prepared.roles)
        measurer.add(AttentionCall(**{**vars(call), "kind": kind}), prepared)
    table = cluster_table(measurer.finish(np.array([0]), np.array([0])))
    assert table["distance"].isnull().values[:HEADS, HEADS:].all()
    assert not table["distance"].isnull().values[:HEADS, :HEADS].any()
    assert table["cluster"].values[1].tolist() == [-1] * HEADS
    assert bool(table["embedding"].sel(layer=1).isnull().all())


def test_a_run_adds_these_groups(minilm):
    texts = [Sentence(f"s{i}", ("A", "dog", "and", str(i), "cats", "slept", "."), document=f"d{i}") for i in range(12)]
    extras = ["patterns", "clusters", "histograms"]
    study = run(minilm, texts, metrics=["entropy"], relations=[], extras=extras, examples=0)
    assert {"patterns", "clusters", "histograms"} <= set(study.groups)
    assert str(study["patterns"]["class"].sel(layer=0, head=2).values) == "diagonal"  # the previous-token head
    assert study["clusters"]["distance"].shape == (72, 72)
    assert study["histograms"]["entropy"].dims == ("layer", "head", "entropy_bin")
    assert float(study["histograms"]["offset"].sel(layer=0, head=2, offset_bin="-1")) > 0.95
    path_free = run(minilm, texts, metrics=["entropy"], relations=[], extras=extras, examples=0, batch_tokens=19)
    for group, name in (("patterns", "vertical"), ("clusters", "distance"), ("histograms", "distance")):
        np.testing.assert_allclose(path_free[group][name], study[group][name], atol=1e-4)
