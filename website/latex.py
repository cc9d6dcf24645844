"""Formulas of the documentation as MathML, which browsers draw by themselves: no script and no font is loaded.

Pages have formulas in fences named ``math``, as GitHub shows them; docstrings have them as reStructuredText:
``:math:`x```, or ``.. math:: x`` as a paragraph of its own.
"""

import re
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml.converter import convert
from markdown import Markdown
from markdown.blockprocessors import BlockProcessor
from markdown.extensions import Extension
from markdown.inlinepatterns import InlineProcessor


def formula(latex: str, *, block: bool) -> str:
    """The MathML of a formula, on a line of its own or within one."""
    numbered = re.sub(r"\\tag\{(.*?)\}", r"\\qquad \\text{(\1)}", latex.strip())  # else it touches the formula
    mathml = convert(numbered, display="block" if block else "inline")
    unknown = re.findall(r"<mi>(\\[^<]*|&(?:amp;)?)</mi>|<mtext[^>]*>[^<]*(\\[^<]*)</mtext>", mathml)
    if unknown:
        raise ValueError(f"No MathML for {''.join(unknown[0])} in the formula {latex!r}; write it another way.")
    return f'<div class="formula">{mathml}</div>' if block else mathml


def fence(source: str, *_: Any, **__: Any) -> str:
    """The formula of a fence, in the form that ``pymdownx.superfences`` calls."""
    return formula(source, block=True)


class _Role(InlineProcessor):
    def handleMatch(self, m: re.Match[str], data: str) -> tuple[str, int, int]:
        return self.md.htmlStash.store(formula(m[1], block=False)), m.start(0), m.end(0)


class _Directive(BlockProcessor):
    START = ".. math::"

    def test(self, parent: Element, block: str) -> bool:
        return block.startswith(self.START)

    def run(self, parent: Element, blocks: list[str]) -> None:
        paragraph = Element("p")
        paragraph.text = self.parser.md.htmlStash.store(formula(blocks.pop(0)[len(self.START) :], block=True))
        parent.append(paragraph)


class Formulas(Extension):
    """``:math:`` and ``.. math::`` in Markdown."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.inlinePatterns.register(_Role(r":math:`([^`]+)`", md), "math_role", 200)  # before code, which is 190
        md.parser.blockprocessors.register(_Directive(md.parser), "math_directive", 75)


def makeExtension(**options: Any) -> Formulas:
    """What Python-Markdown looks for in a module that is named as an extension."""
    return Formulas(**options)
