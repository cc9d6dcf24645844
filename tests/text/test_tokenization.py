"""Whatever a person gives becomes the same ids, pieces and readable units, or an error that says what was wrong."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
import tiny_tokenizers
import torch
from support import SHARED, needs_shared
from transformers import AutoTokenizer, ByT5Tokenizer
from transformers.tokenization_utils_base import BatchEncoding

from lrpx.errors import InputError
from lrpx.text.given import as_python, split
from lrpx.text.tokenization import encode

TEXT = tiny_tokenizers.TEXT
KINDS = ["byte_level", "roberta", "word_piece", "metaspace"]


@pytest.fixture(scope="module")
def tokenizers():
    return {kind: getattr(tiny_tokenizers, kind)() for kind in KINDS}


@pytest.fixture(scope="module")
def gpt2(tokenizers):
    return tokenizers["byte_level"]


def one(tokenizer, given):
    (encoded,) = encode(tokenizer, given)
    return encoded


def texts(encoded):
    return [unit.text for unit in encoded.units]


# Forms of input


SINGLE = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "32-bit array": lambda ids: np.array(ids, dtype=np.int32),
    "tensor": torch.tensor,
    "list of numpy integers": lambda ids: list(np.array(ids)),
    "list of tensors": lambda ids: list(torch.tensor(ids)),
    "BatchEncoding": lambda ids: BatchEncoding({"input_ids": ids, "attention_mask": [1] * len(ids)}),
    "dictionary": lambda ids: {"input_ids": torch.tensor(ids)},
}


@pytest.mark.parametrize("form", SINGLE)
def test_ids_in_any_form_are_the_text(gpt2, form):
    expected = one(gpt2, TEXT)
    given = SINGLE[form](list(expected.token_ids))
    assert split(given)[1] is False
    encoded = one(gpt2, given)
    assert (encoded.token_ids, encoded.tokens, encoded.units) == (expected.token_ids, expected.tokens, expected.units)
    assert all(type(i) is int for i in encoded.token_ids)
    assert encoded.text is None
    assert encoded.spans == [None] * len(expected.token_ids)


SEVERAL = {
    "list of texts": lambda t, x: x,
    "tuple of texts": lambda t, x: tuple(x),
    "array of texts": lambda t, x: np.array(x),
    "list of ids": lambda t, x: t(x)["input_ids"],
    "2-D tensor": lambda t, x: torch.tensor(t(x)["input_ids"]),
    "2-D array": lambda t, x: np.array(t(x)["input_ids"]),
    "list of arrays": lambda t, x: [np.array(row) for row in t(x)["input_ids"]],
    "list of tensors": lambda t, x: [torch.tensor(row) for row in t(x)["input_ids"]],
    "BatchEncoding": lambda t, x: t(x),
    "BatchEncoding of tensors": lambda t, x: t(x, return_tensors="pt"),
    "BatchEncoding of arrays": lambda t, x: t(x, return_tensors="np"),
    "list of BatchEncodings": lambda t, x: [t(row) for row in x],
    "texts and ids": lambda t, x: [x[0], *(t(row)["input_ids"] for row in x[1:])],
}


@pytest.mark.parametrize("form", SEVERAL)
@pytest.mark.parametrize("count", [1, 2])
def test_several_in_any_form(gpt2, form, count):
    both = [TEXT, "the keys to the cabinet"][:count]  # as many tokens
    given = SEVERAL[form](gpt2, both)
    assert split(given)[1] is True
    assert [e.token_ids for e in encode(gpt2, given)] == [e.token_ids for e in encode(gpt2, both)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_dropped(tokenizers, kind, side):
    tokenizer, both = tokenizers[kind], [TEXT, "The key"]
    batch = tokenizer(both, padding=True, padding_side=side, return_tensors="pt")
    assert (batch["attention_mask"] == 0).any()
    for encoded, plain in zip(encode(tokenizer, batch), encode(tokenizer, both), strict=True):
        assert (encoded.token_ids, encoded.tokens) == (plain.token_ids, plain.tokens)
        written = [unit.text.replace("The", "the") if kind == "word_piece" else unit.text for unit in plain.units]
        assert [unit.text for unit in encoded.units] == written  # of ids, nobody knows how the user wrote them
        assert encoded.extras == plain.extras


def test_token_types_come_along(tokenizers):
    bert = tokenizers["word_piece"]
    length = len(one(bert, TEXT).token_ids)
    assert one(bert, TEXT).extras == {"token_type_ids": (0,) * length}
    pair = {"input_ids": [2, 5, 6, 3, 0], "token_type_ids": [0, 0, 1, 1, 0], "attention_mask": [1, 1, 1, 1, 0]}
    assert one(bert, pair).extras == {"token_type_ids": (0, 0, 1, 1)}


def test_ids_without_a_tokenizer():
    encoded = one(None, [5, 7])
    assert encoded.tokens == ["5", "7"]
    assert texts(encoded) == ["5", "7"]


def test_an_id_the_tokenizer_does_not_know_still_has_a_piece(gpt2):
    encoded = one(gpt2, [260, 9999])
    assert encoded.tokens[1] == "<9999>"


def test_a_slow_tokenizer_has_no_spans():
    encoded = one(ByT5Tokenizer(), "keys")
    assert encoded.spans == [None] * len(encoded.token_ids)
    assert texts(encoded) == ["k", "e", "y", "s", "</s>"]
    assert encoded.closing == 1


def test_spans_are_the_characters_of_each_token(tokenizers):
    for kind, tokenizer in tokenizers.items():
        encoded = one(tokenizer, TEXT)
        words = [TEXT[span[0] : span[1]].strip() for span in encoded.spans if span is not None]
        assert words == TEXT.split(), kind
        special = [i for i, token in enumerate(encoded.token_ids) if token in tokenizer.all_special_ids]
        assert [i for i, span in enumerate(encoded.spans) if span is None] == special


# Special tokens after the text


@pytest.mark.parametrize(("kind", "closing"), [("byte_level", 0), ("roberta", 1), ("word_piece", 1), ("metaspace", 0)])
def test_special_tokens_that_the_tokenizer_puts_after_a_text_can_be_left_out(tokenizers, kind, closing):
    encoded = one(tokenizers[kind], TEXT)
    assert encoded.closing == closing
    open_ended = encoded.without_closing()
    end = len(encoded.token_ids) - closing
    assert open_ended.token_ids == encoded.token_ids[:end]
    assert open_ended.tokens == encoded.tokens[:end]
    assert open_ended.units == encoded.units[:end]
    assert open_ended.spans == encoded.spans[:end]
    assert {len(values) for values in open_ended.extras.values()} <= {end}
    assert open_ended.without_closing() is open_ended


def test_special_tokens_in_the_text_itself_stay(tokenizers):
    for kind, end in (("byte_level", "<|endoftext|>"), ("word_piece", "[SEP]")):
        encoded = one(tokenizers[kind], "The keys " + end).without_closing()
        assert encoded.tokens[-1] == end


def test_a_text_of_special_tokens_alone(tokenizers):
    assert one(tokenizers["byte_level"], "<|endoftext|>").tokens == ["<|endoftext|>"]
    assert one(tokenizers["word_piece"], "[MASK]").tokens == ["[CLS]", "[MASK]", "[SEP]"]


# Chat messages


@pytest.fixture(scope="module")
def chat():
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = tiny_tokenizers.CHAT
    return tokenizer


USER = {"role": "user", "content": "the keys"}


def test_chat_messages_go_through_the_template(chat):
    assert one(chat, [USER]).text == "<user>the keys\n<assistant>"
    assert [e.text for e in encode(chat, [[USER], [USER, USER]])][1] == "<user>the keys\n<user>the keys\n<assistant>"
    assert split([USER])[1] is False
    assert split([[USER], [USER]])[1] is True


def test_a_reply_at_the_end_is_gone_on_with(chat):
    encoded = one(chat, [USER, {"role": "assistant", "content": "They are"}])
    assert encoded.text == "<user>the keys\n<assistant>They are"


def test_a_template_writes_its_own_special_tokens():
    tokenizer = tiny_tokenizers.roberta()
    tokenizer.chat_template = "<s>" + tiny_tokenizers.CHAT
    encoded = one(tokenizer, [USER])
    assert encoded.tokens.count("<s>") == 1
    assert encoded.tokens[-1] != "</s>"
    assert not encoded.adds_special_tokens


def test_chat_messages_without_a_template(gpt2):
    with pytest.raises(InputError, match=r"need a tokenizer with a chat template.*Give a string instead"):
        encode(gpt2, [USER])


def test_a_template_that_refuses(chat):
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InputError, match="chat template refuses these messages: roles must alternate"):
        encode(tokenizer, [USER])


@pytest.mark.parametrize("message", [{"content": "hi"}, {"role": "user"}, "hi"])
def test_what_is_no_message(chat, message):
    with pytest.raises(InputError, match=r'is no chat message. Give \{"role": "user", "content": "..."\}'):
        encode(chat, [USER, message])


# Readable units


@pytest.mark.parametrize("kind", KINDS)
def test_units_cover_the_tokens_one_after_the_other(tokenizers, kind):
    rng = random.Random(0)
    alphabet = [
        *"aekys .,!#\n\t\0é中ß",
        "🤗",
        "👩‍👧",
        "e\u0301",
        " The",
        " keys",
        "נ",
        "स्",
        "<s>",
        "[SEP]",
        "##",
        "▁",
    ]
    for _ in range(60):
        text = "".join(rng.choices(alphabet, k=rng.randint(1, 12)))
        if not text.strip():
            continue
        encoded = one(tokenizers[kind], text)
        ends = [0, *(unit.end for unit in encoded.units)]
        assert [unit.start for unit in encoded.units] == ends[:-1]
        assert ends[-1] == len(encoded.token_ids)
        if kind == "byte_level":
            assert "".join(texts(encoded)) == text
            assert not any("Ġ" in t for t in texts(encoded))


def test_a_character_split_over_tokens_is_one_unit(gpt2):
    encoded = one(gpt2, "a 🤗 é")
    assert texts(encoded) == ["a", " ", "🤗", " ", "é"]
    assert [unit.end - unit.start for unit in encoded.units] == [1, 1, 4, 1, 2]


def test_joined_characters_are_one_unit(gpt2):
    for joined in ("👩‍👧‍👦", "👍🏽", "❤️", "e\u0301"):
        assert texts(one(gpt2, f"a {joined} b")) == ["a", " ", joined, " ", "b"]


def test_half_a_character_is_shown_as_it_is(gpt2):
    ids = one(gpt2, "a🤗b").token_ids
    encoded = one(gpt2, [*ids[:3], ids[-1]])
    assert texts(encoded) == ["a", r"\xf0", r"\x9f", "b"]


def test_word_pieces_lose_their_mark_and_literal_marks_do_not(tokenizers):
    encoded = one(tokenizers["word_piece"], "keysx ##")
    assert encoded.tokens == ["[CLS]", "keys", "##x", "#", "#", "[SEP]"]
    assert texts(encoded) == ["[CLS]", " keys", "x", " #", "#", " [SEP]"]


def test_metaspace_shows_spaces_also_before_the_first_word(tokenizers):
    encoded = one(tokenizers["metaspace"], TEXT)
    assert texts(encoded) == ["<s>", " The", " keys", " to", " the", " cabinet"]


@needs_shared(SHARED / "tokenizers")
def test_real_tokenizers():
    gpt2 = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "gpt2")
    assert texts(one(gpt2, "I 🤗 cabinets 中文")) == ["I", " 🤗", " cabinets", " ", "中", "文"]
    bert = AutoTokenizer.from_pretrained(SHARED / "tokenizers" / "bert-base-uncased")
    assert texts(one(bert, "The [MASK] unpicked.")) == ["[CLS]", " The", " [MASK]", " un", "pic", "ked", ".", " [SEP]"]


# What cannot be read


WRONG = {
    "nothing": None,
    "a number": 3,
    "bytes": b"abc",
    "a dictionary": {"a": 1},
    "an empty list": [],
    "an empty array": np.array([], dtype=int),
    "an empty row": torch.zeros(1, 0, dtype=torch.long),
    "numbers that are no ids": [1.0, 2.0],
    "truth values": [True, False],
    "lists in lists": [["a", "b"], ["c"]],
    "a 3-D tensor": torch.ones(1, 1, 2, dtype=torch.long),
    "nothing in a list": ["a", None],
    "a number in a list": ["a", 3],
}


@pytest.mark.parametrize("what", WRONG)
def test_says_what_it_expects(gpt2, what):
    with pytest.raises(
        InputError, match=r"the text is .*\. Give a string, token ids, a BatchEncoding or chat messages, or"
    ):
        encode(gpt2, WRONG[what])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("", "the text '' is empty. Give at least one word."),
        (" \n", r"the text ' \\n' is empty"),
        (["a", "", "b"], r"^text\[1\]: the text '' is empty"),
        ({"role": "user", "content": "a"}, "one chat message. A chat is a list of them"),
        ([3, -4], "token id -4 is negative. Ids count from 0."),
        ([3, 2.5], "2.5 is not a token id. Token ids are integers."),
        ([3, "a"], "'a' is not a token id"),
        ([3, None], "None is not a token id"),
        ("a\ud800b", r"the text is not valid Unicode: '\\ud800' at character 1"),
        ({"input_ids": []}, "input_ids is empty"),
        ({"input_ids": [[3], []]}, r"text\[1\]: input_ids is \[\]. Give a list of token ids"),
        ({"input_ids": [3, 4], "attention_mask": [0, 0]}, "attention_mask has 2 entries for 2 ids and shows 0 of them"),
        ({"input_ids": [3, 4], "attention_mask": [1]}, "attention_mask has 1 entries for 2 ids"),
        (
            {"input_ids": [3, 4, 5], "attention_mask": [1, 0, 1]},
            "attention_mask hides tokens in the middle of the text",
        ),
        (
            {"input_ids": [3], "pixel_values": [1.0]},
            "a batch with pixel_values cannot be explained: input_ids, attention_",
        ),
    ],
)
def test_bad_input(gpt2, given, message):
    with pytest.raises(InputError, match=message):
        encode(gpt2, given)


def test_a_text_without_a_tokenizer():
    with pytest.raises(
        InputError, match=r"a text needs a tokenizer. Type: lrpx.explain\(model, tokenizer, text\), or give"
    ):
        encode(None, "a")


def test_something_that_is_no_tokenizer():
    with pytest.raises(InputError, match=r"the tokenizer is 'gpt2' \(str\). Give one of transformers: AutoTokenizer"):
        encode("gpt2", "a")


def test_a_tokenizer_that_makes_nothing_of_a_text(tokenizers):
    with pytest.raises(InputError, match=r"the tokenizer makes no token of '\\x00'"):
        encode(tokenizers["word_piece"], "\0")


def test_long_input_is_cut_in_the_message_only(gpt2):
    with pytest.raises(InputError) as error:
        encode(gpt2, [["a"] * 10_000])
    assert len(str(error.value)) < 300


def test_as_python():
    assert as_python((np.int64(3), torch.tensor([1, 2]), "a")) == [3, [1, 2], "a"]


# What libraries hold texts in


def held(kind, texts):
    if kind == "tuple":
        return tuple(texts)
    library = pytest.importorskip(kind.partition(".")[0], reason=f"needs the package {kind}")
    if kind == "datasets":
        return library.Dataset.from_dict({"text": list(texts)})["text"]
    return library.Series(list(texts))


class Lazy(Sequence):
    """A sequence that makes its items when asked for them."""

    def __init__(self, items):
        self.items, self.read = items, []

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        if i >= len(self.items):
            raise IndexError
        self.read.append(i)
        return self.items[i]


@pytest.mark.parametrize("kind", ["tuple", "datasets", "pandas", "polars"])
@pytest.mark.parametrize("what", ["texts", "ids", "chats"])
def test_texts_in_any_container(kind, what):
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.chat_template = tiny_tokenizers.CHAT
    texts = ["The keys", "the key"]
    if what == "ids":
        texts = [tokenizer(text)["input_ids"] for text in texts]
    if what == "chats":
        texts = [[{"role": "user", "content": text}] for text in texts]
    found = encode(tokenizer, held(kind, texts))
    assert [e.token_ids for e in found] == [e.token_ids for e in encode(tokenizer, texts)]


def test_a_lazy_sequence_is_read_once():
    lazy = Lazy(["The keys", "the key"])
    assert len(encode(tiny_tokenizers.byte_level(), lazy)) == 2
    assert lazy.read == [0, 1]


def test_masks_of_the_assistants_tokens_are_left_aside():
    tokenizer = tiny_tokenizers.byte_level()
    batch = tokenizer(["The keys"])
    batch["assistant_masks"] = [[0] * len(batch["input_ids"][0])]
    assert encode(tokenizer, batch)[0].token_ids == tuple(batch["input_ids"][0])
