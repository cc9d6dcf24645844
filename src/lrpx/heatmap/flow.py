"""What every view of a flow of relevance draws: a row per place, a column per token that is kept at some place, and the edges.

Tokens that are kept nowhere have no column; where some are left out, the columns stand apart. Of a graph with very many edges
the strongest are drawn, and a remark says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .cells import cells_of
from .colours import BLUE, NOTHING, RED, Rgb
from .drawable import FlowLike
from .facts import model_and_settings
from .generated import AllTokens
from .look import Look
from .numbers import MINUS, short
from .text import in_quotes, legible, same_apart

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
        names: Likewise in quotes, with its position where another token reads the same: ``"the" (3)``.
        nodes: (row, column) -> relevance of each node, but the logit's.
        edges: Those that are drawn, weakest first; those from the logit are in row 0.
        edge_shares: Of each row but the logit's, the share of its edges' mass that is kept.
        token_shares: Likewise of the place's mass, by its tokens.
        scale: The largest absolute relevance of a node or an edge.
        start: The column of the explained position.
        tokens: Of each row but the logit's, how many tokens are kept.
        kept: What is part of the graph and what is not, in a sentence.
    """

    method: str
    what: str  # what is explained: ``logit " are" - logit " is"``
    value: float
    residual: float
    rows: tuple[str, ...]
    columns: tuple[int, ...]
    labels: tuple[str, ...]
    names: tuple[str, ...]
    nodes: dict[tuple[int, int], float]
    edges: tuple[Edge, ...]
    edge_shares: tuple[float, ...]
    token_shares: tuple[float, ...]
    scale: float
    start: float
    tokens: tuple[int, ...]
    kept: str
    notes: tuple[str, ...]
    remarks: tuple[str, ...]

    def gap_before(self, column: int) -> bool:
        """Whether tokens without a column come right before this one."""
        before = self.columns[column - 1] if column else -1
        return self.columns[column] > before + 1

    def edge_text(self, edge: Edge) -> str:
        """An edge in words."""
        above = "logit" if edge.row == 0 else f"{self.names[edge.upper]} at {self.rows[edge.row]}"
        return f"{above} from {self.names[edge.lower]} at {self.rows[edge.row + 1]}: {short(edge.relevance, MINUS)}"

    def node_text(self, row: int, column: int) -> str:
        """A node in words."""
        return f"{self.names[column]} at {self.rows[row]}: {short(self.nodes[row, column], MINUS)}"


def flow_view(flow: FlowLike) -> FlowView:
    """The view of a ``RelevanceFlow``."""
    rows = ["logit", *reversed(flow.places)]
    top = flow.kept[-1].nonzero()[0]
    steps = [(np.stack([top, top], 1), flow.relevance[-1, top]), *((s.edges, s.relevance) for s in flow.steps)]
    sizes = np.abs(np.concatenate([relevance for _, relevance in steps]))
    remarks = [legible(note) for note in flow.notes]
    least = 0.0
    if len(sizes) > MOST_EDGES:
        least = float(np.partition(sizes, -MOST_EDGES)[-MOST_EDGES])
        remarks.append(
            f"the strongest {MOST_EDGES:,} of {len(sizes):,} edges are drawn, and the tokens that they join."
        )
    found = [
        (n, int(upper), int(lower), float(value))
        for n, (edges, relevance) in enumerate(steps)
        for (upper, lower), value in zip(
            edges[np.abs(relevance) >= least], relevance[np.abs(relevance) >= least], strict=True
        )
    ]
    found.sort(key=lambda edge: abs(edge[3]))
    found = found[-MOST_EDGES:]
    kept = {(len(rows) - 1 - int(p), int(t)) for p, t in zip(*flow.kept.nonzero(), strict=True)}
    if least:
        kept = {(n, upper) for n, upper, *_ in found if n} | {(n + 1, lower) for n, _, lower, _ in found}
    columns = sorted({t for _, t in kept}) or [flow.position]
    place = {position: n for n, position in enumerate(columns)}
    nodes = {(row, place[t]): float(flow.relevance[len(rows) - 1 - row, t]) for row, t in sorted(kept)}
    drawn = [Edge(n, place[upper] if n else -1, place[lower], value) for n, upper, lower, value in found]
    labels = token_labels(flow)
    apart = same_apart(labels, range(len(labels)))
    largest = max([*map(abs, nodes.values()), *(abs(edge.relevance) for edge in drawn)], default=0.0)

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
        names=tuple(in_quotes(labels[i]) + apart[i] for i in columns),
        nodes=nodes,
        edges=tuple(drawn),
        edge_shares=(*(step.kept for step in flow.steps), 1.0),
        token_shares=tuple(reversed(flow.shares().tolist())),
        scale=largest,
        start=float(min(at, len(columns) - 1)),
        tokens=tuple(reversed(flow.kept.sum(1).tolist())),
        kept=_kept(flow),
        notes=tuple(map(legible, model_and_settings(flow))),
        remarks=tuple(remarks),
    )


def _kept(flow: FlowLike) -> str:
    columns = int(flow.kept.any(0).sum())
    edges = f"{flow.edge_count:,} edge{'s' * (flow.edge_count != 1)}"
    tokens = f"{columns:,} of {len(flow.tokens):,} tokens"
    if flow.share == 1 or flow.threshold == 0:
        return f"everything is kept: {edges}"
    if not flow.edge_count:
        largest = max(map(abs, flow.relevance[-1].tolist()))
        limit = short(flow.threshold or 0.0)
        return f"nothing is kept: the largest share of the logit is {short(largest)}, and the threshold is {limit}"
    least = min(flow.steps, key=lambda step: step.kept, default=None)
    shares = flow.shares()
    how = (
        f"the fewest tokens with {percent(flow.share)} of each place's relevance, and those that join them to the logit"
        if flow.share is not None
        else f"tokens and edges from {short(flow.threshold or 0.0)} on"
    )
    low = int(shares.argmin())
    parts = [
        f"kept: {how}: {tokens}, {edges}",
        f"the tokens kept at a place hold at least {percent(float(shares[low]))} of its relevance (at {flow.places[low]})",
    ]
    if least is not None:
        parts.append(
            f"the edges kept below a place at least {percent(least.kept)} (from {least.upper} to {least.lower})"
        )
    return "; ".join(parts)


def colour_of(relevance: float) -> Rgb:
    """Red raises the value, blue lowers it, and grey does neither."""
    return RED if relevance > 0 else BLUE if relevance < 0 else NOTHING


def percent(share: float) -> str:
    """``92 %``; not 100 % unless it is all."""
    rounded = f"{share:.0%}"
    return "> 99 %" if rounded == "100%" and share < 1 - 1e-9 else rounded.replace("%", " %")


def token_labels(flow: FlowLike) -> list[str]:
    """The visible text of each token; of a character that is split over several tokens, each says which part it is."""
    text = AllTokens(flow.tokens, flow.token_ids, flow.units, flow.special, np.zeros(len(flow.tokens)))
    labels = []
    for cell in cells_of(text, Look()):  # type: ignore[arg-type]
        count = len(cell.tokens)
        parts: Sequence[str] = [""] if count == 1 else [f" ({i}/{count})" for i in range(1, count + 1)]
        labels += [cell.text + part for part in parts]
    return labels
