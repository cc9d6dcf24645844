"""Texts with images, for models that read both: what a user gives -> what the model is given.

1. A text with images, chat messages that hold images, or what the model's processor made of these.
2. Pictures are opened, places for them counted, and the processor called as its users call it. A text without a place for its
   images is read as a chat message, images first, where the processor has a chat template.
3. Which tokens are patches of which image (``image_places.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import InputError, UnsupportedModelError, counted, in_one_line
from ..methods import Method
from ..models.reader import image_processor_of, tokenizer_of
from ..models.refused import REFUSED_WITH_IMAGES, why_refused
from ..models.signature import PER_TOKEN, takes
from ..passes.hidden_states import PLACES, place_first, resolve_at
from ..passes.image_inputs import holds_pixels, language_modules
from ..text.batching import Item
from ..text.given import IGNORED, IMAGE_INPUT, READ, as_python, shortened
from ..text.tokenization import Encoded
from .image_places import image_patches
from .pictures import open_picture

IMAGES = ("pixel_values", "flattened_patches")
"""What images are called among the inputs of a model."""
_PUT_BY_THE_PROCESSOR = frozenset({"Florence2Processor", "Kosmos2_5Processor"})
"""Processors that put the tokens for an image before the text themselves."""
_OTHER = ("video", "audio", "input_features")


def images_of_each(images: Any, several: bool, count: int) -> list[Any]:
    """The images of each of ``count`` texts: one list for one text, or a list of lists.

    Raises:
        InputError: Their number is another one.
    """
    if images is None:
        return [None] * count
    if not several:
        return [list(images) if isinstance(images, list | tuple) else [images]]
    if not isinstance(images, list | tuple) or len(images) != count:
        given = f"{len(images)} entries" if isinstance(images, list | tuple) else shortened(images)
        raise InputError(f"images={given} for {counted(count, 'text')}: give a list of images, or None, for each.")
    return [list(each) if isinstance(each, list | tuple) else None if each is None else [each] for each in images]


def check_images(model: PreTrainedModel, item: Item, method: Method, settings: dict[str, Any]) -> None:
    """Refuse a method that images cannot be explained by, or a place where they cannot.

    Raises:
        InputError: It is one of these.
    """
    if not item.images:
        if "pixels" in place_first(settings.get("at") or "input"):
            raise InputError('at="pixels" is for images, and the text has none. Take at="input" or at="embedding".')
        return
    first, *others = place_first(settings_with_images(item, method, settings).get("at") or "input")
    if first == "pixels" and not holds_pixels(item.images):
        given = ", ".join(item.images)
        raise InputError(f'at="pixels" is for images, and {type(model).__name__} is given {given}. Take at="input".')
    if item.source:
        if first == "embedding" and settings["at"] is not method.options["at"]:
            raise InputError('at="embedding" is for texts alone, without images or sound. Take at="input".')
    elif not (method.has_passes or method.changes_pixels):
        raise InputError(
            f"{method.name} explains texts without images.",
            python='Take method="attnlrp".',
            app="Choose another method, such as attnlrp.",
        )
    elif method.changes_pixels and others:
        raise InputError(
            f'at={settings["at"]!r}: of a text with images, {method.name} takes one of "input" and "pixels".'
        )
    if not item.source and first not in ("input", "pixels"):
        raise InputError(
            f'at={first!r} is no place where images and text are together. Take at="input", the default, or at="pixels".'
        )
    for at in others:
        if at in PLACES:
            raise InputError(f'at={at!r} beside {first!r}: of a text with images give one of "input" and "pixels".')
    if item.source:
        return
    inside = set(language_modules(model))
    for name, module in resolve_at(model, others).items():
        if module not in inside:
            raise InputError(
                f'at={name!r} is outside the language model. Relevance before images and text meet: at="pixels".'
            )


def settings_with_images(item: Item, method: Method, settings: dict[str, Any]) -> dict[str, Any]:
    """The options for a text: one with images has no word embeddings alone, so by default these are changed at ``"input"``."""
    images = method.changes_pixels and item.images and not item.source
    return {**settings, "at": ("input",)} if images and settings["at"] is method.options["at"] else settings


def places_with_images(item: Item, at: Sequence[str]) -> Sequence[str]:
    """Where one backward pass takes relevance: with images at the pixels, that of the text is taken at the first block."""
    first, *others = place_first(at)
    return ("input", "pixels", *others) if item.images and first == "pixels" else at


def encode_with_images(
    model: PreTrainedModel, reader: Any, given: Any, images: list[Any] | None, encode: Callable[[Any], Encoded]
) -> Encoded:
    """One text, with images or without, as tokens and what the model is given beside them.

    Args:
        model: The one that reads it.
        reader: Its processor, or its tokenizer where there are no images.
        given: As for ``tokenization.encode``; chat messages may hold images, a mapping what a processor made of them.
        images: The images of a text, in the order of their places.
        encode: Makes tokens of text alone.

    Raises:
        InputError: Something cannot be used.
    """
    if isinstance(given, Mapping):
        if any(map(IMAGE_INPUT.search, given)):
            if images is not None:
                raise InputError("the input holds images already. Leave out images=.")
            return _read(model, reader, given, None, (), encode)
        if images is not None:
            raise InputError(
                "token ids take no images=: give a text, chat messages, or what the processor makes of both."
            )
        return encode(given)
    chat = given if isinstance(given, list) and given and isinstance(given[0], Mapping) else None
    inside = [] if chat is None else [part for part in _parts(chat) if part.get("type") == "image"]
    if images is None and not inside:
        return encode(given)
    _check_reads_images(model, reader)
    if chat is None and not isinstance(given, str):
        raise InputError("token ids take no images=: give a text, chat messages, or what the processor makes of both.")
    notes: tuple[str, ...] = ()
    if chat is None:
        pictures = _opened(images or ())
        prompt, notes, specials = _placed(model, reader, given, len(pictures))
    else:
        pictures = _opened(_of_chat(inside, images))
        prompt, specials = _templated(reader, chat)
    return replace(
        _read(model, reader, _processed(reader, prompt, pictures, specials), prompt, pictures, encode), notes=notes
    )


def _parts(chat: Sequence[Any]) -> list[Mapping[str, Any]]:
    """The parts of all messages whose content is a list of parts."""
    contents = [message.get("content") for message in chat if isinstance(message, Mapping)]
    return [part for content in contents if isinstance(content, list) for part in content if isinstance(part, Mapping)]


def _of_chat(inside: Sequence[Mapping[str, Any]], images: list[Any] | None) -> list[Any]:
    """The images of a chat: those in its parts or, for parts without, those of ``images=`` one after the other."""
    names = ("image", "path", "url")
    held = [next((part[name] for name in names if part.get(name) is not None), None) for part in inside]
    empty = sum(image is None for image in held)
    if empty != len(images or ()):
        raise InputError(
            f"the messages have {empty} image parts without an image, and images= has {len(images or ())}.",
            python='Give as many, or {"type": "image", "image": picture} in the messages.',
            command='Put {"type": "image"} into a message for each of them.',
        )
    rest = iter(images or ())
    return [next(rest) if image is None else image for image in held]


def _opened(images: Sequence[Any]) -> list[Any]:
    if not images:
        raise InputError("images=[] is empty. Give at least one image, or leave it out.")
    return [open_picture(image, f"images[{n}]") for n, image in enumerate(images)]


def _check_reads_images(model: PreTrainedModel, reader: Any) -> None:
    name = type(model).__name__
    if not any(takes(model, key) for key in IMAGES):
        raise InputError(f"{name} reads no images. Leave out images=, or load a model that does.")
    if image_processor_of(reader) is None or tokenizer_of(reader) is None:
        kind = "no processor" if reader is None else f"a {type(reader).__name__}"
        raise InputError(
            f"images need the model's processor, and {kind} is given.",
            python="Type: lrpx.Explainer(model, AutoProcessor.from_pretrained(name)), or lrpx.Explainer(name).",
            command="Load a model that has the files of its processor beside it.",
            app="Start the app with a model that has one.",
        )


def _placed(model: PreTrainedModel, reader: Any, text: str, count: int) -> tuple[str, tuple[str, ...], bool]:
    """A text with a place for each image; a note where it had none; whether the tokenizer adds special tokens."""
    if not text.strip():
        raise InputError(f"the text {text!r} is empty. Give at least one word.")
    token = getattr(reader, "image_token", None)
    if type(reader).__name__ in _PUT_BY_THE_PROCESSOR:
        if count > 1:
            raise InputError(f"{type(model).__name__} reads one image with a text, and {count} are given.")
        return text, (), True
    found = text.count(token) if isinstance(token, str) and token else 0
    if found == count:
        return text, (), True
    if found:
        raise InputError(
            f"the text has {found} places for images ({token!r}), and {count} images are given. Give as many, or a text "
            "without places."
        )
    if getattr(reader, "chat_template", None):
        content = [*[{"type": "image"}] * count, {"type": "text", "text": text}]
        prompt, specials = _templated(reader, [{"role": "user", "content": content}])
        return (
            prompt,
            ("the text had no place for its images, and was read as a chat message, images first.",),
            specials,
        )
    if not isinstance(token, str) or not token:
        raise InputError(
            f"{type(reader).__name__} does not say which token stands for an image. Give chat messages, or what the processor "
            "makes of text and images."
        )
    return token * count + text, (f"the text had no place for its images: {token!r} was put before it.",), True


def _templated(reader: Any, chat: Sequence[Mapping[str, Any]]) -> tuple[str, bool]:
    """Chat messages as a text with a place for each image, and whether the tokenizer adds special tokens to it."""
    if getattr(reader, "chat_template", None) is None:
        raise InputError(
            "chat messages need a processor with a chat template; this one has none.",
            python="Give a text and images=.",
            app="Choose “Text” in place of “Chat”.",
            command="Give a text and --image, without --chat.",
        )
    from jinja2 import TemplateError  # installed with torch

    messages = [_in_parts(message) for message in chat]
    reply = messages[-1]["role"] == "assistant"
    try:
        text = reader.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=not reply, continue_final_message=reply
        )
    except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise InputError(f"the processor's chat template refuses these messages: {error}.") from error
    bos = getattr(tokenizer_of(reader), "bos_token", None)
    return text, not (bos and text.startswith(bos))


def _in_parts(message: Any) -> dict[str, Any]:
    """A message with its content as a list of parts, images without their pictures."""
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
        raise InputError(f'{shortened(message)} is no chat message. Give {{"role": "user", "content": [...]}}.')
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content}]}
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "image"):
            raise InputError(
                f'{shortened(part)} is no part of a message: give {{"type": "image", ...}} or {{"type": "text", ...}}.'
            )
    return {**message, "content": [{"type": "image"} if part["type"] == "image" else part for part in content]}


def _processed(reader: Any, prompt: str, pictures: Sequence[Any], specials: bool) -> Mapping[str, Any]:
    options = {} if specials else {"add_special_tokens": False}
    try:
        found: Mapping[str, Any] = reader(images=[list(pictures)], text=[prompt], return_tensors="pt", **options)
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError, ImportError) as error:
        reason = in_one_line(error, 300) or type(error).__name__
        raise InputError(
            f"the {type(reader).__name__} cannot read this text with {len(pictures)} images: {reason}"
        ) from error
    return found


def _read(
    model: PreTrainedModel,
    reader: Any,
    inputs: Mapping[str, Any],
    prompt: str | None,
    pictures: Sequence[Any],
    encode: Callable[[Any], Encoded],
) -> Encoded:
    """What a processor made, as tokens and what the model is given beside them."""
    name = type(model).__name__
    if why := why_refused(model.config.model_type, language_model=True):
        raise UnsupportedModelError(f"{name} is not supported: {why}.")
    if why := REFUSED_WITH_IMAGES.get(model.config.model_type):
        raise UnsupportedModelError(f"{name} with an image is not supported: {why}.")
    if not any(takes(model, key) for key in IMAGES):
        given = ", ".join(sorted(key for key in inputs if IMAGE_INPUT.search(key)))
        raise InputError(f"{name} reads no images, and the input has {given}. Leave it out, or load a model that does.")
    text = {key: _row(inputs[key], key) for key in (*READ, *PER_TOKEN) if inputs.get(key) is not None}
    beside: dict[str, Tensor] = {}
    for key, value in inputs.items():
        if key in text or key in IGNORED or value is None:
            continue
        if any(other in key for other in _OTHER):
            raise InputError(f"the input has {key}: images and text are explained, no video or sound. Leave it out.")
        if not takes(model, key):
            raise InputError(f"the input has {key}, which {name} does not take. Leave it out.")
        beside[key] = torch.as_tensor(value) if not isinstance(value, list) else _stacked(value, key)
    encoded = encode({key: value for key, value in text.items() if key in READ})
    if len(encoded.token_ids) != len(text["input_ids"]):
        raise InputError("attention_mask hides tokens. Give one text with its images, without padding.")
    extras = {key: tuple(text[key]) for key in PER_TOKEN if key in text}
    closing = _closing(tokenizer_of(reader), encoded) if prompt is not None else 0
    images = image_patches(
        model, encoded.token_ids, beside, image_processor_of(reader), pictures, encoded.tokens, extras
    )
    return replace(
        encoded, text=prompt, extras=extras, closing=closing, image_inputs=beside, images=images or (), unmasked=False
    )


def _row(value: Any, key: str) -> list[int]:
    """One row of per-token inputs, of one text."""
    rows = as_python(value)
    if not isinstance(rows, list) or not rows:
        raise InputError(f"{key} is {shortened(rows)}. Give a row of numbers, one for each token.")
    if not isinstance(rows[0], list):
        return rows
    if len(rows) > 1:
        raise InputError(
            f"{key} has {len(rows)} rows, and the images of several texts cannot be told apart. Call the processor for each "
            "text, and give a list of what it returns."
        )
    return rows[0]


def _stacked(value: list[Any], key: str) -> Tensor:
    try:
        return torch.stack(value) if value and isinstance(value[0], Tensor) else torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{key} is no tensor: let the processor return tensors of PyTorch ({error}).") from error


def _closing(tokenizer: Any, encoded: Encoded) -> int:
    """How many special tokens the tokenizer put after the text."""
    alone = tokenizer("a", return_special_tokens_mask=True, verbose=False)
    ends = alone["special_tokens_mask"][::-1]
    count = next((n for n, special in enumerate(ends) if not special), 0)
    tail = alone["input_ids"][len(ends) - count :]
    return count if count and list(encoded.token_ids[-count:]) == tail else 0
