"""What tests of traced and compiled passes share. Without TorchInductor, pieces run as they were traced, in float64."""

import tiny
import torch
import torch._dynamo.config
from transformers import GPT2Config, GPT2LMHeadModel

from lrpx.passes.compiled import partition as pieces
from lrpx.text.batching import Item, pad

# Length, position, target, contrast.
ASKED = [(9, 4, 11, 13), (6, 2, 11, None)]
OTHERS = [[(12, 11, 20, 13), (9, 0, 11, 21), (8, 7, 30, None)], [(4, 1, 12, 13), (3, 2, 20, 21)]]


def quick():
    """PyTorch remembers what operations return; for models this small that takes longer than to find it out again."""
    return torch._dynamo.config.patch(fake_tensor_cache_enabled=False)


def unfused(monkeypatch):
    """Let pieces be what was traced; returns the list of those that are made from now on."""
    asked = []

    def same(graph, examples):
        asked.append(graph)
        return graph

    monkeypatch.setattr(pieces, "_compile", same)
    return asked


def batch_for(model, asked=ASKED, **options):
    rows = [tiny.inputs(model, n_tokens=n, seed=n + i)["input_ids"][0].tolist() for i, (n, *_) in enumerate(asked)]
    return pad([Item(tuple(row), *rest) for row, (_, *rest) in zip(rows, asked, strict=True)], model, **options)


def gpt2(layers=1):
    """With as few operations as there can be, or many blocks."""
    sizes = {"n_positions": 64, "n_embd": 32, "n_layer": layers, "n_head": 4, "n_inner": 48}
    config = GPT2Config(vocab_size=tiny.VOCABULARY, bos_token_id=None, eos_token_id=None, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).double().eval()
        for weight in model.parameters():
            weight.data += 0.3 * torch.randn_like(weight)
    return model


def shallow(family):
    """The family's first block only: tracing takes time."""
    model = tiny.build(family)
    blocks = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
    del blocks[1:]
    model.config.num_hidden_layers = 1
    return model


def assert_close(found, expected):
    """All tensors of two answers are equal up to rounding in float64."""
    assert list(found.states) == list(expected.states)
    assert found.reasons == expected.reasons
    for a, b in zip(found.tensors(), expected.tensors(), strict=True):
        assert a.dtype == b.dtype
        assert expected.summary.isfinite().all()
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12 * float(b.abs().max()))
