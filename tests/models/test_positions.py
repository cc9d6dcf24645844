"""Which lengths a model reads, and that what a text gets does not depend on what was read before it."""

import numpy as np
import pytest
import support
import tiny
import torch
from transformers import FalconConfig, FalconForCausalLM, Qwen2Config, Qwen2ForCausalLM

import lrpx
from lrpx.models.positions import context_length, fresh_rotations, made_for

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
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
PLAIN = {"rope_type": "default", "rope_theta": 1e4}
IDS = [8 + (7 * i) % 80 for i in range(200)]


def qwen(rope, limit=16):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen2Config(**SIZES, max_position_embeddings=limit, rope_parameters=rope)
        return Qwen2ForCausalLM(config).double().eval()


def falcon():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        sizes = {k: v for k, v in SIZES.items() if k not in ("intermediate_size", "num_key_value_heads")}
        return FalconForCausalLM(FalconConfig(**sizes, alibi=True, max_position_embeddings=16)).double().eval()


@pytest.mark.parametrize(
    ("model", "reach"),
    [(qwen(YARN), 64), (qwen(LINEAR), 32), (qwen(DYNAMIC), 32), (qwen(PLAIN), 16), (falcon(), 16)],
    ids=["yarn", "linear", "dynamic", "default", "alibi"],
)
def test_texts_longer_than_the_configuration_says_are_explained_and_said(model, reach):
    assert context_length(model) is None
    assert made_for(model) == reach
    within, beyond = IDS[:reach], IDS[: reach + 1]
    pair = {"target": 11, "contrast": 13}  # without a contrast, a negative logit has a note of its own
    assert lrpx.explain(model, None, within, **pair).notes == ()
    with pytest.warns(UserWarning, match=f"{reach + 1} tokens, and .* was made for {reach}, by its configuration"):
        e = lrpx.explain(model, None, beyond, **pair)
    assert e.notes[0].startswith(f"the text has {reach + 1} tokens")
    with torch.no_grad(), fresh_rotations(model):
        logits = model(torch.tensor([beyond])).logits[0, -1]
    assert e.value == pytest.approx(float(logits[11] - logits[13]), rel=1e-9)


@support.families(tiny.FAMILIES)
def test_the_limit_holds_where_the_model_cannot_read_more(family):
    """One token more than the limit is an error of the model's own; where there is no limit, many more are read."""
    model = tiny.build(family, dtype=torch.float32)
    limit = context_length(model)
    if limit is None:
        with torch.no_grad():
            logits = tiny_logits(model, 150)
        assert logits.shape[1] == 150
    elif family not in ("masked:tapas", "causal:prophetnet", "masked:ibert"):  # clamp positions, or read fewer
        with pytest.raises((IndexError, RuntimeError, ValueError)), torch.no_grad():
            tiny_logits(model, limit + 1)


def tiny_logits(model, length):
    output = model(input_ids=torch.tensor([IDS[:length]]))
    return output.logits if hasattr(output, "logits") else output[0]


def test_a_text_gets_the_same_whatever_was_read_before():
    """Transformers keeps the rotations of the longest text so far."""
    fresh, used = qwen(DYNAMIC), qwen(DYNAMIC)
    with torch.no_grad():
        used(torch.tensor([IDS[:200]]))
    before = support.fingerprint(used)
    with pytest.warns(UserWarning, match="was made for 32"):
        expected = lrpx.explain(fresh, None, IDS[:40], target=11)
    with pytest.warns(UserWarning, match="was made for 32"):
        again = lrpx.explain(used, None, IDS[:40], target=11)
    with pytest.warns(UserWarning, match=r"text\[1\]: the text has 90 tokens"):
        together = lrpx.explain(fresh, None, [IDS[:32], IDS[:90], IDS[:10]], target=11)
    np.testing.assert_allclose(again.relevance, expected.relevance, rtol=1e-9, atol=1e-12)
    alone = lrpx.explain(qwen(DYNAMIC), None, IDS[:10], target=11)
    np.testing.assert_allclose(together[2].relevance, alone.relevance, rtol=1e-9, atol=1e-12)
    assert support.fingerprint(used) == before
    with torch.no_grad():  # the check above can fail; of which length, that depends on the version of transformers
        pairs = [
            (used(torch.tensor([IDS[:n]])).logits, qwen(DYNAMIC)(torch.tensor([IDS[:n]])).logits) for n in (40, 10)
        ]
    assert not all(torch.allclose(a, b) for a, b in pairs)


@pytest.mark.filterwarnings("ignore:.*(was made for 32|depends on how long the text is):UserWarning")
@pytest.mark.parametrize("options", [{"continuation": IDS[30:40]}, {"max_new_tokens": 2}], ids=["given", "generated"])
def test_generated_text_gets_the_same_whatever_was_read_before(options):
    fresh, used = qwen(DYNAMIC), qwen(DYNAMIC)
    with torch.no_grad():
        used(torch.tensor([IDS[:200]]))
    before = support.fingerprint(used)
    expected, found = (lrpx.Explainer(model).generate(IDS[:30], **options) for model in (fresh, used))
    assert found.token_ids == expected.token_ids
    np.testing.assert_allclose(found.relevance, expected.relevance, rtol=1e-9, atol=1e-12)
    assert support.fingerprint(used) == before


def test_learned_positions_are_still_a_limit():
    with pytest.raises(lrpx.InputError, match="65 tokens, 1 more than the 64 that GPT2LMHeadModel can read"):
        lrpx.explain(tiny.build("causal:gpt2"), None, IDS[:65])
