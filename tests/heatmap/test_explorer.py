"""The page of layers and heads in a real browser: what one chooses is what is shown, by mouse and by keyboard, on a phone too."""

import re

import browser
import numpy as np
import pytest
from inside_tools import HEADS, LAYERS, NASTY, cells, made

from lrpx import Explanations
from lrpx.heatmap.numbers import MINUS

pytestmark = pytest.mark.browser


@pytest.fixture
def opened(new_page, tmp_path):
    """Opens the page of explanations, with its numbers unpacked."""

    def open_page(es, width=browser.DESKTOP, **options):
        Explanations(es).to_html(tmp_path / "page.html")
        page = new_page(width, **options)
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_selector(".board canvas")
        return page

    return open_page


def colours(page):
    return page.locator(".explore-map .cell").evaluate_all("cells => cells.map(cell => cell.style.background)")


def numbers(page):
    """Those in the tooltips of the text."""
    tips = page.locator(".explore-map .cell").evaluate_all("cells => cells.map(cell => cell.title)")
    return [float(tip.split(" ")[-1].replace("−", "-")) if tip else np.nan for tip in tips]


def shows(page, expected, share=0.001):
    """The page unpacks its numbers after it has drawn the text, so the map is waited for."""
    size = share * np.abs(expected).max()
    for _ in range(200):
        found = numbers(page)
        if len(found) == len(expected) and np.allclose(found, expected, rtol=0, atol=size):
            return
        page.wait_for_timeout(50)
    np.testing.assert_allclose(numbers(page), expected, rtol=0, atol=size)


def at(page, row, column):
    """Click a field of the board."""
    box = page.locator(".plane").bounding_box()
    size = page.locator("canvas").evaluate("c => [c.width, c.height]")
    place = {"x": box["width"] * (column + 0.5) / size[0], "y": box["height"] * (row + 0.5) / size[1]}
    page.locator(".plane").click(position=place)


def test_a_head_a_layer_and_a_token_are_chosen(opened):
    e = made()
    page = opened([e])
    shows(page, cells(e.relevance))
    assert page.locator("canvas").evaluate("c => [c.width, c.height]") == [3 + HEADS, LAYERS]
    at(page, 1, 3 + 2)
    shows(page, cells(e.by_head[1, 2]), 0.012)
    assert "head 2 of layer 1" in page.inner_text(".told")
    at(page, 2, 2)
    shows(page, cells(e.by_mlp[2]), 0.012)
    page.click(".explore-map .cell >> nth=1")
    assert '"keys"' in page.inner_text(".told")
    page.click("text=whole model")
    shows(page, cells(e.relevance))
    page.click("text=tokens × layers")
    at(page, 3, 1)
    shows(page, cells(e.by_layer[1]), 0.012)
    page.select_option("label:has-text('of') select", label="head 3")
    at(page, 0, 2)
    shows(page, cells(e.by_head[2, 3]), 0.012)


def test_a_token_shows_its_own_heads(opened):
    e = made()
    page = opened([e])
    strongest = "c => { const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data; return [...d]; }"
    before = page.locator("canvas").evaluate(strongest)
    page.click(".explore-map .cell >> nth=2")
    after = np.array(page.locator("canvas").evaluate(strongest)).reshape(LAYERS, 3 + HEADS, 4)
    assert before != after.ravel().tolist()
    of_token = cells(e.by_head)[:, :, 2]
    redder = after[:, 3:, 0].astype(int) > after[:, 3:, 2]
    strong = np.abs(of_token) > 0.1 * np.abs(of_token).max()
    assert (redder == (of_token > 0))[strong].all()


def signed(value):
    return f"{value:+.3g}".replace("-", MINUS)


def test_how_many_cells_are_beyond_the_scale(opened):
    words = [f" w{i}" for i in range(8)]  # the last two are one cell
    by_head = np.random.default_rng(0).normal(size=(LAYERS, 8, 8))
    by_head[1, 3] *= 9  # a head that leads
    e = made(words, by_head=by_head, relevance=np.arange(1.0, 9.0))
    page = opened([e])
    assert "beyond" not in page.inner_text(".legend")
    smaller, largest = np.sort(np.abs(by_head.sum(-1)).ravel())[-2:]
    assert largest > 2 * smaller
    text = page.inner_text(".board + p")
    largest = signed(max(by_head.sum(-1).ravel(), key=abs))
    assert f"heads (colours to ±{smaller:.3g}; darkest: beyond it, 1 of 24, up to {largest})" in text
    assert text.count("darkest") == 1  # the nine fields of the parts have a scale of their own, which holds them all


def test_a_cell_that_hardly_leads_is_not_beyond_the_scale(opened):
    page = opened([made([f" w{i}" for i in range(8)], relevance=np.arange(1.0, 9.0))])
    page.click("text=tokens × layers")
    assert "darkest" not in page.inner_text(".board + p")


def test_by_keyboard(opened):
    e = made()
    page = opened([e])
    page.focus(".plane")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    assert "head 1 of layer 1" in page.inner_text(".told")  # the first key begins at the upper left
    page.keyboard.press("Escape")
    assert "whole model" in page.inner_text(".told")
    page.focus(".explore-map .cell")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert '"keys"' in page.inner_text(".told")
    page.keyboard.press("Escape")
    assert '"keys"' not in page.inner_text(".told")


def test_methods_texts_and_palettes_are_switched(opened):
    es = [made(), made(seed=1, method="lrp"), made(["Another", " text", " of", " fi", "ve"], seed=2)]
    page = opened(es)
    page.select_option("label:has-text('method') select", label="lrp")
    shows(page, cells(es[1].relevance))
    page.select_option("label:has-text('text') select", index=1)
    page.wait_for_function("document.querySelector('.explore-map .cell').textContent === 'Another'")
    shows(page, cells(es[2].relevance))
    before, below = colours(page), page.locator(".columns i[style]").first.get_attribute("style")
    page.select_option("label:has-text('colours') select", index=1)
    assert colours(page) != before
    assert page.locator(".columns i[style]").first.get_attribute("style") != below
    page.select_option("label:has-text('colours') select", index=0)
    assert colours(page) == before


INSIDE = ("by_head", "by_layer", "by_attention", "by_mlp")


@pytest.mark.parametrize(
    ("options", "why", "typed"),
    [
        ({"heads": False}, "which was not asked for", "lrpx explain TEXT --heads"),
        ({}, "which the method does not find", "lrpx explain TEXT --method attnlrp --heads"),
    ],
    ids=["not asked for", "none"],
)
def test_a_method_without_layers_and_heads_says_why(opened, options, why, typed):
    without = made(
        **dict.fromkeys(INSIDE), method="lrp", provenance={"options": options, "target": 7, "contrast": None}
    )
    page = opened([made(), without])
    assert page.locator("text=Numbers marked ≈").is_visible()
    page.select_option("label:has-text('method') select", label="lrp")
    shows(page, cells(without.relevance))
    said = page.locator(".explore p", has_text="no relevance of layers and heads")
    assert why in said.inner_text()
    assert "heads=True" in said.inner_text()
    assert typed in said.inner_text()
    assert not page.locator(".board").is_visible()
    assert not page.locator("text=Numbers marked ≈").is_visible()
    page.select_option("label:has-text('method') select", label="attnlrp")
    page.wait_for_selector(".board canvas")
    assert page.locator("text=Numbers marked ≈").is_visible()


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone(opened, dark):
    words = [f" word{i}" for i in range(80)]
    page = opened([made(words), made(words, seed=1, method="lrp-uniform-gate")], browser.PHONE, dark=dark)
    assert not browser.wider_than_window(page)
    at(page, 1, 3)
    assert "head 0 of layer 1" in page.inner_text(".told")


def test_text_is_text(opened):
    page = opened([made(NASTY), made(NASTY, seed=1, method="<b>lrp</b>")])
    assert page.locator(".explore-map .cell").first.inner_text() == NASTY[0]
    assert page.locator(".explore-map b, .choices b, .columns .c b b").count() == 0
    assert re.search(r"<b>lrp</b>", page.locator("label:has-text('method') select").inner_text())


def test_without_the_script_the_maps_are_there(new_page, tmp_path):
    Explanations([made(), made(seed=1, method="lrp")]).to_html(tmp_path / "page.html")
    page = new_page(java_script_enabled=False)
    page.goto((tmp_path / "page.html").as_uri())
    assert not page.locator(".explore").is_visible()
    assert page.locator(".columns .c").first.is_visible()
    assert page.locator("noscript img").count() + page.locator(".matrix img").count() >= 4  # layers and heads of each
