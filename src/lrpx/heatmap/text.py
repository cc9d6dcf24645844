"""Make token text readable: decode vocabulary entries, and show invisible characters."""

from __future__ import annotations

import contextlib
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

import regex

NEWLINE, EMPTY = "↵", "∅"

_BYTE_CHARS = [*range(33, 127), *range(161, 173), *range(174, 256)]
_BYTES = {chr(b): b for b in _BYTE_CHARS}  # byte-level BPE: printable bytes stand for themselves,
_BYTES |= {chr(256 + i): b for i, b in enumerate(sorted(set(range(256)) - set(_BYTE_CHARS)))}  # the rest from U+0100

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # controls, formats, surrogates, private use, separators
_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]")
_LONGEST_CHARACTER = 40  # code points; a family of four with skin tones has eleven
_QUOTED = regex.compile(r"""("[^"]*"+|`[^`]*`|(?<!\w)'[^']*'(?!\w))""")
BYTES = regex.compile(r"(\\x[0-9a-f]{2})+")  # of a character that is not complete, as ``readable`` writes them
_CATEGORIES = {"L": "letters", "M": "signs", "S": "symbols", "P": "punctuation", "N": "digits"}
_JOINERS = "\N{ZERO WIDTH JOINER}\N{ZERO WIDTH NON-JOINER}"  # they shape emoji and Persian words


def around_quotes(line: str) -> list[str]:
    """A line of a header in parts: words, a token in quotes, words, and so on. All of them joined are the line."""
    return _QUOTED.split(line)  # type: ignore[no-any-return]


def in_quotes(text: str) -> str:
    """A token in the first quotes that it does not have itself: double, single or backward ones."""
    mark = next((mark for mark in "\"'`" if mark not in text), '"')
    return f"{mark}{text}{mark}"


def as_string(text: str) -> str:
    r"""A token as a string of Python for an error: ``' are'``; bytes of half a character as ``readable`` has them: ``'\xd0'``."""
    return regex.sub(r"\\\\(x[0-9a-f]{2})", r"\\\1", repr(text))  # type: ignore[no-any-return]


SAME = "(n): the token at position n, where several read the same"


def same_apart(texts: Sequence[str], positions: Iterable[int]) -> list[str]:
    """What to add to each text: `` (3)``, its position, where another one reads the same, or nothing."""
    count = Counter(texts)
    return [f" ({position})" * (count[text] > 1) for text, position in zip(texts, positions, strict=True)]


def readable(raw: str, *, byte_level: bool = False) -> str:
    r"""A vocabulary entry as text: ``Ġare`` and ``▁are`` become " are", ``##s`` becomes "s", ``<0x41>`` becomes "A".

    Needed for the target and the contrast, of which only the entry is known. An entry whose characters, read as bytes,
    are valid UTF-8 is taken for bytes.

    Args:
        raw: The entry as the tokenizer stores it.
        byte_level: The vocabulary is known to be byte-level, so half a character is bytes too: ``\xe4\xb8``.
    """
    if all(c in _BYTES for c in raw):
        data = bytes(_BYTES[c] for c in raw)
        with contextlib.suppress(UnicodeDecodeError):  # not bytes, but a letter of a WordPiece vocabulary
            raw = data.decode(errors="backslashreplace" if byte_level else "strict")
    if len(raw) == 6 and raw.startswith("<0x") and raw.endswith(">"):
        return bytes.fromhex(raw[3:5]).decode(errors="backslashreplace")
    if raw.startswith("##") and raw[2:].strip("#") and not byte_level:
        return raw[2:]
    return raw.replace("▁", " ")


def half_character(raw: str) -> str | None:
    """Which characters a byte-level piece can begin that ends inside one; ``None`` for other pieces.

    By their numbers in Unicode, with the first and the last of its letters and of its signs, or of other characters if it has
    neither: "U+05C0 to U+05FF, among them the letters א to ײ".
    """
    data = bytes(_BYTES.get(c, 0) for c in raw)
    for have in (1, 2, 3):
        lead = data[-have] if have <= len(data) else 0
        length = 2 + (lead >= 0xE0) + (lead >= 0xF0)  # bytes of the character, by its first one
        rest = data[len(data) - have + 1 :]
        if 0xC2 <= lead <= 0xF4 and have < length and all(0x80 <= byte < 0xC0 for byte in rest):
            code = lead & (0x7F >> length)
            for byte in rest:
                code = code << 6 | byte & 0x3F
            low = code << 6 * (length - have)
            high = min(low + 64 ** (length - have), sys.maxunicode + 1)
            possible = range(max(low, {2: 0x80, 3: 0x800, 4: 0x10000}[length]), high)
            named, others = ([e for c in each if (e := _ends_of(c, possible))] for each in ("LM", "SPN"))
            named = named or others[:1]
            told = f"U+{possible[0]:04X} to U+{possible[-1]:04X}, among them the {' and the '.join(named)}"
            return told if named else None
    return None


def _ends_of(category: str, possible: range) -> str:
    """The first and the last of the characters of a category: "letters א to ײ"; empty where there are none."""
    ends = [
        next((chr(code) for code in each if unicodedata.category(chr(code)).startswith(category)), "")
        for each in (possible, reversed(possible))
    ]
    on = "\N{DOTTED CIRCLE}" * (category == "M")  # signs are drawn above, below or around another character
    return f"{_CATEGORIES[category]} {on}{ends[0]} to {on}{ends[1]}" * all(ends)


def continues_character(before: str, text: str) -> bool:
    """Whether ``text`` begins inside the character that ``before`` ends with: a vowel sign, an accent, a joined emoji.

    A character is what Unicode calls an extended grapheme cluster (UAX 29).
    """
    if not before or not text or text[0].isascii():
        return False
    last = characters(before[-_LONGEST_CHARACTER:])[-1]
    return len(characters(last + text[0])) == 1


def without_spaces(text: str) -> bool:
    """Whether ``text`` begins in a script that puts no spaces between words, such as Chinese, Japanese or Thai."""
    return _UNSPACED.match(text) is not None


def characters(text: str) -> list[str]:
    """``text`` in what readers take for characters: ``हिन्दी`` is two, a joined emoji is one."""
    return regex.findall(r"\X", text)  # type: ignore[no-any-return]


def words_start(text: str) -> set[int]:
    """Where words begin and end in ``text``, by Unicode's rules (UAX 29): "don't" is one, "cabinet." two, 中文 two."""
    return {found.start() for found in regex.finditer(r"(?w)\b", text)}


def visible(text: str, *, quoted: bool = False) -> str:
    """``text`` with symbols for line breaks, tabs, control characters and spaces that would not be seen.

    Args:
        text: What a token stands for.
        quoted: It will stand in quotes, where a single space at either end can be seen.
    """
    shown = []
    for i, c in enumerate(text):
        around = {text[i - 1] if i else "", text[i + 1 : i + 2]}
        if c == " ":
            seen = " " not in around and ("" not in around or (quoted and around != {""}))
            shown.append(" " if seen else "␣")
        elif c in "\n\t\r":
            shown.append({"\n": NEWLINE, "\t": "⇥", "\r": "␍"}[c])
        elif unicodedata.category(c) == "Zs" and c != "\N{IDEOGRAPHIC SPACE}":
            shown.append("␣")
        elif (c in _JOINERS and "" not in around) or (i and "\U000e0020" <= c <= "\U000e007f"):
            shown.append(c)  # the latter are letters of a flag: England's
        else:
            shown.append(legible(c))
    return "".join(shown)


def legible(text: str) -> str:
    """``text`` with invisible and direction-changing characters as ``<U+202E>``."""
    return "".join(code_point(c, "<U+%04X>") if unicodedata.category(c) in _UNSEEN else c for c in text)


def code_point(char: str, form: str = "U+%04X") -> str:
    """``中`` -> ``U+4E2D``."""
    return form % ord(char)


def is_rtl(char: str) -> bool:
    """Whether ``char`` is a letter written from right to left."""
    return unicodedata.bidirectional(char) in ("R", "AL")


def is_ltr(char: str) -> bool:
    """Whether ``char`` is a letter written from left to right."""
    return unicodedata.bidirectional(char) == "L"


def mostly_rtl(text: str, otherwise: bool = False) -> bool:
    """Whether most letters of a text are right-to-left. The first letter does not tell: it is often a Latin special token's.

    Args:
        text: Any text.
        otherwise: The answer for a text without letters.
    """
    text = BYTES.sub("", text)
    right, left = sum(map(is_rtl, text)), sum(map(is_ltr, text))
    return right > left if right or left else otherwise
