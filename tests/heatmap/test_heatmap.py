"""Heatmaps: the numbers and the text that were given are on them, readable, in every format."""

from __future__ import annotations

import ast
import io
import itertools
import re
import shutil
import subprocess
import sys
import types
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import tiny
from rich.console import Console

import lrpx.heatmap
from lrpx import heatmap
from lrpx.errors import InputError, LrpxWarning
from lrpx.heatmap import Look, latex, rtl
from lrpx.heatmap.colours import BLUE, RED, WHITE, colour, hex_colour, ink
from lrpx.heatmap.numbers import fixed
from lrpx.heatmap.text import around_quotes, in_quotes, mostly_rtl, readable, visible
from lrpx.heatmap.view import view
from lrpx.results.explanation import Explanation
from lrpx.results.tokens import Prediction, Token, Unit

# What a machine's fonts and an older matplotlib lack; the tests of these warnings ask for them.
pytestmark = [
    pytest.mark.filterwarnings("ignore:no installed font has"),
    pytest.mark.filterwarnings("ignore:right-to-left text in a picture"),
]

OUTSIDE = "MLPs +0.375 (3 layers) · biases of attention +0.5 (3 layers) · embedding at the explained position −0.75"
RED_HEX, BLUE_HEX = hex_colour(RED), hex_colour(BLUE)


def explanation(
    units: list[tuple[str, list[str]]],
    relevance: list[float],
    *,
    target: str = "Ġare",
    contrast: str | None = "Ġis",
    **fields,
) -> Explanation:
    """An explanation of the units, each a readable text and its raw tokens."""
    ends = list(itertools.accumulate(len(raw) for _, raw in units))
    spans = zip([0, *ends], ends, units, strict=False)
    made = [Unit(start, end, text) for start, end, (text, _) in spans]
    tokens = [piece for _, raw in units for piece in raw]
    numbers = np.array(relevance, dtype=np.float64)
    known = {
        "value": float(numbers.sum()) + 0.25,
        "residual": 0.25,
        "position": len(tokens) - 1,
        "method": "attnlrp",
        "provenance": {"model": "/some/folder/mini-gpt2"},
    }
    return Explanation(
        tokens=tokens,
        token_ids=[100 + i for i in range(len(tokens))],
        units=made,
        relevance=numbers,
        target=Token(7, target),
        contrast=Token(8, contrast) if contrast is not None else None,
        **{**known, **fields},
    )


def keys(**fields) -> Explanation:
    """Five tokens of GPT-2's kind, the second the strongest."""
    words = [("The", ["The"]), *((f" {w}", [f"Ġ{w}"]) for w in ("keys", "to", "the", "cabinet"))]
    return explanation(words, [0.031, 1.934, 0.0871, -0.1204, -0.967], **fields)


def bert() -> Explanation:
    """WordPiece: its tokens mark no leading space; the units have it."""
    pieces = ["[CLS]", "the", "rust", "##y", "keys", "[MASK]", "here", ".", "[SEP]"]
    units = [(p[2:] if p.startswith("##") else " " * bool(n) + p, [p]) for n, p in enumerate(pieces)]
    return explanation(
        units, [0.1, 0.2, -0.3, 0.05, 0.9, -0.2, 0, 0.01, 0.02], target="are", contrast="is", position=5, method="lrp"
    )


HARD = [
    ("🔑", ["ðŁ", "Ķ", "ij"]),
    ("👩\u200d🚀", ["ðŁij©", "âĢį", "ðŁļĢ"]),
    (" مرح", ["ĠÙħ", "Ø±Øº"]),
    ("با", ["Ø¨Ø§"]),
    (" keys\n", ["Ġkeys", "Ċ"]),
    ("\t", ["ĉ"]),
    ("<b>&amp;\"'x", ["<b>&amp;\"'x"]),
    (" \\textbf{50%}_#$~^``--", ["Ġ\\textbf{50%}_#$~^``--"]),
    (" 中文", ["Ġä¸Ń", "æĸĩ"]),
    (" שלום", ["Ġ×©×ľ×ķ×Ŀ"]),
    ("  ", ["ĠĠ"]),
    ("\x00\u202e", ["Ā", "âĢ®"]),
    ("é", ["Ã©"]),
    ("", ['x" onmouseover="alert(1)']),
]


def hard(**fields) -> Explanation:
    """Emoji, right-to-left, CJK, every special character of HTML and LaTeX, control characters, an empty text."""
    count = sum(len(raw) for _, raw in HARD)
    numbers = np.linspace(-1, 1.5, count).round(3).tolist()
    return explanation(HARD, numbers, target="ä¸Ń", contrast="Ċ", **fields)


def long() -> Explanation:
    """300 tokens."""
    rng = np.random.default_rng(0)
    words = [(" " * bool(i) + f"word{i}", [f"Ġword{i}"]) for i in range(300)]
    return explanation(words, rng.standard_normal(300).tolist())


def zero() -> Explanation:
    """Every relevance is zero."""
    return explanation([("The", ["The"]), (" keys", ["Ġkeys"])], [0.0, 0.0])


def decomposed() -> Explanation:
    """With the parts that ALTI-Logit adds."""
    return keys(
        components={"mlp": np.array([0.5, -0.25, 0.125]), "attention_bias": np.array([0.0, 0.5, 0.0]), "direct": -0.75},
        by_layer=np.array([[0.1] * 5, [0.2] * 5, [-0.3] * 5]),
        method="alti-logit",
    )


ALL = {"keys": keys, "bert": bert, "hard": hard, "long": long, "zero": zero, "decomposed": decomposed}


# What is drawn.


def test_a_character_split_over_tokens_is_one_cell_with_the_sum():
    cells = view(hard()).cells
    assert cells[0].text == "🔑"
    assert cells[0].value == pytest.approx(sum(hard().relevance[:3]), abs=1e-12)
    assert [token[1] for token in cells[0].tokens] == ["ðŁ", "Ķ", "ij"]


def test_the_scale_is_the_largest_absolute_value_of_a_unit():
    assert view(keys()).scale == 1.934
    assert view(explanation([("a", ["x", "y"]), ("b", ["z"])], [-1.0, -2.0, 2.5])).scale == 3.0


def test_words_stand_apart_and_pieces_of_a_word_touch():
    assert [c.gap for c in view(keys()).cells] == [False, True, True, True, True]
    by_text = {c.text: c.gap for c in view(bert()).cells}
    assert by_text["y"] is False
    assert all(by_text[t] for t in ("the", "rust", "keys", "[MASK]", "."))
    pieces = explanation([("un", ["un"]), ("believ", ["believ"]), ("able", ["able"])], [1, 2, 3])
    assert not any(c.gap for c in view(pieces).cells)


def test_the_explained_position_is_marked_once():
    cells = view(bert()).cells
    assert [c.text for c in cells if c.explained] == ["[MASK]"]


@pytest.mark.parametrize(
    ("units", "position", "message"),
    [
        ([Unit(0, 1, "a")], 0, "do not cover 2 tokens"),
        ([Unit(0, 1, "a"), Unit(0, 2, "b")], 0, "do not cover 2 tokens"),
        ([Unit(1, 2, "b"), Unit(0, 1, "a")], 0, "do not cover 2 tokens"),
        ([], 0, "do not cover 2 tokens"),
        ([Unit(0, 1, "a"), Unit(1, 2, "b")], 2, "position 2 is outside the text"),
    ],
)
def test_tokens_that_would_be_lost_are_an_error(units, position, message):
    e = explanation([("a", ["a"]), ("b", ["b"])], [1, 2], position=position)
    object.__setattr__(e, "units", units)
    with pytest.raises(InputError, match=message):
        heatmap.to_html(e)


@pytest.mark.parametrize("draw", [heatmap.render, heatmap.to_html, heatmap.to_latex, heatmap.show])
def test_nothing_to_draw_is_an_error(draw):
    with pytest.raises(InputError, match="the list is empty"):
        draw([])
    with pytest.raises(InputError, match="cannot draw an object of the type str"):
        draw(["attnlrp"])


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        ("Ġare", " are"),
        ("▁are", " are"),
        ("##s", "s"),
        ("##é", "é"),
        ("are", "are"),
        ("ä¸Ń", "中"),
        ("Ċ", "\n"),
        ("é", "é"),  # no UTF-8 when read as a byte: a letter
        ("中", "中"),
        ("<0x0A>", "\n"),
        ("<s>", "<s>"),
        ("##", "##"),  # a heading in Markdown, not a piece of a word
    ],
)
def test_vocabulary_entries_become_text(raw, text):
    assert readable(raw) == text


def test_half_a_character_of_a_byte_level_vocabulary_is_shown_as_bytes():
    assert readable("Ġä¸", byte_level=True) == r" \xe4\xb8"
    assert readable("###", byte_level=True) == "###"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two words", "two words"),
        (" ", "␣"),
        ("a  b", "a␣␣b"),
        ("a ", "a␣"),
        ("\t\r", "⇥␍"),
        ("\x00", "<U+0000>"),
        ("a\u202eb", "a<U+202E>b"),
        ("a\xa0b", "a␣b"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("\u200d", "<U+200D>"),
        ("\ud83d", "<U+D83D>"),
        ("e\u0301", "e\u0301"),
    ],
)
def test_what_cannot_be_seen_is_made_visible(text, shown):
    assert visible(text) == shown


def test_a_space_at_the_end_can_be_seen_in_quotes():
    assert visible(" are", quoted=True) == " are"
    assert visible(" ", quoted=True) == "␣"


def test_colours_run_from_blue_over_white_to_red_and_ink_is_legible_on_all():
    assert (colour(-1), colour(0), colour(1)) == (BLUE, WHITE, RED)
    assert colour(0.5)[0] > colour(0.5)[2]
    assert colour(-0.5)[2] > colour(-0.5)[0]

    def luminance(rgb):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in rgb)]
        return np.dot(linear, [0.2126, 0.7152, 0.0722])

    for share in np.linspace(-1, 1, 401):
        light, dark = sorted((luminance(colour(share)), luminance(ink(colour(share)))), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


# HTML.


class Page(HTMLParser):
    """A page taken apart: text that is shown, text for screen readers, cells, and that every tag is closed."""

    VOID = ("meta", "br")

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.cells: list[dict] = []
        self.shown = self.read = self.map = ""
        self._open: list[tuple[str, set]] = []
        self.feed(source)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        assert len(found) == len(attrs), attrs
        classes = set((found.get("class") or "").split())
        self.tags.append((tag, found))
        if "cell" in classes:
            self.cells.append({**found, "text": "", "read": "", "classes": classes})
        if tag not in self.VOID:
            self._open.append((tag, classes))

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag

    def handle_data(self, data):
        names = [name for name, _ in self._open]
        classes = set().union(*(c for _, c in self._open)) if self._open else set()
        if "style" in names:
            return
        if "read" in classes:
            self.read += data
            self.cells[-1]["read"] += data
            return
        self.shown += data
        if "map" in classes:
            self.map += data
            if "cell" in classes:
                self.cells[-1]["text"] += data


@pytest.mark.parametrize("name", ALL)
def test_html_is_well_formed_and_asks_nothing_of_anyone(name):
    source = heatmap.to_html(ALL[name]())
    page = Page(source)
    assert not {tag for tag, _ in page.tags} & {"link", "img", "iframe"}
    assert ("script" in dict(page.tags)) == (name == "decomposed")  # with which one chooses layers and heads
    assert not {key for _, attrs in page.tags for key in attrs} & {"src", "href", "onmouseover", "onclick"}
    assert not re.search(r"https?:|url\(|@import", source)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", source)


def test_html_copies_as_the_text_it_explains():
    assert Page(heatmap.to_html(keys())).map == "The keys to the cabinet"
    assert Page(heatmap.to_html(bert())).map == "[CLS] the rusty keys [MASK] here . [SEP]"


def test_html_escapes_text_and_keeps_every_script():
    page = Page(heatmap.to_html(hard()))
    for text in ("<b>&amp;\"'x", r"\textbf{50%}_#$~^``--", "中文", "שלום", "مرح", "🔑", "👩\u200d🚀", "↵", "⇥", "␣␣"):
        assert text in [cell["text"] for cell in page.cells] or text in page.map
    assert page.map.count("🔑") == 1
    assert [cell["text"] for cell in page.cells][-1] == "∅"
    assert "<U+0000><U+202E>" in page.map


def test_html_shows_markers_only_in_tooltips():
    for e in (keys(), bert(), hard(), explanation([(" are", ["▁are"])], [1.0], target="▁is", contrast=None)):
        page = Page(heatmap.to_html(e))
        for marker in ("Ġ", "Ċ", "▁", "##", "ðŁ"):
            assert marker not in page.shown + page.read
    assert any("Ġkeys" in cell["title"] for cell in Page(heatmap.to_html(keys())).cells)


def test_html_cells_carry_colour_tooltip_and_a_value_to_read_aloud():
    cells = Page(heatmap.to_html(keys())).cells
    assert cells[1]["title"] == "Ġkeys   id 101   +1.934"
    assert f"background:#{RED_HEX}" in cells[1]["style"]
    assert "+1.934" in cells[1]["read"]
    half = hex_colour(colour(-0.967 / 1.934))
    assert f"background:#{half}" in cells[4]["style"]
    assert "explained position" in cells[4]["read"]
    assert [i for i, c in enumerate(cells) if "explained" in c["classes"]] == [4]


def test_html_tooltip_of_a_split_character_lists_each_token():
    lines = Page(heatmap.to_html(hard())).cells[0]["title"].split("\n")
    e = hard()
    assert lines[0].startswith("sum of 3 tokens")
    assert [line.split()[:3] for line in lines[1:]] == [["ðŁ", "id", "100"], ["Ķ", "id", "101"], ["ij", "id", "102"]]
    told = [float(line.split()[-1].replace("−", "-")) for line in lines]
    np.testing.assert_allclose(told, [e.relevance[:3].sum(), *e.relevance[:3]], atol=5e-4)


def test_html_header_and_bar_tell_the_numbers():
    shown = Page(heatmap.to_html(keys())).shown
    assert 'logit " are" − logit " is" = +1.215' in re.sub(r"\s+", " ", shown)
    for part in ("attnlrp", "sum +0.9647", "residual +0.25", "mini-gpt2", "position 4", "−1.934", "+1.934"):
        assert part in shown
    assert "/some/folder" not in shown
    single = Page(heatmap.to_html(keys(contrast=None, residual=None))).shown
    assert 'logit " are" = ' in single
    assert "residual" not in single


def test_html_tells_apart_explanations_that_differ_in_an_option():
    def gradient(norm):
        return keys(method="gradient", residual=None, provenance={"options": {"norm": norm, "at": ["input"]}})

    shown = Page(heatmap.to_html([gradient("l1"), gradient("l2")])).shown
    assert "norm=l1" in shown
    assert "norm=l2" in shown


def test_html_keeps_the_digits_of_a_number_together():
    """Anything between them, even unseen, would swap them in right-to-left text."""
    source = heatmap.html_fragment(
        explanation([("כולל", ["a"]), (" 4", ["b"]), ("2", ["c"]), (" גד", ["d"])], [1, 2, 3, 4])
    )
    assert re.search(r">4</span><span [^>]*>2</span><bdi class=\"read\"> \(\+2.000; \+3.000\) </bdi> ", source)


def test_html_follows_the_direction_of_the_text():
    def directions(e):
        return [attrs["dir"] for tag, attrs in Page(heatmap.html_fragment(e)).tags if attrs.get("class") == "map"]

    arabic = explanation([("[CLS]", ["[CLS]"]), (" مفاتيح", ["a"]), (" الخزانة", ["b"])], [1, 2, 3])
    assert directions(keys()) == ["ltr"]
    assert directions(arabic) == ["rtl"]
    first, last = Page(heatmap.to_html(arabic)).cells[1:]
    assert {"left", "right"} <= first["classes"]
    assert {"left", "right"} <= last["classes"]
    halves = explanation([("مفا", ["a"]), ("تيح", ["b"])], [1, 2])
    assert [c["classes"] & {"left", "right"} for c in Page(heatmap.to_html(halves)).cells] == [{"right"}, {"left"}]


def test_html_stacks_methods_each_with_its_own_scale():
    weak = keys(method="lrp")
    object.__setattr__(weak, "relevance", weak.relevance / 10)
    object.__setattr__(weak, "units", [*weak.units[:-1], weak.units[-1]._replace(text=" cabinets")])  # another text
    page = Page(heatmap.to_html([keys(), weak]))
    assert len(page.cells) == 10
    assert page.cells[1]["style"] == page.cells[6]["style"]
    assert page.shown.index("attnlrp") < page.shown.index("lrp", page.shown.index("attnlrp") + 7)
    assert "+0.1934" in page.shown


def test_html_of_nothing_but_zeros_is_white_and_says_so():
    page = Page(heatmap.to_html(zero()))
    assert all("background:#FFFFFF" in cell["style"] for cell in page.cells)
    assert "every relevance is 0" in page.shown


def test_html_shows_what_belongs_to_no_token_and_its_layers():
    shown = Page(heatmap.html_fragment(decomposed())).shown
    assert OUTSIDE in shown
    assert shown.strip().endswith("0+0.500+0.50001+1.000−0.250+0.5002−1.500+0.1250")  # layer, tokens, mlp, bias
    assert "Per layer" not in Page(heatmap.to_html(keys())).shown


def test_html_shows_layers_and_heads_that_are_not_parts_of_the_value():
    rows = np.array([[0.5] * 5, [-0.25] * 5])
    heads = np.array([[[0.5] * 5, [0.0] * 5], [[-0.25] * 5, [1.0] * 5]])
    shown = Page(
        heatmap.html_fragment(keys(by_attention=rows, by_mlp=2 * rows, by_layer=3 * rows, by_head=heads))
    ).shown
    layers, heads = shown[shown.index("Per layer") :].split("Per head")
    assert layers.strip() == "Per layerlayerattentionMLPall it adds0+2.500+5.000+7.5001−1.250−2.500−3.750"
    assert heads.strip() == "layer, head010+2.50001−1.250+5.000"
    assert "Per head" not in Page(heatmap.to_html(decomposed())).shown


def test_html_lists_every_token_with_its_number():
    shown = Page(heatmap.to_html(hard())).shown
    table = shown[shown.index("All ") :]
    assert f"All {len(hard().tokens)} numbers" in shown
    for i, value in zip(hard().token_ids, hard().relevance, strict=True):
        assert str(i) in table
        assert fixed(float(value), view(hard()).scale, "−") in table


def test_html_is_what_a_notebook_asks_for():
    assert keys()._repr_html_() == heatmap.html_fragment(keys())
    assert "<html" not in heatmap.html_fragment(keys())


def test_show_displays_html_where_a_notebook_kernel_runs(monkeypatch, capsys):
    displayed = []
    ipython, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell = types.SimpleNamespace(kernel=object())
    ipython.get_ipython = lambda: shell
    display.HTML, display.display = str, displayed.append
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    heatmap.show(keys())
    assert displayed == [heatmap.html_fragment(keys())]
    assert not capsys.readouterr().out
    shell.kernel = None  # IPython in a terminal
    keys().show()
    assert len(displayed) == 1
    assert "keys" in capsys.readouterr().out


# LaTeX.


def compiled(source: str, folder: Path, engine: str = "pdflatex") -> str:
    """The log of a LaTeX engine on ``source``."""
    if shutil.which(engine) is None:
        pytest.skip(f"{engine} is not installed")
    (folder / "map.tex").write_text(source, encoding="utf-8")
    command = [engine, "-interaction=nonstopmode", "-halt-on-error", "map.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False)
    log = (folder / "map.log").read_text(encoding="utf-8", errors="replace")
    assert done.returncode == 0, log[-3000:]
    assert (folder / "map.pdf").stat().st_size > 1000
    return log


def _runs(command: list[str], folder: Path) -> bool:
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("numbers", [None, True])
def test_latex_compiles_with_plain_pdflatex(tmp_path, numbers):
    log = compiled(heatmap.to_latex([make() for make in ALL.values()], look=Look(numbers=numbers)), tmp_path)
    assert "Missing character" not in log
    assert "Overfull" not in log


def test_latex_typesets_every_character_that_it_claims_to(tmp_path):
    letters = sorted(latex._TYPESET | set(latex._SPECIAL) | {chr(c) for c in range(0x21, 0x7F)})
    words = [("".join(letters[i : i + 20]), ["x"]) for i in range(0, len(letters), 20)]
    source = heatmap.to_latex(explanation(words, [1.0] * len(words)))
    assert r"\lrpxpoint{U" not in source.split(r"\begin{document}")[1]
    assert "Missing character" not in compiled(source, tmp_path)


def test_latex_wraps_one_unit_that_is_longer_than_a_line(tmp_path):
    e = explanation([("x" * 500, ["x"]), ("中" * 100, ["y"])], [1.0, -1.0])
    assert "Overfull" not in compiled(heatmap.to_latex(e), tmp_path)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        (r"\{}$&#%_^~", r"\textbackslash{}\{\}\$\&\#\%\_\textasciicircum{}\textasciitilde{}"),
        ("--> a, ?`", r"-\kern0pt{}-\kern0pt{}>\ a,\ ?\kern0pt{}\textasciigrave{}"),
        ("\"'`", r"\textquotedbl{}\textquotesingle{}\textasciigrave{}"),
        ("é", "é"),
        ("e\u0301", "é"),
        ("中", r"\lrpxpoint{U+4E2D}"),
        ("a b", r"a\ b"),
    ],
)
def test_latex_escapes(text, source):
    assert latex.tex(text) == source


def test_latex_says_where_it_printed_code_points():
    assert heatmap.to_latex(hard()).startswith("% Characters that pdflatex cannot typeset are printed as code points")
    assert heatmap.to_latex(keys()).startswith(r"\documentclass")
    assert r"\lrpxpoint{U+4E2D}\lrpxpoint{U+6587}" in heatmap.to_latex(hard())


def test_latex_uses_xcolor_and_basic_packages_only():
    packages = set(re.findall(r"\\usepackage(?:\[\w+\])?\{(\w+)\}", heatmap.to_latex(hard())))
    assert packages == {"fontenc", "inputenc", "textcomp", "lmodern", "xcolor"}
    assert r"\IfFileExists{lmodern.sty}{\usepackage{lmodern}}{}" in heatmap.to_latex(hard())


def test_latex_colours_cells_and_frames_the_explained_one():
    source = heatmap.to_latex(keys())
    assert rf"\lrpxcell{{{RED_HEX}}}{{FFFFFF}}{{keys}}{{+1.934}}" in source
    assert re.findall(r"\\lrpxexplained\{\w+\}\{\w+\}\{(\w+)\}", source) == ["cabinet"]
    assert BLUE_HEX in source
    assert r"\lrpxcell{FFFFFF}{000000}{The}{}" in heatmap.to_latex(zero(), look=Look(numbers=False))


def test_latex_breaks_no_line_inside_a_quoted_token_or_before_a_dot():
    e = explanation([("a", ["a"])], [1.0], target="Ġare", notes=("it's ' in a', not \" is\" · 'x" + "y" * 70 + "'.",))
    source = heatmap.to_latex(e)
    assert r"logit\ \mbox{\textquotedbl{}\ are\textquotedbl{}}" in source
    assert r"it\textquotesingle{}s\ \mbox{\textquotesingle{}\ in\ a\textquotesingle{}},\ not" in source
    assert r"~\textperiodcentered{}\ \textquotesingle{}xyyy" in source  # too long for a box
    assert r"\ \textperiodcentered" not in source


def test_latex_sets_the_legend_below_the_colour_bar():
    bar, legend = heatmap.to_latex(keys()).split(r"{\footnotesize framed:\ ")
    assert bar.rstrip().endswith(r"\par\nobreak")
    assert legend.startswith(r"the\ logits\ at\ position\ 4\ are\ explained\par}")


# HTML: directions and frames.


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ('likeliest: " are" .41, "\'s" .05, """ .01', ['" are"', '"\'s"', '"""']),
        ("the target is 2 tokens: ' in', ' bed'. It's so.", ["' in'", "' bed'"]),
        ("no token", []),
    ],
)
def test_quoted_tokens_of_a_line(line, quoted):
    parts = around_quotes(line)
    assert "".join(parts) == line
    assert parts[1::2] == quoted


@pytest.mark.parametrize(
    ("text", "quoted"), [(" are", '" are"'), ('"', "'\"'"), ('",', "'\",'"), ("'s", '"\'s"'), (" \"'", "` \"'`")]
)
def test_a_token_that_has_quotes_stands_in_others(text, quoted):
    assert in_quotes(text) == quoted
    top = (Prediction(Token(0, text, text), 0.4), Prediction(Token(1, " that"), 0.1))
    e = explanation([("a", ["a"])], [1.0], top=top, target=text, contrast=None)
    assert f"logit {quoted} = " in bare(printed(e))
    assert f"likeliest: {quoted} .40, " in bare(printed(e))
    line = f"likeliest: {quoted} .40"
    assert around_quotes(line)[1::2] == [quoted]


@pytest.mark.parametrize("width", [30, 40, 80])
def test_the_colour_bar_fits_one_line(width):
    e = explanation([("a", ["a"]), ("b", ["b"])], [-2.861, 1.0])
    lines = bare(printed(e, width=width)).splitlines()
    (bar,) = [line for line in lines if "−2.861 " in line and "+2.861" in line]
    assert len(bar) <= width


def test_html_gives_quoted_tokens_their_own_direction():
    """Or the number after a Hebrew token would be drawn before it, beside another token."""
    top = tuple(Prediction(Token(i, text, text), p) for i, (text, p) in enumerate([(" של", 0.4), ("של", 0.1)]))
    e = explanation([("שלום", ["a"])], [1.0], top=top, notes=('the target is "של".',))
    page = heatmap.to_html(e)
    assert "likeliest: <bdi>&quot; של&quot;</bdi> .40, <bdi>&quot;של&quot;</bdi> .10</p>" in page
    assert "note: the target is <bdi>&quot;של&quot;</bdi>.</p>" in page


def test_bytes_of_a_character_that_is_not_complete_stand_right_of_its_text():
    top = (Prediction(Token(1, "y", r"י\xd7"), 0.4),)
    page = heatmap.to_html(explanation([("שלום", ["a"]), (r" ב\xd7", ["b"])], [1.0, 1.0], top=top))
    assert r'likeliest: <bdi dir="ltr">&quot;י\xd7&quot;</bdi> .40' in page
    assert r'<bdi dir="ltr">ב\xd7</bdi></span>' in page
    assert mostly_rtl(r"י\xd7\xd8")
    assert mostly_rtl(r"\xd7", True)


def test_words_of_a_header_stand_in_a_line_from_left_to_right():
    """A picture draws each word alone, and a Hebrew letter would take the full stop behind it to its left."""
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from lrpx.heatmap.canvas import Canvas
    from lrpx.heatmap.fonts import Typeface

    line = r'one of א to ב. "של" "י\xd7"'
    canvas = Canvas(Typeface(line))
    canvas.paragraph([(line, False)], 9.0)
    words = [mark[1][2] for mark in canvas._marks]
    assert words == ["one", "of", "\u200eא", "to", "\u200eב.", '"של"', '\u200e"י\\xd7"']


def test_html_keeps_frames_off_the_letters_beside_them():
    """Cells inside a word touch; a framed one gets room, but for scripts whose letters join."""
    latin = heatmap.to_html(explanation([("Paris", ["a"]), (".", ["b"])], [1.0, 1.0]))
    arabic = heatmap.to_html(explanation([("أح", ["a"]), ("ب", ["b"])], [1.0, 1.0]))
    assert ".lrpx .map .explained:not(.joins){margin:0 3px}" in latin
    assert 'class="cell right explained"' in latin
    assert re.search(r'class="cell [a-z ]*explained joins"', arabic)


# PNG.


def pixels(e, path: Path, **options) -> np.ndarray:
    """The picture as ``[height, width, 3]`` bytes."""
    image = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    heatmap.to_png(e, path, **options)
    return (image.imread(path)[..., :3] * 255).round().astype(int)


def count(picture: np.ndarray, rgb: tuple[int, int, int]) -> int:
    """Pixels of one colour, within rounding."""
    return int((abs(picture - np.array(rgb)).max(axis=2) <= 1).sum())


def test_png_has_the_colours_of_its_cells(tmp_path):
    picture = pixels(keys(), tmp_path / "map.png")
    assert count(picture, colour(-0.967 / 1.934)) > 1000  # the cell of "cabinet"
    assert count(picture, RED) > 1000  # the cell of "keys"
    stronger_than_any = pixels(zero(), tmp_path / "zero.png")
    assert count(stronger_than_any, RED) == count(stronger_than_any, BLUE) == 0


@pytest.mark.slow
def test_png_puts_every_cell_inside_the_picture(tmp_path):
    from lrpx.heatmap import picture as layout
    from lrpx.heatmap.canvas import WIDTH
    from lrpx.heatmap.fonts import Typeface

    shown = view(long())
    lines = list(layout._lines(Typeface(layout._characters([shown])), shown, False))
    assert len(lines) > 5
    assert max(sum(box.width for box in line) for line in lines) <= layout.ROOM
    assert [b.cell.text for line in lines for b in line if b.cell] == [cell.text for cell in shown.cells]
    picture = pixels(long(), tmp_path / "map.png")
    assert picture.shape[1] <= WIDTH
    assert (picture[:, [0, -1]] == 255).all()
    assert (picture[[0, -1]] == 255).all()


@pytest.mark.parametrize("header", [True, False])
def test_png_has_a_small_even_margin(tmp_path, header):
    matplotlib = pytest.importorskip("matplotlib.image", reason="matplotlib is not installed")
    several = [keys(), keys(method="lrp")]
    inside = keys(by_head=np.ones((2, 2, 5)))
    for n, (shown, of) in enumerate(((keys(), "tokens"), (several, "tokens"), (inside, "heads"))):
        heatmap.to_png(shown, tmp_path / f"{n}.png", Look(header=header), of)
        ink = (matplotlib.imread(tmp_path / f"{n}.png")[..., :3] < 0.99).any(-1)
        rows, columns = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
        margins = [rows[0], columns[0], ink.shape[0] - 1 - rows[-1], ink.shape[1] - 1 - columns[-1]]
        assert all(8 <= margin <= 26 for margin in margins), margins


def test_png_cuts_a_unit_that_is_longer_than_a_line():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from lrpx.heatmap import picture
    from lrpx.heatmap.fonts import Typeface

    shown = view(explanation([("x" * 500, ["x"])], [1.0]))
    lines = list(picture._lines(Typeface("x"), shown, True))
    assert "".join(box.text for line in lines for box in line) == "x" * 500
    assert len(lines) > 1
    assert [box.number for line in lines for box in line].count("+1.000") == 1


@pytest.mark.parametrize("name", ["hard", "zero", "bert", "decomposed"])
def test_png_gives_no_warning_and_leaves_settings_alone(monkeypatch, tmp_path, name):
    matplotlib = pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)  # which Captum imports
    with matplotlib.rc_context({"figure.autolayout": True, "text.usetex": True, "font.size": 40}):
        before = matplotlib.rcParams.copy()  # a copy does not look for a backend
        heatmap.to_png(ALL[name](), tmp_path / "map.png")  # warnings are errors here
        assert matplotlib.rcParams.copy() == before
    assert "matplotlib.pyplot" not in sys.modules


def test_png_draws_what_no_font_has_as_a_code_point_and_says_so(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from lrpx.heatmap.fonts import Typeface

    nowhere = "\U000e0fff\ufe0f"  # an unassigned code point, and a selector that is nothing by itself
    with pytest.warns(UserWarning, match=r"no installed font has U\+E0FFF, .* apt install fonts-noto"):
        face = Typeface(f"a{nowhere}")
    assert face.text("a" + nowhere) in ("aU+E0FFF", "aU+E0FFF\ufe0f")
    with pytest.warns(LrpxWarning, match="no installed font has") as said:
        heatmap.to_png(explanation([(nowhere, ["x"])], [1.0]), tmp_path / "map.png")
    assert said[0].filename == __file__  # the line that asked for the picture


def test_png_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=re.escape("pip install matplotlib pandas networkx")):
        keys().to_png(tmp_path / "map.png")


def test_png_of_an_endless_text_names_another_format(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from lrpx.heatmap import picture

    monkeypatch.setitem(picture.HIGHEST, "png", 500)
    with pytest.raises(InputError, match="Use HTML"):
        heatmap.to_png(long(), tmp_path / "map.png")


# Right-to-left text.


def drawn(text: str) -> np.ndarray:
    """``text`` as the PNG shows it: the picture's bytes, cut to the ink."""
    agg = pytest.importorskip("matplotlib.backends.backend_agg", reason="matplotlib is not installed")
    if not hasattr(sys.modules["matplotlib.ft2font"], "__libraqm_version__"):
        pytest.skip("matplotlib shapes right-to-left text from 3.11 on")
    from matplotlib.figure import Figure

    from lrpx.heatmap.fonts import Typeface

    figure = Figure(figsize=(4, 1), dpi=100)
    canvas = agg.FigureCanvasAgg(figure)
    figure.text(0.5, 0.5, text, fontproperties=Typeface(text).font(20))
    canvas.draw()
    ink = np.asarray(canvas.buffer_rgba())[..., 0] < 128
    assert ink.any()
    return ink[np.ix_(ink.any(1), ink.any(0))]


def test_arabic_letters_join_also_across_tokens():
    word, forms = "مرحبا", "\ufee3\ufeae\ufea3\ufe92\ufe8e"  # initial, final, initial, medial, final
    np.testing.assert_array_equal(drawn(word), drawn(forms))
    split = [rtl.with_joiners(c, word[:i], word[i + 1 :]) for i, c in enumerate(word)]
    for piece, form, letter in zip(split, forms, word, strict=True):
        np.testing.assert_array_equal(drawn(piece), drawn(form))
        assert drawn(piece).shape != drawn(letter).shape  # a check that can fail: letters by themselves look different
    np.testing.assert_array_equal(drawn("لا"), drawn("\ufefb"))  # a ligature
    assert rtl.with_joiners("keys", "a", "b") == "keys"


@pytest.mark.parametrize(
    ("logical", "paper"),
    [
        ("שלום", "םולש"),
        ("keys", "keys"),
        ("אב 42 גד", "דג 42 בא"),
        ("(אב)", "(בא)"),
        ("אבג ok 42", "ok 42 גבא"),
        ("words אב גד.", "words דג בא."),
    ],
)
def test_letters_stand_on_paper_as_they_are_read(logical, paper):
    as_it_stands = f"\N{LEFT-TO-RIGHT OVERRIDE}{paper}"
    np.testing.assert_array_equal(drawn(logical), drawn(as_it_stands))


def test_png_with_an_older_matplotlib_says_that_letters_are_out_of_order(monkeypatch):
    ft2font = pytest.importorskip("matplotlib.ft2font", reason="matplotlib is not installed")
    from lrpx.heatmap.fonts import Typeface

    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    Typeface("keys")  # warnings are errors
    with pytest.warns(UserWarning, match="needs matplotlib 3.11"):
        Typeface("שלום")


@pytest.mark.parametrize(
    ("items", "right_to_left", "paper"),
    [
        (["a", " ", "א", " ", "ב", " ", "c"], False, "a ב א c"),
        (["א", " ", "(", "a", " ", "4", "2", ")"], True, ")a 42( א"),
        (["א", " ", "3", ".", "5", " ", "ב"], True, "ב 3.5 א"),
        (["a", "1", ".", "b"], False, "a1.b"),
    ],
)
def test_units_of_a_line_stand_in_reading_order(items, right_to_left, paper):
    order = rtl.visual_order(rtl.levels([rtl.direction(i) for i in items], right_to_left))
    assert "".join(items[i] for i in order) == paper


# Terminal.


def printed(
    e,
    *,
    width: int = 80,
    colours: str | None = "truecolor",
    encoding: str = "utf-8",
    columns: int | None = None,
    numbers: bool | None = None,
) -> str:
    """What ``render`` prints on a console with these abilities."""
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="\n") as file:
        terminal = Console(
            file=file,
            width=width,
            color_system=colours,
            force_terminal=colours is not None,
            legacy_windows=False,
            _environ={},
        )
        terminal.print(heatmap.render(e, columns, look=Look(numbers=numbers)))
        file.flush()
        return raw.getvalue().decode(encoding)


def bare(output: str) -> str:
    """Without the codes for colours."""
    return re.sub(r"\x1b\[[\d;]*m", "", output)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("colours", ["truecolor", "256", "standard", None])
def test_terminal_prints_all_text_within_the_width(name, colours):
    from rich.cells import cell_len

    everything = True if colours is None else None  # of a long text a table has the strongest tokens
    output = bare(printed(ALL[name](), width=50, colours=colours, numbers=everything))
    assert max(cell_len(line) for line in output.splitlines()) <= 50
    letters = re.sub(r"\s", "", output)
    for cell in view(ALL[name]()).cells:
        for piece in cell.pieces:
            assert re.sub(r"\s", "", piece) in letters


def test_terminal_flow_keeps_the_order_of_the_text():
    text = "".join(unit.text for unit in long().units)
    assert text in " ".join(bare(printed(long(), width=60)).split())


def test_terminal_colours_the_strongest_token_fully():
    output = printed(keys())
    assert re.search(r"\x1b\[[\d;]*48;2;{};{};{}m *keys".format(*RED), output)
    assert re.search(r"\x1b\[1;4;[\d;]*m *cabinet", output)  # bold and underlined: the explained position
    assert re.search(r"\+0\.031 +\+1\.934", bare(output))


def test_terminal_with_sixteen_colours_keeps_red_and_blue_apart():
    output = printed(keys(), colours="standard")
    assert re.search(r"\x1b\[97;41mkeys", output)
    assert re.search(r"\x1b\[1;4;97;44mcabinet", output)
    assert "48;2" not in output


def test_terminal_shows_numbers_below_short_texts_or_when_asked():
    assert "−0.120" in printed(keys())
    assert "−0.120" not in printed(keys(), numbers=False)
    assert bare(printed(long(), numbers=True)).count("+") > 100
    assert "The keys to the cabinet" in bare(printed(keys(), numbers=False))


def test_terminal_takes_a_width():
    wide, narrow = (bare(printed(long(), **options)) for options in ({}, {"width": 80, "columns": 30}))
    assert max(map(len, narrow.splitlines())) <= 30 < max(map(len, wide.splitlines()))


def test_a_pipe_gets_a_table_with_every_number(capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    heatmap.show(keys())  # captured output is no terminal
    lines = capsys.readouterr().out.splitlines()
    assert not any("\x1b" in line for line in lines)
    assert lines[0] == 'attnlrp: logit " are" - logit " is" = +1.215'
    assert lines[1].startswith("sum +0.9647, residual +0.25, mini-gpt2")
    start = lines.index("position   id  relevance  text") + 1
    rows = [line.split(maxsplit=3) for line in lines[start : start + 5]]
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4*"]
    assert [int(row[1]) for row in rows] == keys().token_ids
    np.testing.assert_allclose([float(row[2]) for row in rows], keys().relevance, atol=5e-4)
    assert [row[3] for row in rows] == ['"The"', '" keys"', '" to"', '" the"', '" cabinet"']


@pytest.mark.parametrize("group", ["tokens", "words"])
def test_a_row_of_the_table_is_one_line_however_many_tokens_it_has(group):
    family = " \N{MAN}\u200d\N{WOMAN}\u200d\N{GIRL}"
    e = explanation([("I", ["I"]), (family, [f"b{i}" for i in range(18)]), (" so", ["Ġso"])], [0.1] * 20)
    file = io.StringIO()
    Console(file=file, width=60, no_color=True).print(heatmap.render(e, look=Look(group=group)))
    rows = file.getvalue().splitlines()[-3:]
    assert [row.split()[0] for row in rows] == ["0", "1-18", "19*"]
    assert "101,102,... 18 ids" in rows[1]


def test_no_color_is_respected():
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, _environ={"NO_COLOR": "1", "TERM": "xterm-256color"}).print(
        heatmap.render(keys())
    )
    assert "\x1b" not in file.getvalue()
    assert "+1.934" in file.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
@pytest.mark.parametrize("colours", ["truecolor", None])
def test_an_output_that_cannot_encode_a_character_gets_its_escape(encoding, colours):
    output = bare(printed(hard(), encoding=encoding, colours=colours))
    assert r"\u4e2d" in output
    assert r"\u21b5" in output
    assert "keys" in output


def test_terminal_stacks_methods_and_lists_components():
    both = bare(printed([keys(), bert()], width=120))  # of two texts, so each has a map
    assert both.index("attnlrp") < both.index("[MASK]")
    assert both.count("mini-gpt2") == 2
    output = bare(printed(decomposed(), width=120))
    assert OUTSIDE in " ".join(output.split())
    assert "MLPs +0.375 (3 layers), biases of attention" in printed(decomposed(), width=200, colours=None)


def test_the_header_leaves_out_biases_that_the_model_does_not_have():
    e = decomposed()
    e.components.update(final_norm_bias=0.0, mlp_norm_bias=np.zeros(3), baseline=0.0, mlp=np.array([1.0, -1.0]))
    assert view(e).outside() == [
        "MLPs 0 (2 layers)",  # their sum, not a part that does not exist
        "biases of attention +0.5 (3 layers)",
        "embedding at the explained position -0.75",
        "baseline 0",
    ]
    assert e.components["final_norm_bias"] == 0


@pytest.mark.parametrize("colours", ["truecolor", "standard"])
def test_terminal_of_nothing_but_zeros_says_so(colours):
    assert "every relevance is 0" in printed(zero(), colours=colours)


# Files and imports.


def test_a_file_is_not_returned_too(tmp_path):
    """What a call returns is printed under its cell of a notebook."""
    assert keys().to_html(tmp_path / "map.html") is None
    assert (tmp_path / "map.html").read_text(encoding="utf-8") == keys().to_html() == heatmap.to_html(keys())
    assert hard().to_latex(tmp_path / "map.tex") is None
    assert (tmp_path / "map.tex").read_text(encoding="utf-8") == hard().to_latex() == heatmap.to_latex(hard())


def test_heatmaps_need_no_torch_and_load_heavy_things_on_use():
    """Read from the source: other parts of the package may have loaded anything already."""
    folder = Path(lrpx.heatmap.__file__).parent
    outside: set[str] = set()
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                outside |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                outside.add(node.module.split(".")[0])
            elif isinstance(node, ast.ImportFrom) and node.level == 2:
                outside.add(f"lrpx.{node.module}")
    outside -= set(sys.stdlib_module_names)
    libraries = {"numpy", "regex", "rich", "matplotlib", "PIL", "fontTools", "IPython", "typing_extensions"}
    assert outside == {*libraries, "lrpx.errors", "lrpx.files", "lrpx.notebook"}


def test_other_rules_than_those_of_the_method_are_named():
    from lrpx.propagation.rulesets import LRP

    model = tiny.build("causal:llama")
    explain = partial(lrpx.explain, model, None, [3, 4, 5], target=6, method="attnlrp")
    assert "rules" not in explain().to_html()
    assert "rules=lrp" in explain(rules="lrp").to_html()
    assert "rules of your own" in explain(rules={**LRP, "linear": lrpx.rules.gamma(0.25)}).to_html()


# LaTeX for a paper, and for every script.


@pytest.mark.parametrize("engine", ["pdflatex", "lualatex"])
def test_a_fragment_says_what_its_document_needs(engine):
    source = heatmap.to_latex([keys(), hard()], fragment=True, engine=engine)
    document = heatmap.to_latex([keys(), hard()], engine=engine)
    comment = source[: source.index("\n{")]
    needed = re.findall(r"%   (\\usepackage.*)", comment)
    assert needed == [line for line in document.splitlines() if line.startswith(r"\usepackage")]
    assert all(line.startswith("%") for line in comment.splitlines())
    assert f"for {engine}" in comment
    assert r"\documentclass" not in source
    assert r"\begin{document}" not in source
    assert document.split(r"\begin{document}")[1].split(r"\end{document}")[0].strip() in source.replace(
        "\n\n{\\sff", "\n{\\sff"
    )


def test_two_fragments_compile_in_one_document(tmp_path):
    (tmp_path / "frag.tex").write_text(heatmap.to_latex(keys(), fragment=True), encoding="utf-8")
    packages = re.findall(r"%   (\\usepackage.*)", (tmp_path / "frag.tex").read_text(encoding="utf-8"))
    body = r"\begin{figure}\input{frag}\end{figure}" * 2
    compiled("\\documentclass{article}" + "".join(packages) + f"\\begin{{document}}{body}\\end{{document}}", tmp_path)


def test_an_unknown_engine_is_refused():
    with pytest.raises(InputError, match="unknown engine 'xetex'"):
        keys().to_latex(engine="xetex")


def test_lualatex_sets_every_script_in_a_font_of_its_own():
    source = hard().to_latex(engine="lualatex")
    assert r"\lrpxpoint" not in source
    assert r"{\lrpxCjk 中文}" in source
    assert r"\lrpxrtl{{\lrpxHebrew שלום}}" in source
    assert r"{\lrpxEmoji 👩‍🚀}" in source
    assert (
        "\\IfFontExistsTF{Noto Sans Hebrew}{\\newfontfamily\\lrpxHebrew{Noto Sans Hebrew}[Renderer=HarfBuzz,Script=Hebrew]}"
        in source
    )
    assert r"\PackageWarning{lrpx}{no font for Cjk; install Noto Sans CJK SC}" in source
    russian = explanation([("да", ["a"]), ("нет", ["b"])], [1.0, -1.0]).to_latex(engine="lualatex")
    assert r"\PackageWarning{lrpx}{no font for Cyrillic; install Noto Sans}" in russian  # which has these letters
    hindi = explanation([("हि", ["a"]), ("न्दी", ["b"])], [1.0, -1.0]).to_latex(engine="lualatex")
    assert r"{\lrpxDevanagari न्दी}" in hindi
    japanese = explanation([("鍵", ["a"]), ("です", ["b"])], [1.0, -1.0]).to_latex(engine="lualatex")
    assert r"{\lrpxHiragana 鍵}" in japanese  # ideographs of a text with kana look Japanese


def test_lualatex_compiles(tmp_path):
    least = r"\documentclass{article}\usepackage{fontspec}\begin{document}a\end{document}"
    if shutil.which("lualatex") is None or not _runs(["lualatex", "-halt-on-error", least], tmp_path):
        pytest.skip("no lualatex that has its own fonts is installed")
    log = compiled(heatmap.to_latex([hard(), bert(), zero()], engine="lualatex"), tmp_path, "lualatex")
    assert "Overfull" not in log


def test_lualatex_runs_right_to_left_text_from_right_to_left():
    units = [("שלום", ["a"]), (" (", ["b"]), ("ok", ["c"]), (" no", ["d"]), (")", ["e"]), (" עולם", ["f"])]
    source = explanation(units, [1.0] * 6).to_latex(engine="lualatex", numbers=False)
    start = source.index(r"\pardir TRT\textdir TRT")
    cells = re.findall(r"\\textdir TLT|^\}%|\{[^{}]*\}\{\}%|\\lrpxHebrew \w+", source[start:], flags=re.MULTILINE)
    found = [cell.removeprefix("{").removesuffix("}{}%") for cell in cells]
    assert found == [r"\lrpxHebrew שלום", ")", r"\textdir TLT", "ok", "no", "}%", "(", r"\lrpxHebrew עולם"]


# PDF and SVG.


@pytest.mark.parametrize(("kind", "start"), [("pdf", b"%PDF"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_every_kind_of_picture_is_what_its_name_says_and_comes_out_the_same(tmp_path, kind, start):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    for name in ("a", "b"):
        getattr(keys(), f"to_{kind}")(tmp_path / f"{name}.{kind}")
    a, b = ((tmp_path / f"{name}.{kind}").read_bytes() for name in ("a", "b"))
    assert a.startswith(start)
    if kind != "svg":  # matplotlib gives the shapes of an SVG random names
        assert a == b


# Emoji and fonts.


class Coloured:
    """A colour font that has the key alone, as a red square."""

    def __init__(self, files):
        self.square = np.full((10, 10, 4), (200, 10, 20, 255), dtype=np.uint8)

    def __contains__(self, character):
        return character == "🔑"

    def image(self, character):
        return self.square


def test_emoji_are_drawn_in_colour_where_a_font_has_them(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    e = explanation([("the", ["a"]), (" 🔑s", ["b"])], [1.0, 0.0])
    assert count(pixels(zero(), tmp_path / "zero.png"), (200, 10, 20)) == 0
    monkeypatch.setattr("lrpx.heatmap.fonts.EmojiFont", Coloured)
    assert count(pixels(e, tmp_path / "map.png"), (200, 10, 20)) > 500
    heatmap.to_pdf(e, tmp_path / "map.pdf")


def test_an_installed_colour_font_has_pictures():
    manager = pytest.importorskip("matplotlib.font_manager", reason="matplotlib is not installed")
    from lrpx.heatmap.emoji import EmojiFont

    font = EmojiFont(manager.findSystemFonts())
    if font._font is None:
        pytest.skip("no colour font is installed")
    assert "🔑" in font
    assert "a" not in EmojiFont([])
    picture = font.image("🔑")
    assert picture.shape[2] == 4
    assert len(np.unique(picture[..., :3].reshape(-1, 3), axis=0)) > 10


@pytest.mark.parametrize(
    ("character", "expected"),
    [("🔑", True), ("👩\u200d🚀", True), ("🇩🇪", True), ("❤\ufe0f", True), ("❤", False), ("1", False)],
)
def test_what_counts_as_emoji(character, expected):
    from lrpx.heatmap.emoji import is_emoji

    assert is_emoji(character) is expected


def test_a_font_installed_after_matplotlib_listed_them_is_found(monkeypatch):
    manager = pytest.importorskip("matplotlib.font_manager", reason="matplotlib is not installed")
    from lrpx.heatmap.fonts import Typeface

    listed = manager.fontManager.ttflist
    have = next((f for f in listed if "CJK" in f.name or "Devanagari" in f.name), None)
    if have is None:
        pytest.skip("no font beside DejaVu is installed")
    letter = "中" if "CJK" in have.name else "क"
    only = [f for f in listed if f.name.startswith("DejaVu")]
    monkeypatch.setattr(manager.fontManager, "ttflist", only)
    monkeypatch.setattr(manager, "findSystemFonts", lambda: [have.fname])
    assert Typeface(letter).text(letter) == letter
