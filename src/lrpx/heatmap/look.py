"""How a map is drawn: where its colours end, which tokens are left out of them, tokens or words, numbers or none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from ..errors import InputError
from .colours import PALETTES, Palette, Rgb, colour

Scale: TypeAlias = Literal["robust", "max"] | float
Hide: TypeAlias = Literal["special", "first"] | Sequence[Literal["special", "first"]]
Group: TypeAlias = Literal["tokens", "words"]

HIDEABLE = ("special", "first")
GROUPS = ("tokens", "words")
QUANTILE = 0.95  # where a robust scale ends,
LEAD = 2.0  # unless the largest number is at most so many times as large


@dataclass(frozen=True)
class Look:
    """How a map is drawn.

    Attributes:
        scale: Where the colours end. ``"robust"``: at the 95th percentile of the absolute relevances shown, so that one strong
            token does not leave all others white; at the largest, if that is at most twice as large, and always of up to 20
            numbers. Tokens beyond the end are drawn darker than it, and the legend says so. ``"max"``: at the largest.
            A number: there, for instance to compare several maps.
        hide: Tokens to leave without colour: ``"special"`` ones (those of the tokenizer: BOS, ``[CLS]``, the roles of a chat),
            the ``"first"`` one, or both. They stay readable, in grey, and the header says how much relevance they hold.
        group: ``"tokens"``, or ``"words"``, whose relevance is the sum of their tokens'. Words are those of Unicode (UAX 29): in
            scripts without spaces the tokens stay as they are.
        numbers: Print the relevance below each token or word. ``None``: where there are at most 40, in formats that have no
            tooltips. A terminal without colours prints the 20 strongest of more than 40, or all if this is ``True``.
        palette: ``"red and blue"``, or ``"orange and purple"``, whose ends stay apart for all common kinds of colour blindness.
            Terminals with 16 colours have red and blue.
        header: With the lines above the map: method, what is explained, the model, what it predicts, notes. ``False`` is for
            figures whose caption says what a reader needs of this.

    Raises:
        InputError: A value that is none of these.
    """

    scale: Scale = "robust"
    hide: Hide = ()
    group: Group = "tokens"
    numbers: bool | None = None
    palette: Palette = "red and blue"
    header: bool = True

    def __post_init__(self) -> None:
        number = isinstance(self.scale, int | float) and not isinstance(self.scale, bool)
        if self.scale not in ("robust", "max") and not (number and 0 < float(self.scale) < math.inf):
            raise InputError(f"scale={self.scale!r}: give 'robust', 'max' or a number above 0.")
        if self.group not in GROUPS:
            raise InputError(f"group={self.group!r}: give 'tokens' or 'words'.")
        if self.numbers not in (True, False, None):
            raise InputError(f"numbers={self.numbers!r}: give True or False.")
        if self.header not in (True, False):
            raise InputError(f"header={self.header!r}: give True or False.")
        if self.palette not in PALETTES:
            raise InputError(f"palette={self.palette!r}: give {' or '.join(map(repr, PALETTES))}.")
        if not isinstance(self.hide, str | Sequence):
            raise InputError(f"hide={self.hide!r}: give 'special', 'first' or both.")
        for name in self.hidden:
            if name not in HIDEABLE:
                raise InputError(f"hide={name!r}: give 'special', 'first' or both.")

    @property
    def hidden(self) -> tuple[str, ...]:
        """``hide`` as a tuple."""
        return (self.hide,) if isinstance(self.hide, str) else tuple(self.hide)

    def colour(self, share: float) -> Rgb:
        """The colour of a share of the scale, from -1 to 1 and beyond."""
        return colour(share, self.palette)

    def end_of_scale(self, values: Sequence[float]) -> float:
        """Where the colours of a map of these values end."""
        if isinstance(self.scale, int | float):
            return float(self.scale)
        sizes = np.abs(np.asarray(values, dtype=np.float64))
        if self.scale == "max":
            return float(sizes.max())
        end, largest = float(np.quantile(sizes, QUANTILE, method="higher")), float(sizes.max())
        return end if 0 < LEAD * end < largest else largest  # 0 where most values are 0
