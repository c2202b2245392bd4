"""Tree decoding by brute force and by networkx, gold trees by climbing; imports nothing from attnprobe."""

import itertools

import networkx
import numpy as np


def best_heads(scores, root=None):
    """Every assignment of heads that is a tree, the best of them: small n only. scores[dependent][head]."""
    n = len(scores)
    best, found = -np.inf, None
    for heads in itertools.product(range(-1, n), repeat=n):
        roots = [word for word, head in enumerate(heads) if head < 0]
        if (
            len(roots) != 1
            or (root is not None and roots[0] != root)
            or any(head == word for word, head in enumerate(heads))
        ):
            continue
        if all(_reaches_root(word, heads) for word in range(n)):
            total = sum(scores[word][head] for word, head in enumerate(heads) if head >= 0)
            if total > best:
                best, found = total, heads
    return np.array(found), best


def _reaches_root(word, heads):
    for _ in range(len(heads) + 1):
        if heads[word] < 0:
            return True
        word = heads[word]
    return False


def spanning_edges(weights):
    """Maximum spanning tree of the symmetrised weights, by networkx."""
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(weights)))
    for i in range(len(weights)):
        for j in range(i):
            graph.add_edge(i, j, weight=float(weights[i, j] + weights[j, i]))
    return {tuple(sorted(edge)) for edge in networkx.maximum_spanning_tree(graph).edges}


def contracted(heads, kept):
    """Head of each kept word among the kept ones, -1 for none above; heads 1-based."""
    names = [word for word in range(len(heads)) if kept[word]]
    found = []
    for word in names:
        above = word
        while True:
            above = heads[above] - 1
            if above < 0:
                found.append(-1)
                break
            if kept[above]:
                found.append(names.index(above))
                break
    return names, found
