"""The cases of a shard: every question "does this word look at that one?", each once, however many relations ask it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attnprobe.heads.metrics import OFFSETS
from attnprobe.heads.relations import relations_of
from attnprobe.records import Relation
from attnprobe.registry import RelationFamily
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

    def __init__(
        self, sentences: Sequence[Encoded], wanted: Sequence[tuple[RelationFamily, frozenset[str] | None]]
    ) -> None:
        self.left_out = 0
        """Cases whose query or every key word has no token."""
        self.query: list[int] = []
        self.keys: list[tuple[int, ...]] = []
        self.candidates: list[np.ndarray] = []
        sentence_of: list[int] = []
        of_relation: dict[str, list[int]] = {}
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
        self, place: int, encoded: Encoded, relations: list[Relation], sentence_of: list[int], of_relation: dict[str, list[int]]
    ) -> None:
        has_token = encoded.alignment.pieces > 0
        known: dict[tuple[int, tuple[int, ...], bytes], int] = {}
        default = b""
        for relation in relations:
            answers: dict[int, list[int]] = {}
            for query, key in zip(relation.query.tolist(), relation.key.tolist(), strict=True):
                answers.setdefault(query, []).append(key)
            for query, found in answers.items():
                keys = tuple(sorted({key for key in found if has_token[key] and key != query}))
                if not has_token[query] or not keys:
                    self.left_out += 1
                    continue
                allowed = None if relation.candidates is None else relation.candidates[query]
                identity = (query, keys, default if allowed is None else allowed.tobytes())
                if identity not in known:
                    known[identity] = len(self.query)
                    self.query.append(query)
                    self.keys.append(keys)
                    mask = has_token if allowed is None else has_token & allowed
                    self.candidates.append(mask)
                    sentence_of.append(place)
                of_relation.setdefault(relation.name, []).append(known[identity])

    @property
    def offset_hits(self) -> np.ndarray:
        """Whether the word at each fixed offset is a right answer, bool [case offset]; out of the sentence is wrong."""
        table = np.zeros((len(self), len(OFFSETS)), dtype=bool)
        for case, (query, keys) in enumerate(zip(self.query, self.keys, strict=True)):
            for key in keys:
                if key - query in _PLACE_OF_OFFSET and self.candidates[case][key]:
                    table[case, _PLACE_OF_OFFSET[key - query]] = True
        return table

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
