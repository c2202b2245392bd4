import math

import numpy as np
import pytest

from attnprobe.errors import InputError
from attnprobe.records import Sentence
from attnprobe.text import align as module
from attnprobe.text.align import align, encode, is_punctuation
from attnprobe.text.conllu import read_conllu
from attnprobe.text.drops import Drops

LINES = ["the cat sat on the mat", "a dog ran to the cat", "hello world, the dogs sat"] * 13
SPECIALS = ["<s>", "</s>", "<pad>", "<unk>"]


def byte_level(prefix, *, specials=True):
    """A small byte-level tokenizer as RoBERTa and GPT-2 have."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    inner.train_from_iterator(
        LINES,
        trainers.BpeTrainer(vocab_size=397, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False),
    )
    if specials:
        inner.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, cls_token="<s>", sep_token="</s>", **names)


def metaspace(scheme):
    """A small SentencePiece-like tokenizer as T5 and Llama have."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    trainer = trainers.UnigramTrainer(vocab_size=61, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    inner.train_from_iterator(LINES, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>")


@pytest.fixture(scope="module")
def slow():
    """A tokenizer written in Python, without word_ids: two letters a piece."""
    from transformers import PythonBackend

    class Pairs(PythonBackend):
        def __init__(self, **kwargs):
            letters = "abcdefghijklmnopqrstuvwxyz'"
            pieces = ["<cls>", "<sep>", "<unk>", *letters, *(a + b for a in letters for b in letters)]
            self.ids = {piece: i for i, piece in enumerate(pieces)}
            super().__init__(cls_token="<cls>", sep_token="<sep>", unk_token="<unk>", **kwargs)

        @property
        def vocab_size(self):
            return len(self.ids)

        def get_vocab(self):
            return dict(self.ids)

        def _tokenize(self, text, **kwargs):
            return [word[i : i + 2] for word in text.split() for i in range(0, len(word), 2)]

        def _convert_token_to_id(self, token):
            return self.ids.get(token, self.ids["<unk>"])

        def _convert_id_to_token(self, index):
            return list(self.ids)[index]

        def build_inputs_with_special_tokens(self, ids, pair=None):
            return [self.cls_token_id, *ids, self.sep_token_id]

        def get_special_tokens_mask(self, ids, pair=None, already_has_special_tokens=False):
            return [1, *(0 for _ in ids), 1]

    return Pairs()


def roles(encoded):
    return "".join("WPCSXD"[role] for role in encoded.roles)


def test_roles_have_the_values_that_the_tensors_use():
    from attnprobe.attention.call import Role

    assert {role.name: role.value for role in Role} == {role.name: getattr(module, role.name) for role in Role}


def test_pieces_point_at_their_treebank_word(wordpiece):
    encoded = align(wordpiece, ["The", "tokenizers", "do", "n't", "agree", "!"])
    assert wordpiece.convert_ids_to_tokens(encoded.input_ids) == (
        ["[CLS]", "the", "token", "##izer", "##s", "do", "n", "'", "t", "agree", "!", "[SEP]"]
    )
    assert encoded.alignment.word_index.tolist() == [-1, 0, 1, 1, 1, 2, 3, 3, 3, 4, 5, -1]
    assert encoded.alignment.pieces.tolist() == [1, 3, 1, 3, 1, 1]
    assert roles(encoded) == "CWWWWWWWWWPS"
    assert (encoded.n_unknown, encoded.unknown_share) == (0, 0.0)
    assert encoded.input_ids.dtype == np.int64
    assert encoded.roles.dtype == np.int8


def test_three_pieces_without_a_hash_mark_are_one_word(wordpiece):
    encoded = align(wordpiece, ["a", "domain-specific", "task"])
    assert encoded.alignment.word_index.tolist() == [-1, 0, 1, 1, 1, 2, -1]


@pytest.mark.parametrize("nothing", ["\u200b", "\ufe0f", "\u00ad", "\ufffd", "\x0b", ""])
def test_words_without_a_piece_keep_the_places_of_the_others(wordpiece, nothing):
    encoded = align(wordpiece, ["cats", nothing, "sit", nothing])
    assert encoded.alignment.word_index.tolist() == [-1, 0, 2, -1]
    assert encoded.alignment.pieces.tolist() == [1, 0, 1, 0]
    with pytest.raises(InputError, match="no word has a piece: .*got 2 tokens, 1 words"):
        align(wordpiece, [nothing])


def test_a_special_token_written_in_the_text_is_a_word(wordpiece):
    encoded = align(wordpiece, ["see", "[SEP]", "and", "[CLS]", "["])
    assert encoded.alignment.word_index.tolist() == [-1, 0, 1, 2, 3, 4, -1]
    assert encoded.input_ids[2] == wordpiece.sep_token_id
    assert roles(encoded) == "CWWWWPS"


def test_unknown_words_are_counted(wordpiece):
    encoded = align(wordpiece, ["日本", "☃", "ok"])
    assert encoded.alignment.word_index.tolist() == [-1, 0, 0, 1, 2, -1]
    assert encoded.n_unknown in (1, 2, 3)
    assert encoded.n_unknown == int((encoded.input_ids == wordpiece.unk_token_id).sum())
    only = align(wordpiece, ["☃", "☃☃☃"])
    assert only.unknown_share == 1.0


def test_punctuation_is_told_by_characters_or_by_the_tag(wordpiece):
    words = ("$", "...", "o'clock", "-LRB-", "’", "+1")
    assert [is_punctuation(word) for word in (*words, "")] == [True, True, False, False, True, False, False]
    plain = align(wordpiece, Sentence("a", words))
    tagged = align(wordpiece, Sentence("a", words, upos=("SYM", "PUNCT", "ADV", "PUNCT", "PUNCT", "X")))
    by_word = [
        [set(e.roles[e.alignment.word_index == word].tolist()) for word in range(len(words))] for e in (plain, tagged)
    ]
    assert by_word[0] == [{1}, {1}, {0}, {0}, {1}, {0}]
    assert by_word[1] == [{1}, {1}, {0}, {1}, {1}, {0}]


def test_nothing_is_cut(wordpiece):
    words = ["cat"] * 11
    assert len(align(wordpiece, words, max_length=13)) == 13
    with pytest.raises(InputError, match="too long: expected .* at most 12 tokens, got 13 tokens, 11 words. Shorten"):
        align(wordpiece, words, max_length=12)
    assert len(align(wordpiece, ["cat"] * 701)) == 703


def test_truncation_and_padding_in_the_tokenizers_own_file_are_switched_off(wordpiece):
    from copy import deepcopy

    tokenizer = deepcopy(wordpiece)
    tokenizer.backend_tokenizer.enable_truncation(7)
    tokenizer.backend_tokenizer.enable_padding(length=17)
    assert len(align(tokenizer, ["cat"] * 11)) == 13
    assert len(align(tokenizer, ["cat"])) == 3


@pytest.mark.parametrize("words", ["one string", ["a", 3], [None]])
def test_words_must_be_a_list_of_strings(wordpiece, words):
    with pytest.raises(InputError, match="cannot align: expected a list of words"):
        align(wordpiece, words)


def test_encode_drops_what_cannot_be_used_and_keeps_the_order(wordpiece):
    sentences = [
        Sentence("long", ("cat",) * 31),
        Sentence("a", ("a", "b")),
        Sentence("none", ()),
        Sentence("pair", ("a", "b", "c"), segments=(0, 0, 1)),
        Sentence("blank", ("\u200b", "")),
        Sentence("b", ("cat",) * 29),
    ]
    many = [Sentence(str(i), ("cat",) * (1 + i % 5)) for i in range(2 * module._CHUNK + 3)]
    drops = Drops()
    found = list(encode(wordpiece, iter(sentences + many), max_length=31, on_drop=drops.add))
    assert [encoded.sentence.id for encoded in found] == ["a", "pair", "b", *(sentence.id for sentence in many)]
    assert drops.counts == {"too long": 1, "no words": 1, "no word has a piece": 1}
    assert drops.examples == {"too long": ["long"], "no words": ["none"], "no word has a piece": ["blank"]}
    assert drops.as_json() == '{"no word has a piece": 1, "no words": 1, "too long": 1}'
    assert drops.total == 3
    for encoded in found:
        alone = align(wordpiece, encoded.sentence)
        assert alone.input_ids.tolist() == encoded.input_ids.tolist()
        assert alone.alignment.word_index.tolist() == encoded.alignment.word_index.tolist()


def test_encode_reads_no_further_than_asked(wordpiece):
    taken = []

    def endless():
        while True:
            taken.append(1)
            yield Sentence(str(len(taken)), ("a",))

    next(iter(encode(wordpiece, endless())))
    assert len(taken) == module._CHUNK


def test_sentence_pairs_number_their_words_through(wordpiece):
    pair = Sentence("p", ("A", "cat", "sat", "Tokenizers", "agree"), segments=(0, 0, 0, 1, 1))
    encoded = align(wordpiece, pair)
    assert encoded.alignment.word_index.tolist() == [-1, 0, 1, 2, -1, 3, 3, 3, 4, -1]
    assert encoded.token_types.tolist() == [0] * 5 + [1] * 5
    assert roles(encoded) == "CWWWSWWWWS"
    for segments in ((0, 1, 0, 1, 1), (0, 0, 0, 1), (0, 0, 0, 0, 2)):
        with pytest.raises(InputError, match="cannot read the sentence pair at p: expected a segment of 0 or 1"):
            align(wordpiece, Sentence("p", pair.words, segments=segments))


@pytest.mark.parametrize(
    "make",
    [
        lambda: byte_level(True),
        lambda: byte_level(False),
        *(lambda s=s: metaspace(s) for s in ("always", "first", "never")),
    ],
    ids=["byte level, prefix", "byte level", "metaspace always", "metaspace first", "metaspace never"],
)
def test_words_are_read_as_in_running_text(make):
    tokenizer = make()
    words = ["hello", "dogs", "sat", "on", "the", "world"]
    encoded = align(tokenizer, words)
    assert encoded.input_ids.tolist() == tokenizer(" ".join(words))["input_ids"]
    assert (encoded.alignment.pieces > 0).all()
    inside = encoded.alignment.word_index[encoded.alignment.word_index >= 0]
    assert (np.diff(inside) >= 0).all()
    for word, text in enumerate(words):
        pieces = tokenizer.convert_ids_to_tokens(encoded.input_ids[encoded.alignment.word_index == word])
        assert "".join(pieces).strip("Ġ▁") == text


def test_without_a_prefix_space_words_would_be_glued():
    tokenizer = byte_level(False)
    glued = tokenizer([["the", "cat", "sat"]], is_split_into_words=True)["input_ids"][0]
    assert glued != align(tokenizer, ["the", "cat", "sat"]).input_ids.tolist()


def test_roberta_like_tokens_have_roles_and_gpt_like_ones_no_specials():
    assert roles(align(byte_level(True), ["the", "cat", "."])) == "CWWPPS"
    encoded = align(byte_level(False, specials=False), ["the", "cat", "."])
    assert roles(encoded) == "WWPP"
    assert encoded.alignment.word_index.tolist() == [0, 1, 2, 2]


def test_other_special_tokens_are_special():
    tokenizer = byte_level(True)
    tokenizer.cls_token = tokenizer.sep_token = None
    assert roles(align(tokenizer, ["the", "cat"])) == "XWWX"


def test_tokenizers_written_in_python_go_word_by_word(slow):
    encoded = align(slow, ["abc", "", "it's", "§"])
    assert slow.convert_ids_to_tokens(encoded.input_ids) == ["<cls>", "ab", "c", "it", "'s", "<unk>", "<sep>"]
    assert encoded.alignment.word_index.tolist() == [-1, 0, 0, 2, 2, 3, -1]
    assert roles(encoded) == "CWWWWPS"
    assert encoded.unknown_share == pytest.approx(1 / 5)
    with pytest.raises(InputError, match="cannot encode sentence pairs"):
        align(slow, Sentence("p", ("a", "b"), segments=(0, 1)))


def test_a_python_tokenizer_that_does_not_say_what_is_special_is_refused(slow, monkeypatch):
    monkeypatch.setattr(type(slow), "get_special_tokens_mask", lambda self, ids, *rest, **more: [0] * (len(ids) + 2))
    with pytest.raises(
        InputError, match="cannot tell special tokens from words .*got 4 tokens from 2 pieces, 0 of them special"
    ):
        align(slow, ["abc"])


def test_the_share_of_nothing_is_undefined(wordpiece):
    [encoded] = module._encode_chunk(wordpiece, [Sentence("a", ())], False)
    assert math.isnan(encoded.unknown_share)


@pytest.mark.shared
@pytest.mark.parametrize(
    ("name", "sentences", "unknown"),
    [
        ("en_ewt/en_ewt-ud-dev", 2001, (0.0, 0.001)),
        ("de_gsd/de_gsd-ud-dev", 799, (0.0, 0.001)),
        ("zh_gsdsimp/zh_gsdsimp-ud-dev", 500, (0.59, 0.62)),
    ],
)
def test_public_treebanks_align(wordpiece, treebanks, name, sentences, unknown):
    drops = Drops()
    found = list(encode(wordpiece, read_conllu(treebanks / f"{name}.conllu"), max_length=512, on_drop=drops.add))
    assert (len(found), drops.total) == (sentences, 0)
    tokens = sum(int((encoded.alignment.word_index >= 0).sum()) for encoded in found)
    assert unknown[0] <= sum(encoded.n_unknown for encoded in found) / tokens <= unknown[1]
    for encoded in found:
        index = encoded.alignment.word_index
        assert index[0] == index[-1] == -1
        assert (np.diff(index[1:-1]) >= 0).all()
        assert encoded.alignment.n_words == len(encoded.sentence)
