"""What the rules of `_tiny_configs.py` cannot know of single types: keys that hang together, defaults that do not build, classes."""

from __future__ import annotations

from typing import Any

KEEP = object()
"""Leave a key at its default whatever the rules say."""

_SERIES = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2], "num_time_features": 2}
_VQ = {"vocabulary_map": {"<image>": 251, "IMGIMGAA": 240, "IMGIMGAB": 241}}
_DEPTH = {
    "backbone_config": {
        "model_type": "dinov2",
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "image_size": 56,
        "patch_size": 14,
        "out_indices": [1, 2, 3, 4],
        "reshape_hidden_states": False,
    },
    "reassemble_hidden_size": 64,
    "neck_hidden_sizes": [8, 16, 32, 32],
}
_HIERA = {
    "hidden_size": 16,
    "num_attention_heads": 1,
    "embed_dim_per_stage": [16, 32, 64, 128],
    "blocks_per_stage": [1, 2, 2, 1],
    "global_attention_blocks": [3],
    "image_size": [128, 128],
    "window_size_per_stage": [4, 4, 4, 4],
    "window_positional_embedding_background_size": [4, 4],
}
_DETR = {
    "backbone_config": {
        "model_type": "hgnet_v2",
        "stem_channels": [3, 8, 8],
        "stage_in_channels": [8, 8, 8, 8],
        "stage_mid_channels": [8, 8, 8, 8],
        "stage_out_channels": [8, 8, 8, 8],
        "stage_num_blocks": [1, 1, 1, 1],
        "stage_numb_of_layers": [1, 1, 1, 1],
        "hidden_sizes": [8, 8, 8, 8],
        "embedding_size": 8,
        "out_features": ["stage2", "stage3", "stage4"],
    },
    "encoder_in_channels": [8, 8, 8],
    "decoder_in_channels": [64, 64, 64],
    "encode_proj_layers": [2],
    "encoder_layers": 1,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "apertus1p5": {"image_token_offset": 256, "audio_token_offset": 512},
    "apertus1p5_text": {"vocab_size": 1024},
    "autoformer": _SERIES,
    "informer": _SERIES,
    "time_series_transformer": _SERIES,
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 16, "attn_layer_indices": [1]},
    "bit": {"num_groups": 4},
    "chameleon": _VQ,
    "emu3": _VQ,
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
        },
    },
    "dory": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "n_input_layers": 1,
        "n_recurrent_layers": 1,
        "n_output_layers": 1,
    },
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "esm": {"vocab_size": 64, "pad_token_id": 1, "mask_token_id": 32},
    "esmfold2": {"num_spatial_rope_pairs_per_axis": 1, "num_uid_rope_pairs": 2},
    "diffusion_gemma_text": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [64, 32],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]},
    },
    "gemma3n_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
        "intermediate_size": [64] * 4,
    },
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16},
    "hunyuan_vl_text": {"head_dim": 16},
    "ministral": {"head_dim": 16},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
    "hy_v4_vl_text": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}},
    "maskformer": {
        "backbone_config": {
            "model_type": "swin",
            "embed_dim": 24,
            "depths": [1, 1, 1, 1],
            "num_heads": [3, 3, 3, 3],
            "image_size": 64,
            "window_size": 4,
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        }
    },
    "mobilevit": {"hidden_sizes": [16, 16, 16]},
    "molmo2_adapter": {"vision_feature_layer": [1, 0]},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "t5gemma2_text": {"dropout_rate": 0.0},
    "t5gemma2_decoder": {"dropout_rate": 0.0},
    "upernet": {
        "backbone_config": {
            "model_type": "resnet",
            "embedding_size": 8,
            "hidden_sizes": [8, 8, 8, 8],
            "depths": [1, 1, 1, 1],
            "layer_type": "basic",
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        }
    },
    "zamba": {
        "num_hidden_layers": 3,
        "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        "attention_hidden_size": 128,
        "attention_head_dim": 32,
    },
    "qwen3_omni_moe_talker_text": {"shared_expert_intermediate_size": 64},
    "moonshine_streaming": {"num_key_value_heads": 4},
    "granitemoehybrid": {
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "num_hidden_layers": 2,
    },
    "jamba": {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "step3p5": {"sliding_window": 5},
    "align": {"projection_dim": KEEP},
    "blt": {"encoder_hash_byte_group_vocab": 500},
    "blip-2": {"image_token_index": 250, "num_query_tokens": 4},
    "instructblip": {"image_token_index": 250, "num_query_tokens": 4},
    "instructblipvideo": {"video_token_index": 250, "num_query_tokens": 4},
    "clvp_encoder": {"num_attention_heads": 2},
    "clvp_decoder": {"num_attention_heads": 2},
    "chmv2": {
        "backbone_config": {
            "num_hidden_layers": 4,
            "out_indices": [1, 2, 3, 4],
            "out_features": ["stage1", "stage2", "stage3", "stage4"],
        },
        "reassemble_hidden_size": 64,
        "neck_hidden_sizes": [8, 16, 32, 32],
    },
    "depth_anything": _DEPTH,
    "prompt_depth_anything": _DEPTH,
    "deepseek_v2": {"num_experts_per_tok": 2},
    "hiera": {"image_size": [64, 64]},
    "kosmos-2": {"latent_query_num": 4},
    "kosmos-2.5": {"latent_query_num": 4},
    "layoutlmv3": {"coordinate_size": 12, "shape_size": 8},
    "led": {"attention_window": [8, 8]},
    "longformer": {"attention_window": [8, 8]},
    "llama4_vision_model": {
        "intermediate_size": 256,
        "vision_output_dim": 64,
        "projector_input_dim": 64,
        "projector_output_dim": 64,
    },
    "mllama_vision_model": {"max_num_tiles": 4, "supported_aspect_ratios": KEEP},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "paddleocr_vl_text": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
    },
    "pix2struct_text_model": {"initializer_range": 0.02},
    "qwen3_asr_encoder": {"n_window": 36},
    "sam2_hiera_det_model": _HIERA,
    "shieldgemma2": {"yes_token_index": 5, "no_token_index": 6},
    "seggpt": {
        "num_hidden_layers": 4,
        "merge_index": 0,
        "intermediate_hidden_state_indices": [1, 2, 3],
        "image_size": [128, 64],
    },
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "d_fine": _DETR,
    "deimv2": _DETR,
    "pp_doclayout_v2": _DETR,
    "pp_doclayout_v3": _DETR,
    "pp_doclayout_v4": _DETR,
    "rt_detr": _DETR,
    "rt_detr_v2": _DETR,
    "xmod": {"default_language": "en_XX"},
    "lfm2_moe": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
}

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma4_assistant": {"text_config": {"model_type": "gemma4_text", "hidden_size_per_layer_input": 0}},
}
"""What a configuration needs where it refuses its own defaults."""

CLASSES: dict[str, str] = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
    "musicgen_decoder": "MusicgenModel",
    "musicgen_melody_decoder": "MusicgenMelodyModel",
    "speecht5": "SpeechT5ForSpeechToText",
}
"""Where the class that the auto classes name does not take the type's configuration."""

INPUTS: dict[str, tuple[str, ...]] = {
    "blip_2_qformer": ("encoder_hidden_states",),
    "dia_decoder": ("encoder_hidden_states",),
    "t5gemma2_decoder": ("encoder_hidden_states",),
    "videomt": ("pixel_values_videos",),
    "videoprism_vision_model": ("pixel_values_videos",),
    "videoprism": ("pixel_values_videos",),
    "vjepa2": ("pixel_values_videos",),
    "decision_transformer": ("states", "actions", "rewards", "returns_to_go", "timesteps"),
    "lxmert": ("visual_feats", "visual_pos"),
    "kosmos-2": ("image_embeds_position_mask",),
    "kosmos-2.5": ("image_embeds_position_mask",),
    "qwen2_5_omni_audio_encoder": ("feature_lens",),
    "qwen3_omni_moe_audio_encoder": ("feature_lens",),
    "sam": ("input_points",),
    "sam2": ("input_points",),
    "sam_hq": ("input_points",),
    "minicpm_ocr_vision": ("target_sizes",),
    "minicpmv4_6_vision": ("target_sizes",),
    "minicpmv4_7_vision": ("target_sizes",),
    "tvp": ("input_ids", "pixel_values", "attention_mask"),
}
"""Inputs that a forward calls optional and needs all the same."""

PLACEHOLDERS = {"blip-2": 4, "instructblip": 4, "instructblipvideo": 16, "kosmos-2": 4, "kosmos-2.5": 4}
"""How many tokens of a text stand for its image, where no error tells."""
