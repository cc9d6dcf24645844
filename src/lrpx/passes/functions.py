"""What a user's own function makes of the logits at one position, as the scalar that is explained.

The function is asked for its value and its gradient outside the rules: it says what is explained, and is no part of the model.
Relevance then begins at the logits with that gradient, so that the function itself is in no graph that is checked for rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .._torch_internals import no_function_modes
from ..errors import InputError
from ..text.batching import Function
from ..text.given import name_of


def score_of(function: Function, logits: Tensor, exact: torch.dtype) -> Tensor:
    """The function's value as a scalar of the dtype ``exact``, with the function's gradient at the logits ``[n]``.

    Raises:
        InputError: See ``value_and_gradient``.
    """
    value, gradient = value_and_gradient(function, logits)
    with no_function_modes(), torch.enable_grad():
        linear = (logits.to(exact) * gradient.to(exact)).sum()
        return linear + (value.to(linear) - linear.detach())


def value_and_gradient(function: Function, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The function's value, a scalar, and its gradient at the logits ``[n]``, without their graph.

    The function gets a copy in float32, or in the model's dtype if that is wider, and may change it. One that does not take them
    as they are has a ``shape`` that says what it takes.

    Raises:
        InputError: It does not return one number that depends on the logits, or its value or gradient is not finite.
    """
    name, shape = name_of(function), list(getattr(function, "shape", logits.shape))
    with no_function_modes(), torch.enable_grad():
        leaf = logits.detach().to(torch.promote_types(logits.dtype, torch.float32), copy=True).requires_grad_()
        value = function(leaf.clone())
        if not isinstance(value, Tensor) or value.numel() != 1 or value.is_complex():
            raise InputError(
                f"the function {name} returned {_shown(value)}. It gets the logits, {shape}, and has to return a tensor with "
                "one number: lambda logits: logits[ids].logsumexp(0)."
            )
        gradient = torch.autograd.grad(value.sum(), leaf, allow_unused=True)[0] if value.requires_grad else None
        if gradient is None:
            raise InputError(
                f"the function {name} returned a number without a gradient: it does not depend on the logits, or cuts them off "
                "(detach, item, argmax, a comparison). There is nothing to explain."
            )
        if leaf.isfinite().all():  # or else the model is to blame, and the pass says so
            if not value.isfinite():
                raise InputError(f"the function {name} returned {value.item()}: finite numbers can be explained.")
            if not gradient.isfinite().all():
                raise InputError(
                    f"the function {name} has a gradient that is not finite where it is {value.item():.4g}."
                )
        return value.detach().reshape(()), gradient


def with_functions(functions: Sequence[Function | None], scores: Tensor, picked: Tensor) -> Tensor:
    """What is explained of B items, ``picked`` ``[B, 2]``, where an item has a function with its value and 0.

    Args:
        functions: B functions of all scores, or ``None`` for an item that has none.
        scores: ``[B, n]``.
        picked: The scores of target and contrast, of the dtype in which values are computed.

    Raises:
        InputError: See ``score_of``.
    """
    with no_function_modes():
        rows = [
            score if function is None else torch.stack([score_of(function, row, picked.dtype), score.new_zeros(())])
            for function, row, score in zip(functions, scores, picked, strict=True)
        ]
        return torch.stack(rows)


def _shown(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {list(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    return f"{type(value).__name__}"
