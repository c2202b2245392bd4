"""Default configurations shrunk by rules.

Only keys that change are passed on, so that a configuration derives the rest as it always does. Two ways of shrinking are tried
in turn: `narrow` sets widths to common small sizes, `divided` divides every width by one number and so keeps their ratios.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig

from families.exceptions import DEFAULTS, KEEP, OVERRIDES

HIDDEN, HEADS, HEAD_DIM, VOCABULARY, POSITIONS = 64, 4, 16, 256, 160
LAYERS, EXPERTS, PATCHES = 2, 4, 4

PLANS = ("narrow", "divided")

_DEPTH = re.compile(
    r"^(num_hidden_layers|num_layers|n_layers?|depth|layers|num_blocks|num_decoder_layers|num_encoder_layers|"
    r"(\w+_)?(num_)?(encoder|decoder|hidden|adapter|attention|memory|text|vision|temporal|spatial|auxiliary|resampler|"
    r"query_dec|speech_encoder|t2u_encoder|t2u_decoder)_(num_)?layers|\w+_num_(hidden_)?layers|\w+_depth|[lxr]_layers|"
    r"num_self_attends_per_block|num_layers_per_stack|num_timestamp_prediction_layers|speech_decoder_postnet_layers|"
    r"num_mel_attn_blocks|num_attention_layers|num_sparse_\w+_layers|num_\w+_head_layers|num_global_layers|"
    r"parcae_num_coda_layers|n_(input|recurrent|output)_layers|block_per_row|num_first_full_attention_layers|"
    r"num_last_full_attention_layers|num_encoder_blocks)$"
)
_HEADS = re.compile(
    r"(^|_)(num_)?(attention_heads|n_heads?|num_heads|attn_heads|self_attention_heads|cross_attention_heads|heads)$|^n_head$"
)
_KV_HEADS = re.compile(r"(num_key_value_heads|num_kv_heads|kv_n_heads|num_key_value_attention_heads|num_query_groups)$")
_HEAD_DIM = re.compile(
    r"(^|_)(head_dim|d_kv|d_head|dim_head|head_size|kv_channels|v_head_dim|qk_nope_head_dim|mamba_d_head|attention_head_size)$"
)
_WIDTH = re.compile(
    r"(^|_)(hidden_size|hidden_dim|d_model|d_ff|d_inner|n_embd|n_inner|emb_dim|embed_dim|embedding_dim|embedding_size|dim|dims?|"
    r"ffn_dim|mlp_dim|intermediate_size|intermediate_dim|channels|linear_units|projection_size|output_dim|feedforward_dim|"
    r"dim_feedforward|out_hidden_size|lora_rank|proj_dim|d_latents|lru_width|rank|feature_size|inner_size|project_dim|"
    r"hidden|latents_dim|hidden_dimension|bottleneck_size|adapter_input_size|dim_ff|dff|adapter_in_dim|adapter_out_dim|ext_pw_out_channel|units)$|"
    r"(hidden_size|intermediate_size|_channels|_width|projector_\w+_dim)"
)
_NO_WIDTH = re.compile(
    r"^(num_channels|in_channels|image_channels|input_channels|audio_channels|in_chans|input_dim|hidden_size_per_layer_input|"
    r"patch_embed_hidden_size|num_input_channels|feature_projection_input_dim|stem_num_channels|patch_embed_input_channels|linear_conv_kernel_dim|"
    r"coordinate_size|shape_size|mask_input_channels|depth_separable_channels|head_out_channels)$"
)
_VOCABULARY = re.compile(
    r"(^|_)vocab_size(_per_layer_input)?$|^(codebook_size|n_codes_total|num_embeddings|entity_vocab_size|vocab_size\w*)$"
)
_POSITIONS = re.compile(
    r"^(max_position_embeddings|n_positions|n_ctx|max_target_positions|max_sequence_length|max_seq_len|max_text_positions|position_embedding_size|max_speech_positions|\w+max_position_embeddings|max_(en|de)coder_position_embeddings)$"
)
_EXPERTS = re.compile(r"^(num_experts|n_routed_experts|num_local_experts|moe_num_experts)$")
_ONE = re.compile(r"^(n_group|topk_group|num_expert_group|first_k_dense_replace|moe_layer_start_index)$")
_CHOSEN = re.compile(r"^(num_experts_per_tok|num_experts_per_token|moe_topk|moe_top_k|moe_k|top_k_experts)$")
_TOKEN = re.compile(r"(_token_id|_token_index|_index|_id|_idx)$")
_INDICES = re.compile(r"(index|indexes|indices|_idxs|_layers|_ids)$")


TINY_RESNET = {
    "model_type": "resnet",
    "embedding_size": 8,
    "hidden_sizes": [8, 8, 8, 8],
    "depths": [1, 1, 1, 1],
    "layer_type": "basic",
    "out_features": ["stage2", "stage3", "stage4"],
}
"""What stands for a convolutional backbone of another library."""


def changes(config: PretrainedConfig, plan: str) -> dict[str, Any]:
    """The keys of a default configuration that shrink, with their new values; sub-configurations as dictionaries."""
    kept = _layers_kept(config)
    divisor = _divisor(config) if plan == "divided" else 1
    changed: dict[str, Any] = {}
    for key, value in sorted(vars(config).items()):
        if key.startswith("_") or key in ("transformers_version", "dtype", "id2label", "label2id"):
            continue
        if isinstance(value, PretrainedConfig):
            if value.model_type == "timm_backbone":
                changed[key] = TINY_RESNET
                continue
            inner = {**_own(value), **changes(value, plan)}
            changed[key] = {"model_type": value.model_type, **inner} if value.model_type else inner
            continue
        small = _small(key, value, config, kept, plan, divisor)
        if small is not None and small != value:
            changed[key] = small
    for key, value in OVERRIDES.get(config.model_type, {}).items():
        if value is KEEP:
            changed.pop(key, None)
        else:
            changed[key] = (
                {**changed[key], **value}
                if isinstance(value, dict) and "model_type" in changed.get(key, ()) and "model_type" not in value
                else value
            )
    return changed


def _own(config: PretrainedConfig) -> dict[str, Any]:
    """What the configuration around this one sets in it otherwise than it is by itself."""
    try:
        plain = vars(type(config)())
    except Exception:  # refuses its own defaults
        return {}
    return {
        key: value
        for key, value in vars(config).items()
        if not key.startswith("_") and not isinstance(value, PretrainedConfig) and key in plain and plain[key] != value
    }


def _small(key: str, value: Any, config: PretrainedConfig, kept: list[int], plan: str, divisor: int) -> Any:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (list, tuple)):
        return _small_list(key, value, config, kept, plan, divisor)
    if key in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
        return _small_rope(value, config, plan, divisor)
    if not isinstance(value, int):
        return None
    if _DEPTH.search(key):
        return min(value, len(kept) if value == _depth(config) else LAYERS)
    if _EXPERTS.search(key):
        return min(value, EXPERTS)
    if _ONE.search(key):
        return min(value, 1)
    if _CHOSEN.search(key):
        return min(value, 2)
    if _VOCABULARY.search(key):
        return min(value, VOCABULARY)
    if _POSITIONS.search(key):
        return min(value, POSITIONS)
    if key in ("image_size", "img_size", "pretrain_image_size"):
        return min(value, _image_size(config, value))
    if key == "max_source_positions":
        return min(value, 36)
    if key in ("mm_tokens_per_image", "image_seq_length", "num_image_tokens"):
        return min(value, PATCHES)
    if key == "upsample_groups":
        return min(value, HIDDEN)
    if key in ("num_queries", "two_stage_num_proposals"):
        return min(value, 12)
    if key == "num_denoising":
        return 0
    if key == "num_pos_feats":
        return min(value, HIDDEN // 2) if plan == "narrow" else value // divisor
    if key == "image_embedding_size":
        return min(value, PATCHES)
    if key == "window_size" and isinstance(vars(config).get("num_heads"), (list, tuple)):
        return min(value, 4)
    if key == "embed_dim" and isinstance(getattr(config, "num_heads", None), (list, tuple)):
        return 8 * config.num_heads[0]
    if _TOKEN.search(key) and value >= VOCABULARY:
        return _token(key)
    return None if plan == "shallow" else _small_width(key, value, config, plan, divisor)


def _small_width(key: str, value: int, config: PretrainedConfig, plan: str, divisor: int) -> int | None:
    kv = _KV_HEADS.search(key)
    if plan == "narrow":
        if kv:
            heads = vars(config).get("num_attention_heads")
            latent = vars(config).get("kv_lora_rank") is not None
            return HEADS if latent or value == heads else (1 if value == 1 else HEADS // 2)
        if key in ("qk_rope_head_dim", "rotary_dim"):
            return min(value, HEAD_DIM // 2)
        if key == "qk_head_dim":
            return None
        if _HEADS.search(key):
            return min(value, HEADS)
        if _HEAD_DIM.search(key):
            return min(value, HEAD_DIM)
        return min(value, HIDDEN) if _WIDTH.search(key) and not _NO_WIDTH.search(key) else None
    if key in ("qk_rope_head_dim", "rotary_dim") or _HEAD_DIM.search(key):
        return max(value // divisor, 2)
    if kv or _HEADS.search(key) or key == "qk_head_dim" or _NO_WIDTH.search(key):
        return None
    return value // divisor if _WIDTH.search(key) and value % divisor == 0 and value >= 4 * divisor else None


def _small_list(key: str, value: Any, config: PretrainedConfig, kept: list[int], plan: str, divisor: int) -> Any:
    kind = type(value)
    if len(value) == _depth(config) and len(value) > len(kept) and not (key.endswith("token_ids")):
        return kind(value[i] for i in kept)
    if key == "image_grid_pinpoints":
        size = _image_size(config.vision_config, config.vision_config.image_size)
        return [[size, size]]
    ints = bool(value) and all(isinstance(x, int) and not isinstance(x, bool) for x in value)
    if not ints:
        return None
    if key in ("image_size", "img_size"):
        return kind(min(x, _image_size(config, x)) for x in value)
    if key in ("depths", "num_blocks", "blocks_per_stage"):
        return kind(min(x, LAYERS) for x in value)
    if key.endswith("token_ids") or (_TOKEN.search(key) and max(value) >= VOCABULARY):
        return kind(min(x, VOCABULARY - 1 - i) for i, x in enumerate(value))
    depth = _depth(config)
    if (
        _INDICES.search(key)
        and key not in ("encode_proj_layers",)
        and depth
        and min(value) >= 0
        and max(value) <= depth
        and len(value) < depth
    ):
        return kind([len(kept) - 1])
    if plan != "shallow" and _WIDTH.search(key.removesuffix("s")) and not _NO_WIDTH.search(key) and min(value) >= 32:
        by = 8 if all(x % 8 == 0 for x in value) else 1
        return kind(x // by for x in value)
    return None


def _small_rope(value: dict[str, Any], config: PretrainedConfig, plan: str, divisor: int) -> dict[str, Any] | None:
    """Sections of a rotary embedding follow the size of a head."""
    sections = value.get("mrope_section") or (
        [1, 1, 1] if "mrope_section" in (getattr(config, "ignore_keys_at_rope_validation", None) or ()) else None
    )
    if not sections:
        return None
    size = HEAD_DIM
    if plan == "divided":
        size = (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads) // divisor
    total = max(int(size * value.get("partial_rotary_factor", 1.0)) // 2, 3)
    first = [max(1, total * x // sum(sections)) for x in sections]
    first[0] += total - sum(first)
    return {**value, "mrope_section": first}


def _token(key: str) -> int:
    """An id inside the small vocabulary, different for keys of different names."""
    return VOCABULARY - 2 - sum(map(ord, key)) % 50


def _image_size(config: PretrainedConfig, value: int) -> int:
    if isinstance(vars(config).get("num_heads"), (list, tuple)) and "window_size" in vars(config):
        return min(value, 128)  # windows of 4 in the last of four stages
    patch = getattr(config, "patch_size", None)
    patch = max(patch) if isinstance(patch, (list, tuple)) and patch and isinstance(patch[0], int) else patch
    return PATCHES * patch if isinstance(patch, int) and patch >= 7 else min(value, 64)


def _depth(config: PretrainedConfig) -> int:
    """Number of layers of the default configuration."""
    for key in ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "layers", "decoder_layers"):
        value = vars(config).get(key)
        if isinstance(value, int):
            return value
    return 0


def _layers_kept(config: PretrainedConfig) -> list[int]:
    """Which layers stay: the first of each kind that lists with one entry a layer tell apart, and two at least."""
    depth = _depth(config)
    told = [
        value
        for key, value in sorted(vars(config).items())
        if isinstance(value, (list, tuple)) and len(value) == depth > 0 and not key.startswith("_")
    ]
    seen: dict[str, int] = {}
    for i in range(depth):
        seen.setdefault(repr([value[i] for value in told if not isinstance(value[i], float)]), i)
    kept = sorted(seen.values())[:6]
    for i in range(depth):
        if len(kept) < LAYERS and i not in kept:
            kept = sorted([*kept, i])
    return kept


def _divisor(config: PretrainedConfig) -> int:
    widths = [
        getattr(part, key)
        for part in configs_of(config)
        for key in ("hidden_size", "d_model", "embed_dim")
        if isinstance(vars(part).get(key), int)
    ]
    return 16 if widths and max(widths) >= 2048 and all(width % 16 == 0 for width in widths) else 8


def configs_of(config: PretrainedConfig) -> Iterator[PretrainedConfig]:
    """A configuration and all those in it."""
    yield config
    for value in vars(config).values():
        if isinstance(value, PretrainedConfig):
            yield from configs_of(value)


def tiny_config(model_type: str, plan: str) -> PretrainedConfig:
    """The default configuration of a type, shrunk."""
    kind = CONFIG_MAPPING[model_type]
    given = DEFAULTS.get(model_type, {})
    return kind(**{**given, **changes(kind(**given), plan)})


def build(kind: type[nn.Module], model_type: str, plan: str, attention: str) -> nn.Module:
    """A tiny model of a type with sharpened random weights, the same for every attention function."""
    config = tiny_config(model_type, plan)
    config._attn_implementation = attention
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = kind(config).eval()
    sharpen(module)
    return module


def sharpen(module: nn.Module, seed: int = 7) -> None:
    """Draw every weight anew: matrices with deviation 0.3 at a width of 64 and less where wider, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            norm = "norm" in type(part).__name__.lower()
            for name, weight in part.named_parameters(recurse=False):
                if weight.numel() == 0:
                    continue
                if weight.ndim > 1:
                    inputs = weight[0].numel()
                    weight.normal_(0.0, 0.3 * min(1.0, (HIDDEN / inputs) ** 0.5), generator=generator)
                else:
                    weight.normal_(1.0 if norm and name == "weight" else 0.0, 0.1, generator=generator)
