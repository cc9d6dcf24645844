r"""Every script for ``lualatex``: a font for each, chosen when the document is compiled, and the direction of each cell.

The name of a character begins with that of its script, and so does the name of its font: DEVANAGARI LETTER KA is in Noto
Sans Devanagari. A few families have other names; they are in a table. If no candidate is installed, LaTeX warns and says
which font to install.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

import regex

from .cells import Cell
from .rtl import direction, levels

_CJK = ("Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "PingFang SC", "Microsoft YaHei", "FandolHei")
_JAPANESE = (
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "Source Han Sans JP",
    "Hiragino Sans",
    "Yu Gothic",
    "Harano Aji Gothic",
)
_KOREAN = ("Noto Sans CJK KR", "Noto Sans KR", "Source Han Sans KR", "Apple SD Gothic Neo", "Malgun Gothic")
_EMOJI = ("Noto Color Emoji", "Apple Color Emoji", "Segoe UI Emoji", "Noto Emoji", "Symbola")
_FONTS = {
    "CJK": _CJK,
    "HIRAGANA": _JAPANESE,
    "KATAKANA": _JAPANESE,
    "IDEOGRAPHIC": _JAPANESE,
    "FULLWIDTH": _JAPANESE,
    "HALFWIDTH": _JAPANESE,
    "BOPOMOFO": _CJK,
    "HANGUL": _KOREAN,
    "EMOJI": _EMOJI,
    "ARABIC": ("Noto Naskh Arabic", "Noto Sans Arabic", "Amiri", "Geeza Pro", "DejaVu Sans"),
    "CANADIAN": ("Noto Sans Canadian Aboriginal",),
    "TIBETAN": ("Noto Serif Tibetan", "Noto Sans Tibetan"),
    **dict.fromkeys(("LATIN", "GREEK", "CYRILLIC"), ("Noto Sans", "Noto Serif", "DejaVu Sans", "FreeSerif")),
}
_ANY = ("DejaVu Sans", "Noto Sans", "Noto Sans Symbols", "Noto Sans Symbols 2", "FreeSerif")

# Letters of these scripts change with their neighbours, for which HarfBuzz has to know the script.
_SHAPED = (
    *("ARABIC", "BENGALI", "DEVANAGARI", "GUJARATI", "GURMUKHI", "HEBREW", "KANNADA", "KHMER", "LAO", "MALAYALAM"),
    *("MONGOLIAN", "MYANMAR", "ORIYA", "SINHALA", "SYRIAC", "TAMIL", "TELUGU", "THAANA", "THAI", "TIBETAN"),
)

_MIRROR = str.maketrans("()[]{}<>«»", ")(][}{><»«")

_EMOJI_CHARACTER = regex.compile(r"\p{Emoji_Presentation}|\p{Extended_Pictographic}|\p{Regional_Indicator}|.\uFE0F")


def script_of(character: str, japanese: bool) -> str:
    """The script of what readers take for a character: a key of the fonts, such as ``DEVANAGARI``."""
    if _EMOJI_CHARACTER.match(character):
        return "EMOJI"
    word = unicodedata.name(character[0], "OTHER").split()[0].split("-")[0]
    return "HIRAGANA" if japanese and _FONTS.get(word) is _CJK else word if word.isalpha() else "OTHER"


def is_japanese(text: str) -> bool:
    """Whether the ideographs of a text are Japanese: it has kana."""
    return regex.search(r"[\p{Hiragana}\p{Katakana}]", text) is not None


def fonts(scripts: Sequence[str]) -> Iterator[str]:
    r"""Lines that define ``\lrpxDevanagari`` and so on: the first font of the script that is installed."""
    for script in scripts:
        name = script.title()
        candidates = _FONTS.get(script, (f"Noto Sans {name}", f"Noto Serif {name}", *_ANY))
        shaping = "Renderer=HarfBuzz" + f",Script={name}" * (script in _SHAPED)
        chosen = rf"\PackageWarning{{lrpx}}{{no font for {name}; install {candidates[0]}}}\newcommand\lrpx{name}{{}}"
        for font in reversed(candidates):
            found = rf"\newfontfamily\lrpx{name}{{{font}}}[{shaping}]"
            chosen = f"\\IfFontExistsTF{{{font}}}{{{found}}}{{{chosen}}}"
        yield chosen


def depths(cells: Sequence[Cell], rtl: bool) -> list[int]:
    """The embedding level of each cell, as ``rtl.levels``."""
    return levels([direction(cell.text) for cell in cells], rtl)


def mirrored(pieces: Sequence[str], cell: Cell, depth: int) -> list[str]:
    """The pieces with brackets turned round where they stand alone between right-to-left cells; fonts turn the others."""
    return (
        [piece.translate(_MIRROR) for piece in pieces] if depth % 2 and direction(cell.text) in " S" else list(pieces)
    )


def in_reading_order(sources: Sequence[str], depth: Sequence[int], rtl: bool) -> Iterator[str]:
    """The cells' sources with the direction of each run around it; numbers inside right-to-left text run to the right."""
    opened = base = int(rtl)
    for level, source in zip(depth, sources, strict=True):
        while opened > max(level, base):
            opened -= 1
            yield "}%"
        while opened < level:
            opened += 1
            yield rf"{{\textdir {'TRT' if opened % 2 else 'TLT'}%"
        yield source
    yield from ["}%"] * (opened - base)
