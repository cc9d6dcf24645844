"""What reads a model's input: a tokenizer, an image processor, or a processor, which holds both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..errors import InputError, first_lines, install_command, warn
from . import hub
from .locate import ModelFiles

_PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
_WITH_PROCESSOR = ("AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForZeroShotImageClassification")
_WITH_IMAGE_PROCESSOR = ("AutoModelForImageClassification",)


def tokenizer_of(reader: Any) -> Any:
    """The tokenizer of what reads a model's input; ``None`` if that reads no text."""
    if reader is None or isinstance(reader, PreTrainedTokenizerBase):
        return reader
    from transformers import ProcessorMixin
    from transformers.image_processing_utils import BaseImageProcessor

    if isinstance(reader, ProcessorMixin):
        return getattr(reader, "tokenizer", None)
    return None if isinstance(reader, BaseImageProcessor) else reader  # something else is refused with the first text


def image_processor_of(reader: Any) -> Any:
    """The image processor of what reads a model's input; ``None`` if that reads no images."""
    if reader is None or isinstance(reader, PreTrainedTokenizerBase):
        return None
    from transformers.image_processing_utils import BaseImageProcessor

    return reader if isinstance(reader, BaseImageProcessor) else getattr(reader, "image_processor", None)


def load_reader(place: ModelFiles, auto_class: Any, options: dict[str, Any], tokenizer: Any) -> Any:
    """What reads the input of a model that ``auto_class`` loads: its tokenizer, or what reads images too.

    Args:
        place: Where the files are.
        auto_class: The auto class of transformers for the model.
        options: For ``from_pretrained``.
        tokenizer: A function that loads the tokenizer.

    Raises:
        InputError: The files are missing or damaged.
    """
    kind = auto_class.__name__
    if kind in _WITH_IMAGE_PROCESSOR:
        from transformers import AutoImageProcessor

        try:
            return AutoImageProcessor.from_pretrained(place.source, **options)
        except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
            raise InputError(f"the image processor of {place.name} cannot be loaded: {first_lines(error)}") from error
    if kind not in _WITH_PROCESSOR or not _has_processor(place, options.get("token")):
        return tokenizer()
    from transformers import AutoProcessor

    try:
        found = AutoProcessor.from_pretrained(place.source, **options)
        return _with_images(found, place, options) if isinstance(found, PreTrainedTokenizerBase) else found
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        warn(
            f"the processor of {place.name} cannot be loaded, so texts can be explained, but no images: {first_lines(error)} "
            f"{install_command('vision')} installs what processors need."
        )
        return tokenizer()


def _with_images(tokenizer: Any, place: ModelFiles, options: dict[str, Any]) -> Any:
    """Tokenizer and image processor together, of a model without a processor of its own (``VisionEncoderDecoderModel``)."""
    from transformers import AutoImageProcessor, VisionTextDualEncoderProcessor

    return VisionTextDualEncoderProcessor(AutoImageProcessor.from_pretrained(place.source, **options), tokenizer)


def _has_processor(place: ModelFiles, token: Any) -> bool:
    folder = Path(place.source)
    if folder.is_dir():
        return any((folder / file).is_file() for file in _PROCESSOR_FILES)
    state = hub.Pinned(place.options["revision"], place.options["local_files_only"])
    return hub.fetched(place.source, state, token, _PROCESSOR_FILES) is not None
