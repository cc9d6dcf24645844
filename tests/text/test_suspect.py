"""What looks like a mistake is said, and explained as it was given."""

import math
import re
import warnings

import pytest
import tiny
import tiny_tokenizers
import torch

import lrpx
from lrpx.errors import InputError

CHAT = "<s>the keys"


@pytest.fixture(scope="module")
def gpt2():
    tokenizer = tiny_tokenizers.byte_level()
    return tiny_tokenizers.gpt2(tokenizer), tokenizer


@pytest.fixture(scope="module")
def roberta():
    tokenizer = tiny_tokenizers.roberta()
    return tiny_tokenizers.gpt2(tokenizer), tokenizer


# Padding


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_ids_without_a_mask_are_said(roberta, side):
    model, tokenizer = roberta
    batch = tokenizer(["the keys to the cabinet", "the"], padding=True, padding_side=side, return_tensors="pt")
    where = "begin" if side == "left" else "end"
    with pytest.warns(
        UserWarning, match=rf"text\[1\]: the ids {where} with \d padding tokens \('<pad>', id 1\), and no mask"
    ):
        found = lrpx.explain(model, tokenizer, batch["input_ids"], target=3)
    assert not any("padding" in note for note in found[0].notes)
    assert 'Give {"input_ids": ids, "attention_mask": mask}' in found[1].notes[0]
    assert len(found[1].tokens) == batch["input_ids"].shape[1]  # as it was given
    right = lrpx.explain(model, tokenizer, batch, target=3)
    assert not any("padding" in note for e in right for note in e.notes)
    alone = lrpx.explain(model, tokenizer, [i for i in batch["input_ids"][1].tolist() if i != 1], target=3)
    assert math.isclose(right[1].value, alone.value, rel_tol=1e-9)


def test_without_a_tokenizer_the_configuration_knows_the_padding_token():
    model = tiny.build("causal:llama")
    pad = model.config.pad_token_id = 5
    with pytest.warns(UserWarning, match=rf"the ids end with 1 padding token \(id {pad}\)"):
        lrpx.explain(model, None, [9, 10, pad])


def test_ids_for_a_tokenizer_without_a_padding_token():
    """As GPT-2's: no id can be padding, and nothing is said."""
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.pad_token = None
    model = tiny_tokenizers.gpt2(tokenizer)
    model.config.pad_token_id = None
    assert not any("padding" in note for note in lrpx.explain(model, tokenizer, [3, 4, 5]).notes)


def test_an_end_token_for_padding_is_one_only_where_texts_differ(gpt2):
    model, tokenizer = gpt2
    end = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.pad_token = "<|endoftext|>"
    assert lrpx.explain(model, tokenizer, [end, 9, 10]).notes == ()  # a text that begins with its start token
    assert all(e.notes == () for e in lrpx.explain(model, tokenizer, [[end, 9, 10], [end, 11, 12]]))
    with pytest.warns(UserWarning, match=r"text\[0\]: the ids end with 1 padding token"):
        lrpx.explain(model, tokenizer, [[9, 10, end], [9, 10, 11]])
    with pytest.warns(UserWarning, match="begin with 2 padding tokens"):
        lrpx.explain(model, tokenizer, [end, end, 9])
    given = {"input_ids": [end, end, 9], "attention_mask": [1, 1, 1]}
    with pytest.warns(UserWarning, match="begins with '<|endoftext|>', id 0 twice"):
        lrpx.explain(model, tokenizer, given)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([0.0, 0.0, -1e9], r"holds -1000000000.0, and looks like an additive mask, where 0 shows a token"),
        ([0.0, -math.inf, -math.inf], r"holds -inf, and looks like an additive mask"),
        ([1, 1, 2], r"attention_mask holds 2\. Give 1 for a token and 0 for padding"),
        ([1.0, 0.5, 0.0], r"attention_mask holds 0\.5\. Give 1"),
        ([1.0, math.nan, 0.0], r"attention_mask holds nan\. Give 1"),
        ([[1, 1, 1]] * 3, r"expected one number per id"),
        ("111", r"attention_mask is '111': expected one number per id"),
        ([0.0, 0.0, 0.0], r"shows 0 of them. .*: 1 for a token, 0 for padding"),
    ],
)
def test_masks_are_made_of_0_and_1(gpt2, mask, message):
    with pytest.raises(InputError, match=message):
        lrpx.explain(*gpt2, {"input_ids": [9, 10, 11], "attention_mask": mask})


@pytest.mark.parametrize(
    "mask", [[1, 1, 0], [True, True, False], torch.tensor([1.0, 1.0, 0.0]), torch.tensor([1, 1, 0])]
)
def test_masks_of_any_type_of_0_and_1(gpt2, mask):
    assert lrpx.explain(*gpt2, {"input_ids": [9, 10, 11], "attention_mask": mask}).token_ids == [9, 10]


# Special tokens


def test_a_second_bos_is_said(roberta):
    model, tokenizer = roberta
    with pytest.warns(UserWarning, match="begins with '<s>', id 0 twice, which .* give a chat as messages"):
        e = lrpx.explain(model, tokenizer, CHAT)
    assert e.tokens[:2] == ["<s>", "<s>"]
    assert "The text has one, and the tokenizer adds one. Leave it out of the text" in e.notes[0]
    with pytest.warns(UserWarning, match="Tokenise with add_special_tokens=False"):
        lrpx.explain(model, tokenizer, tokenizer(CHAT))
    assert lrpx.explain(model, tokenizer, "the keys").notes == ()
    assert lrpx.explain(model, tokenizer, tokenizer(CHAT, add_special_tokens=False)["input_ids"]).notes == ()


def test_a_chat_as_messages_has_one_bos(roberta):
    model, tokenizer = roberta[0], tiny_tokenizers.roberta()
    tokenizer.chat_template = "<s>" + tiny_tokenizers.CHAT
    messages = [{"role": "user", "content": "the keys"}]
    e = lrpx.explain(model, tokenizer, messages)
    assert e.notes == ()
    assert e.tokens.count("<s>") == 1
    with pytest.warns(UserWarning, match="twice"):
        string = lrpx.explain(model, tokenizer, e.text)
    assert string.value != e.value


def test_a_second_cls_and_sep_are_said():
    tokenizer = tiny_tokenizers.word_piece()
    model = tiny_tokenizers.bert(tokenizer)
    with pytest.warns(UserWarning, match="twice") as caught:
        e = lrpx.explain(model, tokenizer, "[CLS] the [MASK] [SEP]")
    assert ["begins with '[CLS]', id 2 twice" in e.notes[0], "ends with '[SEP]', id 3 twice" in e.notes[1]] == [
        True
    ] * 2
    assert [str(w.message) for w in caught] == list(e.notes)
    assert all(w.filename == __file__ for w in caught)  # at the line that called lrpx


def test_an_end_token_of_ones_own_is_no_second_one_for_a_causal_model(roberta):
    model, tokenizer = roberta
    e = lrpx.explain(model, tokenizer, "the keys</s>")  # the tokenizer's own is left out
    assert (e.tokens[-1], e.notes) == ("</s>", ())


# A padding token without an embedding


@pytest.mark.parametrize("pad", [97, 1000, -1])
def test_a_padding_token_beyond_the_embedding_is_not_used(pad):
    model, plain = tiny.build("causal:llama"), tiny.build("causal:llama")
    model.config.pad_token_id = pad
    rows = [[9, 10, 11, 12, 13, 14, 15, 16, 17, 18], [9, 10, 11, 12, 13, 14, 15, 16, 17]]
    together = lrpx.explain(model, None, rows, target=11)
    for e, row in zip(together, rows, strict=True):
        assert math.isclose(e.value, lrpx.explain(plain, None, row, target=11).value, rel_tol=1e-9)


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
def test_a_mask_in_the_text_of_a_causal_model(mask):
    tokenizer = tiny_tokenizers.byte_level()
    explainer = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)
    with pytest.warns(lrpx.LrpxWarning, match=rf"the text has '{re.escape(mask)}', and a causal model") as caught:
        e = explainer(f"The keys {mask}")
    assert str(caught[0].message) in e.notes
    with pytest.warns(lrpx.LrpxWarning, match="does not fill it in"):
        explainer.generate(f"The keys {mask}", max_new_tokens=1)


def test_a_mask_token_of_the_tokenizer_given_as_an_id():
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.add_special_tokens({"mask_token": "<|m|>"})
    explainer = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)
    with pytest.warns(lrpx.LrpxWarning, match=r"the text has '<\|m\|>'"):
        explainer([3, tokenizer.mask_token_id, 4])


def test_a_masked_model_is_given_masks():
    tokenizer = tiny_tokenizers.word_piece()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lrpx.explain(tiny_tokenizers.bert(tokenizer), tokenizer, "The keys [MASK] here").notes == ()


# The tokenizer


def test_a_tokenizer_with_much_fewer_tokens_than_the_model(gpt2):
    model, tokenizer = gpt2
    other = tiny_tokenizers.byte_level([f"<{i}>" for i in range(len(tokenizer))])
    explainer = lrpx.Explainer(tiny_tokenizers.gpt2(other), tokenizer)
    said = rf"the tokenizer has {len(tokenizer)} tokens, and GPT2LMHeadModel knows {len(other)}. Is it the model's own"
    for ask in (explainer, explainer.flow):
        with pytest.warns(UserWarning, match=said):
            found = ask("the keys to the")
        assert any(re.match(said, note) for note in found.notes)
    explainer([3, 5, 7])  # ids were not made by it
    lrpx.Explainer(model, tokenizer)("the keys to the")
