"""How a model knows where a token stands: how long a text may be, and what a text in a batch means for the others."""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from .modules import text_config

_TABLE = re.compile(r"^(position_embeddings|positions?_embed|embed_positions|pos_embed(ding)?s?|pos_encoding|wpe)$")
_OTHER_INPUT = re.compile(r"vision|visual|image|img|audio|speech")
_FIXED_BIAS = ("mpt",)  # alibi, made once for ``max_seq_len``


def context_length(model: PreTrainedModel, stack: str = "") -> int | None:
    """How many tokens the model can read; ``None`` if it has no limit, as with rotations and biases made for any length.

    ``stack``: of an encoder-decoder model, which of the two: ``"encoder"`` or ``"decoder"``.
    """
    limit = _configured(model, stack)
    if limit is None or not _has_table(model):
        return None
    if counts_from_padding(model):
        limit -= _text_config(model, stack).pad_token_id + 1  # positions are numbered from pad_token_id + 1
    return limit


def made_for(model: PreTrainedModel) -> int | None:
    """How many tokens the model was made for, by its configuration; ``None`` if it does not say."""
    limit = _configured(model)
    if limit is None:
        return None
    stretched = [
        int((kind.get("original_max_position_embeddings") or limit) * kind["factor"])
        for kind in _rotations(model)
        if isinstance(kind.get("factor"), int | float)
    ]
    return max([limit, *stretched])


_LIMITS = ("max_position_embeddings", "max_seq_len", "max_target_positions")  # the last two: MPT, Whisper
_LIMITS_OF_STACK = {  # LED; Speech2Text
    "encoder": ("max_encoder_position_embeddings", "max_source_positions"),
    "decoder": ("max_decoder_position_embeddings", "max_target_positions"),
}


def _text_config(model: PreTrainedModel, stack: str = "") -> Any:
    """The configuration of the part that reads text, or of one of the two stacks that do."""
    config: Any = getattr(model.config, stack, None) if stack else None  # nested as in ``EncoderDecoderConfig``
    return text_config(model) if config is None else config.get_text_config()


def _configured(model: PreTrainedModel, stack: str = "") -> int | None:
    config = _text_config(model, stack)
    names = (*_LIMITS_OF_STACK.get(stack, ()), *_LIMITS)
    limit = next((found for name in names if (found := getattr(config, name, None))), None)
    return limit if limit is not None and limit > 0 else None


_has_table_of: weakref.WeakKeyDictionary[PreTrainedModel, bool] = weakref.WeakKeyDictionary()


def _has_table(model: PreTrainedModel) -> bool:
    """Whether the model looks positions up in a table that ends somewhere."""
    known = _has_table_of.get(model)  # asked for every call, so the answer is remembered
    if known is None:
        modules = {name for name, m in model.named_modules() if not hasattr(m, "make_weights")}  # sinusoids that grow
        names = {*modules, *(n for n, _ in model.named_buffers()), *(n for n, _ in model.named_parameters())}
        found = any(_TABLE.match(name.rpartition(".")[2]) and not _OTHER_INPUT.search(name) for name in names)
        known = _has_table_of[model] = found or model.config.get_text_config().model_type in _FIXED_BIAS
    return known


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


def _rotations(model: PreTrainedModel) -> list[dict[str, Any]]:
    """The parameters of the model's rotary embeddings: one dictionary, or one for each type of layer."""
    rope = getattr(text_config(model), "rope_parameters", None) or {}
    return [rope, *(value for value in rope.values() if isinstance(value, dict))]


def longest_alike(model: PreTrainedModel, length: int) -> int | None:
    """Up to which length a batch may be padded without changing what a text of ``length`` tokens gets; ``None``: any.

    Rotations of the kinds ``longrope`` and ``dynamic`` depend on the longest text of a batch once that is longer than the
    model was made for.
    """
    config = text_config(model)
    limits = []
    for parameters in _rotations(model):
        kind = parameters.get("rope_type")
        if kind == "longrope":
            switch = parameters.get("original_max_position_embeddings") or config.max_position_embeddings
            limits.append(switch if length <= switch else None)
        elif kind == "dynamic":
            limits.append(config.max_position_embeddings if length <= config.max_position_embeddings else length)
    return min((limit for limit in limits if limit is not None), default=None)


@contextmanager
def fresh_rotations(model: PreTrainedModel) -> Iterator[None]:
    """Inside the block, rotations of the kind ``dynamic`` do not depend on what the model has read before.

    transformers keeps those of the longest text so far, until a text comes that is within the original length: what a text of
    150 tokens gets would depend on whether one of 200 came before it.
    """
    if all(kind.get("rope_type") != "dynamic" for kind in _rotations(model)):
        yield
        return
    modules = [m for m in model.modules() if "max_seq_len_cached" in vars(m) and "original_max_seq_len" in vars(m)]
    kept = [(m, dict(vars(m)), dict(m._buffers)) for m in modules]
    try:
        for m in modules:
            _start_anew(m)
        yield
    finally:
        for m, attributes, buffers in kept:
            m._buffers.clear()
            m._buffers.update(buffers)
            for name in [name for name in vars(m) if name not in attributes]:
                delattr(m, name)
            vars(m).update(attributes)


def _start_anew(module: nn.Module) -> None:
    for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
        setattr(module, name, module.original_max_seq_len)
    for name in [name for name in module._buffers if name.endswith("inv_freq") and "original" not in name]:
        original = getattr(module, f"{name.removesuffix('inv_freq')}original_inv_freq", None)
        if isinstance(original, torch.Tensor):
            module._buffers[name] = original
