"""Heads and neurons removed in order: against loops over the model's own modules, and what must hold for it."""

import numpy as np
import pytest
import tiny
import torch

import lrpx

TEXTS = [[10, 30, 12, 45, 14, 60, 16], [11, 31, 13, 44]]
ASKED = {"target": 20, "contrast": 21}
UP = "model.layers.*.mlp.up_proj"
PROJECTIONS = [f"model.layers.{layer}.self_attn.o_proj" for layer in range(2)]
UPS = [f"model.layers.{layer}.mlp.up_proj" for layer in range(2)]


@pytest.fixture(scope="module")
def explainer():
    return lrpx.Explainer(tiny.build("causal:llama"))


@pytest.fixture(scope="module")
def explained(explainer):
    return explainer(TEXTS, method=["attnlrp", "random"], at=["input", UP], heads=True, **ASKED)


def value_without(model, ids, removed, names, *, before, means=None):
    """The value with numbers of the modules' inputs, or outputs, replaced; ``removed`` of each module ``[width]``."""
    hooks = []
    for name, gone, fill in zip(names, removed, means or [0.0, 0.0], strict=True):

        def changed(x, gone=gone, fill=fill):
            return torch.where(torch.from_numpy(gone), torch.as_tensor(fill, dtype=x.dtype), x)

        module = model.get_submodule(name)
        if before:
            hooks.append(module.register_forward_pre_hook(lambda _, args, changed=changed: (changed(args[0]),)))
        else:
            hooks.append(module.register_forward_hook(lambda _, __, output, changed=changed: changed(output)))
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0, -1]
    for hook in hooks:
        hook.remove()
    return (logits[20] - logits[21]).item()


def means_of(model, names, *, before):
    """The mean of each number over the tokens of all texts."""
    seen = {name: [] for name in names}
    hooks = []
    for name in names:
        module = model.get_submodule(name)
        if before:
            hooks.append(module.register_forward_pre_hook(lambda _, args, name=name: seen[name].append(args[0][0])))
        else:
            hooks.append(module.register_forward_hook(lambda _, __, output, name=name: seen[name].append(output[0])))
    with torch.no_grad():
        for ids in TEXTS:
            model(torch.tensor([ids]))
    for hook in hooks:
        hook.remove()
    return [torch.cat(seen[name]).mean(0) for name in names]


@pytest.mark.parametrize("baseline", ["zero", "mean"])
@pytest.mark.parametrize("of", ["heads", "neurons"])
def test_curves_are_loops_over_the_models_own_modules(explainer, explained, of, baseline):
    model, names = explainer.model, PROJECTIONS if of == "heads" else UPS
    found = lrpx.faithfulness(explainer, explained, of=of, baseline=baseline, steps=4)
    assert found.methods == ["attnlrp", "random"]
    means = means_of(model, names, before=of == "heads") if baseline == "mean" else None
    for one, ids in zip(found.each[::2], TEXTS, strict=True):
        e = explained[2 * one.text]
        relevance = e.by_head.sum(-1) if of == "heads" else np.stack([e.layers[name].sum(0) for name in UPS])
        np.testing.assert_allclose(one.relevance, relevance.ravel(), rtol=1e-12)
        order = np.argsort(-one.relevance, kind="stable")
        n, size = len(order), 8 if of == "heads" else 1
        for step, k in enumerate(one.hidden):
            for curve, gone in ((one.most, order[:k]), (one.least, order[n - k :])):
                mask = np.isin(np.arange(n), gone).reshape(2, -1).repeat(size, 1)
                expected = value_without(model, ids, mask, names, before=of == "heads", means=means)
                assert curve[step] == pytest.approx(expected, abs=1e-6)
    assert found.each[0].most[0] == pytest.approx(explained[0].value, abs=1e-8)


def test_relevance_beats_random_and_its_reverse():
    """By Gradient x Input of a nearly linear model: the units of the most relevance are those that cost most."""
    explainer = lrpx.Explainer(tiny.build("causal:gpt2"))
    texts = [[int(i) for i in np.random.default_rng(n).integers(8, 90, 8)] for n in range(8)]
    explained = explainer(texts, method=["gradient-x-input", "random"], heads=True, **ASKED)
    mean = lrpx.faithfulness(explainer, explained, of="heads", baseline="zero").mean()
    assert mean["gradient-x-input"]["difference"][1] > 0  # the end of its interval
    assert mean["gradient-x-input"]["difference"][0] > 2 * abs(mean["random"]["difference"][0])


def test_one_order_for_all_texts(explainer, explained):
    ranking = [explained[0], explained[2]]
    found = lrpx.faithfulness(explainer, [explained[2]], of="heads", ranked_by=ranking)
    both = np.mean([e.by_head.sum(-1).ravel() for e in ranking], axis=0)
    np.testing.assert_allclose(found.each[0].relevance, both, rtol=1e-12)
    own = lrpx.faithfulness(explainer, [explained[2]], of="heads")
    assert not np.allclose(own.each[0].relevance, both)


def test_random_units_depend_on_the_text_alone(explainer, explained):
    alone, beside = (lrpx.faithfulness(explainer, some, of="heads") for some in (explained[:2], explained))
    assert np.array_equal(alone.each[1].relevance, beside.each[1].relevance)
    assert not np.allclose(beside.each[1].relevance, beside.each[3].relevance)


def test_what_is_no_order_of_units_is_refused(explainer, explained):
    def refused(what, given, **options):
        with pytest.raises(lrpx.InputError, match=what):
            lrpx.faithfulness(explainer, given, **options)

    refused("of='head': give what is removed. Did you mean 'heads'", explained, of="head")
    refused('replaced by "zero" or their "mean"', explained, of="heads", baseline="pad")
    refused("has no relevance of heads", explainer(TEXTS, method="occlusion", **ASKED), of="heads")
    refused("has no relevance of neurons", explainer(TEXTS, heads=True, **ASKED), of="neurons")
    refused("all of these are random", explainer(TEXTS, method="random", **ASKED), of="heads")
    refused("ranked_by: none of these is by attnlrp", explained, of="heads", ranked_by=explainer(TEXTS, method="lrp"))
    refused("ranked_by: for heads and neurons", explained, ranked_by=explained)
    other = [explainer(TEXTS[0], at=["input", UPS[0]], **ASKED)]
    refused("give the same ones", [explained[0], *other], of="neurons")
    four = lrpx.Explainer(tiny.build("causal:gpt2"))(TEXTS[0], heads=True, **ASKED)
    four = four.__class__(**{**four.__dict__, "by_head": four.by_head[:, :2], "provenance": {}})
    refused("Is it of another model", [four], of="heads")
