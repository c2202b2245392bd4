"""What must be known of a model family beyond what reaches the attention function: one row of data each.

Families on the attention-function interface of transformers need no row to be captured. A row here adds a second route (forward
hooks on the projections) or a fact that the configuration does not tell. No code, no tests on checkpoint names.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HookRoute:
    """Where the projections of a self-attention module sit, as attribute names."""

    query: str
    key: str
    value: str
    output: str
    """The output projection, relative to the self-attention module; a leading `^` starts at its parent."""


@dataclass(frozen=True)
class Family:
    """Facts about one `config.model_type`."""

    hooks: HookRoute | None = None
    """The hook route, where the family has separate projections and nothing happens to q and k after them."""
    position_offset: int = 0
    """Positions that the model keeps for itself: `max_position_embeddings` counts them, texts may not use them."""


_BERT = HookRoute("query", "key", "value", "^output.dense")

FAMILIES: dict[str, Family] = {
    "bert": Family(_BERT),
    "electra": Family(_BERT),
    "roberta": Family(_BERT, position_offset=2),
    "camembert": Family(_BERT, position_offset=2),
    "xlm-roberta": Family(_BERT, position_offset=2),
    "xlm-roberta-xl": Family(position_offset=2),
    "roberta-prelayernorm": Family(position_offset=2),
    "data2vec-text": Family(position_offset=2),
    "mpnet": Family(position_offset=2),
    "longformer": Family(position_offset=2),
    "distilbert": Family(HookRoute("q_lin", "k_lin", "v_lin", "out_lin")),
    "albert": Family(HookRoute("query", "key", "value", "dense")),
}


def family_of(model_type: str) -> Family:
    """The row of a family; the empty row where none is needed."""
    return FAMILIES.get(model_type, Family())
