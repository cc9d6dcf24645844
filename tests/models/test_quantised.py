"""Quantised layers are explained where their kernel has the gradient of a linear function, as the dequantised model is."""

import numpy as np
import pytest
import tiny
import torch
from torch import nn

import lrpx
from lrpx.errors import UnsupportedModelError

IDS = [9, 12, 15, 18, 21, 24, 27, 30]


class Kernel(torch.autograd.Function):
    """``x W`` with the gradient of it, as the kernels of libraries give it."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.saved_tensors[0], None


Kernel.__module__ = "bitsandbytes.autograd._functions"


class Packed(nn.Module):
    """A linear layer that holds int8."""

    def __init__(self, linear, kind):
        super().__init__()
        self.in_features, self.out_features, self.kind = linear.in_features, linear.out_features, kind
        self.scale = float(linear.weight.detach().abs().max()) / 127
        self.weight = nn.Parameter((linear.weight.detach() / self.scale).round().to(torch.int8), requires_grad=False)

    def unpacked(self):
        return self.weight.double() * self.scale

    def forward(self, x):
        if self.kind == "rounds its input":  # the gradient of rounding is 0
            return (x * 64).round() / 64 @ self.unpacked().T
        if self.kind == "no gradient":
            return (x.detach() @ self.unpacked().T) + 0 * x.sum()
        return Kernel.apply(x, self.unpacked())


def packed(kind):
    """A model with packed MLPs, and the same with its weights unpacked."""
    model, plain = tiny.build("causal:llama"), tiny.build("causal:llama")
    for one, other in zip(model.model.layers, plain.model.layers, strict=True):
        for name in ("gate_proj", "up_proj", "down_proj"):
            layer = Packed(getattr(one.mlp, name), kind)
            setattr(one.mlp, name, layer.eval())
            getattr(other.mlp, name).weight.data = layer.unpacked()
    return model, plain


@pytest.mark.parametrize("method", ["attnlrp", "lrp", "gradient-x-input"])
def test_the_map_is_that_of_the_dequantised_model(method):
    model, plain = packed("linear")
    a, b = (lrpx.explain(m, None, IDS, target=11, contrast=13, method=method) for m in (model, plain))
    assert a.value == pytest.approx(b.value, rel=1e-9)
    np.testing.assert_allclose(a.relevance, b.relevance, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("method", ["attnlrp", "gradient-x-input"])
@pytest.mark.parametrize("kind", ["rounds its input", "no gradient"])
def test_a_kernel_without_a_gradient_is_the_reason(kind, method):
    model, _ = packed(kind)
    with pytest.raises(
        UnsupportedModelError, match=r"is quantised .*the kernel of Packed gives no .*model\.dequantize\(\)"
    ):
        lrpx.explain(model, None, IDS, target=11, method=method)


@pytest.mark.parametrize("method", ["attnlrp", "gradient-x-input"])
def test_a_kernel_that_fails_when_it_goes_backwards_is_the_reason(monkeypatch, method):
    """As AWQ's does on a CPU, which is not a RuntimeError of autograd."""

    def fail(ctx, gradient):
        raise ValueError("kernels are needed to use backward()\nSee there.")

    monkeypatch.setattr(Kernel, "backward", staticmethod(fail))
    model, _ = packed("linear")
    message = (
        r"of Packed gives no gradient for its input \(ValueError: kernels are needed to use backward\(\) See there"
    )
    with pytest.raises(UnsupportedModelError, match=message):
        lrpx.explain(model, None, IDS, target=11, method=method)


def test_a_rule_for_weights_cannot_read_packed_ones():
    model, _ = packed("linear")
    with pytest.raises(UnsupportedModelError, match="no rule can read the weights of Packed"):
        lrpx.explain(model, None, IDS, target=11, method="lrp", rules="gamma=0.25")


def unpacked_from(model, plain, read):
    """``plain`` with the weights of ``model``, whose packed ones ``read`` unpacks."""
    modules = dict(model.named_modules())
    for name, module in plain.named_modules():
        if isinstance(module, nn.Linear):
            module.weight.data.copy_(read(modules[name]).detach())
    return plain


def assert_explained_as(model, plain, tolerance):
    for method in ("attnlrp", "lrp"):
        a, b = (lrpx.explain(m, None, IDS, target=11, contrast=13, method=method) for m in (model, plain))
        assert np.abs(a.relevance - b.relevance).max() <= tolerance * np.abs(b.relevance).max()


def wide(dtype=torch.float32):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=97)).to(dtype).eval()


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes(bits):
    library = pytest.importorskip("bitsandbytes", reason="needs the package bitsandbytes")
    model, plain = wide(), wide()
    for block in model.model.layers:
        for part in (block.self_attn, block.mlp):
            for name, linear in list(part.named_children()):
                if isinstance(linear, nn.Linear):
                    options = {"quant_type": "nf4"} if bits == 4 else {"has_fp16_weights": False}
                    kind = library.nn.Linear4bit if bits == 4 else library.nn.Linear8bitLt
                    layer = kind(linear.in_features, linear.out_features, bias=False, **options)
                    layer.load_state_dict(linear.state_dict())
                    setattr(part, name, layer.to("cpu").eval())

    def read(module):
        if isinstance(module, library.nn.Linear4bit):
            return library.functional.dequantize_4bit(module.weight.data, module.weight.quant_state)
        if isinstance(module, library.nn.Linear8bitLt):
            return module.weight.data.float() * module.weight.SCB.float()[:, None] / 127
        return module.weight

    expected = unpacked_from(model, plain, read)
    assert_explained_as(model, expected, 1e-4 if bits == 4 else 0.1)  # 8 bit rounds the input too


@pytest.mark.parametrize("kind", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_torchao(kind):
    library = pytest.importorskip("torchao.quantization", reason="needs the package torchao")
    model, plain = wide(), wide()
    library.quantize_(model, getattr(library, kind)())
    read = lambda m: m.weight.dequantize() if type(m.weight).__module__.startswith("torchao") else m.weight  # noqa: E731
    assert_explained_as(model, unpacked_from(model, plain, read), 1e-4)


@pytest.mark.parametrize("kind", ["qint2", "qint4", "qint8", "qfloat8"])
def test_quanto(kind):
    library = pytest.importorskip("optimum.quanto", reason="needs the package optimum-quanto")
    model, plain = wide(), wide()
    library.quantize(model, weights=getattr(library, kind), exclude="lm_head")
    library.freeze(model)
    read = lambda m: m.weight.dequantize() if isinstance(m, library.QLinear) else m.weight  # noqa: E731
    assert_explained_as(model.eval(), unpacked_from(model, plain, read), 1e-6)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_hqq(bits):
    library = pytest.importorskip("hqq.core.quantize", reason="needs the package hqq")
    model, plain = wide(), wide()
    options = library.BaseQuantizeConfig(nbits=bits, group_size=64, axis=1)
    for block in model.model.layers:
        for name, linear in list(block.mlp.named_children()):
            if isinstance(linear, nn.Linear):
                setattr(block.mlp, name, library.HQQLinear(linear, options, compute_dtype=torch.float32, device="cpu"))
    read = lambda m: m.dequantize() if isinstance(m, library.HQQLinear) else m.weight  # noqa: E731
    assert_explained_as(model.eval(), unpacked_from(model, plain, read), 1e-6)


@pytest.mark.parametrize("method", ["attnlrp", "gradient-x-input", "alti-logit"])
def test_torchao_with_rounded_inputs_is_refused(method):
    library = pytest.importorskip("torchao.quantization", reason="needs the package torchao")
    model = wide()
    library.quantize_(model, library.Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(
        UnsupportedModelError, match=r"is quantised \(torchao\), and the kernel of Linear with Int8Tensor"
    ):
        lrpx.explain(model, None, IDS, target=11, method=method)


@pytest.mark.parametrize("method", ["attnlrp", "gradient-x-input"])
def test_experts_in_mxfp4_are_refused(method):
    """As transformers loads gpt-oss on a GPU: experts that are no linear layers, in a kernel from the Hub."""
    from transformers.integrations.mxfp4 import Mxfp4GptOssExperts

    model = tiny.build("causal:gpt_oss")
    for block in model.model.layers:
        block.mlp.experts = Mxfp4GptOssExperts(model.config).eval()
    with pytest.raises(
        UnsupportedModelError,
        match=r"GptOssForCausalLM is quantised \(transformers\), and Mxfp4GptOssExperts is no linear layer.*dequantize",
    ):
        lrpx.explain(model, None, IDS, target=11, method=method)
