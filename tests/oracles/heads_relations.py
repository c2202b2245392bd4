"""Relations by loops over words, from their definitions; imports nothing from attnprobe."""

import re


def repeats(words, punctuation):
    """(query, key) of duplicate, induction and repeated."""
    low = [w.lower() for w in words]
    duplicate, induction, repeated = set(), set(), set()
    for j, word in enumerate(low):
        for i, other in enumerate(low):
            if i == j or word != other or punctuation[j]:
                continue
            repeated.add((j, i))
            if i < j:
                duplicate.add((j, i))
                if i + 1 != j:
                    induction.add((j, i + 1))
    return duplicate, induction, repeated


def same_lemma(words, lemmas, punctuation):
    pairs = set()
    for j in range(len(words)):
        for i in range(len(words)):
            if i != j and not punctuation[j] and not punctuation[i]:
                same = lemmas[i].lower() == lemmas[j].lower()
                if same and words[i].lower() != words[j].lower():
                    pairs.add((j, i))
    return pairs


def rarest(ranks, how_many, beyond):
    """(query, key): ranks per word, 0 where it has none; ties for the last place all count."""
    known = sorted((rank for rank in ranks if rank), reverse=True)
    if len(known) < 2 or known[0] <= beyond:
        return set()
    least = known[how_many - 1]
    keys = [i for i, rank in enumerate(ranks) if rank >= least]
    return {(j, i) for j, rank in enumerate(ranks) if rank for i in keys if i != j}


def ranks_of(words, counts):
    """Rank of each word in a table: one more than the number of words of the table that are commoner."""
    return [1 + sum(count > counts.get(word.lower(), 0) for count in counts.values()) for word in words]


def mentions(entities):
    """(cluster, head) of every mention out of the `Entity=` values of a sentence, fields `eid-etype-head`."""
    stack, found = [], []
    for word, value in enumerate(entities):
        for piece in re.findall(r"\([^()]*\)?|[^()]+\)", value):
            if piece.startswith("("):
                cluster, _, head = piece.strip("()").split("-")
                stack.append((cluster, word, int(head)))
            if piece.endswith(")"):
                cluster = piece.strip("()").split("-")[0]
                last = max(i for i, opened in enumerate(stack) if opened[0] == cluster)
                _, start, head = stack.pop(last)
                found.append((cluster, start + head - 1))
    assert not stack
    return found


def antecedents(found):
    """(query, key) pairs, and what the nearest-mention and same-word baselines would need: heads in order."""
    pairs = {(a, b) for cluster, a in found for other, b in found if cluster == other and b < a}
    return pairs, sorted({head for _, head in found})


def nearest(query, heads, words=None):
    """The nearest mention head before the query (with the same word, where words are given), None where there is none."""
    best = None
    for head in heads:
        if head < query and (words is None or words[head].lower() == words[query].lower()):
            best = head
    return best
