"""Small pictures drawn here, and an explanation of one."""

import io

import numpy as np
from PIL import Image, ImageDraw

from lrpx.results.explanation import Explanation
from lrpx.results.images import ImagePatches
from lrpx.results.tokens import Token, Unit


def photo(width=64, height=48, seed=0):
    """An orange disc before coloured waves; another seed, another place of the disc."""
    y, x = np.mgrid[:height, :width]
    waves = [120 + 80 * np.sin(x / 8 + seed), 150 + 60 * np.cos(y / 6 + seed), 200 - y / 2]
    picture = Image.fromarray(np.stack(waves, -1).clip(0, 255).astype(np.uint8))
    left, top = width * (0.2 + 0.15 * (seed % 3)), height * 0.3
    ImageDraw.Draw(picture).ellipse((left, top, left + width / 3, top + height / 2), fill=(230, 150, 60))
    return picture


def png_of(picture):
    """A picture as the bytes of a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def patches(start, rows, columns, picture=None, **fields):
    """The patches of a picture."""
    picture = picture or photo()
    return ImagePatches(start, rows, columns, picture.width, picture.height, png_of(picture), **fields)


def explanation_of_image(values, before=("<s>", "See"), after=(" What", "?"), around=(0.1, -0.2, 0.3, 0.05), **fields):
    """A text around one image whose patches have ``values`` ``[rows, columns]``."""
    values = np.asarray(values, dtype=np.float64)
    count, first = values.size, len(before)
    texts = [*before, *["<image>"] * count, *after]
    relevance = np.concatenate([around[:first], values.ravel(), around[first : first + len(after)]])
    known = {
        "tokens": texts,
        "token_ids": list(range(len(texts))),
        "units": [Unit(i, i + 1, text) for i, text in enumerate(texts)],
        "relevance": relevance,
        "value": 2.0,
        "residual": 2.0 - float(relevance.sum()),
        "target": Token(5, "Ġcat", " cat"),
        "contrast": None,
        "position": len(texts) - 1,
        "method": "attnlrp",
        "images": (patches(first, *values.shape),),
    }
    return Explanation(**(known | fields))
