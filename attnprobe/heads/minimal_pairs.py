"""Minimal pairs: whether a language model prefers the acceptable sentence, and how often it no longer does when a head is taken out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from scipy import stats
from torch import Tensor

from attnprobe.attention.call import AttentionCall
from attnprobe.errors import CaptureError, InputError, explain
from attnprobe.heads import _watch
from attnprobe.models.capture import ModelLike, as_model, record
from attnprobe.models.inputs import forward_inputs
from attnprobe.models.intervene import ablating, mean_contexts
from attnprobe.models.memory import enough_memory
from attnprobe.models.model import Model
from attnprobe.models.texts import encode
from attnprobe.stream import RatioSums, holm, t_quantile, wilson
from attnprobe.text.benchmarks_blimp import MinimalPair

ALL = "ALL"
"""Name under which all pairs stand together."""
SENTENCES = {"causal-lm": 64, "masked-lm": 4}
"""Sentences that run together; a masked one runs as many times as it has tokens."""

Progress = Callable[[int, int], None]
"""Told (sentences done, sentences in all)."""


@dataclass(frozen=True)
class _Batch:
    """Sentences on the model's device, and which predictions make their scores."""

    inputs: dict[str, Tensor]
    row: Tensor
    """Row of the batch in which each predicted token is predicted."""
    position: Tensor
    """Position whose logits predict it."""
    token: Tensor
    sentence: Tensor
    """Sentence of the batch it belongs to; on the CPU, where scores are added up in a fixed order."""
    n: int
    """Number of sentences."""


def pair_accuracy(
    model: ModelLike,
    pairs: Iterable[MinimalPair],
    *,
    how: str = "zero",
    progress: Progress | None = None,
) -> xr.Dataset:
    """Share of minimal pairs whose acceptable sentence is the likelier one, and its change when each head is ablated.

    A sentence's score is its log-likelihood in nats: of each token after those before it (`causal-lm`; the first has none), or of each token
    masked alone (`masked-lm`, Salazar et al. 2020). Equal scores count as wrong. By paradigm, and for `ALL` pairs: `accuracy` with `low`
    and `high`, `n`, and `margin`, the mean of log p(good) - log p(bad). By head: `change` of the accuracy (ablated minus unchanged, -1..1)
    on the same pairs with its 95 % interval, never of zero width, and `p_adjusted` (exact McNemar test, two-sided, Holm over the heads);
    `margin_change` in nats with its interval. Pairs count as independent.

    `how` is that of `ablating`; means are taken over the sentences of the pairs. Raises `InputError` for a model without language-model head
    and for no pairs; `CaptureError` where taking heads out changes nothing. Source: Warstadt et al. 2020; Newcombe 1998 (interval).
    """
    model = as_model(model)
    watched = _watch.watched_of(model)
    if watched.name == "states":
        what, remedy = f"{model.name} has no language-model head", "Load it with head='causal-lm' or 'masked-lm'"
        raise InputError(explain(what, expected="a head that gives words probabilities", remedy=remedy))
    given = list(pairs)
    if not given:
        raise InputError(explain("no minimal pair to score", expected="at least one", got="none"))
    texts = [text for pair in given for text in (pair.good, pair.bad)]
    size = SENTENCES[watched.name]
    parts = [texts[start : start + size] for start in range(0, len(texts), size)]
    modules = _modules(model, parts[0])
    means = None
    if how == "mean":
        means = mean_contexts(model, (encode(model, part).inputs for part in parts))
    before = np.zeros(len(texts))
    after = np.full((len(texts), len(modules), max(heads for _, _, heads in modules)), np.nan)
    done = 0
    for part in parts:
        batch = _batch(model, part, watched.name)
        own = slice(done, done + len(part))
        before[own] = _scores(model, batch)
        for layer, (_, _, heads) in enumerate(modules):
            for head in range(heads):
                with ablating(model, [(layer, head)], how=how, means=means):
                    after[own, layer, head] = _scores(model, batch)
        done += len(part)
        if progress is not None:
            progress(done, len(texts))
    if np.array_equal(np.broadcast_to(before[:, None, None], after.shape), after):
        what, got = f"taking out heads of {model.name} changes nothing", f"the same scores (family {model.family!r})"
        raise CaptureError(
            explain(what, expected="other scores", got=got, remedy="Its attention cannot be edited here")
        )
    return _table(given, before, after, modules, {"how": how, "watch": watched.name})


def _modules(model: Model, texts: Sequence[str]) -> list[tuple[str, int, int]]:
    """Kind, index and number of heads of each attention module."""
    modules: list[tuple[str, int, int]] = []

    def note(call: AttentionCall, _batch: Any) -> None:
        modules.append((call.kind, call.index, call.n_heads))

    record(model, [encode(model, texts[:1]).inputs], note)
    return modules


def _batch(model: Model, texts: Sequence[str], kind: str) -> _Batch:
    encoded = encode(model, list(texts))
    inputs = {name: value for name, value in encoded.inputs.items() if isinstance(value, Tensor)}
    ids, real, special = inputs["input_ids"], encoded.real, encoded.special
    if kind == "causal-lm":
        sentence, token = torch.nonzero(real[:, 1:] & real[:, :-1] & ~special[:, 1:], as_tuple=True)
        row, position = sentence, token
        target = ids[sentence, token + 1]
    else:
        sentence, position = torch.nonzero(real & ~special, as_tuple=True)
        row = torch.arange(len(sentence))
        target = ids[sentence, position]
        inputs = {name: value[sentence] for name, value in inputs.items()}
        masked = inputs["input_ids"].clone()
        masked[row, position] = _watch.mask_token(model)
        inputs["input_ids"] = masked
    device = model.device
    return _Batch(inputs, row.to(device), position.to(device), target, sentence.cpu(), len(texts))


@torch.no_grad()
def _scores(model: Model, batch: _Batch) -> np.ndarray:
    """Log-likelihood of each sentence, in nats."""
    with enough_memory(model, batch.inputs["input_ids"]):
        logits = model.module(**forward_inputs(model, batch.inputs)).logits[batch.row, batch.position]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        found = torch.log_softmax(logits, -1).gather(1, batch.token[:, None])[:, 0].cpu().double()
    return found.new_zeros(batch.n).index_add_(0, batch.sentence, found).numpy()


def _table(
    pairs: Sequence[MinimalPair],
    before: np.ndarray,
    after: np.ndarray,
    modules: Sequence[tuple[str, int, int]],
    attributes: dict[str, str],
) -> xr.Dataset:
    margin, ablated = before[::2] - before[1::2], after[::2] - after[1::2]
    paradigms = np.array([pair.paradigm for pair in pairs], dtype=object)
    names = [*dict.fromkeys(paradigms), ALL]
    columns: dict[str, list[np.ndarray]] = {}
    for name in names:
        own = slice(None) if name == ALL else paradigms == name
        for key, value in _one(margin[own], ablated[own]).items():
            columns.setdefault(key, []).append(value)
    nats, share = {"unit": "nats"}, {"unit": "share"}
    units = {"n": {"unit": "pairs"}, "p_adjusted": {"note": "exact McNemar, two-sided, Holm over heads"}}
    variables = {
        key: (
            ["paradigm", "layer", "head"][: np.ndim(values[0]) + 1],
            np.stack(values),
            units.get(key, nats if "margin" in key else share),
        )
        for key, values in columns.items()
    }
    coordinates = {
        "paradigm": names,
        "layer": np.arange(len(modules)),
        "kind": ("layer", [kind for kind, _, _ in modules]),
        "index": ("layer", [index for _, index, _ in modules]),
        "head": np.arange(after.shape[-1]),
    }
    return xr.Dataset(variables, coordinates, attrs=attributes)


def _one(margin: np.ndarray, ablated: np.ndarray) -> dict[str, np.ndarray]:
    """One paradigm: margins of its pairs [pair], and with each head taken out [pair layer head]."""
    right, n = margin > 0, len(margin)
    there = ~np.isnan(ablated[0])
    gains, losses = (
        (own & there).sum(0) for own in (~right[:, None, None] & (ablated > 0), right[:, None, None] & ~(ablated > 0))
    )
    low, high = RatioSums.of(right.astype(float), np.ones(n)).interval()
    change_low, change_high = change_interval(gains, losses, n)
    p = np.where(there, np.minimum(2 * stats.binom.cdf(np.minimum(gains, losses), gains + losses, 0.5), 1.0), np.nan)
    sums = RatioSums.of(ablated - margin[:, None, None], np.ones((n, 1, 1)))
    moved_low, moved_high = sums.interval((None, None))
    return {
        "n": np.array(n),
        "accuracy": np.array(right.mean()),
        "low": low,
        "high": high,
        "margin": np.array(margin.mean()),
        "change": np.where(there, (gains - losses) / n, np.nan),
        "change_low": np.where(there, change_low, np.nan),
        "change_high": np.where(there, change_high, np.nan),
        "p_adjusted": holm(p),
        "margin_change": sums.ratio,
        "margin_change_low": moved_low,
        "margin_change_high": moved_high,
    }


def change_interval(gains: np.ndarray, losses: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of (gains - losses) / n, the change of a share on the same n cases: square-and-add of the two Wilson intervals.

    The two shares are parts of one multinomial, so that they are correlated by -sqrt(odds of one times odds of the other). In -1..1, never of zero
    width. Source: Newcombe 1998.
    """
    t = t_quantile(n)
    g, loss = gains / n, losses / n
    (g_low, g_high), (l_low, l_high) = (wilson(share, np.full(np.shape(share), n), t) for share in (g, loss))
    with np.errstate(divide="ignore", invalid="ignore"):
        together = -np.nan_to_num(np.sqrt(g * loss / ((1 - g) * (1 - loss))), nan=1.0, posinf=1.0)

    def distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.sqrt(np.maximum(a * a + b * b - 2 * together * a * b, 0.0))

    d = g - loss
    return np.clip(d - distance(g - g_low, l_high - loss), -1, 1), np.clip(
        d + distance(g_high - g, loss - l_low), -1, 1
    )
