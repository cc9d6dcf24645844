"""Rows of relevance of generated text: a number for every token and, of images that are no tokens of it, for every patch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..methods.generated import OneByOne
from ..passes.many_targets import Combine, ManyTargets, OfImages
from ..tasks.image_row import ImageRow, Part, parts_of
from ..text.tokenization import Encoded


class GeneratedRows:
    """Prompt and continuation as one row, with images in it once they are met.

    Args:
        model: The one that generated.
        whole: Prompt and continuation.
        image_processor: Of the model, or ``None``.

    Attributes:
        encoded: The row.
    """

    def __init__(self, model: PreTrainedModel, whole: Encoded, image_processor: Any) -> None:
        self.encoded = self._whole = whole
        self._model, self._processor = model, image_processor
        self._row: ImageRow | None = None

    def relevance(
        self,
        many: ManyTargets | OneByOne,
        weights: np.ndarray,
        combine: Combine,
        tell: Callable[[int], object] | None = None,
    ) -> np.ndarray:
        """Of each weighted sum of the scores, the relevance of the row without its last token: float64 ``[V, N - 1]``.

        Args:
            many: The text after its forward pass.
            weights, combine, tell: As of ``ManyTargets.relevance``.

        Raises:
            UnsupportedModelError: The images cannot be told apart; or as there.
            NonFiniteError: As there.
        """
        if isinstance(many, OneByOne):
            return many.relevance(weights, combine, tell)
        of_tokens = many.relevance(weights, combine, tell, self._parts)
        if self._row is None:
            return of_tokens
        pairs = zip(of_tokens, many.apart, strict=True)
        return np.stack([self._row.relevance(np.append(row, 0.0), parts)[:-1] for row, parts in pairs])

    def begin(self, n: int) -> int:
        """Where token ``n`` of prompt and continuation is in the row, or begins what stands in its place."""
        return n if self._row is None else self._row.begin(n)

    def _parts(self, apart: OfImages) -> Sequence[Part]:
        """The patches of one value; the relevance of single pixels is not kept."""
        if not apart:
            return ()
        parts, maps = parts_of(self._model, self._whole, apart)
        if self._row is None:
            self._row = ImageRow(self._model, self._whole, parts, self._processor, beside=not maps)
            self.encoded, self._names = self._row.encoded, [part.names for part in parts]
        if [part.names for part in parts] != self._names:
            raise UnsupportedModelError(
                f"{type(self._model).__name__} reads another part of its images for each generated token, so there is no common "
                'row of patches. Take at="input".'
            )
        return [replace(part, seen=None) for part in parts]
