"""Word embeddings changed on their way into the model, and the values that the model gives then.

Methods that ask what a prediction would be with other inputs (integrated gradients, SmoothGrad, occlusion) change the rows of
word embeddings, which no tokenizer has to know of: between two texts there is no third, between two embeddings there is. A
forward hook does it; hidden states are noted after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import InputError, NonFiniteError, UnsupportedModelError
from ..models.stacks import stacks_of, watching_encoder
from ..propagation.propagate import Propagation
from ..text.batching import Batch, Item, pad
from ..text.grouping import groups_of
from .scores import HeadNotFollowed, asked_scores, exact_dtype, read_once
from .spec import EAGER
from .validation import where_not_finite

Edit = Callable[[str, Tensor], Tensor]  # name of the stack and its embeddings [B, T, width] -> the same, changed
TOKENS_AT_ONCE = 4096  # of all rows that one pass computes
PIXELS_PER_TOKEN = 256  # a patch of 16 x 16


@contextmanager
def edited(model: PreTrainedModel, batch: Batch, edit: Edit) -> Iterator[None]:
    """Inside the block, the model's word embeddings are replaced by ``edit`` of them, where they have ``batch``'s shape.

    Raises:
        InputError: The batch holds images, or the model reads sound: not all of its input are word embeddings.
        UnsupportedModelError: When the block ends: the model gave its embeddings of another shape.
    """
    stacks = stacks_of(model)
    images = batch.of_images or batch.with_images or "pixel_values" in batch.inputs
    if images or any(stack.embedding is None for stack in stacks):
        raise InputError(
            "this method changes word embeddings, so it is for texts alone. Sound, and images that an encoder reads, are "
            "explained by attnlrp, lrp and gradient-x-input."
        )
    thread, shapes = (
        threading.get_ident(),
        dict[str, bool](),
    )  # of each stack that ran, whether its shape was the batch's
    with ExitStack() as hooks:
        encoding = hooks.enter_context(watching_encoder(model))

        def changed(name: str, shape: tuple[int, int], _: nn.Module, __: Any, output: Tensor) -> Tensor | None:
            runs = encoding() if name == "encoder" else not encoding()
            if threading.get_ident() != thread or not runs:
                return None
            shapes[name] = shapes.get(name, False) or output.shape[:2] == shape
            if output.shape[:2] != shape:
                return None
            # The gradient of what was noted before this hook is that at the changed embeddings, not that of the change.
            return output + (edit(name, output.detach()) - output).detach()

        for stack, shape in zip(stacks, batch.shapes, strict=True):
            assert stack.embedding is not None
            hooks.callback(stack.embedding.register_forward_hook(partial(changed, stack.name, shape)).remove)
        yield
    if not all(shapes.values()):
        raise UnsupportedModelError(
            f"{type(model).__name__} pads its texts itself, so this method cannot change their word embeddings. The methods lrp, "
            "attnlrp and gradient-x-input change none."
        )


def selected_items(batch: Batch, indices: Sequence[int]) -> Batch:
    """A batch of these items, each as many times as it is named."""
    index = torch.tensor(indices)

    def chosen(tensor: Tensor) -> Tensor:
        return tensor.index_select(0, index.to(tensor.device))

    return replace(
        batch,
        inputs={name: chosen(tensor) for name, tensor in batch.inputs.items()},
        spans=[batch.spans[i] for i in indices],
        sources=[batch.sources[i] for i in indices] if batch.sources else [],
        positions=chosen(batch.positions),
        targets=chosen(batch.targets),
        contrasts=chosen(batch.contrasts),
        functions=tuple(batch.functions[i] for i in indices) if batch.functions else (),
    )


def width_of(batch: Batch) -> int:
    """How many tokens a padded row has, of all stacks."""
    return sum(length for _, length in batch.shapes)


def tokens_per_image(pixels: Sequence[int]) -> int:
    """How many tokens an image has, for memory and time: its patches ``[B, patches, ...]``, or parts ``[B, C, H, W]``."""
    return pixels[1] if len(pixels) == 3 else -(-pixels[2] * pixels[3] // PIXELS_PER_TOKEN)


def at_once(batch: Batch, rows: int) -> Iterator[slice]:
    """Divide ``rows`` of the batch's length, or images of its size, into parts that fit one pass each."""
    width = tokens_per_image(batch.inputs["pixel_values"].shape) if batch.of_images else width_of(batch)
    step = max(1, TOKENS_AT_ONCE // max(1, width))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def part_of(batch: Batch, name: str, rows: Tensor) -> Tensor:
    """Of ``rows`` ``[B, all tokens, ...]``, the encoder's first, those of one stack."""
    length = batch.shapes[0][1]
    if not batch.sources:
        return rows
    return rows[:, :length] if name == "encoder" else rows[:, length:]


def decided(batch: Batch, targets: Sequence[int]) -> Batch:
    """The batch with the targets that a pass of the unchanged texts found, so that changed texts explain the same."""
    return replace(batch, targets=torch.tensor(targets, device=batch.targets.device), chosen=True, likeliest=0)


def values(model: PreTrainedModel, batch: Batch, edit: Edit | None = None) -> np.ndarray:
    """The explained scalar of each item, ``score[target] - score[contrast]``, by a forward pass. float64 ``[B]``.

    Raises:
        NonFiniteError: A score is NaN or infinite; the error names the module where it began.
    """
    return values_inside(model, batch, nullcontext if edit is None else partial(edited, model, batch, edit))


def values_inside(
    model: PreTrainedModel, batch: Batch, inside: Callable[[], AbstractContextManager[Any]]
) -> np.ndarray:
    """``values`` with the model inside another block, which is entered anew for each attempt.

    Raises:
        NonFiniteError: As ``values``.
    """
    plain = Propagation({})
    with torch.no_grad():
        try:
            with inside():
                picked, *_ = asked_scores(model, batch, batch.readout, EAGER, plain, {})
        except HeadNotFollowed:
            with inside():
                picked, *_ = asked_scores(model, batch, batch.readout, replace(EAGER, whole_head=True), plain, {})
        if not picked.isfinite().all():
            with inside():
                raise NonFiniteError(where_not_finite(model, lambda: read_once(model, batch)))
        exact = picked.to(exact_dtype(picked))
        contrasted = (batch.contrasts >= 0).to(picked.device)
        found: np.ndarray = (exact[:, 0] - torch.where(contrasted, exact[:, 1], 0)).cpu().double().numpy()
    return found


def values_without(
    model: PreTrainedModel, batch: Batch, items: Sequence[int], masks: np.ndarray, baseline: Tensor
) -> np.ndarray:
    """The values of these items ``[R]``, each with the word embeddings of masked tokens replaced. float64 ``[R]``.

    Args:
        model: In eval mode.
        batch: With the items.
        items: Of each of R rows, its item.
        masks: bool ``[R, all tokens]``, the encoder's first.
        baseline: What is put in ``[width]``.

    Raises:
        NonFiniteError: As ``values``.
    """
    found: list[float] = []
    for rows in at_once(batch, len(items)):
        part, hidden = selected_items(batch, items[rows]), torch.from_numpy(masks[rows])

        def edit(name: str, embeddings: Tensor, part: Batch = part, hidden: Tensor = hidden) -> Tensor:
            there = part_of(part, name, hidden).to(embeddings.device)[..., None]
            return torch.where(there, baseline.to(embeddings.device, embeddings.dtype), embeddings)

        found += values(model, part, edit).tolist()
    return np.array(found)


def values_of_texts(model: PreTrainedModel, items: Sequence[Item]) -> np.ndarray:
    """The values of texts of any lengths, each with its target, in padded batches. float64 ``[R]``.

    Raises:
        NonFiniteError: As ``values``.
    """
    found = np.zeros(len(items))
    for group in groups_of(model, items, TOKENS_AT_ONCE):
        found[group] = values(model, pad([items[i] for i in group], model))
    return found
