"""What the value loses when tokens are hidden, or left out: occlusion and leave-one-out. And scores that know nothing.

Source: Zeiler & Fergus 2014 (occlusion), Li et al. 2016b, "Understanding Neural Networks through Representation Erasure"
(leave-one-out). Both need forward passes only, and as many as there are tokens, in batches.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError
from ..models.signature import task_of
from ..models.stacks import encoder_of
from ..passes.attribution import Pass, run, scored
from ..passes.edits import at_once, decided, selected_items, values, values_without, width_of
from ..passes.hidden_states import place_first
from ..text.batching import Attribution, Batch
from . import images_in_text, pixels
from .baselines import Baseline, baseline_of, positive


def occlusion(
    model: PreTrainedModel,
    batch: Batch,
    *,
    window: int = 1,
    baseline: Baseline | pixels.Baseline = "mean",
    at: Sequence[str] = ("input",),
) -> list[Attribution]:
    """Per token, what the value loses when its word embedding is the baseline's.

    Of images, see ``pixels.occlusion``, and of a text with images ``images_in_text.occlusion``.

    With a ``window`` of w, w neighbours are hidden together, a token's score is the mean over the windows that it is in, and
    each window's loss is shared equally by its tokens.

    Raises:
        InputError: A window or a baseline that are none, or an input that is no text.
        UnsupportedModelError: The model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    window = positive("window", window)
    if batch.of_images:
        return pixels.occlusion(model, batch, window=window, baseline=baseline)
    if batch.images is not None:
        return images_in_text.occlusion(model, batch, window=window, baseline=baseline, at=at)
    if place_first(at) not in (["input"], ["embedding"]):
        raise InputError(
            f"at={place_first(at)}: occlusion hides tokens of a text, and has no relevance elsewhere. Leave it out."
        )
    b = baseline_of(model, baseline)
    plain, batch = as_it_is(model, batch)
    tokens = hidden_with(batch)
    lengths = [len(own) for own in tokens]
    starts = [(i, start) for i, n in enumerate(lengths) for start in range(max(1, n - window + 1))]
    hidden = np.zeros((len(starts), width_of(batch)), bool)
    for row, (i, start) in enumerate(starts):
        hidden[row, np.concatenate(tokens[i][start : start + window])] = True
    found = values_without(model, batch, [i for i, _ in starts], hidden, b)
    scores = [np.zeros(n) for n in lengths]
    windows = [np.zeros(n) for n in lengths]
    for (i, start), value in zip(starts, found, strict=True):
        inside = slice(start, start + window)
        share = min(window, lengths[i])
        scores[i][inside] += (plain.values[i] - value) / share
        windows[i][inside] += 1
    return scored(plain, in_places(batch, [score / many for score, many in zip(scores, windows, strict=True)]))


def leave_one_out(model: PreTrainedModel, batch: Batch) -> list[Attribution]:
    """Per token, what the value loses in the text without it, which is a token shorter.

    The tokens after it move forward by one; without the token at the explained position, the prediction after the token before
    it is taken. A classifier reads the label where it does in any text. The only token of a text cannot be left out, and has the
    score 0.

    Raises:
        UnsupportedModelError: See ``check_can_be_shorter``; or the model cannot be explained correctly.
        NonFiniteError: NaN or infinity appeared.
    """
    check_can_be_shorter(model)
    if batch.with_images:
        raise UnsupportedModelError("leave-one-out makes texts shorter, and this one has images. Use occlusion.")
    plain, batch = as_it_is(model, batch)
    gaps = [
        (i, t) for i, span in enumerate(batch.spans) if span.stop - span.start > 1 for t in range(span.start, span.stop)
    ]
    scores = [np.zeros(span.stop - span.start) for span in batch.spans]

    def without(part: Batch, rows: slice) -> np.ndarray:
        left_out = torch.tensor([t for _, t in gaps[rows]])[:, None]
        order = torch.arange(batch.shape[1] - 1).expand(len(left_out), -1)
        order = (order + (order >= left_out)).to(part.positions.device)  # of each row, all columns but one
        inputs = {name: tensor.gather(1, order.to(tensor.device)) for name, tensor in part.inputs.items()}
        if "position_ids" in inputs:
            inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
        gone = left_out[:, 0].to(part.positions.device)
        first = torch.tensor([span.start for span in part.spans], device=gone.device)
        after = torch.where(gone <= part.positions, part.positions - 1, part.positions)
        spans = [slice(span.start, span.stop - 1) for span in part.spans]
        return values(model, replace(part, inputs=inputs, spans=spans, positions=torch.maximum(after, first)))

    for rows in at_once(batch, len(gaps)):
        found = without(selected_items(batch, [i for i, _ in gaps[rows]]), rows)
        for (i, t), value in zip(gaps[rows], found, strict=True):
            scores[i][t - batch.spans[i].start] = plain.values[i] - value
    return scored(plain, scores)


def check_can_be_shorter(model: PreTrainedModel) -> None:
    """Refuse a model of which the explained score is not known any more if a token of the text is left out.

    Raises:
        UnsupportedModelError: The score is read at a token that may be the one left out (a mask, a labelled token, the ends of
            an answer), or an encoder and a decoder read the text.
    """
    if task_of(model) not in ("causal", "text-classification", "multiple-choice") or encoder_of(model) is not None:
        raise UnsupportedModelError(
            "leave-one-out makes texts shorter, which only causal language models, and classifiers of a whole text without a "
            f"decoder behind an encoder, read like any other; not {type(model).__name__}. Use occlusion."
        )


def random_scores(model: PreTrainedModel, batch: Batch, *, seed: int = 0) -> list[Attribution]:
    """Per token, a number from the standard normal distribution: what a method has to beat.

    The numbers depend on the text and the seed, not on what else is in the batch.

    Raises:
        InputError: A seed that is no whole number.
        UnsupportedModelError: The model cannot be explained correctly.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise InputError(f"seed={seed!r}: give a whole number, 0 or more.")
    plain, batch = as_it_is(model, batch)
    found = []
    for i, hidden in enumerate(hidden_with(batch)):
        known = zlib.crc32(batch.ids[i, batch.spans[i]].cpu().numpy().tobytes())
        found.append(np.random.default_rng([known, seed]).standard_normal(len(hidden)))
    return scored(plain, in_places(batch, found))


def as_it_is(model: PreTrainedModel, batch: Batch) -> tuple[Pass, Batch]:
    """The pass of the texts as they are, and the batch with the targets that it found.

    Raises:
        InputError: They are images.
    """
    if batch.of_images:
        raise InputError(
            "this method is for texts. Images are explained by attnlrp, lrp, gradient-x-input and occlusion."
        )
    plain = run(model, batch, {}, hidden=False)
    return plain, decided(batch, plain.targets)


def hidden_with(batch: Batch) -> list[list[np.ndarray]]:
    """Of each token of each item: the indices, in a row of all tokens, that are hidden together.

    A text that encoder and decoder both read (a classifier's) has each token twice, in the decoder one place later. The decoder's
    start token is none of the text, and is never hidden.
    """
    if not batch.sources:
        return [[np.array([t]) for t in range(span.start, span.stop)] for span in batch.spans]
    if batch.readout is None:
        return [[np.array([t]) for t in place] for place in batch.places]
    width, found = batch.shapes[0][1], []
    for source, span in zip(batch.sources, batch.spans, strict=True):
        both = [[source.start + n, width + span.start + n + 1] for n in range(span.stop - span.start)]
        found.append([np.array(places) for places in (*both[:-1], both[-1][:1])])
    return found


def in_places(batch: Batch, scores: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The scores of ``hidden_with``'s tokens as one for each of ``Batch.places``: a text that is read twice has them once."""
    if not batch.sources or batch.readout is None:
        return list(scores)
    return [
        np.concatenate([score, np.zeros(span.stop - span.start)])
        for score, span in zip(scores, batch.spans, strict=True)
    ]
