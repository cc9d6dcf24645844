"""Norms and projections of a model as affine maps: what ALTI-Logit pulls vectors back through.

A norm divides by a deviation that depends on its input. With that deviation held constant, ``norm(x) = G x / dev + b``
is affine: ``G`` multiplies by the gain, after subtracting the mean for LayerNorm.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ...errors import UnsupportedModelError
from ...models.placement import stored


@dataclass(frozen=True)
class Norm:
    """LayerNorm (``centered``) or RMSNorm over the last dimension, of size d: one for everything, or one for each layer.

    Attributes:
        gain: ``[L, d]``, or ``None`` for 1. Applies to ``x [L, ..., d]``, or with L = 1 to any ``x [..., d]``.
        bias: ``[L, d]``, or ``None`` for 0.
        eps: Added to the mean square.
        centered: Whether the mean is subtracted first.
    """

    gain: Tensor | None
    bias: Tensor | None
    eps: float
    centered: bool

    @classmethod
    def of(cls, modules: Sequence[nn.Module], like: Tensor, offset: float = 0.0) -> Norm:
        """The norms that L ``modules`` of one kind compute, wherever each is, in the type and on the device of ``like``.

        Their gains are ``offset + weight``.

        Raises:
            UnsupportedModelError: A module is neither ``nn.LayerNorm`` nor an RMSNorm, or they are of several kinds.
        """
        kinds = {cls._kind(module) for module in modules}
        if len(kinds) > 1:
            raise UnsupportedModelError(
                f"the norms of a model differ in kind or epsilon between its layers ({sorted(kinds)}), which ALTI-Logit "
                "does not expect. The methods 'attnlrp', 'lrp' and 'gradient-x-input' need no such knowledge."
            )
        (_, eps, centered, *has), *_ = kinds
        gain, bias = (
            torch.stack([cls._numbers(module, name).to(like.device) for module in modules]).to(like.dtype)
            if there
            else None
            for name, there in zip(("weight", "bias"), has, strict=True)
        )
        return cls(gain=gain + offset if gain is not None and offset else gain, bias=bias, eps=eps, centered=centered)

    @staticmethod
    def _kind(module: nn.Module) -> tuple[str, float, bool, bool, bool]:
        """Class, epsilon, and whether the mean is subtracted and there are a gain and a bias."""
        name, centered = type(module).__name__, isinstance(module, nn.LayerNorm)
        eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if eps is None or not (centered or "RMSNorm" in name):
            raise UnsupportedModelError(
                f"{name} is not a norm that ALTI-Logit can hold constant: expected nn.LayerNorm or an "
                "RMSNorm with an epsilon. The methods 'attnlrp', 'lrp' and 'gradient-x-input' need no such knowledge."
            )
        has_gain, has_bias = (getattr(module, parameter, None) is not None for parameter in ("weight", "bias"))
        return name, float(eps), centered, has_gain, has_bias

    @staticmethod
    def _numbers(module: nn.Module, name: str) -> Tensor:
        """A gain or bias, also an offloaded one."""
        tensor = stored(module, name)
        if tensor is None or tensor.is_meta:
            raise UnsupportedModelError(
                f"the {name} of a {type(module).__name__} is on 'meta' and no hook of the module itself loads it, so ALTI-Logit "
                "cannot read it. Load the weights first; where accelerate offloads them, without preload_module_classes."
            )
        return tensor

    def __getitem__(self, layer: int) -> Norm:
        """The norm of one layer."""
        gain, bias = (x if x is None else x[layer : layer + 1] for x in (self.gain, self.bias))
        return Norm(gain=gain, bias=bias, eps=self.eps, centered=self.centered)

    def inverse_deviation(self, x: Tensor) -> Tensor:
        """``1 / dev`` of ``x [..., d]``: ``[..., 1]``."""
        if self.centered:
            return torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + self.eps)
        return torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def linear(self, x: Tensor) -> Tensor:
        """``G x``."""
        if self.centered:
            x = x - x.mean(-1, keepdim=True)
        return x if self.gain is None else x * _along(self.gain, x)

    def __call__(self, x: Tensor) -> Tensor:
        """``G x / dev(x) + b``: what the module returns."""
        y = self.linear(x) * self.inverse_deviation(x)
        return y if self.bias is None else y + _along(self.bias, y)

    def pull_back(self, gradient: Tensor, inverse_deviation: Tensor) -> Tensor:
        """``G' gradient / dev``: the gradient at the output, brought to the input ``[..., d]``."""
        gradient = gradient if self.gain is None else gradient * _along(self.gain, gradient)
        if self.centered:
            gradient = gradient - gradient.mean(-1, keepdim=True)
        return gradient * inverse_deviation

    def bias_share(self, gradient: Tensor) -> Tensor:
        """``b . gradient``: ``[...]``."""
        if self.bias is None:
            return gradient.new_zeros(gradient.shape[:-1])
        return (gradient * _along(self.bias, gradient)).sum(-1)


def _along(parameter: Tensor, x: Tensor) -> Tensor:
    """``[L, d]`` as ``[L, 1, ..., d]``, to meet ``x [L, ..., d]``."""
    return parameter.reshape(len(parameter), *(1,) * (x.dim() - 2), parameter.shape[-1])


def projection(module: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Weight ``[in, out]`` and bias ``[out]`` of a plain linear layer: ``output = input @ weight + bias``.

    Each is where it is stored; for offloaded weights that is not where the module computes.

    Raises:
        UnsupportedModelError: ``module`` is not ``nn.Linear`` or ``Conv1D`` with a full floating-point weight.
    """
    from transformers.pytorch_utils import Conv1D

    weight, bias = stored(module, "weight"), stored(module, "bias")
    if weight is not None and type(weight).__module__.partition(".")[0] != "torch" and hasattr(weight, "dequantize"):
        weight = weight.dequantize()  # of torchao or quanto, which keep the packed form in a tensor of their own class
    if weight is not None and weight.is_floating_point() and not weight.is_meta:
        if isinstance(module, Conv1D):
            return weight, bias
        if isinstance(module, nn.Linear) and weight.shape == (module.out_features, module.in_features):
            return weight.t(), bias
    raise UnsupportedModelError(
        f"{type(module).__name__} is not a linear layer whose weight can be read: ALTI-Logit needs nn.Linear or Conv1D in "
        "floating point. Merge adapters and load without quantisation, or use 'attnlrp', 'lrp' or 'gradient-x-input'."
    )
