"""Where a classifier of whole texts reads its label: at the first token, at the last one, or at all of them.

Decoders read it at the last token, and find that by the padding token: they take the last token that is not one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from transformers import PreTrainedModel

from .signature import filler, task_of
from .stacks import encoder_of

# Of transformers' sequence summaries; where no index is given, "cls_index" is the last token too.
_LAST = ("last", "cls_index")


def pooled(model: PreTrainedModel, token_ids: Sequence[int]) -> tuple[int, int]:
    """The positions that the label is read at, as (start, stop)."""
    length, summary = len(token_ids), _summary(model)
    if encoder_of(model) is not None:  # the decoder's state at the last end token
        end = model.config.eos_token_id
        last = max((i for i, token in enumerate(token_ids) if token == end), default=length - 1)
        return last, last + 1
    if reads_last(model):
        padding = model.config.get_text_config().pad_token_id
        last = max((i for i, token in enumerate(token_ids) if token != padding), default=0)
        return last, last + 1
    if summary in _LAST:
        return length - 1, length
    if summary == "mean" or getattr(model.config, "classifier_pooling", "cls") not in ("cls", "bos"):
        return 0, length
    return 0, 1


def reads_last(model: PreTrainedModel) -> bool:
    """Whether it reads its label at the last token that is no padding: as a decoder does, whose first token knows no other."""
    kind: Any = type(model)
    if task_of(model) != "text-classification" or encoder_of(model) is not None:
        return False
    return _is_decoder(kind, model.config.model_type)


@cache
def _is_decoder(kind: Any, model_type: str) -> bool:
    from transformers.models.auto import modeling_auto as auto

    if any(base.__name__ == "GenericForSequenceClassification" for base in kind.__mro__):
        return True
    is_causal = model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return is_causal and model_type not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES


def _summary(model: PreTrainedModel) -> str | None:
    """How a module of the kind of transformers' ``SequenceSummary`` pools, if the model has one."""
    return next((kind for m in model.modules() if isinstance(kind := m.__dict__.get("summary_type"), str)), None)


def finds_padding(model: PreTrainedModel) -> bool:
    """Whether the model tells a text from its padding, so that a padded one gives the same as one that is not."""
    if _summary(model) in (*_LAST, "mean"):
        return False
    if encoder_of(model) is not None:
        return not model.config.model_type.startswith("t5gemma")  # reads one place further where there is padding
    return not reads_last(model) or model.config.get_text_config().pad_token_id == filler(model)
