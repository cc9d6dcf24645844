"""How a sentence encoder makes one embedding of a text: what sentence-transformers writes beside the model."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError

_MODES = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_max_tokens": "max",
}
# What may stand beside the model and the pooling without changing a cosine.
_HARMLESS = ("Transformer", "Pooling", "Normalize")


def stored_pooling(model: PreTrainedModel) -> str | None:
    """The pooling that ``modules.json`` of the model's folder or repository names; ``None`` if there is no such file.

    Raises:
        InputError: The files cannot be read.
        UnsupportedModelError: The embedding is more than a pooled hidden state: another layer follows, or another pooling.
    """
    name = getattr(model.config, "_name_or_path", "")
    modules = _read(model, name, "modules.json")
    if modules is None:
        return None
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if other := [kind for kind in kinds if kind not in _HARMLESS]:
        raise UnsupportedModelError(
            f"the embedding of {name} goes through more than a pooling ({', '.join(other)}), which is not followed. To explain "
            'the pooled hidden states instead, say how they are pooled: pooling="mean".'
        )
    folder = next((m.get("path", "") for m, kind in zip(modules, kinds, strict=True) if kind == "Pooling"), None)
    config = None if folder is None else _read(model, name, f"{folder}/config.json")
    if config is None:
        return None
    modes = [mode for key, mode in _MODES.items() if config.get(key)] or [config.get("pooling_mode")]
    named = {"lasttoken": "last"}.get(str(modes[0]), modes[0])
    if len(modes) > 1 or named not in _MODES.values() or config.get("include_prompt") is False:
        raise UnsupportedModelError(
            f'{name} pools in a way that is not followed: {json.dumps(config)}. Give one: pooling="mean".'
        )
    return str(named)


def _read(model: PreTrainedModel, name: str, file: str) -> Any:
    """A JSON file of a model's folder or of its repository on the Hub; ``None`` if there is none."""
    commit = getattr(model.config, "_commit_hash", None)
    if not name or (
        commit is not None and not re.fullmatch("[0-9a-f]{40}", commit)
    ):  # the default model is not on the Hub
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
    if path is None or not os.path.exists(path):
        return None
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{file} of {name} is not JSON: {error}.") from error
