"""What probes read: one vector per word and head, out of one run of the model over a corpus, kept in files on disk.

The vector of a word is the mean of its pieces' vectors (Hewitt and Manning 2019), or its first or last piece's. Words without a piece have
none. Files are written batch by batch and read layer by layer, so that memory holds one layer at a time.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import EnvironmentFailure, InputError, explain, near_names
from attnprobe.models.capture import run_forward
from attnprobe.models.inputs import accepted_inputs, from_model_inputs
from attnprobe.models.model import Model
from attnprobe.text.align import Encoded
from attnprobe.text.batching import Batch, PlanOptions, cluster_of, collate, plan_shards

SITES = ("q", "k", "v", "context")
"""Where a head's vectors are taken: its queries, keys and values as they enter the product, and what it gives (pattern @ v)."""
PIECES = ("mean", "first", "last")

Progress = Callable[[int, int], None]
"""Told (sentences done, sentences in all)."""


@dataclass(frozen=True)
class WordRows:
    """Which row of the files is which word."""

    sentence: np.ndarray
    """Place of each row's sentence in the corpus."""
    word: np.ndarray
    """Its word."""
    first: np.ndarray
    """First row of each sentence, and one past the last row at the end."""

    @classmethod
    def of(cls, encoded: Sequence[Encoded]) -> WordRows:
        words = [np.flatnonzero(item.alignment.pieces > 0) for item in encoded]
        counts = [len(found) for found in words]
        return cls(
            np.repeat(np.arange(len(words)), counts),
            np.concatenate(words) if words else np.empty(0, np.int64),
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.word)

    def find(self, sentence: Sequence[int], word: Sequence[int]) -> np.ndarray:
        """Row of each (sentence, word); -1 for a word without a piece."""
        width = int(self.word.max(initial=0)) + 1
        have = self.sentence * width + self.word
        words = np.asarray(word, dtype=np.int64)
        wanted = np.asarray(sentence, dtype=np.int64) * width + words
        place = np.searchsorted(have, wanted)
        found = (place < len(have)) & (have[np.minimum(place, len(have) - 1)] == wanted) & (words < width)
        return np.where(found, place, -1)


@dataclass(frozen=True)
class LayerInfo:
    """One attention module over the words themselves (cross-attention and the decoder of two-stack models are left out)."""

    layer: int
    """Place in execution order over all attention modules."""
    kind: str
    index: int
    heads: int
    groups: int
    """How many query heads share one key head."""


@dataclass(frozen=True)
class Features:
    """Vectors of all words of a corpus, on disk."""

    folder: Path
    rows: WordRows
    layers: tuple[LayerInfo, ...]
    states: int
    """Number of layer states: what enters the first layer, and what each layer gives."""

    def heads(self, site: str, layer: int) -> np.ndarray:
        """Vectors [row head dim] of a site at `layers[layer]`; heads that share a key head share its vectors in `k` and `v`."""
        return self._read(f"{site}-{layer}")

    def state(self, place: int) -> np.ndarray:
        """Hidden states [row 1 dim]: 0 enters the first layer, i is what layer i - 1 gives."""
        return self._read(f"state-{place}")

    def embedding(self) -> np.ndarray:
        """Word embeddings [row 1 dim], without position."""
        return self._read("embedding")

    def forget(self, site: str, layer: int) -> None:
        """Delete the file of a site of a layer: it is read no more."""
        (self.folder / f"{site}-{layer}.npy").unlink()

    def _read(self, name: str) -> np.ndarray:
        return np.load(self.folder / f"{name}.npy", mmap_mode="r")


@dataclass
class _Files:
    """Files under way: opened at the first batch, when shapes are known."""

    folder: Path
    n_rows: int
    open: dict[str, np.ndarray] = field(default_factory=dict)

    def write(self, name: str, rows: slice | np.ndarray, values: Tensor) -> None:
        if name not in self.open:
            shape = (self.n_rows, *values.shape[1:])
            needed, free = 4 * int(np.prod(shape)), shutil.disk_usage(self.folder).free
            if needed > free:
                raise self._full(f"{free / 2**30:.1f} GB free, {needed / 2**30:.1f} GB more needed")
            path = self.folder / f"{name}.npy"
            try:
                self.open[name] = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
                if hasattr(os, "posix_fallocate"):  # writing into a hole on a full disk would kill the process
                    with path.open("r+b") as stream:
                        os.posix_fallocate(stream.fileno(), 0, path.stat().st_size)
            except OSError as error:
                raise self._full(str(error)) from error
        self.open[name][rows] = values.numpy()

    def _full(self, got: str) -> EnvironmentFailure:
        remedy = (
            "Name another folder (scratch=..., on the command line TMPDIR), or probe fewer sentences, sites or layers"
        )
        return EnvironmentFailure(
            explain("cannot keep the vectors of all words", where=str(self.folder), got=got, remedy=remedy)
        )

    def close(self) -> None:
        for array in self.open.values():
            array.flush()  # type: ignore[attr-defined]
        self.open.clear()


def extract(
    model: Model,
    encoded: Sequence[Encoded],
    folder: Path,
    *,
    sites: Sequence[str] = SITES,
    pieces: str = "mean",
    states: bool = True,
    embedding: bool = True,
    plan: PlanOptions | None = None,
    progress: Progress | None = None,
) -> Features:
    """Run the model over the sentences and write the vectors of every word into `folder`.

    `states` adds the layers' hidden states, `embedding` the word embeddings. Raises `InputError` for an unknown site or way to join pieces,
    `EnvironmentFailure` where the disk is too small.
    """
    for name, known in ((pieces, PIECES), *((site, SITES) for site in sites)):
        if name not in known:
            raise InputError(f"unknown choice {name!r} for the vectors of words; {near_names(name, known)}.")
    rows = WordRows.of(encoded)
    files = _Files(folder, len(rows))
    layers: dict[int, LayerInfo] = {}
    n_states = done = 0
    jobs = plan_shards(
        encoded, length=len, cluster=lambda item: cluster_of(item.sentence), options=plan or PlanOptions()
    )
    for shard, members in jobs:
        for batch in shard.batches:
            places = [shard.start + place for place in batch]
            pooling = Pooling(collate([members[place] for place in batch], pad_id=pad_id(model)), pieces)
            where = np.concatenate([np.arange(rows.first[place], rows.first[place + 1]) for place in places])
            found = run_words(model, pooling, sites, states=states, embedding=embedding)
            for name, values in found.values.items():
                files.write(name, where, values)
            layers |= found.layers
            n_states = found.states
            done += len(batch)
            if progress is not None:
                progress(done, len(encoded))
    files.close()
    return Features(folder, rows, tuple(layers[key] for key in sorted(layers)), n_states)


class Pooling:
    """From the tokens of a batch to its words, in the order of sentences and words."""

    def __init__(self, batch: Batch, pieces: str) -> None:
        self.batch = batch
        index = batch.word_index
        inside = index >= 0
        before = np.pad(index, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
        after = np.pad(index, ((0, 0), (0, 1)), constant_values=-1)[:, 1:]
        if pieces == "first":
            inside = inside & (index != before)
        elif pieces == "last":
            inside = inside & (index != after)
        sentence, token = np.nonzero(inside)
        width = int(index.max()) + 1
        _, row = np.unique(sentence * width + index[sentence, token], return_inverse=True)
        self._sentence, self._token = torch.from_numpy(sentence), torch.from_numpy(token)
        self._row = torch.from_numpy(row)
        self.n_rows = int(row.max()) + 1
        self._count = torch.bincount(self._row, minlength=self.n_rows)

    def __call__(self, values: Tensor) -> Tensor:
        """[batch token ...] -> [word ...], float32 on the CPU: there sums come in a fixed order."""
        taken = values[self._sentence.to(values.device), self._token.to(values.device)].float().cpu()
        total = taken.new_zeros(self.n_rows, *taken.shape[1:]).index_add_(0, self._row, taken)
        return total / self._count.view(-1, *[1] * (taken.ndim - 1))


@dataclass
class Found:
    """The vectors of one batch's words, by the names of their files."""

    values: dict[str, Tensor] = field(default_factory=dict)
    layers: dict[int, LayerInfo] = field(default_factory=dict)
    states: int = 0


def run_words(
    model: Model, pooling: Pooling, sites: Sequence[str], *, states: bool = False, embedding: bool = False
) -> Found:
    """Run the model over one batch; vectors of its words at every site of every layer, states and embeddings."""
    found = Found()
    two_stacks = bool(getattr(model.config, "is_encoder_decoder", False))

    def take(call: AttentionCall) -> None:
        if call.kind == "cross" or (two_stacks and call.kind != "encoder"):
            return
        place = len(found.layers)
        found.layers[place] = LayerInfo(call.layer, call.kind, call.index, call.n_heads, call.groups)
        for site in sites:
            found.values[f"{site}-{place}"] = pooling(getattr(call, site).transpose(1, 2))

    inputs = model_inputs(model, pooling.batch)
    with _hidden_states(model) as outputs:
        run_forward(model, from_model_inputs(model, {**inputs, "output_hidden_states": True}, describe=False), take)
    if states:
        hidden = outputs[-1]
        for place, state in enumerate(hidden):
            found.values[f"state-{place}"] = pooling(state)[:, None]
        found.states = len(hidden)
    if embedding:
        found.values["embedding"] = pooling(_embedded(model, inputs["input_ids"]))[:, None]
    return found


def pad_id(model: Model) -> int:
    """The tokenizer's padding token, or 0: padding is masked."""
    pad = getattr(model.tokenizer, "pad_token_id", None)
    return 0 if pad is None else int(pad)


def model_inputs(model: Model, batch: Batch) -> dict[str, Any]:
    """What the model takes of a batch; the decoder of a two-stack model gets its start token alone."""
    inputs = {"input_ids": batch.input_ids, "attention_mask": batch.attention_mask}
    if "token_type_ids" in getattr(model.tokenizer, "model_input_names", ()):  # GPT-2 would add an embedding for zeros
        inputs["token_type_ids"] = batch.token_types
    accepted = accepted_inputs(model)
    kept: dict[str, Any] = {key: value for key, value in inputs.items() if key in accepted}
    if model.decoder_start is not None:
        kept["decoder_input_ids"] = np.full((len(batch), 1), model.decoder_start)
    return kept


def _embedded(model: Model, ids: np.ndarray) -> Tensor:
    table = model.backbone.get_input_embeddings()  # type: ignore[operator]
    with torch.no_grad():
        return torch.nn.functional.embedding(torch.from_numpy(ids).to(table.weight.device), table.weight)


@contextmanager
def _hidden_states(model: Model) -> Iterator[list[tuple[Tensor, ...]]]:
    """Collects the hidden states of every forward pass of the model's backbone."""
    taken: list[tuple[Tensor, ...]] = []

    def after(_module: Any, _inputs: Any, output: Mapping[str, Any]) -> None:
        hidden = output.get("encoder_hidden_states")
        taken.append(hidden if hidden is not None else output["hidden_states"])

    handle = model.backbone.register_forward_hook(after)
    try:
        yield taken
    finally:
        handle.remove()
