"""Views of a flow: the numbers that they show, and that nothing in a text can break a page."""

import io
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from rich.console import Console

from lrpx.errors import InputError
from lrpx.heatmap import flow as flow_module
from lrpx.heatmap.colours import BLUE, NOTHING, RED
from lrpx.heatmap.flow import colour_of, flow_view, percent
from lrpx.heatmap.flow_terminal import TerminalFlow
from lrpx.results.flow import FlowStep, RelevanceFlow
from lrpx.results.tokens import Token, Unit

TOKENS = ["Say", " hi", " to", " them"]
NASTY = ["</script><script>alert(1)</script>", "<b>&amp;", '" onclick="x', "]]>"]


def step(upper, lower, edges, followed, mass, way="attention"):
    pairs = np.array([edge[:2] for edge in edges], dtype=np.int64).reshape(-1, 2)
    relevance = np.array([edge[2] for edge in edges], dtype=float)
    return FlowStep(upper, lower, pairs, relevance, np.array(followed), np.zeros(len(followed)), mass, 0.1, 0.0, way)


def made(tokens=TOKENS, **changes):
    """Token 3 takes from itself and from token 1; nothing comes from tokens 0 and 2."""
    kept = np.zeros((3, len(tokens)), dtype=bool)
    kept[:, 3] = kept[0, 1] = True
    relevance = np.zeros((3, len(tokens)))
    relevance[:, 3] = [-1.0, 2.0, 2.5]
    relevance[0, 1] = 3.0
    given = {
        "tokens": list(tokens), "token_ids": list(range(10, 10 + len(tokens))), "value": 2.5, "position": 3,
        "units": [Unit(i, i + 1, t) for i, t in enumerate(tokens)], "target": Token(7, "Ġnow", " now"), "contrast": None,
        "method": "attnlrp", "places": ["input", "attention.0", "block.0"], "relevance": relevance, "kept": kept,
        "steps": [
            step("block.0", "attention.0", [(3, 3, 2.0)], [3], 2.0, "diagonal"),
            step("attention.0", "input", [(3, 1, 3.0), (3, 3, -1.0)], [3], 5.0),
        ], "share": 0.9, "provenance": {"model": "tiny"},
    }  # fmt: skip
    return RelevanceFlow(**given | changes)


def printed(flow, **options):
    page = io.StringIO()
    Console(file=page, width=options.pop("width", 160), **options).print(TerminalFlow(flow_view(flow)))
    return page.getvalue()


def test_the_view():
    view = flow_view(made())
    assert view.rows == ("logit", "block.0", "attention.0", "input")
    assert (view.columns, view.labels) == ((1, 3), ("hi", "them"))
    assert [view.gap_before(i) for i in range(2)] == [True, True]
    assert [(e.row, e.upper, e.lower, e.relevance) for e in view.edges] == [
        (2, 1, 1, -1.0), (1, 1, 1, 2.0), (0, -1, 1, 2.5), (2, 1, 0, 3.0),
    ]  # fmt: skip
    assert view.scale == 3
    assert view.edge_shares == (1.0, 0.8, 1.0)
    assert "2 of 4 tokens, 4 edges" in view.kept
    assert "the edges kept below a place at least 80 % (from attention.0 to input)" in view.kept
    assert flow_view(made(share=1.0)).kept == "everything is kept: 4 edges"
    assert "from +0.5 on" in flow_view(made(share=None, threshold=0.5)).kept


def test_edges_that_are_not_drawn_are_said(monkeypatch):
    monkeypatch.setattr(flow_module, "MOST_EDGES", 2)
    view = flow_view(made())
    assert [abs(edge.relevance) for edge in view.edges] == [2.5, 3.0]
    assert view.remarks[-1] == "the strongest 2 of 4 edges are drawn, and the tokens that they join."
    assert set(view.nodes) == {(1, 1), (2, 1), (3, 0)}
    assert "the strongest 2 of 4 edges are drawn," in made().to_html()


def test_shares_are_not_rounded_to_all():
    assert [percent(x) for x in (1.0, 0.9999, 0.92, 0.0)] == ["100 %", "> 99 %", "92 %", "0 %"]


def test_in_the_terminal():
    text = printed(made())
    assert text.startswith('attnlrp: logit " now" = +2.5   residual +0.5\n')
    assert re.search(r'attention.0 to input +1 +100 % +80 % +"them" from "hi" \+3', text)
    assert "and 1 step in which each token takes from itself alone" in text
    assert 'input: "hi" +3  "them" -1' in text
    coloured = printed(made(), force_terminal=True, color_system="truecolor")
    assert "\x1b[" in coloured
    assert "−1" in coloured
    assert "-1" not in coloured


class Elements(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


def test_the_frame_is_no_wider_than_the_flow():
    """That of a short text would be blank for two thirds."""
    [style] = re.findall(r"\.lrpx \.flow\{(.*?)\}", made().to_html(), re.DOTALL)[:1]
    assert "width:fit-content;max-width:100%" in style


def test_the_page_has_every_edge_and_node():
    page = made().to_html()
    parser = Elements()
    parser.feed(page)
    edges = [a for tag, a in parser.found if tag == "line" and "edge" in a.get("class", "")]
    nodes = [a for tag, a in parser.found if tag == "g"]
    assert sorted(float(a["data-v"]) for a in edges) == [-1, 2, 2.5, 3]
    assert [a["class"] for a in edges if float(a["data-v"]) < 0] == ["edge down"]
    assert {a["data-at"] for a in nodes} == {"0,-1", "1,1", "2,1", "3,0", "3,1"}
    assert {a["data-from"] for a in edges} | {a["data-to"] for a in edges} == {a["data-at"] for a in nodes}
    assert float(max(edges, key=lambda a: float(a["stroke-width"]))["data-v"]) == 3
    drawings = [a for tag, a in parser.found if tag == "svg"]
    assert [a["class"] for a in drawings] == ["names", "places", "graph"]
    names, places, graph = drawings
    assert places["width"] == graph["viewbox"].split()[0] == names["viewbox"].split()[0]  # side by side, and above
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # nothing is loaded
    fragment = made()._repr_html_()
    assert "<script" not in fragment
    assert ("max-height:calc" in page, "max-height:calc" in fragment) == (
        True,
        False,
    )  # a notebook's cell scrolls by itself


def test_a_text_cannot_break_the_page():
    flow = made(NASTY, notes=("</script><b>",))
    page = flow.to_html()
    assert page.count("<script") == page.count("</script") == 1
    parser = Elements()
    parser.feed(page)
    assert parser.found
    for tag, attributes in parser.found:
        assert "onclick" not in attributes, tag


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which is not here")
def test_the_script_is_valid(tmp_path):
    script = re.search(r"<script>(.*?)</script>", made().to_html(), re.DOTALL)[1]
    (tmp_path / "script.js").write_text(script)
    done = subprocess.run(["node", "--check", tmp_path / "script.js"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    made().to_png(tmp_path / "flow.png")
    assert (tmp_path / "flow.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InputError, match="writes PNG"):
        made().to_png(tmp_path / "flow.svg")


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_every_kind_of_picture_with_and_without_a_header(kind, start, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    sizes = []
    for header in (True, False):
        files = [tmp_path / f"{n}.{kind}" for n in "ab"]
        for file in files:
            getattr(made(), f"to_{kind}")(file, header=header)
        assert files[0].read_bytes().startswith(start)
        assert files[0].read_bytes() == files[1].read_bytes()
        sizes.append(len(files[0].read_bytes()))
        if kind == "svg":
            assert ("<!-- attnlrp: logit" in files[0].read_text()) is header
    assert sizes[1] < sizes[0]


def test_the_page_is_written_or_returned(tmp_path):
    assert made().to_html(tmp_path / "flow.html") is None
    assert (tmp_path / "flow.html").read_text(encoding="utf-8") == made().to_html()


def test_the_page_is_the_same_when_read_back():
    flow = made()
    again = RelevanceFlow.from_dict(json.loads(json.dumps(flow.to_dict())))
    assert again.to_html() == flow.to_html()
    assert printed(again) == printed(flow)


def test_a_text_without_relevance():
    flow = made(
        relevance=np.zeros((3, 4)), kept=np.zeros((3, 4), dtype=bool), value=0.0,
        steps=[step("block.0", "attention.0", [], [], 0.0), step("attention.0", "input", [], [], 0.0)],
    )  # fmt: skip
    assert "logit" in flow.to_html()
    assert printed(flow)
    assert flow.shares().tolist() == [1, 1, 1]


def test_tokens_that_read_the_same_have_their_positions():
    flow = made(tokens=["the", " hi", " to", " hi"])
    view = flow_view(flow)
    assert view.names == ('"hi" (1)', '"hi" (3)')
    assert view.edge_text(view.edges[-1]) == '"hi" (3) at attention.0 from "hi" (1) at input: +3'
    assert flow_view(made()).names == ('"hi"', '"them"')
    text = printed(flow)
    assert '"hi" (3) from "hi" (1) +3' in text
    assert "(n): the token at position n" in text
    assert "(n)" not in printed(made())


def test_edges_with_positions_have_a_line_each_in_eighty_columns():
    cupboards = made([" cupboards", " cupboards", " and", " cupboards"])
    edge, wide = '"cupboards" (3) from "cupboards" (1) +3', printed(cupboards).splitlines()
    assert f"attention.0 to input       1     100 %      80 %  {edge}" in [line.rstrip() for line in wide]
    narrow = printed(cupboards, width=80).splitlines()
    at = narrow.index("attention.0 to input   tokens 1, of place 100 %, of edges 80 %")
    assert narrow[at + 1] == f"  {edge}"
    assert narrow[narrow.index("logit to block.0") + 1] == '  from "cupboards" (3) +2.5'
    assert 'input: "cupboards" (1) +3  "cupboards" (3) -1' in narrow
    colours = printed(cupboards, width=80, force_terminal=True, color_system="truecolor")
    assert re.sub(r"\x1b\[[\d;]*m", "", colours).replace("−", "-").splitlines() == narrow
    tight = printed(cupboards, width=36).splitlines()  # no entry is broken that fits a line
    assert [line.rstrip() for line in tight[-4:-2]] == ['input: "cupboards" (1) +3', '"cupboards" (3) -1']
    assert max(map(len, tight)) <= 36


def test_nothing_is_kept():
    """The largest share says which threshold would keep something."""
    empty = [step("block.0", "attention.0", [], [], 2.0), step("attention.0", "input", [], [], 5.0)]
    text = printed(made(share=None, threshold=100.0, kept=np.zeros((3, 4), dtype=bool), steps=empty))
    assert text.endswith("\nnothing is kept: the largest share of the logit is +2.5, and the threshold is +100\n")


def test_nothing_reaches_the_input():
    kept = np.zeros((3, 4), dtype=bool)
    kept[2, 3] = True
    steps = [step("block.0", "attention.0", [], [3], 2.0), step("attention.0", "input", [], [], 5.0)]
    assert "input: nothing reaches it\n" in printed(made(share=None, threshold=2.2, kept=kept, steps=steps))


def test_what_is_0_is_neither_red_nor_blue():
    zero = made(
        steps=[
            step("block.0", "attention.0", [(3, 3, 2.0)], [3], 2.0, "diagonal"),
            step("attention.0", "input", [(3, 1, 0.0), (3, 3, -1.0)], [3], 1.0),
        ]
    )
    page = zero.to_html()
    ways = re.findall(r'<line class="edge (\w+)"[^>]*data-v="([^"]+)"', page)
    assert {way for way, value in ways if float(value) == 0} == {"nothing"}
    assert {way for way, value in ways if float(value) < 0} == {"down"}
    assert [colour_of(value) for value in (1e-9, -1e-9, 0.0, -0.0)] == [RED, BLUE, NOTHING, NOTHING]
