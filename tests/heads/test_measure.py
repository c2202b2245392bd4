"""The streamed sums against loops over whole sentences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import attnprobe.heads.measure as measure
from attnprobe.heads.answers import judge
from attnprobe.heads.cases import Cases
from attnprobe.heads.measure import ShardMeasurer, prepare
from attnprobe.heads.metrics import OFFSETS
from attnprobe.heads.relations import choose
from attnprobe.heads.tables import DIRECTIONS, fold
from attnprobe.registry import METRICS
from attnprobe.text.batching import collate
from tests.heads.conftest import HEADS, LAYERS, call_of, encode_by_hand, make_sentence, sharp_patterns
from tests.oracles import head_metrics, relation_scores

CLUSTER = np.array([0, 0, 1, 1, 2, 2, 3])
SPLIT = np.array([0, 0, 1, 1, 0, 0, 1])
DEVICE = torch.device("cpu")


def measured(corpus, patterns, batches, *, relations=("dep", "udep"), members=None):
    """Sums of one shard holding `members` of the corpus, run in these batches."""
    members = list(range(len(corpus))) if members is None else members
    own = [corpus[m] for m in members]
    cases = Cases(own, choose(relations))
    measurer = ShardMeasurer(list(METRICS), cases, {"weights": None}, len(own))
    for batch in batches:
        collated = collate([own[place] for place in batch], pad_id=0)
        prepared = prepare(collated, batch, cases, DEVICE)
        for layer in range(LAYERS):
            call = call_of([patterns[members[place]] for place in batch], layer, prepared.roles)
            measurer.add(call, prepared)
    return measurer.finish(CLUSTER[members], SPLIT[members])


def test_metric_sums_equal_a_loop_over_rows(corpus):
    patterns = sharp_patterns(corpus, 3)
    sums = measured(corpus, patterns, [(6, 0, 3), (4, 2), (1,), (5,)])
    for name in ("entropy", "entropy_normalised", "signed_distance"):
        for split in (0, 1):
            for layer in range(LAYERS):
                for head in range(HEADS):
                    values = []
                    for place, item in enumerate(corpus):
                        if SPLIT[place] != split:
                            continue
                        visible = np.ones(len(item), bool)
                        for i in range(1, len(item) - 1):
                            row = patterns[place][layer, head, i].numpy()
                            values.append(head_metrics.one_row(name, row, visible, i, item.roles.tolist()))
                    got = sums.metrics[name]
                    assert got.n[split, layer, head] == len(values)
                    assert got.y[split, layer, head] == pytest.approx(np.sum(values), rel=2e-6)


def test_relation_hits_equal_a_loop_over_words(corpus):
    patterns = sharp_patterns(corpus, 5)
    sums = measured(corpus, patterns, [(6, 3, 0), (4,), (2, 5, 1)])
    for name, label in (("dep:det", "det"), ("dep:obj", "obj"), ("dep:nsubj:pass", "nsubj:pass"), ("dep:ALL", None)):
        for d, direction in enumerate(DIRECTIONS):
            for layer in range(LAYERS):
                for head in range(HEADS):
                    wanted, n = np.zeros(2), np.zeros(2)
                    for place, item in enumerate(corpus):
                        sentence = item.sentence
                        pairs = [
                            (i, h - 1)
                            for i, (h, r) in enumerate(zip(sentence.heads, sentence.deprels, strict=True))
                            if h > 0 and label in (None, r)
                        ]
                        found = relation_scores.hits(
                            patterns[place][layer, head].numpy(),
                            item.alignment.word_index.tolist(),
                            len(sentence),
                            pairs,
                            direction,
                        )
                        wanted[SPLIT[place]] += sum(found.values())
                        n[SPLIT[place]] += len(found)
                    got = sums.relations[name].hits
                    np.testing.assert_array_equal(got.y[:, 0, d, layer, head], wanted)
                    np.testing.assert_array_equal(got.n[:, 0, d, layer, head], n)


class WordPatterns:
    """Collects the word patterns of a shard's sentences, as they come."""

    needs_words = True

    def __init__(self):
        self.found = []

    def rows(self, call, rows, prepared, members):
        pass

    def words(self, call, words, prepared, members):
        self.found.append(words)

    def finish(self, cluster, split):
        return {}


def between_words(item, pattern):
    """Word pattern of one sentence [head word word], its token pattern given."""
    collector = WordPatterns()
    prepared = prepare(collate([item], pad_id=0), (0,), Cases([item], []), DEVICE)
    measurer = ShardMeasurer([], None, {}, 1, extras={"words": collector})
    measurer.add(call_of([pattern[None]], 0, prepared.roles), prepared)
    [found] = collector.found
    return found[0]


def test_words_sum_over_their_key_pieces_and_average_over_their_query_pieces():
    item = encode_by_hand(make_sentence("s", "s", [0, 1, 1], ["root", "obj", "obj"]), [1, 2, 1])
    pattern = torch.zeros(1, 6, 6)
    pattern[0, 1] = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    pattern[0, 2] = torch.tensor([0.0, 0.7, 0.05, 0.15, 0.1, 0.0])
    pattern[0, 3] = torch.tensor([0.0, 0.1, 0.5, 0.3, 0.1, 0.0])
    pattern[0, 4] = torch.tensor([0.0, 0.2, 0.3, 0.0, 0.5, 0.0])
    words = between_words(item, pattern)
    np.testing.assert_allclose(words[0, 1].numpy(), [0.4, 0.5, 0.1], atol=1e-7)
    np.testing.assert_allclose(words.sum(-1).numpy(), 1.0, atol=1e-6)
    swapped = pattern[:, [0, 1, 3, 2, 4, 5]][:, :, [0, 1, 3, 2, 4, 5]]
    np.testing.assert_allclose(between_words(item, swapped).numpy(), words.numpy(), atol=1e-7)


def test_words_of_one_piece_keep_the_pattern():
    item = encode_by_hand(make_sentence("s", "s", [0, 1, 1, 1], ["root", "obj", "obj", "obj"]), [1, 1, 1, 1])
    [pattern] = (found[0] for found in sharp_patterns([item], 23))
    torch.testing.assert_close(between_words(item, pattern), pattern[:, 1:-1, 1:-1], rtol=0, atol=0)


def test_a_word_without_a_piece_shifts_no_other():
    item = encode_by_hand(make_sentence("s", "s", [0, 1, 1, 1], ["root", "obj", "obj", "obj"]), [1, 0, 1, 1])
    [pattern] = (found[0] for found in sharp_patterns([item], 29))
    words = between_words(item, pattern)
    torch.testing.assert_close(words[:, [0, 2, 3]][:, :, [0, 2, 3]], pattern[:, 1:-1, 1:-1], rtol=0, atol=0)
    assert float(words[:, 1].abs().sum() + words[:, :, 1].abs().sum()) == 0.0  # and it is no case and no candidate


def test_even_attention_ties_everywhere_and_is_right_about_as_often_as_chance():
    generator = np.random.default_rng(7)
    items = []
    for number in range(150):
        order, heads = generator.permutation(9), np.zeros(9, int)
        for rank in range(1, 9):
            heads[order[rank]] = order[generator.integers(rank)] + 1
        items.append(encode_by_hand(make_sentence(str(number), str(number), heads, ["obj"] * 9), [1] * 9))
    patterns = [torch.full((LAYERS, HEADS, 11, 11), 1 / 11) for _ in items]
    cases = Cases(items, choose(["dep"]))
    measurer = ShardMeasurer([], cases, {"weights": None}, len(items))
    prepared = prepare(collate(items, pad_id=0), tuple(range(len(items))), cases, DEVICE)
    for layer in range(LAYERS):
        measurer.add(call_of(patterns, layer, prepared.roles), prepared)
    sums = measurer.finish(np.arange(150), np.zeros(150, int)).relations["dep:ALL"]
    n = sums.offsets.n[0, 0]
    assert (sums.ties[0] == n).all()
    lowest = np.mean([[h == (1 if i else 2) for i, h in enumerate(item.sentence.heads) if h] for item in items])
    np.testing.assert_allclose(sums.hits.ratio[0], lowest)
    assert lowest == pytest.approx(sums.chance[0] / n, abs=0.03)
    assert sums.chance[0] / n == pytest.approx(1 / 8)


def test_a_word_without_tokens_is_left_out_and_counted(corpus):
    cases = Cases(corpus, choose(["dep"]))
    # b2: word 1 (nsubj) has no piece; it is the query of one label and of dep:ALL
    assert cases.left_out == 2
    assert "dep:nsubj" in cases.of_relation
    assert all(cases.query[case] != 1 for case in cases.of_relation["dep:nsubj"] if cases.sentence[case] == 3)


def test_offset_hits_and_products_equal_a_loop(corpus):
    patterns = sharp_patterns(corpus, 7)
    sums = measured(corpus, patterns, [tuple(range(7))])
    got = sums.relations["dep:ALL"]
    by_cluster = {}
    for place, item in enumerate(corpus):
        sentence = item.sentence
        pairs = [(i, h - 1) for i, h in enumerate(sentence.heads) if h > 0]
        index = item.alignment.word_index.tolist()
        for layer in range(LAYERS):
            for head in range(HEADS):
                found = relation_scores.hits(
                    patterns[place][layer, head].numpy(), index, len(sentence), pairs, "dep->head"
                )
                for query, hit in found.items():
                    key = dict(pairs)[query]
                    cluster = by_cluster.setdefault(CLUSTER[place], np.zeros((LAYERS, HEADS, 1 + len(OFFSETS))))
                    cluster[layer, head, 0] += hit
                    cluster[layer, head, 1:] += [key - query == offset for offset in OFFSETS]
    for split in (0, 1):
        parts = [value for cluster, value in by_cluster.items() if SPLIT[list(CLUSTER).index(cluster)] == split]
        product = sum(part[..., :1] * part[..., 1:] for part in parts)
        np.testing.assert_array_equal(got.product[split, 0, 0], product)
        np.testing.assert_array_equal(got.offsets.y[split], sum(part[0, 0, 1:] for part in parts))
        np.testing.assert_array_equal(got.hits.y_squared[split, 0, 0], sum(part[..., 0] ** 2 for part in parts))


def test_batches_and_their_order_change_only_rounding(corpus):
    patterns = sharp_patterns(corpus, 9)
    one = measured(corpus, patterns, [(place,) for place in range(7)])
    other = measured(corpus, patterns, [(6, 0, 3, 4), (5, 1), (2,)])
    for name, sums in one.metrics.items():
        np.testing.assert_allclose(other.metrics[name].y, sums.y, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(other.metrics[name].n, sums.n)
    for name, sums in one.relations.items():
        np.testing.assert_array_equal(other.relations[name].hits.y, sums.hits.y)


def test_shards_add_up_to_the_whole(corpus):
    patterns = sharp_patterns(corpus, 13)
    whole = measured(corpus, patterns, [(place,) for place in range(7)])
    parts = fold(
        [
            measured(corpus, patterns, [(0,), (1,), (2,), (3,)], members=[0, 1, 2, 3]),
            measured(corpus, patterns, [(0,), (1,), (2,)], members=[4, 5, 6]),
        ]
    )
    for name, sums in whole.metrics.items():
        np.testing.assert_allclose(parts.metrics[name].y_times_n, sums.y_times_n, rtol=1e-12)
    assert set(parts.relations) == set(whole.relations)
    for name, sums in whole.relations.items():
        np.testing.assert_array_equal(parts.relations[name].product, sums.product)


def test_small_parts_of_the_pattern_give_the_same_sums(corpus, monkeypatch):
    patterns = sharp_patterns(corpus, 17)
    whole = measured(corpus, patterns, [(6, 0, 3, 4), (5, 1), (2,)])
    monkeypatch.setattr(measure, "PART_ELEMENTS", 40)  # forces single sentences and blocks of their rows
    parts = measured(corpus, patterns, [(6, 0, 3, 4), (5, 1), (2,)])
    for name, sums in whole.metrics.items():
        np.testing.assert_allclose(parts.metrics[name].y, sums.y, rtol=1e-5, atol=1e-6)
    for name, sums in whole.relations.items():
        np.testing.assert_array_equal(parts.relations[name].hits.y, sums.hits.y)


def test_judge_breaks_ties_low_and_counts_empty_rows():
    rows = torch.tensor([[[0.1, 0.4, 0.4]], [[0.0, 0.9, 0.0]], [[0.2, 0.7, 0.1]]])
    keys = torch.tensor([[False, True, False], [True, False, False], [False, False, True]])
    candidates = torch.tensor([[True, True, True], [True, False, True], [True, False, True]])
    hit, tie, empty = judge(rows, keys, candidates)
    assert hit[:, 0].tolist() == [True, False, False]
    assert tie[:, 0].tolist() == [True, False, False]
    assert empty[:, 0].tolist() == [False, True, False]


def test_judge_counts_rows_without_a_number_or_a_choice_as_empty():
    rows = torch.tensor([[[0.5, torch.nan, 0.1]], [[0.5, 0.2, 0.1]]])
    keys = torch.tensor([[True, False, False], [True, False, False]])
    candidates = torch.tensor([[True, True, True], [False, False, False]])
    hit, tie, empty = judge(rows, keys, candidates)
    assert (hit.any(), tie.any(), empty.all()) == (False, False, True)


def test_without_sinks_the_rest_is_renormalised_and_a_pure_sink_row_is_undefined(corpus):
    item = corpus[0]
    n = len(item)
    pattern = torch.zeros(1, 1, n, n)
    pattern[..., 0] = 0.75
    pattern[..., 1] = 0.25
    pattern[0, 0, 2] = 0.0
    pattern[0, 0, 2, 0] = 1.0  # everything on [CLS]
    collated = collate([item], pad_id=0)
    prepared = prepare(collated, (0,), None, DEVICE)
    measurer = ShardMeasurer([METRICS["entropy"], METRICS["special_mass"]], None, {}, 1, without_sinks=True)
    measurer.add(call_of([pattern], 0, prepared.roles), prepared)
    sums = measurer.finish(np.array([0]), np.array([0]))
    rows = n - 2
    assert sums.metrics["entropy"].n[0, 0, 0] == rows
    assert sums.metrics["entropy@removed"].n[0, 0, 0] == rows - 1
    assert sums.metrics["entropy@removed"].y[0, 0, 0] == 0.0
    assert sums.metrics["special_mass@removed"].y[0, 0, 0, 2] == 0.0


class Waits(TorchDispatchMode):
    """Counts what would make the host wait for a GPU: numbers that are read off a tensor."""

    def __init__(self):
        super().__init__()
        self.n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_no_layer_but_the_first_of_a_batch_waits_for_the_device(corpus):
    cases = Cases(corpus, choose(("dep", "udep")))
    measurer = ShardMeasurer(list(METRICS), cases, {"weights": None}, len(corpus))
    patterns = sharp_patterns(corpus, 19)
    waited = []
    for batch in ((6, 0, 3), (4, 2)):
        prepared = prepare(collate([corpus[place] for place in batch], pad_id=0), batch, cases, DEVICE)
        calls = [call_of([patterns[place] for place in batch], layer, prepared.roles) for layer in range(LAYERS)]
        measurer.start(prepared)
        for call in calls:  # one mask for all layers, as the recorder gives it; patterns to be recomputed
            with Waits() as waits:
                measurer.add(replace(call, pattern=None, visible=calls[0].visible), prepared)
            waited.append(waits.n)
    assert waited == [1, 0, 1, 0]
