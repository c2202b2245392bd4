"""Linear probes on what every head holds and emits, with the controls without which a probe proves nothing."""

from importlib import import_module
from typing import Any

_HOME = {
    "probe": "attnprobe.probes.run",
    "choose_tasks": "attnprobe.probes.tasks",
    "dependency_probe": "attnprobe.probes.dependency",
    "head_profiles": "attnprobe.probes.profile",
    "probe_against_use": "attnprobe.probes.use",
    "structural_probe": "attnprobe.probes.structural",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'attnprobe.probes' has no attribute {name!r}")
