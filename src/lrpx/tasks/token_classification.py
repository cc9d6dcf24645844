"""Token classification, such as named entities: the logit of a label at one token, or a difference of two.

Without a position, the most confident entity is explained, and a note names the others. Where nothing is found, or where no
label stands for "no entity" (as in part-of-speech tagging), there is no such default, and the error lists the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, listed
from ..text.batching import Attribution, Batch, Readout
from ..text.targets import resolve_position
from ..text.tokenization import Encoded
from .head_task import SHOWN, AskedScore, HeadTask, softmax
from .labels import Labels

OUTSIDE = "O"  # the label of a token that belongs to no entity
LISTED = 40  # tokens in an error message


@dataclass(frozen=True)
class LabelScoresAt(Readout):
    """The logits of the labels at each item's position."""

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """``logits[position, label]``."""
        logits: Tensor = output.logits
        rows = torch.arange(batch.positions.shape[0], device=logits.device)
        return logits[rows, batch.positions.to(logits.device)]


@dataclass(frozen=True)
class AllLabelScores(Readout):
    """The logits of the labels at all tokens ``[B, T, K]``, to look at."""

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """``logits``."""
        logits: Tensor = output.logits
        return logits


class TokenClassification(HeadTask):
    """See the top of this file."""

    name = "token-classification"
    likeliest = SHOWN
    whole = AllLabelScores()

    def __init__(self, model: PreTrainedModel, tokenizer: Any) -> None:
        super().__init__(model, tokenizer)
        self.labels = Labels.of(model.config)

    def encode(self, given: Any, parts: Mapping[str, Any]) -> list[Encoded]:
        """The text."""
        return self.text(given)

    def advice(self) -> str:
        """What to type for words."""
        return 'Give one string: " ".join(words).'

    def ask(self, rows: Sequence[Encoded], asked: Mapping[str, Any], said: Sequence[np.ndarray]) -> AskedScore:
        """The token that is given, or the most confident entity; the label that is given, or the token's top one."""
        [encoded], [logits] = rows, said
        remarks: tuple[str, ...] = ()
        if asked["position"] is None:
            position, remarks = self._entity(encoded, logits)
        else:
            position = resolve_position(encoded, asked["position"], self.name, None)
        target, contrast = self.labels.pair(asked["target"], asked["contrast"])
        item = self.item(encoded, position, target, contrast)
        return AskedScore(shown=encoded, rows=(item,), span=(position, position + 1), notes=item.notes, remarks=remarks)

    def readout(self, asked: Sequence[AskedScore]) -> Readout:
        """The logits at the position."""
        return LabelScoresAt()

    def tell(self, asked: AskedScore, result: Attribution) -> dict[str, Any]:
        """Names of labels, and their probabilities."""
        return self.labels.told(result.target, asked.rows[0].contrast, result.predictions)

    def _entity(self, encoded: Encoded, logits: np.ndarray) -> tuple[int, tuple[str, ...]]:
        """The most confident token with a label other than ``O``, and a note that says so and names other ones."""
        special = set() if self.tokenizer is None else set(self.tokenizer.all_special_ids)
        words = [n for n, i in enumerate(encoded.token_ids) if i not in special]
        best, shares = logits.argmax(-1), softmax(logits).max(-1)
        labelled = {n: f"{n} {encoded.tokens[n]!r} {self.labels.names[best[n]]}" for n in words}
        known = listed([*labelled.values()], LISTED)
        if OUTSIDE not in self.labels.names:
            raise InputError(f"say which token is explained: position=, one of {known}.")
        entities = [n for n in words if self.labels.names[best[n]] != OUTSIDE]
        if not entities:
            raise InputError(
                f"all tokens are predicted to be {OUTSIDE!r}. Say which is explained: position=, of {known}."
            )
        chosen = max(entities, key=lambda n: shares[n])
        others = [n for n in entities if n != chosen]
        more = ", ".join(labelled[n] for n in others[:SHOWN])
        if not others:
            return chosen, ()
        return chosen, (
            f"position {chosen} is the most confident of {len(entities)} tokens with a label other than {OUTSIDE!r}. For another "
            f"one give position=: {more}{', ...' * (len(others) > SHOWN)}.",
        )
