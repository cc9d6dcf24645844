"""Masked language models built like BERT: the stream is normed after each sublayer; a small MLP before the vocabulary."""

from dataclasses import replace

from . import Family

BERT = Family(
    model_types=("bert",),
    blocks="bert.encoder.layer",
    attention_output="attention.output.dense",
    mlp_output="output.dense",
    head=("cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm", "cls.predictions.decoder"),
    sum_norms=("attention.output.LayerNorm", "output.LayerNorm"),
    causal=False,
    requires={"add_cross_attention": False, "chunk_size_feed_forward": 0},
)

ROBERTA = replace(
    BERT,
    model_types=("roberta", "xlm-roberta", "camembert"),
    blocks="roberta.encoder.layer",
    head=("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"),
)
