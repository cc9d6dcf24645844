"""Norms and projections of a model as affine maps: what ALTI-Logit pulls vectors back through.

A norm divides by a deviation that depends on its input. With that deviation held constant, ``norm(x) = G x / dev + b``
is affine: ``G`` multiplies by the gain, after subtracting the mean for LayerNorm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .errors import UnsupportedModelError


@dataclass(frozen=True)
class Norm:
    """LayerNorm (``centered``) or RMSNorm over the last dimension, of size d.

    Attributes:
        gain: ``[d]``, or ``None`` for 1.
        bias: ``[d]``, or ``None`` for 0.
        eps: Added to the mean square.
        centered: Whether the mean is subtracted first.
    """

    gain: Tensor | None
    bias: Tensor | None
    eps: float
    centered: bool

    @classmethod
    def of(cls, module: nn.Module, dtype: torch.dtype, offset: float = 0.0) -> Norm:
        """The norm that ``module`` computes; its gain is ``offset + weight``.

        Raises:
            UnsupportedModelError: ``module`` is neither ``nn.LayerNorm`` nor an RMSNorm.
        """
        centered = isinstance(module, nn.LayerNorm)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if eps is None or not (centered or "RMSNorm" in type(module).__name__):
            raise UnsupportedModelError(
                f"{type(module).__name__} is not a norm that ALTI-Logit can hold constant: expected nn.LayerNorm or an "
                "RMSNorm with an epsilon. The methods 'attnlrp', 'lrp' and 'gradient-x-input' need no such knowledge."
            )
        gain, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        return cls(
            gain=None if gain is None else gain.detach().to(dtype) + offset,
            bias=None if bias is None else bias.detach().to(dtype),
            eps=float(eps),
            centered=centered,
        )

    def inverse_deviation(self, x: Tensor) -> Tensor:
        """``1 / dev`` of ``x [..., d]``: ``[..., 1]``."""
        if self.centered:
            return torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + self.eps)
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def linear(self, x: Tensor) -> Tensor:
        """``G x``."""
        if self.centered:
            x = x - x.mean(-1, keepdim=True)
        return x if self.gain is None else x * self.gain

    def __call__(self, x: Tensor) -> Tensor:
        """``G x / dev(x) + b``: what the module returns."""
        y = self.linear(x) * self.inverse_deviation(x)
        return y if self.bias is None else y + self.bias

    def pull_back(self, gradient: Tensor, x: Tensor) -> Tensor:
        """``G' gradient / dev(x)``: the gradient at the output ``norm(x)``, brought to the input."""
        gradient = gradient if self.gain is None else gradient * self.gain
        if self.centered:
            gradient = gradient - gradient.mean(-1, keepdim=True)
        return gradient * self.inverse_deviation(x)

    def bias_share(self, gradient: Tensor) -> Tensor:
        """``b . gradient``: ``[...]``."""
        return gradient.new_zeros(gradient.shape[:-1]) if self.bias is None else gradient @ self.bias


def projection(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight ``[in, out]`` and bias ``[out]`` of a plain linear layer: ``output = input @ weight + bias``.

    Raises:
        UnsupportedModelError: ``module`` is not ``nn.Linear`` or ``Conv1D`` with a full floating-point weight.
    """
    from transformers.pytorch_utils import Conv1D

    weight = getattr(module, "weight", None)
    if isinstance(weight, Tensor) and weight.is_floating_point() and not weight.is_meta:
        if isinstance(module, Conv1D):
            return weight.detach(), module.bias.detach()
        if isinstance(module, nn.Linear) and weight.shape == (module.out_features, module.in_features):
            return weight.detach().t(), None if module.bias is None else module.bias.detach()
    raise UnsupportedModelError(
        f"{type(module).__name__} is not a linear layer whose weight can be read: ALTI-Logit needs nn.Linear or Conv1D in "
        "floating point. Merge adapters and load without quantisation, or use 'attnlrp', 'lrp' or 'gradient-x-input'."
    )
