"""The only package that imports transformers: loading, capture, verification and intervention."""

from importlib import import_module
from typing import Any

_HOME = {"attention_of": "attnprobe.models.modules", "estimate_bytes": "attnprobe.models.capture"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'attnprobe.models' has no attribute {name!r}")
