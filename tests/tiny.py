"""Tiny models out of the real configuration classes, their weights sharpened, and a byte-level tokenizer, all built in memory.

At the usual 0.02 attention is uniform, and swapped q and k or a wrong scale stay under 1e-2; at 0.3 a mistake shows. Sizes
are different primes where the family lets them be, so that a swapped axis cannot fit by chance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from attnprobe.models.load import Model, load

HEADS, HEAD_DIM, LAYERS, VOCABULARY = 3, 10, 2, 263
HIDDEN, INNER, POSITIONS = HEADS * HEAD_DIM, 37, 101
SPECIALS = ("<pad>", "<s>", "</s>", "<unk>", "<mask>", "<one>", "<two>")
"""Seven special tokens, then the 256 bytes."""

_PLAIN = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TWO_KEY_HEADS = {**_PLAIN, "hidden_size": 4 * HEAD_DIM, "num_attention_heads": 4, "num_key_value_heads": 2}
_TWO_STACKS = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": INNER,
    "decoder_ffn_dim": INNER,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}


@dataclass(frozen=True)
class Tiny:
    """How to build one family small."""

    config: str
    """Name of its configuration class."""
    model: str
    """Name of the class of the bare model."""
    settings: Mapping[str, Any] = field(default_factory=lambda: _PLAIN)
    eager_only: bool = False
    """Whether the family refuses sdpa."""
    on_interface: bool = True
    """Whether it asks transformers for its attention function."""
    causal: bool = False
    reads: str = "text"
    """text, image or sound."""


def _plain(**changes: Any) -> dict[str, Any]:
    return {**_PLAIN, **changes}


def _grouped(**changes: Any) -> dict[str, Any]:
    return {**_TWO_KEY_HEADS, "head_dim": HEAD_DIM, **changes}


_GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": HEADS,
    "n_inner": INNER,
    "n_positions": POSITIONS,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_T5 = {
    "vocab_size": VOCABULARY,
    "d_model": HIDDEN,
    "d_kv": HEAD_DIM,
    "d_ff": INNER,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": HEADS,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 2,
}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}

TINY: dict[str, Tiny] = {
    "bert": Tiny("BertConfig", "BertModel"),
    "bert-decoder": Tiny("BertConfig", "BertModel", _plain(is_decoder=True), causal=True),
    "roberta": Tiny("RobertaConfig", "RobertaModel", _plain(pad_token_id=1, bos_token_id=0)),
    "camembert": Tiny("CamembertConfig", "CamembertModel", _plain(pad_token_id=1, bos_token_id=0)),
    "xlm-roberta": Tiny("XLMRobertaConfig", "XLMRobertaModel", _plain(pad_token_id=1, bos_token_id=0)),
    "electra": Tiny("ElectraConfig", "ElectraModel", _plain(embedding_size=23)),
    "albert": Tiny("AlbertConfig", "AlbertModel", _plain(embedding_size=23)),
    "distilbert": Tiny(
        "DistilBertConfig",
        "DistilBertModel",
        {
            "vocab_size": VOCABULARY,
            "dim": HIDDEN,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": INNER,
            "max_position_embeddings": POSITIONS,
            "pad_token_id": 0,
        },
    ),
    "modernbert": Tiny(
        "ModernBertConfig", "ModernBertModel", _plain(cls_token_id=1, sep_token_id=2, local_attention=6)
    ),
    "gpt2": Tiny("GPT2Config", "GPT2Model", _GPT2, causal=True),
    "gpt-neox": Tiny("GPTNeoXConfig", "GPTNeoXModel", causal=True),
    "opt": Tiny(
        "OPTConfig",
        "OPTModel",
        _plain(ffn_dim=INNER, word_embed_proj_dim=HIDDEN, do_layer_norm_before=True),
        causal=True,
    ),
    "llama": Tiny("LlamaConfig", "LlamaModel", _grouped(), causal=True),
    "mistral": Tiny("MistralConfig", "MistralModel", _grouped(sliding_window=5), causal=True),
    "qwen2": Tiny("Qwen2Config", "Qwen2Model", _grouped(), causal=True),
    "qwen3": Tiny("Qwen3Config", "Qwen3Model", _grouped(), causal=True),
    "gemma2": Tiny(
        "Gemma2Config", "Gemma2Model", _grouped(query_pre_attn_scalar=17, **_ALTERNATING), eager_only=True, causal=True
    ),
    "gpt-oss": Tiny(
        "GptOssConfig",
        "GptOssModel",
        _grouped(num_local_experts=3, num_experts_per_tok=2, intermediate_size=48, **_ALTERNATING),
        eager_only=True,
        causal=True,
    ),
    "t5": Tiny("T5Config", "T5Model", _T5),
    "bart": Tiny("BartConfig", "BartModel", _TWO_STACKS),
    "marian": Tiny("MarianConfig", "MarianModel", _TWO_STACKS),
    "whisper": Tiny(
        "WhisperConfig",
        "WhisperModel",
        {
            **{key: value for key, value in _TWO_STACKS.items() if key != "max_position_embeddings"},
            "num_mel_bins": 7,
            "max_source_positions": 11,
            "max_target_positions": 29,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        reads="sound",
    ),
    "vit": Tiny(
        "ViTConfig",
        "ViTModel",
        {
            "hidden_size": HIDDEN,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "intermediate_size": INNER,
            "image_size": 14,
            "patch_size": 7,
            "num_channels": 3,
        },
        reads="image",
    ),
    "mpnet": Tiny("MPNetConfig", "MPNetModel", _plain(pad_token_id=1, bos_token_id=0), on_interface=False),
    "deberta-v2": Tiny(
        "DebertaV2Config",
        "DebertaV2Model",
        _plain(relative_attention=True, pos_att_type=["c2p", "p2c"], type_vocab_size=0),
        on_interface=False,
    ),
    "falcon": Tiny("FalconConfig", "FalconModel", _plain(), on_interface=False, causal=True),
    "bloom": Tiny(
        "BloomConfig",
        "BloomModel",
        {"vocab_size": VOCABULARY, "hidden_size": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "pad_token_id": 0},
        on_interface=False,
        causal=True,
    ),
    "deberta": Tiny(
        "DebertaConfig",
        "DebertaModel",
        _plain(relative_attention=True, pos_att_type=["c2p", "p2c"], type_vocab_size=0),
        on_interface=False,
    ),
    "gpt2-upcast": Tiny(
        "GPT2Config",
        "GPT2Model",
        {**_GPT2, "reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
        on_interface=False,
        causal=True,
    ),
    "gpt-neo": Tiny(
        "GPTNeoConfig",
        "GPTNeoModel",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "intermediate_size": INNER,
            "max_position_embeddings": POSITIONS,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 5,
        },
        on_interface=False,
        causal=True,
    ),
    "megatron-bert": Tiny("MegatronBertConfig", "MegatronBertModel", on_interface=False),
    "rembert": Tiny("RemBertConfig", "RemBertModel", _plain(input_embedding_size=23), on_interface=False),
    "roformer": Tiny("RoFormerConfig", "RoFormerModel", _plain(embedding_size=23), on_interface=False),
    "xlnet": Tiny(
        "XLNetConfig",
        "XLNetModel",
        {"vocab_size": VOCABULARY, "d_model": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "d_inner": INNER},
        on_interface=False,
    ),
    "mpt": Tiny(
        "MptConfig",
        "MptModel",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": LAYERS, "n_heads": 4, "max_seq_len": POSITIONS},
        on_interface=False,
        causal=True,
    ),
}
"""Families by name. Those with `on_interface` are captured without a row of their own."""


def build(
    family: str, *, attn: str = "eager", head: str | None = None, seed: int = 7, std: float = 0.3, **changes: Any
) -> Any:
    """A sharpened module of a family in evaluation mode; `head` is the class of a model with a task head."""
    tiny = TINY[family]
    config = getattr(transformers, tiny.config)(**{**tiny.settings, **changes})
    config._attn_implementation = attn
    module = getattr(transformers, head or tiny.model)(config)
    return sharpen(module, std=std, seed=seed).eval()


def sharpen(module: Any, *, std: float = 0.3, seed: int = 7) -> Any:
    """Draw every weight anew: matrices with deviation `std`, biases with a third of it, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for part in module.modules():
            norm = "norm" in type(part).__name__.lower()
            for name, weight in part.named_parameters(recurse=False):
                if weight.ndim > 1:
                    weight.normal_(0.0, std, generator=generator)
                else:
                    weight.normal_(1.0 if norm and name == "weight" else 0.0, std / 3, generator=generator)
    return module


def tiny_model(family: str, *, tokenizer: Any = None, **options: Any) -> Model:
    """A tiny `Model` of a family, as `load((module, tokenizer))` gives it; for its own tokenizer see `byte_tokenizer`."""
    return load((build(family, **options), tokenizer))


def byte_tokenizer(*, specials: bool = True, padding_side: str = "right", max_length: int = POSITIONS) -> Any:
    """A fast tokenizer with one token per byte; `specials` puts <s> and </s> around a text, as BERT does with [CLS] and [SEP]."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIALS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if specials:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1", special_tokens=[("<s>", 1), ("</s>", 2)]
        )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        cls_token="<s>" if specials else None,
        sep_token="</s>" if specials else None,
        mask_token="<mask>",
        padding_side=padding_side,
        model_max_length=max_length,
    )


def inputs_for(
    family: str, *, padding: str = "right", seed: int = 3, lengths: tuple[int, ...] = (11, 5, 2)
) -> dict[str, Any]:
    """Random model inputs of a family by name: a batch of `lengths`, padded `right`, `left` or not at all (`none`: all the longest)."""
    tiny, generator = TINY[family], torch.Generator().manual_seed(seed)
    if tiny.reads == "image":
        return {"pixel_values": torch.randn(len(lengths), 3, 14, 14, generator=generator)}
    if tiny.reads == "sound":
        sound = torch.randn(len(lengths), 7, 22, generator=generator)
        return {"input_features": sound, "decoder_input_ids": _ids(generator, len(lengths), 5)}
    longest = max(lengths)
    ids = _ids(generator, len(lengths), longest)
    if padding == "none":
        given = {"input_ids": ids}
    else:
        places = torch.arange(longest)[None, :]
        n = torch.tensor(lengths)[:, None]
        mask = (places < n) if padding == "right" else (places >= longest - n)
        pad = TINY[family].settings.get("pad_token_id", 0)
        given = {"input_ids": ids.masked_fill(~mask, pad), "attention_mask": mask.long()}
    if "decoder_start_token_id" in tiny.settings:
        given["decoder_input_ids"] = _ids(generator, len(lengths), 7)
    return given


def _ids(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Token ids that are no special tokens."""
    return torch.randint(len(SPECIALS), VOCABULARY, shape, generator=generator)
