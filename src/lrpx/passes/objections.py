"""What speaks against a result: noted as tensors within the pass, and read and said after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import NonFiniteError, UnsupportedModelError
from ..text.batching import Batch
from .scores import read_once
from .spec import PassResult, PassSummary
from .validation import where_not_finite


def objections_of(
    batch: Batch, logits: Tensor, gradients: Mapping[str, Sequence[Tensor | None]]
) -> dict[tuple[str, str], Tensor]:
    """What would speak against the result, as (kind, what) -> whether it does. The gradients are those of each stack."""
    found = {("logits", ""): not_finite(logits)}

    def note(kind: str, what: str, flag: Tensor) -> None:
        known = found.get((kind, what))
        found[kind, what] = flag if known is None else known | flag.to(known.device)

    for name, pieces in gradients.items():
        for gradient, (_, length) in zip(pieces, batch.shapes, strict=True):
            if gradient is not None:
                note("gradient", name, not_finite(gradient))
                if length and gradient.shape[1] > length:
                    note("around", name, gradient[:, length:].any())
    first = next(iter(gradients.values()))
    for piece, (_, length), names in zip(first, batch.shapes, batch.masks, strict=True):
        for mask in map(batch.inputs.get, names):
            if piece is not None and mask is not None and mask.shape == (shown := piece[:, : length or None]).shape[:2]:
                hidden = (mask == 0).to(shown.device).view(*mask.shape, *[1] * (shown.ndim - 2))
                note("padding", "", (hidden & (shown != 0)).any())
    return found


def not_finite(numbers: Tensor) -> Tensor:
    """``~numbers.isfinite().all()`` by two operations instead of six: infinity less infinity is NaN, and NaN counts as true."""
    return (numbers - numbers).any()


def check(model: PreTrainedModel, batch: Batch, answer: PassResult, reading: PassSummary) -> None:
    """Refuse a result that something speaks against.

    Raises:
        UnsupportedModelError: Padding or tokens of the model's own take part, or an activation is not one.
        NonFiniteError: A logit or a gradient is NaN or infinite; the error names the module where it began.
    """
    if not reading.raised:
        return
    name = type(model).__name__
    kind, what = reading.raised[0]
    if kind == "logits":
        raise NonFiniteError(where_not_finite(model, lambda: read_once(model, batch)))
    if kind == "gradient":
        dtype = answer.gradients[what].dtype
        narrow = dtype in (torch.float16, torch.bfloat16)
        raise NonFiniteError(
            f"the gradient at {what} is not finite in {dtype}.",
            python='Load the model in a wider dtype: dtype="float32".'
            if narrow
            else "Try another attn_implementation.",
            app=f"Start the app with {'--dtype float32' if narrow else '--attn-implementation eager, or sdpa'}.",
        )
    if kind == "around":
        raise UnsupportedModelError(puts_tokens_around(name))
    raise UnsupportedModelError(
        f"{name} lets padding take part in its prediction, so a padded batch gives wrong maps. "
        "Explain texts of different lengths one by one."
    )


def puts_tokens_around(name: str) -> str:
    """Why a model is refused whose hidden states have more places than the text has tokens, with gradient at the others."""
    return f"{name} puts tokens of its own around the text, so hidden states and tokens do not match."
