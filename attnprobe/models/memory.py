"""Too little memory for a batch, told as what it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from attnprobe.errors import EnvironmentFailure, explain
from attnprobe.models.model import Model
from attnprobe.models.sources import first_line

_NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory")
"""What torch says on GPUs, on the CPU, and on the CPU of Windows."""


@contextmanager
def enough_memory(model: Model, sequences: Tensor) -> Iterator[None]:
    """Around whatever runs the model on `sequences` [batch token ...]: raises `EnvironmentFailure` where the device has too little memory for them."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # CUDA has a class of its own for it, MPS and the CPU have not
        if isinstance(error, RuntimeError) and not any(told in str(error) for told in _NO_MEMORY):
            raise
        batch, tokens = sequences.shape[:2]
        told = f"{batch} sequences of {tokens} tokens" if tokens else f"{batch} images or sounds"
        got = f"{told} ({first_line(error)})"
        shorter = "smaller batches (batch_tokens), shorter texts" if tokens else "fewer at a time"
        remedy = f"Use {shorter}, or dtype='bfloat16'"
        what = "there is too little memory for this batch"
        raise EnvironmentFailure(explain(what, where=str(model.device), got=got, remedy=remedy)) from error
