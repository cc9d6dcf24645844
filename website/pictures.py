"""Draw the pictures of docs/how_lrp_works.md, and one of docs/architecture.md: ``python website/pictures.py``.

Each is an SVG of a few boxes, arrows and words. The numbers in them are those of the examples on the page. They are at most
560 wide with letters of 15, so that they can be read on a telephone, and lie on white, for pages of either colour.
"""

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
INK, GREY, LINE = "#222", "#666", "#aaa"
RED, BLUE = "#b40426", "#3b4cc0"  # relevance that speaks for the value, and against it
PALE = {"grey": "#f2f2f2", "red": "#f9d9d3", "blue": "#d6e0fa", "green": "#dcefdc", "yellow": "#fbf0cf"}


class Picture:
    """An SVG that grows by shapes and words; (0, 0) is the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="{color}"/></marker>'
            for name, color in (("grey", GREY), ("red", RED), ("blue", BLUE))
        )
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'role="img" font-family="DejaVu Sans, Verdana, Arial, sans-serif" font-size="15">',
            f"<title>{escape(title)}</title>",
            f"<defs>{heads}</defs>",
            f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8" fill="white" stroke="#ddd"/>',
        ]

    def text(self, x: float, y: float, words: str, color: str = INK, anchor: str = "middle", style: str = "") -> None:
        """Words whose base line is at y."""
        self.parts.append(f'<text x="{x}" y="{y}" fill="{color}" text-anchor="{anchor}" {style}>{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, words: str = "", fill: str = "grey") -> None:
        """A rounded rectangle with words in its middle."""
        shape = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{PALE[fill]}" stroke="{LINE}"/>'
        self.parts.append(shape)
        if words:
            self.text(x + width / 2, y + height / 2 + 5, words)

    def arrow(self, x1: float, y1: float, x2: float, y2: float, color: str = "grey", width: float = 1.6) -> None:
        """An arrow from one point to another; values are grey, relevance is red or blue."""
        stroke = {"grey": GREY, "red": RED, "blue": BLUE}[color]
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{stroke}" stroke-width="{width}" '
            f'marker-end="url(#{color})"/>'
        )

    def curve(self, points: Sequence[tuple[float, float]], color: str, width: float = 2, dash: str = "") -> None:
        """A line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}"{dashed}/>')

    def dot(self, x: float, y: float) -> None:
        """A point."""
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{INK}"/>')

    def svg(self) -> str:
        """The file's text."""
        return "\n".join([*self.parts, "</svg>", ""])


def signed(number: float) -> str:
    """A relevance with its sign."""
    return f"{number:+.3g}".replace("-", "\u2212")


def backwards() -> Picture:
    """Values go up through the blocks, relevance comes down, and every row has the same sum."""
    p = Picture(560, 330, "Values go forward through the blocks, relevance goes backward to the tokens")
    found = {"The": 2.186, "keys": 0.835, "to": 0.128, "the": 0.315, "cabinet": -0.053}
    p.box(100, 18, 360, 40, 'logit "are" \u2212 logit "is" = 3.41', "yellow")
    for y, words in ((92, "block 30"), (144, "\u2026"), (182, "block 1")):
        if words == "\u2026":
            p.text(280, y + 22, words)
        else:
            p.box(60, y, 440, 40, words)
    for i, (token, relevance) in enumerate(found.items()):
        x = 66 + i * 88
        p.box(x, 248, 78, 34, token)
        p.text(x + 39, 308, signed(relevance), RED if relevance > 0 else BLUE, style='font-weight="bold"')
    p.arrow(30, 265, 30, 40)
    p.arrow(530, 40, 530, 300, "red")
    p.text(24, 150, "forward: values", GREY, style='transform="rotate(-90 24 150)"')
    p.text(536, 170, "backward: relevance", RED, style='transform="rotate(90 536 170) translate(0 -8)"')
    return p


def linear() -> Picture:
    """A linear layer shares relevance in proportion to what each input contributed."""
    p = Picture(560, 270, "A linear layer divides its relevance in proportion to the contributions of its inputs")
    rows = ((2, 1.5, 1.5), (1, 2, 1.0), (4, -0.5, -1.0))
    p.text(60, 32, "inputs", GREY)
    p.text(245, 32, "contributions x · w", GREY)
    p.text(468, 32, "output", GREY)
    for i, (x, w, relevance) in enumerate(rows):
        y = 50 + i * 72
        color = "red" if relevance > 0 else "blue"
        p.box(20, y, 80, 34, f"x = {x}")
        p.arrow(104, y + 17, 386, 132 + (i - 1) * 10)
        p.text(235, y + (12 if i == 0 else 10 if i == 1 else 40), f"{x} · {w} = {x * w:g}".replace("-", "\u2212"))
        p.text(60, y + 52, f"R = {signed(relevance)}", RED if color == "red" else BLUE, style='font-weight="bold"')
    p.box(392, 112, 152, 40, "z = 3 + 2 \u2212 2 = 3", "grey")
    p.text(468, 176, "R = +1.5", RED, style='font-weight="bold"')
    return p


def secant() -> Picture:
    """SiLU at x = -1: the tangent misses the value, the line through the origin meets it."""
    p = Picture(560, 400, "SiLU, its tangent at a point, and the line from the origin to that point")

    def place(x: float, y: float) -> tuple[float, float]:
        return 300 + x * 120, 250 - y * 230

    def silu(x: float) -> float:
        return x / (1 + math.exp(-x))

    at, value = -1.0, silu(-1.0)
    sigmoid = 1 / (1 + math.exp(1.0))
    tangent, slope = sigmoid * (1 + at * (1 - sigmoid)), value / at
    p.curve([place(-2.2, 0), place(1.9, 0)], LINE, 1)
    p.curve([place(0, -0.4), place(0, 0.88)], LINE, 1)
    p.curve([place(i / 20, silu(i / 20)) for i in range(-44, 25)], INK)
    p.curve([place(x, value + tangent * (x - at)) for x in (-2.2, 1.9)], GREY, 2, "6 4")
    p.curve([place(x, slope * x) for x in (-1.8, 1.9)], RED, 2)
    p.dot(*place(at, value))
    p.dot(*place(0, 0))
    p.text(437, 52, "y = SiLU(x)", INK, "end")
    p.text(150, 232, "x = \u22121, y = \u22120.27", INK)
    p.text(415, 312, "tangent: ordinary gradient", GREY)
    p.text(548, 118, "LRP: line from 0", RED, "end")
    p.text(
        20, 372, f"tangent: slope · x = {tangent:.2f} · (\u22121) = \u2212{tangent:.2f}, which is not y", GREY, "start"
    )
    p.text(20, 32, f"line from 0: slope · x = {slope:.2f} · (\u22121) = \u2212{slope:.2f} = y", RED, "start")
    return p


def products() -> Picture:
    """Who gets the relevance of a product, under LRP and under AttnLRP."""
    p = Picture(560, 250, "The relevance of a product of an attention weight and a value, under LRP and AttnLRP")
    for left, name, rule, shares in (
        (0, "LRP", "the signal takes all", (0.0, 2.0)),
        (280, "AttnLRP", "half to each factor", (1.0, 1.0)),
    ):
        p.text(left + 140, 30, name, style='font-weight="bold"')
        p.text(left + 140, 52, rule, GREY)
        p.box(left + 85, 70, 110, 34, "product 2", "grey")
        p.text(left + 205, 92, "R = +2", RED, "start")
        for x, words, share in ((14, "weight 0.8", shares[0]), (150, "value 2.5", shares[1])):
            p.box(left + x, 170, 116, 34, words)
            p.text(left + x + 58, 228, f"R = {share:+g}" if share else "R = 0", RED if share else GREY)
            if share:
                p.arrow(left + 140, 108, left + x + 58, 164, "red", 1.5 + share)
    p.curve([(280, 20), (280, 235)], "#ddd", 1)
    return p


def block() -> Picture:
    """The operations of a Llama-like block, with what each rule set does there."""
    p = Picture(560, 560, "The operations of a transformer block and the rule for each under LRP and AttnLRP")
    rows = (
        ("+ residual", "gradient", "gradient"),
        ("down projection", "gradient", "gradient"),
        ("SiLU(gate) × up", "up takes all", "half each"),
        ("SiLU", "line from 0", "line from 0"),
        ("gate, up projections", "gradient", "gradient"),
        ("RMSNorm", "scale constant", "scale constant"),
        ("+ residual", "gradient", "gradient"),
        ("output projection", "gradient", "gradient"),
        ("weights × values", "values take all", "half each"),
        ("softmax", "constant", "gradient"),
        ("queries × keys", "(constant)", "half each"),
        ("q, k, v projections", "gradient", "gradient"),
        ("RMSNorm", "scale constant", "scale constant"),
    )
    colors = {"gradient": "grey", "line from 0": "green", "half each": "blue"}
    for x, words in ((142, "operation"), (340, "LRP"), (475, "AttnLRP")):
        p.text(x, 28, words, style='font-weight="bold"')
    for i, (operation, *rules) in enumerate(rows):
        y = 42 + i * 39
        p.box(50, y, 184, 30, operation)
        for x, rule in ((276, rules[0]), (411, rules[1])):
            p.box(x, y, 128, 30, rule, colors.get(rule, "yellow" if "constant" in rule else "red"))
        if i:
            p.arrow(142, y - 1, 142, y - 8)
    p.arrow(24, 540, 24, 46)
    p.text(22, 290, "values", GREY, style='transform="rotate(-90 22 290) translate(0 -4)"')
    return p


PACKAGES = (  # rows of packages; each imports from packages below it
    ("cli",),
    ("app", "report"),
    ("evaluation", "explainer", "check"),
    ("benchmark", "methods"),
    ("passes",),
    ("propagation", "text"),
    ("recognition", "results"),
    ("models", "heatmap"),
    ("files", "errors"),
)
IMPORTS = (
    ("cli", "app report"),
    ("app", "evaluation explainer"),
    ("report", "evaluation"),
    ("evaluation", "benchmark methods"),
    ("explainer", "methods"),
    ("check", "passes"),
    ("methods", "passes"),
    ("passes", "propagation text"),
    ("propagation", "recognition"),
    ("text", "results models"),
    ("recognition", "models"),
    ("results", "heatmap"),
    ("models", "files"),
    ("benchmark", "files"),
    ("heatmap", "errors"),
)


def packages() -> Picture:
    """Who imports from whom."""
    p = Picture(560, 610, "The packages of lrpx: each imports from packages below it")
    places = {}
    for i, row in enumerate(PACKAGES):
        for j, name in enumerate(row):
            x = {"methods": 280, "benchmark": 78}.get(name, 280 + (j - (len(row) - 1) / 2) * 172)
            places[name] = (x, 20 + i * 66)
    for name, others in IMPORTS:
        for other in others.split():
            (x1, y1), (x2, y2) = places[name], places[other]
            p.arrow(x1, y1 + 34, x2 + (12 if x1 > x2 else -12 if x1 < x2 else 0), y2 - 3)
    for name, (x, y) in places.items():
        p.box(x - 66, y, 132, 34, name, "green" if name == "propagation" else "grey")
    return p


PICTURES = {
    "packages": packages,
    "lrp_backwards": backwards,
    "lrp_linear": linear,
    "lrp_secant": secant,
    "lrp_products": products,
    "lrp_block": block,
}

if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")
