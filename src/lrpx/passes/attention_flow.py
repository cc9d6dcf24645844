r"""How relevance flows through one fused attention, for any rows of it, without a backward pass for each.

Between two places with a single attention in between, tokens are mixed by that attention only; all else (norms, projections,
MLP, residual stream) acts on each token alone. So with t's gradient :math:`g_t` at the attention's output, as the one
backward pass of the value left it, the relevance that token t takes from token s through values and keys is explicit:

.. math::
    R_{s \leftarrow t} = c_v \sum_h A^h_{ts} \, g^h_t \cdot \tilde v^h_s
           + c_k \sum_h A^h_{ts} (g^h_t \cdot v^h_s - \sum_r A^h_{tr} \, g^h_t \cdot v^h_r) \; q^h_t \cdot \tilde k^h_s

(times the scale of the scores), where :math:`\tilde v_s = (\partial v_s / \partial x_s) \, x_s` under the rules, and likewise
:math:`\tilde k_s`, and the c are what the rule for attention leaves of each gradient (``rules.uniform_attention``). What
goes through the query, the residual stream and the MLP stays at the token: the diagonal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .._torch_internals import no_function_modes
from ..propagation.propagate import Propagation
from ..propagation.rules import constant_attention, uniform_attention
from ..propagation.rulesets import RuleSet
from ..recognition.call import Call

CHUNK = 1 << 26  # attention weights that are computed at once


@dataclass(frozen=True, eq=False)
class FusedAttention:
    """A call of ``scaled_dot_product_attention`` for one text, and what it returned ``[1, H, T, dv]``."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    causal: bool
    scale: float
    output: Tensor

    @property
    def usable(self) -> bool:
        """Whether it is attention of one text to itself."""
        q, k, v = self.query, self.key, self.value
        plain = all(t.ndim == 4 and t.shape[0] == 1 and t.shape[2] == q.shape[2] for t in (q, k, v))
        return plain and q.shape[1] % k.shape[1] == 0 and k.shape[1] == v.shape[1] and self.output.requires_grad


class AttentionWatch(Propagation):
    """Applies the rules, and notes each fused attention.

    Attributes:
        calls: In order; ``None`` for one that was not kept.
        keeps: Whether calls are kept, with their tensors.
    """

    def __init__(self, rules: RuleSet) -> None:
        super().__init__(rules)
        self.calls: list[FusedAttention | None] = []
        self.keeps = True

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """As ``Propagation``."""
        output = super().__torch_function__(func, types, args, kwargs)
        if func is functional.scaled_dot_product_attention:
            self.calls.append(_noted(Call(func, args, kwargs or {}), output) if self.keeps else None)
        return output


def _noted(call: Call, output: Tensor) -> FusedAttention | None:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
    query, key, value, mask, dropout, causal, scale = (call.argument(i, name) for i, name in enumerate(names))
    if dropout or any(t is None for t in (query, key, value)):
        return None
    if mask is not None and mask.requires_grad:
        return None
    found = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    return FusedAttention(query, key, value, mask, bool(causal), found, output)


def shares_of(call: FusedAttention, rules: RuleSet) -> tuple[float, float] | None:
    """What the rule for attention leaves of the gradients of values and of keys; ``None``: it is a rule of another kind."""
    rule = rules.get("attention")
    if rule is None:
        return 1.0, 1.0
    if rule is constant_attention:
        return 1.0, 0.0
    if rule is uniform_attention and all(t.requires_grad for t in (call.query, call.key, call.value)):
        return 0.5, 0.25
    return None


def along(state: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    r""":math:`(\partial y / \partial x) \, x` for each of ``tensors``, by differentiating their backward pass.

    Raises:
        RuntimeError: An operation cannot be differentiated twice.
    """
    with no_function_modes():
        seeds = [torch.zeros_like(tensor, requires_grad=True) for tensor in tensors]
        (back,) = torch.autograd.grad(tensors, [state], seeds, create_graph=True, allow_unused=True)
        if back is None:
            return [torch.zeros_like(tensor) for tensor in tensors]
        found = torch.autograd.grad(back, seeds, state.detach(), allow_unused=True)
    return [torch.zeros_like(t) if f is None else f.detach() for t, f in zip(tensors, found, strict=True)]


@dataclass(frozen=True, eq=False)
class AttentionFlow:
    """One attention between two places, ready to say what rows of it take.

    Attributes:
        call: What was called.
        shares: Of ``shares_of``.
        gradient: Of the value at the attention's output.
        value, key: The values and keys along the lower state: see ``along``.
    """

    call: FusedAttention
    shares: tuple[float, float]
    gradient: Tensor
    value: Tensor
    key: Tensor | None

    def rows(self, tokens: Tensor) -> Tensor:
        """What the tokens take from each token through values and keys, wide ``[K, T]``."""
        heads, length = self.call.query.shape[1:3]
        at_once = max(1, CHUNK // (heads * length))
        return torch.cat([self._rows(part) for part in tokens.split(at_once)])

    def _rows(self, tokens: Tensor) -> Tensor:
        call, (of_value, of_key) = self.call, self.shares
        dtype = torch.promote_types(call.query.dtype, torch.float32)
        groups = call.query.shape[1] // call.key.shape[1]

        def wide(tensor: Tensor, rows: Tensor | None = None) -> Tensor:
            tensor = tensor.detach()[0]
            return (tensor if rows is None else tensor[:, rows]).to(dtype)

        def each_head(tensor: Tensor) -> Tensor:
            return wide(tensor).repeat_interleave(groups, 0)

        query, gradient = wide(call.query, tokens), wide(self.gradient, tokens)  # [H, K, d]
        scores = query @ each_head(call.key).mT * call.scale
        if call.causal:
            scores = scores.masked_fill(
                tokens[:, None] < torch.arange(scores.shape[-1], device=tokens.device), -math.inf
            )
        if call.mask is not None:
            mask = call.mask.detach()
            mask = mask[(0,) * (mask.ndim - 3)] if mask.ndim > 3 else mask
            mask = mask[..., tokens, :] if mask.shape[-2] > 1 else mask
            scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask.to(dtype)
        weights = scores.softmax(-1).nan_to_num(0.0)  # [H, K, T]
        found = of_value * (weights * (gradient @ each_head(self.value).mT)).sum(0)
        if of_key and self.key is not None:
            change = gradient @ each_head(call.value).mT
            change = weights * (change - (weights * change).sum(-1, keepdim=True))
            found = found + of_key * call.scale * (change * (query @ each_head(self.key).mT)).sum(0)
        return found
