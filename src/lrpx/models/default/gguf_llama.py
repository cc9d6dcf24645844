"""Convert a GGUF file of the Llama family into a folder that ``from_pretrained`` loads.

1. Read the metadata: shapes, vocabulary and merges, special tokens, chat template.
2. Dequantise every tensor to float32 (the values are those of the file, bit for bit) and give it its name in
   transformers. llama.cpp interleaves the two rotary halves of queries and keys; we put them back.
3. Write ``config.json``, ``model.safetensors`` and the tokenizer.

transformers reads GGUF files too, and ``lrpx.load`` uses it for the user's files. The default model, however, must be
the same with every version of transformers, and these differ: version 5.0 prepends a BOS token that the file does not
ask for, later versions need ``accelerate`` and return a model that cannot be saved, and none splits digits as SmolLM's
tokenizer does. Source of the layout: the GGUF specification and llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, UnsupportedModelError

CONTROL = 3  # GGUF's type number of special tokens

# GGUF's tensor names -> transformers' names; those of a block stand below "blk.N." and "model.layers.N."
_GLOBAL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert(gguf_file: Path, folder: Path, tick: Callable[[], object] = lambda: None) -> None:
    """Write the model and tokenizer of ``gguf_file`` into the existing ``folder``.

    Args:
        gguf_file: A GGUF file of architecture ``llama`` with a byte-level BPE vocabulary of the ``smollm`` kind.
        folder: Gets ``config.json``, ``generation_config.json``, ``model.safetensors`` (float32) and the tokenizer.
        tick: Called once per converted tensor, for a progress bar.

    Raises:
        InputError: The file is not a GGUF file.
        UnsupportedModelError: Another architecture or kind of vocabulary.
    """
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors.numpy import save_file

    try:
        reader = GGUFReader(gguf_file)
    except ValueError as error:
        raise InputError(f"{gguf_file} is not a GGUF file: {error}.") from error
    meta = {name: _value(field) for name, field in reader.fields.items()}
    _check(meta, gguf_file)

    heads, kv_heads = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    tensors: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if ".attn_q." in tensor.name:
            values = _split_rotary_halves(values, heads)
        elif ".attn_k." in tensor.name:
            values = _split_rotary_halves(values, kv_heads)
        tensors[_transformers_name(tensor.name)] = np.ascontiguousarray(values)
        tick()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})

    config = _config(meta, tied="lm_head.weight" not in tensors)
    config.save_pretrained(folder)
    _generation_config(meta).save_pretrained(folder)
    _tokenizer(meta).save_pretrained(folder)


def _value(field: Any) -> Any:
    """One metadata entry as Python types."""  # as field.contents(), which only newer versions of gguf have
    from gguf import GGUFValueType

    text = field.types[-1] == GGUFValueType.STRING
    values = [bytes(field.parts[i]).decode("utf-8") if text else field.parts[i].tolist()[0] for i in field.data]
    return values if field.types[0] == GGUFValueType.ARRAY else values[0]


def _check(meta: dict[str, Any], gguf_file: Path) -> None:
    found = tuple(meta.get(k) for k in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"))
    expected = ("llama", "gpt2", "smollm")
    if found != expected:
        raise UnsupportedModelError(
            f"{gguf_file} has architecture, vocabulary and pre-tokenizer {found}; expected {expected}."
        )


def _transformers_name(name: str) -> str:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``."""
    stem, _, kind = name.rpartition(".")
    if stem.startswith("blk."):
        _, layer, part = stem.split(".")
        if part in _BLOCK:
            return f"model.layers.{layer}.{_BLOCK[part]}.{kind}"
    elif stem in _GLOBAL:
        return f"{_GLOBAL[stem]}.{kind}"
    raise UnsupportedModelError(f"the GGUF tensor {name!r} is not part of a plain Llama model.")


def _split_rotary_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head from llama.cpp's order (0, h, 1, h+1, ...) back to transformers' (0, 1, ..., h, h+1, ...)."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _config(meta: dict[str, Any], *, tied: bool) -> Any:
    from transformers import LlamaConfig

    width, heads = meta["llama.embedding_length"], meta["llama.attention.head_count"]
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=width,
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=heads,
        num_key_value_heads=meta["llama.attention.head_count_kv"],
        head_dim=meta.get("llama.attention.key_length", width // heads),
        max_position_embeddings=meta["llama.context_length"],
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": meta["llama.rope.freq_base"]},
        tie_word_embeddings=tied,
        **_special_ids(meta),
    )


def _generation_config(meta: dict[str, Any]) -> Any:
    from transformers import GenerationConfig

    return GenerationConfig(**_special_ids(meta))


def _special_ids(meta: dict[str, Any]) -> dict[str, Any]:
    names = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {ours: meta.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}


def _tokenizer(meta: dict[str, Any]) -> Any:
    """SmolLM's byte-level BPE: every digit is split off first, then GPT-2's pattern; nothing is added in front."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in meta["tokenizer.ggml.merges"])]

    bpe = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    control = [piece for piece, kind in zip(pieces, kinds, strict=True) if kind == CONTROL]
    bpe.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in control])

    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {ours: meta.get(f"tokenizer.ggml.{theirs}_token_id") for ours, theirs in names.items()}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=meta["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **{ours: pieces[i] for ours, i in ids.items() if i is not None},
    )
    tokenizer.chat_template = meta.get("tokenizer.chat_template")
    return tokenizer
