"""Numbers packed for the page: typed arrays in one deflated block, and JSON that is safe inside a script element.

Nothing here knows what the numbers mean. The reader of the format is `assets/page/data.js`.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import numpy as np

ALIGNMENT = 8
"""Arrays start at multiples of this many bytes, so that JavaScript can view them in place."""
EXACT_IN_FLOAT32 = 2**24
"""Whole numbers beyond this are not all exact in float32."""


class Arena:
    """One block of bytes that arrays are added to; `add` gives the place from which each is read again."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def add(self, array: Any) -> dict[str, Any]:
        """Pack one array: repeats along an axis are stored once, whole numbers in the narrowest type, the rest as float32."""
        values = np.asarray(array)
        stored = without_repeats(values)
        packed = narrowest(stored)
        reference = {
            "at": self._size,
            "type": packed.dtype.str[1:],
            "shape": list(values.shape),
            "stored": list(stored.shape),
        }
        data = np.ascontiguousarray(packed).tobytes()
        padding = -len(data) % ALIGNMENT
        self._parts += [data, b"\0" * padding]
        self._size += len(data) + padding
        return reference

    def as_record(self) -> dict[str, Any]:
        """The block as text: its bytes, little-endian, deflated (zlib), in base64."""
        block = b"".join(self._parts)
        return {"bytes": len(block), "deflated": base64.b64encode(zlib.compress(block, 9)).decode("ascii")}


def without_repeats(values: np.ndarray) -> np.ndarray:
    """The array with every axis along which it does not change cut to length 1 (NaN equals NaN)."""
    for axis in range(values.ndim):
        if values.shape[axis] > 1:
            first = values.take([0], axis)
            if ((values == first) | ((values != values) & (first != first))).all():
                values = first
    return values


def narrowest(values: np.ndarray) -> np.ndarray:
    """The array in the smallest type that holds it: unsigned bytes, 16 or 32 bit whole numbers, float32, float64."""
    values = np.asarray(values)
    if values.dtype == bool:
        return values.astype("<u1")
    values = values if values.dtype.kind in "iu" else values.astype("<f8")
    if not values.size:
        return values.astype("<f4")
    whole = bool(np.isfinite(values).all()) and bool((values == np.floor(values)).all())
    if whole:
        for kind in ("<u1", "<u2", "<i4"):
            limits = np.iinfo(kind)
            if values.min() >= limits.min and values.max() <= limits.max:
                return values.astype(kind)
        return values.astype("<f8")
    finite = np.abs(values[np.isfinite(values)])
    wide = bool(finite.size) and float(finite.max()) > EXACT_IN_FLOAT32
    return values.astype("<f8" if wide else "<f4")


def script_json(value: Any) -> str:
    r"""JSON for a `<script type="application/json">`: pure ASCII, and no `<`, `>` or `&`, so nothing in it can end the element.

    >>> print(script_json("</script>"))
    "\u003c/script\u003e"
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def parsed(text: Any, default: Any) -> Any:
    """What a JSON attribute of the study holds; `default` where it is absent or not JSON."""
    try:
        return json.loads(str(text))
    except ValueError:
        return default


def number(value: Any, digits: int = 7) -> float | int | None:
    """A number for JSON, rounded to so many significant digits; None for NaN and infinities."""
    value = float(value)
    if not np.isfinite(value):
        return None
    if value == int(value):
        return int(value)
    return float(f"{value:.{digits}g}")
