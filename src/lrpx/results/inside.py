"""Relevance inside a model as a table: a row for each number of ``by_layer`` and its relatives, or of ``by_head``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError

INSIDE = ("by_layer", "by_attention", "by_mlp", "by_head")  # fields of an explanation


def rows_of(of: str, arrays: dict[str, np.ndarray], texts: Sequence[str], method: str) -> dict[str, Any]:
    """The columns of the table: ``layer``, of heads ``head``, ``position``, ``text``, and the numbers.

    Args:
        of: ``"layers"`` or ``"heads"``.
        arrays: Those of the fields that the explanation has.
        texts: The T tokens as readable text.
        method: Which method it is, for the error.

    Raises:
        InputError: An unknown ``of``, or the explanation has no such numbers.
    """
    if of not in ("layers", "heads"):
        raise InputError(f'there is no table of {of!r}: give "tokens", "layers" or "heads".')
    fields = {"relevance": "by_head"} if of == "heads" else {name: name for name in INSIDE[:3]}
    known = {column: arrays[name] for column, name in fields.items() if name in arrays}
    if not known:
        raise InputError(
            f"this explanation by {method} has no relevance of {of}. Ask for it with a method that has it: "
            'explainer(text, method="attnlrp", heads=True).'
        )
    *places, position = (index.ravel() for index in np.indices(next(iter(known.values())).shape))
    index = dict(zip(("layer", "head"), places, strict=False)) | {"position": position}
    numbers = {column: array.ravel() for column, array in known.items()}
    return index | {"text": np.array(texts, dtype=object)[position]} | numbers
