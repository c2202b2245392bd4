"""A real headless Chromium with the network off, for pages opened from disk.

To wait for a page, wait for a locator (`page.locator("#title", has_text="L0H1").wait_for()`). `page.wait_for_function` looks
once while the inspector still lifts the page's policy on scripts, then within the page, whose policy forbids it: it fails
whenever what it waits for is not there at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Opened:
    """An open page, and what went wrong or tried to leave it."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    """Console messages and uncaught errors."""
    requests: list[str] = field(default_factory=list)
    """Addresses asked for, other than the page's own file."""

    def overflow(self) -> int:
        """Pixels that the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.fixture
def open_page(chromium) -> Iterator[Callable[..., Opened]]:
    """Open a file: `open_page(path, width=1280, scheme="dark", fragment="#L2H8", scripts=True)`."""
    contexts = []

    def opener(
        path: Path, *, width: int = 1280, scheme: str = "light", fragment: str = "", scripts: bool = True
    ) -> Opened:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=scripts,
            accept_downloads=True,
            offline=True,
        )
        contexts.append(context)
        opened = Opened(context.new_page())
        address = path.resolve().as_uri()

        def guard(route: Any) -> None:
            if route.request.url.split("#")[0] == address:
                route.continue_()
            else:
                opened.requests.append(route.request.url)
                route.abort()

        context.route("**/*", guard)
        opened.page.on("console", lambda message: opened.complaints.append(f"{message.type}: {message.text}"))
        opened.page.on("pageerror", lambda error: opened.complaints.append(f"error: {error}"))
        opened.page.on("dialog", lambda dialog: opened.complaints.append(f"dialog: {dialog.message}"))
        opened.page.goto(address + fragment)
        if scripts:
            opened.page.wait_for_selector("html[data-ready]", state="attached", timeout=20_000)
        return opened

    yield opener
    for context in contexts:
        context.close()
