"""Is a model still the one it was? Its modules, where its weights lie, its hooks, its modes and its configuration.

A CUDA graph reads weights at fixed addresses, and both graphs and compiled passes hold what Python decided on the way. Weights
changed in place are fine; weights moved, modules exchanged, hooks added or a number changed that a module reads are not.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any

from torch import Tensor, nn

_PLAIN = (bool, float, str)  # not int: some models note the length of the text that they read last (Funnel)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Fingerprint:
    """A model's state as it is now. It does not keep the model alive.

    ``in_place`` takes microseconds and says that the weights of then can still be read where they were; ``holds``, a
    fraction of a millisecond, that they are still the model's, and that all else is as it was.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self._modules = [
            (weakref.ref(module), [name for name, value in vars(module).items() if type(value) in _PLAIN])
            for module in model.modules()
        ]
        # Kept, so that the memory of a weight that was exchanged is not given away while a graph reads it.
        self._weights = [*model.parameters(), *model.buffers()]
        self._places = [t.data_ptr() for t in self._weights]
        self._config = copy.deepcopy(_config(model))
        self._state = self._look()

    def in_place(self) -> bool:
        """Whether every weight of then lies where it lay."""
        return [t.data_ptr() for t in self._weights] == self._places

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        return self._look() == self._state and _config(self._model()) == self._config

    def _look(self) -> list[Any] | None:
        found: list[Any] = []
        for reference, names in self._modules:
            module = reference()
            if module is None:
                return None
            own = module.__dict__
            found.append(module.__class__)
            found += [(type(value), value) for value in map(own.get, names)]  # its type first: tensors are not compared
            found += map(id, own["_modules"].values())
            for kind in _HOOKS:
                found += own[kind]  # their numbers: no two hooks have the same one
            for kind in ("_parameters", "_buffers"):
                found += [t is not None and _place(t) for t in own[kind].values()]
            if "forward" in own:
                found.append(weakref.ref(own["forward"]))
        return found


def _place(tensor: Tensor) -> Any:
    return tensor.data_ptr(), tensor.dtype, tensor.stride()


def _config(model: nn.Module | None) -> Any:
    return getattr(getattr(model, "config", None), "__dict__", None)
