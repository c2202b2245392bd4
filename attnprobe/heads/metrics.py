"""Head metrics: a number for each attention row, averaged over a corpus for each head.

Each is a function `Rows -> [batch head query]` (or with one more dimension) under `@head_metric`; the engine pools the rows that count.
The same function serves a whole pattern in a notebook and a block of rows in a streamed run. Keys include special tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attnprobe.attention.call import Role, Rows
from attnprobe.attention.measures import entropy_of
from attnprobe.registry import METRICS, head_metric

OFFSETS = tuple(offset for offset in range(-10, 11) if offset != 0)
"""Distances key - query that positional heads and baselines are looked for at, in tokens for metrics, in words for relations."""

OPT_IN = ("segment_mass", "entity_mass", "hidden_mass")
"""Metrics that only some corpora or runs have something for: measured when asked for."""

SEGMENTS = ("within", "across")
"""Where a query of a sentence pair may look: into its own segment, into the other."""
ENTITIES = ("to", "within", "from")
"""Mass that `entity_mass` follows: to mentions, within the query's own mention, from a mention out of it."""

TARGETS = ("self", "first", "cls", "sep", "punct")
"""Targets of `special_mass`: the query itself, the first token, [CLS]-like and [SEP]-like tokens, pieces of punctuation."""


def default_metrics(*, pairs: bool = False) -> tuple[str, ...]:
    """What is measured unless told otherwise: all registered metrics but those of `OPT_IN`; on sentence pairs also `segment_mass`."""
    return tuple(name for name in METRICS.names() if name not in OPT_IN or (pairs and name == "segment_mass"))


def with_hidden(names: Sequence[str], sinks: str) -> tuple[str, ...]:
    """These metrics, and where sinks are removed too (`both`), `hidden_mass`: what the removed tokens held."""
    return tuple(dict.fromkeys((*names, "hidden_mass") if sinks == "both" else names))


@head_metric(unit="nats", limits=(0.0, None), source="Clark et al. 2019, section 3.2, without its smoothing")
def entropy(rows: Rows) -> Float[Tensor, "batch head query"]:
    """Entropy of each query's distribution over the keys it may see: minus the sum of p ln p, in nats.

    0 exactly when one key takes everything, ln n when n visible keys share equally. NaN where the query sees nothing.
    """
    return _entropy(rows)


@head_metric(unit="share", limits=(0.0, 1.0), source="entropy over its maximum, the log of the number of visible keys")
def entropy_normalised(rows: Rows) -> Float[Tensor, "batch head query"]:
    """Entropy over ln n, n the number of keys the query may see: 1 when all share equally, however long the sentence.

    NaN where fewer than two keys are visible.
    """
    n = rows.n_visible
    defined = torch.where(n > 1, 1.0 / torch.log(n.clamp_min(2).to(rows.pattern.dtype)), torch.nan)
    return _entropy(rows) * defined


@head_metric(unit="tokens", limits=(0.0, None), source="Vig and Belinkov 2019, section 4.2 (mean attention distance)")
def distance(rows: Rows) -> Float[Tensor, "batch head query"]:
    """Mean absolute distance of the keys, weighted by attention: sum of p |key - query|, in tokens. NaN where nothing is seen."""
    return _per_mass(rows, (rows.pattern * _steps(rows).abs()).sum(-1))


@head_metric(unit="tokens", limits=(None, None), source="signed form of the mean attention distance")
def signed_distance(rows: Rows) -> Float[Tensor, "batch head query"]:
    """Mean signed distance, weighted by attention: sum of p (key - query), in tokens; negative looks back. NaN where nothing is seen."""
    return _per_mass(rows, (rows.pattern * _steps(rows)).sum(-1))


def _offset_mass(rows: Rows) -> tuple[Tensor, Tensor]:
    counted, n = _counted_neighbours(rows)
    return (_at_offsets(rows) * counted).sum(2), n


@head_metric(
    unit="share",
    limits=(0.0, 1.0),
    source="Clark et al. 2019, section 3.1",
    extra=("offset", OFFSETS),
    pooled=_offset_mass,
)
def offset_mass(rows: Rows) -> Float[Tensor, "batch head query offset"]:
    """Attention to the token at each fixed offset: p[query, query + offset], a share of the row.

    NaN where there is no such token, it is special or it may not be seen, so that a perfect head reads 1 whatever the sentence length.
    """
    return torch.where(_neighbours(rows)[1], _at_offsets(rows), torch.nan)


def _offset_argmax(rows: Rows) -> tuple[Tensor, Tensor]:
    counted, n = _counted_neighbours(rows)
    reach, none = OFFSETS[-1], counted.new_zeros(*counted.shape[:-1], 1)
    # one column for each step from too far back to too far ahead, without weight at both ends and for the token itself
    weights = torch.cat([none, counted[..., :reach], none, counted[..., reach:], none], -1)
    column = (_top(rows) - rows.query_index).clamp(-reach - 1, reach + 1) + reach + 1
    weight = weights.expand(*column.shape, -1).gather(-1, column[..., None])[..., 0]
    hits = weight.new_zeros(*column.shape[:2], weights.shape[-1]).scatter_add_(-1, column, weight)
    return torch.cat([hits[..., 1 : reach + 1], hits[..., reach + 2 : -1]], -1), n


@head_metric(
    unit="share",
    limits=(0.0, 1.0),
    source="Voita et al. 2019, section 5.1",
    extra=("offset", OFFSETS),
    pooled=_offset_argmax,
)
def offset_argmax(rows: Rows) -> Float[Tensor, "batch head query offset"]:
    """Whether the most attended key is the token at each fixed offset (1 or 0). Ties go to the lowest index. NaN as in `offset_mass`."""
    wanted = rows.query_index[:, None] + _offsets(rows)
    hit = (_top(rows)[..., None] == wanted).to(rows.pattern.dtype)
    return torch.where(_neighbours(rows)[1], hit, torch.nan)


def _special_mass(rows: Rows) -> tuple[Tensor, Tensor]:
    kept = _kept(rows)
    received = torch.matmul(kept[:, :, None, :], rows.pattern)[:, :, 0]  # by each key, [batch head key]
    total = torch.matmul(received, _target_keys(rows).to(kept.dtype))
    total[..., TARGETS.index("self")] = (_self_mass(rows) * kept).sum(-1)
    return total, _present(rows) * kept.sum(-1)[..., None]


@head_metric(
    unit="share",
    limits=(0.0, 1.0),
    source="Clark et al. 2019, section 3.2",
    extra=("target", TARGETS),
    pooled=_special_mass,
)
def special_mass(rows: Rows) -> Float[Tensor, "batch head query target"]:
    """Attention to each target of `TARGETS`: sum of p over its keys, a share of the row. NaN where the sequence has no such key."""
    mass = torch.matmul(rows.pattern, _target_keys(rows)[:, None].to(rows.pattern.dtype))
    return _with_self(rows, mass, _self_mass(rows))


def _special_argmax(rows: Rows) -> tuple[Tensor, Tensor]:
    top, kept = _top(rows), _kept(rows)
    kept = kept.expand(top.shape)
    received = kept.new_zeros(*top.shape[:2], rows.pattern.shape[-1]).scatter_add_(-1, top, kept)
    total = torch.matmul(received, _target_keys(rows).to(kept.dtype))
    total[..., TARGETS.index("self")] = ((top == rows.query_index) * kept).sum(-1)
    return total, _present(rows) * kept.sum(-1)[..., None]


@head_metric(
    unit="share",
    limits=(0.0, 1.0),
    source="argmax form of special_mass",
    extra=("target", TARGETS),
    pooled=_special_argmax,
)
def special_argmax(rows: Rows) -> Float[Tensor, "batch head query target"]:
    """Whether the most attended key is one of each target's (1 or 0). Ties go to the lowest index. NaN as in `special_mass`."""
    top, marks = _top(rows), _target_keys(rows)
    batch = torch.arange(len(marks), device=top.device)[:, None, None]
    hit = marks[batch, top].to(rows.pattern.dtype)
    return _with_self(rows, hit, (top == rows.query_index).to(rows.pattern.dtype))


@head_metric(
    unit="share", limits=(0.0, 1.0), source="Kovaleva et al. 2019, section 4.1 (block)", extra=("segment", SEGMENTS)
)
def segment_mass(rows: Rows) -> Float[Tensor, "batch head query segment"]:
    """Attention to words of the query's own segment (`within`) and of the other one (`across`), shares of the row.

    What special tokens take is in neither. NaN where the sequence is no pair, and for queries outside both segments.
    """
    if rows.segments is None:
        return torch.full((*rows.pattern.shape[:3], len(SEGMENTS)), torch.nan, device=rows.pattern.device)
    own = rows.segments[:, rows.query_index]
    ordinary = rows.segments >= 0
    same = own[:, :, None] == rows.segments[:, None, :]
    within, across = (_marked_mass(rows, marks) for marks in (same, ordinary[:, None, :] & ~same))
    a_pair = (rows.segments == 0).any(-1) & (rows.segments == 1).any(-1)
    defined = (a_pair[:, None] & (own >= 0))[:, None] & (rows.n_visible > 0)
    return torch.where(defined[..., None], torch.stack([within, across], -1), torch.nan)


@head_metric(
    unit="share over base rate",
    limits=(-1.0, 1.0),
    source="Vig and Belinkov 2019, section 4.2, minus the share of keys",
    extra=("entity", ENTITIES),
)
def entity_mass(rows: Rows) -> Float[Tensor, "batch head query entity"]:
    """Attention that has to do with mentions of entities, minus what even attention would give: the share of visible keys.

    `to`: of any query to tokens of mentions. `within`: of a query inside a mention to the other tokens of that mention. `from`: of a query
    inside a mention to words outside any mention. In -1..1, 0 for even attention. NaN where there is no such query or no such key.
    """
    if rows.entities is None:
        return torch.full((*rows.pattern.shape[:3], len(ENTITIES)), torch.nan, device=rows.pattern.device)
    own = rows.entities[:, rows.query_index]
    keys = torch.arange(rows.pattern.shape[-1], device=own.device)
    mentioned, outside = rows.entities >= 0, (rows.entities < 0) & (rows.roles <= Role.PUNCT)
    inside = (own >= 0)[:, :, None]
    same = (own[:, :, None] == rows.entities[:, None, :]) & inside & (keys != rows.query_index[:, None])
    marks = (mentioned[:, None, :].expand_as(same), same, outside[:, None, :] & inside)
    found = []
    for marked in marks:
        n = (marked[:, None] & rows.visible).sum(-1)
        base = n.to(rows.pattern.dtype) / rows.n_visible.clamp_min(1)
        found.append(torch.where(n > 0, _marked_mass(rows, marked) - base, torch.nan))
    return torch.stack(found, -1)


@head_metric(unit="share", limits=(0.0, 1.0), source="Clark et al. 2019, section 3.2, over all special tokens")
def hidden_mass(rows: Rows) -> Float[Tensor, "batch head query"]:
    """Attention to special tokens of any kind, a share of the row: what the view without sinks hides. NaN where nothing is seen."""
    special = (rows.roles > Role.PUNCT)[:, None].expand(-1, rows.pattern.shape[2], -1)
    return torch.where(rows.n_visible > 0, _marked_mass(rows, special), torch.nan)


def _marked_mass(rows: Rows, marked: Tensor) -> Tensor:
    """Mass of each row on the keys marked for it, bool [batch query key]."""
    return torch.einsum("bhqk,bqk->bhq", rows.pattern, marked.to(rows.pattern.dtype))


def _entropy(rows: Rows) -> Float[Tensor, "batch head query"]:
    return rows.once("entropy", lambda: entropy_of(rows.pattern))


def _top(rows: Rows) -> Tensor:
    """The most attended key of each row; ties go to the lowest."""
    return rows.once("top", lambda: rows.pattern.argmax(-1))


def _steps(rows: Rows) -> Float[Tensor, "query key"]:
    """Steps from query to key, in tokens."""

    def work_out() -> Tensor:
        keys = torch.arange(rows.pattern.shape[-1], device=rows.pattern.device)
        return (keys[None, :] - rows.query_index[:, None]).to(rows.pattern.dtype)

    return rows.once("steps", work_out, of_tokens=True)


def _per_mass(rows: Rows, weighted: Tensor) -> Tensor:
    """A weighted sum, NaN where the row holds nothing to weigh."""
    return torch.where(rows.n_visible > 0, weighted, torch.nan)


def _kept(rows: Rows) -> Float[Tensor, " batch #head query"]:
    """1 for rows that count and see something, else 0."""
    return rows.once("kept", lambda: (rows.keep[:, None] & (rows.n_visible > 0)).to(rows.pattern.dtype), of_tokens=True)


def _offsets(rows: Rows) -> Tensor:
    """`OFFSETS`, made on the device: a copy would make the host wait for it."""
    steps = torch.arange(OFFSETS[-1], device=rows.pattern.device)
    return torch.cat([steps + OFFSETS[0], steps + 1])


def _neighbours(rows: Rows) -> tuple[Tensor, Tensor]:
    """Place of the token at each offset [query offset], and whether it exists, is ordinary and visible [batch #head query offset]."""

    def work_out() -> tuple[Tensor, Tensor]:
        n_keys = rows.pattern.shape[-1]
        wanted = rows.query_index[:, None] + _offsets(rows)
        place = wanted.clamp(0, n_keys - 1)
        ordinary = (rows.roles <= Role.PUNCT)[:, place]
        seen = rows.visible.gather(-1, place.expand(*rows.visible.shape[:2], *place.shape))
        return place, ((wanted >= 0) & (wanted < n_keys) & ordinary)[:, None] & seen

    return rows.once("neighbours", work_out, of_tokens=True)


def _at_offsets(rows: Rows) -> Float[Tensor, "batch head query offset"]:
    """Weight on the token at each offset; of another token where there is none."""
    place = _neighbours(rows)[0]
    return rows.pattern.gather(-1, place.expand(*rows.pattern.shape[:2], *place.shape))


def _counted_neighbours(rows: Rows) -> tuple[Tensor, Tensor]:
    """1 where a row counts and has a neighbour [batch #head query offset], and the sum over rows."""

    def work_out() -> tuple[Tensor, Tensor]:
        counted = (_neighbours(rows)[1] & rows.keep[:, None, :, None]).to(rows.pattern.dtype)
        return counted, counted.sum(2)

    return rows.once("counted_neighbours", work_out, of_tokens=True)


def _target_keys(rows: Rows) -> Tensor:
    """Which keys belong to each target but `self`, bool [batch key target]; the place of `self` is left empty."""

    def work_out() -> Tensor:
        marks = torch.zeros(*rows.roles.shape, len(TARGETS), dtype=torch.bool, device=rows.roles.device)
        marks[torch.arange(len(marks), device=marks.device), rows.first, TARGETS.index("first")] = True
        for name, role in (("cls", Role.CLS), ("sep", Role.SEP), ("punct", Role.PUNCT)):
            marks[..., TARGETS.index(name)] = rows.roles == role
        return marks

    return rows.once("target_keys", work_out, of_tokens=True)


def _present(rows: Rows) -> Tensor:
    """Which targets the sequence has, bool [batch 1 target]."""

    def work_out() -> Tensor:
        present = _target_keys(rows).any(1)[:, None]
        present[..., TARGETS.index("self")] = True
        return present

    return rows.once("present", work_out, of_tokens=True)


def _self_mass(rows: Rows) -> Tensor:
    index = rows.query_index[:, None].expand(*rows.pattern.shape[:-1], 1)
    return rows.pattern.gather(-1, index).squeeze(-1)


def _with_self(rows: Rows, values: Tensor, own: Tensor) -> Tensor:
    """`values` with the target `self` filled in, NaN where the sequence has no such target or the row sees nothing."""
    values[..., TARGETS.index("self")] = own
    return torch.where(_present(rows)[:, :, None] & (rows.n_visible > 0)[..., None], values, torch.nan)
