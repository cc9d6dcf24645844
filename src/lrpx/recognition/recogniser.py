"""Say of every operation of a pass what it is, by its name and by what its operands came out of.

Activations written out are one activation. Softmax and sigmoid written out (``exp(x) / exp(x).sum()``, ``1 / (1 + exp(-x))``)
and renormalised weights (``p / p.sum()``) are what they are called: their parts keep the gradient that the rules give to exp. A
magnitude that multiplies a hidden state normalises it. A product with a constant gate has one factor fewer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from torch import Tensor

from ..models.modules import is_weight
from . import gates
from .activations import common_origin
from .call import Call, tensors_in
from .gates import edge_of, edges_of, operation_at
from .operations import GATING, Operation


class Seen(NamedTuple):
    """What an operation is.

    Attributes:
        kind: Of which the rule set may have a rule; ``""``: none is needed.
        call: With those operands detached that are constants.
        rank: Of the result, where its node in the graph does not say it (``gates.py``).
        known: It needs no rule of its kind: ``call()`` is the operation under it.
    """

    kind: str
    call: Call
    rank: int | None = None
    known: bool = False


class Recogniser:
    """Says what the operations of a pass are.

    Attributes:
        ruled: The kinds of operations that have a rule.
        gates: Whether a function with f(0) != 0 has been met, which rules may have made constant.
        magnitudes: Whether the magnitude of a hidden state has been met.
    """

    def __init__(self, ruled: Collection[str]) -> None:
        self.ruled = ruled
        self.gates = self.magnitudes = False

    def __call__(self, operation: Operation, call: Call, operands: list[Tensor]) -> Seen:
        """What a call is, of whose arguments ``operands`` carry gradient."""
        name, kind, _ = operation
        if kind in ("linear", "product", "contraction", "fused_product"):
            return self._product(kind, call, operands)
        if kind == "division":
            return self._division(call)
        if kind == "power":
            return self._power(call, name.strip("_"))
        if kind == "normaliser":
            return self._normaliser(call, name, operands[0])
        if kind in ("magnitude", "unit_norm") and gates.rank_of(operands[0]) == gates.CONSTANT:
            # The 1-norm of weights that are not negative is their sum.
            return Seen("softmax" if kind == "unit_norm" else "", call, gates.CONSTANT, known=True)
        if kind == "magnitude":
            return self._magnitude(kind, call)
        if kind == "sigmoid":
            self.gates = True
        if kind == "activation":
            return Seen(kind, call, gates.ACTIVATION if name.strip("_") in GATING or _is_relu(call, name) else None)
        if kind == "step":
            return Seen("", call.detached(lambda _: True))
        if kind == "attention" and len(set(map(id, operands))) < len(operands):
            call = call.change(lambda t: t.view_as(t) if t.requires_grad else t)  # rules tell operands by what they are
        return Seen(kind, call, _RANKS.get(kind) if kind in self.ruled else None)

    def module(self, kind: str, call: Call) -> Seen:
        """A module that is one element-wise function counts as one operation."""
        self.gates |= kind == "sigmoid"
        return Seen(kind, call, gates.ACTIVATION if kind == "activation" else gates.CONSTANT)

    def _normaliser(self, call: Call, name: str, operand: Tensor) -> Seen:
        if name in ("rsqrt", "reciprocal") and self._is_gate(operand):
            return Seen("", call, gates.CONSTANT)  # 1 / (1 + exp(-x)) is a sigmoid
        if name == "var_mean" and "normaliser" in self.ruled:  # the mean is no normaliser
            return Seen("", Call(lambda *args, **kwargs: _var_mean(call), call.args, call.kwargs, call.unknown))
        return Seen("normaliser", call)

    def _is_gate(self, tensor: Tensor) -> bool:
        """Whether a tensor is an element-wise function with f(0) != 0."""
        return self.gates and gates.rank_of(tensor, elementwise=True) == gates.CONSTANT

    def _magnitude(self, kind: str, call: Call) -> Seen:
        self.magnitudes = True
        return Seen(kind, call, gates.MAGNITUDE)

    def _product(self, kind: str, call: Call, operands: list[Tensor]) -> Seen:
        operands, bias = call.factors, call.bias
        if kind == "fused_product":
            if any(t is bias for t in operands) or ("linear" in self.ruled and bias is not None and bias.requires_grad):
                return Seen("unknown", call)
            kind = "linear" if len(operands) < 2 else "product" if call.name.strip("_") == "addcmul" else "contraction"
        if len(operands) < 2:
            by_weight = kind == "linear" or (kind == "contraction" and any(map(is_weight, tensors_in(call.args))))
            return Seen(
                "linear" if by_weight and operands else "", call, gates.SIGNAL if "linear" in self.ruled else None
            )
        kind = "contraction" if kind == "linear" else kind
        origin = common_origin(*operands) if kind == "product" and len(operands) == 2 else None
        if origin is not None and any(origin.preserved) and not all(origin.preserved):
            return self._written_out(call, operands[0 if origin.preserved[1] else 1], gates.ACTIVATION)
        if origin is not None and all(gates.rank_of(t) == gates.CONSTANT for t in operands):
            return Seen("", call)  # a function with f(0) != 0
        if origin is not None and all(origin.preserved):
            ranks = [gates.rank_of(t) for t in operands]
            return Seen(kind, call, gates.ACTIVATION if gates.ACTIVATION in ranks else None)  # relu(x) * relu(x)
        if self.gates:
            call = call.detached(gates.is_constant)
        if self.magnitudes and any(gates.rank_of(t) != gates.MAGNITUDE for t in call.factors):
            call = call.detached(lambda t: gates.rank_of(t) == gates.MAGNITUDE)  # it normalises the others
        return Seen(kind if len(call.factors) > 1 else "", call)

    def _division(self, call: Call) -> Seen:
        a, b = call.argument(0, "input"), call.argument(1, "other")
        a, b = (b, a) if call.name.startswith("__r") else (a, b)
        if not isinstance(b, Tensor) or not b.requires_grad:
            return Seen("", call)
        rank = gates.rank_of(b)
        if isinstance(a, Tensor) and a.requires_grad:
            if rank == gates.CONSTANT == gates.rank_of(a):
                return Seen("softmax", call, gates.CONSTANT, known=True)
            origin = common_origin(a, b)
            if origin is not None and origin.preserved[0]:
                return self._written_out(call, b, gates.ACTIVATION if rank == gates.CONSTANT else None)
        elif self._is_gate(b):
            return Seen("", call, gates.CONSTANT)
        return Seen("division", call)

    def _written_out(self, call: Call, other: Tensor, rank: int | None) -> Seen:
        """Relevance passes the other operand unchanged: with this one constant, that is the identity rule."""
        if "activation" in self.ruled:
            call = call.detached(lambda t: t is other)
        return Seen("activation", call, rank, known=True)

    def _power(self, call: Call, name: str) -> Seen:
        """``x ** n`` by its exponent: a power, a normaliser (n < 0), or a gate (a constant to the power of x)."""
        x, exponent = call.argument(0, "input"), _EXPONENTS.get(name) or call.argument(1, "exponent")
        if isinstance(exponent, Tensor) and exponent.numel() == 1 and not exponent.requires_grad:
            exponent = exponent.item()
        if isinstance(exponent, Tensor) and not exponent.requires_grad and bool((exponent > 0).all()):
            return Seen("activation", call)  # one for each channel
        if name == "rpow" or not isinstance(exponent, int | float) or not isinstance(x, Tensor):
            self.gates = True
            return Seen("sigmoid", call, gates.CONSTANT)
        if exponent <= 0:
            return Seen("", call, gates.CONSTANT) if self._is_gate(x) else Seen("normaliser", call)
        return self._magnitude("power", call) if exponent < 1 and _is_mean_of_squares(x) else Seen("power", call)


_EXPONENTS = {"square": 2, "sqrt": 0.5}
_RANKS = {"softmax": gates.CONSTANT, "sigmoid": gates.CONSTANT, "linear": gates.SIGNAL}


def _above(node: Any) -> Operation:
    """The operation of a node, or of the one above it if that is the same tensor."""
    operation = operation_at(node)
    return operation if operation.name != "alias" else operation_at(edges_of(node)[0][0])


def _is_relu(call: Call, name: str) -> bool:
    """Whether a clamp is a ReLU."""
    low, high = call.argument(1, "min"), call.argument(2, "max") if "min" not in name else None
    return (
        name.strip("_") in ("clamp", "clip", "clamp_min") and high is None and not isinstance(low, Tensor) and low == 0
    )


def _var_mean(call: Call) -> tuple[Tensor, Tensor]:
    variance, mean = call()
    return variance.detach(), mean


def _is_mean_of_squares(tensor: Tensor) -> bool:
    """Whether the tensor is a sum or mean of squares, bounded or with a constant added at most: its root is a magnitude."""
    node = edge_of(tensor)[0]
    for _ in range(8):
        name, kind, _ = operation_at(node)
        parents = [parent for parent, _ in edges_of(node)]
        if name in ("sum", "mean"):
            return _above(parents[0]).name in ("pow", "square", "mul")
        if len(parents) != 1 or (kind not in ("elementwise", "structure") and name != "scale"):
            return False
        node = parents[0]
    return False
