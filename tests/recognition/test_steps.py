"""Reading one token after the other: the same values and gradients, with one node of the graph for all of them."""

import torch

from lrpx.recognition.foreign import nodes_above
from lrpx.recognition.steps import Steps


def tensor(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def loop(x):
    state, y = torch.zeros(2, 3, dtype=x.dtype), []
    for t in range(x.shape[1]):
        state = 0.5 * state + x[:, t] * x[:, -1, :]
        y.append(state)
    return torch.stack(y, 1)


def kinds(y):
    return [node.name() for node in nodes_above(y)]


def test_a_loop_has_the_same_values_and_gradients_and_takes_its_tensor_apart_once():
    g, found = tensor(2, 7, 3), []
    for mode in (None, Steps()):
        x = tensor(2, 7, 3).requires_grad_()
        if mode is None:
            y = loop(x)
        else:
            with mode:
                y = loop(x)
        found.append((y.detach(), *torch.autograd.grad(y, x, g, retain_graph=True), kinds(y)))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-14, atol=1e-14)
    assert found[0][2].count("SelectBackward0") == 14
    assert found[1][2].count("SelectBackward0") == 0
    assert found[1][2].count("UnbindBackward0") == 1


def test_other_indices_are_left_alone():
    x = tensor(2, 7, 3).requires_grad_()
    with Steps():
        for index in (0, (0, 1), (slice(None), None, 1), (slice(0, 1), 1), (slice(None), True), (..., 1)):
            assert "UnbindBackward0" not in kinds(x[index])
        assert x.detach()[:, 1].grad_fn is None


def test_what_was_changed_in_place_is_read_anew():
    x = tensor(2, 7, 3).requires_grad_()
    with Steps():
        y = x * 1
        first = y[:, 0] * 2
        y.mul_(3)
        assert torch.equal(y[:, 0], 3 * x[:, 0])
        (first + y[:, 0]).sum().backward()
    assert torch.equal(x.grad[:, 0], torch.full((2, 3), 5.0, dtype=x.dtype))
