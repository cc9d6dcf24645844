"""What every renderer draws: an explanation as cells with values, one scale, a header and a legend.

The cells come from ``cells.py``; where the colours end is ``look.py``'s to say. Nothing is hidden silently: the header tells
what was hidden and how much relevance it holds, the legend which cells are beyond the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InputError, counted
from .cells import Cell, cells_of, explained_span
from .colours import HIDDEN, IMAGE, Rgb
from .drawable import Drawable, VocabularyEntry
from .facts import begun_characters, how_likely, model_and_settings
from .images import ImageMap, image_maps
from .look import Look
from .numbers import darkest, fixed, short
from .text import in_quotes, legible, mostly_rtl, readable, visible

WITH_NUMBERS = 40  # maps of up to this many units show their numbers, in formats without tooltips
DOT = " · "  # between the items of a line
_MARKED = {
    "text-classification": "the {what} is read at {where}",
    "multiple-choice": "the logit is read at {where}",
    "token-classification": "the label of {where} is explained",
    "image-classification": "the label is that of the whole image; the image begins at {where}",
    "zero-shot-image-classification": "the score is that of the whole image and text; the image begins at {where}",
    "question-answering": "the answer, {where}, is explained",
}
ALL_ZERO = "every relevance is 0"
_IN_WORDS = {  # the parts of the value that ALTI-Logit assigns to no token (docs/equations.md)
    "mlp": "MLPs",
    "attention_bias": "biases of attention",
    "attention_norm_bias": "biases of the norms after attention",
    "mlp_norm_bias": "biases of the norms after MLPs",
    "final_norm_bias": "bias of the final norm",
    "head_bias": "biases of the output layers",
    "direct": "embedding at the explained position",
}


@dataclass(frozen=True)
class View:
    """One heatmap, ready to draw. Its text is visible text, not yet escaped for any format."""

    method: str
    target: str
    contrast: str | None
    value: float
    total: float  # sum of the relevance
    residual: float | None
    what: str  # ``Explanation.explains``
    task: str  # ``Explanation.task``
    position: int
    span: tuple[int, int]  # the positions whose logits are explained, as (start, stop)
    notes: tuple[str, ...]  # the model, where relevance was taken, options of the method
    measures: str  # see ``Explanation``
    predictions: tuple[str, ...]  # probabilities and ranks of the target, the contrast and the likeliest tokens
    remarks: tuple[str, ...]  # what a reader must know: ``Explanation.notes``
    cells: tuple[Cell, ...]
    look: Look
    scale: float  # where the colours end
    rtl: bool  # the text runs from right to left
    components: tuple[tuple[str, float, np.ndarray | None], ...]  # name, sum, and [L] per layer if it is an array
    per_layer: tuple[tuple[str, np.ndarray], ...]  # names and [L] sums of what has a number per layer
    per_head: np.ndarray | None  # [L, H] sum of the relevance of each head
    images: tuple[ImageMap, ...] = ()

    def number(self, value: float, sign: str = "-") -> str:
        """A relevance with its sign, ``sign`` for the minus; all numbers of one map have the same decimals."""
        return fixed(value, self.scale, sign)

    def share(self, value: float) -> float:
        """A relevance divided by this map's scale: from -1 to 1."""
        return value / self.scale if self.scale else 0.0

    def colour(self, value: float) -> Rgb:
        """The colour of a relevance on this map's scale."""
        return self.look.colour(self.share(value))

    def fill(self, cell: Cell) -> Rgb:
        """The colour of a cell."""
        return HIDDEN if cell.hidden else IMAGE if cell.image else self.colour(cell.value)

    def label(self, cell: Cell, sign: str = "-") -> str:
        """What an image is called in the text, with its sum."""
        return f"{cell.text} {self.number(cell.value, sign)}"

    def image_shares(self, image: ImageMap) -> np.ndarray:
        """The patches of an image divided by this map's scale."""
        return image.values / self.scale if self.scale else np.zeros_like(image.values)

    def caption(self, image: ImageMap, sign: str = "-") -> str:
        """Name, size and sum of an image, and its strongest patch."""
        return image.caption(lambda value: self.number(value, sign), sign)

    @property
    def coloured(self) -> list[float]:
        """The value of everything that is shown as a colour: cells of the text, and patches."""
        return _coloured(self.cells, self.images)

    @property
    def with_numbers(self) -> bool:
        """Whether formats without tooltips print the numbers."""
        return len(self.cells) <= WITH_NUMBERS if self.look.numbers is None else self.look.numbers

    @property
    def beyond(self) -> tuple[bool, bool]:
        """Whether cells lie beyond the lower and beyond the upper end of the scale."""
        shares = list(map(self.share, self.coloured))
        return min(shares) < -1, max(shares) > 1

    def legend(self, sign: str = "-") -> list[str]:
        """What colours outside the bar mean, and what has this scale."""
        beyond = darkest(np.array(self.coloured), self.scale, sign)
        lines = [beyond] * bool(beyond)
        if self.images and any(cell.coloured and not cell.image for cell in self.cells):
            lines.append(
                "text and image share one scale" if len(self.images) == 1 else "text and images share one scale"
            )
        return lines + ["grey: hidden"] * any(cell.hidden for cell in self.cells)

    def holds(self, sign: str = "-") -> list[str]:
        """How much relevance the hidden tokens hold, and which token holds most of what is shown."""
        everything = math.fsum(cell.size for cell in self.cells)
        hidden = [cell for cell in self.cells if cell.hidden]
        shown = [cell for cell in self.cells if not cell.hidden]
        whole = "the absolute relevance" + " of the tokens" * bool(self.components)  # these are in no token
        lines = []
        if self.look.hidden:
            held = math.fsum(cell.value for cell in hidden)
            part = _percent(math.fsum(cell.size for cell in hidden), everything)
            what = _hidden(hidden, self.look)
            lines.append(f"hidden: {what}" + f", {short(held, sign)}, {part} of {whole}" * bool(hidden))
        if not shown:
            return lines
        rest, largest = math.fsum(cell.size for cell in shown), max(shown, key=lambda cell: cell.size)
        if len(shown) > 2 and largest.size > rest / 2:
            of = whole + " that is shown" * bool(hidden)
            lines.append(f"{largest.place} holds {_percent(largest.size, rest)} of {of}")
        place, value = self._strongest(shown)
        if (times := abs(self.share(value))) > 1:
            far = f"{times:.0f}" if times >= 10 else f"{times:.1f}"
            lines.append(f"{place} has {self.number(value, sign)}, the most: {far} times where the colours end")
        return lines

    def _strongest(self, shown: Sequence[Cell]) -> tuple[str, float]:
        """Place and value of the most that has a colour: of a cell, or of a patch of an image."""
        places = [(cell.place, cell.value) for cell in shown if cell.coloured]
        for image in self.images:
            [(row, column, value)] = image.strongest(1)
            places.append((f"{image.label}, row {row}, column {column}", value))
        return max(places, key=lambda each: abs(each[1]), default=("", 0.0))

    @property
    def one_sided(self) -> bool:
        """Whether the relevance cannot be negative, so that the colour bar begins at 0."""
        return self.measures in ("sensitivity", "mixture")

    def ticks(self, sign: str = "-") -> list[tuple[float, str]]:
        """The numbers below the colour bar, each with its place on it, from 0 to 1."""
        if self.one_sided:
            return [(0.0, "0"), (1.0, self.number(self.scale))]
        return [(0.0, self.number(-self.scale, sign)), (0.5, "0"), (1.0, self.number(self.scale))]

    def bar(self, steps: int) -> list[float]:
        """The shares of the scale that ``steps`` cells of a colour bar show, from its lower end to its upper."""
        low = 0.0 if self.one_sided else -1.0
        return [low + (1.0 - low) * i / (steps - 1) for i in range(steps)]

    def equals(self, sign: str = "-") -> str:
        """The number that is explained, to stand after ``explains``; empty where the method is not about a logit."""
        return "" if self.measures == "mixture" else short(self.value, sign)

    def equation(self, sign: str = "-") -> str:
        """What is explained and its number: ``logit " are" = +3.41``."""
        return self.explains(sign) + f" = {self.equals(sign)}" * bool(self.equals())

    def below(self, sign: str = "-", dot: str = DOT, *, sums: bool = True) -> list[str]:
        """The lines below the header: ``sums`` and settings, what the model predicts, and what a reader must know."""
        lines = [
            dot.join([*(self.sums(sign) if sums else ()), *self.notes]),
            dot.join(self.predictions),
            *self.holds(sign),
        ]
        return [line for line in (*lines, *(f"note: {remark}" for remark in self.remarks)) if line]

    def explains(self, sign: str = "-") -> str:
        """What is explained: ``logit " are" - logit " is"``, with ``sign`` for the minus."""
        if self.measures == "mixture":
            return f"each token's share in the hidden state at position {self.position}"
        what = self.what or "logit"
        if not self.target:  # of no token, but of the whole input
            return what
        explained = [f"{what} {in_quotes(each)}" for each in (self.target, self.contrast) if each is not None]
        return f" {sign} ".join(explained)

    def sums(self, sign: str = "-") -> list[str]:
        """What adds up to the value, each with its name; none where the relevances are not parts of the value."""
        if self.measures != "parts":
            return []
        outside = [(name, total) for name, total, _ in self.components]
        if len(outside) > 1:
            outside = [("outside the tokens", math.fsum(total for _, total in outside))]
        named = [("sum", self.total), *outside, ("residual", self.residual)]
        return [f"{name} {short(value, sign)}" for name, value in named if value is not None]

    def outside(self, sign: str = "-") -> list[str]:
        """The parts of the value that belong to no token, each with its number."""
        return [
            f"{name} {short(total, sign)}" + ("" if layers is None else f" ({len(layers)} layers)")
            for name, total, layers in self.components
        ]

    def marked_place(self) -> str:
        """Where the explained logits are: ``position 4``; ``positions 4 to 6``."""
        first, stop = self.span
        return f"positions {first} to {stop - 1}" if stop - first > 1 else f"position {self.position}"

    def marked(self) -> str:
        """What the mark of the explained position means; empty where no token's prediction is explained."""
        if not self.target or self.span[0] == self.span[1]:
            return ""
        if self.measures == "mixture":
            return f"position {self.position}"
        where = self.marked_place()
        marked = _MARKED.get(self.task, "the logits at {where} are explained")
        return marked.format(where=where, what="value" if self.what == "value" else "label")


def failed(failures: Sequence[object]) -> str:
    """What is said of texts that could not be explained."""
    return f"{counted(len(failures), 'text')} could not be explained; .failures says which and why."


def checked(explanations: Drawable | Sequence[Drawable]) -> list[Drawable]:
    """One explanation or several as a list.

    Raises:
        InputError: The list is empty or holds something other than explanations.
    """
    several = [explanations] if isinstance(explanations, Drawable) else list(explanations)
    if not several:
        failures = getattr(explanations, "failures", ())
        raise InputError(f"no explanation to draw: {failed(failures) if failures else 'the list is empty.'}")
    for e in several:
        if not isinstance(e, Drawable):
            raise InputError(
                f"cannot draw an object of the type {type(e).__name__}: give an Explanation, or a list of them."
            )
    return several


def view(e: Drawable, look: Look = Look(), units: Sequence[tuple[int, int, str]] | None = None) -> View:  # noqa: B008
    """The view of one explanation; ``units`` are drawn in place of its own.

    Raises:
        InputError: The units do not cover the tokens in order, the position is outside the text, or everything is hidden.
    """
    spans = [(start, end) for start, end, _ in e.units]
    edges = [0, *(end for _, end in spans)]
    if [*(start for start, _ in spans), len(e.tokens)] != edges or any(a >= b for a, b in spans) or not spans:
        raise InputError(f"units {spans} do not cover {len(e.tokens)} tokens in order: each token belongs to one unit.")
    if not 0 <= e.position < len(e.tokens):
        raise InputError(f"position {e.position} is outside the text: its {len(e.tokens)} tokens count from 0.")

    def entry(token: VocabularyEntry) -> str:
        return visible(token.shown or readable(token.text), quoted=True)

    cells = cells_of(e, look, units)
    images = image_maps(e)
    shown = _coloured(cells, images)
    if not shown:
        raise InputError(f"hide={list(look.hidden)!r} leaves nothing to show of {counted(len(e.tokens), 'token')}.")
    return View(
        method=e.method,
        target=entry(e.target),
        contrast=entry(e.contrast) if e.contrast else None,
        value=float(e.value),
        total=math.fsum(e.relevance),
        residual=None if e.residual is None else float(e.residual),
        what=legible(e.explains),
        task=e.task,
        position=e.position,
        span=explained_span(e),
        notes=tuple(map(legible, model_and_settings(e))),
        measures=e.measures,
        predictions=tuple(how_likely(e, entry)),
        remarks=tuple(map(legible, [*begun_characters(e), *e.notes])),
        cells=tuple(cells),
        look=look,
        scale=look.end_of_scale(shown),
        rtl=mostly_rtl("".join(text for _, _, text in e.units)),
        components=tuple(_component(name, part) for name, part in e.components.items() if not _absent(name, part)),
        per_layer=tuple(_per_layer(e)),
        per_head=None if e.by_head is None else np.asarray(e.by_head, dtype=np.float64).sum(axis=-1),
        images=tuple(images),
    )


def _coloured(cells: Sequence[Cell], images: Sequence[ImageMap]) -> list[float]:
    return [
        *(cell.value for cell in cells if cell.coloured),
        *(value for image in images for value in image.values.ravel().tolist()),
    ]


def _hidden(cells: Sequence[Cell], look: Look) -> str:
    """Which cells are hidden: ``"<s>"``; ``3 special tokens``."""
    if not cells:
        return "nothing, no token is known to be special"
    if len(cells) == 1:
        return f"{cells[0].quoted} at position {cells[0].tokens[0][0]}"
    special = sum(cell.special for cell in cells)
    first = f"the first {look.group.removesuffix('s')} and " * (special < len(cells))
    return f"{first}{special} special token" + "s" * (special > 1)


def _percent(part: float, whole: float) -> str:
    return f"{part / whole:.0%}".replace("%", " %") if whole else "0 %"


def _per_layer(e: Drawable) -> Iterator[tuple[str, np.ndarray]]:
    """What a layer gave to the tokens, in methods whose other parts are components; or what its parts added."""
    named = {"attention": e.by_attention, "MLP": e.by_mlp, "tokens" if e.components else "all it adds": e.by_layer}
    for name, numbers in named.items():
        if numbers is not None:
            yield name, np.asarray(numbers, dtype=np.float64).sum(axis=1)
    for name, _, layers in (_component(name, part) for name, part in e.components.items()):
        if layers is not None:
            yield name, layers


def _absent(name: str, part: Any) -> bool:
    """Whether a component is that of biases that the model does not have: exactly 0."""
    return name in _IN_WORDS and name.endswith("bias") and not np.any(part)


def _component(name: str, part: Any) -> tuple[str, float, np.ndarray | None]:
    numbers = np.asarray(part, dtype=np.float64)
    layers = numbers.reshape(len(numbers), -1).sum(axis=1) if numbers.ndim else None
    return legible(_IN_WORDS.get(name, name)), float(numbers.sum()), layers
