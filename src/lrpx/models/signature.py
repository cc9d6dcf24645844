"""What a model reads and predicts: its task, its inputs and its context length."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import UnsupportedModelError


def task_of(model: PreTrainedModel) -> str:
    """``"causal"`` or ``"masked"``, by the class of the model.

    Raises:
        UnsupportedModelError: It is neither.
    """
    kind: Any = type(model)
    is_masked, is_causal = _classes(kind)
    if is_masked and is_causal:  # an encoder that may be used as a decoder (XLM); its configuration says so
        is_masked = not (getattr(model.config, "is_decoder", False) or getattr(model.config, "causal", False))
    if not is_masked and not is_causal:
        raise UnsupportedModelError(
            f"{type(model).__name__} is neither a causal nor a masked language model. "
            "Load it with AutoModelForCausalLM or AutoModelForMaskedLM, or with lrpx.load(name)."
        )
    return "masked" if is_masked else "causal"


@cache
def _classes(kind: Any) -> tuple[bool, bool]:
    """Whether models of this class are masked, and whether they are causal language models."""
    from transformers.models.auto import modeling_auto as auto

    def is_one(table: dict[str, Any], suffix: str) -> bool:
        known = {name for value in table.values() for name in ([value] if isinstance(value, str) else value)}
        return any(base.__name__ in known or base.__name__.endswith(suffix) for base in kind.__mro__)

    return (
        is_one(auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES, "ForMaskedLM"),
        is_one(auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, "ForCausalLM"),
    )


def filler(model: PreTrainedModel) -> int:
    """The token id used for padding."""
    padding = getattr(model.config.get_text_config(), "pad_token_id", None)
    return 0 if padding is None or padding < 0 else padding


def context_length(model: PreTrainedModel) -> int | None:
    """How many tokens the model can read; ``None`` if it has no limit."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)  # the latter: MPT
    if limit is None or limit <= 0:
        return None
    if counts_from_padding(model):
        limit -= config.pad_token_id + 1  # positions are numbered from pad_token_id + 1
    return limit


def takes(model: PreTrainedModel, name: str) -> bool:
    """Whether the model's ``forward`` names an argument."""
    forward: Any = model.forward
    if "forward" in vars(model):  # set on this instance: do not cache it
        return name in inspect.signature(forward).parameters
    return name in _parameters(forward.__func__)


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


_counts_from_padding: weakref.WeakKeyDictionary[PreTrainedModel, bool] = weakref.WeakKeyDictionary()


def counts_from_padding(model: PreTrainedModel) -> bool:
    """Whether the model numbers its positions from ``pad_token_id + 1``, padding skipped, as RoBERTa does."""
    known = _counts_from_padding.get(model)  # asked for every text, so the answer is remembered
    if known is None:
        known = _counts_from_padding[model] = _has_padded_positions(model)
    return known


def _has_padded_positions(model: PreTrainedModel) -> bool:
    return any(
        "position" in name and isinstance(module, torch.nn.Embedding) and module.padding_idx is not None
        for name, module in model.named_modules()
    )
