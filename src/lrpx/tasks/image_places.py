"""Where the patches of an image stand among the tokens, by the way in which a family lays them out.

- A grid per image (Qwen-VL and its relatives): merged patches, ``image_grid_thw``.
- Sizes in pixels (Pixtral, Mistral 3): ``image_sizes``, with a token at the end of each row.
- A small whole image, then its tiles with a token at the end of each row (LLaVA-NeXT), or all that its crops show (Molmo 2).
- Patches in the order of rows, some merged into one (LFM2-VL, Gemma 4, MiniCPM-V); in Hunyuan's with a token at the end of each
  row, and others around the image.
- Equal squares, one for each image or tile that the model is given (LLaVA, PaliGemma, Gemma 3, SmolVLM, InternVL).

Tokens that a resampler or Q-Former mixes of the whole image have no place in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..results.images import ImagePatches
from .pictures import as_seen, png_of
from .pixel_maps import unpacked_pictures

_MEAN_FIRST = frozenset({"florence2"})
"""Model types whose first token of an image is the mean of all its patches, which follow it."""
_TILE = re.compile(r"row_(\d+)_col_(\d+)")
_MIXES = re.compile(r"(?<!VariableResolution)Resampler|Q-?Former|Perceiver|AbstractorModel|ImageToTextProjection")


class _Grid(NamedTuple):
    """The places of an image's patches: which of its tokens each is, row by row."""

    rows: int
    columns: int
    places: Sequence[int]  # among all tokens of images
    picture: Any
    name: str = ""


def image_patches(
    model: PreTrainedModel,
    ids: Sequence[int],
    inputs: Mapping[str, Tensor],
    image_processor: Any,
    pictures: Sequence[Any],
    pieces: Sequence[str] = (),
    extras: Mapping[str, Sequence[int]] | None = None,
) -> tuple[ImagePatches, ...] | None:
    """The images of a text, or ``None`` where their tokens have no places that are known.

    Args:
        model: The one that reads them.
        ids: T token ids.
        inputs: What the processor made of the images.
        image_processor: That of the model, or ``None``.
        pictures: The images as they were given, if they were.
        extras: Per-token inputs.
        pieces: The T raw tokens: those of tiles are told by the one before them, ``<row_1_col_2>``.
    """
    tokens = image_tokens(model, ids, extras)
    if not tokens or any(_MIXES.search(type(module).__name__) for module in model.modules()):
        return None
    for layout in (_told_grids, _told_sizes, _whole_and_tiles, _whole_and_crops, _equal_squares, _merged):
        grids = list(layout(model, inputs, image_processor, pictures, len(tokens)))
        if grids and sum(len(set(grid.places)) for grid in grids) <= len(tokens):
            break
    else:
        return None
    if pieces:
        before = [_TILE.search(pieces[max(0, tokens[grid.places[0]] - 1)]) for grid in grids]
        grids = _put_together(grids, [found and (int(found[1]), int(found[2])) for found in before])
    found = []
    for grid in grids:
        order = tuple(tokens[place] for place in grid.places)
        start, count = order[0], grid.rows * grid.columns
        order = () if order == tuple(range(start, start + count)) else order
        found.append(ImagePatches(start, grid.rows, grid.columns, *png_of(grid.picture), order, grid.name))
    return tuple(found)


def _put_together(grids: Sequence[_Grid], labels: Sequence[tuple[int, int] | None]) -> list[_Grid]:
    """Tiles whose row and column are known as one image each, beside the whole image that follows them."""
    count = sum(label is None for label in labels)
    found: list[_Grid] = []
    tiles: dict[tuple[int, int], _Grid] = {}
    for grid, label in zip(grids, labels, strict=True):
        if label is not None:
            tiles[label] = grid
            continue
        if tiles:
            name = "image, " if count == 1 else f"image {1 + sum('whole' in known.name for known in found)}, "
            found += _one_of_tiles(tiles, f"{name}in detail")
            grid = grid._replace(name=f"{name}whole")
        found.append(grid)
        tiles = {}
    return [*found, *tiles.values()]


def _one_of_tiles(tiles: Mapping[tuple[int, int], _Grid], name: str) -> list[_Grid]:
    """The tiles as one grid; as they are where one is missing or of another size."""
    rows, columns = (max(place) for place in zip(*tiles, strict=True))
    sizes = {(tile.rows, tile.columns, tile.picture.size) for tile in tiles.values()}
    if len(tiles) != rows * columns or len(sizes) > 1:
        return list(tiles.values())
    [(high, wide, (width, height))] = sizes
    picture = tiles[1, 1].picture.resize((columns * width, rows * height))
    for (row, column), tile in tiles.items():
        picture.paste(tile.picture, ((column - 1) * width, (row - 1) * height))
    order = [
        tiles[row + 1, column + 1].places[inner * wide + place]
        for row in range(rows)
        for inner in range(high)
        for column in range(columns)
        for place in range(wide)
    ]
    return [_Grid(rows * high, columns * wide, order, picture, name)]


def image_tokens(
    model: PreTrainedModel, ids: Sequence[int], extras: Mapping[str, Sequence[int]] | None = None
) -> list[int]:
    """Which of the tokens stand for images: by their ids, or by the per-token input that says so (Kosmos-2)."""
    mask = (extras or {}).get("image_embeds_position_mask")
    if mask is not None:
        return [n for n, here in enumerate(mask) if here == 1]  # -1: the image begins or ends (Kosmos-2.5)
    names = ("image_token_id", "image_token_index", "image_patch_id")
    wanted = next((i for name in names if isinstance(i := getattr(model.config, name, None), int)), None)
    return [n for n, i in enumerate(ids) if i == wanted]


def _told_grids(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], processor: Any, pictures: Sequence[Any], count: int
) -> Iterator[_Grid]:
    """``image_grid_thw``: rows and columns of patches, ``merge`` times ``merge`` of which are a token."""
    grids = inputs.get("image_grid_thw")
    if grids is None:
        return
    sizes = [[int(n) for n in grid] for grid in grids.reshape(-1, 3)]
    merge = math.isqrt(max(1, sum(t * h * w for t, h, w in sizes) // max(1, count)))
    if sum(t * h * w for t, h, w in sizes) != count * merge**2 or any(h % merge or w % merge for _, h, w in sizes):
        return
    place = 0
    given = pictures if inputs["pixel_values"].ndim < 4 else ()  # blocks of pixels cover more than the picture
    seen = [] if given else unpacked_pictures(model, inputs)
    for n, (frames, high, wide) in enumerate(sizes):
        rows, columns = frames * high // merge, wide // merge
        if n < len(given):
            picture = given[n]
        else:
            known = len(seen) == len(sizes)
            picture = as_seen(torch.from_numpy(seen[n].pixels) if known else torch.zeros(3, high, wide), processor)
        yield _Grid(rows, columns, range(place, place + rows * columns), picture)
        place += rows * columns


def _told_sizes(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], processor: Any, pictures: Sequence[Any], count: int
) -> Iterator[_Grid]:
    """``image_sizes`` in pixels; tokens for the ends of rows are others than those of the image."""
    sizes, pixels = inputs.get("image_sizes"), inputs.get("pixel_values")
    vision: Any = getattr(model.config, "vision_config", None)
    if sizes is None or pixels is None or pixels.ndim != 4 or not isinstance(getattr(vision, "patch_size", None), int):
        return
    side = vision.patch_size * getattr(model.config, "spatial_merge_size", 1)
    grids = [(int(high) // side, int(wide) // side) for high, wide in sizes.reshape(-1, 2)]
    if sum(rows * columns for rows, columns in grids) != count or len(grids) != len(pixels):
        return
    place = 0
    for (rows, columns), seen in zip(grids, pixels, strict=True):
        picture = as_seen(seen[:, : rows * side, : columns * side], processor)
        yield _Grid(rows, columns, range(place, place + rows * columns), picture)
        place += rows * columns


def _whole_and_tiles(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], processor: Any, pictures: Sequence[Any], count: int
) -> Iterator[_Grid]:
    """LLaVA-NeXT: the whole image in a square, then its tiles without their padding, with a token at the end of each row."""
    points, sizes = getattr(model.config, "image_grid_pinpoints", None), inputs.get("image_sizes")
    pixels = inputs.get("pixel_values")
    vision: Any = getattr(model.config, "vision_config", None)
    if not points or sizes is None or pixels is None or pixels.ndim != 5 or not hasattr(vision, "image_size"):
        return
    from transformers.image_processing_utils import select_best_resolution

    base = vision.image_size // vision.patch_size
    place, several, grids = 0, len(sizes) > 1, []
    for n, (high, wide) in enumerate(sizes.tolist()):
        best = select_best_resolution((high, wide), points)
        rows, columns = (base * (side // vision.image_size) for side in best)
        # As the model's own ``unpad_image``.
        if wide / high > columns / rows:
            rows -= 2 * ((rows - int(round(high * (columns / wide), 7))) // 2)
        else:
            columns -= 2 * ((columns - int(round(wide * (rows / high), 7))) // 2)
        picture = pictures[n] if n < len(pictures) else as_seen(pixels[n, 0], processor)
        name = f"image {n + 1}, " if several else "image, "
        grids.append(_Grid(base, base, range(place, place + base**2), picture, f"{name}whole"))
        place += base**2
        order = [place + row * (columns + 1) + column for row in range(rows) for column in range(columns)]
        grids.append(_Grid(rows, columns, order, picture, f"{name}in detail"))
        place += rows * (columns + 1)
    if place == count:
        yield from grids


def _whole_and_crops(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], processor: Any, pictures: Sequence[Any], count: int
) -> Iterator[_Grid]:
    """Molmo 2: ``image_grids``, rows and columns of pooled patches of the whole image in a square, and of all crops together."""
    sizes = inputs.get("image_grids")
    seen = [] if sizes is None else unpacked_pictures(model, inputs)
    if sizes is None or not seen or int((sizes[:, 0] * sizes[:, 1] + sizes[:, 2] * sizes[:, 3]).sum()) != count:
        return
    crops = inputs["image_num_crops"].tolist()
    place = 0
    for n, size in enumerate(sizes.tolist()):
        picture = (
            pictures[n] if n < len(pictures) else as_seen(torch.from_numpy(seen[sum(crops[:n])].pixels), processor)
        )
        name = f"image {n + 1}, " if len(sizes) > 1 else "image, "
        for (rows, columns), what in zip((size[:2], size[2:]), ("whole", "in detail"), strict=True):
            if rows * columns:
                yield _Grid(rows, columns, range(place, place + rows * columns), picture, f"{name}{what}")
            place += rows * columns


def _equal_squares(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], processor: Any, pictures: Sequence[Any], count: int
) -> Iterator[_Grid]:
    """As many tokens for each image or tile that the model is given, in the order of the rows of a square."""
    pixels = inputs.get("pixel_values")
    if pixels is None or pixels.ndim not in (4, 5) or pixels.shape[-3] not in (1, 3):
        return
    seen = [each for each in pixels.flatten(0, -4) if bool(torch.as_tensor(each != 0).any())]  # padding is all 0
    each, rest = divmod(count, len(seen)) if seen else (0, 1)
    before = int(model.config.model_type in _MEAN_FIRST)
    side = math.isqrt(max(0, each - before))
    if rest or not side or side * side != each - before or pixels.shape[-1] != pixels.shape[-2]:
        return
    tiles = len(seen) > 1 and (len(seen) != len(pictures) if pictures else pixels.ndim == 5)
    for n, image in enumerate(seen):
        name = f"tile {n + 1}" if tiles else ""
        yield _Grid(side, side, range(n * each + before, (n + 1) * each), as_seen(image, processor), name)


def _merged(
    model: PreTrainedModel, inputs: Mapping[str, Tensor], processor: Any, pictures: Sequence[Any], count: int
) -> Iterator[_Grid]:
    """As many patches on each side merged into one token, in the order of rows; in Hunyuan's with others at the ends."""
    seen = unpacked_pictures(model, inputs)
    merge = max(1, math.isqrt(sum(each.rows * each.columns for each in seen) // count))
    if any(each.rows % merge or each.columns % merge for each in seen):
        return
    sizes = [(each.rows // merge, each.columns // merge) for each in seen]
    for ends, around in ((0, 0), (1, 0), (1, 1)):  # tokens at the end of each row; before the image, and after it
        if sum(rows * (columns + ends) + 2 * around for rows, columns in sizes) == count:
            break
    else:
        return
    place = 0
    for (rows, columns), each in zip(sizes, seen, strict=True):
        place += around
        order = [place + row * (columns + ends) + column for row in range(rows) for column in range(columns)]
        yield _Grid(rows, columns, order, as_seen(torch.from_numpy(each.pixels), processor))
        place += rows * (columns + ends) + around
