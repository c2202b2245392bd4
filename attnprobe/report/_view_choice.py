"""Which heads and which window of tokens a viewer shows, and what it says about the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from attnprobe.errors import InputError, explain
from attnprobe.report._view_stacks import Stack

LONG = 128
"""Tokens beyond which not everything is shown unless chosen."""
MAX_CELLS = 4_000_000
"""Weights that a page may hold unless told otherwise."""
HEAD_NAME = re.compile(r"L(\d+)H(\d+)")


@dataclass(frozen=True)
class Choice:
    """What is shown, and what was left out to keep the page usable."""

    stacks: tuple[Stack, ...]
    window: tuple[int, int] | None = None
    """Tokens shown, where not all are."""
    length: int = 0
    """Tokens of the longest sequence before the window."""
    heads_shown: int = 0
    heads_total: int = 0
    automatic: bool = False
    """Whether the window was set by size and not by the user."""


def choose(
    stacks: tuple[Stack, ...],
    *,
    layers: Iterable[int] | None,
    heads: Iterable[int | str] | None,
    window: tuple[int, int] | None,
    max_cells: int = MAX_CELLS,
) -> Choice:
    """The heads and tokens asked for; without wishes, everything, or the first tokens of all heads where that would be too much.

    Raises `InputError` for layers, heads or windows that there are not, and where what was asked for holds more than `max_cells` weights.
    """
    picked = pick(stacks, layers, heads)
    length = max(max(len(stack.query), len(stack.key)) for stack in picked)
    n_heads = _n_heads(picked)
    cells = sum(stack.cells for stack in picked)
    automatic = window is None and layers is None and heads is None and (length > LONG or cells > max_cells)
    if automatic:
        window = (0, max(1, min(LONG, length, int((max_cells / n_heads) ** 0.5))))
    if window is not None:
        window = _checked(window, length)
        picked = tuple(stack.cut(window) for stack in picked)
        cells = sum(stack.cells for stack in picked)
    if cells > max_cells:
        raise InputError(
            explain(
                "this page would hold too many weights",
                expected=f"at most {max_cells:,}",
                got=f"{cells:,} ({n_heads} heads), about {cells / 1.5e6:.0f} to {cells / 0.75e6:.0f} MB",
                remedy="Choose fewer with `layers`, `heads` or `window`, or raise `max_cells`",
            )
        )
    whole = window is None or (window[0] == 0 and window[1] >= length)
    return Choice(picked, None if whole else window, length, n_heads, _n_heads(stacks), automatic)


def pick(
    stacks: tuple[Stack, ...], layers: Iterable[int] | None, heads: Iterable[int | str] | None
) -> tuple[Stack, ...]:
    """Only these layers (places in execution order) and heads (numbers, or names such as `L2H8`)."""
    if layers is None and heads is None:
        return stacks
    known = {module.layer: set(module.heads) for stack in stacks for module in stack.modules}
    wanted = _wanted(known, layers, heads)
    kept = []
    for stack in stacks:
        modules = tuple(
            module.with_heads(sorted(head for layer, head in wanted if layer == module.layer))
            for module in stack.modules
            if any(layer == module.layer for layer, _ in wanted)
        )
        if modules:
            kept.append(replace(stack, modules=modules))
    return tuple(kept)


def _wanted(
    known: dict[int, set[int]], layers: Iterable[int] | None, heads: Iterable[int | str] | None
) -> set[tuple[int, int]]:
    chosen_layers = sorted(known) if layers is None else list(layers)
    for layer in chosen_layers:
        if layer not in known:
            raise InputError(explain(f"no layer {layer}", expected=f"some of {_ranges(known)}, in execution order"))
    wanted: set[tuple[int, int]] = set()
    if heads is None:
        wanted = {(layer, head) for layer in chosen_layers for head in known[layer]}
    for head in heads or ():
        if isinstance(head, str):
            wanted.add(_named(head, known))
        else:
            found = {(layer, head) for layer in chosen_layers if head in known[layer]}
            if not found:
                raise InputError(
                    explain(f"no head {head}", expected=f"some of {_ranges(set().union(*known.values()))}")
                )
            wanted |= found
    if not wanted:
        raise InputError(
            explain("nothing to show", expected="at least one layer and one head", got="empty `layers` or `heads`")
        )
    return wanted


def _named(name: str, known: dict[int, set[int]]) -> tuple[int, int]:
    match = HEAD_NAME.fullmatch(name)
    if match is None:
        raise InputError(explain(f"{name!r} is no name of a head", expected="a name such as L2H8, counted from 0"))
    layer, head = int(match[1]), int(match[2])
    if head not in known.get(layer, ()):
        layers, heads = _ranges(known), _ranges(set().union(*known.values()))
        raise InputError(explain(f"no head {name}", expected=f"L of {layers} and H of {heads}"))
    return layer, head


def _ranges(numbers: Iterable[int]) -> str:
    found = sorted(numbers)
    whole = found == list(range(found[0], found[-1] + 1)) and len(found) > 2
    return f"{found[0]} to {found[-1]}" if whole else ", ".join(map(str, found))


def _checked(window: tuple[int, int], length: int) -> tuple[int, int]:
    low, high = window
    if not (0 <= low < high and low < length):
        raise InputError(
            explain(
                "no such window of tokens",
                expected=f"(first, end) with 0 <= first < end and first < {length}",
                got=str(window),
            )
        )
    return low, min(high, length)


def _n_heads(stacks: tuple[Stack, ...]) -> int:
    return sum(len(module.heads) for stack in stacks for module in stack.modules)
