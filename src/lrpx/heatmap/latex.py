r"""Heatmaps as LaTeX: a document, or a fragment for ``\input``; for ``pdflatex`` or ``lualatex``.

``pdflatex`` needs ``xcolor`` and a basic TeX installation. It typesets Latin letters and some symbols; every other character
is printed as its code point in small type, ``U+4E2D``, and a comment at the top then says so. ``lualatex`` sets every
script in installed fonts (``latex_scripts.py``).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence

from ..errors import InputError, nearest
from .cells import Cell, joined_pieces
from .colours import hex_colour, ink
from .grid import Grid
from .images import ImageMap
from .latex_grid import COMMANDS as GRID_COMMANDS
from .latex_grid import grid_lines
from .latex_scripts import depths, fonts, in_reading_order, is_japanese, mirrored, script_of
from .numbers import MINUS
from .rtl import JOINER
from .text import around_quotes, characters, code_point, mostly_rtl
from .view import ALL_ZERO, DOT, View

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
_LIGATURES = "-,<>?!"  # fonts have ligatures for -- << ,, ?` and others: a kern prevents them, {} does not in LuaTeX

# Beyond ASCII: what the fonts of the T1 and TS1 encodings have.
_TYPESET = {chr(c) for c in range(0xA1, 0x17F)} - set("\xad\u0126\u0127\u0138\u013f\u0140\u0149\u0166\u0167")
_TYPESET |= set("ȘșȚț–—‘’‚“”„†‡•‰‹›€™←↑→↓")

_PACKAGES = {
    "pdflatex": r"""\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{textcomp}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage{xcolor}
""",
    "lualatex": r"""\usepackage{fontspec}
\usepackage{xcolor}
""",
}
_PAGE = r"""\setlength{\textwidth}{16cm}\setlength{\oddsidemargin}{0pt}\setlength{\evensidemargin}{0pt}
\setlength{\textheight}{23cm}\setlength{\topmargin}{-1.5cm}
\setlength{\parindent}{0pt}
\pagestyle{empty}
"""
_COMMANDS = r"""
% \lrpxcell{background}{ink}{text}{number below, may be empty}; \lrpxexplained: the same in a strong frame.
\ifdefined\lrpxwidth\else\newlength{\lrpxwidth}\newlength{\lrpxbelow}\fi
\newcommand{\lrpxbox}[6]{{\setlength{\fboxsep}{1.8pt}\setlength{\fboxrule}{#1}%
  \settowidth{\lrpxwidth}{#5}\settowidth{\lrpxbelow}{\tiny #6}%
  \ifdim\lrpxbelow>\lrpxwidth\setlength{\lrpxwidth}{\lrpxbelow}\fi
  \renewcommand{\arraystretch}{0.6}\begin{tabular}[t]{@{}c@{}}%
  \fcolorbox[HTML]{#2}{#3}{\makebox[\lrpxwidth]{\vphantom{\"A\c{g}}\textcolor[HTML]{#4}{#5}}}%
  \ifdim\lrpxbelow>0pt\\{\tiny #6}\fi\end{tabular}}}
\newcommand{\lrpxcell}[4]{\lrpxbox{0.3pt}{D5D8DD}{#1}{#2}{#3}{#4}}
\newcommand{\lrpxexplained}[4]{\lrpxbox{1pt}{000000}{#1}{#2}{#3}{#4}}
"""
_POINT = r"""% \lrpxpoint{U+4E2D}: a character that pdflatex cannot typeset.
\newcommand{\lrpxpoint}[1]{{\tiny\,#1\,}}
"""
_RTL = r"""% \lrpxrtl{text}: from right to left. Characters that a font lacks are named on the terminal.
\newcommand{\lrpxrtl}[1]{{\textdir TRT#1}}
\tracinglostchars=2
"""
ENGINES = tuple(_PACKAGES)

_BAR = 41  # steps of the colour bar, odd
# Letters that surely fit a line of a page, of a column; a longer unit is cut into several boxes.
_LINE, _COLUMN = 60, 30


def source(parts: Sequence[View | Grid], *, fragment: bool, engine: str) -> str:
    """A complete document, or a fragment of one; maps stand below one another.

    Raises:
        InputError: Another engine.
    """
    if engine not in ENGINES:
        raise InputError(f"unknown engine {engine!r}. {nearest(str(engine), ENGINES)}")
    writer = _Writer(engine == "lualatex", fragment)
    maps = "\n\\bigskip\n".join([writer.map(part) if isinstance(part, View) else writer.grid(part) for part in parts])
    with_grid = any(isinstance(part, Grid) for part in parts)
    own = GRID_COMMANDS * with_grid
    own += (_RTL if writer.lua else _POINT) + "".join(f"{line}\n" for line in fonts(sorted(writer.scripts)))
    note = "% Characters that pdflatex cannot typeset are printed as code points in small type, e.g. U+4E2D.\n"
    note *= r"\lrpxpoint{" in maps
    packages = _PACKAGES[engine] + "\\usepackage{colortbl}\n" * with_grid
    if fragment:
        lines = "".join(f"%   {line}\n" for line in packages.splitlines() if "lmodern" not in line)
        needs = f"% A heatmap of lrpx, for {engine}. \\input this file; the document needs in its preamble:\n{lines}"
        return f"{note}{needs}{{{_COMMANDS.lstrip()}{own}\n{maps}}}\n"  # in a group: another fragment may follow
    document = f"{note}\\documentclass{{article}}\n{packages}{_PAGE}{_COMMANDS}{own}"
    return f"{document}\n\\begin{{document}}\n{maps}\\end{{document}}\n"


class _Writer:
    """Writes maps for one engine, and notes the scripts that need a font."""

    def __init__(self, lua: bool, fragment: bool) -> None:
        self.lua, self.fragment, self.line = lua, fragment, _COLUMN if fragment else _LINE
        self.scripts: set[str] = set()
        self._japanese = False

    def map(self, view: View) -> str:
        """One map."""
        self._japanese = is_japanese("".join(cell.text for cell in view.cells))
        cells = [self._cell(view, cell, cell.pieces) for cell in view.cells] if not self.lua else self._any_script(view)
        rtl = self.lua and view.rtl
        marked = [f"framed: {view.marked()}"] * bool(view.marked())
        lines = [
            r"{\sffamily\raggedright\lineskip=4pt\lineskiplimit=2pt",
            *([] if not view.look.header else self._header(view)),
            *([r"{\pardir TRT\textdir TRT%"] * rtl),
            *cells,
            r"\par" + "}" * rtl + r"\nobreak\medskip",
            *(line for image in view.images for line in self._image(view, image)),
            self._bar(view) + r"\par\nobreak",
            rf"{{\footnotesize {self._prose(DOT.join([*marked, *view.legend(MINUS)]))}\par}}",
        ]
        if view.components:
            outside = self._prose(DOT.join(view.outside(MINUS)))
            lines.append(rf"{{\footnotesize outside the tokens: {outside}\par}}")
        # A line break before \par would add an empty line.
        return "\n".join(lines).replace("\\newline%\n\\par", "%\n\\par") + "}\n"

    def _header(self, view: View) -> Iterator[str]:
        value = rf" = \textbf{{{self.tex(view.equals(MINUS))}}}" if view.equals() else ""
        yield rf"\textbf{{{self.tex(view.method)}}}\quad {self._prose(view.explains(MINUS))}{value}\par\nobreak"
        yield from (rf"{{\footnotesize {self._prose(line)}\par}}\nobreak" for line in view.below(MINUS))
        yield r"\medskip"

    def grid(self, grid: Grid) -> str:
        """One grid."""
        self._japanese = is_japanese("".join(cell.text for cell in grid.columns))
        return "\n".join(grid_lines(grid, self.tex, self._prose, self.fragment)) + "\n"

    def _any_script(self, view: View) -> list[str]:
        """The cells for ``lualatex``: Arabic joins across them, and each run has its direction."""
        depth = depths(view.cells, view.rtl)
        places = zip(view.cells, joined_pieces(view.cells), depth, strict=True)
        cells = [self._cell(view, cell, mirrored(pieces, cell, level)) for cell, pieces, level in places]
        return list(in_reading_order(cells, depth, view.rtl))

    def _image(self, view: View, image: ImageMap) -> Iterator[str]:
        """The patches as squares, without the picture."""
        side = min(4.0, 120 / image.columns, 120 / image.rows)
        yield rf"{{\footnotesize {self.tex(view.caption(image, MINUS))}\par}}\nobreak"
        yield r"{\offinterlineskip\parindent=0pt"
        for row in view.image_shares(image):
            squares = (hex_colour(view.look.colour(float(share))) for share in row)
            rules = (rf"\textcolor[HTML]{{{fill}}}{{\rule{{{side:.2f}mm}}{{{side:.2f}mm}}}}%" for fill in squares)
            yield "\\hbox{" + "\n".join(rules) + "\n}"
        yield r"}\medskip"

    def _cell(self, view: View, cell: Cell, pieces: Sequence[str]) -> str:
        """One unit, after a space or, inside a word, after a line break of last resort."""
        command = r"\lrpxexplained" if cell.explained else r"\lrpxcell"
        background = view.fill(cell)
        colours = f"{{{hex_colour(background)}}}{{{hex_colour(ink(background))}}}"
        text = r"\ " if cell.gap else r"\newline " if cell.breaks else r"\penalty500"
        text += rf"{{\footnotesize {self.tex(cell.segment)}: }}" if cell.segment else ""
        number = self.tex(view.number(cell.value, MINUS)) if view.with_numbers and cell.coloured else ""
        pieces = [view.label(cell, MINUS)] if cell.image else pieces
        for n, piece in enumerate(pieces):
            text += r"\newline" if n else ""
            for k, box in enumerate(self._boxes(piece)):
                text += r"\penalty500" if k else ""
                text += f"{command}{colours}{{{self.tex(box)}}}{{{number}}}"
                number = ""  # only below the first box
        return text + "%"

    def _boxes(self, piece: str) -> Iterator[str]:
        """``piece`` in parts that fit a line, because LaTeX cannot break a box. A code point counts as three letters."""
        part, width = "", 0
        for char in characters(piece):
            columns = 1 if self.lua else sum(1 if _typeset(c) else 3 for c in char)
            if width + columns > self.line:
                yield part
                part, width = "", 0
            part, width = part + char, width + columns
        if part:
            yield part

    def _bar(self, view: View) -> str:
        if not view.scale:
            return rf"{{\footnotesize {ALL_ZERO}}}"
        below, above = view.beyond
        shares = [*([-2.0] * 2 * below), *view.bar(_BAR), *([2.0] * 2 * above)]
        steps = "".join(
            rf"\textcolor[HTML]{{{hex_colour(view.look.colour(share))}}}{{\rule{{1.2mm}}{{2mm}}}}" for share in shares
        )
        (_, low), *_, (_, high) = ((place, self.tex(tick)) for place, tick in view.ticks(MINUS))
        return rf"{{\footnotesize {low} \fboxsep=0pt\fboxrule=0.3pt\fcolorbox[HTML]{{999999}}{{FFFFFF}}{{{steps}}} {high}}}"

    def _prose(self, text: str) -> str:
        """Words around the map. No line breaks in a quoted token that fits one, or before a dot between two items."""
        parts = [
            rf"\mbox{{{self.tex(part)}}}" if n % 2 and len(part) <= self.line else self.tex(part)
            for n, part in enumerate(around_quotes(text))
        ]
        return "".join(parts).replace(self.tex(DOT), self.tex(DOT).replace(r"\ ", "~", 1))

    def tex(self, text: str) -> str:
        """``text`` as LaTeX source: specials escaped, and what the default font lacks in its script's font or as code points."""
        return "".join(self._run(*run) for run in self._runs(unicodedata.normalize("NFC", text)))

    def _runs(self, text: str) -> Iterator[tuple[str, str]]:
        """Parts of ``text`` that need one font: the script, empty for the document's own font, and the part."""
        script, part, between = "", "", ""  # between: spaces that belong to the script only if it goes on
        for char in characters(text):
            if char == " " and script:
                between += char
                continue
            plain = not self.lua or all(map(_typeset, char))
            found = "" if plain else script if char == JOINER and script else script_of(char, self._japanese)
            if found == script or part == JOINER:
                script, part = found, part + between + char
            else:
                yield script, part
                script, part = found, ("" if found else between) + char
                if found and between:
                    yield "", between
            between = ""
        yield script, part
        yield "", between

    def _run(self, script: str, text: str) -> str:
        if not script:
            return "".join(map(_escaped, text, text[1:] + " "))
        self.scripts.add(script)
        inside = "".join(c if c == " " else _SPECIAL.get(c, c) for c in text)
        set_in = rf"{{\lrpx{script.title()} {inside}}}"
        return rf"\lrpxrtl{{{set_in}}}" if mostly_rtl(text) else set_in


def tex(text: str) -> str:
    """``text`` as source for ``pdflatex``."""
    return _Writer(False, False).tex(text)


def _typeset(char: str) -> bool:
    return char in _SPECIAL or char in _TYPESET or "\x20" <= char <= "\x7e"


def _escaped(char: str, following: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if char in _LIGATURES and following in _LIGATURES + "`":
        return char + r"\kern0pt{}"
    return char if _typeset(char) else rf"\lrpxpoint{{{code_point(char)}}}"
