"""Which heads and tokens a viewer shows: wishes kept, long texts bounded, the rest counted."""

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.report._view_choice import LONG, choose
from attnprobe.report._view_joining import stacks_of
from tests.report.test_view_stacks import long_view, sentence_view, translated_view


def chosen(view, layers=None, heads=None, window=None, **options):
    return choose(stacks_of(view), layers=layers, heads=heads, window=window, **options)


def names(choice):
    return [f"L{module.layer}H{head}" for stack in choice.stacks for module in stack.modules for head in module.heads]


def test_without_wishes_everything_is_shown():
    choice = chosen(sentence_view())
    assert len(names(choice)) == choice.heads_shown == choice.heads_total == 15
    assert choice.window is None
    assert not choice.automatic


@pytest.mark.parametrize(
    ("layers", "heads", "expected"),
    [
        ([1], None, ["L1H0", "L1H1", "L1H2", "L1H3", "L1H4"]),
        (None, [4], ["L0H4", "L1H4", "L2H4"]),
        ([2, 0], [3, 1], ["L0H1", "L0H3", "L2H1", "L2H3"]),
        (None, ["L2H4", "L0H0"], ["L0H0", "L2H4"]),
        ([1], [0, "L2H2"], ["L1H0", "L2H2"]),
    ],
)
def test_heads_are_chosen_by_layer_number_and_name(layers, heads, expected):
    view = sentence_view()
    choice = chosen(view, layers, heads)
    assert names(choice) == expected
    assert (choice.heads_shown, choice.heads_total) == (len(expected), 15)
    for stack in choice.stacks:
        for module in stack.modules:
            block = view.blocks[module.layer]
            for place, head in enumerate(module.heads):
                np.testing.assert_array_equal(module.pattern[place], block.pattern[head])
                np.testing.assert_array_equal(module.neurons.q[place], block.q[head])


def test_layers_count_in_execution_order_over_all_kinds():
    choice = chosen(translated_view(), layers=[0, 4, 5])
    assert [(stack.kind, [m.index for m in stack.modules]) for stack in choice.stacks] == [
        ("encoder", [0]),
        ("decoder", [1]),
        ("cross", [0]),
    ]


def test_long_texts_are_bounded_unless_chosen():
    view = long_view(LONG + 31)
    bounded = chosen(view)
    assert (bounded.window, bounded.length, bounded.automatic) == ((0, LONG), LONG + 31, True)
    assert len(bounded.stacks[0].query) == LONG
    assert chosen(long_view(LONG)).window is None
    whole = chosen(view, heads=["L1H2"])
    assert (whole.window, len(whole.stacks[0].query)) == (None, LONG + 31)
    part = chosen(view, window=(20, 50))
    assert (part.window, part.automatic, part.stacks[0].key.tokens[0]) == ((20, 50), False, "t20")
    assert chosen(view, window=(0, 999)).window is None


def test_many_heads_get_a_window_that_fits():
    choice = chosen(long_view(40), max_cells=6 * 20**2)
    assert (choice.window, choice.automatic) == ((0, 20), True)
    assert choice.stacks[0].cells == 6 * 20**2


def test_more_than_fits_is_refused_when_asked_for():
    with pytest.raises(InputError) as caught:
        chosen(long_view(40), layers=[0], max_cells=4799)
    for part in ("too many weights", "at most 4,799", "4,800 (3 heads)", "`window`", "`max_cells`"):
        assert part in str(caught.value)
    assert chosen(long_view(40), layers=[0], max_cells=4800).stacks[0].cells == 4800


def test_a_window_beyond_a_short_sequence_keeps_its_last_token():
    choice = chosen(translated_view(), window=(4, 5))
    assert choice.stacks[1].query.tokens == ("dort",)
    assert choice.stacks[2].key.tokens == (".",)


@pytest.mark.parametrize(
    ("wish", "parts"),
    [
        ({"layers": [3]}, ["no layer 3", "0 to 2"]),
        ({"layers": [-1]}, ["no layer -1"]),
        ({"heads": [5]}, ["no head 5", "0 to 4"]),
        ({"heads": ["L2H5"]}, ["no head L2H5", "L of 0 to 2", "H of 0 to 4"]),
        ({"heads": ["2-8"]}, ["'2-8' is no name of a head", "L2H8"]),
        ({"heads": []}, ["nothing to show", "empty `layers` or `heads`"]),
        ({"layers": []}, ["nothing to show"]),
        ({"window": (5, 5)}, ["no such window", "(5, 5)"]),
        ({"window": (8, 9)}, ["no such window", "first < 8"]),
        ({"window": (-1, 3)}, ["no such window"]),
    ],
)
def test_wishes_that_cannot_be_kept_are_refused(wish, parts):
    with pytest.raises(InputError) as caught:
        chosen(sentence_view(), **wish)
    for part in parts:
        assert part in str(caught.value)
