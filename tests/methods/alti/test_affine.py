"""Norms as affine maps agree with the modules, and pull back what autograd gives at a constant deviation."""

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.pytorch_utils import Conv1D

from lrpx.errors import UnsupportedModelError
from lrpx.methods.alti.affine import Norm, projection

D = 10
NORMS = {
    "layer": (lambda: nn.LayerNorm(D, eps=1e-3), 0.0),
    "layer, no gain": (lambda: nn.LayerNorm(D, elementwise_affine=False), 0.0),
    "layer, no bias": (lambda: nn.LayerNorm(D, bias=False), 0.0),
    "rms": (lambda: LlamaRMSNorm(D), 0.0),
    "torch's rms": (lambda: nn.RMSNorm(D, eps=1e-6), 0.0),
    "one plus weight": (lambda: GemmaRMSNorm(D), 1.0),
}


@pytest.fixture(params=NORMS)
def norm_and_module(request):
    make, offset = NORMS[request.param]
    module = make()
    torch.manual_seed(0)
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    return Norm.of([module], torch.zeros(()), offset), module


def test_agrees_with_the_module(norm_and_module):
    norm, module = norm_and_module
    x = torch.randn(3, 4, D)
    torch.testing.assert_close(norm(x), module(x))


def test_is_affine_at_a_constant_deviation(norm_and_module):
    norm, _ = norm_and_module
    x, inverse = torch.randn(2, 3, D).unbind()
    inverse = norm.inverse_deviation(inverse)
    bias = 0 if norm.bias is None else norm.bias
    parts = torch.rand(5, 1, D) * x
    parts[-1] = x - parts[:-1].sum(0)
    torch.testing.assert_close(norm(x), norm.linear(parts).sum(0) * norm.inverse_deviation(x) + bias)
    assert inverse.shape == (3, 1)


def test_pulls_back_what_autograd_gives(norm_and_module):
    """The gradient of ``g . (G x / dev)`` with the deviation detached."""
    norm, _ = norm_and_module
    x, g = torch.randn(3, D, requires_grad=True), torch.randn(3, D)
    (norm.linear(x) * norm.inverse_deviation(x).detach() * g).sum().backward()
    torch.testing.assert_close(norm.pull_back(g, norm.inverse_deviation(x.detach())), x.grad)


@pytest.mark.parametrize("kind", NORMS)
def test_the_norms_of_several_layers_at_once(kind):
    """As each layer's own, on vectors of any further dimensions."""
    make, offset = NORMS[kind]
    modules, x, g = [make() for _ in range(3)], torch.randn(3, 2, 4, D), torch.randn(3, 2, 4, D)
    for parameter in nn.ModuleList(modules).parameters():
        nn.init.normal_(parameter)
    norm, inverse = Norm.of(modules, torch.zeros(()), offset), torch.rand(3, 2, 4, 1)
    torch.testing.assert_close(norm(x), torch.stack([module(part) for module, part in zip(modules, x, strict=True)]))
    for layer, module in enumerate(modules):
        for one in (norm[layer], Norm.of([module], torch.zeros(()), offset)):
            torch.testing.assert_close(one.linear(x[layer]), norm.linear(x)[layer])
            torch.testing.assert_close(one.pull_back(g[layer], inverse[layer]), norm.pull_back(g, inverse)[layer])
            torch.testing.assert_close(one.bias_share(g[layer]), norm.bias_share(g)[layer])


@pytest.mark.parametrize("other", [nn.LayerNorm(D, eps=1e-3), nn.LayerNorm(D, bias=False), nn.RMSNorm(D, eps=1e-5)])
def test_refuses_norms_that_differ_between_layers(other):
    with pytest.raises(UnsupportedModelError, match=r"differ in kind or epsilon.*'lrp'"):
        Norm.of([nn.LayerNorm(D), other], torch.zeros(()))


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 6), lambda: nn.Linear(4, 6, bias=False), lambda: Conv1D(6, 4)])
def test_projection(make):
    layer, x = make(), torch.randn(3, 4)
    weight, bias = projection(layer)
    torch.testing.assert_close(x @ weight + (0 if bias is None else bias), layer(x))


def test_refuses_other_norms():
    with pytest.raises(UnsupportedModelError, match=r"GroupNorm is not a norm.*nn.LayerNorm or an RMSNorm.*'attnlrp'"):
        Norm.of([nn.GroupNorm(2, D)], torch.zeros(()))


class Adapter(nn.Module):
    """A linear layer with something added to it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))


@pytest.mark.parametrize("layer", [Adapter(), nn.Identity(), nn.Linear(4, 4, device="meta")])
def test_refuses_what_is_not_plainly_linear(layer):
    with pytest.raises(UnsupportedModelError, match=r"weight can be read.*Merge adapters.*'lrp'"):
        projection(layer)


def test_refuses_integer_weights():
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    with pytest.raises(UnsupportedModelError, match="without quantisation"):
        projection(layer)
