"""Check and complete a user's device map before anything is loaded.

accelerate chooses places by itself (``"auto"``) and moves weights and tensors. But transformers and accelerate also
accept maps with gaps, misspelt names or divided blocks, and fail on them late or at first use. ``complete`` turns a
user's map into one with exactly one place for every weight.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..errors import InputError, nearest
from .placement import named_parameters

STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")  # accelerate chooses the places
# A name of a module ("" for the model) -> number of a GPU, "cpu" or "disk"; the longest name counts.
Places = dict[str, str | int]
_EXAMPLE = 'device_map="auto", or a dictionary such as {"model.embed_tokens": "cuda:0", "": "cuda:1"}'


def parse_device_map(given: Any) -> str | Places:
    """One of ``STRATEGIES``, or places by name.

    Args:
        given: One of ``STRATEGIES``, or a dictionary from names of modules (``""``: the model) to ``"cuda:1"``, ``1``,
            ``"cpu"`` or ``"disk"``; also as JSON.

    Raises:
        InputError: It is neither, or it names a device that is not there.
    """
    if isinstance(given, str) and given.lstrip().startswith("{"):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise InputError(f"device_map={given!r} is no valid JSON: {error}.") from error
    if isinstance(given, str) and given in STRATEGIES:
        return given
    if isinstance(given, str):
        try:
            torch.device(given)
        except RuntimeError:
            raise InputError(
                f"unknown device_map {given!r}. {nearest(given, STRATEGIES)} Or type a dictionary."
            ) from None
        raise InputError(f"device_map={given!r} is a single device. Type device={given!r}, or {_EXAMPLE}.")
    if not isinstance(given, Mapping) or not given or not all(isinstance(name, str) for name in given):
        raise InputError(f"device_map={given!r}: expected {_EXAMPLE}.")
    return {name: _place(name, device) for name, device in given.items()}


def _place(name: str, device: Any) -> str | int:
    """One value of a device map in accelerate's form, where an ``int`` is a GPU."""
    if device == "disk":
        return "disk"
    problem, place = "", torch.device("cpu")
    try:
        place = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError):
        problem = nearest(device, ["cpu", "cuda:0", "disk"])
    if place.type == "meta":
        problem = 'It holds no numbers. For what does not fit on a GPU, type "cpu" or "disk".'
    elif place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        problem = f"torch sees {torch.cuda.device_count()} CUDA devices here."
    if problem:
        part = repr(name) if name else "everything else"
        raise InputError(f"device_map sends {part} to {str(device)!r}, which cannot be used. {problem}")
    return (place.index or 0) if place.type == "cuda" else str(place)


def complete(places: Places, model: nn.Module) -> Places:
    """The same places, with exactly one for every weight of ``model`` (which may be on ``meta``).

    Raises:
        InputError: A name is of no module, some weights have no place, or a block is divided between devices that compute, or
            two names of one weight are.
    """
    names = [name for name, _ in model.named_modules()]
    for name in places:
        if name not in names:
            short = [n for n in names if n and n.count(".") < 3]
            raise InputError(f"device_map: {type(model).__name__} has no module {name!r}. {nearest(name, short[:20])}")
    found = dict(_spread(places, model, "", places.get("")))
    check_blocks(found, model)
    for pair in getattr(model, "all_tied_weights_keys", {}).items():
        first, second = (_text(place_of(name, found)) for name in pair)
        if first != second and not {first, second} & {"cpu", "disk"}:
            raise InputError(
                f"{pair[0]!r} is {pair[1]!r} (the weights are tied), so the device map cannot send one to {first} and the "
                f"other to {second}."
            )
    return found


def _spread(places: Places, module: nn.Module, path: str, inherited: Any) -> Iterator[tuple[str, Any]]:
    """The largest modules at or below ``path`` that have one place each."""
    place = places.get(path, inherited)
    prefix = path and path + "."
    if not any(name != path and name.startswith(prefix) for name in places):
        if place is None and next(module.parameters(), None) is not None:
            raise InputError(f'device_map says nothing about {path!r}. Add it, or "" for all that is not named.')
        if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
            yield path, next(iter(places.values())) if place is None else place  # buffers need no name
        return
    for name, _ in module.named_parameters(recurse=False):
        if place is None:
            raise InputError(f'device_map says nothing about {prefix + name!r}. Add "" for all that is not named.')
        yield prefix + name, place
    for name, child in module.named_children():
        yield from _spread(places, child, prefix + name, place)


def check_blocks(places: Mapping[str, Any], model: nn.Module) -> None:
    """Refuse places that divide a block between computing devices: its residual additions would fail at first use.

    Raises:
        InputError: They do; the error names the block.
    """
    path = _longest_list(model)
    for number, block in enumerate(model.get_submodule(path).children() if path else ()):
        name = f"{path}.{number}"
        where = {_text(place_of(f"{name}.{p}", places)) for p, _ in block.named_parameters()} - {"cpu", "disk"}
        if len(where) > 1:
            raise InputError(
                f"the device map divides {name} between {' and '.join(sorted(where))}, but a block must be on one device: "
                f'give a device_map with places for whole blocks ("{path}.0", ...).'
            )


def place_of(name: str, places: Mapping[str, Any]) -> Any:
    """The place of ``name`` or of the closest module above it; ``None`` if neither has one."""
    while name not in places:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return places[name]


def describe_division(model: nn.Module) -> str:
    """How a loaded model was divided, for the log: blocks and gigabytes of weights per place (1 GB = 1e9 bytes)."""
    places: Mapping[str, Any] = getattr(model, "hf_device_map", {})
    path = _longest_list(model)
    size: dict[str, int] = {}
    blocks: dict[str, set[str]] = {}
    for name, parameter in named_parameters(model):
        place = place_of(name, places)
        where = _text(parameter.device if place is None else place)
        size[where] = size.get(where, 0) + parameter.numel() * parameter.element_size()
        if path and name.startswith(path + "."):
            blocks.setdefault(where, set()).add(name[len(path) + 1 :].partition(".")[0])
    return "; ".join(f"{where} ({len(blocks.get(where, ()))} blocks, {size[where] / 1e9:.3g} GB)" for where in size)


def _longest_list(model: nn.Module) -> str:
    """The name of the model's blocks: its longest list of modules."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    return max(lists, key=lambda found: len(found[1]), default=("", None))[0]


def _text(place: Any) -> str:
    return f"cuda:{place}" if isinstance(place, int) else str(place)
