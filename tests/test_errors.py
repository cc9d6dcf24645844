"""The names an error suggests, and what kind of error a caller can catch."""

import inspect
import re

import pytest
import tiny

import lrpx
from lrpx.errors import nearest

NAMES = ["lrp", "attnlrp", "gradient", "gradient-x-input"]


@pytest.mark.parametrize(
    ("name", "suggested"),
    [
        ("atnlrp", "attnlrp"),
        ("AttnLRP", "attnlrp"),
        ("LRP", "lrp"),
        ("gradient_x_input", "gradient-x-input"),
        ("grad", "gradient"),
        ("integrated-gradients", "gradient"),
    ],
)
def test_suggests_the_nearest_in_any_case(name, suggested):
    assert nearest(name, NAMES) == f"Did you mean {suggested!r}? Known: attnlrp, gradient, gradient-x-input, lrp."


@pytest.mark.parametrize("name", ["shap", "", None, 3])
def test_lists_the_known_where_none_is_near(name):
    assert nearest(name, iter(NAMES)) == "Known: attnlrp, gradient, gradient-x-input, lrp."


def test_names_keep_their_case():
    assert (
        nearest("llamaforcausallm", ["LlamaForCausalLM"]) == "Did you mean 'LlamaForCausalLM'? Known: LlamaForCausalLM."
    )


def test_errors_are_of_the_kind_that_python_users_expect():
    assert issubclass(lrpx.InputError, ValueError)
    assert issubclass(lrpx.UnsupportedModelError, ValueError)
    assert issubclass(lrpx.NonFiniteError, ArithmeticError)
    for error in (lrpx.InputError, lrpx.UnsupportedModelError, lrpx.NonFiniteError):
        assert issubclass(error, lrpx.LrpxError)


def test_an_option_typed_wrong_or_in_the_wrong_place_is_refused_with_the_right_one():
    model = tiny.build("causal:llama")
    explainer = lrpx.Explainer(model)
    e, g = explainer([3, 4, 5]), explainer.generate([3, 4, 5], max_new_tokens=1)
    wrong = {
        "'metod'. Did you mean 'method'?": lambda: lrpx.Explainer(model, metod="lrp"),
        "'dtype'. It is one of lrpx.load: lrpx.Explainer(*lrpx.load(": lambda: lrpx.Explainer(model, dtype="float32"),
        "'target'. It is one of the call: explainer(text, target=...)": lambda: lrpx.Explainer(model, target=3),
        "'fast'. It is one of lrpx.Explainer: lrpx.Explainer(model, fast=...)": lambda: explainer([3], fast=True),
        "'device'. It is one of lrpx.load": lambda: lrpx.explain(model, None, [3], device="cpu"),
        "'targt'. Did you mean 'target'?": lambda: lrpx.explain(model, None, [3], targt=3),
        "'position'. It is one of the call": lambda: explainer.generate([3], max_new_tokens=1, position=0),
        "'dtyp'. Did you mean 'dtype'?": lambda: lrpx.load("org/name", dtyp="float32"),
        "'hid'. Did you mean 'hide'?": lambda: e.show(hid="first"),
        "'scales'. Did you mean 'scale'?": lambda: lrpx.Explanations([e]).to_png("x.png", scales="max"),
        "'scale'. There are no options.": lambda: g.show(scale="max"),
        "'weight'. Did you mean 'weights'?": lambda: g.span(0, weight=[1.0]),
    }
    for message, call in wrong.items():
        with pytest.raises(lrpx.InputError, match=re.escape(f"unknown option {message}")):
            call()


def test_signatures_stay_readable():
    assert [*inspect.signature(lrpx.Explainer).parameters][:3] == ["model", "tokenizer", "method"]
    assert [*inspect.signature(lrpx.Explanation.to_png).parameters][:3] == ["self", "path", "of"]
    assert "Args:" in (lrpx.load.__doc__ or "")
