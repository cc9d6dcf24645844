"""Models that are one function, and the relevance of their inputs under the rules."""

import torch
from torch import nn

import lrpx


class Formula(nn.Module):
    """A model that is one function of its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


def relevances(function, *inputs, rule_set="attnlrp", unknown="raise"):
    """Output, relevance of each input under the rules, and the mode; the value is untouched."""
    model = Formula(function)
    with lrpx.propagate(model, rule_set, unknown=unknown) as mode:
        y = model(*inputs)
    assert torch.equal(y, function(*inputs))
    gradients = torch.autograd.grad(y.sum(), inputs, allow_unused=True)
    found = [torch.zeros_like(x) if g is None else (x * g).detach() for x, g in zip(inputs, gradients, strict=True)]
    return y, found, mode
