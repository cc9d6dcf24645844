"""Would Python do the same once more? A CUDA graph or a compiled pass repeats what it did once, without it.

Weights changed in place are fine: they are read where they lie. Weights moved, modules exchanged, hooks added, an attribute
changed or code exchanged are not: the pass is captured anew (``Fingerprint``). That works for code that reads what a module
holds, as that of transformers does. Other code may read anything, so a model with code of somebody else's, in hooks, functions
or classes of modules, is not captured at all (``foreign_code``).
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.modules.module as torch_module
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.overrides import _get_current_function_mode_stack
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ..models.turns import precision

# Packages whose modules read nothing but what they hold: those that models of transformers are made of, and Python's own.
KNOWN_CODE = {"torch", "transformers", "transformers_modules", "peft", "kernels", "numpy", *sys.stdlib_module_names}
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None)})
_NOTED = "_output_capturing_hooks_installed"  # by transformers, on a model that was asked for its hidden states
_OWN = frozenset({*vars(nn.Module()), _NOTED}) - {"training"}  # what every module has
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = tuple(f"_global{kind}" for kind in _HOOKS)
_FUNCTIONS = frozenset({types.FunctionType, staticmethod, classmethod, property})
_WEIGHTS = frozenset({Tensor, nn.Parameter, getattr(nn, "Buffer", Tensor)})
_CALLED = ("forward", "__call__", "_wrapped_call_impl", "_call_impl")
_DEEP, _MANY = 6, 1000  # levels and entries of containers; what goes beyond is known by its identity


class Fingerprint:
    """A model's state as it is now. It does not keep the model alive.

    ``in_place`` takes microseconds and says that the weights of then can still be read where they were; ``holds``, about a
    millisecond, that they are still the model's, and that all else is as it was.

    Args:
        model: One without foreign code.
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
        # Code of a model's own classes and their files: some exchange it for all models. Of the classes below, which all models
        # share, only what runs in a pass: transformers exchanges other parts of them while it loads a model.
        parents = dict.fromkeys(k for module in modules for k in type(module).__mro__ if k is not object)
        own = [k for k in parents if _is_of_a_model(k.__module__)]
        files = [n for n in dict.fromkeys([*(k.__module__ for k in own), "torch.nn.functional"]) if n in sys.modules]
        spaces = [*map(vars, own), *(vars(sys.modules[name]) for name in files)]
        self._code = [(space, [n for n, v in space.items() if type(v) in _FUNCTIONS | _PLAIN]) for space in spaces]
        self._code += [(vars(k), [n for n in _CALLED if n in vars(k)]) for k in parents if k not in own]
        self._own = list(map(vars, own))
        self._attributes = [
            [_Look().value(vars(m)[k]) for k in names] for m, (_, names) in zip(modules, self._modules, strict=True)
        ]
        look = self._look()
        self._state = look.state
        weights = [*model.parameters(), *model.buffers(), *look.tensors]
        self._places = [(weakref.ref(t), _address(t)) for t in weights]
        # The memory of a weight that was exchanged is not given away while a graph reads it.
        self._kept = [t.detach() for t in weights]
        functions = [space[n] for space, names in self._code for n in names if type(space[n]) in _FUNCTIONS]
        # No other object gets the identity of one of these unnoticed.
        self._alive = [r for r in map(_reference, (*look.objects, *functions)) if r is not None]

    def in_place(self) -> bool:
        """Whether every weight of then lies where it lay."""
        return all((t := reference()) is None or _address(t) == place for reference, place in self._places)

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        try:
            return self._look().state == self._state and all(o() is not None for o in self._alive)
        except Exception:  # whatever cannot be looked at any more has changed
            return False

    def what_changed(self) -> str:
        """The names of attributes that are not what they were, for a message."""
        return ", ".join(sorted({name for (_, name), _ in self._changes()})) or "its modules, weights or hooks"

    def _look(self) -> _Look:
        look = _Look()
        for reference, names in self._modules:
            look.module(reference(), names)
        for space, names in self._code:
            for name in names:
                value = space.get(name, _GONE)
                look.state.append((type(value), value) if type(value) in _PLAIN else id(value))
        look.state += [[name in space for name in _CALLED] for space in self._own]  # one more would hide a parent's
        for kind in _GLOBAL_HOOKS:
            look.state.append(tuple(getattr(torch_module, kind)))
        root = self._modules[0][0]()
        look.state.append(id(_attention(root)))
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
        self._seen: dict[int, int] = {}  # containers and configurations, which many modules hold

    def module(self, module: nn.Module | None, names: Sequence[str]) -> None:
        """Look at a module: its class, the attributes called ``names``, what it holds, its hooks."""
        add = self.state.append
        if module is None:
            add(None)
            return
        own = module.__dict__
        add(module.__class__)
        add(len(own) - (_NOTED in own))
        for name in names:
            value = own.get(name, _GONE)
            kind = type(value)
            add((kind, value) if kind in _PLAIN else self.value(value))  # 1, 1.0 and True are equal
        add([(name, id(child)) for name, child in own["_modules"].items()])
        for hooks in _HOOKS:
            found = own[hooks]  # by number: no two hooks have the same one
            add(tuple(n for n, hook in found.items() if _origin(hook) != "transformers") if found else ())
        for weights in ("_parameters", "_buffers"):
            add([(name, t is not None and _place(t)) for name, t in own[weights].items()])

    def value(self, value: Any, depth: int = 0) -> Any:
        """A value that is equal to another one if what was looked at is the same."""
        kind = type(value)
        if kind in _PLAIN:
            return kind, value
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return kind, _place(value), None if value.is_inference() else value._version
        if isinstance(value, np.ndarray | np.generic) and value.dtype != object and value.nbytes <= 1 << 16:
            return kind, value.shape, value.dtype, value.tobytes()
        if depth < _DEEP:
            parts = self._parts(value)
            if parts is not None:
                number = self._seen.get(id(value))
                if number is not None:
                    return kind, number
                self._seen[id(value)] = len(self._seen)
                return kind, [(key, self.value(part, depth + 1)) for key, part in parts]
        self.objects.append(value)
        return kind, id(value)

    def _parts(self, value: Any) -> list[tuple[Any, Any]] | None:
        """What a container holds, with its keys."""
        if isinstance(value, PreTrainedConfig):
            return list(vars(value).items())
        if isinstance(value, dict) and len(value) <= _MANY:
            return [(_key(k), v) for k, v in list(value.items())]
        if isinstance(value, list | tuple) and len(value) <= _MANY:
            return list(enumerate(value))
        if isinstance(value, set | frozenset) and len(value) <= _MANY:
            return [(frozenset(map(_key, value)), None)]
        if isinstance(value, types.MethodType):  # a new object each time
            return [("self", id(value.__self__)), ("function", value.__func__)]
        if isinstance(value, functools.partial):
            return [("function", value.func), ("args", value.args), ("keywords", value.keywords)]
        return None


_GONE = object()


def _is_of_a_model(file: str) -> bool:
    return file.startswith(("transformers.models.", "transformers_modules.", "peft."))


def _key(value: Any) -> Any:
    return value if type(value) in _PLAIN else (type(value), id(value))


def _address(tensor: Tensor) -> int:
    try:
        return tensor.data_ptr()
    except (RuntimeError, NotImplementedError):  # a sparse one has no one place
        return id(tensor)


def _place(tensor: Tensor) -> Any:
    return _address(tensor), tensor.dtype, tensor.shape, tensor.stride() if tensor.layout is torch.strided else None


def _reference(value: Any) -> Callable[[], Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:
        return None


def _attention(model: Any) -> Any:
    """The function that transformers calls for this model's attention, which anyone may register."""
    name = getattr(getattr(model, "config", None), "_attn_implementation", None)
    return ALL_ATTENTION_FUNCTIONS.get(name) if isinstance(name, str) else None


def structure(model: nn.Module) -> int:
    """A number that is another one when modules of a model were exchanged, added or taken away."""
    return hash(tuple((id(module), module.__class__) for module in model.modules()))


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
        tuple(torch._C._get_sdp_priority_order()) if hasattr(torch._C, "_get_sdp_priority_order") else (),
        torch._C._get_cublas_allow_fp16_reduced_precision_reduction(),
        torch._C._get_cublas_allow_bf16_reduced_precision_reduction(),
        foreign_mode(),
    )


def foreign_mode() -> str | None:
    """What can change what operations do in this thread, as part of a sentence; ``None`` if there is nothing."""
    if parametrize._cache_enabled:
        return "torch.nn.utils.parametrize.cached() is active"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode is active"
    modes = [type(mode).__name__ for mode in _get_current_function_mode_stack()]
    return next((f"a {mode} is active" for mode in modes if mode != "DeviceContext"), None)  # says where, not what


def foreign_code(model: nn.Module) -> str | None:
    """Where a pass of a model runs somebody's code, neither PyTorch's nor transformers', as a sentence's end; or ``None``.

    Such code is what people change between calls: it adds a vector, leaves a head out, or writes down what it sees.
    """
    try:
        return _code_of_others(model)
    except Exception as error:
        return f"it cannot be looked through ({type(error).__name__}: {error})"


def _code_of_others(model: nn.Module) -> str | None:
    for kind in _GLOBAL_HOOKS:
        for hook in getattr(torch_module, kind).values():
            return f"all modules have a hook ({_name(hook)})"
    classes: dict[type, str] = {}
    for name, module in model.named_modules():
        name = name or "it"
        classes.setdefault(type(module), name)
        for kind in _HOOKS:
            for hook in module.__dict__[kind].values():
                if _origin(hook) != "transformers":
                    return f"{name} has a hook ({_name(hook)})"
        for key, value in module.__dict__.items():
            if isinstance(value, types.FunctionType | types.MethodType | functools.partial) and _is_foreign(value):
                return f"{name} has a {key} of its own ({_name(value)})"
        for t in (*module._parameters.values(), *module._buffers.values()):
            if t is not None and type(t) not in _WEIGHTS:
                return f"{name} has a weight of the kind {type(t).__name__}"
    for found, name in classes.items():
        for parent in found.__mro__:
            if parent.__module__.split(".")[0] not in KNOWN_CODE:
                return f"{name} is a {parent.__module__}.{parent.__qualname__}"
            for key, value in vars(parent).items():
                if type(value) in _FUNCTIONS and _is_foreign(value):
                    return f"{parent.__qualname__}.{key} was exchanged ({_name(value)})"
    attention = _attention(model)
    if attention is not None and _is_foreign(attention):
        return f"its attention is a function that was registered ({_name(attention)})"
    return foreign_mode()


def _is_foreign(code: Any) -> bool:
    return _origin(code) not in KNOWN_CODE


def _origin(code: Any) -> str:
    """The package in whose file a function was written, whatever name it goes by."""
    while True:
        if isinstance(code, functools.partial):
            code = code.func
        elif isinstance(code, types.MethodType | staticmethod | classmethod):
            code = code.__func__
        elif isinstance(code, property):
            code = code.fget
        else:
            break
    name = code.__globals__.get("__name__") if isinstance(code, types.FunctionType) else type(code).__module__
    return str(name).split(".")[0]


def _name(code: Any) -> str:
    return getattr(code, "__qualname__", None) or type(code).__qualname__
