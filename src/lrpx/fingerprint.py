"""Would Python do the same once more? A CUDA graph or a compiled pass repeats what it did once, without it.

Weights changed in place are fine: they are read where they lie. Weights moved, modules exchanged, hooks added, a number, list or
tensor changed that a module holds, or code exchanged on its class are not: the pass is captured anew (``Fingerprint``). What
Python can read from anywhere is not looked after, so a model that carries somebody's code runs as usual (``foreign_code``).
"""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from transformers import PreTrainedConfig

from .precision import precision

_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_OWN = frozenset(vars(nn.Module())) - {"training"}  # what every module has
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{kind}" for kind in _HOOKS)
_DEEP, _MANY = 6, 1000  # levels and entries of containers; what goes beyond is known by its identity


class Fingerprint:
    """A model's state as it is now. It does not keep the model alive.

    ``in_place`` takes microseconds and says that the weights of then can still be read where they were; ``holds``, a
    fraction of a millisecond, that they are still the model's, and that all else is as it was.

    Args:
        model: Any module.
        since: A fingerprint from before a pass. An integer that the pass changed is a note (Funnel's of the length of the text
            that it read last) and is not looked at.
    """

    def __init__(self, model: nn.Module, since: Fingerprint | None = None) -> None:
        modules = list(model.modules())
        notes = since._notes | {place for place, new in since._changes() if type(new) is int} if since else set()
        self._notes: set[tuple[int, str]] = notes
        self._modules = [
            (weakref.ref(module), [k for k in vars(module) if k not in _OWN and (i, k) not in notes])
            for i, module in enumerate(modules)
        ]
        parents = dict.fromkeys(k for module in modules for k in type(module).__mro__ if k not in (nn.Module, object))
        self._classes = [(vars(k), [n for n, f in vars(k).items() if type(f) in _FUNCTIONS]) for k in parents]
        self._attributes = [
            [_Look().value(vars(m)[k]) for k in names] for m, (_, names) in zip(modules, self._modules, strict=True)
        ]
        look = self._look()
        self._state = look.state
        # Kept, so that the memory of a weight that was exchanged is not given away while a graph reads it.
        self._weights = [*model.parameters(), *model.buffers(), *look.tensors]
        self._places = [_address(t) for t in self._weights]
        functions = [known[name] for known, names in self._classes for name in names]
        self._alive = [_reference(o) for o in (*look.objects, *functions)]  # no other object gets their identity

    def in_place(self) -> bool:
        """Whether every weight of then lies where it lay."""
        return [_address(t) for t in self._weights] == self._places

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        return self._look().state == self._state and all(o() is not None for o in self._alive)

    def what_changed(self) -> str:
        """The names of attributes that are not what they were, for a message."""
        return ", ".join(sorted({name for (_, name), _ in self._changes()})) or "its modules, weights or hooks"

    def _look(self) -> _Look:
        look = _Look()
        for reference, names in self._modules:
            look.module(reference(), names)
        for functions, names in self._classes:  # some exchange them for all models at once
            look.state.append(len(functions))
            look.state += [id(functions.get(name)) for name in names]
        for kind in _GLOBAL_HOOKS:
            look.state.append(list(getattr(torch_module, kind)))
        return look

    def _changes(self) -> Iterator[tuple[tuple[int, str], Any]]:
        """Attributes that are not what they were: number of the module and name, and the value now."""
        for i, ((reference, names), before) in enumerate(zip(self._modules, self._attributes, strict=True)):
            own = getattr(reference(), "__dict__", {})
            for name, value in zip(names, before, strict=True):
                if _Look().value(own.get(name, _GONE)) != value:
                    yield (i, name), own.get(name)


class _Look:
    """What modules are made of, as values that can be compared.

    Attributes:
        state: The values.
        objects: What is known by its identity only.
        tensors: Found beside parameters and buffers.
    """

    def __init__(self) -> None:
        self.state: list[Any] = []
        self.objects: list[Any] = []
        self.tensors: list[Tensor] = []
        self._configs: dict[int, int] = {}

    def module(self, module: nn.Module | None, names: Sequence[str]) -> None:
        """Look at a module: its class, the attributes called ``names``, what it holds, its hooks."""
        add = self.state.append
        if module is None:
            add(None)
            return
        own = module.__dict__
        add(module.__class__)
        add(len(own))
        for name in names:
            value = own.get(name, _GONE)
            kind = type(value)
            add((kind, value) if kind in _PLAIN else self.value(value))  # 1, 1.0 and True are equal
        for child in own["_modules"].items():
            self.state += child[0], id(child[1])
        for hooks in _HOOKS:
            self.state += own[hooks]  # their numbers: no two hooks have the same one
        for weights in (own["_parameters"], own["_buffers"]):
            self.state += [t is not None and _place(t) for t in weights.values()]

    def value(self, value: Any, depth: int = 0) -> Any:
        """A value that is equal to another one if what was looked at is the same."""
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return kind, _place(value), None if value.is_inference() else value._version
        if isinstance(value, np.ndarray | np.generic):
            return kind, value.shape, value.dtype, value.tobytes()
        if isinstance(value, PreTrainedConfig):  # many modules hold the same one
            number = self._configs.get(id(value))
            if number is not None:
                return kind, number
            self._configs[id(value)] = len(self._configs)
            return kind, {k: self.value(v, depth + 1) for k, v in vars(value).items()}
        if depth < _DEEP:
            if isinstance(value, dict) and len(value) <= _MANY:
                return kind, {k: self.value(v, depth + 1) for k, v in value.items()}
            if isinstance(value, list | tuple) and len(value) <= _MANY:
                return kind, [self.value(v, depth + 1) for v in value]
            if isinstance(value, set | frozenset) and len(value) <= _MANY:
                return kind, frozenset(value)
            if kind is types.MethodType:  # a new object each time
                return kind, self.value(value.__self__, _DEEP), self.value(value.__func__, _DEEP)
            if kind is functools.partial:
                return kind, [self.value(v, depth + 1) for v in (value.func, value.args, value.keywords)]
        self.objects.append(value)
        return kind, id(value)


_GONE = object()
_FUNCTIONS = frozenset({types.FunctionType, staticmethod, classmethod, property})


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # a sparse one has no one place
        return id(tensor)


def _place(tensor: Tensor) -> Any:
    return _address(tensor), tensor.dtype, tensor.shape, tensor.stride() if tensor.layout is torch.strided else None


def _reference(value: Any) -> Callable[[], Any]:
    """Weak where that is possible."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def surroundings(model: nn.Module, device: str) -> tuple[Any, ...]:
    """What decides beside the model and the shapes what a pass computes, as a key: settings of PyTorch and of this thread."""
    cuda = torch.backends.cuda
    return (
        getattr(getattr(model, "config", None), "_attn_implementation", None),
        precision(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device),
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        _modes(),
    )


def _modes() -> tuple[str, ...]:
    """The modes of this thread that can change what operations do. Not one that only says where tensors are made."""
    functions = [type(m).__name__ for m in _get_current_function_mode_stack() if type(m).__name__ != "DeviceContext"]
    return (*functions, *["TorchDispatchMode"] * torch._C._len_torch_dispatch_stack())


def foreign_code(model: nn.Module) -> str | None:
    """Where code is attached to a model, or to all, that is not transformers' own, as a sentence's end; ``None`` if nowhere.

    Such code is what people change between calls: it adds a vector, leaves a head out, or writes down what it sees.
    """
    for mode in _modes():
        return f"a {mode} is active"
    for kind in _GLOBAL_HOOKS:
        for hook in getattr(torch_module, kind).values():
            return f"all modules have a hook ({_name(hook)})"
    for name, module in model.named_modules():
        own = module.__dict__
        for kind in _HOOKS:
            for hook in own[kind].values():
                if _is_foreign(hook):
                    return f"{name or 'it'} has a hook ({_name(hook)})"
        if "forward" in own and _is_foreign(own["forward"]):
            return f"{name or 'it'} has a forward of its own ({_name(own['forward'])})"
    return None


def _is_foreign(code: Any) -> bool:
    return str(getattr(code, "__module__", None)).split(".")[0] != "transformers"


def _name(code: Any) -> str:
    return getattr(code, "__qualname__", None) or type(code).__qualname__
