"""A tiny random model for every image classifier and every image-text model of the installed transformers.

    model = build("image:vit")           # float64, eval mode, 5 labels, two blocks of width 32
    logits = model(**inputs(model)).logits  # [1, 5]

Weights are drawn as those of ``tiny``. ``zero_constants`` zeroes all that is added to activations, so that relevance at the
pixels adds up to the logit under LRP.
"""

from __future__ import annotations

import re
from typing import Any

import tiny
import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LABELS = 5

_VIT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
_DINO = {name: size for name, size in _VIT.items() if name != "intermediate_size"}
_TEXT: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 97,
    "max_position_embeddings": 16, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
}  # fmt: skip
_TOWERS = {"vision_config": _VIT, "text_config": _TEXT, "projection_dim": 24}
_SWIN = {"image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}
_STAGES: dict[str, Any] = {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 16, 32, 32]}
_PVT = {**_STAGES, "num_attention_heads": [1, 2, 2, 4], "mlp_ratios": [2, 2, 2, 2]}
_BEIT = {**_VIT, "use_relative_position_bias": True, "layer_scale_init_value": 0.1, "vocab_size": 11}
_LEVIT = {"hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "depths": [1, 1, 1], "key_dim": [8, 8, 8]}
_MOBILE = {"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 12, 16, 16, 16, 32], "num_attention_heads": 4}
_HIERA = {
    "embed_dim": 16,
    "image_size": [32, 32],
    "depths": [1, 2, 1],
    "num_heads": [1, 2, 4],
    "masked_unit_size": [4, 4],
}
_NAFLEX = {name: size for name, size in _VIT.items() if name != "image_size"} | {"num_patches": 16}
_PERCEIVER = {"num_latents": 16, "d_latents": 32, "d_model": 32, "num_blocks": 1, "num_self_attends_per_block": 2}

_EFFICIENT = {"width_coefficient": 0.2, "depth_coefficient": 0.3, "image_size": 64, "hidden_dim": 256}

SIZES: dict[str, dict[str, Any]] = {
    "align": {"text_config": _TEXT, "vision_config": _EFFICIENT, "projection_dim": 64},
    "beit": _BEIT,
    "bit": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_groups": 4},
    "clip": _TOWERS,
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "cvt": {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]},
    "data2vec-vision": _BEIT,
    "deit": _VIT,
    "dinov2": _DINO,
    "dinov2_with_registers": _DINO,
    "donut-swin": _SWIN,
    "efficientnet": _EFFICIENT,
    "focalnet": {
        "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [2, 2], "focal_levels": [2, 2], "focal_windows": [3, 3],
    },
    "hgnet_v2": {},
    "hiera": {**_HIERA, "query_stride": [2, 2], "num_query_pool": 2},
    "ijepa": _VIT,
    "imagegpt": {"vocab_size": 17, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "levit": {**_LEVIT, "image_size": 64, "attention_ratio": [2, 2, 2], "mlp_ratio": [2, 2, 2]},
    "metaclip_2": _TOWERS,
    "mobilenet_v1": {"depth_multiplier": 0.25, "image_size": 64},
    "mobilenet_v2": {"depth_multiplier": 0.25, "image_size": 64},
    "mobilevit": {**_MOBILE, "image_size": 64, "expand_ratio": 2.0},
    "mobilevitv2": {"image_size": 64, "width_multiplier": 0.25},
    "perceiver": {**_PERCEIVER, "num_self_attention_heads": 4, "num_cross_attention_heads": 1, "image_size": 16},
    "poolformer": _STAGES,
    "pvt": {**_PVT, "image_size": 32, "sequence_reduction_ratios": [4, 2, 1, 1]},
    "pvt_v2": {**_PVT, "image_size": 64},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8, "layer_type": "y"},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "segformer": {**_PVT, "decoder_hidden_size": 16},
    "siglip": _TOWERS,
    "siglip2": {**_TOWERS, "vision_config": _NAFLEX},
    "swiftformer": {"image_size": 64, "depths": [1, 1, 1, 1], "embed_dims": [16, 16, 32, 32]},
    "swin": _SWIN,
    "swinv2": _SWIN,
    "textnet": {"image_size": [64, 64]},
    "vit": _VIT,
    "vit_msn": _VIT,
}  # fmt: skip
"""Model type -> configuration values for a small one."""

_CLASSES: dict[str, str] = {}
for _type, _names in modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.items():
    _CLASSES[f"image:{_type}"] = _names if isinstance(_names, str) else _names[0]

for _type, _name in modeling_auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES.items():
    _CLASSES[f"score:{_type}"] = _name

_SKIPPED = {
    "score:videoprism": "reads videos",
    "image:dinat": "its attention is a kernel of the natten library",
    "image:pp_lcnet": "a ConvNet whose head in transformers returns no logits",
    "image:shieldgemma2": "a vision-language model that answers yes or no",
    "image:timm_wrapper": "the network of any model in the timm library",
}
SKIPPED: dict[str, str] = {family: reason for family, reason in _SKIPPED.items() if family in _CLASSES}
"""Family -> why it is not built."""

FAMILIES: list[str] = [family for family in _CLASSES if family.startswith("image:") and family not in SKIPPED]
"""Every other family of transformers' image classifiers, as ``image:<model type>``."""

SCORES: list[str] = [family for family in _CLASSES if family.startswith("score:") and family not in SKIPPED]
"""Families that score how well an image and a text fit, as ``score:<model type>``."""


def build(
    family: str, *, dtype: torch.dtype = torch.float64, zero: bool = False, seed: int = 0, **options: Any
) -> PreTrainedModel:
    """A tiny model of ``family`` in eval mode, the same for the same ``seed``.

    Args:
        family: One of ``FAMILIES``.
        dtype: Of the weights.
        zero: Apply ``zero_constants``.
        seed: Of the weights.
        options: More values for the configuration; ``attn_implementation`` for the model.
    """
    model_type = family.split(":")[1]
    chosen = {name: options.pop(name) for name in ("attn_implementation",) if name in options}
    with tiny._quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        labels = {"num_labels": LABELS} if family.startswith("image:") else {}
        sizes = SIZES.get(model_type, _TOWERS if family.startswith("score:") else {})
        config = CONFIG_MAPPING[model_type](**{**sizes, **labels, **options})
        model_class = getattr(transformers, _CLASSES[family])
        model = model_class._from_config(config, dtype=torch.float32, **chosen)
        tiny._draw(model, torch.Generator().manual_seed(seed))
        weights = model.state_dict()
        model = model_class._from_config(config, dtype=dtype, **chosen)
        model.load_state_dict(weights)
    if zero:
        zero_constants(model)
    return model.eval()


_ADDED = re.compile(
    r"cls_token|class_embedding|distillation_token|register_tokens?|mask_token|pos(ition)?_?emb|embed_positions|query_tokens|segment_emb|qformer.embeddings.word|running_mean$|newline|separator|image_(begin|end|sep)$|query_\d+|latent|positional_embedding"
)


def zero_constants(model: PreTrainedModel) -> PreTrainedModel:
    """Zero, in place, biases, positions, the means of batch norms and tokens of the model's own; returns ``model``."""
    tiny.zero_bias(model)
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if _ADDED.search(name) and tensor.is_floating_point():
                tensor.zero_()
    return model


def inputs(model: PreTrainedModel, batch: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random pixel values as the model reads them."""
    config, generator = model.config, torch.Generator().manual_seed(seed)
    if config.model_type == "siglip2":
        mask = torch.ones(batch, 16, dtype=torch.int64)
        values = torch.randn(batch, 16, 48, generator=generator).to(model.dtype)
        return {"pixel_values": values, "pixel_attention_mask": mask, "spatial_shapes": torch.tensor([[4, 4]] * batch)}
    size = getattr(getattr(config, "vision_config", config), "image_size", 64)
    side = size[0] if isinstance(size, list | tuple) else size
    return {"pixel_values": torch.randn(batch, 3, side, side, generator=generator).to(model.dtype)}
