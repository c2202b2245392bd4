"""The examples in the docstrings run, and every public function has one."""

import doctest
import importlib
import inspect
import pkgutil
import types

import pytest

import attnprobe.attention

MODULES = [m.name for m in pkgutil.iter_modules(attnprobe.attention.__path__, "attnprobe.attention.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    results = doctest.testmod(importlib.import_module(name))
    assert results.failed == 0


def test_every_public_function_has_a_docstring_and_all_but_the_plainest_an_example():
    plain = {"visible_of", "inputs_as", "context_of", "recompute", "replay"}  # shown by the tests and the notebook
    for name in attnprobe.attention.__all__:
        entry = getattr(attnprobe.attention, name)
        if not inspect.isfunction(entry):
            continue
        assert entry.__doc__, name
        assert ">>>" in entry.__doc__ or name in plain, name


def test_no_public_name_is_also_a_module():
    for name in attnprobe.attention.__all__:
        assert not isinstance(getattr(attnprobe.attention, name), types.ModuleType), name
        assert f"attnprobe.attention.{name}" not in MODULES, name
