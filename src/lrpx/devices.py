"""Models that are divided over several devices: what is where, and how to read weights that are not there right now.

accelerate divides a model by a hook on its modules (``module._hf_hook``), which moves what enters a module to the device of
its weights. Weights may also be offloaded to the CPU's memory or to disk: then the hook loads them for the time of the
module's forward pass, and in between the parameters are on ``meta`` and hold no numbers.

All of this is read from the hooks that a model carries, whoever put them there. accelerate itself is not imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .errors import InputError, nearest

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # in which accelerate chooses the places itself


def is_divided(model: nn.Module) -> bool:
    """Whether hooks move tensors or weights while ``model`` runs."""
    return any("_hf_hook" in vars(module) for module in model.modules())


def is_offloaded(model: nn.Module) -> bool:
    """Whether some weights are only there while their module runs."""
    return any(parameter.is_meta for parameter in model.parameters())


def is_unloaded(model: nn.Module) -> bool:
    """Whether some weights hold no numbers and no hook will load them."""
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
    """Where a batch of token ids goes: to the device of the input embedding."""
    if not is_divided(model):
        return model.device
    try:
        first = execution_device(model.get_input_embeddings())
    except (AttributeError, NotImplementedError):  # a model may have no single table of embeddings
        first = None
    return first or execution_device(model) or model.device


def described(model: nn.Module) -> str:
    """The devices that a model computes on, in the order of its modules, such as ``"cuda:0, cuda:1"``."""
    if not is_divided(model):
        return str(next(model.parameters()).device)
    found: dict[str, None] = {}
    for module in model.modules():
        if any(p is not None for p in module._parameters.values()):
            found |= dict.fromkeys([str(execution_device(module))])
    return ", ".join(name for name in found if name != "None") + (", offloaded" if is_offloaded(model) else "")


def stored(module: nn.Module, name: str) -> Tensor | None:
    """A parameter of ``module`` by its name, detached; one that is offloaded as it is stored, on the CPU.

    ``None`` if the module has none. On ``meta`` if nothing says where the numbers are.
    """
    tensor = getattr(module, name, None)
    if not isinstance(tensor, Tensor):
        return None
    if tensor.is_meta:
        for hook in _hooks(module):
            if hook.offload and hook.weights_map is not None:
                tensor = hook.weights_map[name]
    return tensor.detach()


def stored_parameters(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """As ``model.named_parameters()``, with offloaded parameters as they are stored; read one by one."""
    tied: Mapping[str, str] = getattr(model, "all_tied_weights_keys", {})
    for path, parameter in model.named_parameters():
        if parameter.is_meta and path in tied:  # loading and offloading makes a tied parameter two
            continue
        parent, _, name = path.rpartition(".")
        tensor = stored(model.get_submodule(parent), name) if parameter.is_meta else parameter.detach()
        assert tensor is not None
        yield path, tensor


def _hooks(module: nn.Module) -> list[Any]:
    """The hooks of accelerate on a module that say where it computes."""
    hook = vars(module).get("_hf_hook")
    found = getattr(hook, "hooks", [] if hook is None else [hook])
    return [each for each in found if hasattr(each, "weights_map")]


# What the user asks for


def parse_device_map(given: Any) -> str | dict[str, Any]:
    """A device map as transformers takes it.

    Args:
        given: One of ``STRATEGIES``, or a dictionary from the names of modules (``""``: all others) to ``"cuda:1"``, ``1``,
            ``"cpu"`` or ``"disk"``; also as JSON.

    Raises:
        InputError: It is neither, or it names a device that is not there.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            given = json.loads(given)
        except json.JSONDecodeError as error:
            raise InputError(f"device_map={given!r} is no valid JSON: {error}.") from error
    if isinstance(given, str) and given in STRATEGIES:
        return given
    example = 'device_map="auto", or a dictionary such as {"model.embed_tokens": "cuda:0", "": "cuda:1"}.'
    if isinstance(given, str):
        try:
            torch.device(given)
        except RuntimeError:
            raise InputError(f"unknown device_map {given!r}. {nearest(given, STRATEGIES)} Or give {example}") from None
        raise InputError(f"device_map={given!r} names a single device. Type device={given!r}, or {example}")
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) for name in given):
        raise InputError(f"device_map={given!r}: expected {example}")
    return {name: _place(name, device) for name, device in given.items()}


def _place(name: str, device: Any) -> str | torch.device:
    """One value of a device map."""
    if device == "disk":
        return "disk"
    problem = ""
    try:
        place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError):
        problem = nearest(device, ["cpu", "cuda", "cuda:0", "disk"])
    else:
        place = torch.device("cuda", 0) if place == torch.device("cuda") else place
        count = torch.cuda.device_count()
        if place.type == "cuda" and (place.index or 0) >= count:
            problem = f"torch sees {count} CUDA devices here."
        elif place.type == "meta":
            problem = 'On "meta" there are no numbers; for what does not fit, type "cpu" or "disk".'
    if problem:
        raise InputError(
            f"device_map sends {name or 'everything else'!r} to {str(device)!r}, which is no device. {problem}"
        )
    return place


def division(model: nn.Module) -> str:
    """How a model was divided, for the log: per place its blocks and gigabytes of weights (1 GB = 1e9 bytes)."""
    places: dict[str, Any] = getattr(model, "hf_device_map", {})

    def place_of(path: str) -> str:
        while path and path not in places:
            path = path.rpartition(".")[0]
        place = places.get(path, "?")
        return f"cuda:{place}" if isinstance(place, int) else str(place)

    size: dict[str, int] = {}
    blocks: dict[str, set[str]] = {}
    lists = [(path, m) for path, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    longest, _ = max(lists, key=lambda found: len(found[1]), default=("", None))
    for path, parameter in model.named_parameters():
        place = place_of(path)
        size[place] = size.get(place, 0) + parameter.numel() * parameter.element_size()
        if longest and path.startswith(longest + "."):
            blocks.setdefault(place, set()).add(path[len(longest) + 1 :].partition(".")[0])
    return "; ".join(f"{place}: {len(blocks.get(place, ()))} blocks, {size[place] / 1e9:.3g} GB" for place in size)
