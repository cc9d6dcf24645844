"""What a user gives a model that reads images alone (a classifier, CLIP), as the tensors that it reads.

Files and arrays of bytes are opened by ``pictures.py``, as for models of images and text (``image_text.py``).

1. A PIL image, a path, or an array of bytes goes through the model's image processor. Numbers that are not bytes are pixel values
   already, scaled and normalised, and stay as they are; so does what an image processor returned.
2. The picture is made of the pixel values again, so that it shows what was cropped, and fits the patches.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from ..models.signature import takes
from .pictures import as_seen, open_picture

EXPECTED = (
    "Give a PIL image, a path, an array of bytes [height, width, 3], pixel values [3, height, width], what an image processor "
    "returned, or a list of these."
)
READ = ("pixel_values", "pixel_attention_mask", "spatial_shapes")  # what models of images alone read


@dataclass(frozen=True)
class ImageInput:
    """One image.

    Attributes:
        inputs: What the model reads, ``[1, ...]`` each.
        picture: uint8 ``[height, width, 3]``, what the model sees.
        name: The file that it came from, or ``None``.
    """

    inputs: dict[str, Tensor]
    picture: np.ndarray
    name: str | None = None

    @property
    def patched(self) -> tuple[int, int] | None:
        """Rows and columns, where the pixel values are patches already, as SigLIP 2 reads them."""
        shape = self.inputs.get("spatial_shapes")
        return None if shape is None else (int(shape[0, 0]), int(shape[0, 1]))


def split_images(given: Any) -> tuple[list[Any], bool]:
    """Single images, and whether several were given: a list, or a batch of more than one.

    Raises:
        InputError: There is none, or it is nothing that can be an image.
    """
    if isinstance(given, Mapping):
        if "pixel_values" not in given:
            raise InputError(
                f"a dictionary with {', '.join(map(repr, given)) or 'nothing'} has no 'pixel_values'. {EXPECTED}"
            )
        values = {name: torch.as_tensor(given[name]) for name in given if given[name] is not None}
        rows = len(values["pixel_values"]) if values["pixel_values"].ndim > 2 else 0
        if not rows:
            raise InputError(
                f"pixel_values has the shape {list(values['pixel_values'].shape)}: expected [batch, 3, height, width]."
            )
        return [{name: value[n : n + 1] for name, value in values.items()} for n in range(rows)], rows > 1
    if isinstance(given, Tensor | np.ndarray) and given.ndim == 4:
        if not len(given):
            raise InputError(f"the batch of images is empty, {list(given.shape)}. {EXPECTED}")
        return list(given), len(given) > 1
    if isinstance(given, list | tuple):
        if not given:
            raise InputError(f"the list of images is empty. {EXPECTED}")
        return list(given), True
    return [given], False


def read_image(given: Any, processor: Any, model: PreTrainedModel) -> ImageInput:
    """One image as the model reads it.

    Args:
        given: See the top of this file.
        processor: The model's image processor, or ``None``.
        model: Where it goes.

    Raises:
        InputError: It is no image, or a processor is missing.
    """
    name = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if isinstance(given, Mapping) and "pixel_values" not in given:
        raise InputError(f"the image is a dictionary without 'pixel_values'. {EXPECTED}")
    if isinstance(given, Mapping):
        unread = sorted(key for key in given if key not in READ and takes(model, key))
        if unread:
            raise InputError(
                f"{', '.join(unread)} beside pixel_values may change the prediction, and is not read. Leave it out."
            )
        inputs = {key: torch.as_tensor(value) for key, value in given.items() if key in READ and takes(model, key)}
    elif isinstance(given, Tensor | np.ndarray) and is_floating(given):
        inputs = {"pixel_values": torch.as_tensor(given)[None]}
    else:
        inputs = _processed(open_picture(given, "the image"), processor, model)
    return ImageInput(_checked(inputs, model), _picture(inputs, processor), name)


def is_floating(given: Tensor | np.ndarray) -> bool:
    """Whether an array or tensor holds real numbers."""
    return given.is_floating_point() if isinstance(given, Tensor) else bool(np.issubdtype(given.dtype, np.floating))


def _processed(image: Any, processor: Any, model: PreTrainedModel) -> dict[str, Tensor]:
    if processor is None:
        raise InputError(
            f"{type(model).__name__} reads an image through its image processor, which is missing.",
            python="Type: lrpx.Explainer(model, transformers.AutoImageProcessor.from_pretrained(name)). Or give pixel values as "
            "floats [3, height, width].",
            command="Load a model that has the files of its processor beside it.",
        )
    made = processor(images=image, return_tensors="pt")
    return {name: value for name, value in made.items() if name in READ and takes(model, name)}


def _checked(inputs: dict[str, Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
    """Refuse pixel values of another shape than the model takes."""
    values, name = inputs["pixel_values"], type(model).__name__
    if not values.isfinite().all():
        raise InputError("the pixel values hold NaN or infinity. Check how the image was made.")
    if values.ndim == 3 and "spatial_shapes" in inputs:
        return inputs
    config = getattr(model.config, "vision_config", model.config)
    channels = getattr(config, "num_channels", 3)
    if values.ndim != 4 or values.shape[1] != channels:
        raise InputError(f"pixel values of shape {list(values.shape[1:])}: {name} takes [{channels}, height, width].")
    size, given = stated_size(config), (values.shape[2], values.shape[3])
    if size is not None and takes(model, "interpolate_pos_encoding") and given != size:
        raise InputError(
            f"pixel values of {given[0]} x {given[1]}: {name} takes {size[0]} x {size[1]}. Give the image itself and the model's "
            "image processor, which scales it."
        )
    return inputs


def stated_size(config: Any) -> tuple[int, int] | None:
    """Height and width that a configuration states."""
    size = getattr(config, "image_size", None)
    if isinstance(size, list | tuple):
        return (int(size[0]), int(size[-1]))
    return (size, size) if isinstance(size, int) else None


def _picture(inputs: Mapping[str, Tensor], processor: Any) -> np.ndarray:
    """What the model sees, uint8 ``[height, width, 3]``."""
    values = inputs["pixel_values"][0].detach().cpu().double()
    if "spatial_shapes" in inputs:
        values = torch.from_numpy(as_image(values.numpy(), *(int(n) for n in inputs["spatial_shapes"][0])))
    return np.asarray(as_seen(values, processor))


def as_image(patches: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Patches ``[rows * columns or more, side * side * 3]``, row by row, channels last, as ``[3, height, width]``."""
    side = round((patches.shape[1] / 3) ** 0.5)
    grid = patches[: rows * columns].reshape(rows, columns, side, side, 3)
    return grid.transpose(4, 0, 2, 1, 3).reshape(3, rows * side, columns * side)
