"""The score of each of several positions of one text: a logit, a difference of logits, or a log-probability.

A score depends on the rest of the model through what the output embedding was given at its position, ``[width]``. So its
gradient there is all that a backward pass needs, and is found a few positions at a time: a vocabulary times all positions would
not fit into memory. Where a model does more with its output embedding than can be followed, its own logits are used as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .._torch_internals import no_function_modes
from .forward_backward import CHUNK, HeadNotFollowed, PassOptions, Watched, exact_dtype, explained_logits, followed
from .output_head import OutputHead, output_embedding
from .validation import check_carries_gradient

Objective = Literal["logit", "logprob"]


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
        positions: Whose logits, in ascending order.
        targets: The token id that is scored at each.
        contrast: P token ids, whose logits are subtracted; an average of logits; or ``None``.
        objective: ``"logit"``, or ``"logprob"``, the logarithm of the target's probability. A contrast makes them equal.
        probabilities: Whether the targets' probabilities are asked for too.
        reads_forward: Whether it is to be an error if a score depends on tokens after its position.
    """

    positions: Sequence[int]
    targets: Sequence[int]
    contrast: Sequence[int] | Average | None = None
    objective: Objective = "logit"
    probabilities: bool = False
    reads_forward: bool = True

    @property
    def takes_all_logits(self) -> bool:
        """Whether more is needed than the logits of targets and contrasts."""
        alone = self.contrast is None and self.objective == "logprob"
        return alone or isinstance(self.contrast, Average) or self.probabilities

    def columns(self) -> list[list[int]]:
        """The ids of target and, if there is one, contrast at each position ``[P, K]``."""
        if self.contrast is None or isinstance(self.contrast, Average):
            return [[target] for target in self.targets]
        return [list(pair) for pair in zip(self.targets, self.contrast, strict=True)]


@dataclass(frozen=True)
class Scores:
    """The scores of P positions, and where to go backwards from.

    Attributes:
        values: ``[P]``, wide.
        log_probabilities: ``[P]`` of the targets, wide; ``None`` where they were not asked for.
        root: ``[P, n]``: what they were made of, with its graph.
        seed: ``[P, n]``: the gradient of each score at its own row.
    """

    values: Tensor
    log_probabilities: Tensor | None
    root: Tensor
    seed: Tensor


def scored(model: PreTrainedModel, now: Watched, scoring: Scoring, options: PassOptions) -> Scores:
    """Run the forward pass and score the positions.

    Raises:
        HeadNotFollowed: The model does something else with its output embedding; ``options.whole_head`` lets it.
    """
    module = None if options.whole_head or "linear" in now.active.rules else output_embedding(model)
    if module is None:
        logits, _ = explained_logits(model, now.batch, static=True)
        check_carries_gradient(model, logits)
        values, log_probabilities = _score(logits[0, list(scoring.positions)], scoring, slice(None))
        return Scores(values, log_probabilities, values.unsqueeze(1), torch.ones_like(values).unsqueeze(1))
    device = now.batch.positions.device
    positions, ids = (torch.tensor([each], device=device) for each in (scoring.positions, scoring.columns()))
    head = OutputHead(module, positions, ids, now.batch.inputs["input_ids"].shape[1])
    logits = followed(model, now.batch, head)
    assert head.hidden is not None
    check_carries_gradient(model, head.hidden)
    if not scoring.takes_all_logits:
        picked = logits[0].to(exact_dtype(logits))
        values = picked[:, 0] - (picked[:, 1] if picked.shape[1] > 1 else 0)
        (seed,) = torch.autograd.grad(values.sum(), head.hidden, retain_graph=True)
        return Scores(values, None, head.hidden[0], seed[0])
    weight = module.weight
    assert isinstance(weight, Tensor)
    if weight.is_meta:  # an offloaded weight is there while its module runs only
        raise HeadNotFollowed
    at_once, found = max(1, CHUNK // weight.shape[0]), []
    for start in range(0, len(scoring.positions), at_once):
        part = slice(start, start + at_once)
        with no_function_modes():  # where the rules would notice a cut
            hidden = head.hidden[0, part].detach().requires_grad_()
        values, log_probabilities = _score(head.logits_of(hidden, logits), scoring, part)
        (seed,) = torch.autograd.grad(values.sum(), hidden)
        with no_function_modes():
            found.append((values.detach(), log_probabilities, seed))
    columns = [torch.cat(column) for column in zip(*found, strict=True)]
    return Scores(columns[0], columns[1], head.hidden[0], columns[2])


def _score(logits: Tensor, scoring: Scoring, part: slice) -> tuple[Tensor, Tensor]:
    """Scores and log-probabilities of a part of the positions, from all their logits ``[P, vocabulary]``.

    Outside the rules: a probability is what is explained here, not a part of the model.
    """
    with no_function_modes():
        logits = logits.to(exact_dtype(logits))

        def at(ids: Sequence[int]) -> Tensor:
            return logits.gather(1, torch.tensor(ids[part], device=logits.device).unsqueeze(1)).squeeze(1)

        values, contrast = at(scoring.targets), scoring.contrast
        log_probabilities = values - logits.logsumexp(1)
        if isinstance(contrast, Average):
            values = values - (logits if contrast.count is None else logits.topk(contrast.count, 1).values).mean(1)
        elif contrast is not None:
            values = values - at(contrast)
        elif scoring.objective == "logprob":
            values = log_probabilities
        return values, log_probabilities.detach()
