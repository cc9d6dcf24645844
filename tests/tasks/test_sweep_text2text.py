"""Every encoder-decoder family of the installed transformers: values untouched, relevance of source and target accounted for.

Under LRP every operation passes on what it receives, except where a constant is added: a bias (set to zero here), a position
embedding. So the relevance of both word embeddings, plus what those constants take, is the value.
"""

import numpy as np
import pytest
import tiny
import torch
from support import families
from torch import nn
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lrpx.check import Accounting
from lrpx.errors import UnsupportedModelError
from lrpx.models.heads import TEXT2TEXT
from lrpx.models.refused import why_refused
from lrpx.models.signature import task_of
from lrpx.models.stacks import stacks_of
from lrpx.passes.attribution import attributions, run
from lrpx.propagation.propagate import propagate
from lrpx.text.batching import Item, pad
from lrpx.text.grouping import allowed_waste

TOLERANCE = 2e-6
TEXT = [f for f in tiny.PAIRS if f.startswith("text2text:")]
# They read sound through an encoder whose output stands in the text of a causal model, and have no decoder of their own.
WITHOUT_DECODER = """
audioflamingo3 glmasr granite_speech granite_speech_plus moss_transcribe_diarize musicflamingo nemo_speechlm omniasr qwen2_audio
qwen3_asr vibevoice_asr voxtral voxtral_realtime
""".split()
GLOBAL = "text2text:pegasus_x"  # its learned global tokens take a share, as constants that are no summands


AT = {"text2text:fsmt": "embedding"}  # its hidden states are [tokens, batch, width]


def type_of(family):
    return family.split(":")[1]


REFUSES = [f for f in TEXT if why_refused(type_of(f), language_model=True) is not None]
EXPLAINED = [f for f in TEXT if f not in REFUSES and type_of(f) not in WITHOUT_DECODER]

QUICK = ("text2text:bart", "text2text:t5")


def items_of(model):
    ids = tiny.inputs(model, n_tokens=14)["input_ids"][0].tolist()
    return [
        Item(tuple(ids), 13, 11, 13, source=9),
        Item((*ids[:4], *ids[9:12]), 6, 11, 13, source=4),
        Item((*ids[2:9], ids[9]), 7, 20, None, source=7),
    ]


@families(EXPLAINED, QUICK)
def test_forward_is_bit_identical_and_relevance_adds_up(family):
    model = tiny.build(family, zero_biases=True)
    assert task_of(model) == TEXT2TEXT
    batch = pad(items_of(model)[:1], model)
    with torch.no_grad():
        plain = model(**batch.inputs, use_cache=False).logits
    for rule_set in ("lrp", "attnlrp"):
        with propagate(model, rule_set), torch.enable_grad():
            assert torch.equal(model(**batch.inputs, use_cache=False).logits, plain)
    result = run(model, batch, "lrp", ["embedding"], mode=Accounting)
    size = np.abs(result.products).sum()
    near = TOLERANCE if model.dtype == torch.float64 else 20 * TOLERANCE
    missing = result.values[0] - result.products.sum() - result.mode.absorbed
    assert (abs(missing) > 0.01 * size) if family == GLOBAL else (abs(missing) < near * size)
    plain = run(model, batch, {}, ["embedding"])
    assert abs(plain.values[0] - plain.products.sum()) > 50 * TOLERANCE * np.abs(plain.products).sum()  # it can fail
    assert np.abs(result.products[0, :9]).sum() > 0.01 * size  # the source
    assert np.abs(result.products[0, 9:]).sum() > 0.01 * size  # the target


@families(EXPLAINED, QUICK)
def test_batch_is_single_and_a_contrast_changes_the_sign(family):
    model = tiny.build(family)
    items = items_of(model)
    if not allowed_waste(model, TEXT2TEXT):  # never padded
        items = items[:1]
    near = 1e-9 if model.dtype == torch.float64 else 1e-4
    if "t5" in family or "switch" in family:  # their softmax is in float32: its last digit is the processor's
        near = max(near, 5e-5)
    place = [AT.get(family, "input")]
    for rules in ("lrp", "attnlrp"):
        batch = pad(items, model)
        together = attributions(run(model, batch, rules, place), batch, torch.mul, decomposes=True)
        for item, found in zip(items, together, strict=True):
            one = pad([item], model)
            [alone] = attributions(run(model, one, rules, place), one, torch.mul, decomposes=True)
            size = np.abs(alone.relevance).max()
            np.testing.assert_allclose(found.relevance, alone.relevance, rtol=0, atol=max(near * size, 1e-12))
        reverse = pad([Item((*items[0].token_ids,), 13, 13, 11, source=9)], model)
        swapped = run(model, reverse, rules, place).products[0]
        np.testing.assert_allclose(swapped, -together[0].relevance, rtol=0, atol=near * np.abs(swapped).max())


@families(EXPLAINED, QUICK)
def test_fused_and_explicit_attention_agree(family):
    try:
        models = [tiny.build(family, attn_implementation=kind) for kind in ("sdpa", "eager")]
    except (ValueError, ImportError):
        pytest.skip("has one attention implementation only")
    batches = [pad(items_of(model)[:1], model) for model in models]
    with torch.no_grad():
        plain = [model(**batch.inputs, use_cache=False).logits for model, batch in zip(models, batches, strict=True)]
    if not torch.allclose(*plain, rtol=0, atol=1e-4 * float(plain[0].abs().max())):
        pytest.skip("this transformers computes other logits under sdpa than under eager")
    for rules in ("lrp", "attnlrp"):
        fused, explicit = (run(m, b, rules, ["embedding"]).products for m, b in zip(models, batches, strict=True))
        near = 5e-5 if models[0].dtype == torch.float64 else 2e-4
        np.testing.assert_allclose(fused, explicit, rtol=0, atol=near * np.abs(explicit).max())


class Constant(nn.Module):
    """A module whose result is a constant."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, *args):
        return self.base(*args).detach()


@pytest.mark.parametrize("family", ["text2text:umt5", "text2text:mt5", "text2text:t5gemma"])
def test_the_gate_branch_gets_exactly_0(family):
    """Under LRP a gate is a constant: making it one by hand changes nothing, bit for bit."""
    model = tiny.build(family)
    batch = pad(items_of(model)[:1], model)
    found, other = (run(model, batch, rules, ["embedding"]).products for rules in ("lrp", "attnlrp"))
    gated = [m for m in model.modules() if hasattr(m, "wi_0") or hasattr(m, "gate_proj")]
    assert len(gated) == 4
    for mlp in gated:
        name = "act" if hasattr(mlp, "act") else "act_fn"
        setattr(mlp, name, Constant(getattr(mlp, name)).eval())
    assert np.array_equal(run(model, batch, "lrp", ["embedding"]).products, found)
    assert not np.allclose(run(model, batch, "attnlrp", ["embedding"]).products, other)


@families(EXPLAINED, QUICK)
def test_what_attention_weights_are_made_of_gets_exactly_0(family):
    """Under LRP, in both stacks and between them: making queries and keys constants by hand changes nothing, bit for bit."""
    model = tiny.build(family, attn_implementation="eager")
    batch = pad(items_of(model)[:1], model)
    before = [relevance_alone(model, batch, rules) for rules in ("lrp", "attnlrp")]
    names = "q_proj k_proj q k query key query_global key_global query_key".split()
    projections = [m for n, m in model.named_modules() if n.rpartition(".")[2] in names and isinstance(m, nn.Linear)]
    assert len(projections) >= 8
    for module in projections:
        module.register_forward_hook(lambda _, __, output: output.detach())
    after = [relevance_alone(model, batch, rules) for rules in ("lrp", "attnlrp")]
    assert torch.equal(before[0], after[0])
    assert not torch.allclose(before[1], after[1], rtol=1e-3, atol=1e-3 * float(after[1].abs().max()))


def relevance_alone(model, batch, rules):
    """Of both embeddings, by ``propagate`` alone."""
    leaves = []

    def cut(_, __, output):
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()

    tables = dict.fromkeys(stack.embedding for stack in stacks_of(model))
    hooks = [table.register_forward_hook(cut) for table in tables]
    with propagate(model, rules, unknown="ignore"):
        logits = model(**batch.inputs, use_cache=False).logits[0, -1]
    for hook in hooks:
        hook.remove()
    gradients = torch.autograd.grad(logits[11] - logits[13], leaves)
    return torch.cat([(leaf * g).sum(-1)[0] for leaf, g in zip(leaves, gradients, strict=True)]).detach()


@pytest.mark.parametrize("family", [f for f in TEXT if type_of(f) in WITHOUT_DECODER])
def test_without_a_decoder(family):
    assert not getattr(CONFIG_MAPPING[type_of(family)], "is_encoder_decoder", False)


@pytest.mark.parametrize("family", REFUSES)
def test_refuses_by_name(family):
    model = tiny.build(family)
    with pytest.raises(UnsupportedModelError, match=type(model).__name__):
        run(model, pad(items_of(model)[:1], model), "lrp")


def test_every_family_is_in_one_list():
    assert sorted([*EXPLAINED, *REFUSES, *(f for f in TEXT if type_of(f) in WITHOUT_DECODER)]) == sorted(TEXT)
