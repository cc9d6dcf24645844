"""Pixels of a vision transformer against LXT and zennit; ``tests/golden/README.md`` says how the numbers were made."""

import json

import numpy as np
import pytest
import tiny_images
import torch
import transformers
from packaging.version import Version
from support import GOLDEN

import lrpx

DATA = json.loads((GOLDEN / "vit" / "cases.json").read_text(encoding="utf-8"))


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.24"),
    reason="this transformers orders the weights of ViT, and so draws others",
)
@pytest.mark.parametrize(
    "case", DATA["cases"], ids=lambda case: f"conv {case['conv_gamma']}, linear {case['linear_gamma']}"
)
def test_pixels_under_cp_lrp_with_gamma(case):
    model = tiny_images.build("image:vit")
    pixels = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(DATA["seed"])).double()
    conv, linear = case["conv_gamma"], case["linear_gamma"]
    rules = None if conv is None else f"conv:gamma={conv}+gamma={linear}"
    e = lrpx.explain(model, None, pixels, target=DATA["target"], method="lrp", at="pixels", rules=rules)
    assert e.value == pytest.approx(case["value"], rel=1e-12)
    expected = np.array(case["relevance"])
    # zennit adds 1e-6 to denominators, so its numbers are exact to about that.
    np.testing.assert_allclose(e.layers["pixels"].sum(0), expected, rtol=0, atol=3e-5 * np.abs(expected).max())


def test_the_comparison_can_fail():
    first, second = (np.array(case["relevance"]) for case in DATA["cases"][:2])
    assert np.abs(first - second).max() > 0.1 * np.abs(first).max()
