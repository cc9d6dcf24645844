"""GPT-2 and its close kin: norm before each sublayer."""

from . import Family

GPT2 = Family(
    model_types=("gpt2", "gpt_bigcode"),
    blocks="transformer.h",
    attention_output="attn.c_proj",
    mlp_output="mlp",
    head=("transformer.ln_f", "lm_head"),
    requires={"add_cross_attention": False},
)

GPT_NEO = Family(
    model_types=("gpt_neo",),
    blocks="transformer.h",
    attention_output="attn.attention.out_proj",
    mlp_output="mlp",
    head=("transformer.ln_f", "lm_head"),
)
