"""Which parts of a text with images are hidden together: neighbours in the text, squares of patches in an image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..passes.image_inputs import APART
from ..text.image_parts import ImagesInText

INPUT = "input"


@dataclass(frozen=True)
class Window:
    """What is hidden together.

    Attributes:
        name: Of the hidden state or input that it is a part of.
        parts: Of each token or patch, its numbers in the flattened tensor.
    """

    name: str
    parts: Sequence[np.ndarray]


def windows_of(images: ImagesInText, shapes: Mapping[str, tuple[int, ...]], window: int) -> Iterator[Window]:
    """All windows of a text with images.

    Args:
        images: Their parts.
        shapes: Of what is changed: ``"input"`` ``[1, T, width]``, pixel inputs, and features ``[..., width]`` for later blocks.
        window: How many neighbours are hidden together, in each direction.
    """
    _, count, width = shapes[INPUT]
    of_token = np.arange(count * width).reshape(count, width)
    patches = [] if images.pictures else [tokens for *_, tokens in images.grids]
    elsewhere = {token for tokens in patches for token in tokens} | set(images.tokens if images.pictures else ())
    for run in _runs([token for token in range(count) if token not in elsewhere]):
        for chosen in _in_a_row(len(run), window):
            yield Window(INPUT, [of_token[run[n]] for n in chosen])
    if not images.pictures:
        for rows, columns, tokens in images.grids:
            for chosen in squares(rows, columns, window):
                yield Window(INPUT, [of_token[tokens[n]] for n in chosen])
    for name, shape in shapes.items():
        if name == INPUT:
            continue
        pictures = images.pictures.get(name.removeprefix(APART))
        if pictures is None:  # features, each a token; those of one picture are neighbours
            states = np.arange(np.prod(shape)).reshape(-1, *shape[-2:])
            for picture in states:
                for chosen in _in_a_row(len(picture), window):
                    yield Window(name, [picture[n] for n in chosen])
            continue
        for each in pictures:
            of_patch = each.patches
            for chosen in squares(each.rows, each.columns, window):
                yield Window(name, [each.numbers[..., of_patch == n].ravel() for n in chosen])


def _runs(tokens: Sequence[int]) -> list[list[int]]:
    """Tokens that follow one another."""
    found: list[list[int]] = []
    for token in tokens:
        if found and found[-1][-1] == token - 1:
            found[-1].append(token)
        else:
            found.append([token])
    return found


def _in_a_row(count: int, window: int) -> Iterator[list[int]]:
    width = min(window, count)
    return (list(range(start, start + width)) for start in range(count - width + 1))


def squares(rows: int, columns: int, window: int) -> Iterator[list[int]]:
    """Which patches, counted row by row, each square of ``window`` x ``window`` of them holds; smaller in a smaller image."""
    high, wide = min(window, rows), min(window, columns)
    for row in range(rows - high + 1):
        for column in range(columns - wide + 1):
            yield [r * columns + c for r in range(row, row + high) for c in range(column, column + wide)]
