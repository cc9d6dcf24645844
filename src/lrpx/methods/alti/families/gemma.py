"""Gemma (and Nemotron): the gain of a norm is 1 + weight. Gemma 2 and 3 also norm what attention and MLP add."""

from dataclasses import replace

from . import Family

GEMMA = Family(
    model_types=("gemma", "vaultgemma", "nemotron"),
    blocks="model.layers",
    attention_output="self_attn.o_proj",
    mlp_output="mlp",
    head=("model.norm", "lm_head"),
    norm_offset=1.0,
    requires={"use_bidirectional_attention": False},
)

GEMMA2 = replace(
    GEMMA,
    model_types=("gemma2", "gemma3_text"),
    branch_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
)
