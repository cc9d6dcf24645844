"""Adapters of PEFT: the model inside a ``PeftModel``, and adapters that are stored without their model.

LoRA, DoRA, IA3 and their like are layers inside the model that they adapt; that model, with them, is what is explained. Prompt
and prefix tuning are outside of it: they add tokens or keys of their own, so the model inside predicts something else.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from ..errors import InputError, UnsupportedModelError, lines_of

CONFIG = "adapter_config.json"


def without_peft(model: Any) -> Any:
    """The model inside a ``PeftModel``, its adapters included; anything else as it is.

    Raises:
        UnsupportedModelError: The adapter is not inside the model, or depends on the text as a whole.
    """
    if not any(
        kind.__module__.startswith("peft.") and kind.__name__.startswith("Peft") for kind in type(model).__mro__
    ):
        return model
    names = getattr(model, "active_adapters", None) or [getattr(model, "active_adapter", None)]
    names = [names] if isinstance(names, str) else list(names)
    for config in (model.peft_config[name] for name in names if name in model.peft_config):
        kind = getattr(config.peft_type, "value", config.peft_type)
        if getattr(config, "is_prompt_learning", False) or kind in ("XLORA", "CPT"):
            raise UnsupportedModelError(
                f"the model has a {kind} adapter, which works outside the model that it adapts: that model alone predicts "
                "something else, and lrpx cannot explain the two together. LoRA, DoRA, IA3 and other adapters in its layers work."
            )
        if getattr(config, "alora_invocation_tokens", None):
            raise UnsupportedModelError(
                "the model has an activated LoRA (alora_invocation_tokens), which looks for tokens before the model runs. "
                "Give LoRA, DoRA or IA3."
            )
    return model.get_base_model() if hasattr(model, "get_base_model") else model.base_model.model


def adapters_of(model: Any) -> list[str]:
    """The active adapters inside a model, each with its kind: ``"default (LORA)"``."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, dict):
        return []
    active: list[str] = next(
        (m.active_adapters for m in model.modules() if isinstance(getattr(m, "active_adapters", None), list)), []
    )
    return [f"{name} ({getattr(c.peft_type, 'value', c.peft_type)})" for name, c in configs.items() if name in active]


def read_config(file: Path, name: str) -> dict[str, Any]:
    """What an adapter's configuration says; ``base_model_name_or_path`` and ``revision`` are those of its model.

    Raises:
        InputError: It cannot be read, names no model, or PEFT is not installed.
    """
    if importlib.util.find_spec("peft") is None:
        raise InputError(f"{name} is an adapter, which needs PEFT: pip install peft")
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
        base = config["base_model_name_or_path"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise InputError(f"{CONFIG} of {name} cannot be read: {type(error).__name__} {error}") from error
    if not isinstance(base, str) or not base:
        raise InputError(
            f"{CONFIG} of {name} does not say which model it adapts. Load that, and give peft.PeftModel.from_pretrained(model, "
            f"{name!r})."
        )
    return config


_HEADS = {
    "SEQ_CLS": "AutoModelForSequenceClassification",
    "TOKEN_CLS": "AutoModelForTokenClassification",
    "QUESTION_ANS": "AutoModelForQuestionAnswering",
}


def check_head(folder: Path, name: str, auto_class: str) -> None:
    """Refuse an adapter that brings a head which the model that it adapts does not have: its labels are written nowhere.

    Args:
        folder: Of the adapter.
        name: Of the adapter.
        auto_class: The class of transformers that loads the model by its own configuration.

    Raises:
        InputError: It does.
    """
    config = read_config(folder / CONFIG, name)
    kind, base = str(config.get("task_type")), config["base_model_name_or_path"]
    if _HEADS.get(kind, auto_class) != auto_class:
        raise InputError(
            f"the adapter {name} is for {kind}, and brings a head of its own, whose labels no file names. Load both yourself: "
            f"model = transformers.{_HEADS[kind]}.from_pretrained({base!r}, num_labels=...), then "
            f"lrpx.Explainer(peft.PeftModel.from_pretrained(model, {name!r}), tokenizer)."
        )


def with_adapter(model: Any, folder: Path, name: str, words: int) -> Any:
    """``model`` with the adapter in ``folder`` in its layers, in eval mode.

    An adapter may hold embeddings for more tokens than the model has; ``words`` is the size of the tokenizer.

    Raises:
        InputError: The adapter does not fit the model.
        UnsupportedModelError: It is not one in the model's layers.
    """
    from peft import PeftModel
    from safetensors import SafetensorError, safe_open

    weights = folder / "adapter_model.safetensors"
    try:
        if words > model.get_input_embeddings().weight.shape[0] and weights.is_file():
            with safe_open(weights, "pt") as stored:
                if any("embed" in key for key in stored.keys()):  # noqa: SIM118 - it is no dictionary
                    model.resize_token_embeddings(words, mean_resizing=False)
        adapted = PeftModel.from_pretrained(model, str(folder))
    except (OSError, ValueError, ImportError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise InputError(f"the adapter {name} cannot be loaded: {' '.join(lines_of(error)[:3])}") from error
    return without_peft(adapted).eval()
