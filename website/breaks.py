"""Long names in the tables of the documentation may go on in the next line, after ``_``, ``.``, ``/`` and ``:``.

Without this, a browser makes a column as wide as the longest name in it, and the table wider than the page. An element
``wbr`` is a place where a line may end; unlike a character, it is not copied with the name.
"""

import re
from typing import Any
from xml.etree.ElementTree import Element, SubElement

from markdown import Markdown
from markdown.extensions import Extension
from markdown.treeprocessors import Treeprocessor
from markdown.util import AtomicString

SHORT = 14  # letters: what is not longer stays in one line
PARTS = re.compile(r".+?(?:[_./:]+(?=.{3})|$)", re.S)


class _Breaks(Treeprocessor):
    def run(self, root: Element) -> None:
        for cell in (element for tag in ("td", "th") for element in root.iter(tag)):
            for code in cell.iter("code"):
                if not len(code) and any(len(word) > SHORT for word in (code.text or "").split()):
                    code.text, *rest = PARTS.findall(code.text or "")
                    for part in rest:
                        SubElement(code, "wbr").tail = AtomicString(part)


class Breaks(Extension):
    """Places in long names where a line may end."""

    def extendMarkdown(self, md: Markdown) -> None:
        md.treeprocessors.register(_Breaks(md), "breaks", 15)  # after inline patterns, which are 20


def makeExtension(**options: Any) -> Breaks:
    """What Python-Markdown looks for in a module that is named as an extension."""
    return Breaks(**options)
