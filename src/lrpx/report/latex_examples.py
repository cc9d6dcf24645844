"""The heatmap figure of Arras et al. (2025) in LaTeX: per model the samples with the highest difference of logits.

One block per sample: the sentence, its subject underlined, attractors dotted, the predicted verb green; then one line of
coloured tokens per method. Each map has its own scale, red for the predicted form, blue for the other one. A figure as high as
a page at most; what is higher is set as paragraphs, which may break.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..heatmap.colours import colour, hex_colour, ink
from ..heatmap.latex import tex
from ..heatmap.numbers import MINUS, short
from ..results.explanation import Explanation
from .examples import Example, examples
from .results import Result, kind_in

PREAMBLE = r"""\usepackage[T1]{fontenc}
\usepackage{textcomp}
\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}
\usepackage{xcolor}
% \lrpxtoken{background}{ink}{text}; \lrpxverb{text}: the predicted verb; \lrpxpoint{U+4E2D}: what pdflatex cannot set.
\newcommand{\lrpxtoken}[3]{{\fboxsep=0.8pt\colorbox[HTML]{#1}{\textcolor[HTML]{#2}{\strut #3}}}}
\newcommand{\lrpxverb}[1]{\textcolor[HTML]{1F8A4C}{\textbf{#1}}}
% \lrpxattractor{text}: a noun that could be taken for the subject, with dots below it.
\DeclareRobustCommand{\lrpxattractor}[1]{\leavevmode{\setbox0\hbox{#1}\rlap{\lower2.4pt\hbox
  to\wd0{\xleaders\hbox to1.8pt{\hss.\hss}\hfil}}\box0}}
\newcommand{\lrpxmap}[2]{\par\noindent\makebox[29mm][l]{#1}\parbox[t]{\dimexpr\linewidth-29mm}{\raggedright #2}}
\newcommand{\lrpxpoint}[1]{{\tiny\,#1\,}}
"""
_LETTERS = 90  # that fit a line of a map
_GAPS = {True: "\n", False: "%\n\\allowbreak{}"}  # between tokens: a space, or only a place where a line may break
_PAGE = 50  # lines that fit a page


def figure(result: Result, count: int) -> str:
    """The figure of one model, or nothing if it has no correctly predicted sample."""
    found, kind = examples(result, count), kind_in([result])
    if not found:
        return ""
    caption = (
        f"The {len(found)} correctly predicted samples of \\texttt{{{tex(result.label)}}} with the highest difference of "
        f"logits. The {kind.truth} is \\underline{{underlined}}, attractors are \\lrpxattractor{{dotted}}, the predicted "
        f"{kind.word} is \\lrpxverb{{green}}. {tex(found[0].colours)}"
    )
    body = "\n\\par\\medskip\n".join("\n".join(_block(example)) for example in found)
    if sum(map(_height, found)) <= _PAGE:
        return f"\\begin{{figure}}[htbp]\n\\scriptsize\n{body}\n\\caption{{{caption}}}\n\\end{{figure}}\n"
    return f"\\clearpage\n{{\\scriptsize\n{body}\n\\par\\medskip\\noindent {caption}\\par}}\n"


def _block(example: Example) -> Iterator[str]:
    value = tex(short(example.value, MINUS))
    forms = f"{tex(example.predicted)} {tex(MINUS)} {tex(example.other)}"
    yield f"\\noindent {_sentence(example)}\\quad(logit {forms} = {value})"
    for e in example.explanations:
        yield f"\\lrpxmap{{{tex(e.method)}}}{{{_tokens(example, e)}}}"


def _height(example: Example) -> int:
    """Lines that the block takes, about."""
    lines = math.ceil(sum(len(unit.text) + 1 for unit in example.units) / _LETTERS)
    return 2 + lines * (1 + len(example.explanations))


def _tokens(example: Example, e: Explanation) -> str:
    values = [float(e.relevance[unit.start : unit.end].sum()) for unit in example.units]
    scale = max(map(abs, values)) or 1.0
    boxes = ""
    for unit, value in zip(example.units, values, strict=True):
        background = colour(value / scale)
        gap, text = _parts(unit.text)
        colours = f"{{{hex_colour(background)}}}{{{hex_colour(ink(background))}}}"
        before = _GAPS[gap] if boxes else ""  # at the start it would push the map below the method's name
        boxes += f"{before}\\lrpxtoken{colours}{{{_marked(example, unit.start, unit.end, text)}}}"
    return boxes


def _sentence(example: Example) -> str:
    """The sentence with the predicted verb in its place, without special tokens."""
    verb = f" \\lrpxverb{{{tex(example.predicted)}}}"
    pieces = []
    for unit in example.units:
        if {example.roles[i] for i in range(unit.start, unit.end)} == {"special"}:
            pieces.append(verb if unit.start == example.position else "")
            continue
        gap, text = _parts(unit.text)
        pieces.append(" " * gap + _marked(example, unit.start, unit.end, text))
    masked = example.roles[example.position] == "special"
    return "".join(pieces).strip() + ("" if masked else verb)


def _parts(text: str) -> tuple[bool, str]:
    """Whether there is a space, and the text behind it as LaTeX."""
    body = text.lstrip(" ")
    return len(body) < len(text), tex(body)


def _marked(example: Example, start: int, end: int, text: str) -> str:
    roles = example.roles[start:end]
    mark = r"\underline" if "subject" in roles else r"\lrpxattractor" if "attractor" in roles else ""
    return f"{mark}{{{text}}}" if mark else text
