"""What a processor would return for a text around one image, for the tiny models of ``tiny_image_text``.

Most families take pictures ``[1, 3, height, width]``, or a list of patches with its grid. ``FORMS`` has the others, each a few
lines. Where no token of the text stands for the image, the text is the same without.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

BEFORE, AFTER = [9, 10], [20, 21, 22]
Inputs = dict[str, torch.Tensor]


def vision_of(model: Any) -> Any:
    """The configuration of the part that reads images."""
    encoder = getattr(model.config, "encoder", None)  # of an encoder-decoder model
    return getattr(model.config, "vision_config", None) or getattr(encoder, "vision_config", encoder) or model.config


def _side(model: Any) -> int:
    size = getattr(vision_of(model), "image_size", 64)
    return size if isinstance(size, int) else size[0]


def _patch(model: Any) -> int:
    return getattr(vision_of(model), "patch_size", None) or model.config.patch_size


def _pictures(model: Any, g: torch.Generator, *lead: int) -> Inputs:
    return {
        "pixel_values": torch.randn(*(lead or (1,)), 3, _side(model), _side(model), generator=g, dtype=torch.float64)
    }


def _list(model: Any, g: torch.Generator, *, square: bool = False) -> Inputs:
    """4 x 4 patches."""
    vision, side = vision_of(model), _patch(model)
    channels = getattr(vision, "in_channels", getattr(vision, "in_chans", getattr(vision, "num_channels", 3)))
    frames = getattr(vision, "temporal_patch_size", getattr(vision, "patch_temporal", 1))
    shape = (16, 3, side, side) if square else (16, channels * frames * side**2)
    return {
        "pixel_values": torch.randn(shape, generator=g, dtype=torch.float64),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }


def _patches(model: Any, g: torch.Generator, side: int, **more: torch.Tensor) -> Inputs:
    """4 x 4 patches in a row."""
    return {"pixel_values": torch.randn(1, 16, 3 * side**2, generator=g, dtype=torch.float64), **more}


def _positions() -> torch.Tensor:
    return torch.stack([torch.arange(16) % 4, torch.arange(16) // 4], -1)[None]  # x, y


def _strips(model: Any, g: torch.Generator) -> Inputs:
    side = _patch(model)
    pixels = torch.randn(1, 3, side, 16 * side, generator=g, dtype=torch.float64)
    return {"pixel_values": pixels, "target_sizes": torch.tensor([[4, 4]])}


def _numbered(model: Any, g: torch.Generator, side: int) -> Inputs:
    places = _positions().flip(-1) + 1  # row, column, from 1
    values = torch.randn(1, 16, 3 * side**2, generator=g, dtype=torch.float64)
    return {"flattened_patches": torch.cat([places.double(), values], -1), "attention_mask": torch.ones(1, 16)}


def _mllama(model: Any, g: torch.Generator) -> Inputs:
    """Two tiles of an image, and place for a third."""
    tiles = vision_of(model).max_num_tiles
    found = _pictures(model, g, 1, 1, tiles)
    found["pixel_values"][:, :, 2:] = 0
    ratio = vision_of(model).supported_aspect_ratios.index([1, 2]) + 1
    mask = torch.tensor([[[int(n < 2) for n in range(tiles)]]])
    length = len(BEFORE) + 1 + len(AFTER)
    crossing = torch.zeros(1, length, 1, tiles, dtype=torch.int64)
    crossing[:, len(BEFORE) :, :, :2] = 1
    return {
        **found,
        "aspect_ratio_ids": torch.tensor([[ratio]]),
        "aspect_ratio_mask": mask,
        "cross_attention_mask": crossing,
    }


def _molmo(model: Any, g: torch.Generator) -> Inputs:
    """One crop of 4 x 4 patches, pooled two by two."""
    side = _patch(model)
    places = torch.arange(16).view(4, 4).unfold(0, 2, 2).unfold(1, 2, 2).reshape(4, 4)
    return {
        "pixel_values": torch.randn(1, 16, 3 * side**2, generator=g, dtype=torch.float64),
        "image_token_pooling": places,
        "image_grids": torch.tensor([[2, 2, 0, 0]]),
        "image_num_crops": torch.tensor([1]),
    }


def _hybrid(model: Any, g: torch.Generator) -> Inputs:
    side = model.config.high_res_vision_config.image_size
    high = torch.randn(1, 3, side, side, generator=g, dtype=torch.float64)
    return {**_pictures(model, g), "high_res_pixel_values": high}


def _blocks(model: Any, g: torch.Generator) -> Inputs:
    """2 x 2 blocks of patches, channels last."""
    side = _patch(model) * vision_of(model).spatial_merge_size
    pixels = torch.randn(4, side, side, 3, generator=g, dtype=torch.float64)
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 2, 2]])}


FORMS: dict[str, Callable[[Any, torch.Generator], Inputs]] = {
    "chameleon": lambda m, g: {"pixel_values": _pictures(m, g)["pixel_values"][..., :8, :8]},
    "deepseek_vl_hybrid": _hybrid,
    "emu3": lambda m, g: {
        "pixel_values": _pictures(m, g)["pixel_values"][..., :8, :8],
        "image_sizes": torch.tensor([[8, 8]]),
    },
    "fuyu": lambda m, g: _patches(m, g, _patch(m)),
    "gemma4": lambda m, g: _patches(m, g, _patch(m), image_position_ids=_positions()),
    "gemma4_unified": lambda m, g: _patches(m, g, 48, image_position_ids=_positions()),
    "idefics": lambda m, g: {
        **_pictures(m, g, 1, 1),
        "image_attention_mask": torch.ones(1, len(BEFORE) + len(AFTER), 1, dtype=torch.int64),
    },
    "instructblip": lambda m, g: {**_pictures(m, g), **_question()},
    "instructblipvideo": lambda m, g: {**_pictures(m, g, 1, 4), **_question()},
    **dict.fromkeys(("inkling2", "inkling2_loop"), _blocks),
    "kimi_k25": lambda m, g: _list(m, g, square=True),
    **dict.fromkeys(("kosmos-2.5", "pix2struct"), lambda m, g: _numbered(m, g, 8)),
    "lfm2_vl": lambda m, g: _patches(
        m,
        g,
        _patch(m),
        spatial_shapes=torch.tensor([[4, 4]]),
        pixel_attention_mask=torch.ones(1, 16, dtype=torch.int64),
    ),
    "minicpm_ocr": _strips,
    "minicpmv4_6": _strips,
    "minicpmv4_7": _strips,
    "mllama": _mllama,
    "molmo2": _molmo,
    "paddleocr_vl": lambda m, g: _list(m, g, square=True),
    "nemotron_h_omni": lambda m, g: {
        "pixel_values": torch.randn(16, 3 * _patch(m) ** 2, generator=g, dtype=torch.float64),
        "image_grid_hw": torch.tensor([[4, 4]]),
    },
    "video_llama_3": lambda m, g: {**_list(m, g), "image_merge_sizes": torch.tensor([2])},
    **dict.fromkeys(
        ("llava_next", "llava_next_video", "llava_onevision", "granite4_vision"), lambda m, g: _pictures(m, g, 1, 3)
    ),
    **dict.fromkeys(("idefics2", "idefics3", "smolvlm"), lambda m, g: _pictures(m, g, 1, 1)),
    "granite_docling": lambda m, g: {
        **_pictures(m, g, 1, 1),
        "pixel_attention_mask": torch.ones(1, 1, dtype=torch.bool),
    },
}
"""Model type -> its images, where they are in a form of their own."""


def _question() -> Inputs:
    return {
        "qformer_input_ids": torch.tensor([[9, 10, 11]]),
        "qformer_attention_mask": torch.ones(1, 3, dtype=torch.int64),
    }


COUNTS = {
    "instructblip": 4, "instructblipvideo": 16, "blip-2": 4, "kosmos-2": 4, "kosmos-2.5": 4, "mllama": 1,
    **dict.fromkeys(("blip", "evolla", "git", "idefics", "udop", "pix2struct", "pp_formulanet", "vision-encoder-decoder"), 0),
    **dict.fromkeys(("diffusion_gemma", "pi0"), 4),
}  # fmt: skip
"""Model type -> how many tokens of the text stand for the image, where the model does not say."""


def inputs(model: Any, seed: int = 0) -> Inputs:
    """A text around one image."""
    generator = torch.Generator().manual_seed(seed)
    takes = inspect.signature(model.forward).parameters
    kind = model.config.model_type
    if kind in FORMS:
        found = FORMS[kind](model, generator)
    elif "image_grid_thw" in takes:
        found = _list(model, generator)
    else:
        found = _pictures(model, generator)
    owner = getattr(model, "get_image_features", None)
    if owner is not None and "image_sizes" in takes and "image_sizes" in inspect.signature(owner).parameters:
        shape = found["pixel_values"].shape
        found["image_sizes"] = torch.tensor([[shape[-2], shape[-1] * (1 + (len(shape) > 4))]])
    count = COUNTS[kind] if kind in COUNTS else features(model, found)
    return _with_text(model, found, count, takes)


def image_token(model: Any) -> int:
    """The id that stands for a piece of an image."""
    names = ("image_token_id", "image_token_index", "image_patch_id")
    return next((i for name in names if isinstance(i := getattr(model.config, name, None), int)), 7)


def _with_text(model: Any, found: Inputs, count: int, takes: Any) -> Inputs:
    image = image_token(model)
    ids = [*BEFORE, *[image] * count, *AFTER]
    kinds = torch.tensor([[int(len(BEFORE) <= n < len(BEFORE) + count) for n in range(len(ids))]])
    text = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones_like(kinds)}
    found.pop("attention_mask", None)
    for name in ("mm_token_type_ids", "image_embeds_position_mask"):
        if name in takes:
            text[name] = kinds
    if "token_type_ids" in takes:
        text["token_type_ids"] = kinds if "gemma3" in model.config.model_type else torch.zeros_like(kinds)
    return text | found


def features(model: Any, images: Inputs) -> int:
    """How many tokens the images become."""
    owner = model if hasattr(model, "get_image_features") else model.model
    with torch.no_grad():
        found = owner.get_image_features(**images)
    if not isinstance(found, torch.Tensor | tuple | list):
        pooled = getattr(found, "pooler_output", None)
        last = getattr(found, "last_hidden_state", None)
        found = pooled if pooled is not None else last if last is not None else found.deepstack_features[0][1]
    parts = found if isinstance(found, tuple | list) else [found]
    return sum(part.numel() // part.shape[-1] for part in parts)
