"""The score of each of several positions of one text: a logit, a difference of two, a log-probability, or a function of logits.

A score depends on the rest of the model through what the output embedding was given at its position, ``[width]``. So its
gradient there is all that a backward pass needs, and is found a few positions at a time: a vocabulary times all positions would
not fit into memory. Where a model does more with its output embedding than can be followed, its own logits are used as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .._torch_internals import no_function_modes
from ..text.batching import Function
from .forward_backward import CHUNK, Watched
from .functions import score_of
from .output_head import OutputHead, output_embedding
from .predictions import predictions
from .scores import HeadNotFollowed, exact_dtype, explained_logits, followed, read_scores
from .spec import PassOptions
from .validation import check_carries_gradient

Objective = Literal["logit", "logprob"]


AVERAGES = re.compile(r"mean|top([1-9]\d*)")  # how they are called
# What else people call them; and a token, rarely.
LIKE_AVERAGES = re.compile(r"mean|average|avg|top[-_ ]?k?\d*", re.IGNORECASE)


@dataclass(frozen=True)
class Average:
    """An average of logits as a contrast: of the ``count`` largest at each position, or of the whole vocabulary."""

    count: int | None = None

    def __str__(self) -> str:
        return "mean" if self.count is None else f"top{self.count}"


@dataclass(frozen=True)
class Scoring:
    """What the scores of P positions of one text are.

    Attributes:
        positions: Whose logits. In ascending order, if it ``reads_forward``; one may be there several times.
        targets: The token id that is scored at each; ``None``: the top prediction.
        contrast: P token ids, whose logits are subtracted, or ``None`` for those without; an average of logits; or ``None``.
        objective: ``"logit"``, or ``"logprob"``, the logarithm of the target's probability. A contrast makes them equal.
        probabilities: Whether the targets' probabilities are asked for too.
        reads_forward: Whether it is to be an error if a score depends on tokens after its position.
        functions: Of some of the P scores, the function of all logits that is scored in place of a token.
        likeliest: How many of the likeliest tokens of each position are asked for, with probabilities and ranks.
    """

    positions: Sequence[int]
    targets: Sequence[int | None]
    contrast: Sequence[int | None] | Average | None = None
    objective: Objective = "logit"
    probabilities: bool = False
    reads_forward: bool = True
    functions: Mapping[int, Function] = field(default_factory=dict)
    likeliest: int = 0

    @property
    def takes_all_logits(self) -> bool:
        """Whether more is needed than the logits of targets and contrasts."""
        alone = self.contrast is None and self.objective == "logprob"
        more = self.probabilities or self.likeliest or self.functions or None in self.targets
        return alone or isinstance(self.contrast, Average) or bool(more)

    def contrasts(self) -> list[int]:
        """The id that each target is compared with; -1 where there is none."""
        if self.contrast is None or isinstance(self.contrast, Average):
            return [-1] * len(self.targets)
        return [-1 if other is None else other for other in self.contrast]

    def columns(self) -> list[list[int]]:
        """The ids of target and, if there is one, contrast at each position ``[P, K]``; any id where it is not known yet."""
        targets, others = [target or 0 for target in self.targets], self.contrasts()
        if max(others) < 0:
            return [[target] for target in targets]
        return [[target, target if other < 0 else other] for target, other in zip(targets, others, strict=True)]


class _ScoredPart(NamedTuple):
    """What the logits of a part of the positions say, each ``[P, ...]``."""

    values: Tensor
    log_probabilities: Tensor
    targets: Tensor
    predictions: Tensor


@dataclass(frozen=True)
class PositionScores:
    """The scores of P positions, and where to go backwards from.

    Attributes:
        values: ``[P]``, wide.
        root: ``[P, n]``: what they were made of, with its graph.
        seed: ``[P, n]``: the gradient of each score at its own row.
        log_probabilities: ``[P]`` of the targets, wide; ``None`` where they were not asked for.
        targets: ``[P]`` ids. Likewise.
        predictions: ``[P, 2 k + 4]``, for ``read_predictions``. Likewise.
    """

    values: Tensor
    root: Tensor
    seed: Tensor
    log_probabilities: Tensor | None = None
    targets: Tensor | None = None
    predictions: Tensor | None = None


def score_positions(model: PreTrainedModel, now: Watched, scoring: Scoring, options: PassOptions) -> PositionScores:
    """Run the forward pass and score the positions.

    Raises:
        HeadNotFollowed: The model does something else with its output embedding; ``options.whole_head`` lets it.
    """
    readout = now.batch.readout
    module = None if readout or options.whole_head or "linear" in now.active.rules else output_embedding(model)
    if module is None:
        if readout is None:
            logits = explained_logits(model, now.batch, static=True)[0][0, list(scoring.positions)]
        else:
            logits = read_scores(model, now.batch, readout).expand(len(scoring.positions), -1)
        check_carries_gradient(model, logits)
        values, *more = _score(logits, scoring, slice(None))
        return PositionScores(values, values.unsqueeze(1), torch.ones_like(values).unsqueeze(1), *more)
    device = now.batch.positions.device
    positions, ids = (torch.tensor([each], device=device) for each in (scoring.positions, scoring.columns()))
    head = OutputHead(module, positions, ids, now.batch.ids.shape[1])
    logits = followed(model, now.batch, head)
    assert head.hidden is not None
    check_carries_gradient(model, head.hidden)
    if not scoring.takes_all_logits:
        picked = logits[0].to(exact_dtype(logits))
        compared = torch.tensor(scoring.contrasts(), device=picked.device) >= 0
        values = picked[:, 0] - torch.where(compared, picked[:, -1], 0)
        (seed,) = torch.autograd.grad(values.sum(), head.hidden, retain_graph=True)
        return PositionScores(values, head.hidden[0], seed[0])
    weight = module.weight
    assert isinstance(weight, Tensor)
    if weight.is_meta:  # an offloaded weight is there while its module runs only
        raise HeadNotFollowed
    at_once, read, seeds = max(1, CHUNK // weight.shape[0]), [], []
    for start in range(0, len(scoring.positions), at_once):
        part = slice(start, start + at_once)
        with no_function_modes():  # where the rules would notice a cut
            hidden = head.hidden[0, part].detach().requires_grad_()
        read.append(_score(head.logits_of(hidden, logits), scoring, part))
        seeds.append(torch.autograd.grad(read[-1].values.sum(), hidden)[0])
    with no_function_modes():
        values, *more = (torch.cat([each.detach() for each in column]) for column in zip(*read, strict=True))
        return PositionScores(values, head.hidden[0], torch.cat(seeds), *more)


def _score(logits: Tensor, scoring: Scoring, part: slice) -> _ScoredPart:
    """Scores, and what else is asked for, of a part of the positions, from all their logits ``[P, vocabulary]``.

    Outside the rules: a probability is what is explained here, not a part of the model.
    """
    with no_function_modes():
        given, logits = logits, logits.to(exact_dtype(logits))

        def tensor(ids: Sequence[int]) -> Tensor:
            return torch.tensor(ids[part], device=logits.device)

        def at(ids: Tensor) -> Tensor:
            return logits.gather(1, ids.unsqueeze(1)).squeeze(1)

        targets = tensor([-1 if target is None else target for target in scoring.targets])
        targets = torch.where(targets < 0, logits.argmax(1), targets)
        values, contrasts = at(targets), tensor(scoring.contrasts())
        log_probabilities = values - logits.logsumexp(1)
        if isinstance(scoring.contrast, Average):
            count = scoring.contrast.count
            values = values - (logits if count is None else logits.topk(count, 1).values).mean(1)
        else:
            alone = log_probabilities if scoring.objective == "logprob" else values
            values = torch.where(contrasts < 0, alone, values - at(contrasts.clamp(min=0)))
        for i, function in scoring.functions.items():
            if i in range(len(scoring.targets))[part]:
                row = i - (part.start or 0)
                own = score_of(function, given[row], logits.dtype)
                values = torch.cat([values[:row], own.unsqueeze(0), values[row + 1 :]])
        count = scoring.likeliest
        likeliest = predictions(given, targets, contrasts, count) if count else logits.new_zeros(len(values), 0)
        return _ScoredPart(values, log_probabilities.detach(), targets, likeliest)
