"""Float64 for what lies on any device: there, or on the CPU where the device has none (MPS).

What is only read by the host is fetched first and made float64 afterwards, `x.cpu().double()`: half the bytes, and no device refuses it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def exact_device(device: torch.device) -> torch.device:
    """Where numbers of this device are worked out in float64: on itself, or on the CPU for one that has no float64.

    >>> exact_device(torch.device("mps"))
    device(type='cpu')
    """
    return torch.device("cpu") if device.type == "mps" else device


def exact(value: Tensor) -> Tensor:
    """The same numbers in float64, on `exact_device` of where they are.

    >>> exact(torch.tensor([0.5])).dtype
    torch.float64
    """
    return value.to(exact_device(value.device)).double()
