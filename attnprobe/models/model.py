"""`Model`: a pretrained model with its tokenizer, and what its configuration says of it."""

from __future__ import annotations

import hashlib
import inspect
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attnprobe.models.sources import file_sha256

_UNLIMITED = 10**9
"""Tokenizers without a limit of their own name one beyond this."""


@dataclass(frozen=True)
class Model:
    """A pretrained model in evaluation mode with its tokenizer: what every analysis takes."""

    module: nn.Module = field(repr=False)
    tokenizer: Any | None = field(repr=False)
    """None where the checkpoint has none; token ids can still be captured."""
    name: str
    head: str | None = None
    source: Path | None = None
    """Folder the weights were read from; None for a model handed over in memory."""
    no_tokenizer: str = ""
    """Why there is no tokenizer; empty where there is one."""

    @property
    def config(self) -> Any:
        return self.module.config

    @property
    def text_config(self) -> Any:
        """The part of the configuration that is about text; all of it for most families, and where there are several."""
        try:
            return self.config.get_text_config() if hasattr(self.config, "get_text_config") else self.config
        except ValueError:  # two stacks, each with a configuration of text (MusicGen)
            return self.config

    @property
    def family(self) -> str:
        """`config.model_type`, such as bert or gpt2."""
        return str(getattr(self.config, "model_type", "") or type(self.module).__name__)

    @property
    def attn_implementation(self) -> str:
        """The attention function in force now, read back from the configuration."""
        return str(getattr(self.config, "_attn_implementation", None) or "eager")

    @property
    def dtype(self) -> str:
        return str(next(self.module.parameters()).dtype).removeprefix("torch.")

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def backbone(self) -> nn.Module:
        """The model without its task head: attention is the same, the vocabulary projection is saved.

        All of it where what the library calls the base is only a part that does not take the model's main input (DINOv3).
        """
        base = getattr(self.module, "base_model", self.module)
        main = getattr(self.module, "main_input_name", "input_ids")
        taken = inspect.signature(base.forward).parameters if isinstance(base, nn.Module) else ()
        return base if main in taken else self.module

    @cached_property
    def forward_parameters(self) -> tuple[inspect.Parameter, ...]:
        """What the backbone's forward takes; reading a signature costs as much as a small layer."""
        return tuple(inspect.signature(self.backbone.forward).parameters.values())

    @cached_property
    def max_length(self) -> int | None:
        """Longest sequence in tokens, special tokens included; None where the model sets no limit."""
        config = self.text_config
        positions = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
        limits = (
            [int(positions) - self.first_position] if positions and positions > 0 else []
        )  # XLNet says -1: no limit
        told = getattr(self.tokenizer, "model_max_length", None)
        if told is not None and told < _UNLIMITED:
            limits.append(int(told))
        return min(limits) if limits else None

    @property
    def longest_text(self) -> int | None:
        """Most tokens of a text that every stack can read: one fewer than `max_length` where a decoder has its start token in front."""
        return self.max_length if self.max_length is None or self.decoder_start is None else self.max_length - 1

    @property
    def decoder_start(self) -> int | None:
        """The token that a decoder beside an encoder starts from; None for other models."""
        if not getattr(self.config, "is_encoder_decoder", False):
            return None
        told = (getattr(self.config, name, None) for name in ("decoder_start_token_id", "pad_token_id"))
        return next((int(token) for token in told if token is not None), 0)

    @property
    def first_position(self) -> int:
        """Position of the first token. RoBERTa and its kin count on from a padding position, whose row their table keeps."""
        for name, module in self.module.named_modules():
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                return 0 if module.padding_idx is None else module.padding_idx + 1
        return 0

    @cached_property
    def sha256(self) -> str:
        """Hash of the weights: of the safetensors file where there is exactly one, else of all parameters by name."""
        files = sorted(self.source.glob("*.safetensors")) if self.source else []
        return file_sha256(files[0]) if len(files) == 1 else _weights_sha256(self.module)


def _weights_sha256(module: nn.Module) -> str:
    digest = hashlib.sha256()
    for key, weight in sorted(module.state_dict().items()):
        if not isinstance(weight, torch.Tensor) or weight.is_meta:
            continue
        digest.update(json.dumps([key, str(weight.dtype), list(weight.shape)]).encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
