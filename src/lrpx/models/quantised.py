"""Quantised layers: does their kernel give the gradient of a linear function?

A map needs the gradient with respect to a layer's input. Some kernels have it (bitsandbytes, torchao's weight-only ones), some
have none, and some give zeros because they round the input too. So each kind of layer is tried once: for ``y = W x`` with any
direction ``v``, ``v·(y(x) - y(0)) = x·∇(v·y)``. Rounding alone moves this by a few per cent.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError

KERNELS = ("bitsandbytes", "optimum", "torchao", "gptqmodel", "auto_gptq", "awq", "auto_round", "hqq")
"""Packages whose autograd functions are those of quantised linear layers."""
TOLERANCE = 0.1
_OTHER_LAYERS = ("Mxfp4",)  # experts in a kernel of their own

_problems: weakref.WeakKeyDictionary[nn.Module, dict[Any, str | None]] = weakref.WeakKeyDictionary()


def check_quantised(model: PreTrainedModel, modules: Iterable[nn.Module], *, linear_rule: bool) -> None:
    """Refuse a model with quantised layers that cannot be explained as they are.

    Args:
        model: Any model.
        modules: Its modules.
        linear_rule: The rule set has a rule for products with weights, which needs to read the weights.

    Raises:
        UnsupportedModelError: A kernel gives no gradient for its input, or the rule cannot read its weights.
    """
    kinds = {  # a few, of hundreds of modules
        (type(m), type(p), getattr(p, "dtype", None)): m for m in modules for p in m._parameters.values() or (None,)
    }
    tried = _problems.setdefault(model, {})
    for kind, module in kinds.items():
        if not _is_quantised(module):
            continue
        if kind not in tried:
            tried[kind] = _problem(module, model.dtype)
        problem = tried[kind] or (f"no rule can read the weights of {kind[0].__name__}" if linear_rule else None)
        if problem is not None:
            method = getattr(model, "quantization_method", None)
            how = (
                getattr(method, "value", method)
                or (kind[1] if kind[0] is nn.Linear else kind[0]).__module__.partition(".")[0]
            )
            raise UnsupportedModelError(
                f"{type(model).__name__} is quantised ({how}), and {problem}.",
                python="Give model.dequantize().eval() where its library has that, or load the model without quantisation.",
                app="Start the app with the model that is not quantised.",
            )


def _is_quantised(module: nn.Module) -> bool:
    """Whether a module itself holds packed weights: of one byte, of integers, or in a form of its library's own."""
    if type(module).__module__.partition(".")[0] in KERNELS and hasattr(module, "in_features"):
        return True
    if any(part in type(module).__name__ for part in _OTHER_LAYERS):
        return True
    return any(
        p is not None
        and p.ndim > 1
        and (not p.is_floating_point() or p.element_size() == 1 or type(p).__module__.partition(".")[0] in KERNELS)
        for p in module._parameters.values()
    )


def _problem(module: nn.Module, dtype: torch.dtype) -> str | None:
    """What speaks against the kernel of a layer, as part of a sentence."""
    name = type(module).__name__
    weight = module._parameters.get("weight")
    if type(module) is nn.Linear:
        name = f"{name} with {type(weight).__name__}"
    if not hasattr(module, "in_features"):
        return f"{name} is no linear layer, so its gradient is not known to be right"
    try:
        return None if _gives_gradient(module, dtype) else f"the kernel of {name} gives no gradient for its input"
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of the library: AWQ, for one, goes backwards on a GPU only
        said = " ".join(str(error).split())
        return f"the kernel of {name} gives no gradient for its input ({type(error).__name__}: {said[:150]})"


def _gives_gradient(module: Any, dtype: torch.dtype) -> bool:
    """Whether ``v·(y(x) - y(0)) = x·∇(v·y)``. Inputs carry gradient: without, bitsandbytes packs weights so that none passes."""
    device = next((t.device for t in (*module.parameters(), *module.buffers())), torch.device("cpu"))
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, int(module.in_features), generator=generator).to(device, dtype)
    with torch.inference_mode(False), torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a kernel that has no gradient
        x, zero = x.clone().requires_grad_(), torch.zeros_like(x).requires_grad_()
        y = module(x)
        direction = torch.randn(y.shape, generator=generator).to(device, y.dtype)
        try:
            (gradient,) = torch.autograd.grad((y * direction).sum(), x)
        except RuntimeError:  # no gradient passes
            return False
        expected = (direction * (y - module(zero))).sum(-1)
    size = (direction * y).norm(dim=-1)
    return bool((((x * gradient).sum(-1) - expected).abs() <= TOLERANCE * size).all())
