"""Gradient baselines: a norm of the plain gradient, or Gradient x Input.

Source: Simonyan et al. 2014 and Li et al. 2016 (Gradient), Denil et al. 2015 and Shrikumar et al. 2016 (Gradient x Input);
as compared in Arras et al. 2025, section Gradient-based.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, nearest
from ..passes.attribution import attributions, run
from ..passes.dispatch import PassRunner
from ..text.batching import Attribution, Batch
from . import lrp

NORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "l1": lambda state, gradient: gradient.abs(),
    "l2": lambda state, gradient: gradient**2,  # squared, so that parts add up
}


def explain(
    model: PreTrainedModel,
    batch: Batch,
    *,
    norm: str = "l1",
    at: Sequence[str] = ("input",),
    runner: PassRunner | None = None,
) -> Sequence[Attribution]:
    """Per token, the sum over the width of ``|g|`` (``"l1"``) or ``g ** 2`` (``"l2"``), with ``g`` the plain gradient.

    ``at``, ``layers`` and errors are those of ``lrp.explain``. A norm does not decompose the value: ``residual`` is ``None``.

    Raises:
        InputError: An unknown norm.
    """
    return attributions(run(model, batch, {}, at, runner=runner), batch, norm_of(norm), decomposes=False)


def norm_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """The norm called ``name``, before the sum over the width.

    Raises:
        InputError: There is none.
    """
    if name not in NORMS:
        raise InputError(f"unknown norm {name!r}. {nearest(name, NORMS)}")
    return NORMS[name]


def times_input(
    model: PreTrainedModel,
    batch: Batch,
    *,
    at: Sequence[str] = ("input",),
    heads: bool | None = None,
    runner: PassRunner | None = None,
) -> Sequence[Attribution]:
    """Per token, the sum over the width of ``x * g``, with ``g`` the plain gradient: ``lrp.explain`` without rules."""
    return lrp.explain(model, batch, rules={}, at=at, heads=heads, runner=runner)
