"""Heatmaps as a LaTeX document that plain ``pdflatex`` compiles, with ``xcolor`` and a basic TeX installation.

``pdflatex`` typesets Latin letters and some symbols. Every other character is printed as its code point in small
type, ``U+4E2D``; a comment at the top of the document then says so.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from .text import code_point
from .view import ALL_ZERO, MINUS, WITH_NUMBERS, Cell, View, colour, hex_colour, ink

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "\N{NO-BREAK SPACE}": "~",
    " ": r"\ ",
    MINUS: "$-$",
    "␣": r"\textvisiblespace{}",
    "↵": r"$\hookleftarrow$",
    "⇥": r"$\to\!\vert$",
    "␍": r"{\tiny CR}",
    "∅": r"$\emptyset$",
    "…": r"\dots{}",
    "·": r"\textperiodcentered{}",
}
_LIGATURES = "-,<>?!"  # T1 fonts have ligatures for -- << ,, ?` and others; {} prevents them

# Beyond ASCII: what the fonts of the T1 and TS1 encodings have.
_TYPESET = {chr(c) for c in range(0xA1, 0x17F)} - set("\xad\u0126\u0127\u0138\u013f\u0140\u0149\u0166\u0167")
_TYPESET |= set("ȘșȚț–—‘’‚“”„†‡•‰‹›€™←↑→↓")

_PREAMBLE = r"""\documentclass{article}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{textcomp}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage{xcolor}
\setlength{\textwidth}{16cm}\setlength{\oddsidemargin}{0pt}\setlength{\evensidemargin}{0pt}
\setlength{\textheight}{23cm}\setlength{\topmargin}{-1.5cm}
\setlength{\parindent}{0pt}
\pagestyle{empty}

% To place a map in another document, copy these definitions, the packages above and the map's group {...}.
% \lrpxcell{background}{ink}{text}{number below, may be empty}; \lrpxexplained: the same in a strong frame.
\newlength{\lrpxwidth}\newlength{\lrpxbelow}
\newcommand{\lrpxbox}[6]{{\setlength{\fboxsep}{1.8pt}\setlength{\fboxrule}{#1}%
  \settowidth{\lrpxwidth}{#5}\settowidth{\lrpxbelow}{\tiny #6}%
  \ifdim\lrpxbelow>\lrpxwidth\setlength{\lrpxwidth}{\lrpxbelow}\fi
  \renewcommand{\arraystretch}{0.6}\begin{tabular}[t]{@{}c@{}}%
  \fcolorbox[HTML]{#2}{#3}{\makebox[\lrpxwidth]{\vphantom{\"A\c{g}}\textcolor[HTML]{#4}{#5}}}%
  \ifdim\lrpxbelow>0pt\\{\tiny #6}\fi\end{tabular}}}
\newcommand{\lrpxcell}[4]{\lrpxbox{0.3pt}{D5D8DD}{#1}{#2}{#3}{#4}}
\newcommand{\lrpxexplained}[4]{\lrpxbox{1pt}{000000}{#1}{#2}{#3}{#4}}
% \lrpxpoint{U+4E2D}: a character that pdflatex cannot typeset.
\newcommand{\lrpxpoint}[1]{{\tiny\,#1\,}}
"""

_BAR = 41  # steps of the colour bar, odd
_LINE = 60  # letters that surely fit a line; a longer unit is cut into several boxes


def document(views: Sequence[View], numbers: bool | None) -> str:
    """A complete document; maps stand below one another."""
    maps = [_map(view, numbers) for view in views]
    replaced = any(r"\lrpxpoint{" in text for text in maps)
    note = (
        "% Characters that pdflatex cannot typeset are printed as code points in small type, e.g. U+4E2D.\n" * replaced
    )
    return f"{note}{_PREAMBLE}\n\\begin{{document}}\n" + "\n\\bigskip\n".join(maps) + "\\end{document}\n"


def _map(view: View, numbers: bool | None) -> str:
    with_numbers = len(view.cells) <= WITH_NUMBERS if numbers is None else numbers
    value = rf" = \textbf{{{tex(view.equals(MINUS))}}}" if view.equals() else ""
    lines = [
        r"{\sffamily\raggedright\lineskip=4pt\lineskiplimit=2pt",
        rf"\textbf{{{tex(view.method)}}}\quad {tex(view.explains(MINUS))}{value}\par\nobreak",
        *(rf"{{\footnotesize {tex(line)}\par}}\nobreak" for line in view.below(MINUS)),
        r"\medskip",
        *(_cell(view, cell, with_numbers) for cell in view.cells),
        r"\par\nobreak\medskip",
        _bar(view) + r"\quad{\footnotesize framed: " + tex(view.marked()) + r"}\par",
    ]
    if view.components:
        outside = tex(" · ".join(view.outside(MINUS)))
        lines.append(rf"\smallskip{{\footnotesize outside the tokens: {outside}\par}}")
    return (
        "\n".join(lines).replace("\\newline%\n\\par", "%\n\\par") + "}\n"
    )  # a line break before \par would add an empty line


def _cell(view: View, cell: Cell, with_number: bool) -> str:
    """One unit, after a space or, inside a word, after a line break of last resort."""
    command = r"\lrpxexplained" if cell.explained else r"\lrpxcell"
    background = view.colour(cell.value)
    colours = f"{{{hex_colour(background)}}}{{{hex_colour(ink(background))}}}"
    text = r"\ " if cell.gap else r"\penalty500"
    number = tex(view.number(cell.value, MINUS)) if with_number else ""
    for n, piece in enumerate(cell.pieces):
        text += r"\newline" if n else ""
        for k, box in enumerate(_boxes(piece)):
            text += r"\penalty500" if k else ""
            text += f"{command}{colours}{{{tex(box)}}}{{{number}}}"
            number = ""  # only below the first box
    return text + "%"


def _boxes(piece: str) -> Iterator[str]:
    """``piece`` in parts that fit a line, because LaTeX cannot break a box. A code point counts as three letters."""
    part, width = "", 0
    for char in piece:
        columns = 1 if _typeset(char) else 3
        if width + columns > _LINE:
            yield part
            part, width = "", 0
        part, width = part + char, width + columns
    if part:
        yield part


def _bar(view: View) -> str:
    if not view.scale:
        return rf"{{\footnotesize {ALL_ZERO}}}"
    steps = "".join(
        rf"\textcolor[HTML]{{{hex_colour(colour(share))}}}{{\rule{{1.2mm}}{{2mm}}}}" for share in view.bar(_BAR)
    )
    (_, low), *_, (_, high) = ((place, tex(tick)) for place, tick in view.ticks(MINUS))
    return rf"{{\footnotesize {low} \fboxsep=0pt\fboxrule=0.3pt\fcolorbox[HTML]{{999999}}{{FFFFFF}}{{{steps}}} {high}}}"


def _typeset(char: str) -> bool:
    return char in _SPECIAL or char in _TYPESET or "\x20" <= char <= "\x7e"


def tex(text: str) -> str:
    """``text`` as LaTeX source: specials escaped, what ``pdflatex`` cannot typeset as its code point."""
    source = []
    for char in unicodedata.normalize("NFC", text):
        if char in _SPECIAL:
            source.append(_SPECIAL[char])
        elif char in _LIGATURES:
            source.append(char + "{}")
        else:
            source.append(char if _typeset(char) else rf"\lrpxpoint{{{code_point(char)}}}")
    return "".join(source)
