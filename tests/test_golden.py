"""LRP, AttnLRP and gradients against ``tests/golden``: explicit oracles in float64 on tiny random models."""

import json

import numpy as np
import pytest
from support import GOLDEN, lift_float32_norms
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM

from lrpx.methods import METHODS
from lrpx.text.batching import Item, pad

BLOCKS = {"gpt2": "transformer.h.{}", "bert": "bert.encoder.layer.{}", "llama": "model.layers.{}"}


def load(name):
    kind = AutoModelForMaskedLM if name == "bert" else AutoModelForCausalLM
    return kind.from_pretrained(GOLDEN / name).eval()


def cases():
    for name in BLOCKS:
        data = json.loads((GOLDEN / name / "cases.json").read_text(encoding="utf-8"))
        for i, case in enumerate(data["cases"]):
            for scalar in ("contrast", "target"):
                yield pytest.param(name, case, scalar, id=f"{name}-{i}-{scalar}")


def explain(model, case, scalar, method, **options):
    item = Item(
        tuple(case["input_ids"]), case["position"], case["target"], case["contrast"] if scalar == "contrast" else None
    )
    entry = METHODS[method]
    (attribution,) = entry.load()(model, pad([item], model), **{**entry.options, **options})
    return attribution


def oracle(quantity):
    source = next((s for s in quantity if s.startswith(("oracle", "hf_autograd_f64norm"))), next(iter(quantity)))
    return np.array(quantity[source])


def assert_relative(actual, expected, tolerance):
    error = np.abs(np.asarray(actual) - expected).max() / np.abs(expected).max()
    assert error < tolerance, f"relative error {error:.2e}"


# transformers computes RMSNorm in float32 whatever the dtype of the model, so Llama as shipped is a float32 computation.
PRECISIONS = {"gpt2": [("as shipped", 1e-9)], "bert": [("as shipped", 1e-9)]}
PRECISIONS["llama"] = [("as shipped", 3e-6), ("norms in float64", 1e-9)]


def precise_cases():
    for case in cases():
        for precision, tolerance in PRECISIONS[case.values[0]]:
            yield pytest.param(*case.values, precision, tolerance, id=f"{case.id}-{precision}")


@pytest.mark.parametrize(("name", "case", "scalar", "precision", "tolerance"), list(precise_cases()))
@pytest.mark.parametrize("method", ["lrp", "attnlrp"])
def test_decompositions(name, case, scalar, method, precision, tolerance):
    model = load(name)
    with lift_float32_norms(model, precision == "norms in float64"):
        blocks = [BLOCKS[name].format(i) for i in range(model.config.num_hidden_layers)]
        result = explain(model, case, scalar, method, at=["input", "embedding", *blocks])
    golden = case["explained"][scalar][method]
    assert_relative(result.value, oracle(case["explained"][scalar]["scalar"]), tolerance)
    assert_relative(result.relevance, oracle(golden["layer0_input"]), tolerance)
    assert_relative(result.layers["embedding"].sum(-1), oracle(golden["token_embeddings"]), tolerance)
    per_layer = [result.relevance, *(result.layers[b].sum(-1) for b in blocks)]
    assert_relative(per_layer[:-1], oracle(golden["per_layer"]), tolerance)
    assert_relative(per_layer[-1], oracle(golden["last_block_output"]), tolerance)


@pytest.mark.parametrize(("name", "case", "scalar"), list(cases()))
@pytest.mark.parametrize(
    ("method", "options", "key"),
    [
        ("gradient", {"norm": "l1"}, "l1"),
        ("gradient", {"norm": "l2"}, "l2_squared"),
        ("gradient-x-input", {}, "gradient_x_input"),
    ],
)
@pytest.mark.parametrize(
    ("at", "place"),
    [("input", "layer0_input"), pytest.param("embedding", "token_embeddings", marks=pytest.mark.slow)],
)
def test_gradients(name, case, scalar, method, options, key, at, place):
    model = load(name)
    result = explain(model, case, scalar, method, at=[at], **options)
    expected = oracle(case["explained"][scalar]["gradient"][place][key])
    assert_relative(result.relevance, expected, 5e-6 if name == "llama" else 1e-9)
