"""The nouns that cross borders between packages: read this first.

Frozen records over NumPy and xarray, no torch: a saved study opens, and its report renders, where torch is absent.
Words, layers and heads are counted from 0 everywhere but in `Sentence.heads`, which holds what the treebank says.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attnprobe.errors import EnvironmentFailure, InputError, explain

if TYPE_CHECKING:
    import xarray as xr

STUDY_FORMAT = 1
"""Number of the study file's format; raised when a reader of the old one would go wrong."""


@dataclass(frozen=True)
class Sentence:
    """One sentence: its words and whatever annotation its source carries.

    Annotation fields have one entry per word, or are empty where the source has none.
    """

    id: str
    """Identifier, unique in its corpus: the file's `sent_id`, or a running number."""
    words: tuple[str, ...]
    """Syntactic words in order (multiword tokens already split, empty nodes left out)."""
    document: str = ""
    """Identifier of the document (`# newdoc id`); empty where the source marks none."""
    text: str = ""
    """The sentence as running text; empty where not known."""
    lemmas: tuple[str, ...] = ()
    upos: tuple[str, ...] = ()
    xpos: tuple[str, ...] = ()
    feats: tuple[Mapping[str, str], ...] = ()
    heads: tuple[int, ...] = ()
    """Governor of each word as the treebank writes it: 1-based position, 0 for the root."""
    deprels: tuple[str, ...] = ()
    """Relation of each word to its governor, subtype included (`nsubj:pass`)."""
    misc: tuple[Mapping[str, str], ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Comments of the sentence, `key = value`."""
    segments: tuple[int, ...] = ()
    """For sentence pairs: 0 or 1 for each word; empty for a single sentence."""

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True)
class Relation:
    """Word pairs of one sentence that a head may connect: the question "does the query word look at the key word?".

    Each distinct query word is one case. It is a hit when the most attended candidate is one of its key words.
    """

    name: str
    """`family` or `family:label`, such as `dep:obj` or `previous`."""
    query: np.ndarray
    """Word index of each pair's query: the dependent, the mention, the argument."""
    key: np.ndarray
    """Word index of each pair's right answer: the head, an antecedent, the predicate."""
    candidates: np.ndarray | None = None
    """Which words may be chosen, bool [query_word, key_word]; None: every other word of the sentence."""

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True)
class WordAlignment:
    """Which word each token belongs to."""

    word_index: np.ndarray
    """Word of each token, int [token]; -1 for special tokens and padding."""
    n_words: int
    """Number of words of the sentence, those without a token included."""

    @property
    def pieces(self) -> np.ndarray:
        """Number of tokens of each word, int [word]; 0 where the tokenizer gives none."""
        inside = self.word_index[self.word_index >= 0]
        return np.bincount(inside, minlength=self.n_words)


@dataclass(frozen=True)
class PatternBlock:
    """The pattern of one attention module over one sequence, for viewers."""

    layer: int
    """Place in execution order."""
    kind: str
    """encoder, decoder or cross."""
    index: int
    """Place among the modules of its kind."""
    step: int
    """Generation step; 0 for an ordinary forward pass."""
    pattern: np.ndarray
    """Weights after the softmax, float32 [head query key], padding cut off."""
    source: str
    """Where the pattern comes from: `model` (reported by it) or `recomputed` (from its q and k)."""
    scores: np.ndarray | None = None
    """Scaled scores before the softmax with everything added to them, float32 [head query key]; None where not asked for."""
    q: np.ndarray | None = None
    """float32 [head query dim]; None where not asked for."""
    k: np.ndarray | None = None
    """float32 [head key dim], key heads repeated to the number of heads; None where not asked for."""
    scale: float | None = None


@dataclass(frozen=True)
class PatternView:
    """Patterns of one sequence with its tokens and words: what `report.view` and the bertviz adapter draw."""

    model: str
    blocks: tuple[PatternBlock, ...]
    tokens: tuple[str, ...]
    """Tokens of the (source) sequence, as text to show."""
    alignment: WordAlignment
    words: tuple[str, ...]
    """Words the alignment points at."""
    special: np.ndarray
    """Whether each token is special ([CLS], [SEP], ...), bool [token]."""
    target_tokens: tuple[str, ...] = ()
    """Tokens of the target sequence (decoder); empty for models with one sequence."""
    segments: tuple[int, ...] = ()
    """Segment of each token for sentence pairs; empty otherwise."""


@dataclass(frozen=True)
class Verification:
    """How far the recomputed attention is from what the model did, per attention module.

    Arrays run over modules in execution order. A difference that could not be taken is NaN and `notes` says why.
    """

    model: str
    family: str
    attn_implementation: str
    dtype: str
    kind: tuple[str, ...]
    index: np.ndarray
    pattern_max_abs: np.ndarray
    """Largest |recomputed - model's| pattern weight."""
    context_max_abs: np.ndarray
    """Largest |recomputed - model's| context value."""
    pattern_tolerance: np.ndarray
    context_tolerance: np.ndarray
    row_sum_max_error: np.ndarray
    """Largest |sum of a row - 1| over the rows checked (sinks counted in)."""
    bitwise: np.ndarray
    """Whether the same-dtype replay gives the model's pattern and context bit for bit."""
    rows_checked: np.ndarray
    """Query rows compared, over batch and heads."""
    rows_excluded: np.ndarray
    """Query rows that see nothing, or are padding, left out of the comparison."""
    max_score: np.ndarray
    """Largest |score| before the softmax, over visible keys."""
    ok: bool
    notes: tuple[str, ...] = ()
    bias_max_abs: np.ndarray | None = None
    """Largest |position bias that the model added - that of its family's formula|; NaN where the family has no formula."""

    @property
    def n_layers(self) -> int:
        return len(self.kind)

    def as_json(self) -> dict[str, Any]:
        """The record as plain values, in the form `attnprobe verify --json` prints; NaN becomes None."""
        per_layer = ("pattern_max_abs", "context_max_abs", "pattern_tolerance", "context_tolerance")
        layers = []
        for i in range(self.n_layers):
            row: dict[str, Any] = {"layer": i, "kind": self.kind[i], "index": int(self.index[i])}
            for name in per_layer:
                value = float(getattr(self, name)[i])
                row[name] = value if np.isfinite(value) else None
            row["bitwise"] = bool(self.bitwise[i])
            layers.append(row)
        return {
            "ok": self.ok,
            "model": self.model,
            "family": self.family,
            "attn_implementation": self.attn_implementation,
            "dtype": self.dtype,
            "rows_checked": int(self.rows_checked.sum()),
            "rows_excluded": int(self.rows_excluded.sum()),
            "layers": layers,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Provenance:
    """Where a study's numbers come from; written as the root attributes of the study file."""

    model: str
    model_sha256: str
    family: str
    tokenizer: str
    attn_implementation: str
    dtype: str
    device: str
    corpus: str
    corpus_sha256: str
    label_scheme: str
    seed: int
    plan: str
    """JSON: options of the run, with the hash of the batch plan."""
    versions: str
    """JSON: version of attnprobe, Python and the libraries that compute."""
    sentences_kept: int
    sentences_dropped: str
    """JSON: reason -> count."""
    created: str = ""
    """Time of the run, ISO 8601, UTC."""

    def as_attributes(self) -> dict[str, Any]:
        return {"format": STUDY_FORMAT, **asdict(self)}


@dataclass(frozen=True)
class Study:
    """What was found: labelled arrays in an `xarray.DataTree`, groups and names as the documentation lists them.

    `study["metrics"]["entropy"].sel(layer=2, head=8)` reads one value; `.tree` is the whole.
    """

    tree: xr.DataTree

    def __getitem__(self, group: str) -> Any:
        """A group as an `xarray.Dataset` (`study["metrics"]`), one of its variables (`study["metrics/entropy"]`), or a group of groups."""
        try:
            found = self.tree[group]
        except KeyError:
            raise InputError(
                explain(f"the study has no group {group!r}", got=", ".join(self.groups) or "no group at all")
            ) from None
        leaf = hasattr(found, "children") and not found.children
        return found.to_dataset() if leaf else found

    def __contains__(self, group: object) -> bool:
        return isinstance(group, str) and group.strip("/").split("/")[0] in self.groups

    @property
    def groups(self) -> list[str]:
        return list(self.tree.children)

    @property
    def attributes(self) -> Mapping[str, Any]:
        """Root attributes: the provenance of the study."""
        return dict(self.tree.attrs)  # type: ignore[arg-type]

    @property
    def verified(self) -> bool:
        """Whether the capture behind this study was verified and matched."""
        return "verification" in self and bool(self.tree["verification"].attrs.get("ok", 0))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one netCDF-4 file: to a temporary name first, then renamed, so that no half-written file is left."""
        path = Path(path)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.part")
        try:
            written = self.tree.to_netcdf(engine="h5netcdf")  # in memory: HDF5 crashes the process on a full disk
            with temporary.open("wb") as stream:
                stream.write(written)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        except OSError as error:
            raise EnvironmentFailure(
                explain(
                    "cannot write the study",
                    where=str(path),
                    got=str(error),
                    remedy="Check the folder and the free space; finished shards of a run are kept for --resume",
                )
            ) from error
        finally:
            temporary.unlink(missing_ok=True)
        return path


def too_wide(found: Study) -> bool:
    """Whether the intervals of a comparison are too wide: both studies read the same sentences, and could not be paired."""
    same = found.attributes.get("a_corpus_sha256", "a") == found.attributes.get("b_corpus_sha256", "b")
    return same and not str(found.attributes.get("pairing")).startswith("paired")


def open_study(path: str | os.PathLike[str]) -> Study:
    """Read a study file written by `run` or `attnprobe heads`.

    Raises `InputError` where the file is missing, is no study, or is of a newer format than this version reads.
    """
    import xarray as xr  # takes a third of a second, and most importers of this module never open a file

    path = Path(path)
    if not path.is_file():
        raise InputError(explain("cannot open the study", where=str(path), expected="a file", got="nothing there"))
    try:
        with xr.open_datatree(path, engine="h5netcdf") as stored:
            tree = stored.load()
    except (OSError, ValueError, KeyError) as error:
        raise InputError(
            explain(
                "cannot open the study",
                where=str(path),
                expected="a netCDF-4 file written by attnprobe",
                got=str(error),
            )
        ) from error
    found = tree.attrs.get("format")
    known = str(found).isdecimal()
    if not known or int(str(found)) > STUDY_FORMAT:
        raise InputError(
            explain(
                "cannot read this study",
                where=str(path),
                expected=f"format {STUDY_FORMAT} or older",
                got="no format number" if found is None else f"format {found}",
                remedy="Update attnprobe" if known else "Is it a study written by `attnprobe heads`?",
            )
        )
    return Study(tree)
