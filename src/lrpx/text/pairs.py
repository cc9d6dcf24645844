"""Two texts that a model reads as one input, such as question and context: tokenised together, and told apart afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import InputError
from ..results.tokens import Segment
from .given import shortened
from .tokenization import Encoded, check_unicode
from .units import decoder, in_own_words, place_of, units_of

BETWEEN = "\n"  # the two texts, in ``Encoded.text``


def encode_pair(tokenizer: Any, first: Any, second: Any, names: tuple[str, str]) -> Encoded:
    """Tokenise two texts as one input, with the special tokens that the tokenizer puts around and between them.

    Args:
        tokenizer: A Hugging Face tokenizer.
        first: A string.
        second: A string.
        names: What the two are called, in messages and as segments.

    Raises:
        InputError: No string, an empty one, no tokenizer, or one that does not tell which token is of which text.
    """
    for name, text in zip(names, (first, second), strict=True):
        if not isinstance(text, str):
            raise InputError(f"{name} is {shortened(text)}. Give a string; with a pair, both texts are strings.")
        if not text.strip():
            raise InputError(f"{name} is {text!r}, which is empty. Give at least one word.")
        check_unicode(name, text)
    if tokenizer is None:
        raise InputError(f"{' and '.join(names)} need a tokenizer.", python="Type: lrpx.Explainer(model, tokenizer).")
    fast = getattr(tokenizer, "is_fast", False)
    output = tokenizer(first, second, return_offsets_mapping=fast, truncation=False, verbose=False)
    ids = tuple(output["input_ids"])
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    parts = output.sequence_ids() if fast else _found(tokenizer, ids, (first, second))
    if not {0, 1} <= set(parts):
        raise InputError(
            f"{type(tokenizer).__name__} does not tell which tokens are of {names[0]} and which of {names[1]}. Give its output, "
            "a BatchEncoding, in place of the texts."
        )
    text = first + BETWEEN + second
    spans: list[tuple[int, int] | None] = [None] * len(ids)
    if fast:
        begin = {0: 0, 1: len(first) + len(BETWEEN)}
        spans = [
            None if part is None else place_of(token, begin[part] + start, begin[part] + end, text)
            for part, token, (start, end) in zip(parts, tokens, output["offset_mapping"], strict=True)
        ]
    units = in_own_words(tokenizer, text, units_of(tokenizer, ids, tokens, decoder(tokenizer)), ids, spans)
    extras = {"token_type_ids": tuple(output["token_type_ids"])} if "token_type_ids" in output else {}
    segments = tuple(Segment(names[n], *_run(parts, n)) for n in sorted((0, 1), key=parts.index))
    return Encoded(text, ids, tokens, units, spans, extras, segments=segments)


def _run(parts: Sequence[int | None], n: int) -> tuple[int, int]:
    """From the first token of a text to its last, as (start, stop)."""
    return parts.index(n), len(parts) - list(reversed(parts)).index(n)


def _found(tokenizer: Any, ids: tuple[int, ...], texts: tuple[str, str]) -> list[int | None]:
    """Which text each token is of, where the tokenizer does not say it: the tokens of each text alone, looked for in order."""
    parts: list[int | None] = [None] * len(ids)
    place = 0
    for n, text in enumerate(texts):
        own = tuple(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        starts = range(place, len(ids) - len(own) + 1)
        start = next((i for i in starts if own and ids[i : i + len(own)] == own), None)
        if start is None:
            return []
        place = start + len(own)
        parts[start:place] = [n] * len(own)
    return parts
