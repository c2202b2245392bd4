import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnprobe.errors import InputError
from attnprobe.records import Sentence
from attnprobe.text.align import PAD, align
from attnprobe.text.batching import (
    BatchPlan,
    PlanDigest,
    PlanOptions,
    cluster_of,
    collate,
    cost_of,
    plan_batches,
    plan_shards,
    split_of,
    split_of_sentence,
)

corpora = st.lists(st.tuples(st.integers(1, 97), st.integers(1, 19)), min_size=1, max_size=29)
"""Documents as (length of their sentences, number of sentences)."""


def laid_out(documents):
    lengths = [1 + (length * (i + 1)) % 89 for length, n in documents for i in range(n)]
    clusters = [f"d{d}" for d, (_, n) in enumerate(documents) for _ in range(n)]
    return lengths, clusters


options = st.builds(
    PlanOptions,
    batch_tokens=st.sampled_from([7, 101, 503]),
    window=st.sampled_from([3, 17, 53]),
    padding=st.sampled_from([0.0, 0.13, 0.5]),
    shard_cost=st.sampled_from([211.0, 1009.0, 1e9]),
)


@given(corpora, options)
def test_laws_of_a_plan(documents, options):
    lengths, clusters = laid_out(documents)
    plan = plan_batches(lengths, clusters, options=options)
    assert [length for shard in plan.shards for length in shard.lengths] == lengths
    assert [shard.start for shard in plan.shards] == list(np.cumsum([0, *map(len, plan.shards)])[:-1])
    assert [shard.index for shard in plan.shards] == list(range(len(plan.shards)))
    for shard in plan.shards:
        assert sorted(place for batch in shard.batches for place in batch) == list(range(len(shard)))
        assert shard.padded_tokens >= sum(shard.lengths)
        for batch in shard.batches:
            inside = [shard.lengths[place] for place in batch]
            assert inside == sorted(inside, reverse=True)
            padded = max(inside) * len(inside)
            assert len(batch) == 1 or padded <= options.batch_tokens
            assert len(batch) == 1 or padded - sum(inside) <= options.padding * padded


@given(corpora, options)
def test_a_cluster_lies_in_one_shard_and_only_giants_are_cut(documents, options):
    lengths, clusters = laid_out(documents)
    plan = plan_batches(lengths, clusters, options=options)
    numbers = [number for shard in plan.shards for number in shard.clusters]
    homes = {}
    for shard in plan.shards:
        for number in shard.clusters:
            assert homes.setdefault(number, shard.index) == shard.index
    for i in range(1, len(numbers)):
        if clusters[i] != clusters[i - 1]:
            assert numbers[i] == numbers[i - 1] + 1
        elif numbers[i] != numbers[i - 1]:
            part = [length for length, number in zip(lengths, numbers, strict=True) if number == numbers[i - 1]]
            assert len(part) >= options.window or sum(map(cost_of, part)) >= options.shard_cost


@given(corpora, options)
def test_no_shard_is_far_over_a_window(documents, options):
    lengths, clusters = laid_out(documents)
    longest = max(map(cost_of, lengths))
    for shard in plan_batches(lengths, clusters, options=options).shards:
        assert len(shard) < 2 * options.window
        assert shard.cost < 2 * (options.shard_cost + longest)


def test_shards_of_small_documents_cost_about_the_same():
    rng = np.random.default_rng(7)
    documents = [(int(rng.integers(1, 97)), int(rng.integers(1, 13))) for _ in range(1999)]
    plan = plan_batches(*laid_out(documents), window=251)
    costs = [shard.cost for shard in plan.shards[:-1]]
    assert len(costs) > 31
    assert max(costs) < 1.35 * min(costs)
    by_cost = plan_batches(*laid_out(documents), window=10**6, shard_cost=13_007.0)
    costs = [shard.cost for shard in by_cost.shards[:-1]]
    assert max(costs) < 1.12 * min(costs)


def test_a_document_larger_than_a_window_is_cut_into_parts_that_count_alone():
    plan = plan_batches([5] * 23, ["a"] * 2 + ["b"] * 19 + ["c"] * 2, window=7)
    assert [len(shard) for shard in plan.shards] == [9, 7, 7]
    assert [number for shard in plan.shards for number in shard.clusters] == [0] * 2 + [1] * 7 + [2] * 7 + [3] * 5 + [
        4
    ] * 2


def test_each_option_changes_the_plan_and_its_hash():
    lengths, clusters = laid_out([(31, 11), (7, 13), (53, 5), (2, 17)])
    plain = plan_batches(lengths, clusters)
    changes = [{"batch_tokens": 151}, {"window": 13}, {"padding": 0.01}, {"shard_cost": 307.0}]
    plans = [plain, *(plan_batches(lengths, clusters, **change) for change in changes)]
    assert len({plan.sha256 for plan in plans}) == 5
    assert len({tuple(shard.batches for shard in plan.shards) for plan in plans}) == 5
    longer = plan_batches([lengths[0] + 1, *lengths[1:]], clusters)
    assert longer.sha256 != plain.sha256
    assert plan_batches(lengths, clusters).sha256 == plain.sha256


@pytest.mark.parametrize(
    "change", [{"batch_tokens": 0}, {"window": 0}, {"padding": 1.0}, {"padding": -0.1}, {"shard_cost": 0}], ids=str
)
def test_wrong_options_are_refused(change):
    [name] = change
    with pytest.raises(InputError, match=f"wrong option {name} of the batch plan: expected .*, got {change[name]}"):
        plan_batches([3], ["a"], **change)


def test_a_plan_goes_through_json():
    plan = plan_batches(*laid_out([(31, 11), (7, 13)]), window=5)
    back = BatchPlan.from_json(json.loads(json.dumps(plan.as_json())))
    assert back == plan
    assert back.sha256 == plan.sha256


def test_the_stream_gives_the_same_plan_with_its_sentences():
    lengths, clusters = laid_out([(31, 11), (7, 13), (53, 5), (2, 17)])
    plan = plan_batches(lengths, clusters, window=11)
    items = list(zip(lengths, clusters, range(len(lengths)), strict=True))
    digest = PlanDigest(plan.options)
    seen = []
    for shard, members in plan_shards(iter(items), length=lambda i: i[0], cluster=lambda i: i[1], options=plan.options):
        digest.add(shard)
        assert tuple(member[0] for member in members) == shard.lengths
        seen.extend(members)
    assert seen == items
    assert digest.sha256 == plan.sha256


def test_the_stream_holds_two_windows_at_most():
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield taken

    stream = plan_shards(endless(), length=lambda i: 5, cluster=lambda i: "one", options=PlanOptions(window=101))
    for shards in range(1, 8):
        next(stream)
        assert taken <= 101 * (shards + 1)


def test_memory_of_the_stream_does_not_grow():
    peaks = []
    for n in (5003, 50021):
        tracemalloc.start()
        items = ((1 + i % 83, str(i // 7)) for i in range(n))
        for _ in plan_shards(items, length=lambda i: i[0], cluster=lambda i: i[1], options=PlanOptions(window=503)):
            pass
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.3 * peaks[0]


def test_nothing_gives_an_empty_plan():
    assert plan_batches([], []).shards == ()


def test_splits_depend_on_the_document_alone():
    names = [f"document-{i}" for i in range(2003)]
    splits = [split_of(name) for name in names]
    assert set(splits) == {"select", "report"}
    assert abs(splits.count("select") - 1001) < 3 * 2003**0.5 / 2
    assert all(split_of(name, "any text") == split for name, split in zip(names, splits, strict=True))
    assert all(split_of(f"{name} #3") == split for name, split in zip(names, splits, strict=True))


def test_splits_are_the_parity_of_the_first_byte_of_sha256():
    bytes_of_sha256sum = {"d1": 0x8B, "d2": 0xE7, "d3": 0xF4, "d4": 0xAF, "d7": 0x82}
    for name, byte in bytes_of_sha256sum.items():
        assert split_of(name) == ("select", "report")[byte % 2]


def test_split_and_cluster_of_a_sentence():
    texts = [f"text {i}" for i in range(97)]
    bare = [Sentence(f"s{i}", tuple(text.split())) for i, text in enumerate(texts)]
    named = [Sentence("x", ("a",), metadata={"sent_id": text}) for text in texts]
    inside = [Sentence(f"s{i}", ("a",), document=text, text="other") for i, text in enumerate(texts)]
    assert [split_of_sentence(s) for s in bare] == [split_of("", text) for text in texts]
    assert [split_of_sentence(s) for s in named] == [split_of(text) for text in texts]
    assert [split_of_sentence(s) for s in inside] == [split_of(text) for text in texts]
    assert {split_of_sentence(s, by="sentence") for s in inside} == {split_of("", "other")}
    assert cluster_of(inside[3]) == "text 3"
    assert cluster_of(inside[3], by="sentence") == "s3"
    assert cluster_of(bare[3]) == "s3"
    with pytest.raises(InputError, match="unknown kind of cluster: expected document or sentence, got 'genre'"):
        cluster_of(bare[0], by="genre")


def test_a_batch_is_padded_on_the_right(wordpiece):
    encoded = [align(wordpiece, words) for words in (["A", "cat", "sat", "."], ["Tokenizers"], ["hm"])]
    batch = collate(encoded, pad_id=wordpiece.pad_token_id)
    assert len(batch) == 3
    assert batch.input_ids.shape == (3, 6)
    padded = wordpiece.pad({"input_ids": [list(map(int, e.input_ids)) for e in encoded]}, return_tensors="np")
    assert (batch.input_ids == padded["input_ids"]).all()
    assert (batch.attention_mask == padded["attention_mask"]).all()
    assert ((batch.roles == PAD) == (batch.attention_mask == 0)).all()
    assert (batch.word_index[batch.attention_mask == 0] == -1).all()
    assert batch.word_index[1].tolist() == [-1, 0, 0, 0, -1, -1]
    assert not batch.token_types.any()
    other = collate(encoded, pad_id=17)
    assert (other.input_ids[other.attention_mask == 0] == 17).all()


def test_a_batch_keeps_the_segments_of_pairs(wordpiece):
    pair = align(wordpiece, Sentence("p", ("a", "b", "c"), segments=(0, 1, 1)))
    batch = collate([pair, align(wordpiece, ["a"])], pad_id=0)
    assert batch.token_types.tolist() == [[0, 0, 0, 1, 1, 1], [0] * 6]
