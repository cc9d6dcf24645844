"""A pass explained: what was computed, refused if something speaks against it, and turned into attributions.

How the pass is run is the business of ``dispatch.py``, what it computes that of ``forward_backward.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..propagation.propagate import Propagation
from ..propagation.rulesets import RuleSet
from ..text.batching import Attribution, Batch, Predictions
from .dispatch import PassRunner
from .forward_backward import CHUNK, per_token
from .hidden_states import place_first
from .image_inputs import APART
from .objections import check
from .predictions import read_predictions
from .spec import PassSpec
from .validation import about_cuts, about_tables


@dataclass(frozen=True)
class Hidden:
    """A hidden state and the gradient of the summed values with respect to it: ``[B, T, width]``, or in the shape of images."""

    state: Tensor
    gradient: Tensor


Combine = Callable[[Tensor, Tensor], Tensor]  # hidden state and gradient, float64 -> relevance, element by element


@dataclass(frozen=True)
class Pass:
    """What one forward and backward pass gave.

    Attributes:
        values: float64 ``[B]``, the explained scalars.
        targets: ``[B]`` explained token ids.
        products: float64 ``[B, T]``: hidden state times gradient at the first place, summed over the width.
        hidden: Name in ``at`` or module name -> hidden state and gradient; first the place of the token relevance.
        mode: The rules' counters.
        notes: What has to be known to read it right.
        predictions: ``[B, 2 k + 4]`` for ``read_predictions``, if the batch asks for them.
        inside: Of each item, ``by_head``, ``by_attention``, ``by_mlp`` and ``by_layer`` as in an ``Attribution``, those that are
            known; ``None`` where they were not asked for.
    """

    values: np.ndarray
    targets: list[int]
    products: np.ndarray
    hidden: dict[str, Hidden]
    mode: Propagation
    notes: tuple[str, ...] = ()
    predictions: np.ndarray | None = None
    inside: list[dict[str, np.ndarray]] | None = None


def run(
    model: PreTrainedModel,
    batch: Batch,
    rules: str | RuleSet,
    at: Sequence[str] = ("input",),
    *,
    mode: type[Propagation] = Propagation,
    runner: PassRunner | None = None,
    hidden: bool = True,
    heads: bool = False,
) -> Pass:
    """Explain a batch: see the top of ``forward_backward.py``.

    Args:
        model: A causal or masked language model in eval mode.
        batch: From ``batching.pad``.
        rules: A rule set or its name; an empty one gives plain gradients.
        mode: A subclass of ``Propagation`` that watches more.
        at: ``"input"`` (what enters the first block), ``"embedding"`` (the word-embedding rows), ``"pixels"``, module names or
            globs.
        runner: Runs the passes of this model and keeps what can be repeated. Default: one for this pass.
        hidden: Whether hidden states and gradients are wanted; ``products`` need none.
        heads: Whether ``inside`` is wanted.

    Raises:
        UnsupportedModelError: The model cannot be explained correctly.
        InputError: A name in ``at`` matches no module, or a module whose output is not ``[batch, tokens, width]``.
        NonFiniteError: A logit or a gradient is NaN or infinite; the error names the module where it began.
    """
    runner = PassRunner(model) if runner is None else runner
    found = runner.run(batch, PassSpec(rules, tuple(place_first(at)), mode, hidden, batch.readout, heads))
    notes = (*about_tables(model), *((about_cuts(type(model).__name__, found.mode),) if +found.mode.cuts else ()))
    runner.use_the_wait()
    reading = found.read(len(batch.spans))
    check(model, batch, found, reading)
    places = {}
    for name, state in found.states.items():
        apart = name.startswith(APART)
        if hidden or apart:
            pair = state, found.gradients[name]
            # Feature maps and pixels of images keep their shape.
            places[name] = Hidden(*pair) if apart or not batch.shape[1] else Hidden(*(t.flatten(2) for t in pair))
    numbers = reading.values, reading.targets, reading.products
    return Pass(*numbers, places, found.mode, notes, reading.predictions, reading.inside)


class Later(Sequence[Any]):
    """A list that is made when one of its entries is first asked for; its length is known before.

    Args:
        count: How many.
        make: Makes them all.
    """

    def __init__(self, count: int, make: Callable[[], list[Any]]) -> None:
        self._count, self._make = count, make
        self._made: list[Any] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        if self._made is None:
            self._made = self._make()
            del self._make  # and what it holds
        return self._made[i]


def attributions(
    result: Pass, batch: Batch, combine: Combine = torch.mul, *, decomposes: bool
) -> Sequence[Attribution]:
    """One attribution per item: ``combine(state, gradient)``, cut to its real tokens.

    The first hidden state gives the token relevance, summed over the width; the others are kept whole, in ``layers``. So are
    pixels, each of which is a token if they come first.
    ``decomposes`` says that the relevances are parts of the value, so that a residual means something.

    Where no hidden state is needed, the objects are made when they are first asked for: the device can be given its next
    batch before.
    """
    apart = {name: _whole(hidden, combine) for name, hidden in result.hidden.items() if name.startswith(APART)}
    first, *others = [name for name in result.hidden if name not in apart] or [""]
    others += ["pixels"] * (first == "pixels")  # as they are, beside their sums
    per_token = result.products if combine is torch.mul else _token_sums(first, result.hidden[first], combine)  # [B, T]
    layers = {name: _whole(result.hidden[name], combine) for name in others}  # [B, T, width]
    # Not result itself, nor batch, which hold memory of the device.
    places, values, targets, notes = batch.places, result.values, result.targets, result.notes
    predictions, inside = result.predictions, result.inside

    def made() -> list[Attribution]:
        found, each = [], zip(places, targets, _predicted(predictions, len(targets)), strict=True)
        for i, (span, target, predicted) in enumerate(each):
            relevance, value = per_token[i, span], float(values[i])
            residual = value - float(relevance.sum()) if decomposes else None
            parts = {name: whole[i, span] for name, whole in layers.items()} | apart  # those of one text
            rows: dict[str, Any] = inside[i] if inside else {}
            found.append(
                Attribution(
                    relevance=relevance,
                    value=value,
                    residual=residual,
                    target=target,
                    layers=parts,
                    predictions=predicted,
                    notes=notes,
                    **{name: numbers[..., span] for name, numbers in rows.items()},
                )
            )
        return found

    return made() if result.hidden else Later(len(targets), made)


def scored(result: Pass, scores: Sequence[np.ndarray]) -> list[Attribution]:
    """One attribution per item, of scores ``[T]`` that were not computed by the pass; the pass says what is explained."""
    return [
        Attribution(
            relevance=score,
            value=float(result.values[i]),
            residual=None,
            target=result.targets[i],
            notes=result.notes,
            predictions=predicted,
        )
        for i, (score, predicted) in enumerate(zip(scores, _predicted(result.predictions, len(scores)), strict=True))
    ]


def _predicted(numbers: np.ndarray | None, count: int) -> Sequence[Predictions | None]:
    """What the model predicts, of each item; ``None`` where it was not asked for."""
    return [None] * count if numbers is None else list(read_predictions(numbers))


def _token_sums(name: str, hidden: Hidden, combine: Combine) -> np.ndarray:
    """``combine`` summed over the width, float64 ``[B, T]``; on the device, so that only the sums are copied to the CPU."""
    state, gradient = per_token(name, hidden.state), per_token(name, hidden.gradient)
    if state.device.type == "mps":  # has no float64
        state, gradient = state.cpu(), gradient.cpu()
    rows = max(1, CHUNK // max(1, state.shape[-1]))
    pairs = zip(state.flatten(0, 1).split(rows), gradient.flatten(0, 1).split(rows), strict=True)
    sums = [combine(s.double(), g.double()).sum(-1) for s, g in pairs]
    return torch.cat(sums).view(state.shape[:2]).cpu().numpy()


def _whole(hidden: Hidden, combine: Combine) -> np.ndarray:
    return combine(hidden.state.cpu().double(), hidden.gradient.cpu().double()).numpy()
