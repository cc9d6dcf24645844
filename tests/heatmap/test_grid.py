"""Several explanations of one text as a grid: every number is in its row and column, in every format."""

from __future__ import annotations

import io
import itertools
import re
import shutil
import subprocess
from html.parser import HTMLParser

import browser
import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import lrpx
from lrpx import Explanation, Explanations, heatmap
from lrpx.errors import InputError
from lrpx.heatmap import Look, grid_picture
from lrpx.heatmap.alignment import aligned_cells, common_units, text_of
from lrpx.heatmap.colours import colour, hex_colour
from lrpx.heatmap.grid import Grid, grid, parts
from lrpx.heatmap.numbers import MINUS, short
from lrpx.heatmap.view import view
from lrpx.results.tokens import Segment, Token, Unit

WORDS = ["The", " keys", " to", " the", " cabinet"]
NASTY = ['<script>alert("x")</script>', ' "quoted"', " & </section>", " a\nb", " '--"]


def made(texts=WORDS, method="lrp", *, seed=0, special=(), units=None, **fields):
    """An explanation of tokens with these texts; ``units`` joins some of them, as their lengths."""
    numbers = np.random.default_rng(seed).normal(size=len(texts))
    lengths = units or [1] * len(texts)
    ends = np.cumsum(lengths).tolist()
    spans = zip([0, *ends], ends, strict=False)
    known = {"value": float(numbers.sum()) + 0.5, "residual": 0.5, "contrast": Token(8, "is", " is")}
    return Explanation(
        tokens=list(texts),
        token_ids=list(range(len(texts))),
        units=[Unit(start, end, "".join(texts[start:end])) for start, end in spans],
        relevance=numbers,
        method=method,
        special=special,
        **{"target": Token(7, "are", " are"), "position": len(texts) - 1, "provenance": {"model": "tiny"}}
        | known
        | fields,
    )


def several(texts=WORDS, methods=("lrp", "attnlrp", "alti-logit"), **fields):
    return Explanations(made(texts, method, seed=i, **fields) for i, method in enumerate(methods))


def wordpiece(seed=5, **fields):
    """The same text in other tokens, between special ones, and with one token over two words."""
    texts = ["[CLS]", " The", " ke", "ys", " to", " the cab", "inet", " [SEP]"]
    return made(texts, "attnlrp", seed=seed, special=(0, 7), **fields)


def printed(es, *, width=100, colours="truecolor", encoding="utf-8", look=None):
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, newline="\n") as file:
        console = Console(
            file=file, width=width, color_system=colours, force_terminal=colours is not None, no_color=colours is None
        )
        console.print(heatmap.render(es, look=look or Look()))
        file.flush()
        return raw.getvalue().decode(encoding)


def bare(text):
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Flow(HTMLParser):
    """The columns of the grids of a page: their texts, and the strips below as (style, number, classes)."""

    def __init__(self, page):
        super().__init__()
        self.columns, self.tags, self.open = [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        if tag == "span" and (attrs.get("class") or "").split(" ")[0] == "c":
            self.columns.append({"class": attrs["class"], "text": "", "strips": [], "title": attrs.get("title")})
        if tag == "i" and self.columns and "b" not in self.open:
            self.columns[-1]["strips"].append([attrs.get("style", ""), "", attrs.get("class", "")])
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "b" in self.open and self.columns and "details" not in self.open and "p" not in self.open:
            self.columns[-1]["text"] += data
        elif self.open and self.open[-1] == "i" and self.columns:
            self.columns[-1]["strips"][-1][1] += data


def test_explanations_of_one_text_are_one_grid():
    texts, other = several(), several(["Another", " text"])
    drawn = parts([*texts, *other, made()], Look())
    assert [len(part.rows) if isinstance(part, Grid) else 1 for part in drawn] == [3, 3, 1]
    assert [row.label for row in drawn[0].rows] == ["lrp", "attnlrp", "alti-logit"]
    for row, e in zip(drawn[0].rows, texts, strict=True):
        assert [cell.value for cell in row.cells] == e.relevance.tolist()
        assert row.view.scale == pytest.approx(view(e).scale)  # its own


def test_rows_are_called_by_what_sets_them_apart():
    are, were = made(), made(target=Token(9, "were", " were"))
    assert [r.label for r in grid([are, were], Look()).rows] == [
        f'logit "{text}" {MINUS} logit " is"' for text in (" are", " were")
    ]
    here, there = made(position=4), made(position=2)
    assert [r.label for r in grid([here, there], Look()).rows] == ["position 4", "position 2"]
    ours, theirs = made(), made(provenance={"model": "other"})
    assert [r.label for r in grid([ours, theirs], Look()).rows] == ["tiny", "other"]
    assert [r.label for r in grid([ours, made()], Look()).rows] == ["lrp (1)", "lrp (2)"]
    mixed = grid([made(), made(method="alti", measures="mixture", residual=None)], Look())
    assert [r.label for r in mixed.rows] == ["lrp", "alti"]
    assert mixed.explains().startswith('logit " are"')  # what those explain that are about a logit


@pytest.mark.parametrize("methods", [("lrp", "lrp"), ("lrp", "attnlrp")])
def test_two_models_are_asked_one_question(methods):
    """Their logits differ; the question is said once, and each row says its model and its logit."""
    first, second = (
        made(method=method, seed=n, provenance={"model": name})
        for n, (method, name) in enumerate(zip(methods, ("one", "other"), strict=True))
    )
    es = lrpx.compare(first, second)
    question = f'logit " are" {MINUS} logit " is"'
    drawn = grid(list(es), Look())
    assert drawn.explains(MINUS) == question
    assert dict(drawn.ends(MINUS))["value"] == ["+0.7033", "+1.600"]  # of as many digits as the sum
    pages = [bare(printed(es)), es.to_html(), es.to_latex(fragment=True)]
    pages[1] = re.sub("<.*?>", "", pages[1].split("<section")[1]).replace("&quot;", '"')
    pages[2] = re.sub(r"\\textquotedbl\{\}|\\mbox|[{}]|\\(?= )", "", pages[2].replace("$-$", MINUS))
    asked = [question, question, question.replace('"', "")]
    assert [page.count(text) for page, text in zip(pages, asked, strict=True)] == [1, 1, 1]
    labels = ["one", "other"] if len(set(methods)) == 1 else list(methods)
    assert [row.label for row in drawn.rows] == labels
    same = grid([made(), made(method="attnlrp")], Look())
    assert same.explains(MINUS) == f"{question} = {short(made().value, MINUS)}"


def test_what_holds_for_all_is_said_once():
    es = several(notes=("mind the gap",), top=())
    lines = grid(list(es), Look()).below()
    assert [line for line in lines if "mind the gap" in line] == ["note: mind the gap"]
    one = grid([made(notes=("only me",)), made(method="attnlrp")], Look()).below()
    assert "lrp: note: only me" in one
    hidden = grid(list(several(special=(0,))), Look(hide="special")).below()
    assert len([line for line in hidden if "hidden:" in line]) == 3  # each holds another number


def test_the_end_of_a_row_adds_up():
    with_parts = made(method="alti-logit", components={"mlp": np.array([0.25, 0.5])})
    ends = dict(grid([made(), with_parts], Look()).ends())
    assert ends["outside"] == ["", "+0.7500"]
    assert ends["residual"] == ["+0.5000", "+0.5000"]
    assert [float(v) for v in ends["value"]] == pytest.approx([made().value, with_parts.value], rel=1e-3)
    mixture = made(method="alti", measures="mixture", residual=None)
    object.__setattr__(mixture, "relevance", np.abs(mixture.relevance))
    assert dict(grid([made(), mixture], Look()).ends())["value"][1] == ""


# One text in several tokenisations.


def test_tokens_are_joined_to_pieces_that_all_have():
    first, other = made(), wordpiece()
    assert text_of(first) == text_of(other) == "Thekeystothecabinet"
    drawn = grid([first, other], Look())
    assert drawn.joined
    assert [cell.text for cell in drawn.columns] == ["[CLS]", "The", "keys", "to", "the cabinet", "[SEP]"]
    ours, theirs = ([cell and cell.value for cell in row.cells] for row in drawn.rows)
    r, s = first.relevance, other.relevance
    assert ours == pytest.approx([None, r[0], r[1], r[2], r[3] + r[4], None])
    assert theirs == pytest.approx([s[0], s[1], s[2] + s[3], s[4], s[5] + s[6], s[7]])
    assert any("tokenised in several ways" in line for line in drawn.below())
    assert not grid([first, made(seed=3)], Look()).joined


@pytest.mark.parametrize("cut", range(8))
def test_any_two_tokenisations_align(cut):
    """Pieces of random lengths, with tokens that are spaces: nothing is lost, and pieces read alike."""
    text = "The old  keys were\nlying 橱柜的钥匙 on the table. "
    rng = np.random.default_rng(cut)
    ways = []
    for seed in range(3):
        places = [0, *sorted(rng.choice(range(1, len(text)), size=6 + 3 * seed, replace=False).tolist()), len(text)]
        ways.append(made([text[a:b] for a, b in itertools.pairwise(places)], seed=seed))
    for e, units in zip(ways, common_units(ways), strict=True):
        assert [start for start, *_ in units] == [0, *[end for _, end, _ in units][:-1]]
        assert units[-1][1] == len(e.tokens)
        assert "".join(t for *_, t in units) == text
    letters = [["".join(t.split()) for *_, t in units] for units in common_units(ways)]
    assert letters[0] == letters[1] == letters[2]
    for row, e in zip(grid(ways, Look()).rows, ways, strict=True):
        assert sum(cell.value for cell in row.cells) == pytest.approx(e.relevance.sum())


def test_a_token_that_only_one_way_has_is_blank_in_the_others():
    strips = [c["strips"] for c in Flow(heatmap.to_html([made(), wordpiece()])).columns if "end" not in c["class"]]
    assert strips[0][0] == ["", "", ""]
    assert "background" in strips[0][1][0]
    assert "[CLS]" in bare(printed([made(), wordpiece()]))


def test_what_cannot_be_aligned_is_refused():
    with pytest.raises(InputError, match="2 and 1 pieces"):
        aligned_cells([view(made(["a", "b"])).cells, view(made(["a"])).cells])


# Every format.


def test_html_has_each_number_in_its_row_and_column():
    es = several()
    page = Flow(heatmap.to_html(es))
    columns = [c for c in page.columns if "end" not in c["class"]]
    assert [c["text"] for c in columns] == [w.strip() for w in WORDS]
    for n, column in enumerate(columns):
        for (style, number, _), e in zip(column["strips"], es, strict=True):
            v = view(e)
            assert number == v.number(e.relevance[n], MINUS)
            assert f"#{hex_colour(v.colour(e.relevance[n]))}" in style
    assert [c["strips"][0][2] for c in columns] == ["", "", "", "", "at"]
    assert [c["text"] for c in page.columns if "end" in c["class"]] == ["colours to", "sum", "residual", "value"]


def test_html_is_safe_for_any_text():
    page = Flow(heatmap.to_html(several(NASTY)))
    assert not {"script", "link", "img", "iframe"} & set(page.tags)
    assert next(c["text"] for c in page.columns if "end" not in c["class"]) == NASTY[0]
    assert not page.open


def test_html_repeats_the_labels_as_often_as_lines_can_be():
    page = heatmap.to_html(several())
    gutter = re.search(r'<div class="gutter" aria-hidden="true">(.*?)</div>', page, flags=re.S)[1]
    assert gutter.count("attnlrp") >= len(Flow(page).columns)
    long = [
        made(provenance={"model": "a rather long name of a model" + "!" * n}, notes=("mind",) * n) for n in range(2)
    ]
    page = heatmap.to_html(long)
    assert "1: a rather long name of a model" in page
    assert page.count('class="gutter') == 1  # narrow windows have numbers anyway
    assert "2: note: mind" in page  # what is said of a row names it as the row is named
    assert "1\n2\n" in page


@pytest.mark.browser
@pytest.mark.parametrize("width", [browser.PHONE, browser.DESKTOP])
def test_each_row_can_be_told_by_its_name_or_by_a_key(new_page, tmp_path, width):
    names = ("lrp", "MMM-135m", "gradient-x-input", "integrated-gradients")
    several(WORDS * 4, names).to_html(tmp_path / "page.html")
    page = new_page(width)
    page.goto((tmp_path / "page.html").as_uri())
    shown = page.locator(".lrpx").inner_text()
    numbered = "1: lrp · 2: MMM-135m · 3: gradient-x-input · 4: integrated-gradients"
    assert (numbered in shown) == (width == browser.PHONE)
    left = "each => each.getBoundingClientRect().left"
    gutter = page.locator(".columns").evaluate(left) - page.locator(".grid").evaluate(left)
    assert gutter < width * 0.15  # room for the text
    several(WORDS, ("MMM-135m", "wwwwm")).to_html(tmp_path / "page.html")
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator(".gutter").evaluate("each => each.scrollWidth <= each.clientWidth")  # no label is cut


def test_a_long_text_has_no_numbers_in_it_but_in_tooltips():
    es = several([f" w{i}" for i in range(60)])
    columns = Flow(heatmap.to_html(es)).columns
    assert not any(number for c in columns if "end" not in c["class"] for _, number, _ in c["strips"])
    assert view(es[1]).number(es[1].relevance[3], MINUS) in columns[3]["title"]
    assert Flow(heatmap.to_html(es, look=Look(numbers=True))).columns[3]["strips"][1][1]


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("colours", ["truecolor", "standard", None])
def test_terminal_prints_every_number_within_the_width(width, colours):
    es = several()
    output = bare(printed(es, width=width, colours=colours))
    assert max(map(cell_len, output.splitlines())) <= width
    for e in es:
        v = view(e)
        assert all(v.number(r, MINUS if colours else "-") in output for r in e.relevance)


@pytest.mark.parametrize("width", [24, 30])
@pytest.mark.parametrize("colours", ["truecolor", None])
def test_a_narrow_terminal_breaks_no_number_and_no_token(width, colours):
    es = several(methods=("integrated-gradients", "attnlrp"), value=1.5)
    parts = bare(printed(es, width=width, colours=colours)).split("\n")
    for e in es:
        sums = [f"{number:+#.4g}" for number in (e.relevance.sum(), e.residual, e.value)]
        for number in (*map(view(e).number, e.relevance), *sums):
            assert any(re.search(rf"{re.escape(number)}(\D|$)", line.replace(MINUS, "-")) for line in parts), number
    if colours is None:
        assert all(any(f'"{token}"' in line for line in parts) for token in es[0].tokens)


def test_terminal_puts_numbers_below_their_tokens():
    lines = bare(printed(several(), width=120)).splitlines()
    top = next(i for i, line in enumerate(lines) if "cabinet" in line)
    place = lines[top].index("cabinet")
    assert view(several()[1]).number(several()[1].relevance[4], MINUS) in lines[top + 2][place - 3 : place + 10]


def test_terminal_escapes_what_the_encoding_lacks():
    output = printed(several(["中", " keys"]), encoding="ascii", colours=None)
    assert r"\u4e2d" in output


def test_parts_of_an_input_keep_their_names():
    es = several(segments=(Segment("question", 0, 2), Segment("context", 2, 5)))
    assert [c["text"] for c in Flow(heatmap.to_html(es)).columns][:4] == ["question:", "The", "keys", "context:"]
    assert "context:" in bare(printed(es))
    assert "context:" in bare(printed(es, colours=None))


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_pictures(kind, tmp_path):
    es = several([*WORDS, "\n", *[f" w{i}" for i in range(50)]])
    getattr(es, f"to_{kind}")(tmp_path / f"a.{kind}", numbers=True)
    data = (tmp_path / f"a.{kind}").read_bytes()
    assert data.startswith({"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind])
    if kind == "png":
        import PIL.Image

        drawn = np.asarray(PIL.Image.open(io.BytesIO(data)).convert("RGB")).reshape(-1, 3)
        found = set(map(tuple, np.unique(drawn, axis=0).tolist()))
        for e in es:  # the colour of every row's strongest token
            v = view(e)
            assert v.colour(max(e.relevance, key=abs)) in found


@pytest.mark.parametrize("fragment", [False, True])
def test_latex_has_a_cell_for_each_number(fragment):
    es = several(NASTY)
    source = es.to_latex(fragment=fragment)
    if fragment:
        source = re.sub(
            r"(?s)\\ifdim\\linewidth<300pt.*?\\else", "", source
        )  # in a column, the tables are broken elsewhere
    cells = re.findall(r"\\lrpx(?:strip|framed)\{(\w{6})\}\{\w{6}\}", source.split("newcommand{\\lrpxframed}")[1])
    expected = [hex_colour(view(e).colour(r)) for e in es for r in e.relevance]
    assert sorted(cells) == sorted(expected)
    assert "colortbl" in source


def tables_of(source):
    """The tables of a fragment as rows of cells: in a column of a paper, and on a page."""
    narrow, wide = re.search(r"(?s)\\ifdim\\linewidth<300pt(.*?)\\else(.*?)\\fi", source).groups()
    return [
        [
            [re.sub(r"\\footnotesize |\\(?= )", "", cell).strip() for cell in row.split("&")]
            for table in re.findall(r"(?s)begin\{tabular\}\{\w+\}(.*?)\\end", part)
            for row in table.strip().split("\\\\")[:-1]
        ]
        for part in (narrow, wide)
    ]


@pytest.mark.parametrize("methods", [("attnlrp", "lrp"), ("attnlrp", "alti-logit"), ("attnlrp", "lrp", "alti-logit")])
def test_latex_names_rows_and_keeps_the_numbers_behind_them_together(methods):
    parts = {"alti-logit": {"components": {"mlp": np.array([-1.25, 0.5])}}}
    es = Explanations(made(method=name, seed=n, **parts.get(name, {})) for n, name in enumerate(methods))
    narrow, wide = tables_of(es.to_latex(fragment=True))
    count = len(methods)
    ends = ["colours to", "sum", *["outside"] * ("alti-logit" in methods), "residual", "value"]
    for rows in (narrow, wide):
        assert any(row[-len(ends) :] == ends for row in rows)  # in one table
    assert [row[0] for row in wide if row[0]][:count] == list(methods)
    numbers = [str(n) for n in range(1, count + 1)]
    assert [row[0] for row in narrow if row[0]][:count] == (numbers if "outside" in ends else list(methods))


@pytest.mark.slow
def test_latex_compiles(tmp_path):
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    several(NASTY).to_latex(tmp_path / "a.tex")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "a.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-800:]


def test_all_zeros_are_white_and_say_so():
    es = several()
    for e in es:
        object.__setattr__(e, "relevance", np.zeros(5))
    assert "all 0" in bare(printed(es))
    assert "all 0" in heatmap.to_html(es)
    assert colour(0.0) == (255, 255, 255)


def test_rows_on_one_scale_say_so_once():
    shared = grid(list(several()), Look(2.0))
    assert "colours to" not in dict(shared.ends())
    assert shared.legend().startswith("all rows: colours to ±2.0")
    assert grid(list(several()), Look()).legend().startswith("each row has its own scale")


def test_texts_by_methods_have_a_table_above_them():
    first, second = several(), several(["<b>", " other"])
    page = heatmap.to_html([*first, *second])
    table = re.search(r'<table class="overview">(.*?)</table>', page, flags=re.S)[1]
    assert [len(re.findall("<t[dh]>", line)) for line in table.split("</tr>")[:-1]] == [5, 5, 5]
    assert "&lt;b&gt; other" in table
    for e in (*first, *second):
        strongest = max(view(e).cells, key=lambda cell: abs(cell.value))
        assert short(strongest.value, MINUS) in table
    assert "The strongest token" in bare(printed([*first, *second]))
    assert "The strongest token" not in bare(printed(first))
    assert 'class="overview"' not in heatmap.to_html([*first, made(["one", " more"])])


def test_the_table_of_several_texts_is_not_cut_in_a_narrow_terminal():
    names = ("attnlrp", "gradient-x-input", "integrated-gradients", "attention-rollout")
    shown = bare(printed([*several(methods=names), *several(["another"], names)], width=60))
    table = shown[: shown.index("The strongest token")]
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= 60


def test_numbers_at_the_ends_of_rows_stay_together_in_a_picture():
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from lrpx.heatmap.fonts import Typeface

    drawn = grid(several(WORDS * 2), Look())
    names = [name for name, _ in drawn.ends()]
    face, alone = Typeface(""), 0
    for room in range(700, 1500, 50):  # pixels; the numbers need some 600
        found = list(grid_picture._lines(face, drawn, room))
        assert not any(line[0].gap for line in found)  # no line is indented
        lines = [[column.text for column in line] for line in found]
        assert lines[-1][-len(names) :] == names
        assert sum(map(len, lines)) == len(drawn.columns) + len(names)
        alone += lines[-1] == names
    assert alone


@pytest.mark.parametrize(
    ("words", "paper"),
    [
        (["There", " של", "ום", " עו", "לם", " is", " it"], "There| |לם|עו| |ום|של| |is| |it"),
        (
            ["של", "ום", " a", " gre", "et", " שנ", "ת", " 19", "48", " עו"],
            "עו| |19|48| |ת|שנ| |a| |gre|et| |ום|של",
        ),
        (["The", " key", "s"], "The| |key|s"),
        (["There", "של", " ום"], "There|ום| |של"),
    ],
)
def test_spaces_of_a_picture_stand_between_words_of_both_directions(words, paper):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from lrpx.heatmap.fonts import Typeface

    drawn = grid(several(words), Look())
    line = next(grid_picture._lines(Typeface(""), drawn, 10_000))[: len(words)]
    placed = grid_picture._on_paper(drawn, line)
    assert [column.text or " " for column in placed] == paper.split("|")
    assert sum(column.width for column in placed) == sum(column.width + column.gap for column in line)


@pytest.mark.browser
def test_numbers_at_the_ends_of_rows_stay_together_on_a_page(new_page, tmp_path):
    several(WORDS * 2).to_html(tmp_path / "page.html")
    page = new_page()
    page.goto((tmp_path / "page.html").as_uri())
    lasts, ends = page.locator(".columns > .c"), page.locator(".columns .end")
    top = "found => found.map(each => Math.round(each.getBoundingClientRect().top))"
    alone = 0
    for width in range(500, 1000, 25):
        page.set_viewport_size({"width": width, "height": 800})
        tops = ends.evaluate_all(top)
        assert len(set(tops)) == 1, width
        left = lasts.evaluate_all(
            "found => found.map(e => [e.getBoundingClientRect().top, e.getBoundingClientRect().left])"
        )
        assert len({min(x for y, x in left if y == line) for line, _ in left}) == 1, width  # no line is indented
        alone += tops[0] > max(lasts.evaluate_all(top))
    assert alone
    page.set_viewport_size({"width": browser.PHONE, "height": 800})
    assert not browser.wider_than_window(page)


def test_labels_that_hold_commas_are_listed_with_semicolons():
    rows = [made(method=m, position=p, notes=(f"at {p}",)) for p in (1, 2) for m in ("lrp", "attnlrp")]
    below = grid(rows, Look()).below()
    assert any(line.startswith("lrp, position 1; attnlrp, position 1: ") for line in below), below


def test_the_table_of_texts_has_the_direction_of_the_grids():
    """Not of a text's first letter, as a browser would choose: most letters may run the other way."""
    mixed, plain = ["שלום", " to", " the", " cabinet"], ["The", " keys", " to", " it"]
    page = heatmap.to_html([made(mixed), made(mixed, method="lrp"), made(plain), made(plain, method="lrp")])
    table = re.search(r'<table class="overview">(.*?)</table>', page, flags=re.S)[1]
    assert re.findall(r'<td><bdi dir="(\w+)">', table) == ["ltr", "ltr"]
    assert re.findall(r'<div class="columns" dir="(\w+)">', page) == ["ltr", "ltr"]


@pytest.mark.parametrize(
    ("method", "part"),
    [
        ("LRP, uniform gate", False),
        ("Gradient, squared L2", False),
        ("lrp, head 3 of layer 11", True),
        ("lrp, transformer.h.0.mlp.act, neuron 7", True),
    ],
)
def test_a_row_of_a_part_of_the_model_has_no_value(method, part):
    """The value is that of the whole model; a comma in a method's name does not make it a part."""
    values = dict(grid([made(), made(method=method)], Look()).ends())["value"]
    assert [bool(text) for text in values] == [True, not part]
