"""Views of generated text: the numbers that they show, and that nothing in a text can break a page."""

import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import numpy as np
import pictures
import pytest
from rich.console import Console

from lrpx.errors import InputError
from lrpx.heatmap.colours import colour, hex_colour
from lrpx.heatmap.generated import generated_view
from lrpx.heatmap.generated_terminal import TerminalGenerated
from lrpx.results.generation import GenerationExplanation
from lrpx.results.tokens import Token, Unit

PROMPT, REPLY = ["Say", " hi", "."], [" Hello", " the", "re"]
NASTY = ["</script><script>alert(1)</script>", "<b>&amp;", '" onclick="x']


def generation(pieces=(PROMPT, REPLY), **changes):
    tokens = [*pieces[0], *pieces[1]]
    first, count = len(pieces[0]), len(pieces[1])
    relevance = np.zeros((count, len(tokens) - 1))
    for i in range(count):
        relevance[i, : first + i] = np.random.default_rng(i).normal(size=first + i)
    values = np.arange(1.0, count + 1)
    given = {
        "tokens": tokens, "token_ids": list(range(10, 10 + len(tokens))), "method": "attnlrp", "prompt_length": first,
        "units": [Unit(i, i + 1, t) for i, t in enumerate(tokens)], "spans": [(i, i + 1) for i in range(count)],
        "relevance": relevance, "values": values, "residuals": values - relevance.sum(1), "contrast": "mean",
        "probabilities": np.linspace(0.2, 0.8, count), "provenance": {"model": "tiny"},
    }  # fmt: skip
    return GenerationExplanation(**given | changes)


def spans(**changes):
    g = generation()
    rows = {name: getattr(g, name)[:2] for name in ("relevance", "values", "residuals")}
    return generation(spans=[(0, 2), (0, 3)], probabilities=None, **rows | changes)


def data_of(page):
    return json.loads(re.search(r'class="data">(.*?)</script>', page, flags=re.S)[1])


def test_rows_are_summed_over_the_tokens_of_a_cell():
    units = [Unit(0, 1, "Say"), Unit(1, 3, " hi."), Unit(3, 4, " Hello"), Unit(4, 6, " there")]
    g = generation(units=units)
    view = generated_view(g)
    assert (view.first, [cell.text for cell in view.cells]) == (2, ["Say", "hi.", "Hello", "there"])
    assert [row.cells for row in view.rows] == [(2, 3), (3, 4), (3, 4)]
    assert [row.end for row in view.rows] == [2, 3, 4]
    np.testing.assert_allclose(
        view.rows[2].relevance, [g.relevance[2, 0], g.relevance[2, 1:3].sum(), *g.relevance[2, 3:]]
    )
    assert view.rows[1].strongest(2) == sorted(range(3), key=lambda i: -abs(view.rows[1].relevance[i]))[:2]


def test_the_whole_is_the_sum_of_the_rows():
    g = generation()
    whole = generated_view(g).whole
    np.testing.assert_allclose(whole.relevance[:5], g.span(0).relevance)
    assert whole.value == g.values.sum()
    assert whole.text == " Hello there"
    gradient = generation(method="gradient", measures="sensitivity", residuals=None)
    assert generated_view(gradient).whole.text == " Hello"  # which does not add up


# HTML


def test_a_page_has_the_numbers_for_its_script():
    g = generation()
    data = data_of(g.to_html())
    for i, row in enumerate(data["rows"]):
        np.testing.assert_allclose(row["relevance"], g.relevance[i, : 3 + i], rtol=1e-5)
        assert row["value"] == g.values[i]
        assert row["cells"] == [3 + i, 4 + i]
    assert (data["first"], data["single"], data["additive"], data["probable"]) == (3, True, True, True)
    assert data["text"] == ["Say", " hi", ".", " Hello", " the", "re"]
    assert data["one"] == "logit minus mean logit, of"


def test_a_page_can_be_read_without_its_script(tmp_path):
    g = generation()
    page = g.to_html()
    assert g.to_html(tmp_path / "x.html") is None
    assert (tmp_path / "x.html").read_text(encoding="utf-8") == page
    static = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    whole = g.span(0)
    strongest = np.abs(whole.relevance).max()
    for cell, value in zip(
        re.findall(r'class="cell[^"]*" style="background:#(\w+)', static), whole.relevance, strict=False
    ):
        assert cell == hex_colour(colour(value / strongest))
    assert "sum of logits minus mean logit, of" in static
    assert "The strongest tokens for each value" in static
    assert '<p class="soft how" hidden>' in static  # what only the script can do
    assert g._repr_html_() in page.replace(re.search(r'<script type="app.*</script>\n', page, flags=re.S)[0], "")


def test_nothing_is_loaded_from_elsewhere():
    assert not re.search(r"(src|href)=|url\(|@import|fetch\(|https?://", generation().to_html())


def test_text_cannot_break_out_of_the_page():
    page = generation((NASTY, NASTY), notes=("<i>note</i>",), provenance={"model": "<u>"}).to_html()
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", page, flags=re.S)
    assert len(scripts) == 2
    assert "alert" not in scripts[1]
    assert data_of(page)["text"][:3] == NASTY
    outside = re.sub(r"<script.*?</script>", "", page, flags=re.S)
    for tag in ("<b>", "<i>note", "<u>", "<script"):
        assert tag not in outside
    names = set()

    class Attributes(HTMLParser):
        def handle_starttag(self, tag, attributes):
            names.update(name for name, _ in attributes)

    Attributes().feed(page)
    assert "title" in names
    assert "onclick" not in names
    assert "</script><script>alert(1)</script>" in unescape(outside)


def test_pages_of_spans_have_a_button_for_each():
    page = spans().to_html()
    assert page.count('data-row="') == 2
    assert data_of(page)["single"] is False
    assert data_of(page)["probable"] is False


def in_chromium(page, events, tmp_path):
    """The page after what a user does, as Chromium has it."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium")
    (tmp_path / "x.html").write_text(page.replace("</body>", f"<script>{events}</script></body>"), encoding="utf-8")
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", f"file://{tmp_path / 'x.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return re.sub(r"<script.*?</script>", "", done.stdout, flags=re.S)


POINT = """
const cells=document.querySelectorAll(".reply .cell");
const point=(type,i)=>cells[i].dispatchEvent(new PointerEvent(type,{bubbles:true,button:0}));
const key=(i,key,shiftKey)=>cells[i].dispatchEvent(new KeyboardEvent("keydown",{key,shiftKey,bubbles:true}));
"""
DONE = {
    "nothing": ("", (0, 3)),
    "a click": ('point("pointerdown",1);point("pointerup",1)', (1, 2)),
    "a drag": ('point("pointerdown",2);point("pointerover",1);point("pointerup",1)', (1, 3)),
    "keys": ('point("pointerdown",0);point("pointerup",0);key(0,"ArrowRight");key(1,"ArrowRight",true)', (1, 3)),
    "escape": ('point("pointerdown",1);point("pointerup",1);key(1,"Escape")', (0, 3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DONE)
def test_marking_tokens_shows_their_map(what, tmp_path):
    g = generation()
    events, (start, stop) = DONE[what]
    page = in_chromium(g.to_html(), POINT + events, tmp_path)
    e = g.span(start, stop)
    assert f'"{"".join(REPLY[start:stop])}"' in unescape(page)
    assert f'class="number">+{e.value:g}<' in page
    shown = re.findall(r'<bdi class="read">(.*?)</bdi>', page)
    numbers = [float(re.sub(r"[ ()]", "", text).replace("−", "-")) for text in shown if text]
    np.testing.assert_allclose(numbers, e.relevance, atol=1e-3)
    assert page.count('aria-pressed="true"') == stop - start
    assert len(re.findall(r'class="cell[^"]* explained', page)) == stop - start


# Terminal and picture


def printed(g, width=100, **options):
    console = Console(file=io.StringIO(), width=width, **options)
    console.print(TerminalGenerated(generated_view(g)))
    return console.file.getvalue()


def test_in_the_terminal():
    g = generation(notes=("a note",))
    lines = printed(g).splitlines()
    assert lines[0] == "attnlrp: tiny, relevance at the input"
    assert lines[1] == "note: a note"
    assert lines[2] == "Say hi. Hello there"
    assert lines[4].split() == ["explained", "p", "value", "strongest"]
    for i, line in enumerate(lines[5:8]):
        strongest = int(np.abs(g.relevance[i]).argmax())
        assert line.startswith(f'"{REPLY[i]}"')
        assert f'+{i + 1}.000  "{g.tokens[strongest]}" {g.relevance[i, strongest]:+.4g}' in line
    assert lines[-1] == "value: logit minus mean logit"
    assert "\x1b[" in printed(g, force_terminal=True, color_system="truecolor")
    assert "value: sum of logits minus mean logit" in printed(spans())


@pytest.mark.parametrize("width", [24, 40, 48, 60])
def test_in_a_narrow_terminal_lines_break_between_tokens(width):
    g = generation((["Say", " hi there", "."], [" Hello", " the", "re"]), relevance=generation().relevance * 1.2345)
    text = printed(g, width=width)
    assert max(map(len, text.split("\n"))) <= width
    for row in generated_view(g).rows:
        assert f"{row.value:+#.4g}" in text
        for i in row.strongest():
            assert f'"{g.tokens[i]}" {row.relevance[i]:+.4g}' in text


def test_a_continuation_without_letters_goes_the_way_of_its_prompt():
    assert generated_view(generation((["של", "ום"], [r"\xd7", "."]))).rtl == (True, True)
    assert generated_view(generation((["של", "ום"], [" a", "b"]))).rtl == (True, False)


def test_tokens_that_read_the_same_are_told_apart():
    g = generation((["a", " b", " a"], [" c", " a"]))
    tops = [int(np.abs(row).argmax()) for row in g.relevance]
    text, page = printed(g), g.to_html()
    for top, row in zip(tops, g.relevance, strict=True):
        place = f" ({top})" * (top != 1 and top != 3)
        assert f'"{g.tokens[top]}"{place} {row[top]:+.4g}' in text
        assert f"<bdi>{g.tokens[top].strip()}</bdi>{place} " in page
    assert "(n): the token at position n, where several read the same" in text
    assert "(n)" not in printed(generation())


def test_tokens_that_are_subtracted_are_named():
    contrast = (Token(1, "Ġa", " a"), Token(2, "b"), Token(3, "<c>"))
    g = generation(contrast=contrast)
    lines = printed(g).splitlines()
    assert lines[-1] == "value: logit minus that of its contrast"
    assert [line.split("  ")[0] for line in lines[-4:-1]] == ['" Hello" - " a"', '" the" - "b"', '"re" - "<c>"']
    page = g.to_html()
    assert "<bdi>re</bdi> − <bdi>&lt;c&gt;</bdi></td>" in page
    assert "sum of the logits minus that of their contrasts, of" in page
    assert '" Hello the" - " ab"' in printed(spans(contrast=contrast))


def test_rich_markup_in_a_text_is_text():
    assert "[bold]x[/bold]" in printed(generation((["[bold]x[/bold]"], [" [red]"])))


@pytest.mark.parametrize(
    ("objective", "contrast", "said"),
    [
        ("logit", None, "logit"),
        ("logit", "mean", "logit minus mean logit"),
        ("logit", tuple(map(Token, range(3), REPLY)), "logit minus that of its contrast"),
        ("logprob", None, "log-probability"),
    ],
)
def test_what_a_picture_is_of(tmp_path, monkeypatch, objective, contrast, said):
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "text", lambda figure, x, y, text, **style: drawn.append(text))
    generation(objective=objective, contrast=contrast).to_png(tmp_path / "x.png")
    assert drawn[0] == f"attnlrp: {said} of each row's text"


def test_a_picture_is_as_wide_as_its_head(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    widths = []
    for name in ("a", "a" * 100):
        generation(provenance={"model": name}, contrast="top10").to_png(tmp_path / "x.png")
        picture = imread(tmp_path / "x.png")[:, :, :3].min(axis=(0, 2))
        assert (picture[-10:] == 1.0).all()  # nothing is cut off at the right
        widths.append(len(picture))
    assert widths[1] > widths[0] + 300


def test_a_small_matrix_fills_its_picture(tmp_path, monkeypatch):
    """Its header is in several lines, and its cells are larger than those of a matrix of many tokens."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    shares, add_axes = [], Figure.add_axes
    monkeypatch.setattr(Figure, "add_axes", lambda figure, at: shares.append(at[2]) or add_axes(figure, at))
    generation(contrast="top10").to_png(tmp_path / "x.png")
    assert shares[0] > 0.35


def test_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    for n, g in enumerate(
        (generation(), spans(), generation(method="gradient", measures="sensitivity", residuals=None))
    ):
        g.to_png(tmp_path / f"{n}.png")
        assert imread(tmp_path / f"{n}.png").shape[1] > 500
    with pytest.raises(InputError, match=r"to_png\(\) writes PNG"):
        generation().to_png(tmp_path / "x.html")


def test_the_matrix_as_shapes(tmp_path):
    """In PDF and SVG every cell is a shape, not a part of an image; the same matrix gives the same file."""
    pytest.importorskip("matplotlib")
    g = generation()
    for name in ("a", "b"):
        g.to_svg(tmp_path / f"{name}.svg")
        g.to_pdf(tmp_path / f"{name}.pdf")
    for kind in ("svg", "pdf"):
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
    drawn = (tmp_path / "a.svg").read_text(encoding="utf-8")
    mesh = drawn[drawn.index('id="QuadMesh_1"') :]
    assert mesh[: mesh.index("</g>")].count("<path") >= np.size(g.relevance)
    assert "<image" not in mesh[: mesh.index("</g>")]
    with pytest.raises(InputError, match=r"to_pdf\(\) writes PDF"):
        g.to_pdf(tmp_path / "x.png")


def test_the_page_says_what_is_beyond_the_scale_only_where_it_is():
    hidden = '<span class="beyond" hidden>'
    assert hidden in generation().to_html()  # few tokens: the scale ends at the largest
    tokens = 100
    relevance = np.ones((1, tokens))
    relevance[0, 3] = 50.0
    g = generation(
        (["a"] * tokens, ["b"]),
        units=[Unit(i, i + 1, "a") for i in range(tokens + 1)],
        relevance=relevance,
        values=np.ones(1),
    )
    assert '<span class="beyond">darker: beyond the end of the scale' in g.to_html()


def test_a_matrix_that_is_too_large(tmp_path):
    pytest.importorskip("matplotlib")
    tokens = ["a"] * 2000
    g = generation(
        (tokens, ["b"]),
        units=[Unit(i, i + 1, "a") for i in range(2001)],
        relevance=np.ones((1, 2000)),
        values=np.ones(1),
    )
    with pytest.raises(InputError, match="too large for a picture"):
        g.to_png(tmp_path / "x.png")


def test_a_contrast_of_tokens_and_special_tokens():
    g = generation(contrast=(Token(1, "x"), Token(2, "y"), Token(3, "z")), special=(0,))
    assert generated_view(g).one == "logit minus that of its contrast, of"
    assert generated_view(g).cells[0].special
    assert g[0].special == (0,)


def test_the_page_has_the_images_of_the_prompt():
    """With what their patches gave to all rows together."""
    tokens = (["<image>"] * 4 + ["What", "?"], ["A", " cat"])
    g = generation(tokens, images=(pictures.patches(0, 2, 2),))
    [image] = generated_view(g).images
    np.testing.assert_allclose(image.values.ravel(), g.relevance.sum(0)[:4])
    page = g.to_html()
    assert page.count("<figure") == 1
    assert "image: 2 x 2 patches" in page
    assert "for &quot;A cat&quot;, colours to ±" in page
    assert "data:image/png" not in generation().to_html()


def test_sums_of_a_row_have_four_digits():
    view = generated_view(generation())
    row = replace(view.rows[0], residual=15.0, relevance=np.array([43.94]))
    assert view.sums(row)[-2:] == ["sum +43.94", "residual +15.00"]
