"""What an explanation is about: entries of a vocabulary, and tokens of a text as readable units, cut and joined."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..heatmap.text import readable

NO_TOKEN = -1  # the id of what is no entry of a vocabulary: a function that is explained, a patch of an image


class Token(NamedTuple):
    """One entry of the vocabulary; of a classifier one label, of a list of choices or answers one of these."""

    id: int
    text: str  # the raw piece, as the tokenizer stores it: "Ġare"
    shown: str = ""  # what it reads as in its context: " are"; empty if not known


class Prediction(NamedTuple):
    """A token that the model may predict, and how likely it finds it: between 0 and 1, over the whole vocabulary."""

    token: Token
    probability: float


class Unit(NamedTuple):
    """Tokens ``start`` to ``end`` (exclusive) as readable text; several tokens where a character is split over them."""

    start: int
    end: int
    text: str


class Segment(NamedTuple):
    """Tokens ``start`` to ``end`` (exclusive) as a part of the input with a name, such as ``"question"``."""

    name: str
    start: int
    end: int


def readable_texts(units: Sequence[Unit]) -> list[str]:
    """One text for each of the tokens that ``units`` cover; empty for those of a unit but the first."""
    return [text if i == start else "" for start, end, text in units for i in range(start, end)]


def cut(units: Sequence[Unit], tokens: Sequence[str], end: int) -> list[Unit]:
    """The units of the first ``end`` tokens; one that goes on beyond is shown by its pieces."""
    whole = [unit for unit in units if unit.end <= end]
    first = whole[-1].end if whole else 0
    return [*whole, *(Unit(i, i + 1, readable(tokens[i], byte_level=True)) for i in range(first, end))]


def piece(unit: Unit, tokens: Sequence[str], i: int) -> str:
    r"""How token ``i`` of a unit of several is shown: a character that is split by the last token, before by bytes, ``\xe4``."""
    shown = readable(tokens[i], byte_level=True)
    return unit.text if "\\x" in shown and i == unit.end - 1 else shown


def joined(tokens: Sequence[Token]) -> Token:
    """Several tokens as one entry: the id of the first, the text of all."""
    return Token(tokens[0].id, *("".join(parts) for parts in zip(*(token[1:] for token in tokens), strict=True)))
