"""The only package that imports transformers: loading, capture, verification and intervention."""

from importlib import import_module
from typing import Any

_HOME = {
    "attention_of": "attnprobe.models.modules",
    "encoder_block_of": "attnprobe.models.modules",
    "load_capture": "attnprobe.models.saved",
    "estimate_bytes": "attnprobe.models.budget",
    "ablating": "attnprobe.models.intervene",
    "mean_contexts": "attnprobe.models.intervene",
    "replacing_patterns": "attnprobe.models.intervene",
    "zeroing_values": "attnprobe.models.intervene",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'attnprobe.models' has no attribute {name!r}")
