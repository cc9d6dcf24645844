"""Detects changes to a model that invalidate its captured and compiled passes.

Weights changed in place are fine: they are read where they lie. What ``ModelState`` compares is listed there; it is a safety
net for what happens without thinking (an adapter switched, a hook added, a model moved), and takes about a millisecond. Code
that is neither PyTorch's nor transformers' nor PEFT's may read anything, so a model that runs some is neither captured nor
compiled (``foreign_code``); nor is one under a rule of somebody's own (``foreign_rule``).
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from .._torch_internals import HOOKS, active_modes, global_hooks, hooks_of
from ..models.precision import matmul_precision
from ..propagation.rulesets import RuleSet, get_rules

# Packages whose modules read nothing but what they hold: those that models of transformers are made of, and Python's own.
KNOWN_CODE = {"torch", "transformers", "transformers_modules", "peft", "kernels", "numpy", *sys.stdlib_module_names}
SHORT = 64  # entries of a container that is looked into
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})
_CONTAINERS = (list, tuple, set, frozenset, dict)
_WEIGHTS = frozenset({Tensor, nn.Parameter, getattr(nn, "Buffer", Tensor)})
_OWN = frozenset(vars(nn.Module())) - {"training"}  # what every module has


class ModelState:
    """A model as it is now: addresses of its weights, its modules and their classes, numbers of hooks, training mode, and the
    plain values (numbers, strings, tensors; short lists, sets and dictionaries of them) in its modules and configurations.

    Attributes:
        weights: Parameters and buffers, each once, detached. They keep the memory that a graph reads.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = list(model.modules())
        self._owners = [vars(module) for module in self._modules]
        self._configurations = [vars(each) for each in _configurations(self._owners)]
        holders = [*self._owners, *self._configurations]
        self._watched = [(own, k) for own in holders for k, v in own.items() if k not in _OWN and _is_plain(v)]
        self._structure, self._values = self._read_structure(), self._read_values()
        self.weights = [t.detach() for t in (*model.parameters(), *model.buffers())]

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        return self._values == self._read_values() and self._structure == self._read_structure()

    def forget_changed(self, *, only_integers: bool) -> None:
        """Called after a pass: stop watching what it has changed; an integer may be a note (Funnel's of the last length)."""
        now = zip(self._watched, self._values, self._read_values(), strict=True)
        kept = [(place, old) for place, old, new in now if old == new or (only_integers and new[0] is not int)]
        self._watched, self._values = [place for place, _ in kept], [old for _, old in kept]

    def what_changed(self) -> str:
        """The names of attributes that are not what they were, for a message."""
        now = zip(self._watched, self._values, self._read_values(), strict=True)
        names = {name for (_, name), old, new in now if old != new}
        return ", ".join(sorted(names)) or "its modules, weights or hooks"

    def _read_values(self) -> list[Any]:
        return [_value(own.get(name, _GONE)) for own, name in self._watched]

    def _read_structure(self) -> list[Any]:
        found: list[Any] = [len(global_hooks()), *map(len, self._configurations)]
        for module, own in zip(self._modules, self._owners, strict=True):
            found += (module.__class__, len(own), *map(id, own["_modules"].values()))
            found += [len(own[kind]) for kind in HOOKS]
            for kind in ("_parameters", "_buffers"):
                found.append(kind)
                found += [(name, t is not None and _place(t)) for name, t in own[kind].items()]
        return found


_GONE = object()


def _configurations(owners: list[dict[str, Any]]) -> Iterator[PreTrainedConfig]:
    """Configurations that modules hold, and those within them, each once."""
    seen: dict[int, PreTrainedConfig] = {}
    queue = list(owners)
    for own in queue:  # grows on the way
        for value in own.values():
            if isinstance(value, PreTrainedConfig) and id(value) not in seen:
                seen[id(value)] = value
                queue.append(vars(value))
    yield from seen.values()


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or isinstance(value, (Tensor, *_CONTAINERS))


def _value(value: Any) -> tuple[Any, Any]:
    """An attribute as something to compare: 1, 1.0 and True differ, and containers are looked into."""
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, _CONTAINERS) and len(value) <= SHORT:
        if isinstance(value, dict):
            return kind, [(_item(k), _item(v)) for k, v in value.items()]
        return kind, [_item(v) for v in value]
    return kind, _item(value)


def _item(value: Any) -> Any:
    """A plain value or a tensor; anything else is not looked at."""
    if isinstance(value, Tensor):
        return _place(value), None if value.is_inference() else value._version
    return (type(value), value) if type(value) in _PLAIN else type(value)


def _place(tensor: Tensor) -> Any:
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
    except RuntimeError:  # one without numbers, or a sparse one, has no one place
        return id(tensor)


def settings(device: str) -> tuple[Any, ...]:
    """PyTorch's settings that decide what a pass computes on ``device`` (``"cpu"``, ``"cuda"``, ...), as a key."""
    cuda = torch.backends.cuda
    return (
        matmul_precision(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        *active_modes(),
    )


def foreign_code(model: nn.Module) -> str | None:
    """Where a pass runs code that is neither PyTorch's nor transformers', as the end of a sentence; ``None`` if nowhere.

    Such code is what people change between calls: it adds a vector, leaves a head out, or writes down what it sees.
    """
    for mode in active_modes():
        return f"a {mode} is active"
    for hook in global_hooks():
        return f"all modules have a hook ({_name(hook)})"
    for name, module in model.named_modules():
        name = name or "it"
        for parent in type(module).__mro__:
            if parent.__module__.split(".")[0] not in KNOWN_CODE:
                return f"{name} is a {parent.__module__}.{parent.__qualname__}"
        for hook in hooks_of(module):
            if _origin(hook) != "transformers":
                return f"{name} has a hook ({_name(hook)})"
        for key, value in vars(module).items():
            is_function = isinstance(value, types.FunctionType | types.MethodType | functools.partial)
            if is_function and _origin(value) not in KNOWN_CODE:
                return f"{name} has a {key} of its own ({_name(value)})"
        for t in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if type(t) not in _WEIGHTS or t.layout is not torch.strided:
                return f"{name} has a weight of the kind {type(t).__name__}, {t.layout}"
    return None


def foreign_rule(rules: str | RuleSet) -> str | None:
    """Which rule is somebody's own, and may do something else each time, as part of a sentence; ``None`` if none is."""
    for kind, rule in get_rules(rules).items():
        if not getattr(rule, "__module__", "").startswith(("lrpx.propagation.", "lrpx.methods.rule_names")):
            return f"the rule for {kind!r} is not one of lrpx.rules"
    return None


def _origin(code: Any) -> str:
    """The package in whose file a function was written, whatever name it goes by."""
    while isinstance(code, functools.partial | types.MethodType):
        code = code.func if isinstance(code, functools.partial) else code.__func__
    name = code.__globals__.get("__name__") if isinstance(code, types.FunctionType) else type(code).__module__
    return str(name).split(".")[0]


def _name(code: Any) -> str:
    return getattr(code, "__qualname__", None) or type(code).__qualname__
