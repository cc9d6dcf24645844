"""Is a model still the one it was? Its modules, where its weights lie, its hooks and its modes.

A CUDA graph reads weights at fixed addresses, and both graphs and compiled passes hold what Python decided on the way. Weights
changed in place are fine; weights moved, modules exchanged, hooks added or a mode changed are not.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable

from torch import nn


class Fingerprint:
    """A model's state as it is now. It does not keep the model alive.

    ``in_place`` takes microseconds and says that the weights of then can still be read where they were; ``holds``, a
    fraction of a millisecond, that they are still the model's, and that all else is as it was.
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [weakref.ref(module) for module in model.modules()]
        # Kept, so that the memory of a weight that was exchanged is not given away while a graph reads it.
        self._weights = [*model.parameters(), *model.buffers()]
        self._places = [t.data_ptr() for t in self._weights]
        self._state = self._look()

    def in_place(self) -> bool:
        """Whether every weight of then lies where it lay."""
        return [t.data_ptr() for t in self._weights] == self._places

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        return self._look() == self._state

    def _look(self) -> Hashable:
        found: list[Hashable] = []
        for reference in self._modules:
            module = reference()
            if module is None:
                return None
            found += [module.training, len(module._forward_hooks), len(module._forward_pre_hooks)]
            found += map(id, module._modules.values())
            for tensors in (module._parameters, module._buffers):
                found += [0 if t is None else t.data_ptr() for t in tensors.values()]
            if "forward" in vars(module):
                found.append(id(vars(module)["forward"]))
        return tuple(found)
