"""Pictures for all tasks: opened from what users give, made of the pixel values that a model saw, and written as PNG.

Which tensors a model is given for them is the business of ``image_input.py`` and ``image_text.py``.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InputError, import_optional

LARGEST = 1024  # pixels: either side of a picture that an explanation keeps
EXPECTED = "Give a picture of Pillow, a path, or an array of numbers [height, width, 3]."


def open_picture(given: Any, what: str) -> Any:
    """A picture of Pillow in RGB.

    Args:
        given: A picture, the path of a file, or an array or tensor: ``[height, width]``, ``[height, width, 3 or 4]`` or
            ``[3, height, width]``; integers from 0 to 255, or real numbers from 0 to 1.
        what: What it is called in an error: ``images[0]``.

    Raises:
        InputError: It is none of these, an address on the web, or a file that cannot be read.
    """
    image = import_optional("PIL.Image", "reading images", extra="vision")
    if isinstance(given, image.Image):
        return given.convert("RGB")
    if isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        if isinstance(text, str) and text.split(":", 1)[0].lower() in ("http", "https", "data"):
            raise InputError(
                f"{what} is an address, {text[:60]!r}, and lrpx downloads no images. Load it yourself: "
                "transformers.image_utils.load_image(address) gives a picture to put there, or save it as a file."
            )
        if Path(text).is_dir():
            raise InputError(f"{what}: {text!r} is a folder. Give the path of a picture.")
        if not Path(text).is_file():
            raise InputError(f"{what}: there is no file {text!r}. Current folder: {Path.cwd()}.")
        try:
            with image.open(text) as opened:
                return opened.convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            raise InputError(f"{what}: {text!r} cannot be read as a picture ({error}).") from error
    return image.fromarray(_pixels(given, what))


def _pixels(given: Any, what: str) -> np.ndarray:
    """An array or tensor as uint8 ``[height, width, 3]``."""
    if callable(getattr(given, "detach", None)):
        given = given.detach().cpu().numpy()
    if not isinstance(given, np.ndarray) or given.dtype.kind not in "buif":
        raise InputError(f"{what} is of the type {type(given).__name__}. {EXPECTED}")
    pixels = given[..., None] if given.ndim == 2 else given
    if pixels.ndim == 3 and pixels.shape[0] == 3 and pixels.shape[-1] not in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim != 3 or pixels.shape[-1] not in (1, 3, 4) or not pixels.size:
        raise InputError(f"{what} is an array of shape {list(given.shape)}. {EXPECTED}")
    top = 1 if pixels.dtype.kind == "f" else 255
    if pixels.dtype.kind != "b" and not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= top):
        numbers = "real numbers from 0 to 1" if top == 1 else "whole numbers from 0 to 255"
        raise InputError(f"{what} has numbers from {pixels.min():g} to {pixels.max():g}: expected {numbers}.")
    scaled = np.round(pixels * 255.0) if pixels.dtype.kind in "bf" else pixels
    return np.repeat(scaled.astype(np.uint8), 3, axis=2) if pixels.shape[-1] == 1 else scaled[..., :3].astype(np.uint8)


def as_seen(pixels: Any, image_processor: Any) -> Any:
    """What a model saw, ``[3, height, width]``, as a picture of Pillow: the processor's normalisation undone.

    If that is not known, the least and the greatest number are taken for black and white.
    """
    image = import_optional("PIL.Image", "drawing images", extra="vision")
    numbers = np.asarray(pixels.detach().float().cpu().numpy(), dtype=np.float64)
    mean, std = (getattr(image_processor, f"image_{name}", None) for name in ("mean", "std"))
    normalised = image_processor is None or getattr(image_processor, "do_normalize", True)
    white: float = 1 if image_processor is None or getattr(image_processor, "do_rescale", True) else 255
    if normalised and mean is not None and std is not None:
        numbers = numbers * np.reshape(std, (-1, 1, 1)) + np.reshape(mean, (-1, 1, 1))
    elif normalised:
        numbers, white = numbers - numbers.min(), float(np.ptp(numbers)) or 1.0
    numbers = numbers / white
    numbers = np.repeat(numbers, 3, axis=0) if len(numbers) == 1 else numbers[:3]
    return image.fromarray(np.round(numbers.clip(0, 1) * 255).astype(np.uint8).transpose(1, 2, 0))


def png_of(picture: Any) -> tuple[int, int, bytes]:
    """Width, height and PNG file of a picture of Pillow, or uint8 ``[height, width, 3]``, made smaller where it is very large."""
    if isinstance(picture, np.ndarray):
        picture = import_optional("PIL.Image", "a picture", extra="vision").fromarray(picture)
    largest = max(picture.size)
    if largest > LARGEST:
        picture = picture.resize(tuple(max(1, round(side * LARGEST / largest)) for side in picture.size))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return (*picture.size, file.getvalue())
