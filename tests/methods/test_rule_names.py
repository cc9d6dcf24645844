"""Names of rules: what they stand for, which rule set they join, and what a wrong one is told."""

import numpy as np
import pytest
import tiny
import tiny_images
import torch

import lrpx
from lrpx.errors import InputError
from lrpx.methods.options import methods_with_options
from lrpx.methods.rule_names import linear_rule, named_rules
from lrpx.propagation import rules
from lrpx.propagation.rulesets import ATTNLRP, LRP

IDS = [3, 7, 11, 5]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("epsilon=1e-6", rules.epsilon(1e-6)),
        ("epsilon", rules.epsilon()),
        ("epsilon=0.5", rules.epsilon(0.5)),
        ("gamma=0.25", rules.gamma(0.25)),
        ("gamma", rules.gamma()),
        ("gamma=1", rules.gamma(1.0)),
        ("alpha1beta0", rules.alpha_beta(1.0, 0.0)),
        ("alpha2beta1", rules.alpha_beta(2.0, 1.0)),
        ("alpha1.5beta0.5", rules.alpha_beta(1.5, 0.5)),
    ],
)
def test_a_name_is_a_rule_with_its_numbers(name, rule):
    assert linear_rule(name).__name__ == rule.__name__
    assert linear_rule(name) is linear_rule(name)  # a captured pass is found again by its rules


@pytest.mark.parametrize("method", ["lrp", "attnlrp", "lrp-uniform-gate"])
@pytest.mark.parametrize(("name", "rule"), [("gamma=0.25", rules.gamma(0.25)), ("alpha1beta0", rules.alpha1beta0)])
def test_the_rule_joins_the_methods_own_rule_set(method, name, rule):
    model = tiny.build("causal:llama")
    e = lrpx.explain(model, None, IDS, target=5, method=method, rules=name)
    written_out = {**named_rules(method), "linear": rule}
    expected = lrpx.explain(model, None, IDS, target=5, method=method, rules=written_out)
    np.testing.assert_array_equal(e.relevance, expected.relevance)
    assert e.provenance["options"]["rules"] == f"{method}+{name}"
    assert f"the rules are {method}+{name}." in e.notes
    assert "the rules are the caller's own." in expected.notes
    plain = lrpx.explain(model, None, IDS, target=5, method=method)
    assert not np.allclose(e.relevance, plain.relevance, rtol=1e-2)
    assert not any("rules" in note for note in plain.notes)


def test_a_rule_set_and_its_rule_in_one_name():
    assert named_rules("attnlrp+gamma=0.25") == {**ATTNLRP, "linear": linear_rule("gamma=0.25")}
    assert named_rules("lrp") is LRP
    assert named_rules({"softmax": rules.constant}) == {"softmax": rules.constant}
    ((_, options),) = methods_with_options(["lrp"], {"rules": "attnlrp+alpha1beta0"})
    assert options["rules"] == "attnlrp+alpha1beta0"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gama=0.25", "unknown rule set 'gama=0.25'. Did you mean 'gamma=0.25'"),
        ("gamma=-1", "numbers that are not negative; it was given -1"),
        ("epsilon=nan", "numbers that are not negative; it was given nan"),
        ("lpr", "unknown rule set 'lpr'. Did you mean 'lrp'"),
        ("alpha1beta1", "alpha - beta has to be 1"),
        ("lrp+alpha", "unknown rule 'alpha' for layers with weights. Did you mean 'alpha1beta0'"),
        ("lpr+gamma", "unknown rule set 'lpr'"),
    ],
)
def test_names_that_are_none(name, message):
    with pytest.raises(InputError, match=message):
        methods_with_options("lrp", {"rules": name})


def test_methods_without_rules_take_none():
    with pytest.raises(InputError, match="gradient takes no option 'rules'"):
        methods_with_options("gradient", {"rules": "gamma=0.25"})
    both = {m.name: options for m, options in methods_with_options(["lrp", "gradient"], {"rules": "gamma"})}
    assert both["lrp"]["rules"] == "lrp+gamma"
    assert "rules" not in both["gradient"]


def test_convolutions_have_a_rule_of_their_own():
    """The patch embedding of a vision transformer; each layer's rule is the one that it has alone."""
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0)).double()
    model = tiny_images.build("image:vit")

    def explained(name):
        return lrpx.explain(model, None, pixels, target=1, method="lrp", at=["input", "pixels"], rules=name)

    both, conv, linear, plain = map(explained, ("conv:gamma=0.25+gamma=0.05", "conv:gamma=0.25", "gamma=0.05", None))
    np.testing.assert_allclose(conv.relevance, plain.relevance, rtol=1e-9)  # behind the convolution
    np.testing.assert_allclose(both.relevance, linear.relevance, rtol=1e-9)
    assert not np.allclose(conv.layers["pixels"], plain.layers["pixels"], rtol=1e-2)
    assert not np.allclose(both.layers["pixels"], linear.layers["pixels"], rtol=1e-2)
    same, one = explained("conv:gamma=0.25+gamma=0.25"), explained("gamma=0.25")
    np.testing.assert_allclose(same.layers["pixels"], one.layers["pixels"], rtol=1e-9)
    assert both.provenance["options"]["rules"] == "lrp+conv:gamma=0.25+gamma=0.05"
    assert named_rules("lrp+conv:gamma=0.25") == named_rules("lrp+conv:gamma=0.25")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gamma=0.25+gamma=0.05", "have two for the same layers"),
        ("conv:gamma=1+conv:epsilon", "have two for the same layers"),
        ("conv:delta=1", "unknown rule set 'conv:delta=1'"),
        ("conv:gamma=1+delta=1", "unknown rule 'delta=1'"),
    ],
)
def test_wrong_rules_for_layers(name, message):
    with pytest.raises(InputError, match=message):
        methods_with_options(["lrp"], {"rules": name})
