"""The names an error suggests, and what kind of error a caller can catch."""

import pytest

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
