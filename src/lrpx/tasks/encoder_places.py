"""How many places an encoder makes of what is no text, sound or an image: seen by running it once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError
from ..models.lock import lock_of
from ..models.placement import entry_device
from ..models.stacks import stacks_of


def encoder_places(model: PreTrainedModel, inputs: Mapping[str, Tensor], what: str) -> tuple[int, ...]:
    """The places of the hidden states that enter the encoder's first block: their number, or rows and columns.

    Args:
        model: An encoder-decoder model.
        inputs: What its encoder is given.
        what: What that is, for errors: ``"sound"``.

    Raises:
        InputError: The encoder cannot read it.
        UnsupportedModelError: It shows no hidden states.
    """
    device, encoder = entry_device(model), stacks_of(model)[0]
    seen: list[tuple[int, ...]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        states = (t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point())
        seen.extend(tuple(t.shape[1:-1]) for t in states if t.ndim in (3, 4))

    moved = {k: t.to(device, model.dtype if t.is_floating_point() else None) for k, t in inputs.items()}
    with lock_of(model), torch.no_grad():
        hook = encoder.blocks[0].register_forward_pre_hook(note, with_kwargs=True)
        try:
            encoder.root(**moved)
        except (ValueError, RuntimeError, IndexError) as error:
            raise InputError(f"the encoder of {type(model).__name__} cannot read this {what}: {error}") from error
        finally:
            hook.remove()
    if not seen:
        raise UnsupportedModelError(
            f"the encoder of {type(model).__name__} shows no hidden state [batch, places, width] before its first block."
        )
    return seen[0]
