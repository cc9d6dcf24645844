"""What stands above a map: what is explained, what the model predicts, and what a reader must know."""

import dataclasses
import importlib.util
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from lrpx import heatmap
from lrpx.heatmap import latex
from lrpx.heatmap.colours import RED, hex_colour
from lrpx.heatmap.facts import model_and_settings
from lrpx.heatmap.html import prose
from lrpx.heatmap.numbers import MINUS
from lrpx.heatmap.view import view
from lrpx.results.explanation import Explanation
from lrpx.results.tokens import Prediction, Token, Unit

ARE, IS = Token(7, "Ġare"), Token(8, "Ġis")
TOP = (Prediction(ARE, 0.412), Prediction(IS, 0.0314))


def explanation(**fields) -> Explanation:
    known = {
        "tokens": ["The", "Ġkeys"],
        "token_ids": [1, 2],
        "units": [Unit(0, 1, "The"), Unit(1, 2, " keys")],
        "relevance": np.array([0.25, 1.5]),
        "value": 2.0,
        "residual": 0.25,
        "target": ARE,
        "contrast": IS,
        "target_probability": 0.412,
        "target_rank": 1,
        "contrast_probability": 0.0314,
        "contrast_rank": 1234,
        "position": 1,
        "method": "attnlrp",
    }
    return Explanation(**known | fields)


def test_the_header_adds_up_where_parts_are_in_no_token():
    """Of a target of several tokens, those of it that were read can hold most of the value."""
    one = view(explanation(value=42.0, components={"target tokens read": 40.0}))
    assert one.sums() == ["sum +1.75", "target tokens read +40", "residual +0.25"]
    several = view(explanation(value=4.0, components={"mlp": np.array([1.0, 0.5]), "direct": 0.5}))
    assert several.sums() == ["sum +1.75", "outside the tokens +2", "residual +0.25"]
    for write, in_format in WRITERS.values():
        page = write(explanation(value=42.0, components={"target tokens read": 40.0}))
        assert page.count(in_format("target tokens read +40")) == 2  # in the header, and below the map


def test_what_begins_at_the_position_of_an_image_is_said():
    marked = view(explanation(task="image-classification")).marked()
    assert marked == "the label is that of the whole image; the image begins at position 1"


def printed(e: Explanation, **settings) -> str:
    console = Console(file=io.StringIO(), width=200, **settings)
    console.print(heatmap.render(e))
    return console.file.getvalue()


WRITERS = {
    "table": (printed, str),
    "terminal": (lambda e: printed(e, color_system="truecolor"), str),
    "html": (heatmap.html_fragment, prose),
    "latex": (heatmap.to_latex, latex._Writer(False, False)._prose),
}


@pytest.fixture(params=WRITERS)
def written(request):
    """Write an explanation in one of the formats, and a text as it would stand there."""
    return WRITERS[request.param]


def test_probability_and_rank_of_target_and_contrast(written):
    write, in_format = written
    page = write(explanation(top=TOP))
    for part in ('" are" p = .41, rank 1', '" is" p = .031, rank 1,234', 'likeliest: " are" .41, " is" .031'):
        assert in_format(part) in page


@pytest.mark.parametrize("colours", ["truecolor", None])
def test_a_view_in_the_terminal_has_one_minus(colours):
    """The one that is set in print, or without colours, where programs read the numbers, that of programs."""
    numbers = np.array([1.5, -1.25])
    by_head = np.stack([numbers, -3 * numbers])[:, None]
    e = explanation(relevance=numbers, by_head=by_head, by_layer=np.stack([numbers] * 2), residual=-2.25)
    another = dataclasses.replace(e, target=Token(9, "Ġwere"))
    for drawn, of in ((e, "tokens"), ([e, another], "tokens"), (e, "layers"), (e, "heads")):
        file = io.StringIO()
        Console(file=file, width=80, color_system=colours, force_terminal=True, no_color=not colours).print(
            heatmap.render(drawn, of=of)
        )
        shown = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue())
        assert ("-" in shown, MINUS in shown) == ((False, True) if colours else (True, False)), shown


DRAWN = {
    "map": (explanation(top=TOP, notes=("mind the gap",)), "tokens"),
    "grid": ([explanation(top=TOP), explanation(top=TOP, method="lrp", notes=("mind the gap",))], "tokens"),
    "matrix": (explanation(by_head=np.ones((2, 2, 2))), "heads"),
}


@pytest.mark.parametrize("drawn", DRAWN)
def test_a_header_can_be_left_to_the_caption(drawn, tmp_path):
    shown, of = DRAWN[drawn]
    above = ["likeliest", "mind the gap"] if of == "tokens" else ["relevance of each head"]
    for header in (True, False):
        look = heatmap.Look(header=header)
        file = io.StringIO()
        Console(file=file, width=200).print(heatmap.render(shown, look=look, of=of))
        texts = [file.getvalue(), re.sub("<[^>]*>", "", heatmap.html_fragment(shown, look, of))]
        if of == "tokens":
            texts.append(heatmap.to_latex(shown, look=look).replace("\\ ", " "))
            assert all("position 1" in text for text in texts)  # what the frame means stays
        if importlib.util.find_spec("matplotlib"):
            heatmap.to_svg(shown, tmp_path / "a.svg", look, of)
            texts.append("".join(re.findall("<!-- (.*?) -->", (tmp_path / "a.svg").read_text())).replace(" ", ""))
        for text in texts:
            assert [part in text or part.replace(" ", "") in text for part in above] == [header] * len(above), text


@pytest.mark.parametrize("settings", [{}, {"color_system": "truecolor"}])
@pytest.mark.parametrize("several", [False, True])
def test_no_line_ends_in_a_token_or_before_its_probability(settings, several):
    words = ("Ġare", " the keys", "'s", "Ġpiano", ":")
    top = tuple(
        Prediction(Token(n, word), p)
        for n, (word, p) in enumerate(zip(words, (0.41, 0.2, 0.999, 1e-5, 0.1), strict=True))
    )
    drawn = [explanation(top=top), explanation(top=top, method="lrp")] if several else explanation(top=top)
    parts = ['" are" p = .41', '" is" p = .031', '" the keys" .20', '"\'s" > .99', '" piano" < .001', '":" .10']
    for width in range(24, 80, 3):
        console = Console(file=io.StringIO(), width=width, **settings)
        console.print(heatmap.render(drawn))
        lines = re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue()).splitlines()
        assert max(map(len, lines)) <= width
        for part in parts:
            assert any(part in line for line in lines), (width, part)


def test_a_token_that_is_longer_than_a_line_is_not_lost():
    long = Token(9, " " + "word " * 12)
    console = Console(file=io.StringIO(), width=30)
    console.print(heatmap.render(explanation(top=(Prediction(long, 0.5),))))
    assert console.file.getvalue().count("word") == 12


def test_nothing_is_said_of_probabilities_that_are_not_known(written):
    write, in_format = written
    page = write(explanation(target_probability=None, target_rank=None, contrast=None))
    assert in_format('" are" p') not in page
    assert "rank" not in page
    assert "likeliest" not in page


def test_what_a_reader_must_know_is_in_every_header(written):
    write, in_format = written
    page = write(explanation(notes=("Of 7 < 8 things\u202e, one.",)))
    assert in_format("note: Of 7 < 8 things<U+202E>, one.") in page


def test_a_method_that_is_not_about_a_logit_shows_none(written):
    write, in_format = written
    page = write(explanation(method="alti", measures="mixture", residual=None, top=TOP))
    assert in_format("each token's share in the hidden state at position 1") in page
    assert "logit" not in page.replace("{xcolor}", "")
    assert in_format("+2") not in page
    assert "rank" not in page  # of the target, which this is not about
    assert in_format('likeliest: " are" .41') in page


@pytest.mark.parametrize("measures", ["sensitivity", "mixture"])
def test_what_is_no_part_of_the_value_has_no_sum_and_a_scale_from_zero(written, measures):
    write, in_format = written
    page = write(explanation(measures=measures, residual=None))
    assert "sum " not in page
    assert in_format(f"{MINUS}1.500") not in page
    assert "-1.500" not in page


def test_the_bar_of_a_one_sided_scale_runs_from_white_to_red():
    shown = view(explanation(measures="sensitivity", residual=None))
    assert shown.bar(3) == [0.0, 0.5, 1.0]
    assert shown.ticks() == [(0.0, "0"), (1.0, "+1.500")]
    two_sided = view(explanation())
    assert two_sided.bar(3) == [-1.0, 0.0, 1.0]
    assert [tick for _, tick in two_sided.ticks(MINUS)] == [f"{MINUS}1.500", "0", "+1.500"]
    assert f"(90deg,#fff,var(--lrpx-high,#{hex_colour(RED)}))" in heatmap.to_html(explanation())


def test_a_picture_of_each_kind(tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    heights = []
    for n, e in enumerate([explanation(), explanation(measures="mixture", residual=None, top=TOP, notes=("N.",))]):
        heatmap.to_png(e, tmp_path / f"{n}.png")
        heights.append(int.from_bytes((tmp_path / f"{n}.png").read_bytes()[20:24], "big"))
    assert heights[0] < heights[1]  # it has more lines


def test_numbers_that_change_the_map_are_named():
    made = SimpleNamespace(
        provenance={
            "options": {"window": 2, "baseline": "mean", "at": ("pixels",), "heads": None, "direct": False, "seed": 0}
        },
        method="occlusion",
        at="pixels",
    )
    assert model_and_settings(made) == ["relevance at the pixels", "window=2", "baseline=mean"]
