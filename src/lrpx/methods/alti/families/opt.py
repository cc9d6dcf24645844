"""OPT: norm before each sublayer, except in the 350m model, which norms the stream after each.

Models whose embeddings are narrower than the stream project in before the first block and out after the last.
"""

from dataclasses import replace

from . import Family

OPT = Family(
    model_types=("opt",),
    blocks="model.decoder.layers",
    attention_output="self_attn.out_proj",
    mlp_output="fc2",
    head=("model.decoder.final_layer_norm", "model.decoder.project_out", "lm_head"),
    requires={"do_layer_norm_before": True},
)

OPT_350M = replace(
    OPT,
    sum_norms=("self_attn_layer_norm", "final_layer_norm"),
    requires={"do_layer_norm_before": False},
)
