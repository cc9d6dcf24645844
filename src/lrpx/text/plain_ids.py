"""Many lists of token ids at once: which of them need no closer look.

To look at tens of thousands of lists one by one takes about a second before anything is computed. Here all ids are one array.
A list is *plain* if no check of ``tokenization.py``, ``items.py`` and ``targets.py`` can object to it, and no note of
``suspect.py`` can be about it. Whatever is not plain, also what is only unusual, is read one by one, by the code that has the
sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..models.signature import ModelSignature
from .batching import Item
from .tokenization import is_tokenizer

FEW = 16  # texts that are faster read one by one


@dataclass(frozen=True, eq=False)
class PlainIds:
    """Which of N inputs are plain lists of ids.

    Attributes:
        which: bool ``[N]``.
        lengths: ``[N]`` ids of each; 0 for what is no list.
    """

    which: np.ndarray
    lengths: np.ndarray

    @classmethod
    def among(cls, given: Sequence[Any], signature: ModelSignature, tokenizer: Any, padding: int | None) -> PlainIds:
        """Find them.

        Args:
            given: N inputs, from ``given.split``.
            signature: Of a language model.
            tokenizer: The model's, or ``None``.
            padding: The id of the padding token, if there is one.
        """
        lists = [one if type(one) is list else [] for one in given]
        lengths = np.fromiter(map(len, lists), np.int64, len(lists))
        none = cls(np.zeros(len(lists), bool), lengths)
        if len(lists) < FEW or signature.task not in ("causal", "masked") or signature.needs:
            return none
        if not is_tokenizer(tokenizer) or set(map(type, chain.from_iterable(lists))) != {int}:
            return none
        try:
            ids = np.fromiter(chain.from_iterable(lists), np.int64, int(lengths.sum()))
            known = signature.vocabulary if tokenizer is None else min(signature.vocabulary, len(tokenizer))
        except (OverflowError, TypeError):
            return none  # an id of more than 64 bits; a tokenizer that does not say how much it knows
        mask = getattr(tokenizer, "mask_token_id", None) if signature.task == "causal" else None
        unusual = [*signature.placeholders, *([] if mask is None else [mask])]
        ends = lengths.cumsum()
        which = lengths > 0
        odd = np.flatnonzero((ids < 0) | (ids >= known) | np.isin(ids, unusual))
        which[np.searchsorted(ends, odd, side="right")] = False
        for limit in (signature.context, signature.made_for):
            if limit is not None:
                which &= lengths <= limit
        at = np.flatnonzero(which)
        starts, stops, longer = (ends - lengths)[at], ends[at] - 1, lengths[at] > 1
        first, last = ids[starts], ids[stops]
        doubled = (first == ids[np.minimum(starts + 1, stops)]) | (last == ids[np.maximum(stops - 1, starts)])
        padded = (first == padding) | (last == padding) if padding is not None else np.zeros(len(at), bool)
        which[at[doubled & longer | padded]] = False
        return cls(which, lengths)

    def items(self, given: Sequence[Any], asked: Mapping[str, list[Any]], signature: ModelSignature) -> dict[int, Item]:
        """Those of the plain lists, by index, of which plain things are asked: what ``item_of`` makes of them.

        Args:
            given: The N inputs.
            asked: ``target``, ``contrast`` and ``position`` of each.
            signature: Of the model.
        """
        columns = {name: _numbers(values) for name, values in asked.items()}
        target, contrast, position = (columns[name] for name in ("target", "contrast", "position"))
        if None in (target, contrast, position) or (position == () and signature.task != "causal"):
            return {}
        which = self.which.copy()
        for ids in (target, contrast):
            if ids != ():
                which &= (np.asarray(ids) >= 0) & (np.asarray(ids) < signature.vocabulary)
        if target != () and contrast != ():
            which &= np.asarray(target) != np.asarray(contrast)
        where = self.lengths - 1
        if position != ():
            where = np.asarray(position)
            which &= (-self.lengths <= where) & (where < self.lengths)
        places = (where % np.maximum(self.lengths, 1)).tolist()
        none = [None] * len(given)
        targets, contrasts = (asked[name] if columns[name] != () else none for name in ("target", "contrast"))
        return {i: Item(tuple(given[i]), places[i], targets[i], contrasts[i]) for i in np.flatnonzero(which).tolist()}


def _numbers(values: list[Any]) -> tuple[int, ...] | None:
    """What is asked of each text as whole numbers; ``()`` if nothing is, of any of them; ``None``: something else, or mixed."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return ()
    return tuple(values) if kinds == {int} and min(values) > -(2**62) and max(values) < 2**62 else None
