"""What the page asks, checked: JSON from the network -> a ``Question``.

A question says what is explained, by which methods, and how it is drawn. Two equal ones have the same answer, so explanations
are remembered by them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..errors import InputError, check_names, counted
from ..heatmap import Look
from ..methods import get_method

KINDS = ("text", "chat", "image", "sample")
ROLES = ("system", "user", "assistant")
LOOK = ("scale", "hide", "group", "palette")
MOST_IMAGES = 8
MOST_CHARACTERS = 200_000  # of all texts together; the number of tokens is limited by the desk
Choice = (
    int | str | tuple[int, int] | None
)  # an id of a token or a label, its text, or first and last token of an answer


@dataclass(frozen=True)
class Question:
    """What is asked about one input.

    Attributes:
        kind: One of ``KINDS``.
        text: The text; of an image classifier none.
        messages: Of a chat: pairs of role and content.
        images: PNG, JPEG, WebP, GIF or BMP files.
        sample: Of a benchmark: the number of the sample.
        question, text_pair, choices: What some tasks read beside the text.
        target, contrast, position: As of ``lrpx.Explainer``.
        continuation: Ids that the model generated after the input.
        span: Which of these are explained, as (start, stop).
        methods: Names.
        look: How it is drawn.
        shared_scale: Methods whose numbers are parts of the logit have one scale.
    """

    kind: str
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    images: tuple[bytes, ...] = ()
    sample: int | None = None
    question: str | None = None
    text_pair: str | None = None
    choices: tuple[str, ...] = ()
    target: Choice = None
    contrast: Choice = None
    position: int | None = None
    continuation: tuple[int, ...] = ()
    span: tuple[int, int] | None = None
    methods: tuple[str, ...] = ("attnlrp",)
    look: Look = field(default_factory=Look)
    shared_scale: bool = False

    def by(self, method: str) -> Question:
        """The same by one method, however it is drawn: what an explanation depends on."""
        return replace(self, methods=(method,), look=Look(), shared_scale=False)


def question_of(data: Any) -> Question:
    """A question from JSON; whatever is left out has its default.

    Raises:
        InputError: A name or a value that cannot be used.
    """
    if not isinstance(data, Mapping):
        raise InputError("a question is a JSON object.")
    known = {each.name for each in fields(Question)} - {"look"} | {*LOOK}
    check_names(data, known)
    given = {name: value for name, value in data.items() if value is not None}
    kind = given.pop("kind", "text")
    if kind not in KINDS:
        raise InputError(f"the kind is {kind!r}: give {', '.join(KINDS)}.")
    look = {name: given.pop(name) for name in LOOK if name in given}
    if "hide" in look:
        look["hide"] = _each("hide", look["hide"], _string)
    read = {name: _READ[name](name, value) for name, value in given.items()}
    found = Question(kind=kind, look=Look(**look), **read)
    for name in found.methods:
        get_method(name)
    if not found.methods:
        raise InputError("no method is chosen. Choose one or several.")
    texts = (found.text, found.question, found.text_pair, *found.choices, *(text for _, text in found.messages))
    if (count := sum(len(text) for text in texts if text)) > MOST_CHARACTERS:
        raise InputError(f"the text has {count:,} characters, and at most {MOST_CHARACTERS:,} are read.")
    start, stop = found.span or (0, 1)
    if found.span and not 0 <= start < stop <= len(found.continuation):
        raise InputError(
            f"the span is {list(found.span)}: the continuation has {counted(len(found.continuation), 'token')}."
        )
    return found


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name} is {type(value).__name__}, expected a string.")
    return value


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 1 << 40:
        raise InputError(f"{name} is {str(value)[:20]!r}, expected a whole number.")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{name} is {type(value).__name__}, expected true or false.")
    return value


def _choice(name: str, value: Any) -> Choice:
    if isinstance(value, str):
        return _string(name, value)
    return _first_and_last(name, value) if isinstance(value, list) and len(value) == 2 else _number(name, value)


def _first_and_last(name: str, value: Any) -> tuple[int, int]:
    first, last = _numbers(name, value)
    return first, last


def _each(name: str, value: Any, read: Callable[[str, Any], Any]) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise InputError(f"{name} is {type(value).__name__}, expected a list.")
    return tuple(read(f"{name}[{i}]", one) for i, one in enumerate(value))


def _strings(name: str, value: Any) -> tuple[str, ...]:
    return _each(name, value, _string)


def _numbers(name: str, value: Any) -> tuple[int, ...]:
    return _each(name, value, _number)


def _methods(name: str, value: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_strings(name, value)))


def _span(name: str, value: Any) -> tuple[int, int]:
    if len(found := _numbers(name, value)) != 2:
        raise InputError(f"{name} has {len(found)} numbers, expected start and stop.")
    return found[0], found[1]


def _message(name: str, value: Any) -> tuple[str, str]:
    if not isinstance(value, Mapping) or value.keys() != {"role", "content"}:
        raise InputError(f'{name} is no message, such as {{"role": "user", "content": "Hello"}}.')
    role = _string(f"{name}.role", value["role"])
    if role not in ROLES:
        raise InputError(f"{name} has the role {role!r}: give {', '.join(ROLES)}.")
    return role, _string(f"{name}.content", value["content"])


def _messages(name: str, value: Any) -> tuple[tuple[str, str], ...]:
    return _each(name, value, _message)


def _image(name: str, value: Any) -> bytes:
    """The file in a ``data:`` address."""
    head, _, data = _string(name, value).partition(";base64,")
    if not head.startswith("data:image/"):
        raise InputError(f"{name} is no image: expected data:image/png;base64,...")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise InputError(f"{name} is not base64: {error}.") from None


def _images(name: str, value: Any) -> tuple[bytes, ...]:
    if isinstance(value, list) and len(value) > MOST_IMAGES:
        raise InputError(f"{len(value)} images, and at most {MOST_IMAGES} are read.")
    return _each(name, value, _image)


_READ: dict[str, Callable[[str, Any], Any]] = {
    "text": _string,
    "messages": _messages,
    "images": _images,
    "sample": _number,
    "question": _string,
    "text_pair": _string,
    "choices": _strings,
    "target": _choice,
    "contrast": _choice,
    "position": _number,
    "continuation": _numbers,
    "span": _span,
    "methods": _methods,
    "shared_scale": _flag,
}
