"""What loading a GGUF file needs beside transformers, which reads it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ..errors import InputError, install_command


def require_packages(name: str) -> None:
    """Refuse to read a GGUF file where packages for it are missing.

    Raises:
        InputError: They are; the error says how to install them.
    """
    missing = [p for p in ("gguf", "accelerate") if importlib.util.find_spec(p) is None]
    if missing:
        raise InputError(f"{name}: reading GGUF files needs {' and '.join(missing)}: {install_command('gguf')}")


def dequantize_options() -> dict[str, Any]:
    """Options to unpack the weights: newer versions of transformers keep them packed, in kernels without a rule."""
    try:
        from transformers import GgufConfig
    except ImportError:  # older versions always unpack
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def forget_quantization(model: Any) -> None:
    """Remove marks of quantisation, which would prevent moving, casting and saving the unpacked model."""
    for mark in ("hf_quantizer", "is_quantized", "quantization_method"):
        if mark in vars(model):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def match_bos(tokenizer: Any, file: Path) -> None:
    """Let the tokenizer prepend a BOS token only if the file says so; transformers 5.0 always does."""
    from gguf import GGUFReader

    field = GGUFReader(file).fields.get("tokenizer.ggml.add_bos_token")
    bos = tokenizer.bos_token_id
    if field is None or bos is None:
        return
    wanted = bool(field.parts[field.data[0]][0])
    for _ in range(2):
        if (bos in tokenizer("a")["input_ids"]) == wanted:
            return
        tokenizer.add_bos_token = wanted  # a property that rebuilds the post-processor
    raise InputError(
        f"{file}: the file says {'a' if wanted else 'no'} BOS token comes first, and the tokenizer that this "
        "version of transformers makes of it does otherwise. Upgrade transformers, or give the model's folder."
    )
