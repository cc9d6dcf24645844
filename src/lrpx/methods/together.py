"""Several predictions of one text (targets, positions, functions of the logits) from one forward pass.

Each gets what a pass of its own would give. Methods that are no single backward pass, and relevance at more places than one,
take a pass over as many copies of the text instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..models.lock import lock_of
from ..models.signature import task_of
from ..passes.dispatch import PassRunner
from ..passes.hidden_states import place_first
from ..passes.many_targets import ManyTargets, explain_many
from ..passes.scoring import Objective, Scoring
from ..text.batching import Attribution, Item, Readout, pad
from . import Method
from .generated import how, is_one_pass


def takes_one_pass(runner: PassRunner, method: Method, settings: Mapping[str, Any], positions: Sequence[int]) -> bool:
    """Whether several predictions of one text, at ``positions``, can be explained from one forward pass."""
    if not is_one_pass(method) or len(place_first(settings["at"])) > 1:
        return False
    return len(set(positions)) == 1 or task_of(runner.model) in ("causal", "masked")  # a readout is of one position


def explain_together(
    runner: PassRunner,
    method: Method,
    settings: Mapping[str, Any],
    items: Sequence[Item],
    objective: Objective = "logit",
    *,
    likeliest: int = 0,
    readout: Readout | None = None,
) -> list[Attribution]:
    """Explain predictions of one text.

    Args:
        runner: Of the model.
        method: The method.
        settings: Its options.
        items: The same text with a position and a target, contrast or function each.
        objective: The score of a target.
        likeliest: How many of the likeliest tokens are asked for.
        readout: How the scores are read off the model's output, for all positions alike; ``None``: the logits at each.

    Raises:
        InputError: A function of the logits cannot be used, or the method cannot do it; see ``how``.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    spec, combine = how(method, {**settings, "heads": None}, images=bool(items[0].images))
    spec = replace(spec, heads=bool(settings.get("heads")))
    scoring = Scoring(
        positions=[item.position - item.source for item in items],
        targets=[item.target for item in items],
        contrast=[item.contrast for item in items],
        objective=objective,
        reads_forward=False,
        functions={i: item.function for i, item in enumerate(items) if item.function is not None},
        likeliest=likeliest,
    )

    def ask(many: ManyTargets) -> list[Attribution]:
        rows = many.relevance(np.eye(len(items)), combine)
        targets = [item.target for item in items] if many.targets is None else many.targets
        return [
            Attribution(
                relevance=row,
                value=float(value),
                residual=float(value - row.sum()) if method.measures == "parts" else None,
                target=-1 if target is None else target,
                layers=many.apart[i],
                notes=many.notes,
                predictions=None if many.predictions is None else many.predictions[i],
                **(many.inside[i] if many.inside else {}),  # type: ignore[arg-type]
            )
            for i, (row, value, target) in enumerate(zip(rows, many.scores, targets, strict=True))
        ]

    with lock_of(runner.model):
        return explain_many(runner, pad(items[:1], runner.model, readout=readout), spec, scoring, ask)
