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
5. Only tokens and edges that carry relevance are kept, and only kept tokens are followed: from the text upwards, so that where no
   kept token takes from one below, the way to that one can be kept too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .._torch_internals import no_function_modes
from ..errors import NonFiniteError, in_one_line
from ..models.positions import fresh_rotations
from ..text.batching import Batch, Predictions
from .attention_flow import AttentionFlow, AttentionWatch, along, shares_of
from .dispatch import PassRunner
from .forward_backward import watched
from .linearised import Linearised
from .many_targets import with_options
from .memory import values_at_once
from .places import Place, StreamPlaces, chosen_places
from .predictions import predictions, read_predictions
from .scores import asked_scores, exact_dtype, read_once
from .spec import PassOptions, PassSpec
from .validation import about_cuts, about_tables, where_not_finite

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
        upper, lower: Indices of the places. The other attributes are those of ``results.flow.FlowStep``.
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
        predictions: What the model predicts at the position, if the batch asks for it.
    """

    value: float
    target: int
    places: list[str]
    relevance: np.ndarray
    kept: np.ndarray
    steps: list[Step]
    notes: tuple[str, ...]
    predictions: Predictions | None


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
                picked, targets, whole = asked_scores(model, now.batch, batch.readout, options, watch, now.wanted)
            exact = picked.to(exact_dtype(picked))
            value = (exact[:, 0] - (exact[:, 1] if int(now.batch.contrasts[0]) >= 0 else 0)).sum()
            states, beside = now.states(model, value)
            if not value.isfinite():
                raise NonFiniteError(where_not_finite(model, lambda: read_once(model, batch)))
            predicted = None
            if whole is not None:
                with no_function_modes():  # nothing of this is the model's
                    counted = predictions(whole, targets, now.batch.contrasts, batch.likeliest)
                [predicted] = read_predictions(counted.cpu().double().numpy())
            notes = (*about_tables(model), *((about_cuts(type(model).__name__, watch),) if +watch.cuts else ()))
            [(name, state)] = states.items()
            lowest = Place(name, state.whole(), 1, 0)
            places = chosen_places([lowest, *stream.checked()], between, layers)
            at = Linearised(type(model).__name__, places, watch, value, beside)
            steps, kept = _Walk(at, many).down(keep)
            if (around := at.about_ways_around()) is not None:
                notes = (*notes, around)
            relevance = np.stack([r.cpu().double().numpy() for r in at.relevance])
            names = [place.name for place in places]
            masks = np.stack([mask.cpu().numpy() for mask in kept])
            return Flow(float(value.detach()), int(targets[0]), names, relevance, masks, steps, notes, predicted)

    return with_options(runner, batch, spec, attempt)


class _Walk:
    """Step by step from the top down: what tokens take from each other, and what is kept of that."""

    def __init__(self, at: Linearised, together: int) -> None:
        self.at, self.together = at, together

    def down(self, keep: Keep) -> tuple[list[Step], list[Tensor]]:
        """The steps from the top down, and the tokens kept at each place.

        They are found from the text upwards: where no kept token above takes from a kept one, the way to it is kept too.
        """
        kept = [keep.of(r) for r in self.at.relevance]
        steps = [self._step(lower + 1, lower, kept, keep) for lower in range(len(self.at.places) - 1)]
        return steps[::-1], kept

    def _diagonal(self, upper: int, lower: int) -> Tensor | None:
        """What each token takes from itself ``[T]``, if no token takes from another."""
        places = self.at.places
        if places[upper].attentions != places[lower].attentions or places[upper].name.startswith("attention."):
            return None
        weights = self.at.probe(len(self.at.relevance[upper]))
        found, size = self.at.weighted(upper, lower, weights)
        own = self.at.arrives(lower)
        return own if self.at.same(found, weights.to(found) * own, size, scaled=True) else None

    def _step(self, upper: int, lower: int, kept: list[Tensor], keep: Keep) -> Step:
        above, below = self.at.relevance[upper], self.at.relevance[lower]
        device = below.device
        here, arrives = kept[lower].to(device), self.at.arrives(lower)
        if (diagonal := self._diagonal(upper, lower)) is not None:
            kept[upper] = kept[upper] | (here & (diagonal != 0)).to(above.device)
            tokens = kept[upper].nonzero().flatten().to(device)
            way, own = "diagonal", diagonal[tokens]
            chosen = tokens[here[tokens] & (own != 0)]
            edges, values = torch.stack([chosen, chosen], 1), diagonal[chosen]
            sums, mass = own, own.abs().sum()
        else:
            tokens, way, rows = self._joined(upper, lower, kept)
            inside = rows * here
            mask = keep.of(inside) & (inside != 0) if len(tokens) else torch.zeros_like(inside, dtype=torch.bool)
            if len(tokens):  # the strongest edge to each kept token connects it
                best = inside.abs().argmax(0)
                columns = torch.arange(len(best), device=device)
                mask[best, columns] |= inside[best, columns] != 0
            which = mask.nonzero()
            edges, values = torch.stack([tokens[which[:, 0]], which[:, 1]], 1), inside[mask]
            sums, mass = rows.sum(1), rows.abs().sum()
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

    def _joined(self, upper: int, lower: int, kept: list[Tensor]) -> tuple[Tensor, str, Tensor]:
        """The kept tokens above, how their rows were computed, and the rows ``[K, T]``.

        Where none of them takes from a kept token below, that token is kept above too; if it has no relevance there, the one
        that takes most from it is. If none does, its relevance came around the place above.
        """
        here = kept[lower].to(self.at.relevance[lower].device)
        some = (self.at.relevance[upper] != 0).to(here.device)
        tokens = kept[upper].nonzero().flatten().to(here.device)
        way, rows = self._rows(upper, lower, tokens)
        ways = {way}

        def alone() -> Tensor:
            return (here & (rows == 0).all(0)).nonzero().flatten()

        if len(tokens) < len(here) and len(low := alone()):
            itself = low[some[low] & ~kept[upper].to(here.device)[low]]
            way, own = self._rows(upper, lower, itself)
            tokens, rows = torch.cat([tokens, itself]), torch.cat([rows, own])
            ways.add(way)
            if len(low := alone()):
                others = some.nonzero().flatten()
                way, every = self._rows(upper, lower, others)
                most, takers = every[:, low].abs().max(0)
                takers = takers[most > 0].unique()
                tokens, rows = torch.cat([tokens, others[takers]]), torch.cat([rows, every[takers]])
                ways.add(way)
            kept[upper] = kept[upper].index_fill(0, tokens.to(kept[upper].device), True)
        order = tokens.argsort()
        return tokens[order], "passes" if "passes" in ways else "attention", rows[order]

    def _rows(self, upper: int, lower: int, tokens: Tensor) -> tuple[str, Tensor]:
        """What the tokens above take from each token below, exact ``[K, T]``, and how that was computed."""
        if self.at.attentions[lower] is not None and self.at.direct[lower]:
            try:
                if (rows := self._explicit(upper, lower, tokens)) is not None:
                    return "attention", rows
            except RuntimeError as error:  # an operation that cannot be differentiated twice, or memory
                logger.debug(
                    "%s: no explicit flow to %s: %s", self.at.name, self.at.places[lower].name, str(error)[:200]
                )
        return "passes", self._by_passes(upper, lower, tokens)

    def _explicit(self, upper: int, lower: int, tokens: Tensor) -> Tensor | None:
        known, arrives = self.at.attentions[lower], self.at.arrives(lower)
        assert known is not None
        call, gradient, of_value, of_key = known
        state = self.at.places[lower].state
        shares = shares_of(call, self.at.watch.rules)
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
        weights[tokens.cpu()] = self.at.probe(len(tokens)).to(dtype)
        found, size = self.at.weighted(upper, lower, weights)
        expected = weights.to(device)[tokens] @ rows
        if self.at.same(found, expected, size + (weights.to(device)[tokens].abs() @ rows.abs())):
            return rows
        logger.debug("%s: the explicit flow to %s does not hold", self.at.name, self.at.places[lower].name)
        return None

    def _by_passes(self, upper: int, lower: int, tokens: Tensor) -> Tensor:
        place, length = self.at.places[upper], len(self.at.relevance[lower])
        found: list[Tensor] = []
        start = 0
        gradient = self.at.gradients[upper]
        while start < len(tokens):
            group = tokens[start : start + self.together].to(gradient.device)
            seeds = torch.zeros(len(group), *gradient.shape, dtype=gradient.dtype, device=gradient.device)
            every = torch.arange(len(group), device=gradient.device)
            seeds.movedim(place.axis + 1, 1)[every, group] = gradient.movedim(place.axis, 0)[group]
            try:
                back = (
                    self.at.backward(upper, lower, seeds, batched=True)
                    if len(group) > 1
                    else self.at.backward(upper, lower, seeds[0])[None]
                )
            except (torch.OutOfMemoryError, RuntimeError) as error:
                if len(group) == 1:
                    raise
                logger.debug("%s goes backwards once per token: %s", self.at.name, in_one_line(error, 200))
                self.together = 1
                continue
            found.extend(self.at.products(lower, each)[0] for each in back)
            start += len(group)
        if not found:
            return torch.zeros(0, length, dtype=self.at.relevance[lower].dtype, device=self.at.relevance[lower].device)
        return torch.stack(found)
