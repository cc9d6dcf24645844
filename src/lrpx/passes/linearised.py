"""A text after its forward and backward pass: gradients at places of the residual stream, and backward passes between them.

The rules make the pass linear in each gradient, so what tokens at an upper place take from those below can be asked for any
weights of the tokens. Whether something goes around a place, the graph tells.
"""

from __future__ import annotations

import warnings
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import NonFiniteError, listed
from ..recognition.gates import edge_of
from .attention_flow import AttentionWatch, FusedAttention, shares_of
from .forward_backward import CHUNK
from .many_targets import NotCutOff
from .places import Place, reached
from .scores import exact_dtype


class AttentionGradients(NamedTuple):
    """A fused attention, and the gradient of the value at its output, values and keys."""

    call: FusedAttention
    output: Tensor
    value: Tensor
    key: Tensor


class Linearised:
    """The gradients of a value at all places of one text, and what tokens give to those at the next place.

    Args:
        name: Of the model, for messages.
        places: From the lowest to the top.
        watch: The mode that noted attentions.
        value: The explained scalar, with its graph.
        beside: What a gradient at which means a way around the lowest place.

    Attributes:
        gradients: At each place, of its state's shape.
        relevance: Of each place, of all tokens ``[T]``, exact.
        attentions: By lower place: the one attention up to the next, if it can be followed.
        direct: By lower place: whether all that it gives goes to the place above, and all that the one above takes is from it.
    """

    def __init__(
        self,
        name: str,
        places: list[Place],
        watch: AttentionWatch,
        value: Tensor,
        beside: list[Tensor],
    ) -> None:
        self.name, self.places, self.watch = name, places, watch
        calls = [self._call_between(lower, upper) for lower, upper in pairwise(places)]
        extra = [t for call in calls if call is not None for t in (call.output, call.value, call.key)]
        wanted = [*(place.state for place in places), *extra]
        differentiable = {id(t): t for t in wanted if t.requires_grad}
        gradients = torch.autograd.grad(
            value, [*differentiable.values(), *beside], retain_graph=True, allow_unused=True
        )
        if any(gradient is not None for gradient in gradients[len(differentiable) :]):
            raise NotCutOff
        found = dict(zip(differentiable, gradients, strict=False))

        def gradient(tensor: Tensor) -> Tensor:
            known = found.get(id(tensor))
            return torch.zeros_like(tensor) if known is None else known

        self.gradients = [gradient(place.state) for place in places]
        for place, each in zip(places, self.gradients, strict=True):
            if not each.isfinite().all():
                raise NonFiniteError(
                    f"the gradient at {place.name} of {self.name} is not finite in {each.dtype}. Load the model in a wider "
                    "dtype, or try another attn_implementation."
                )
        self.relevance = [self.products(i, g)[0] for i, g in enumerate(self.gradients)]  # float64 [T] each
        self.attentions = [
            None if c is None else AttentionGradients(c, *map(gradient, (c.output, c.value, c.key))) for c in calls
        ]
        self.direct = self._direct_steps(value)
        self._noise = torch.Generator().manual_seed(0)
        self._arrived: dict[int, Tensor] = {}

    def _call_between(self, lower: Place, upper: Place) -> FusedAttention | None:
        """The one attention between two places, if it can be followed."""
        between = self.watch.calls[lower.attentions : upper.attentions]
        if len(between) != 1 or between[0] is None or not between[0].usable:
            return None
        return between[0] if shares_of(between[0], self.watch.rules) is not None else None

    def _direct_steps(self, value: Tensor) -> list[bool]:
        """By lower place: whether all that it gives goes to the place above, and all that the one above takes is from it."""
        edges = [edge_of(place.state) if place.state.requires_grad else None for place in self.places]
        stops = {edge for edge in edges if edge is not None}
        met = [set() if start is None else reached(start, stops) for start in (*edges[1:], edge_of(value))]
        return [
            met[i] <= {edge} and not any(edge in others for others in met[i + 1 :]) for i, edge in enumerate(edges[:-1])
        ]

    def arrives(self, lower: int) -> Tensor:
        """What tokens at the lower place give to the place above ``[T]``."""
        if self.direct[lower]:
            return self.relevance[lower]
        if lower not in self._arrived:
            self._arrived[lower] = self.weighted(lower + 1, lower, torch.ones(len(self.relevance[lower])))[0]
        return self._arrived[lower]

    def about_ways_around(self) -> str | None:
        """A sentence on relevance that goes around the places."""
        found = []
        for lower in range(len(self.places) - 1):
            missing = (self.relevance[lower] - self.arrives(lower)).abs().sum()
            if float(missing) > 1e-6 * float(self.relevance[lower].abs().sum()):
                found.append(self.places[lower].name)
        if not found:
            return None
        names = listed(found, 4, "more places")
        return (
            f"{self.name} has ways around the places (keys, values or states that later blocks use again): a part of the "
            f"relevance at {names} did not come through the place above. It is counted as around, and belongs to no edge."
        )

    def products(self, place: int, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden state times gradient ``[T]``, exact; and the sum of absolute values, to compare errors with."""
        here = self.places[place]
        state, back = here.rows(here.state.detach()), here.rows(gradient)
        dtype, at_once = exact_dtype(state), max(1, CHUNK // max(1, state.shape[-1]))
        parts = zip(state.split(at_once), back.split(at_once), strict=True)
        sums = [((p := x.to(dtype) * g.to(dtype)).sum(-1), p.abs().sum(-1)) for x, g in parts]
        first, second = zip(*sums, strict=True)
        return torch.cat(first), torch.cat(second)

    def backward(self, upper: int, lower: int, seeds: Tensor, *, batched: bool = False) -> Tensor:
        """The gradient at the lower place for seeds at the upper one."""
        top, below = self.places[upper].state, self.places[lower].state
        if not (top.requires_grad and below.requires_grad):
            return torch.zeros_like(below).expand(len(seeds), *below.shape) if batched else torch.zeros_like(below)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="There is a performance drop", category=UserWarning)
            (found,) = torch.autograd.grad(
                top, [below], seeds, retain_graph=True, allow_unused=True, is_grads_batched=batched
            )
        if found is None:
            return torch.zeros_like(below).expand(len(seeds), *below.shape) if batched else torch.zeros_like(below)
        return found

    def weighted(self, upper: int, lower: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Of each token below, the relevance where those above are multiplied by ``weights``; and what errors compare with."""
        place = self.places[upper]
        shape = [1] * place.state.ndim
        shape[place.axis] = -1
        seeds = self.gradients[upper] * weights.to(self.gradients[upper]).view(shape)
        return self.products(lower, self.backward(upper, lower, seeds))

    def probe(self, count: int) -> Tensor:
        """A number for each token, of both signs: powers of two, which multiply without rounding."""
        kinds = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5])
        return kinds[torch.randint(len(kinds), (count,), generator=self._noise)]

    def same(self, a: Tensor, b: Tensor, size: Tensor, *, scaled: bool = False) -> bool:
        """Whether two sums are equal but for rounding.

        Args:
            a, b: The sums.
            size: The sum of the absolute values of what was added up.
            scaled: They were computed by the same operations, on numbers that differ by powers of two at each token.
        """
        narrow = max(torch.finfo(place.state.dtype).eps for place in self.places)
        loose = 0.05 if narrow > 1e-4 else 3e-5  # also of float64, in which models still have parts in float32
        tolerance = min(8 * narrow, loose) if scaled else loose
        return bool(((a - b).abs() <= tolerance * size + narrow * size.max() * (not scaled)).all())
