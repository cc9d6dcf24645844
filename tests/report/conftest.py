"""What tests of this folder share: a benchmark with two models in the place of the paper's."""

import pytest
import torch
from evaluation_tools import benchmark, bert, gpt2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A benchmark and two models."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    root = tmp_path_factory.mktemp("reproduce")
    benchmark(root, 12)
    for name, (model, tokenizer) in (("gpt2", gpt2(torch.float32)), ("bert", bert(torch.float32))):
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root
