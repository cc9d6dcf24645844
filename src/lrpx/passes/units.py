"""Heads and neurons changed while a model runs, and the values that the model gives then.

1. A head is what an attention returned for it, before the output projection (``branches.py``): what ``by_head`` is relevance of.
2. A neuron is one number of what a module returned: what ``layers`` is relevance of. The output of ``up_proj``, ``act`` or
   ``fc1`` is what enters the last projection of an MLP, or is 0 where that is 0.

All tokens of a text are changed alike. To remove a unit is to put a constant in its place: zeros, or its mean.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import InputError
from ..text.batching import Batch
from .edits import at_once, selected_items, values_inside
from .forward_backward import watched
from .hidden_states import items_of, replaced
from .scores import exact_dtype
from .spec import EAGER, PassSpec

# Where, and what its units are [B, T, units, size] -> the same, changed.
UnitEdit = Callable[[Hashable, Tensor], Tensor]
Changed = Callable[[PreTrainedModel, Batch, UnitEdit], AbstractContextManager[None]]


@contextmanager
def heads_changed(model: PreTrainedModel, batch: Batch, edit: UnitEdit) -> Iterator[None]:
    """Inside the block, what heads write is replaced by ``edit`` of it; where: (block, its first head here)."""

    def of_heads(block: int, first: int, state: Tensor) -> Tensor:
        return edit((block, first), state.transpose(1, 2)).transpose(1, 2)

    # Heads are found in the autograd graph, so there has to be one.
    with watched(model, batch, PassSpec({}, hidden=False, heads=True), EAGER, of_heads):
        yield


@contextmanager
def neurons_changed(names: Sequence[str], model: PreTrainedModel, batch: Batch, edit: UnitEdit) -> Iterator[None]:
    """Inside the block, what these modules return is replaced by ``edit`` of it; where: the module's name."""
    thread, (rows, length) = threading.get_ident(), batch.shape

    def of_neurons(name: str, _: nn.Module, __: Any, output: Any) -> Any:
        if threading.get_ident() != thread:
            return output
        state = next(v for v in (output, *items_of(output)) if isinstance(v, Tensor) and v.is_floating_point())
        if state.shape[0] != rows and state.shape[0] != rows * length:
            raise InputError(
                f"{name} returns shape {list(state.shape)}; neurons are removed from [batch, tokens, width] = "
                f"[{rows}, {length}, width]."
            )
        by_token = state.reshape(rows, -1, state.shape[-1])  # some models flatten batch and tokens
        new = edit(name, by_token.unsqueeze(-1)).reshape(state.shape)
        return new if state is output else replaced(output, state, new)

    with ExitStack() as hooks:
        for name in names:
            hooks.callback(model.get_submodule(name).register_forward_hook(partial(of_neurons, name)).remove)
        yield


@dataclass(frozen=True)
class Units:
    """All N heads, or all N neurons of some modules, as one row.

    Attributes:
        places: Where -> which of the row are there.
        means: Where -> ``[units, size]``, the mean over the tokens of the texts.
    """

    places: dict[Hashable, slice]
    means: dict[Hashable, Tensor]

    @property
    def count(self) -> int:
        """N."""
        return max((place.stop for place in self.places.values()), default=0)


def watch_units(model: PreTrainedModel, batches: Sequence[Batch], changed: Changed) -> Units:
    """Look at the units of texts, one in each batch.

    Raises:
        NonFiniteError: A score is NaN or infinite.
    """
    sums: dict[Hashable, Tensor] = {}
    tokens: Counter[Hashable] = Counter()

    def note(where: Hashable, state: Tensor) -> Tensor:
        total = state.detach().to(exact_dtype(state)).sum((0, 1))
        sums[where] = sums.get(where, 0) + total
        tokens[where] += state.shape[0] * state.shape[1]
        return state

    for batch in batches:
        values_inside(model, batch, partial(changed, model, batch, note))
    places, start = {}, 0
    for where, total in sums.items():
        places[where] = slice(start, start + len(total))
        start += len(total)
    return Units(places, {where: total / tokens[where] for where, total in sums.items()})


def values_without_units(
    model: PreTrainedModel, batch: Batch, removed: np.ndarray, units: Units, changed: Changed, *, mean: bool
) -> np.ndarray:
    """The values of the only text of a batch, with some of its units removed. float64 ``[R]``.

    Args:
        model: In eval mode.
        batch: With one text, and its target.
        removed: bool ``[R, N]``.
        units: Of the model.
        changed: ``heads_changed``, or ``neurons_changed`` with names.
        mean: Their means are put in place of removed units, not zeros.

    Raises:
        NonFiniteError: A score is NaN or infinite.
    """
    found: list[float] = []
    for rows in at_once(batch, len(removed)):
        part, gone = selected_items(batch, [0] * (rows.stop - rows.start)), removed[rows]

        def without(where: Hashable, state: Tensor, gone: np.ndarray = gone) -> Tensor:
            there = torch.from_numpy(gone[:, units.places[where]]).to(state.device)[:, None, :, None]
            constant = units.means[where].to(state) if mean else state.new_zeros(())
            return torch.where(there, constant, state)

        found += values_inside(model, part, partial(changed, model, part, without)).tolist()
    return np.array(found)
