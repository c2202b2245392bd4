"""The cases of a shard: every question "does this word look at that one?", each once, however many relations ask it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attnprobe.heads.metrics import OFFSETS
from attnprobe.heads.relations import RIVALS_OF, Chosen, relations_of
from attnprobe.records import Relation, Sentence
from attnprobe.text.align import Encoded


@dataclass(frozen=True)
class BatchCases:
    """The cases of a batch's sentences, in the order of the batch."""

    place: np.ndarray
    """Place of each case in the shard."""
    sentence: np.ndarray
    """Its sentence, counted in the batch."""
    query: np.ndarray
    """Its query word."""
    keys: np.ndarray
    """Its right answers, bool [case word]."""
    candidates: np.ndarray
    """What may be chosen, bool [case word]."""
    cumulated: np.ndarray
    """Number of cases before each sentence of the batch, and in all, [batch + 1]."""


class Cases:
    """The cases of a shard's sentences, and which relations they belong to."""

    def __init__(self, sentences: Sequence[Encoded], wanted: Chosen) -> None:
        self.left_out = 0
        """Cases whose query or every key word has no token."""
        self.query: list[int] = []
        self.keys: list[tuple[int, ...]] = []
        self.candidates: list[np.ndarray] = []
        sentence_of: list[int] = []
        of_relation: dict[str, list[int]] = {}
        self._rivals: dict[str, dict[int, tuple[bool, ...]]] = {}
        self.first = [0]
        for place, encoded in enumerate(sentences):
            self._add_sentence(place, encoded, relations_of(encoded.sentence, wanted), sentence_of, of_relation)
            self.first.append(len(self.query))
        self.sentence = np.array(sentence_of, dtype=np.int64)
        """Sentence of each case, non-decreasing."""
        self.of_relation = {name: np.array(sorted(chosen), dtype=np.int64) for name, chosen in of_relation.items()}
        """Relation -> its cases."""

    def __len__(self) -> int:
        return len(self.query)

    def _add_sentence(
        self,
        place: int,
        encoded: Encoded,
        relations: list[Relation],
        sentence_of: list[int],
        of_relation: dict[str, list[int]],
    ) -> None:
        has_token = encoded.alignment.pieces > 0
        known: dict[tuple[int, tuple[int, ...], bytes], int] = {}
        for relation in relations:
            answers: dict[int, list[int]] = {}
            for query, key in zip(relation.query.tolist(), relation.key.tolist(), strict=True):
                answers.setdefault(query, []).append(key)
            own: dict[int, int] = {}
            for query, found in answers.items():
                allowed = None if relation.candidates is None else relation.candidates[query]
                mask = has_token if allowed is None else has_token & allowed
                keys = tuple(sorted({key for key in found if mask[key] and key != query}))
                if not has_token[query] or not keys:
                    self.left_out += 1
                    continue
                identity = (query, keys, b"" if allowed is None else allowed.tobytes())
                if identity not in known:
                    known[identity] = len(self.query)
                    self.query.append(query)
                    self.keys.append(keys)
                    self.candidates.append(mask)
                    sentence_of.append(place)
                own[query] = known[identity]
            if own:
                of_relation.setdefault(relation.name, []).extend(own.values())
                self._add_rivals(encoded.sentence, relation, own)

    def _add_rivals(self, sentence: Sentence, relation: Relation, cases: dict[int, int]) -> None:
        """Whether each baseline of the relation's family is right, for its cases by query word."""
        choose = RIVALS_OF.get(relation.name.partition(":")[0])
        if choose is not None:
            hits = self._rivals.setdefault(relation.name, {})
            for query, words in choose(sentence, relation).items():
                if query in cases:
                    hits[cases[query]] = tuple(word in self.keys[cases[query]] for word in words)

    def rival_hits(self, name: str) -> np.ndarray | None:
        """Whether each of `RIVALS` is right, bool [case of the relation, rival]; None for a family without them."""
        if name not in self._rivals:
            return None
        return np.array([self._rivals[name][case] for case in self.of_relation[name]], dtype=bool)

    @cached_property
    def offset_hits(self) -> np.ndarray:
        """Whether the word at each fixed offset is a right answer, bool [case offset]; out of the sentence is wrong."""
        table = np.zeros((len(self), len(OFFSETS)), dtype=bool)
        for case, (query, keys) in enumerate(zip(self.query, self.keys, strict=True)):
            for key in keys:
                if key - query in _PLACE_OF_OFFSET:
                    table[case, _PLACE_OF_OFFSET[key - query]] = True
        return table

    @cached_property
    def chance(self) -> np.ndarray:
        """How often a random choice among the candidates would be right, [case]."""
        n = [int(mask.sum()) - int(mask[query]) for query, mask in zip(self.query, self.candidates, strict=True)]
        return np.array([len(keys) for keys in self.keys], dtype=np.float64) / np.array(n, dtype=np.float64)

    def of(self, members: Sequence[int], n_words: int) -> BatchCases:
        """The cases of these sentences, tables padded to `n_words`."""
        places = [np.arange(self.first[member], self.first[member + 1]) for member in members]
        place = np.concatenate(places) if places else np.empty(0, dtype=np.int64)
        keys = np.zeros((len(place), n_words), dtype=bool)
        candidates = np.zeros((len(place), n_words), dtype=bool)
        query = np.array([self.query[case] for case in place], dtype=np.int64)
        for row, case in enumerate(place):
            keys[row, list(self.keys[case])] = True
            mask = self.candidates[case]
            candidates[row, : len(mask)] = mask
        candidates[np.arange(len(place)), query] = False
        lengths = [len(part) for part in places]
        sentence = np.repeat(np.arange(len(members)), lengths)
        return BatchCases(place, sentence, query, keys, candidates, np.concatenate([[0], np.cumsum(lengths)]))


_PLACE_OF_OFFSET = {offset: place for place, offset in enumerate(OFFSETS)}
