"""Multiple choice: one choice compared with another, in one map that adds up to the difference of their logits."""

import numpy as np
import pytest
import torch
from tiny_classifiers import classifier, tokenizer

import lrpx
from lrpx.errors import InputError

PROMPT, CHOICES = "a dog", ["runs", "sleeps .", "is great"]


@pytest.fixture(scope="module")
def explainer():
    return lrpx.Explainer(classifier("MultipleChoice"), tokenizer())


def logits_of(explainer, choices=CHOICES):
    """As users of transformers ask: all choices of a text at once, padded."""
    rows = explainer.tokenizer([PROMPT] * len(choices), choices, return_tensors="pt", padding=True)
    with torch.no_grad():
        return explainer.model(**{name: values[None] for name, values in rows.items()}).logits[0].numpy()


def test_the_best_choice_is_compared_with_the_next_best(explainer):
    e, logits = explainer(PROMPT, choices=CHOICES), logits_of(explainer)
    first, second = np.argsort(-logits)[:2]
    assert (e.task, e.target.text, e.contrast.text) == ("multiple-choice", CHOICES[first], CHOICES[second])
    assert e.value == pytest.approx(logits[first] - logits[second])
    shares = np.exp(logits) / np.exp(logits).sum()
    assert (e.target_probability, e.contrast_probability) == (
        pytest.approx(shares[first]),
        pytest.approx(shares[second]),
    )
    assert [(t.text, p) for t, p in e.top] == [(CHOICES[i], pytest.approx(shares[i])) for i in np.argsort(-shares)]


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "gradient-x-input"])
def test_the_map_is_what_each_choice_gives_alone(explainer, method):
    """The prompt once, with the difference; then the tokens of the one, and minus those of the other."""
    e = explainer(PROMPT, choices=CHOICES, target="sleeps .", contrast=0, method=method, at=["input", "bert.encoder"])
    one, other = (
        explainer(PROMPT, choices=[choice], method=method, at=["input", "bert.encoder"])
        for choice in ("sleeps .", "runs")
    )
    assert e.tokens == ["[CLS]", "a", "dog", "[SEP]", "sleeps", ".", "[SEP]", "runs", "[SEP]"]
    assert [tuple(s) for s in e.segments] == [("prompt", 1, 3), ("choice", 4, 6), ("contrast", 7, 8)]
    for ours, first, second in (
        (e.relevance, one.relevance, other.relevance),
        (e.layers["bert.encoder"], one.layers["bert.encoder"], other.layers["bert.encoder"]),
    ):
        np.testing.assert_allclose(ours[:4], first[:4] - second[:4], atol=1e-10)
        np.testing.assert_allclose(ours[4:7], first[4:], atol=1e-10)
        np.testing.assert_allclose(ours[7:], -second[4:], atol=1e-10)
    assert e.value == pytest.approx(one.value - other.value)
    assert e.residual == pytest.approx(e.value - e.relevance.sum())


def test_the_map_turns_around_with_the_choices(explainer):
    e = explainer(PROMPT, choices=CHOICES, target=1, contrast=0)
    turned = explainer(PROMPT, choices=CHOICES, target=0, contrast=1)
    assert turned.value == pytest.approx(-e.value)
    np.testing.assert_allclose(turned.relevance[:4], -e.relevance[:4], atol=1e-10)


def test_one_choice_alone_is_explained_by_its_logit(explainer):
    e = explainer(PROMPT, choices=["runs"])
    assert (e.contrast, e.top, e.target_probability) == (None, (), None)
    assert e.value == pytest.approx(logits_of(explainer, ["runs"])[0])
    assert [tuple(s) for s in e.segments] == [("prompt", 1, 3), ("choice", 4, 5)]


def test_several_prompts(explainer):
    prompts, lists = [PROMPT, "the film", "he lives"], [CHOICES, ["was good", "runs"], ["in berlin", "and"]]
    for ours, prompt, choices in zip(explainer(prompts, choices=lists), prompts, lists, strict=True):
        theirs = explainer(prompt, choices=choices)
        np.testing.assert_allclose(ours.relevance, theirs.relevance, atol=1e-10)
        assert ours.target == theirs.target
    shared = explainer(prompts, choices=CHOICES)
    np.testing.assert_allclose(shared[0].relevance, explainer(PROMPT, choices=CHOICES).relevance, atol=1e-10)


def test_a_choice_of_several_lines(explainer):
    e = explainer(PROMPT, choices=["runs\nand sleeps", "is great"], target="runs\nand sleeps")
    assert e.target.text == "runs\nand sleeps"
    assert e.text == "a dog\nruns\nand sleeps\nis great"


BAD = {
    "none": ({}, "chooses among texts. Give them: choices="),
    "empty": ({"choices": []}, r"choices=\[\] is empty"),
    "a string": ({"choices": "runs"}, "choices='runs': give a list of strings"),
    "numbers": ({"choices": [1, 2]}, "give a list of strings"),
    "twice": ({"choices": ["runs", "runs"]}, "choices has 'runs' more than once"),
    "unknown": ({"choices": CHOICES, "target": "run"}, "target='run' is none of the choices. Did you mean 'runs'"),
    "index": ({"choices": CHOICES, "target": 3}, "target=3: give one of the choices, or its index from 0 to 2"),
    "same": ({"choices": CHOICES, "target": 0, "contrast": "runs"}, "are the same choice"),
    "position": ({"choices": CHOICES, "position": 1}, "position=1: a choice has one logit"),
    "a blank one": ({"choices": ["runs", " "]}, "choice is ' ', which is empty"),
    "gradient": ({"choices": CHOICES, "method": "gradient"}, "gradient does not decompose the logit"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(explainer, what):
    asked, message = BAD[what]
    with pytest.raises(InputError, match=message):
        explainer(PROMPT, **asked)


def test_views_name_prompt_choice_and_contrast(explainer):
    page = explainer(PROMPT, choices=CHOICES).to_html()
    for name in ("prompt", "choice", "contrast"):
        assert f"{name}:" in page
