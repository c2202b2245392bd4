"""Colours of figures, those of the report page: lightness alone orders a scale, so that it reads in grey and without colour vision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.colors import ListedColormap, to_rgb

INK, SOFT, FAINT, RULE = "#1b1f24", "#57606a", "#8c959f", "#d0d7de"
EMPTY = "#f1f3f5"
"""Fill of a cell without a value or a label."""
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW = (
    *("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#f0e442"),
)
"""Okabe and Ito's colours, told apart by colour-blind readers."""
MARKERS = "osD^vPX*<>"
"""Shapes, so that clusters are not told apart by colour alone."""

_PALE, _MIDDLE, _DEEP = (0.972, -0.004, 0.026), (0.68, -0.035, 0.01), (0.27, -0.012, -0.085)
_COLD, _NOTHING, _WARM = (0.42, -0.03, -0.115), (0.975, 0.0, 0.004), (0.53, 0.075, 0.095)
_TO_LMS = np.array([[0.3963377774, 0.2158037573], [-0.1055613458, -0.0638541728], [-0.0894841775, -1.291485548]])
_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.707614701],
    ]
)
"""From OKLab to linear sRGB (Ottosson 2020)."""


def from_oklab(colours: np.ndarray) -> np.ndarray:
    """Colours as sRGB [... 3] out of OKLab colours (lightness, green to red, blue to yellow)."""
    lms = (colours[..., :1] + colours[..., 1:] @ _TO_LMS.T) ** 3
    linear = np.clip(lms @ _TO_LINEAR.T, 0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)


def _scale(name: str, *stops: tuple[float, float, float]) -> ListedColormap:
    at, places = np.linspace(0, 1, 256), np.linspace(0, 1, len(stops))
    oklab = np.stack([np.interp(at, places, channel) for channel in zip(*stops, strict=True)], axis=-1)
    return ListedColormap(from_oklab(oklab), name=name)


SEQUENTIAL = _scale("attnprobe", _PALE, _MIDDLE, _DEEP)
DIVERGING = _scale("attnprobe-diverging", _COLD, _NOTHING, _WARM)


@dataclass(frozen=True)
class Scale:
    """From number to colour."""

    colours: ListedColormap
    low: float
    high: float

    @classmethod
    def over(cls, values: np.ndarray, *extra: float | None) -> Scale:
        """Pale to deep, from 0 (or the least value where that is far from 0) to the greatest; two-way where signs differ."""
        known = [*values[np.isfinite(values)], *(value for value in extra if value is not None)] or [0.0, 1.0]
        low, high = float(min(known)), float(max(known))
        if low < 0:
            return cls.both_ways(values)
        low = 0.0 if low < 0.5 * high else low
        return cls(SEQUENTIAL, low, high if high > low else low + 1)

    @classmethod
    def both_ways(cls, values: np.ndarray) -> Scale:
        """For differences and signed numbers: pale at 0, blue below, orange above."""
        known = np.abs(values[np.isfinite(values)])
        edge = float(known.max()) if known.size and known.max() > 0 else 1.0
        return cls(DIVERGING, -edge, edge)

    def rgb(self, values: np.ndarray) -> np.ndarray:
        """Colours [... 3]; grey where there is no value."""
        share = (np.nan_to_num(values) - self.low) / (self.high - self.low)
        return np.where(np.isnan(values)[..., None], to_rgb(EMPTY), self.colours(np.clip(share, 0, 1))[..., :3])


def luminance(rgb: np.ndarray) -> np.ndarray:
    """Relative luminance of sRGB colours, 0 to 1."""
    rgb = np.asarray(rgb)
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ np.array([0.2126, 0.7152, 0.0722]))


def contrast(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """WCAG contrast ratio of two colours, 1 to 21."""
    a, b = luminance(one) + 0.05, luminance(other) + 0.05
    return np.maximum(a, b) / np.minimum(a, b)


def wants_white(rgb: np.ndarray) -> np.ndarray:
    """Whether white text stands out more than black on each colour: the better of both has a contrast of at least 4.58 on any."""
    return contrast(rgb, np.ones(3)) > contrast(rgb, np.zeros(3))


def tint(colour: str, strength: float = 0.62) -> tuple[float, float, float]:
    """A colour let down with white, so that dark text stands on it."""
    r, g, b = (1 - strength * (1 - channel) for channel in to_rgb(colour))
    return (r, g, b)
