"""Relevance inside a model as a table: a row for each number of ``by_layer`` and its relatives, or of ``by_head``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InputError, nearest
from ..heatmap.drawable import Drawable, Made
from ..heatmap.matrix import missing

INSIDE = ("by_layer", "by_attention", "by_mlp", "by_head")  # fields of an explanation


def columns_of(of: str, arrays: dict[str, np.ndarray], texts: Sequence[str], e: Drawable) -> dict[str, Any]:
    """The columns of the table: ``layer``, of heads ``head``, ``position``, ``text``, and the numbers.

    Args:
        of: ``"layers"`` or ``"heads"``.
        arrays: Those of the fields that the explanation has.
        texts: The T tokens as readable text.
        e: The explanation, for the error.

    Raises:
        InputError: An unknown ``of``, or the explanation has no such numbers.
    """
    if of not in ("layers", "heads"):
        raise InputError(f'there is no table of {of!r}: give "tokens", "layers" or "heads".')
    fields = {"relevance": "by_head"} if of == "heads" else {name: name for name in INSIDE[:3]}
    known = {column: arrays[name] for column, name in fields.items() if name in arrays}
    if not known:
        raise missing(e, of)
    *places, position = (index.ravel() for index in np.indices(next(iter(known.values())).shape))
    index = dict(zip(("layer", "head"), places, strict=False)) | {"position": position}
    numbers = {column: array.ravel() for column, array in known.items()}
    return index | {"text": np.array(texts, dtype=object)[position]} | numbers


def relevance_of_head(by_head: np.ndarray | None, head: tuple[int, int], e: Drawable) -> np.ndarray:
    """``[T]``: the relevance of one head, given as (layer, head).

    Raises:
        InputError: There is no relevance of heads, or no such head.
    """
    if by_head is None:
        raise missing(e, "heads")
    layers, heads, _ = by_head.shape
    pair = isinstance(head, tuple | list) and len(head) == 2 and all(isinstance(i, int | np.integer) for i in head)
    if not pair or not (0 <= head[0] < layers and 0 <= head[1] < heads):
        raise InputError(
            f"head={head!r}: give a layer from 0 to {layers - 1} and a head from 0 to {heads - 1}, such as "
            f"head=({layers - 1}, {heads - 1})."
        )
    return np.asarray(by_head[head[0], head[1]])


def no_neurons(made: Made) -> InputError:
    """The error about an explanation without relevance of neurons; it names modules that the explained model has."""
    names = made.provenance.get("neurons") or "NAME.*.OF.MODULES"
    problem = f"the explanation by {made.method} has no relevance of neurons. Ask for that of modules by their names:"
    return InputError(
        problem,
        python=f'explainer(text, at=["input", "{names}"]).',
        command=f"lrpx explain TEXT --at input --at '{names}'",
    )


def strongest_neurons(
    layers: dict[str, np.ndarray], module: str | None, top: int, made: Made
) -> list[tuple[str, int, np.ndarray]]:
    """The neurons of the largest absolute relevance, summed over the tokens: module, index, and relevance ``[T]``.

    Args:
        layers: Module name -> ``[T, width]``.
        module: Of these modules only, as a name or glob; ``None``: of each.
        top: How many of each module.
        made: How they were made, for the error.

    Raises:
        InputError: There is no relevance of neurons, or of no such module; or ``top`` is no number from 1.
    """
    if not isinstance(top, int) or isinstance(top, bool) or top < 1:
        raise InputError(f"top={top!r}: give a number of neurons from 1.")
    if not layers:
        raise no_neurons(made)
    names = [name for name in layers if module is None or fits(name, module)]
    if not names:
        raise InputError(f"module={module!r}: this explanation has no such module. {nearest(module, layers)}")
    found = []
    for name in names:
        numbers = np.asarray(layers[name])
        order = np.argsort(-np.abs(numbers).sum(axis=0), kind="stable")[:top]
        found += [(name, int(i), numbers[:, i]) for i in order]
    return found


def fits(module: str, pattern: str) -> bool:
    """Whether a module's name fits a glob: ``*`` and ``?`` stay between two dots, ``**`` crosses them."""
    parts = re.split(r"(\*\*|\*|\?)", pattern)
    wild = {"**": ".*", "*": r"[^.]*", "?": r"[^.]"}
    return re.fullmatch("".join(wild.get(part, re.escape(part)) for part in parts), module) is not None
