"""The one place where operations are intercepted: run a model so that its backward pass follows a rule set.

Inside ``with propagate(model, rules):``

1. a ``TorchFunctionMode`` sees every PyTorch function the model calls; where an operand carries gradient and the rule set
   has a rule for that kind of operation, the rule is applied instead, which returns the same value;
2. modules that are one element-wise activation made of several functions (GPT-2's ``gelu_new``, BLOOM's own GELU) count
   as one operation, through a forward hook that is removed on exit. Activations written out in the middle of a model
   (``x * torch.sigmoid(1.7 * x)``) are recognised too: a product of two element-wise functions of the same tensor is itself
   an element-wise function of it;
3. parameters carry no gradient, so a weight is never mistaken for a factor of a product and no weight gradient is computed.

Nothing is patched. Leaving the block, also by an exception, leaves nothing behind.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import UnsupportedModelError
from ..passes.output_head import Head
from .marks import common_lineage, is_mixed, joined, mark, mark_of
from .rules import carrying, signal_take_all, tensors_in
from .rulesets import RuleSet, get_rules, kind_of

GATES = frozenset({"activation", "power", "sigmoid", "softmax"})  # their output gates what it is multiplied with
ELEMENTWISE = frozenset({"elementwise", "activation", "power", "sigmoid", "product", "division"})


class Propagation(TorchFunctionMode):
    """Applies a rule set to every operation, and keeps count.

    Attributes:
        rules: The rule set.
        hits: How often a rule was applied, by kind of operation.
        met: How often a softmax or a fused attention was met, with or without a rule.
        cuts: How often the model's own code cut the gradient (``detach``): what passes there is a constant.
        unknown: What carried gradient in a way the rules do not know: function names, with how often.
        doubts: What can only be told from values, as (0-d boolean tensor, name); true ones belong to ``unknown``.
        keep_gradient: Ignore ``torch.no_grad()`` in the model's own code (HRM's inner cycles use it to save memory).
        head: Computes the explained logits only; ``None``: the model computes its logits as it does.
        threads: Where hooks take effect: the caller's thread, and the one in which blocks are recomputed.
        recomputing: Blocks are running once more, for the backward pass; what is noted of a pass is noted already.
    """

    def __init__(self, rules: RuleSet) -> None:
        super().__init__()
        self.rules = rules
        self.hits: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.cuts: Counter[str] = Counter()
        self.unknown: Counter[str] = Counter()
        self.doubts: list[tuple[Tensor, str]] = []
        self.keep_gradient = False
        self.head: Head | None = None
        self.threads = {threading.get_ident()}
        self.recomputing = False
        self.saving = saving_hooks()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name, kind, in_place = _described(func)
        if self.head is not None:
            if name == "linear" and self.head.is_asked(args, kwargs):
                return self.head(func, args, kwargs)
            if self.head.uses:
                output = self._run(func, name, kind, in_place, args, kwargs)
                self.head.follow(name, kind, tensors_in(args, kwargs), output)
                return output
        return self._run(func, name, kind, in_place, args, kwargs)

    def _run(
        self,
        func: Callable[..., Any],
        name: str,
        kind: str,
        in_place: bool,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        if kind == "silent" or not self.rules or not torch.is_grad_enabled():
            return None if name == "_set_grad_enabled" and self.keep_gradient else func(*args, **kwargs)
        tensors = tensors_in(args, kwargs)
        operands = [t for t in tensors if t.requires_grad or mark_of(t)]
        if not operands:
            if peek_interpreter_stack() is not None and any(_hidden_gradient(t) for t in tensors):
                self.unknown["vmap"] += 1
            return func(*args, **kwargs)
        if kind == "cut":
            self.cuts[name] += any(t.requires_grad for t in operands)
            return func(*args, **kwargs)
        if kind in ("softmax", "attention"):
            self.met[kind] += 1
        if (in_place or kwargs.get("inplace")) and kind in self.rules:
            return self._in_place(func, name, args, kwargs)

        if kind == "power":
            kind = _kind_of_power(name, args, kwargs)
        elif kind == "linear" and sum(t.requires_grad for t in operands) > 1:
            kind = "contraction"
        elif kind == "fused_product":
            kind = _kind_of_fused(args, kwargs)
        ancestors = common_lineage(operands) if kind in ELEMENTWISE else []
        if kind in ("product", "division") and len(operands) > 1 and ancestors:
            output = self._composite(func, args, kwargs, ancestors[0])
            kind = "activation"
        else:
            output = self._apply(kind, func, args, kwargs)
        _mark(args[0] if name == "__setitem__" else output, kind, operands, ancestors)
        if kind == "unknown" and any(t.requires_grad for t in _outputs(output)):
            self.unknown[name] += 1
        return output

    def _apply(self, kind: str, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The operation under its rule, or as it is where no rule is needed."""
        rule = self.rules.get(kind)
        if rule is None:
            return func(*args, **kwargs)
        factors = carrying(args, kwargs)
        if kind in ("product", "contraction") and len(factors) < 2:
            return func(*args, **kwargs)  # by a constant: linear
        if kind == "division" and not any(f is _denominator(func, args, kwargs) for f in factors):
            return func(*args, **kwargs)
        if not factors:
            return func(*args, **kwargs)
        if rule is signal_take_all and any(is_mixed(t) for t in factors):
            self.unknown["a product with a part of a concatenation of gates and signals"] += 1
        if not self.recomputing and saving_hooks() != self.saving:
            self.unknown["activation checkpointing inside the model"] += 1
        self.hits[kind] += 1
        return rule(func, args, kwargs)

    def _composite(self, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], root: Tensor) -> Any:
        """A product or quotient of two element-wise functions of ``root``: one activation of ``root``."""
        rule = self.rules.get("activation")
        if rule is None or not root.requires_grad:
            return func(*args, **kwargs)
        self.hits["activation"] += 1
        with torch.no_grad():
            y = func(*args, **kwargs)
            # f(0) != 0 shows near 0, where y / x is then far larger than it is at the largest values.
            slope = torch.where(root == 0, 0, y / root).abs()
            doubt = slope.amax() > 10 * (1 + y.abs().amax() / root.abs().amax())
        self.doubts.append((doubt, "an activation f with f(0) != 0, written out"))

        def function(x: Tensor) -> Tensor:
            if x is not root or torch.is_grad_enabled():
                raise UnsupportedModelError(
                    "the model writes an activation out in several operations, so a rule can have its value and not its "
                    "gradient. As the rule for 'activation', take one that computes the value in torch.no_grad(), such as "
                    "lrpx.rules.identity."
                )
            return y

        return rule(function, (root,), {})

    def _in_place(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An in-place operation with a rule: compute it out of place, then write the result, with its graph, back."""
        target = _first(args, kwargs)
        kwargs = {k: v for k, v in kwargs.items() if k != "inplace"}
        out_of_place = getattr(
            torch.Tensor, name.strip("_").removeprefix("i") if name.startswith("__i") else name.rstrip("_"), func
        )
        with self:
            result = out_of_place(target.clone(), *args[1:], **kwargs)
        noted = mark_of(result)
        target.copy_(result)
        mark(target, noted is not None and noted.gate)
        return target


@contextmanager
def propagate(
    model: nn.Module, rules: str | RuleSet, *, mode: type[Propagation] = Propagation
) -> Iterator[Propagation]:
    """Run the caller's own forward and backward pass of ``model`` under a rule set.

    Args:
        model: Any PyTorch model; its parameters do not carry gradient inside the block.
        rules: ``"lrp"``, ``"attnlrp"``, ``"lrp-uniform-gate"``, or a dictionary from kind of operation to rule.
        mode: A subclass that watches more.

    Yields:
        The mode, with ``hits`` and ``unknown``.

    Raises:
        InputError: No rule set has that name, or the dictionary names an unknown kind.

    Example:
        >>> with propagate(model, "attnlrp"):                                     # doctest: +SKIP
        ...     x = model.get_input_embeddings()(ids).detach().requires_grad_()
        ...     model(inputs_embeds=x).logits[0, -1, target].backward()
        >>> relevance = (x * x.grad).sum(-1).detach()                                     # doctest: +SKIP
    """
    active = mode(get_rules(rules))
    with ExitStack() as stack:
        stack.enter_context(frozen(model))
        for module in model.modules() if "activation" in active.rules else ():
            if is_activation(module):
                _hook_activation(module, active, stack)
        stack.enter_context(active)
        yield active


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter of ``model`` carries gradient inside the block; afterwards each is as it was."""
    # By place: a weight that is loaded for its module's pass is another tensor in each.
    trainable = [
        (m, name) for m in model.modules() for name, p in m._parameters.items() if p is not None and p.requires_grad
    ]
    try:
        _require_gradient(trainable, False)
        yield
    finally:
        _require_gradient(trainable, True)


def _require_gradient(places: Sequence[tuple[nn.Module, str]], required: bool) -> None:
    for module, name in places:
        parameter = module._parameters[name]
        if parameter is not None and parameter.is_meta and parameter.is_inference():
            # Offloaded after a pass inside ``torch.inference_mode()``. It stands for the weight and holds no numbers.
            module._parameters[name] = nn.Parameter(torch.empty_like(parameter), required)
        elif parameter is not None:
            parameter.requires_grad_(required)


def is_activation(module: nn.Module) -> bool:
    """Whether ``module`` is one element-wise activation: all of ``transformers.activations``, and a model's own by name."""
    kind = type(module)
    if getattr(module, "inplace", False):
        return False  # what it writes into must be seen
    if kind.__module__ == "transformers.activations":
        return True
    own = re.search(r"gelu|silu|swish|relu|mish", kind.__name__, re.IGNORECASE)
    return bool(own) and not any(module.children()) and _is_elementwise(module)


def _is_elementwise(module: nn.Module) -> bool:
    """Try ``module`` on a few numbers: does it turn each into one by itself, and 0 into 0?"""
    try:
        with torch.no_grad(), _disable_current_modes():  # also while a pass is traced on tensors without numbers
            x = torch.tensor([-1.0, 0.0, 0.5, 2.0, -3.0, 0.1])
            y, turned, nothing = module(x), module(x.flip(0)), module(x[1:2])
            return bool(torch.equal(y.flip(0), turned) and y.shape == x.shape and nothing.abs().item() == 0)
    except Exception:  # it wants other arguments, has parameters elsewhere, ...: then it is no plain activation
        return False


def _hook_activation(module: nn.Module, mode: Propagation, stack: ExitStack) -> None:
    """Make ``module`` one operation: it computes on a detached input, then the activation rule connects input and output."""
    inputs: list[Tensor | None] = []

    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if threading.get_ident() not in mode.threads:
            return None
        x = args[0] if len(args) == 1 and isinstance(args[0], Tensor) and args[0].requires_grad else None
        inputs.append(x)
        with torch._C.DisableTorchFunction():
            return args if x is None else (x.detach(),)

    def after(_: nn.Module, args: tuple[Any, ...], y: Any) -> Any:
        if threading.get_ident() not in mode.threads:
            return y
        x = inputs.pop()
        if x is None:
            return y
        mode.hits["activation"] += not mode.recomputing

        def function(given: Tensor) -> Any:
            if given is x and not torch.is_grad_enabled():
                return y
            return module.forward(given)  # a rule that wants the gradient too, or another value

        with torch._C.DisableTorchFunction():  # as wherever a rule is called: what it does is not looked at
            output = mode.rules["activation"](function, (x,), {})
        _mark(output, "activation", [x], common_lineage([x]))
        return output

    stack.callback(module.register_forward_pre_hook(before).remove)
    stack.callback(module.register_forward_hook(after).remove)


def _mark(output: Any, kind: str, operands: list[Tensor], ancestors: list[Tensor]) -> None:
    """Note on the output whether it is a gate, and which tensors it is an element-wise function of."""
    through = kind in ("structure", "elementwise", "division") or (kind == "product" and len(operands) == 1)
    gate = True if kind in GATES else joined(operands, mixes=kind == "structure") if through else False
    for tensor in _outputs(output):
        same = [a for a in ancestors if a is not tensor and a.shape == tensor.shape]
        if gate is not False or same or mark_of(tensor):  # what is returned may be an operand, marked before
            mark(tensor, gate, same)


def _outputs(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [t for t in output if isinstance(t, Tensor)] if isinstance(output, tuple | list) else []


def saving_hooks() -> Any:
    """What stands between autograd and what it saves; checkpointing would recompute that without the rules."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)  # since torch 2.7
    return None if top is None else top(True)


def _hidden_gradient(tensor: Tensor) -> bool:
    """Whether a tensor inside ``torch.vmap`` and its like carries gradient outside of it."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def _first(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    return args[0] if args else kwargs.get("input")


def _kind_of_power(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """``x ** n`` by its exponent: a power, a normaliser (n < 0), or a gate (a constant to the power of x)."""
    exponent = 2 if "square" in name else args[1] if len(args) > 1 else kwargs.get("exponent")
    if isinstance(exponent, Tensor) and exponent.numel() == 1 and not exponent.requires_grad:
        exponent = exponent.item()
    if name.startswith("__r") or not isinstance(exponent, int | float) or not isinstance(_first(args, kwargs), Tensor):
        return "sigmoid"
    return "power" if exponent > 0 else "normaliser"


def _denominator(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    if func.__name__.startswith("__r"):
        return args[0]
    return args[1] if len(args) > 1 else kwargs.get("other")


def _kind_of_fused(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """``addmm`` and its like: a product if both factors carry gradient, linear if one does."""
    summand = _first(args, kwargs)
    factors = [t for t in carrying(args, kwargs) if t is not summand]
    if len(factors) < 2:
        return "linear"
    return "unknown" if summand.requires_grad else "contraction"


@cache
def _described(func: Callable[..., Any]) -> tuple[str, str, bool]:
    """A PyTorch function's name, its kind, and whether it writes into its first operand."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        name = getattr(getattr(func, "__self__", None), "__name__", name)  # a property: T, data, grad, ...
    dunder = name.startswith("__")
    return name, kind_of(name), name.startswith("__i") or (name.endswith("_") and not dunder)
