r"""How relevance flows from token to token between places of the residual stream, from one forward pass.

With the gradients under the rules fixed, let :math:`x^u_t` be the hidden state of token t at an upper place and :math:`g^u_t` the
gradient of the explained value there. Token t's relevance is :math:`R^u_t = x^u_t \cdot g^u_t`, and what it takes from
token s at a lower place is

.. math:: R^{l \leftarrow u}_{s \leftarrow t} = x^l_s \cdot \partial (x^u_t \cdot [g^u_t]_{const}) / \partial x^l_s

Summed over t this is :math:`R^l_s`, by linearity; summed over s it is :math:`R^u_t`, but for what biases take.

1. One forward pass notes the places (``places.py``); one backward pass gives all gradients, and so the relevance of all tokens at
   all places.
2. Where no attention lies between two places, each token takes from itself alone. That is tested by one more backward pass, from
   gradients that are multiplied by another number at each token.
3. Where one fused attention lies between, its rows are explicit (``attention_flow.py``), and tested in the same way.
4. Otherwise each token has a backward pass of its own, many in one batch of cotangents.
5. From the top down, only tokens and edges that carry relevance are kept, and only kept tokens are followed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, NonFiniteError, nearest
from ..models.positions import fresh_rotations
from ..text.batching import Batch
from .attention_flow import AttentionFlow, AttentionWatch, along, shares_of
from .dispatch import PassRunner
from .forward_backward import PassOptions, PassSpec, _logits, exact_dtype, explained_logits, watched
from .many_targets import NotCutOff, with_options
from .memory import values_at_once
from .places import Place, StreamPlaces, edge_of, reached
from .validation import about_cuts, where_not_finite

logger = logging.getLogger("lrpx")


@dataclass(frozen=True)
class Keep:
    """What is kept of the flow: by ``share`` of the mass (sum of absolute relevance), or from ``threshold`` on, in logits."""

    share: float | None = 0.9
    threshold: float | None = None

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return not self.threshold if self.threshold is not None else self.share == 1

    def of(self, relevance: Tensor) -> Tensor:
        """A mask over ``relevance``: the fewest largest numbers that carry the share, or those that reach the threshold."""
        size = relevance.abs().double() if relevance.device.type != "mps" else relevance.abs()
        if self.everything:
            return torch.ones_like(size, dtype=torch.bool)
        if self.threshold is not None:
            return size >= self.threshold
        assert self.share is not None
        flat = size.flatten()
        ordered, order = flat.sort(descending=True, stable=True)
        sums = ordered.cumsum(0)
        enough = sums >= self.share * sums[-1:] * (1 - 1e-12)
        count = (~enough).sum() + 1
        mask = torch.zeros_like(flat, dtype=torch.bool)
        mask[order[: int(count)]] = True
        return (mask & (flat > 0)).view(size.shape)


@dataclass(frozen=True)
class Step:
    """The flow between two neighbouring places.

    Attributes:
        upper, lower: Indices of the places.
        edges: Kept edges ``[E, 2]``: token above, token below; ``relevance``: float64 ``[E]``.
        followed: The tokens above whose edges were looked at.
        residuals: Of each of them, its relevance minus that of all its edges, kept or not: what biases took, or left around.
        mass: Sum of the absolute relevance of all edges of these tokens.
        residual: Of all tokens above, followed or not, the relevance that does not arrive below.
        around: Relevance of the tokens below that did not come from the place above.
        way: How it was computed: ``"diagonal"``, ``"attention"`` or ``"passes"``.
    """

    upper: int
    lower: int
    edges: np.ndarray
    relevance: np.ndarray
    followed: np.ndarray
    residuals: np.ndarray
    mass: float
    residual: float
    around: float
    way: str


@dataclass(frozen=True)
class Flow:
    """What ``flow_of`` finds: of P places, from the lowest to the top.

    Attributes:
        value: The explained scalar; ``target``: the explained token id.
        places: Their names.
        relevance: float64 ``[P, T]`` of all tokens.
        kept: bool ``[P, T]``: the tokens that are kept.
        steps: From the top down.
        notes: What has to be known to read it right.
    """

    value: float
    target: int
    places: list[str]
    relevance: np.ndarray
    kept: np.ndarray
    steps: list[Step]
    notes: tuple[str, ...]


def flow_of(
    runner: PassRunner,
    batch: Batch,
    spec: PassSpec,
    keep: Keep,
    *,
    between: Sequence[object] | None = None,
    layers: Sequence[int] | None = None,
    explicit: bool = True,
    together: int | None = None,
) -> Flow:
    """The flow of relevance of one text's prediction.

    Args:
        runner: Of the model, whose lock the caller holds.
        batch: One text.
        spec: The rules; ``at`` is the lowest place.
        keep: What is kept.
        between: Names of places, from the lowest to the top; an ellipsis stands for all in between. Default: all.
        layers: The outputs of these blocks, the lowest place and the last.
        explicit: Use the explicit formula where one fused attention lies between two places.
        together: How many tokens go backwards at once. Default: by an estimate of memory.

    Raises:
        InputError: There is no such place.
        UnsupportedModelError: The model cannot be explained correctly, or runs no blocks one after the other.
        NonFiniteError: A logit or a gradient is NaN or infinite.
    """
    model = runner.model
    spec = replace(spec, mode=AttentionWatch)

    def attempt(options: PassOptions) -> Flow:
        many = together or (1 if options.checkpoint else values_at_once(model, batch))
        with fresh_rotations(model), watched(model, batch, spec, options) as now:
            assert isinstance(now.active, AttentionWatch)
            watch = now.active
            watch.keeps = explicit and not options.checkpoint
            stream = StreamPlaces(model, batch.inputs["input_ids"].shape[1], lambda: len(watch.calls))
            with stream.noted():
                picked, targets, _ = _logits(model, now.batch, options, watch, now.wanted)
            exact = picked.to(exact_dtype(picked))
            value = (exact[:, 0] - (exact[:, 1] if int(now.batch.contrasts[0]) >= 0 else 0)).sum()
            states, beside = now.states(model, value)
            if not value.isfinite():
                raise NonFiniteError(where_not_finite(model, lambda: explained_logits(model, batch)))
            notes = (about_cuts(type(model).__name__, watch),) if +watch.cuts else ()
            [(name, state)] = states.items()
            lowest = Place(name, state, 1, 0)
            places = chosen_places([lowest, *stream.checked()], between, layers)
            walk = _Walk(model, places, watch, value, beside, many)
            steps, kept = walk.down(keep)
            relevance = np.stack([r.cpu().double().numpy() for r in walk.relevance])
            names = [place.name for place in places]
            masks = np.stack([mask.cpu().numpy() for mask in kept])
            return Flow(float(value.detach()), int(targets[0]), names, relevance, masks, steps, (*notes, *walk.notes))

    return with_options(runner, batch, spec, attempt)


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
    found: list[int] = []
    for i, name in enumerate(between):
        if name is ...:
            if i in (0, len(between) - 1) or between[i - 1] is ...:
                raise InputError(f"between={_shown(between)}: an ellipsis stands between two places.")
            continue
        index = last if name == "last" else names.index(name) if isinstance(name, str) and name in names else None
        if index is None:
            short = [n for n in names if not n.startswith("attention.")]
            shown = names if len(names) <= 12 else [*names[:5], *short[-2:]]
            raise InputError(f"between={_shown(between)}: there is no place {name!r}. {nearest(name, [*shown, 'last'])}")
        if found and index <= found[-1]:
            raise InputError(
                f"between={_shown(between)}: {name!r} does not lie above {names[found[-1]]!r}. Name places from the text "
                'upwards: between=("input", ..., "last").'
            )
        if i and between[i - 1] is ...:
            found.extend(range(found[-1] + 1, index))
        found.append(index)
    if len(found) < 2:
        raise InputError(f'between={_shown(between)}: give two places or more, such as ("input", ..., "last").')
    return [places[i] for i in found]


def _shown(between: Sequence[object]) -> str:
    return f"({', '.join('...' if name is ... else repr(name) for name in between)})"


class _Walk:
    """One text after its forward pass: gradients at all places, and what tokens take from each other, step by step."""

    def __init__(
        self,
        model: PreTrainedModel,
        places: list[Place],
        watch: AttentionWatch,
        value: Tensor,
        beside: list[Tensor],
        together: int,
    ) -> None:
        self.name, self.places, self.watch, self.together = type(model).__name__, places, watch, together
        calls = [self._call_between(lower, upper) for lower, upper in pairwise(places)]
        extra = [t for call in calls if call is not None for t in (call.output, call.value, call.key)]
        wanted = [*(place.state for place in places), *extra]
        differentiable = {id(t): t for t in wanted if t.requires_grad}
        gradients = torch.autograd.grad(
            value, [*differentiable.values(), *beside], retain_graph=True, allow_unused=True
        )
        if beside and gradients[-1] is not None:
            raise NotCutOff
        found = dict(zip(differentiable, gradients, strict=False))

        def gradient(tensor: Tensor) -> Tensor:
            known = found.get(id(tensor))
            return torch.zeros_like(tensor) if known is None else known

        self.gradients = [gradient(place.state) for place in places]
        for place, each in zip(places, self.gradients, strict=True):
            if not each.isfinite().all():
                raise NonFiniteError(
                    f"the gradient at {place.name} of {self.name} is not finite in {each.dtype}. Load the model in a wider dtype, "
                    "or try another attn_implementation."
                )
        self.relevance = [self._products(i, g)[0] for i, g in enumerate(self.gradients)]  # float64 [T] each
        self._calls = [None if c is None else (c, *map(gradient, (c.output, c.value, c.key))) for c in calls]
        self._direct = self._direct_steps(value)
        self._noise = torch.Generator().manual_seed(0)
        self._arrived: dict[int, Tensor] = {}
        self.notes = [note] if (note := self._about_ways_around()) else []

    def _call_between(self, lower: Place, upper: Place):  # type: ignore[no-untyped-def]
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

    def _arrives(self, lower: int) -> Tensor:
        """What tokens at the lower place give to the place above ``[T]``."""
        if self._direct[lower]:
            return self.relevance[lower]
        if lower not in self._arrived:
            self._arrived[lower] = self._weighted(lower + 1, lower, torch.ones(len(self.relevance[lower])))[0]
        return self._arrived[lower]

    def _about_ways_around(self) -> str | None:
        """A sentence on relevance that goes around the places."""
        found = []
        for lower in range(len(self.places) - 1):
            missing = (self.relevance[lower] - self._arrives(lower)).abs().sum()
            if float(missing) > 1e-6 * float(self.relevance[lower].abs().sum()):
                found.append(self.places[lower].name)
        if not found:
            return None
        names = ", ".join(found[:4]) + (f" and {len(found) - 4} more places" if len(found) > 4 else "")
        return (
            f"{self.name} has ways around the places (keys, values or states that later blocks use again): a part of the relevance "
            f"at {names} did not come through the place above. It stands in around, and belongs to no edge."
        )

    def _products(self, place: int, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden state times gradient ``[T]``, exact; and the sum of absolute values, to compare errors with."""
        here = self.places[place]
        state = here.rows(here.state.detach())
        dtype = exact_dtype(state)
        products = state.to(dtype) * here.rows(gradient).to(dtype)
        return products.sum(-1), products.abs().sum(-1)

    def _pass(self, upper: int, lower: int, seeds: Tensor, *, batched: bool = False) -> Tensor:
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

    def _weighted(self, upper: int, lower: int, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Of each token below, the relevance where those above are multiplied by ``weights``; and what errors compare with."""
        place = self.places[upper]
        shape = [1] * place.state.ndim
        shape[place.axis] = -1
        seeds = self.gradients[upper] * weights.to(self.gradients[upper]).view(shape)
        return self._products(lower, self._pass(upper, lower, seeds))

    def _probe(self, count: int) -> Tensor:
        """A number for each token, of both signs: powers of two, which multiply without rounding."""
        kinds = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5, -0.5])
        return kinds[torch.randint(len(kinds), (count,), generator=self._noise)]

    def down(self, keep: Keep) -> tuple[list[Step], list[Tensor]]:
        """The steps from the top down, and the tokens kept at each place."""
        kept = [keep.of(r) for r in self.relevance]
        diagonal: dict[int, Tensor] = {}
        for lower in range(len(self.places) - 1):
            if (edges := self._diagonal(lower + 1, lower)) is not None:
                diagonal[lower] = edges
                above = kept[lower + 1]
                kept[lower + 1] = above | (kept[lower] & (edges != 0)).to(above.device)
        steps = []
        for lower in reversed(range(len(self.places) - 1)):
            steps.append(self._step(lower + 1, lower, diagonal.get(lower), kept, keep))
        return steps, kept

    def _diagonal(self, upper: int, lower: int) -> Tensor | None:
        """What each token takes from itself ``[T]``, if no token takes from another."""
        places = self.places
        if places[upper].attentions != places[lower].attentions or places[upper].name.startswith("attention."):
            return None
        weights = self._probe(len(self.relevance[upper]))
        found, size = self._weighted(upper, lower, weights)
        own = self._arrives(lower)
        return own if self._same(found, weights.to(found) * own, size) else None

    def _same(self, a: Tensor, b: Tensor, size: Tensor) -> bool:
        """Whether two sums are equal but for rounding; ``size`` is the sum of the absolute values of what was added up."""
        narrow = max(torch.finfo(place.state.dtype).eps for place in self.places)
        tolerance = 0.05 if narrow > 1e-4 else 3e-5  # also of float64, in which models still have parts in float32
        return bool(((a - b).abs() <= tolerance * size + narrow * size.max()).all())

    def _step(self, upper: int, lower: int, diagonal: Tensor | None, kept: list[Tensor], keep: Keep) -> Step:
        above, below = self.relevance[upper], self.relevance[lower]
        device = below.device
        tokens = kept[upper].nonzero().flatten().to(device)
        arrives = self._arrives(lower)
        if diagonal is not None:
            way, own = "diagonal", diagonal[tokens]
            chosen = tokens[kept[lower].to(device)[tokens] & (own != 0)]
            edges, values = torch.stack([chosen, chosen], 1), diagonal[chosen]
            sums, mass = own, own.abs().sum()
        else:
            way, rows = self._rows(upper, lower, tokens, arrives)
            inside = rows * kept[lower].to(device)
            mask = keep.of(inside) & (inside != 0) if len(tokens) else torch.zeros_like(inside, dtype=torch.bool)
            if len(tokens):  # the strongest edge to each kept token connects it
                best = inside.abs().argmax(0)
                columns = torch.arange(len(best), device=device)
                mask[best, columns] |= inside[best, columns] != 0
            which = mask.nonzero()
            edges, values = torch.stack([tokens[which[:, 0]], which[:, 1]], 1), inside[mask]
            sums, mass = rows.sum(1), rows.abs().sum()
        if not keep.everything:  # a token that no kept token takes from does not belong to the graph
            connected = torch.zeros_like(kept[lower], device=device)
            connected[edges[:, 1]] = True
            kept[lower] = connected
        return Step(
            upper,
            lower,
            edges.cpu().numpy(),
            values.cpu().double().numpy(),
            tokens.cpu().numpy(),
            (above.to(device)[tokens] - sums).cpu().double().numpy(),
            float(mass),
            float(above.sum()) - float(arrives.sum()),
            float((below - arrives).sum()),
            way,
        )

    def _rows(self, upper: int, lower: int, tokens: Tensor, arrives: Tensor) -> tuple[str, Tensor]:
        """What the tokens above take from each token below, exact ``[K, T]``, and how that was computed."""
        if self._calls[lower] is not None and self._direct[lower]:
            try:
                if (rows := self._explicit(upper, lower, tokens, arrives)) is not None:
                    return "attention", rows
            except RuntimeError as error:  # an operation that cannot be differentiated twice, or memory
                logger.debug("%s: no explicit flow to %s: %s", self.name, self.places[lower].name, str(error)[:200])
        return "passes", self._by_passes(upper, lower, tokens)

    def _explicit(self, upper: int, lower: int, tokens: Tensor, arrives: Tensor) -> Tensor | None:
        known = self._calls[lower]
        assert known is not None
        call, gradient, of_value, of_key = known
        state = self.places[lower].state
        shares = shares_of(call, self.watch.rules)
        if shares is None or not call.value.requires_grad:
            return None
        follows_keys = bool(shares[1]) and call.key.requires_grad
        value, *rest = along(state, [call.value, call.key] if follows_keys else [call.value])
        key = rest[0] if rest else None
        device, dtype = arrives.device, arrives.dtype
        flow = AttentionFlow(call, shares, gradient, value, key)
        rows = flow.rows(tokens.to(gradient.device)).to(device, dtype)

        def taken(along_state: Tensor, back: Tensor) -> Tensor:
            return (along_state.to(dtype) * back.to(dtype)).sum((0, 1, 3)).to(device)  # [T]

        own = arrives - taken(value, of_value) - (taken(key, of_key) if key is not None else 0)
        rows[torch.arange(len(tokens), device=device), tokens] += own[tokens]
        weights = torch.zeros(len(arrives), dtype=dtype)
        weights[tokens.cpu()] = self._probe(len(tokens)).to(dtype)
        found, size = self._weighted(upper, lower, weights)
        expected = weights.to(device)[tokens] @ rows
        if self._same(found, expected, size + (weights.to(device)[tokens].abs() @ rows.abs())):
            return rows
        logger.debug("%s: the explicit flow to %s does not hold", self.name, self.places[lower].name)
        return None

    def _by_passes(self, upper: int, lower: int, tokens: Tensor) -> Tensor:
        place, length = self.places[upper], len(self.relevance[lower])
        found, start = [], 0
        gradient = self.gradients[upper]
        while start < len(tokens):
            group = tokens[start : start + self.together].to(gradient.device)
            seeds = torch.zeros(len(group), *gradient.shape, dtype=gradient.dtype, device=gradient.device)
            every = torch.arange(len(group), device=gradient.device)
            seeds.movedim(place.axis + 1, 1)[every, group] = gradient.movedim(place.axis, 0)[group]
            try:
                back = (
                    self._pass(upper, lower, seeds, batched=True)
                    if len(group) > 1
                    else self._pass(upper, lower, seeds[0])[None]
                )
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if len(group) == 1:
                    raise
                reason = " ".join(str(error).split())[:200]
                logger.debug("%s goes backwards once per token: %s", self.name, reason)
                self.together = 1
                continue
            found.extend(self._products(lower, each)[0] for each in back)
            start += len(group)
        if not found:
            return torch.zeros(0, length, dtype=self.relevance[lower].dtype, device=self.relevance[lower].device)
        return torch.stack(found)


