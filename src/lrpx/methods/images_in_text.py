"""Integrated gradients, SmoothGrad and occlusion of a text with images: one map of text tokens and image patches.

Source: Sundararajan et al. 2017 (integrated gradients), Smilkov et al. 2017 (SmoothGrad), Zeiler & Fergus 2014 (occlusion).

Text and images are changed together, at one of the two places where backward passes explain them:

1. ``"input"``: what enters the first block of the language model, where an image is a row of tokens. The baseline is that of a
   text, the same word embedding for every token, of text or image, with the positions that the model adds. What images give to
   later blocks beside it (DeepStack, cross-attention) is no word embedding: its baseline is zero.
2. ``"pixels"``: the pixel values, as of an image alone, and what enters the first block at the tokens of the text.

A changed input is a point: a dictionary from the names of a ``Pass``'s hidden states to tensors of their shapes. One is computed
after the other, since inputs of images have no common dimension for a batch.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError
from ..passes.attribution import Pass, run, scored
from ..passes.dispatch import PassRunner
from ..passes.hidden_states import place_first
from ..passes.image_inputs import APART, STATES
from ..passes.placed import Entry
from ..text.batching import Attribution, Batch
from ..text.image_parts import ImagesInText, Picture
from . import baselines
from .picture_windows import Window, windows_of
from .pixels import of_pictures
from .points import as_given, with_baseline

INPUT, PIXELS = "input", "pixels"
Point = dict[str, Tensor]


def integrated_gradients(
    model: PreTrainedModel, batch: Batch, *, steps: int, baseline: Any, at: Sequence[str], runner: PassRunner | None
) -> list[Attribution]:
    """Per number of the input, ``(x - b) . integral over a from 0 to 1 of the gradient at b + a (x - b)``; see ``averaged.py``.

    Args:
        model: In eval mode.
        batch: One text with images.
        steps: How many gradients, 1 or more.
        baseline: That of a text, or of an image; see ``_TextWithImages.baseline``.
        at: ``"input"`` or ``"pixels"``.
        runner: Of the model.

    Raises:
        InputError: A baseline that is none.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    text = _TextWithImages.read(model, batch, at, runner)
    x, b = text.x, text.baseline(baseline)
    nodes, weights = np.polynomial.legendre.leggauss(steps)

    def points() -> Iterator[Point]:
        for node in nodes:
            yield {name: b[name] + float((node + 1) / 2) * (x[name] - b[name]) for name in x}

    total = text.gradients(points(), weights / 2)
    found = text.attributions({name: (x[name] - b[name]) * total[name] for name in x})
    # Beside the tokens, what belongs to images is in ``layers``: the row of an explanation takes it out of the residual.
    return with_baseline(found, [text.value_at(b)])


def smoothgrad(
    model: PreTrainedModel,
    batch: Batch,
    *,
    samples: int,
    noise: float,
    combine: Callable[[Tensor, Tensor], Tensor],
    seed: int,
    at: Sequence[str],
    runner: PassRunner | None,
) -> list[Attribution]:
    """Per number of the input, a norm of the mean gradient over copies with Gaussian noise, which depends on input and seed.

    Args:
        model: In eval mode.
        batch: One text with images.
        samples: How many gradients, 1 or more.
        noise: Its standard deviation, as a share of the largest minus the smallest number: of the text's tokens for these, of the
            images' for those, of a picture for its pixels.
        combine: The norm.
        seed: Of the noise.
        at: ``"input"`` or ``"pixels"``.
        runner: Of the model.

    Raises:
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    text = _TextWithImages.read(model, batch, at, runner)
    deviations = text.ranges()
    known = text.seed(seed)

    def points() -> Iterator[Point]:
        for number in range(samples):
            generator = np.random.default_rng([known, number])
            drawn = {name: torch.from_numpy(generator.standard_normal(tuple(x.shape))) for name, x in text.x.items()}
            yield {name: x + noise * deviations[name] * drawn[name].to(x.device) for name, x in text.x.items()}

    total = text.gradients(points(), np.full(samples, 1 / samples))
    changed = {name: deviation > 0 for name, deviation in deviations.items()}  # not padding
    return text.attributions({name: combine(x, total[name]) * changed[name] for name, x in text.x.items()})


def occlusion(
    model: PreTrainedModel, batch: Batch, *, window: int, baseline: Any, at: Sequence[str]
) -> list[Attribution]:
    """Per token of the text and patch of an image, what the value loses when it is the baseline's.

    With a ``window`` of w, w neighbours of the text, or w x w of an image whose patches have places, are hidden together; a
    score is the mean over the windows, and each window's loss is shared equally by what is in it.

    Args:
        model: In eval mode.
        batch: One text with images.
        window: 1 or more.
        baseline: As for ``integrated_gradients``.
        at: ``"input"`` or ``"pixels"``.

    Raises:
        InputError: A baseline that is none.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    text = _TextWithImages.read(model, batch, at, None)
    b = text.baseline(baseline)
    losses = {name: torch.zeros(x.numel(), dtype=torch.float64) for name, x in text.x.items()}
    counts = {name: torch.zeros(x.numel(), dtype=torch.float64) for name, x in text.x.items()}
    for hidden in windows_of(text.images, {name: tuple(x.shape) for name, x in text.x.items()}, window):
        loss = float(text.plain.values[0]) - text.value_at(text.hiding(hidden, b))
        for part in hidden.parts:  # a part's score is spread evenly over its numbers, which are added up later
            losses[hidden.name][part] += loss / len(hidden.parts) / len(part)
            counts[hidden.name][part] += 1
    return text.attributions(
        {name: (losses[name] / counts[name].clamp(min=1)).view(x.shape) for name, x in text.x.items()}
    )


@dataclass(frozen=True)
class _TextWithImages:
    """One text with images, and what is changed of it.

    Attributes:
        model: The model.
        batch: With the target that the pass of the text as it is has found.
        runner: Of passes that are neither captured nor compiled.
        plain: The pass of the text as it is.
        entry: How it gets into the first block.
        x: What is changed, as it is: float64.
        rows: bool ``[T]``, the tokens that are changed at the first block; ``None``: all.
    """

    model: PreTrainedModel
    batch: Batch
    runner: PassRunner
    plain: Pass
    entry: Entry
    x: Point
    rows: Tensor | None

    @classmethod
    def read(
        cls, model: PreTrainedModel, batch: Batch, at: Sequence[str], runner: PassRunner | None
    ) -> _TextWithImages:
        """The text as it is.

        Raises:
            InputError: Another place.
            UnsupportedModelError, NonFiniteError: As of ``run``.
        """
        places = place_first(at)
        if places not in ([INPUT], [PIXELS]):
            raise InputError(f'at={places}: of a text with images, give one of "input" and "pixels".')
        assert batch.images is not None
        rows: Tensor | None = None
        if places == [PIXELS]:
            rows = torch.ones(batch.shape[1], dtype=torch.bool)
            rows[list(batch.images.tokens)] = False
        plain, batch, own = as_given(model, batch, _places(rows), runner)
        x = {name: hidden.state.double() for name, hidden in plain.hidden.items()}
        found = cls(model, batch, own, plain, Entry.of(model, batch), x, rows)
        given = [] if rows is None else [name.removeprefix(APART) for name in x if name != INPUT]
        for name in given:
            if name not in found.images.pictures:
                raise UnsupportedModelError(
                    f"{type(model).__name__} is given {name} in a way in which lrpx does not know which numbers are a patch, so "
                    'they cannot be changed. Take at="input", where images and text meet.'
                )
        return found

    @property
    def images(self) -> ImagesInText:
        """The parts of its images."""
        assert self.batch.images is not None
        return self.batch.images

    @property
    def pictures(self) -> dict[str, Sequence[Picture]]:
        """The pictures in each input that has an effect."""
        return {name: each for name, each in self.images.pictures.items() if f"{APART}{name}" in self.x}

    def baseline(self, given: Any) -> Point:
        """The point that is the baseline.

        ``"zero"`` and ``"mean"`` are known for word embeddings and for pixels. Any other is known for one of the two, and at
        ``"pixels"`` the mean is taken of the other.

        Raises:
            InputError: It is none.
        """
        of_text, of_pixels = given, given
        if self.rows is not None:
            of_image = given == "blur" if isinstance(given, str) else isinstance(given, Tensor | np.ndarray)
            of_text = "mean" if of_image else given
            of_pixels = given if of_image or given in ("zero", "mean") else "mean"
        entry = self.entry.with_same(baselines.baseline_of(self.model, of_text)).double()
        found = {name: torch.zeros_like(x) for name, x in self.x.items()}
        found[INPUT][..., : entry.shape[-1]] = entry
        if self.rows is not None:  # nothing else changes there
            found[INPUT] = torch.where(self.rows.to(entry.device)[:, None], found[INPUT], self.x[INPUT])
        for name, pictures in self.pictures.items():
            flat = self.x[f"{APART}{name}"].flatten().clone()
            for picture in pictures:
                numbers = torch.from_numpy(picture.numbers).to(flat.device)
                flat[numbers] = of_pictures(flat[numbers].mean(0, keepdim=True), of_pixels).expand(numbers.shape)
            found[f"{APART}{name}"] = flat.view(self.x[f"{APART}{name}"].shape)
        return found

    def ranges(self) -> Point:
        """The largest minus the smallest number: of text and images apart, and of each picture. Zero where nothing is changed."""
        found = {name: (x.max() - x.min()).expand_as(x) for name, x in self.x.items() if name.startswith(STATES)}
        rows = self.x[INPUT][0]
        spread = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device)
        of_images = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        of_images[list(self.images.tokens)] = True
        for which in (~of_images, of_images) if self.rows is None else (~of_images,):
            if which.any():
                spread[which] = rows[which].max() - rows[which].min()
        found[INPUT] = spread[None, :, None].expand_as(self.x[INPUT])
        for name, pictures in self.pictures.items():
            x = self.x[f"{APART}{name}"].flatten()
            flat = torch.zeros_like(x)
            for picture in pictures:
                there = x[torch.from_numpy(picture.numbers)]
                flat[torch.from_numpy(picture.numbers)] = there.max() - there.min()
            found[f"{APART}{name}"] = flat.view(self.x[f"{APART}{name}"].shape)
        return found

    def seed(self, seed: int) -> int:
        """A seed that depends on text, images, and the seed given."""
        known = [self.batch.ids, *(t.double() for t in self.batch.inputs.values() if t.is_floating_point())]
        return zlib.crc32(b"".join(t.cpu().numpy().tobytes() for t in known) + str(seed).encode())

    def gradients(self, points: Iterator[Point], shares: np.ndarray) -> Point:
        """The gradients at the points, added up with their shares."""
        total = {name: torch.zeros_like(x) for name, x in self.x.items()}
        for point, share in zip(points, shares, strict=True):
            batch = self._with_pixels(point)
            with self.entry.placed(point, self.rows):
                hidden = run(self.model, batch, {}, _places(self.rows), runner=self.runner).hidden
            for name in total.keys() & hidden.keys():
                total[name] += float(share) * hidden[name].gradient.double()
        return total

    def value_at(self, point: Point) -> float:
        """The explained value at a point."""
        return replace(self.entry, batch=self._with_pixels(point)).value_at(point, self.rows)

    def hiding(self, hidden: Window, baseline: Point) -> Point:
        """The point where a window is the baseline's."""
        flat, numbers = self.x[hidden.name].flatten().clone(), torch.from_numpy(np.concatenate(hidden.parts))
        flat[numbers] = baseline[hidden.name].flatten()[numbers]
        return {**self.x, hidden.name: flat.view(self.x[hidden.name].shape)}

    def _with_pixels(self, point: Point) -> Batch:
        given = self.batch.inputs
        pixels = {name: point[f"{APART}{name}"].to(given[name].device, given[name].dtype) for name in self.pictures}
        return replace(self.batch, inputs={**given, **pixels})

    def attributions(self, parts: Point) -> list[Attribution]:
        """The attribution made of numbers for all that is changed."""
        of_tokens = parts[INPUT][0].sum(-1)
        if self.rows is not None:
            of_tokens = torch.where(self.rows.to(of_tokens.device), of_tokens, 0)
        [one] = scored(self.plain, [of_tokens.cpu().numpy()])
        layers = {name: each.cpu().numpy() for name, each in parts.items() if name != INPUT}
        return [replace(one, layers=layers)]


def _places(rows: Tensor | None) -> tuple[str, ...]:
    return (INPUT,) if rows is None else (INPUT, PIXELS)
