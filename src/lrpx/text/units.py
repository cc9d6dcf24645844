"""Tokens as text that people read: the user's own characters, and never half of one.

1. Tokens that share a character (in the sense of Unicode: a letter with its marks, a joined emoji) become one unit.
2. Where the tokenizer changes the text (lower case, no accents), the unit shows what the user wrote.
3. A predicted token is read where it stands: its bytes may complete a character that the text has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from ..heatmap.text import as_string, continues_character, readable
from ..results.tokens import Token, Unit

Decode = Callable[[tuple[int, ...]], str]

_BROKEN = "\ufffd"  # what decoding gives for bytes that are no character
_MOST = 8  # tokens that may share a character


def decoder(tokenizer: Any) -> Decode:
    """A function from ids to their text, special tokens included. It remembers what it decoded: texts repeat their words."""

    @cache
    def decode(ids: tuple[int, ...]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    return decode


def special_ids(tokenizer: Any) -> set[int]:
    """The ids of a tokenizer's special tokens: BOS, ``[CLS]``, and those that mark the roles of a chat."""
    if tokenizer is None:
        return set()
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return set(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def units_of(tokenizer: Any, ids: tuple[int, ...], tokens: Sequence[str], decode: Decode) -> list[Unit]:
    r"""Readable text for tokens, in order; several tokens share a unit where a character is split over them."""
    special = set(tokenizer.all_special_ids)
    wordpiece = _is_wordpiece(tokenizer)
    units: list[Unit] = []
    start = 0
    while start < len(ids):
        end = start + 1
        text = tokens[start] if ids[start] in special else decode(ids[start:end])
        while _BROKEN in text and end < len(ids) and end - start < _MOST and ids[end] not in special:
            end += 1
            text = decode(ids[start:end])
        if _BROKEN in text:  # not a character: show the bytes of one token, ``\xe4``
            end = start + 1
            text = readable(tokens[start], byte_level=True)
        if tokens[start].startswith("▁") and not text.startswith(" "):
            text = " " + text  # decoding drops the space before a first word
        if wordpiece:
            text = text[2:] if text.startswith("##") else " " * bool(units) + text
        if units and ids[start] not in special and continues_character(units[-1].text, text):
            first = units.pop()
            units.append(Unit(first.start, end, first.text + text))
        else:
            units.append(Unit(start, end, text))
        start = end
    return units


def in_own_words(
    tokenizer: Any,
    text: str,
    units: Sequence[Unit],
    ids: Sequence[int],
    spans: Sequence[tuple[int, int] | None],
) -> list[Unit]:
    """The units with the user's own text where the tokenizer changed it: its case, accents, or width.

    The pieces of WordPiece do not say whether a space stands before them; here they get the one that the text has. Units
    that stand for the same characters of the text (``ﬁ``, read as ``f`` and ``i``) become one. Special tokens, also those for
    unknown words, stay as they are: they are what the model reads.

    Args:
        tokenizer: The tokenizer.
        text: The text.
        units: Of all tokens, by ``units_of``.
        ids: The tokens.
        spans: Per token its characters in ``text``, or ``None``.
    """
    special, wordpiece = set(tokenizer.all_special_ids), _is_wordpiece(tokenizer)
    places = list(_places(units, spans, len(text)))
    found: list[Unit] = []
    last: tuple[int, int, int] | None = None  # of the unit before
    for n, (unit, here) in enumerate(zip(units, places, strict=True)):
        own = text[here[0] : here[2]].strip() if here and not special & set(ids[unit.start : unit.end]) else ""
        lead = unit.text.startswith(" ")
        if wordpiece:
            between = text[last[1] : here[0]] if here and last else " "
            lead = n > 0 and any(map(str.isspace, between))
        changed = own not in ("", unit.text.strip())
        shared = changed and here and last and here[0] < last[1]
        if shared or (own and not lead and found and continues_character(found[-1].text, own)):
            first = found.pop()
            shown = first.text if shared else first.text + own
            found.append(Unit(first.start, unit.end, shown))
        else:
            shown = " " * lead + (own or unit.text.removeprefix(" "))
            found.append(Unit(unit.start, unit.end, shown) if wordpiece or changed else unit)
        last = here
    return found


def place_of(token: str, start: int, end: int, text: str) -> tuple[int, int]:
    """The characters of a token from those that its tokenizer says.

    A lone ``▁`` stands for a space. Tokenizers say the letter after it (T5, XLM-RoBERTa), which is the next token's.
    """
    if token and not token.strip("▁"):
        end = start + len(text[start:end]) - len(text[start:end].lstrip())
    return start, end


def _places(
    units: Sequence[Unit], spans: Sequence[tuple[int, int] | None], length: int
) -> Iterator[tuple[int, int, int] | None]:
    """Start and end of each unit in the text, and where the next one starts: what lies between was dropped by the tokenizer."""
    places: list[tuple[int, int, int] | None] = []
    following = length
    for unit in reversed(units):
        known = [span for span in spans[unit.start : unit.end] if span is not None]
        if len(known) < unit.end - unit.start:
            places.append(None)
            continue
        start, end = known[0][0], known[-1][1]
        places.append((start, end, max(end, following)))
        following = start
    return reversed(places)


def predicted_token(tokenizer: Any, token: int, before: Sequence[int]) -> Token:
    r"""A target or contrast with what it reads as in its context: ``" are"``; ``"中"`` where it adds a character's last bytes.

    A token that is no more than the beginning of a character is shown as bytes: ``\xe4\xb8``.

    Args:
        tokenizer: The tokenizer, or ``None``.
        token: Its id.
        before: The ids up to the explained position; a mask token at their end is left out.
    """
    if tokenizer is None:
        return Token(token, str(token), str(token))
    raw = tokenizer.convert_ids_to_tokens(token) or f"<{token}>"
    special, decode = set(tokenizer.all_special_ids), decoder(tokenizer)
    if token in special:
        return Token(token, raw, raw)
    text = decode((token,))
    if _BROKEN not in text:
        text = text.removeprefix("##" if _is_wordpiece(tokenizer) else "")
        return Token(token, raw, " " * (raw.startswith("▁") and not text.startswith(" ")) + text)
    if before and before[-1] == tokenizer.mask_token_id:
        before = before[:-1]
    for count in range(1, min(_MOST, len(before) + 1)):
        context = tuple(before[-count:])
        if special & set(context):
            break
        whole = decode((*context, token))
        if _BROKEN not in whole:
            return Token(token, raw, whole.removeprefix(decode(context).rstrip(_BROKEN)) or whole)
    return Token(token, raw, readable(raw, byte_level=True))


def pieces_shown(tokenizer: Any, ids: Sequence[int], before: Sequence[int]) -> str:
    """Tokens as text, for a sentence: ``' keys', 'keys'``; ``' и' (2 tokens)`` where a character is split over several.

    Args:
        tokenizer: The tokenizer, or ``None``.
        ids: Of the tokens.
        before: The ids before them: the first token may complete a character.
    """
    if tokenizer is None:
        return ", ".join(map(str, ids))
    tokens = tokenizer.convert_ids_to_tokens(list(ids))
    if _is_wordpiece(tokenizer):
        return ", ".join(map(repr, tokens))  # ``##s`` says that it continues a word
    found = []
    for start, end, text in units_of(tokenizer, tuple(ids), tokens, decoder(tokenizer)):
        if end - start == 1:
            text = predicted_token(tokenizer, ids[start], [*before, *ids[:start]]).shown
        found.append(as_string(text) + f" ({end - start} tokens)" * (end - start > 1))
    return ", ".join(found)


def _is_wordpiece(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return "BertTokenizer" in {kind.__name__ for kind in type(tokenizer).__mro__}
    return type(backend.model).__name__ == "WordPiece"
