"""What a person gives (a text, ids, a ``BatchEncoding``, chat messages) -> token ids, raw pieces and readable units."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .errors import InputError
from .explanation import Unit


@dataclass(frozen=True)
class Encoded:
    """A tokenised input.

    Attributes:
        text: The text, or ``None`` if ids were given.
        token_ids: T ids, special tokens included.
        tokens: Their raw pieces.
        units: Readable text over all tokens.
        spans: Per token, its characters in ``text``; ``None`` where there is no text, or for a special token.
        extras: Per-token model inputs besides the ids, e.g. ``token_type_ids``.
        adds_special_tokens: Whether the tokenizer put special tokens around ``text`` (not for chat messages).
    """

    text: str | None
    token_ids: tuple[int, ...]
    tokens: list[str]
    units: list[Unit]
    spans: list[tuple[int, int] | None]
    extras: dict[str, tuple[int, ...]] = field(default_factory=dict)
    adds_special_tokens: bool = True


def encode(tokenizer: Any, given: Any) -> list[Encoded]:
    """Tokenise one input or a list of them.

    Args:
        tokenizer: A Hugging Face tokenizer; ``None`` is enough when token ids are given.
        given: A string, token ids (list, 1-D or 2-D tensor or array), a ``BatchEncoding`` (its padding is dropped), chat
            messages, or a list of strings, of id lists or of conversations.

    Raises:
        InputError: An empty text, no tokens, or something that is none of these.
    """
    if isinstance(given, str):
        return [_encode_text(tokenizer, given)]
    if isinstance(given, Mapping) and "input_ids" in given:
        return _encode_batch(tokenizer, given)
    rows = given.tolist() if hasattr(given, "tolist") else given
    if not isinstance(rows, Sequence) or not rows:
        raise InputError(f"the text is {given!r}. Give a string, a list of strings, token ids, or chat messages.")
    first = rows[0]
    if isinstance(first, int) and not isinstance(first, bool):
        return [_encode_ids(tokenizer, rows)]
    if isinstance(first, Mapping) and "role" in first:
        return [_encode_chat(tokenizer, rows)]
    if not isinstance(first, str | Sequence | Mapping):
        raise InputError(f"a list of {type(first).__name__} is not text. Give strings, token ids, or chat messages.")
    return [item for row in rows for item in encode(tokenizer, row)]


def _encode_text(tokenizer: Any, text: str, *, specials: bool = True) -> Encoded:
    if not text.strip():
        raise InputError(f"the text {text!r} is empty. Give at least one word.")
    if tokenizer is None:
        raise InputError("a text needs a tokenizer: lrpx.explain(model, tokenizer, text), or give token ids.")
    fast = getattr(tokenizer, "is_fast", False)
    output = tokenizer(text, add_special_tokens=specials, return_offsets_mapping=fast, truncation=False, verbose=False)
    ids = tuple(output["input_ids"])
    if not ids:
        raise InputError(f"the tokenizer makes no token of {text!r}.")
    special = set(tokenizer.all_special_ids)
    spans: list[tuple[int, int] | None] = [None] * len(ids)
    if fast:
        spans = [
            None if start == end and i in special else (start, end)
            for i, (start, end) in zip(ids, output["offset_mapping"], strict=True)
        ]
    extras = {"token_type_ids": tuple(output["token_type_ids"])} if "token_type_ids" in output else {}
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    return Encoded(text, ids, tokens, units_of(tokenizer, ids, tokens), spans, extras, specials)


def _encode_chat(tokenizer: Any, messages: Sequence[Any]) -> Encoded:
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(
            "chat messages need a tokenizer with a chat template; this one has none. Give a string instead."
        )
    text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return _encode_text(tokenizer, text, specials=False)  # the template has written them already


def _encode_ids(tokenizer: Any, ids: Sequence[int], extras: dict[str, tuple[int, ...]] | None = None) -> Encoded:
    ids = tuple(int(i) for i in ids)
    if any(i < 0 for i in ids):
        raise InputError(f"token id {min(ids)} is negative. Ids count from 0.")
    tokens = [str(i) for i in ids] if tokenizer is None else tokenizer.convert_ids_to_tokens(list(ids))
    tokens = [f"<{i}>" if t is None else t for i, t in zip(ids, tokens, strict=True)]
    units = [Unit(i, i + 1, t) for i, t in enumerate(tokens)] if tokenizer is None else units_of(tokenizer, ids, tokens)
    return Encoded(None, ids, tokens, units, [None] * len(ids), extras or {}, False)


def _encode_batch(tokenizer: Any, given: Mapping[str, Any]) -> list[Encoded]:
    def rows(name: str) -> list[list[int]] | None:
        if given.get(name) is None:
            return None
        value = given[name].tolist() if hasattr(given[name], "tolist") else given[name]
        return [list(value)] if value and isinstance(value[0], int) else value

    ids = rows("input_ids")
    if not ids or not ids[0]:
        raise InputError("input_ids is empty. Give at least one token.")
    masks = rows("attention_mask") or [[1] * len(row) for row in ids]
    types = rows("token_type_ids")
    found = []
    for n, (row, mask) in enumerate(zip(ids, masks, strict=True)):
        real = [i for i, m in enumerate(mask) if m]  # padding is on one side or the other; either way it is dropped
        extras = {"token_type_ids": tuple(types[n][i] for i in real)} if types else None
        if not real:
            raise InputError(f"row {n} of input_ids is all padding. Give at least one token.")
        found.append(_encode_ids(tokenizer, [row[i] for i in real], extras))
    return found


def units_of(tokenizer: Any, ids: Sequence[int], tokens: Sequence[str]) -> list[Unit]:
    """Readable text for tokens, in order; several tokens share a unit where a character is split over them."""
    special = set(tokenizer.all_special_ids)
    continuation = "##" if _is_wordpiece(tokenizer) else ""
    units: list[Unit] = []
    start = 0
    while start < len(ids):
        end = start + 1
        text = tokens[start] if ids[start] in special else _decode(tokenizer, ids[start:end])
        while "\ufffd" in text and end < len(ids) and end - start < 8 and ids[end] not in special:
            end += 1
            text = _decode(tokenizer, ids[start:end])
        if "\ufffd" in text:  # no character comes of it: show one token's bytes as they are
            end = start + 1
            text = _decode(tokenizer, ids[start:end])
        if tokens[start].startswith("▁") and not text.startswith(" "):
            text = " " + text  # decoding drops the space before a first word
        text = text.removeprefix(continuation)
        if units and _continues(units[-1].text, text):
            first = units.pop()
            units.append(Unit(first.start, end, first.text + text))
        else:
            units.append(Unit(start, end, text))
        start = end
    return units


def _continues(before: str, text: str) -> bool:
    """Whether ``text`` is part of the character that ``before`` ends with: an accent, or a joined emoji."""
    joiner = "\u200d"
    return bool(before and text) and (
        before.endswith(joiner)
        or text[0] == joiner
        or (unicodedata.category(text[0]) in ("Mn", "Me", "Sk") and text[0] > "~")
    )


def _is_wordpiece(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return "BertTokenizer" in {kind.__name__ for kind in type(tokenizer).__mro__}
    return type(backend.model).__name__ == "WordPiece"


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
