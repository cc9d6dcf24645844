"""An image of an explanation as a grid of values over a picture, for all renderers.

1. The patches of an image are left out of the text, where one cell with their sum stands for them (``cells.py``).
2. Patches and text have one scale. A patch is drawn over a pale grey version of the picture: transparent at zero, the more
   opaque the larger its relevance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .colours import Rgb
from .drawable import Drawable, Patches
from .look import Look
from .numbers import short
from .text import visible

PALE = 0.35  # of the grey picture below a map; the rest is white
OPAQUE = 0.85  # at the end of the scale


@dataclass(frozen=True)
class ImageMap:
    """One image, ready to draw."""

    label: str
    rows: int
    columns: int
    width: int  # of the picture, in pixels
    height: int
    png: bytes
    tokens: np.ndarray  # int [rows, columns]: positions in the text
    values: np.ndarray  # float64 [rows, columns]
    parts: str = "patches"  # what has a value: patches, which are tokens, or regions, which are sums over their pixels

    def caption(self, numbers: Callable[[float], str], sign: str = "-") -> str:
        """Name, size and sum, and the strongest part."""
        [(row, column, value)] = self.strongest(1)
        return (
            f"{self.label}: {self.rows} x {self.columns} {self.parts}, sum {short(self.total, sign)}, strongest {numbers(value)} "
            f"in row {row}, column {column}"
        )

    @property
    def total(self) -> float:
        """The sum of all patches."""
        return float(self.values.sum())

    def places(self) -> Iterator[tuple[int, int, int, float]]:
        """Row, column, token and relevance of each patch, row by row."""
        for (row, column), value in np.ndenumerate(self.values):
            yield row, column, int(self.tokens[row, column]), float(value)

    def strongest(self, most: int) -> list[tuple[int, int, float]]:
        """Row and column, from 1, and relevance of the parts with the most relevance of either sign."""
        order = np.argsort(-np.abs(self.values), axis=None, kind="stable")[:most]
        places = zip(*np.unravel_index(order, self.values.shape), strict=True)
        return [(int(row) + 1, int(column) + 1, float(self.values[row, column])) for row, column in places]

    def coarse(self, columns: int) -> np.ndarray:
        """The grid with at most so many columns: means of squares of patches, with fewer at the right and lower edge."""
        side = -(-self.columns // max(1, columns))
        edges = [np.arange(0, n, side) for n in self.values.shape]
        ones = np.ones_like(self.values)
        sums, counts = (
            np.add.reduceat(np.add.reduceat(a, edges[0], axis=0), edges[1], axis=1) for a in (self.values, ones)
        )
        return np.asarray(sums / counts)


def labels(images: Sequence[Patches]) -> list[str]:
    """What each image is called."""
    plain = ["image"] if len(images) == 1 else [f"image {n}" for n in range(1, len(images) + 1)]
    return [visible(image.name) or name for image, name in zip(images, plain, strict=True)]


def image_maps(e: Drawable) -> list[ImageMap]:
    """The images of an explanation."""
    return maps_of(e.images, e.relevance, e.at)


def maps_of(images: Sequence[Patches], relevance: np.ndarray, at: str) -> list[ImageMap]:
    """Images with the relevance of their tokens, which was taken at the place ``at``."""
    parts = "regions" if at == "pixels" else "patches"
    found = []
    for image, label in zip(images, labels(images), strict=True):
        tokens = np.asarray(image.tokens, dtype=np.int64).reshape(image.rows, image.columns)
        values = np.asarray(relevance, dtype=np.float64)[tokens]
        size = image.width, image.height
        found.append(ImageMap(label, image.rows, image.columns, *size, image.png, tokens, values, parts))
    return found


def places_in_text(images: Sequence[Patches]) -> list[tuple[int, int, str]]:
    """Which tokens, as (start, stop), each image stands at, with its name. Images that overlap are one."""
    found: list[tuple[int, int, str]] = []
    spans = [(min(i.tokens), max(i.tokens) + 1, label) for i, label in zip(images, labels(images), strict=True)]
    for start, stop, label in sorted(spans):
        if found and start < found[-1][1]:
            first, end, before = found.pop()
            start, stop, label = first, max(end, stop), f"{before}, {label}"
        found.append((start, stop, label))
    return found


def overlay(share: float, look: Look) -> tuple[Rgb, float]:
    """The colour over a patch and its opacity, for a share of the scale from -1 to 1 and beyond."""
    end = look.colour(share if abs(share) > 1 else 1.0 if share > 0 else -1.0)
    return end, OPAQUE * min(1.0, abs(share))


def pixels(image: ImageMap, shares: np.ndarray, picture: Any, look: Look) -> np.ndarray:
    """The map over a picture (uint8 ``[height, width, 3]``), likewise."""
    grey = np.asarray(picture, dtype=np.float64) @ np.array([0.299, 0.587, 0.114])
    pale = np.repeat((255 - PALE * (255 - grey))[..., None], 3, axis=2)
    height, width = grey.shape
    rows, columns = np.arange(height) * image.rows // height, np.arange(width) * image.columns // width
    over = [overlay(float(share), look) for share in shares.flat]
    fill = np.array([rgb for rgb, _ in over], dtype=np.float64).reshape(*shares.shape, 3)[rows][:, columns]
    opacity = np.array([alpha for _, alpha in over]).reshape(*shares.shape, 1)[rows][:, columns]
    blended: np.ndarray = np.round(pale * (1 - opacity) + fill * opacity)
    return blended.astype(np.uint8)
