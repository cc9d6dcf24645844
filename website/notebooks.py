"""Notebooks as pages: ``<!-- notebook: notebooks/01_first_explanation.ipynb -->`` in a page is replaced by that notebook.

Text cells are Markdown, with formulas between dollars; code cells are code, and what a cell has shown is shown below it: as
HTML if it has that, or as a picture, or as text. Nothing is run. Links to ``docs/`` and between notebooks lead to pages.
"""

import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from markdown import Markdown
from markdown.extensions import Extension
from markdown.preprocessors import Preprocessor

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = re.compile(r"^<!-- notebook: (\S+\.ipynb) -->$")
TO_DOCS = re.compile(r"\]\(\.\./docs/")  # from notebooks/ in the repository; pages of notebooks are in docs/notebooks/
TO_NOTEBOOK = re.compile(r"\]\(\d+_(\w+)\.ipynb\)")
FORMULA = re.compile(r"(?P<code>`+[^`]*`+)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+)\$", re.S)  # no formula in code


class _Notebooks(Preprocessor):
    def __init__(self, md: Markdown, root: Path) -> None:
        super().__init__(md)
        self.root = root

    def run(self, lines: list[str]) -> list[str]:
        return [new for line in lines for new in self._cells(line)]

    def _cells(self, line: str) -> Iterator[str]:
        named = NOTEBOOK.match(line)
        if not named:
            yield line
            return
        for cell in json.loads((self.root / named[1]).read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                yield from ["", *_markdown(source).splitlines(), ""]
            elif cell["cell_type"] == "code":
                yield from ["", *_fence(source, "python"), ""]
                for output in cell["outputs"]:
                    yield from ["", *self._shown(output), ""]

    def _shown(self, output: dict[str, Any]) -> list[str]:
        """The lines of one output, in the richest form that it has."""
        data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
        if html := data.get("text/html"):
            return [self._frame(html)]
        for kind in ("image/png", "image/jpeg"):
            if kind in data:
                picture = "".join(data[kind].split())
                name = escape(data.get("text/plain", "picture"), quote=True)
                return [self._frame(f'<img src="data:{kind};base64,{picture}" alt="{name}">')]
        return _fence(data.get("text/plain") or "".join(output.get("text", [])), "text")

    def _frame(self, html: str) -> str:
        return self.md.htmlStash.store(f'<div class="output">{html}</div>')


def _markdown(cell: str) -> str:
    """A text cell as Markdown of a page."""

    def formula(found: re.Match[str]) -> str:
        block, inline = found["block"], found["inline"]
        return f"\n\n```math\n{block.strip()}\n```\n\n" if block else f":math:`{inline}`" if inline else found[0]

    return FORMULA.sub(formula, TO_NOTEBOOK.sub(r"](\1.md)", TO_DOCS.sub("](../", cell)))


def _fence(text: str, language: str) -> list[str]:
    marks = "`" * max([3, *(len(run) + 1 for run in re.findall(r"^`+", text, flags=re.M))])
    return [f"{marks}{language}", *text.rstrip("\n").splitlines(), marks]


class Notebooks(Extension):
    """Notebooks in Markdown."""

    def __init__(self, **options: Any) -> None:
        self.config = {"root": [str(ROOT), "The folder to which the paths of notebooks are relative."]}
        super().__init__(**options)

    def extendMarkdown(self, md: Markdown) -> None:
        md.preprocessors.register(
            _Notebooks(md, Path(self.getConfig("root"))), "notebooks", 28
        )  # before fences and HTML


def makeExtension(**options: Any) -> Notebooks:
    """What Python-Markdown looks for in a module that is named as an extension."""
    return Notebooks(**options)
