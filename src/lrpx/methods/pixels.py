"""Integrated gradients, SmoothGrad and occlusion of images: pixels are changed, as word embeddings are in a text.

Source: Sundararajan et al. 2017 (integrated gradients), Smilkov et al. 2017 (SmoothGrad), Zeiler & Fergus 2014 (occlusion).

A changed image is a row of a batch, with the same target, which is decided once, at the image as it is. A text beside the image
stays as it is: it has no relevance here.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from ..passes.attribution import Pass, run, scored
from ..passes.dispatch import PassRunner
from ..passes.edits import at_once, decided, selected_items, values
from ..passes.forward_backward import per_token
from ..text.batching import Attribution, Batch
from ..text.given import shortened
from .picture_windows import squares
from .points import as_given, over_points, with_baseline

PLACE = "pixels"
SOFT = 20  # a blurred image is smoothed by a Gaussian whose deviation is this part of its shorter side

Baseline = Literal["zero", "mean", "blur"] | Tensor | np.ndarray
"""``"zero"``: pixel values of zero. ``"mean"``: the mean colour of the image. ``"blur"``: the image, smoothed. Pixel values
``[channels, height, width]``: that image, such as a black one; ``[channels, 1, 1]``: one colour."""
Change = Callable[[np.ndarray, np.ndarray], Tensor]  # items and points of a part -> pixel values, float64


def integrated_gradients(
    model: PreTrainedModel, batch: Batch, *, steps: int, baseline: Any, runner: PassRunner | None = None
) -> list[Attribution]:
    """Per pixel value, ``(x - b) . integral over a from 0 to 1 of the gradient at b + a (x - b)``; see ``averaged.py``.

    Args:
        model: In eval mode.
        batch: Of images.
        steps: How many gradients, 1 or more.
        baseline: See ``Baseline``.
        runner: Of the model.

    Raises:
        InputError: A baseline that is none.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    b = baseline_of(batch, baseline)
    plain, batch, runner = as_given(model, batch, (PLACE,), runner)
    x = plain.hidden[PLACE].state.double()
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    points = torch.from_numpy((nodes + 1) / 2).to(x.device)

    def towards(items: np.ndarray, numbers: np.ndarray) -> Tensor:
        share = points[numbers].view(-1, *[1] * (x.ndim - 1))
        return b[items] + share * (x[items] - b[items])

    parts = (x - b) * _over_points(model, batch, runner, towards, weights / 2)
    return with_baseline(_of_pixels(plain, batch, parts), values(model, _changed(batch, b)))


def smoothgrad(
    model: PreTrainedModel,
    batch: Batch,
    *,
    samples: int,
    noise: float,
    combine: Callable[[Tensor, Tensor], Tensor],
    seed: int,
    runner: PassRunner | None = None,
) -> list[Attribution]:
    """Per pixel value, a norm of the mean gradient over copies of the image with Gaussian noise.

    The noise depends on the image and the seed, not on what else is in the batch.

    Args:
        model: In eval mode.
        batch: Of images.
        samples: How many gradients, 1 or more.
        noise: Its standard deviation, as a share of the largest minus the smallest pixel value of the image.
        combine: The norm.
        seed: Of the noise.
        runner: Of the model.

    Raises:
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    plain, batch, runner = as_given(model, batch, (PLACE,), runner)
    x = plain.hidden[PLACE].state.double()
    deviations = [noise * float(one.max() - one.min()) for one in x]
    seeds = [zlib.crc32(one.cpu().numpy().tobytes() + str(seed).encode()) for one in x]

    def around(items: np.ndarray, numbers: np.ndarray) -> Tensor:
        drawn = [
            np.random.default_rng([seeds[i], n]).standard_normal(tuple(x.shape[1:])) * deviations[i]
            for i, n in zip(items, numbers, strict=True)
        ]
        return x[items] + torch.from_numpy(np.stack(drawn)).to(x.device)

    total = _over_points(model, batch, runner, around, np.full(samples, 1 / samples))
    return _of_pixels(plain, batch, combine(x, total))


def occlusion(model: PreTrainedModel, batch: Batch, *, window: int, baseline: Any) -> list[Attribution]:
    """Per patch, what the value loses when its pixels are the baseline's. Patches are those of ``batch.parts``.

    With a ``window`` of w, w x w neighbouring patches are hidden together, a patch's score is the mean over the windows that it
    is in, and each window's loss is shared equally by its patches.

    Raises:
        InputError: A baseline that is none.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    assert batch.parts is not None
    b = baseline_of(batch, baseline)
    plain = run(model, batch, {}, (PLACE,), hidden=False)
    batch = decided(batch, plain.targets)
    assert batch.parts is not None
    rows, columns, of = batch.parts.rows, batch.parts.columns, batch.parts.of.to(b.device)
    windows = [*squares(rows, columns, window)]
    hidden = np.zeros((len(windows), rows * columns), bool)  # of each window, which parts it hides
    for mask_of_one, chosen in zip(hidden, windows, strict=True):
        mask_of_one[chosen] = True
    masks, x = torch.from_numpy(hidden).to(b.device), batch.inputs["pixel_values"].double()
    count = len(batch.spans)
    items, numbers = np.repeat(np.arange(count), len(hidden)), np.tile(np.arange(len(hidden)), count)
    losses = np.zeros((count, len(hidden)))
    for part in at_once(batch, len(items)):
        mask = masks[numbers[part]][:, of.clamp(min=0)] & (of >= 0)  # [R, height, width], or patches
        mask = mask.unsqueeze(1 if x.ndim == 4 else -1)
        changed = torch.where(mask, b[items[part]], x[items[part]])
        found = values(model, _changed(selected_items(batch, items[part].tolist()), changed))
        losses[items[part], numbers[part]] = plain.values[items[part]] - found
    inside = hidden.astype(float)
    return scored(plain, list(losses @ inside / len(windows[0]) / inside.sum(0)))


def baseline_of(batch: Batch, baseline: Any) -> Tensor:
    """The baseline of each image, of the shape of its pixel values, float64.

    Raises:
        InputError: It is none.
    """
    x = batch.inputs["pixel_values"].double()
    if x.ndim == 4:
        return of_pictures(x, baseline)
    if isinstance(baseline, str) and baseline == "zero":
        return torch.zeros_like(x)
    if isinstance(baseline, str) and baseline == "mean":  # of patches row by row, channels last
        real = x if batch.parts is None else x[:, : batch.parts.rows * batch.parts.columns]
        colour = real.unflatten(2, (-1, 3)).mean((1, 2))
        return colour.repeat(1, x.shape[2] // 3)[:, None].expand_as(x)
    return _given(x, baseline, [tuple(x.shape[1:])], '"zero" or "mean"')


def of_pictures(x: Tensor, baseline: Any) -> Tensor:
    """The baseline of each picture ``[B, channels, height, width]``, float64.

    Raises:
        InputError: It is none.
    """
    if isinstance(baseline, str) and baseline == "zero":
        return torch.zeros_like(x)
    if isinstance(baseline, str) and baseline == "mean":
        return x.mean((2, 3), keepdim=True).expand_as(x)
    if isinstance(baseline, str) and baseline == "blur":
        high, wide = (_smoothing(n, min(x.shape[2:]) / SOFT).to(x) for n in x.shape[2:])
        return high @ x @ wide.T
    return _given(x, baseline, [tuple(x.shape[1:]), (x.shape[1], 1, 1)], '"zero", "mean", "blur"')


def _given(x: Tensor, baseline: Any, sizes: list[tuple[int, ...]], kinds: str) -> Tensor:
    """Pixel values that a user gave, of one of these shapes, for each of ``x``."""
    if isinstance(baseline, Tensor | np.ndarray):
        given = torch.as_tensor(baseline).to(x)
        if tuple(given.shape) in sizes and given.isfinite().all():
            return given.expand_as(x)
    shown = f"of shape {list(baseline.shape)}" if isinstance(baseline, Tensor | np.ndarray) else shortened(baseline)
    raise InputError(
        f"baseline={shown}: of an image, give {kinds} or finite pixel values of shape {list(x.shape[1:])}."
    )


def _smoothing(size: int, deviation: float) -> Tensor:
    """The matrix ``[size, size]`` of a Gaussian up to three deviations; outside, the pixel at the edge goes on."""
    reach = max(1, round(3 * deviation))
    steps = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = torch.exp(-((steps / deviation) ** 2) / 2)
    matrix = torch.zeros(size, size, dtype=torch.float64)
    for step, weight in zip(steps.long().tolist(), (weights / weights.sum()).tolist(), strict=True):
        rows = torch.arange(size)
        matrix[rows, (rows + step).clamp(0, size - 1)] += weight
    return matrix


def _changed(batch: Batch, pixels: Tensor) -> Batch:
    given = batch.inputs["pixel_values"]
    return replace(batch, inputs={**batch.inputs, "pixel_values": pixels.to(given.device, given.dtype)})


def _over_points(
    model: PreTrainedModel, batch: Batch, runner: PassRunner, change: Change, shares: np.ndarray
) -> Tensor:
    """``over_points`` with other pixel values, of their shape."""

    def gradient_at(some: Batch, items: np.ndarray, numbers: np.ndarray) -> Tensor:
        changed = _changed(some, change(items, numbers))
        return run(model, changed, {}, (PLACE,), runner=runner).hidden[PLACE].gradient

    return over_points(batch, shares, gradient_at)


def _of_pixels(plain: Pass, batch: Batch, parts: Tensor) -> list[Attribution]:
    """One attribution per image, of numbers of its pixel values: their sums over the channels, and as they are."""
    sums = per_token(PLACE, parts).sum(-1).cpu().numpy()
    found = scored(plain, [sums[i, span] for i, span in enumerate(batch.spans)])
    return [
        replace(one, layers={PLACE: parts[i, span].cpu().numpy()})
        for i, (one, span) in enumerate(zip(found, batch.spans, strict=True))
    ]
