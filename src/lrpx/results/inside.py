"""Relevance inside a model as a table: a row for each number of ``by_layer`` and its relatives, or of ``by_head``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import InputError

INSIDE = ("by_layer", "by_attention", "by_mlp", "by_head")  # fields of an explanation


def rows_of(
    of: str, arrays: dict[str, np.ndarray], texts: Sequence[str], method: str, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The columns of the table: ``layer``, of heads ``head``, ``position``, ``text``, and the numbers.

    Args:
        of: ``"layers"`` or ``"heads"``.
        arrays: Those of the fields that the explanation has.
        texts: The T tokens as readable text.
        method: Which method it is, for the error.
        options: With which it ran; likewise.

    Raises:
        InputError: An unknown ``of``, or the explanation has no such numbers.
    """
    if of not in ("layers", "heads"):
        raise InputError(f'there is no table of {of!r}: give "tokens", "layers" or "heads".')
    fields = {"relevance": "by_head"} if of == "heads" else {name: name for name in INSIDE[:3]}
    known = {column: arrays[name] for column, name in fields.items() if name in arrays}
    if not known:
        raise InputError(f"this explanation by {method} has no relevance of {of}{_why(of, options)}")
    *places, position = (index.ravel() for index in np.indices(next(iter(known.values())).shape))
    index = dict(zip(("layer", "head"), places, strict=False)) | {"position": position}
    numbers = {column: array.ravel() for column, array in known.items()}
    return index | {"text": np.array(texts, dtype=object)[position]} | numbers


def _why(of: str, options: Mapping[str, Any]) -> str:
    """Why there is none, and what to type."""
    if "heads" not in options:
        return ', which the method does not find. Take one that does: explainer(text, method="attnlrp", heads=True).'
    if options["heads"]:
        return ": heads=True was asked for, and it was not found in this pass."
    if options["heads"] is False:
        return ": heads=False was given. Type: explainer(text, heads=True)."
    return ", which is not computed for long texts, or while compiling, unless it is asked for: explainer(text, heads=True)."
