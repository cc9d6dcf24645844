"""Generated text as a page: one marks a token or a span of what was generated, and sees its map over all tokens before.

A small script inside the page adds up the rows and colours the text; nothing is loaded from elsewhere. Without the script the
page shows the map of the whole continuation, and a table of what was strongest for each token.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape

import numpy as np

from .colours import BEYOND_BLUE, BEYOND_RED, BLUE, RED, WHITE, colour
from .generated import GeneratedView, Row
from .html import STYLE, cell_style, document, letters, prose
from .image_html import STYLE as OF_IMAGES
from .image_html import figure
from .look import LEAD, QUANTILE, Look
from .numbers import MINUS, fixed, probability, short

_STYLE = """
.lrpx .label{margin-top:10px}
.lrpx .label+.map{margin-top:2px}
.lrpx .reply .cell{cursor:pointer}
.lrpx .reply .cell:focus-visible{outline:3px solid #0b57d0;outline-offset:1px;position:relative;z-index:2}
.lrpx .map .cell.after{box-shadow:none}
.lrpx .map.reply .cell.explained{outline-width:1.5px;outline-offset:-.75px;margin:0}
.lrpx .map.reply .cell:not(.left,.joins){padding-left:.14em}
.lrpx .map.reply .cell:not(.right,.joins){padding-right:.14em}
.lrpx .rows button{font:inherit;color:inherit;background:var(--lrpx-quote);border:1px solid var(--lrpx-line);border-radius:6px;
margin:2px 6px 2px 0;padding:1px 8px;cursor:pointer;max-width:100%;overflow:hidden;text-overflow:ellipsis;white-space:nowrap}
.lrpx .rows button[aria-pressed=true]{outline:2px solid currentColor}
"""

# Marks [from, to) of the generated cells (or one row), adds up their rows, and colours what comes before.
_SCRIPT = """
(()=>{
const root=document.currentScript.closest("section"),D=JSON.parse(root.querySelector(".data").textContent);
const cells=[...root.querySelectorAll(".map .cell")],reads=[...root.querySelectorAll(".map .read")];
const $=name=>root.querySelector(name),tips=cells.map(cell=>cell.title);
let anchor=-1,head=-1,dragging=false;
const mix=share=>{if(Math.abs(share)>1)return share>0?D.colours[3]:D.colours[4];
const end=share>0?D.colours[0]:D.colours[2];return D.colours[1].map((w,i)=>Math.round(w+(end[i]-w)*Math.abs(share)))};
const ink=rgb=>{const l=rgb.map(x=>x/255).map(x=>x<=.04045?x/12.92:((x+.055)/1.055)**2.4);
return (.2126*l[0]+.7152*l[1]+.0722*l[2]+.05)**2>.05*1.05?"#000":"#fff"};
const sign=text=>text.replace("-",D.minus),short=v=>v?sign((v>0?"+":"")+String(Number(v.toPrecision(4)))):"0";
const fixed=(v,scale)=>{if(!v)return"0";if(scale&&(scale<1e-3||scale>=1e6))return sign((v>0?"+":"")+v.toExponential(3));
const d=scale?Math.max(0,3-Math.floor(Math.log10(scale))):0,r=Number(v.toFixed(d));return r?sign((r>0?"+":"")+r.toFixed(d)):"0"};
const end=values=>{const a=values.map(Math.abs).sort((x,y)=>x-y);
if(!a.length)return 0;const most=a[a.length-1],high=a[Math.ceil(D.quantile*(a.length-1))];
return high>0&&D.lead*high<most?high:most};
const likely=p=>p>.995?"> .99":p<.001?"< .001":"= "+p.toFixed(1-Math.floor(Math.log10(p))).replace("0.",".");
function show(rows,what){
const used=rows.map(i=>D.rows[i]),stop=Math.max(...used.map(row=>row.end)),sum=new Array(stop).fill(0);
used.forEach(row=>row.relevance.forEach((v,i)=>{sum[i]+=v}));
const scale=end(sum);$(".beyond").hidden=!(scale&&sum.some(v=>Math.abs(v)>scale));
const value=used.reduce((v,row)=>v+row.value,0),total=sum.reduce((a,b)=>a+b,0);
const from=Math.min(...used.map(row=>row.cells[0])),to=Math.max(...used.map(row=>row.cells[1]));
cells.forEach((cell,i)=>{const part=i<stop,share=part&&scale?sum[i]/scale:0,rgb=part?mix(share):[255,255,255];
cell.style.background=`rgb(${rgb})`;cell.style.color=ink(rgb);cell.classList.toggle("after",!part);
const marked=i>=from&&i<to;cell.classList.toggle("explained",marked);
cell.title=part?tips[i]+"   "+fixed(sum[i],scale):tips[i];
if(cell.getAttribute("role"))cell.setAttribute("aria-pressed",marked);
if(reads[i])reads[i].textContent=part?` (${fixed(sum[i],scale)}) `:""});
$(".phrase").textContent=to-from===1?D.one:D.many;$(".target").textContent=`"${what??D.text.slice(from,to).join("")}"`;
$(".number").textContent=short(value);
const p=D.probable?used.reduce((q,row)=>q*row.probability,1):null;
$(".sums").textContent=[...(p===null?[]:["p "+likely(p)]),...(D.additive?["sum "+short(total),"residual "+short(value-total)]:[])]
.join(" · ");
const ticks=$(".ticks").children;if(D.additive){ticks[0].textContent=fixed(-scale,scale)}
ticks[ticks.length-1].textContent=fixed(scale,scale);
root.querySelectorAll(".rows button").forEach(b=>b.setAttribute("aria-pressed",rows.length===1&&+b.dataset.row===rows[0]))}
function mark(a,h,focus){
const last=cells.length-1;h=Math.min(last,Math.max(D.first,h));a=D.additive&&D.single?Math.min(last,Math.max(D.first,a)):h;
anchor=a;head=h;const from=Math.min(a,h),to=Math.max(a,h)+1;
const rows=D.rows.map((row,i)=>i).filter(i=>D.rows[i].cells[0]<to&&D.rows[i].cells[1]>from);
if(rows.length)show(D.single?rows:[rows[0]]);
cells.forEach((cell,i)=>{if(cell.getAttribute("role"))cell.tabIndex=i===h?0:-1});if(focus)cells[h].focus()}
function all(){if(D.additive&&D.single){show(D.rows.map((row,i)=>i))}else show([0]);anchor=head=-1}
const reply=$(".reply"),place=event=>cells.indexOf(event.target.closest(".cell"));
reply.addEventListener("pointerdown",e=>{const i=place(e);if(i<0||e.button)return;dragging=true;
mark(e.shiftKey&&anchor>=0?anchor:i,i,true);e.preventDefault()});
reply.addEventListener("pointerover",e=>{const i=place(e);if(dragging&&i>=0)mark(anchor,i,true)});
addEventListener("pointerup",()=>{dragging=false});
reply.addEventListener("keydown",e=>{const here=place(e);if(here<0)return;
const step={ArrowRight:1,ArrowDown:1,ArrowLeft:-1,ArrowUp:-1}[e.key]*(reply.dir==="rtl"&&/Left|Right/.test(e.key)?-1:1);
const to=step?here+step:e.key==="Home"?D.first:e.key==="End"?cells.length-1:null;
if(e.key==="Escape"){all();e.preventDefault()}else if(e.key==="Enter"||e.key===" "){mark(here,here,true);e.preventDefault()}
else if(to!==null){mark(e.shiftKey&&anchor>=0?anchor:to,to,true);e.preventDefault()}});
root.querySelectorAll(".rows button").forEach(b=>b.addEventListener("click",()=>show([+b.dataset.row])));
$(".how").hidden=false;
cells.forEach((cell,i)=>{if(i>=D.first){cell.setAttribute("role","button");cell.tabIndex=i===D.first?0:-1}});
all();
})();
"""


def page(view: GeneratedView) -> str:
    """A complete page."""
    text = "".join(view.text(i) for i in range(view.first, len(view.cells))).strip()
    title = f"{view.method}: {text[:60]}"
    return document(title, f"<style>{_style(view)}</style>\n{_section(view, script=True)}")


def fragment(view: GeneratedView) -> str:
    """The style sheet and the text with the map of all that was generated; no script."""
    return f"<style>{_style(view)}</style>\n{_section(view, script=False)}"


def _style(view: GeneratedView) -> str:
    return STYLE + _STYLE + OF_IMAGES * bool(view.images)


def _section(view: GeneratedView, *, script: bool) -> str:
    row = view.whole
    scale = Look().end_of_scale(row.relevance[: row.end].tolist())
    directions = ["rtl" if rtl else "ltr" for rtl in view.rtl]

    def drawn(start: int, stop: int) -> str:
        return "".join(_cells(view, row, scale, start, stop))

    reply, given = drawn(view.first, len(view.cells)), [("prompt", drawn(0, view.first))]
    if view.begun:
        given = [("source", drawn(0, view.begun)), ("beginning of the target", drawn(view.begun, view.first))]
    sums = " · ".join(view.sums(row))
    parts = [
        f'<section class="lrpx" dir="ltr" aria-label="{escape(view.method)} heatmap of generated text">\n',
        f'<p class="what" aria-live="polite"><span class="method">{escape(view.method)}</span>'
        f'<span class="phrase">{escape(view.explains(row))}</span> <code><bdi class="target">"{escape(row.text)}"</bdi></code>'
        f' = <b class="number">{short(row.value, MINUS)}</b></p>\n',
        f'<p class="soft sums">{escape(sums)}</p>\n',
        f'<p class="soft">{escape(" · ".join(view.notes))}</p>\n' if view.notes else "",
        *(f'<p class="soft">note: {prose(remark)}</p>\n' for remark in view.remarks),
        f'<p class="soft how" hidden>{_how(view)}</p>\n',
        _row_buttons(view) if not view.per_token and len(view.rows) > 1 and script else "",
        *(
            f'<p class="soft label">{name}</p><p class="map prompt" dir="{directions[0]}">{cells}</p>\n'
            for name, cells in given
        ),
        *_pictures(view),
        f'<p class="soft label">generated</p><p class="map reply" dir="{directions[1]}" role="group" '
        f'aria-label="generated text">{reply}</p>\n',
        _legend(view, scale, bool(scale) and bool((np.abs(row.relevance[: row.end]) > scale).any())),
        f'<details><summary>The strongest tokens for each value</summary><div class="scroll">{_table(view)}</div></details>\n',
        f'<script type="application/json" class="data">{_data(view)}</script>\n<script>{_SCRIPT}</script>\n'
        if script
        else "",
        "</section>\n",
    ]
    return "".join(parts)


def _pictures(view: GeneratedView) -> Iterator[str]:
    """The images of the prompt with what they gave to all that was generated, or to the first span."""
    if not view.images:
        return
    scale = Look().end_of_scale([float(value) for image in view.images for value in image.values.flat])
    text = view.whole.text.strip()
    text = f"{text[:59]}…" if len(text) > 60 else text
    for image in view.images:
        yield figure(
            image,
            lambda value: value / scale if scale else 0.0,
            lambda value: short(value, MINUS),
            Look(),
            f', for "{text}"' + f", colours to ±{short(scale).removeprefix('+')}" * bool(scale),
        )


def _how(view: GeneratedView) -> str:
    if not view.per_token:
        return "Click a generated token to see the map of its span."
    if not view.additive:
        return "Click a generated token to see its map. Arrow keys move."
    return (
        "Click a generated token, or drag over several, to see their map. Arrow keys move, with Shift they extend, Escape shows "
        "all."
    )


def _row_buttons(view: GeneratedView) -> str:
    buttons = (
        f'<button type="button" data-row="{i}" aria-pressed="false"><bdi>{escape(row.text.strip()) or i}</bdi></button>'
        for i, row in enumerate(view.rows)
    )
    return f'<p class="rows">{"".join(buttons)}</p>\n'


def _cells(view: GeneratedView, row: Row, scale: float, start: int, stop: int) -> Iterator[str]:
    """Running text, as in ``html.py``."""
    cells = view.cells[start:stop]
    starts = [cell.gap or not n or len(cells[n - 1].pieces) > 1 for n, cell in enumerate(cells)]
    for i, (cell, first, last) in enumerate(zip(cells, starts, [*starts[1:], True], strict=True), start):
        left, right = (last, first) if cell.rtl else (first, last)
        took, marked = i < row.end, row.cells[0] <= i < row.cells[1]
        kind = (
            "cell"
            + " left" * left
            + " right" * right
            + " explained" * marked
            + " joins" * cell.rtl
            + " after" * (not took)
        )
        value = float(row.relevance[i]) if took else 0.0
        style = cell_style(colour(value / scale if scale else 0.0))
        tip = "&#10;".join(escape(f"{raw}   id {token}") for _, raw, token, _ in cell.tokens)
        *inside, end = cell.pieces
        lines = [*inside, end] if end else inside
        read = f" ({fixed(value, scale, MINUS)}) " if took else ""
        yield (
            f'{" " * cell.gap}<span class="{kind}" style="{style}" title="{tip}">{"<br>".join(map(letters, lines))}</span>'
            f'<bdi class="read">{read}</bdi>{"" if end else "<br>"}'
        )


def _legend(view: GeneratedView, scale: float, beyond: bool) -> str:
    low = f"<span>{fixed(-scale, scale, MINUS)}</span>" if view.additive else ""
    kind = "bar" if view.additive else "bar one-sided"
    return (
        f'<div class="legend soft"><div class="{kind}"><div><i></i></div><span class="ticks">{low}<span>0</span>'
        f"<span>{fixed(scale, scale, MINUS)}</span></span></div>"
        '<span><span class="mark"></span>what is explained</span>'
        f'<span class="beyond"{" hidden" * (not beyond)}>darker: beyond the end of the scale</span></div>\n'
    )


def _table(view: GeneratedView) -> str:
    """One row per value: its text, probability, number and strongest tokens."""
    head = '<tr><th class="text">explained</th><th>p</th><th>value</th><th class="text">strongest</th></tr>'
    lines, apart = [head], view.apart()
    for row in view.rows:
        names = ", ".join(
            f"<bdi>{escape(view.text(i).strip() or view.text(i))}</bdi>{apart[i]} {short(float(row.relevance[i]), MINUS)}"
            for i in row.strongest(5)
        )
        p = "" if row.probability is None else escape(probability(row.probability).strip("= "))
        against = f" {MINUS} <bdi>{escape(row.against)}</bdi>" if row.against else ""
        lines.append(
            f'<tr><td class="text"><bdi>{escape(row.text)}</bdi>{against}</td><td>{p}</td><td>{short(row.value, MINUS)}</td>'
            f'<td class="text">{names}</td></tr>'
        )
    return f"<table>{''.join(lines)}</table>"


def _data(view: GeneratedView) -> str:
    """What the script needs. ``<`` is escaped, so that no text ends the element."""
    rows = [
        {
            "cells": row.cells,
            "end": row.end,
            "value": _digits(row.value),
            "probability": row.probability,
            "relevance": [_digits(float(v)) for v in row.relevance[: row.end]],
        }
        for row in view.rows
    ]
    data = {
        "rows": rows,
        "first": view.first,
        "single": view.per_token,
        "additive": view.additive,
        "probable": all(row.probability is not None for row in view.rows),
        "one": view.one,
        "many": view.many,
        "text": [view.text(i) for i in range(len(view.cells))],
        "colours": [RED, WHITE, BLUE, BEYOND_RED, BEYOND_BLUE],
        "quantile": QUANTILE,
        "lead": LEAD,
        "minus": MINUS,
    }
    return json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _digits(value: float) -> float:
    """Six digits: what is shown has four."""
    return float(f"{value:.6g}")
