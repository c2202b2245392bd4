"""attnprobe: what each attention head of a pretrained transformer does, with evidence.

Names are imported on first use, so that importing the package does no work.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "load": "attnprobe.models.load",
    "Model": "attnprobe.models.load",
    "capture": "attnprobe.models.capture",
    "record": "attnprobe.models.capture",
    "verify": "attnprobe.models.verify",
    "read_conllu": "attnprobe.text.conllu",
    "read_text": "attnprobe.text.plain",
    "run": "attnprobe.study",
    "open_study": "attnprobe.records",
    "Study": "attnprobe.records",
    "Sentence": "attnprobe.records",
    "write_report": "attnprobe.report.page",
    "view": "attnprobe.report.view",
    "to_bertviz": "attnprobe.report.bertviz",
    "head_metric": "attnprobe.registry",
    "relation": "attnprobe.registry",
    "probe_task": "attnprobe.registry",
}
_MODULES = {"figures": "attnprobe.report.figures", "data": "attnprobe.data", "attention": "attnprobe.attention"}

__all__ = [*sorted(_HOME), *sorted(_MODULES), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(_MODULES[name])
    raise AttributeError(f"module 'attnprobe' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
