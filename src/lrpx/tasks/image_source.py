"""An image as the source of an encoder-decoder model that writes text (captions, OCR): the patches that its encoder reads.

1. A picture, or what the model's processor made of it.
2. The encoder is run once: what enters its first block has a place for each patch, behind tokens of the encoder's own. Each gets
   relevance as a token does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError, in_one_line
from ..models.reader import image_processor_of
from ..models.refused import why_refused
from ..models.signature import EncoderInput, takes
from ..models.stacks import stacks_of
from ..results.images import ImagePatches
from ..results.tokens import NO_TOKEN, Unit
from ..text.given import shortened
from ..text.tokenization import Encoded
from .encoder_places import encoder_places
from .image_input import is_floating
from .patches import OWN, PatchGrid, noted_patches, own_tokens, patch_names
from .pictures import as_seen, open_picture, png_of
from .pixel_maps import unpacked_pictures

MADE = 'explainer(processor(picture, "...", return_tensors="pt"))'


def read_image_source(model: PreTrainedModel, reader: Any, given: Any) -> Encoded:
    """An image, as the places of its patches in the encoder.

    Args:
        model: An encoder-decoder model that reads an image, and no text.
        reader: Its processor or image processor; needed for pictures.
        given: A picture of Pillow, a path, or an array of bytes; real numbers are pixel values already, as the processor makes
            them; or a dictionary, what it made.

    Raises:
        InputError: It is something else, a processor is missing, or the encoder cannot read it.
        UnsupportedModelError: The model cannot be explained correctly.
    """
    if reason := why_refused(model.config.model_type, language_model=True):
        raise UnsupportedModelError(f"{type(model).__name__} is not supported: {reason}.")
    processor = image_processor_of(reader)
    whole = reader is not processor and callable(reader) and hasattr(reader, "image_processor")
    inputs = _checked(model, _inputs(model, reader if whole else processor, given))
    encoder: Any = stacks_of(model)[0].root
    with noted_patches(encoder) as seen:
        shape = encoder_places(model, inputs, "image")
    grid = PatchGrid(*shape) if len(shape) == 2 else seen.grid(encoder)
    picture: Any = as_seen(inputs["pixel_values"][0], processor) if "pixel_values" in inputs else None
    if picture is None:
        [unpacked] = unpacked_pictures(model, inputs)
        return _numbered(inputs, unpacked, processor)
    count = int(np.prod(shape))
    if grid is None or grid.tokens != count or grid.order or grid.before > OWN:  # each is a mixture
        return _encoded([f"[image state {n + 1}]" for n in range(count)], inputs, ())
    high, wide = grid.covered(picture.height, picture.width)
    png = png_of(picture.crop((0, 0, wide, high)))
    images = (ImagePatches(grid.before, grid.rows, grid.columns, *png),)
    return _encoded([*own_tokens(encoder, grid.before), *patch_names(grid.rows, grid.columns)], inputs, images)


def _inputs(model: PreTrainedModel, processor: Any, given: Any) -> dict[str, Tensor]:
    """What the encoder is given for an image."""
    name, kind = EncoderInput.of(model).features, type(model).__name__
    if isinstance(given, Mapping):
        if name not in given:
            raise InputError(f"{kind} reads an image, {name}, and was given a dictionary with {', '.join(given)}.")
        if unread := sorted(key for key in given if key not in (name, "attention_mask") and takes(model, key)):
            hint = " What the decoder has read is target_prefix=." if "decoder_input_ids" in unread else ""
            raise InputError(f"{', '.join(unread)} beside {name} may change the prediction, and is not read.{hint}")
        return {key: torch.as_tensor(given[key]) for key in (name, "attention_mask") if given.get(key) is not None}
    if isinstance(given, Tensor | np.ndarray) and is_floating(given):
        return {name: torch.as_tensor(given)}
    picture = open_picture(given, "the image")
    if processor is None:
        raise InputError(
            f"{kind} reads an image through its processor, which is missing.",
            python="Type: lrpx.Explainer(model, transformers.AutoProcessor.from_pretrained(name)). Or give what the processor "
            "makes of it.",
            command="Load a model that has the files of its processor beside it.",
        )
    try:
        made = processor(images=picture, return_tensors="pt")
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, ImportError) as error:
        raise InputError(
            f"the {type(processor).__name__} cannot read this image: {in_one_line(error, 300)}",
            python=f"If it needs more than the image, give what it makes: {MADE}.",
        ) from error
    return {key: made[key] for key in (name, "attention_mask") if key in made}


def _checked(model: PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """One image, without the padding of its patches."""
    name = EncoderInput.of(model).features
    values = inputs[name]
    dimensions = 4 if name == "pixel_values" else 3
    values = values[None] if values.ndim == dimensions - 1 else values
    expected = "[3, height, width]" if dimensions == 4 else "[patches, 2 + 3 * side * side]"
    if values.ndim != dimensions or len(values) != 1:
        raise InputError(f"{name} has the shape {list(values.shape)}: expected one image, {expected}.")
    if not values.is_floating_point() or not values.isfinite().all():
        raise InputError(f"{name} holds {values.dtype}, or NaN or infinity: expected finite real numbers.")
    if dimensions == 4:
        return {name: values}
    real = values[0, :, 0] > 0  # rows count from 1
    if not real.any():
        raise InputError(
            f"{name} has no patch: the first number of each is its row, from 1, and all are 0. {shortened(values)}"
        )
    return {name: values[:, real], "attention_mask": torch.ones(1, int(real.sum()), dtype=torch.int64)}


def _numbered(inputs: dict[str, Tensor], unpacked: Any, processor: Any) -> Encoded:
    """Patches that say which row and column they are (Pix2Struct)."""
    rows, columns = (inputs["flattened_patches"][0, :, n].long().tolist() for n in (0, 1))
    of_place = {place: n for n, place in enumerate(zip(rows, columns, strict=True))}
    grid = [(row, column) for row in range(1, unpacked.rows + 1) for column in range(1, unpacked.columns + 1)]
    images: tuple[ImagePatches, ...] = ()
    if set(grid) == set(of_place) and len(of_place) == len(rows):
        order = tuple(of_place[place] for place in grid)
        kept = () if order == tuple(range(len(order))) else order
        png = png_of(as_seen(torch.from_numpy(unpacked.pixels), processor))
        images = (ImagePatches(order[0], unpacked.rows, unpacked.columns, *png, kept),)
    return _encoded([f"[{row}, {column}]" for row, column in zip(rows, columns, strict=True)], inputs, images)


def _encoded(names: list[str], inputs: dict[str, Tensor], images: tuple[ImagePatches, ...]) -> Encoded:
    units = [Unit(n, n + 1, name) for n, name in enumerate(names)]
    count = len(names)
    return Encoded(None, (NO_TOKEN,) * count, names, units, [None] * count, image_inputs=dict(inputs), images=images)
