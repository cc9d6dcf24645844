"""What tests of scans and of linear attention share: texts, their relevance, random states, layers with constants."""

import tiny
import torch
from torch import nn

from lrpx.passes.attribution import run
from lrpx.text.batching import Item, pad


def states(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def batch_of(model, *lengths):
    ids = tiny.inputs(model, n_tokens=max(lengths), batch=len(lengths))["input_ids"].tolist()
    return pad([Item(tuple(row[:n]), n - 1, 11, 13) for row, n in zip(ids, lengths, strict=True)], model)


def relevance(model, batch, rule_set):
    hidden = run(model, batch, rule_set, ["embedding"]).hidden["embedding"]
    return (hidden.state * hidden.gradient).double()


def close(found, expected, tolerance=1e-5):
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


class Columns(nn.Module):
    """A linear layer some of whose results are constants."""

    def __init__(self, base, constant):
        super().__init__()
        self.base, self.constant = base, constant
        self.weight, self.bias = base.weight, base.bias

    def forward(self, x):
        y = self.base(x)
        return torch.where(self.constant, y.detach(), y)
