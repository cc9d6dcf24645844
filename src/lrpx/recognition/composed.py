"""Functions of PyTorch that are several operations of the table in one: the same function, written out.

The rules of the operations that it is made of say how its relevance propagates, so it needs none of its own. Its value stays the
one that PyTorch computes, which may round in another way.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from .call import Call


def gated_linear_unit(input: Tensor, dim: int = -1) -> Tensor:
    """``F.glu``: the first half is the signal, the sigmoid of the second half is its gate (Dauphin et al. 2017)."""
    signal, gate = input.chunk(2, dim)
    return signal * gate.sigmoid()


def normalised_groups(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    _: bool = True,
) -> Tensor:
    """``F.group_norm`` of ``[B, C, ...]``: LayerNorm of each group of channels, then a factor and a summand for each channel."""
    groups = input.reshape(input.shape[0], num_groups, -1)
    output = functional.layer_norm(groups, groups.shape[-1:], None, None, eps).reshape(input.shape)
    of_channels = (-1, *[1] * (input.ndim - 2))
    output = output if weight is None else output * weight.reshape(of_channels)
    return output if bias is None else output + bias.reshape(of_channels)


def sums_nothing(equation: object) -> bool:
    """Whether an ``einsum`` multiplies element by element: ``"bi,bi->bi"``."""
    operands, _, result = str(equation).replace(" ", "").partition("->")
    return set(operands.split(",")) == {result}


def constant_variance(var_mean: Call, *_: object, **__: object) -> tuple[Tensor, Tensor]:
    """``torch.var_mean``, of which the variance is a normaliser, and the mean is none."""
    variance, mean = var_mean()
    return variance.detach(), mean


COMPOSED: dict[str, Callable[..., Tensor]] = {"glu": gated_linear_unit, "group_norm": normalised_groups}
"""The name of a function, in ``table.py`` of the kind ``"composed"`` -> what it is made of."""
