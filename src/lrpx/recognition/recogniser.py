"""Say of every operation of a pass what it is, by its name and by what its operands came out of.

Activations written out are one activation. Softmax and sigmoid written out (``exp(x) / exp(x).sum()``, ``1 / (1 + exp(-x))``)
and renormalised weights (``p / p.sum()``) are what they are called: their parts keep the gradient that the rules give to exp. A
magnitude that multiplies a hidden state normalises it. A product with a constant gate has one factor fewer.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from torch import Tensor

from ..models.modules import is_weight
from .activations import common_origin, is_relu
from .call import Call, tensors_in
from .composed import constant_variance, sums_nothing
from .gates import is_constant, is_mean_of_squares, rank_of
from .operations import ACTIVATION, CONSTANT, MAGNITUDE, SIGNAL


class Recogniser:
    """Says what the operations of a pass are.

    Attributes:
        ruled: The kinds of operations that have a rule.
        ranks: The ranks that have been met; what has not been is not looked for.
    """

    def __init__(self, ruled: Collection[str]) -> None:
        self.ruled = ruled
        self.ranks: set[int | None] = set()

    def __call__(self, name: str, call: Call) -> Call:
        """The call of a function of that name, with its kind and rank, and with those operands detached that are constants."""
        call = self._seen(name, call)
        self.ranks.add(call.rank)
        return call

    def _seen(self, name: str, call: Call) -> Call:
        kind = call.kind
        if kind in ("activation", "power") and CONSTANT in self.ranks and {*map(rank_of, call.operands)} == {CONSTANT}:
            return replace(call, kind="", rank=CONSTANT)  # sqrt(softplus(x)) is not 0 at 0 either
        if kind in ("linear", "product", "contraction"):
            return self._product(call)
        if kind == "division":
            return self._division(call)
        if kind == "power":
            return self._power(call)
        if name in ("rsqrt", "reciprocal"):
            return self._inverse(call, call.argument(0, "input"))
        if name == "var_mean" and kind in self.ruled:  # the mean is no normaliser
            return replace(call, kind="", function=partial(constant_variance, call))
        if kind in ("magnitude", "unit_norm") and rank_of(call.operands[0]) == CONSTANT:  # the 1-norm is a sum
            return replace(call, kind="softmax" if kind == "unit_norm" else "", rank=CONSTANT, written_out=True)
        if kind == "step":
            return replace(call.detached(lambda _: True), kind="")
        if kind == "attention" and len(set(map(id, call.operands))) < len(call.operands):
            return call.change(lambda t: t[...] if t.requires_grad else t)  # rules tell operands by what they are
        return replace(call, rank=ACTIVATION) if is_relu(name, call) else call

    def _product(self, call: Call) -> Call:
        factors = call.factors
        if len(call.operands) > len(factors) + ("linear" not in self.ruled):
            return replace(call, kind="unknown")  # the bias is a factor, too; or a rule would have to share with it
        if len(factors) < 2:
            contracts = call.kind == "contraction" and any(map(is_weight, tensors_in(call.args)))
            by_weight = call.kind == "linear" or contracts
            rank = SIGNAL if "linear" in self.ruled else None
            return replace(call, kind="linear" if by_weight and factors else "", rank=rank)
        if call.kind == "linear":
            call = replace(call, kind="contraction")
        if call.name == "einsum" and sums_nothing(call.argument(0, "equation")):
            call = replace(call, kind="product")
        origin = common_origin(*factors) if call.kind == "product" and len(factors) == 2 else None
        if origin is not None:
            (first, second), ranks = origin.preserved, [rank_of(t) for t in factors]
            gating = ACTIVATION if len(call.operands) == 2 else None  # addcmul adds a signal
            if first != second:
                return self._written_out(call, factors[1] if first else factors[0], gating)
            if ranks == [CONSTANT, CONSTANT]:
                return replace(call, kind="")  # a function with f(0) != 0
            if first:
                return replace(call, rank=gating if ACTIVATION in ranks else None)  # relu(x) * relu(x)
        if CONSTANT in self.ranks:
            call = call.detached(is_constant)
        if MAGNITUDE in self.ranks and any(rank_of(t) != MAGNITUDE for t in call.factors):
            call = call.detached(lambda t: rank_of(t) == MAGNITUDE)  # it normalises the others
        return call if len(call.factors) > 1 else replace(call, kind="")

    def _division(self, call: Call) -> Call:
        a, b = call.fraction
        if not (isinstance(b, Tensor) and b.requires_grad):
            return replace(call, kind="")
        if not (isinstance(a, Tensor) and a.requires_grad):
            return self._inverse(call, b)
        rank, origin = rank_of(b), common_origin(a, b)
        if rank == CONSTANT == rank_of(a):
            return replace(call, kind="softmax", rank=CONSTANT, written_out=True)
        if origin is not None and origin.preserved[0]:
            return self._written_out(call, b, ACTIVATION if rank == CONSTANT else None)
        if self._inverse(call, b).rank == CONSTANT:
            return self._product(replace(call, kind="product"))  # x / (1 + exp(-y)) is x * sigmoid(y)
        return call

    def _power(self, call: Call) -> Call:
        """``x ** n`` by its exponent: a power, a normaliser (n < 0), or a gate (a constant to the power of x)."""
        x, n = call.argument(0, "input"), call.exponent
        if isinstance(n, Tensor) and not n.requires_grad and bool((n > 0).all()):
            return replace(call, kind="activation")  # one for each channel
        if not (isinstance(n, int | float) and isinstance(x, Tensor)):
            return replace(call, kind="sigmoid", rank=CONSTANT)
        if n <= 0:
            return self._inverse(replace(call, kind="normaliser"), x)
        return replace(call, rank=MAGNITUDE) if n < 1 and is_mean_of_squares(x) else call

    def _inverse(self, call: Call, of: Tensor) -> Call:
        """``1 / x``; of an element-wise function with f(0) != 0 it is another one: ``1 / (1 + exp(-x))`` is a sigmoid."""
        is_gate = CONSTANT in self.ranks and rank_of(of, elementwise=True) == CONSTANT
        return replace(call, kind="", rank=CONSTANT) if is_gate else call

    def _written_out(self, call: Call, other: Tensor, rank: int | None) -> Call:
        """Relevance passes all operands but one unchanged: with this one constant, that is the identity rule."""
        if "activation" in self.ruled:
            call = call.detached(lambda t: t is other)
        return replace(call, kind="activation", rank=rank, written_out=True)
