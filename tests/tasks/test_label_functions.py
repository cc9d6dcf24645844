"""Several labels of one text, and functions of the labels' logits as targets of classifiers."""

import numpy as np
import pytest
import torch
from tiny_classifiers import classifier, tokenizer

import lrpx
from lrpx.errors import InputError

TEXT = "the film was not good"
LABELS = {"id2label": {0: "bad", 1: "fair", 2: "good"}}


def of(head, **options):
    return lrpx.Explainer(classifier(head, **LABELS | options), tokenizer())


def two_against_one(logits):
    return logits[1:].logsumexp(0) - logits[0]


@pytest.mark.parametrize(("head", "more"), [("SequenceClassification", {}), ("TokenClassification", {"position": 2})])
def test_a_function_of_the_labels(head, more):
    """Against a backward pass by hand, a function that is a label, and the same text in a batch."""
    explainer = of(head)
    e = explainer(TEXT, target=two_against_one, method="gradient-x-input", **more)
    read = explainer.tokenizer(TEXT, return_tensors="pt")
    model, keep = explainer.model, []
    hook = model.bert.encoder.layer[0].register_forward_pre_hook(lambda _, given: keep.append(given[0]))
    try:
        logits = model(**read).logits[0]
    finally:
        hook.remove()
    value = two_against_one(logits[2] if more else logits)
    (gradient,) = torch.autograd.grad(value, keep[0])
    assert e.value == pytest.approx(float(value.detach()))
    np.testing.assert_allclose(e.relevance, (gradient * keep[0])[0].sum(-1).detach(), rtol=0, atol=1e-10)
    assert (e.target, e.explains, e.target_probability) == (
        (-1, "two_against_one", "two_against_one"),
        "function",
        None,
    )
    assert len(e.top) == 3
    same = explainer(TEXT, target=lambda logits: logits[2], **more)
    np.testing.assert_allclose(same.relevance, explainer(TEXT, target="good", **more).relevance, rtol=0, atol=1e-10)
    batch = explainer(
        [TEXT, "great"], target=[two_against_one, "bad"], method="gradient-x-input", **more and {"position": [2, 1]}
    )
    np.testing.assert_allclose(batch[0].relevance, e.relevance, rtol=0, atol=1e-10)


def test_several_labels_of_one_text():
    explainer = of("SequenceClassification")
    found = explainer(TEXT, target=["bad", "good", two_against_one, None], explains=[None, None, "good or fair", None])
    assert [e.target.text for e in found] == ["bad", "good", "good or fair", explainer(TEXT).target.text]
    for e, target in zip(found, ["bad", "good", two_against_one, None], strict=True):
        np.testing.assert_allclose(e.relevance, explainer(TEXT, target=target).relevance, rtol=0, atol=1e-10)
    assert "good or fair" in found.to_html()


def test_of_regression_with_several_values():
    explainer = of("SequenceClassification", problem_type="regression")
    e = explainer(TEXT, target=lambda values: values.prod())
    with torch.no_grad():
        expected = explainer.model(**explainer.tokenizer(TEXT, return_tensors="pt")).logits[0].prod()
    assert e.value == pytest.approx(float(expected))
    assert e.explains == "function"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"target": two_against_one, "contrast": "bad"}, "takes no contrast='bad'"),
        ({"target": "bad", "contrast": two_against_one}, "the contrast is the function two_against_one"),
        ({"target": lambda logits: logits}, r"returned a tensor of shape \[3\]"),
        ({"target": "good", "explains": "x"}, "explains='x': a name for the function"),
        ({"target": ["bad", "good"], "contrast": ["good"]}, "2 values of target and 1 value of contrast"),
        ({"target": two_against_one, "method": "alti-logit"}, "alti-logit is for language models"),
    ],
)
def test_what_cannot_be_used(asked, message):
    with pytest.raises((InputError, lrpx.errors.UnsupportedModelError), match=message):
        of("SequenceClassification")(TEXT, **asked)
