"""What a method that changes its input may change of a text with images; see ``methods/images_in_text.py``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from transformers import PreTrainedModel

from ..passes.hidden_states import place_first
from ..passes.image_inputs import pixel_inputs
from ..text.image_parts import ImagesInText, Picture
from ..text.tokenization import Encoded
from .image_places import image_tokens
from .image_row import CROSSING
from .pixel_maps import pictures_in


def images_in(model: PreTrainedModel, encoded: Encoded, at: Sequence[str]) -> ImagesInText:
    """The parts of the images of a text.

    Args:
        model: The one that reads them.
        encoded: The text.
        at: Where relevance is taken: pixels are looked for only if it is there, and left out where their packing is not known.
    """
    crossing = model.config.model_type in CROSSING  # the token that marks an image is a word as any other
    tokens = [] if crossing else image_tokens(model, encoded.token_ids, encoded.extras)
    grids = [(image.rows, image.columns, image.tokens) for image in encoded.images]
    if place_first(at)[0] != "pixels":
        return ImagesInText(tokens, grids)
    pictures = {name: pictures_in(model, encoded.image_inputs, name) for name in pixel_inputs(encoded.image_inputs)}
    return ImagesInText(tokens, grids, {name: found for name, found in pictures.items() if found and _are_apart(found)})


def _are_apart(pictures: Sequence[Picture]) -> bool:
    """Whether no number is in two places."""
    numbers = np.concatenate([picture.numbers.ravel() for picture in pictures])
    return bool((np.bincount(numbers) <= 1).all())
