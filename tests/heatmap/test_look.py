"""Scale, hidden tokens, words and numbers: what is changed for the eye is said in words, and sums stay exact."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from lrpx import Explanations, heatmap
from lrpx.errors import InputError
from lrpx.heatmap import Look
from lrpx.heatmap.colours import BEYOND_BLUE, BEYOND_RED, HIDDEN, RED, colour, hex_colour, ink
from lrpx.heatmap.fonts import Typeface
from lrpx.heatmap.shown import ViewOptions
from lrpx.heatmap.text import _BYTES, half_character
from lrpx.heatmap.view import view
from lrpx.results.explanation import Explanation
from lrpx.results.tokens import Token, Unit


def explanation(texts, relevance, **fields):
    """One token per text; raw pieces as GPT-2 has them."""
    tokens = [text.replace(" ", "Ġ").replace("\n", "Ċ") for text in texts]
    known = {
        "tokens": tokens,
        "token_ids": list(range(len(texts))),
        "units": [Unit(i, i + 1, text) for i, text in enumerate(texts)],
        "relevance": np.array(relevance, dtype=np.float64),
        "value": 1.0,
        "residual": 0.0,
        "target": Token(7, "Ġare", " are"),
        "contrast": None,
        "position": len(texts) - 1,
        "method": "attnlrp",
    }
    return Explanation(**(known | fields))


def long(**fields):
    """100 tokens: a sink, a strong negative one, and the rest between -1 and 1."""
    relevance = np.linspace(-1, 1, 100)
    relevance[[0, 50]] = 80.0, -30.0
    return explanation([f" w{i}" for i in range(100)], relevance, **fields)


def chat(**fields):
    texts = ["<s>", "The", " keys", " are", "n't", " here", ".", "</s>"]
    return explanation(texts, [5.0, 0.1, 0.2, 0.3, -0.4, 0.1, 0.05, -1.0], special=(0, 7), position=6, **fields)


def printed(e, look, colours="truecolor", width=200):
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        color_system=colours,
        force_terminal=colours is not None,
        legacy_windows=False,
        _environ={},
    )
    console.print(heatmap.render(e, look=look))
    return file.getvalue()


# Scale.


def test_the_help_of_a_view_names_every_option():
    shown = Explanation.show.__doc__
    assert [name for name in ViewOptions.__annotations__ if f"``{name}``" not in shown] == []
    for method in ("to_html", "to_latex", "to_png", "to_pdf", "to_svg"):
        assert "as of ``show``" in getattr(Explanation, method).__doc__.replace("As of", "as of")


@pytest.mark.parametrize("count", [20, 21])
def test_of_twenty_numbers_none_is_beyond_the_scale(count):
    numbers = 4.0 ** np.arange(count)
    assert (numbers > Look().end_of_scale(numbers.tolist())).any() == (count > 20)


@pytest.mark.parametrize(("times", "end"), [(1.0, 7.0), (1.01, 7.07), (2.0, 14.0), (2.01, 7.0), (20.0, 7.0)])
def test_a_number_that_hardly_leads_is_not_beyond_the_scale(times, end):
    assert Look().end_of_scale([*np.linspace(-5, 5, 30), -7.0, 7.0 * times]) == pytest.approx(end)


def test_a_strong_token_does_not_leave_the_others_white():
    assert view(long()).scale == sorted(abs(long().relevance))[95]
    assert view(long(), Look("max")).scale == 80.0
    assert view(long(), Look(2.5)).scale == 2.5
    few = explanation(["a"] * 20, [*range(1, 20), 400.0])
    assert view(few).scale == 400.0  # too few tokens to call one of them an outlier
    mostly_zero = explanation(["a"] * 50, [0.0] * 49 + [3.0])
    assert view(mostly_zero).scale == 3.0


def test_cells_beyond_the_scale_are_darker_and_the_legend_counts_them():
    shown = view(long())
    fills = [shown.fill(cell) for cell in shown.cells]
    assert (fills[0], fills[50]) == (BEYOND_RED, BEYOND_BLUE)
    beyond = sum(fill in (BEYOND_RED, BEYOND_BLUE) for fill in fills)
    assert shown.beyond == (True, True)
    ends = f"{shown.number(-30.0)} to {shown.number(80.0)}"
    assert shown.legend() == [f"darkest: beyond the scale ({beyond} of 100, {ends})"]
    assert beyond == int((abs(long().relevance) > shown.scale).sum()) == 4
    assert view(long(), Look("max")).legend() == []
    assert view(long(), Look("max")).beyond == (False, False)
    assert colour(1.0) == RED
    for fill in (BEYOND_RED, BEYOND_BLUE, HIDDEN):
        assert ink(fill) in ((0, 0, 0), (255, 255, 255))


@pytest.mark.parametrize("colours", ["truecolor", "standard", None])
def test_every_format_says_what_is_beyond_the_scale(colours):
    said = "beyond the scale" if colours else "80.0"
    assert said in " ".join(printed(long(), Look(), colours).split())
    for text in (heatmap.to_html(long()), heatmap.to_latex(long())):
        assert "beyond the scale (4 of 100, " in text.replace("\\ ", " ").replace("{}", "")
        assert hex_colour(BEYOND_RED) in text
        assert hex_colour(BEYOND_BLUE) in text
    assert "beyond the scale" not in heatmap.to_html(long(), look=Look("max"))


# Sinks and hidden tokens.


def test_the_header_names_a_token_that_holds_most_of_the_relevance():
    (line,) = view(chat()).holds()
    assert line == '"<s>" at position 0 holds 70 % of the absolute relevance'
    (line,) = view(chat(components={"target tokens read": 40.0})).holds()
    assert line == '"<s>" at position 0 holds 70 % of the absolute relevance of the tokens'
    several = explanation(
        [" a", " b", " c", " d"], [4.0, 4.0, 1.0, 1.0], units=[(0, 2, " ab"), (2, 3, " c"), (3, 4, " d")]
    )
    assert view(several).holds() == ['"ab" at positions 0 to 1 holds 80 % of the absolute relevance']
    assert view(explanation([" a", " b", " c"], [1.0, -1.0, 1.0])).holds() == []
    assert view(explanation([" a", " b"], [9.0, -1.0])).holds() == []  # of two tokens, one always does


@pytest.mark.parametrize(
    ("hide", "positions", "said"),
    [
        ("first", {0}, 'hidden: "<s>" at position 0, +5, 70 % of the absolute relevance'),
        ("special", {0, 7}, "hidden: 2 special tokens, +4, 84 % of the absolute relevance"),
        (("special", "first"), {0, 7}, "hidden: 2 special tokens, +4, 84 % of the absolute relevance"),
    ],
)
def test_hidden_tokens_are_grey_and_the_header_says_what_they_hold(hide, positions, said):
    shown = view(chat(), Look(hide=hide))
    assert {i for i, cell in enumerate(shown.cells) if shown.fill(cell) == HIDDEN} == positions
    assert shown.holds()[0] == said
    assert shown.scale == (1.0 if positions == {0} else 0.4)
    assert shown.legend() == ["grey: hidden"]
    assert sum(cell.value for cell in shown.cells) == pytest.approx(shown.total)  # nothing is lost
    for output in (printed(chat(), Look(hide=hide)), printed(chat(), Look(hide=hide), None), chat().to_html(hide=hide)):
        assert "hidden: " in output
        assert "&lt;s&gt;" in output or "<s>" in output  # still readable


def test_first_and_special_tokens_can_be_hidden_together():
    e = explanation([" The", " keys", "</s>"], [1.0, 2.0, -0.5], special=(2,))
    shown = view(e, Look(hide=("first", "special")))
    assert shown.holds()[0].startswith("hidden: the first token and 1 special token, +0.5, 43 %")


def test_hiding_what_is_not_there_is_said_and_hiding_everything_is_an_error():
    assert "hidden: nothing, no token is known to be special" in view(long(), Look(hide="special")).holds()
    with pytest.raises(InputError, match=r"leaves nothing to show of 1 token[.]"):
        view(explanation([" a"], [1.0]), Look(hide="first"))


def test_a_table_without_colours_does_not_tell_hidden_numbers():
    rows = printed(chat(), Look(hide="special"), None).splitlines()
    assert [row.split()[2] for row in rows if row.endswith('s>"')] == ["hidden", "hidden"]


# Words.


def test_words_sum_their_tokens_exactly():
    texts = ["<s>", "The", " rust", "y", " keys", ",", " don", "'t", " 3", ".", "14", "\n", "中", "文", " "]
    relevance = np.random.default_rng(0).standard_normal(len(texts)) * 10.0 ** np.arange(len(texts))
    shown = view(explanation(texts, relevance, special=(0,)), Look(group="words"))
    assert [cell.text for cell in shown.cells] == "<s> The rusty keys , don't 3.14 ↵ 中 文 ␣".split()
    assert [t[0] for cell in shown.cells for t in cell.tokens] == list(range(len(texts)))
    for cell in shown.cells:
        assert cell.value == math.fsum(relevance[t[0]] for t in cell.tokens)
    assert shown.total == math.fsum(relevance)


def test_special_tokens_stay_apart_from_words():
    e = explanation(["<s>", "a", "b", "<x>", "c"], [1.0] * 5, special=(0, 3))
    assert [cell.text for cell in view(e, Look(group="words")).cells] == ["<s>", "ab", "<x>", "c"]


def test_words_of_hindi_and_arabic_stay_whole():
    units = ["हि", "न्दी", " भा", "र", "त", " مفا", "تيح"]
    shown = view(explanation(units, [1.0] * 7), Look(group="words"))
    assert [cell.text for cell in shown.cells] == ["हिन्दी", "भारत", "مفاتيح"]


# Numbers.


def test_blocks_with_numbers_keep_the_direction_of_their_letters():
    e = explanation([" the", " של", "ום", " end", " of"], [1.0] * 5)
    shown = e.to_html(numbers=True)
    assert shown.count('&rlm;<span class="numbered" dir="rtl">') == 2
    assert shown.count('&lrm;<span class="numbered">') == 3
    assert "&rlm;" not in e.to_html()
    arabic = explanation(["مر", "حبا"], [1.0, 2.0])
    assert "حبا" in arabic.to_html(numbers=True)
    halves = explanation(["مفا", "تي", "ح"], [1.0, 2.0, 3.0]).to_html(numbers=True)
    assert "تي\u200d<" in halves
    assert "\u200dح<" in halves


def test_numbers_can_be_asked_for_and_left_out():
    assert "<small>+5.000</small>" in heatmap.to_html(chat(), look=Look(numbers=True))
    assert "<small>" not in heatmap.to_html(chat())
    assert "{+5.000}" in chat().to_latex()
    assert "{+5.000}" not in chat().to_latex(numbers=False)
    hidden = chat().to_latex(numbers=True, hide="first")
    assert "{+5.000}" not in hidden
    assert "{+0.200}" in hidden


# What is no option.


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"scale": "maximum"}, r"scale='maximum': give 'robust', 'max' or a number above 0"),
        ({"scale": 0}, "scale=0: give"),
        ({"scale": -1.5}, "scale=-1.5: give"),
        ({"scale": math.inf}, "scale=inf: give"),
        ({"scale": math.nan}, "scale=nan: give"),
        ({"scale": True}, "scale=True: give"),
        ({"hide": "last"}, "hide='last': give 'special', 'first' or both"),
        ({"hide": ("special", "frist")}, "hide='frist': give 'special', 'first' or both"),
        ({"hide": 0}, "hide=0: give 'special', 'first' or both"),
        ({"group": "word"}, "group='word': give 'tokens' or 'words'"),
        ({"numbers": "yes"}, "numbers='yes': give True or False"),
    ],
)
def test_a_wrong_option_is_refused(wrong, message, tmp_path):
    for draw in (chat().show, chat().to_html, chat().to_latex, Explanations([chat()]).show):
        with pytest.raises(InputError, match=message):
            draw(**wrong)
    with pytest.raises(InputError, match=message):
        chat().to_png(tmp_path / "x.png", **wrong)


# Half a character.


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        ("×", "U+05C0 to U+05FF, among them the letters א to ײ and the signs ◌ׁ to ◌ׇ"),
        ("Ġ×", "U+05C0 to U+05FF, among them the letters א to ײ and the signs ◌ׁ to ◌ׇ"),
        ("æĹ", "U+65C0 to U+65FF, among them the letters 旀 to 旿"),
        ("à¥", "U+0940 to U+097F, among them the letters ॐ to ॿ and the signs ◌ी to ◌ॣ"),
        ("à¸", "U+0E00 to U+0E3F, among them the letters ก to ำ and the signs ◌ั to ◌ฺ"),
        ("âĢ", "U+2000 to U+203F, among them the punctuation ‐ to ‿"),
        ("Ġare", None),
        ("×©", None),
        ("¥", None),
        ("ô", None),
        ("ñA", None),
    ],
)
def test_the_characters_that_bytes_can_begin(raw, told):
    assert half_character(raw) == told


def test_every_character_is_one_of_those_that_its_first_bytes_can_begin():
    bytes_as_letters = {byte: letter for letter, byte in _BYTES.items()}
    for character in "शैভাपी।१ตี日한ׇ€—🙂":
        data = character.encode()
        for cut in range(1, len(data)):
            low, high = re.findall(r"U\+(\w+)", half_character("".join(bytes_as_letters[b] for b in data[:cut])))
            assert int(low, 16) <= ord(character) <= int(high, 16)


def test_a_target_that_is_half_a_character_is_said_to_be():
    shown = view(explanation([" a"], [1.0], target=Token(3, "×", r"\xd7")))
    assert shown.remarks == (rf'"\xd7" begins a character, one of {half_character("×")}.',)
    whole = view(explanation([" a"], [1.0], target=Token(3, "¥", "日")))
    assert (whole.target, whole.remarks) == ("日", ())


# Several.


def test_several_have_the_views_of_one(tmp_path):
    both = Explanations([chat(), long()])
    assert both.to_html(tmp_path / "x.html", scale="max") is None
    assert both.to_html(scale="max") == (tmp_path / "x.html").read_text(encoding="utf-8")
    assert both.to_latex(group="words").count(r"\textbf{attnlrp}") == 2
    assert both._repr_html_().count("<section") == 2


def test_several_are_saved_and_read_back(tmp_path):
    both = Explanations([chat(), long(method="lrp")])
    both.save(tmp_path / "x.json")
    loaded = Explanations.load(tmp_path / "x.json")
    assert [e.to_dict() for e in loaded] == [e.to_dict() for e in both]
    assert loaded[0].special == (0, 7)
    assert len(Explanations.load(_file(tmp_path, "[]"))) == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "holds one explanation, not a list"),
        ("{", "is not JSON"),
        ("[3]", r"x.json\[0\] is int, not an explanation"),
        ('[{"schema": 1}]', r"x.json\[0\]: "),
    ],
)
def test_what_is_no_list_of_explanations(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        Explanations.load(_file(tmp_path, content))


def _file(folder, content):
    (folder / "x.json").write_text(content)
    return folder / "x.json"


def plain(e, width=80, look=None):
    return printed(e, look or Look(), None, width)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_header_names_the_strongest_token_where_the_colours_end_before_it(sign):
    e = explanation([f" w{i}" for i in range(100)], [*np.linspace(0.5, 1, 60), sign * 22.0, *np.linspace(0.5, 1, 39)])
    (said,) = view(e).holds()
    number = "+22.0000" if sign > 0 else "-22.0000"
    assert said == f'" w60" at position 60 has {number}, the most: 22 times where the colours end'
    assert said in plain(e, 200)
    assert "at position 60 has" in heatmap.to_html(e)
    assert view(e, Look("max")).holds() == []
    assert (
        "has +9.000, the most: 1.8 times"
        in view(explanation([" a", " b", " c"], [9.0, 8.0, 8.0]), Look(5.0)).holds()[0]
    )


def test_of_a_long_text_a_table_without_colours_has_the_strongest_tokens_in_the_text():
    values = np.random.default_rng(0).normal(size=100)
    e = explanation([f" w{i}" for i in range(100)], values.tolist())
    strongest = sorted(np.argsort(-np.abs(values))[:20])
    for width in (80, 45):
        lines = plain(e, width).splitlines()
        assert max(map(len, lines)) <= width
        rows = [line for line in lines if re.match(r" *\d+\*? +\d+ ", line)]
        assert [int(row.split()[0].rstrip("*")) for row in rows] == strongest
        assert "the 20 strongest of 100 tokens. All: numbers=True" in " ".join(" ".join(lines).split())
        middle = next(row for row in rows if f'" w{strongest[9]}"' in row)
        beside = f"w{strongest[9] - 1} [w{strongest[9]}] w{strongest[9] + 1}"
        assert (beside in middle) is (width == 80)
    everything = plain(e, look=Look(numbers=True))
    assert all(f' w{i}"' in everything.replace('"w0', '" w0') for i in range(100))
    assert "strongest of" not in everything
    assert "strongest of" not in plain(explanation([f" w{i}" for i in range(40)], values[:40].tolist()))
    assert "…" not in plain(e)  # which not every encoding has


def test_of_a_long_text_a_grid_without_colours_has_the_strongest_of_each_row():
    one, other = np.random.default_rng(0).normal(size=(2, 100))
    other[7], one[50] = -9.0, 900.0
    tokens = [f" w{i}" for i in range(100)]
    several = [explanation(tokens, one.tolist()), explanation(tokens, other.tolist())]
    out = plain([several[0], replace(several[1], method="lrp")])
    assert '" w7"' in out
    assert '" w50"' in out
    assert len(re.findall(r'" w\d+"\n', out)) == 20
    assert "the 20 strongest of 100 tokens" in out


def test_code_points_are_not_joined():
    """Of an emoji of several, where no font has it; a joiner between them makes a PDF draw one over the other."""
    face = Typeface("e")
    face._missing, face._emoji = set("👨👩\ufe0f"), {}
    assert face.text("👨\u200d👩 e") == "U+1F468U+1F469 e"
    assert face.text("क्\u200dष") == "क्\u200dष"  # which has glyphs
    assert face.text("e\ufe0f") == "e"


def test_the_bar_of_a_picture_has_no_gaps(tmp_path):
    """Shades that only meet show the paper between them in a browser, so each lies on the one before it."""
    chat().to_svg(tmp_path / "map.svg")
    shades = re.findall(r"M ([\d.]+) ([\d.]+) \nL ([\d.]+) ", (tmp_path / "map.svg").read_text())
    starts = [(float(left), float(right)) for left, y, right in shades]
    ends = max((sum(1 for _, r in starts if r == right), right) for _, right in starts)
    assert ends[0] >= 250
