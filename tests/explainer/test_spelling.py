"""Targets and contrasts that can be taken for something else: another leading space, the name of an average of logits."""

import warnings

import pytest
import tiny_tokenizers
import torch

import lrpx
from lrpx.explainer.spelling import probability
from lrpx.text.batching import Item
from lrpx.text.targets import with_other_space
from lrpx.text.tokenization import encode

TEXT = "The keys to the"


@pytest.fixture(scope="module")
def explainer():
    """Of a tiny GPT-2 that expects " keys" after TEXT."""
    tokenizer = tiny_tokenizers.byte_level()
    model = tiny_tokenizers.gpt2(tokenizer)
    with torch.no_grad():
        hidden = model.transformer(torch.tensor([tokenizer(TEXT)["input_ids"]])).last_hidden_state[0, -1]
        model.transformer.wte.weight[tokenizer.convert_tokens_to_ids("Ġkeys")] = 12.0 * hidden / hidden.square().sum()
    return lrpx.Explainer(model, tokenizer)


def by_hand(explainer, text, continuation):
    """The probability of all tokens of a continuation, one after the other."""
    ids = explainer.tokenizer(text)["input_ids"]
    p = 1.0
    for i in explainer.tokenizer(continuation)["input_ids"]:
        with torch.no_grad():
            p *= float(explainer.model(torch.tensor([ids])).logits[0, -1].softmax(-1)[i])
        ids = [*ids, i]
    return p


def notes(explainer, **asked):
    """The notes, which are warnings too."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        e = explainer(TEXT, **asked)
    told = [note for note in e.notes if "explained together" not in note]
    assert sorted(str(warning.message) for warning in caught) == sorted(told)
    return [note for note in told if "different numbers" not in note]


@pytest.mark.parametrize("objective", ["logit", "logprob"])
def test_a_leading_space_that_is_missing_is_warned_of(explainer, objective):
    given, meant = "keys are", " keys are"
    assert by_hand(explainer, TEXT, meant) > 10 * by_hand(explainer, TEXT, given)
    said = '{} "keys are" is far less probable here than " keys are". A leading space matters: if you mean'
    [note] = notes(explainer, target=given, contrast=" is", objective=objective)
    assert note.startswith(said.format("the target"))
    assert notes(explainer, target=meant, objective=objective) == []
    [note] = notes(explainer, target=meant, contrast=given, objective=objective)
    assert note.startswith(said.format("the contrast"))


def test_ids_are_meant_as_they_are(explainer):
    [e] = explainer(TEXT, target=[explainer.tokenizer("keys are")["input_ids"]])
    assert e.target.text.endswith("Ġare")
    assert not any("far less probable" in note for note in e.notes)


@pytest.mark.parametrize("continuation", [" keys are", "keys", " are is to"])
@pytest.mark.parametrize("position", [1, 3])
def test_probabilities_of_continuations(explainer, continuation, position):
    encoded = encode(explainer.tokenizer, TEXT)[0]
    item = Item(encoded.token_ids, position, None, None, {})
    ids = tuple(explainer.tokenizer(continuation)["input_ids"])
    text = explainer.tokenizer.decode(encoded.token_ids[: position + 1])
    assert probability(explainer._runner, item, ids) == pytest.approx(by_hand(explainer, text, continuation), rel=1e-9)
    longest = explainer.model.config.max_position_embeddings
    assert probability(explainer._runner, item, ids[:1] * longest) == 0.0  # nothing that the model could read


@pytest.mark.parametrize(
    ("given", "other"), [(" keys are", "keys are"), ("keys are", " keys are"), (" ", None), ("  are", " are")]
)
def test_the_other_spelling(explainer, given, other):
    encoded = encode(explainer.tokenizer, TEXT)[0]
    found = with_other_space(given, encoded, 3, explainer.tokenizer)
    assert (found and found[0]) == other
    if found:
        assert list(found[1]) == explainer.tokenizer(other)["input_ids"]
    assert with_other_space(given, encoded, 3, None) is None


def test_a_contrast_that_is_called_like_an_average(explainer):
    """It is a token, as everywhere in a call; in ``generate`` it would not be."""
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.add_tokens(["mean"])
    renamed = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)
    with pytest.warns(lrpx.LrpxWarning, match="the contrast is the text 'mean', not an average of logits") as caught:
        e = renamed(TEXT, contrast="mean")
    assert e.contrast.id == tokenizer.convert_tokens_to_ids("mean")
    assert e.notes[0] == str(caught[0].message)
    generated = renamed.generate(TEXT, max_new_tokens=1, contrast="mean")
    assert generated.contrast == "mean"
    assert not any("average" in note for note in generated.notes)


@pytest.mark.parametrize("name", ["average", "top0", "Mean", "top_10"])
def test_what_an_average_may_be_called_too(explainer, name):
    """Text with a note in a call; in ``generate`` an error that says how averages are called."""
    assert any(f"the contrast is the text {name!r}, not an average" in note for note in notes(explainer, contrast=name))
    with pytest.raises(lrpx.InputError, match=f'contrast=\'{name}\': the averages of logits are "mean" and "top10"'):
        explainer.generate(TEXT, max_new_tokens=1, contrast=name)
    assert notes(explainer, contrast=" is") == []


def test_a_word_of_a_masked_model_is_no_average():
    tokenizer = tiny_tokenizers.word_piece()
    tokenizer.add_tokens(["mean"])
    explainer = lrpx.Explainer(tiny_tokenizers.bert(tokenizer), tokenizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        e = explainer("The keys [MASK] here", contrast="mean")
    assert (e.contrast.text, e.notes) == ("mean", ())


def test_a_continuation_whose_leading_space_is_missing_is_warned_of(explainer):
    with pytest.warns(
        lrpx.errors.LrpxWarning, match='the continuation "keys are" is far less probable here than " keys are"'
    ):
        g = explainer.generate(TEXT, continuation="keys are")
    assert any("A leading space matters" in note for note in g.notes)
    assert explainer.generate(TEXT, continuation=" keys are").notes == ()
    assert explainer.generate(TEXT, continuation=[7, 8]).notes == ()
