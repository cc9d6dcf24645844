"""Maps in the palette for colour blindness: every format has its colours, and none of the other."""

import io
import re

import numpy as np
import pytest
from inside_tools import made
from rich.console import Console

from lrpx import Explanations, InputError, heatmap
from lrpx.heatmap import Look
from lrpx.heatmap.colours import PALETTES, hex_colour
from lrpx.heatmap.matrix_html import png

ORANGE = Look(palette="orange and purple")
RED = Look()
FORMS = {"one": lambda: made(), "grid": lambda: Explanations([made(), made(seed=1, method="lrp")])}


def colours_of(text):
    """Those of cells, bars and tables, without white, grey and what is not coloured by relevance."""
    found = re.findall(r"(?:background:#|\{HTML\}\{|\[HTML\]\{|\{|rgb\()([0-9A-F]{6})\b", text)
    return {tuple(int(each[i : i + 2], 16) for i in (0, 2, 4)) for each in found}


def is_of(rgb, palette):
    """Whether a colour lies on the way from white to an end of a palette, or is that beyond one."""
    high, zero, low, *beyond = (np.array(each, float) for each in PALETTES[palette])
    if any((np.array(rgb) == each).all() for each in beyond):
        return True
    for end in (high, low):
        share = ((zero - rgb) @ (zero - end)) / ((zero - end) @ (zero - end))
        if np.abs(zero + (end - zero) * share - rgb).max() <= 1:
            return True
    return False


def is_grey(rgb):
    return max(rgb) - min(rgb) < 24


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("write", ["to_html", "to_latex"])
def test_texts_have_the_colours_of_their_palette(form, write):
    drawn = FORMS[form]()
    for look in (RED, ORANGE):
        other = "red and blue" if look is ORANGE else "orange and purple"
        body = getattr(heatmap, write)(drawn, look=look)
        body = re.sub(r"<style>.*?</style>|<script.*?</script>", "", body, flags=re.DOTALL)
        found = {rgb for rgb in colours_of(body) if not is_grey(rgb)}
        assert len(found) > 3
        assert {rgb for rgb in found if not is_of(rgb, look.palette)} == set()
        assert {rgb for rgb in found if is_of(rgb, other)} == set()


def test_the_bar_of_a_page_has_them_too():
    high, _, low, above, below = map(hex_colour, PALETTES["orange and purple"])
    style = f"--lrpx-high:#{high};--lrpx-low:#{low};--lrpx-above:#{above};--lrpx-below:#{below}"
    for form in FORMS.values():
        assert style in heatmap.to_html(form(), look=ORANGE)
        assert style not in heatmap.to_html(form(), look=RED)


def test_a_page_on_which_one_chooses_begins_with_it():
    page = heatmap.to_html(made(), look=ORANGE)
    assert page.index('"palettes":{"orange and purple"') > 0
    assert '"palettes":{"red and blue"' in heatmap.to_html(made(), look=RED)


@pytest.mark.parametrize("form", FORMS)
def test_pictures(form, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    for look in (RED, ORANGE):
        heatmap.to_png(FORMS[form](), tmp_path / "map.png", look)
        picture = (image.imread(tmp_path / "map.png")[..., :3] * 255).round()
        for palette, (high, *_) in PALETTES.items():
            count = int((np.abs(picture - np.array(high)).max(axis=2) <= 1).sum())
            assert (count > 100) is (palette == look.palette)


def test_the_terminal():
    file = io.StringIO()
    options = {"force_terminal": True, "legacy_windows": False, "_environ": {}}
    Console(file=file, width=90, color_system="truecolor", **options).print(heatmap.render(made(), look=ORANGE))
    found = {tuple(map(int, rgb)) for rgb in re.findall(r"48;2;(\d+);(\d+);(\d+)", file.getvalue())}
    assert len(found) > 3
    assert all(is_of(rgb, "orange and purple") for rgb in found)


def test_matrices_of_layers_and_heads():
    [view] = heatmap._matrices(made(), "layers", ORANGE)
    [red] = heatmap._matrices(made(), "layers", RED)
    assert png(view) != png(red)


def test_an_explanation_takes_it_as_an_option(tmp_path):
    assert made().to_html(palette="orange and purple") == heatmap.to_html(made(), look=ORANGE)
    with pytest.raises(InputError, match="palette='green': give 'red and blue' or 'orange and purple'"):
        made().to_html(palette="green")


def test_the_ends_of_the_second_palette_differ_in_lightness():
    """Which everybody sees; those of the first do not."""

    def contrast(palette):
        high, _, low, *_ = (np.array(each, float) / 255 for each in PALETTES[palette])
        linear = [np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) for c in (high, low)]
        luminance = [c @ (0.2126, 0.7152, 0.0722) for c in linear]
        return max(luminance) / min(luminance)

    assert contrast("orange and purple") > 3
    assert contrast("red and blue") < 1.5
