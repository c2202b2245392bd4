"""For the reference: examples in docstrings (`>>>`) become code blocks, which Markdown would otherwise take for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)
"""Lines from the first `>>>` to the next empty line."""


def fenced(docstring: str) -> str:
    """The docstring with each example as a block of Python session."""
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0]}\n```", docstring)


class DoctestBlocks(griffe.Extension):
    """Changes every docstring that is loaded."""

    def on_object(self, *, obj: griffe.Object, **_options: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
