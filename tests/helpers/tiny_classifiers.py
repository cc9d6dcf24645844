"""Tiny classifiers with a tokenizer of words, which reads pairs of texts as BERT's does."""

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, LlamaConfig, PreTrainedTokenizerFast

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] the film was not good but great who lives in berlin ? wolf ##gang . a dog runs sleeps "
    "it is he paris and"
).split()
SIZES = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}


def tokenizer(*, pairs=True, **options):
    """WordPiece in lower case, with ``[CLS]`` and ``[SEP]``; ``pairs=False``: with neither, as a decoder's."""
    words = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if pairs:
        words.post_processor = processors.TemplateProcessing(
            "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
        )
        options |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
        options["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", **options
    )


def classifier(head, *, family="Bert", dtype=torch.float64, seed=0, **config):
    """A random ``<family>For<head>`` with weights far from zero."""
    kind = {"Bert": BertConfig, "Llama": LlamaConfig}[family]
    if family == "Llama":
        config = {"pad_token_id": 0, "num_key_value_heads": 2, **config}
    torch.manual_seed(seed)
    model = getattr(transformers, f"{family}For{head}")(kind(**SIZES, **config)).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


SENTIMENT = {"id2label": {0: "NEGATIVE", 1: "POSITIVE"}}
ENTITIES = {"id2label": {0: "O", 1: "B-PER", 2: "B-LOC"}}
