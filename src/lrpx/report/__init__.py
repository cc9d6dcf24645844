"""Runs -> a report: Tables 2 and 3 of Arras et al. (2025) for your own models, charts, and heatmaps of the clearest predictions.

    lrpx.report.report(["RUN"], format="html", compare_paper=True)

Everything is computed from the records of ``lrpx evaluate``; no model, no torch.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import InputError, nearest
from ..evaluation.records import find_runs
from ..files import atomic_write, check_output, format_of_output, save_output
from .results import Result, results_of

__all__ = ["FORMATS", "report", "write"]

ENDINGS = {  # how files of each format are called, the usual one first
    "terminal": (".txt",),
    "markdown": (".md", ".markdown", ".txt"),
    "latex": (".tex",),
    "html": (".html", ".htm"),
    "csv": (".csv",),
    "parquet": (".parquet",),
}
FORMATS = tuple(ENDINGS)


def report(
    runs: Sequence[str | os.PathLike[str]],
    *,
    format: str = "terminal",
    compare_paper: bool = False,
    examples: int = 5,
    k: int = 2,
    color: bool = False,
    width: int = 100,
) -> str:
    """The report of one run or several.

    Args:
        runs: Folders that ``lrpx evaluate`` wrote: runs, or folders of runs. Runs of one model on the same samples stand in
            one column.
        format: One of ``FORMATS``, but Parquet, which only ``write`` writes. ``html`` is one self-contained page and has charts
            and heatmaps besides the tables; ``csv`` has every number of every table, one per line.
        compare_paper: Show the numbers of Arras et al. (2025) too: beside a model that is one of their six, the others last.
        examples: HTML and LaTeX: how many samples per model to show as heatmaps, those with the highest difference of logits.
        k: How many of the most relevant tokens the pointing game PGk looks at. The paper's numbers are for 2.
        color: Terminal: use colours and type faces.
        width: Terminal: columns.

    Raises:
        InputError: An unknown format, a folder that is no run, or a run without records.
        ImportError: pyarrow is not installed.
    """
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}. {nearest(format, FORMATS)}")
    if format == "parquet":
        raise InputError("Parquet needs a file. Type: lrpx.report.write(runs, output='report.parquet')")
    if isinstance(examples, bool) or not isinstance(examples, int) or examples < 0:
        raise InputError(f"examples={examples!r}: give the number of samples to show as heatmaps, 0 for none.")
    results = _results(runs, compare_paper=compare_paper, k=k)
    if format == "html":
        from . import html

        return html.report_page(results, examples)
    if format == "latex":
        from . import latex

        return latex.report_document(results, examples)
    if format == "csv":
        from . import numbers

        return numbers.comma_separated(results)
    from . import text

    return text.terminal(results, color=color, width=width) if format == "terminal" else text.markdown(results)


def _results(runs: Sequence[str | os.PathLike[str]], *, compare_paper: bool, k: int) -> list[Result]:
    several = [runs] if isinstance(runs, str | os.PathLike) else runs
    return results_of(find_runs([os.fspath(run) for run in several]), compare_paper=compare_paper, k=k)


def write(
    runs: Sequence[str | os.PathLike[str]],
    *,
    format: str | None = None,
    compare: str | None = None,
    examples: int = 5,
    k: int = 2,
    output: str | os.PathLike[str] | None = None,
) -> None:
    """What ``lrpx report`` does: print the report, or write it to a file.

    Args:
        runs: As ``report``.
        format: As ``report``; ``None``: by the suffix of ``output``, or ``terminal``.
        compare: ``"paper"`` or ``None``.
        examples: As ``report``.
        k: As ``report``.
        output: A file.

    Raises:
        InputError: As ``report``; the format is not told by ``output``, or ``output`` cannot be written, which is found out
            before anything is computed.
    """
    if compare not in (None, "paper"):
        raise InputError(
            f"compare={compare!r}: there are only the paper's numbers to compare with. Type: compare='paper'"
        )
    path = None if output is None else Path(output)
    kind = format_of_output(format, path, ENDINGS)
    if kind == "parquet":
        if path is None:
            raise InputError("Parquet needs a file: output='report.parquet'.")
        from . import numbers

        check_output(path, "output")
        with atomic_write(path) as temporary:
            numbers.write_parquet(_results(runs, compare_paper=compare == "paper", k=k), temporary)
        return
    chosen: dict[str, Any] = {"format": kind, "compare_paper": compare == "paper", "examples": examples, "k": k}
    if path is None:
        color = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(report(runs, **chosen, color=color, width=shutil.get_terminal_size((100, 24)).columns))
    else:
        check_output(path, "output")
        save_output(path, report(runs, **chosen))
