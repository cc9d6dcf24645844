"""How a sentence encoder makes one embedding of a text: what sentence-transformers writes beside the model.

1. Hidden states are pooled: ``modules.json`` and the folder of the pooling say how.
2. Layers of weights may follow (``Dense``: sentence-t5, LaBSE, EmbeddingGemma), each with an activation.
3. A division by the length changes no cosine.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError

_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
# What may follow the pooling: layers, and what changes no cosine.
_FOLLOWED = ("Dense", "Dropout", "Normalize")
POOLINGS = ("mean", "cls", "last", "max")


@dataclass(frozen=True)
class Embedding:
    """From the hidden states of a text's tokens to one embedding.

    Attributes:
        pooling: One of ``POOLINGS``.
        layers: What the pooled state goes through, in the dtype and on the device of the model.
    """

    pooling: str
    layers: tuple[nn.Module, ...] = ()

    def __call__(self, states: Tensor) -> Tensor:
        """One embedding ``[D]`` of the hidden states ``[T, width]`` of a text's tokens, special tokens included.

        ``"mean"`` over the tokens, the first (``"cls"``) or the ``"last"`` token, or the ``"max"`` over the tokens, of each
        number.
        """
        if self.pooling == "mean":
            embedding = states.mean(0)
        elif self.pooling == "max":
            embedding = states.max(0).values
        else:
            embedding = states[0 if self.pooling == "cls" else -1]
        for layer in self.layers:
            embedding = layer(embedding)
        return embedding


def stored_embedding(model: PreTrainedModel) -> Embedding | None:
    """The embedding that ``modules.json`` of the model's folder or repository names; ``None`` if there is no such file.

    Raises:
        InputError: The files cannot be read.
        UnsupportedModelError: The embedding goes through something else than a pooling and layers of weights.
    """
    name = getattr(model.config, "_name_or_path", "")
    modules = _read(model, name, "modules.json")
    if modules is None:
        return None
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    after = kinds[kinds.index("Pooling") + 1 :] if "Pooling" in kinds else []
    before = kinds[: len(kinds) - len(after)]
    other = [kind for kind in before if kind not in ("Transformer", "Pooling")]
    other += [kind for kind in after if kind not in _FOLLOWED]
    if not other and "Normalize" in after[:-1] and "Dense" in after[after.index("Normalize") :]:
        other = ["Dense after Normalize"]
    if other:
        raise UnsupportedModelError(
            f"the embedding of {name} goes through more than a pooling and layers after it ({', '.join(other)}), which is not "
            'followed. To explain the pooled hidden states instead, say how they are pooled: pooling="mean".'
        )
    folders = [(str(m.get("path", "")), kind) for m, kind in zip(modules, kinds, strict=True)]
    folder = next((path for path, kind in folders if kind == "Pooling"), None)
    config = None if folder is None else _read(model, name, f"{folder}/config.json")
    if config is None:
        return None
    modes = [mode for key, mode in _MODES.items() if config.get(key)] or [config.get("pooling_mode")]
    named = {"lasttoken": "last"}.get(str(modes[0]), modes[0])
    if len(modes) > 1 or named not in _MODES.values() or config.get("include_prompt") is False:
        raise UnsupportedModelError(
            f'{name} pools in a way that is not followed: {json.dumps(config)}. Give one: pooling="mean".'
        )
    return Embedding(str(named), tuple(_dense(model, name, path) for path, kind in folders if kind == "Dense"))


def _dense(model: PreTrainedModel, name: str, folder: str) -> nn.Module:
    """A layer of weights after the pooling, with its activation.

    Raises:
        InputError: Its files are missing or of other shapes than its configuration says.
        UnsupportedModelError: Its activation is none of ``torch.nn``, or it reads something else than the embedding.
    """
    config = _read(model, name, f"{folder}/config.json") or {}
    kind = str(config.get("activation_function", "torch.nn.modules.linear.Identity"))
    activation = getattr(nn, kind.rpartition(".")[2], None) if kind.startswith("torch.nn.") else None
    read = {config.get(f"module_{side}_name") for side in ("input", "output")} - {None, "sentence_embedding"}
    if activation is None or read:
        raise UnsupportedModelError(
            f"the layer {folder} of {name} is not followed: {json.dumps(config)}. To explain the pooled hidden states instead, "
            'say how they are pooled: pooling="mean".'
        )
    weights = _weights(model, name, folder)
    expected = [config.get("out_features"), config.get("in_features")]
    matrix = weights.get("linear.weight")
    if matrix is None or list(matrix.shape) != expected or weights.keys() - {"linear.weight", "linear.bias"}:
        shapes = {key: list(value.shape) for key, value in weights.items()}
        raise InputError(
            f"the weights of the layer {folder} of {name} are {shapes}: expected linear.weight {expected}."
        )
    linear = nn.Linear(matrix.shape[1], matrix.shape[0], bias="linear.bias" in weights, dtype=matrix.dtype)
    linear.load_state_dict({key.removeprefix("linear."): value for key, value in weights.items()})
    layer = nn.Sequential(linear, activation()).to(model.device, model.dtype).eval()
    return layer.requires_grad_(False)


def _weights(model: PreTrainedModel, name: str, folder: str) -> dict[str, Tensor]:
    if (path := _find(model, name, f"{folder}/model.safetensors")) is not None:
        from safetensors.torch import load_file

        return dict(load_file(path))
    if (path := _find(model, name, f"{folder}/pytorch_model.bin")) is not None:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    raise InputError(
        f"the weights of the layer {folder} of {name} are missing: model.safetensors, or pytorch_model.bin."
    )


def _read(model: PreTrainedModel, name: str, file: str) -> Any:
    """A JSON file of a model's folder or of its repository on the Hub; ``None`` if there is none."""
    path = _find(model, name, file)
    if path is None:
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file} of {name} is not JSON: {error}.") from error


def _find(model: PreTrainedModel, name: str, file: str) -> str | None:
    """Where a file of a model's folder or of its repository on the Hub is on this machine; ``None`` if there is none."""
    commit = getattr(model.config, "_commit_hash", None)
    # The default model is not on the Hub.
    if not name or (commit is not None and not re.fullmatch("[0-9a-f]{40}", commit)):
        return None
    if os.path.isdir(name):
        path: str | None = os.path.join(name, file)
    else:
        from transformers.utils import cached_file

        try:
            path = cached_file(
                name,
                file,
                revision=commit,
                _raise_exceptions_for_gated_repo=False,
                _raise_exceptions_for_missing_entries=False,
                _raise_exceptions_for_connection_errors=False,
            )
        except (OSError, ValueError):
            path = None
    return path if path is not None and os.path.exists(path) else None
