"""What an operation is, and so which factor gets the relevance: against the right values, by hand."""

import pytest
import torch
from formulas import draw
from torch import nn
from torch.nn import functional as F

import lrpx


def relevances(function, *inputs, rules="lrp"):
    """Relevance of each input; the value is PyTorch's own."""
    with lrpx.propagate(nn.Identity(), rules):
        y = function(*inputs)
    assert torch.equal(y, function(*inputs))
    gradients = torch.autograd.grad(y.sum(), inputs, allow_unused=True)
    return [torch.zeros_like(x) if g is None else (x * g).detach() for x, g in zip(inputs, gradients, strict=True)]


# The signal of a gated product may be bounded, shifted or normalised: the gate still gets exactly 0.
SIGNALS = {
    "as it is": lambda u: u,
    "clamped": lambda u: torch.clamp(u, -0.7, 0.7),
    "clamped in place": lambda u: (u * 1).clamp_(-0.7, 0.7),
    "soft cap": lambda u: 2 * torch.tanh(u / 2),
    "root": lambda u: torch.sqrt(u.abs()),
    "normalised": lambda u: F.normalize(u, dim=-1),
    "cast and moved": lambda u: u.float().double().view(4, 5).reshape(20),
}
GATES = {
    "silu": F.silu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "quick gelu written out": lambda g: g * torch.sigmoid(1.702 * g),
    "gelu by erf written out": lambda g: g * 0.5 * (1 + torch.erf(g / 2**0.5)),
    "silu by division": lambda g: g / (1 + torch.exp(-g)),
    "squared relu": lambda g: F.relu(g).square(),
    "clamped silu": lambda g: F.silu(g).clamp(max=1.0),
    "softmax": lambda g: torch.softmax(g, -1),
    "1 - sigmoid": lambda g: 1 - torch.sigmoid(g),
}


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("gate", GATES)
def test_the_gate_gets_exactly_0(gate, signal):
    """As gpt_oss computes ``glu * clamp(up)``; conservation alone would not see half of it go to the gate."""
    g, u = draw(20), draw(20, seed=1)
    for function in (
        lambda g, u: GATES[gate](g) * SIGNALS[signal](u),
        lambda g, u: SIGNALS[signal](u) * GATES[gate](g),
    ):
        r_gate, r_signal = relevances(function, g, u)
        assert not r_gate.any()
        torch.testing.assert_close(r_signal, function(g, u).detach(), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("product", [lambda g: (g, torch.sigmoid(g)), lambda g: (F.relu(g), F.relu(g))])
@pytest.mark.parametrize("rules", ["lrp", "attnlrp"])
def test_what_addcmul_adds_to_an_activation_makes_a_signal_of_it(rules, product):
    """``addcmul(b, x, sigmoid(x))`` is ``b + silu(x)``, which is no gate."""
    x, b, u = draw(20), draw(20, seed=1), draw(20, seed=2)
    found = relevances(lambda x, b, u: torch.addcmul(b, *product(x)) * u, x, b, u, rules=rules)
    added = ((b + torch.mul(*product(x))) * u).detach()
    torch.testing.assert_close(found[0] + found[1], added / 2)
    torch.testing.assert_close(found[1], (b * u).detach() / 2)
    torch.testing.assert_close(found[2], added / 2)


@pytest.mark.parametrize("rules", ["lrp", "attnlrp"])
def test_a_product_added_in_place_writes_where_it_should(rules):
    """``addmm_`` of two signals is ``r + x @ y``, also for who looks at ``r`` afterwards."""

    def in_place(r, x, y):
        kept = r * 1.0
        kept.addmm_(x, y)
        return kept

    r, x, y = draw(3, 3), draw(3, 4, seed=1), draw(4, 3, seed=2)
    wanted = relevances(lambda r, x, y: r + x @ y, r, x, y, rules=rules)
    for a, b in zip(relevances(in_place, r, x, y, rules=rules), wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_a_constant_beside_the_signal_takes_its_share():
    """``(clamp(up) + 1) * glu``, as in gpt_oss: what the 1 contributes belongs to no input."""
    g, u = draw(20), draw(20, seed=1)
    r_gate, r_signal = relevances(lambda g, u: (torch.clamp(u, -0.7, 0.7) + 1) * F.silu(g), g, u)
    assert not r_gate.any()
    torch.testing.assert_close(r_signal, (torch.clamp(u, -0.7, 0.7) * F.silu(g)).detach())


def test_two_bounded_signals_share():
    """Neither is a gate."""
    a, b = draw(20), draw(20, seed=1)
    y = (torch.tanh(a) * torch.clamp(b, -0.7, 0.7)).detach()
    for r in relevances(lambda a, b: torch.tanh(a) * torch.clamp(b, -0.7, 0.7), a, b):
        torch.testing.assert_close(r, y / 2)


# What is made of constant gates alone is constant, whatever it goes through.
MADE_OF_GATES = {
    "a product of two": lambda g: torch.sigmoid(g) * torch.sigmoid(g.flip(0)),
    "a linear layer": lambda g: torch.sigmoid(g) @ torch.linspace(-1, 1, 400, dtype=torch.float64).view(20, 20),
    "renormalised": lambda g: torch.sigmoid(g) / (torch.sigmoid(g).sum() + 1e-20),
    "renormalised in place": lambda g: torch.sigmoid(g).div_(torch.sigmoid(g).sum()),
    "a concatenation": lambda g: torch.cat([torch.sigmoid(g[:10]), torch.softmax(g[10:], -1)]),
}


@pytest.mark.parametrize("name", MADE_OF_GATES)
def test_what_is_made_of_constant_gates_is_constant(name):
    g, u = draw(20), draw(20, seed=1)
    r_gate, r_signal = relevances(lambda g, u: MADE_OF_GATES[name](g) * u, g, u)
    assert not r_gate.any()
    torch.testing.assert_close(r_signal, (MADE_OF_GATES[name](g) * u).detach())


# Routers: the same weights of the experts, computed in several ways.


def chosen(z):
    return z.topk(2, -1).indices


def by_scatter(z):
    p = torch.softmax(z, -1)
    kept = torch.zeros_like(p).scatter(-1, chosen(z), p.gather(-1, chosen(z)))
    return (kept / kept.sum(-1, keepdim=True)).gather(-1, chosen(z))


def in_place(z):
    p = torch.softmax(z, -1, dtype=torch.float64).gather(-1, chosen(z))
    p /= p.sum(-1, keepdim=True)
    return p


SOFTMAX_ROUTERS = {
    "softmax of the chosen": lambda z: torch.softmax(z.gather(-1, chosen(z)), -1),
    "renormalised": lambda z: (p := torch.softmax(z, -1).topk(2, -1).values) / p.sum(-1, keepdim=True),
    "renormalised in place": in_place,
    "renormalised with a small constant": lambda z: (
        (p := torch.softmax(z, -1).topk(2, -1).values) / (p.sum(-1, keepdim=True) + 1e-20)
    ),
    "by scatter": by_scatter,
    "by masked exponentials": lambda z: (e := torch.exp(z).gather(-1, chosen(z))) / e.sum(-1, keepdim=True),
}


@pytest.mark.parametrize("rules", ["lrp", "attnlrp", "lrp-uniform-gate"])
@pytest.mark.parametrize("name", SOFTMAX_ROUTERS)
def test_routers_that_are_the_same_function_give_the_same_map(name, rules):
    z, experts = draw(3, 5), draw(3, 5, 4, seed=1)

    def mixed(router):
        def function(z, experts):
            outputs = experts.gather(1, chosen(z)[..., None].expand(-1, -1, 4))
            return (router(z)[..., None] * outputs).sum(1)

        return function

    found = relevances(mixed(SOFTMAX_ROUTERS[name]), z, experts, rules=rules)
    known = relevances(mixed(SOFTMAX_ROUTERS["softmax of the chosen"]), z, experts, rules=rules)
    for a, b in zip(found, known, strict=True):
        torch.testing.assert_close(a, b)
    unchosen = torch.ones(3, 5).scatter(-1, chosen(z), 0).bool()
    assert found[0][unchosen].abs().max() < 1e-15  # 0, but for rounding
    if rules == "attnlrp":
        assert found[0][~unchosen].abs().max() > 1e-2


def test_renormalised_sigmoids_have_their_ordinary_gradient_under_attnlrp():
    z, s = draw(5), draw(5, seed=1)

    def router(z):
        p = torch.sigmoid(z)
        return p / p.sum()

    r_router, r_signal = relevances(lambda z, s: router(z) * s, z, s, rules="attnlrp")
    (expected,) = torch.autograd.grad((router(z) * s.detach()).sum(), z)
    torch.testing.assert_close(r_router, (z * expected / 2).detach())
    torch.testing.assert_close(r_signal, (router(z) * s / 2).detach())


# Magnitudes normalise what they multiply.
MAGNITUDES = {
    "root of the mean of squares": lambda x: torch.mean(x**2, -1, keepdim=True) ** 0.5,
    "sqrt, bounded": lambda x: torch.sqrt(torch.mean(x.square(), -1, keepdim=True).clamp(min=1e-5)),
    "sqrt with a constant": lambda x: torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6),
    "norm": lambda x: x.norm(dim=-1, keepdim=True),
    "linalg": lambda x: torch.linalg.vector_norm(x, dim=-1, keepdim=True),
}


@pytest.mark.parametrize("rules", ["lrp", "attnlrp", "lrp-uniform-gate"])
@pytest.mark.parametrize("name", MAGNITUDES)
def test_a_magnitude_that_multiplies_is_a_constant(name, rules):
    """As gemma3n gives one hidden state the magnitude of another."""
    magnitude = MAGNITUDES[name]
    h, x = draw(3, 8), draw(3, 8, seed=1)
    r_magnitude, r = relevances(lambda h, x: x * magnitude(h) / magnitude(x), h, x, rules=rules)
    assert not r_magnitude.any()
    torch.testing.assert_close(r, (x * magnitude(h) / magnitude(x)).detach(), rtol=1e-6, atol=1e-9)


def test_a_root_of_anything_else_is_no_magnitude():
    a, b = draw(8), draw(8, seed=1)
    y = (torch.sqrt(a.abs()) * b).detach()
    for r in relevances(lambda a, b: torch.sqrt(a.abs()) * b, a, b):
        torch.testing.assert_close(r, y / 2)
