"""What a model is given: texts, sentences and tensors, and what each position is said to be."""

import numpy as np
import pytest
import torch
import transformers

from attnprobe.errors import InputError
from attnprobe.models.capture import capture
from attnprobe.models.inputs import from_model_inputs
from attnprobe.models.load import load
from attnprobe.models.texts import encode
from attnprobe.models.verify import verify
from attnprobe.records import Sentence
from attnprobe.text.align import align
from tests.tiny import POSITIONS, VOCABULARY, build, byte_tokenizer, inputs_for, tiny_model


@pytest.fixture
def bert():
    return tiny_model("bert", tokenizer=byte_tokenizer())


@pytest.fixture
def gpt2():
    return tiny_model("gpt2", tokenizer=byte_tokenizer(specials=False))


def test_a_text(minilm):
    encoded = encode(minilm, "Unbelievably, it rained.")
    assert encoded.tokens == (("[CLS]", "un", "##bel", "##ie", "##va", "##bly", ",", "it", "rained", ".", "[SEP]"),)
    assert encoded.alignments[0].word_index.tolist() == [-1, 0, 0, 0, 0, 0, 1, 2, 3, 4, -1]
    assert encoded.words == (("unbelievably", ",", "it", "rained", "."),)
    assert encoded.special[0].nonzero().flatten().tolist() == [0, 10]
    assert encoded.real.all()
    assert encoded.segments is None
    assert encoded.unknown_share == 0.0


def test_sentences_are_aligned_as_text_align_does(minilm):
    sentence = Sentence("s", ("The", "", "un-believable", "\u200b", "日本", "[SEP]", "cat"))
    aligned = align(minilm.tokenizer, sentence)
    encoded = encode(minilm, sentence)
    assert encoded.inputs["input_ids"][0].tolist() == aligned.input_ids.tolist()
    assert encoded.alignments[0].word_index.tolist() == aligned.alignment.word_index.tolist()
    assert encoded.words == (sentence.words,)
    assert encoded.alignments[0].pieces.tolist()[:4] == [1, 0, 5, 0]
    assert not encoded.special[0][encoded.inputs["input_ids"][0] == 102].all()  # the literal [SEP] is a word


def test_sentence_pairs(minilm):
    sentence = Sentence("s", ("Who", "came", "?", "Anna", "."), segments=(0, 0, 0, 1, 1))
    encoded = encode(minilm, [sentence, Sentence("t", ("Yes",))])
    assert encoded.inputs["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 1, 1, 1], [0] * 8]
    assert encoded.segments.tolist() == encoded.inputs["token_type_ids"].tolist()
    assert encoded.alignments[0].word_index.tolist() == [-1, 0, 1, 2, -1, 3, 4, -1]


def test_two_texts_as_a_pair(minilm):
    encoded = encode(minilm, "Who came?", text_pair="Anna came.")
    assert encoded.alignments[0].word_index.tolist() == [-1, 0, 1, 2, -1, 3, 4, 5, -1]
    assert encoded.words[0] == ("who", "came", "?", "anna", "came", ".")
    assert encoded.segments[0].tolist() == [0] * 5 + [1] * 4
    with pytest.raises(InputError, match="`text_pair` goes with texts, not with sentences"):
        encode(minilm, Sentence("s", ("Who",)), text_pair="Anna")


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding(side):
    model = tiny_model("bert", tokenizer=byte_tokenizer(padding_side=side))
    encoded = encode(model, ["abcd", "x"])
    short = [True] * 3 + [False] * 3
    assert encoded.real.tolist() == [[True] * 6, short if side == "right" else short[::-1]]
    assert encoded.inputs["attention_mask"].tolist() == encoded.real.int().tolist()
    assert (encoded.inputs["input_ids"][~encoded.real] == 0).all()
    assert encoded.trimmed_alignment(1).word_index.tolist() == [-1, 0, -1]
    assert not (encoded.special & ~encoded.real).any()


def test_a_tokenizer_without_padding_token():
    tokenizer = byte_tokenizer(specials=False)
    tokenizer.pad_token = None
    encoded = encode(tiny_model("gpt2", tokenizer=tokenizer), ["abcd", "x"])
    assert encoded.inputs["input_ids"][1].tolist()[1:] == [tokenizer.eos_token_id] * 3
    assert encoded.real.sum(-1).tolist() == [4, 1]


@pytest.mark.parametrize("family", ["gpt2", "bert", "roberta", "opt", "llama"])
def test_padding_on_the_left_does_not_move_positions(family):
    """A text alone and the same text after padding: same attention, though position tables count from the left."""
    specials = family in ("bert", "roberta")
    alone = tiny_model(family, tokenizer=byte_tokenizer(specials=specials))
    padded = tiny_model(family, tokenizer=byte_tokenizer(specials=specials, padding_side="left"))
    if family == "roberta":  # it finds padding by its own token id, 1
        for model in (alone, padded):
            model.tokenizer.pad_token = "<s>"
            model.tokenizer.cls_token = "<one>"
            model.tokenizer._tokenizer.post_processor = None
    single, together = capture(alone, "xyz"), capture(padded, ["abcdefg", "xyz"])
    n = single.layer(0).q.shape[2]
    for one, both in zip(single.layers, together.layers, strict=True):
        torch.testing.assert_close(both.pattern[1:, :, -n:, -n:], one.pattern, atol=1e-5, rtol=0)
        assert (both.pattern[1, :, -n:, :-n] == 0).all()


def test_token_types_go_only_to_models_that_take_them(bert):
    tokenizer = byte_tokenizer()
    tokenizer.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    for family, takes in (("distilbert", False), ("bert", True)):
        inputs = encode(tiny_model(family, tokenizer=tokenizer), "ab").inputs
        assert ("token_type_ids" in inputs) == takes
        assert {"input_ids", "attention_mask"} <= inputs.keys()
    assert "token_type_ids" not in encode(bert, "ab").inputs  # its tokenizer knows none


def test_unknown_words_only(minilm):
    encoded = encode(minilm, Sentence("s", ("ᚠᚢᚦ", "𐌰𐌱")))
    assert encoded.unknown_share == 1.0
    assert encoded.tokens[0] == ("[CLS]", "[UNK]", "[UNK]", "[SEP]")
    assert capture(minilm, Sentence("s", ("ᚠᚢᚦ", "𐌰𐌱"))).layer(5).pattern.shape == (1, 12, 4, 4)
    assert encode(minilm, ["ᚠ cat", "dogs bark"]).unknown_share == 0.25


@pytest.mark.parametrize("text", ["", "   ", "\n\t", Sentence("s", ())])
def test_empty_text(bert, gpt2, text):
    for model in (bert, gpt2):
        for given in (text, ["fine", text]):
            if isinstance(given, list) and isinstance(text, Sentence):
                given = [Sentence("t", ("fine",)), text]
            with pytest.raises(InputError, match=r"cannot capture an empty text: expected at least one word"):
                capture(model, given)


def test_texts_without_a_single_piece(minilm):
    with pytest.raises(InputError, match="no word of the text has a token"):
        capture(minilm, "\u200b\u00ad")
    with pytest.raises(InputError, match="no word has a piece"):
        capture(minilm, Sentence("s", ("\u200b",)))


def test_nothing_at_all(bert):
    with pytest.raises(InputError, match="expected at least one text, got none"):
        capture(bert, [])
    with pytest.raises(InputError, match="expected a text, or model inputs by name, got neither"):
        capture(bert)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("given", "name"), [(3, "int"), ([3], "int"), ([None], "NoneType"), ([["a"]], "list")])
def test_what_is_no_text(bert, given, name):
    with pytest.raises(InputError, match=f"expected a text or a Sentence, got {name}"):
        capture(bert, given)


def test_a_text_too_long(bert, minilm):
    with pytest.raises(
        InputError, match=r"text is too long for BertModel: expected at most 101 tokens, got 102.*Split it"
    ):
        capture(bert, "x" * (POSITIONS - 1))
    assert capture(bert, "x" * (POSITIONS - 2)).layer(0).q.shape[2] == POSITIONS
    with pytest.raises(InputError, match=r"too long.*at most 512 tokens, got 602"):
        capture(minilm, "word " * 600)
    with pytest.raises(InputError, match=r"too long"):
        capture(minilm, Sentence("s", ("word",) * 600))
    with pytest.raises(InputError, match=r"input is too long for BertModel: expected at most 101 tokens, got 102"):
        capture(bert, input_ids=torch.full((1, POSITIONS + 1), 9))


def test_a_target_too_long():
    model = tiny_model("bart", tokenizer=byte_tokenizer())
    with pytest.raises(InputError, match="target text is too long"):
        capture(model, "abc", text_pair="x" * POSITIONS)


def test_targets_of_encoder_decoder_models():
    model = tiny_model("bart", tokenizer=byte_tokenizer())
    given, alone = encode(model, ["abcd", "x"], text_pair="yz"), encode(model, "abcd")
    start = model.config.decoder_start_token_id
    assert given.inputs["decoder_input_ids"][0, 0] == start
    assert given.target_tokens[1][2:4] == ("y", "z")
    assert given.target_real.shape == (2, 5)
    assert alone.inputs["decoder_input_ids"].tolist() == [[start]]


def test_model_inputs_as_lists_arrays_or_tensors(bert):
    ids = [[9, 10, 11], [12, 13, 0]]
    mask = [[1, 1, 1], [1, 1, 0]]
    first = capture(bert, input_ids=ids, attention_mask=mask)
    second = capture(bert, input_ids=np.array(ids), attention_mask=torch.tensor(mask))
    assert all(torch.equal(a.pattern, b.pattern) for a, b in zip(first.layers, second.layers, strict=True))
    assert first.encoded.real.tolist() == [[True] * 3, [True, True, False]]
    assert first.encoded.words[1] == first.tokens[1][:2]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"input_idz": [[9]]}, r"BertModel takes no input 'input_idz'; near names: .*input_ids"),
        ({"input_ids": [[9]], "labels": [[1]]}, r"takes no input 'labels'"),
        ({"input_ids": [9, 10]}, r"wrong input_ids: expected \[batch token\], not empty, got \(2,\)"),
        ({"input_ids": [[[9, 10]]]}, r"wrong input_ids: expected \[batch token\], not empty, got \(1, 1, 2\)"),
        ({"input_ids": [[]]}, r"wrong input_ids: .* got \(1, 0\)"),
        ({"input_ids": [[9, 10], [11]]}, r"cannot make a tensor of input_ids: expected numbers, rows of equal length"),
        ({"input_ids": [["a"]]}, r"cannot make a tensor of input_ids"),
        ({"input_ids": [[VOCABULARY]]}, r"wrong input_ids: expected token ids from 0 to 262, got 263 to 263"),
        ({"input_ids": [[-1, 3]]}, r"got -1 to 3"),
        (
            {"input_ids": [[9, 10]], "attention_mask": [[1]]},
            r"wrong mask: expected \(1, 2\) as input_ids, got \(1, 1\)",
        ),
    ],
)
def test_wrong_model_inputs(bert, inputs, message):
    with pytest.raises(InputError, match=message):
        capture(bert, **inputs)


def test_several_codes_a_position():
    """What models of sound take; the codes have code books of their own, so no vocabulary bounds them."""
    sizes = {
        "hidden_size": 30,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "head_dim": 10,
    }
    config = transformers.CsmConfig(
        **sizes, vocab_size=64, text_vocab_size=101, num_codebooks=4, intermediate_size=37, codebook_size=64,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, depth_decoder_config={**sizes, "vocab_size": 64},
    )  # fmt: skip
    model = load((transformers.CsmBackboneModel(config).eval(), None))
    taken = capture(model, input_ids=torch.full((2, 5, 4), 7))
    assert taken.encoded.real.shape == (2, 5)
    assert taken.layer(0).q.shape[2] == 5


def test_a_text_and_model_inputs_at_once(bert):
    with pytest.raises(
        InputError, match=r"cannot tell what to run: expected either texts or model inputs.*got input_ids"
    ):
        capture(bert, "text", input_ids=[[9]])
    with pytest.raises(InputError, match=r"cannot tell what to run"):
        capture(bert, text_pair="text")


def test_a_tokenizer_of_another_model(minilm):
    model = tiny_model("bert", tokenizer=minilm.tokenizer)
    with pytest.raises(
        InputError, match=r"the tokenizer is not the one of BertModel: expected token ids from 0 to 262, got 101 to"
    ):
        capture(model, "the cat")


def test_padding_without_a_mask_warns(bert):
    with pytest.warns(UserWarning, match="hold padding and no attention_mask was given"):
        capture(bert, input_ids=[[9, 10, 0]])
    capture(bert, input_ids=[[9, 0, 10]])  # not at an end: no padding
    capture(bert, input_ids=[[9, 10, 0]], attention_mask=[[1, 1, 0]])


def test_a_padding_token_that_is_the_end_token_does_not_warn():
    module = build("gpt2")
    module.config.pad_token_id = module.config.eos_token_id
    capture((module, None), input_ids=[[9, 10, module.config.eos_token_id]])


def test_a_mask_per_query_says_nothing_of_padding(bert):
    mask = torch.zeros(1, 1, 3, 3).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    taken = capture(bert, input_ids=[[9, 10, 11]], attention_mask=mask)
    assert taken.encoded.real.all()
    assert (taken.layer(0).pattern.triu(1) == 0).all()


def test_a_bool_mask_that_eager_adds_as_a_number_is_told():
    """As Grounding DINO hands to BERT: sdpa hides by it, eager adds 0 or 1, and the capture says what happened."""
    mask = torch.ones(1, 1, 3, 3).tril().bool()
    inputs = {"input_ids": [[9, 10, 11]], "attention_mask": mask}
    with pytest.warns(UserWarning, match=r"BertSelfAttention passes a bool mask to eager.*nothing is hidden"):
        eager = capture(tiny_model("bert"), **inputs)
    hidden = capture(tiny_model("bert", attn="sdpa"), **inputs)
    assert (eager.layer(0).pattern.triu(1) > 0).any()
    assert eager.layer(0).visible is None
    assert (hidden.layer(0).pattern.triu(1) == 0).all()
    with pytest.warns(UserWarning, match="bool mask"):
        assert verify(tiny_model("bert"), **inputs).ok


def test_token_types_and_positions_by_name(bert):
    ids = [[9, 10, 11]]
    moved = capture(bert, input_ids=ids, position_ids=[[5, 6, 7]], token_type_ids=[[0, 1, 1]])
    assert not torch.equal(moved.layer(0).pattern, capture(bert, input_ids=ids).layer(0).pattern)


def test_inputs_without_tokens():
    taken = capture(tiny_model("vit"), **inputs_for("vit"))
    assert taken.tokens == ()
    assert taken.encoded.batch_size == 3
    view = taken.view(1)
    assert view.tokens == ()
    assert view.blocks[0].pattern.shape == (3, 5, 5)


def test_special_tokens_of_ids_are_known_and_padding_is_none():
    model = tiny_model("bert", tokenizer=byte_tokenizer())
    taken = capture(model, input_ids=[[1, 9, 10, 2], [1, 9, 2, 0]], attention_mask=[[1, 1, 1, 1], [1, 1, 1, 0]])
    assert taken.encoded.special.tolist() == [[True, False, False, True], [True, False, True, False]]
    assert taken.encoded.alignments[1].word_index.tolist() == [-1, 0, -1, -1]


def test_undescribed_inputs_have_no_tokens(bert):
    encoded = from_model_inputs(bert, {"input_ids": [[9, 10]]}, describe=False)
    assert encoded.tokens == encoded.words == encoded.alignments == ()
    assert encoded.real.shape == (1, 2)


def test_tokens_without_tokenizer_are_their_numbers():
    assert capture(tiny_model("bert"), input_ids=[[9, 10]]).tokens == (("9", "10"),)


def test_what_tokens_look_like(gpt2):
    assert encode(gpt2, "a b").tokens[0] == ("a", "Ġ", "b")  # a blank alone shows as the vocabulary spells it
    assert encode(gpt2, "é").tokens[0] == ("Ã", "©")  # halves of a character are no text


def test_a_tokenizer_written_in_python_takes_each_token_for_a_word():
    fast = byte_tokenizer()

    class Slow:
        """The calls of a slow tokenizer, without word ids."""

        is_fast = False
        padding_side, pad_token_id, unk_token_id, eos_token_id = "right", 0, 3, 2
        model_max_length, all_special_ids = 50, [0, 1, 2]
        model_input_names = ("input_ids", "attention_mask")
        decode, convert_ids_to_tokens = fast.decode, fast.convert_ids_to_tokens

        def __call__(self, text, pair=None, **options):
            return {"input_ids": fast(text, pair)["input_ids"]}

    encoded = encode(tiny_model("bert", tokenizer=Slow()), ["ab", "c"])
    assert encoded.alignments[0].word_index.tolist() == [-1, 0, 1, -1]
    assert encoded.words == (("a", "b"), ("c",))
