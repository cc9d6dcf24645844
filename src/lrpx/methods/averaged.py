"""Gradients averaged over changed inputs: integrated gradients and SmoothGrad.

Source: Sundararajan et al. 2017 (integrated gradients), Smilkov et al. 2017 (SmoothGrad).

Both change word embeddings, so relevance is that of the embedding, and every row of a batch is one point at which the gradient
is taken. Which token is explained is decided once, at the text as it is. Of images, pixels are changed: ``pixels.py``; texts with
images have a file of their own, ``images_in_text.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError
from ..passes.attribution import Pass, run, scored
from ..passes.dispatch import PassRunner
from ..passes.edits import Edit, edited, part_of, values
from ..text.batching import Attribution, Batch
from . import images_in_text, pixels
from .baselines import Baseline, baseline_of, positive, seed_of
from .gradient import norm_of
from .points import as_given, over_points, with_baseline

PLACE = ("embedding",)
EditOf = Callable[[Batch, np.ndarray, np.ndarray], Edit]  # a part's batch, its items, its points -> what is changed


def integrated_gradients(
    model: PreTrainedModel,
    batch: Batch,
    *,
    steps: int = 32,
    baseline: Baseline | pixels.Baseline = "mean",
    at: Sequence[str] = PLACE,
    runner: PassRunner | None = None,
) -> list[Attribution]:
    """Per token, ``(x - b) . integral over a from 0 to 1 of the gradient at b + a (x - b)``, with x its word embedding.

    The integral is a Gauss-Legendre sum of ``steps`` gradients, exact for polynomials of a below degree ``2 steps``. With the
    value at the baseline, ``components["baseline"]``, the relevances add up to the value; ``residual`` is the completeness gap.
    Enough steps make it small, but more steps not always smaller.

    Args:
        model: In eval mode.
        batch: From ``batching.pad``.
        steps: How many gradients.
        baseline: What each word embedding b is where nothing is said; see ``Baseline``, and ``pixels.Baseline`` for images.
        at: ``("embedding",)``; of a text with images ``"input"`` or ``"pixels"``.
        runner: Of the model.

    Raises:
        InputError: Steps or a baseline that are none, or an input that is no text.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    steps = positive("steps", steps)
    if batch.of_images:
        return pixels.integrated_gradients(model, batch, steps=steps, baseline=baseline, runner=runner)
    if batch.images is not None:
        return images_in_text.integrated_gradients(model, batch, steps=steps, baseline=baseline, at=at, runner=runner)
    plain, batch, runner = _first(model, batch, at, runner)
    x = plain.hidden["embedding"].state.double()
    b = baseline_of(model, baseline).to(x.device, x.dtype)
    nodes, weights = np.polynomial.legendre.leggauss(steps)
    points = (nodes + 1) / 2

    def towards(part: Batch, items: np.ndarray, numbers: np.ndarray) -> Edit:
        share = torch.tensor([points[n] for n in numbers])[:, None, None]

        def edit(_: str, embeddings: Tensor) -> Tensor:
            start = b.to(embeddings.device, embeddings.dtype)
            return start + share.to(embeddings.device, embeddings.dtype) * (embeddings - start)

        return edit

    total = _over_points(model, batch, runner, towards, weights / 2)
    relevance = ((x - b) * total).sum(-1).cpu().numpy()
    # The value alone: a gradient may be infinite there.
    at_baseline = values(model, batch, lambda _, e: b.to(e.device, e.dtype).expand_as(e))
    return with_baseline(scored(plain, _of_items(relevance, batch)), at_baseline)


def smoothgrad(
    model: PreTrainedModel,
    batch: Batch,
    *,
    samples: int = 32,
    noise: float = 0.15,
    norm: str = "l1",
    seed: int = 0,
    at: Sequence[str] = PLACE,
    runner: PassRunner | None = None,
) -> list[Attribution]:
    """Per token, a norm of the mean gradient over ``samples`` copies of the text with Gaussian noise on its word embeddings.

    The noise depends on the text and the seed, not on what else is in the batch.

    Args:
        model: In eval mode.
        batch: From ``batching.pad``.
        samples: How many gradients.
        noise: Its standard deviation, as a share of the largest minus the smallest number in the text's word embeddings.
        norm: ``"l1"``, or ``"l2"`` for the squared L2 norm, as for ``gradient``.
        seed: Of the noise.
        at: ``("embedding",)``; of a text with images ``"input"`` or ``"pixels"``.
        runner: Of the model.

    Raises:
        InputError: Options that are none, or an input that is no text.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    samples, combine = positive("samples", samples), norm_of(norm)
    if not isinstance(noise, int | float) or isinstance(noise, bool) or not 0 < noise < float("inf"):
        raise InputError(f"noise={noise!r}: give a positive number, such as 0.15.")
    own: dict[str, Any] = {"samples": samples, "noise": noise, "combine": combine, "seed": seed}
    if batch.of_images:
        return pixels.smoothgrad(model, batch, **own, runner=runner)
    if batch.images is not None:
        return images_in_text.smoothgrad(model, batch, **own, at=at, runner=runner)
    plain, batch, runner = _first(model, batch, at, runner)
    x = plain.hidden["embedding"].state
    places, width = batch.places, x.shape[1]
    rows = [x[i, places[i]].double() for i in range(len(places))]
    deviations = [noise * float(row.max() - row.min()) for row in rows]
    seeds = [seed_of(batch, i, seed) for i in range(len(places))]

    def around(part: Batch, items: np.ndarray, numbers: np.ndarray) -> Edit:
        added = torch.zeros(len(items), width, x.shape[2], dtype=torch.float64)
        for row, (i, n) in enumerate(zip(items, numbers, strict=True)):
            drawn = np.random.default_rng([seeds[i], n]).standard_normal((len(rows[i]), x.shape[2]))
            added[row, places[i]] = torch.from_numpy(drawn) * deviations[i]

        def edit(name: str, embeddings: Tensor) -> Tensor:
            return embeddings + part_of(part, name, added).to(embeddings.device, embeddings.dtype)

        return edit

    total = _over_points(model, batch, runner, around, np.full(samples, 1 / samples))
    relevance = combine(x.double(), total).sum(-1).cpu().numpy()
    return scored(plain, _of_items(relevance, batch))


def _first(
    model: PreTrainedModel, batch: Batch, at: Sequence[str], runner: PassRunner | None
) -> tuple[Pass, Batch, PassRunner]:
    """``as_given``, of texts."""
    if tuple(at) != PLACE:
        raise InputError(
            f'at={list(at)}: this method changes word embeddings, and its relevance is theirs: at="embedding".'
        )
    with edited(model, batch, lambda _, embeddings: embeddings):  # refuses what is no text
        pass
    return as_given(model, batch, PLACE, runner)


def _over_points(
    model: PreTrainedModel, batch: Batch, runner: PassRunner, edit_of: EditOf, shares: np.ndarray
) -> Tensor:
    """``over_points`` with edits of the word embeddings, ``[B, T, width]``."""

    def gradient_at(some: Batch, items: np.ndarray, numbers: np.ndarray) -> Tensor:
        with edited(model, some, edit_of(some, items, numbers)):
            return run(model, some, {}, PLACE, runner=runner).hidden["embedding"].gradient

    return over_points(batch, shares, gradient_at)


def _of_items(relevance: np.ndarray, batch: Batch) -> list[np.ndarray]:
    """Of ``[B, T]``, the real tokens of each item."""
    return [relevance[i, place] for i, place in enumerate(batch.places)]
