"""Images that are no tokens of the text, put into the row of an explanation.

1. At ``"pixels"`` the patches of what the model was given stand in place of the tokens that stand for an image.
2. At ``"input"``, features that enter later blocks (Mllama's, by cross-attention) stand where the image was, beside all tokens.

Relevance of the whole row and the residual are the value, as for text alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..passes.image_inputs import APART, STATES
from ..results.images import ImagePatches
from ..results.tokens import NO_TOKEN, Segment, Unit
from ..text.batching import Attribution
from ..text.tokenization import Encoded
from .image_places import image_tokens
from .patches import OWN, own_tokens
from .pictures import as_seen, png_of
from .pixel_maps import pixel_maps, unpacked_pictures

CROSSING = frozenset({"blip", "idefics", "mllama"})
"""Model types that read images by cross-attention: the token that marks an image is a word as any other."""
LATER = CROSSING | {"granite4_vision"}
"""Model types whose images enter later blocks, in a way that is known."""


@dataclass(frozen=True)
class _Part:
    """What goes into the row at one place: names and relevance of further tokens; the last may be patches of an image."""

    names: list[str]
    relevance: np.ndarray
    rows: int = 0
    columns: int = 0
    picture: Any = None
    name: str = ""


def with_images(
    model: PreTrainedModel,
    encoded: Encoded,
    result: Attribution,
    position: int,
    image_processor: Any,
) -> tuple[Encoded, Attribution, int]:
    """Tokens, attribution and position of a text with its images in the row; as they are where all are tokens already."""
    apart = {name: result.layers[name] for name in result.layers if name.startswith(APART)}
    if not apart:
        return encoded, result, position
    layers = {name: value for name, value in result.layers.items() if name not in apart}
    pixels = [name for name in apart if not name.startswith(STATES)]
    image = image_tokens(model, encoded.token_ids, encoded.extras)
    if pixels:
        parts, maps = _of_pixels(model, encoded, {name: apart[name] for name in pixels}, image_processor)
        names = ["pixels"] if len(maps) == 1 else [f"pixels[{n}]" for n in range(len(maps))]
        layers |= dict(zip(names, maps, strict=True))
    else:
        if model.config.model_type not in LATER:
            raise UnsupportedModelError(
                f"{type(model).__name__} feeds its images into later blocks too, in a way that lrpx does not know, so "
                'their patches cannot be told apart. Take at="pixels", or explain text alone.'
            )
        parts = [part for states in apart.values() for part in _of_states(model, encoded, states, image_processor)]
    stay = not pixels or model.config.model_type in CROSSING
    return _spliced(encoded, replace(result, layers=layers), position, parts, image, stay=stay)


def _of_pixels(
    model: PreTrainedModel, encoded: Encoded, given: Mapping[str, np.ndarray], image_processor: Any
) -> tuple[list[_Part], list[np.ndarray]]:
    parts, pixels = [], []
    for name, relevance in given.items():
        maps = pixel_maps(model, encoded.image_inputs, name.removeprefix(APART), relevance)
        for found in maps:
            rows, columns = found.patches.shape
            picture = as_seen(found.seen, image_processor)
            parts.append(_Part(_places(rows, columns), found.patches.ravel(), rows, columns, picture))
            pixels.append(found.pixels)
        if not maps:  # packed in a way of its own
            each = relevance.reshape(-1, relevance.shape[-1]).sum(1)
            parts.append(_Part([f"[patch {n}]" for n in range(1, len(each) + 1)], each))
            pixels.append(relevance)
    return parts, pixels


def _of_states(model: PreTrainedModel, encoded: Encoded, states: np.ndarray, image_processor: Any) -> list[_Part]:
    """The features of each picture ``[..., states, width]``: its patches behind tokens of the model's own, or mixtures."""
    rows_of_states = states.sum(-1).reshape(-1, states.shape[-2])
    pictures, parts = unpacked_pictures(model, encoded.image_inputs), []
    for n, relevance in enumerate(rows_of_states):
        seen = pictures[n] if len(pictures) == len(rows_of_states) else None
        if seen is not None and not seen.pixels.any() and not relevance.any():
            continue  # padding
        own = len(relevance) - (seen.rows * seen.columns if seen else 0)
        if seen is None or not 0 <= own <= OWN:
            parts.append(_Part([f"[image state {i}]" for i in range(1, len(relevance) + 1)], relevance))
            continue
        names = [*own_tokens(model, own), *_places(seen.rows, seen.columns)]
        parts.append(
            _Part(names, relevance, seen.rows, seen.columns, as_seen(torch.from_numpy(seen.pixels), image_processor))
        )
    return parts


def _places(rows: int, columns: int) -> list[str]:
    return [f"[{row}, {column}]" for row in range(1, rows + 1) for column in range(1, columns + 1)]


def _spliced(
    encoded: Encoded,
    result: Attribution,
    position: int,
    parts: Sequence[_Part],
    image: Sequence[int],
    *,
    stay: bool,
) -> tuple[Encoded, Attribution, int]:
    """The row with ``parts`` in it, each where an image begins, or all where the first one does; ``stay``: beside its tokens."""
    starts = [n for n in image if n - 1 not in image] or [0]
    places = starts if len(starts) == len(parts) else [starts[0]] * len(parts)
    gone = set() if stay else set(image)
    tokens: list[str] = []
    ids: list[int] = []
    units: list[Unit] = []
    relevance: list[float] = []
    images: list[ImagePatches] = []
    moved: dict[int, int] = {}  # where a token is now
    begins = {unit.start: unit for unit in encoded.units}
    for n in range(len(encoded.tokens)):
        for part in (part for part, place in zip(parts, places, strict=True) if place == n):
            first = len(tokens)
            tokens += part.names
            ids += [NO_TOKEN] * len(part.names)
            units += [Unit(first + i, first + i + 1, name) for i, name in enumerate(part.names)]
            relevance += part.relevance.tolist()
            if part.picture is not None:
                start = len(tokens) - part.rows * part.columns
                images.append(ImagePatches(start, part.rows, part.columns, *png_of(part.picture), (), part.name))
        moved[n] = len(tokens)
        if n in gone:
            continue
        if n in begins:
            unit = begins[n]
            units.append(Unit(len(tokens), len(tokens) + sum(i not in gone for i in range(n, unit.end)), unit.text))
        tokens.append(encoded.tokens[n])
        ids.append(encoded.token_ids[n])
        relevance.append(float(result.relevance[n]))
    moved[len(encoded.tokens)] = len(tokens)
    row = np.array(relevance)
    segments = tuple(Segment(name, moved[start], moved[end]) for name, start, end in encoded.segments)
    kept = [n for n in range(len(encoded.tokens)) if n not in gone]
    inside: dict[str, Any] = {
        name: None
        if gone or (each := getattr(result, name)) is None
        else _widened(each, [moved[n] for n in kept], len(row))
        for name in ("by_layer", "by_attention", "by_mlp", "by_head")
    }
    where = _after(moved, gone, position)
    new = replace(encoded, tokens=tokens, token_ids=tuple(ids), units=units, images=tuple(images), segments=segments)
    residual = None if result.residual is None else result.value - float(row.sum())
    return new, replace(result, relevance=row, residual=residual, **inside), where


def _after(moved: Mapping[int, int], gone: set[int], position: int) -> int:
    """Where the explained position is; of a token that is not there any more, the last patch in its place."""
    return max(0, moved[position] - (position in gone))


def _widened(numbers: np.ndarray, places: Sequence[int], length: int) -> np.ndarray:
    """Numbers of tokens ``[..., T]`` at their ``places`` in a longer row, zero elsewhere."""
    wide = np.zeros((*numbers.shape[:-1], length))
    wide[..., list(places)] = numbers
    return wide
