"""Several predictions of one text from one forward pass: the same as one call for each."""

from dataclasses import dataclass

import numpy as np
import pytest
import tiny
import torch
from support import families

import lrpx
from lrpx.errors import NonFiniteError
from lrpx.methods.together import explain_together
from lrpx.text.batching import Item, Readout, pad

FAMILIES = ["causal:gpt2", "causal:llama", "causal:mixtral", "causal:gpt_neox", "causal:gemma2", "masked:bert"]
METHODS = ["lrp", "attnlrp", "gradient-x-input", "gradient"]


def weighted(logits):
    """A function of the logits that no target is."""
    return logits[[3, 5, 8]].logsumexp(0) - logits[[4, 9]].mean()


QUESTIONS = [  # target, contrast, position
    (5, None, 4),
    (7, 3, 4),
    (None, None, 6),
    (None, 2, 1),
    (weighted, None, 3),
    (9, None, 0),
    (torch.max, None, 6),
]


def explainer_of(family, **options):
    return lrpx.Explainer(tiny.build(family), **options)


def ids_of(explainer):
    return tiny.inputs(explainer.model, n_tokens=7)["input_ids"][0].tolist()


def same(found, expected, tolerance=1e-12):
    """All numbers of two explanations are equal."""
    np.testing.assert_allclose(found.relevance, expected.relevance, rtol=0, atol=tolerance)
    assert found.value == pytest.approx(expected.value, abs=tolerance)
    for name in ("residual", "target_probability", "contrast_probability"):
        value = getattr(expected, name)
        assert getattr(found, name) == (None if value is None else pytest.approx(value, abs=tolerance)), name
    for name in ("tokens", "target", "contrast", "position", "target_rank", "contrast_rank", "explains", "notes", "at"):
        assert getattr(found, name) == getattr(expected, name), name
    assert [p.token for p in found.top] == [p.token for p in expected.top]
    for name in ("by_head", "by_attention", "by_mlp", "by_layer"):
        numbers = getattr(expected, name)
        assert (getattr(found, name) is None) == (numbers is None), name
        if numbers is not None:
            np.testing.assert_allclose(getattr(found, name), numbers, rtol=0, atol=max(tolerance, 1e-10))


@pytest.mark.parametrize("method", METHODS)
@families(FAMILIES)
def test_each_is_what_a_call_gives(family, method):
    explainer = explainer_of(family, method=method)
    ids = ids_of(explainer)
    targets, contrasts, positions = zip(*QUESTIONS, strict=True)
    found = explainer(ids, target=list(targets), contrast=list(contrasts), position=positions)
    assert len(found) == len(QUESTIONS)
    for e, (target, contrast, position) in zip(found, QUESTIONS, strict=True):
        same(e, explainer(ids, target=target, contrast=contrast, position=position), 1e-10)
    # The check can fail: another position gives another map.
    assert np.abs(found[0].relevance - explainer(ids, target=5, position=5).relevance).max() > 1e-6


def test_heads_and_layers():
    """Asked for or not, as by a call; of long texts only if asked for."""
    explainer = explainer_of("causal:llama")
    ids = ids_of(explainer)
    for e, position in zip(explainer(ids, position=[2, 6], heads=True, objective="logprob"), (2, 6), strict=True):
        assert e.by_head.shape == (2, 4, 7)
        one = explainer(ids, target=lambda z, t=e.target.id: z.log_softmax(0)[t], position=position, heads=True)
        np.testing.assert_allclose(e.by_head, one.by_head, rtol=0, atol=1e-10)
        np.testing.assert_allclose(e.by_layer, one.by_layer, rtol=0, atol=1e-10)
    assert explainer(ids, position=[2, 6])[0].by_head is not None
    assert explainer(ids, position=[2, 6], heads=False)[0].by_head is None


def test_from_one_forward_pass():
    explainer = explainer_of("causal:llama")
    ids, calls = ids_of(explainer), []
    explainer.model.model.layers[0].register_forward_pre_hook(lambda *_: calls.append(1))
    explainer(ids, target=[5, 6, 7], position=[1, 4, 6])
    assert len(calls) == 1
    explainer(ids, target=[5, 6, 7], position=[1, 4, 6], objective="logprob")
    assert len(calls) == 2


@pytest.mark.parametrize("options", [{"method": "alti-logit"}, {"method": "alti"}, {"at": "**.mlp"}])
def test_what_takes_copies_of_the_text_instead(options):
    explainer = explainer_of("causal:llama")
    ids = ids_of(explainer)
    found = explainer(ids, target=[5, 6], position=[2, 6], **options)
    for e, target, position in zip(found, [5, 6], [2, 6], strict=True):
        one = explainer(ids, target=target, position=position, **options)
        same(e, one)
        assert e.layers.keys() == one.layers.keys()
        for name, expected in one.layers.items():
            np.testing.assert_allclose(e.layers[name], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("family", ["causal:gpt2", "masked:bert"])
def test_log_probabilities(family):
    explainer = explainer_of(family)
    ids = ids_of(explainer)
    found = explainer(ids, target=[5, None, 6], contrast=[None, None, 4], position=[2, 4, 4], objective="logprob")
    for e, target, contrast, position in zip(found, [5, None, 6], [None, None, 4], [2, 4, 4], strict=True):
        one = explainer(ids, target=target, contrast=contrast, position=position, objective="logprob")
        same(e, one)
        by_function = explainer(
            ids,
            target=lambda z, t=e.target.id, c=contrast: z.log_softmax(0)[t] - (z.log_softmax(0)[c] if c else 0),
            position=position,
        )
        np.testing.assert_allclose(e.relevance, by_function.relevance, rtol=0, atol=1e-10)
        assert e.value == pytest.approx(by_function.value)
        assert e.explains == "log-probability of"


def test_many_go_backwards_in_groups(monkeypatch):
    explainer = explainer_of("causal:llama")
    ids = ids_of(explainer)
    whole = explainer(ids, position=list(range(7)))
    monkeypatch.setattr("lrpx.passes.many_targets.values_at_once", lambda *_: 2)
    for e, expected in zip(explainer(ids, position=list(range(7))), whole, strict=True):
        same(e, expected)


@pytest.mark.parametrize("options", [{"rules": "gamma=0.25"}, {"at": "embedding"}])
def test_with_options(options):
    explainer = explainer_of("causal:llama")
    ids = ids_of(explainer)
    for e, target in zip(explainer(ids, target=[5, weighted], **options), [5, weighted], strict=True):
        same(e, explainer(ids, target=target, **options))


def test_with_recomputed_blocks():
    plain, checkpointed = explainer_of("causal:llama"), explainer_of("causal:llama", checkpoint=True)
    ids = ids_of(plain)
    for e, expected in zip(checkpointed(ids, target=[5, weighted]), plain(ids, target=[5, weighted]), strict=True):
        same(e, expected)


def test_what_is_not_finite_is_the_models():
    explainer = explainer_of("causal:llama")
    ids = ids_of(explainer)
    with torch.no_grad():
        explainer.model.model.layers[1].mlp.down_proj.weight[0, 0] = np.inf
    for target in ([5, 6], weighted, [weighted, 5]):
        with pytest.raises(NonFiniteError, match=r"layers\.1"):
            explainer(ids, target=target)


@dataclass(frozen=True)
class TwoLabels(Readout):
    """A classifier: two labels, made of the logits at the position."""

    def __call__(self, output, batch):
        rows = output.logits[torch.arange(len(batch.spans)), batch.positions]
        return torch.stack([rows[:, :9].sum(1), rows[:, 9:].sum(1)], 1)


def test_what_a_readout_reads():
    """Labels, their log-probabilities and functions of them, as by passes of their own."""
    explainer = explainer_of("causal:llama")
    model, runner = explainer.model, explainer._runner
    items = [Item((5, 6, 7, 8), 3, 0), Item((5, 6, 7, 8), 3, 1, 0), Item((5, 6, 7, 8), 3, function=lambda z: z[1] ** 2)]
    method, settings = lrpx.METHODS["attnlrp"], {"rules": "attnlrp", "at": ("input",)}
    found = explain_together(runner, method, settings, items, likeliest=2, readout=TwoLabels())
    one_by_one = method.run_by(runner)
    for attribution, item in zip(found, items, strict=True):
        [expected] = one_by_one(pad([item], model, likeliest=2, readout=TwoLabels()), **settings)
        np.testing.assert_allclose(attribution.relevance, expected.relevance, rtol=0, atol=1e-12)
        assert attribution.value == pytest.approx(expected.value)
        assert attribution.predictions.ids.tolist() == expected.predictions.ids.tolist()
    logprob, by_function = (
        explain_together(runner, method, settings, [item], objective, readout=TwoLabels())[0]
        for item, objective in (
            (items[0], "logprob"), (Item((5, 6, 7, 8), 3, function=lambda z: z.log_softmax(0)[0]), "logit"),
        )
    )  # fmt: skip
    np.testing.assert_allclose(logprob.relevance, by_function.relevance, rtol=0, atol=1e-12)
    assert logprob.value == pytest.approx(by_function.value)
