"""The labels of a classifier: names, ids, and what a user gives for one."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedConfig

from ..errors import InputError, listed, nearest
from ..results.tokens import Prediction, Token
from ..text.batching import Predictions
from ..text.given import as_python
from .head_task import SHOWN, named

LISTED = 30  # labels in an error message


@dataclass(frozen=True)
class Labels:
    """The labels of a classifier, by id."""

    names: tuple[str, ...]

    @classmethod
    def of(cls, config: PreTrainedConfig) -> Labels:
        """By the configuration."""
        known: dict[Any, str] = dict(config.id2label or {})
        return cls(tuple(str(known.get(i, f"LABEL_{i}")) for i in range(config.num_labels or 0)))

    def token(self, i: int) -> Token:
        """A label as an explanation names it."""
        return Token(i, self.names[i], self.names[i])

    def listed(self) -> str:
        """All labels with their ids, for an error message; of very many, the first."""
        return listed([f"{name!r} ({i})" for i, name in enumerate(self.names)], LISTED)

    def resolve(self, given: Any, role: str) -> int | None:
        """The id of a label that is given by name or id; ``None`` stays ``None``.

        Raises:
            InputError: It is none, or several.
        """
        given = as_python(given)
        if given is None:
            return None
        if isinstance(given, list):
            raise InputError(
                f"{role}={reprlib.repr(given)} is a list, and one label is explained.",
                python='Give one; for a difference of two: target="A", contrast="B".',
            )
        if isinstance(given, int) and not isinstance(given, bool):
            if 0 <= given < len(self.names):
                return given
            raise InputError(f"{role}={given} is no id of a label. There are {len(self.names)}: {self.listed()}.")
        if not isinstance(given, str):
            raise InputError(
                f"{role}={given!r} has the type {type(given).__name__}. Give a label by name or id: {self.listed()}."
            )
        ids = [i for i, name in enumerate(self.names) if name == given]
        if len(ids) == 1:
            return ids[0]
        if ids:
            raise InputError(
                f"{role}={given!r} is the name of {len(ids)} labels.",
                python=f"Give one of the ids {ids}.",
                app="Choose one in the list of predictions.",
            )
        if len(self.names) > LISTED:
            guess = nearest(given, self.names).partition("Known:")[0]
            raise InputError(f"{role}={given!r} is no label. {guess}Known: {self.listed()}.")
        raise InputError(f"{role}={given!r} is no label. {nearest(given, self.names)}")

    def pair(self, target: Any, contrast: Any) -> tuple[int | None, int | None]:
        """Target and contrast as ids.

        Raises:
            InputError: One of them is none, or they are the same.
        """
        ids = self.resolve(target, "target"), self.resolve(contrast, "contrast")
        if ids[1] is not None and len(self.names) == 1:
            raise InputError(
                f"contrast={contrast!r}: the model has one output, {self.names[0]!r}.",
                python="Leave contrast out.",
                app="Leave “and not” empty.",
            )
        if ids[0] is not None and ids[0] == ids[1]:
            raise InputError(
                f"target {target!r} and contrast {contrast!r} are the same label: their difference is 0. Give two that differ."
            )
        return ids

    def told(self, target: int, contrast: int | None, predicted: Predictions | None) -> dict[str, Any]:
        """Fields of an ``Explanation``: target and contrast, their probabilities and ranks, and the likeliest labels."""
        if target == contrast:
            other = self.names[target - 1 if target else 1]
            raise InputError(
                f"the model's top label is the contrast itself, {self.names[target]!r}: their difference is 0.",
                python=f"Say which target, such as target={other!r}. Labels: {self.listed()}.",
                app=f"Choose another one in “Explain”. Labels: {self.listed()}.",
            )
        likely = (None, None) if predicted is None else (predicted.target, predicted.contrast)
        fields = named(self.token(target), likely[0], "target")
        if contrast is not None:
            fields |= named(self.token(contrast), likely[1], "contrast")
        if predicted is not None:
            best = zip(predicted.ids[:SHOWN].tolist(), predicted.probabilities[:SHOWN].tolist(), strict=True)
            fields["top"] = tuple(Prediction(self.token(i), p) for i, p in best)
        return fields
