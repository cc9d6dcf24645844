"""What identifies a model in the manifest of a run, on whichever machine it was loaded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from .devices import entry_device, named_parameters, stored_parameters
from .explain import provenance


def model_facts(model: PreTrainedModel) -> dict[str, Any]:
    """What identifies a model, and the columns of the paper's table of models."""
    about = provenance(model, "", {})
    config = model.config.get_text_config()
    name = str(about["model"])
    return {
        "name": Path(name).resolve().name if Path(name).is_dir() else name,
        "revision": about["revision"],
        "weights": weights_digest(model),
        "architecture": about["architecture"],
        "dtype": about["dtype"],
        "device": entry_device(model).type,
        "attn_implementation": about["attn_implementation"],
        "parameters": sum(p.numel() for _, p in named_parameters(model)),
        "layers": getattr(config, "num_hidden_layers", None),
        "heads": getattr(config, "num_attention_heads", None),
        "width": getattr(config, "hidden_size", None),
        "vocabulary": config.vocab_size,
    }


def weights_digest(model: PreTrainedModel) -> str:
    """A checksum of names, shapes and up to 64 evenly spaced numbers of every parameter: cheap, and other weights differ."""
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, parameter in stored_parameters(model):
            flat = parameter.reshape(-1)
            some = flat[:: max(1, flat.numel() // 64)][:64].to("cpu", torch.float32)
            digest.update(f"{name} {tuple(parameter.shape)} ".encode() + some.numpy().tobytes())
    return digest.hexdigest()
