"""What an input of a forward pass may look like, by its name: candidates, most usual first.

A batch of two; the second text is shorter and padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

BATCH, LENGTH, SHORT, TARGET, FRAMES = 2, 11, 6, 7, 72


@dataclass
class Ask:
    """What inputs are asked for: the model's configuration, and how many placeholders of another kind a text holds."""

    config: Any
    placeholders: int = 0
    grids: bool = False
    """Whether images come as patches laid flat, with their grids beside them."""
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(3))

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of `keys` that the configuration or one in it has."""
        for part in _parts(self.config):
            for key in keys:
                value = getattr(part, key, None)
                if value is not None and not isinstance(value, bool):
                    return value
        return default

    def of(self, part: str, *keys: str, default: Any = None) -> Any:
        """The first of `keys` in the configuration's vision or audio part."""
        inner = next(
            (
                getattr(self.config, name, None)
                for name in (f"{part}_config", f"{part}_encoder_config")
                if getattr(self.config, name, None) is not None
            ),
            None,
        )
        return Ask(inner).get(*keys, default=default) if inner is not None else self.get(*keys, default=default)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator)

    def ids(self, *shape: int, below: int | None = None) -> Tensor:
        size = below or self.text("vocab_size", default=200)
        size = min(size) if isinstance(size, (list, tuple)) else size
        return torch.randint(min(5, size - 1), max(min(size, 190), 2), shape, generator=self.generator)

    def text(self, *keys: str, default: Any = None) -> Any:
        try:
            text = self.config.get_text_config()
        except (ValueError, AttributeError):  # several, or none
            text = self.config
        for part in (text, *_parts(self.config)):
            for key in keys:
                value = getattr(part, key, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
        return default


def _parts(config: Any) -> Iterator[Any]:
    yield config
    for value in list(vars(config).values()):
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            yield from _parts(value)


def _length(ask: Ask) -> int:
    return LENGTH + ask.placeholders


def _input_ids(ask: Ask) -> list[Any]:
    ids = ask.ids(BATCH, _length(ask))
    if ask.placeholders:
        token = _placeholder(ask)
        ids[:, 1 : 1 + ask.placeholders] = token
    books = ask.get("num_codebooks", "num_channels", "num_quantizers", default=4)
    books = books if isinstance(books, int) else 4
    return [ids, ask.ids(BATCH, LENGTH, books), ask.ids(BATCH * books, LENGTH), ask.ids(BATCH, LENGTH, books + 1)]


_PLACEHOLDER = (
    "image_token_id",
    "image_token_index",
    "audio_token_id",
    "audio_token_index",
    "video_token_id",
    "video_token_index",
    "speech_token_id",
    "protein_token_id",
    "img_context_token_id",
    "media_token_id",
    "media_placeholder_token_id",
)


def _placeholder(ask: Ask) -> int:
    for part in _parts(ask.config):
        for key in _PLACEHOLDER:
            if isinstance(getattr(part, key, None), int):
                return getattr(part, key)
    return 1


def _mask(ask: Ask) -> list[Any]:
    mask = torch.ones(BATCH, _length(ask), dtype=torch.long)
    mask[1, SHORT + ask.placeholders :] = 0
    return [mask]


def _decoder_ids(ask: Ask) -> list[Any]:
    books = ask.get("num_codebooks", "num_channels") if "dia" in str(ask.config.model_type) else None
    return [
        ask.ids(BATCH, TARGET),
        ask.ids(BATCH, TARGET, books or 4),
        ask.ids(BATCH * (ask.get("num_codebooks", default=4)), TARGET),
    ]


def _size(value: Any) -> tuple[int, int]:
    if isinstance(value, dict):
        return value["height"], value["width"]
    return (
        (value[0], value[1])
        if isinstance(value, (list, tuple)) and len(value) > 1
        else (value if isinstance(value, int) else value[0],) * 2
    )


def _patch(ask: Ask) -> int:
    patch = ask.of("vision", "patch_size", "spatial_patch_size", default=16)
    while isinstance(patch, (list, tuple)):
        patch = patch[-1]
    return patch


def _channels(ask: Ask) -> int:
    channels = ask.of(
        "vision", "num_channels", "in_channels", "in_chans", "in_channel", "num_input_channels", default=3
    )
    return channels if isinstance(channels, int) and channels <= 16 else 3


def _forms_of_images(ask: Ask) -> dict[str, Any]:
    """Two images in every shape that models take them: whole, in rows of images, as frames, as patches laid flat."""
    channels, patch = _channels(ask), _patch(ask)
    height, width = _size(ask.of("vision", "image_size", "img_size", "pretrain_image_size", default=64))
    frames = ask.of("vision", "num_frames", "frames_per_clip", "num_frame", default=4)
    temporal = ask.of("vision", "temporal_patch_size", "patch_temporal", default=1)
    image = ask.randn(BATCH, channels, height, width)
    return {
        "image": image,
        "images": image[:, None],
        "video": ask.randn(BATCH, frames, channels, height, width),
        "rows": ask.randn(BATCH, 16, channels * patch * patch),
        "two": ask.randn(BATCH, 2, channels, height, width),
        "flat": ask.randn(BATCH * 16, channels * temporal * patch * patch),
        "patches": ask.randn(BATCH * 16, channels, patch, patch),
        "tiles": ask.randn(BATCH, 1, 4, channels, height, width),
        "strip": ask.randn(1, channels, patch, BATCH * 16 * patch),
        "batch of patches": ask.randn(1, BATCH * 16, channels, patch, patch),
    }


def _pixels(ask: Ask) -> list[Any]:
    forms = _forms_of_images(ask)
    order = ("flat", "patches", "batch of patches", "image", "rows") if ask.grids else tuple(forms)
    return [forms[name] for name in order]


def _videos(ask: Ask) -> list[Any]:
    forms = _forms_of_images(ask)
    return [forms["video"], forms["flat"]]


def _features(ask: Ask) -> list[Any]:
    mel = ask.of(
        "audio",
        "num_mel_bins",
        "input_feat_per_channel",
        "feature_size",
        "n_mels",
        "n_mel_bins",
        "num_features",
        "input_size",
        "input_dim",
        "input_feat_size",
        "feat_dim",
        "mel_dim",
        default=80,
    )
    mel = mel if isinstance(mel, int) else 80
    positions = ask.of("audio", "max_source_positions", default=None)
    frames = 2 * positions if isinstance(positions, int) and positions <= FRAMES else FRAMES
    stack = ask.of("audio", "feature_projection_input_dim", "hidden_size", default=mel)
    wide = mel * ask.of("audio", "num_stacked_frames", default=1)
    twice = 2 * (ask.get("input_dim", default=mel) if isinstance(ask.get("input_dim", default=mel), int) else mel)
    widths = dict.fromkeys((wide, twice, twice // 2, 560))
    return [
        ask.randn(BATCH, mel, frames),
        ask.randn(BATCH, frames, mel),
        *(ask.randn(BATCH, frames, width) for width in widths),
        ask.randn(mel, BATCH * frames),
        ask.randn(BATCH, frames, stack),
        ask.randn(BATCH, 1, frames, mel),
        ask.randn(BATCH, 4, 64, 64),
    ]


def _waves(ask: Ask) -> list[Any]:
    long = ask.randn(BATCH, 3840)
    mel = ask.of("audio", "num_mel_bins", default=80)
    length = ask.of("audio", "max_length", default=FRAMES)
    length = length if isinstance(length, int) and length > 20 else FRAMES
    return [
        long,
        long[:, None],
        ask.randn(BATCH, length, mel),
        ask.randn(BATCH, mel, FRAMES),
        ask.randn(BATCH, 1, 16000),
        ask.randn(BATCH, 16000),
        ask.ids(BATCH, LENGTH),
    ]


def _grid(ask: Ask) -> list[Any]:
    return [torch.tensor([[1, 4, 4]] * BATCH)]


def _boxes(ask: Ask) -> list[Any]:
    corner = torch.randint(0, 40, (BATCH, _length(ask), 2), generator=ask.generator)
    return [torch.cat([corner, corner + 9], -1), torch.cat([corner, corner + 9], -1) / 100]


def _hidden(ask: Ask) -> list[Any]:
    size = ask.get("hidden_size", "d_model", "embed_dim", "n_embd", default=64)
    return [
        _forms_of_images(ask)["flat"],
        ask.randn(BATCH, LENGTH, size),
        ask.randn(BATCH * 16, size),
        ask.randn(BATCH, size, 8, 8),
        ask.randn(BATCH, FRAMES, ask.get("input_dim", "input_size", "num_mel_bins", default=80)),
    ]


def _kinds(ask: Ask) -> list[Any]:
    kinds = torch.zeros(BATCH, _length(ask), dtype=torch.long)
    kinds[:, 1 : 1 + ask.placeholders] = 1
    return [kinds]


def _other_hidden(ask: Ask) -> list[Any]:
    size = ask.get(
        "encoder_hidden_size", "cross_attention_hidden_size", "encoder_width", "hidden_size", "d_model", default=64
    )
    return [ask.randn(BATCH, LENGTH, size)]


def _sizes(ask: Ask) -> list[Any]:
    height, width = _size(ask.of("vision", "image_size", "img_size", default=64))
    return [torch.tensor([[height, width]] * BATCH), torch.tensor([[[4, 4]]] * BATCH)]


def _frame_mask(ask: Ask) -> list[Any]:
    frames = _features(ask)[0].shape[-1]
    mask = torch.ones(BATCH, frames, dtype=torch.long)
    mask[1, frames * 3 // 4 :] = 0
    return [mask, mask.bool(), torch.ones_like(mask)]


def _pixel_mask(ask: Ask) -> list[Any]:
    image = _forms_of_images(ask)["image"]
    return [
        torch.ones(BATCH, *image.shape[-2:], dtype=torch.long),
        torch.ones(BATCH, 16, dtype=torch.long),
        torch.ones(BATCH, 1, *image.shape[-2:], dtype=torch.bool),
    ]


def _series(ask: Ask) -> list[Any]:
    context = ask.get("context_length", default=16)
    lags = ask.get("lags_sequence", default=[0])
    channels = ask.get("num_input_channels", default=1)
    return [ask.randn(BATCH, context + max(lags)), ask.randn(BATCH, context, channels)]


def _series_times(ask: Ask) -> list[Any]:
    context, lags = ask.get("context_length", default=16), ask.get("lags_sequence", default=[0])
    return [ask.randn(BATCH, context + max(lags), ask.get("num_time_features", default=2))]


def _future_times(ask: Ask) -> list[Any]:
    return [ask.randn(BATCH, ask.get("prediction_length", default=4), ask.get("num_time_features", default=2))]


def _prompt_images(ask: Ask) -> list[Any]:
    return [_forms_of_images(ask)["image"]]


FORMS: dict[str, Callable[[Ask], list[Any]]] = {
    "input_ids": _input_ids,
    "attention_mask": _mask,
    "decoder_input_ids": _decoder_ids,
    "pixel_values": _pixels,
    "pixel_values_videos": _videos,
    "input_features": _features,
    "input_values": _waves,
    "image_grid_thw": _grid,
    "grid_thw": _grid,
    "bbox": _boxes,
    "hidden_states": _hidden,
    "mm_token_type_ids": _kinds,
    "encoder_hidden_states": _other_hidden,
    "inputs_embeds": lambda ask: [ask.randn(BATCH, LENGTH, ask.text("hidden_size", default=64))],
    "image_sizes": _sizes,
    "input_features_mask": _frame_mask,
    "feature_attention_mask": _frame_mask,
    "pixel_attention_mask": _pixel_mask,
    "spatial_shapes": lambda ask: [torch.tensor([[4, 4]] * BATCH)],
    "aspect_ratio_ids": lambda ask: [torch.ones(BATCH, 1, dtype=torch.long)],
    "aspect_ratio_mask": lambda ask: [torch.ones(BATCH, 1, ask.get("max_num_tiles", default=4), dtype=torch.long)],
    "qformer_input_ids": _input_ids,
    "image": _prompt_images,
    "prompt_pixel_values": _prompt_images,
    "prompt_masks": _prompt_images,
    "high_res_pixel_values": lambda ask: [ask.randn(BATCH, 3, 64, 64)],
    "past_values": _series,
    "past_time_features": _series_times,
    "past_observed_mask": lambda ask: [torch.ones_like(_series(ask)[0])],
    "future_values": lambda ask: [ask.randn(BATCH, ask.get("prediction_length", default=4))],
    "future_time_features": _future_times,
    "flattened_patches": lambda ask: [ask.randn(BATCH, 16, 2 + 3 * _patch(ask) ** 2).abs()],
    "states": lambda ask: [ask.randn(BATCH, LENGTH, ask.get("state_dim"))],
    "actions": lambda ask: [ask.randn(BATCH, LENGTH, ask.get("act_dim"))],
    "rewards": lambda ask: [ask.randn(BATCH, LENGTH, 1)],
    "returns_to_go": lambda ask: [ask.randn(BATCH, LENGTH, 1)],
    "timesteps": lambda ask: [torch.arange(LENGTH).expand(BATCH, -1)],
    "visual_feats": lambda ask: [ask.randn(BATCH, 5, ask.get("visual_feat_dim"))],
    "visual_pos": lambda ask: [ask.randn(BATCH, 5, 4)],
    "image_embeds_position_mask": lambda ask: [_kinds(ask)[0].bool()],
    "feature_lens": lambda ask: [torch.tensor([FRAMES] * BATCH)],
    "input_points": lambda ask: [torch.full((BATCH, 1, 1, 2), 20.0)],
    "target_sizes": lambda ask: [torch.tensor([[4, 4]] * BATCH)],
    "task_inputs": lambda ask: [ask.ids(BATCH, ask.get("task_seq_len", default=77))],
    "inputs": lambda ask: [ask.randn(BATCH, LENGTH, ask.get("d_model", default=64))],
    "mask": lambda ask: [torch.ones(BATCH, FRAMES, dtype=torch.bool)],
    "context": lambda ask: [ask.randn(BATCH, 16, ask.get("hidden_size", default=64))],
    "pixel_position_ids": lambda ask: [torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(BATCH, -1, -1)],
    "past_values_padding": lambda ask: [torch.zeros_like(_series(ask)[0])],
    "freq": lambda ask: [torch.zeros(BATCH, 1, dtype=torch.long)],
    "merge_sizes": lambda ask: [torch.tensor([2] * BATCH)],
    "latents": lambda ask: [ask.randn(BATCH, ask.get("hidden_size", default=64), 8)],
    "query_embeds": lambda ask: [ask.randn(BATCH, 5, ask.get("hidden_size", default=64))],
}
