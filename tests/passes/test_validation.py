"""What is refused before a pass, by name and with the next step."""

import pytest
import tiny
import torch
from torch import nn

import lrpx
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.passes.attribution import run
from lrpx.passes.validation import check_model
from lrpx.text.batching import Item, pad


def batch_for(model):
    return pad([Item((9, 21, 33), 2, 11, 13)], model)


@pytest.mark.parametrize("rules", ["attnlrp", {}], ids=["attnlrp", "no rules"])
def test_a_submodule_in_training_mode(rules):
    """LoRA put on a model in eval mode keeps its dropout: two calls would differ."""
    model = tiny.build("causal:llama")
    model.model.layers[1].mlp.down_proj = nn.Sequential(model.model.layers[1].mlp.down_proj, nn.Dropout(0.5))
    assert not model.training
    with pytest.raises(
        UnsupportedModelError, match=r"^model\.layers\.1\.mlp\.down_proj, .*training mode.*model\.eval\(\)"
    ):
        run(model, batch_for(model), rules)
    model.eval()
    one, other = (run(model, batch_for(model), rules).products for _ in range(2))
    assert (one == other).all()


def test_a_traced_submodule():
    model = tiny.build("causal:gpt2")
    with torch.no_grad():
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(model.transformer.h[0].mlp, torch.zeros(1, 3, 32, dtype=torch.float64))
    model.transformer.h[0].mlp = traced
    with pytest.raises(UnsupportedModelError, match=r"^transformer\.h\.0\.mlp is TorchScript"):
        run(model, batch_for(model), "attnlrp")


def test_block_sparse_attention():
    """A short text would switch the model to full attention, for all texts that come after."""
    config = tiny.configuration("masked:big_bird")
    config.attention_type = "block_sparse"
    from transformers import BigBirdForMaskedLM

    model = BigBirdForMaskedLM(config).eval()
    before = [type(m) for m in model.modules()]
    for rules in ("lrp", {}):
        with pytest.raises(UnsupportedModelError, match=r'block-sparse.*attention_type="original_full"'):
            check_model(model, rules)
    with pytest.raises(UnsupportedModelError, match="block-sparse"):
        lrpx.explain(model, None, [9, 3, 33], position=1, target=11)
    assert [type(m) for m in model.modules()] == before
    full = tiny.build("masked:big_bird")
    assert lrpx.explain(full, None, [9, 3, 33], position=1, target=11).relevance.any()  # also the first time


def test_a_rule_set_without_a_rule_for_norms():
    with pytest.raises(InputError, match=r"^the rule set has no rule for normaliser.*LlamaForCausalLM"):
        run(tiny.build("causal:llama"), batch_for(tiny.build("causal:llama")), {"linear": lrpx.rules.gamma(0.25)})
