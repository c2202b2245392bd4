"""Which class a model type builds."""

from __future__ import annotations

import importlib
import pkgutil

import transformers
from torch import nn
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto import modeling_auto

from families.exceptions import CLASSES


def registered() -> list[str]:
    """All model types, in alphabetical order."""
    return sorted(CONFIG_MAPPING.keys())


def model_class(model_type: str) -> type[nn.Module]:
    """The class of a type's bare model: the one that AutoModel gives, one of a task, or one in its modeling files."""
    names = [CLASSES.get(model_type), modeling_auto.MODEL_MAPPING_NAMES.get(model_type)]
    names += [
        mapping[model_type]
        for key, mapping in sorted(vars(modeling_auto).items())
        if key.endswith("_MAPPING_NAMES")
        and hasattr(mapping, "get")
        and model_type in mapping
        and "TOKENIZER" not in key
    ]
    for name in names:
        for one in (name,) if isinstance(name, str) else tuple(name or ()):
            found = getattr(transformers, one, None)
            if isinstance(found, type) and issubclass(found, nn.Module):
                return found
    return _in_modeling_files(CONFIG_MAPPING[model_type])


def _in_modeling_files(config: type[PretrainedConfig]) -> type[nn.Module]:
    """A class with that configuration in its package: bare models before those of tasks, short names before long ones."""
    found = []
    package = importlib.import_module(config.__module__.rpartition(".")[0])
    for info in pkgutil.iter_modules(package.__path__):
        if info.name.startswith("modeling_"):
            module = importlib.import_module(f"{package.__name__}.{info.name}")
            for name, kind in vars(module).items():
                if getattr(kind, "config_class", None) is config and "forward" in vars(kind):
                    found.append((name.count("For"), not name.endswith("Model"), len(name), name, kind))
    if not found:
        raise LookupError("no model class of its own: part of another type")
    return min(found, key=lambda entry: entry[:4])[-1]
