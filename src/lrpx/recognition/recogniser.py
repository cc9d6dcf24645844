"""Say of every operation of a pass what it is, by its name and by what its operands came out of.

Activations written out are one activation. Softmax and sigmoid written out (``exp(x) / exp(x).sum()``, ``1 / (1 + exp(-x))``)
and renormalised weights (``p / p.sum()``) are what they are called: their parts keep the gradient that the rules give to exp. A
magnitude that multiplies a hidden state normalises it. A product with a constant gate has one factor fewer.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from ..models.modules import is_weight
from . import gates
from .activations import common_origin
from .call import Call, tensors_in
from .gates import edge_of, edges_of
from .operations import GATING, Operation, operation_of_node


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
        if kind == "normaliser" and name in ("rsqrt", "reciprocal") and self._is_gate(operands[0]):
            return Seen("", call, gates.CONSTANT)  # 1 / (1 + exp(-x)) is a sigmoid
        if kind == "magnitude":
            return self._magnitude(kind, call)
        if kind == "sigmoid":
            self.gates = True
        if kind == "activation":
            return Seen(kind, call, gates.ACTIVATION if name.strip("_") in GATING else None)
        return Seen(kind, call, _RANKS.get(kind) if kind in self.ruled else None)

    def _is_gate(self, tensor: Tensor) -> bool:
        """Whether a tensor is an element-wise function with f(0) != 0."""
        return self.gates and gates.rank_of(tensor, elementwise=True) == gates.CONSTANT

    def _magnitude(self, kind: str, call: Call) -> Seen:
        self.magnitudes = True
        return Seen(kind, call, gates.MAGNITUDE)

    def _product(self, kind: str, call: Call, operands: list[Tensor]) -> Seen:
        if kind == "fused_product":
            summand = call.argument(0, "input")
            operands = [t for t in operands if t is not summand]
            if len(operands) > 1 and summand.requires_grad:
                return Seen("unknown", call)
            kind = "linear" if len(operands) < 2 else "contraction"
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
                return self._written_out(call, b, rank)
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
        if name == "rpow" or not isinstance(exponent, int | float) or not isinstance(x, Tensor):
            self.gates = True
            return Seen("sigmoid", call, gates.CONSTANT)
        if exponent <= 0:
            return Seen("", call, gates.CONSTANT) if self._is_gate(x) else Seen("normaliser", call)
        return self._magnitude("power", call) if exponent < 1 and _is_mean_of_squares(x) else Seen("power", call)


_EXPONENTS = {"square": 2, "sqrt": 0.5}
_RANKS = {"softmax": gates.CONSTANT, "sigmoid": gates.CONSTANT} | dict.fromkeys(
    ("layer_norm", "rms_norm", "unit_norm", "linear"), gates.SIGNAL
)


def _is_mean_of_squares(tensor: Tensor) -> bool:
    """Whether the tensor is a sum or mean of squares, bounded or with a constant added at most: its root is a magnitude."""
    node = edge_of(tensor)[0]
    for _ in range(8):
        name, kind, _ = operation_of_node(node.name())
        parents = [parent for parent, _ in edges_of(node)]
        if name in ("sum", "mean"):
            return operation_of_node(parents[0].name()).name in ("pow", "square", "mul")
        if len(parents) != 1 or (kind not in ("elementwise", "structure") and name != "scale"):
            return False
        node = parents[0]
    return False
