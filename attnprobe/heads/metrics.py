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
    return entropy_of(rows.pattern)


@head_metric(unit="share", limits=(0.0, 1.0), source="entropy over its maximum, the log of the number of visible keys")
def entropy_normalised(rows: Rows) -> Float[Tensor, "batch head query"]:
    """Entropy over ln n, n the number of keys the query may see: 1 when all share equally, however long the sentence.

    NaN where fewer than two keys are visible.
    """
    n = rows.n_visible
    defined = torch.where(n > 1, 1.0 / torch.log(n.clamp_min(2).to(rows.pattern.dtype)), torch.nan)
    return entropy_of(rows.pattern) * defined


@head_metric(unit="tokens", limits=(0.0, None), source="Vig and Belinkov 2019, section 4.2 (mean attention distance)")
def distance(rows: Rows) -> Float[Tensor, "batch head query"]:
    """Mean absolute distance of the keys, weighted by attention: sum of p |key - query|, in tokens. NaN where nothing is seen."""
    return _per_mass(rows, torch.einsum("bhqk,qk->bhq", rows.pattern, _offsets(rows).abs()))


@head_metric(unit="tokens", limits=(None, None), source="signed form of the mean attention distance")
def signed_distance(rows: Rows) -> Float[Tensor, "batch head query"]:
    """Mean signed distance, weighted by attention: sum of p (key - query), in tokens; negative looks back. NaN where nothing is seen."""
    return _per_mass(rows, torch.einsum("bhqk,qk->bhq", rows.pattern, _offsets(rows)))


@head_metric(unit="share", limits=(0.0, 1.0), source="Clark et al. 2019, section 3.1", extra=("offset", OFFSETS))
def offset_mass(rows: Rows) -> Float[Tensor, "batch head query offset"]:
    """Attention to the token at each fixed offset: p[query, query + offset], a share of the row.

    NaN where there is no such token, it is special or it may not be seen, so that a perfect head reads 1 whatever the sentence length.
    """
    return _at_offsets(rows, rows.pattern)


@head_metric(unit="share", limits=(0.0, 1.0), source="Voita et al. 2019, section 5.1", extra=("offset", OFFSETS))
def offset_argmax(rows: Rows) -> Float[Tensor, "batch head query offset"]:
    """Whether the most attended key is the token at each fixed offset (1 or 0). Ties go to the lowest index. NaN as in `offset_mass`."""
    top = rows.pattern.argmax(-1)
    wanted = rows.query_index[:, None] + torch.tensor(OFFSETS, device=top.device)
    return _where_neighbour(rows, (top[..., None] == wanted).to(rows.pattern.dtype))


@head_metric(unit="share", limits=(0.0, 1.0), source="Clark et al. 2019, section 3.2", extra=("target", TARGETS))
def special_mass(rows: Rows) -> Float[Tensor, "batch head query target"]:
    """Attention to each target of `TARGETS`: sum of p over its keys, a share of the row. NaN where the sequence has no such key."""
    marks = _target_keys(rows)
    mass = torch.matmul(rows.pattern, marks[:, None].to(rows.pattern.dtype))
    return _with_self(rows, mass, _self_mass(rows), marks)


@head_metric(unit="share", limits=(0.0, 1.0), source="argmax form of special_mass", extra=("target", TARGETS))
def special_argmax(rows: Rows) -> Float[Tensor, "batch head query target"]:
    """Whether the most attended key is one of each target's (1 or 0). Ties go to the lowest index. NaN as in `special_mass`."""
    top = rows.pattern.argmax(-1)
    marks = _target_keys(rows)
    batch = torch.arange(len(marks), device=top.device)[:, None, None]
    hit = marks[batch, top].to(rows.pattern.dtype)
    return _with_self(rows, hit, (top == rows.query_index).to(rows.pattern.dtype), marks)


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


def _offsets(rows: Rows) -> Float[Tensor, "query key"]:
    keys = torch.arange(rows.pattern.shape[-1], device=rows.pattern.device)
    return (keys[None, :] - rows.query_index[:, None]).to(rows.pattern.dtype)


def _per_mass(rows: Rows, weighted: Tensor) -> Tensor:
    """A weighted sum, NaN where the row holds nothing to weigh."""
    return torch.where(rows.n_visible > 0, weighted, torch.nan)


def _at_offsets(rows: Rows, pattern: Tensor) -> Tensor:
    """`pattern[query, query + offset]` for every offset, NaN where there is no ordinary token."""
    wanted = rows.query_index[:, None] + torch.tensor(OFFSETS, device=pattern.device)
    inside = wanted.clamp(0, pattern.shape[-1] - 1)
    return _where_neighbour(rows, pattern.gather(-1, inside.expand(*pattern.shape[:2], *inside.shape)))


def _where_neighbour(rows: Rows, values: Tensor) -> Tensor:
    """`values` where the token at each offset exists, is ordinary and visible; else NaN."""
    n_keys = rows.pattern.shape[-1]
    wanted = rows.query_index[:, None] + torch.tensor(OFFSETS, device=values.device)
    inside = wanted.clamp(0, n_keys - 1)
    ordinary = (rows.roles <= Role.PUNCT)[:, inside]
    seen = rows.visible.gather(-1, inside.expand(*rows.visible.shape[:2], *inside.shape))
    defined = ((wanted >= 0) & (wanted < n_keys) & ordinary)[:, None] & seen
    return torch.where(defined, values, torch.nan)


def _target_keys(rows: Rows) -> Tensor:
    """Which keys belong to each target but `self`, bool [batch key target]; the place of `self` is left empty."""
    marks = torch.zeros(*rows.roles.shape, len(TARGETS), dtype=torch.bool, device=rows.roles.device)
    marks[torch.arange(len(marks), device=marks.device), rows.first, TARGETS.index("first")] = True
    for name, role in (("cls", Role.CLS), ("sep", Role.SEP), ("punct", Role.PUNCT)):
        marks[..., TARGETS.index(name)] = rows.roles == role
    return marks


def _self_mass(rows: Rows) -> Tensor:
    index = rows.query_index[:, None].expand(*rows.pattern.shape[:-1], 1)
    return rows.pattern.gather(-1, index).squeeze(-1)


def _with_self(rows: Rows, values: Tensor, own: Tensor, marks: Tensor) -> Tensor:
    present = marks.any(1)[:, None, None, :].expand(values.shape).clone()
    present[..., TARGETS.index("self")] = True
    values = values.clone()
    values[..., TARGETS.index("self")] = own
    return torch.where(present & (rows.n_visible > 0)[..., None], values, torch.nan)
