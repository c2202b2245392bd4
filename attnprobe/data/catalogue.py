"""Which treebanks there are: the bundled one, and public ones with version, licence, address and checksum.

A checksum stands here only where it was computed from the file itself; where it is not known, the entry says so and `fetch`
asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from attnprobe.errors import EnvironmentFailure, InputError, explain, near_names

BUNDLED = "bundled"
"""Name of the treebank that comes with the package."""

BUNDLED_FILE = Path(__file__).parent / "treebank" / "en_attnprobe.conllu"


@dataclass(frozen=True)
class Treebank:
    """A treebank and what must be known to use it."""

    name: str
    """Short name, as `fetch` takes it."""
    title: str
    version: str
    licence: str
    """Short name of its licence, with the part of the licence that a user may trip over."""
    url: str
    """Address of the one file fetched; empty for the bundled treebank."""
    sha256: str | None
    """Checksum of the file; None where this version of attnprobe does not know it."""
    size: int | None
    """Bytes of the file; None where not known."""

    @property
    def filename(self) -> str:
        return self.url.rsplit("/", 1)[-1]


_UD = "https://raw.githubusercontent.com/UniversalDependencies"
_BY_SA = "CC BY-SA 4.0"

_PUBLIC = (
    Treebank(
        name="ud-ewt",
        title="UD English-EWT, dev: weblogs, newsgroups, e-mail, reviews, answers (2,001 sentences)",
        version="2.16",
        licence=_BY_SA,
        url=f"{_UD}/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb/en_ewt-ud-dev.conllu",
        sha256="531a54ff90d6ab12201c5a50c3e78e6ddac4de69abc4bce5d275d3cd29efe2b6",
        size=1_805_545,
    ),
    Treebank(
        name="ud-ewt-train",
        title="UD English-EWT, train (12,544 sentences)",
        version="2.16",
        licence=_BY_SA,
        url=f"{_UD}/UD_English-EWT/15d613d8447b3478787d4c278730a1e48a945efb/en_ewt-ud-train.conllu",
        sha256="3fb78e2b55482c8ee00caa653af436c88c9e5bc9a73ce26e4ae3ddc79d2b7e7b",
        size=14_203_025,
    ),
    Treebank(
        name="ud-gsd-de",
        title="UD German-GSD, dev (799 sentences)",
        version="297fcf35",
        licence=_BY_SA,
        url=f"{_UD}/UD_German-GSD/297fcf350481058d0737a27f0f8fd03b2eadd67a/de_gsd-ud-dev.conllu",
        sha256="00431f2624cbbf66796c097a9303bbc8f8e8ca88ef35c4c5664aa396b2d674c9",
        size=904_804,
    ),
    Treebank(
        name="ud-gsdsimp-zh",
        title="UD Chinese-GSDSimp, dev: Simplified Chinese (500 sentences)",
        version="eb3aed31",
        licence=_BY_SA,
        url=f"{_UD}/UD_Chinese-GSDSimp/eb3aed31ebb170897405ee5cd1db83a1a0b11864/zh_gsdsimp-ud-dev.conllu",
        sha256="342a2969df6d6d08bdc25dbc067c93c86ab3099bb054a9921ae7067cbc2c53ad",
        size=1_180_003,
    ),
    Treebank(
        name="ud-gum",
        title="UD English-GUM, dev: many genres, with entities and coreference",
        version="2.16",
        licence="CC BY-NC-SA 4.0 (non-commercial)",
        url=f"{_UD}/UD_English-GUM/r2.16/en_gum-ud-dev.conllu",
        sha256=None,
        size=None,
    ),
    Treebank(
        name="ud-pud",
        title="UD English-PUD, test: news and Wikipedia (1,000 sentences, parallel in many languages)",
        version="2.16",
        licence="CC BY-SA 3.0",
        url=f"{_UD}/UD_English-PUD/r2.16/en_pud-ud-test.conllu",
        sha256=None,
        size=None,
    ),
)


def available() -> tuple[Treebank, ...]:
    """The bundled treebank and the public ones that `fetch` knows.

    >>> [treebank.name for treebank in available()][:2]
    ['bundled', 'ud-ewt']
    """
    size = BUNDLED_FILE.stat().st_size if BUNDLED_FILE.is_file() else None
    bundled = Treebank(BUNDLED, "The treebank that comes with attnprobe", "1", "CC BY 4.0", "", None, size)
    return (bundled, *_PUBLIC)


def treebank(name: str) -> Treebank:
    """The entry of this name; raises `InputError` with the near names where there is none."""
    found = {entry.name: entry for entry in available()}
    if name not in found:
        raise InputError(explain(f"unknown treebank {name!r}", got=near_names(name, found)))
    return found[name]


def bundled_path() -> Path:
    """The bundled treebank's file."""
    if not BUNDLED_FILE.is_file():
        remedy = "Install attnprobe again"
        raise EnvironmentFailure(explain("the bundled treebank is missing", where=str(BUNDLED_FILE), remedy=remedy))
    return BUNDLED_FILE
