"""What must be known of a model family beyond what reaches the attention function: one row of data each.

Families on the attention-function interface of transformers need no row to be captured. A row here adds a second route (forward
hooks on the projections), or says where the weights of a layer lie, so that one can be built from them. No code for single
families, no tests on checkpoint names.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Projections:
    """Paths of an attention module's parts, relative to it; each leading `^` goes one module up."""

    query: str
    key: str
    value: str
    """Three times the same path: one projection, its output cut in three."""
    output: str
    query_norm: str | None = None
    """Norm of each head's queries after the projection."""
    key_norm: str | None = None
    rotary: bool = False
    """Whether queries and keys are turned by their position, by the module that `rotary_emb` names in the backbone."""


@dataclass(frozen=True)
class BlockParts:
    """Paths of the parts of the encoder block around an attention module, relative to that module."""

    attention_norm: str
    widen: str
    narrow: str
    feed_forward_norm: str
    activation: str
    """Name of the activation's field in the configuration."""
    pre_norm: bool = False


@dataclass(frozen=True)
class Family:
    """Facts about one `config.model_type`."""

    projections: Projections | None = None
    block: BlockParts | None = None
    """None where the block is not of the kind `EncoderBlock` builds (a gated feed-forward, parallel branches)."""
    bias: str | None = None
    """Name of the formula in `biases.py` that its position bias must follow; None: no position bias, or it is not checked."""
    by_hooks: bool = False
    """Whether q and k enter the product as the projections give them, so that hooks see what the product sees."""


_BERT = Family(
    Projections("query", "key", "value", "^output.dense"),
    BlockParts("^output.LayerNorm", "^^intermediate.dense", "^^output.dense", "^^output.LayerNorm", "hidden_act"),
    by_hooks=True,
)
_LLAMA = Family(Projections("q_proj", "k_proj", "v_proj", "o_proj", rotary=True))

FAMILIES: dict[str, Family] = {
    "bert": _BERT,
    "electra": _BERT,
    "roberta": _BERT,
    "camembert": _BERT,
    "xlm-roberta": _BERT,
    "distilbert": Family(
        Projections("q_lin", "k_lin", "v_lin", "out_lin"),
        BlockParts("^sa_layer_norm", "^ffn.lin1", "^ffn.lin2", "^output_layer_norm", "activation"),
        by_hooks=True,
    ),
    "albert": Family(
        Projections("query", "key", "value", "dense"),
        BlockParts("LayerNorm", "^ffn", "^ffn_output", "^full_layer_layer_norm", "hidden_act"),
        by_hooks=True,
    ),
    "gpt2": Family(
        Projections("c_attn", "c_attn", "c_attn", "c_proj"),
        BlockParts("^ln_1", "^mlp.c_fc", "^mlp.c_proj", "^ln_2", "activation_function", pre_norm=True),
    ),
    "vit": Family(
        Projections("q_proj", "k_proj", "v_proj", "o_proj"),
        BlockParts("^layernorm_before", "^mlp.fc1", "^mlp.fc2", "^layernorm_after", "hidden_act", pre_norm=True),
    ),
    "deberta": Family(bias="disentangled"),
    "deberta-v2": Family(bias="disentangled"),
    "mpnet": Family(bias="buckets"),
    "xlnet": Family(bias="transformer-xl"),
    "bloom": Family(bias="alibi"),
    "mpt": Family(bias="alibi"),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": Family(
        Projections("q_proj", "k_proj", "v_proj", "o_proj", query_norm="q_norm", key_norm="k_norm", rotary=True)
    ),
}


def family_of(model_type: str) -> Family:
    """The row of a family; the empty row where none is needed."""
    return FAMILIES.get(model_type, Family())


def relative(model: nn.Module, name: str, path: str) -> nn.Module:
    """The module at `path` as seen from the module called `name`; each leading `^` goes one module up."""
    climbed = path.lstrip("^")
    parents = name.split(".")[: len(name.split(".")) - (len(path) - len(climbed))]
    return model.get_submodule(".".join([*parents, climbed]))
