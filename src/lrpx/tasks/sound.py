"""Sound as the source of an encoder-decoder model (Whisper, Speech2Text, Moonshine): features as given, and the encoder's frames.

A frame is a place of the hidden states in the encoder, and gets relevance as a token does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError
from ..models.refused import why_refused
from ..models.signature import EncoderInput
from ..results.tokens import Unit
from ..text.given import shortened
from ..text.tokenization import Encoded
from .encoder_places import encoder_places

FRAME = -1  # the id of a frame, which is no token
SHOWN = 60  # as so many units, at most, frames are shown


def read_sound(model: PreTrainedModel, given: Any) -> Encoded:
    """A sound, as its encoder frames.

    Args:
        model: An encoder-decoder model that reads sound.
        given: What its feature extractor makes of one sound: a dictionary, or the features alone, with or without a batch
            dimension of 1.

    Raises:
        InputError: It is something else, or the encoder cannot read it.
        UnsupportedModelError: The model cannot be explained correctly.
    """
    if reason := why_refused(model.config.model_type, language_model=True):
        raise UnsupportedModelError(f"{type(model).__name__} is not supported: {reason}.")
    name, kind = EncoderInput.of(model).features, type(model).__name__
    hint = f'Give what its processor makes of one sound: processor(audio, sampling_rate=..., return_tensors="pt")["{name}"].'
    values = dict(given) if isinstance(given, Mapping) else {name: given}
    if isinstance(given, str) or name not in values or values.keys() - {name, "attention_mask"}:
        what = f"a dictionary with {', '.join(values)}" if isinstance(given, Mapping) else shortened(given)
        raise InputError(f"{kind} reads sound, and was given {what}. {hint}")
    try:
        inputs = {key: torch.as_tensor(value) for key, value in values.items() if value is not None}
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{kind} reads sound, and was given {shortened(given)}. {hint}") from None
    dimensions = 3 if name == "input_features" else 2
    for key, tensor in inputs.items():
        own = dimensions if key == name else 2
        inputs[key] = tensor = tensor[None] if tensor.ndim == own - 1 else tensor
        if tensor.ndim != own or tensor.shape[0] != 1:
            raise InputError(
                f"{key} has the shape {list(tensor.shape)}: expected {own} dimensions, the first of them 1. {hint}"
            )
    if not inputs[name].is_floating_point() or not inputs[name].isfinite().all():
        raise InputError(f"{name} holds {inputs[name].dtype}, or NaN or infinity: expected finite real numbers. {hint}")
    [count] = encoder_places(model, inputs, "sound")
    step = -(-count // SHOWN)
    units = [Unit(n, min(n + step, count), f"[{n}:{min(n + step, count)}]") for n in range(0, count, step)]
    tokens = [f"frame {n}" for n in range(count)]
    return Encoded(None, (FRAME,) * count, tokens, units, [None] * count, image_inputs=inputs)
