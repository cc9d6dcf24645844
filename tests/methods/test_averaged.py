"""Integrated gradients and SmoothGrad against sums written out with the model's own ``inputs_embeds``."""

import numpy as np
import pytest
import tiny
import torch

import lrpx

IDS = list(range(10, 19))
ASKED = {"target": 20, "contrast": 21}
FAMILIES = ["causal:llama", "causal:gpt2", "masked:bert"]


def gradient_at(model, embeddings, position):
    """Gradient and value of the difference of two logits, float64."""
    leaf = embeddings.clone().requires_grad_()
    logits = model(inputs_embeds=leaf[None]).logits[0, position]
    value = logits[20] - logits[21]
    (gradient,) = torch.autograd.grad(value, leaf)
    return gradient, value.item()


def embeddings_of(model):
    return model.get_input_embeddings()(torch.tensor(IDS)).detach()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("baseline", ["zero", "mean", 12])
def test_integrated_gradients_are_the_sum_written_out(family, baseline):
    model = tiny.build(family)
    e = lrpx.Explainer(model)(IDS, method="integrated-gradients", steps=5, baseline=baseline, position=-1, **ASKED)
    x, table = embeddings_of(model), model.get_input_embeddings().weight.detach()
    start = {"zero": torch.zeros_like(x[0]), "mean": table.mean(0), 12: table[12]}[baseline]
    nodes, weights = np.polynomial.legendre.leggauss(5)
    total = sum(
        w / 2 * gradient_at(model, start + (n + 1) / 2 * (x - start), -1)[0]
        for n, w in zip(nodes, weights, strict=True)
    )
    np.testing.assert_allclose(e.relevance, ((x - start) * total).sum(-1), rtol=1e-9, atol=1e-9)
    at_baseline = gradient_at(model, start.expand_as(x), -1)[1]
    assert e.components["baseline"] == pytest.approx(at_baseline, abs=1e-9)
    assert e.relevance.sum() + e.components["baseline"] + e.residual == pytest.approx(e.value, abs=1e-9)
    assert e.at == "embedding"


def test_the_gradient_at_the_baseline_may_be_infinite():
    """RMSNorm of zeros is zero, and its slope there is one over the root of a tiny number."""
    model = tiny.build("causal:llama", zero_biases=True)
    for module in model.modules():
        if hasattr(module, "variance_epsilon"):
            module.variance_epsilon = 1e-36
    e = lrpx.Explainer(model)(IDS, method="integrated-gradients", steps=4, baseline="zero", **ASKED)
    assert e.components["baseline"] == 0
    assert np.abs(e.relevance).min() > 0


def test_more_steps_close_the_gap():
    explainer = lrpx.Explainer(tiny.build("causal:gpt2"))
    gaps = [abs(explainer(IDS, method="integrated-gradients", steps=steps, **ASKED).residual) for steps in (2, 8, 64)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-4 * gaps[0]


def test_smoothgrad_is_the_mean_gradient_around_the_text():
    model = tiny.build("causal:gpt2")
    few, many, tiny_noise = (
        lrpx.Explainer(model)(IDS, method="smoothgrad", samples=samples, noise=noise, **ASKED).relevance
        for samples, noise in ((1, 1e-9), (1, 0.15), (3, 1e-9))
    )
    plain, _ = gradient_at(model, embeddings_of(model), -1)
    np.testing.assert_allclose(few, plain.abs().sum(-1), rtol=1e-6)
    np.testing.assert_allclose(tiny_noise, few, rtol=1e-6)
    assert np.abs(many / few - 1).max() > 0.01


def test_the_noise_is_as_large_as_asked_and_differs_between_samples():
    model = tiny.build("causal:gpt2")
    seen = []
    block = model.transformer.h[0].register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().clone()))
    lrpx.Explainer(model)(IDS, method="smoothgrad", samples=50, noise=0.2, **ASKED)
    block.remove()
    x, noisy = embeddings_of(model), torch.cat(seen[1:])
    added = noisy - seen[0]
    assert added.shape[0] == 50
    assert added.std().item() == pytest.approx(0.2 * (x.max() - x.min()).item(), rel=0.05)
    assert (added[0] - added[1]).abs().max() > 0.1 * added.std()


@pytest.mark.parametrize("method", ["integrated-gradients", "smoothgrad", "occlusion", "random"])
@pytest.mark.parametrize("family", ["causal:gpt2", "causal:llama", "text2text:t5"])
def test_a_text_in_a_batch_is_the_text_alone(family, method):
    model = tiny.build(family)
    texts = [IDS, IDS[:5], [*IDS, 30, 31]]
    options = {"integrated-gradients": {"steps": 3}, "smoothgrad": {"samples": 3}}.get(method, {})
    prefix = {"target_prefix": [[0, 12, 13], [0], [0, 14]]} if family.startswith("text2text") else {}
    explainer = lrpx.Explainer(model)
    together = explainer(texts, method=method, **options, **ASKED, **prefix)
    for i, (text, e) in enumerate(zip(texts, together, strict=True)):
        own = {name: value[i] for name, value in prefix.items()}
        alone = explainer(text, method=method, **options, **ASKED, **own)
        np.testing.assert_allclose(e.relevance, alone.relevance, rtol=1e-9, atol=1e-10)


def test_the_top_prediction_is_that_of_the_text_as_it_is():
    model = tiny.build("causal:gpt2")
    e = lrpx.Explainer(model)(IDS, method="integrated-gradients", steps=2)
    assert e.target.id == model(torch.tensor([IDS])).logits[0, -1].argmax()
    assert e.top[0].token.id == e.target.id


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"steps": 0}, "steps=0: give a whole number, 1 or more"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"baseline": "black"}, "baseline='black': give"),
        ({"baseline": 999}, "has the token ids 0 to 96"),
        ({"at": "input"}, 'its relevance is theirs: at="embedding"'),
        ({"samples": 3}, "takes no option 'samples'"),
    ],
)
def test_bad_options_are_refused(options, said):
    explainer = lrpx.Explainer(tiny.build("causal:gpt2"))
    with pytest.raises(lrpx.InputError, match=said):
        explainer(IDS, method="integrated-gradients", **options)


def test_smoothgrad_refuses_noise_that_is_none():
    explainer = lrpx.Explainer(tiny.build("causal:gpt2"))
    for noise in (0, -1, "much", float("inf"), True):
        with pytest.raises(lrpx.InputError, match="noise="):
            explainer(IDS, method="smoothgrad", noise=noise)


def test_the_model_is_as_before_also_after_an_error():
    model = tiny.build("causal:gpt2")
    before = model(torch.tensor([IDS])).logits
    lrpx.Explainer(model)(IDS, method="integrated-gradients", steps=2)
    with pytest.raises(lrpx.InputError):
        lrpx.Explainer(model)(IDS, method="integrated-gradients", baseline=999)
    assert not model.get_input_embeddings()._forward_hooks
    assert torch.equal(model(torch.tensor([IDS])).logits, before)
