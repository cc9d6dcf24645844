"""Several explanations, to be shown, saved and read together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, overload

from .. import errors
from ..errors import InputError, LrpxError, counted
from ..files import check_ending, json_line, save_output
from ..heatmap.grid import groups
from ..heatmap.shown import Shown
from ..heatmap.view import failed
from .agreement import agreements
from .explanation import Explanation
from .saved import read_saved

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = ("explanation", "input", "method", "position", "text", "token", "token_id", "relevance")
"""Of the table with a row per token, as a frame and as CSV."""


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

    def to_dict(self) -> dict[str, Any]:
        """The failure as JSON types; a text that is no string is left out."""
        text = self.text if isinstance(self.text, str) else None
        error = {"error": type(self.error).__name__, "message": str(self.error)}
        return {"kind": "failure", "index": self.index, "text": text, **error}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Failure:
        """The inverse of ``to_dict``.

        Raises:
            InputError: A field is missing, or is not what it should be.
        """
        index, text, name, message = (data.get(key) for key in ("index", "text", "error", "message"))
        if not (isinstance(index, int) and isinstance(text, str | None) and isinstance(message, str)):
            raise InputError("not a saved failure: a field is missing, or is not what it should be.")
        kind: Any = getattr(errors, str(name), None)
        known = isinstance(kind, type) and issubclass(kind, LrpxError)
        return cls(index, text, kind(message) if known else LrpxError(message))


class Explanations(Shown, Sequence[Explanation]):
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
        failed = f", {counted(len(self.failures), 'failure')}" if self.failures else ""
        return f"Explanations([{', '.join(map(repr, self))}]{failed})"

    def _repr_html_(self) -> str | None:
        return super()._repr_html_() if self else None  # a notebook then shows the repr

    def _drawable(self) -> Explanations:
        """With the failures as a note in the first header: each view has the notes of what it draws."""
        if not (self and self.failures):
            return self
        return Explanations(noted_first(self, failed(self.failures)), self.failures)

    def to_frame(self, of: Literal["tokens", "layers", "heads"] = "tokens") -> pd.DataFrame:
        """The rows of all explanations, as ``Explanation.to_frame``, after ``explanation``, ``input`` and ``method``.

        ``explanation`` is the place in this sequence, ``input`` that of the text among those that were given
        (``Explanation.index``): where texts could not be explained, or by several methods, they differ.

        Raises:
            ImportError: pandas is not installed.
            InputError: Another ``of``, or an explanation has no such numbers.
        """
        frames = []
        for i, each in enumerate(self):
            try:
                frame = each.to_frame(of)
            except InputError as error:
                raise error.at(f"explanation {i}") from None
            frames.append(frame)
            frame.insert(0, "explanation", i)
            frame.insert(1, "input", each.index)
            frame.insert(2, "method", each.method)
        import pandas as pd  # there, or ``Explanation.to_frame`` has said how to install it

        return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=COLUMNS)

    def agreement(self) -> dict[tuple[str, str], float]:
        """Spearman's rank correlation of the relevances of every two methods, averaged over the predictions that both explain.

        Texts of fewer than three tokens, and relevance that is the same for all tokens, are left out; NaN if none is left.

        Raises:
            InputError: Fewer than two methods.
        """
        if len({each.method for each in self}) < 2:
            raise InputError('agreement of methods needs two: explainer(texts, method=["attnlrp", "lrp"]).')
        return agreements((_asked(each), each.method, each.relevance) for each in self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all as one JSON list; ``Explanations.load`` reads them back to the last digit.

        Failures stand at its end: index, text if it is a string, name of the error and what it says.
        """
        save_output(check_ending(path, "json"), json_line([each.to_dict() for each in (*self, *self.failures)]))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Explanations:
        """Read what ``save`` or ``lrpx explain --format json`` wrote.

        Raises:
            InputError: The file is not a list of saved explanations; the error says which one is none.
        """
        data = read_saved(path, "Explanation.save()")
        if not isinstance(data, list):
            raise InputError(f"{path} holds one explanation, not a list of them. Type: lrpx.Explanation.load(path)")
        return cls.from_dicts(data, lambda i: f"{path}[{i}]")

    @classmethod
    def from_dicts(cls, entries: Sequence[Any], where: Callable[[int], str]) -> Explanations:
        """From explanations and failures as JSON types, as ``save`` writes them.

        Args:
            entries: All of them.
            where: What an entry is called in errors, by its index.

        Raises:
            InputError: One is neither.
        """
        found: list[Explanation] = []
        failures: list[Failure] = []
        for i, each in enumerate(entries):
            if not isinstance(each, dict):
                raise InputError(f"{where(i)} is {type(each).__name__}, not an explanation.")
            try:
                if each.get("kind") == "failure":
                    failures.append(Failure.from_dict(each))
                else:
                    found.append(Explanation.from_dict(each))
            except InputError as error:
                raise error.at(where(i)) from None
        return cls(found, failures)


def noted_first(explanations: Sequence[Explanation], note: str) -> list[Explanation]:
    """With a note about all, which every row of the first map has, so that its header does not name one of them."""
    first = len(groups(explanations)[0])
    return [*(e.noted([note]) for e in explanations[:first]), *explanations[first:]]


def _asked(e: Explanation) -> tuple[Any, ...]:
    """What an explanation answers: of which model, text, place, target and contrast."""
    model = e.provenance.get("model"), e.provenance.get("revision")
    return *model, tuple(e.tokens), e.position, e.span, e.target.id, None if e.contrast is None else e.contrast.id
