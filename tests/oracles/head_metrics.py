"""Head metrics by loops over one sequence, from the papers' definitions; imports nothing from attnprobe."""

import math

import numpy as np

WORD, PUNCT, CLS, SEP, SPECIAL, PAD = range(6)
NAN = float("nan")


def one_row(name, row, visible, query, roles, extra=None, segments=(), entities=()):
    """One metric of one query row: `row` weights, `visible` keys it may see, `query` its own place, `roles` of the keys."""
    n = int(visible.sum())
    first = next(i for i, role in enumerate(roles) if role != PAD)
    top = int(np.argmax(row))
    if name == "entropy":
        return sum(-p * math.log(p) for p in row if p > 0) if n else NAN
    if name == "entropy_normalised":
        return sum(-p * math.log(p) for p in row if p > 0) / math.log(n) if n > 1 else NAN
    if name == "distance":
        return sum(p * abs(j - query) for j, p in enumerate(row)) if n else NAN
    if name == "signed_distance":
        return sum(p * (j - query) for j, p in enumerate(row)) if n else NAN
    if name in ("offset_mass", "offset_argmax"):
        j = query + extra
        if not 0 <= j < len(row) or roles[j] not in (WORD, PUNCT) or not visible[j]:
            return NAN
        return row[j] if name == "offset_mass" else float(top == j)
    if name == "segment_mass":
        if {0, 1} - set(segments) or segments[query] < 0 or not n:
            return NAN
        other = extra == "across"
        return sum(p for j, p in enumerate(row) if segments[j] >= 0 and (segments[j] != segments[query]) == other)
    if name == "entity_mass":
        inside = entities[query] >= 0
        wanted = {
            "to": [j for j in range(len(row)) if entities[j] >= 0],
            "within": [j for j in range(len(row)) if inside and entities[j] == entities[query] and j != query],
            "from": [j for j in range(len(row)) if inside and entities[j] < 0 and roles[j] in (WORD, PUNCT)],
        }[extra]
        seen = [j for j in wanted if visible[j]]
        return sum(row[j] for j in seen) - len(seen) / n if seen else NAN
    if name == "hidden_mass":
        return sum(p for j, p in enumerate(row) if roles[j] not in (WORD, PUNCT)) if n else NAN
    wanted = {
        "self": [query],
        "first": [first],
        "cls": [j for j, role in enumerate(roles) if role == CLS],
        "sep": [j for j, role in enumerate(roles) if role == SEP],
        "punct": [j for j, role in enumerate(roles) if role == PUNCT],
    }[extra]
    if not wanted or not n:
        return NAN
    return sum(row[j] for j in wanted) if name == "special_mass" else float(top in wanted)
