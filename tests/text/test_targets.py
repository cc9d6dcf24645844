"""Position, target and contrast: what a person gives becomes the ids it means where it stands, or an error."""

import numpy as np
import pytest
import tiny
import tiny_tokenizers
import torch
from support import SHARED, needs_shared
from transformers import AutoTokenizer, GPT2Config, GPT2Model, T5Config, T5Model

from lrpx.errors import InputError, UnsupportedModelError
from lrpx.models.signature import task_of
from lrpx.text.targets import SeveralTokens, resolve_continuation, resolve_position, resolve_token, space_counts
from lrpx.text.tokenization import encode

TEXT = tiny_tokenizers.TEXT
MASKED = ("roberta", "word_piece")


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: getattr(tiny_tokenizers, kind)() for kind in ("byte_level", "roberta", "word_piece", "metaspace")}


def token(tokenizer, text, given, position=None, task="causal", role="target"):
    """The piece that ``given`` becomes in ``text``."""
    (encoded,) = encode(tokenizer, text)
    if task == "causal":
        encoded = encoded.without_closing()
    where = resolve_position(encoded, position, task, tokenizer.mask_token_id)
    found = resolve_token(given, role, encoded, where, tokenizer, len(tokenizer), task)
    return tokenizer.convert_ids_to_tokens(found)


# The task


@pytest.mark.parametrize(
    ("family", "task"),
    [
        ("causal:gpt2", "causal"),
        ("causal:bert", "causal"),
        ("masked:bert", "masked"),
        ("masked:roberta", "masked"),
        ("causal:roberta", "causal"),
        ("causal:xlm", "causal"),  # one class for both
        ("masked:xlm", "masked"),
        ("masked:flaubert", "masked"),
    ],
)
def test_task(family, task):
    assert task_of(tiny.build(family, dtype=torch.float32)) == task


def test_a_model_without_a_head_gives_embeddings():
    size = {"n_layer": 1, "n_embd": 8, "n_head": 1, "vocab_size": 9, "bos_token_id": 0, "eos_token_id": 0}
    assert task_of(GPT2Model(GPT2Config(**size))) == "feature-extraction"
    t5 = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=1)
    with pytest.raises(UnsupportedModelError, match="T5Model is an encoder-decoder model for feature-extraction"):
        task_of(T5Model(t5))


# The position


def test_position(tokenizers):
    (encoded,) = encode(tokenizers["metaspace"], TEXT)  # 6 tokens
    assert resolve_position(encoded, None, "causal", None) == 5
    for given, index in ((0, 0), (5, 5), (-1, 5), (-6, 0), (np.int64(2), 2), (torch.tensor(-2), 4)):
        assert resolve_position(encoded, given, "causal", None) == index
        assert resolve_position(encoded, given, "masked", 999) == index


@pytest.mark.parametrize("position", [6, -7])
def test_position_outside_the_text(tokenizers, position):
    (encoded,) = encode(tokenizers["metaspace"], TEXT)
    with pytest.raises(
        InputError, match=rf"position {position} is outside the text, which has 6 tokens: 0 to 5, or -6 to"
    ):
        resolve_position(encoded, position, "causal", None)


@pytest.mark.parametrize("position", ["1", 1.0, True, [1, 2]])
def test_position_of_another_type(tokenizers, position):
    (encoded,) = encode(tokenizers["metaspace"], TEXT)
    with pytest.raises(InputError, match=r"position=.* has the type (str|float|bool|list)\. Give the index of a token"):
        resolve_position(encoded, position, "causal", None)


def test_the_mask_token_is_the_position(tokenizers):
    bert = tokenizers["word_piece"]
    (encoded,) = encode(bert, "the [MASK] are [MASK] here")
    with pytest.raises(InputError, match=r"the text has 2 mask tokens, at positions \[2, 4\]. Say which: position=2"):
        resolve_position(encoded, None, "masked", bert.mask_token_id)
    assert resolve_position(encoded, 4, "masked", bert.mask_token_id) == 4
    (encoded,) = encode(bert, "the [MASK] are here")
    assert resolve_position(encoded, None, "masked", bert.mask_token_id) == 2
    (encoded,) = encode(bert, "the keys are here")
    with pytest.raises(
        InputError, match=r"in place of a mask token \(id 4\), and the text has none. Put one in, or give pos"
    ):
        resolve_position(encoded, None, "masked", bert.mask_token_id)
    with pytest.raises(
        InputError, match=r"in place of a mask token, and this tokenizer has none. Is it the model's own"
    ):
        resolve_position(encoded, None, "masked", None)


# Ids


@pytest.mark.parametrize("given", [3, np.int64(3), np.int32(3), torch.tensor(3)])
def test_ids(tokenizers, given):
    (encoded,) = encode(tokenizers["metaspace"], TEXT)
    found = resolve_token(given, "target", encoded, 5, None, 50, "causal")
    assert (found, type(found)) == (3, int)


def test_nothing_stays_nothing(tokenizers):
    (encoded,) = encode(tokenizers["metaspace"], TEXT)
    assert resolve_token(None, "target", encoded, 5, None, 50, "causal") is None


@pytest.mark.parametrize("given", [50, -1])
def test_ids_outside_the_vocabulary(tokenizers, given):
    (encoded,) = encode(tokenizers["metaspace"], TEXT)
    with pytest.raises(InputError, match=rf"contrast={given} is outside the vocabulary: ids go from 0 to 49"):
        resolve_token(given, "contrast", encoded, 5, None, 50, "causal")


@pytest.mark.parametrize("given", [1.0, True, b"are", [1, 2], {"a": 1}])
def test_tokens_of_another_type(tokenizers, given):
    (encoded,) = encode(tokenizers["metaspace"], TEXT)
    with pytest.raises(
        InputError, match=r"target=.* has the type (float|bool|bytes|list|dict)\. Give a token id or a string"
    ):
        resolve_token(given, "target", encoded, 5, None, 50, "causal")


def test_a_string_needs_a_tokenizer(tokenizers):
    (encoded,) = encode(None, [3, 4])
    with pytest.raises(InputError, match="target=' are' is a string, which needs a tokenizer"):
        resolve_token(" are", "target", encoded, 1, None, 50, "causal")


# Strings, where they stand


@pytest.mark.parametrize(
    ("kind", "text", "given", "position", "piece"),
    [
        ("byte_level", TEXT, " are", None, "Ġare"),
        ("byte_level", TEXT, "are", None, "are"),  # a leading space matters
        ("byte_level", "The ", "keys", None, "keys"),  # after a space there comes a piece without one
        ("byte_level", "The ", " keys", None, "Ġkeys"),
        ("byte_level", "The\n", "keys", None, "keys"),
        ("byte_level", "The cab", "s", None, "s"),
        ("byte_level", TEXT, " is", 1, "Ġis"),  # after "The keys"
        ("byte_level", TEXT, "is", -3, "is"),
        ("byte_level", TEXT, "<|endoftext|>", None, "<|endoftext|>"),
        ("metaspace", TEXT, " are", None, "▁are"),
        ("metaspace", TEXT, "are", None, "are"),
        ("metaspace", "The ", "keys", None, "keys"),
        ("metaspace", TEXT, " is", 2, "▁is"),
        ("metaspace", TEXT, " is", 0, "▁is"),  # after the special token <s>, whose place in the text is unknown
        ("roberta", TEXT, " are", None, "Ġare"),
        ("word_piece", TEXT, " are", None, "are"),
        ("word_piece", "The cab", "y", None, "##y"),  # goes on with the word, since no space comes before it
        ("word_piece", "The cab", " y", None, "y"),
        ("word_piece", "The key", "s", None, "s"),  # "keys" is another token, so the text would change: by itself
    ],
)
def test_strings_after_a_text(tokenizers, kind, text, given, position, piece):
    assert token(tokenizers[kind], text, given, position) == piece


@pytest.mark.parametrize(
    ("kind", "text", "given", "position", "piece"),
    [
        ("word_piece", "The keys [MASK] here", "are", None, "are"),
        ("word_piece", "The keys [MASK] here", " are", None, "are"),
        ("word_piece", "The keys [MASK] here", "ARE", None, "are"),
        ("word_piece", "The keys are here", "is", 3, "is"),
        ("word_piece", "The keysx here", "y", 3, "##y"),  # in place of ##x
        ("word_piece", "The keys are here", "is", 0, "is"),  # in place of [CLS]: the text around it is not known
        ("roberta", "The keys<mask> here", " are", None, "Ġare"),
        ("roberta", "The keys <mask> here", " are", None, "Ġare"),  # the mask takes the space before it
        ("roberta", "The keys <mask> here", "are", None, "are"),
        ("roberta", "<mask> keys are", "The", None, "The"),
        ("roberta", "The keys are here", " is", 3, "Ġis"),
        ("roberta", "The keys are here", " is", -3, "Ġis"),
    ],
)
def test_strings_in_place_of_a_token(tokenizers, kind, text, given, position, piece):
    assert token(tokenizers[kind], text, given, position, task="masked") == piece


@pytest.mark.parametrize(
    ("kind", "expected"), [("byte_level", True), ("roberta", True), ("metaspace", True), ("word_piece", False)]
)
def test_whether_a_leading_space_makes_another_token(tokenizers, kind, expected):
    assert space_counts(tokenizers[kind]) is expected


@pytest.mark.parametrize("kind", ["byte_level", "metaspace"])
def test_strings_after_ids(tokenizers, kind):
    """The text is not known, so the string by itself counts; a leading space still matters."""
    tokenizer = tokenizers[kind]
    ids = tokenizer(TEXT)["input_ids"]
    space = "Ġ" if kind == "byte_level" else "▁"
    assert token(tokenizer, ids, " are") == space + "are"
    assert token(tokenizer, ids, "are") == "are"


def test_strings_after_chat_messages(tokenizers):
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = tiny_tokenizers.CHAT
    assert token(tokenizer, [{"role": "user", "content": "the keys"}], "are") == "are"


def test_byte_level_with_a_space_before_every_text():
    """Such a tokenizer reads "are" like " are"; as a continuation they differ."""
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space = True
    assert tokenizer.tokenize("are") == ["Ġare"]
    for given in (TEXT, tokenizer(TEXT)["input_ids"]):
        assert token(tokenizer, given, "are") == "are"
        assert token(tokenizer, given, " are") == "Ġare"


@needs_shared(SHARED / "tokenizers")
def test_real_tokenizers():
    gpt2 = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "gpt2")
    assert token(gpt2, TEXT, " are") == "Ġare"
    assert token(gpt2, TEXT, "are") == "are"
    assert token(gpt2, "The keys to the cab", "inet") == "inet"  # the text's own tokens would change: by itself
    bert = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "bert-base-uncased")
    for given in ("are", " are", "Are"):
        assert token(bert, "The keys [MASK] here.", given, task="masked") == "are"


# Strings that are no single token


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (
            "byte_level",
            " keyskeys",
            r"target=' keyskeys' is 2 tokens here: ' keys', 'keys'. A logit belongs to one token. Pick",
        ),
        ("byte_level", " keyskeys", r"or explain the first piece: target=\d+ \(' keys'\)\.$"),
        ("byte_level", "  are", r"is 2 tokens here: ' ', ' are'\. Most likely there is a space too many\. Give"),
        (
            "byte_level",
            "  are",
            r"Give target=' are', which is one token, or give the ids of these: target=\[\[\d+, \d+\]\]",
        ),
        (
            "byte_level",
            " x",
            r"is 2 tokens here: ' ', 'x'\. A logit belongs to one token\. Pick a word",
        ),  # ``x`` is one
        ("byte_level", "🤗", r"is 4 tokens here: "),
        ("byte_level", "", "target='' is no token. Give a word, with its leading space if it starts one."),
        ("metaspace", " keyskeys", r"is 2 tokens here: ' keys', 'keys'"),
        (
            "metaspace",
            "é",
            r"target='é' is not in the vocabulary: the tokenizer reads it as '<unk>'. Pick a word that is one",
        ),
    ],
)
def test_says_what_the_string_is(tokenizers, kind, given, message):
    with pytest.raises(InputError, match=message):
        token(tokenizers[kind], TEXT, given)


@pytest.mark.parametrize(
    ("other", "advised"),
    [(" is", True), (None, True), (" keys", False), ("keys", False), (0, False), (np.array([5, 6]), True)],
)
def test_the_first_piece_is_not_advised_where_it_is_the_other_side(tokenizers, other, advised):
    tokenizer = tokenizers["byte_level"]
    (encoded,) = encode(tokenizer, TEXT)
    if isinstance(other, int):
        other = tokenizer.convert_tokens_to_ids("Ġkeys")
    place = len(encoded.token_ids) - 1
    with pytest.raises(InputError, match="A logit belongs to one token") as error:
        resolve_token(" keyskeys", "contrast", encoded, place, tokenizer, len(tokenizer), "masked", other=other)
    assert ("first piece" in str(error.value)) is advised


@needs_shared(SHARED / "tokenizers")
@pytest.mark.parametrize(
    ("text", "given", "count"),
    [
        ("привет мир", " и", 2),  # GPT-2 has ``и`` as one token, the end of a word such as ``мири``
        ("привет мир", " ж", 2),
        ("我喜欢", "狗", 2),
        ("The rec", " ipe", 2),  # ``ipe`` is one token
    ],
)
def test_takes_a_string_with_its_space_as_it_is(text, given, count):
    gpt2 = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "gpt2")
    (encoded,) = encode(gpt2, text)
    with pytest.raises(SeveralTokens) as raised:
        resolve_token(given, "target", encoded, len(encoded.token_ids) - 1, gpt2, len(gpt2), "causal")
    assert len(raised.value.ids) == count
    assert gpt2.decode(raised.value.ids) == given
    assert "space" not in str(raised.value)


@needs_shared(SHARED / "tokenizers")
@pytest.mark.parametrize("text", ["She plays the\n", "<|endoftext|>"])
def test_expects_no_space_after_a_line_break_or_a_special_token(text):
    gpt2 = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "gpt2")
    (encoded,) = encode(gpt2, text)
    with pytest.raises(SeveralTokens) as raised:
        resolve_token("piano", "target", encoded, len(encoded.token_ids) - 1, gpt2, len(gpt2), "causal")
    assert gpt2.decode(raised.value.ids) == "piano"
    assert "space" not in str(raised.value)


@needs_shared(SHARED / "tokenizers")
def test_gives_no_list_of_ids_where_one_token_is_asked_for():
    gpt2 = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "gpt2")
    (encoded,) = encode(gpt2, "She plays the")
    with pytest.raises(InputError, match=r"Give target=' piano', which is one token\.$"):
        resolve_token("piano", "target", encoded, 2, gpt2, len(gpt2), "causal", several=False)


@needs_shared(SHARED / "tokenizers")
def test_says_that_the_space_is_at_the_end_of_the_text():
    gpt2 = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "gpt2")
    pieces = r"target='piano' is 2 tokens here: 'p', 'iano'\. "
    with pytest.raises(
        InputError, match=pieces + "Most likely a space was forgotten. Give target=' piano', which is one"
    ):
        token(gpt2, "She plays the", "piano")
    with pytest.raises(
        InputError, match=pieces + "The text ends with a space, .* leave it out there, and give target=' pi"
    ):
        token(gpt2, "She plays the ", "piano")
    assert token(gpt2, "She plays the", " piano") == "Ġpiano"


@needs_shared(SHARED / "tokenizers")
@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        (
            "The recipe needs",
            "two eggs",
            r"the text ends with ' needs', and with the continuation this becomes ' need', 'st', 'wo', ' eggs'\. Most likely a "
            r"space was forgotten: give continuation=' two eggs'\. Or move .*, or give ids\.$",
        ),
        ("The recipe needs ", "two eggs", r"The text ends with a space, .* and give continuation=' two eggs'\.$"),
        ("The rec", "ipe needs", r"Or move the piece of a word to the other side, or give ids\.$"),
    ],
)
def test_says_which_continuation_keeps_the_text(text, given, message):
    gpt2 = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "gpt2")
    (encoded,) = encode(gpt2, text)
    with pytest.raises(InputError, match=message):
        resolve_continuation(given, "continuation", encoded, gpt2, len(gpt2))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("🤗", r"contrast='🤗' is not in the vocabulary: the tokenizer reads it as '\[UNK\]'. Pick a word"),
        ("keyss", r"contrast='keyss' is 2 tokens here: 'keys', '##s'"),
        (" ", "contrast=' ' is no token"),
        ("##s", r"is 3 tokens here: '#', '#', 's'"),
    ],
)
def test_says_what_the_string_is_in_place_of_the_mask(tokenizers, given, message):
    with pytest.raises(InputError, match=message):
        token(tokenizers["word_piece"], "The keys [MASK] here", given, task="masked", role="contrast")


def test_the_unknown_token_can_be_asked_for_by_name(tokenizers):
    assert token(tokenizers["word_piece"], "The keys [MASK] here", "[UNK]", task="masked") == "[UNK]"


def test_half_a_character(tokenizers):
    with pytest.raises(InputError, match=r"target='\\udcff' is not valid Unicode"):
        token(tokenizers["byte_level"], TEXT, "\udcff")


def test_a_string_of_several_tokens_here_does_not_count_by_itself(tokenizers):
    """``are`` is a token of WordPiece by itself, but not right after a word."""
    with pytest.raises(
        InputError, match=r"is 3 tokens here: '##a', '##r', '##e'\. .* Give target=' are', which is one"
    ):
        token(tokenizers["word_piece"], "The keys", "are")
