"""Texts of a call as tokens, by index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..text.tokenization import Encoded


class Encodings(dict[int, Encoded]):
    """Texts as tokens, by index. Plain ids are read when they are asked for, while a device computes."""

    def __init__(self, given: Sequence[Any], encode: Callable[[Any], Encoded]) -> None:
        super().__init__()
        self._given, self._encode = given, encode

    def __missing__(self, i: int) -> Encoded:
        self[i] = self._encode(self._given[i])
        return self[i]
