"""A tiny random model of every family of transformers that reads images and text, and one text with an image for each.

model = build("llava")
given = inputs(model)      # input_ids, pixel_values, ...: what a processor would return
"""

from __future__ import annotations

import inspect
from typing import Any

import tiny
import torch
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

_WIDE = {"vision_config": {"out_hidden_size": 32}}
_WINDOW = {"window_size": 56, "fullatt_block_indexes": [0]}
_GLM = {
    **_WIDE,
    "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
}
OVERRIDES: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {4: 2}},
    "cosmos3_omni": _WIDE,
    "exaone4_5": {"vision_config": {**_WINDOW, "out_hidden_size": 32}},
    "gemma3": {"mm_tokens_per_image": 4},
    "glm4v": _GLM,
    "glm46v": _GLM,
    "glm4v_moe": _WIDE,
    "glm_ocr": _GLM,
    "glmga": _GLM,
    "hyperclovax_vision_v2": {"vision_config": {**_WINDOW, "out_hidden_size": 32}},
    "llava_next": {"image_grid_pinpoints": [[64, 128], [128, 64], [128, 128]]},
    "llava_next_video": {"image_grid_pinpoints": [[64, 128], [128, 64], [128, 128]]},
    "llava_onevision": {"image_grid_pinpoints": [[64, 128], [128, 64], [128, 128]]},
    "paligemma": {"projection_dim": 32, "vision_config": {"projection_dim": 32}},
    "qwen2_5_vl": {"vision_config": {**_WINDOW, "out_hidden_size": 32}},
    "qwen2_5_omni_thinker": {"vision_config": {**_WINDOW, "out_hidden_size": 32}},
    "qwen3_5": _WIDE,
    "qwen3_5_moe": _WIDE,
    "qwen3_omni_moe_thinker": _WIDE,
    "qwen3_vl_moe": {"vision_config": {"out_hidden_size": 32, "deepstack_visual_indexes": [0]}},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "vipllava": {"vision_feature_layers": [-1, -2]},
}
"""Model type -> configuration values beside those of ``tiny.OVERRIDES``, without which a tiny model reads no images."""

_NO_CONFIGURATION = "its sizes depend on one another, so the general approach builds no tiny configuration"
_TIMM = "its image tower is a timm network, which is not installed"
_PAIR = "an encoder-decoder model: its images go to the encoder"
_NO_TOKENS = "no tokens of the text stand for the image"
_OTHER_INPUTS = "its images are given in a form of its own, which is not made here"
_NO_IMAGE = "reads no images"
_NOT_BUILT = {
    **dict.fromkeys(
        (
            "apertus1p5 chameleon cohere_compass cosmos3_edge deepseek_ocr2 diffusion_gemma dots3_note emu3 ernie4_5_vl_moe "
            "glm4v_moe glm5_next granite4_vision granite_docling hunyuan_vl hy_v4_vl inkling2 inkling2_loop "
            "inkling_mm_model janus llama4 molmo2 muse_glimmer muse_spark nemotron_h_omni qwen2_5_omni_thinker "
            "qwen3_omni_moe_thinker qwen4_exp step3p7"
        ).split(),
        _NO_CONFIGURATION,
    ),
    **dict.fromkeys(("fast_vlm", "gemma3n", "perception_lm"), _TIMM),
    **dict.fromkeys(("florence2", "pix2struct", "pp_formulanet", "t5gemma2", "udop", "vision-encoder-decoder"), _PAIR),
    **dict.fromkeys(
        ("blip", "blip-2", "git", "idefics", "instructblip", "instructblipvideo", "kosmos-2", "kosmos-2.5", "pi0"),
        _NO_TOKENS,
    ),
    **dict.fromkeys(
        "deepseek_vl_hybrid fuyu gemma4 gemma4_unified kimi_k25 lfm2_vl minicpm_ocr minicpmv4_6 minicpmv4_7 mllama paddleocr_vl "
        "unlimited_ocr video_llama_3".split(),
        _OTHER_INPUTS,
    ),
    **dict.fromkeys(("evolla", "mistral4"), _NO_IMAGE),
}
NOT_BUILT: dict[str, str] = {
    name: reason for name, reason in _NOT_BUILT.items() if name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
}
"""Model type -> why it is not tried with an image."""

NAMES: list[str] = list(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
BEFORE, AFTER = [9, 10], [20, 21, 22]


def build(name: str, **options: Any) -> Any:
    """A tiny model, as ``tiny.build``."""
    family = f"vision:{name}"
    tiny._CLASS_NAMES.setdefault(family, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[name])
    known = dict(tiny.OVERRIDES)
    try:
        tiny.OVERRIDES[name] = _joined(known.get(name, {}), OVERRIDES.get(name, {}))
        tiny.VISION.append(family)
        return tiny.build(family, **options)
    finally:
        tiny.VISION.remove(family)
        tiny.OVERRIDES.clear()
        tiny.OVERRIDES.update(known)


def _joined(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    both = {key: _joined(a[key], b[key]) for key in a.keys() & b.keys() if isinstance(a[key], dict)}
    return {**a, **b, **both}


def image_token(model: Any) -> int:
    """The id that stands for a piece of an image."""
    names = ("image_token_id", "image_token_index")
    return next(i for name in names if isinstance(i := getattr(model.config, name, None), int))


def inputs(model: Any, seed: int = 0) -> dict[str, torch.Tensor]:
    """A text around one image, as the model's processor would return it."""
    generator = torch.Generator().manual_seed(seed)
    takes = inspect.signature(model.forward).parameters
    vision = getattr(model.config, "vision_config", model.config)
    found: dict[str, torch.Tensor] = {}
    if "image_grid_thw" in takes:
        channels = getattr(vision, "in_channels", getattr(vision, "in_chans", getattr(vision, "num_channels", 3)))
        width = channels * getattr(vision, "temporal_patch_size", 1) * vision.patch_size**2
        found["pixel_values"] = torch.randn(16, width, generator=generator, dtype=torch.float64)
        found["image_grid_thw"] = torch.tensor([[1, 4, 4]])
    else:
        side = vision.image_size if isinstance(vision.image_size, int) else vision.image_size[0]
        tiles = {"llava_next": 3, "llava_next_video": 3, "llava_onevision": 3}.get(model.config.model_type, 1)
        shape = (1, 3, side, side)
        if tiles > 1 or model.config.model_type in ("idefics2", "idefics3", "smolvlm"):
            shape = (1, tiles, *shape[1:])  # [texts, tiles, ...]
        found["pixel_values"] = torch.randn(shape, generator=generator, dtype=torch.float64)
        if "image_sizes" in takes and "image_sizes" in inspect.signature(model.get_image_features).parameters:
            found["image_sizes"] = torch.tensor([[side, side * (1 + (tiles > 1))]])
    return _with_text(model, found, takes)


def _with_text(model: Any, found: dict[str, torch.Tensor], takes: Any) -> dict[str, torch.Tensor]:
    image, count = image_token(model), features(model, found)
    ids = [*BEFORE, *[image] * count, *AFTER]
    kinds = torch.tensor([[int(i == image) for i in ids]])
    text = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones_like(kinds)}
    if "mm_token_type_ids" in takes:
        text["mm_token_type_ids"] = kinds
    if "token_type_ids" in takes:
        text["token_type_ids"] = kinds if "gemma3" in model.config.model_type else torch.zeros_like(kinds)
    return text | found


def features(model: Any, images: dict[str, torch.Tensor]) -> int:
    """How many tokens the images become."""
    owner = model if hasattr(model, "get_image_features") else model.model
    with torch.no_grad():
        found = owner.get_image_features(**images)
    found = getattr(found, "pooler_output", found)
    parts = found if isinstance(found, tuple | list) else [found]
    return sum(part.numel() // part.shape[-1] for part in parts)
