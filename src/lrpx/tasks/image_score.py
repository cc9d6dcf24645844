"""How well an image and a text fit: where the two towers begin, and how the score is read off what the model returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..text.batching import Batch, Readout

TEXT = "text_model:input"  # what enters the first block of the text's tower
IMAGE = "vision_model:input"
FULL_LENGTH = ("siglip", "siglip2")  # were trained with texts padded to their full length, without a mask


@dataclass(frozen=True)
class PairScores(Readout):
    """The score of each image with the text beside it."""

    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """``[B, 1]``."""
        return output.logits_per_image.diagonal().unsqueeze(1)  # type: ignore[no-any-return]


def check_towers(model: PreTrainedModel) -> None:
    """Refuse a model without a tower for each side.

    Raises:
        UnsupportedModelError: It is one.
    """
    if not all(hasattr(model, name) for name in ("text_model", "vision_model")):
        raise UnsupportedModelError(
            f"{type(model).__name__} has no towers text_model and vision_model of its own, so its score is not explained."
        )
