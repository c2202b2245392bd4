"""Fonts for the words of a figure: a chain of installed families that has every glyph, or a clear warning; never an empty box."""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache

from matplotlib import __version__ as matplotlib_version
from matplotlib import ft2font
from matplotlib.font_manager import FontProperties, fontManager, get_font

PREFERRED = ("Arial", "Liberation Sans", "Noto Sans")
"""Families for plain text: the first that is installed; DejaVu Sans, which comes with matplotlib, stands behind it."""
BUNDLED = "DejaVu Sans"
CHINESE, JAPANESE, KOREAN = (
    (f"Noto Sans CJK {place}", f"Source Han Sans {place}", *others)
    for place, others in (
        ("SC", ("WenQuanYi Zen Hei", "PingFang SC", "Microsoft YaHei", "SimHei", "Droid Sans Fallback")),
        ("JP", ("IPAGothic", "Hiragino Sans", "Yu Gothic", "MS Gothic")),
        ("KR", ("NanumGothic", "Apple SD Gothic Neo", "Malgun Gothic")),
    )
)
UNFIT = ("LastResort", "Last Resort", "Adobe Blank", ".notdef")
"""Families that claim every character and draw boxes."""
PLAIN_LAST = ("Serif", "Mono", "Display", "Condensed", "UI", "Italic", "Light", "Black", "Thin")
"""Words in a family's name that put it behind the others when any family will do."""
INVISIBLE = ("Cf", "Cc", "Zl", "Zp")
"""Unicode categories that have no glyph of their own: joiners, variation selectors' kin, line breaks."""


@dataclass(frozen=True)
class Fonts:
    """How the words of one figure are drawn."""

    families: tuple[str, ...]
    """Families tried in turn for each character."""
    missing: frozenset[str]
    """Characters that no installed family has: shown by their code."""

    def shown(self, word: str) -> str:
        """The word as it is drawn: line breaks and other controls by name, characters without a glyph by code."""
        return "".join(self._shown(character) for character in word) or "∅"

    def _shown(self, character: str) -> str:
        if character in self.missing:
            return f"[U+{ord(character):04X}]"
        if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
            return {"\n": "↵", "\t": "⇥", "\r": "↵"}.get(character, f"[U+{ord(character):04X}]")
        return character


def fonts_for(words: Iterable[str]) -> Fonts:
    """Fonts that draw these words; warns about characters that none of them has, and about scripts that are drawn unjoined."""
    characters = frozenset().union(*map(frozenset, words)) | frozenset("↵⇥∅→−…")
    fonts = _chain("".join(sorted(characters)))
    if fonts.missing:
        warnings.warn(_missing_message(fonts.missing), UserWarning, stacklevel=5)
    if not hasattr(ft2font, "__libraqm_version__") and any(map(_needs_shaping, characters)):
        warnings.warn(
            f"matplotlib {matplotlib_version} draws Arabic, Hebrew and Indic words letter by letter, unjoined and left to right. "
            "Install matplotlib 3.11 or newer.",
            UserWarning,
            stacklevel=5,
        )
    return fonts


@lru_cache(maxsize=64)
def _chain(characters: str) -> Fonts:
    installed = _installed()
    families = [next((name for name in PREFERRED if name in installed), BUNDLED)]
    missing = {c for c in characters if unicodedata.category(c) not in INVISIBLE and not _selector(c)}
    missing -= _glyphs(families[0])
    for name in (BUNDLED, *_by_script(missing), *_others()):
        if not missing:
            break
        if name in installed and name not in families and (found := missing & _glyphs(name)):
            families.append(name)
            missing -= found
    return Fonts(tuple(dict.fromkeys((*families, BUNDLED))), frozenset(missing))


def _by_script(characters: set[str]) -> tuple[str, ...]:
    """Families for Chinese, Japanese and Korean: kana speak for Japanese shapes, hangul for Korean, else Chinese."""
    names = {unicodedata.name(character, "").split(" ")[0] for character in characters}
    if names & {"HIRAGANA", "KATAKANA"}:
        return (*JAPANESE, *CHINESE)
    if "HANGUL" in names:
        return (*KOREAN, *CHINESE)
    return CHINESE if "CJK" in names else ()


@cache
def _installed() -> frozenset[str]:
    return frozenset(entry.name for entry in fontManager.ttflist if not entry.name.startswith(UNFIT))


@cache
def _others() -> tuple[str, ...]:
    """All other families with an upright regular face, plain sans serif ones first."""
    regular = {f.name for f in fontManager.ttflist if f.weight in (400, "normal", "regular") and f.style == "normal"}

    def order(name: str) -> tuple[bool, bool, str]:
        return any(word in name for word in PLAIN_LAST), "Sans" not in name, name

    return tuple(sorted(_installed() & regular, key=order))


@cache
def _glyphs(family: str) -> frozenset[str]:
    try:
        path = fontManager.findfont(FontProperties(family=[family]), fallback_to_default=False)
        return frozenset(map(chr, get_font(path).get_charmap()))
    except (ValueError, OSError, RuntimeError):  # a family that is listed but gone or unreadable has no glyphs
        return frozenset()


def _selector(character: str) -> bool:
    """Variation selectors choose a shape of the character before them and are not drawn."""
    return 0xFE00 <= ord(character) <= 0xFE0F or 0xE0100 <= ord(character) <= 0xE01EF


def _needs_shaping(character: str) -> bool:
    return unicodedata.bidirectional(character) in ("R", "AL") or 0x0900 <= ord(character) <= 0x0DFF


def _missing_message(missing: frozenset[str]) -> str:
    listed = sorted(missing)
    names = ", ".join(f"{c} (U+{ord(c):04X} {unicodedata.name(c, 'unnamed').lower()})" for c in listed[:5])
    rest = f" and {len(listed) - 5} more" if len(listed) > 5 else ""
    return (
        f"no installed font has a glyph for {names}{rest}; drawn by code, such as [U+{ord(listed[0]):04X}]. "
        "Install fonts that have them (on Debian: fonts-noto-core, fonts-noto-cjk, fonts-symbola)."
    )
