"""How much the model's outcome hangs on each head: by the gradient of a gate on it, and by taking the head out.

What counts as the outcome is named with its unit in every result: the loss of the model's language-model head where it has one, else
1 - cosine between the final states with and without the change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import CaptureError, InputError, explain, near_names
from attnprobe.heads import _watch
from attnprobe.heads._watch import Given, Watched
from attnprobe.models.capture import ModelLike, as_model, record
from attnprobe.models.flow import flowing
from attnprobe.models.interface import Pending, Result, editing
from attnprobe.models.intervene import ablating, mean_contexts
from attnprobe.models.memory import enough_memory
from attnprobe.models.model import Model
from attnprobe.records import Sentence
from attnprobe.stream import RatioSums
from attnprobe.text.align import Encoded, encode
from attnprobe.text.batching import cluster_of

ABLATIONS = {"ablation_zero": "zero", "ablation_mean": "mean", "ablation_uniform": "uniform"}
KINDS = ("gradient", *ABLATIONS)
SENTENCES = 100
"""Sentences drawn from the corpus unless told otherwise: every head costs a forward pass of each, for each kind of ablation."""
BATCH_TOKENS = 512
"""Tokens that run together; what bounds memory, since a gradient keeps the activations of all layers."""
PROBES = 4
"""Random directions of the final states whose gradient is taken, where the states are watched."""

Progress = Callable[[int, int], None]
"""Told (sentences done, sentences in all)."""

_SOURCES = {
    "gradient": "Michel et al. 2019",
    "ablation_zero": "Michel et al. 2019",
    "ablation_mean": "Wang et al. 2022",
    "ablation_uniform": "Kovaleva et al. 2019",
}


@dataclass(frozen=True)
class _Run:
    """What all batches share."""

    model: Model
    watched: Watched
    kinds: tuple[str, ...]
    modules: tuple[tuple[str, int, int], ...]
    """Kind, index and number of heads of each attention module."""
    means: dict[int, Tensor]
    seed: int
    probes: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.modules), max(heads for _, _, heads in self.modules)

    def heads(self) -> Iterator[tuple[int, int]]:
        for layer, (_, _, heads) in enumerate(self.modules):
            yield from ((layer, head) for head in range(heads))


def measure_importance(
    model: ModelLike,
    sentences: Iterable[Sentence],
    *,
    kinds: Sequence[str] = KINDS,
    watch: str | None = None,
    max_sentences: int | None = SENTENCES,
    cluster: str = "document",
    seed: int = 0,
    batch_tokens: int = BATCH_TOKENS,
    probes: int = PROBES,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Importance of every head over a sample of a corpus, each kind with a 95 % interval over clusters.

    `gradient`: mean over sentences x of |dL(x) / dg| for a gate g = 1 on the head's context; L the loss, mean over its tokens. The absolute
    value is taken per sentence, so the batch size changes nothing. Where the final states are watched, 1 - cosine has no slope at g = 1; then
    half its second derivative, what it predicts for g = 0, estimated by `probes` random directions without bias. `gradient_normalised`:
    the same over its root sum of squares in each layer. `ablation_zero`, `ablation_mean`, `ablation_uniform`: mean change of the
    quantity when the head's context is 0, its mean over the sample, or the mean of the values its query may see. Unit: that of the quantity
    (nats, or none); gradients and changes of states are at least 0, a change of loss may be negative.

    `watch` is `states`, `masked-lm` or `causal-lm`, by default what the model's head gives. Raises `InputError` for unknown names and an empty
    corpus, `CaptureError` where taking all heads out changes nothing (a family whose attention does not pass the interface).

    Source: Michel et al. 2019 (`head_mask`, which its code used, has no effect in today's transformers).

    >>> found = measure_importance("minilm", [Sentence("a", ("The", "cat", "sat"))], kinds=["ablation_zero"])
    >>> found["ablation_zero"].dims, found.attrs["unit"]
    (('layer', 'head'), '1')
    """
    model = as_model(model)
    if model.tokenizer is None:
        raise InputError(f"{model.name} has no tokenizer, so a corpus of words cannot be run through it.")
    encoded = encode(model.tokenizer, sentences, max_length=model.max_length)
    items = list(encoded) if max_sentences is None else _watch.sample(encoded, max_sentences, seed)
    options = {"kinds": kinds, "watch": watch, "cluster": cluster, "seed": seed}
    return importance_table(model, items, **options, batch_tokens=batch_tokens, probes=probes, progress=progress)  # type: ignore[arg-type]


def importance_table(
    model: Model,
    items: Sequence[Encoded],
    *,
    kinds: Sequence[str] = KINDS,
    watch: str | None = None,
    cluster: str = "document",
    seed: int = 0,
    batch_tokens: int = BATCH_TOKENS,
    probes: int = PROBES,
    progress: Progress | None = None,
) -> xr.Dataset:
    """`/importance` of a study, over sentences that are encoded already; see `measure_importance`."""
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"unknown kind of importance {kind!r}; {near_names(kind, KINDS)}.")
    if not items or not kinds or probes < 1:
        expected = "at least one sentence, kind and probe"
        raise InputError(explain("nothing to measure importance on", expected=expected))
    watched = _watch.watched_of(model, watch)
    batches = list(_watch.batches_of(items, batch_tokens))
    run = _prepared(model, watched, tuple(kinds), items, batches, seed, probes)
    values = np.zeros((len(kinds), len(items), *run.shape))
    full = np.zeros(len(items))
    done = 0
    for batch in batches:
        data = _watch.given(model, [items[place] for place in batch], watched, seed)
        values[:, batch], full[batch] = _measure(run, data, [items[place].sentence for place in batch])
        done += len(batch)
        if progress is not None:
            progress(done, len(items))
    return _table(run, values, full, [cluster_of(item.sentence, cluster) for item in items])


def _prepared(
    model: Model,
    watched: Watched,
    kinds: tuple[str, ...],
    items: Sequence[Encoded],
    batches: list[list[int]],
    seed: int,
    probes: int,
) -> _Run:
    """The attention modules, and the means where they are asked for; refuses a model on which ablation does nothing."""
    modules: list[tuple[str, int, int]] = []

    def note(call: AttentionCall, _batch: Any) -> None:
        modules.append((call.kind, call.index, call.n_heads))

    first = _watch.given(model, [items[batches[-1][-1]]], watched, seed)
    record(model, [first.inputs], note)
    means = {}
    if "ablation_mean" in kinds:
        given = (_watch.given(model, [items[place] for place in batch], watched, seed) for batch in batches)
        means = mean_contexts(model, (data.inputs for data in given))
    run = _Run(model, watched, kinds, tuple(modules), means, seed, probes)
    with torch.no_grad():
        before = _watch.observe(model, first)
        with ablating(model, run.heads(), how="zero"):
            after = _watch.observe(model, first)
    if torch.equal(before, after):
        what = f"taking out every head of {model.name} changes nothing"
        got = f"the same output (family {model.family!r})"
        raise CaptureError(
            explain(what, expected="another output", got=got, remedy="Its attention cannot be edited here")
        )
    return run


def _measure(run: _Run, data: Given, sentences: Sequence[Sentence]) -> tuple[np.ndarray, np.ndarray]:
    """Values of each kind [kind row layer head], and the quantity in the full model [row]."""
    model = run.model
    values = np.full((len(run.kinds), len(sentences), *run.shape), np.nan)
    with torch.no_grad():
        before = _watch.observe(model, data)
        for number, kind in enumerate(run.kinds):
            if kind == "gradient":
                with enough_memory(model, data.scored):
                    values[number] = _gradients(run, data, sentences)
                continue
            for layer, head in run.heads():
                with ablating(model, [(layer, head)], how=ABLATIONS[kind], means=run.means or None):
                    after = _watch.observe(model, data)
                values[number, :, layer, head] = _numbers(_watch.mean_of(data, _watch.change(data, after, before)))
        full = torch.zeros(len(sentences)) if data.targets is None else _watch.mean_of(data, before)
    return values, _numbers(full)


def _numbers(values: Tensor) -> np.ndarray:
    return values.cpu().double().numpy()


@torch.enable_grad()
def _gradients(run: _Run, data: Given, sentences: Sequence[Sentence]) -> np.ndarray:
    """Each sentence's own gradient score [row layer head]: sentences do not touch each other, so one backward pass holds all of them."""
    gates: list[Tensor] = []

    def gate(call: Pending, forward: Callable[[Pending], Result]) -> Result:
        out, weights = forward(call)
        gates.append(out.new_ones(out.shape[0], out.shape[2], requires_grad=True))
        return out * gates[-1][:, None, :, None], weights

    with editing(gate), flowing(run.model.module):
        seen = _watch.observe(run.model, data)
    if data.targets is not None:
        slopes = [g.abs() for g in torch.autograd.grad(_watch.mean_of(data, seen).nansum(), gates)]
    else:
        slopes = [torch.zeros_like(g) for g in gates]
        for directions in _directions(run, data, seen, sentences):
            found = torch.autograd.grad((seen * directions).sum(), gates, retain_graph=True)
            slopes = [total + g.square() / (2 * run.probes) for total, g in zip(slopes, found, strict=True)]
    values = np.full((len(sentences), *run.shape), np.nan)
    for layer, slope in enumerate(slopes):
        values[:, layer, : slope.shape[1]] = _numbers(slope.detach())
    values[_numbers(data.scored.sum(1)) == 0] = np.nan
    return values


def _directions(run: _Run, data: Given, seen: Tensor, sentences: Sequence[Sentence]) -> Iterator[Tensor]:
    """Random signs over a sentence's states, over the root of its tokens: the mean square slope along them is that of all states.

    With s the states at unit length, 1 - cosine has the second derivative |ds/dg|^2, and E (r . ds/dg)^2 = |ds/dg|^2 for random signs r.
    """
    counts = data.scored.sum(1).tolist()
    generators = [_watch.generator_of(sentence, run.seed) for sentence in sentences]
    for _ in range(run.probes):
        signs = torch.zeros(seen.shape, dtype=seen.dtype)
        for row, (generator, n) in enumerate(zip(generators, counts, strict=True)):
            drawn = generator.integers(2, size=(n, seen.shape[-1])) * 2.0 - 1.0
            signs[row, data.scored[row].cpu()] = torch.from_numpy(drawn).to(seen.dtype) / n**0.5
        yield signs.to(seen.device)


def _table(run: _Run, values: np.ndarray, full: np.ndarray, clusters: Sequence[str]) -> xr.Dataset:
    _, numbers = np.unique(np.array(clusters, dtype=object).astype(str), return_inverse=True)
    dims, unit = ["layer", "head"], run.watched.unit
    variables: dict[str, Any] = {}
    for kind, own in zip(run.kinds, values, strict=True):
        sums, is_gradient = _sums(own, numbers), kind == "gradient"
        low, high = sums.interval((0.0, None) if is_gradient else run.watched.limits)
        told: dict[str, Any] = {"unit": unit, "source": _SOURCES[kind], "quantity": run.watched.quantity}
        if is_gradient:
            told["order"] = 1 if run.watched.name != "states" else 2
            variables["gradient_normalised"] = (dims, _normalised(sums.ratio), {"unit": "share of the layer's norm"})
        for suffix, array in (("", sums.ratio), ("_low", low), ("_high", high)):
            variables[kind + suffix] = (dims, array, told)
    whole = _sums(full, numbers)
    variables["full"] = ((), whole.ratio, {"unit": unit, "note": "the quantity in the unchanged model"})
    coordinates = {
        "layer": np.arange(len(run.modules)),
        "kind": ("layer", [kind for kind, _, _ in run.modules]),
        "index": ("layer", [index for _, index, _ in run.modules]),
        "head": np.arange(run.shape[1]),
    }
    attributes: dict[str, Any] = {"watch": run.watched.name, "quantity": run.watched.quantity, "unit": unit}
    attributes |= {"n": int(whole.n), "clusters": int(whole.clusters), "seed": run.seed, "probes": run.probes}
    return xr.Dataset(variables, coordinates, attributes)


def _normalised(scores: np.ndarray) -> np.ndarray:
    """Scores over their root sum of squares in each layer; NaN in a layer without any."""
    norm = np.sqrt(np.nansum(np.square(scores), 1, keepdims=True))
    return np.divide(scores, norm, out=np.full(scores.shape, np.nan), where=norm > 0)


def _sums(values: np.ndarray, clusters: np.ndarray) -> RatioSums:
    """Sums over clusters of values [sentence ...]; NaN (a head that is not there) is not counted."""
    defined = ~np.isnan(values)
    y, n = (np.zeros((int(clusters.max()) + 1, *values.shape[1:])) for _ in range(2))
    np.add.at(y, clusters, np.where(defined, values, 0.0))
    np.add.at(n, clusters, defined.astype(np.float64))
    return RatioSums.of(y, n)
