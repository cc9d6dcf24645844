"""The one place where operations are intercepted: run a model so that its backward pass follows a rule set.

Inside ``with propagate(model, rules):`` a ``TorchFunctionMode`` sees every PyTorch function the model calls. Where an operand
carries gradient, ``recognition/`` says what the operation is, and the rule for that kind is applied, which returns the same
value. Parameters carry no gradient, so no weight is mistaken for a factor. Nothing is patched, and nothing is left behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from .. import _torch_internals as internals
from ..errors import InputError, UnsupportedModelError, warn
from ..models.modules import FollowWeights, frozen, visible_modules
from ..recognition.activations import activation_modules, make_one_operation
from ..recognition.call import Call, tensors_in
from ..recognition.composed import COMPOSED
from ..recognition.foreign import note_foreign
from ..recognition.gates import ranked
from ..recognition.mixers import follow_mixers
from ..recognition.operations import CONSTANT, Operation, operation_of
from ..recognition.recogniser import Recogniser
from .jacobians import Scale
from .rules import Rule, constant, identity
from .rulesets import RuleSet, get_rules

Handler = Callable[["Propagation", Operation, Callable[..., Any], Sequence[Any], Mapping[str, Any]], Any]


class Propagation(TorchFunctionMode):
    """Applies a rule set to every operation, and keeps count.

    Attributes:
        hits: How often a rule was applied, by kind of operation; ``met``: how often there was one, with or without a rule.
        cuts: How often the model's own code cut the gradient (``detach``): what passes there is a constant.
        unknown: What carried gradient in a way the rules do not know.
        added: PyTorch function -> what is called instead of it.
        saving: The saved-tensor hooks under which rules may run: others would recompute operations without them.
    """

    def __init__(self, rules: RuleSet) -> None:
        super().__init__()
        self.rules, self.recognise = rules, Recogniser(rules)
        self.hits, self.met, self.cuts, self.unknown = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        self.added: dict[Callable[..., Any], Handler] = dict(internals.CORRECTED)
        self._handlers: dict[Callable[..., Any], tuple[Handler | None, Operation]] = {}
        # By weights or numbers, a product needs no rule; unless there is one for just that.
        self._of_two = () if "linear" in rules else ("product", "contraction", "linear")
        self.saving = internals.saved_tensor_hooks()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            handler, operation = self._handlers[func]
        except KeyError:
            operation = operation_of(func)
            quiet = not self.rules or operation.kind in ("silent", "structure", "elementwise")
            handler = self.added.get(func) or (None if quiet else Propagation.look)
            self._handlers[func] = handler, operation
        if handler is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        return handler(self, operation, func, args, kwargs or {})

    def look(self, operation: Operation, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """An operation that may need a rule, if enough of its operands carry gradient."""
        if operation.kind == "container":
            with self:  # which sees the functions that a whole layer calls
                return internals.seen_from_inside(func)(*args, **kwargs)
        tensors = tensors_in((*args, *kwargs.values()) if kwargs else args)
        carrying = sum([t.requires_grad for t in tensors])
        if carrying < (2 if operation.kind in self._of_two else 1) or not torch.is_grad_enabled():
            if internals.inside_transform() and any(map(internals.has_hidden_gradient, tensors)):
                self.unknown["vmap"] += 1
            return func(*args, **kwargs)
        call = Call(func, args, kwargs, self.unknown, operation.kind, operation.rank)
        if operation.kind == "composed":
            with self:  # the value is that of the function, the gradient that of its parts
                return Scale.apply(COMPOSED[operation.name](*args, **kwargs), call, lambda y, _: torch.ones_like(y))
        if (operation.in_place or kwargs.get("inplace")) and operation.kind in ("linear", *self.rules):  # addmm_
            with self:  # computed out of place, then written back with its graph
                written = call.out_of_place()()
                self.recognise.ranks.update(() if written.requires_grad else (CONSTANT,))  # rsqrt_ makes a constant
                return call.argument(0, "input").copy_(written)
        if operation.kind == "cut":
            self.cuts[operation.name] += 1
        return self.apply(self.recognise(operation.name, call))

    def apply(self, call: Call) -> Any:
        """An operation under the rule of its kind, or as it is where there is none."""
        kind = call.kind
        self.met[kind] += kind != "unknown"
        if (rule := self.rules.get(kind)) is None:
            output = call()
            if kind == "unknown" and any(t.requires_grad for t in tensors_in([output])):
                self.unknown[call.name] += 1
            return ranked(output, call.rank)
        if internals.saved_tensor_hooks() != self.saving:
            self.unknown["activation checkpointing inside the model"] += 1
        if call.written_out and rule not in (identity, constant):
            self.unknown[f"{kind} written out, for which only the rule of the library can be used"] += 1
        self.hits[kind] += 1
        return ranked(_follow(rule, call), call.rank)


def _follow(rule: Rule, call: Call) -> Tensor:
    """What a rule returns; ``InputError`` for one that is no rule."""
    try:
        if isinstance(output := rule(call), Tensor):
            return output
        found = f"it returned {output!r:.60}"
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:  # raised inside the rule
            raise
        found = str(error)
    raise InputError(
        f"the rule for {call.kind!r} is none: {found}.",
        python="A rule takes one argument, the call, and returns a tensor, as rules.gamma(0.25) does; see docs/add_a_rule.md.",
    )


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
        mode: A subclass that watches more. It is what the block is given, with its counts ``hits`` and ``unknown``.
        unknown: What happens on leaving the block if operations without a known rule carried gradient.

    Raises:
        InputError: ``model`` is no module, ``rules`` or ``unknown`` are none, or, inside the block, a rule is none.
        UnsupportedModelError: A part of the model is TorchScript, or operations without a known rule carried gradient.

    Examples:
        >>> with lrpx.propagate(model, "attnlrp"):
        ...     x = model.get_input_embeddings()(ids).detach().requires_grad_()
        ...     model(inputs_embeds=x).logits[0, -1].max().backward()
        >>> relevance = (x * x.grad).sum(-1).detach()  # [1, T]
    """
    if unknown not in ("raise", "warn", "ignore"):
        raise InputError(f'unknown={unknown!r}: give "raise", "warn" or "ignore".')
    active, modules = mode(get_rules(rules)), visible_modules(model)
    with ExitStack() as stack:
        stack.enter_context(frozen(modules))
        for module, name in activation_modules(modules).items() if "activation" in active.rules else ():
            make_one_operation(module, name, active, stack)
        follow_mixers(modules, active, stack)
        if unknown != "ignore" and active.rules:
            stack.callback(model.register_forward_hook(partial(note_foreign, active.unknown)).remove)
        stack.enter_context(active)
        stack.enter_context(FollowWeights() if "linear" in active.rules else nullcontext())
        yield active
    if active.unknown and unknown != "ignore":
        message = f"gradient passed through operations without a known rule: {', '.join(active.unknown)}."
        if unknown == "raise":
            raise UnsupportedModelError(message, python='To go on with a warning: propagate(..., unknown="warn").')
        warn(f"{message} Maps are wrong there.")
