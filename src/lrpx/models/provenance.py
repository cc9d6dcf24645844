"""What identifies a model in the manifest of a run, on whichever machine it was loaded."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from ..version import __version__
from .adapters import adapters_of
from .modules import first_parameter
from .placement import devices_of, entry_device, named_parameters, stored_parameters


def model_identity(model: torch.nn.Module) -> dict[str, str | None]:
    """What a model's numbers came from, for the provenance of an explanation.

    Returns:
        ``model``: the name it was loaded by, or its class where it was not loaded. ``revision``: the commit on the
        Hub, or the checksum of the default model's file, if known.
    """
    config = getattr(model, "config", None)
    name = getattr(config, "_name_or_path", None) or type(model).__name__
    return {"model": str(name), "revision": getattr(config, "_commit_hash", None)}


def provenance(
    model: PreTrainedModel, method: str, settings: Mapping[str, Any], execution: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What the numbers come from: model, revision, dtype, device, attention, versions, method, options and how it was run."""
    weight = first_parameter(model)
    assert weight is not None
    return {
        **model_identity(model),
        "architecture": type(model).__name__,
        **({"adapters": adapters} if (adapters := adapters_of(model)) else {}),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "device": devices_of(model),
        "attn_implementation": getattr(model.config, "_attn_implementation", None),
        "method": method,
        "options": {k: _written(v) for k, v in settings.items()},
        "execution": dict(execution or {}),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """The versions of the packages that compute the numbers."""
    return {"lrpx": __version__, "torch": torch.__version__, "transformers": transformers.__version__}


def _written(option: Any) -> Any:
    """An option as JSON can hold it, the same in every process: a rule set by the names of its rules."""
    if isinstance(option, Mapping):
        return str({kind: getattr(rule, "__name__", repr(rule)) for kind, rule in option.items()})
    if isinstance(option, tuple):
        return list(option)  # as it is read back
    return option if isinstance(option, str | int | float | bool | list | None) else repr(option)


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


def card_of(device: str) -> str | None:
    """Name of the GPU of this machine that ``device`` stands for, or of the kind of its processor, if known."""
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device) if torch.cuda.is_available() else None
    return platform.machine() or None if device == "cpu" else device


def weights_digest(model: PreTrainedModel) -> str:
    """A checksum of names, shapes and up to 64 evenly spaced numbers of every parameter: cheap, and other weights differ."""
    digest = hashlib.sha256()
    with torch.no_grad():
        for name, parameter in stored_parameters(model):
            flat = parameter.reshape(-1)
            some = flat[:: max(1, flat.numel() // 64)][:64].to("cpu", torch.float32)
            digest.update(f"{name} {tuple(parameter.shape)} ".encode() + some.numpy().tobytes())
    return digest.hexdigest()
