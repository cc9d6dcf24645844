"""Images in every format: each patch at its place with its own number, and one cell in the text for all of them."""

import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from pictures import explanation_of_image, patches, photo, png_of
from PIL import Image
from rich.console import Console

from lrpx import heatmap
from lrpx.heatmap import Look
from lrpx.heatmap.colours import BLUE, RED, colour, hex_colour
from lrpx.heatmap.images import OPAQUE, PALE, pixels
from lrpx.heatmap.numbers import MINUS
from lrpx.heatmap.view import view

VALUES = np.array([[0.5, -0.25, 0.0], [0.125, 1.0, -1.0]])


def printed(e, colours="truecolor", width=80):
    file = io.StringIO()
    forced = {"force_terminal": colours is not None, "legacy_windows": False, "_environ": {}}
    Console(file=file, width=width, color_system=colours, **forced).print(heatmap.render(e))
    return file.getvalue()


def backgrounds(line):
    return [tuple(map(int, rgb)) for rgb in re.findall(r"48;2;(\d+);(\d+);(\d+)m  \x1b", line)]


def test_the_text_has_one_cell_for_an_image_with_its_sum():
    v = view(explanation_of_image(VALUES))
    assert [cell.text for cell in v.cells] == ["<s>", "See", "image", "What", "?"]
    image = v.cells[2]
    assert image.value == pytest.approx(VALUES.sum())
    assert image.size == pytest.approx(np.abs(VALUES).sum())
    assert [token[0] for token in image.tokens] == list(range(2, 8))
    assert v.total == pytest.approx(VALUES.sum() + 0.25)


def test_ends_of_rows_belong_to_the_cell_and_not_to_the_grid():
    e = explanation_of_image(VALUES, images=(patches(2, 2, 2, order=(2, 3, 5, 6)),))
    v = view(e)
    assert v.images[0].values.tolist() == [[0.5, -0.25], [0.125, 1.0]]
    assert v.cells[2].value == pytest.approx(VALUES.sum() + 1.0)  # the token after the last patch stands in the text
    assert [cell.text for cell in v.cells] == ["<s>", "See", "image", "<image>", "What", "?"]


def test_the_header_names_a_patch_where_it_has_the_most():
    numbers = np.full((6, 6), 0.1)
    numbers[4, 5], numbers[0, 2] = 3.0, -0.3
    said = "image, row 5, column 6 has +3.0000, the most: 3.3 times where the colours end"
    e = explanation_of_image(numbers, around=(0.1, -0.2, 0.9, 0.05))
    assert said in view(e).holds()
    assert said in printed(e, None, 200)
    e = explanation_of_image(numbers / 10, around=(0.1, -0.2, 0.9, 0.05))
    assert any("at position" in line and "+0.9000, the most" in line for line in view(e).holds())


def test_patches_and_text_have_one_scale():
    v = view(explanation_of_image(VALUES, around=(0.1, -0.2, 2.0, 0.05)), Look(scale="max"))
    assert v.scale == 2.0
    assert v.image_shares(v.images[0]).tolist() == (VALUES / 2).tolist()
    v = view(explanation_of_image(VALUES), Look(scale=0.3))
    assert v.beyond == (True, True)
    assert "3 of 10" in v.legend()[0]


def test_the_legend_says_that_text_and_image_share_one_scale():
    shared = "text and image share one scale"
    assert shared in view(explanation_of_image([[1.0, -2.0]]), Look()).legend()
    assert shared not in " ".join(view(explanation_of_image([[1.0, -2.0]], (), ()), Look()).legend())


@pytest.mark.parametrize("look", [Look(), Look(group="words"), Look(hide=("special", "first"))])
def test_an_image_is_never_joined_or_hidden(look):
    e = explanation_of_image(VALUES, before=(), around=(0.1, 0.2), special=tuple(range(6)))
    v = view(e, look)
    assert (v.cells[0].image, v.cells[0].hidden, v.cells[0].coloured) == (True, False, False)
    assert [cell.text for cell in v.cells] == ["image", "What", "?"] if look.group == "tokens" else v.cells[0].image


def test_an_image_alone_can_be_drawn(tmp_path):
    e = explanation_of_image(VALUES, before=(), after=())
    assert len(view(e).cells) == 1
    heatmap.to_png(e, tmp_path / "e.png")
    assert printed(e)
    assert heatmap.to_html(e)


def test_html_has_every_patch_at_its_place_with_its_number():
    e = explanation_of_image(VALUES)
    page = heatmap.to_html(e, look=Look(scale=1.0))
    assert "grid-template:repeat(2,1fr)/repeat(3,1fr)" in page
    found = re.findall(
        r'<i style="background:#(\w{6})(\w\w)" title="row (\d), column (\d)   token (\d+)   (\S+)"', page
    )
    assert [(int(r), int(c), int(t)) for _, _, r, c, t, _ in found] == [
        (i // 3 + 1, i % 3 + 1, i + 2) for i in range(6)
    ]
    assert [float(number.replace(MINUS, "-")) for *_, number in found] == VALUES.ravel().tolist()
    for (rgb, opacity, *_), value in zip(found, VALUES.ravel(), strict=True):
        assert rgb == hex_colour(RED if value > 0 else BLUE)
        assert int(opacity, 16) == round(255 * OPAQUE * abs(value))
    assert page.count("base64,") == 1
    assert "http" not in page
    assert "--lrpx-picture" not in heatmap.to_html(explanation_of_image(VALUES, images=()))


def test_the_terminal_has_two_columns_per_patch_and_merges_where_there_is_no_room():
    values = np.linspace(-1, 1, 8).reshape(2, 4)
    lines = printed(explanation_of_image(values, around=(0.0,) * 4)).split("\n")
    rows = [backgrounds(line) for line in lines]
    start = next(i for i, line in enumerate(lines) if "image: 2 x 4 patches" in line)
    assert rows[start + 1 : start + 3] == [[colour(v) for v in row] for row in values]
    narrow = printed(explanation_of_image(values, around=(0.0,) * 4), width=6)
    assert "the mean of 2 x 2" in " ".join(re.sub(r"\x1b\[[\d;]*m", "", narrow).split())
    means = [colour(float(values[:, :2].mean())), colour(float(values[:, 2:].mean()))]
    assert means in [backgrounds(line) for line in narrow.split("\n")]


def test_without_colours_the_rows_are_printed():
    text = printed(explanation_of_image(VALUES), colours=None)
    assert re.search(r"2-7 +\+0\.375 +image\n", text)
    found = [[float(n) for n in line.split()] for line in text.split("\n") if re.fullmatch(r"[-+\d. ]+", line)]
    assert found == VALUES.tolist()


def test_of_a_large_image_the_strongest_are_printed_without_colours():
    values = np.linspace(-0.5, 0.5, 17 * 16).reshape(17, 16)
    values[3, 5], values[16, 0] = -2.0, 1.0
    text = printed(explanation_of_image(values, at="pixels"), colours=None)
    lines = [line.split() for line in text.split("\n")]
    start = lines.index(["row", "column", "relevance"])
    assert lines[start + 1][:2] == ["4", "6"]
    assert lines[start + 2][:2] == ["17", "1"]
    assert [float(line[2]) for line in lines[start + 1 : start + 3]] == [-2.0, 1.0]
    assert lines[start + 11][:3] == ["All", "272", "regions"]
    assert "image: 17 x 16 regions" in text
    assert max(map(len, text.split("\n"))) <= 80


@pytest.mark.parametrize(("at", "word"), [("input", "patches"), ("pixels", "regions")])
def test_sums_over_pixels_are_called_regions(at, word):
    e = explanation_of_image(VALUES, at=at)
    assert f"2 x 3 {word}" in printed(e, colours=None)
    page = heatmap.to_html(e)
    assert f"2 x 3 {word}" in page
    assert f'aria-label="relevance of its {word}"' in page


def test_the_map_over_the_picture_is_pale_grey_at_0_and_the_colour_of_the_scale_at_its_end():
    picture = Image.new("RGB", (6, 4), (100, 100, 100))
    [image] = view(explanation_of_image(VALUES)).images
    over = pixels(image, np.array([[0.0, 1.0, -1.0], [0.5, 0.0, 0.0]]), picture, Look())
    pale = 255 - PALE * 155
    assert over.shape == (4, 6, 3)
    np.testing.assert_allclose(over[0, 0], pale, atol=1)
    for column, end in ((2, RED), (4, BLUE)):
        np.testing.assert_allclose(over[1, column], np.array(end) * OPAQUE + pale * (1 - OPAQUE), atol=1)
    np.testing.assert_allclose(over[3, 1], np.array(RED) * OPAQUE / 2 + pale * (1 - OPAQUE / 2), atol=1)
    assert (over[:2, :2] == over[0, 0]).all()


def test_the_png_has_the_picture_and_the_map_beside_it(tmp_path):
    picture = photo()
    e = explanation_of_image(VALUES, images=(patches(2, 2, 3, picture),))
    heatmap.to_png(e, tmp_path / "e.png", Look(scale=1.0))
    drawn = np.asarray(Image.open(tmp_path / "e.png").convert("RGB")).astype(int)
    for shown in (picture, Image.new("RGB", picture.size, (1, 2, 3))):
        small = np.asarray(shown.resize((640, 480), Image.Resampling.NEAREST)).astype(int)[::16, ::16]
        places = (drawn[y : y + 480 : 16, x : x + 640 : 16] for y in range(len(drawn) - 480) for x in range(10, 22))
        closest = min(float(np.abs(place - small).mean()) for place in places)
        assert (closest < 6) == (shown is picture)  # resampled by another method


@pytest.mark.parametrize("kind", ["pdf", "svg"])
def test_other_pictures_hold_both(kind, tmp_path):
    path = tmp_path / f"e.{kind}"
    getattr(heatmap, f"to_{kind}")(explanation_of_image(VALUES), path)
    data = path.read_bytes()
    assert data.count(b"/Subtype /Image" if kind == "pdf" else b"<image ") in (1, 2)  # matplotlib may join the two


def test_latex_draws_squares(tmp_path):
    source = heatmap.to_latex(explanation_of_image(VALUES), look=Look(scale=1.0))
    fills = re.findall(r"\\textcolor\[HTML\]{(\w{6})}{\\rule{4\.00mm}{4\.00mm}}", source)
    assert fills == [hex_colour(colour(v)) for v in VALUES.ravel()]
    if shutil.which("pdflatex"):
        (tmp_path / "e.tex").write_text(source)
        command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "e.tex"]
        ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout[-2000:]


def test_several_images_are_numbered_unless_they_have_names():
    one = (patches(2, 1, 2), patches(5, 1, 2, photo(seed=1)))
    named = (patches(2, 1, 2, name="whole"), patches(5, 1, 2, name="in detail"))
    for images, labels in ((one, ["image 1", "image 2"]), (named, ["whole", "in detail"])):
        v = view(explanation_of_image(VALUES, images=images))
        assert [image.label for image in v.images] == labels
        assert [cell.text for cell in v.cells if cell.image] == labels
    assert png_of(photo()) != png_of(photo(seed=1))


def test_numbers_of_many_patches_stand_in_blocks_without_colours():
    values = np.arange(64.0).reshape(8, 8) / 1e4
    lines = printed(explanation_of_image(values), None, 60).splitlines()
    first, second = lines.index("columns 1 to 6:"), lines.index("columns 7 to 8:")
    assert second - first == 9
    assert [len(line.split()) for line in lines[first + 1 : second]] == [6] * 8
    assert [len(line.split()) for line in lines[second + 1 : second + 9]] == [2] * 8
    assert max(map(len, lines)) <= 60
