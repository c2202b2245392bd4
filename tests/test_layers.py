"""The layers of the package: imports go downward only, transformers stays in `models`, torch out of records and reports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "attnprobe"

LAYERS = [
    {"errors", "leaving"},
    {"records", "registry"},
    {"attention", "stream"},
    {"models", "text", "data"},
    {"heads", "probes"},
    {"checkpoint", "planning"},
    {"provenance"},
    {"sharding"},
    {"study"},
    {"report", "engines"},
    {"commands"},
    {"cli"},
]
"""From the bottom up. A module may import from its own place and from below."""

REPORT_MAY = {"report", "records", "registry", "errors"}
"""A saved study renders where torch is absent, so `report` knows nothing of what computes it."""

WITHIN = {("models", "text")}
"""Neighbours on one level where the first may import the second: a model's tokens are aligned with words in one way."""


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py"))


def imports_of(source, module=""):
    """Dotted names a source imports, those inside functions included, those for type checkers only left out."""
    tree = ast.parse(source)
    skipped = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for statement in branch.body
        for node in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join([*module.split(".")[: -node.level], *([base] if base else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def place_of(path):
    """Top name below the package: `attnprobe/models/load.py` is in `models`."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0] if parts[0] != "__init__" else ""


def level_of(place):
    [level] = [i for i, names in enumerate(LAYERS) if place in names]
    return level


def wrong_imports(place, names):
    """Those of `names` that a module of that place may not import."""
    for name in names:
        top, _, rest = name.partition(".")
        if top == "transformers" and place != "models":
            yield f"{place} imports {name}: only models may"
        if top == "torch" and place in ("report", "records", "registry", "errors"):
            yield f"{place} imports {name}: torch may be absent there"
        if top != "attnprobe" or not rest:
            continue
        other = rest.split(".")[0]
        if other == "__version__" or other == place or place in ("", "__main__"):
            continue
        if place == "report" and other not in REPORT_MAY:
            yield f"report imports {name}: only {sorted(REPORT_MAY)} may be"
        same_level = level_of(other) == level_of(place) and (place, other) not in WITHIN
        if level_of(other) > level_of(place) or same_level:
            yield f"{place} imports {name}: imports go downward only"


def test_every_module_has_its_place():
    places = {place_of(path) for path in modules()} - {"", "__main__"}
    assert places == set().union(*LAYERS) & places
    assert {"errors", "records", "attention", "models", "text", "heads", "study"} <= places


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_downward_only(path):
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert not list(wrong_imports(place_of(path), imports_of(path.read_text(), module)))


@pytest.mark.parametrize(
    ("place", "source"),
    [
        ("records", "import attnprobe.models.load"),
        ("errors", "from attnprobe import records"),
        ("attention", "from attnprobe.models.load import load"),
        ("models", "def f():\n    from attnprobe.heads import metrics"),
        ("heads", "import transformers"),
        ("study", "from attnprobe.report.page import write_report"),
        ("engines", "from attnprobe.report import page"),
        ("report", "from attnprobe.models.load import load"),
        ("report", "import attnprobe.attention"),
        ("report", "import torch.nn"),
        ("records", "from torch import Tensor"),
        ("text", "from attnprobe.models.load import load"),
    ],
)
def test_the_check_can_fail(place, source):
    assert list(wrong_imports(place, imports_of(source)))


def test_the_check_reads_relative_imports():
    assert "attnprobe.models.load" in list(imports_of("from .load import load", "attnprobe.models.capture"))
    assert "attnprobe.heads" in list(imports_of("from ..heads import metrics", "attnprobe.models.capture"))


def test_imports_for_type_checkers_do_not_count():
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"
    assert "torch" not in list(imports_of(source))


def loaded_after(statement):
    """Names of the modules that a fresh interpreter has loaded after a statement."""
    code = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr == ""
    return set(done.stdout.split())


WITHOUT_TORCH = ["import attnprobe", "import attnprobe.records, attnprobe.registry, attnprobe.errors"]


@pytest.mark.parametrize("statement", WITHOUT_TORCH)
def test_torch_and_transformers_are_not_loaded(statement):
    loaded = loaded_after(statement)
    assert not {"torch", "transformers", "xarray", "matplotlib"} & loaded


def test_the_report_does_not_load_torch():
    names = [f"attnprobe.report.{path.stem}" for path in (PACKAGE / "report").glob("*.py") if path.stem != "__init__"]
    loaded = loaded_after("import " + ", ".join(["attnprobe.report", *names]))
    assert not {"torch", "transformers"} & loaded
    assert set(names) <= loaded


@pytest.mark.parametrize("package", ["attention", "text"])
def test_mathematics_and_text_do_without_transformers(package):
    names = [f"attnprobe.{package}.{path.stem}" for path in (PACKAGE / package).glob("*.py") if path.stem != "__init__"]
    loaded = loaded_after("import " + ", ".join(names))
    assert "transformers" not in loaded
    assert ("torch" in loaded) == (package == "attention")


def test_models_load_without_transformers():
    """Half of a command's start-up time, and a capture that is read from disk needs none of it."""
    names = [f"attnprobe.models.{path.stem}" for path in (PACKAGE / "models").glob("*.py") if path.stem != "__init__"]
    assert "transformers" not in loaded_after("import " + ", ".join(names))


def test_such_loading_would_be_seen():
    """The twin of the tests above: where the thing is imported, it is found."""
    assert "torch" in loaded_after("import attnprobe.attention")
    assert "transformers" in loaded_after("import transformers")
