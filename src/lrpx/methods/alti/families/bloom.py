"""BLOOM: ALiBi; its attention and MLP modules add the residual themselves, so their last linear layers are named."""

from . import Family

BLOOM = Family(
    model_types=("bloom",),
    blocks="transformer.h",
    attention_output="self_attention.dense",
    mlp_output="mlp.dense_4h_to_h",
    head=("transformer.ln_f", "lm_head"),
    requires={"apply_residual_connection_post_layernorm": False, "slow_but_exact": False},
)
