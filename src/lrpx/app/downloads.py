"""Explanations as files, in every format that lrpx writes."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .. import heatmap
from ..errors import InputError, install_command, nearest
from ..heatmap import Look
from ..results.explanation import Explanation
from ..results.explanations import COLUMNS, Explanations
from ..results.table import DataTable
from ..results.tokens import readable_texts

TYPES = {
    "html": "text/html; charset=utf-8",
    "png": "image/png",
    "pdf": "application/pdf",
    "svg": "image/svg+xml",
    "latex": "application/x-tex",
    "json": "application/json",
    "csv": "text/csv; charset=utf-8",
}
ENDINGS = {"latex": "tex"}  # of other formats the ending is the name
DRAWN = ("png", "pdf", "svg")  # by matplotlib


def formats() -> dict[str, str]:
    """Each format, with what is missing for it: empty if nothing is."""
    missing = "" if importlib.util.find_spec("matplotlib") else install_command("viz")
    return {kind: missing if kind in DRAWN else "" for kind in TYPES}


def file_name(kind: str) -> str:
    """The name of a file of a format."""
    return f"lrpx.{ENDINGS.get(kind, kind)}"


def file_of(explanations: Sequence[Explanation], kind: str, look: Look) -> bytes:
    """The explanations as a file of the format ``kind``.

    Raises:
        InputError: There is no such format, or the text is too long for a picture.
        ImportError: What draws pictures is not installed.
    """
    if kind not in TYPES:
        raise InputError(f"unknown format {kind!r}. {nearest(kind, TYPES)}")
    if kind == "html":
        return heatmap.to_html(list(explanations), look=look).encode("utf-8")
    if kind == "latex":
        return heatmap.to_latex(list(explanations), look=look).encode("utf-8")
    if kind == "csv":
        return csv_of(explanations).encode("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file_name(kind)
        if kind == "json":
            Explanations(explanations).save(path)
        else:
            getattr(heatmap, f"to_{kind}")(list(explanations), path, look)
        return path.read_bytes()


def csv_of(explanations: Sequence[Explanation], lines: Sequence[int] = ()) -> str:
    """One row per token, with columns of ``Explanations.to_frame``; ``lines`` of a file, if the texts are from one, first.

    ``input`` is left out if the explanations are of one text, made one by one.
    """
    numbered = any(e.index is not None for e in explanations)
    rows = [
        (*lines[n : n + 1], n, *[e.index] * numbered, e.method, i, text, e.tokens[i], e.token_ids[i], e.relevance[i])
        for n, e in enumerate(explanations)
        for i, text in enumerate(readable_texts(e.units))
    ]
    columns = tuple(name for name in COLUMNS if numbered or name != "input")
    return DataTable(("line", *columns) if lines else columns, rows).to_csv()
