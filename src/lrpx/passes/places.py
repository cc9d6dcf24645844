"""The places of a model's residual stream: what leaves each block, and what lies between its attention and its MLP.

1. Hooks note the hidden state that each block returns while the model runs, whatever the blocks are called.
2. Inside a block, what the modules after its attention are given is noted too. The first of these tensors that everything on
   its way through the block passes is the place after the attention. A block whose attention and MLP read the same
   (GPT-J, Falcon) has none. The autograd graph tells, so no list of families is needed.
3. The graph also tells whether there is a way around a place (keys and values that later blocks use again).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..errors import InputError, UnsupportedModelError, nearest
from ..recognition.gates import Edge, edge_of
from .hidden_states import items_of, replaced

INSTEAD = {  # advice where there is no flow
    "python": "Token relevance works: explainer(text).",
    "command": "Token relevance works: lrpx explain TEXT.",
    "app": "Token relevance works: Explain.",
}

_ATTENTION = re.compile(r"[Aa]tt(n|ention)")
_NORM = re.compile(r"Norm(Gated)?\d*$")


@dataclass(frozen=True, eq=False)
class Place:
    """A hidden state of the residual stream, of one text.

    Attributes:
        name: ``"embedding"``, ``"input"``, ``"attention.3"`` (after the attention of block 3), ``"block.3"`` (after block 3).
        state: The hidden state, with its graph.
        axis: Which of its dimensions are the tokens.
        attentions: How many attentions had run.
    """

    name: str
    state: Tensor
    axis: int
    attentions: int

    def rows(self, tensor: Tensor) -> Tensor:
        """A tensor of the state's shape as ``[T, width]``."""
        return tensor.movedim(self.axis, 0).flatten(1)


def token_axis(value: Any, length: int) -> int | None:
    """Which dimension of a hidden state of one text of ``length`` tokens are the tokens; ``None``: it is no hidden state.

    Known are ``[1, T, ...]``, ``[T, 1, width]`` (XLNet), ``[T, width]`` and ``[n, 1, T, width]`` (several streams).
    """
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return None
    shape = tuple(value.shape)
    if len(shape) >= 3 and shape[:2] == (1, length):
        return 1
    if (len(shape) == 3 and shape[:2] == (length, 1)) or (len(shape) == 2 and shape[0] == length):
        return 0
    return 2 if len(shape) == 4 and shape[1:3] == (1, length) else None


def reached(start: Edge, stops: Iterable[Edge]) -> set[Edge]:
    """Which of ``stops`` a backward pass from ``start`` meets first on any of its ways."""
    known, found = set(stops), set()
    nodes, seen = [start[0]], {start[0]}
    for node in nodes:  # which grows meanwhile
        for edge in node.next_functions:
            if edge in known:
                found.add(edge)
            elif edge[0] is not None and edge[0] not in seen:
                seen.add(edge[0])
                nodes.append(edge[0])
    return found


class StreamPlaces:
    """Notes the places while the model runs; ``found`` has them in the order of the pass.

    Args:
        model: The model.
        length: T, of one text.
        attentions: Says how many attentions have run.
    """

    def __init__(self, model: nn.Module, length: int, attentions: Callable[[], int]) -> None:
        self._name, self._length, self._attentions = type(model).__name__, length, attentions
        self._lists = [list(blocks) for blocks in _outer_lists(model)]
        self._order: list[int] = []  # which list each block that ran is of
        self._thread = threading.get_ident()
        self._block: nn.Module | None = None  # the one that runs
        self._entry: Edge | None = None  # where what it was given came out of; it may write into that
        self._takes = False  # whether it was given a hidden state
        self._candidates: list[tuple[Tensor, int, int, int]] | None = None  # tensor, its version, axis, attentions
        self.found: list[Place] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside the block, the model's hooks note places."""
        with ExitStack() as stack:
            for number, blocks in enumerate(self._lists):
                for block in dict.fromkeys(blocks):
                    stack.callback(block.register_forward_pre_hook(self._enter, with_kwargs=True).remove)
                    stack.callback(block.register_forward_hook(partial(self._leave, number)).remove)
                    attentions = list(_attentions_of(block))
                    for module in attentions:
                        stack.callback(module.register_forward_hook(self._after_attention).remove)
                    for module in block.modules() if attentions else ():
                        if module is not block:
                            stack.callback(module.register_forward_pre_hook(self._given, with_kwargs=True).remove)
            yield

    def checked(self) -> list[Place]:
        """The places.

        Raises:
            UnsupportedModelError: The model has no blocks one after the other.
        """
        changes = sum(a != b for a, b in zip(self._order, self._order[1:], strict=False))
        if not self.found or changes >= len(set(self._order)):
            why = "no module list of blocks was seen" if not self.found else "parts of its blocks are in several lists"
            raise UnsupportedModelError(
                f"{self._name} does not run blocks one after the other that take and return hidden states ({why}), so "
                "there is no flow between them.",
                **INSTEAD,
            )
        return self.found

    def _elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    def _enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._elsewhere() or self._block is not None:
            return
        state = self._hidden((*args, *kwargs.values()))
        self._block, self._candidates, self._takes = block, None, state is not None
        self._entry = edge_of(state) if state is not None and state.requires_grad else None

    def _leave(self, number: int, block: nn.Module, _: Any, output: Any) -> Any:
        if self._elsewhere() or self._block is not block:
            return output
        self._block = None
        state = self._hidden((output, *items_of(output)))
        if state is None or not self._takes:
            raise UnsupportedModelError(
                f"{self._name}: {type(block).__name__} does not take and return a hidden state [batch, tokens, width] of the "
                f"{self._length} tokens, so there is no flow between tokens there.",
                **INSTEAD,
            )
        if not state.requires_grad:
            return output
        self._order.append(number)
        name = len(self._order) - 1
        if (between := self._between(state)) is not None:
            self.found.append(Place(f"attention.{name}", *between))
        axis = token_axis(state, self._length)
        assert axis is not None
        self.found.append(Place(f"block.{name}", state, axis, self._attentions()))
        new = state.clone()  # a later in-place operation must not touch what was noted
        return new if state is output else replaced(output, state, new)

    def _after_attention(self, *_: Any) -> None:
        if not self._elsewhere() and self._block is not None:
            self._candidates = []

    def _given(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._elsewhere() or self._block is None or self._candidates is None:
            return
        for value in (*args, *kwargs.values()):
            axis = token_axis(value, self._length)
            if axis is not None and value.requires_grad:
                self._candidates.append((value, value._version, axis, self._attentions()))
                return

    def _between(self, state: Tensor) -> tuple[Tensor, int, int] | None:
        """What lies between attention and MLP: it is on every way from what the block returned to what it was given."""
        if self._entry is None:
            return None
        first, last, tried = self._entry, edge_of(state), set()
        stops = {first, *(edge_of(place.state) for place in self.found)}
        for tensor, version, axis, attentions in self._candidates or ():
            edge = edge_of(tensor)
            if edge in tried or edge in (first, last) or tensor._version != version:
                continue
            tried.add(edge)
            if reached(last, {*stops, edge}) == {edge}:
                return tensor, axis, attentions
        return None

    def _hidden(self, values: Sequence[Any]) -> Tensor | None:
        return next((value for value in values if token_axis(value, self._length) is not None), None)


def _outer_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    """The outermost lists of modules that are made of several parts."""
    for child in module.children():
        if isinstance(child, nn.ModuleList) and all(any(part.children()) for part in child):
            yield child
        else:
            yield from _outer_lists(child)


def _attentions_of(block: nn.Module) -> Iterator[nn.Module]:
    """The outermost modules of a block that are attention, by the names of their classes or their own."""
    for name, child in block.named_children():
        kind = type(child).__name__
        is_one = _ATTENTION.search(kind) or (_ATTENTION.search(name) and any(child.children()))
        if is_one and not _NORM.search(kind):
            yield child
        else:
            yield from _attentions_of(child)


def chosen_places(
    places: Sequence[Place], between: Sequence[object] | None, layers: Sequence[int] | None
) -> list[Place]:
    """Those of the places that are asked for, from the lowest to the top.

    Raises:
        InputError: A name is not that of a place, or they do not go upwards.
    """
    names = [place.name for place in places]
    last = len(places) - 1
    if layers is not None:
        blocks = sum(name.startswith("block.") for name in names)
        wrong = [i for i in layers if isinstance(i, bool) or not isinstance(i, int) or not -blocks <= i < blocks]
        if wrong:
            raise InputError(f"layers={list(layers)!r}: give numbers of blocks from 0 to {blocks - 1}.")
        wanted = {0, last, *(names.index(f"block.{i % blocks}") for i in layers)}
        return [places[i] for i in sorted(wanted)]
    if between is None:
        return list(places)
    between = [... if name == "..." else name for name in between]
    found: list[int] = []
    for i, name in enumerate(between):
        if name is ...:
            if i in (0, len(between) - 1) or between[i - 1] is ...:
                raise InputError(f"between={_shown(between)!r}: an ellipsis stands between two places.")
            continue
        index = last if name == "last" else names.index(name) if isinstance(name, str) and name in names else None
        if index is None:
            raise InputError(f"between={_shown(between)!r}: there is no place {name!r}. {_nearest_place(name, names)}")
        if found and index <= found[-1]:
            raise InputError(
                f"between={_shown(between)!r}: {name!r} does not lie above {names[found[-1]]!r}. Name places from the text "
                'upwards: between=["input", "...", "last"].'
            )
        if i and between[i - 1] is ...:
            found.extend(range(found[-1] + 1, index))
        found.append(index)
    if len(found) < 2:
        raise InputError(
            f'between={_shown(between)!r}: give two places or more, such as between=["input", "...", "last"].'
        )
    return [places[i] for i in found]


def _nearest_place(name: object, names: Sequence[str]) -> str:
    """A sentence with all places, those of the blocks in short, and the one that ``name`` is closest to."""
    hint = nearest(name, [*names, "last"]).partition("Known: ")[0]
    numbered: dict[str, list[str]] = {}
    for place in names:
        numbered.setdefault(place.partition(".")[0], []).append(place)
    known = [f"{each[0]} to {each[-1]}" if len(each) > 2 else ", ".join(each) for each in numbered.values()]
    return f"{hint}Known: {', '.join([*known, 'last'])}."


def _shown(between: Sequence[object]) -> list[object]:
    """As one may type it, here and on the command line."""
    return ["..." if name is ... else name for name in between]
