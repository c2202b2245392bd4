"""From the blocks of a `PatternView` to stacks: blocks checked, generation steps joined, axes named.

Nothing is left out here, and nothing is rounded: choosing and packing come after.
"""

from __future__ import annotations

import numpy as np

from attnprobe.errors import InputError, explain
from attnprobe.records import PatternBlock, PatternView
from attnprobe.report._view_stacks import KINDS, Axis, Module, Neurons, Stack

MASKED_BELOW = -5e3
"""A score from here down is a hidden key: models write masks as minus infinity or add a number such as -1e4."""
OUTSIDE = 1e-2
"""Weights may leave 0..1 by this much, as those of half precision do."""
ROUNDING = 1e-5
"""Between scale * q.k and the score, differences below this share of the largest product are rounding."""


def stacks_of(view: PatternView) -> tuple[Stack, ...]:
    """The blocks of a view as stacks, in the order encoder, decoder, cross.

    Raises `InputError` for a view without blocks, for weights that are no weights, and where sizes do not fit each other.
    """
    if not view.blocks:
        raise InputError(
            explain("nothing to show", expected="at least one attention pattern", got="a view without blocks")
        )
    for block in view.blocks:
        _refuse_no_weights(block)
    found = {block.kind for block in view.blocks}
    joined = {kind: _join_kind([b for b in view.blocks if b.kind == kind]) for kind in sorted(found, key=KINDS.index)}
    two_sequences = "cross" in found
    lengths = _lengths(joined, two_sequences)
    axes = {name: _axis(view, name, length) for name, length in lengths.items()}
    stacks = []
    for kind, (modules, steps) in joined.items():
        query, key = _sides(kind, two_sequences)
        stacks.append(Stack(kind, axes[query], axes[key], steps, modules))
    return tuple(stacks)


def _refuse_no_weights(block: PatternBlock) -> None:
    where = f"layer {block.layer} ({block.kind}, step {block.step})"
    if block.kind not in KINDS:
        raise InputError(explain("unknown kind of attention", where=where, expected=", ".join(KINDS), got=block.kind))
    if block.pattern.ndim != 3 or 0 in block.pattern.shape:
        shape = str(block.pattern.shape)
        raise InputError(
            explain("a pattern has the wrong shape", where=where, expected="[head query key], not empty", got=shape)
        )
    wrong = (block.pattern < -OUTSIDE) | (
        block.pattern > 1 + OUTSIDE
    )  # NaN is neither: such rows are shown as undefined
    if wrong.any():
        head, query, key = np.argwhere(wrong)[0]
        got = f"{block.pattern[head, query, key]:.4g} (head {head}, query {query}, key {key})"
        raise InputError(explain("a pattern holds what is no weight", where=where, expected="0 to 1", got=got))


def _sides(kind: str, two_sequences: bool) -> tuple[str, str]:
    """Which sequence the queries and the keys of a kind lie on."""
    if kind == "cross":
        return "target", "source"
    side = "target" if kind == "decoder" and two_sequences else "source"
    return side, side


def _join_kind(blocks: list[PatternBlock]) -> tuple[tuple[Module, ...], np.ndarray]:
    """One module per layer out of its steps, and the step of each query."""
    layers = sorted({block.layer for block in blocks})
    joined = [_join_steps(sorted((b for b in blocks if b.layer == layer), key=lambda b: b.step)) for layer in layers]
    first, steps = joined[0]
    for module, other in joined:
        if module.pattern.shape[1:] != first.pattern.shape[1:] or not np.array_equal(steps, other):
            raise InputError(
                explain(
                    "attention modules of one kind differ in size, and one page draws them over the same tokens",
                    where=f"layers {first.layer} and {module.layer} ({blocks[0].kind})",
                    expected="the same queries and keys",
                    got=f"{first.pattern.shape[1:]} and {module.pattern.shape[1:]}",
                )
            )
    return tuple(module for module, _ in joined), steps


def _join_steps(blocks: list[PatternBlock]) -> tuple[Module, np.ndarray]:
    """The steps of one module, one below the other: each adds the queries that the steps before it did not have."""
    first = blocks[0]
    steps: list[int] = []
    rows: list[slice] = []
    for block in blocks:
        n = block.pattern.shape[1]
        # without a cache a step computes all queries anew, and only the last ones are new
        rows.append(slice(len(steps) if n > len(steps) else 0, n))
        steps += [block.step] * (n - rows[-1].start)
    columns, n_keys = _key_places(blocks, rows)
    pattern = _stacked([block.pattern for block in blocks], rows, columns, n_keys, 0.0)
    parts = [_neurons(block) for block in blocks]
    known = [part for part in parts if part is not None]
    neurons = _join_neurons(known, rows, columns, n_keys) if len(known) == len(parts) else None
    total = pattern.sum(-1, dtype=np.float64)
    heads = tuple(range(first.pattern.shape[0]))
    return Module(first.layer, first.index, first.source, heads, pattern, total, neurons), np.array(steps)


def _key_places(blocks: list[PatternBlock], rows: list[slice]) -> tuple[list[slice], int]:
    """Where the keys of each step lie among all keys, and how many there are.

    A step of a decoder sees the keys up to its last query; with a sliding cache only the latest of them.
    """
    widths = [block.pattern.shape[2] for block in blocks]
    if len(blocks) == 1 or blocks[0].kind != "decoder":
        return [slice(0, width) for width in widths], max(widths)
    ends = np.cumsum([row.stop - row.start for row in rows]).tolist()
    return [slice(max(0, end - width), end) for end, width in zip(ends, widths, strict=True)], ends[-1]


def _stacked(
    parts: list[np.ndarray], rows: list[slice], columns: list[slice], n_keys: int, nothing: float
) -> np.ndarray:
    """Arrays [head query key] of the steps as one; `nothing` where a step has no such key."""
    if len(parts) == 1:
        return parts[0]
    joined = []
    for part, row, column in zip(parts, rows, columns, strict=True):
        whole = np.full((part.shape[0], row.stop - row.start, n_keys), nothing, dtype=part.dtype)
        whole[:, :, column] = part[:, row, : column.stop - column.start]
        joined.append(whole)
    return np.concatenate(joined, axis=1)


def _neurons(block: PatternBlock) -> Neurons | None:
    """What the weights of a block come from; None where the view was made without."""
    if block.q is None or block.k is None or block.scores is None:
        return None
    scale = 1.0 if block.scale is None else block.scale
    products = np.einsum("hqd,hkd->hqk", block.q.astype(np.float64), block.k.astype(np.float64)) * scale
    with np.errstate(invalid="ignore"):
        added = np.where(block.scores > MASKED_BELOW, block.scores - products, -np.inf)
    added[np.abs(added) < ROUNDING * np.abs(products).max(initial=1.0)] = 0.0
    return Neurons(block.q, block.k, added.astype(np.float32), scale)


def _join_neurons(parts: list[Neurons], rows: list[slice], columns: list[slice], n_keys: int) -> Neurons:
    first = parts[0]
    k = np.zeros((first.k.shape[0], n_keys, first.k.shape[2]), dtype=first.k.dtype)
    for part, column in zip(parts, columns, strict=True):
        k[:, column] = part.k[:, : column.stop - column.start]  # the last step that has a key says what it is
    q = np.concatenate([part.q[:, row] for part, row in zip(parts, rows, strict=True)], axis=1)
    return Neurons(q, k, _stacked([part.added for part in parts], rows, columns, n_keys, -np.inf), first.scale)


def _lengths(joined: dict[str, tuple[tuple[Module, ...], np.ndarray]], two_sequences: bool) -> dict[str, int]:
    """Length of each sequence, held to be the same in all kinds that touch it."""
    lengths: dict[str, int] = {}
    for kind, (modules, _) in joined.items():
        for side, length in zip(_sides(kind, two_sequences), modules[0].pattern.shape[1:], strict=True):
            if lengths.setdefault(side, length) != length:
                expected, got = str(lengths[side]), str(length)
                raise InputError(
                    explain(f"the {side} sequence has two lengths", where=kind, expected=expected, got=got)
                )
    return lengths


def _axis(view: PatternView, name: str, length: int) -> Axis:
    """The texts of a sequence. Positions without a text are numbered, and positions without a word are words of their own."""
    tokens = (view.tokens if name == "source" else view.target_tokens)[:length]
    unnamed = length - len(tokens) if tokens else 0
    texts = (*tokens, *(f"+{i + 1}" if tokens else str(i) for i in range(length - len(tokens))))
    if name == "target" or len(view.alignment.word_index) < len(tokens):
        return Axis(name, texts, np.arange(length), texts, np.zeros(length, dtype=bool), unnamed=unnamed)
    n = len(tokens)
    index = np.concatenate([view.alignment.word_index[:n], len(view.words) + np.arange(length - n)])
    special = np.concatenate([np.asarray(view.special[:n], dtype=bool), np.zeros(length - n, dtype=bool)])
    segments = tuple(view.segments[:n]) if len(set(view.segments)) > 1 else ()
    segments += (segments[-1],) * (length - len(segments)) if segments else ()
    return Axis(name, texts, index, (*view.words, *texts[n:]), special, segments, unnamed)
