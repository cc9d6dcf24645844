"""An image in PNG, PDF and SVG: the picture, and beside it the map. Pillow, which matplotlib needs, reads the picture."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from .images import ImageMap, pixels
from .look import Look

LARGEST, BETWEEN = 640, 30  # pixels: either side of a picture, and the space between the two
SMALLEST = 8  # pixels of the map per patch, so that edges of patches are sharp


def drawn(image: ImageMap, shares: np.ndarray, look: Look) -> tuple[tuple[float, float], np.ndarray, np.ndarray]:
    """Width and height on paper; the picture and the map over it, both uint8 ``[height, width, 3]``."""
    from PIL import Image

    with Image.open(io.BytesIO(image.png)) as opened:
        picture: Any = opened.convert("RGB")
    factor = LARGEST / max(image.width, image.height)
    size = max(1.0, image.width * factor), max(1.0, image.height * factor)
    fine = max(1, round(size[0]), SMALLEST * image.columns), max(1, round(size[1]), SMALLEST * image.rows)
    return size, np.asarray(picture), pixels(image, shares, picture.resize(fine), look)
