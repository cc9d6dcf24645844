"""A tiny random model of every family of transformers that reads images and text, and one text with an image for each.

model = build("llava")
given = inputs(model)      # input_ids, pixel_values, ...: what a processor would return
"""

from __future__ import annotations

from typing import Any

import tiny
import transformers
from packaging.version import Version
from tiny_image_inputs import image_token, inputs
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

_WIDE = {"vision_config": {"out_hidden_size": 32}}
_WINDOW = {"window_size": 56, "out_hidden_size": 32}
_SMALL = {"vision_config": {"image_size": [56, 56]}}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
_GLM = {**_WIDE, "text_config": _MROPE}
_PINPOINTS = {"image_grid_pinpoints": [[64, 128], [128, 64], [128, 128]]}
_VQ = {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "latent_channels": 8, "embed_dim": 8}
_SAM = {
    "image_size": 64, "patch_size": 16, "window_size": 2, "global_attn_indexes": [1], "output_channels": 32, "mlp_dim": 48,
}  # fmt: skip
_INSERTED = {"image_token_id": 4, "insert_layer_id": 0, "vision_config": {"insert_layer_id": 0}}
_MUSE = {"out_hidden_size": 128, "projector_hidden_size": 32}
_QFORMER = {"num_query_tokens": 4, "image_token_index": 4, "qformer_config": {"encoder_hidden_size": 32}}
_KOSMOS = {"embed_dim": 32, "layers": 2, "attention_heads": 4}
_FEED = {"d_ff": 48, "d_kv": 8}
_LONG = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
OVERRIDES: dict[str, dict[str, Any]] = {
    "aria": {"projector_patch_to_query_dict": {4: 2}},
    "blip": {"text_config": {"encoder_hidden_size": 32}},
    "blip-2": _QFORMER,
    "chameleon": {
        "image_token_id": 4,
        "vq_config": {**_VQ, "num_embeddings": 10, "resolution": 32},
        "vocabulary_map": {"<image>": 4, **{f"IMGIMG{chr(65 + i)}Z": 40 + i for i in range(10)}},
    },
    "cohere2_vision": {"alignment_intermediate_size": 64},
    "cohere_compass": {
        "text_config": {
            "rope_parameters": {"full_attention": {**_MROPE["rope_parameters"], "mrope_section": [2, 1, 1]}}
        },
        **_WIDE,
    },
    "cosmos3_edge": {"text_config": _MROPE, "vision_config": {"num_patches": 16}, "projector_hidden_size": 32},
    "cosmos3_omni": _WIDE,
    "deepseek_vl_hybrid": {"high_res_vision_config": _SAM},
    "diffusion_gemma": {"text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}},
    "dots3_note": {
        "text_config": tiny._DOTS3,
        "vision_config": {"adapter_in_dim": 32, "adapter_out_dim": 32},
        "audio_config": {
            "adapter_out_dim": 32,
            "adapter_input_size": 32,
            "conv_output_size": 32,
            "downsample_hidden_size": 8,
        },
    },
    "emu3": {
        "image_token_id": 4,
        "vq_config": {**_VQ, "codebook_size": 10, "embed_dim": 4, "latent_channels": 4, "hidden_size": 32},
        "vocabulary_map": {
            "<image>": 4,
            "<|extra_200|>": 5,
            **{f"<|visual token {i:06d}|>": 40 + i for i in range(10)},
        },
    },
    "ernie4_5_vl_moe": {"text_config": {"moe_intermediate_size": [16, 8], **_MROPE}},
    "exaone4_5": {"vision_config": _WINDOW},
    "florence2": {
        "vision_config": {
            "depths": [1, 1],
            "patch_size": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [3, 1],
            "patch_prenorm": [False, True],
            "embed_dim": [16, 32],
            "num_heads": [2, 4],
            "num_groups": [2, 4],
            "window_size": 4,
            "projection_dim": 32,
        },
        "text_config": {"max_position_embeddings": 96},
    },
    "fuyu": {"patch_size": 8, "num_channels": 3},
    "gemma3": {"mm_tokens_per_image": 4},
    "gemma4": {"vision_config": {"pooling_kernel_size": 2, "patch_size": 4}},
    "gemma4_unified": {"vision_config": {"mm_embed_dim": 32, "output_proj_dims": 32, "mm_posemb_size": 16}},
    "glm5_next": {
        "vision_config": {"out_hidden_size": 32, "projection_intermediate_size": 48},
        "text_config": {"index_kpool": 2},
    },
    "glm4v": _GLM,
    "glm46v": _GLM,
    "glm4v_moe": {
        **_WIDE,
        "text_config": {
            "rope_parameters": {**_MROPE["rope_parameters"], "mrope_section": [1, 1, 2], "partial_rotary_factor": 1.0}
        },
    },
    "glm_ocr": _GLM,
    "glmga": _GLM,
    "granite4_vision": {
        **_PINPOINTS,
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [1],
        "qformer_config": {"hidden_size": 64, "encoder_hidden_size": 64},
        "vision_config": {"hidden_size": 64},
    },
    "granite_docling": {"vision_config": {"out_hidden_size": 32, "scale_factor": 2}},
    "hunyuan_vl": {"text_config": _MROPE, "vision_config": {"out_hidden_size": 32, "text_hidden_size": 32}},
    "hy_v4_vl": {"text_config": _MROPE, **_WIDE},
    "hyperclovax_vision_v2": {"vision_config": _WINDOW},
    "idefics": {"vision_config": {"embed_dim": 32}},
    "inkling2": {
        "vision_config": {"text_hidden_size": 32, "projection_hidden_dim": 32, "patch_size": 4, "posemb_grid_size": 4}
    },
    "inkling2_loop": {
        "vision_config": {"text_hidden_size": 32, "projection_hidden_dim": 32, "patch_size": 4, "posemb_grid_size": 4}
    },
    "instructblip": _QFORMER,
    "instructblipvideo": _QFORMER,
    "internvl": _SMALL,
    "janus": {
        "vision_config": {"projection_dim": 32, "num_image_tokens": 16},
        "vq_config": {**_VQ, "num_embeddings": 10, "projection_dim": 32, "image_token_embed_dim": 32, "num_patches": 4},
    },
    "kimi_k25": {"projection_hidden_size": 32, "vision_config": {"pos_emb_height": 4, "pos_emb_width": 4}},
    "kosmos-2": {"latent_query_num": 4, "text_config": _KOSMOS},
    "kosmos-2.5": {"latent_query_num": 4, "text_config": _KOSMOS, "vision_config": {"patch_embed_hidden_size": 192}},
    "llama4": {
        "vision_config": {
            "intermediate_size": 128,
            "projector_input_dim": 32,
            "projector_output_dim": 32,
            "vision_output_dim": 32,
            "patch_size": 16,
        },
    },
    "llava_next": _PINPOINTS,
    "llava_next_video": _PINPOINTS,
    "llava_onevision": _PINPOINTS,
    "minicpm_ocr": _INSERTED,
    "minicpmv4_6": _INSERTED,
    "minicpmv4_7": _INSERTED,
    "minimax_m3_vl": {"projector_hidden_size": 48},
    "molmo2": {
        "vision_config": {"image_size": [32, 32], "patch_size": 8, "num_position_embeddings": 16, "head_dim": 8},
        "adapter_config": {"vision_feature_layer": [1, 0], "text_hidden_size": 32},
        **dict.fromkeys(
            ("image_patch_id", "image_start_token_id", "image_end_token_id", "low_res_image_start_token_id"), 4
        ),
    },
    "muse_glimmer": _MUSE,
    "muse_spark": {
        **_MUSE,
        "text_config": {"moe_hidden_size": 32},
        "audio_config": {"out_hidden_size": 32, "hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
    },
    "nemotron_h_omni": {
        "vision_config": {"video_temporal_patch_size": 2, "max_img_size": 64},
        "image_token_id": 4,
        "vision_hidden_size": 32,
        "projector_hidden_size": 32,
    },
    "paddleocr_vl": {"text_config": _MROPE},
    "paligemma": {"projection_dim": 32, "vision_config": {"projection_dim": 32}},
    "pix2struct": {
        "vision_config": {"patch_embed_hidden_size": 192, "d_ff": 48, "d_kv": 8},
        "text_config": {"d_ff": 48, "d_kv": 8},
    },
    "pp_formulanet": {
        "vision_config": {
            **_SAM,
            **{f"post_conv_{name}_channels": 32 for name in ("in", "mid", "out")},
            "decoder_hidden_size": 32,
            "patch_size": 8,
        },
    },
    "qianfan_ocr": _SMALL,
    "qwen2_5_vl": {"vision_config": _WINDOW},
    "qwen2_5_omni_thinker": {"vision_start_token_id": 6, "vision_config": _WINDOW, "text_config": _MROPE},
    "qwen3_5": _WIDE,
    "qwen3_5_moe": _WIDE,
    "qwen3_omni_moe_thinker": {
        "vision_start_token_id": 6,
        **_WIDE,
        "text_config": _MROPE,
        "audio_config": {"downsample_hidden_size": 8, "output_dim": 32},
    },
    "qwen3_vl_moe": _WIDE,
    "qwen4_exp": {**_WIDE, "text_config": tiny._QWEN4},
    "shieldgemma2": {"mm_tokens_per_image": 4},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4, "image_token_index": 4}},
    "vision-encoder-decoder": {**tiny._CROSSING, "encoder": {"patch_size": 16}},
    "step3p7": {"text_config": {"sliding_window": 5}},
    "unlimited_ocr": {
        "vision_config": {
            "sam_config": {**_SAM, "downsample_channels": [32, 32]},
            "encoder_config": {"image_size": 64, "patch_size": 16},
        }
    },
    "deepseek_ocr2": {
        "vision_config": {"sam_config": {**_SAM, "downsample_channels": [32, 32]}},
        "text_config": {
            "num_experts_per_tok": 2,
            "n_group": 1,
            "topk_group": 1,
            "mlp_layer_types": ["dense", "sparse"],
        },
    },
    "vipllava": {"vision_feature_layers": [-1, -2]},
}
"""Model type -> configuration values beside those of ``tiny.OVERRIDES``, without which a tiny model reads no images."""

_TIMM = "its image tower is a timm network, which is not installed"
NOT_BUILT: dict[str, str] = {
    name: reason
    for name, reason in {
        "apertus1p5": "its configuration cannot be made small: a part that reads sound has sizes of its own",
        **dict.fromkeys(("fast_vlm", "gemma3n", "perception_lm"), _TIMM),
        "inkling_mm_model": "needs scipy, which is not installed",
        "instructblipvideo": "reads videos",
        "llama4": "transformers 5.24 raises an error where it is given an image",
        "mistral4": "reads text alone",
    }.items()
    if name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
}
"""Model type -> why it is not tried with an image."""
PAIRS = ("florence2", "pix2struct", "pp_formulanet", "t5gemma2", "vision-encoder-decoder")
"""Encoder-decoder models."""
if Version(transformers.__version__) < Version("5.17"):
    _OLDER = ("emu3", "evolla", "fuyu", "glm46v", "glm4v", "pixtral", "qwen3_vl_moe", "video_llava")
    NOT_BUILT |= dict.fromkeys(_OLDER, "is built or given images in another way in older versions of transformers")
    NOT_BUILT["vision-encoder-decoder"] = "has no default configuration in older versions of transformers"

__all__ = ["NAMES", "NOT_BUILT", "OVERRIDES", "PAIRS", "build", "image_token", "inputs"]
NAMES: list[str] = list(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)


def build(name: str, **options: Any) -> Any:
    """A tiny model, as ``tiny.build``."""
    family = f"vision:{name}"
    tiny._CLASS_NAMES.setdefault(family, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[name])
    overrides = _joined(tiny.OVERRIDES.get(name, {}), OVERRIDES.get(name, {}))
    return tiny.build(family, overrides=overrides, **options)


def _joined(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    both = {key: _joined(a[key], b[key]) for key in a.keys() & b.keys() if isinstance(a[key], dict)}
    return {**a, **b, **both}
