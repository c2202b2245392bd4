"""Patterns put in order for viewers: steps joined, axes named, what is no pattern refused. The views made here serve the other tests."""

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.records import PatternBlock, PatternView, WordAlignment
from attnprobe.report._view_joining import stacks_of
from attnprobe.report._view_stacks import Axis

SCRIPT = "</script><script>document.title='taken'</script>"
HOSTILE = (
    SCRIPT,
    "<img src=x onerror=\"document.title='taken'\">",
    "&amp;",
    "a\u2028b",
    "\u2028",
    "שלום",
    "👩‍👩‍👧",
    "q̀̂",
    "<!--",
    "'\"`${x}",
)
"""Tokens that break pages: each must show as itself."""


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


def random_block(
    random, heads, queries, keys, *, layer=0, kind="encoder", index=None, step=0, hidden=None, dim=7, scale=None
):
    """A block with neurons whose pattern is what they give; `hidden` marks the keys a query may not see, [query key]."""
    q, k = (random.normal(0, 1.5, (heads, n, dim)).astype(np.float32) for n in (queries, keys))
    scale = dim**-0.5 if scale is None else scale
    scores = (np.einsum("hqd,hkd->hqk", q, k) * scale).astype(np.float32)
    if hidden is not None:
        scores = np.where(hidden, np.float32(np.finfo(np.float32).min), scores)
    place = layer if index is None else index
    return PatternBlock(layer, kind, place, step, softmax(scores), "model", scores, q, k, scale)


def view_of(blocks, tokens, **changes):
    tokens = tuple(tokens)
    given = {
        "alignment": WordAlignment(np.arange(len(tokens)), len(tokens)),
        "words": tokens,
        "special": np.zeros(len(tokens), dtype=bool),
    }
    return PatternView("tiny", tuple(blocks), tokens, **{**given, **changes})


def sentence_view(layers=3, heads=5, seed=1):
    """[CLS] the un ##believ ##able cat sat [SEP]: five words out of six pieces."""
    tokens = ("[CLS]", "the", "un", "##believ", "##able", "cat", "sat", "[SEP]")
    random = np.random.default_rng(seed)
    special = np.array([True, *[False] * 6, True])
    alignment = WordAlignment(np.array([-1, 0, 1, 1, 1, 2, 3, -1]), 4)
    blocks = [random_block(random, heads, 8, 8, layer=layer) for layer in range(layers)]
    return view_of(blocks, tokens, alignment=alignment, words=("the", "unbelievable", "cat", "sat"), special=special)


def pair_view():
    """Two texts of three and two words with their separators."""
    tokens = ("[CLS]", "a", "b", "c", "[SEP]", "d", "e", "[SEP]")
    special = np.array([True, False, False, False, True, False, False, True])
    alignment = WordAlignment(np.array([-1, 0, 1, 2, -1, 3, 4, -1]), 5)
    random = np.random.default_rng(2)
    blocks = [random_block(random, 3, 8, 8, layer=layer) for layer in range(2)]
    return view_of(
        blocks, tokens, alignment=alignment, words=tuple("abcde"), special=special, segments=(0, 0, 0, 0, 0, 1, 1, 1)
    )


def later(queries, keys):
    """Which keys come after each of the last `queries` positions."""
    return np.arange(keys)[None, :] > np.arange(keys - queries, keys)[:, None]


def generated_view(prompt=5, steps=3):
    """A decoder that read a prompt and generated token by token, with a cache; and the whole pattern that this adds up to."""
    random = np.random.default_rng(3)
    length = prompt + steps
    full = [
        random_block(random, 3, length, length, layer=layer, kind="decoder", hidden=later(length, length))
        for layer in range(2)
    ]
    blocks = []
    for step in range(steps + 1):
        rows, end = (
            (slice(0, prompt), prompt) if step == 0 else (slice(prompt + step - 1, prompt + step), prompt + step)
        )
        for b in full:
            cut = [b.pattern[:, rows, :end], b.scores[:, rows, :end], b.q[:, rows], b.k[:, :end]]
            blocks.append(PatternBlock(b.layer, "decoder", b.index, step, cut[0], "model", *cut[1:], b.scale))
    return view_of(blocks, "Hello"[:prompt]), full


def translated_view():
    """Three encoder layers and two decoder layers, as an encoder-decoder model runs them."""
    random = np.random.default_rng(4)
    blocks = [random_block(random, 3, 5, 5, layer=layer) for layer in range(3)]
    for index in range(2):
        blocks.append(
            random_block(random, 3, 4, 4, layer=3 + 2 * index, kind="decoder", index=index, hidden=later(4, 4))
        )
        blocks.append(random_block(random, 3, 4, 5, layer=4 + 2 * index, kind="cross", index=index))
    return view_of(blocks, ("the", "cat", "sat", "down", "."), target_tokens=("<s>", "le", "chat", "dort"))


def hostile_view():
    random = np.random.default_rng(5)
    return view_of([random_block(random, 2, len(HOSTILE), len(HOSTILE), layer=layer) for layer in range(2)], HOSTILE)


def long_view(length, layers=2, heads=3, seed=6):
    """Patterns without neurons, peaked near the diagonal and on the first token."""
    random = np.random.default_rng(seed)
    scores = (
        random.normal(0, 2, (heads, length, length))
        - np.abs(np.subtract.outer(np.arange(length), np.arange(length))) * 0.3
    )
    scores[:, :, 0] += 3
    blocks = [
        PatternBlock(layer, "encoder", layer, 0, softmax(scores + layer), "recomputed") for layer in range(layers)
    ]
    return view_of(blocks, [f"t{i}" for i in range(length)])


def test_a_single_pass_stays_as_it_is():
    view = sentence_view()
    (stack,) = stacks_of(view)
    assert (stack.kind, len(stack.modules), stack.cells) == ("encoder", 3, 3 * 5 * 64)
    assert stack.query is stack.key
    assert stack.query.tokens == view.tokens
    assert not stack.causal
    for module, block in zip(stack.modules, view.blocks, strict=True):
        np.testing.assert_array_equal(module.pattern, block.pattern)
        np.testing.assert_allclose(module.total, 1, atol=1e-6)


def test_steps_of_a_generation_join_to_the_pattern_of_the_whole():
    view, full = generated_view()
    (stack,) = stacks_of(view)
    assert stack.steps.tolist() == [0, 0, 0, 0, 0, 1, 2, 3]
    assert stack.query.tokens == ("H", "e", "l", "l", "o", "+1", "+2", "+3")
    assert stack.query.unnamed == 3
    assert stack.causal
    for module, block in zip(stack.modules, full, strict=True):
        np.testing.assert_array_equal(module.pattern, block.pattern)
        np.testing.assert_array_equal(module.neurons.q, block.q)
        np.testing.assert_array_equal(module.neurons.k, block.k)
        np.testing.assert_array_equal(np.isinf(module.neurons.added), np.broadcast_to(later(8, 8), (3, 8, 8)))


def test_without_a_cache_only_the_new_queries_of_a_step_count():
    _, full = generated_view()
    parts = [(0, 5), (1, 6), (2, 7)]
    blocks = [
        PatternBlock(b.layer, "decoder", b.index, step, b.pattern[:, :n, :n], "model")
        for step, n in parts
        for b in full
    ]
    (stack,) = stacks_of(view_of(blocks, "Hello"))
    assert stack.steps.tolist() == [0, 0, 0, 0, 0, 1, 2]
    for module, block in zip(stack.modules, full, strict=True):
        np.testing.assert_array_equal(module.pattern, block.pattern[:, :7, :7])


def test_the_keys_of_a_sliding_cache_stand_at_the_right_end():
    random = np.random.default_rng(8)
    first = random_block(random, 2, 4, 4, kind="decoder", hidden=later(4, 4))
    second = random_block(random, 2, 1, 3, kind="decoder", step=1)
    (stack,) = stacks_of(view_of([first, second], "abcd"))
    pattern = stack.modules[0].pattern
    assert pattern.shape == (2, 5, 5)
    np.testing.assert_array_equal(pattern[:, 4, 2:], second.pattern[:, 0])
    assert not pattern[:, 4, :2].any()
    np.testing.assert_array_equal(stack.modules[0].neurons.k[:, 2:], second.k)


def test_two_sequences_have_an_axis_each():
    encoder, decoder, cross = stacks_of(translated_view())
    assert [stack.kind for stack in (encoder, decoder, cross)] == ["encoder", "decoder", "cross"]
    assert [module.layer for module in cross.modules] == [4, 6]
    assert [module.index for module in cross.modules] == [0, 1]
    assert (encoder.key.name, decoder.query.name, cross.query.name, cross.key.name) == (
        "source",
        "target",
        "target",
        "source",
    )
    assert cross.query.tokens == ("<s>", "le", "chat", "dort")
    assert (encoder.causal, decoder.causal, cross.causal) == (False, True, False)


def test_what_is_added_is_the_score_less_the_scaled_product():
    random = np.random.default_rng(9)
    bias = random.normal(0, 1, (2, 5, 5)).astype(np.float32)
    bias[:, :, 3] = -np.inf
    bias[:, 0, 1] = -9984.0  # -1e4 as bfloat16 stores it
    block = random_block(random, 2, 5, 5, scale=0.7)
    scores = block.scores + bias
    (stack,) = stacks_of(
        view_of([PatternBlock(0, "encoder", 0, 0, softmax(scores), "model", scores, block.q, block.k, 0.7)], "abcde")
    )
    neurons = stack.modules[0].neurons
    hidden = np.isinf(neurons.added)
    assert hidden[:, :, 3].all()
    assert hidden[:, 0, 1].all()
    np.testing.assert_allclose(neurons.added[~hidden], bias[~hidden], atol=1e-5)
    assert neurons.scale == 0.7


def test_rounding_is_not_taken_for_a_bias():
    (stack,) = stacks_of(sentence_view())
    for module in stack.modules:
        assert not module.neurons.added.any()


def test_tokens_without_a_name_or_a_word_get_one():
    random = np.random.default_rng(10)
    (stack,) = stacks_of(view_of([random_block(random, 1, 3, 3)], ()))
    assert stack.query.tokens == ("0", "1", "2")
    assert stack.query.word_index.tolist() == [0, 1, 2]
    view, _ = generated_view()
    (stack,) = stacks_of(view)
    assert stack.query.words[-1] == "+3"
    assert stack.query.word_index.tolist() == list(range(8))


def test_a_window_keeps_places_and_whole_sums():
    (stack,) = stacks_of(sentence_view())
    cut = stack.cut((2, 6))
    assert cut.query.tokens == ("un", "##believ", "##able", "cat")
    assert cut.query.start == 2
    np.testing.assert_array_equal(cut.modules[1].pattern, stack.modules[1].pattern[:, 2:6, 2:6])
    np.testing.assert_array_equal(cut.modules[1].total, stack.modules[1].total[:, 2:6])
    np.testing.assert_array_equal(cut.modules[1].neurons.k, stack.modules[1].neurons.k[:, 2:6])
    assert cut.cut((1, 3)).key.start == 3
    axis = Axis("source", tuple("abcdef"), np.arange(6), tuple("abcdef"), np.zeros(6, dtype=bool), unnamed=2)
    assert [axis.cut(slice(*span)).unnamed for span in ((0, 4), (0, 5), (4, 6), (5, 6))] == [0, 1, 2, 1]


def test_only_decoders_are_causal():
    random = np.random.default_rng(13)
    for kind, causal in (("encoder", False), ("decoder", True)):
        (stack,) = stacks_of(view_of([random_block(random, 2, 4, 4, kind=kind, hidden=later(4, 4))], "abcd"))
        assert stack.causal is causal
    (stack,) = stacks_of(view_of([random_block(random, 2, 4, 4, kind="decoder")], "abcd"))
    assert not stack.causal


def test_undefined_rows_pass():
    block = random_block(np.random.default_rng(11), 2, 3, 3)
    block.pattern[:, 1] = np.nan
    (stack,) = stacks_of(view_of([block], "abc"))
    assert np.isnan(stack.modules[0].total[:, 1]).all()


def broken(pattern, kind="encoder"):
    return view_of([PatternBlock(2, kind, 2, 0, pattern, "model")], "ab")


@pytest.mark.parametrize(
    ("view", "parts"),
    [
        (view_of([], "ab"), ["nothing to show", "without blocks"]),
        (broken(np.full((1, 2, 2), 1.5)), ["no weight", "layer 2", "0 to 1", "1.5", "head 0"]),
        (broken(np.full((1, 2, 2), -0.2)), ["no weight", "-0.2"]),
        (broken(np.zeros((2, 2))), ["wrong shape", "layer 2", "[head query key]", "(2, 2)"]),
        (broken(np.zeros((0, 2, 2))), ["wrong shape", "not empty"]),
        (broken(np.zeros((1, 2, 2)), kind="sideways"), ["unknown kind", "sideways", "encoder"]),
    ],
)
def test_what_is_no_pattern_is_refused(view, parts):
    with pytest.raises(InputError) as caught:
        stacks_of(view)
    for part in parts:
        assert part in str(caught.value)


def test_sizes_that_do_not_fit_are_refused():
    random = np.random.default_rng(12)
    with pytest.raises(InputError, match=r"differ in size.*layers 0 and 1.*\(3, 3\) and \(4, 4\)"):
        stacks_of(view_of([random_block(random, 1, 3, 3), random_block(random, 1, 4, 4, layer=1)], "abc"))
    with pytest.raises(InputError, match=r"source sequence has two lengths at cross: expected 3, got 4"):
        stacks_of(view_of([random_block(random, 1, 3, 3), random_block(random, 1, 2, 4, layer=1, kind="cross")], "abc"))
