"""Style sheets of different views stand in one page, as in a notebook, where each cell brings its own."""

import re

import pytest

from lrpx.heatmap import flow_html, generated_html, grid_html, html, image_html, matrix_html, overview

SHEETS = {
    "flow": flow_html._STYLE,
    "generated": generated_html._STYLE,
    "grid": grid_html.STYLE,
    "image": image_html.STYLE,
    "matrix": matrix_html.STYLE,
    "overview": overview.STYLE,
}


def classes(sheet):
    """The classes that a sheet names, and those that it gives a style wherever they are."""
    selectors = [each for rule in re.findall(r"([^{}]+)\{", sheet) for each in rule.split(",")]
    named = {name for each in selectors for name in re.findall(r"\.([a-z-]+)", each)} - {"lrpx"}
    everywhere = {found[1] for each in selectors if (found := re.match(r"\s*\.lrpx \.([a-z-]+)", each))}
    return named, everywhere


@pytest.mark.parametrize("one", SHEETS)
def test_no_view_styles_what_belongs_to_another_one(one):
    everywhere = classes(SHEETS[one])[1] - classes(html.STYLE)[0]
    for other in SHEETS.keys() - {one}:
        assert not everywhere & classes(SHEETS[other])[0], other


def test_a_class_of_two_sheets_is_found():
    assert classes(".lrpx .flow .c{}\n@media print{.lrpx .grid,.lrpx .flow>b{}}") == (
        {"flow", "c", "grid"},
        {"flow", "grid"},
    )


def test_no_map_is_cut_in_print_where_it_fits_on_a_page():
    assert re.search(
        r"@media print\{[^@]*\.lrpx,[^{}]*\{break-inside:avoid\}\.lrpx \.what\{break-after:avoid\}", html.STYLE
    )
