"""Attention weights, and what is made with them: which operations give, keep and use them, noted on the tensors themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

SOFTMAX = (functional.softmax, torch.softmax, Tensor.softmax)


CONTRACTION = (torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm, torch.einsum)


# What may be done to attention weights before they meet the values, beside views, which are known by their base.
# A dropout returns a new tensor while a pass is traced.
KEEPS_WEIGHTS: tuple[Callable[..., Any], ...] = (
    *(Tensor.to, Tensor.type_as, Tensor.half, Tensor.bfloat16, Tensor.float, Tensor.masked_fill),
    functional.dropout,
)


def mark(tensor: Tensor) -> None:
    """These are attention weights."""
    tensor._lrpx_attention_weights = True  # type: ignore[attr-defined]


def are_weights(value: Any) -> bool:
    """Whether a tensor is attention weights or a view of them."""
    if not isinstance(value, Tensor):
        return False
    base = value if value._base is None else value._base
    return hasattr(value, "_lrpx_attention_weights") or hasattr(base, "_lrpx_attention_weights")


def order_in_einsum(equation: str) -> tuple[int, ...] | None:
    """How to permute weights times values into ``[B, ..., T, head_dim]``; ``None`` if the product is another one.

    In ``"bnij,bjnd->bind"`` i is the token that reads, j those that are read, d the width of a head, b the batch.
    """
    terms, _, result = equation.replace(" ", "").partition("->")
    of_weights, of_values = terms.split(",")
    reads = of_weights[-2]
    width = [letter for letter in result if letter not in of_weights]
    if len(width) != 1 or of_weights[-1] in result:
        return None
    order = tuple(result.find(letter) for letter in (*of_weights[:-2], reads, *width))
    return order if -1 not in order and of_weights[-1] in of_values else None
