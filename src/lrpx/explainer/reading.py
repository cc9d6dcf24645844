"""What a call was given -> its texts, read as the model's task asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..models.heads import IMAGE_TASKS, IMAGE_TEXT_SCORE, TEXT2TEXT
from ..models.reader import image_processor_of, tokenizer_of
from ..models.signature import task_of
from ..passes.dispatch import PassRunner
from ..passes.scoring import Objective
from ..tasks import TASKS_WITH, task_for
from .head_texts import HeadTexts
from .image_scores import ImageScores
from .images import Images, check_images_asked
from .pair_texts import PairTexts
from .texts import Texts


def read_texts(
    runner: PassRunner,
    reader: Any,
    text: Any,
    asked: Mapping[str, Any],
    parts: Mapping[str, Any],
    *,
    objective: Objective,
    collect: bool,
    batch_tokens: int,
) -> Texts | Images:
    """The texts of a call, or its images.

    Args:
        runner: Of the model.
        reader: What reads the model's input: its tokenizer, image processor or processor, or ``None``.
        text: One or several.
        asked: ``target``, ``contrast``, ``position`` and ``explains``, for all texts or each.
        parts: What belongs to a text beside itself, such as ``question``. Likewise; ``None`` where it was not given.
        objective: What is explained of a token.
        collect: Whether errors about single texts are collected.
        batch_tokens: Tokens per batch.

    Raises:
        InputError: Something cannot be used, or is for models of another task. Of several texts, it names the one.
        UnsupportedModelError: The model cannot be explained correctly.
    """
    head = task_of(runner.model)
    if head == IMAGE_TEXT_SCORE:
        check_images_asked(runner.model, {**asked, **parts, "choices": None}, objective)
        return ImageScores(runner, reader, text, asked, parts["choices"], collect=collect)
    if head in IMAGE_TASKS:
        check_images_asked(runner.model, {**asked, **parts}, objective)
        return Images(runner, image_processor_of(reader), text, asked, collect=collect)
    tokenizer = tokenizer_of(reader)
    task = task_for(runner.model, tokenizer)
    is_pair = task is None and head == TEXT2TEXT
    read = task.parts if task else ("target_prefix", "images") if is_pair else ("images",)
    for name, value in parts.items():
        if value is not None and name not in read:
            kind = task.name if task else TEXT2TEXT if is_pair else "language modelling"
            raise InputError(
                f"{name}= is for {TASKS_WITH[name]}, and {type(runner.model).__name__} is for {kind}. Leave it out."
            )
    if task is None:
        how: dict[str, Any] = {"images": parts.get("images"), "objective": objective, "collect": collect}
        if is_pair:
            return PairTexts(runner.model, reader, text, asked, parts["target_prefix"], **how)
        return Texts(runner.model, reader, text, asked, **how)
    everything = {**asked, **{name: parts[name] for name in task.parts}}
    wrapped = {name: task.wrapped(name, value) for name, value in everything.items()}
    return HeadTexts(runner, task, text, wrapped, objective=objective, collect=collect, batch_tokens=batch_tokens)
