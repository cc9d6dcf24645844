"""The parts of an input, such as question and context: saved, checked, and named in every view."""

import dataclasses
import io
import json
import re

import numpy as np
import pytest
from rich.console import Console

from lrpx.errors import InputError
from lrpx.heatmap import Look, render
from lrpx.heatmap.view import view
from lrpx.results.explanation import Explanation
from lrpx.results.tokens import Segment, Token, Unit

WORDS = ["[CLS]", "who", "?", "[SEP]", "wolf", "##gang", "lives", "[SEP]"]
SEGMENTS = (Segment("question", 1, 3), Segment("context", 4, 7))


def explanation(**fields):
    texts = [word.removeprefix("##") if word.startswith("##") else f" {word}" for word in WORDS]
    plain = {
        "tokens": WORDS,
        "token_ids": list(range(8)),
        "units": [Unit(i, i + 1, text) for i, text in enumerate(texts)],
        "relevance": np.linspace(-1, 1, 8),
        "value": 1.0,
        "residual": 1.0,
        "target": Token(1, "who"),
        "contrast": None,
        "position": 4,
        "method": "lrp",
        "special": (0, 3, 7),
        "segments": SEGMENTS,
    }
    return Explanation(**plain | fields)


def test_they_are_saved_and_read_back():
    saved = json.loads(json.dumps(explanation().to_dict()))
    assert Explanation.from_dict(saved).segments == SEGMENTS
    del saved["segments"]  # as an older version wrote it
    assert Explanation.from_dict(saved).segments == ()


@pytest.mark.parametrize(
    "segments", [[("a", 3, 3)], [("a", 0, 4), ("b", 3, 5)], [("a", 4, 9)], [("b", 4, 6), ("a", 0, 2)], [("a", -1, 2)]]
)
def test_parts_that_overlap_or_lie_outside_are_refused(segments):
    with pytest.raises(InputError, match="in order and without overlap"):
        explanation(segments=tuple(Segment(*segment) for segment in segments))


def test_each_part_begins_a_line_and_the_first_one_before_its_special_tokens():
    cells = view(explanation()).cells
    assert [(cell.text, cell.segment, cell.breaks) for cell in cells if cell.segment] == [
        ("[CLS]", "question", False),
        ("wolf", "context", True),
    ]
    assert not any(cell.segment or cell.breaks for cell in view(explanation(segments=())).cells)


def test_no_word_reaches_into_the_next_part():
    segments = (Segment("text", 1, 5), Segment("text_pair", 5, 7))
    assert [cell.text for cell in view(explanation(segments=segments), Look(group="words")).cells][4:6] == [
        "wolf",
        "gang",
    ]
    assert "wolfgang" in [cell.text for cell in view(explanation(), Look(group="words")).cells]


@pytest.mark.parametrize("numbers", [True, False])
@pytest.mark.parametrize("colours", ["truecolor", None])
def test_the_terminal_names_them(numbers, colours):
    console = Console(force_terminal=colours is not None, color_system=colours, width=80, _environ={})
    with console.capture() as captured:
        console.print(render(explanation(), look=Look(numbers=numbers)))
    lines = re.sub(r"\x1b\[[\d;]*m", "", captured.get()).splitlines()
    if colours is None:
        assert [line.strip() for line in lines if line.endswith(":")] == ["question:", "context:"]
    else:
        first, second = (line for line in lines if re.match("question:|context:", line))
        assert re.match(r"question: +\[CLS\] ", first)
        assert re.match(r"context: +wolf *gang ", second)


@pytest.mark.parametrize("numbers", [True, None])
def test_html_names_them(numbers):
    page = explanation().to_html(numbers=numbers)
    assert re.findall(r'(<br>)?<bdi class="segment">(\w+):</bdi>', page) == [("", "question"), ("<br>", "context")]


def test_latex_names_them():
    page = explanation().to_latex()
    assert re.findall(r"(\\newline )?\{\\footnotesize (question|context): \}", page) == [
        ("", "question"),
        (r"\newline ", "context"),
    ]


def test_a_picture_names_them(tmp_path):
    explanation().to_svg(tmp_path / "named.svg")
    explanation(segments=()).to_svg(tmp_path / "plain.svg")
    named, plain = ((tmp_path / f"{name}.svg").read_text() for name in ("named", "plain"))
    assert [name in named for name in ("question:", "context:")] == [True, True]
    assert not any(name in plain for name in ("question:", "context:"))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(("strong", "named"), [(range(30, 50), ["context"]), (range(15, 35), ["question", "context"])])
def test_a_list_of_the_strongest_tokens_names_their_parts(several, strong, named):
    words = [f"w{i}" for i in range(60)]
    relevance = np.full(60, 0.01)
    relevance[list(strong)] = np.linspace(1, 2, 20)
    e = explanation(
        tokens=words,
        token_ids=list(range(60)),
        units=[Unit(i, i + 1, f" {word}") for i, word in enumerate(words)],
        relevance=relevance,
        special=(),
        segments=(Segment("question", 0, 20), Segment("context", 20, 60)),
        position=59,
    )
    other = dataclasses.replace(e, method="attnlrp")
    console = Console(width=80, color_system=None, file=io.StringIO())
    console.print(render([e, other] if several else e))
    lines = console.file.getvalue().splitlines()
    headings = [n for n, line in enumerate(lines) if line.strip() in ("question:", "context:")]
    assert [lines[n].strip(" :") for n in headings] == named
    for n, name in zip(headings, named, strict=True):
        first = min(i for i in strong if (i >= 20) == (name == "context"))
        assert f'"w{first}"' in lines[n + 1].replace(" ", "")
