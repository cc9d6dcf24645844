"""Relevance as a matrix: inside a model, tokens x layers or layers x heads; of two texts, tokens x tokens (``pairs.py``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from ..errors import InputError, counted
from .cells import cells_of
from .drawable import Drawable
from .facts import model_and_settings
from .look import Look
from .numbers import MINUS, darkest, fixed
from .text import in_quotes, mostly_rtl
from .view import view

Of: TypeAlias = Literal["tokens", "layers", "heads", "neurons", "pairs"]
ADDED = {  # fields of an explanation -> what they are
    "by_layer": "what each layer adds",
    "by_attention": "what each layer's attention adds",
    "by_mlp": "what each layer's MLP adds",
}
AT_LAYER = "at the positions of that layer, which have read other tokens"
FROM_TOKENS = "from the tokens that it reads"


@dataclass(frozen=True)
class MatrixRow:
    """A row of the matrix."""

    text: str
    relevance: np.ndarray  # [columns]
    end: int
    against: str = ""  # what is subtracted from it, where something is


@dataclass(frozen=True)
class MatrixView:
    """What is drawn. Its text is visible text, not yet escaped for any format."""

    title: str
    notes: tuple[str, ...]
    rows: tuple[MatrixRow, ...]
    columns: str  # what the columns are: ``layer``
    corner: str  # what the rows are
    scale: float
    look: Look
    rtl: bool = False
    additive: bool = True
    names: tuple[str, ...] = ()  # of the columns, where they have other names than their numbers

    @property
    def first(self) -> int:
        """No line divides the columns."""
        return self.width

    @property
    def sides(self) -> tuple[str, str]:
        """What the rows and the columns are."""
        return self.corner, self.columns

    @property
    def width(self) -> int:
        """How many columns there are."""
        return self.rows[0].end

    @property
    def numbers(self) -> np.ndarray:
        """All of them, ``[rows, columns]``."""
        return np.array([row.relevance for row in self.rows])

    def share(self, value: float) -> float:
        """A number divided by the scale."""
        return value / self.scale if self.scale else 0.0

    def number(self, value: float, sign: str = "-") -> str:
        """A number with its sign."""
        return fixed(value, self.scale, sign)

    def legend(self, sign: str = "-") -> str:
        """Where the colours end, and what lies beyond."""
        if not self.scale:
            return "every relevance is 0"
        text = f"colours to ±{self.number(self.scale)[1:]}"
        beyond = darkest(self.numbers, self.scale, sign)
        return text + f", {beyond}" * bool(beyond)

    def text(self, cell: int, /) -> str:
        """The text of a column."""
        return self.names[cell] if self.names else str(cell)

    def strongest(self, most: int, sign: str = "-") -> list[str]:
        """The places with the largest numbers of either sign: both names and the number."""
        numbers = np.nan_to_num(self.numbers)
        order = np.argsort(-np.abs(numbers), axis=None, kind="stable")[:most]
        places = zip(*np.unravel_index(order, numbers.shape), strict=True)
        return [
            f"{in_quotes(self.rows[i].text)} and {in_quotes(self.text(j))} {self.number(float(numbers[i, j]), sign)}"
            for i, j in places
        ]


def known_matrices(explanations: Sequence[Drawable], look: Look) -> list[MatrixView]:
    """The matrices that the explanations have."""
    found = []
    for e in explanations:
        if any(getattr(e, name) is not None for name in ADDED):
            found.append(tokens_by_layers(e, look))
        if e.by_head is not None:
            found.append(layers_by_heads(e, look))
    return found


def tokens_by_layers(e: Drawable, look: Look) -> MatrixView:
    """A row per token, a column per layer: what the layer adds there; where that is not known, what its attention does.

    Raises:
        InputError: The explanation has no relevance of layers.
    """
    known = [(name, numbers) for name in ADDED if (numbers := getattr(e, name)) is not None]
    if not known:
        raise missing(e, "layers")
    name, numbers = known[0]
    cells = cells_of(e, look)
    summed = of_cells(np.asarray(numbers, dtype=np.float64), [cell.tokens[0][0] for cell in cells])
    hidden = np.array([cell.hidden for cell in cells])
    rows = [
        MatrixRow(cell.text, np.full(len(summed), np.nan) if cell.hidden else summed[:, i], len(summed))
        for i, cell in enumerate(cells)
    ]
    what = "what each layer's attention takes from a token" if e.components and name == "by_layer" else ADDED[name]
    return MatrixView(
        title=f"{e.method}: {what}, {positions_of(e)}",
        notes=(view(e).equation(MINUS), *model_and_settings(e, place="")),  # the title says where
        rows=tuple(rows),
        columns="layer",
        corner="token",
        scale=look.end_of_scale(summed[:, ~hidden].ravel().tolist()),
        look=look,
        rtl=mostly_rtl("".join(cell.text for cell in cells)),
    )


def layers_by_heads(e: Drawable, look: Look) -> MatrixView:
    """A row per layer, a column per head: its relevance, summed over the tokens.

    Raises:
        InputError: The explanation has no relevance of heads.
    """
    if e.by_head is None:
        raise missing(e, "heads")
    sums = np.asarray(e.by_head, dtype=np.float64).sum(axis=-1)
    return MatrixView(
        title=f"{e.method}: relevance of each head",
        notes=(view(e).equation(MINUS), *model_and_settings(e, f"summed over the {head_positions(e.components)}")),
        rows=tuple(MatrixRow(str(i), row, len(row)) for i, row in enumerate(sums)),
        columns="head",
        corner="layer",
        scale=look.end_of_scale(sums.ravel().tolist()),
        look=look,
    )


def of_cells(numbers: np.ndarray, starts: Sequence[int]) -> np.ndarray:
    """Numbers of tokens ``[..., T]`` added up to those of cells, which begin at these tokens."""
    return np.asarray(np.add.reduceat(numbers, list(starts), axis=-1))


def positions_of(e: Drawable) -> str:
    """At which positions heads and layers count, in words."""
    return FROM_TOKENS if e.components else AT_LAYER


def head_positions(components: Mapping[str, Any]) -> str:
    """At which positions a head has its relevance; methods whose other parts are components follow it further down."""
    return "tokens that the head reads" if components else "positions where the head writes"


def missing(e: Drawable, what: str) -> InputError:
    """The error about an explanation without relevance of ``layers`` or ``heads``: why, and what to type."""
    problem = f"this explanation by {e.method} has no relevance of {what}"
    options = e.provenance.get("options", {})
    if "heads" not in options:
        return InputError(
            f"{problem}, which the method does not find.",
            python='Take one that does: explainer(text, method="attnlrp", heads=True).',
            command="Take one that does: lrpx explain TEXT --method attnlrp --heads",
        )
    if e.task == "zero-shot-image-classification":
        return InputError(f"{problem}, which is not known of scores of images and texts.")
    if "target" not in e.provenance:
        return InputError(
            f"{problem}, which is known of one explained prediction, not of generated text or of two embeddings.",
            python="Explain one token of a text: explainer(TEXT_BEFORE_IT, target=TOKEN, heads=True).",
            command="Explain one token of a text: lrpx explain TEXT_BEFORE_IT --target TOKEN --heads",
        )
    together = {role: ids for role in ("target", "contrast") if isinstance(ids := e.provenance.get(role), list)}
    if together:
        role, ids = max(together.items(), key=lambda each: len(each[1]))
        first = together["target"][0]
        return InputError(
            f"{problem}, which is known of one explained token, and the {role} is {counted(len(ids), 'token')}.",
            python=f"Explain the first token of the target: explainer(text, target={first}, heads=True).",
            command=f"Explain the first token of the target: lrpx explain TEXT --target-id {first} --heads",
        )
    if options["heads"]:
        return InputError(f"{problem}: heads=True was asked for, and it was not found in this pass.")
    if e.at == "pixels":
        return InputError(
            f"{problem}, which is not known at these pixels.",
            python='Take the input: explainer(..., at="input", heads=True).',
            command="Take the input: lrpx explain ... --at input --heads",
        )
    why = "was not asked for" if options["heads"] is False else "is not computed for long texts, or while compiling"
    return InputError(
        f"{problem}, which {why}.",
        python="Ask for it: explainer(text, heads=True).",
        command="Ask for it: lrpx explain TEXT --heads",
    )
