"""Every family that reads images and text: values untouched, relevance of text and patches accounted for to round-off.

Under LRP every operation passes on what it receives, except where a constant is added. So the relevance of what enters the first
block, image features included, plus what those constants take, is the value.
"""

import pytest
import tiny_image_text
import torch

from lrpx.check import Accounting
from lrpx.models.signature import ModelSignature
from lrpx.passes.attribution import run
from lrpx.propagation.propagate import propagate
from lrpx.tasks.image_text import encode_with_images
from lrpx.text.batching import pad
from lrpx.text.items import item_of
from lrpx.text.tokenization import encoder

TOLERANCE = 2e-6  # transformers computes many norms in float32, whatever the dtype of the model
COMMON = ("llava", "llava_next", "qwen2_vl", "qwen3_vl", "paligemma", "smolvlm")
# Mllama, whose inputs are of another form, is refused in ``test_image_text.py``.
EXPLAINED = [name for name in tiny_image_text.NAMES if name not in tiny_image_text.NOT_BUILT]
MIXED = ("aria", "idefics2")  # whose image tokens have no places


def families(names):
    return pytest.mark.parametrize(
        "name", [name if name in COMMON else pytest.param(name, marks=pytest.mark.slow) for name in names]
    )


def batch_of(model, given):
    encoded = encode_with_images(model, None, given, None, encoder(None))
    return encoded, pad([item_of(ModelSignature.of(model), None, encoded, target=11, contrast=13)], model)


@families(EXPLAINED)
def test_forward_is_bit_identical_and_relevance_adds_up(name):
    model = tiny_image_text.build(name, zero_biases=True)
    encoded, batch = batch_of(model, tiny_image_text.inputs(model))
    with torch.no_grad():
        plain = model(**batch.inputs).logits
    for rule_set in ("lrp", "attnlrp"):
        with propagate(model, rule_set), torch.enable_grad():
            assert torch.equal(model(**batch.inputs).logits, plain)

    result = run(model, batch, "lrp", mode=Accounting)
    assert result.values[0] == pytest.approx(float(plain[0, -1, 11] - plain[0, -1, 13]), rel=1e-9, abs=1e-12)
    hidden = result.hidden["input"]
    size = float((hidden.state * hidden.gradient).abs().sum())
    missing = result.values[0] - float(result.products.sum()) - result.mode.absorbed
    assert abs(missing) < TOLERANCE * size

    plain_gradients = run(model, batch, {})  # the check above is one that can fail
    assert abs(plain_gradients.values[0] - float(plain_gradients.products.sum())) > 50 * TOLERANCE * size

    image = tiny_image_text.image_token(model)
    of_images = [n for n, i in enumerate(encoded.token_ids) if i == image]
    assert result.products[0, of_images].any()
    places = [token for patches in encoded.images for token in patches.tokens]
    assert set(places) <= set(of_images)
    assert bool(places) == (name not in MIXED)


@families(EXPLAINED)
def test_another_image_gives_another_map(name):
    model = tiny_image_text.build(name)
    first, second = (run(model, batch_of(model, tiny_image_text.inputs(model, seed))[1], "attnlrp") for seed in (0, 1))
    assert not torch.allclose(*map(torch.from_numpy, (first.products, second.products)), rtol=1e-6, atol=1e-9)
