"""How a heatmap writes numbers."""

import numpy as np
import pytest

from lrpx.heatmap.numbers import MINUS, darkest, fixed, four, probability, short


@pytest.mark.parametrize(
    ("value", "scale", "text"),
    [
        (0.5, 1.0, "+0.500"),
        (-0.00004, 1.0, "0"),
        (-12.3456, 123.0, "-12.3"),
        (1234.5, 1234.5, "+1234"),
        (2e-9, 4e-9, "+2.000e-09"),
        (0.0, 0.0, "0"),
    ],
)
def test_numbers_of_a_map_share_their_decimals(value, scale, text):
    assert fixed(value, scale) == text


@pytest.mark.parametrize(
    ("numbers", "far"),
    [
        ([1, -1, 5.5], "up to +5.500"),
        ([1, 4, -5.5, np.nan], f"{MINUS}5.500 to +4.000"),
        ([0, -4, -2], f"up to {MINUS}4.000"),
        ([1, -1], ""),
    ],
)
def test_how_far_numbers_are_beyond_the_scale_on_either_side(numbers, far):
    said = darkest(np.array(numbers, dtype=float), 1.5, MINUS)
    assert said.endswith(f", {far})") if far else not said


def test_a_minus_sign_can_be_given():
    assert short(-1.5, "−") == "−1.5"
    assert fixed(-0.5, 1.0, "−") == "−0.500"


@pytest.mark.parametrize(
    ("p", "text"),
    [(0.412, "= .41"), (1.0, "> .99"), (0.9951, "> .99"), (0.994, "= .99"), (0.0031, "= .0031"), (0.0010, "= .0010"),
     (0.00064, "< .001"), (0.0, "< .001"), (0.1, "= .10")],
)  # fmt: skip
def test_probabilities(p, text):
    assert probability(p) == text


def test_a_column_has_four_digits_and_their_zeros():
    assert [four(value) for value in (6.0, -3.14, 10.46, 1234.0, 0.0)] == ["+6.000", "-3.140", "+10.46", "+1234", "0"]
