"""One plain forward pass: what it needs is read, everything is as before afterwards, and what it cannot follow it refuses."""

import pytest
import tiny
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel

from lrpx.errors import UnsupportedModelError
from lrpx.methods.alti import logit as alti_logit
from lrpx.methods.alti import residual_trace as trace_module
from lrpx.methods.alti.contributions import kept
from lrpx.methods.alti.families import find_family
from lrpx.methods.alti.residual_trace import trace
from lrpx.text.batching import Item, pad


def batch_for(model, length=8):
    return pad([Item(tuple(tiny.inputs(model, length)["input_ids"][0].tolist()), length - 1, 20, 30)], model)


def state(model):
    """What must not change: parameters, buffers, modes, hooks, attributes, configuration."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    modules = {
        name: (m.training, [len(getattr(m, h)) for h in hooks], sorted(vars(m))) for name, m in model.named_modules()
    }
    tensors = {
        name: (id(t), t.clone(), t.requires_grad, t.grad) for name, t in model.state_dict(keep_vars=True).items()
    }
    return modules, tensors, model.config.to_dict(), torch._C._len_torch_function_stack(), torch.is_grad_enabled()


def assert_same(before, after):
    assert before[0] == after[0]
    assert before[2:] == after[2:]
    for name, (identity, value, requires_grad, grad) in before[1].items():
        assert after[1][name][0] == identity
        torch.testing.assert_close(after[1][name][1], value, rtol=0, atol=0)
        assert after[1][name][2:] == (requires_grad, grad)


@pytest.mark.parametrize("family", ["causal:gpt2", "masked:bert"])
def test_everything_is_as_before(family):
    model = tiny.build(family).train()
    model.get_submodule("transformer.h.0" if "gpt2" in family else "bert.encoder.layer.0").eval()
    before = state(model)
    alti_logit.explain(model, batch_for(model))
    assert_same(before, state(model))


def test_everything_is_as_before_after_an_exception(monkeypatch):
    model = tiny.build("causal:gpt2").train()

    def fail(*args, **kwargs):
        raise RuntimeError("half-way")

    for module in (model.transformer.h[1].attn.c_proj, model.transformer.h[1].mlp, model.lm_head):
        with monkeypatch.context() as patch:
            patch.setattr(module, "forward", fail)
            before = state(model)
            with pytest.raises(UnsupportedModelError, match="its own forward raises RuntimeError: half-way"):
                alti_logit.explain(model, batch_for(model))
            assert_same(before, state(model))


def test_dropout_is_off_for_the_pass():
    model = tiny.build("causal:gpt2")
    expected = alti_logit.explain(model, batch_for(model))[0]
    found = alti_logit.explain(model.train(), batch_for(model))[0]
    assert found.relevance == pytest.approx(expected.relevance, rel=0, abs=0)


def test_the_logits_are_the_models():
    model = tiny.build("causal:llama")
    batch = batch_for(model)
    seen = trace(model, find_family(model), batch, mixing=kept, last=False)
    with torch.no_grad():
        out = model(**batch.inputs, output_hidden_states=True)
    torch.testing.assert_close(seen.logits, out.logits[:, -1])
    torch.testing.assert_close(seen.stream, torch.stack(out.hidden_states[:-1])[:, :, -1])


def test_only_the_explained_position_meets_the_vocabulary():
    model = tiny.build("masked:bert")
    rows = []
    handle = model.cls.predictions.decoder.register_forward_hook(lambda m, args, output: rows.append(output.shape))
    alti_logit.explain(model, batch_for(model))
    handle.remove()
    assert rows == [(1, 1, tiny.VOCABULARY)]


def test_the_last_matrix_is_computed_only_if_asked_for():
    model = tiny.build("causal:gpt2")
    counts = [
        len(trace(model, find_family(model), batch_for(model), mixing=kept, last=last).mixing) for last in (False, True)
    ]
    assert counts == [1, 2]


@pytest.mark.parametrize("attention", [None, "eager"])
@pytest.mark.parametrize(
    "family",
    [
        "causal:gpt2",
        "causal:llama",
        "causal:olmo2",
        "causal:gemma2",
        "causal:gemma3_text",
        "causal:bloom",
        "masked:bert",
    ],
)
def test_layers_together_are_the_layers_one_by_one(monkeypatch, family, attention):
    # BLOOM only in float32: transformers fills its masks with float32's smallest number.
    exact = family != "causal:bloom"
    model = tiny.build(family, attn_implementation=attention, dtype=torch.float64 if exact else torch.float32)
    ids = tiny.inputs(model, 9)["input_ids"][0].tolist()
    batch = pad([Item(tuple(ids), 8, 20, 30), Item(tuple(ids[2:7]), 3, 20, None)], model)
    found = {}
    for size in (0, 1 << 30):
        monkeypatch.setitem(trace_module.STACK_BYTES, "cpu", size)
        seen = trace(model, find_family(model), batch, mixing=kept, last=True)
        assert {len(value) for value in seen.values} == {1} if size == 0 else max(map(len, seen.values)) > 1
        found[size] = [seen.stream, seen.attention, seen.mlp, seen.weights, torch.cat(seen.values), seen.mixing]
    for one_by_one, together in zip(*found.values(), strict=True):
        torch.testing.assert_close(together, one_by_one, **({"rtol": 1e-12, "atol": 1e-12} if exact else {}))


class Launches(TorchDispatchMode):
    """Counts the operations that do something, rather than return a view."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_a_short_prompt_takes_few_operations():
    """What a GPU spends on one is mostly launches, so they must not be many times those of the model itself."""
    config = GPT2Config(n_layer=24, n_embd=32, n_head=4, vocab_size=97)
    model = GPT2LMHeadModel(config).eval()
    batch = pad([Item(tuple(range(8, 20)), 11, 20, 30)], model)
    with torch.no_grad(), Launches() as plain:
        model(**batch.inputs, use_cache=False)
    with Launches() as ours:
        alti_logit.explain(model, batch)
    assert plain.count > 24 * 10
    assert ours.count < 1.8 * plain.count


def test_refuses_a_stream_that_is_changed_in_place():
    """Blocks are reduced after later ones have run, so nothing may be written over what was noted."""
    model = tiny.build("causal:gpt2")
    streams = []
    model.transformer.h[0].register_forward_pre_hook(lambda m, args: streams.append(args[0]))
    handle = model.transformer.h[0].mlp.register_forward_hook(
        lambda m, args, output: streams[-1].zero_().sum() * output
    )
    with pytest.raises(UnsupportedModelError, match="changed in place"):
        alti_logit.alti(model, batch_for(model))
    handle.remove()
    alti_logit.alti(model, batch_for(model))


class Hidden(nn.Module):
    """An attention whose operations are not torch functions, like a flash-attention kernel."""

    def __init__(self, attention):
        super().__init__()
        self.inner = attention
        self.c_proj = attention.c_proj

    def forward(self, *args, **kwargs):
        projection, self.inner.c_proj = self.inner.c_proj, nn.Identity()
        try:
            with torch._C.DisableTorchFunction():
                mixed, weights = self.inner(*args, **kwargs)
        finally:
            self.inner.c_proj = projection
        return self.c_proj(mixed), weights


def test_refuses_attention_that_cannot_be_seen():
    model = tiny.build("causal:gpt2")
    block = model.transformer.h[1]
    block.attn = Hidden(block.attn)
    with pytest.raises(
        UnsupportedModelError, match=r"attention of block 1 is no single call.*'sdpa' or 'eager'.*'attnlrp'"
    ):
        alti_logit.explain(model, batch_for(model))


def test_refuses_an_output_projection_that_is_more_than_linear():
    model = tiny.build("causal:gpt2")

    class Adapter(nn.Module):
        def __init__(self, base):
            super().__init__()
            self.base = base

        def forward(self, x):
            return self.base(x) + x

    model.transformer.h[0].attn.c_proj = Adapter(model.transformer.h[0].attn.c_proj)
    with pytest.raises(UnsupportedModelError, match=r"Adapter is not a linear layer.*Merge adapters"):
        alti_logit.explain(model, batch_for(model))


def test_refuses_a_module_that_is_never_called():
    """A model that reaches its projection's weight without calling it, as slices for tensor parallelism do."""
    model = tiny.build("causal:gpt2")
    projection = model.transformer.h[1].mlp
    model.transformer.h[1].forward = lambda hidden, *args, **kwargs: hidden + projection.forward(hidden)
    with pytest.raises(UnsupportedModelError, match="of 2 blocks, 1 attentions and 1 MLPs were called"):
        alti_logit.explain(model, batch_for(model))


def test_refuses_an_mlp_in_chunks():
    model = tiny.build("masked:bert")
    model.bert.encoder.layer[0].chunk_size_feed_forward = 4
    with pytest.raises(UnsupportedModelError, match="a module returned 4 of 8 positions"):
        alti_logit.explain(model, batch_for(model))
