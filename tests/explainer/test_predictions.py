"""What an explanation says about the model's predictions, and the mistakes that these show."""

import warnings

import inside_tools
import numpy as np
import pytest
import tiny_tokenizers
import torch

import lrpx
from lrpx.explainer.predictions import LIKELIEST, SHOWN, misspelt_token, remarks
from lrpx.results.tokens import Token
from lrpx.text.batching import Predictions
from lrpx.text.targets import other_spelling

TEXT = tiny_tokenizers.TEXT


def expecting(tokenizer, piece, strength):
    """A tiny GPT-2 that predicts ``piece`` after TEXT: its logit there is ``strength``."""
    model = tiny_tokenizers.gpt2(tokenizer)
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    with torch.no_grad():
        hidden = model.transformer(ids).last_hidden_state[0, -1]
        model.transformer.wte.weight[tokenizer.convert_tokens_to_ids(piece)] = strength * hidden / hidden.square().sum()
    return model


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_tokenizers.byte_level()


@pytest.fixture(scope="module")
def model(tokenizer):
    return expecting(tokenizer, "Ġare", 12.0)


def test_top_probabilities_and_ranks(model, tokenizer):
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer(TEXT)["input_ids"]])).logits[0, -1].double()
    probabilities = logits.softmax(-1)
    e = lrpx.explain(model, tokenizer, TEXT, target=" is", contrast=" are")
    best = probabilities.topk(SHOWN)
    assert [token.id for token, _ in e.top] == best.indices.tolist()
    np.testing.assert_allclose([p for _, p in e.top], best.values, rtol=1e-9)
    assert e.top[0].token.text == "Ġare"
    assert e.target_probability == pytest.approx(float(probabilities[e.target.id]), rel=1e-9)
    assert e.target_rank == 1 + int((probabilities > probabilities[e.target.id]).sum())
    assert (e.contrast_rank, e.contrast_probability) == (1, pytest.approx(float(best.values[0]), rel=1e-9))


def test_ids_and_masked_models_too():
    bert_tokenizer = tiny_tokenizers.word_piece()
    bert = tiny_tokenizers.bert(bert_tokenizer)
    e = lrpx.explain(bert, bert_tokenizer, "The keys [MASK] here")
    assert (e.target_rank, len(e.top), e.top[0].token.id) == (1, SHOWN, e.target.id)
    assert (e.contrast_rank, e.contrast_probability) == (None, None)
    by_ids = lrpx.explain(bert, None, e.token_ids, position=e.position)
    assert [token.id for token, _ in by_ids.top] == [token.id for token, _ in e.top]


@pytest.mark.parametrize("role", ["target", "contrast"])
def test_a_token_without_its_leading_space_is_warned_of(model, tokenizer, role):
    tokens = {"target": " is", "contrast": " to"} | {role: "are"}
    with pytest.warns(UserWarning, match=rf'the {role} "are" is far less probable here than " are"') as caught:
        e = lrpx.explain(model, tokenizer, TEXT, **tokens)
    assert str(caught[0].message) in e.notes
    assert caught[0].filename == __file__  # the caller's line
    assert e.notes[0].endswith('A leading space matters: if you mean " are", give that.')


def test_a_space_too_many_is_warned_of(tokenizer):
    with pytest.warns(UserWarning, match='the target " are" is far less probable here than "are"'):
        lrpx.explain(expecting(tokenizer, "are", 12.0), tokenizer, TEXT, target=" are")


def test_no_warning_where_the_other_spelling_is_no_likelier(model, tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for target in (" are", " is", "is", "z"):
            lrpx.explain(model, tokenizer, TEXT, target=target, contrast=" key")


def test_several_texts_are_warned_of_together(model, tokenizer):
    with pytest.warns(UserWarning, match="far less probable") as caught:
        es = lrpx.explain(model, tokenizer, ["The key", TEXT], target=[" is", "are"])
    assert [str(w.message)[:9] for w in caught] == ["text[1]: "]
    assert not any("far less probable" in note for note in es[0].notes)
    assert "far less probable" in es[1].notes[0]


@pytest.mark.parametrize(
    ("piece", "other"), [("are", "Ġare"), ("Ġare", "are"), ("Ġ", None), ("<|endoftext|>", None), ("q", None)]
)
def test_other_spellings(tokenizer, piece, other):
    expected = other and tokenizer.convert_tokens_to_ids(other)
    assert other_spelling(tokenizer, piece) == expected
    assert other_spelling(None, piece) is None


def test_other_spellings_of_sentence_pieces():
    pieces = tiny_tokenizers.metaspace()
    assert other_spelling(pieces, "▁keys") == pieces.convert_tokens_to_ids("keys")
    assert other_spelling(pieces, "keys") == pieces.convert_tokens_to_ids("▁keys")


def test_a_space_at_the_end_is_warned_of(model, tokenizer):
    tokenizer = tiny_tokenizers.byte_level()  # in which "a a" has a token with its space
    tokenizer.add_tokens(["Ġa"])
    with pytest.warns(UserWarning, match="the text ends with a space") as caught:
        e = lrpx.explain(model, tokenizer, TEXT + " ")
    assert str(caught[0].message) in e.notes
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lrpx.explain(model, tokenizer, TEXT + " ", position=1)  # the space comes after it


def test_a_space_is_ordinary_where_words_do_not_hold_theirs(model, tokenizer):
    word_piece = tiny_tokenizers.word_piece()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lrpx.explain(tiny_tokenizers.bert(word_piece), word_piece, "The keys [MASK] ")


def test_a_negative_logit_and_an_unlikely_target_are_noted(model, tokenizer):
    with torch.no_grad():
        logits = model(torch.tensor([tokenizer(TEXT)["input_ids"]])).logits[0, -1]
    lowest = int(logits.argmin())
    e = lrpx.explain(model, tokenizer, TEXT, target=lowest)
    assert float(logits[lowest]) < 0
    assert any(note.startswith("the explained logit is negative.") for note in e.notes)
    assert any(note.startswith("the model does not expect") for note in e.notes)
    assert lrpx.explain(model, tokenizer, TEXT, target=" are").notes == ()
    contrasted = lrpx.explain(model, tokenizer, TEXT, target=lowest, contrast=" are")
    assert contrasted.value < 0
    assert not any("negative" in note for note in contrasted.notes)


@pytest.mark.parametrize("method", ["alti", "attention-rollout"])
def test_methods_that_are_not_about_a_logit_note_nothing_about_one(model, tokenizer, method):
    e = lrpx.explain(model, tokenizer, TEXT, target="are", method=method)
    assert e.notes == ()
    assert e.top[0].token.text == "Ġare"


def test_more_is_looked_at_than_is_shown():
    assert LIKELIEST > SHOWN


def test_notes_show_a_token_as_it_reads_and_not_as_the_tokenizer_stores_it(tokenizer):
    e = inside_tools.made(target=Token(5, "Ã©", "é"), target_probability=1e-6, target_rank=1000)
    assert remarks(e) == ['the model does not expect "é" here.']
    given = Token(tokenizer.convert_tokens_to_ids("are"), "are", "é")  # as if it read so
    other = torch.tensor([tokenizer.convert_tokens_to_ids("Ġare")])
    predicted = Predictions(other, torch.tensor([0.5]), (1e-6, 1000), None)
    [note] = misspelt_token("target", given, 1e-6, predicted, tokenizer)
    assert '"é"' in note
    assert '" é"' in note
