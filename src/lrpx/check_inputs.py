"""What ``lrpx check`` gives a model: random tokens, pixels and sound, in the form that its configuration says.

1. A text; of an encoder-decoder model one for each side.
2. An image, for a classifier of images; with a text, for a model that scores how well the two fit.
3. An image or a sound as the source of an encoder-decoder model, with tokens that its decoder has read.
4. A text with a picture, through the processor of a model that reads both.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from .errors import InputError, LrpxError
from .models.heads import IMAGE_TEXT_SCORE
from .models.modules import reads_images_alone
from .models.placement import entry_device
from .models.reader import image_processor_of, tokenizer_of
from .models.signature import EncoderInput, ModelSignature, takes, task_of
from .models.stacks import encoder_of, stacks_of
from .passes.embeddings import MeanEmbedding
from .tasks import task_for
from .tasks.image_input import stated_size
from .tasks.image_score import FULL_LENGTH, PairScores, check_towers
from .tasks.image_text import encode_with_images
from .tasks.sources import encode_source
from .tasks.text_classification import LabelScores
from .text.batching import Batch, Item, pad
from .text.items import item_of
from .text.tokenization import encoder

_MEL_BINS = ("num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim")


class CannotCheck(LrpxError):
    """No random input is known that this model reads, which says nothing about its explanations."""


def random_batch(model: PreTrainedModel, reader: Any, n_tokens: int, seed: int) -> Batch:
    """One random input.

    Args:
        model: The one that reads it.
        reader: Its processor, or ``None``; makes the image that is the source of an encoder-decoder model.
        n_tokens: How long a text is.
        seed: Of all that is random.

    Raises:
        CannotCheck: There is none that the model reads.
        UnsupportedModelError: The model cannot be explained correctly.
    """
    generator = torch.Generator().manual_seed(seed)
    if encoder_of(model) is None and task_of(model) == IMAGE_TEXT_SCORE:
        return _image_and_text(model, n_tokens, generator)
    if encoder_of(model) is None and reads_images_alone(model):
        if task_of(model) != "image-classification":
            raise CannotCheck(f"{type(model).__name__} reads images and gives no labels, so there is nothing to check.")
        return _image(model, generator)
    signature = ModelSignature.of(model)
    if signature.source is not None and signature.source.features:
        return _source_and_target(model, reader, signature, n_tokens // 2, generator)
    return _text(model, signature, n_tokens, generator)


def batch_with_picture(model: PreTrainedModel, reader: Any) -> Batch:
    """A question about a random picture, as the processor reads it.

    Raises:
        LrpxError: It cannot be read, or not be explained.
    """
    tokenizer = tokenizer_of(reader)
    encoded = encode_with_images(model, reader, "What is in the picture?", [_picture()], encoder(tokenizer))
    return pad([item_of(ModelSignature.of(model), tokenizer, encoded)], model)


def _text(model: PreTrainedModel, signature: ModelSignature, n_tokens: int, generator: torch.Generator) -> Batch:
    config, size = model.config.get_text_config(), signature.vocabulary
    known = config.vocab_size if signature.source is None else min(size, signature.source.vocabulary or 0)
    ids = _ids(config, known, n_tokens, generator)
    if (task := task_for(model, None)) is None:
        readout = MeanEmbedding() if task_of(model) == "feature-extraction" else None
        source = 0 if signature.source is None else n_tokens // 2
        return pad([Item(tuple(ids), n_tokens - 1, source=source)], model, readout=readout)
    end = getattr(config, "eos_token_id", None)
    if encoder_of(model) is not None and isinstance(end, int):
        ids[-1] = end  # where its label is read
    return pad([task.item(encoder(None)(ids), n_tokens - 1)], model, readout=task.readout([]))


def _ids(config: Any, vocabulary: int, count: int, generator: torch.Generator) -> list[int]:
    """Random tokens, without those that mean something to a model."""
    special = {getattr(config, f"{name}_token_id", None) for name in ("pad", "bos", "eos", "mask")}
    allowed = [i for i in range(vocabulary) if i not in special]
    return [allowed[int(torch.randint(len(allowed), (), generator=generator))] for _ in range(count)]


def _image(model: PreTrainedModel, generator: torch.Generator) -> Batch:
    """One image of random pixels, and the first score."""
    config = getattr(model.config, "vision_config", model.config)
    inputs = {"pixel_values": _pixels(config, generator)}
    if takes(model, "spatial_shapes"):
        side = round(config.num_patches**0.5)
        channels = getattr(config, "num_channels", 3)
        values = torch.randn(1, side**2, channels * config.patch_size**2, generator=generator)
        mask = torch.ones(1, side**2, dtype=torch.int64)
        inputs = {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[side, side]])}
    device = entry_device(model)
    inputs = {name: value.to(device) for name, value in inputs.items()}
    inputs["pixel_values"] = inputs["pixel_values"].to(model.dtype)
    first = torch.zeros(1, dtype=torch.int64, device=device)
    return Batch(inputs, [slice(None)], first, first, first - 1, True, readout=LabelScores(), of_images=True)


def _pixels(config: Any, generator: torch.Generator) -> Tensor:
    """``[1, channels, height, width]``, of the size that the configuration of what reads them states."""
    return torch.randn(1, getattr(config, "num_channels", 3), *(stated_size(config) or (224, 224)), generator=generator)


def _image_and_text(model: PreTrainedModel, n_tokens: int, generator: torch.Generator) -> Batch:
    """One image beside one text, and their score."""
    check_towers(model)
    image, config = _image(model, generator), model.config.text_config
    longest, full = config.max_position_embeddings, model.config.model_type in FULL_LENGTH
    count = longest if full else min(n_tokens, longest // 2)  # some count positions from 2
    ids = _ids(config, config.vocab_size, count, generator)
    if isinstance(end := getattr(config, "eos_token_id", None), int) and 0 <= end < config.vocab_size:
        ids[-1] = end  # where the text's embedding is read
    text = {"input_ids": torch.tensor([ids], device=entry_device(model))}
    if not full:
        text["attention_mask"] = torch.ones_like(text["input_ids"])
    return replace(image, inputs={**image.inputs, **text}, readout=PairScores())


def _source_and_target(
    model: PreTrainedModel, reader: Any, signature: ModelSignature, count: int, generator: torch.Generator
) -> Batch:
    """An image or a sound for the encoder, and tokens for the decoder."""
    source = EncoderInput.of(model)
    given = _image_source(model, reader, source, generator) if source.is_image else _sound(model, source, generator)
    try:
        encoded = encode_source(model, reader, given)
    except InputError as error:
        what = "image" if source.is_image else "sound"
        raise CannotCheck(f"{signature.name} does not read the random {what} that is made for it: {error}") from error
    room = count if signature.context is None else min(count, signature.context)
    ids = _ids(model.config.get_text_config(decoder=True), signature.vocabulary, room, generator)
    row, places = (*encoded.token_ids, *ids), len(encoded.token_ids)
    return pad([Item(row, len(row) - 1, source=places, images=encoded.image_inputs)], model)


def _image_source(model: PreTrainedModel, reader: Any, source: EncoderInput, generator: torch.Generator) -> Any:
    """A picture for the processor, or else what it would make of one."""
    if image_processor_of(reader) is not None:
        return _picture()
    config: Any = stacks_of(model)[0].root.config
    if source.features == "pixel_values":
        return _pixels(config, generator)
    place = torch.arange(16)  # patches that begin with the row and the column that they are, from 1 (Pix2Struct)
    values = torch.randn(16, config.patch_embed_hidden_size, generator=generator)
    return torch.cat([torch.stack([place // 4 + 1, place % 4 + 1], 1).float(), values], 1)[None]


def _sound(model: PreTrainedModel, source: EncoderInput, generator: torch.Generator) -> Tensor:
    """Features of a sound, or its wave."""
    config: Any = stacks_of(model)[0].root.config
    if source.features != "input_features":
        return torch.randn(1, 6400, generator=generator)  # 0.4 seconds
    bins = next((n for name in _MEL_BINS if isinstance(n := getattr(config, name, None), int)), 80)
    if model.config.model_type == "whisper":  # which reads 30 seconds, and has time last
        return torch.randn(1, bins, 2 * config.max_source_positions, generator=generator)
    return torch.randn(1, 64, bins, generator=generator)


def _picture() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
