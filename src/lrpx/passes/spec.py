"""What is asked of a pass, how it is run, and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ..propagation.propagate import Propagation
from ..propagation.rulesets import RuleSet
from ..text.batching import Readout
from .aside import AT_ONCE, Aside
from .branch_sums import NOTHING, Rows, cut
from .compiled.attention_calls import AttentionCall


@dataclass(frozen=True)
class PassSpec:
    """What is asked of a batch, beside its tensors.

    Attributes:
        rules: A rule set or its name; an empty one gives plain gradients.
        at: Where, the place of the token relevance first.
        mode: The class that applies the rules; a subclass of ``Propagation`` watches more.
        hidden: Whether the hidden states and gradients are wanted, beside their products.
        readout: From the model's output to the scores that are explained; ``None``: a language model's logits.
        heads: Whether relevance of heads, attentions, MLPs and blocks is wanted too.
    """

    rules: str | RuleSet
    at: tuple[str, ...] = ("input",)
    mode: type[Propagation] = Propagation
    hidden: bool = True
    readout: Readout | None = None
    heads: bool = False


@dataclass(frozen=True)
class PassOptions:
    """How a pass is run. Changes its result by rounding at most.

    Attributes:
        checkpoint: Recompute each block in the backward pass.
        whole_head: Let the model compute its logits as it does.
        static: The same operations for any values of the tensors: nothing is looked at on the way.
        unpadded: The model needs no attention mask.
        linked: What enters the first block stays linked to the embedding, to see what way there is around it.
        attention: How each fused attention was called where values could be looked at; ``None``: as the model calls it.
        aside: How work is done that nothing waits for until the pass ends.
    """

    checkpoint: bool = False
    whole_head: bool = False
    static: bool = False
    unpadded: bool = False
    linked: bool = False
    attention: tuple[AttentionCall | None, ...] | None = None
    aside: Aside = field(default=AT_ONCE, repr=False)


EAGER = PassOptions()


@dataclass(frozen=True)
class PassResult:
    """What a pass gives, all on the model's devices.

    Attributes:
        summary: What is always read, in one tensor (one transfer): see ``read``.
        states: Where -> hidden state ``[B, T, width]``.
        gradients: Where -> gradient of the summed values with respect to it.
        reasons: (kind, what) of each objection.
        mode: The rules' counters.
        predicted: How many numbers of each item in the summary say what the model predicts.
        rows: What the sums in the summary are that are of no token.
    """

    summary: Tensor
    states: dict[str, Tensor]
    gradients: dict[str, Tensor]
    reasons: list[tuple[str, str]]
    mode: Propagation
    predicted: int = 0
    rows: Rows = NOTHING

    def tensors(self) -> list[Tensor]:
        """All tensors, in a fixed order."""
        return [self.summary, *self.states.values(), *self.gradients.values()]

    def with_tensors(self, tensors: Sequence[Tensor]) -> PassResult:
        """The same answer with other tensors, in the order of ``tensors()``."""
        n = len(self.states)
        states = dict(zip(self.states, tensors[1 : 1 + n], strict=True))
        gradients = dict(zip(self.gradients, tensors[1 + n :], strict=True))
        return replace(self, summary=tensors[0], states=states, gradients=gradients)

    def cut(self, length: int) -> PassResult:
        """The same answer with the hidden states of the first ``length`` tokens only."""
        places = [{name: t[:, :length] for name, t in each.items()} for each in (self.states, self.gradients)]
        return replace(self, states=places[0], gradients=places[1])

    def read(self, rows: int) -> PassSummary:
        """The summary of B = ``rows`` items on the CPU. Waits for the device."""
        numbers = self.summary.cpu().double().numpy()
        values, targets, objections, predicted, products = cut(
            numbers, rows, rows, len(self.reasons), rows * self.predicted
        )
        raised = [reason for reason, holds in zip(self.reasons, objections, strict=True) if holds]
        shown = predicted.reshape(rows, -1) if self.predicted else None
        sums = products.reshape(1 + self.rows.count, rows, -1)
        parts = [self.rows.read(sums[1:, i]) for i in range(rows)] if self.rows.count else None
        return PassSummary(values, targets.astype(int).tolist(), sums[0], raised, shown, parts)


class PassSummary(NamedTuple):
    """The summary of an answer."""

    values: np.ndarray  # float64 [B], the explained scalars
    targets: list[int]  # [B] explained token ids
    products: np.ndarray  # float64 [B, T]: hidden state times gradient at the first place, summed over the width
    raised: list[tuple[str, str]]  # what speaks against the result
    predictions: np.ndarray | None  # [B, 2 k + 4] for ``read_predictions``, if the batch asks for them
    inside: list[dict[str, np.ndarray]] | None  # of each item, ``Rows.read``
