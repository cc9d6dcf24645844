"""What is special about a task beside language modelling: one file per task.

A task reads what a user gives (texts and their parts), finds which score of the model is explained (target, contrast, position),
and says how that is told (labels, probabilities). How relevance is computed is the same for all.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel

from ..errors import UnsupportedModelError
from ..models.refused import why_refused
from ..models.signature import task_of

if TYPE_CHECKING:
    from .head_task import HeadTask

_TASKS = {  # task -> module and class, imported on use
    "text-classification": ("text_classification", "TextClassification"),
    "token-classification": ("token_classification", "TokenClassification"),
    "question-answering": ("question_answering", "QuestionAnswering"),
    "multiple-choice": ("multiple_choice", "MultipleChoice"),
}

TASKS_WITH = {  # what a call may be given beside the text -> which models read it
    "text_pair": "text-classification",
    "question": "question-answering",
    "choices": "multiple-choice",
    "target_prefix": "text2text-generation",
    "images": "image-text-to-text",
}


def task_for(model: PreTrainedModel, tokenizer: Any) -> HeadTask | None:
    """The task of a model with a head of its own, ready to read texts; ``None`` for a language model.

    Raises:
        UnsupportedModelError: The model has no head that is known.
    """
    if (name := task_of(model)) not in _TASKS:
        return None
    if reason := why_refused(model.config.model_type, language_model=False):
        raise UnsupportedModelError(f"{type(model).__name__} is not supported: {reason}.")
    module, kind = _TASKS[name]
    found: HeadTask = getattr(importlib.import_module(f".{module}", __name__), kind)(model, tokenizer)
    return found
