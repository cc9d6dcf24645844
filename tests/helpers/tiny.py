"""A tiny random model for every causal and masked language model family of the installed transformers.

Nothing is downloaded. 1. Make the family's default configuration. 2. Shrink it: every size is looked up by name in
``SIZES``, every per-layer list is cut to one layer of each kind, special token ids move below ``FIRST_TEXT_ID``;
``OVERRIDES`` holds what a family needs beyond that. 3. Draw all weights from a seeded normal distribution, wide enough
that attention is far from uniform, activations bend and every bias matters.

    model = build("causal:llama")          # float64, eval mode, two or three layers of width 32
    logits = model(**inputs(model)).logits  # [1, 9, 97]

``masked:perceiver`` predicts all its 64 positions however short the input is; every other family predicts one per token.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)
from transformers.pytorch_utils import Conv1D

VOCABULARY = 97
FIRST_TEXT_ID = 8  # ids below are left to padding, beginning, end, mask, image and other special tokens

_CLASS_NAMES = {f"causal:{name}": cls for name, cls in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
_CLASS_NAMES |= {f"masked:{name}": cls for name, cls in MODEL_FOR_MASKED_LM_MAPPING_NAMES.items()}

_DRAFTER = "a drafter for speculative decoding: reads the target model's hidden states, keys and values, not tokens"
_SKIPPED = {
    "causal:gemma3n": "its image tower is a full-size timm network; the text model is causal:gemma3n_text",
    "causal:gemma4_assistant": _DRAFTER,
    "causal:gemma4_unified_assistant": _DRAFTER,
    "masked:mra": "its attention is a CUDA kernel from the Hub; without it transformers returns zeros",
}
SKIPPED: dict[str, str] = {family: reason for family, reason in _SKIPPED.items() if family in _CLASS_NAMES}
"""Family -> why it is not built."""

FAMILIES: list[str] = [family for family in _CLASS_NAMES if family not in SKIPPED]
"""Every other family of the two mappings, as ``causal:<model type>`` or ``masked:<model type>``."""

_VISION = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "mistral3", "paligemma", "smolvlm", "mllama")
VISION: list[str] = [f"vision:{name}" for name in _VISION if name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES]
_CLASS_NAMES |= {family: MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[family.split(":")[1]] for family in VISION}
"""Some families that read images too, as ``vision:<model type>``."""

_PAIRS = {
    "text2text": MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "speech2text": MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}
PAIRS: list[str] = [f"{kind}:{name}" for kind, table in _PAIRS.items() for name in table]
_CLASS_NAMES |= {f"{kind}:{name}": cls for kind, table in _PAIRS.items() for name, cls in table.items()}
"""Families of encoder-decoder models; transformers lists among them some that read sound and have no decoder of their own."""

_RECURRENT = """
bailing_hybrid bamba falcon_h1 falcon_mamba granitemoehybrid jamba kimi_linear lara_mini lfm2 lfm2_moe lfm3 mamba mamba2
minimax nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_next qwen4_exp qwen4_exp_text
recurrent_gemma rwkv xlstm zamba zamba2
"""
STATE_SPACE: set[str] = {family for family in FAMILIES if family.split(":")[1] in _RECURRENT.split()}
"""Families that mix tokens by a state-space model, linear attention, a recurrence or (LFM) a short convolution."""

_SCANS = """
bamba falcon_h1 falcon_mamba granitemoehybrid jamba mamba mamba2 nemotron_h recurrent_gemma zamba zamba2
"""
SELECTIVE: set[str] = {family for family in STATE_SPACE if family.split(":")[1] in _SCANS.split()}
"""Those of them that have a scan (``recognition/mixers.py``)."""
LINEAR_ATTENTION: set[str] = STATE_SPACE - SELECTIVE
"""The others (``recognition/linear_attention.py``)."""

FLOAT32_ONLY: dict[str, str] = {
    "vision:kosmos-2": "fills its mask with float64's smallest number through a float32 tensor",
    "text2text:fsmt": "fills its mask with float64's smallest number through a float32 tensor",
    "text2text:led": "makes NaN of a float64 mask in its softmax, which is in float32",
    "causal:xglm": "clamps scores with a float32 tensor that cannot hold float64's smallest number",
    "causal:xlnet": "multiplies by positions that it always makes in float32",
}
"""Families that transformers itself cannot run in float64 -> why; ``build`` makes them in float32."""

if Version(transformers.__version__) < Version("5.17"):
    _MASK = "fills its mask with float64's smallest number through a float32 tensor"
    _MASKED = ("causal:mpt", "causal:mvp", "causal:trocr", "masked:mvp", "speech2text:speecht5")
    _MASKED += tuple(f"text2text:{name}" for name in ("mvp", "seamless_m4t", "seamless_m4t_v2"))
    FLOAT32_ONLY |= dict.fromkeys(_MASKED, _MASK)
    PAIRS.remove("text2text:encoder-decoder")  # has no default configuration there
    PAIRS.remove("speech2text:speech-encoder-decoder")

# Values of size-like configuration fields, by name.
_NAMES_BY_SIZE = {
    97: "vocab_size decoder_vocab_size unpadded_vocab_size vocab_size_per_layer_input shape_vocab_size "
    "pronunciation_vocab_size",
    64: "max_position_embeddings n_positions n_ctx max_seq_len context_length max_target_positions model_max_length "
    "max_source_positions rel_extent mamba_d_ssm max_2d_position_embeddings image_size "
    "encoder_hash_byte_group_vocab",
    48: "intermediate_size moe_intermediate_size decoder_ffn_dim encoder_ffn_dim ffn_dim ffn_hidden_size n_inner "
    "expert_ffn_hidden_size dff dim_ff hidden_dim d_inner feed_forward_size intermediate_size_mlp mlp_dim "
    "shared_intermediate_size dense_intermediate_size shared_expert_intermediate_size prefix_dense_intermediate_size "
    "moe_shared_expert_intermediate_size shared_experts_intermediate_size speech_encoder_intermediate_size",
    32: "hidden_size d_model n_embd dim emb_dim embedding_size embedding_dim input_embedding_size lru_width "
    "output_embedding_size word_embed_proj_dim attention_hidden_size prediction_head_size pooler_hidden_size d_latents "
    "true_hidden_size output_channels hidden_size_global",
    16: "kv_lora_rank q_lora_rank o_lora_rank hidden_size_per_layer_input laurel_rank entity_emb_size entity_vocab_size "
    "shape_embed_dim pronunciation_embed_dim mamba_d_head mamba_head_dim intra_bottleneck_size adapter_rank d_rel "
    "loop_gate_rank embedding_rank router_hidden_size gated_norm_rank hc_lowrank nemo_conv_channels ext_pw_out_channel "
    "depthwise_separable_out_channel num_latents chunk_size mamba_chunk_size segment_means_seq_len "
    "num_landmarks time_step_rank mamba_dt_rank dim_model_base",
    8: "head_dim qk_rope_head_dim qk_nope_head_dim v_head_dim d_head kv_channels swa_head_dim linear_key_head_dim "
    "linear_value_head_dim linear_head_dim dim_head attention_head_size index_head_dim mamba_d_state ssm_state_size "
    "state_size rotary_dim block_size",
    5: "sliding_window window_size attention_window_size local_attention sliding_window_size attention_chunk_size",
    4: "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads "
    "num_encoder_attention_heads num_decoder_attention_heads swa_num_attention_heads num_attention_heads_per_layer "
    "num_experts n_routed_experts num_local_experts moe_num_experts linear_num_value_heads linear_num_heads "
    "index_n_heads mamba_num_heads mamba_n_heads num_self_attention_heads num_cross_attention_heads index_topk "
    "index_block_size",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_encoder_layers num_blocks "
    "num_decoder_layers num_self_attends_per_block num_key_value_heads num_kv_heads kv_n_heads swa_num_key_value_heads "
    "linear_num_key_heads num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k top_k_experts "
    "zero_expert_num n_groups index_topk_blocks prompt_length num_kv_shared_layers speech_encoder_layers",
    1: "first_k_dense_replace n_group topk_group num_expert_group num_dense_layers mamba_ngroups num_codebooks n_shared_experts "
    "n_input_layers n_output_layers",
}
SIZES = {name: size for size, names in _NAMES_BY_SIZE.items() for name in names.split()}
_SET_IF_NONE = (
    "vocab_size",
    "head_dim",
    "num_key_value_heads",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
)
_DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "num_blocks", "depth")
_SOME_LAYERS = ("deepstack_visual_indexes", "fullatt_block_indexes")  # of a vision tower; here the first
_LAYER_KINDS = ("layer_types", "layers_block_type", "block_types", "attn_layers")

# Layers as indices into the family's kinds of layer, where one of each kind is not enough.
_LAYER_ORDER = {"dory": (0, 1, 0), **dict.fromkeys(("gemma3n_text", "gemma4_text", "zamba"), (0, 1, 0, 1))}

_CROSSING = {"decoder": {"is_decoder": True, "add_cross_attention": True}}
_INDEXER = {"n_heads": 2, "kv_heads": 1, "head_dim": 8, "budget": 4, "compress_ratio": 2}
_QWEN4: dict[str, Any] = {f"indexer_{name}": value for name, value in _INDEXER.items()}
_DOTS3: dict[str, Any] = {
    "num_key_value_heads": 4,
    "head_dim": 16,
    **{f"swa_{name}": 4 for name in ("num_attention_heads", "num_key_value_heads")},
    **{f"swa_{name}": 16 for name in ("q_lora_rank", "kv_lora_rank", "head_dim")},
    **{f"swa_{name}": 8 for name in ("qk_nope_head_dim", "v_head_dim")},
}
_GEMMA4_MOE = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 48}
_COMPRESSION = {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4}
_COMPASS_ROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}

_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}}
_QWEN_VISION = {"depth": 1, "embed_dim": 32, "hidden_size": 32, "out_hidden_size": 32, "num_heads": 4}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "big_bird": {"attention_type": "original_full"},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "blt": {"use_cache": False},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _COMPASS_ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 1e4, "clip_qkv": 8.0}, "ffn_config": {"ffn_hidden_size": 32}},
    "deepseek_v4": {"head_dim": 16, "compress_rates": _COMPRESSION},
    "dots3_note": _DOTS3,
    "dots3_note_text": _DOTS3,
    "encoder-decoder": _CROSSING,
    "esm": {"pad_token_id": 1, "mask_token_id": 3},
    "esmc": {"num_key_value_heads": 4},
    "funnel": {"block_sizes": (1, 1)},
    "gemma4": {"text_config": {"global_head_dim": 8, **_GEMMA4_MOE}},
    "gemma4_text": {"global_head_dim": 8, "num_kv_shared_layers": 2},
    "gemma4_unified": {"text_config": {"global_head_dim": 8}},
    "gemma4_unified_text": {"global_head_dim": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "led": {"attention_window": [4, 4]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"head_dim": 16},
    "mllama": {
        "text_config": {"cross_attention_layers": [1]},
        "vision_config": {"intermediate_layers_indices": [0], "vision_output_dim": 64, "num_global_layers": 1},
    },
    "mobilebert": {"embedding_size": 16},
    "neomme": {"head_dim": 16, "patch_size": 4},
    "phi4_multimodal": {"vision_config": {}, "audio_config": {}},  # None by default in transformers 5.0
    "qwen2_vl": {"text_config": _MROPE, "vision_config": _QWEN_VISION},
    "qwen2_5_vl": {"text_config": _MROPE, "vision_config": _QWEN_VISION},
    "qwen3_vl": {"text_config": _MROPE, "vision_config": _QWEN_VISION},
    "qwen4_exp": _QWEN4,
    "qwen4_exp_text": _QWEN4,
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {"axial_pos_embds_dim": (8, 24), "axial_pos_shape": (8, 8), "hash_seed": 0},
    "speech-encoder-decoder": _CROSSING,
    "xlstm": {"hidden_size": 64, "embedding_dim": 64, "qk_dim_factor": 1.0},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64, "attn_layer_period": 2, "attn_layer_offset": 0, "use_mamba_kernels": False},
    "zamba2": {"use_mem_rope": True},
    "zaya": {"num_experts_per_tok": 1},
}
"""Model type -> configuration values that the general approach misses; a dictionary changes a nested configuration."""


def build(
    family: str,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
    zero_biases: bool = False,
    attn_implementation: str | None = None,
    experts_implementation: str | None = None,
    overrides: dict[str, Any] | None = None,
) -> PreTrainedModel:
    """A tiny model of ``family`` in eval mode, the same for the same ``seed``.

    Args:
        family: One of ``FAMILIES``, ``VISION`` or ``PAIRS``, or another name in ``_CLASS_NAMES``.
        dtype: Of the weights. Families in ``FLOAT32_ONLY`` get float32 where float64 was asked for.
        seed: Of the weights.
        zero_biases: Apply ``zero_bias``.
        attn_implementation: ``None``: what transformers chooses, sdpa where the family has it.
        experts_implementation: ``None``: a loop over the experts in float64, which has no grouped product, and what
            transformers chooses otherwise.
        overrides: As ``configuration`` takes them.

    Raises:
        KeyError: ``family`` is skipped or unknown.
    """
    if family not in _CLASS_NAMES or family in SKIPPED:
        raise KeyError(f"{family!r} is not built: {SKIPPED.get(family, 'unknown family')}")
    if dtype == torch.float64 and family in FLOAT32_ONLY:
        dtype = torch.float32
    if experts_implementation is None and dtype == torch.float64:
        experts_implementation = "eager"
    options = {"attn_implementation": attn_implementation, "experts_implementation": experts_implementation}
    options = {name: value for name, value in options.items() if value is not None}
    if overrides is None and family not in PAIRS:  # of which some are not small
        model = copy.deepcopy(_built(family, dtype, seed, **options))
    else:
        model = _build(family, overrides, dtype, seed, **options)
    if zero_biases:
        zero_bias(model)
    return model


@functools.lru_cache(maxsize=512)
def _built(family: str, dtype: torch.dtype, seed: int, **options: str) -> PreTrainedModel:
    """A model to copy: tests change theirs. Hundreds of them take some 200 MB."""
    return _build(family, None, dtype, seed, **options)


def _build(
    family: str, overrides: dict[str, Any] | None, dtype: torch.dtype, seed: int, **options: str
) -> PreTrainedModel:
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model_class = getattr(transformers, _CLASS_NAMES[family])
        model = model_class._from_config(configuration(family, overrides), dtype=torch.float32, **options)
        _draw(model, torch.Generator().manual_seed(seed))
        if dtype != torch.float32:  # drawn once in float32, so that models of all types agree
            weights = model.state_dict()
            model = model_class._from_config(configuration(family, overrides), dtype=dtype, **options)
            model.load_state_dict(weights)
    return model.eval()


def inputs(model: PreTrainedModel, n_tokens: int = 9, batch: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random token ids ``[batch, n_tokens]``, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(FIRST_TEXT_ID, VOCABULARY, (batch, n_tokens), generator=generator)
    return {"input_ids": ids.to(model.device)}


def configuration(family: str, overrides: dict[str, Any] | None = None) -> PreTrainedConfig:
    """The tiny configuration of ``family``, of the class that transformers' auto classes choose.

    ``overrides``: instead of those of ``OVERRIDES`` for its model type.
    """
    with _quiet():
        return copy.deepcopy(_usual(family)) if overrides is None else _configuration(family, overrides)


@functools.cache
def _usual(family: str) -> PreTrainedConfig:
    return _configuration(family, OVERRIDES.get(family.split(":")[1], {}))


def _configuration(family: str, overrides: dict[str, Any]) -> PreTrainedConfig:
    kind, model_type = family.split(":")
    config_class = CONFIG_MAPPING[model_type]
    model_class = getattr(transformers, _CLASS_NAMES[family])
    changes = dict(overrides)
    if config_class.sub_configs and model_class.config_class is not config_class:
        parts = config_class.sub_configs
        config_class = model_class.config_class  # the text part of a multi-modal configuration
        if kind != "vision":  # glmga, which is another model type's class as a whole
            changes = {name: value for name, value in changes.items() if name not in parts}
    for flag in ("is_decoder", "causal"):
        if kind == "causal" and flag in _accepted(config_class):
            changes[flag] = True
    config = config_class(**_shrink(config_class(), changes, _LAYER_ORDER.get(model_type)))
    if not hasattr(config, "pad_token_id"):  # transformers 5.0 leaves it out of some classes, but their models read it
        config.pad_token_id = None
    return config


def _accepted(config_class: type[PreTrainedConfig]) -> list[str]:
    return list(inspect.signature(config_class.__init__).parameters)


def _shrink(config: PreTrainedConfig, changes: dict[str, Any], order: tuple[int, ...] | None = None) -> dict[str, Any]:
    """What to give the constructor of ``config``'s class for a small one; the class derives all the rest from it."""
    stored, alias = vars(config), config.attribute_map
    fields = {
        name: stored[alias.get(name, name)] for name in _accepted(type(config)) if alias.get(name, name) in stored
    }
    depth = next((fields[name] for name in _DEPTHS if fields.get(name)), None)
    kinds = {
        name: list(dict.fromkeys(values))
        for name, values in fields.items()
        if isinstance(values, list | tuple) and (name in _LAYER_KINDS or (depth and depth > 2 and len(values) == depth))
    }
    kinds = {name: values for name, values in kinds.items() if len(values) <= 5}  # more: not kinds but indices
    order = order or tuple(range(max([2, *map(len, kinds.values())])))
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if name in config.sub_configs and (value is not None or name in changes):
            part = config.sub_configs[name]() if value is None else value
            small[name] = {"model_type": part.model_type, **_shrink(part, changes.get(name, {}))}
        elif name in kinds:
            small[name] = type(value)(SIZES.get(name, kinds[name][min(i, len(kinds[name]) - 1)]) for i in order)
        elif name in _DEPTHS and value:
            small[name] = len(order)
        elif name in _SOME_LAYERS and value:
            small[name] = [0]
        elif name in SIZES and (name in _SET_IF_NONE if value is None else type(value) is int and value > 0):
            small[name] = SIZES[name]
        elif name.endswith(("token_id", "token_index")) and value is not None:
            small[name] = _special_id(name, value)
    if fields.get("kv_lora_rank") and "num_key_value_heads" in small:
        small["num_key_value_heads"] = SIZES["num_attention_heads"]  # latent attention shares no heads
    return small | {name: value for name, value in changes.items() if name not in config.sub_configs}


def _special_id(name: str, value: int | list[int]) -> int:
    """Where a special token goes: its own id if that is small, otherwise one below ``FIRST_TEXT_ID`` by its name."""
    if isinstance(value, int) and 0 <= value < FIRST_TEXT_ID:
        return value
    known = ("pad", "bos", "eos", "mask", "image", "audio", "video")
    kind = name.split("_")[0]
    return known.index(kind) if kind in known else FIRST_TEXT_ID - 1


def _draw(model: nn.Module, generator: torch.Generator) -> None:
    """Replace every weight; vectors and decay rates stay near the values that the family starts from."""
    seen: set[int] = set()
    for module in model.modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            bias = name.endswith("bias") and tensor.is_floating_point() and tensor.dim() <= 2
            learned = isinstance(tensor, nn.Parameter) and tensor.requires_grad
            if id(tensor) in seen or not (bias or learned):
                continue  # tied, or a rotary frequency, a mask, a frozen state
            seen.add(id(tensor))
            noise = torch.randn(tensor.shape, generator=generator)
            start = tensor.detach().clone()
            if bias:
                value = start + 0.25 * noise
            elif name == "sinks":
                value = noise
            elif tensor.dim() <= 1 or name == "A_log" or name.startswith("time_mix"):  # norms, scales, decay rates
                value = torch.where(start == 0, 0.3 * noise, start * (1 + 0.3 * noise))
            elif isinstance(module, nn.Embedding) or "embed" in name or name == "latents":
                value = 0.4 * noise
            elif isinstance(module, nn.Linear | Conv1D):
                value = noise * math.sqrt(2 / tensor.shape[0 if isinstance(module, Conv1D) else 1])
            elif isinstance(module, nn.modules.conv._ConvNd):
                value = noise * math.sqrt(2 / tensor[0].numel())
            else:
                value = 0.25 * noise  # experts, routers and other bare matrices
            with torch.no_grad():
                tensor.copy_(value)


NOT_ADDED = ("dt_bias", "e_score_correction_bias", "expert_bias", "relative_attention_bias", "position_bias")
"""Tensors that ``zero_bias`` leaves: a time step, the choice of experts, tables of scores by position."""


def zero_bias(model: nn.Module) -> nn.Module:
    """Zero, in place, all that is added to activations without depending on the input; returns ``model``.

    That is every parameter or buffer whose name ends in ``bias``, those of norms included, except ``NOT_ADDED``.
    """
    with torch.no_grad():
        for tensor in biases(model).values():
            tensor.zero_()
    return model


def biases(model: nn.Module) -> dict[str, torch.Tensor]:
    """The tensors that ``zero_bias`` zeroes, by their full names."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: tensor
        for name, tensor in named
        if name.endswith("bias") and not name.endswith(NOT_ADDED) and tensor.is_floating_point() and tensor.dim() <= 2
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' remarks on default configurations."""
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "`torch.jit", DeprecationWarning)  # on import of older releases
            yield
    finally:
        transformers.logging.set_verbosity(level)
