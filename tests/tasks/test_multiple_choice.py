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
    "gradient": ({"choices": CHOICES, "method": "gradient"}, "gradient has no sign"),
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


# Functions of the logits of all choices.


def how_sure(logits):
    return logits.log_softmax(0)[1]


@pytest.mark.parametrize("method", ["attnlrp", "gradient-x-input"])
def test_a_function_of_all_choices(explainer, method):
    """By the chain rule: each choice's own map, times how much the function grows with its logit."""
    e, logits = explainer(PROMPT, choices=CHOICES, target=how_sure, method=method), torch.tensor(logits_of(explainer))
    weights = torch.func.grad(how_sure)(logits).numpy()
    alone = [explainer(PROMPT, choices=[choice], method=method) for choice in CHOICES]
    assert e.value == pytest.approx(float(how_sure(logits)))
    parts = [weight * one.relevance for weight, one in zip(weights, alone, strict=True)]
    np.testing.assert_allclose(e.relevance[:4], sum(part[:4] for part in parts), atol=1e-10)
    np.testing.assert_allclose(e.relevance[4:], np.concatenate([part[4:] for part in parts]), atol=1e-10)
    assert e.residual == pytest.approx(e.value - e.relevance.sum())
    assert [s.name for s in e.segments] == ["prompt", "choice 0", "choice 1", "choice 2"]
    assert [e.tokens[s.start : s.end] for s in e.segments[1:]] == [["runs"], ["sleeps", "."], ["is", "great"]]
    assert (e.target.text, e.contrast, e.explains, e.span) == ("how_sure", None, "function", (0, 0))
    assert "position 0" not in e.to_html()


def test_gradient_x_input_of_a_function_is_autograds(explainer):
    """All choices in one pass of the model, as users of transformers call it, with one gradient through all of them."""
    rows = explainer.tokenizer([PROMPT] * 3, CHOICES, return_tensors="pt", padding=True)
    words = explainer.model.get_input_embeddings()(rows["input_ids"]).detach()[None].requires_grad_()
    given = {name: rows[name][None] for name in ("attention_mask", "token_type_ids")}
    value = how_sure(explainer.model(inputs_embeds=words, **given).logits[0])
    (gradient,) = torch.autograd.grad(value, words)
    expected = (gradient * words)[0].sum(-1).detach()
    e = explainer(PROMPT, choices=CHOICES, target=how_sure, method="gradient-x-input", at="embedding")
    np.testing.assert_allclose(e.relevance[:4], expected[:, :4].sum(0), atol=1e-10)
    own = [row[4 : int(mask.sum())] for row, mask in zip(expected, rows["attention_mask"], strict=True)]
    np.testing.assert_allclose(e.relevance[4:], torch.cat(own), atol=1e-10)


def test_a_function_that_is_a_difference_is_a_contrast(explainer):
    e = explainer(PROMPT, choices=CHOICES[:2], target=lambda logits: logits[1] - logits[0], explains="second or first")
    same = explainer(PROMPT, choices=CHOICES[:2], target=1, contrast=0)
    assert (e.value, e.residual) == (pytest.approx(same.value), pytest.approx(same.residual))
    np.testing.assert_allclose(e.relevance[:4], same.relevance[:4], atol=1e-10)
    both = explainer([PROMPT, "it"], choices=CHOICES[:2], target=[how_sure, 1])
    np.testing.assert_allclose(both[0].relevance, explainer(PROMPT, choices=CHOICES[:2], target=how_sure).relevance)
    np.testing.assert_allclose(both[1].relevance, explainer("it", choices=CHOICES[:2], target=1).relevance, atol=1e-10)
    one = explainer(PROMPT, choices=["runs"], target=lambda logits: 2 * logits[0])
    np.testing.assert_allclose(one.relevance, 2 * explainer(PROMPT, choices=["runs"]).relevance, atol=1e-10)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"target": how_sure, "contrast": 0}, "takes no contrast=0"),
        ({"target": how_sure, "position": 2}, "a choice has one logit"),
        ({"target": lambda logits: logits}, r"It gets the logits, \[3\]"),
        ({"target": how_sure, "method": "gradient"}, "has no sign"),
        (
            {"target": lambda logits: logits[0], "choices": ["runs"], "method": "gradient"},
            "has no sign",
        ),
    ],
)
def test_which_functions_cannot_be_used(explainer, asked, message):
    with pytest.raises(InputError, match=message):
        explainer(PROMPT, **{"choices": CHOICES, **asked})
