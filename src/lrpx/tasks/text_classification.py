"""Text classification, of one text or of a pair: labels that exclude each other, labels that do not, and regression.

What is explained is a label's logit, ``logits[label]``, or a difference of two. The probabilities that are told are those of a
softmax, of a sigmoid per label for ``config.problem_type="multi_label_classification"``, and none for regression, which a model
with one output is too: the explained value is its prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from ..models.pooling import pooled
from ..text.batching import Attribution, Batch, Readout
from ..text.pairs import encode_pair
from ..text.tokenization import Encoded
from .head_task import SHOWN, AskedScore, HeadTask
from .labels import Labels


@dataclass(frozen=True)
class LabelScores(Readout):
    """The logits of the labels."""

    independent: bool = False

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """``logits[label]``."""
        logits: Tensor = output.logits
        return logits


class TextClassification(HeadTask):
    """See the top of this file."""

    name = "text-classification"
    parts = ("text_pair",)

    def __init__(self, model: PreTrainedModel, tokenizer: Any) -> None:
        super().__init__(model, tokenizer)
        self.labels = Labels.of(model.config)
        kind = getattr(model.config, "problem_type", None)
        self.regression = kind == "regression" or (kind is None and len(self.labels.names) == 1)
        self.independent = kind == "multi_label_classification"
        self.likeliest = 0 if self.regression else SHOWN

    def encode(self, given: Any, parts: Mapping[str, Any]) -> list[Encoded]:
        """The text, or the pair."""
        if parts["text_pair"] is None:
            return self.text(given)
        return [encode_pair(self.tokenizer, given, parts["text_pair"], ("text", "text_pair"))]

    def ask(self, rows: Sequence[Encoded], asked: Mapping[str, Any], said: Sequence[np.ndarray]) -> AskedScore:
        """The label that is given, or the top one."""
        [encoded] = rows
        if asked["position"] is not None:
            raise InputError(
                f"position={asked['position']!r}: {self.signature.name} has one prediction for the whole text. Leave it out."
            )
        target, contrast = self.labels.pair(asked["target"], asked["contrast"])
        if self.regression and target is None:
            if len(self.labels.names) > 1:
                raise InputError(
                    f"{self.signature.name} predicts {len(self.labels.names)} values. Say which: target=, one of "
                    f"{self.labels.listed()}."
                )
            target = 0
        span = pooled(self.model, encoded.token_ids)
        item = self.item(encoded, span[0], target, contrast)
        return AskedScore(shown=encoded, rows=(item,), span=span, notes=(*item.notes, *self._pair_in_one(encoded)))

    def readout(self, asked: Sequence[AskedScore]) -> Readout:
        """The logits."""
        return LabelScores(self.independent)

    def tell(self, asked: AskedScore, result: Attribution) -> dict[str, Any]:
        """Names of labels, and their probabilities unless they are values."""
        fields = self.labels.told(result.target, asked.rows[0].contrast, result.predictions)
        return fields | {"explains": "value" if self.regression else ""}

    def _pair_in_one(self, encoded: Encoded) -> tuple[str, ...]:
        """A note on a text that has the tokenizer's separator inside, and so is a pair that the model cannot see as one."""
        separator = getattr(self.tokenizer, "sep_token", None)
        types = encoded.extras.get("token_type_ids", ())
        if encoded.text is None or encoded.segments or not separator or self._types_of_a_pair() != {0, 1}:
            return ()
        inside = encoded.text.strip().removeprefix(separator).removesuffix(separator)
        if separator not in inside or set(types) != {0}:
            return ()
        return (
            f"the text has {separator} inside. If these are two texts, give the second one as text_pair=: the tokenizer marks "
            "its tokens as those of a second text (token_type_ids), which it cannot do here.",
        )

    def _types_of_a_pair(self) -> set[int]:
        return set(self.tokenizer("a", "a", verbose=False).get("token_type_ids", ()))
