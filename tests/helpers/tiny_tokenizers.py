"""Tokenizers of the four common kinds, made on the spot, and models that go with them.

All know the same words. ``byte_level`` is built like GPT-2's (a leading space is part of a token, every byte is one),
``roberta`` is the same with special tokens around and a mask that swallows the space before it, ``word_piece`` like BERT's,
``metaspace`` like SentencePiece's.
"""

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

WORDS = ["The", "the", "keys", "key", "to", "cabinet", "are", "is", "here"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
TEXT = "The keys to the cabinet"
MASKED = "The keys {mask} here"


def byte_level(special=("<|endoftext|>",), **options):
    """GPT-2's kind; by itself it puts no special token anywhere."""
    vocabulary = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = []
    for word in [*("Ġ" + word for word in WORDS), *WORDS]:
        for end in range(2, len(word) + 1):
            merge = (word[: end - 1], word[end - 1])
            if merge not in merges:
                merges.append(merge)
                vocabulary.append(word[:end])
    model = models.BPE(vocab={piece: i for i, piece in enumerate(vocabulary)}, merges=merges)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    end = special[0]
    options = {"unk_token": end, "bos_token": end, "eos_token": end, "pad_token": end} | options
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def roberta():
    """``<s> text </s>``, with a mask token that takes the space before it."""
    special = ("<s>", "<pad>", "</s>", "<unk>")
    mask = AddedToken("<mask>", lstrip=True, special=True)
    tokenizer = byte_level(
        special, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>", mask_token=mask
    )
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def word_piece():
    """BERT's kind: lower case, ``[CLS] text [SEP]``, pieces inside a word start with ``##``."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = [w.lower() for w in WORDS if w != "The"]
    pieces = [*special, *words, *LETTERS, *("##" + letter for letter in LETTERS), "##s", "#", ".", ",", "!"]
    model = models.WordPiece({piece: i for i, piece in enumerate(dict.fromkeys(pieces))}, unk_token="[UNK]")
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_input_names=inputs, **dict(zip(names, special, strict=True))
    )


def metaspace():
    """SentencePiece's kind, as in Llama 2: ``<s> text``, and a space before the first word."""
    special = ["<unk>", "<s>", "</s>"]
    scored = [*((s, 0.0) for s in special), ("▁", -5.0), *((letter, -6.0) for letter in LETTERS + "T.")]
    scored += [(start + word, -1.0) for word in WORDS for start in ("", "▁")]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def gpt2(tokenizer, dtype=torch.float64):
    """A random GPT-2 that reads 64 tokens of ``tokenizer``."""
    config = GPT2Config(
        n_layer=2, n_embd=32, n_head=4, n_positions=64, vocab_size=len(tokenizer), bos_token_id=0, eos_token_id=0
    )
    return _random(GPT2LMHeadModel, config, dtype)


def bert(tokenizer, dtype=torch.float64):
    """A random BERT for ``word_piece``."""
    return _random(BertForMaskedLM, BertConfig(**_encoder(tokenizer)), dtype)


def roberta_model(tokenizer, dtype=torch.float64):
    """A random RoBERTa for ``roberta``: its positions count from the padding id."""
    return _random(RobertaForMaskedLM, RobertaConfig(**_encoder(tokenizer), pad_token_id=1), dtype)


def _encoder(tokenizer):
    return {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 66,
        "vocab_size": len(tokenizer),
    }


def _random(model_class, config, dtype):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config).to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():  # no bias is zero, no norm is the identity
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model
