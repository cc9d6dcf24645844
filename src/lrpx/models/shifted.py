"""What the decoder reads of a text that is classified: the tokens of the encoder, moved by one place behind a start token.

Families differ in the start token (a fixed one, or the last token of the text), so the model is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from .placement import entry_device


class _DecoderInput(Exception):
    """Ends the forward pass where the decoder begins."""

    def __init__(self, ids: Any) -> None:
        super().__init__()
        self.ids = ids


def decoder_reads(model: PreTrainedModel, token_ids: Sequence[int]) -> tuple[int, ...]:
    """The ids that the decoder of an encoder-decoder model reads, if it is given a text for its encoder alone.

    Raises:
        UnsupportedModelError: They are not those of the text, moved by one.
    """
    thread = threading.get_ident()

    def seen(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:  # the model may be in use in another thread too
            raise _DecoderInput(kwargs.get("input_ids", args[0] if args else None))

    hook = model.get_decoder().register_forward_pre_hook(seen, with_kwargs=True)
    try:
        with torch.no_grad():
            model(input_ids=torch.tensor([list(token_ids)], device=entry_device(model)))
    except _DecoderInput as read:
        found = read.ids.tolist()[0] if isinstance(read.ids, torch.Tensor) else []
        if tuple(found[1:]) == tuple(token_ids[:-1]):
            return tuple(found)
    finally:
        hook.remove()
    raise UnsupportedModelError(
        f"{type(model).__name__} gives its decoder other tokens than those of the text, moved by one place, so its relevance "
        "cannot be told by tokens of the text."
    )
