"""What several tests share: where the reference material is, and small helpers."""

import contextlib
import os
from pathlib import Path

import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared"
GOLDEN = SHARED / "golden" / "dev"
CI = os.environ.get("CI") == "true"


def needs_shared(path):
    """Skip, with a reason, where the reference material is absent."""
    return pytest.mark.skipif(
        not path.exists(), reason=f"needs ../{path.relative_to(SHARED.parent)}, which is not here"
    )


@contextlib.contextmanager
def lift_float32_norms(model, lift=True):
    """Compute the RMSNorms of a float64 ``model`` in float64, where transformers casts to float32."""

    def forward(norm):
        def call(hidden):
            variance = hidden.pow(2).mean(-1, keepdim=True)
            return norm.weight * (hidden * torch.rsqrt(variance + norm.variance_epsilon))

        return call

    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")] if lift else []
    for norm in norms:
        norm.forward = forward(norm)
    try:
        yield
    finally:
        for norm in norms:
            del norm.forward
