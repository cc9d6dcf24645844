"""Which texts share a batch, where the longest text of a batch changes what the others get."""

from functools import partial

import numpy as np
import pytest
import tiny
import torch
from transformers import Phi3Config, Phi3ForCausalLM, Qwen2Config, Qwen2ForCausalLM

import lrpx
from lrpx.methods.lrp import explain
from lrpx.models.positions import longest_alike
from lrpx.text.batching import Item, pad
from lrpx.text.grouping import buckets

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}


def model_with(kind):
    torch.manual_seed(0)
    if kind == "longrope":
        factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
        rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 10, **factors}
        config = Phi3Config(
            **SIZES, max_position_embeddings=40, original_max_position_embeddings=10, rope_parameters=rope
        )
        return Phi3ForCausalLM(config).double().eval()
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    return Qwen2ForCausalLM(Qwen2Config(**SIZES, max_position_embeddings=10, rope_parameters=rope)).double().eval()


def items(*lengths):
    return [Item(tuple(8 + (7 * i * n) % 80 for i in range(1, n + 1)), n - 1, 11, 13) for n in lengths]


@pytest.fixture(autouse=True)
def seed():
    with torch.random.fork_rng(devices=[]):
        yield


def test_a_text_gets_its_own_rotations_beside_a_long_one():
    model = model_with("longrope")
    short, long = items(9, 14)
    alone = explain(model, pad([short], model))[0].relevance
    beside = explain(model, pad([short, long], model))[0].relevance
    assert not np.allclose(alone, beside, rtol=1e-3)  # what transformers does, whoever makes the batch

    found = lrpx.explain(model, None, [list(short.token_ids), list(long.token_ids)], target=11, contrast=13)
    np.testing.assert_allclose(found[0].relevance, alone, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(
        found[1].relevance, explain(model, pad([long], model))[0].relevance, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("longrope", {4: 10, 10: 10, 11: None, 30: None}), ("dynamic", {4: 10, 10: 10, 11: 11, 30: 30})],
)
def test_up_to_which_length_padding_changes_nothing(kind, expected):
    model = model_with(kind)
    assert {n: longest_alike(model, n) for n in expected} == expected
    lengths = [30, 30, 12, 12, 11, 10, 10, 9]
    groups = buckets(lengths, max_tokens=1000, waste=0.9, alike=partial(longest_alike, model))
    found = [[lengths[i] for i in group] for group in groups]
    assert found == (
        [[30, 30, 12, 12, 11], [10, 10, 9]] if kind == "longrope" else [[30, 30], [12, 12], [11], [10, 10, 9]]
    )


def test_other_models_have_no_such_limit():
    assert longest_alike(tiny.build("causal:llama"), 5) is None
    assert longest_alike(tiny.build("causal:gpt2"), 5) is None
