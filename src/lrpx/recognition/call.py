"""A PyTorch function that a model called, and its tensors: what rules are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._torch_internals import inside_transform


@dataclass(slots=True)
class Call:
    """A PyTorch function that the model called, with its arguments; ``call()`` makes it as it is, with its own gradient.

    ``unknown`` counts reasons why the map would be wrong; what a rule notes there is refused by name.
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    unknown: Counter[str] = field(default_factory=Counter)

    def __call__(self) -> Any:
        """The result as PyTorch computes it."""
        return self.function(*self.args, **self.kwargs)

    @property
    def name(self) -> str:
        """The function's name, such as ``"mul"`` or ``"__rtruediv__"``."""
        return getattr(self.function, "__name__", "")

    @property
    def factors(self) -> list[Tensor]:
        """The tensors among the arguments that carry gradient, without a bias."""
        first = self._adds_first
        args = self.args[first : 2 if self.name.startswith(("linear", "conv")) else None]
        named = (value for name, value in self.kwargs.items() if name != ("input" if first else "bias"))
        return [t for t in tensors_in((*args, *named)) if t.requires_grad]

    @property
    def _adds_first(self) -> bool:
        return self.name.startswith(("addm", "addb", "badd", "addr", "addc"))

    @property
    def bias(self) -> Tensor | None:
        """What a linear layer, or a product like ``addmm``, adds to its result."""
        if self._adds_first:
            return self.argument(0, "input")
        return self.argument(2, "bias") if self.name.startswith(("linear", "conv")) else None

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument given positionally or by keyword."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    def change(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with ``change`` applied to every tensor, also inside lists (``cat``, ``einsum``)."""
        kwargs = {name: _changed(value, change) for name, value in self.kwargs.items()}
        return Call(self.function, [_changed(a, change) for a in self.args], kwargs, self.unknown)

    def detached(self, which: Callable[[Tensor], bool]) -> Call:
        """The same call, in which those of its factors are constants."""
        return self.change(lambda t: t.detach() if t.requires_grad and which(t) else t)


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_changed(v, change) for v in value) if isinstance(value, list | tuple) else value


def out_of_place(call: Call) -> Call:
    """An in-place operation (``mul_``, ``__imul__``, ``relu(inplace=True)``) as one that leaves its operand as it is."""
    bare = call.name.strip("_").removeprefix("i") if call.name.startswith("__i") else call.name.rstrip("_")
    kwargs = {name: value for name, value in call.kwargs.items() if name not in ("inplace", "input")}
    function = getattr(torch.Tensor, bare, call.function)
    return Call(function, [call.argument(0, "input").clone(), *call.args[1:]], kwargs, call.unknown)


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among values, also inside lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found.extend(v for v in value if isinstance(v, Tensor))
    return found


def has_one_factor(args: Sequence[Any]) -> bool:
    """Whether a product multiplies by something without gradient, such as a weight; ``einsum`` begins with its equation."""
    a, b = args[:2] if len(args) > 1 else (None, None)
    one = isinstance(a, Tensor) and not (a.requires_grad and isinstance(b, Tensor) and b.requires_grad)
    return one and not inside_transform()
