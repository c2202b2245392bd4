"""The examples in the docstrings run, and what is public says what it does."""

import ast
import doctest
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import attnprobe.models

MODULES = [m.name for m in pkgutil.iter_modules(attnprobe.models.__path__, "attnprobe.models.")]
SHOWN_ELSEWHERE = {"zeroing_values", "replacing_patterns", "mean_contexts", "estimate_bytes"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_have_docstrings(name):
    module = importlib.import_module(name)
    assert module.__doc__
    for entry, value in vars(module).items():
        own = getattr(value, "__module__", None) == name and (inspect.isfunction(value) or inspect.isclass(value))
        if own and not entry.startswith("_"):
            assert inspect.getdoc(value), f"{name}.{entry}"


def test_the_public_ones_have_examples():
    for name in attnprobe.models.__all__:
        assert ">>>" in getattr(attnprobe.models, name).__doc__ or name in SHOWN_ELSEWHERE, name


@pytest.mark.parametrize(
    "path", sorted(Path(attnprobe.models.__file__).parent.glob("*.py")), ids=lambda path: path.stem
)
def test_sizes(path):
    """Budgets of the style guide: modules of 300 lines, functions of 40, docstrings not counted."""
    source = path.read_text()
    assert len(source.splitlines()) <= 300
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert lines <= 40, f"{path.name}:{node.lineno} {node.name} has {lines} lines"
