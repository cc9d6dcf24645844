"""A PyTorch function that a model called, and its tensors: what rules are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(slots=True)
class Call:
    """A PyTorch function that the model called, with its arguments; ``call()`` makes it as it is, with its own gradient.

    Attributes:
        unknown: Counts reasons why the map would be wrong; what a rule notes there is refused by name.
        kind: What the operation is (``table.py``); ``""``: one that needs no rule.
        rank: Of the result, where its node in the graph does not say it (``gates.py``).
        written_out: It is the last of several operations that make one of this kind, with those operands detached that have to
            be constant: its own gradient follows the library's rule.
        at_zero: The limit of f(x) / x at 0, where it is known (``activations.py``).
    """

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    unknown: Counter[str] = field(default_factory=Counter)
    kind: str = ""
    rank: int | None = None
    written_out: bool = False
    at_zero: float | None = None

    def __call__(self) -> Any:
        """The result as PyTorch computes it."""
        return self.function(*self.args, **self.kwargs)

    @property
    def name(self) -> str:
        """The function's name, such as ``"mul"`` or ``"__rtruediv__"``."""
        return getattr(self.function, "__name__", "")

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        """An argument given positionally or by keyword."""
        return self.args[place] if len(self.args) > place else self.kwargs.get(name, default)

    @property
    def operands(self) -> list[Tensor]:
        """The tensors among the arguments that carry gradient."""
        return [t for t in tensors_in((*self.args, *self.kwargs.values())) if t.requires_grad]

    @property
    def bias(self) -> Tensor | None:
        """What a linear layer, or a product like ``addmm``, adds to its result."""
        if self.name.startswith(("add", "badd")):
            return self.argument(0, "input")
        return self.argument(2, "bias") if self.name.startswith(("linear", "conv")) else self.kwargs.get("bias")

    @property
    def factors(self) -> list[Tensor]:
        """The operands without a bias."""
        bias = self.bias
        return [t for t in self.operands if t is not bias]

    @property
    def fraction(self) -> tuple[Any, Any]:
        """Numerator and denominator of a division, also of a reflected one."""
        a, b = self.argument(0, "input"), self.argument(1, "other")
        return (b, a) if self.name.startswith("__r") else (a, b)

    @property
    def exponent(self) -> Any:
        """Of a power: a number, or a tensor that carries gradient or holds several."""
        n = {"square": 2, "sqrt": 0.5}.get(self.name.strip("_")) or self.argument(1, "exponent")
        return n.item() if isinstance(n, Tensor) and n.numel() == 1 and not n.requires_grad else n

    def change(self, change: Callable[[Tensor], Tensor]) -> Call:
        """The same call with ``change`` applied to every tensor, also inside lists (``cat``, ``einsum``)."""
        args = [_changed(value, change) for value in self.args]
        kwargs = {name: _changed(value, change) for name, value in self.kwargs.items()}
        return Call(self.function, args, kwargs, self.unknown, self.kind, self.rank, self.written_out, self.at_zero)

    def detached(self, which: Callable[[Tensor], bool]) -> Call:
        """The same call, in which those of its operands are constants."""
        return self.change(lambda t: t.detach() if t.requires_grad and which(t) else t)

    def out_of_place(self) -> Call:
        """An in-place operation (``mul_``, ``__imul__``, ``relu(inplace=True)``) as one that leaves its operand as it is."""
        bare = self.name.strip("_").removeprefix("i") if self.name.startswith("__i") else self.name.rstrip("_")
        kwargs = {name: value for name, value in self.kwargs.items() if name not in ("inplace", "input")}
        args = [self.argument(0, "input").clone(), *self.args[1:]]
        function = getattr(torch.Tensor, bare, getattr(functional, bare, self.function))  # elu is no method
        return replace(self, function=function, args=args, kwargs=kwargs)


def _changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    return type(value)(_changed(v, change) for v in value) if isinstance(value, list | tuple) else value


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among values, also inside lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [v for v in value if isinstance(v, Tensor)]
    return found
