"""Tree distances by walking up, and the loss of an attention-only dependency probe in loops, from Clark et al. 2019, section 5."""

import numpy as np


def distance(heads, a, b):
    """Arcs between two words: up from both to where their paths meet."""

    def up(word):
        path = [word]
        while heads[path[-1]] > 0:
            path.append(heads[path[-1]] - 1)
        return path

    first, second = up(a), up(b)
    return min(i + second.index(word) for i, word in enumerate(first) if word in second)


def path_indicators(heads, dim):
    """For each word the sum of one-hot vectors of the arcs on its way to the root: squared distances are tree distances."""
    vectors = np.zeros((len(heads), dim))
    for word in range(len(heads)):
        place = word
        while heads[place] > 0:
            vectors[word, place] += 1
            place = heads[place] - 1
    return vectors


def dependency_losses(attention, special, governor, there, back, root, bias, vectors=None):
    """Loss of each word's governor in nats; `attention` [query key head], `there` and `back` [head input]."""
    n, found = len(governor), []
    for dependent in range(n):
        scores = []
        for head in range(n):
            if head == dependent:
                scores.append(-np.inf)
                continue
            pair = [1.0] if vectors is None else [1.0, *vectors[head], *vectors[dependent]]
            score = 0.0
            for k in range(attention.shape[2]):
                score += attention[dependent, head, k] * np.dot(there[k], pair)
                score += attention[head, dependent, k] * np.dot(back[k], pair)
            scores.append(score)
        scores.append(np.dot(special[dependent], root) + bias)
        top = max(scores)
        found.append(np.log(sum(np.exp(s - top) for s in scores)) + top - scores[governor[dependent]])
    return np.array(found)
