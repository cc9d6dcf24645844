"""Sources of encoder-decoder models that are no text: sound (``sound.py``) and images (``image_source.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedModel

from ..errors import InputError
from ..models.signature import EncoderInput
from ..text.tokenization import Encoded
from .image_source import read_image_source
from .sound import read_sound


def split_sources(source: EncoderInput, given: Any) -> tuple[list[Any], bool]:
    """Single sounds or images, and whether several were given: a list or tuple of tensors, arrays, dictionaries or pictures."""
    several = isinstance(given, list | tuple) and len(given) > 0
    if several and (source.is_image or isinstance(given[0], Mapping) or hasattr(given[0], "shape")):
        return list(given), True
    return [given], False


def check_no_images(model: PreTrainedModel, images: Any) -> None:
    """Refuse ``images=`` for a model whose source is no text.

    Raises:
        InputError: They are given.
    """
    if images is not None:
        raise InputError(
            f"images= are those of a text, and {type(model).__name__} reads no text.",
            python="The image is given in place of a text: explainer(picture)."
            if EncoderInput.of(model).is_image
            else "",
        )


def encode_source(model: PreTrainedModel, reader: Any, given: Any) -> Encoded:
    """A sound or an image as places of the encoder; ``reader`` is the model's processor.

    Raises:
        InputError: It cannot be used.
        UnsupportedModelError: The model cannot be explained correctly.
    """
    if EncoderInput.of(model).is_image:
        return read_image_source(model, reader, given)
    return read_sound(model, given)
