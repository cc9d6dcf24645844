"""What every view of a flow of relevance draws: a row per place, a column per token that is kept at some place, and the edges.

Tokens that are kept nowhere have no column; where some are left out, the columns stand apart. Of a graph with very many edges
the strongest are drawn, and a remark says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .cells import cells_of
from .drawable import FlowLike
from .generated import _Text
from .look import Look
from .text import legible
from .view import MINUS, model_and_settings, short

MOST_EDGES = 4000


@dataclass(frozen=True)
class Edge:
    """One edge: the row it begins in (0: the logit), the columns of its ends, and its relevance."""

    row: int
    upper: int
    lower: int
    relevance: float


@dataclass(frozen=True)
class FlowView:
    """A flow, ready to draw. Its text is visible text, not yet escaped for any format.

    Attributes:
        rows: The names of the rows, the logit first, then places from the top down.
        columns: The positions of the tokens that have a column.
        labels: The visible text of each column.
        nodes: (row, column) -> relevance of each node, but the logit's.
        edges: Those that are drawn, weakest first; those from the logit are in row 0.
        mixing: Of each row, whether edges between different tokens may begin there.
        edge_shares: Of each row but the logit's, the share of its edges' mass that is kept.
        token_shares: Likewise of the place's mass, by its tokens.
        scale: The largest absolute relevance of a node or an edge.
        start: The column of the explained position.
    """

    method: str
    what: str  # what is explained: ``logit " are" - logit " is"``
    value: float
    residual: float
    rows: tuple[str, ...]
    columns: tuple[int, ...]
    labels: tuple[str, ...]
    nodes: dict[tuple[int, int], float]
    edges: tuple[Edge, ...]
    edge_shares: tuple[float, ...]
    token_shares: tuple[float, ...]
    scale: float
    start: float
    tokens: int
    kept: str
    notes: tuple[str, ...]
    remarks: tuple[str, ...]

    def gap_before(self, column: int) -> bool:
        """Whether tokens without a column come right before this one."""
        before = self.columns[column - 1] if column else -1
        return self.columns[column] > before + 1

    def edge_text(self, edge: Edge) -> str:
        """An edge in words."""
        above = "logit" if edge.row == 0 else f'"{self.labels[edge.upper]}" at {self.rows[edge.row]}'
        return f'{above} from "{self.labels[edge.lower]}" at {self.rows[edge.row + 1]}: {short(edge.relevance, MINUS)}'

    def node_text(self, row: int, column: int) -> str:
        """A node in words."""
        return f'"{self.labels[column]}" at {self.rows[row]}: {short(self.nodes[row, column], MINUS)}'


def flow_view(flow: FlowLike) -> FlowView:
    """The view of a ``RelevanceFlow``."""
    labels = token_labels(flow)
    columns = [int(i) for i in np.flatnonzero(flow.kept.any(0))] or [flow.position]
    place = {position: n for n, position in enumerate(columns)}
    rows = ["logit", *reversed(flow.places)]
    count = len(rows)
    nodes = {
        (count - 1 - p, place[int(t)]): float(flow.relevance[p, t])
        for p in range(len(flow.places))
        for t in np.flatnonzero(flow.kept[p])
    }
    edges = [Edge(0, -1, column, value) for (row, column), value in nodes.items() if row == 1]
    for n, step in enumerate(flow.steps, start=1):
        ends = zip(step.edges.tolist(), step.relevance.tolist(), strict=True)
        edges += [Edge(n, place[t], place[s], value) for (t, s), value in ends if t in place and s in place]
    edges.sort(key=lambda edge: abs(edge.relevance))
    remarks = [legible(note) for note in flow.notes]
    if len(edges) > MOST_EDGES:
        remarks.append(f"the strongest {MOST_EDGES:,} of {len(edges):,} edges are drawn.")
        edges = edges[-MOST_EDGES:]
    sizes = [*map(abs, nodes.values()), *(abs(edge.relevance) for edge in edges)]

    def entry(token) -> str:  # type: ignore[no-untyped-def]
        return f'logit "{legible(token.shown or token.text)}"'

    what = entry(flow.target) + (f" {MINUS} {entry(flow.contrast)}" if flow.contrast else "")
    at = int(np.searchsorted(columns, flow.position))
    return FlowView(
        method=flow.method,
        what=what,
        value=flow.value,
        residual=flow.residual,
        rows=tuple(rows),
        columns=tuple(columns),
        labels=tuple(labels[i] for i in columns),
        nodes=nodes,
        edges=tuple(edges),
        edge_shares=(*(step.kept for step in flow.steps), 1.0),
        token_shares=tuple(reversed(flow.shares().tolist())),
        scale=max(sizes, default=0.0),
        start=float(min(at, len(columns) - 1)),
        tokens=len(flow.tokens),
        kept=_kept(flow, len(columns)),
        notes=tuple(map(legible, model_and_settings(flow))),
        remarks=tuple(remarks),
    )


def _kept(flow: FlowLike, columns: int) -> str:
    """What is part of the graph and what is not, in a sentence."""
    edges = f"{flow.edge_count:,} edge{'s' * (flow.edge_count != 1)}"
    tokens = f"{columns:,} of {len(flow.tokens):,} tokens"
    if flow.share == 1 or flow.threshold == 0:
        return f"everything is kept: {edges}"
    least = min(flow.steps, key=lambda step: step.kept, default=None)
    shares = flow.shares()
    how = (
        f"the fewest tokens with {percent(flow.share)} of each place's relevance"
        if flow.share is not None
        else f"tokens and edges from {short(flow.threshold or 0.0)} on"
    )
    low = int(shares.argmin())
    parts = [f"kept: {how}: {tokens}, {edges}", f"least of a place: {percent(float(shares[low]))} ({flow.places[low]})"]
    if least is not None:
        parts.append(f"least of the edges from there: {percent(least.kept)} ({least.upper} to {least.lower})")
    return "; ".join(parts)


def percent(share: float) -> str:
    """``92 %``; not 100 % unless it is all."""
    rounded = f"{share:.0%}"
    return "> 99 %" if rounded == "100%" and share < 1 - 1e-9 else rounded.replace("%", " %")


def token_labels(flow: FlowLike) -> list[str]:
    """The visible text of each token; of a character that is split over several tokens, each says which part it is."""
    text = _Text(flow.tokens, flow.token_ids, flow.units, flow.special, np.zeros(len(flow.tokens)))
    labels = []
    for cell in cells_of(text, Look()):  # type: ignore[arg-type]
        count = len(cell.tokens)
        parts: Sequence[str] = [""] if count == 1 else [f" ({i}/{count})" for i in range(1, count + 1)]
        labels += [cell.text + part for part in parts]
    return labels
