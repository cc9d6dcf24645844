"""The one place where operations are intercepted: run a model so that its backward pass follows a rule set.

Inside ``with propagate(model, rules):``

1. a ``TorchFunctionMode`` sees every PyTorch function the model calls. Where an operand carries gradient and the rule set has a
   rule for that kind of operation, the rule is applied instead, which returns the same value;
2. only at products the autograd graph is read, to see what the factors came out of (``gates.py``, ``activations.py``);
3. parameters carry no gradient, so a weight is never mistaken for a factor of a product.

Nothing is patched. Leaving the block, also by an exception, leaves nothing behind.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .._torch_internals import (
    function_modes,
    has_hidden_gradient,
    inside_transform,
    saved_tensor_hooks,
    seen_from_inside,
)
from ..errors import UnsupportedModelError
from . import gates, rules
from .activations import Apply, activation_modules, common_origin, make_one_operation
from .operations import GATING, Operation, operation_of
from .rules import Call, Notes, tensors_in
from .rulesets import RuleSet, get_rules

Handler = Callable[["Propagation", Operation, Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]


class Propagation(TorchFunctionMode):
    """Applies a rule set to every operation, and keeps count.

    Attributes:
        rules: The rule set.
        hits: How often a rule was applied, by kind of operation.
        met: How often a softmax or a fused attention was met, with or without a rule.
        cuts: How often the model's own code cut the gradient (``detach``): what passes there is a constant.
        unknown: What carried gradient in a way the rules do not know: function names, with how often.
        added: PyTorch function -> what is called instead of it.
        saving: The saved-tensor hooks under which rules may run: others would recompute operations without them.
    """

    def __init__(self, rules: RuleSet) -> None:
        super().__init__()
        self.rules = rules
        self.hits: Counter[str] = Counter()
        self.met: Counter[str] = Counter()
        self.cuts: Counter[str] = Counter()
        self.notes = Notes()
        self.unknown = self.notes.unknown
        self.added: dict[Callable[..., Any], Handler] = {}
        self._handlers: dict[Callable[..., Any], tuple[Handler | None, Operation]] = {}
        self.saving = saved_tensor_hooks()

    def another(self) -> Propagation:
        """One that applies the same rules in the same way, for operations that run once more; it counts apart."""
        other = type(self)(self.rules)
        other.added, other.notes.gates, other.notes.magnitudes = self.added, self.notes.gates, self.notes.magnitudes
        return other

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            handler, operation = self._handlers[func]
        except KeyError:
            operation = operation_of(func)
            handler = self.added.get(func) or self._handler_of(operation)
            self._handlers[func] = handler, operation
        if handler is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return handler(self, operation, func, args, kwargs or {})

    def _handler_of(self, operation: Operation) -> Handler | None:
        kind = operation.kind
        if kind in ("structure", "elementwise") and "linear" in self.rules:
            return Propagation._follow_weight
        if not self.rules or kind in ("silent", "structure", "elementwise"):
            return None
        if kind == "container":
            return Propagation._run_through
        if kind == "linear" and kind not in self.rules:
            return Propagation._look_unless_weight
        return Propagation._look_if_both_carry if kind == "product" and not operation.in_place else Propagation._look

    def _follow_weight(
        self, _: Operation, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Weights that are selected, cast or moved stay weights: an expert's, say."""
        output, tensors = func(*args, **kwargs), tensors_in(args, kwargs)
        if any(map(_is_weight, tensors)) and not any(t.requires_grad for t in tensors):
            for tensor in _tensors_of(output):
                tensor._lrpx_weight = True  # type: ignore[attr-defined]
        return output

    def _run_through(
        self, _: Operation, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """A function that contains a whole layer: the mode sees the functions that it calls."""
        with self:
            return seen_from_inside(func)(*args, **kwargs)

    def _look_unless_weight(
        self, operation: Operation, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Most linear operations multiply by a weight, which carries no gradient: the quick way out."""
        if len(args) > 1 and not args[1].requires_grad:
            return func(*args, **kwargs)
        return self._look(operation, func, args, kwargs)

    def _look_if_both_carry(
        self, operation: Operation, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Most products have a constant factor: the quick way out."""
        if len(args) == 2 and not inside_transform():
            a, b = args
            if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.requires_grad and b.requires_grad):
                return func(a, b)
        return self._look(operation, func, args, kwargs)

    def _look(
        self, operation: Operation, func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """An operation that may need a rule."""
        name, kind, in_place = operation
        tensors = tensors_in(args, kwargs)
        operands = [t for t in tensors if t.requires_grad]
        if not operands or not torch.is_grad_enabled():
            if tensors and inside_transform() and any(map(has_hidden_gradient, tensors)):
                self.unknown["vmap"] += 1
            return func(*args, **kwargs)
        if kind == "cut":
            self.cuts[name] += 1
            return func(*args, **kwargs)
        if (in_place or kwargs.get("inplace")) and kind in self.rules:
            return self._in_place(func, name, args, kwargs)
        call = Call(func, args, kwargs, self.notes)
        if kind in ("softmax", "attention"):
            self.met[kind] += 1
        if kind in ("linear", "product", "contraction", "fused_product"):
            return self._product(call, kind, operands)
        if kind == "division":
            return self._division(call, operands)
        if kind == "power":
            return self._power(call, name)
        if kind == "normaliser" and name in ("rsqrt", "reciprocal") and self._is_gate(operands[0]):
            return _ranked(call(), gates.CONSTANT)  # 1 / (1 + exp(-x)) is a sigmoid
        if kind == "unknown":
            output = call()
            if any(t.requires_grad for t in _tensors_of(output)):
                self.unknown[name] += 1
            return output
        return self.apply(kind, call, name)

    def apply(self, kind: str, call: Call, name: str = "") -> Any:
        """The operation under the rule of its kind, or as it is where there is none."""
        rule = self.rules.get(kind)
        if rule is None:
            output = call()
        else:
            if saved_tensor_hooks() != self.saving:
                self.unknown["activation checkpointing inside the model"] += 1
            self.hits[kind] += 1
            output = rule(call)
        if kind == "activation":
            return _ranked(output, gates.ACTIVATION) if name.strip("_") in GATING else output
        return self._magnitude(output) if kind == "magnitude" else output

    def apply_to_module(self, kind: str, function: Callable[..., Any], x: Tensor) -> Any:
        """A module that is one activation of ``x``, as one operation."""
        output = self.apply(kind, Call(function, (x,), {}, self.notes))
        return _ranked(output, gates.ACTIVATION) if kind == "activation" else output

    def _product(self, call: Call, kind: str, operands: list[Tensor]) -> Any:
        if kind == "fused_product":
            summand = call.argument(0, "input")
            operands = [t for t in operands if t is not summand]
            kind = "linear" if len(operands) < 2 else "unknown" if summand.requires_grad else "contraction"
            if kind == "unknown":
                self.unknown[call.name] += 1
                return call()
        if len(operands) < 2:
            by_weight = kind == "linear" or (kind == "contraction" and any(map(_is_weight, call.tensors)))
            return self.apply("linear", call) if by_weight and "linear" in self.rules else call()
        kind = "contraction" if kind == "linear" else kind
        origin = common_origin(*operands) if kind == "product" and len(operands) == 2 else None
        if origin is not None and any(origin.preserved):
            return self._written_out(call, operands, origin.preserved, gates.ACTIVATION)
        if origin is not None and all(gates.rank_of(t) == gates.CONSTANT for t in operands):
            return call()  # a function with f(0) != 0, written out
        if self.notes.gates:
            call = call.detached(gates.is_constant)
        return self.apply(kind, call) if len(call.factors) > 1 else call()

    def _division(self, call: Call, operands: list[Tensor]) -> Any:
        a, b = call.argument(0, "input"), call.argument(1, "other")
        a, b = (b, a) if call.name.startswith("__r") else (a, b)
        if not isinstance(b, Tensor) or not b.requires_grad:
            return call()
        rank = gates.rank_of(b)
        if isinstance(a, Tensor) and a.requires_grad:
            if rank == gates.CONSTANT == gates.rank_of(a):  # softmax written out, or renormalised: p / p.sum()
                self.met["softmax"] += 1
                return call()
            origin = common_origin(a, b)
            if origin is not None and origin.preserved[0]:
                return self._written_out(call, [a, b], (True, False), rank)
        elif self._is_gate(b):  # 1 / (1 + exp(-x)) is a sigmoid
            return call()
        return self.apply("division", call)

    def _written_out(self, call: Call, operands: list[Tensor], preserved: tuple[bool, bool], rank: int | None) -> Any:
        """A product or quotient of two element-wise functions of one tensor: one activation of that tensor."""
        rule = self.rules.get("activation")
        if rule is None:
            return call()
        if rule is not rules.identity:
            self.unknown["an activation written out, for which only the rule lrpx.rules.identity can be used"] += 1
        self.hits["activation"] += 1
        if all(preserved):  # x * x
            return self.apply("product", call)
        other = operands[0 if preserved[1] else 1]
        return _ranked(call.detached(lambda t: t is other)(), rank)

    def _power(self, call: Call, name: str) -> Any:
        """``x ** n`` by its exponent: a power, a normaliser (n < 0), or a gate (a constant to the power of x)."""
        bare, x = name.strip("_"), call.argument(0, "input")
        exponent = {"square": 2, "sqrt": 0.5}.get(bare, call.argument(1, "exponent"))
        if isinstance(exponent, Tensor) and exponent.numel() == 1 and not exponent.requires_grad:
            exponent = exponent.item()
        if bare == "rpow" or not isinstance(exponent, int | float) or not isinstance(x, Tensor):
            return self.apply("sigmoid", call)
        if exponent <= 0:
            return _ranked(call(), gates.CONSTANT) if self._is_gate(x) else self.apply("normaliser", call)
        output = self.apply("power", call)
        return self._magnitude(output) if exponent < 1 and gates.is_mean_of_squares(x) else output

    def _magnitude(self, output: Any) -> Any:
        self.notes.magnitudes += 1
        return _ranked(output, gates.MAGNITUDE)

    def _in_place(self, func: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An in-place operation with a rule: compute it out of place, then write the result, with its graph, back."""
        target = args[0] if args else kwargs["input"]
        kwargs = {k: v for k, v in kwargs.items() if k != "inplace"}
        bare = name.strip("_").removeprefix("i") if name.startswith("__i") else name.rstrip("_")
        with self:
            result = getattr(torch.Tensor, bare, func)(target.clone(), *args[1:], **kwargs)
        return target.copy_(result)

    def _is_gate(self, tensor: Tensor) -> bool:
        """Whether a tensor is an element-wise function with f(0) != 0."""
        return gates.rank_of(tensor, elementwise=True) == gates.CONSTANT


@contextmanager
def propagate(
    model: nn.Module,
    rules: str | RuleSet,
    *,
    mode: type[Propagation] = Propagation,
    unknown: Literal["raise", "warn", "ignore"] = "raise",
) -> Iterator[Propagation]:
    """Run the caller's own forward and backward pass of ``model`` under a rule set.

    Args:
        model: Any PyTorch model; its parameters do not carry gradient inside the block.
        rules: ``"lrp"``, ``"attnlrp"``, ``"lrp-uniform-gate"``, or a dictionary from kind of operation to rule.
        mode: A subclass that watches more.
        unknown: What happens on leaving the block if operations without a known rule carried gradient.

    Yields:
        The mode, with ``hits`` and ``unknown``.

    Raises:
        InputError: No rule set has that name, or the dictionary names an unknown kind.
        UnsupportedModelError: A part of the model is TorchScript, which hides its operations; or operations without a known
            rule carried gradient, so that a map would be wrong.

    Example:
        >>> with propagate(model, "attnlrp"):                                     # doctest: +SKIP
        ...     x = model.get_input_embeddings()(ids).detach().requires_grad_()
        ...     model(inputs_embeds=x).logits[0, -1, target].backward()
        >>> relevance = (x * x.grad).sum(-1).detach()                                     # doctest: +SKIP
    """
    active = mode(get_rules(rules))
    modules = modules_of(model)
    check_no_torchscript(model, modules)
    with ExitStack() as stack:
        stack.enter_context(frozen(modules))
        for module, kind in activation_modules(modules).items() if "activation" in active.rules else ():
            make_one_operation(module, kind, partial(_active_here, active.rules), stack)
        stack.enter_context(active)
        yield active
    if active.unknown and unknown != "ignore":
        message = f"gradient passed through operations without a known rule: {', '.join(active.unknown)}"
        if unknown == "raise":
            raise UnsupportedModelError(f'{message}. To go on with a warning: propagate(..., unknown="warn").')
        warnings.warn(f"{message}; maps are wrong there.", stacklevel=3)


def _active_here(rule_set: RuleSet) -> Apply | None:
    """What applies the rule set in this thread, in which another pass may use the model: maybe nothing."""
    modes = (mode for mode in reversed(function_modes()) if isinstance(mode, Propagation) and mode.rules is rule_set)
    mode = next(modes, None)
    return None if mode is None else mode.apply_to_module


def modules_of(model: nn.Module) -> list[nn.Module]:
    """The modules of a model, each once; ``model.modules()`` takes five times as long."""
    found, seen = [model], {model}
    for module in found:  # which grows meanwhile
        for child in module._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                found.append(child)
    return found


def check_no_torchscript(model: nn.Module, modules: Sequence[nn.Module]) -> None:
    """Refuse a model of which a part is TorchScript.

    Raises:
        UnsupportedModelError: The error names the module.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        name, module = next((n, m) for n, m in model.named_modules() if isinstance(m, torch.jit.ScriptModule))
        raise UnsupportedModelError(
            f"{name or 'the model'} is TorchScript ({type(module).__name__}), which hides its operations, so no rule can be "
            "applied. Use the module that it was made from."
        )


@contextmanager
def frozen(modules: Sequence[nn.Module]) -> Iterator[None]:
    """No parameter of the modules carries gradient inside the block; afterwards each is as it was."""
    # By place: a weight that is loaded for its module's pass is another tensor in each.
    trainable = [(m, name) for m in modules for name, p in m._parameters.items() if p is not None and p.requires_grad]
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


def _is_weight(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or getattr(tensor, "_lrpx_weight", False)


def _ranked(output: Any, rank: int | None) -> Any:
    if isinstance(output, Tensor) and rank is not None:
        gates.set_rank(output, rank)
    return output


def _tensors_of(output: Any) -> list[Tensor]:
    return tensors_in(output if isinstance(output, tuple | list) else [output], {})
