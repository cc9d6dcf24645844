"""Attention weights are known by themselves and by their views, and products with them in any order of dimensions."""

import pytest
import torch

from lrpx.passes.attention_weights import are_weights, mark, order_in_einsum


def test_weights_and_views_of_them():
    weights = torch.rand(2, 3, 4, 4)
    mark(weights)
    assert are_weights(weights)
    assert are_weights(weights.view(6, 4, 4))
    assert not are_weights(weights * 2)
    assert not are_weights("bnij,bjnd->bind")


@pytest.mark.parametrize("equation", ["bnij,bjnd->bind", "bnij, bnjd -> bnid", "nbij,jbnd->ibnd", "bnij,bjnd->dnib"])
def test_the_order_is_that_of_a_matrix_product(equation):
    weights, values = torch.rand(2, 3, 5, 5, dtype=torch.float64), torch.rand(2, 3, 5, 7, dtype=torch.float64)
    weights_as, rest = equation.replace(" ", "").split(",")
    values_as, _ = rest.split("->")
    first = {"bnij": weights, "nbij": weights.transpose(0, 1)}[weights_as]
    second = {"bjnd": values.transpose(1, 2), "bnjd": values, "jbnd": values.permute(2, 0, 1, 3)}[values_as]
    product = torch.einsum(equation, first, second).permute(order_in_einsum(equation))
    expected = weights @ values
    torch.testing.assert_close(product, expected.transpose(0, 1) if weights_as == "nbij" else expected)


@pytest.mark.parametrize("equation", ["bnij,bjnd->bijnd", "bnij,bjndw->bindw", "bnij,bind->bnjd", "bnij,bjnd->bid"])
def test_other_products_have_none(equation):
    assert order_in_einsum(equation) is None
