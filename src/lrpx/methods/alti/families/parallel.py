"""Decoders in which attention and MLP read the same stream and are added to it together.

For a decomposition of the stream this is no different from one after the other.
"""

from dataclasses import replace

from . import Family

GPTJ = Family(
    model_types=("gptj", "codegen"),
    blocks="transformer.h",
    attention_output="attn.out_proj",
    mlp_output="mlp",
    head=("transformer.ln_f", "lm_head"),
)

GPT_NEOX = Family(  # Pythia
    model_types=("gpt_neox",),
    blocks="gpt_neox.layers",
    attention_output="attention.dense",
    mlp_output="mlp",
    head=("gpt_neox.final_layer_norm", "lm_head"),
)

# transformers 5.0 calls the unembedding another name
GPT_NEOX_BEFORE_5_1 = replace(GPT_NEOX, head=("gpt_neox.final_layer_norm", "embed_out"))

FALCON = Family(
    model_types=("falcon",),
    blocks="transformer.h",
    attention_output="self_attention.dense",
    mlp_output="mlp",
    head=("transformer.ln_f", "lm_head"),
)

PHI = Family(
    model_types=("phi",),
    blocks="model.layers",
    attention_output="self_attn.dense",
    mlp_output="mlp",
    head=("model.final_layernorm", "lm_head"),
)
