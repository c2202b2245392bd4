"""What is watched while heads are changed: the loss of a language-model head, or how far the final states turn.

One interface for both: `given` makes the inputs of a batch, `observe` runs the model, `change` compares two runs token by token. What is
masked depends on the sentence and the seed alone, never on the batch.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from attnprobe.errors import InputError, explain, near_names
from attnprobe.models.inputs import accepted_inputs, forward_inputs
from attnprobe.models.memory import enough_memory
from attnprobe.models.model import Model
from attnprobe.records import Sentence
from attnprobe.text.align import PAD, Encoded
from attnprobe.text.batching import collate

MASKED_SHARE = 0.15
"""Share of a sentence's word pieces that are masked, at least one (Devlin et al. 2019; there 80 % of them by the mask token)."""


@dataclass(frozen=True)
class Watched:
    """A quantity that is watched."""

    name: str
    quantity: str
    unit: str
    limits: tuple[float | None, float | None]
    """Least and greatest change."""


WATCHED = {
    "states": Watched("states", "1 - cosine of the final states, mean over real tokens", "1", (0.0, 2.0)),
    "masked-lm": Watched(
        "masked-lm", f"masked-language-model loss, {MASKED_SHARE:.0%} of the pieces masked", "nats", (None, None)
    ),
    "causal-lm": Watched("causal-lm", "next-token loss, mean over tokens", "nats", (None, None)),
}


def watched_of(model: Model, name: str | None = None) -> Watched:
    """The quantity of that name, or the one that fits the model: the loss of its language-model head, else its final states.

    Raises `InputError` for an unknown name, a loss that the model has no head for, and encoder-decoder models.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise InputError(
            explain("cannot watch an encoder-decoder model", got=model.family, remedy="Its corpus holds no targets")
        )
    fits = model.head if model.head in WATCHED else _head_of(model)
    if name is None:
        return WATCHED[fits]
    if name not in WATCHED:
        raise InputError(f"unknown quantity to watch {name!r}; {near_names(name, WATCHED)}.")
    if name != "states" and name != fits:
        what = f"{model.name} has no head for the quantity {name!r}"
        raise InputError(explain(what, expected=fits, remedy=f"Load it with head={name!r}"))
    return WATCHED[name]


def _head_of(model: Model) -> str:
    """What a head that came with a model in memory predicts: words of the vocabulary, or nothing we have labels for."""
    outputs = getattr(model.module, "get_output_embeddings", lambda: None)()
    if outputs is None:
        return "states"
    return "causal-lm" if getattr(model.module, "can_generate", lambda: False)() else "masked-lm"


@dataclass(frozen=True)
class Given:
    """The inputs of one batch, and where its outputs count."""

    watched: Watched
    inputs: dict[str, Tensor]
    scored: Tensor
    """Tokens whose value counts, bool [row token]."""
    targets: Tensor | None
    """Token that each position should predict, [row token]; None for states."""

    def rows(self, chosen: Sequence[int]) -> Given:
        """Some sentences of the batch."""
        at = torch.as_tensor(list(chosen), device=self.scored.device)
        targets = None if self.targets is None else self.targets[at]
        inputs = {key: value[at] for key, value in self.inputs.items()}
        return replace(self, inputs=inputs, scored=self.scored[at], targets=targets)


def given(model: Model, items: Sequence[Encoded], watched: Watched, seed: int) -> Given:
    """The batch of these sentences, masked where a masked-language-model loss is watched."""
    pad = getattr(model.tokenizer, "pad_token_id", None)
    batch = collate(items, pad_id=0 if pad is None else pad)
    ids, real = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.roles != PAD)
    scored, targets = real, None
    if watched.name == "masked-lm":
        scored, targets = _masked(items, ids.shape[1], seed), ids
        ids = torch.where(scored, mask_token(model), ids)
    elif watched.name == "causal-lm":  # the loss stands at the token it is read from; the last one has none
        targets = ids.roll(-1, 1)
        scored = real & real.roll(-1, 1)
        scored[:, -1] = False
    inputs = {"input_ids": ids, "attention_mask": real.long()}
    # GPT-2 takes types, and was trained without
    if "token_type_ids" in getattr(model.tokenizer, "model_input_names", ()):
        inputs["token_type_ids"] = torch.from_numpy(batch.token_types)
    accepted, device = accepted_inputs(model), model.device
    return Given(
        watched,
        {name: value.to(device) for name, value in inputs.items() if name in accepted},
        scored.to(device),
        None if targets is None else targets.to(device),
    )


def _masked(items: Sequence[Encoded], length: int, seed: int) -> Tensor:
    """Which pieces are masked, bool [row token]."""
    masked = torch.zeros(len(items), length, dtype=torch.bool)
    for row, item in enumerate(items):
        pieces = np.flatnonzero(item.alignment.word_index >= 0)
        n = max(1, round(MASKED_SHARE * len(pieces)))
        masked[row, generator_of(item.sentence, seed).choice(pieces, n, replace=False)] = True
    return masked


def mask_token(model: Model) -> int:
    token = getattr(model.tokenizer, "mask_token_id", None)
    if token is None:
        remedy = "Watch its states instead"
        raise InputError(explain(f"the tokenizer of {model.name} has no mask token", remedy=remedy))
    return int(token)


def observe(model: Model, batch: Given) -> Tensor:
    """The final states at unit length [row token dim], or the loss of each token in nats [row token]."""
    inputs = forward_inputs(model, batch.inputs)
    with enough_memory(model, batch.scored):
        if batch.targets is None:
            return functional.normalize(model.backbone(**inputs).last_hidden_state, dim=-1)
        logits = model.module(**inputs).logits
        logits = logits.flatten(0, 1).to(torch.promote_types(logits.dtype, torch.float32))
        losses = functional.cross_entropy(logits, batch.targets.flatten(), reduction="none")
    return losses.view(batch.targets.shape)


def change(batch: Given, after: Tensor, before: Tensor) -> Tensor:
    """What changed at each token [row token]: 1 - cosine of the states, or the rise of the loss."""
    # half the squared distance of unit vectors is 1 - cosine, without its cancellation
    return after - before if batch.targets is not None else 0.5 * (after - before).square().sum(-1)


def mean_of(batch: Given, values: Tensor) -> Tensor:
    """Mean over the tokens that count, [row]; NaN for a row that has none."""
    return torch.where(batch.scored, values, 0.0).sum(1) / batch.scored.sum(1)


def generator_of(sentence: Sentence, seed: int) -> np.random.Generator:
    """A generator that depends on the words of the sentence and the seed alone."""
    return np.random.default_rng([seed, *_digest(sentence, seed)])


def rank_of(sentence: Sentence, seed: int) -> bytes:
    """A random rank that depends on the words, the id and the seed alone: the lowest n are a sample, in whatever order they come."""
    return _digest(sentence, seed) + sentence.id.encode()


def _digest(sentence: Sentence, seed: int) -> bytes:
    return hashlib.sha256("\0".join((str(seed), *sentence.words)).encode()).digest()


def sample(items: Iterable[Encoded], n: int, seed: int) -> list[Encoded]:
    """At most `n` sentences at random, in the order of the corpus; only `n` are in memory at once."""
    numbered = ((rank_of(item.sentence, seed), place, item) for place, item in enumerate(items))
    lowest = heapq.nsmallest(n, numbered, key=lambda entry: entry[:2])
    return [item for _, _, item in sorted(lowest, key=lambda entry: entry[1])]


def batches_of(items: Sequence[Encoded], batch_tokens: int) -> Iterator[list[int]]:
    """Places of sentences that run together, longest first: at most `batch_tokens` tokens, padding counted."""
    batch: list[int] = []
    for place in sorted(range(len(items)), key=lambda place: (-len(items[place]), place)):
        if batch and len(items[batch[0]]) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def losses_of(model: Model, items: Sequence[Encoded], *, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """For each sentence, the summed loss of the model's language-model head in nats, and the number of tokens it is summed over."""
    watched = watched_of(model)
    total, count = np.zeros(len(items)), np.zeros(len(items))
    with torch.no_grad():
        for places in batches_of(items, 2048):
            batch = given(model, [items[place] for place in places], watched, seed)
            losses = torch.where(batch.scored, observe(model, batch), 0.0)
            total[places], count[places] = losses.cpu().double().sum(1), batch.scored.sum(1).cpu()
    return total, count
