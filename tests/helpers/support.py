"""What several tests share: where the reference material is, and small helpers."""

import contextlib
import os
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedConfig

from lrpx.methods import METHODS
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution

SHARED = Path(__file__).resolve().parents[3] / "shared"
GOLDEN = Path(__file__).resolve().parents[1] / "golden"
CI = os.environ.get("CI") == "true"


COMMON = (
    "causal:gemma2",
    "causal:gpt2",
    "causal:gpt_neox",
    "causal:llama",
    "causal:mamba",
    "causal:mixtral",
    "causal:qwen3",
    "masked:bert",
    "masked:modernbert",
)
"""One family of each make: what ``pytest -m "not slow"`` runs of a sweep."""
CORE = ("causal:gpt2", "causal:llama", "masked:bert")
"""What it runs where a test does much for each family."""


def slow_but(values, *quick):
    """Values to parametrise over, tuples for several names at once; all but ``quick`` are marked as slow."""
    each = [value if isinstance(value, tuple) else (value,) for value in values]
    marks = [() if value in quick else pytest.mark.slow for value in values]
    return [pytest.param(*value, marks=mark) for value, mark in zip(each, marks, strict=True)]


def families(names, quick=COMMON):
    """The test once per family; all but ``quick`` ones are marked as slow."""
    return pytest.mark.parametrize("family", slow_but(names, *quick))


def needs_shared(path):
    """Skip, with a reason, where the reference material is absent."""
    return pytest.mark.skipif(
        not path.exists(), reason=f"needs ../{path.relative_to(SHARED.parent)}, which is not here"
    )


def few_passes(method):
    """Options with which a method of many passes makes only a few, where a test is about something else."""
    few = {"steps": 2, "samples": 4 if method == "smoothgrad" else 16}  # a fit needs more than there are tokens
    return {name: few[name] for name in METHODS[method].options if name in few}


_runners = {}  # they hold their models, so an id stays a model's


def runner_of(model, **options):
    """The runner of a model, the same one each time, told to run passes as ``options`` say."""
    runner = _runners.setdefault(id(model), PassRunner(model))
    runner.execution = Execution(**options)
    return runner


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


def on_states(change):
    """A forward hook that changes a block's hidden states, which some versions of transformers give in a tuple."""

    def hook(_, __, output):
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    return hook


class Changed(torch.nn.Module):
    """A module whose output is changed, by code of its own rather than by a hook."""

    def __init__(self, base, change):
        super().__init__()
        self.base, self.change = base, change

    def forward(self, *args, **kwargs):
        return self.change(self.base(*args, **kwargs))


def change_mlp(model, change):
    """Let the first block's MLP be a ``Changed``. ``model`` is a GPT-2 or a Llama."""
    block = model.transformer.h[0] if hasattr(model, "transformer") else model.model.layers[0]
    block.mlp = Changed(block.mlp, change).eval()
    return block


def fingerprint(model):
    """All that explaining must leave as it was, as a dictionary to compare with ``==``.

    Of every module: its class and ``forward``, the instance attributes, hooks and training flag; of every parameter and
    buffer the values, ``requires_grad``, ``grad`` and attributes; the configuration; and PyTorch's own global state.
    """
    found = {
        "torch": (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            torch.get_default_dtype(),
            torch._C._len_torch_function_stack(),
            _bytes(torch.get_rng_state()),
        )
    }
    for path, module in model.named_modules():
        found[path] = (type(module), type(module).forward, {k: _plain(v) for k, v in vars(module).items()})
    return found


def _plain(value):
    if isinstance(value, torch.Tensor):
        attributes = {name: id(v) for name, v in getattr(value, "__dict__", {}).items()}
        return id(value), value.dtype, value.requires_grad, _bytes(value), _plain(value.grad), attributes
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(v) for v in value]
    if isinstance(value, PreTrainedConfig):
        return {k: _plain(v) for k, v in vars(value).items()}
    return value if isinstance(value, str | int | float | None) else (type(value), id(value))


def _bytes(tensor):
    return bytes(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy())
