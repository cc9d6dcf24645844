"""What the page draws of explanations: the grids of ``heatmap``, as JSON.

Numbers come formatted and colours computed, so the page shows what every other format shows. All text is visible text, not
escaped: the page sets it as text, never as HTML.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..errors import InputError
from ..heatmap import Look
from ..heatmap.cells import Cell, joined_pieces
from ..heatmap.colours import WHITE, Rgb, hex_colour, ink
from ..heatmap.grid import Grid, GridRow, grid, groups
from ..heatmap.images import ImageMap, overlay
from ..heatmap.matrix import positions_of
from ..heatmap.numbers import MINUS, fixed, probability
from ..heatmap.rtl import in_order
from ..heatmap.text import legible, readable, visible
from ..heatmap.view import DOT, View, view
from ..results.explanation import Explanation
from ..results.tokens import Prediction, Token

QUESTION, SCORE = "question-answering", "zero-shot-image-classification"  # tasks whose targets are no ids
PARTS = {"by_attention": "attention", "by_mlp": "MLP", "by_layer": "all it adds"}


def look_of(explanations: Sequence[Explanation], look: Look, *, shared: bool) -> Look:
    """How explanations are drawn; ``shared``: all have one scale, which ends where that of the largest does.

    Raises:
        InputError: They are not all parts of a logit, so that they have no scale in common.
    """
    if not shared:
        return look
    other = [e.method for e in explanations if e.measures != "parts"]
    if other:
        raise InputError(
            f"{', '.join(other)}: not parts of the logit, so there is no common scale. Untick “One scale for all methods” in "
            "“View”."
        )
    largest = max(view(e, look).scale for e in explanations)
    return replace(look, scale=largest) if largest else look


def drawn(explanations: Sequence[Explanation], look: Look, *, shared: bool) -> list[dict[str, Any]]:
    """Grids, below one another: explanations of one text are rows of one grid, and images have one each.

    Raises:
        InputError: Everything is hidden, or there is no common scale.
    """
    look = look_of(explanations, look, shared=shared)
    return [_grid(grid(group, look)) for group in groups(explanations)]


def _grid(g: Grid) -> dict[str, Any]:
    alone = g.rows[0].view if len(g.rows) == 1 else None
    below = g.below(MINUS)
    if alone is not None:
        beside = [f"outside the tokens: {DOT.join(parts)}"] if (parts := alone.outside(MINUS)) else []
        below = [*alone.below(MINUS, sums=False), *beside]  # the sums stand beside the colour bar
    return {
        "columns": [
            _column(cell, pieces) | {"level": level}
            for cell, pieces, level in zip(g.columns, joined_pieces(g.columns), g.levels(), strict=True)
        ],
        "rtl": g.rtl,
        "what": in_order(g.explains(MINUS)),
        "below": [in_order(line) for line in below],
        "marked": g.marked(),
        "rows": [_row(row) for row in g.rows],
    }


def _column(cell: Cell, pieces: list[str]) -> dict[str, Any]:
    """What all rows have in common. The ``pieces`` are those of the cell, with Arabic letters as in the whole word."""
    return {
        "pieces": pieces,
        "gap": cell.gap,
        "rtl": cell.rtl,
        "explained": cell.explained,
        "hidden": cell.hidden,
        "segment": cell.segment,
        "breaks": cell.breaks,
        "image": cell.image,
        "positions": [position for position, *_ in cell.tokens],
        "tokens": [f"{legible(raw)} · id {i}" for _, raw, i, _ in cell.tokens],
    }


def _row(row: GridRow) -> dict[str, Any]:
    v = row.view
    return {
        "method": v.method,
        "what": in_order(v.equation(MINUS)),
        "sums": v.sums(MINUS),
        "scale": bool(v.scale),
        "ticks": [text for _, text in v.ticks(MINUS)] if v.scale else [],
        "bar": [painted(v.look.colour(share)) for share in v.bar(9)],
        "legend": v.legend(MINUS),
        "numbers": [row.number(cell, MINUS) for cell in row.cells],
        "colours": [painted(WHITE if cell is None else v.fill(cell)) for cell in row.cells],
        "images": [_image(v, image) for image in v.images],
    }


def _image(v: View, image: ImageMap) -> dict[str, Any]:
    def patch(value: float) -> str:
        rgb, opacity = overlay(v.share(value), v.look)
        return f"#{hex_colour(rgb)}{round(255 * opacity):02X}"

    places = list(image.places())
    return {
        "label": image.label,
        "caption": v.caption(image, MINUS),
        "rows": image.rows,
        "columns": image.columns,
        "width": image.width,
        "height": image.height,
        "file": f"data:image/png;base64,{base64.b64encode(image.png).decode('ascii')}",
        "tokens": [token for _, _, token, _ in places],
        "numbers": [v.number(value, MINUS) for *_, value in places],
        "colours": [patch(value) for *_, value in places],
    }


def painted(rgb: Rgb) -> list[str]:
    """A colour and the ink that is legible on it."""
    return [f"#{hex_colour(rgb)}", f"#{hex_colour(ink(rgb))}"]


def inside(e: Explanation, positions: Sequence[int], look: Look) -> dict[str, Any]:
    """Relevance of layers and heads at tokens, added up over them; of all tokens if there are no ``positions``.

    Raises:
        InputError: There is no such token.
    """
    if any(not 0 <= i < len(e.tokens) for i in positions):
        raise InputError(f"positions {list(positions)}: the text has {len(e.tokens)} tokens.")
    chosen = list(positions) or slice(None)

    def at(numbers: np.ndarray) -> np.ndarray:
        return np.asarray(numbers[..., chosen].sum(axis=-1), dtype=np.float64)

    found = {name: at(numbers) for name in PARTS if (numbers := getattr(e, name)) is not None}
    of_text = "all tokens" if not positions else " ".join(visible(text, quoted=True) for text in _texts(e, positions))
    layers = {PARTS[name]: numbers for name, numbers in found.items()}
    if layers.keys() == {"all it adds"}:  # of ALTI-Logit, whose layers are what attention gave to the tokens
        layers = {"attention": layers["all it adds"]}
    heads = None if e.by_head is None else at(e.by_head)
    return {
        "method": e.method,
        "text": of_text,
        "positions": list(positions),
        "relevance": fixed(float(e.relevance[chosen].sum()), float(np.abs(e.relevance).max()), MINUS),
        "where": positions_of(e),
        "layers": _table(list(layers), np.array(list(layers.values())), look) if layers else None,
        "heads": None if heads is None else _table([str(layer) for layer in range(len(heads))], heads, look),
    }


def _texts(e: Explanation, positions: Sequence[int]) -> list[str]:
    return [text for start, end, text in e.units if any(start <= i < end for i in positions)]


def _table(names: list[str], numbers: np.ndarray, look: Look) -> dict[str, Any]:
    """Rows of numbers on one scale of colours, and where the scale ends."""
    largest = float(np.abs(numbers).max())
    return {
        "names": names,
        "largest": fixed(largest, largest, MINUS).removeprefix("+"),
        "numbers": [[fixed(value, largest, MINUS) for value in row] for row in numbers.tolist()],
        "colours": [
            [painted(look.colour(value / largest) if largest else WHITE) for value in row] for row in numbers.tolist()
        ],
    }


def listed_predictions(found: Sequence[Prediction], e: Explanation | None = None) -> dict[str, Any]:
    """The likeliest tokens, sorted; before them, with its role, what an explanation explains, however likely that is."""
    answers = e if e is not None and e.task == QUESTION else None
    rows = [{**entry(token, answers), **_likely(p)} for token, p in found]
    chosen: dict[str, Any] = {"target": None, "contrast": None}
    pinned: list[dict[str, Any]] = []
    if e is not None:
        for role, token in (("target", e.target), ("contrast", e.contrast)):
            p = getattr(e, f"{role}_probability")
            if token is None:
                continue
            chosen[role] = entry(token, e)
            listed = next((row for row in rows if row["ask"] == chosen[role]["ask"]), None)
            if listed is not None:
                rows.remove(listed)
            elif p is not None:
                listed = {**chosen[role], **_likely(p)}
            if listed is not None:
                pinned.append({**listed, "role": "explained" if role == "target" else "and not"})
    return {"tokens": pinned + rows, **chosen}


def _likely(p: float) -> dict[str, Any]:
    return {"p": p, "shown": probability(p).removeprefix("= ")}


def entry(token: Token, e: Explanation | None = None) -> dict[str, Any]:
    """A token, a label or an answer: its id, what the page sends to ask for it, its text, and how that is shown."""
    text = token.shown or readable(token.text)
    return {"id": token.id, "ask": _asked(token, text, e), "text": text, "name": visible(text, quoted=True)}


def _asked(token: Token, text: str, e: Explanation | None) -> int | str | list[int]:
    """An id; of an answer the first and the last token; the text where neither says it: of several tokens together."""
    if e is None:
        return token.id
    if e.task != QUESTION:
        return text if e.span or e.task == SCORE else token.id
    covered = ""
    for start, end, piece in e.units:
        covered += piece if start >= token.id else ""
        if covered.strip() == text:
            return [token.id, end - 1]
    return text
