"""Units show the user's own characters, whole, and predicted tokens read as they stand in their context."""

from __future__ import annotations

import pytest
import tiny_tokenizers
from support import SHARED, needs_shared
from tokenizers import pre_tokenizers
from transformers import AutoTokenizer

from lrpx.text.pairs import encode_pair
from lrpx.text.tokenization import encode
from lrpx.text.units import pieces_shown, predicted_token


@pytest.fixture(scope="module")
def bert():
    return AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "bert-base-uncased")


@pytest.fixture(scope="module")
def gpt2():
    return AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "gpt2")


def texts(tokenizer, text):
    (encoded,) = encode(tokenizer, text)
    starts, ends, shown = zip(*encoded.units, strict=True)
    assert (*starts, len(encoded.token_ids)) == (0, *ends)
    return list(shown)


@needs_shared(SHARED / "tokenizers")
def test_word_pieces_show_what_the_user_wrote(bert):
    shown = texts(bert, "The Café's São\n Tomé, don't [MASK]!")
    assert "".join(shown) == "[CLS] The Café's São Tomé, don't [MASK]! [SEP]"
    assert shown[:3] == ["[CLS]", " The", " Café"]


@needs_shared(SHARED / "tokenizers")
def test_what_the_tokenizer_drops_stays_with_its_letter(bert):
    """BERT drops the vowel signs of Hindi that count as accents, and the accents of decomposed letters."""
    assert "".join(texts(bert, "हिन्दी में क्षत्रिय।")) == "[CLS] हिन्दी में क्षत्रिय। [SEP]"
    assert "".join(texts(bert, "cafe\u0301")) == "[CLS] cafe\u0301 [SEP]"


@needs_shared(SHARED / "tokenizers")
def test_an_unknown_word_is_shown_as_the_model_reads_it(bert):
    assert texts(bert, "a 🔑") == ["[CLS]", " a", " [UNK]", " [SEP]"]


def test_characters_that_the_tokenizer_takes_apart_are_one_unit():
    from tokenizers import normalizers

    tokenizer = tiny_tokenizers.metaspace()
    tokenizer.backend_tokenizer.normalizer = normalizers.NFKC()
    encoded = encode(tokenizer, "The ﬁne key")[0]
    assert [unit.end - unit.start for unit in encoded.units if unit.text == "ﬁ"] == [2]
    assert "".join(unit.text for unit in encoded.units) == "<s> The ﬁne key"


@needs_shared(SHARED / "tokenizers")
@pytest.mark.parametrize(
    ("text", "characters"),
    [
        ("हिन्दी में", ["हि", "न्दी", " में"]),
        ("क्षत्रिय", ["क्ष", "त्रि", "य"]),
        ("👩\u200d🚀🇩🇪", ["👩\u200d🚀", "🇩🇪"]),
        ("e\u0301", ["e\u0301"]),
    ],
)
def test_no_character_is_split(gpt2, text, characters):
    assert texts(gpt2, text) == characters


@needs_shared(SHARED / "tokenizers")
def test_a_predicted_token_reads_as_in_its_context(gpt2, bert):
    def shown(tokenizer, raw, before=()):
        return predicted_token(tokenizer, tokenizer.convert_tokens_to_ids(raw), before).shown

    assert shown(gpt2, "Ġare") == " are"
    assert shown(gpt2, "ä¸Ń") == "中"
    assert shown(gpt2, "×©") == "ש"
    first, second = gpt2("日")["input_ids"]
    assert predicted_token(gpt2, second, [464, first]).shown == "日"
    assert predicted_token(gpt2, first, [464]).shown == r"\xe6\x97"  # no character yet
    assert predicted_token(gpt2, second, [464]).shown == r"\xa5"  # nothing that it could complete
    assert shown(bert, "##s") == "s"
    assert shown(bert, "[SEP]") == "[SEP]"
    assert predicted_token(None, 7, ()) == (7, "7", "7")
    metaspace = tiny_tokenizers.metaspace()
    assert shown(metaspace, "▁are") == " are"


@needs_shared(SHARED / "tokenizers")
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" keyskeys", "' keys', 'keys'"),
        (" и", "' и' (2 tokens)"),
        ("घर", "'घ' (2 tokens), 'र' (2 tokens)"),
    ],
)
def test_pieces_of_a_target(gpt2, text, shown):
    assert pieces_shown(gpt2, gpt2(text)["input_ids"], ()) == shown


@needs_shared(SHARED / "tokenizers")
def test_pieces_that_begin_or_end_within_a_character(gpt2):
    first, last = gpt2("狗")["input_ids"]
    assert pieces_shown(gpt2, [last, 11], [first]) == "'狗', ','"
    assert pieces_shown(gpt2, [11, first], ()) == r"',', '\xe7\x8b'"  # each backslash once


@pytest.mark.parametrize("splits", [False, True], ids=["metaspace", "words, then metaspace, as T5 and XLM-RoBERTa"])
@pytest.mark.parametrize("text", ["T keys", "the T", "the  x keys", "T. x"])
def test_a_lone_space_does_not_show_the_letter_after_it(splits, text):
    tokenizer = tiny_tokenizers.metaspace()
    if splits:
        parts = [pre_tokenizers.WhitespaceSplit(), tokenizer.backend_tokenizer.pre_tokenizer]
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    assert "▁" in tokenizer.tokenize(text)
    for encoded in (*encode(tokenizer, text), *encode(tokenizer, tokenizer(text)["input_ids"])):
        shown = "".join(unit.text for unit in encoded.units)
        assert shown.split() == ["<s>", *text.split()]
    pair = encode_pair(tokenizer, text, "the keys", names=("text", "text_pair"))
    assert "".join(unit.text for unit in pair.units).split() == [*text.split(), "the", "keys"]
