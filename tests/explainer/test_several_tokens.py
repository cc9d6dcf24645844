"""Targets of several tokens and log-probabilities: against a plain backward pass, and against single tokens."""

import warnings

import numpy as np
import pytest
import tiny_tokenizers
import torch

import lrpx
from lrpx.errors import InputError
from lrpx.propagation.propagate import propagate
from lrpx.text.targets import SeveralTokens, resolve_token, resolve_tokens
from lrpx.text.tokenization import encode

TEXT = "The keys to the"
RULE_SETS = {"lrp": "lrp", "attnlrp": "attnlrp", "gradient-x-input": {}}


@pytest.fixture(scope="module")
def explainer():
    tokenizer = tiny_tokenizers.byte_level()
    return lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)


@pytest.fixture(scope="module")
def masked():
    tokenizer = tiny_tokenizers.word_piece()
    return lrpx.Explainer(tiny_tokenizers.bert(tokenizer), tokenizer)


def ids(explainer, text):
    return explainer.tokenizer(text, add_special_tokens=False)["input_ids"]


def by_hand(explainer, text, continuation, rule_set, objective):
    """The sum of the scores of a continuation, and the relevance of all tokens that are read."""
    before, after = ids(explainer, text), ids(explainer, continuation)
    read, positions = [*before, *after[:-1]], range(len(before) - 1, len(before) + len(after) - 1)
    model = explainer.model
    with propagate(model, rule_set):
        embedded = model.transformer.wte(torch.tensor([read])) + model.transformer.wpe(torch.arange(len(read)))
        x = embedded.detach().requires_grad_()
        logits = model(inputs_embeds=x - model.transformer.wpe(torch.arange(len(read)))).logits[0]
    scores = logits if objective == "logit" else logits.log_softmax(-1)
    value = sum(scores[p, i] for p, i in zip(positions, after, strict=True))
    (gradient,) = torch.autograd.grad(value, x)
    return float(value.detach()), (gradient * x)[0].sum(-1).detach().numpy(), len(before)


@pytest.mark.parametrize("method", RULE_SETS)
@pytest.mark.parametrize("objective", ["logit", "logprob"])
def test_a_target_of_several_tokens(explainer, method, objective):
    e = explainer(TEXT, target=" keys are", method=method, objective=objective)
    value, relevance, length = by_hand(explainer, TEXT, " keys are", RULE_SETS[method], objective)
    assert e.value == pytest.approx(value, abs=1e-12)
    np.testing.assert_allclose(e.relevance, relevance[:length], rtol=0, atol=1e-12)
    assert e.components == {"target tokens read": pytest.approx(relevance[length:].sum(), abs=1e-12)}
    assert e.residual == pytest.approx(value - relevance.sum(), abs=1e-12)
    assert e.tokens == explainer(TEXT).tokens
    assert e.target.shown == " keys are"
    assert e.target.id == ids(explainer, " keys are")[0]
    assert e.notes == ("the target is 2 tokens, which are explained together: ' keys', ' are'.",)
    assert e.explains == {"logit": "sum of the logits of", "logprob": "log-probability of"}[objective]
    assert (e.position, e.span) == (3, (3, 5))


@pytest.mark.parametrize("objective", ["logit", "logprob"])
def test_a_contrast_of_another_length(explainer, objective):
    """The difference of two explanations, token by token and part by part."""
    contrast = " cabinet is here"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        e = explainer(TEXT, target=" keys are", contrast=contrast, objective=objective)
    one, other = (explainer(TEXT, target=t, objective=objective) for t in (" keys are", contrast))
    assert e.value == pytest.approx(one.value - other.value)
    np.testing.assert_allclose(e.relevance, one.relevance - other.relevance, rtol=0, atol=1e-12)
    parts = {"target tokens read": one, "contrast tokens read": other}
    for (name, whole), sign in zip(parts.items(), (1, -1), strict=True):
        assert e.components[name] == pytest.approx(sign * whole.components["target tokens read"])
    assert e.residual == pytest.approx(one.residual - other.residual)
    assert e.contrast.shown == contrast
    notes = [note for note in e.notes if "different numbers of tokens" in note]
    assert len(notes) == (objective == "logit")
    assert [str(warning.message) for warning in told] == notes  # a script that only reads the value has to know
    assert e.provenance["contrast"] == ids(explainer, contrast)


def test_probabilities_are_products(explainer):
    with pytest.warns(lrpx.LrpxWarning, match="cannot be compared"):
        e = explainer(TEXT, target=" keys are", contrast=" is")
    read = [*ids(explainer, TEXT), *ids(explainer, " keys are")]
    with torch.no_grad():
        p = explainer.model(torch.tensor([read])).logits[0].softmax(-1)
    assert e.target_probability == pytest.approx(float(p[3, read[4]] * p[4, read[5]]))
    assert e.contrast_probability == pytest.approx(float(p[3, ids(explainer, " is")[0]]))


def test_log_probabilities_of_single_tokens(explainer):
    e = explainer(TEXT, target=" are", contrast=" is", objective="logprob")
    logit = explainer(TEXT, target=" are", contrast=" is")
    np.testing.assert_allclose(e.relevance, logit.relevance, rtol=0, atol=1e-12)
    assert e.value == pytest.approx(logit.value)
    assert explainer(TEXT, objective="logprob").target == explainer(TEXT).target  # the top prediction
    assert explainer(TEXT, objective="logprob").value < 0


def test_of_a_masked_model(masked):
    e = masked("The [MASK] are here", target="keys", objective="logprob", method="gradient-x-input")
    model, read = masked.model, masked.tokenizer("The [MASK] are here", return_tensors="pt")
    with torch.no_grad():
        assert e.value == pytest.approx(float(model(**read).logits[0, 2].log_softmax(-1)[e.target.id]))
    assert np.abs(e.relevance[3:]).max() > 0  # tokens after the mask take part
    contrast = masked("The [MASK] are here", target="keys", contrast="key", objective="logprob")
    plain = masked("The [MASK] are here", target="keys", contrast="key")
    np.testing.assert_allclose(contrast.relevance, plain.relevance, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore::lrpx.errors.LrpxWarning")  # as likely as random weights have it
def test_in_the_middle_of_a_text(explainer):
    e = explainer("The keys to the cabinet", position=1, target=" to the")
    before = explainer("The keys", target=" to the")
    np.testing.assert_allclose(e.relevance, [*before.relevance, 0, 0, 0], rtol=0, atol=1e-12)
    assert e.value == pytest.approx(before.value)


@pytest.mark.filterwarnings("ignore::lrpx.errors.LrpxWarning")  # as likely as random weights have it
def test_among_other_texts_and_methods(explainer):
    """Each text gets what it gets alone; those that cannot be explained are collected."""
    texts, targets = [TEXT, "The", "The keys"], [" keys are", " key", "  are"]
    found = explainer(texts, target=targets, method=["lrp", "attnlrp"], errors="collect")
    assert [e.text for e in found] == [TEXT, TEXT, "The", "The"]
    alone = explainer(TEXT, target=" keys are", method="attnlrp")
    np.testing.assert_array_equal(found[1].relevance, alone.relevance)
    [failure] = found.failures
    assert "Give target=' are'" in str(failure.error)


def test_ids_are_a_target_too(explainer):
    [e] = explainer(TEXT, target=[ids(explainer, " keys are")])  # a list for one text: several explanations
    np.testing.assert_array_equal(e.relevance, explainer(TEXT, target=" keys are").relevance)


def test_the_gradients_norm_takes_no_contrast_of_several(explainer):
    e = explainer(TEXT, target=" keys are", method="gradient")
    assert e.residual is None
    assert e.components == {}
    with pytest.raises(InputError, match="have to be one token each"):
        explainer(TEXT, target=" keys are", contrast=" is", method="gradient")
    one = explainer(TEXT, target=" are", contrast=" is", method="gradient", objective="logprob")
    np.testing.assert_allclose(
        one.relevance, explainer(TEXT, target=" are", contrast=" is", method="gradient").relevance
    )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"objective": "p"}, 'objective=\'p\': give "logit" or "logprob"'),
        (
            {"target": " keys are", "method": "alti-logit"},
            "alti-logit explains the logit of one token, and neither several tokens",
        ),
        ({"target": " keys are", "contrast": " keys are"}, "target and contrast are the same"),
        (
            {"target": " are", "contrast": " are", "objective": "logprob"},
            "' are' and contrast ' are' are the same token",
        ),
        ({"target": " key" * 70}, "text and target have 73 tokens to read, and GPT2LMHeadModel can read 64"),
        ({"target": " keys are", "at": "transformer.h.0"}, 'at "input" or at "embedding"'),
        ({"target": "  are"}, "Give target=' are', which is one token"),
        ({"target": [[5, 1000]]}, "target holds 1000, outside the vocabulary"),
        ({"target": [[]]}, r"^target\[0\]: target=\[\] is empty"),
    ],
)
def test_what_cannot_be_used(explainer, asked, message):
    with pytest.raises(InputError, match=message):
        explainer(TEXT, **asked)


def test_masked_models_fill_in_one_token(masked):
    with pytest.raises(InputError, match="'keyss' is 2 tokens here"):
        masked("The [MASK] are here", target="keyss")


def test_resolving(explainer):
    [encoded] = encode(explainer.tokenizer, TEXT)
    rest = (encoded, 3, explainer.tokenizer, 300, "causal")
    with pytest.raises(SeveralTokens, match="is 2 tokens here"):
        resolve_token(" keys are", "target", *rest)
    assert resolve_tokens(" keys are", "target", *rest) == tuple(ids(explainer, " keys are"))
    assert resolve_tokens(" are", "target", *rest) == tuple(ids(explainer, " are"))
    assert resolve_tokens(None, "target", *rest) is None
    [cut] = encode(explainer.tokenizer, "The ke")
    with pytest.raises(InputError, match="changes the tokens before it"):
        resolve_tokens("ys are", "target", cut, len(cut.token_ids) - 1, explainer.tokenizer, 300, "causal")


@pytest.mark.parametrize("text", ["🙂", "🙂🎉 are"])
def test_characters_that_are_split_over_tokens_are_shown_whole(explainer, text):
    assert len(ids(explainer, text)) > len(text)
    e = explainer(TEXT, target=text)
    assert e.target.shown == text
    half = explainer(TEXT, target=[ids(explainer, "🙂")[:2]])[0]
    assert half.target.shown == r"\xf0\x9f"


def test_shows_characters_of_several_tokens_whole(explainer):
    e = explainer(TEXT, target="aé")
    assert e.notes[0] == "the target is 3 tokens, which are explained together: 'a', 'é' (2 tokens)."
    half = explainer(TEXT, target=e.provenance["target"][1])
    assert r"of '\xc3': value" in repr(half)
