"""What a model reads and predicts: its task, its inputs and its context length."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ModelSignature:
    """What a model reads and predicts.

    Attributes:
        name: Of its class, for messages.
        task: ``"causal"`` or ``"masked"``.
        vocabulary: Number of token ids.
        context: How many tokens it can read; ``None`` if it has no limit.
        extras: Per-token inputs besides the ids that its ``forward`` takes.
    """

    name: str
    task: str
    vocabulary: int
    context: int | None
    extras: frozenset[str]

    @classmethod
    def of(cls, model: PreTrainedModel) -> ModelSignature:
        """Read it off the model and its configuration."""
        extras = frozenset(name for name in ("token_type_ids",) if takes(model, name))
        vocabulary = model.config.get_text_config().vocab_size
        return cls(type(model).__name__, task_of(model), vocabulary, context_length(model), extras)


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


def longest_alike(model: PreTrainedModel, length: int) -> int | None:
    """Up to which length a batch may be padded without changing what a text of ``length`` tokens gets; ``None``: any.

    Rotations of the kinds ``longrope`` and ``dynamic`` depend on the longest text of a batch once that is longer than the
    model was made for.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    limits = []
    for parameters in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        kind = parameters.get("rope_type")
        if kind == "longrope":
            switch = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
            limits.append(switch if length <= switch else None)
        elif kind == "dynamic":
            limits.append(config.max_position_embeddings if length <= config.max_position_embeddings else length)
    return min((limit for limit in limits if limit is not None), default=None)
