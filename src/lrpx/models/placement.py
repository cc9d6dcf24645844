"""Models that accelerate divided over several devices: where things are, and how to read offloaded weights.

accelerate puts a hook on modules (``module._hf_hook``) that moves a module's inputs to the device of its weights.
Weights may be offloaded to CPU memory or to disk: then the hook loads them during the module's forward pass, and
otherwise the parameters are on ``meta`` and hold no numbers.

Everything here is read from these hooks. accelerate itself is not imported.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn

from .modules import first_parameter, modules_of


def is_divided(model: nn.Module) -> bool:
    """Whether hooks move tensors or weights while ``model`` runs."""
    return not _is_undivided(model) and any("_hf_hook" in module.__dict__ for module in modules_of(model))


_undivided: weakref.WeakKeyDictionary[nn.Module, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def _is_undivided(model: nn.Module) -> bool:
    """Whether ``model`` has no hooks and all its weights. Asked for every text, so the answer is remembered.

    The answer holds until the model itself gets a hook, as accelerate always gives it, or its first weight moves.
    """
    first = first_parameter(model)
    now = ("_hf_hook" in model.__dict__, None if first is None else first.device)
    if _undivided.get(model) == now:
        return True
    modules = modules_of(model)
    hooked = any("_hf_hook" in module.__dict__ for module in modules)
    missing = any(p is not None and p.is_meta for m in modules for p in m._parameters.values())
    if hooked or missing:
        return False
    _undivided[model] = now
    return True


def is_offloaded(model: nn.Module) -> bool:
    """Whether some weights are loaded only while their module runs."""
    if _is_undivided(model):
        return False
    return any(p is not None and p.is_meta for m in modules_of(model) for p in m._parameters.values())


def is_unloaded(model: nn.Module) -> bool:
    """Whether some weights are missing: on ``meta``, without a hook that loads them."""
    return is_offloaded(model) and any(_nowhere(model, False))


def _nowhere(module: nn.Module, covered: bool) -> Iterator[bool]:
    """For the module and all below it: whether a parameter is on ``meta`` with no hook to load it."""
    loading = [hook for hook in _hooks(module) if hook.offload]
    covered = covered or any(hook.place_submodules for hook in loading)
    yield any(p is not None and p.is_meta for p in module._parameters.values()) and not (covered or loading)
    for child in module.children():
        yield from _nowhere(child, covered)


def execution_device(module: nn.Module) -> torch.device | None:
    """Where ``module`` computes; ``None`` if it has neither weights nor a hook that says so."""
    for hook in _hooks(module):
        if hook.execution_device is not None:
            return torch.device(hook.execution_device)
    tensor = next((t for t in (*module.parameters(), *module.buffers()) if not t.is_meta), None)
    return None if tensor is None else tensor.device


def entry_device(model: Any) -> torch.device:
    """The device for token ids: that of the input embedding."""
    if not is_divided(model):
        weight = first_parameter(model)
        return model.device if weight is None else weight.device
    try:
        first = execution_device(model.get_input_embeddings())
    except (AttributeError, NotImplementedError):  # some models have no single input embedding
        first = None
    return first or execution_device(model) or model.device


def devices_of(model: nn.Module) -> str:
    """The devices that a model computes on, in the order of its modules, such as ``"cuda:0, cuda:1"``."""
    if not is_divided(model):
        return str(entry_device(model))
    found: dict[str, None] = {}
    for module in model.modules():
        if any(p is not None for p in module._parameters.values()):
            found |= dict.fromkeys([str(execution_device(module))])
    return ", ".join(name for name in found if name != "None") + (", offloaded" if is_offloaded(model) else "")


def stored(module: nn.Module, name: str) -> Tensor | None:
    """A parameter of ``module`` by name, detached. An offloaded one is read where it is stored, on the CPU.

    ``None`` if the module has no such parameter; on ``meta`` if no hook knows its numbers.
    """
    tensor = getattr(module, name, None)
    if not isinstance(tensor, Tensor):
        return None
    if tensor.is_meta:
        for hook in _hooks(module):
            if hook.offload and hook.weights_map is not None:
                with suppress(KeyError):
                    tensor = hook.weights_map[name]
    return tensor.detach()


def named_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """As ``model.named_parameters()``, with tied parameters once even if offloading has made two of them."""
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", {})
    yield from ((path, p) for path, p in model.named_parameters() if not (p.is_meta and path in tied))


def stored_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """As ``named_parameters``, detached; offloaded parameters are read from where they are stored, one by one."""
    for path, parameter in named_parameters(model):
        parent, _, name = path.rpartition(".")
        tensor = stored(model.get_submodule(parent), name) if parameter.is_meta else parameter.detach()
        assert tensor is not None
        yield path, tensor


@contextmanager
def offloaded_as(model: nn.Module, change: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Inside the block, offloaded weights are loaded as ``change(name, weight)``; the stored weights do not change."""
    hooks = [hook for module in model.modules() for hook in _hooks(module) if hook.offload]
    kept = [(hook, hook.weights_map) for hook in hooks]
    try:
        for hook in hooks:
            hook.weights_map = _Changed(hook.weights_map, change)
        yield
    finally:
        for hook, weights in kept:
            hook.weights_map = weights


class _Changed(Mapping[str, Tensor]):
    """Weights by name, changed when they are read."""

    def __init__(self, weights: Mapping[str, Tensor], change: Callable[[str, Tensor], Tensor]) -> None:
        self._weights, self._change = weights, change

    def __getitem__(self, name: str) -> Tensor:
        return self._change(name, self._weights[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _hooks(module: nn.Module) -> list[Any]:
    """The hooks of accelerate on a module that say where it computes."""
    hook = vars(module).get("_hf_hook")
    found = getattr(hook, "hooks", [] if hook is None else [hook])
    return [each for each in found if hasattr(each, "weights_map")]
