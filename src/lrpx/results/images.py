"""An image in an explanation: which tokens are its patches, and the picture itself."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import InputError

_PNG = b"\x89PNG\r\n\x1a\n"


class ImagePatches(NamedTuple):
    """The patches of an image, which are tokens of the input.

    Attributes:
        start: The token of the first patch.
        rows: How many patches there are from top to bottom.
        columns: How many from left to right.
        width: Of the picture, in pixels.
        height: Likewise.
        png: The picture that the patches cover, as a PNG file.
        order: The tokens of all patches, row by row, where they do not follow one another; empty where they do.
        name: What is shown, if one image is read in several ways: ``"whole"``, ``"in detail"``.
    """

    start: int
    rows: int
    columns: int
    width: int
    height: int
    png: bytes
    order: tuple[int, ...] = ()
    name: str = ""

    @property
    def tokens(self) -> Sequence[int]:
        """The token of each patch, row by row."""
        return self.order or range(self.start, self.start + self.rows * self.columns)

    def __repr__(self) -> str:
        size = f"{self.rows} x {self.columns} patches of {self.width} x {self.height} pixels"
        return f"<ImagePatches from token {self.start}: {size}>"


def check_images(images: Sequence[ImagePatches], length: int) -> None:
    """Refuse images that do not fit a text of ``length`` tokens.

    Raises:
        InputError: A size is not positive, a picture is no PNG, or a token is outside the text or in two images.
    """
    seen: set[int] = set()
    for n, image in enumerate(images):
        sizes = {name: getattr(image, name) for name in ("rows", "columns", "width", "height")}
        for name, size in sizes.items():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise InputError(f"images[{n}].{name} is {size!r}: give a number from 1.")
        if not image.png.startswith(_PNG):
            raise InputError(f"images[{n}].png does not begin like a PNG file.")
        tokens = image.tokens
        if len(tokens) != image.rows * image.columns or tokens[0] != image.start:
            raise InputError(
                f"images[{n}] has {len(tokens)} tokens, from {tokens[0]} on: expected {image.rows} x {image.columns}, from "
                f"{image.start} on."
            )
        if min(tokens) < 0 or max(tokens) >= length:
            raise InputError(f"images[{n}] has tokens {min(tokens)} to {max(tokens)}, and the text has {length}.")
        if len(set(tokens)) < len(tokens) or not seen.isdisjoint(tokens):
            raise InputError(f"images[{n}]: a token is the patch of two places.")
        seen.update(tokens)


def plain_images(images: Sequence[ImagePatches]) -> list[list[Any]]:
    """Images as JSON types: the PNG in base64."""
    return [
        [*image[:5], base64.b64encode(image.png).decode("ascii"), list(image.order), image.name] for image in images
    ]


def read_images(saved: Sequence[Sequence[Any]]) -> tuple[ImagePatches, ...]:
    """Images as JSON holds them: the PNG in base64.

    Raises:
        InputError: A picture is not base64.
    """
    found = []
    for start, rows, columns, width, height, png, order, name in saved:
        try:
            picture = base64.b64decode(png, validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise InputError(f"not a saved explanation: a picture is not base64 ({error}).") from error
        found.append(ImagePatches(start, rows, columns, width, height, picture, tuple(order), name))
    return tuple(found)
