"""The result of following relevance from token to token: a graph from the explained logit back to the text, as plain data.

Nodes are tokens at places of the residual stream. An edge says how much of the relevance of a token at one place comes from a
token at the place below. What was left out, and what biases took, stands beside the edges.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from .. import heatmap
from ..errors import InputError, NonFiniteError, import_optional, names_checked, nearest
from ..files import check_ending, json_line, save_output, written
from ..heatmap.text import as_string, readable
from .saved import fields_of, read_object
from .table import DataTable
from .tokens import Token, Unit, readable_texts

SCHEMA = 1
LOGIT = "logit"  # the name of the node at which all begins


@dataclass(frozen=True, eq=False)
class FlowStep:
    """The edges between two neighbouring places, and what was left out there. Relevance is in logits.

    Attributes:
        upper, lower: Names of the places.
        edges: int ``[E, 2]``: position of the token above, and of the one below.
        relevance: float64 ``[E]``: how much of the upper token's relevance comes from the lower one.
        followed: int ``[K]``: the tokens above that are part of the graph, in order; only their edges were looked at.
        residuals: float64 ``[K]``: the relevance of each minus that of all its edges, kept or not: what biases and softmax took.
        mass: Sum of the absolute relevance of all edges of these tokens, kept or not.
        residual: The relevance of all tokens above, followed or not, that does not arrive below.
        around: Relevance of the tokens below that did not come through the place above; 0 but for models with ways around.
        way: How edges were computed: ``"diagonal"`` (each token takes from itself alone), ``"attention"`` (the explicit formula)
            or ``"passes"`` (a backward pass per token). All are exact.
    """

    upper: str
    lower: str
    edges: np.ndarray
    relevance: np.ndarray
    followed: np.ndarray
    residuals: np.ndarray
    mass: float
    residual: float
    around: float
    way: str

    @property
    def kept(self) -> float:
        """The share of the mass of the followed tokens' edges that is kept, from 0 to 1."""
        return float(np.abs(self.relevance).sum() / self.mass) if self.mass else 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class RelevanceFlow:
    """How the relevance of one prediction flows from the explained logit down to the T tokens of the text.

    Attributes:
        tokens, token_ids, units, text, special: As of an ``Explanation``.
        value: The explained scalar.
        target, contrast, position, method, notes, provenance: As of an ``Explanation``.
        places: P names, from the text upwards: ``"input"`` (what enters the first block) or ``"embedding"``, then per block
            ``"attention.3"`` (the residual stream after the attention of block 3) and ``"block.3"`` (after the block).
        relevance: float64 ``[P, T]``: of every token at every place, kept or not.
        kept: bool ``[P, T]``: the tokens that are part of the graph.
        steps: P - 1 of them, from the top down.
        share, threshold: What was kept: at every place the fewest tokens that carry this share of its mass (sum of absolute
            relevance), or those of this relevance and more, in logits; and the tokens that join them to the logit. The other
            one is ``None``.
    """

    tokens: list[str]
    token_ids: list[int]
    units: list[Unit]
    value: float
    target: Token
    contrast: Token | None
    position: int
    method: str
    places: list[str]
    relevance: np.ndarray
    kept: np.ndarray
    steps: list[FlowStep]
    share: float | None = None
    threshold: float | None = None
    text: str | None = None
    special: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        shape = len(self.places), len(self.tokens)
        if np.shape(self.relevance) != shape or np.shape(self.kept) != shape or len(self.steps) != shape[0] - 1:
            raise InputError(
                f"{shape[0]} places of {shape[1]} tokens, relevance of shape {np.shape(self.relevance)}, kept of shape "
                f"{np.shape(self.kept)} and {len(self.steps)} steps: expected {shape}, {shape} and {shape[0] - 1}."
            )
        numbers = [self.value, *(array.sum() for s in self.steps for array in (s.relevance, s.residuals))]
        if not (np.isfinite(self.relevance).all() and np.isfinite(numbers).all()):
            raise NonFiniteError(f"the {self.method} flow holds NaN or infinity.")

    # The graph

    @property
    def residual(self) -> float:
        """The value minus the relevance of the tokens at the lowest place: what biases and softmax took on the way."""
        return self.value - float(self.relevance[0].sum())

    @property
    def at(self) -> str:
        """The lowest place."""
        return self.places[0]

    @property
    def edge_count(self) -> int:
        """The number of edges, those from the logit to the top place included."""
        return sum(len(step.edges) for step in self.steps) + int(self.kept[-1].sum())

    def shares(self) -> np.ndarray:
        """Of every place, the share of its mass (sum of absolute relevance) that kept tokens carry: float64 ``[P]``."""
        size = np.abs(self.relevance)
        totals = size.sum(1)
        carried = (size * self.kept).sum(1)
        return np.divide(carried, totals, out=np.ones_like(totals), where=totals > 0)

    @names_checked()
    def matrix(self, upper: str, lower: str) -> np.ndarray:
        """How much of each token's relevance at ``upper`` comes from each token at ``lower``: float64 ``[T, T]``, upper by lower.

        Edges that are not part of the graph are 0; with ``share=1`` there are none.

        Raises:
            InputError: These are not two neighbouring places of this flow.
        """
        upper, lower = (self.places[-1] if name == "last" else name for name in (upper, lower))
        if missing := [name for name in (upper, lower) if name not in self.places]:
            raise InputError(
                f"this flow has no place {missing[0]!r}: explainer.flow(text, between=[...]) says which it has. "
                f"{nearest(missing[0], self.places)}"
            )
        if self.places.index(upper) < self.places.index(lower):
            raise InputError(
                f"{upper!r} lies below {lower!r}, and the upper place comes first: matrix({lower!r}, {upper!r})."
            )
        step = next((step for step in self.steps if (step.upper, step.lower) == (upper, lower)), None)
        if step is None:
            raise InputError(
                f"the flow from {upper!r} to {lower!r} is not here: there are others between them. Ask for it: "
                f"explainer.flow(text, between=[{lower!r}, {upper!r}], share=1)."
            )
        found = np.zeros((len(self.tokens), len(self.tokens)))
        found[step.edges[:, 0], step.edges[:, 1]] = step.relevance
        return found

    @names_checked()
    def to_frame(self) -> Any:
        """One row per edge, from the logit down, as a pandas ``DataFrame``.

        Columns: ``upper`` and ``lower``, the places, each followed by the token there: ``upper_position``, ``upper_text``
        (readable; see ``Explanation.to_frame``) and ``upper_token`` (the raw piece); and ``relevance``. The logit has position
        -1 and the explained token's text.
        """
        return self.table().to_frame()

    def table(self) -> DataTable:
        """The rows of ``to_frame``, which need no pandas."""
        texts, target = readable_texts(self.units), self.target

        def end(place: str, i: Any) -> tuple[str, int, str, str]:
            return place, int(i), texts[i], self.tokens[i]

        logit = LOGIT, -1, target.shown or readable(target.text), target.text
        top = self.places[-1]
        rows = [(*logit, *end(top, i), self.relevance[-1, i]) for i in np.flatnonzero(self.kept[-1])]
        rows += [
            (*end(step.upper, t), *end(step.lower, s), value)
            for step in self.steps
            for (t, s), value in zip(step.edges, step.relevance, strict=True)
        ]
        ends = (f"{side}{name}" for side in ("upper", "lower") for name in ("", "_position", "_text", "_token"))
        return DataTable((*ends, "relevance"), rows)

    @names_checked()
    def left_out(self) -> Any:
        """One row per place, from the top down: what is kept there and what is not, as a pandas ``DataFrame``.

        Columns: ``place``; ``tokens`` that are kept; ``token_share``, of the place's mass; of the step down from there
        ``edges``, ``edge_share`` of the mass of its followed tokens' edges, ``residual``, ``around`` and ``way``.
        """
        pd = import_optional("pandas", "left_out()", extra="viz")
        shares, steps = self.shares(), {step.upper: step for step in self.steps}
        rows = []
        for i in reversed(range(len(self.places))):
            step = steps.get(self.places[i])
            down = (None,) * 5 if step is None else (len(step.edges), step.kept, step.residual, step.around, step.way)
            rows.append((self.places[i], int(self.kept[i].sum()), float(shares[i]), *down))
        names = ["place", "tokens", "token_share", "edges", "edge_share", "residual", "around", "way"]
        return pd.DataFrame(rows, columns=names)

    @names_checked()
    def to_networkx(self) -> Any:
        """The graph as a ``networkx.DiGraph``, with edges from the logit down to the text.

        Nodes are ``(place, position)``, and ``("logit", -1)``, with ``token``, ``token_id`` and ``relevance``; edges have
        ``relevance``.
        """
        nx = import_optional("networkx", "to_networkx()", extra="viz")
        graph = nx.DiGraph(value=self.value, method=self.method, target=self.target.text)
        root = (LOGIT, -1)
        graph.add_node(root, token=self.target.text, token_id=self.target.id, relevance=self.value)
        for i, place in enumerate(self.places):
            for t in np.flatnonzero(self.kept[i]).tolist():
                about = {"token": self.tokens[t], "token_id": self.token_ids[t]}
                graph.add_node((place, t), **about, relevance=float(self.relevance[i, t]))
        for t in np.flatnonzero(self.kept[-1]).tolist():
            graph.add_edge(root, (self.places[-1], t), relevance=float(self.relevance[-1, t]))
        for step in self.steps:
            for (t, s), value in zip(step.edges.tolist(), step.relevance.tolist(), strict=True):
                graph.add_edge((step.upper, t), (step.lower, s), relevance=value)
        return graph

    # Views

    @names_checked()
    def show(self) -> None:
        """Print what is kept at every place, and the strongest edges between tokens; or display the graph in a notebook."""
        heatmap.show_flow(self)

    @overload
    def to_html(self, path: None = None) -> str: ...
    @overload
    def to_html(self, path: str | os.PathLike[str]) -> None: ...
    @names_checked()
    def to_html(self, path: str | os.PathLike[str] | None = None) -> str | None:
        """The graph as a self-contained page: a row per place, a column per token.

        It is written to ``path`` if given, otherwise returned.
        """
        return written(heatmap.html_of_flow(self), path, "html")

    @names_checked()
    def to_png(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """Draw the graph into a PNG file (needs the extra ``viz``), with the lines above it or without."""
        heatmap.draw_flow(self, path, "png", heatmap.Look(header=header))

    @names_checked()
    def to_pdf(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """As ``to_png``, as a PDF of one page: lines and text stay sharp in a paper."""
        heatmap.draw_flow(self, path, "pdf", heatmap.Look(header=header))

    @names_checked()
    def to_svg(self, path: str | os.PathLike[str], *, header: bool = True) -> None:
        """As ``to_png``, as an SVG."""
        heatmap.draw_flow(self, path, "svg", heatmap.Look(header=header))

    def _repr_html_(self) -> str:
        return heatmap.html_of_flow(self, fragment=True)

    def __repr__(self) -> str:
        what = " - ".join(as_string(token.shown or token.text) for token in (self.target, self.contrast) if token)
        return (
            f"<RelevanceFlow {self.method} of {what}: value {self.value:.4g}, {len(self.tokens)} tokens, "
            f"{len(self.places)} places, {self.edge_count} edges>"
        )

    # Saving, as an ``Explanation``: plain JSON.

    def to_dict(self) -> dict[str, Any]:
        """The flow as JSON types, with a ``schema`` number and what it is (``kind``)."""
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        steps = [
            {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in vars(step).items()}
            for step in self.steps
        ]
        kept = [np.flatnonzero(row).tolist() for row in self.kept]
        arrays = {"relevance": self.relevance.tolist(), "kept": kept, "steps": steps}
        return {"schema": SCHEMA, "kind": "flow", **plain, **arrays}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> RelevanceFlow:
        """The inverse of ``to_dict``.

        Raises:
            InputError: It is not a saved flow, or of another schema.
        """
        fields = fields_of(cls, data, "flow", SCHEMA, "flow", {})
        try:
            return cls(**fields | _typed(fields))
        except InputError:
            raise
        except (TypeError, ValueError, AttributeError, IndexError, KeyError) as error:
            raise InputError(f"not a saved flow: a field is not what it should be ({error}).") from error

    @names_checked()
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the flow as JSON; ``RelevanceFlow.load`` reads it back to the last digit."""
        save_output(check_ending(path, "json"), json_line(self.to_dict()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RelevanceFlow:
        """Read what ``save`` wrote.

        Raises:
            InputError: The file is not a saved flow.
        """
        return cls.from_dict(read_object(path, "a flow"))


def _typed(fields: dict[str, Any]) -> dict[str, Any]:
    """Lists and dictionaries of JSON as the types of the fields."""
    length = len(fields["tokens"])
    kept = np.zeros((len(fields["places"]), length), dtype=bool)
    for row, positions in zip(kept, fields["kept"], strict=True):
        row[positions] = True

    def step(given: dict[str, Any]) -> FlowStep:
        arrays = {
            "edges": np.asarray(given["edges"], dtype=np.int64).reshape(-1, 2),
            "followed": np.asarray(given["followed"], dtype=np.int64),
            "relevance": np.asarray(given["relevance"], dtype=np.float64),
            "residuals": np.asarray(given["residuals"], dtype=np.float64),
        }
        return FlowStep(**given | arrays)

    return {
        "units": [Unit(*unit) for unit in fields["units"]],
        "target": Token(*fields["target"]),
        "contrast": Token(*fields["contrast"]) if fields["contrast"] else None,
        "special": tuple(fields["special"]),
        "notes": tuple(fields["notes"]),
        "relevance": np.asarray(fields["relevance"], dtype=np.float64),
        "kept": kept,
        "steps": [step(each) for each in fields["steps"]],
    }
