"""The rate of matrix products that an estimate starts from."""

import pytest

from lrpx.errors import InputError
from lrpx.evaluation.speed import products_per_second


def test_a_rate():
    assert products_per_second("float32", "cpu", width=64, repeats=1) > 0


@pytest.mark.parametrize(("dtype", "device"), [("float31", "cpu"), ("auto", "cpu"), ("float32", "nowhere")])
def test_what_is_no_type_or_device(dtype, device):
    with pytest.raises(InputError, match=r"dtype|device"):
        products_per_second(dtype, device)
