"""Laws that every registered head metric keeps, and its agreement with the oracle."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from attnprobe.attention.call import Role, Rows
from attnprobe.heads.metrics import OPT_IN
from attnprobe.registry import METRICS
from tests.oracles import head_metrics as oracle

EVERY = pytest.mark.parametrize("metric", list(METRICS), ids=lambda metric: metric.name)
BATCH, HEADS, KEYS = 3, 5, 13


@pytest.fixture
def rows():
    """Sharp rows over two padded sequences and a full one, with [CLS], [SEP] and punctuation; one query sees nothing."""
    generator = torch.Generator().manual_seed(11)
    roles = torch.full((BATCH, KEYS), int(Role.PAD))
    for b, length in enumerate((KEYS, 7, 11)):
        roles[b, 1 : length - 1] = int(Role.WORD)
        roles[b, 0], roles[b, length - 1], roles[b, length - 2] = int(Role.CLS), int(Role.SEP), int(Role.PUNCT)
    visible = (roles != Role.PAD)[:, None, None, :].expand(BATCH, 1, KEYS, KEYS).clone()
    visible[2, :, 3] = False
    scores = 4 * torch.randn(BATCH, HEADS, KEYS, KEYS, generator=generator, dtype=torch.float64)
    pattern = torch.softmax(scores.masked_fill(~visible, -torch.inf), -1).nan_to_num(0.0)
    segments, entities = torch.full((2, BATCH, KEYS), -1)
    segments[0, 1:5], segments[0, 6:12], segments[1, 1:6], segments[2, 1:4], segments[2, 4:10] = 0, 1, 0, 0, 1
    entities[0, 2:4], entities[0, 5], entities[2, 1], entities[2, 3:6] = 0, 1, 0, 2
    return Rows(
        pattern,
        visible,
        torch.arange(KEYS),
        roles,
        (roles <= Role.PUNCT) & visible.any(-1)[:, 0],
        segments,
        entities,
    )


def kept(metric, rows):
    """Values of the rows that count, in order."""
    values = metric(rows).transpose(1, 2)
    return values[rows.keep]


@EVERY
def test_equals_the_oracle(metric, rows):
    values = metric(rows)
    coordinates = metric.extra[1] if metric.extra else (None,)
    for b in range(BATCH):
        for h in range(HEADS):
            for i in torch.nonzero(rows.roles[b] != Role.PAD).flatten().tolist():
                for e, extra in enumerate(coordinates):
                    want = oracle.one_row(
                        metric.name,
                        rows.pattern[b, h, i].numpy(),
                        rows.visible[b, 0, i].numpy(),
                        i,
                        rows.roles[b].tolist(),
                        extra,
                        segments=rows.segments[b].tolist(),
                        entities=rows.entities[b].tolist(),
                    )
                    got = float(values[b, h, i] if metric.extra is None else values[b, h, i, e])
                    assert got == pytest.approx(want, abs=1e-9, nan_ok=True), (b, h, i, extra)


@EVERY
def test_stays_within_its_limits(metric, rows):
    values = kept(metric, rows)
    low, high = metric.limits
    values = values[~values.isnan()]
    assert len(values)
    assert low is None or bool((values >= low).all())
    assert high is None or bool((values <= high + 1e-12).all())


@EVERY
def test_leaves_its_input_alone(metric, rows):
    before = rows.pattern.clone(), rows.visible.clone(), rows.roles.clone()
    metric(rows)
    assert torch.equal(rows.pattern, before[0])
    assert torch.equal(rows.visible, before[1])
    assert torch.equal(rows.roles, before[2])


@pytest.mark.parametrize("metric", [m for m in METRICS if m.pooled is not None], ids=lambda metric: metric.name)
@pytest.mark.parametrize("per_head", [False, True])
def test_pooled_sums_are_those_of_the_values(metric, rows, per_head):
    if per_head:  # keys that only some heads may see
        visible = rows.visible.expand(BATCH, HEADS, KEYS, KEYS).clone()
        visible[0, 1, 4:9, 3:9] = visible[1, 2, 4] = False
        rows = replace(rows, visible=visible)
    values, keep = metric(rows), rows.keep[:, None, :, None]
    total, n = metric.pooled(rows)
    torch.testing.assert_close(total, torch.where(keep, values, 0.0).nansum(2))
    torch.testing.assert_close(n.expand(total.shape), (keep & ~values.isnan()).sum(2).to(n.dtype))


@EVERY
def test_more_padding_changes_nothing(metric, rows):
    padded = replace(
        rows,
        pattern=torch.nn.functional.pad(rows.pattern, (0, 3)),
        visible=torch.nn.functional.pad(rows.visible, (0, 3)),
        roles=torch.nn.functional.pad(rows.roles, (0, 3), value=int(Role.PAD)),
        segments=torch.nn.functional.pad(rows.segments, (0, 3), value=-1),
        entities=torch.nn.functional.pad(rows.entities, (0, 3), value=-1),
    )
    torch.testing.assert_close(kept(metric, padded), kept(metric, rows), equal_nan=True)


@EVERY
def test_permuting_heads_permutes_values(metric, rows):
    order = torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(
        metric(replace(rows, pattern=rows.pattern[:, order])), metric(rows)[:, order], equal_nan=True
    )


@EVERY
def test_blocks_of_rows_give_the_whole(metric, rows):
    parts = []
    for part in (slice(0, 5), slice(5, 6), slice(6, KEYS)):
        parts.append(
            metric(
                replace(
                    rows,
                    pattern=rows.pattern[:, :, part],
                    visible=rows.visible[:, :, part],
                    query_index=rows.query_index[part],
                    keep=rows.keep[:, part],
                )
            )
        )
    torch.testing.assert_close(torch.cat(parts, 2), metric(rows), equal_nan=True)


@EVERY
def test_a_row_that_sees_nothing_is_nan(metric, rows):
    values = metric(rows)[2, :, 3]
    assert bool(values.isnan().all())


@EVERY
def test_declares_unit_source_and_first_line(metric):
    assert metric.unit
    assert metric.source
    assert metric.function.__doc__.strip().splitlines()[0].endswith((".", ":", ","))


def test_known_answers():
    """A one-hot previous head: entropy exactly 0, mass and argmax share 1 at -1, distance 1; a uniform one: ln n and 1."""
    n = 7
    roles = torch.full((1, n), int(Role.WORD))
    previous = torch.zeros(1, 2, n, n)
    previous[0, 0, torch.arange(1, n), torch.arange(n - 1)] = 1.0
    previous[0, 0, 0, 0] = 1.0
    previous[0, 1] = 1 / n
    rows = Rows(
        previous, torch.ones(1, 1, n, n, dtype=torch.bool), torch.arange(n), roles, torch.ones(1, n, dtype=bool)
    )
    entropy = METRICS["entropy"](rows)
    assert bool((entropy[0, 0] == 0).all())
    np.testing.assert_allclose(entropy[0, 1].numpy(), np.log(n), rtol=1e-6)
    np.testing.assert_allclose(METRICS["entropy_normalised"](rows)[0, 1].numpy(), 1.0, rtol=1e-6)
    place = METRICS["offset_mass"].extra[1].index(-1)
    for name in ("offset_mass", "offset_argmax"):
        values = METRICS[name](rows)[0, 0, :, place]
        assert bool(values[0].isnan())
        assert bool((values[1:] == 1).all())
    assert METRICS["signed_distance"](rows)[0, 0, 1:].tolist() == [-1.0] * (n - 1)


@pytest.mark.parametrize("separators", [(6,), (3, 6)])
def test_a_sink_head_is_found_with_one_separator_and_with_two(separators):
    n = 7
    roles = torch.full((1, n), int(Role.WORD))
    roles[0, 0] = int(Role.CLS)
    roles[0, list(separators)] = int(Role.SEP)
    pattern = torch.zeros(1, 1, n, n)
    pattern[..., list(separators)] = 1 / len(separators)
    rows = Rows(pattern, torch.ones(1, 1, n, n, dtype=torch.bool), torch.arange(n), roles, roles == int(Role.WORD))
    for name in ("special_mass", "special_argmax"):
        values = dict(zip(METRICS[name].extra[1], METRICS[name](rows)[0, 0, 1].tolist(), strict=True))
        assert (values["sep"], values["cls"], values["self"]) == (1.0, 0.0, 0.0)
        assert np.isnan(values["punct"])  # there is none


def test_causal_uniform_rows_have_the_entropy_of_their_own_length():
    n = 7
    visible = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
    pattern = (visible / visible.sum(-1, keepdim=True)).to(torch.float64)
    rows = Rows(
        pattern, visible, torch.arange(n), torch.zeros(1, n, dtype=torch.long), torch.ones(1, n, dtype=torch.bool)
    )
    np.testing.assert_allclose(METRICS["entropy"](rows)[0, 0].numpy(), np.log(np.arange(1, n + 1)), atol=1e-12)
    normalised = METRICS["entropy_normalised"](rows)[0, 0]
    assert bool(normalised[0].isnan())  # 0 / 0
    np.testing.assert_allclose(normalised[1:].numpy(), 1.0)


@pytest.mark.parametrize("name", [name for name in OPT_IN if name != "hidden_mass"])
def test_without_marks_there_is_nothing_to_measure(rows, name):
    values = METRICS[name](replace(rows, segments=None, entities=None))
    assert values.shape == METRICS[name](rows).shape
    assert bool(values.isnan().all())


def test_even_attention_is_at_the_base_rate_and_a_perfect_head_at_its_limits():
    n = 8
    roles = torch.full((1, n), int(Role.WORD))
    entities = torch.tensor([[-1, 0, 0, -1, 1, -1, -1, -1]])
    even = torch.full((1, 1, n, n), 1 / n, dtype=torch.float64)
    visible = torch.ones(1, 1, n, n, dtype=torch.bool)
    rows = Rows(even, visible, torch.arange(n), roles, torch.ones(1, n, dtype=torch.bool), entities=entities)
    values = METRICS["entity_mass"](rows)[0, 0]
    assert bool(((values == 0) | values.isnan()).all())
    assert values.isnan().tolist() == [[False, i not in (1, 2), i not in (1, 2, 4)] for i in range(n)]
    on_partner = torch.zeros_like(even)
    on_partner[0, 0, 1, 2] = on_partner[0, 0, 2, 1] = 1
    values = METRICS["entity_mass"](replace(rows, pattern=on_partner))[0, 0, 1]
    assert values.tolist() == pytest.approx([1 - 3 / 8, 1 - 1 / 8, -5 / 8])


def test_segments_of_a_pair_leave_to_special_tokens_what_those_take():
    n = 6
    roles = torch.tensor([[int(r) for r in (Role.CLS, Role.WORD, Role.SEP, Role.WORD, Role.WORD, Role.SEP)]])
    segments = torch.tensor([[-1, 0, -1, 1, 1, -1]])
    even = torch.full((1, 1, n, n), 1 / n, dtype=torch.float64)
    visible = torch.ones(1, 1, n, n, dtype=torch.bool)
    rows = Rows(even, visible, torch.arange(n), roles, roles <= Role.PUNCT, segments=segments)
    values = METRICS["segment_mass"](rows)[0, 0]
    assert values[1].tolist() == pytest.approx([1 / 6, 2 / 6])
    assert values[3].tolist() == pytest.approx([2 / 6, 1 / 6])
    assert bool(values[[0, 2, 5]].isnan().all())
    alone = METRICS["segment_mass"](replace(rows, segments=segments.clamp(max=0)))
    assert bool(alone.isnan().all())


def test_what_is_worked_out_of_tokens_goes_with_the_layers_and_not_with_other_tokens(rows):
    METRICS["distance"](rows)
    METRICS["entropy"](rows)
    other = rows.with_pattern(rows.pattern.flip(1))
    asked = []
    rows.once("n_visible", lambda: asked.append("again"), of_tokens=True)
    other.once("n_visible", lambda: asked.append("again"), of_tokens=True)
    assert not asked
    torch.testing.assert_close(METRICS["entropy"](other), METRICS["entropy"](rows).flip(1), equal_nan=True)
    assert bool((METRICS["entropy"](rows.with_pattern(rows.pattern, entropy=torch.ones(1))) == 1).all())
    blind = replace(rows, visible=torch.zeros_like(rows.visible))
    assert bool(METRICS["distance"](blind).isnan().all())
