"""Items of different lengths -> padded batches with little waste, and back.

An item in a batch gets the same relevance as alone: padding is masked, positions count from the first real token, and
the items' values are summed, so that each item gets the gradient of its own value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models.placement import entry_device
from ..models.positions import counts_from_padding
from ..models.signature import filler, takes
from .image_parts import ImageParts, ImagesInText

Function = Callable[[Tensor], Any]  # logits at one position [n] -> a tensor of one number


@dataclass(frozen=True)
class Item:
    """One prediction to explain, as token ids."""

    token_ids: tuple[int, ...]
    position: int  # index into token_ids, not negative
    target: int | None = None  # token id; None: the model's top prediction
    contrast: int | None = None  # token id; None: the single logit is explained
    extras: dict[str, tuple[int, ...]] = field(default_factory=dict)  # per-token model inputs, e.g. token_type_ids
    notes: tuple[str, ...] = ()  # what the user has to know of the text
    function: Function | None = None  # of all logits at the position, explained in place of a target
    source: int = 0  # how many of the ids an encoder reads, the first ones; the others are the decoder's. 0: no encoder
    images: dict[str, Tensor] = field(default_factory=dict)  # model inputs that are no row of tokens, e.g. pixel_values

    def beginning(self, count: int) -> Item:
        """The same with the first ``count`` tokens of those that predictions are made after, and the first of these explained.

        Images that stand among these tokens are left out.
        """
        end = self.source + count
        extras = {name: values[:end] for name, values in self.extras.items()}
        kept = self.images if self.source else {}
        return Item(self.token_ids[:end], self.source, extras=extras, source=self.source, images=kept)

    def lengthened(self, token_ids: tuple[int, ...], position: int, target: int) -> Item:
        """The same input with more tokens after it, or fewer: its per-token inputs go on with the last one."""
        extras = {k: (*v, *[v[-1]] * (len(token_ids) - len(v)))[: len(token_ids)] for k, v in self.extras.items()}
        images = {name: _lengthened(name, tensor, len(token_ids)) for name, tensor in self.images.items()}
        return Item(token_ids, position, target, None, extras, source=self.source, images=images)


_BY_TOKEN = frozenset({"cross_attention_mask", "image_attention_mask"})
"""Inputs that say which images each token attends to, ``[1, T, ...]`` (Mllama, Idefics)."""


def _lengthened(name: str, tensor: Tensor, length: int) -> Tensor:
    """An input about a text's images, for more tokens or fewer: new ones attend to images as the last one, as in generation."""
    if name not in _BY_TOKEN:
        return tensor
    more = max(0, length - tensor.shape[1])
    return torch.cat([tensor, tensor[:, -1:].expand(-1, more, *tensor.shape[2:])], 1)[:, :length]


class Readout(ABC):
    """From a model's output to K scores per item, where what is explained is not a language model's logits at one position.

    Target and contrast are ids among the scores, as tokens are among the logits of a vocabulary, so padding, batches, graphs and
    compiled passes are the same for both. Subclasses are frozen dataclasses: equal ones share what a runner keeps. A readout
    runs inside the pass, under its rules, and may be captured and traced: no number may be taken out of a tensor.

    Attributes:
        independent: Each score has a probability of its own, by a sigmoid; otherwise all share one, by a softmax.
    """

    independent: bool = False

    def inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """What the model is given for a batch's inputs ``[B, T]``."""
        return inputs

    @abstractmethod
    def __call__(self, output: Any, batch: Batch) -> Tensor:
        """The scores ``[B, K]``.

        Args:
            output: What the model returned, with its ``logits``.
            batch: What it was given, with the ``positions`` that are asked about.
        """


@dataclass(frozen=True)
class Batch:
    """Padded items as tensors, on the device of the model's embedding.

    Attributes:
        inputs: Keyword arguments for the model: ``input_ids`` and ``attention_mask`` ``[B, T]``, and more if needed. For an
            encoder-decoder model these are the source's ``[B, S]``, beside ``decoder_input_ids`` ``[B, T]`` and its mask.
        spans: Per item, the slice of its real tokens in the padded row, of the decoder's T tokens for an encoder-decoder model.
        positions: ``[B]`` index of the explained position in the padded row; likewise.
        targets: ``[B]`` token ids, -1 where the top prediction is asked for.
        contrasts: ``[B]`` token ids, -1 where the single logit is explained.
        chosen: Every target is given, so that no item asks for the top prediction.
        likeliest: How many of the likeliest tokens are wanted, with the probabilities and ranks of target and contrast;
            0: nothing of all that.
        readout: How the scores that are explained are read off the model's output. ``None``: a language model's logits at
            ``positions``.
        functions: Per item, the function that is explained in place of a target, or ``None``. Empty if no item has one.
        of_images: Images are explained; a text among the inputs goes to another tower of the model.
        sources: Of an encoder-decoder model, per item: the slice of its source's real tokens.
        with_images: Images are among ``inputs`` whose features stand in the text, in place of tokens.
        parts: Of images of one size, what a method may hide of each.
        images: Of one text with images, what a method may change of these.
    """

    inputs: dict[str, Tensor]
    spans: list[slice]
    positions: Tensor
    targets: Tensor
    contrasts: Tensor
    chosen: bool = False
    likeliest: int = 0
    readout: Readout | None = None
    functions: tuple[Function | None, ...] = ()
    of_images: bool = False
    sources: list[slice] = field(default_factory=list)
    with_images: bool = False
    parts: ImageParts | None = None
    images: ImagesInText | None = None

    @property
    def ids(self) -> Tensor:
        """``[B, T]`` the ids that ``positions`` count: the decoder's where there is one."""
        found = self.inputs.get("decoder_input_ids")
        return self.inputs["input_ids"] if found is None else found

    @property
    def shape(self) -> tuple[int, int]:
        """How many items and, padding included, tokens. How many tokens an image has is seen while the model runs: 0."""
        if self.of_images:
            return len(self.spans), 0
        rows, length = self.ids.shape  # of the tensor: while a pass is traced, these are symbols
        return rows, length

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """``shape`` of each of the model's stacks: of encoder and decoder, or of the only one."""
        if not self.sources:
            return [self.shape]
        return [(len(self.spans), max(source.stop for source in self.sources)), self.shape]

    @property
    def masks(self) -> list[tuple[str, ...]]:
        """The inputs that say what is padding, for each stack."""
        if not self.sources:
            return [("pixel_attention_mask",) if self.of_images else ("attention_mask",)]
        return [("attention_mask",), ("decoder_attention_mask",)]

    @property
    def places(self) -> list[Any]:
        """Per item, where its real tokens are in a row of all tokens, the encoder's first: a slice, or indices."""
        if not self.sources:
            return list(self.spans)
        width = self.shapes[0][1]
        pairs = zip(self.sources, self.spans, strict=True)
        return [np.r_[source, width + span.start : width + span.stop] for source, span in pairs]

    @property
    def is_text_alone(self) -> bool:
        """Whether every input has one number per token, so that it can be padded to another length."""
        return (
            not self.of_images
            and not self.sources
            and all(tensor.shape == self.shape for tensor in self.inputs.values())
        )

    @property
    def is_traceable(self) -> bool:
        """Whether a pass of it can be traced: a text alone, images, or a text with images, of a model that is one stack."""
        return self.is_text_alone or (not self.sources and (self.of_images or self.with_images))

    def is_per_token(self, tensor: Tensor) -> bool:
        """Whether an input has one number for each token of a text. All others keep their shape while a pass is traced."""
        return not self.of_images and tensor.shape == self.shape

    def outside_inference_mode(self) -> Batch:
        """The same batch with tensors that autograd can save, even if it was made inside ``torch.inference_mode()``."""

        def usable(tensor: Tensor) -> Tensor:
            return tensor.clone() if tensor.is_inference() else tensor

        inputs = {name: usable(tensor) for name, tensor in self.inputs.items()}
        positions, targets, contrasts = map(usable, (self.positions, self.targets, self.contrasts))
        return replace(self, inputs=inputs, positions=positions, targets=targets, contrasts=contrasts)


@dataclass(frozen=True)
class Predictions:
    """What the model predicts at the explained position. A probability is a share of the whole vocabulary, a rank counts from 1.

    Attributes:
        ids: ``[k]`` the likeliest tokens, the likeliest first.
        probabilities: float64 ``[k]``.
        target: Probability and rank.
        contrast: Likewise; ``None`` if there is none.
    """

    ids: np.ndarray
    probabilities: np.ndarray
    target: tuple[float, int]
    contrast: tuple[float, int] | None


@dataclass(frozen=True, kw_only=True)
class Attribution:
    """What a method returns for one item: float64 arrays of its real tokens, without padding.

    The fields are those of ``Explanation``; ``target`` is the token id that was explained. ``predictions`` are there if the
    batch asks for them and the method knows them.
    """

    relevance: np.ndarray
    value: float
    residual: float | None
    target: int
    layers: dict[str, np.ndarray] = field(default_factory=dict)
    by_layer: np.ndarray | None = None
    by_attention: np.ndarray | None = None
    by_mlp: np.ndarray | None = None
    by_head: np.ndarray | None = None
    components: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    predictions: Predictions | None = None


def pad(
    items: Sequence[Item],
    model: PreTrainedModel,
    *,
    side: str = "right",
    length: int = 0,
    likeliest: int = 0,
    readout: Readout | None = None,
) -> Batch:
    """Pad ``items`` to one length, and at least to ``length``, on ``side`` (``"right"`` or ``"left"``).

    Padding goes to the right by default, where it moves no position. On the left the model is told the positions, if
    its ``forward`` takes ``position_ids`` and it does not find them in the ids itself. An item with images is alone.
    """
    if items[0].source:
        return _pad_pairs(items, model, likeliest, readout)
    lengths = [len(item.token_ids) for item in items]
    width = max(length, *lengths)
    starts = [width - n if side == "left" else 0 for n in lengths]
    spans = [slice(start, start + n) for start, n in zip(starts, lengths, strict=True)]

    def padded(rows: Iterable[Sequence[int]], fill: int) -> list[int]:
        table: list[int] = []
        for row, start, n in zip(rows, starts, lengths, strict=True):
            table += [*[fill] * start, *row, *[fill] * (width - start - n)]
        return table

    tables = {
        "input_ids": padded((item.token_ids for item in items), filler(model) if min(lengths) < width else 0),
        "attention_mask": padded(([1] * n for n in lengths), 0),
    }
    for name in items[0].extras:
        tables[name] = padded((item.extras[name] for item in items), 0)
    if side == "left" and takes(model, "position_ids") and not counts_from_padding(model):
        tables["position_ids"] = padded((range(n) for n in lengths), 0)
    return _batch(items, model, tables, spans, starts, likeliest, readout)


def _pad_pairs(items: Sequence[Item], model: PreTrainedModel, likeliest: int, readout: Readout | None) -> Batch:
    """As ``pad`` for an encoder-decoder model: sources and targets are padded each to their own length, on the right."""
    sources = [item.token_ids[: item.source] for item in items]
    targets = [item.token_ids[item.source :] for item in items]
    fill = filler(model)
    tables: dict[str, list[int]] = {}
    sides = (("", sources), ("decoder_", targets))
    for prefix, rows in sides if sources[0][0] >= 0 else sides[1:]:  # places of sound or an image are no tokens
        width = max(map(len, rows))
        tables[f"{prefix}input_ids"] = [i for row in rows for i in (*row, *[fill] * (width - len(row)))]
        tables[f"{prefix}attention_mask"] = [int(n < len(row)) for row in rows for n in range(width)]
    spans = [slice(0, len(target)) for target in targets]
    batch = _batch(items, model, tables, spans, [-item.source for item in items], likeliest, readout)
    return replace(batch, sources=[slice(0, len(source)) for source in sources])


def _batch(
    items: Sequence[Item],
    model: PreTrainedModel,
    tables: dict[str, list[int]],
    spans: list[slice],
    shifts: Sequence[int],
    likeliest: int,
    readout: Readout | None,
) -> Batch:
    """The tables, each ``[B, ...]``, as tensors; ``shifts`` is what is added to the items' positions."""
    positions = [shift + item.position for shift, item in zip(shifts, items, strict=True)]
    targets, contrasts = [item.target for item in items], [item.contrast for item in items]
    columns = [[-1 if value is None else value for value in column] for column in (positions, targets, contrasts)]
    # All in one tensor: for short texts, making and moving several tensors would dominate the time.
    numbers = array("q", [*chain.from_iterable(tables.values()), *chain.from_iterable(columns)])  # faster than a list
    flat = torch.frombuffer(numbers, dtype=torch.int64).to(entry_device(model))
    parts = flat.split([len(table) for table in tables.values()] + [len(items)] * 3)
    inputs = {name: part.view(len(items), -1) for name, part in zip(tables, parts, strict=False)}
    where, asked, against = parts[len(tables) :]
    functions = tuple(item.function for item in items) if any(item.function for item in items) else ()
    images = items[0].images
    for name, tensor in images.items():
        wide = model.dtype if tensor.is_floating_point() else None
        inputs[name] = tensor.to(entry_device(model), wide)
    batch = Batch(inputs, spans, where, asked, against, None not in targets, likeliest, readout, functions)
    return replace(batch, with_images=True) if images and not items[0].source else batch
