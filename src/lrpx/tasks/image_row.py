"""Images that are no tokens of the text, put into the row of an explanation.

1. At ``"pixels"`` the patches of what the model was given stand in place of the tokens that stand for an image, or of the places
   that an encoder of images makes of it.
2. At ``"input"``, features that enter later blocks (Mllama's, by cross-attention) stand where the image was, beside all tokens.

Relevance of the whole row and the residual are the value, as for text alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..models.signature import EncoderInput
from ..passes.image_inputs import APART, STATES
from ..results.images import ImagePatches
from ..results.tokens import NO_TOKEN, Segment, Unit
from ..text.batching import Attribution
from ..text.tokenization import Encoded
from .image_places import image_tokens
from .patches import OWN, own_tokens, patch_names
from .pictures import as_seen, png_of
from .pixel_maps import pixel_maps, unpacked_pictures

CROSSING = frozenset({"blip", "idefics", "mllama"})
"""Model types that read images by cross-attention: the token that marks an image is a word as any other."""
LATER = CROSSING | {"granite4_vision"}
"""Model types whose images enter later blocks, in a way that is known."""
INSIDE = ("by_layer", "by_attention", "by_mlp", "by_head")


@dataclass(frozen=True)
class Part:
    """What goes into the row at one place: names and relevance of further tokens; the last may be patches of an image.

    Attributes:
        names: Of the tokens.
        relevance: Of the tokens.
        rows, columns: How many patches there are.
        seen: The picture as the model was given it, ``[3, height, width]``.
    """

    names: list[str]
    relevance: np.ndarray
    rows: int = 0
    columns: int = 0
    seen: Tensor | None = None


def with_images(
    model: PreTrainedModel, encoded: Encoded, result: Attribution, position: int, image_processor: Any, *, heads: bool
) -> tuple[Encoded, Attribution, int]:
    """Tokens, attribution and position of a text with its images in the row; as they are where all are tokens already.

    Args:
        model: The one that reads them.
        encoded: The text.
        result: Its attribution; what images are beside the row of tokens is among its ``layers``.
        position: Of the explained prediction.
        image_processor: Of the model, or ``None``.
        heads: Whether it is to be an error if what heads wrote has no place in the row.

    Raises:
        UnsupportedModelError: It has none; or the images enter later blocks, in a way that is not known.
    """
    apart = {name: result.layers[name] for name in result.layers if name.startswith(APART)}
    if not apart:
        return encoded, result, position
    layers = {name: value for name, value in result.layers.items() if name not in apart}
    parts, maps = parts_of(model, encoded, apart)
    names = ["pixels"] if len(maps) == 1 else [f"pixels[{n}]" for n in range(len(maps))]
    layers |= dict(zip(names, maps, strict=True))
    row = ImageRow(model, encoded, parts, image_processor, beside=not maps)
    relevance = row.relevance(result.relevance, parts)
    residual = result.residual
    if residual is not None:
        residual += float(result.relevance.sum()) - float(relevance.sum())
    inside = {name: each for name in INSIDE if (each := getattr(result, name)) is not None}
    if inside and not row.has_all_tokens:
        if heads:
            raise UnsupportedModelError(
                f'heads=True: of {type(model).__name__}, heads write at tokens that at="pixels" are not in the row, since they '
                'stand for no patch, or for several. Take at="input", where these numbers are the same.'
            )
        inside = dict.fromkeys(inside)
    inside = {name: each if each is None else row.of_tokens(each) for name, each in inside.items()}
    new = replace(result, relevance=relevance, residual=residual, layers=layers, **inside)
    return row.encoded, new, row.position(position)


def parts_of(
    model: PreTrainedModel, encoded: Encoded, apart: Mapping[str, np.ndarray]
) -> tuple[list[Part], list[np.ndarray]]:
    """The parts of the row that images are, and the relevance of every pixel of each picture, if it was taken there.

    Args:
        model: The one that reads them.
        encoded: The text.
        apart: Relevance of what images are beside the tokens, by its name.

    Raises:
        UnsupportedModelError: The images enter later blocks, in a way that is not known.
    """
    pixels = {name: each for name, each in apart.items() if not name.startswith(STATES)}
    if pixels:
        return _of_pixels(model, encoded, pixels)
    if model.config.model_type not in LATER:
        raise UnsupportedModelError(
            f"{type(model).__name__} feeds its images into later blocks too, in a way that lrpx does not know, so "
            'their patches cannot be told apart. Take at="pixels", or explain text alone.'
        )
    return [part for states in apart.values() for part in _of_states(model, encoded, states)], []


def _of_pixels(
    model: PreTrainedModel, encoded: Encoded, given: Mapping[str, np.ndarray]
) -> tuple[list[Part], list[np.ndarray]]:
    parts, pixels = [], []
    for name, relevance in given.items():
        maps = pixel_maps(model, encoded.image_inputs, name.removeprefix(APART), relevance)
        for found in maps:
            rows, columns = found.patches.shape
            parts.append(Part(patch_names(rows, columns), found.patches.ravel(), rows, columns, found.seen))
            pixels.append(found.pixels)
        if not maps:  # packed in a way of its own
            each = relevance.reshape(-1, relevance.shape[-1]).sum(1)
            parts.append(Part([f"[patch {n}]" for n in range(1, len(each) + 1)], each))
            pixels.append(relevance)
    return parts, pixels


def _of_states(model: PreTrainedModel, encoded: Encoded, states: np.ndarray) -> list[Part]:
    """The features of each picture ``[..., states, width]``: its patches behind tokens of the model's own, or mixtures."""
    rows_of_states = states.sum(-1).reshape(-1, states.shape[-2])
    pictures, parts = unpacked_pictures(model, encoded.image_inputs), []
    for n, relevance in enumerate(rows_of_states):
        seen = pictures[n] if len(pictures) == len(rows_of_states) else None
        if seen is not None and not seen.pixels.any() and not relevance.any():
            continue  # padding
        own = len(relevance) - (seen.rows * seen.columns if seen else 0)
        if seen is None or not 0 <= own <= OWN:
            parts.append(Part([f"[image state {i}]" for i in range(1, len(relevance) + 1)], relevance))
            continue
        names = [*own_tokens(model, own), *patch_names(seen.rows, seen.columns)]
        parts.append(Part(names, relevance, seen.rows, seen.columns, torch.from_numpy(seen.pixels)))
    return parts


def _image_of(model: PreTrainedModel, encoded: Encoded) -> Sequence[int]:
    """Which tokens stand for images: all places of an encoder that reads images alone."""
    if encoded.source and EncoderInput.of(model).is_image:
        return range(encoded.source)
    end = encoded.source or len(encoded.token_ids)
    return [n for n in image_tokens(model, encoded.token_ids, encoded.extras) if n < end]


class ImageRow:
    """The row with parts in it, each where an image begins, or all where the first one does.

    Args:
        model: The one that reads the images.
        encoded: The text.
        parts: What goes into the row.
        image_processor: Of the model, or ``None``.
        beside: The tokens that stand for images stay, beside the parts.

    Attributes:
        encoded: The text with the parts in it.
        has_all_tokens: Whether every token has a place in the row: its own, or that of the patch that it stands for.
    """

    def __init__(
        self, model: PreTrainedModel, encoded: Encoded, parts: Sequence[Part], image_processor: Any, *, beside: bool
    ) -> None:
        image = _image_of(model, encoded)
        starts = [n for n in image if n - 1 not in image] or [0]
        places = starts if len(starts) == len(parts) else [starts[0]] * len(parts)
        self._gone = set() if beside or model.config.model_type in CROSSING else set(image)
        self._moved: dict[int, int] = {}  # where a token is now
        self._before: dict[int, int] = {}  # where it is, or begins what stands in its place
        self._first: list[int] = []  # token of each part
        tokens: list[str] = []
        ids: list[int] = []
        units: list[Unit] = []
        images: list[ImagePatches] = []
        begins = {unit.start: unit for unit in encoded.units}
        for n in range(len(encoded.tokens)):
            self._before[n] = len(tokens)
            for part in (part for part, place in zip(parts, places, strict=True) if place == n):
                first = len(tokens)
                self._first.append(first)
                tokens += part.names
                ids += [NO_TOKEN] * len(part.names)
                units += [Unit(first + i, first + i + 1, name) for i, name in enumerate(part.names)]
                if part.seen is not None:
                    start, png = len(tokens) - part.rows * part.columns, png_of(as_seen(part.seen, image_processor))
                    images.append(ImagePatches(start, part.rows, part.columns, *png))
            self._moved[n] = len(tokens)
            if n in self._gone:
                continue
            if n in begins:
                unit = begins[n]
                kept = sum(i not in self._gone for i in range(n, unit.end))
                units.append(Unit(len(tokens), len(tokens) + kept, unit.text))
            tokens.append(encoded.tokens[n])
            ids.append(encoded.token_ids[n])
        self._before[len(encoded.tokens)] = len(tokens)
        segments = tuple(Segment(name, self.begin(start), self.begin(end)) for name, start, end in encoded.segments)
        self._patch_of = self._patches(encoded.images, images)
        self.has_all_tokens = self._gone <= self._patch_of.keys()
        self.encoded = replace(
            encoded,
            tokens=tokens,
            token_ids=tuple(ids),
            units=units,
            images=tuple(images),
            segments=segments,
            source=self.begin(encoded.source),
        )

    @staticmethod
    def _patches(tokens: Sequence[ImagePatches], patches: Sequence[ImagePatches]) -> dict[int, int]:
        """Token -> the patch that it stands for, if images have as many tokens as patches."""
        sizes = [[(each.rows, each.columns) for each in images] for images in (tokens, patches)]
        if sizes[0] != sizes[1]:
            return {}
        pairs = zip(tokens, patches, strict=True)
        return {token: place for a, b in pairs for token, place in zip(a.tokens, b.tokens, strict=True)}

    def begin(self, n: int) -> int:
        """Where token ``n`` is in the row, or begins what stands in its place; of the number of tokens, that of the row."""
        return self._before[n]

    def position(self, n: int) -> int:
        """Where the explained position is; of a token that is not there any more, the last patch in its place."""
        return max(0, self._moved[n] - (n in self._gone))

    def relevance(self, tokens: np.ndarray, parts: Sequence[Part]) -> np.ndarray:
        """Relevance of the row: of the tokens ``[T]`` and of the parts, which are those of the row, or like them."""
        row = np.zeros(len(self.encoded.tokens))
        kept = [n for n in range(len(tokens)) if n not in self._gone]
        row[[self._moved[n] for n in kept]] = tokens[kept]
        for first, part in zip(self._first, parts, strict=True):
            row[first : first + len(part.relevance)] = part.relevance
        return row

    def of_tokens(self, numbers: np.ndarray) -> np.ndarray:
        """Numbers of tokens ``[..., T]`` at their places in a row that has all tokens, or at their patches; zero elsewhere."""
        wide = np.zeros((*numbers.shape[:-1], len(self.encoded.tokens)))
        kept = range(numbers.shape[-1])
        wide[..., [self._patch_of[n] if n in self._gone else self._moved[n] for n in kept]] = numbers
        return wide
