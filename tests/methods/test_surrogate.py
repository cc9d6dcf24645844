"""LIME and Kernel SHAP against functions whose contributions are known, Shapley's formula, and the model's own inputs."""

import itertools
import math
import sys

import numpy as np
import pytest
import tiny
import torch

import lrpx
from lrpx.methods.surrogate import lime_scores, shapley_values

IDS = [10, 30, 12, 45, 14]
ASKED = {"target": 20, "contrast": 21}
WORTH = np.array([3.0, -1.0, 0.5, 2.0, 0.0, -2.0, 1.0, 4.0, 0.25, -0.75, 1.5])


@pytest.fixture(scope="module")
def captum():
    return pytest.importorskip("captum.attr", reason="captum is not installed")


def shapley(value_of, n):
    """The formula, as a sum over all sets without the token. Lundberg & Lee 2017, equation 8. Slow on purpose."""
    found = np.zeros(n)
    for token in range(n):
        others = [t for t in range(n) if t != token]
        for k in range(n):
            for some in itertools.combinations(others, k):
                shown = np.zeros((2, n), bool)
                shown[:, some] = True
                shown[1, token] = True
                without, with_it = value_of(shown)
                found[token] += math.factorial(k) * math.factorial(n - k - 1) / math.factorial(n) * (with_it - without)
    return found


@pytest.mark.parametrize("n", [1, 3, 11])
@pytest.mark.parametrize("fit", [lime_scores, shapley_values])
def test_of_a_sum_they_are_what_each_token_adds(captum, fit, n):
    """Also by draws: 11 tokens have 2,048 sets."""
    torch.manual_seed(0)
    found = fit(captum, lambda shown: 30 + shown @ WORTH[:n], n, 64)
    np.testing.assert_allclose(found, WORTH[:n], atol=1e-5)


def interacting(shown):
    """Products and a maximum: tokens that need each other, or replace each other."""
    x = shown.astype(float)
    return 5 + 2 * x[:, 0] * x[:, 1] - 3 * x[:, 1] * x[:, 2] * x[:, 3] + np.maximum(x[:, 3], x[:, 4]) + x[:, 5]


def test_of_few_tokens_kernel_shap_is_exact(captum):
    found, expected = shapley_values(captum, interacting, 6, 64), shapley(interacting, 6)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(expected - (interacting(np.ones((1, 6), bool)) - interacting(~np.eye(6, dtype=bool)))).max() > 0.3


def test_by_draws_kernel_shap_comes_near(captum):
    """Within what chance allows, whatever numbers a version of PyTorch draws."""
    torch.manual_seed(0)
    expected = shapley(interacting, 6)
    few, many = (np.array([shapley_values(captum, interacting, 6, n) for _ in range(200)]) for n in (20, 60))
    error = many.std(0) / np.sqrt(len(many))
    assert error.max() < 0.05
    assert (np.abs(many.mean(0) - expected) < 5 * error + 0.02).all()
    assert many.std(0).mean() < few.std(0).mean()
    np.testing.assert_allclose(many.sum(1), expected.sum(), atol=1e-3)  # the whole text and none of it weigh most


@pytest.mark.parametrize(("family", "position"), [("causal:llama", 4), ("masked:bert", 2)])
def test_of_a_model_kernel_shap_is_the_formula_with_its_own_inputs(captum, family, position):
    model = tiny.build(family)
    e = lrpx.Explainer(model)(IDS, method="kernel-shap", position=position, **ASKED)
    table = model.get_input_embeddings()
    x, mean = table(torch.tensor(IDS)).detach(), table.weight.detach().mean(0)

    @torch.no_grad()
    def value_of(shown):
        inputs = torch.where(torch.from_numpy(shown)[..., None], x, mean)
        logits = torch.stack([model(inputs_embeds=one[None]).logits[0, position] for one in inputs])
        return (logits[:, 20] - logits[:, 21]).numpy()

    np.testing.assert_allclose(e.relevance, shapley(value_of, 5), atol=1e-5)
    assert e.components["baseline"] == pytest.approx(value_of(np.zeros((1, 5), bool))[0], abs=1e-6)
    assert e.residual == pytest.approx(0, abs=1e-4)
    assert e.measures == "parts"


def test_lime_weighs_texts_by_their_likeness(captum):
    """The library's draws and weights, and the normal equations written out."""
    model = tiny.build("causal:llama")
    explainer = lrpx.Explainer(model)
    e = explainer(IDS, method="lime", samples=40, baseline=12, **ASKED)
    drawn = []

    def noting(shown):
        drawn.append(shown)
        return shown @ WORTH[:5] + 2 * shown[:, 0] * shown[:, 1]

    torch.manual_seed(1)
    found = lime_scores(captum, noting, 5, 40)
    shown = drawn[-1].astype(float)
    assert shown.shape == (40, 5)
    likeness = shown.sum(1) / np.maximum(np.sqrt(5 * shown.sum(1)), 1e-12)
    weights = np.exp(-((1 - likeness) ** 2) / 2)
    design = np.column_stack([shown, np.ones(40)])
    wanted = np.linalg.solve(design.T * weights @ design, design.T * weights @ noting(shown))[:5]
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert e.measures == "scores"
    assert e.residual is None
    assert np.ptp(e.relevance) > 1e-3


@pytest.mark.parametrize("method", ["lime", "kernel-shap"])
def test_draws_depend_on_text_and_seed_alone(captum, method):
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    ids = [*IDS, 60, 16, 17, 70]
    asked = {"method": method, "samples": 30, **ASKED}
    state = torch.get_rng_state()
    alone, again = (explainer(ids, **asked).relevance for _ in range(2))
    beside = explainer([ids, [*ids, 11, 12]], **asked)[0].relevance
    assert np.array_equal(alone, again)
    np.testing.assert_allclose(beside, alone, atol=1e-5)
    assert not np.allclose(explainer(ids, seed=1, **asked).relevance, alone)
    assert torch.equal(torch.get_rng_state(), state)


def test_options_that_are_none(captum):
    explainer = lrpx.Explainer(tiny.build("causal:llama"))
    with pytest.raises(lrpx.InputError, match="6 samples are too few: a text of 5 tokens needs 7 at least"):
        explainer(IDS, method="lime", samples=6)
    with pytest.raises(lrpx.InputError, match='give "zero"'):
        explainer(IDS, method="kernel-shap", baseline="black")


def test_without_captum_it_is_said_what_to_type(monkeypatch):
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(ImportError, match=r'method="lime" needs captum: pip install captum'):
        lrpx.Explainer(tiny.build("causal:llama"))(IDS, method="lime")
