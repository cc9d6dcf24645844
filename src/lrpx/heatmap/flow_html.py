"""A flow of relevance as a page: the graph as SVG, a row per place from the logit down, a column per token.

An edge is as wide as its relevance, red where it raises the value and blue where it lowers it. Pointing at, tapping or moving the
focus to a node marks its edges and says their numbers; arrow keys move. Without the script, tooltips and the table remain.
Names of places and tokens are drawings of their own, which stay in sight while the graph scrolls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from .colours import BLUE, NOTHING, RED, hex_colour
from .flow import FlowView, percent
from .html import STYLE, document
from .numbers import MINUS, short

ROW, GAP, LEFT = 22, 14, 104  # pixels
FEW = 16  # columns; fewer stand further apart
LABEL = 18  # characters of a token above its column
STRONGEST = 200  # edges in the table

_STYLE = f"""
.lrpx .flow{{background:#fff;color:#1b1c1f;border:1px solid var(--lrpx-line);border-radius:6px;margin:10px 0;overflow:auto;
position:relative;-webkit-overflow-scrolling:touch;width:fit-content;max-width:100%;box-sizing:border-box}}
.lrpx .flow .sheet{{display:grid;width:max-content;grid-template-columns:auto auto}}
.lrpx .flow .places,.lrpx .flow .names{{position:sticky;background:#fff;z-index:1}}
.lrpx .flow .places{{left:0}}
.lrpx .flow .names{{top:0}}
.lrpx .flow .corner{{position:sticky;left:0;top:0;background:#fff;z-index:2}}
.lrpx .flow svg{{display:block;font:11px system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif}}
.lrpx .flow line.edge{{stroke:#{hex_colour(NOTHING)}}}
.lrpx .flow line.up{{stroke:#{hex_colour(RED)}}}
.lrpx .flow line.down{{stroke:#{hex_colour(BLUE)}}}
.lrpx .flow line{{stroke-linecap:round;stroke-opacity:.8;forced-color-adjust:none}}
.lrpx .flow .rule{{stroke:#eceef1;stroke-width:1;stroke-opacity:1}}
.lrpx .flow text{{fill:#5d6169}}
@media print{{.lrpx .flow{{max-height:none!important;overflow:visible}}}}
.lrpx .flow text.token{{fill:#1b1c1f;unicode-bidi:plaintext}}
.lrpx .flow circle.dot{{fill:#{hex_colour(NOTHING)}}}
.lrpx .flow .up circle{{fill:#{hex_colour(RED)}}}
.lrpx .flow .down circle{{fill:#{hex_colour(BLUE)}}}
.lrpx .flow circle.hit{{fill:transparent}}
.lrpx .flow g.node{{cursor:pointer;outline:none;forced-color-adjust:none}}
.lrpx .flow g.node:focus-visible circle.dot,.lrpx .flow g.marked circle.dot{{stroke:#111;stroke-width:2}}
.lrpx .flow.chosen line.edge:not(.near){{stroke-opacity:.12}}
.lrpx .said{{min-height:3.2em;white-space:pre-line;position:sticky;bottom:0;background:var(--lrpx-page);padding:4px 0;z-index:3}}
"""

_SCRIPT = """
(()=>{
const root=document.currentScript.closest("section"),box=root.querySelector(".flow"),said=root.querySelector(".said");
const nodes=[...box.querySelectorAll("g.node")],edges=[...box.querySelectorAll("line.edge")],first=said.textContent;
const at=new Map(nodes.map(n=>[n.dataset.at,n]));
const text=e=>e.querySelector("title").textContent,size=e=>Math.abs(+e.dataset.v);
let now=null,pinned=false;
function mark(node){now=node;box.classList.toggle("chosen",!!node);
nodes.forEach(n=>{n.classList.toggle("marked",n===node);n.tabIndex=n===(node||nodes[0])?0:-1});
edges.forEach(e=>e.classList.toggle("near",!!node&&(e.dataset.from===node.dataset.at||e.dataset.to===node.dataset.at)));
if(!node){said.textContent=first;return}
const list=(key,what)=>{const f=edges.filter(e=>e.dataset[key]===node.dataset.at).sort((a,b)=>size(b)-size(a));
return f.length?"\\n"+what+": "+f.slice(0,6).map(e=>e.dataset[key==="from"?"below":"above"]+" "+e.dataset.n).join(" \\u00b7 ")
+(f.length>6?" \\u00b7 and "+(f.length-6)+" more":""):""};
said.textContent=text(node)+list("from","takes from")+list("to","gives to")}
const of=event=>event.target.closest("g.node");
box.addEventListener("pointerover",e=>{const n=of(e);if(n&&!pinned&&e.pointerType!=="touch")mark(n)});
box.addEventListener("pointerleave",()=>{if(!pinned)mark(null)});
box.addEventListener("click",e=>{const n=of(e);pinned=!!n&&!(pinned&&n===now);mark(pinned?n:null)});
box.addEventListener("focusin",e=>{const n=of(e);if(n&&n.matches(":focus-visible")){pinned=true;mark(n)}});
box.addEventListener("keydown",e=>{const n=of(e);if(!n)return;const [row,col]=n.dataset.at.split(",").map(Number);
if(e.key==="Escape"){pinned=false;mark(null);return}
const step={ArrowUp:[-1,0],ArrowDown:[1,0],ArrowLeft:[0,-1],ArrowRight:[0,1]}[e.key];if(!step)return;e.preventDefault();
const near=nodes.filter(m=>{const [r,c]=m.dataset.at.split(",").map(Number);
return step[0]?r===row+step[0]:r===row&&(c-col)*step[1]>0});
near.sort((a,b)=>Math.abs(a.dataset.at.split(",")[1]-col)-Math.abs(b.dataset.at.split(",")[1]-col));
if(near[0]){near[0].focus();pinned=true;mark(near[0]);near[0].scrollIntoView({block:"nearest",inline:"nearest"})}});
root.querySelector(".how").hidden=false;
box.scrollLeft=+nodes[0].querySelector("circle").getAttribute("cx")-box.clientWidth/2;
nodes.forEach((n,i)=>{n.setAttribute("role","button");n.tabIndex=i?-1:0});
})();
"""


def page(view: FlowView) -> str:
    """A complete page."""
    title = f"{view.method}: {view.what}"
    size = f"section.lrpx{{max-width:{max(960, _width(view) + 60)}px}}.lrpx .flow{{max-height:calc(100vh - 7em)}}"
    return document(title, f"<style>{STYLE}{_STYLE}{size}</style>\n{_section(view, script=True)}")


def fragment(view: FlowView) -> str:
    """The style sheet and the graph; no script."""
    return f"<style>{STYLE}{_STYLE}</style>\n{_section(view, script=False)}"


def _section(view: FlowView, *, script: bool) -> str:
    quoted = _quoted(view.what)
    parts = [
        f'<section class="lrpx" dir="ltr" aria-label="{escape(view.method)} relevance flow">\n',
        f'<p class="what"><span class="method">{escape(view.method)}</span>{quoted} = <b>{short(view.value, MINUS)}</b></p>\n',
        f'<p class="soft">residual {short(view.residual, MINUS)} · {escape(" · ".join(view.notes))}</p>\n',
        f'<p class="soft">{escape(view.kept)}</p>\n',
        *(f'<p class="soft">note: {escape(remark)}</p>\n' for remark in view.remarks),
        '<p class="soft how" hidden>Point at, tap or tab to a node to see what it takes and gives; arrow keys move, Escape shows '
        "all.</p>\n",
        f'<div class="flow" style="scroll-padding:{_above(view) + 16}px 16px 16px {LEFT + 16}px">{_graph(view)}</div>\n',
        f'<p class="soft said" aria-live="polite">width: relevance, up to {short(view.scale).lstrip("+")} · red raises the '
        "value, blue lowers it · a gap between columns: tokens that are not drawn</p>\n",
        f'<details><summary>The strongest edges between different tokens</summary><div class="scroll">{_table(view)}</div>'
        "</details>\n",
        f'<details><summary>What each place keeps</summary><div class="scroll">{_places(view)}</div></details>\n',
        f"<script>{_SCRIPT}</script>\n" if script else "",
        "</section>\n",
    ]
    return "".join(parts)


def _quoted(what: str) -> str:
    """``logit " are"`` with the token as code."""
    return re.sub(r"&quot;(.*?)&quot;", r"<code><bdi>&quot;\1&quot;</bdi></code>", escape(what))


def _columns(view: FlowView) -> list[float]:
    """The middle of each column."""
    places, x, wide = [], float(LEFT), _column(view)
    for i in range(len(view.columns)):
        x += GAP * (i > 0 and view.gap_before(i))
        places.append(x + wide / 2)
        x += wide
    return places


def _column(view: FlowView) -> int:
    return 46 if len(view.columns) <= FEW else 30


def _width(view: FlowView) -> int:
    return int(_columns(view)[-1] + _column(view) / 2 + 24)


def _above(view: FlowView) -> int:
    """The height of the names of the tokens."""
    return min(LABEL, max(map(len, view.labels))) * 7 + 14


def _svg(kind: str, x: int, width: int, height: int, content: Iterable[str], about: str = "") -> str:
    """A drawing that begins at ``x`` of the graph's coordinates."""
    box = f'width="{width}" height="{height}" viewBox="{x} 0 {width} {height}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" {box}{about}>\n{"".join(content)}</svg>'


def _graph(view: FlowView) -> str:
    """The names of the tokens, and below them the names of the places and the graph."""
    y = [14 + ROW * row for row in range(len(view.rows))]
    width, height = _width(view), y[-1] + 12
    places = (
        f'<text x="{LEFT - 14}" y="{y[row] + 4}" text-anchor="end">{escape(name)}</text>\n'
        for row, name in enumerate(view.rows)
    )
    about = f' role="group" aria-label="graph of {len(view.nodes)} tokens at {len(view.rows) - 1} places"'
    drawn = (
        '<div class="corner"></div>',
        _svg("names", LEFT, width - LEFT, _above(view), _names(view)),
        _svg("places", 0, LEFT, height, places),
        _svg("graph", LEFT, width - LEFT, height, _nodes_and_edges(view, y), about),
    )
    return f'<div class="sheet">{"".join(drawn)}</div>'


def _names(view: FlowView) -> Iterator[str]:
    """The tokens, each above its column."""
    end = _above(view) - 4
    for column, (x, label) in enumerate(zip(_columns(view), view.labels, strict=True)):
        text = label if len(label) <= LABEL else label[: LABEL - 1] + "…"
        tip = f"{label} (position {view.columns[column]})"
        yield (
            f'<text class="token" transform="translate({x + 4:g} {end}) rotate(-90)">{escape(text)}'
            f"<title>{escape(tip)}</title></text>\n"
        )


def _nodes_and_edges(view: FlowView, y: list[int]) -> list[str]:
    x, scale, end = _columns(view), view.scale or 1.0, _width(view) - 8
    logit = x[int(view.start)]
    parts = [f'<line class="rule" x1="{LEFT}" x2="{end}" y1="{here}" y2="{here}"/>\n' for here in y]
    for edge in view.edges:
        from_x = logit if edge.row == 0 else x[edge.upper]
        size = 0.6 + 8.4 * abs(edge.relevance) / scale
        above = "logit" if edge.row == 0 else view.labels[edge.upper]
        way = _way(edge.relevance)
        start = "0,-1" if edge.row == 0 else f"{edge.row},{edge.upper}"
        parts.append(
            f'<line class="edge {way}" x1="{from_x:g}" y1="{y[edge.row]}" x2="{x[edge.lower]:g}" y2="{y[edge.row + 1]}" '
            f'stroke-width="{size:.2f}" data-from="{start}" data-to="{edge.row + 1},{edge.lower}" '
            f'data-v="{edge.relevance:.6g}" data-n="{short(edge.relevance, MINUS)}" data-above="{escape(above)}" '
            f'data-below="{escape(view.labels[edge.lower])}"><title>{escape(view.edge_text(edge))}</title></line>\n'
        )
    title = f"{view.what} = {short(view.value, MINUS)}"
    parts.append(_node("0,-1", logit, y[0], view.value, scale, title))
    for row, column in sorted(view.nodes):
        value = view.nodes[row, column]
        parts.append(_node(f"{row},{column}", x[column], y[row], value, scale, view.node_text(row, column)))
    return parts


def _way(relevance: float) -> str:
    return "up" if relevance > 0 else "down" if relevance < 0 else "nothing"


def _node(at: str, x: float, y: float, value: float, scale: float, text: str) -> str:
    radius = 2.2 + 4 * (abs(value) / scale) ** 0.5
    return (
        f'<g class="node {_way(value)}" data-at="{at}" aria-label="{escape(text)}"><circle class="hit" '
        f'cx="{x:g}" cy="{y}" r="11"/><circle class="dot" cx="{x:g}" cy="{y}" r="{radius:.2f}"/>'
        f"<title>{escape(text)}</title></g>\n"
    )


def _table(view: FlowView) -> str:
    """The strongest edges between different tokens."""
    head = (
        '<tr><th class="text">token</th><th class="text">at</th><th class="text">takes from</th><th class="text">at</th>'
        "<th>relevance</th></tr>"
    )
    crossing = [edge for edge in reversed(view.edges) if edge.row and edge.upper != edge.lower]
    lines = [
        f'<tr><td class="text"><bdi>{escape(view.names[e.upper])}</bdi></td><td class="text">{escape(view.rows[e.row])}</td>'
        f'<td class="text"><bdi>{escape(view.names[e.lower])}</bdi></td>'
        f'<td class="text">{escape(view.rows[e.row + 1])}</td><td>{short(e.relevance, MINUS)}</td></tr>'
        for e in crossing[:STRONGEST]
    ]
    more = f'<p class="soft">and {len(crossing) - STRONGEST:,} more</p>' if len(crossing) > STRONGEST else ""
    return f"<table>{head}{''.join(lines)}</table>{more}"


def _places(view: FlowView) -> str:
    """Tokens and shares of every place."""
    head = (
        '<tr><th class="text">place</th><th>tokens</th><th>of its relevance</th><th>of the edges below, kept</th></tr>'
    )
    lines = []
    for row, name in enumerate(view.rows[1:], start=1):
        tokens = view.tokens[row - 1]
        below = percent(view.edge_shares[row - 1]) if row < len(view.rows) - 1 else ""
        lines.append(
            f'<tr><td class="text">{escape(name)}</td><td>{tokens}</td><td>{percent(view.token_shares[row - 1])}</td>'
            f"<td>{below}</td></tr>"
        )
    return f"<table>{head}{''.join(lines)}</table>"
