"""Which methods the page offers: those that can explain the model with what it is given, and why the others cannot.

What is refused is decided where it is computed; here it is said before. A test asks every method about every kind of model, and
finds that the two agree.
"""

from __future__ import annotations

from importlib.util import find_spec

from transformers import PreTrainedModel

from ..errors import UnsupportedModelError, install_command
from ..methods import METHODS, SIGNED, Method
from ..models.heads import IMAGE_TASKS, TEXT2TEXT
from ..models.signature import task_of
from .wording import on_page


def methods_for(model: PreTrainedModel, *, images: bool) -> dict[str, str]:
    """Every method with why it cannot explain a text, or with ``images`` a text with images or an image: empty if it can."""
    return {name: why_not(method, model, images=images) for name, method in METHODS.items()}


def why_not(method: Method, model: PreTrainedModel, *, images: bool) -> str:
    """Why a method cannot explain a model; empty if it can."""
    task = task_of(model)
    if (images or task in IMAGE_TASKS) and not method.reads_images:
        return "explains texts without images"
    if images and task == TEXT2TEXT and not method.goes_to_any_place:
        return "does not explain images that an encoder reads"
    if task not in ("causal", "masked", TEXT2TEXT, *IMAGE_TASKS) and method.needs_family:
        return f"is for language models, and {type(model).__name__} is for {task}"
    if task == "multiple-choice" and method.measures not in SIGNED:
        return "has no sign, so what it gives for two choices cannot be subtracted"
    if method.needs and find_spec(method.needs) is None:
        return f"needs {method.needs}: {install_command(method.needs)}"
    try:
        method.check_model(model)
    except UnsupportedModelError as error:
        return on_page(error)
    return ""
