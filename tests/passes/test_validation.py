"""What is refused before a pass, by name and with the next step."""

import pytest
import tiny
import torch
from torch import nn
from transformers import LlamaForCausalLM

import lrpx
from lrpx.check import check
from lrpx.errors import InputError, LrpxWarning, UnsupportedModelError
from lrpx.methods import METHODS
from lrpx.methods.generated import is_one_pass
from lrpx.passes.attribution import run
from lrpx.passes.validation import check_model
from lrpx.propagation.rulesets import LRP
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


# A model whose own forward fails


class ReadsImagesOnly(LlamaForCausalLM):
    """Fails on text alone, as Idefics does."""

    def forward(self, input_ids=None, pixel_values=None, **inputs):
        if pixel_values is None:
            raise ValueError("Exactly one image\nhas to be given.")
        return super().forward(input_ids, **inputs)


SAID = (
    r"^ReadsImagesOnly cannot read this input, also without lrpx: its own forward raises ValueError: Exactly one image$"
)


@pytest.fixture
def fails():
    model = tiny.build("causal:llama")
    model.__class__ = ReadsImagesOnly
    return model


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("asked", [{}, {"target": [[3, 4]]}, {"objective": "logprob", "target": 3}], ids=str)
def test_a_model_that_cannot_read_the_input_is_named_with_what_it_says(fails, method, asked):
    if asked and not is_one_pass(METHODS[method]):
        pytest.skip("explains one logit, or none")
    with pytest.raises(UnsupportedModelError, match=SAID) as raised:
        lrpx.explain(fails, None, [9, 21, 33], method=method, **asked)
    assert isinstance(raised.value.__cause__, ValueError)


def test_so_it_is_by_generate_and_by_check(fails):
    explainer = lrpx.Explainer(fails)
    with pytest.raises(UnsupportedModelError, match=SAID):
        explainer.generate([9, 21, 33], max_new_tokens=2)
    with pytest.raises(UnsupportedModelError, match=SAID):
        explainer.generate([9, 21, 33], continuation=[4, 5])
    report = check(fails)
    assert not report.holds
    assert any("cannot read this input" in line for _, line in report.lines)


def test_what_fails_under_the_rules_only_is_raised_as_it_is():
    """Not blamed on the model: its own forward runs."""

    def broken(call):
        raise ZeroDivisionError("of the rule")

    with pytest.raises(ZeroDivisionError, match="of the rule"):
        lrpx.explain(tiny.build("causal:llama"), None, [9, 21, 33], method="lrp", rules={**LRP, "attention": broken})


def test_several_models_in_one_are_refused_by_their_parts():
    class Whole(LlamaForCausalLM):
        def get_input_embeddings(self):
            raise NotImplementedError

    model = tiny.build("causal:llama")
    model.__class__ = Whole
    with pytest.raises(UnsupportedModelError, match=r"consists of several models \(model\).*Explainer\(model\.model\)"):
        lrpx.explain(model, None, [3, 4, 5])


def test_embeddings_of_n_grams_are_told_of():
    """They get no relevance: which of the tokens of an n-gram it would belong to is not known."""
    if "causal:qwen4_exp_text" not in tiny.FAMILIES:
        pytest.skip("this transformers has no Qwen4")
    options = {"ple_layer_ids": [1], "heads_per_ngram": 2, "ngram_vocab_size_base": 50, "eos_token_id": 2}
    model = tiny.build("causal:qwen4_exp_text", overrides={**tiny.OVERRIDES["qwen4_exp_text"], **options})
    with pytest.warns(LrpxWarning, match="also reads n-grams of tokens by .*ngram_embedding"):
        e = lrpx.explain(model, None, [9, 10, 11, 12], target=20, method="lrp")
    assert any("a part of the residual" in note for note in e.notes)
    g = lrpx.Explainer(model).generate([9, 10, 11], continuation=[12, 13])
    assert "n-grams of tokens" in " ".join(g.notes)
    assert not tiny.build("causal:qwen4_exp_text").config.ple_layer_ids
