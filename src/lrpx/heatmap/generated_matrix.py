"""A matrix of tokens as a picture: of generated text, a row per generated token; of two texts, a row per token of the first."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import InputError, import_optional
from ..files import ENDINGS
from .colours import PALETTES, hex_colour
from .emoji import is_emoji
from .fonts import DPI, Typeface
from .look import Look
from .numbers import MINUS, darkest, fixed
from .picture import HIGHEST, save_figure
from .rtl import in_order
from .text import characters, code_point


class Line(Protocol):
    """A row of a matrix."""

    @property
    def text(self) -> str:
        """What stands beside it."""

    @property
    def against(self) -> str:
        """What is subtracted, or nothing."""

    @property
    def relevance(self) -> np.ndarray:
        """A number for each column before ``end``."""

    @property
    def end(self) -> int:
        """The columns from here on have none."""


class Matrix(Protocol):
    """What is drawn: a ``GeneratedView``, or the pairs of two texts."""

    @property
    def first(self) -> int:
        """A line is drawn before this column."""

    @property
    def additive(self) -> bool:
        """Whether numbers have signs."""

    @property
    def rows(self) -> Sequence[Line]:
        """The rows, from the top."""

    @property
    def title(self) -> str:
        """What the numbers are."""

    @property
    def notes(self) -> Sequence[str]:
        """The model, where relevance was taken, and the options."""

    @property
    def sides(self) -> tuple[str, str]:
        """What the rows and the columns are; empty where their texts say it."""

    def text(self, cell: int, /) -> str:
        """The text of a column."""


SMALL = 3.6  # inches: smaller matrices have larger cells, up to twice as large
CELL, GAP, BAR, SIDE, HEAD, LINE = 0.22, 0.15, 2.4, 0.2, 0.4, 0.2  # inches
LABEL = 24  # characters of a label at most
SIZE = 9.0  # points


def draw(view: Matrix, path: Path, kind: str, look: Look = Look()) -> None:  # noqa: B008
    """Draw the matrix into the file ``path``, as one of ``picture.PICTURES``.

    Raises:
        ImportError: matplotlib is not installed.
        InputError: It is too large for a picture.
    """
    matplotlib = import_optional("matplotlib", ENDINGS[kind][0], extra="viz")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    rows, columns = len(view.rows), max(row.end for row in view.rows)
    numbers = np.full((rows, columns), np.nan)
    for line, row in zip(numbers, view.rows, strict=True):
        line[: row.end] = row.relevance[: row.end]
    scale = look.end_of_scale(np.abs(numbers[np.isfinite(numbers)]).tolist()) or 1.0
    if max(rows, columns) * CELL * DPI > HIGHEST.get(kind, math.inf) - 3000:
        raise InputError(f"a matrix of {rows} x {columns} is too large for a picture. HTML holds it.")
    below = [_label(view.text(i)) for i in range(columns)]
    beside = [_label(row.text) + f" {MINUS} {_label(row.against)}" * bool(row.against) for row in view.rows]
    title = view.title if look.header else ""
    face = Typeface("".join([*below, *beside, title, " · ", *view.notes]))
    left, under = (
        max(face.width(face.text(text), SIZE) for text in texts) / DPI + 2 * GAP + SIDE * bool(side)
        for texts, side in zip((beside, below), view.sides, strict=True)
    )
    cell = min(2 * CELL, max(CELL, SMALL / max(rows, columns)))
    width, height = columns * cell, rows * cell
    above = face.width(face.text(title), SIZE + 1) / DPI
    notes = _lines(view.notes, face, max(width, BAR, above)) if look.header else []
    above = max([above, *(face.width(face.text(line), SIZE - 1) / DPI for line in notes)])
    head = HEAD * look.header + LINE * max(0, len(notes) - 1)
    told = darkest(numbers, scale, MINUS)
    beside_bar = BAR + 2 * GAP + face.width(told, SIZE - 1) / DPI
    broad = beside_bar <= max(width, above)  # or else what is told has a line of its own, below the bar
    legend = max(BAR, width, above, beside_bar if broad else face.width(told, SIZE - 1) / DPI)
    size = left + legend + 4 * GAP, under + height + 0.5 + head + LINE * (not broad and bool(told))
    highest, zero, lowest, above_all, below_all = PALETTES[look.palette]
    colours = [tuple(c / 255 for c in rgb) for rgb in (lowest, zero, highest)]
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams["svg.hashsalt"] = "lrpx"  # the same matrix gives the same file
        # Typeface has logged what cannot be drawn well; matplotlib would repeat it for every letter.
        warnings.filterwarnings("ignore", message="(Glyph|Matplotlib currently does not support)", category=UserWarning)
        figure = Figure(figsize=size, dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        axes = figure.add_axes((left / size[0], under / size[1], width / size[0], height / size[1]))
        low = -scale if view.additive else 0.0
        palette = LinearSegmentedColormap.from_list("lrpx", colours if view.additive else colours[1:]).with_extremes(
            bad="#eceef1", over=f"#{hex_colour(above_all)}", under=f"#{hex_colour(below_all)}"
        )
        edges = (np.arange(count + 1) - 0.5 for count in (columns, rows))  # cells are shapes in PDF and SVG
        image = axes.pcolormesh(*edges, numbers, cmap=palette, vmin=low, vmax=scale)
        axes.set_ylim(rows - 0.5, -0.5)
        style = {"fontproperties": face.font(SIZE, False), "parse_math": False}
        axes.set_xticks(range(columns), [face.text(text) for text in below], rotation=90, **style)
        axes.set_yticks(range(rows), [face.text(text) for text in beside], **style)
        axes.tick_params(length=0)
        for axis, side in zip((axes.yaxis, axes.xaxis), view.sides, strict=True):
            axis.set_label_text(side, fontproperties=face.font(SIZE, False), color="#5d6169")
        axes.set_xticks(np.arange(-0.5, columns), minor=True)
        axes.set_yticks(np.arange(-0.5, rows), minor=True)
        axes.grid(which="minor", color="#d4d6db", linewidth=0.4)
        axes.tick_params(which="minor", length=0)
        if view.first < columns:
            axes.axvline(view.first - 0.5, color="black", linewidth=1)
        _write(figure, face, size, left, [(title, SIZE + 1, "black", 0.2)])
        _write(figure, face, size, left, [(line, SIZE - 1, "#5d6169", 0.4 + n * LINE) for n, line in enumerate(notes)])
        beyond = (np.nanmin(numbers) < low, np.nanmax(numbers) > scale)
        _bar(figure, face, image, size, (left, head + 0.26), (low, scale), beyond)
        place = (left + BAR + 2 * GAP, head + 0.26 - 0.09 / 2) if broad else (left, head + 0.5)
        _write(figure, face, size, place[0], [(told, SIZE - 1, "#5d6169", place[1])])
        save_figure(figure, path, kind)


def _lines(notes: Sequence[str], face: Typeface, wide: float) -> list[str]:
    """The notes in lines of at most ``wide`` inches, or of one note that is wider."""
    lines: list[str] = []
    for note in notes:
        longer = f"{lines[-1]} · {note}" if lines else note
        if lines and face.width(face.text(longer), SIZE - 1) / DPI <= wide:
            lines[-1] = longer
        else:
            lines.append(note)
    return lines


def _write(
    figure: Any, face: Typeface, size: tuple[float, float], x: float, lines: Sequence[tuple[str, float, str, float]]
) -> None:
    """Lines that begin at ``x``: a text, its points, its colour, and the inches from the top to its middle."""
    for text, points, ink, down in lines:
        if not text:
            continue  # it would count as something that is drawn
        figure.text(
            x / size[0], 1 - down / size[1], face.text(in_order(text)), fontproperties=face.font(points, False), color=ink,
            va="center", parse_math=False,
        )  # fmt: skip


def _bar(
    figure: Any, face: Typeface, image: Any, size: tuple[float, float], place: tuple[float, float],
    ends: tuple[float, float], beyond: tuple[bool, bool],
) -> None:  # fmt: skip
    """The colour bar, which ends below at ``place``; its arrows have the colours of what lies beyond the scale."""
    extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
    axes = figure.add_axes((place[0] / size[0], 1 - place[1] / size[1], BAR / size[0], 0.09 / size[1]))
    bar = figure.colorbar(image, cax=axes, orientation="horizontal", extend=extend)
    bar.solids.set_edgecolor("face")  # or browsers show the paper between its shades
    ticks = sorted({ends[0], 0.0, ends[1]})
    bar.set_ticks(
        ticks, labels=[fixed(tick, ends[1], MINUS) for tick in ticks], fontproperties=face.font(SIZE - 2, False)
    )
    axes.tick_params(length=0, pad=2)


def _label(text: str) -> str:
    """A token as a label: the space before it is left out, a long one is cut, an emoji is its code point."""
    text = "".join("".join(map(code_point, c)) if is_emoji(c) else c for c in characters(text.strip() or text))
    return text if len(text) <= LABEL else text[: LABEL - 1] + "…"
