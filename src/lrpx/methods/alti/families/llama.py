"""Decoders built like Llama: a norm before each sublayer, an output projection ``o_proj``, a final norm."""

from dataclasses import replace

from . import Family

LLAMA_LIKE = Family(
    model_types=(
        "arcee",
        "deepseek_v2",
        "deepseek_v3",
        "ernie4_5",
        "glm",
        "glm4_moe",
        "gpt_oss",
        "helium",
        "llama",
        "ministral",
        "mistral",
        "mixtral",
        "olmoe",
        "phi3",
        "phimoe",
        "qwen2",
        "qwen2_moe",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "stablelm",
        "starcoder2",
    ),
    blocks="model.layers",
    attention_output="self_attn.o_proj",
    mlp_output="mlp",
    head=("model.norm", "lm_head"),
)

GRANITE = replace(LLAMA_LIKE, model_types=("granite",), multiplier="residual_multiplier")

OLMO2 = replace(  # no norm before a sublayer, one after
    LLAMA_LIKE,
    model_types=("olmo2", "olmo3", "exaone4"),
    branch_norms=("post_attention_layernorm", "post_feedforward_layernorm"),
)
