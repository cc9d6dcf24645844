"""What PyTorch is set to for float32 matrix products, however it was set."""

import subprocess
import sys

import pytest
import torch

from lrpx.models.precision import is_exact, matmul_precision


@pytest.fixture(autouse=True)
def restored():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_set_in_one_word(setting):
    torch.set_float32_matmul_precision(setting)
    assert is_exact() == (setting == "highest")
    assert matmul_precision().split()[0] == setting


SET_FOR_ALL = """
import torch
from lrpx.models.precision import is_exact
for value, exact in (("tf32", False), ("ieee", True), ("tf32", False)):
    torch.backends.fp32_precision = value
    assert is_exact() == exact, value
"""
SET_ONE_BY_ONE = """
import torch
from lrpx.models.precision import is_exact, matmul_precision
torch.set_float32_matmul_precision({first!r})
before = matmul_precision()
torch.backends.{backend}.matmul.fp32_precision = {value!r}
assert (matmul_precision() == before) == (torch.backends.{backend}.matmul.fp32_precision in before.split("{backend}=")[1].split())
assert is_exact() == {exact}
"""
new = pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="from torch 2.9 on")


def in_a_process(code):
    """There is no way back from some of these settings."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@new
@pytest.mark.slow
def test_set_for_all_backends():
    in_a_process(SET_FOR_ALL)


@new
@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "backend", "value", "exact"),
    [
        ("highest", "cuda", "tf32", False),
        ("highest", "mkldnn", "bf16", True),
        ("high", "cuda", "ieee", True),
        ("highest", "cuda", "none", True),
    ],
)
def test_set_for_backends_one_by_one(first, backend, value, exact):
    """PyTorch then refuses to say it in one word."""
    in_a_process(SET_ONE_BY_ONE.format(first=first, backend=backend, value=value, exact=exact))
