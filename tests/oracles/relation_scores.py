"""Relation scoring by loops over one sentence, as the convention says; imports nothing from attnprobe."""

import numpy as np


def word_pattern(pattern, word_index, n_words):
    """[key pieces summed, query pieces averaged]: token pattern [query key] -> word pattern [word word]."""
    merged = np.zeros((n_words, n_words))
    for w in range(n_words):
        rows = [i for i, word in enumerate(word_index) if word == w]
        for v in range(n_words):
            columns = [j for j, word in enumerate(word_index) if word == v]
            if rows:
                merged[w, v] = np.mean([sum(pattern[i, j] for j in columns) for i in rows])
    return merged


def predict(words, query, candidates, direction):
    """Most attended candidate of a query word (lowest index at a tie), None without any weight."""
    best, where = 0.0, None
    for v in candidates:
        weight = words[query, v] if direction == "dep->head" else words[v, query]
        if weight > best:
            best, where = weight, v
    return where


def hits(pattern, word_index, n_words, pairs, direction):
    """Hit of each distinct query of `pairs` [(query, key)]: does its prediction lie on one of its keys?"""
    words = word_pattern(pattern, word_index, n_words)
    pieces = [sum(word == w for word in word_index) for w in range(n_words)]
    found = {}
    for query in dict.fromkeys(query for query, _ in pairs):
        keys = {key for q, key in pairs if q == query and pieces[key]}
        if not pieces[query] or not keys:
            continue
        candidates = [v for v in range(n_words) if v != query and pieces[v]]
        found[query] = predict(words, query, candidates, direction) in keys
    return found
