"""Token classification: which token, which label, and the default that is never a guess in silence."""

import numpy as np
import pytest
import torch
from tiny_classifiers import ENTITIES, classifier, tokenizer

import lrpx
from lrpx.errors import InputError

TEXT = "Wolfgang lives in Berlin"


@pytest.fixture(scope="module")
def explainer():
    return lrpx.Explainer(classifier("TokenClassification", **ENTITIES), tokenizer())


def logits_of(explainer, text=TEXT):
    with torch.no_grad():
        return explainer.model(**explainer.tokenizer(text, return_tensors="pt")).logits[0].numpy()


@pytest.mark.parametrize("position", [1, 5, -2])
def test_the_label_of_a_token(explainer, position):
    e, logits = explainer(TEXT, position=position, target="B-PER", contrast="O"), logits_of(explainer)
    assert (e.task, e.position, e.target.text, e.contrast.id) == ("token-classification", position % 7, "B-PER", 0)
    assert e.value == pytest.approx(logits[position, 1] - logits[position, 0])
    shares = np.exp(logits[position]) / np.exp(logits[position]).sum()
    assert (e.target_probability, e.contrast_probability) == (pytest.approx(shares[1]), pytest.approx(shares[0]))
    assert [token.text for token, _ in e.top] == [("O", "B-PER", "B-LOC")[i] for i in np.argsort(-shares)]
    assert e.notes == ()


def test_another_position_gives_another_map(explainer):
    first, second = explainer(TEXT, position=[1, 3], target="B-PER")
    assert (first.position, second.position) == (1, 3)
    assert not np.allclose(first.relevance, second.relevance)
    np.testing.assert_allclose(second.relevance, explainer(TEXT, position=3, target=1).relevance, atol=1e-10)


def test_by_default_the_most_confident_entity(explainer):
    logits = logits_of(explainer)
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    entities = [n for n in range(1, 6) if logits[n].argmax() != 0]
    assert len(entities) > 1
    e = explainer(TEXT)
    assert e.position == max(entities, key=lambda n: shares[n].max())
    assert e.target.id == logits[e.position].argmax()
    [note] = e.notes
    assert f"position {e.position} is the most confident of {len(entities)} tokens with a label other than 'O'" in note
    for n in entities:
        assert n == e.position or f" {n} " in note


def with_bias(by, config=ENTITIES):
    model = classifier("TokenClassification", **config)
    with torch.no_grad():
        model.classifier.bias.add_(torch.tensor(by))
    return lrpx.Explainer(model, tokenizer())


def test_no_entity_is_an_error_that_lists_the_tokens():
    with pytest.raises(
        InputError, match=r"all tokens are predicted to be 'O'\. .* 1 'wolf' O, 2 '##gang' O, .* 5 'berlin' O\."
    ):
        with_bias([100.0, 0, 0])(TEXT)


def test_without_a_label_for_no_entity_the_token_is_asked_for():
    config = {"id2label": {0: "NOUN", 1: "VERB", 2: "ADP"}}
    with pytest.raises(
        InputError, match="say which token is explained: position=, one of 1 'wolf' VERB, 2 '##gang' VERB"
    ):
        with_bias([0, 100.0, 0], config)(TEXT)


def test_a_batch_is_as_one_by_one(explainer):
    texts = [TEXT, "a dog sleeps", "he lives in Paris and it is great"]
    for ours, text in zip(explainer(texts), texts, strict=True):
        theirs = explainer(text)
        assert (ours.position, ours.target) == (theirs.position, theirs.target)
        np.testing.assert_allclose(ours.relevance, theirs.relevance, atol=1e-10)


def test_bad_input(explainer):
    with pytest.raises(InputError, match="position 7 is outside the text, which has 7 tokens"):
        explainer(TEXT, position=7)
    with pytest.raises(InputError, match=r"target='PER' is no label\. Did you mean 'B-PER'"):
        explainer(TEXT, position=1, target="PER")
    with pytest.raises(InputError, match="text_pair= is for text-classification"):
        explainer(TEXT, text_pair="a dog")
    several = explainer([TEXT, "", "a dog"], position=[1, 1, 99], errors="collect")
    assert [failure.index for failure in several.failures] == [1, 2]


def test_views_mark_the_token(explainer):
    page = explainer(TEXT, position=5).to_html()
    assert "the label of position 5 is explained" in page
