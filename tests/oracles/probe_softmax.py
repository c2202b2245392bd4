"""Multinomial logistic regression in loops, from its definition; and what scikit-learn minimises, written out."""

import numpy as np


def losses(x, y, weights):
    """Loss of each word in nats; `weights` [class dim + 1], the intercept last."""
    found = []
    for vector, true in zip(x, y, strict=True):
        scores = [float(np.dot(row[:-1], vector) + row[-1]) for row in weights]
        top = max(scores)
        found.append(np.log(sum(np.exp(score - top) for score in scores)) + top - scores[true])
    return np.array(found)


def objective(x, y, weights, penalty):
    """Summed loss plus penalty / 2 times the squared weights, the intercept free, over the number of words."""
    return (losses(x, y, weights).sum() + penalty / 2 * np.square(weights[:, :-1]).sum()) / len(y)


def online_code(losses_by_block, first, n_classes):
    """Bits: `first` labels at log2 K each, then the losses in nats."""
    bits = first * np.log2(n_classes)
    for block in losses_by_block:
        for loss in block:
            bits += loss / np.log(2)
    return bits
