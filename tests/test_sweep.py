"""Every causal and masked model type of the installed transformers: values untouched, relevance accounted for to round-off.

Under LRP every operation passes on what it receives, except where a constant is added: a bias (set to zero here), a
position embedding, the 1 in ``(up + 1) * glu``. So the relevance at the word embeddings plus what those constants take
is the value.
"""

import pytest
import tiny
import torch
from support import COMMON, families

from lrpx.check import Accounting
from lrpx.errors import UnsupportedModelError
from lrpx.models.refused import REFUSED
from lrpx.passes.attribution import run
from lrpx.propagation.propagate import propagate
from lrpx.text.batching import Item, pad

TOLERANCE = 2e-6  # transformers computes many norms in float32, whatever the dtype of the model
# Where relevance is complete: RoCBERT mixes sound and shape of a character in behind the embedding, I-BERT's returns a tuple.
AT = dict.fromkeys(("causal:roc_bert", "masked:roc_bert", "causal:ibert", "masked:ibert"), "input")
ENCODER_DECODER = ("masked:bart", "masked:mbart", "masked:mvp")


def type_of(family):
    return family.split(":")[1]


MUSIC = ("causal:musicgen", "causal:musicgen_melody")
REFUSES = [
    f for f in tiny.FAMILIES if type_of(f) in REFUSED or f in MUSIC or f in ENCODER_DECODER or f in tiny.STATE_SPACE
]
EXPLAINED = [f for f in tiny.FAMILIES if f not in REFUSES]


def batch_of(family, model):
    ids = tiny.inputs(model, n_tokens=9)["input_ids"][0].tolist()
    return pad([Item(tuple(ids), 8 if family.startswith("causal") else 4, 11, 13)], model)


def total(result):
    hidden = next(iter(result.hidden.values()))
    return (hidden.state * hidden.gradient).double()


@families(EXPLAINED)
def test_forward_is_bit_identical_and_relevance_adds_up(family):
    model = tiny.build(family, zero_biases=True)
    batch = batch_of(family, model)
    with torch.no_grad():
        plain = model(**batch.inputs).logits
    for rules in ("lrp", "attnlrp"):
        with propagate(model, rules), torch.enable_grad():
            assert torch.equal(model(**batch.inputs).logits, plain)

    result = run(model, batch, "lrp", [AT.get(family, "embedding")], mode=Accounting)
    parts = total(result)
    missing = result.values[0] - float(parts.sum()) - result.mode.absorbed
    assert abs(missing) < TOLERANCE * float(parts.abs().sum())


@families([f for i, f in enumerate(EXPLAINED) if i % 7 == 0 or f in COMMON])
def test_the_account_would_not_balance_without_the_rules(family):
    """The check above is one that can fail: plain gradients miss by far."""
    model = tiny.build(family, zero_biases=True)
    result = run(model, batch_of(family, model), {}, [AT.get(family, "embedding")])
    parts = total(result)
    assert abs(result.values[0] - float(parts.sum())) > 50 * TOLERANCE * float(parts.abs().sum())


@families(EXPLAINED)
def test_fused_and_explicit_attention_agree(family):
    """Under ``sdpa`` three rules are composed into one; under ``eager`` each is applied by itself."""
    try:
        models = [tiny.build(family, attn_implementation=kind) for kind in ("sdpa", "eager")]
    except (ValueError, ImportError):
        pytest.skip("has one attention implementation only")
    with torch.no_grad():
        plain = [m(**batch_of(family, m).inputs).logits for m in models]
    if not torch.allclose(*plain, rtol=0, atol=1e-5 * float(plain[0].abs().max())):
        pytest.skip("this transformers computes other logits under sdpa than under eager")
    for rules in ("lrp", "attnlrp", "lrp-uniform-gate"):
        fused, explicit = (total(run(m, batch_of(family, m), rules, [AT.get(family, "embedding")])) for m in models)
        torch.testing.assert_close(fused, explicit, rtol=0, atol=2e-5 * float(explicit.abs().max()))


@families(REFUSES)
def test_refuses_by_name(family):
    model = tiny.build(family)
    with pytest.raises(UnsupportedModelError, match=type(model).__name__):
        run(model, batch_of(family, model), "lrp")
