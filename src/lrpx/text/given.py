"""What a user gives as text: one input or several, in whatever holds them, as single inputs."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import InputError

# Inputs of models that read images, by name: pixel_values, image_grid_thw, aspect_ratio_ids, mm_token_type_ids, ...
IMAGE_INPUT = re.compile(
    r"pixel|image|patch|aspect_ratio|cross_attention_mask|spatial_shapes|crop|grid_thw|mm_token_type"
)
EXPECTED = "Give a string, token ids, a BatchEncoding or chat messages, or a list of these."
# What tokenizers return. Anything else (pixel_values, inputs_embeds, position_ids, ...) may change the prediction.
READ = ("input_ids", "attention_mask", "token_type_ids")
IGNORED = (
    "special_tokens_mask",
    "assistant_masks",
    "offset_mapping",
    "length",
    "overflow_to_sample_mapping",
    "labels",
)


def split(given: Any) -> tuple[list[Any], bool]:
    """Single inputs, and whether several were given (also a list of one).

    Raises:
        InputError: No input, or something that is none.
    """
    given = as_python(given)
    if isinstance(given, Mapping) and "input_ids" in given:
        return _split_batch(given)
    if isinstance(given, Mapping) and "role" in given:
        raise InputError('the text is one chat message. A chat is a list of them: [{"role": ..., "content": ...}].')
    if isinstance(given, str):
        return [given], False
    if hasattr(given, "columns") or hasattr(given, "column_names"):  # of pandas and polars; of datasets
        raise InputError(f"the text is a table ({type(given).__name__}). Give one column, such as table['text'].")
    if isinstance(given, Iterable) and not isinstance(given, Sequence | Mapping):
        raise InputError(f"the texts are of the type {type(given).__name__}.", python="Give a list: list(texts).")
    if not isinstance(given, list) or not given:
        raise InputError(f"the text is {shortened(given)}. {EXPECTED}")
    first = given[0]
    single = is_id(first) or (isinstance(first, Mapping) and "input_ids" not in first)
    return ([given], False) if single else (given, True)


def as_python(value: Any) -> Any:
    """Tensors, arrays, series, columns, tuples and numpy numbers as Python lists and numbers; lists all the way down.

    A sequence that reads its items when asked for them (a column of a ``datasets.Dataset``) is read once, item by item.
    """
    if value is None or type(value) in (int, str):  # most of what a call with many texts holds
        return value
    for method in ("tolist", "to_list"):  # of numpy, torch and pandas; of polars
        if callable(read := getattr(value, method, None)):
            value = read()
            break
    if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray):
        return value
    value = list(value)
    return value if are_ids(value) else [as_python(v) for v in value]


def _split_batch(given: Mapping[str, Any]) -> tuple[list[Any], bool]:
    unread = sorted(set(given) - {*READ, *IGNORED})
    if any(map(IMAGE_INPUT.search, unread)):  # of one text: tasks/image_text.py reads it
        return [given], False
    check_read(given)
    batch = {name: as_python(given[name]) for name in READ if given.get(name) is not None}
    ids = batch["input_ids"]
    if not isinstance(ids, list) or not ids:
        raise InputError("input_ids is empty. Give at least one token.")
    if not isinstance(ids[0], list):
        return [batch], False
    return [{name: rows[n] for name, rows in batch.items()} for n in range(len(ids))], True


def check_read(batch: Mapping[str, Any]) -> None:
    """Refuse inputs of a model that are not read.

    Raises:
        InputError: There is one.
    """
    if unread := sorted(set(batch) - {*READ, *IGNORED}):
        raise InputError(
            f"a batch with {', '.join(unread)} cannot be explained: {', '.join(READ)} are read, and the rest may change the "
            "prediction. Leave it out."
        )


def name_of(function: Any) -> str:
    """What a function is called: ``"<lambda>"`` for a lambda."""
    return str(getattr(function, "__name__", type(function).__name__))


def is_id(value: Any) -> bool:
    """Whether it is an integer."""
    return isinstance(value, int) and not isinstance(value, bool)


def are_ids(values: Sequence[Any]) -> bool:
    """Whether all are plain integers: a fast check for long lists. ``False`` if a closer look is needed."""
    return set(map(type, values)) == {int}


def shortened(value: Any) -> str:
    """A value for an error message, cut in the middle where it is long."""
    return reprlib.repr(value)
