"""Accuracy under conditions that differ in a pronoun, and the gap between them: loops, a planted preference, coverage."""

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.heads.bias import _gap, accuracy_by
from attnprobe.heads.relations import RIVALS
from attnprobe.text.benchmarks import Span, read_winobias, sentence_of
from tests.oracles import heads_relations as oracle
from tests.oracles.relation_scores import word_pattern


def variants(n=8):
    """Pairs of sentences that differ in the pronoun: `he` for the first person, `she` for the second; two occupations each."""
    made = []
    for number in range(n):
        first, second = ("cook", "nurse") if number % 2 else ("nurse", "cook")
        for pronoun, entity, condition in (("he", "e1", "stereotyped"), ("she", "e2", "anti-stereotyped")):
            text = f"The {first} met a {second} {number} times because {pronoun} asked."
            start, other = 4, text.index(f"a {second}")
            place = text.index(f" {pronoun} ") + 1
            spans = [
                Span(start, start + len(first), "e1", "NOUN"),
                Span(other, other + 2 + len(second), "e2", "NOUN"),
                Span(place, place + len(pronoun), entity, "PRON"),
            ]
            made.append(
                sentence_of(text, spans, f"{number}{pronoun}", f"d{number}", {"condition": condition, "own": pronoun})
            )
    return made


def test_accuracies_equal_loops_over_sentences(minilm):
    from attnprobe import capture

    corpus = variants()
    table = accuracy_by(minilm, corpus, batch_tokens=60)
    assert table["n"].values.tolist() == [8, 8]
    assert table["chance"].values.tolist() == [0.5, 0.5]
    wanted = np.zeros((2, 2, 6, 12))
    rivals = np.zeros((2, len(RIVALS)))
    for sentence in corpus:
        condition = int(sentence.metadata["condition"] != "stereotyped")
        found = oracle.mentions([own.get("Entity", "") for own in sentence.misc])
        pairs, heads = oracle.antecedents(found)
        [(query, key)] = pairs
        rivals[condition, 0] += oracle.nearest(query, heads) == key
        rivals[condition, 1] += oracle.nearest(query, heads, sentence.words) == key
        taken = capture(minilm, sentence)
        for layer, call in enumerate(taken.layers):
            for head in range(12):
                index = taken.encoded.alignments[0].word_index.tolist()
                words = word_pattern(call.pattern[0, head].numpy(), index, len(sentence))
                for direction, row in enumerate((words[query], words[:, query])):
                    candidates = [place for place in heads if place < query]
                    best = max(candidates, key=lambda place: (row[place], -place))  # noqa: B023
                    wanted[condition, direction, layer, head] += best == key
    np.testing.assert_allclose(table["accuracy"], wanted / 8)
    np.testing.assert_allclose(table["gap"], (wanted[0] - wanted[1]) / 8)
    np.testing.assert_allclose(table["rival_accuracy"], rivals / 8)
    assert bool((table["gap_low"] <= table["gap"]).all())
    assert bool((table["gap"] <= table["gap_high"]).all())


def test_a_gap_is_judged_by_document():
    """Where each document shows the same difference there is no doubt; where they differ there is, however many cases there are."""
    n = np.ones((20, 2))
    sure = np.stack([np.ones(20), np.zeros(20)], axis=1)
    gap, half = _gap(sure, n)
    assert (float(gap), float(half)) == (1, 0)
    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        shared = generator.random(40)  # a document's variants are alike: both hits depend on it
        hits = np.stack([generator.random(40) < 0.3 + 0.4 * shared, generator.random(40) < 0.2 + 0.4 * shared], axis=1)
        gap, half = _gap(hits.astype(float), np.ones((40, 2)))
        covered += abs(gap - 0.1) <= half
    assert 0.92 <= covered / 400 <= 0.98
    with_weights = _gap(np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 0.0]]), np.array([[4.0, 2.0], [2.0, 3.0], [2.0, 1.0]]))
    ratio = [6 / 8, 3 / 6]
    residual = [(3 - ratio[0] * 4) / 8 - (1 - ratio[1] * 2) / 6, (2 - ratio[0] * 2) / 8 - (2 - ratio[1] * 3) / 6]
    residual.append((1 - ratio[0] * 2) / 8 - (0 - ratio[1] * 1) / 6)
    assert float(with_weights[0]) == pytest.approx(ratio[0] - ratio[1])
    error = np.sqrt(3 / 2 * np.square(residual).sum())
    assert float(with_weights[1]) == pytest.approx(4.302652729749464 * error)  # t with 2 degrees of freedom


def test_one_document_gives_no_interval():
    assert np.isnan(_gap(np.array([[1.0, 0.0]]), np.ones((1, 2)))[1])


def test_conditions_without_a_case_are_refused(minilm):
    corpus = variants(2)
    with pytest.raises(
        InputError, match="cannot compare conditions: expected two different ones or more, got \\['stereotyped'\\]"
    ):
        accuracy_by(minilm, corpus, ["stereotyped"])
    with pytest.raises(InputError, match="no case of 'coref:pronoun' under 'neutral'"):
        accuracy_by(minilm, corpus, ["stereotyped", "neutral"])
    with pytest.raises(InputError, match="no case of 'coref:proper' under 'he'"):
        accuracy_by(minilm, corpus, ["he", "she"], by="own", relation="coref:proper")
    by_pronoun = accuracy_by(minilm, corpus, ["she", "he"], by="own")
    assert list(by_pronoun["condition"].values) == ["she", "he"]


@pytest.mark.shared
def test_winobias_is_balanced(minilm, shared_data):
    """By its making, neither the order of the people nor chance tells the antecedent in either condition."""
    corpus = [item for item in read_winobias(shared_data / "coref/winobias") if item.metadata["type"] == "1"][:160]
    table = accuracy_by(minilm, corpus)
    assert float(table["chance"].sel(condition="stereotyped")) == pytest.approx(
        float(table["chance"].sel(condition="anti-stereotyped"))
    )
    nearest = table["rival_accuracy"].sel(rival="nearest")
    assert float(nearest[0]) == pytest.approx(float(nearest[1]), abs=0.02)
    assert 0.4 < float(nearest[0]) < 0.6
