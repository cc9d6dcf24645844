"""The likeliest tokens, probabilities and ranks are those of a softmax over the model's own logits, however a pass is run."""

import numpy as np
import pytest
import tiny
import torch
from support import runner_of

from lrpx.methods import METHODS
from lrpx.passes.attribution import attributions, run
from lrpx.passes.forward_backward import compute
from lrpx.passes.predictions import predictions, read_predictions
from lrpx.passes.spec import PassOptions, PassSpec
from lrpx.text.batching import Item, pad

MODELS = ["causal:gpt2", "causal:llama", "masked:bert", "causal:gemma2", "causal:cohere"]  # a bias, a soft cap, a scale
LENGTHS = (9, 8)
TARGET, CONTRAST = 11, 13


def items_for(model, target=TARGET, contrast=CONTRAST):
    rows = [tiny.inputs(model, n_tokens=n, seed=i)["input_ids"][0].tolist() for i, n in enumerate(LENGTHS)]
    return [Item(tuple(row), len(row) // 2, target, contrast) for row in rows]


def by_definition(model, item):
    """Probability and rank of every token, from the model's logits."""
    with torch.no_grad():
        logits = model(torch.tensor([item.token_ids])).logits[0, item.position].double()
    probabilities = logits.softmax(-1).numpy()
    return probabilities, [1 + int((probabilities > p).sum()) for p in probabilities]


def assert_predicted(found, model, item, target=TARGET, rel=1e-9):
    probabilities, ranks = by_definition(model, item)
    order = np.argsort(-probabilities, kind="stable")[: len(found.ids)]
    np.testing.assert_allclose(found.probabilities, probabilities[order], rtol=rel)
    np.testing.assert_allclose(probabilities[found.ids], probabilities[order], rtol=rel)
    assert found.target == (pytest.approx(probabilities[target], rel=rel), ranks[target])
    if item.contrast is None:
        assert found.contrast is None
    else:
        assert found.contrast == (pytest.approx(probabilities[CONTRAST], rel=rel), ranks[CONTRAST])


@pytest.mark.parametrize(
    "options", [PassOptions(), PassOptions(whole_head=True), PassOptions(checkpoint=True)], ids=str
)
@pytest.mark.parametrize("name", MODELS)
def test_predictions_of_a_batch(name, options):
    model = tiny.build(name)
    items = items_for(model)
    read = compute(model, pad(items, model, likeliest=7), PassSpec("attnlrp"), options).read(len(items))
    for item, found in zip(items, read_predictions(read.predictions), strict=True):
        assert len(found.ids) == 7
        assert_predicted(found, model, item)


@pytest.mark.parametrize("contrast", [None, CONTRAST])
def test_the_top_prediction_as_target(contrast):
    model = tiny.build("causal:llama")
    items = items_for(model, None, contrast)
    result = run(model, pad(items, model, likeliest=5), "lrp")
    for item, target, found in zip(items, result.targets, read_predictions(result.predictions), strict=True):
        assert_predicted(found, model, item, target)
        assert found.target[1] == 1
        assert found.ids[0] == target


@pytest.mark.parametrize("name", MODELS)
def test_asking_for_them_changes_no_other_number(name):
    model = tiny.build(name)
    items = items_for(model)
    without, beside = (run(model, pad(items, model, likeliest=n), "attnlrp") for n in (0, 5))
    assert without.predictions is None
    assert np.array_equal(without.values, beside.values)
    assert np.array_equal(without.products, beside.products)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_knows_them(method):
    model = tiny.build("causal:gpt2")
    items = items_for(model)
    explain = METHODS[method].run_by(runner_of(model))
    for item, found in zip(items, explain(pad(items, model, likeliest=5)), strict=True):
        assert_predicted(found.predictions, model, item)
    assert all(found.predictions is None for found in explain(pad(items, model)))


def test_a_vocabulary_smaller_than_what_is_asked_for():
    model = tiny.build("causal:gpt2")
    items = items_for(model)
    found = next(read_predictions(run(model, pad(items, model, likeliest=10**6), "lrp").predictions))
    assert sorted(found.ids) == list(range(model.config.vocab_size))
    assert found.probabilities.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.compiler
def test_a_compiled_pass(quickly, as_traced):
    """As it was traced; ``test_compiled_in_float32`` fuses it."""
    model = tiny.build("causal:llama")
    items = items_for(model)
    result = run(model, pad(items, model, likeliest=5), "attnlrp", runner=runner_of(model, compile=True))
    assert as_traced
    for item, attribution in zip(
        items, attributions(result, pad(items, model), torch.mul, decomposes=True), strict=True
    ):
        assert_predicted(attribution.predictions, model, item)


def test_logits_of_minus_infinity_and_ties():
    """A model may forbid tokens; equal logits have the same rank."""
    logits = torch.tensor([[0.0, 2.0, -torch.inf, 2.0, 1.0]], dtype=torch.float64)
    numbers = predictions(logits, torch.tensor([3]), torch.tensor([2]), 3)
    (found,) = read_predictions(numbers.numpy())
    assert sorted(found.ids[:2]) == [1, 3]
    assert found.target[1] == 1
    assert found.contrast == (0.0, 5)
    (alone,) = read_predictions(predictions(logits, torch.tensor([0]), torch.tensor([-1]), 1).numpy())
    assert (alone.target[1], alone.contrast) == (4, None)
