"""Shared by all tests: shape checks on, marks that skip with a reason, the model and the data that several folders use.

Set ATTNPROBE_SHARED_DATA to the folder of public data, ATTNPROBE_NETWORK=1 to let tests use the network, ATTNPROBE_SLOW=1 to run
those that take minutes.
"""

import os
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import config, install_import_hook

CHECKED = ("attnprobe.attention", "attnprobe.models")
"""Packages whose shape annotations are checked at run time; users run without."""

for name in CHECKED:
    assert name not in sys.modules, f"{name} was imported before its shape checks could be put in"
install_import_hook(CHECKED, "beartype.beartype")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # a shell starts what runs in the background deaf to Ctrl-C, and programs hand that on to those that they start
    signal.signal(signal.SIGINT, signal.default_int_handler)


def _why_not_gpu() -> str | None:
    return None if torch.cuda.is_available() or torch.backends.mps.is_available() else "no CUDA or MPS device"


def _why_not_network() -> str | None:
    return None if os.environ.get("ATTNPROBE_NETWORK") else "ATTNPROBE_NETWORK is not set"


def _why_not_slow() -> str | None:
    return None if os.environ.get("ATTNPROBE_SLOW") else "ATTNPROBE_SLOW is not set"


def _why_not_shared() -> str | None:
    folder = os.environ.get("ATTNPROBE_SHARED_DATA")
    if not folder:
        return "ATTNPROBE_SHARED_DATA names no folder of public data"
    return None if Path(folder).is_dir() else f"ATTNPROBE_SHARED_DATA names {folder}, which is no folder"


def _why_not_browser() -> str | None:
    if find_spec("playwright") is None:
        return "playwright is not installed"
    own = Path.home() / ".cache" / "ms-playwright"
    found = any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))) or any(own.glob("chromium*"))
    return None if found else "no Chromium found"


NEEDS = {
    "gpu": _why_not_gpu,
    "network": _why_not_network,
    "slow": _why_not_slow,
    "shared": _why_not_shared,
    "browser": _why_not_browser,
}
"""Mark -> the reason why such a test cannot run here, or None."""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, why_not in NEEDS.items():
        reason = why_not() if item.get_closest_marker(mark) else None
        if reason is not None:
            pytest.skip(f"{mark}: {reason}")


@pytest.fixture
def unchecked():
    """Shape checks off, as users run it: the errors must be our own."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


@pytest.fixture
def tell(capsys):
    """Say a number that a slow check found, for `docs/validation.md`, in spite of pytest's capture."""

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(f"\n{text}\n")

    return say


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of public data; tests that use it carry the mark `shared`."""
    reason = _why_not_shared()
    if reason is not None:
        pytest.skip(f"shared: {reason}")
    return Path(os.environ["ATTNPROBE_SHARED_DATA"])


@pytest.fixture(scope="session")
def minilm():
    """The embedded BERT under eager attention, for tests that do not change it."""
    from attnprobe.models.load import load

    return load("minilm", attn="eager")


@pytest.fixture(scope="session")
def minilm_sdpa():
    """The embedded BERT under sdpa, the library's default."""
    from attnprobe.models.load import load

    return load("minilm", attn="sdpa")


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """One headless browser for all tests that need one: playwright cannot be started twice in a process."""
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=found, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()
