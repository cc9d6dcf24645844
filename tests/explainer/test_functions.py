"""Several targets and positions of one text as users ask for them, and functions of the logits as targets."""

import numpy as np
import pytest
import tiny_tokenizers
import torch

import lrpx
from lrpx.errors import InputError, LrpxWarning
from lrpx.propagation.propagate import propagate
from lrpx.propagation.rulesets import get_rules

TEXT = "The keys to the"


@pytest.fixture(scope="module")
def explainer():
    tokenizer = tiny_tokenizers.byte_level()
    return lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer)


@pytest.fixture(scope="module")
def masked():
    tokenizer = tiny_tokenizers.word_piece()
    return lrpx.Explainer(tiny_tokenizers.bert(tokenizer), tokenizer)


def some(logits):
    return logits[:7].logsumexp(0)


# Several predictions of one text


def test_several_targets(explainer):
    found = explainer(TEXT, target=[" are", " is", " keys are"])
    assert isinstance(found, lrpx.Explanations)
    assert [e.target.shown for e in found] == [" are", " is", " keys are"]
    for e, target in zip(found, [" are", " is", " keys are"], strict=True):
        np.testing.assert_allclose(e.relevance, explainer(TEXT, target=target).relevance, rtol=0, atol=1e-12)
    assert isinstance(explainer(TEXT, target=[" are"]), lrpx.Explanations)
    assert "are" in found.to_html()


def test_in_which_order(explainer):
    """Target by target, of each method by method."""
    found = explainer(TEXT, target=[" are", " is"], method=["lrp", "alti-logit"])
    assert [(e.target.shown, e.method) for e in found] == [
        (" are", "lrp"), (" are", "alti-logit"), (" is", "lrp"), (" is", "alti-logit"),
    ]  # fmt: skip
    assert [e.position for e in explainer(TEXT, position=np.array([3, 1, -2]))] == [3, 1, 2]


def test_several_masks_of_one_text(masked):
    text = "The [MASK] are [MASK]"
    found = masked(text, position=[2, 4], target=["keys", "here"])
    for e, position, target in zip(found, (2, 4), ("keys", "here"), strict=True):
        np.testing.assert_allclose(
            e.relevance, masked(text, position=position, target=target).relevance, rtol=0, atol=1e-12
        )
    with pytest.raises(InputError, match=r"^target\[0\]: the text has 2 mask tokens"):
        masked(text, target=["keys", "here"])


def test_one_text_in_a_list_has_one_target(explainer):
    [e] = explainer([TEXT], target=[" are"])
    np.testing.assert_array_equal(e.relevance, explainer(TEXT, target=" are").relevance)


@pytest.mark.filterwarnings("ignore::lrpx.errors.LrpxWarning")
def test_those_that_cannot_be_explained_are_collected(explainer):
    found = explainer(TEXT, target=[" are", "  are", " is"], errors="collect")
    assert [e.target.shown for e in found] == [" are", " is"]
    [failure] = found.failures
    assert (failure.index, failure.text) == (1, TEXT)
    with pytest.raises(InputError, match=r"^target\[1\]: target='  are' is 2 tokens here"):
        explainer(TEXT, target=[" are", "  are", " is"])
    top = explainer(TEXT).target.id
    found = explainer(TEXT, target=[None, " are"], contrast=[top, " is"], errors="collect")
    assert [e.target.shown for e in found] == [" are"]
    assert "top prediction is the contrast itself" in str(found.failures[0].error)


def test_one_function_that_fails_does_not_fail_the_others(explainer):
    found = explainer(TEXT, target=[" are", lambda logits: 3.0, some], errors="collect")
    assert [e.target.text for e in found] == ["Ġare", "some"]
    assert "returned float" in str(found.failures[0].error)


def test_warnings_say_which_target(explainer):
    with pytest.warns(LrpxWarning, match=r"^target\[0\]: the target \"are\" is far less probable"):
        bias(explainer, {"are": -40.0, " are": 40.0}, lambda: explainer(TEXT, target=["are", " is"]))


def bias(explainer, logits, call):
    """Call with a model that finds some tokens likely or unlikely."""
    model, tokenizer = explainer.model, explainer.tokenizer
    ids = {tokenizer(text)["input_ids"][0]: value for text, value in logits.items()}
    hook = model.lm_head.register_forward_hook(
        lambda _, __, output: output + sum(value * torch.eye(output.shape[-1])[i] for i, value in ids.items())
    )
    try:
        call()
    finally:
        hook.remove()


# Functions


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "gradient-x-input"])
def test_a_function_of_the_logits(explainer, method):
    """Against a backward pass by hand, with plain gradients in the function (a softmax is a constant in the rules of LRP)."""
    ids = torch.tensor([explainer.tokenizer(TEXT)["input_ids"]])

    def entropy(logits):
        p = logits.softmax(0)
        return -(p * p.log()).sum()

    model = explainer.model
    with propagate(model, {} if method == "gradient-x-input" else get_rules(method)):
        x = (model.transformer.wte(ids) + model.transformer.wpe(torch.arange(4))).detach().requires_grad_()
        logits = model(inputs_embeds=x - model.transformer.wpe(torch.arange(4))).logits[0, -1]
    value = entropy(logits)
    (gradient,) = torch.autograd.grad(value, x)
    for e in (
        explainer(TEXT, target=entropy, method=method),
        explainer(TEXT, target=[entropy, " are"], method=method)[0],
        explainer([TEXT, "The"], target=[entropy, None], method=method)[0],
    ):
        assert e.value == pytest.approx(float(value.detach()), abs=1e-12)
        np.testing.assert_allclose(e.relevance, (gradient * x)[0].sum(-1).detach(), rtol=0, atol=1e-12)
        assert e.residual == pytest.approx(e.value - e.relevance.sum())
        assert (e.explains, e.target) == ("function", (-1, "entropy", "entropy"))
        assert (e.target_probability, e.target_rank, e.provenance["target"]) == (None, None, None)
        assert len(e.top) == 5


def test_a_function_that_is_a_target(explainer):
    """A logit, and a difference of logits, said in another way."""
    i, j = (explainer.tokenizer(text)["input_ids"][0] for text in (" are", " is"))
    e, plain = explainer(TEXT, target=lambda logits: logits[i] - logits[j]), explainer(TEXT, target=i, contrast=j)
    np.testing.assert_allclose(e.relevance, plain.relevance, rtol=0, atol=1e-12)
    assert e.value == pytest.approx(plain.value)


def test_what_it_gets(explainer, masked):
    """The logits of the position, in the model's order; what it does to them stays there."""
    seen = []

    def keep(logits):
        seen.append(logits.detach().clone())
        logits[0] = 1000.0
        return logits[1]

    e = explainer(TEXT, position=1, target=keep)
    with torch.no_grad():
        expected = explainer.model(torch.tensor([e.token_ids])).logits[0, 1]
    torch.testing.assert_close(seen[0], expected)
    assert e.top[0].token.id == int(expected.argmax())
    found = masked("The [MASK] are here", target=lambda logits: logits[5])
    np.testing.assert_allclose(found.relevance, masked("The [MASK] are here", target=5).relevance, rtol=0, atol=1e-12)


def test_in_a_padded_batch_and_at_modules(explainer):
    texts = [TEXT, "The keys to", "The keys are in the"]
    found = explainer(texts, target=some, at=["input", "transformer.h.0"])
    for e, text in zip(found, texts, strict=True):
        one = explainer(text, target=some, at=["input", "transformer.h.0"])
        np.testing.assert_allclose(e.relevance, one.relevance, rtol=0, atol=1e-12)
        np.testing.assert_allclose(e.layers["transformer.h.0"], one.layers["transformer.h.0"], rtol=0, atol=1e-12)


def test_a_model_in_bfloat16_gives_it_float32():
    tokenizer = tiny_tokenizers.byte_level()
    explainer = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer, torch.bfloat16), tokenizer)
    seen = []
    explainer(TEXT, target=lambda logits: seen.append(logits.dtype) or logits @ torch.ones(len(logits)))
    assert seen == [torch.float32]


def test_its_name_in_the_header(explainer):
    e = explainer(TEXT, target=lambda logits: logits[:5].mean(), explains="mean of five")
    assert repr(e).startswith("<Explanation attnlrp of function 'mean of five': value")
    assert "mean of five" in e.to_html()
    assert explainer(TEXT, target=lambda logits: logits[0]).target.text == "<lambda>"
    assert explainer(TEXT, target=torch.max).target.text == "max"
    found = explainer(TEXT, target=[some, some], explains=["one", None])
    assert [e.target.text for e in found] == ["one", "some"]
    assert lrpx.Explanation.from_dict(e.to_dict()).target.id == -1


def test_the_model_is_as_before(explainer):
    def fails(logits):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        explainer(TEXT, target=fails)
    with pytest.raises(KeyError, match="mine"):
        explainer(TEXT, target=[fails, " are"])
    assert explainer(TEXT, target=" are").value == pytest.approx(explainer(TEXT, target=" are", method="lrp").value)


def test_it_is_neither_captured_nor_compiled():
    """A compiled pass would keep what the function was at its first call."""
    tokenizer = tiny_tokenizers.byte_level()
    explainer = lrpx.Explainer(tiny_tokenizers.gpt2(tokenizer), tokenizer, compile=True, fast=True)
    scale = [1.0]
    for scale[0] in (1.0, 2.0):
        e = explainer([TEXT, "The keys"], target=lambda logits: scale[0] * logits[3])[0]
        assert e.value == pytest.approx(scale[0] * lrpx.explain(explainer.model, tokenizer, TEXT, target=3).value)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"target": lambda logits: 3.0},
            r"function <lambda> returned float. It gets the logits, \[304\]",
        ),
        ({"target": lambda logits: logits[:2]}, r"returned a tensor of shape \[2\] and dtype float64"),
        ({"target": lambda logits: None}, "returned NoneType"),
        ({"target": lambda logits: logits.argmax()}, "without a gradient"),
        ({"target": lambda logits: logits[3].detach()}, "without a gradient"),
        ({"target": lambda logits: torch.zeros((), requires_grad=True)}, "without a gradient"),
        ({"target": lambda logits: logits[3] / 0}, "returned (-)?inf"),
        ({"target": lambda logits: (logits[3] - logits[3]).sqrt()}, "has a gradient that is not finite"),
        ({"target": some, "contrast": " is"}, "the target is the function some, which takes no contrast"),
        ({"target": " are", "contrast": some}, "the contrast is the function some. Subtract it in a function"),
        ({"target": some, "objective": "logprob"}, "Leave out objective='logprob', and use logits.log_softmax"),
        (
            {"target": some, "method": "alti-logit"},
            "alti-logit explains one score, .* the target is the function some",
        ),
        ({"target": some, "method": "alti"}, "Functions are explained by lrp, attnlrp"),
        ({"target": " are", "explains": "x"}, "explains='x': a name for the function"),
        ({"target": some, "explains": 3}, "explains=3: a name"),
        ({"target": some, "explains": ["x", "y"]}, "2 values of explains for 1 text. Give one for all, or one each.$"),
        ({"target": [some, " are"], "explains": "x"}, r"^target\[1\]: explains='x'"),
        ({"target": []}, r"target=\[\] is empty. Give at least one target"),
        (
            {"position": [1, 2], "target": [" a", " b", " c"]},
            "3 values of target and 2 values of position for one text",
        ),
        ({"position": [1, 9]}, r"^position\[1\]: position 9 is outside the text"),
        ({"position": [[1, 2]]}, r"^position\[0\]: position=\[1, 2\] is a list inside a list"),
        ({"target": [[" are", " is"]]}, r"target=\[' are', ' is'\] is a list inside a list"),
        ({"text": [TEXT, "The"], "target": [[" are", " is"], [" a"]]}, "Each of several texts has one target"),
        ({"text": [TEXT], "target": [" are", " is"]}, r"explainer\(text, target=\[...\]\)"),
    ],
)
def test_what_cannot_be_used(explainer, asked, message):
    with pytest.raises(InputError, match=message):
        explainer(**{"text": TEXT} | asked)
