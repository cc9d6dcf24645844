"""Activations that a model writes out in several operations: as a product, or as a module.

- A product or quotient whose two operands are element-wise functions of the same tensor is itself an activation of that tensor
  (``x * sigmoid(1.7 * x)``). Where relevance passes one operand unchanged, a constant other operand makes the whole follow the
  identity rule, ``R = y``, without any division.
- A module of several functions that is one element-wise activation (GPT-2's ``gelu_new``) counts as one operation, by forward
  hooks that are removed on exit.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._torch_internals import function_modes, no_dispatch_modes, no_function_modes
from .call import Call
from .gates import Edge, edge_of, edges_of
from .operations import operation_named, operation_of, operation_of_node
from .table import BOUNDS, SLOPES_AT_ZERO


class Applies(Protocol):
    """What applies rules: ``propagation.propagate.Propagation``."""

    unknown: Counter[str]

    @property
    def rules(self) -> Mapping[str, Callable[[Call], Any]]:
        """Kind of operation -> rule."""

    @property
    def recognise(self) -> Callable[[str, Call], Call]:
        """Says what an operation is."""

    def apply(self, call: Call) -> Any:
        """An operation under the rule of its kind."""


_STEPS = 64  # back from each factor: a longer chain of element-wise functions is no activation
_ELEMENTWISE = ("elementwise", "activation", "power", "sigmoid", "product", "division", "normaliser")


class Origin(NamedTuple):
    """The tensor that two factors are element-wise functions of, and whether relevance passes each on to it unchanged."""

    edge: Edge
    preserved: tuple[bool, bool]


def common_origin(a: Tensor, b: Tensor) -> Origin | None:
    """The nearest tensor that both are element-wise functions of, and of nothing else; ``None``: there is none."""
    return _common_origin([edge_of(a), edge_of(b)], 3)


def _common_origin(edges: list[Edge], nested: int) -> Origin | None:
    """Walk back from all edges in turns, nearest first, until all have met one."""
    walks = [_lineage(edge, nested) for edge in edges]
    met: list[dict[Edge, bool]] = [{} for _ in edges]
    going = set(range(len(edges)))
    while going:
        for i in sorted(going):
            step = next(walks[i], None)
            if step is None or len(met[i]) > _STEPS:
                going.discard(i)
                continue
            edge, kept = step
            met[i][edge] = kept
            if all(edge in each for each in met):
                flags = [each[edge] for each in met]
                return Origin(edge, (flags[0], all(flags[1:])))
    return None


def _lineage(edge: Edge, nested: int) -> Iterator[tuple[Edge, bool]]:
    """What the tensor of an edge is an element-wise function of, nearest first, and whether relevance passes unchanged."""
    keeps = True
    while True:
        yield edge, keeps
        node = edge[0]
        name, kind, *_ = operation_of_node(node.name())
        parents = edges_of(node) if kind in _ELEMENTWISE else []
        affine = name in ("add", "sub", "rsub", "addcmul") and len(parents) == 1  # x + 1, which is not 0 at 0
        inverse = kind == "division" and node.next_functions[0][0] is None  # 1 / x
        keeps = keeps and not (affine or inverse or kind in ("sigmoid", "normaliser"))
        if len(parents) == 1:
            edge = parents[0]
            continue
        origin = _common_origin(parents, nested - 1) if parents and nested else None
        if origin is None:
            return
        edge, keeps = origin.edge, keeps and all(origin.preserved)


def is_relu(name: str, call: Call) -> bool:
    """Whether a call is a ReLU or ReLU6, written as a clamp; ``nn.ReLU6`` calls ``hardtanh``."""
    low = call.argument(1, "min_val" if name == "hardtanh" else "min")
    return name in ("clamp", "clip", "clamp_min", "hardtanh") and isinstance(low, int | float) and low == 0


def slope_at_zero(call: Call) -> float:
    """The limit of f(x) / x at 0, of an activation that has one; or else 0.

    With a slope of 0 everywhere at 0, summands that cancel in the last bit would lose all relevance.
    """
    if call.at_zero is not None:
        return call.at_zero
    name = call.name.strip("_")
    if name not in BOUNDS:
        return SLOPES_AT_ZERO.get(name, 0.0)
    defaults = {"min_val": -1.0, "max_val": 1.0}
    bounds = {of: call.argument(i, of, defaults.get(of)) for i, of in enumerate(BOUNDS[name], 1)}
    within = (
        b is None or (isinstance(b, int | float) and (b < 0 if "min" in of else b > 0)) for of, b in bounds.items()
    )
    return float(all(within))


def activation_modules(modules: Iterable[nn.Module]) -> dict[nn.Module, str]:
    """Modules of several functions that are one activation -> a function like it: ``"gelu"``, or ``"sigmoid"`` (f(0) != 0).

    All of ``transformers.activations``, and a model's own by name, if a trial on a few numbers agrees. Those that call one
    function need nothing: that function has its rule.
    """
    found = {}
    for module in modules:
        kind = type(module)
        if _may_be_activation(kind.__module__, kind.__name__) and not getattr(module, "inplace", False):
            if module not in _tried:
                _tried[module] = _Trial(_try(module), _limit(module))
            like = _tried[module].like
            if like or (like is None and kind.__module__ == "transformers.activations"):
                found[module] = like or "gelu"
    return found


class _Trial(NamedTuple):
    like: str | None  # see ``_try``
    at_zero: float  # ``slope_at_zero``


_tried: WeakKeyDictionary[nn.Module, _Trial] = WeakKeyDictionary()  # what a module computes does not change


@cache
def _may_be_activation(file: str, name: str) -> bool:
    if file == "transformers.activations":
        return True
    return not file.startswith("torch.") and bool(re.search(r"gelu|silu|swish|relu|mish", name, re.IGNORECASE))


# Of a module that wants other arguments, or other shapes.
_REFUSALS = (RuntimeError, TypeError, ValueError, AttributeError, IndexError)


def _try(module: nn.Module) -> str | None:
    """What the module is like, by a trial on a few numbers; ``""``: one function; ``None``: it does not turn each by itself."""
    called = _Called()
    try:
        with torch.no_grad(), no_dispatch_modes():  # also while a pass is traced on tensors without numbers
            x = torch.tensor([-1.0, 0.0, 0.5, 2.0, -3.0, 0.1])
            with called:
                y = module.forward(x)
            turned, nothing = module.forward(x.flip(0)), module.forward(x[1:2])
            if any(module.children()) or not torch.equal(y.flip(0), turned) or y.shape != x.shape:
                return None
            if called.kinds == ["activation"]:
                return ""
            return "sigmoid" if nothing.abs().item() > 1e-3 else "gelu"  # xIELU rounds at 0
    except _REFUSALS:
        return None


def _limit(module: nn.Module) -> float:
    """The limit of f(x) / x, to six digits; 0 where it is another one from each side, or there is none."""
    try:
        with torch.no_grad(), no_dispatch_modes():
            x = torch.tensor([-1e-7, 1e-7], dtype=torch.float64)
            left, right = (module.forward(x) / x).tolist()
    except _REFUSALS:
        return 0.0
    return round((left + right) / 2, 6) if abs(left - right) < 1e-3 else 0.0


class _Called(TorchFunctionMode):
    """Notes the kinds of the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (kind := operation_of(func).kind) != "silent":
            self.kinds.append(kind)
        return func(*args, **(kwargs or {}))


def running(active: Applies) -> Applies | None:
    """What applies the rules of ``active`` in this thread now: maybe another mode, maybe none (others may use the model)."""
    modes: list[Any] = [m for m in function_modes() if getattr(m, "recognise", None) is active.recognise]
    return modes[-1] if modes else None


def make_one_operation(module: nn.Module, name: str, active: Applies, stack: ExitStack) -> None:
    """Until ``stack`` unwinds, let ``module`` compute on a detached input; a rule then connects input and output.

    Args:
        module: One of ``activation_modules``.
        name: Of a function like it.
        active: What applies rules. The call that it is given computes what the module does, with its gradient unless that is
            switched off.
        stack: Removes the hooks.
    """
    operation, inputs = operation_named(name), list[Tensor | None]()

    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if running(active) is None:
            return None
        x = args[0] if len(args) == 1 and isinstance(args[0], Tensor) and args[0].requires_grad else None
        inputs.append(x)
        with no_function_modes():
            return args if x is None else (x.detach(),)

    def after(_: nn.Module, args: tuple[Any, ...], y: Any) -> Any:
        now = running(active)
        if now is None or (x := inputs.pop()) is None:
            return y

        def function(given: Tensor) -> Any:  # a rule that wants the gradient, or another value, has it computed anew
            return y if given is x and not torch.is_grad_enabled() else module.forward(given)

        with no_function_modes():  # as wherever a rule is called: what it does is not looked at
            at_zero = _tried[module].at_zero
            call = Call(function, (x,), {}, now.unknown, operation.kind, operation.rank, at_zero=at_zero)
            return now.apply(now.recognise(name, call))

    stack.callback(module.register_forward_pre_hook(before).remove)
    stack.callback(module.register_forward_hook(after).remove)
