"""Shape annotations are checked while these tests run; draws come from seeds of their own."""

import sys

import pytest
import torch
from jaxtyping import config, install_import_hook

if "attnprobe.attention" not in sys.modules:
    install_import_hook("attnprobe.attention", "beartype.beartype")


@pytest.fixture
def draw():
    """draw(*sizes) -> standard normal float64 numbers from a generator of this test's own."""
    generator = torch.Generator().manual_seed(20240229)

    def normal(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    return normal


@pytest.fixture
def unchecked():
    """Shape checks off, as users run it: the errors must be our own."""
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)
