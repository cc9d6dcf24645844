"""A flow of relevance as a picture: the graph with a row per place from the logit down and a column per token."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

from ..errors import InputError, import_optional
from ..files import ENDINGS
from .colours import hex_colour
from .emoji import is_emoji
from .flow import FlowView, colour_of
from .fonts import DPI, Typeface
from .look import Look
from .numbers import MINUS, short
from .picture import HIGHEST, save_figure
from .rtl import in_order
from .text import characters, code_point

ROW, COLUMN, GAP = 0.21, 0.3, 0.12  # inches
LABEL, SIZE, WIDEST = 24, 8.0, 6.0  # characters; points; points of the widest edge


def draw(view: FlowView, path: Path, kind: str, look: Look = Look()) -> None:  # noqa: B008
    """Draw the graph into the file ``path``, as one of ``picture.PICTURES``.

    Raises:
        ImportError: matplotlib is not installed.
        InputError: It is too large for a picture.
    """
    matplotlib = import_optional("matplotlib", ENDINGS[kind][0], extra="viz")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure

    labels = [_label(text) for text in view.labels]
    lines = look.header * [
        f"{view.method}: {view.what} = {short(view.value, MINUS)}, residual {short(view.residual, MINUS)}",
        " · ".join(view.notes),
        *view.kept.split("; "),
        *(f"note: {remark}" for remark in view.remarks),
    ]
    face = Typeface("".join([*labels, *lines, *view.rows]))

    def inches(text: str, points: float = SIZE) -> float:
        return face.width(face.text(text), points) / DPI

    left = max(map(inches, view.rows)) + 0.3
    under = max(map(inches, labels)) + 0.25
    x, right = [], left
    for i in range(len(labels)):
        right += GAP * (i > 0 and view.gap_before(i))
        x.append(right + COLUMN / 2)
        right += COLUMN
    size = (
        max(right, 0.2 + max((inches(line, SIZE + 1) for line in lines), default=0.0)) + 0.2,
        (under + ROW * len(view.rows) + 0.18 * len(lines) + 0.3),
    )
    if max(size) * DPI > HIGHEST.get(kind, math.inf):
        raise InputError(
            f"a graph of {len(view.rows)} places and {len(labels)} tokens is too large for a picture. HTML holds it; or keep "
            "less, by share= or layers=."
        )
    top = size[1] - 0.18 * len(lines) - 0.25
    y = [top - ROW * row for row in range(len(view.rows))]
    logit, scale = x[int(view.start)], view.scale or 1.0
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "lrpx"  # the same flow gives the same file
        warnings.filterwarnings("ignore", message="(Glyph|Matplotlib currently does not support)", category=UserWarning)
        figure = Figure(figsize=size, dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(0, size[0])
        axes.set_ylim(0, size[1])
        axes.axis("off")
        axes.hlines(y, left - 0.05, right + 0.05, colors="#eceef1", linewidth=0.6, zorder=0)
        ends = [[(logit if e.row == 0 else x[e.upper], y[e.row]), (x[e.lower], y[e.row + 1])] for e in view.edges]
        widths = [0.4 + (WIDEST - 0.4) * abs(e.relevance) / scale for e in view.edges]
        colours = [f"#{hex_colour(colour_of(e.relevance))}" for e in view.edges]
        axes.add_collection(
            LineCollection(ends, linewidths=widths, colors=colours, alpha=0.8, capstyle="round", zorder=1)
        )
        dots = [(logit, y[0], view.value), *((x[c], y[r], value) for (r, c), value in sorted(view.nodes.items()))]
        axes.scatter(
            [dot[0] for dot in dots],
            [dot[1] for dot in dots],
            s=[(1.6 + 4 * (abs(dot[2]) / scale) ** 0.5) ** 2 for dot in dots],
            c=[f"#{hex_colour(colour_of(dot[2]))}" for dot in dots],
            linewidths=0,
            zorder=2,
        )

        def write(x: float, y: float, text: str, points: float = SIZE, ink: str = "#5d6169", **how: Any) -> None:
            axes.text(
                x, y, face.text(text), fontproperties=face.font(points, False), color=ink, parse_math=False, **how
            )

        for row, name in enumerate(view.rows):
            write(left - 0.1, y[row], name, ha="right", va="center")
        for column, label in enumerate(labels):
            write(x[column], y[-1] - 0.1, label, ink="black", rotation=90, ha="center", va="top")
        for n, line in enumerate(lines):
            points, ink = (SIZE + 1, "black") if n == 0 else (SIZE, "#5d6169")
            write(0.2, size[1] - 0.18 * (n + 0.9), in_order(line), points, ink, va="center")
        save_figure(figure, path, kind)


def _label(text: str) -> str:
    """A token as a label: a long one is cut, an emoji is its code point."""
    text = "".join("".join(map(code_point, c)) if is_emoji(c) else c for c in characters(text))
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"
