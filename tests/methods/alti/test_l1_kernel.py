"""The Triton kernel gives what PyTorch gives in float64; on a GPU, or in Triton's interpreter without one."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="needs Triton")

CHECK = """
import torch
from lrpx.methods.alti.l1_kernel import l1_fused
from lrpx.methods.alti.contributions import l1_in_blocks

device = {device!r}
torch.manual_seed(0)
cases = [  # batch, sources, targets, heads, width, offset, causal
    (1, 5, 7, 3, 40, 0, False), (2, 6, 20, 25, 130, 0, True), (1, 4, 9, 5, 64, 3, True), (2, 4, 9, 5, 64, -3, False),
    (1, 33, 70, 2, 100, -2, True), (1, 3, 80, 64, 200, 5, True), (1, 2, 40, 70, 48, 0, False),
]
for batch, sources, targets, heads, width, offset, causal in cases:
    weights = torch.rand(batch, sources, targets, heads, device=device)
    values = torch.randn(heads, batch * sources, width, device=device).transpose(0, 1)
    values = values.reshape(batch, sources, heads, width)
    output, own = (torch.randn(batch, n, width, device=device) for n in (targets, sources))
    exact = [tensor.double() for tensor in (weights, values, output, own)]
    expected = torch.zeros(batch, sources, targets, dtype=torch.float64, device=device)
    found = torch.zeros(batch, targets, sources, device=device).transpose(1, 2)
    l1_in_blocks(*exact, expected, offset=offset, causal=causal)
    l1_fused(weights, values, output, own, found, offset=offset, causal=causal)
    later = torch.arange(targets, device=device) >= torch.arange(sources, device=device)[:, None] + offset
    seen = later if causal else torch.ones_like(later)
    torch.testing.assert_close(found[:, seen].double(), expected[:, seen], rtol=2e-6, atol=0)
    assert expected[:, seen].min() > 1
"""


@pytest.mark.slow
def test_agrees_with_pytorch_in_float64():
    """In a process of its own: the interpreter must be chosen before Triton is imported."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    environment = os.environ | ({} if device == "cuda" else {"TRITON_INTERPRET": "1"})
    subprocess.run([sys.executable, "-c", CHECK.format(device=device)], env=environment, check=True)
