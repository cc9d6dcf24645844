"""What a model of images and text is given as images, unpacked: pictures ``[3, height, width]`` and their patches.

Processors pack images in seven ways, which ``_unpacked`` undoes for pixel values and for their relevance alike:

- pictures or tiles ``[..., 3, height, width]`` (most);
- all patches of all images in one list, with ``image_grid_thw`` or ``image_grid_hw``: row by row, or in squares that the model
  merges (Qwen-VL); or blocks of pixels in such a list, channels last (Inkling 2);
- the patches of crops that overlap, the whole image first, with ``image_num_crops`` (Molmo 2);
- patches padded to one length, with the place of each (``spatial_shapes``, ``image_position_ids``) or its row and column as its
  first two numbers (Pix2Struct);
- patches in a row of pixels, with ``target_sizes`` (MiniCPM-V).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..text.image_parts import Picture
from .image_input import as_image
from .patches import PatchGrid, cells

_ROW_BY_ROW = frozenset({"hunyuan_vl", "hy_v4_vl", "kimi_k25", "muse_glimmer", "muse_spark", "paddleocr_vl"})
"""Model types whose lists of patches are in the order of rows, also where the model merges them."""
_FRAMES_FIRST = frozenset({"muse_glimmer", "muse_spark"})
"""Model types in whose lists a patch is ``[frames, 3, side, side]``."""
_CHANNELS_LAST = frozenset({"cosmos3_edge"})
"""Model types in whose lists a patch is ``[side, side, 3, frames]``; of others it is ``[3, frames, side, side]``."""

Several = Callable[[np.ndarray], np.ndarray]  # copies of a pixel ``[3, copies, ...]`` -> one


class Unpacked(NamedTuple):
    """A picture or tile: ``[3, height, width]``, and how many patches it has."""

    pixels: np.ndarray
    rows: int
    columns: int


class PixelMap(NamedTuple):
    """Relevance of a picture or tile ``[3, height, width]``, its sums by patch ``[rows, columns]``, and what is seen there."""

    pixels: np.ndarray
    patches: np.ndarray
    seen: Tensor


def pixel_maps(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str, relevance: np.ndarray
) -> list[PixelMap]:
    """The maps of all pictures but padding. Empty if the packing is not known, or relevance would be lost.

    Args:
        model: The one that reads them.
        inputs: What the processor made of the images.
        name: Of the input.
        relevance: Of each of its numbers.
    """
    given = inputs[name].detach().cpu().double().numpy()
    maps: list[PixelMap] = []
    pairs = zip(
        _unpacked(model, inputs, given, lambda copies: copies.mean(1)),
        _unpacked(model, inputs, relevance, lambda copies: copies.sum(1)),
        strict=True,
    )
    for seen, found in pairs:
        if not seen.pixels.any() and not found.pixels.any():
            continue
        rows, columns = found.rows, found.columns
        _, height, width = found.pixels.shape
        patches = found.pixels.reshape(-1, rows, height // rows, columns, width // columns).sum((0, 2, 4))
        maps.append(PixelMap(found.pixels, patches, torch.from_numpy(seen.pixels)))
    missing = abs(sum(float(found.pixels.sum()) for found in maps) - float(relevance.sum()))
    return maps if missing <= 1e-6 * float(np.abs(relevance).sum()) else []


def unpacked_pictures(model: PreTrainedModel, inputs: Mapping[str, Tensor]) -> list[Unpacked]:
    """All pictures and tiles that a model is given, padding included."""
    values = inputs.get("pixel_values", inputs.get("flattened_patches"))
    if values is None:
        return []
    return list(_unpacked(model, inputs, values.detach().cpu().double().numpy(), lambda copies: copies.mean(1)))


def pictures_in(model: PreTrainedModel, inputs: Mapping[str, Tensor], name: str) -> list[Picture]:
    """Where the pixels of each picture but padding are in an input. Empty if the packing is not known.

    Args:
        model: The one that reads them.
        inputs: What the processor made of the images.
        name: Of the input.
    """
    given = inputs[name].detach().cpu().double().numpy()
    numbers = np.arange(given.size, dtype=float).reshape(given.shape)
    copies = {1}

    def mean(several: np.ndarray) -> np.ndarray:
        copies.add(several.shape[1])
        return several.mean(1)  # type: ignore[no-any-return]

    seen = list(_unpacked(model, inputs, given, mean))
    each = [list(_unpacked(model, inputs, numbers, lambda s, n=n: s[:, n])) for n in range(max(copies))]  # type: ignore[misc]
    found = []
    for picture, *layers in zip(seen, *each, strict=True):
        if picture.pixels.any():
            stacked = np.stack([layer.pixels for layer in layers]).astype(np.int64)
            found.append(Picture(picture.rows, picture.columns, stacked))
    return found


def _unpacked(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], values: np.ndarray, several: Several
) -> Iterator[Unpacked]:
    for layout in (_in_blocks, _listed, _in_crops, _padded, _numbered, _in_strips, _pictures):
        found = list(layout(model, inputs, values, several))
        if found:
            yield from found
            return


def _vision_of(model: PreTrainedModel) -> Any:
    """The configuration of what reads images; an encoder-decoder model may have it as, or in, that of its encoder."""
    encoder = getattr(model.config, "encoder", None)
    own = getattr(model.config, "vision_config", None)
    return own or getattr(encoder, "vision_config", encoder) or model.config


def _side(model: PreTrainedModel) -> int:
    """The side of a patch in pixels; 0 if the configuration does not say."""
    vision = _vision_of(model)
    if isinstance(strides := getattr(vision, "patch_stride", None), list | tuple):  # patches of patches (DaViT)
        return math.prod(strides)
    for config in (vision, model.config):
        side = getattr(config, "patch_size", None)
        side = side[-1] if isinstance(side, list | tuple) else side
        if isinstance(side, int):
            return side
    return 0


def _merged(model: PreTrainedModel) -> int:
    """How many patches in a row a token stands for."""
    for config in (_vision_of(model), model.config):
        for name in ("spatial_merge_size", "merge_size", "merge_kernel_size"):
            merge = getattr(config, name, None)
            merge = merge[-1] if isinstance(merge, list | tuple) else merge
            if isinstance(merge, int):
                return merge
    return 1


def _pictures(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], values: np.ndarray, several: Several
) -> Iterator[Unpacked]:
    """``[..., 3, height, width]``."""
    if values.ndim < 4 or values.shape[-3] not in (1, 3):
        return
    side = _side(model)
    height, width = values.shape[-2:]
    grid = cells(height, width) if not side or min(height, width) < side else PatchGrid(height // side, width // side)
    side = side if grid.rows == height // max(1, side) else height // grid.rows
    for picture in values.reshape(-1, *values.shape[-3:]):  # without pixels that are not enough for another patch
        yield Unpacked(picture[:, : grid.rows * side, : grid.columns * side], grid.rows, grid.columns)


def _in_blocks(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], values: np.ndarray, several: Several
) -> Iterator[Unpacked]:
    """``[blocks of all images, side, side, 3]``, row by row, with ``image_grid_thw``."""
    grids = inputs.get("image_grid_thw")
    if grids is None or values.ndim != 4 or values.shape[-1] != 3 or int(grids.prod(-1).sum()) != len(values):
        return
    side, first = values.shape[1], 0
    for t, rows, columns in grids.reshape(-1, 3).tolist():
        blocks = values[first : first + t * rows * columns].reshape(t * rows, columns, side, side, 3)
        first += t * rows * columns
        whole = blocks.transpose(4, 0, 2, 1, 3).reshape(3, t * rows * side, columns * side)
        yield Unpacked(whole, t * rows, columns)


def _in_crops(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], values: np.ndarray, several: Several
) -> Iterator[Unpacked]:
    """``[crops of all images, patches, 3 * side * side]``: a square of patches each, channels last."""
    side = math.isqrt(values.shape[1])
    if "image_num_crops" in inputs and values.ndim == 3 and side**2 == values.shape[1]:
        for crop in values:
            yield Unpacked(as_image(crop, side, side), side, side)


def _listed(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], values: np.ndarray, several: Several
) -> Iterator[Unpacked]:
    """``[patches of all images, 3 * copies * side * side]``, with ``image_grid_thw``."""
    grids, by_rows, side = inputs.get("image_grid_thw"), inputs.get("image_grid_hw"), _side(model)
    if not side or (grids is None and by_rows is None):
        return
    sizes = [] if by_rows is None else [(1, *grid) for grid in by_rows.tolist()]
    sizes = sizes if grids is None else grids.reshape(-1, 3).tolist()
    total, merge = sum(t * h * w for t, h, w in sizes), _merged(model)
    if values.size % (total * 3 * side * side):
        return
    if model.config.model_type in _FRAMES_FIRST:
        flat = values.reshape(total, -1, 3, side, side).swapaxes(1, 2)
    elif model.config.model_type in _CHANNELS_LAST:
        flat = values.reshape(total, side, side, 3, -1).transpose(0, 3, 4, 1, 2)
    else:
        flat = values.reshape(total, 3, -1, side, side)
    first = 0
    for t, h, w in sizes:
        patches = np.stack([several(patch) for patch in flat[first : first + t * h * w]])  # [P, 3, side, side]
        first += t * h * w
        square = 1 if grids is None or model.config.model_type in _ROW_BY_ROW else merge
        blocks = patches.reshape(t, h // square, w // square, square, square, 3, side, side)
        whole = blocks.transpose(5, 0, 1, 3, 6, 2, 4, 7).reshape(3, t * h * side, w * side)
        yield Unpacked(whole, t * h // merge, w // merge)


def _padded(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], values: np.ndarray, several: Several
) -> Iterator[Unpacked]:
    """``[images, patches, 3 * side * side]``, with ``spatial_shapes`` or ``image_position_ids``."""
    if values.ndim != 3:
        return
    shapes, places = inputs.get("spatial_shapes"), inputs.get("image_position_ids")
    side = math.isqrt(values.shape[-1] // 3)
    if shapes is not None:
        for patches, (rows, columns) in zip(values, shapes.tolist(), strict=True):
            yield Unpacked(as_image(patches, rows, columns), rows, columns)
    elif places is not None:
        for patches, xy in zip(values, places.numpy(), strict=True):
            yield _placed(patches, xy[:, 1], xy[:, 0], side)


def _numbered(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], values: np.ndarray, several: Several
) -> Iterator[Unpacked]:
    """``[images, patches, 2 + 3 * side * side]``: row and column, from 1, come first; 0 is padding."""
    places = inputs.get("flattened_patches")
    if places is None or values.shape != places.shape:
        return
    side = math.isqrt((values.shape[-1] - 2) // 3)
    for patches, each in zip(values, places, strict=True):
        rows, columns = each[:, 0].long().numpy() - 1, each[:, 1].long().numpy() - 1
        yield _placed(patches[:, 2:], rows, columns, side)


def _placed(patches: np.ndarray, rows: np.ndarray, columns: np.ndarray, side: int) -> Unpacked:
    """Patches, channels last, at the rows and columns that are not negative."""
    real = rows >= 0
    high, wide = int(rows[real].max()) + 1, int(columns[real].max()) + 1
    grid = np.zeros((high, wide, side, side, 3))
    grid[rows[real], columns[real]] = patches[real].reshape(-1, side, side, 3)
    return Unpacked(grid.transpose(4, 0, 2, 1, 3).reshape(3, high * side, wide * side), high, wide)


def _in_strips(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], values: np.ndarray, several: Several
) -> Iterator[Unpacked]:
    """``[1, 3, side, side * patches of all images]``, with ``target_sizes``."""
    sizes = inputs.get("target_sizes")
    if sizes is None or values.ndim != 4 or values.shape[-1] % values.shape[-2]:
        return
    side, first = values.shape[-2], 0
    for rows, columns in sizes.reshape(-1, 2).tolist():
        strip = values[0, :, :, first * side : (first + rows * columns) * side]
        first += rows * columns
        patches = strip.reshape(3, side, rows, columns, side).transpose(0, 2, 1, 3, 4)
        yield Unpacked(patches.reshape(3, rows * side, columns * side), rows, columns)
