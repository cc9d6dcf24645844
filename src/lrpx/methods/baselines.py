"""What a word embedding is where nothing is said: the start of integrated gradients, and what occlusion puts in. And seeds."""

from __future__ import annotations

import zlib
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from ..models.placement import entry_device
from ..models.signature import padding_id
from ..models.stacks import stacks_of
from ..text.batching import Batch
from ..text.given import shortened

Baseline = Literal["zero", "mean", "pad"] | int
"""``"zero"``: the vector of zeros. ``"mean"``: the mean of all word embeddings. ``"pad"``: the embedding of the padding token.
A number: the embedding of the token with this id, such as a mask token's."""


def baseline_of(model: PreTrainedModel, baseline: Any) -> Tensor:
    """The embedding ``[width]``, as the model's embedding gives it.

    Raises:
        InputError: No baseline, or a token that the model does not have.
    """
    if not isinstance(baseline, str | int):
        raise InputError(f'baseline={shortened(baseline)}: of a text, give "zero", "mean", "pad" or a token id.')
    embedding = stacks_of(model)[-1].embedding
    weight = getattr(embedding, "weight", None)
    if embedding is None or not isinstance(weight, Tensor):
        raise InputError(
            f"{type(model).__name__} has no table of word embeddings, and baseline={baseline!r} is one of them."
        )
    ids = torch.arange(weight.shape[0]).to(entry_device(model))  # an offloaded table is called, not read
    with torch.no_grad():
        if baseline == "zero":
            return torch.zeros_like(embedding(ids[:1])[0])
        if baseline == "mean":
            return embedding(ids).double().mean(0).to(weight.dtype)
        token = padding_id(model) if baseline == "pad" else baseline
        if baseline == "pad" and token is None:
            raise InputError(
                f'baseline="pad": {type(model).__name__} names no padding token. Give "zero", "mean" or a token id.'
            )
        if isinstance(token, bool) or not isinstance(token, int):
            raise InputError(f'baseline={baseline!r}: give "zero", "mean", "pad" or a token id.')
        if not 0 <= token < len(ids):
            raise InputError(f"baseline={baseline!r}: {type(model).__name__} has the token ids 0 to {len(ids) - 1}.")
        found: Tensor = embedding(ids[token : token + 1])[0]
        return found


def positive(name: str, number: int) -> int:
    """An option that counts something.

    Raises:
        InputError: It is no positive whole number.
    """
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise InputError(f"{name}={number!r}: give a whole number, 1 or more.")
    return number


def seed_of(batch: Batch, i: int, seed: int) -> int:
    """A seed that depends on the text of an item and on the seed given, not on what else is in the batch."""
    parts = [batch.ids[i, batch.spans[i]]]
    if batch.sources:
        parts.insert(0, batch.inputs["input_ids"][i, batch.sources[i]])
    return zlib.crc32(b"".join(part.cpu().numpy().tobytes() for part in parts) + str(seed).encode())
