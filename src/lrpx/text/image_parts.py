"""The parts of images that a method can change: of an image alone, and of the images in a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class ImageParts:
    """The parts of an image that can be hidden, in rows and columns.

    Attributes:
        rows, columns: How many.
        of: int64 ``[height, width]``, or ``[patches]`` of an image that is given as patches: the part of each, counted row by
            row; -1: of none.
    """

    rows: int
    columns: int
    of: Tensor


@dataclass(frozen=True)
class Picture:
    """Where the pixels of a picture or tile are in a model's input.

    Attributes:
        rows, columns: How many patches it has.
        numbers: int64 ``[copies, 3, height, width]``: the number in the flattened input. Some processors give each pixel twice.
    """

    rows: int
    columns: int
    numbers: np.ndarray

    @property
    def patches(self) -> np.ndarray:
        """int64 ``[height, width]``: the patch of each pixel, counted row by row."""
        height, width = self.numbers.shape[-2:]
        down, right = np.arange(height) * self.rows // height, np.arange(width) * self.columns // width
        return down[:, None] * self.columns + right


@dataclass(frozen=True)
class ImagesInText:
    """What a method may change of the images of one text.

    Attributes:
        tokens: Which of the T tokens stand for images, in order.
        grids: Rows, columns and tokens, row by row, of every image whose tokens are patches.
        pictures: Name of an input -> the pictures in it, without those that are padding. Empty if pixels are not changed.
    """

    tokens: Sequence[int]
    grids: Sequence[tuple[int, int, Sequence[int]]]
    pictures: Mapping[str, Sequence[Picture]] = field(default_factory=dict)
