"""``lrpx check``: passes on sound models, fails on broken ones, restores what it changed."""

import pytest
import tiny
import torch
from transformers import BertConfig, BertModel

from lrpx.check import biases_zeroed, check

FAMILIES = ["causal:gpt2", "causal:llama", "causal:gpt_oss", "masked:bert", "causal:hrm_text"]


@pytest.mark.parametrize("family", [f for f in FAMILIES if f in tiny.FAMILIES])
def test_sound_models_hold(family):
    model = tiny.build(family)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    report = check(model)
    assert report.holds, report.lines
    runs_once = family != "causal:hrm_text"  # its blocks run in cycles, so there is no one sum per block
    assert len(report.sums) == 1 + runs_once * model.config.num_hidden_layers
    assert report.hits["lrp"]["attention"] + report.hits["lrp"]["softmax"] > 0
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_the_one_in_gpt_oss_is_accounted_for():
    """Its ``(up + 1) * glu`` takes a share that is no token's; the check measures it."""
    report = check(tiny.build("causal:gpt_oss"))
    assert abs(report.absorbed) > 1e-3 * abs(report.value)
    assert report.sums["embedding"] + report.absorbed == pytest.approx(report.value, rel=1e-4)


def test_a_broken_model_does_not_hold():
    model = tiny.build("causal:llama")
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, y: torch.special.i0(y))
    report = check(model)
    assert not report.holds
    assert "special_i0" in report.lines[-1][1]


def test_a_model_whose_forward_changes_is_reported():
    model = tiny.build("causal:llama")
    calls = []

    def drift(_, __, y):
        calls.append(1)
        return y + len(calls)

    model.lm_head.register_forward_hook(drift)
    report = check(model)
    assert not report.holds
    assert "largest difference" in report.lines[0][1]


def test_biases_are_restored_after_an_exception():
    model = tiny.build("causal:gpt2")
    bias = model.transformer.h[0].mlp.c_fc.bias
    before = bias.clone()

    def broken():
        with biases_zeroed(model) as count:
            assert count > 0
            assert not bias.any()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken()
    assert torch.equal(bias, before)


def test_what_adds_up_is_named_by_what_the_model_gives():
    def line(model):
        return " ".join(line for _, line in check(model).lines)

    assert "adds up to the logit" in line(tiny.build("causal:gpt2"))
    encoder = BertModel(BertConfig(vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2))
    assert "adds up to a number of its mean embedding" in line(encoder.eval())
