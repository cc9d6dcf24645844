"""Several explanations, to be shown, saved and read together."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from . import heatmap
from .errors import LrpxError
from .explanation import Explanation

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Failure:
    """A text that could not be explained.

    Attributes:
        index: Its place among the texts that were given, from 0.
        text: The text as it was given.
        error: Why.
    """

    index: int
    text: Any
    error: LrpxError


class Explanations(Sequence[Explanation]):
    """What ``Explainer`` returns for several texts or methods: a sequence, text by text, of each text method by method.

    Attributes:
        failures: With ``errors="collect"``, the texts that could not be explained; they have no place in the sequence.
    """

    def __init__(self, explanations: Iterable[Explanation], failures: Iterable[Failure] = ()) -> None:
        self._explanations = tuple(explanations)
        self.failures = tuple(failures)

    @overload
    def __getitem__(self, index: int) -> Explanation: ...
    @overload
    def __getitem__(self, index: slice) -> Explanations: ...
    def __getitem__(self, index: int | slice) -> Explanation | Explanations:
        """One explanation, or some of them."""
        found = self._explanations[index]
        return Explanations(found) if isinstance(found, tuple) else found

    def __len__(self) -> int:
        return len(self._explanations)

    def __repr__(self) -> str:
        failed = f", {len(self.failures)} failures" if self.failures else ""
        return f"Explanations([{', '.join(map(repr, self))}]{failed})"

    def show(self) -> None:
        """Print coloured heatmaps to the terminal, or display them in a notebook."""
        heatmap.show(self)

    def to_html(self, path: str | os.PathLike[str] | None = None) -> str:
        """A self-contained HTML page with all heatmaps; also written to ``path`` if given."""
        return heatmap.to_html(self, path)

    def _repr_html_(self) -> str:
        return heatmap.html_fragment(self)

    def to_frame(self) -> pd.DataFrame:
        """One row per token of each explanation, as ``Explanation.to_frame``, after ``explanation`` (its index) and ``method``.

        Raises:
            ImportError: pandas is not installed.
        """
        frames = [each.to_frame() for each in self]
        for i, (frame, each) in enumerate(zip(frames, self, strict=True)):
            frame.insert(0, "explanation", i)
            frame.insert(1, "method", each.method)
        import pandas as pd  # there, or ``Explanation.to_frame`` has said how to install it

        columns = ["explanation", "method", "token", "token_id", "relevance"]
        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)
