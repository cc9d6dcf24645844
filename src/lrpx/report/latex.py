"""A report as a LaTeX document: tables with booktabs, up to three models side by side, and the heatmaps, as in the paper."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import latex_examples
from .results import Result, notes
from .tables import Table, TableCell, all_tables

_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "±": r"$\pm$",
    "−": r"$-$",
    "–": "--",
    "†": r"$^\dagger$",
}
_PREAMBLE = r"""\documentclass[10pt]{article}
\usepackage[utf8]{inputenc}
\usepackage[a4paper,margin=18mm]{geometry}
\usepackage{booktabs}
\usepackage{graphicx}
"""


def report_document(results: Sequence[Result], count: int) -> str:
    """A document that plain ``pdflatex`` compiles.

    Each table can be copied into another document that uses booktabs and graphicx, each figure together with the preamble's
    ``lrpx`` commands.

    Args:
        results: At least one of them not the paper's.
        count: How many samples per model to show as heatmaps.
    """
    body = "\n".join("\n".join(_table(table)) for table in all_tables(results))
    below = "".join(f"\\noindent {escape(note)}\n\n" for note in notes(results))
    figures = "".join(latex_examples.figure(r, count) for r in results if count and not r.of_paper)
    preamble = _PREAMBLE + latex_examples.PREAMBLE
    return f"{preamble}\\begin{{document}}\n{body}\n{below}{figures}\\end{{document}}\n"


def _table(table: Table) -> Iterator[str]:
    yield r"\begin{table}[htbp]"
    yield r"\centering\small"
    yield f"\\caption{{{escape(table.title)}. {escape(table.caption)}}}"
    if table.warning:
        yield f"\\parbox{{\\linewidth}}{{\\centering\\bfseries {escape(table.warning)}}}\\par\\medskip"
    for n, block in enumerate(table.blocks(3)):
        if n:
            yield r"\par\medskip"
        sides = "|".join("c" * len(columns) for _, columns in block.groups)
        columns = sum(len(columns) for _, columns in block.groups)
        # Shrunk if wider than the page, never stretched.
        yield r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"
        yield f"\\begin{{tabular}}{{l|{sides}}}"
        yield r"\toprule"
        if any(label for label, _ in block.groups):
            last = len(block.groups) - 1
            heads = (
                f"\\multicolumn{{{len(names)}}}{{c{'|' if k < last else ''}}}{{\\texttt{{{escape(label)}}}}}"
                for k, (label, names) in enumerate(block.groups)
            )
            yield f"& {' & '.join(heads)} \\\\"
        yield f"& {' & '.join(escape(name) for _, names in block.groups for name in names)} \\\\"
        yield r"\midrule"
        for k, (name, groups) in enumerate(block.rows):
            if block.summary and k == len(block.rows) - block.summary:
                yield r"\midrule"
            cells = [_cell(cell) for group in groups for cell in group]
            assert len(cells) == columns
            yield f"{escape(name)} & {' & '.join(cells)} \\\\"
        yield r"\bottomrule"
        yield r"\end{tabular}}"
    yield r"\end{table}"


def _cell(cell: TableCell) -> str:
    return {0: "{}", 1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"}[cell.rank].format(escape(cell.text)) + escape(
        cell.mark
    )


def escape(text: str) -> str:
    """``text`` for LaTeX; characters that plain ``pdflatex`` lacks become ``?``."""
    return "".join(_SPECIAL.get(c, c if ord(c) < 0x180 else "?") for c in text)
