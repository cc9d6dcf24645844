"""Words that are written from right to left stand so, letter by letter, also in a text that runs the other way."""

import app_tools
import pytest

import lrpx
from lrpx.heatmap.rtl import LTR_MARK

READ = """(at => [...document.querySelectorAll(at)].map(e => [e.getBoundingClientRect(), e.textContent.trim()])
.sort(([a], [b]) => Math.round(a.top - b.top) || a.left - b.left).map(([, text]) => text).join(" "))"""


@pytest.fixture(scope="module")
def explainer():
    return app_tools.explainer()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to be at שלום", "to be at םולש"),
        ("שלום ab עולם", "םלוע ab םולש"),
    ],
)
def test_letters_of_a_word_of_the_other_direction(new_page, explainer, tmp_path, text, shown, width):
    parts = shown.replace(" ", "")
    with app_tools.served(app_tools.Desk(explainer)) as address:
        page = new_page(width)
        page.goto(f"{address}/#kind=text&text={text}&method=lrp")
        page.wait_for_selector("#maps:not([hidden])")
        seen = page.evaluate(f"{READ}('.column .piece')").replace(" ", "").replace("␣", "")
        if width > 1000:
            assert seen == parts
        assert sorted(seen) == sorted(parts)
    lrpx.Explanations([explainer(text, method=m) for m in ("lrp", "attnlrp")]).to_html(tmp_path / "map.html")
    page.goto((tmp_path / "map.html").as_uri())
    seen = page.evaluate(f"{READ}('.columns .c:not(.end) > b')").replace(" ", "").replace("␣", "")
    if width > 1000:
        assert seen == parts
    tops = page.evaluate("[...document.querySelectorAll('.columns .c:not(.end)')].map(c => c.offsetTop)")
    assert {(top - tops[0]) % (4 * 18) for top in tops} == {0}  # so the labels in the gutter stand beside their rows


def test_a_number_stays_behind_a_hebrew_target(explainer):
    """Or it would stand within the quotes of the token."""
    client = app_tools.client(app_tools.Desk(explainer))
    asked = {"text": "The keys", "target": "ש", "contrast": "ם", "methods": ["lrp"]}
    [grid] = app_tools.one(app_tools.events(client, "explain", asked), "maps")["grids"]
    value = grid["rows"][0]["what"]
    assert value.split(" = ")[0].endswith(f'"{LTR_MARK}')
    assert grid["what"].count(LTR_MARK) == 2
