"""The result of explaining what a model generated: plain data, one row per generated token or span.

A row says how much of the row's value each token before it carries. Values are linear in what is explained, so the rows of
several tokens, each times a weight, add up to the row of their span: ``span`` needs no model.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

import numpy as np

from .. import heatmap
from ..errors import InputError, NonFiniteError, counted, names_checked
from ..files import check_ending, json_line, save_output, written
from .explanation import Explanation, Measures
from .explanations import Explanations
from .images import ImagePatches, check_images, plain_images, read_images
from .saved import fields_of, read_object
from .spans import checked_span, checked_weights, explained, hop, hop_notes, weight_notes
from .table import DataTable
from .tokens import Segment, Token, Unit, cut, joined, piece, readable_texts

SCHEMA = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class GenerationExplanation:
    """What each token, or span of tokens, that a model generated was made of. N tokens: P of a prompt and G generated ones.

    Of an encoder-decoder model the prompt is the source, followed by what its decoder began with.

    ``g[i]`` is row i as an ``Explanation``, ``g.span(start, stop)`` one of several generated tokens together.

    Attributes:
        tokens: The N raw pieces of prompt and continuation.
        token_ids: Their ids.
        units: As of an ``Explanation``; no unit holds tokens of both prompt and continuation.
        prompt_length: P.
        spans: Of each of R rows, which generated tokens it explains, as (start, stop), counted from 0 and without stop.
        relevance: float64 ``[R, N - 1]``: the relevance of every token for every row; 0 from the row's last token on.
        values: float64 ``[R]``: the explained scalars: weighted sums of the scores of the row's tokens.
        residuals: float64 ``[R]``: values minus all relevance; ``None`` for ``gradient``, which does not decompose them.
        probabilities: float64 ``[G]``: what the model gave each generated token, or ``None`` if not asked for.
        objective: The score of a token: its ``"logit"`` or its ``"logprob"``, the logarithm of its probability.
        contrast: What is subtracted from each logit: ``"mean"`` (of all logits), ``"top10"`` (the mean of the ten largest; any
            number), G tokens, or ``None``.
        weights: float64 ``[G]``, by which scores are multiplied in a span; ``None``: 1.
        hops: How often what generated tokens took was passed on to the tokens before them.
        method, at, measures, notes, provenance: As of an ``Explanation``.
        text: The prompt's text, or ``None`` when token ids were given.
        special: Positions of the tokenizer's special tokens.
        source: How many tokens of the prompt, the first ones, an encoder read; 0: there is none.
        images: As of an ``Explanation``: those of the prompt.
    """

    tokens: list[str]
    token_ids: list[int]
    units: list[Unit]
    prompt_length: int
    spans: list[tuple[int, int]]
    relevance: np.ndarray
    values: np.ndarray
    residuals: np.ndarray | None
    method: str
    probabilities: np.ndarray | None = None
    objective: Literal["logit", "logprob"] = "logit"
    contrast: str | tuple[Token, ...] | None = None
    weights: np.ndarray | None = None
    hops: int = 0
    at: str = "input"
    text: str | None = None
    special: tuple[int, ...] = ()
    images: tuple[ImagePatches, ...] = ()
    measures: Measures = "parts"
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)
    source: int = 0

    def __post_init__(self) -> None:
        check_images(self.images, self.prompt_length)
        rows, width = len(self.spans), len(self.tokens) - 1
        if np.shape(self.relevance) != (rows, width) or np.shape(self.values) != (rows,):
            raise InputError(
                f"{rows} spans of {width + 1} tokens, relevance of shape {np.shape(self.relevance)} and values of shape "
                f"{np.shape(self.values)}: expected {(rows, width)} and {(rows,)}."
            )
        if not 0 < self.prompt_length < len(self.tokens):
            raise InputError(
                f"prompt_length={self.prompt_length}: of {len(self.tokens)} tokens some are the prompt's, some generated."
            )
        for name in ("relevance", "values", "residuals", "probabilities"):
            numbers = getattr(self, name)
            if numbers is not None and not np.isfinite(numbers).all():
                raise NonFiniteError(f"{name} of the {self.method} explanation holds NaN or infinity.")

    # Rows

    @property
    def generated(self) -> int:
        """G, the number of generated tokens."""
        return len(self.tokens) - self.prompt_length

    @property
    def per_token(self) -> bool:
        """Whether there is one row for each generated token."""
        return self.hops == 0 and self.spans == [(i, i + 1) for i in range(self.generated)]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.spans)

    def __iter__(self) -> Iterator[Explanation]:
        """The rows, one after the other."""
        return (self[i] for i in range(len(self)))

    @overload
    def __getitem__(self, row: int) -> Explanation: ...
    @overload
    def __getitem__(self, row: slice) -> Explanations: ...
    def __getitem__(self, row: int | slice) -> Explanation | Explanations:
        """One row as an ``Explanation`` of the tokens before; of a slice ``Explanations``. For their sum see ``span``."""
        if isinstance(row, slice):
            return Explanations(self[n] for n in range(len(self))[row])
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row}: there are {len(self)}.")
        row %= len(self)
        residual = None if self.residuals is None else float(self.residuals[row])
        weights = None if self.weights is None else self.weights[slice(*self.spans[row])]
        return self._explanation(self.spans[row], self.relevance[row], float(self.values[row]), residual, weights)

    @names_checked()
    def span(
        self, start: int, stop: int | None = None, weights: Sequence[float] | None = None, *, hops: int = 0
    ) -> Explanation:
        """What generated tokens ``start`` to ``stop`` (exclusive) were made of, together.

        Args:
            start: From 0; negative from the end.
            stop: Likewise; default: to the end.
            weights: One for each of them, by which its score is multiplied. Default: 1.
            hops: How often what generated tokens took is passed on to the tokens before them, in proportion to
                what each was predicted from. What a token whose own score is not positive took stays there.

        Raises:
            InputError: There is no such span, or the rows are not those of single tokens.
        """
        start, stop = checked_span((start, self.generated if stop is None else stop), self.generated)
        if not self.per_token or self.measures != "parts":
            raise InputError(
                "a span is the sum of the rows of its tokens, which are not here: ask for it where you explain, "
                f"generate(..., spans=[({start}, {stop})])."
                if self.measures == "parts"
                else f"{self.method} does not decompose the explained value, so rows of tokens do not add up to a span's."
            )
        factors = np.zeros(self.generated)
        factors[start:stop] = given = checked_weights(weights, stop - start)
        relevance, notes = factors @ self.relevance, tuple[str, ...]()
        if hops:
            if self.contrast is None:
                raise InputError(
                    'hops need scores with a zero: explain with contrast="mean" (see the guide to generation).'
                )
            relevance, kept = hop(relevance, self.values, lambda w: w @ self.relevance, hops, self.prompt_length)
            notes = hop_notes(hops, kept)
        value = float(factors @ self.values)
        return self._explanation((start, stop), relevance, value, value - float(relevance.sum()), given, notes)

    def _explanation(
        self,
        span: tuple[int, int],
        relevance: np.ndarray,
        value: float,
        residual: float | None,
        weights: np.ndarray | None,
        notes: Sequence[str] = (),
    ) -> Explanation:
        start, stop = (self.prompt_length + i for i in span)
        read = stop - 1  # the last token of the span is not read by whoever predicts it
        contrast = self.contrast[span[0] : span[1]] if isinstance(self.contrast, tuple) else None
        likely = None if self.probabilities is None else float(np.prod(self.probabilities[slice(*span)]))
        return Explanation(
            tokens=self.tokens[:read],
            token_ids=self.token_ids[:read],
            units=cut(self.units, self.tokens, read),
            relevance=relevance[:read].copy(),
            value=value,
            residual=residual,
            target=self._target(start, stop),
            contrast=joined(contrast) if contrast else None,
            position=read - 1,
            method=self.method,
            at=self.at,
            text=self.text if read == self.prompt_length else None,
            target_probability=likely,
            measures=self.measures,
            notes=(*self.notes, *weight_notes(weights), *notes),
            provenance=self.provenance,
            explains=self.what(stop - start, weights),
            special=tuple(i for i in self.special if i < read),
            segments=(Segment("source", 0, self.source), Segment("target", self.source, read)) if self.source else (),
            images=self.images,
            span=(start - 1, stop - 1) if stop - start > 1 else None,
        )

    def _target(self, start: int, stop: int) -> Token:
        """Tokens ``start`` to ``stop`` of the whole text as one entry."""
        shown = ""
        for unit in self.units:
            if start <= unit.start and unit.end <= stop:
                shown += unit.text
            else:
                shown += "".join(
                    piece(unit, self.tokens, i) for i in range(max(start, unit.start), min(stop, unit.end))
                )
        return Token(self.token_ids[start], "".join(self.tokens[start:stop]), shown)

    def what(self, count: int, weights: np.ndarray | None = None) -> str:
        """What is explained of ``count`` tokens, in words, where it is not one logit or a difference of two.

        Args:
            count: Of tokens.
            weights: Theirs. Default: those of all rows.
        """
        average = self.contrast if isinstance(self.contrast, str) else None
        weighted = bool(weight_notes(self.weights if weights is None else weights))
        return explained(self.objective, average, count, weighted=weighted)

    # Views

    @property
    def generated_text(self) -> str:
        """The continuation as readable text."""
        return "".join(unit.text for unit in self.units if unit.start >= self.prompt_length)

    @names_checked()
    def show(self) -> None:
        """Print the text, with what was strongest for each token, to the terminal; or display it in a notebook."""
        heatmap.show_generated(self)

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | os.PathLike[str]) -> None: ...
    @names_checked()
    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """A self-contained page in which one marks generated tokens and sees their map.

        It is written to ``path`` if given, otherwise returned.
        """
        return written(heatmap.html_of_generated(self), path, "html")

    @names_checked()
    def to_png(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """Draw the matrix of rows and tokens into a PNG file (needs the extra ``viz``), with the lines above it or without."""
        heatmap.draw_generated(self, path, "png", heatmap.Look(header=header))

    @names_checked()
    def to_pdf(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """As ``to_png``, as a PDF of one page: text and cells stay sharp in a paper."""
        heatmap.draw_generated(self, path, "pdf", heatmap.Look(header=header))

    @names_checked()
    def to_svg(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """As ``to_png``, as an SVG."""
        heatmap.draw_generated(self, path, "svg", heatmap.Look(header=header))

    def _repr_html_(self) -> str:
        return heatmap.html_of_generated(self, fragment=True)

    def __repr__(self) -> str:
        beginning = self.generated_text[:40]
        size = f"{counted(len(self), 'row')}, {counted(len(self.tokens), 'token')}"
        return f"<GenerationExplanation {self.method} of {beginning!r}: {size}>"

    def to_frame(self) -> Any:
        """One row per generated token (or span) and token before, as a pandas ``DataFrame``.

        Columns: ``start`` and ``stop`` of the span among the generated tokens, ``explained_text`` and ``explained`` (its raw
        pieces); ``position``, ``text``, ``token`` (the raw piece), ``token_id`` and ``relevance`` as of ``Explanation.to_frame``.
        """
        return self.table().to_frame()

    def table(self) -> DataTable:
        """The rows of ``to_frame``, which need no pandas."""
        texts, rows = readable_texts(self.units), []
        for (start, stop), row in zip(self.spans, self.relevance, strict=True):
            end = self.prompt_length + stop
            target = self._target(self.prompt_length + start, end)
            for i, value in enumerate(row[: end - 1]):
                token = i, texts[i], self.tokens[i], self.token_ids[i]
                rows.append((start, stop, target.shown, target.text, *token, value))
        explained = "start", "stop", "explained_text", "explained"
        return DataTable((*explained, "position", "text", "token", "token_id", "relevance"), rows)

    # Saving, as an ``Explanation``: plain JSON.

    def to_dict(self) -> dict[str, Any]:
        """The explanation as JSON types, with a ``schema`` number and what it is (``kind``)."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        arrays = {name: value.tolist() for name, value in plain.items() if isinstance(value, np.ndarray)}
        return {"schema": SCHEMA, "kind": "generation", **plain, **arrays, "images": plain_images(self.images)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GenerationExplanation:
        """The inverse of ``to_dict``.

        Raises:
            InputError: It is not a saved explanation of generated tokens, or of another schema.
        """
        fields = fields_of(cls, data, "generation", SCHEMA, "explanation", {"source": 0, "images": []})
        contrast = fields["contrast"]
        try:
            typed = {
                "units": [Unit(*unit) for unit in fields["units"]],
                "spans": [(start, stop) for start, stop in fields["spans"]],
                "contrast": tuple(Token(*each) for each in contrast) if isinstance(contrast, list) else contrast,
                "notes": tuple(fields["notes"]),
                "special": tuple(fields["special"]),
                "images": read_images(fields["images"]),
                "relevance": np.reshape(np.asarray(fields["relevance"], dtype=np.float64), (len(fields["spans"]), -1)),
            }
            for name in ("values", "residuals", "probabilities", "weights"):
                typed[name] = None if fields[name] is None else np.asarray(fields[name], dtype=np.float64)
            return cls(**fields | typed)
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not a saved explanation: a field is not what it should be ({error}).") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the explanation as JSON; ``GenerationExplanation.load`` reads it back to the last digit."""
        save_output(check_ending(path, "json"), json_line(self.to_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> GenerationExplanation:
        """Read what ``save`` wrote.

        Raises:
            InputError: The file is not a saved explanation of generated tokens.
        """
        return cls.from_dict(read_object(path, "an explanation"))
