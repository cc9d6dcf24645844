"""Each rule against its formula on explicit matrices (``reference.py``), in float64; and its value against PyTorch's."""

import numpy as np
import pytest
import reference
import torch
from torch.nn import functional as F

from lrpx.errors import InputError
from lrpx.propagation import rules
from lrpx.recognition.activations import slope_at_zero
from lrpx.recognition.call import Call
from lrpx.recognition.gates import ranked
from lrpx.recognition.operations import ACTIVATION
from lrpx.recognition.table import BOUNDS, NAMES


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)


def relevance_of(output, inputs, weights):
    """Relevance that reaches the inputs when the output has relevance ``weights``: value times gradient."""
    gradients = torch.autograd.grad(output, inputs, weights / output.detach(), allow_unused=True)
    return [
        np.zeros(x.shape) if g is None else (x * g).detach().numpy() for x, g in zip(inputs, gradients, strict=True)
    ]


def apply(rule, function, args, kwargs):
    return rule(Call(function, args, kwargs))


def leaf(x):
    return x.requires_grad_()


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-12)


ACTIVATIONS = [F.relu, F.gelu, F.silu, torch.tanh, F.mish, F.softsign, torch.erf, F.elu, F.hardswish, torch.square]


@pytest.mark.parametrize("function", ACTIVATIONS, ids=lambda f: f.__name__)
def test_identity(function, draw):
    x, r = leaf(draw(20)), draw(20)
    y = apply(rules.identity, function, (x,), {})
    assert torch.equal(y, function(x))
    (found,) = relevance_of(y, [x], torch.where(y == 0, 0, r))
    kept = y.detach().numpy() != 0
    close(found[kept], reference.identity(r.numpy())[kept])
    assert not np.isnan(found[kept]).any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_identity_at_zero_and_next_to_it(dtype):
    """X = 0 gives the slope's limit, and the smallest numbers of the dtype give a finite slope."""
    tiny = torch.finfo(dtype).smallest_normal
    x = leaf(torch.tensor([0.0, -0.0, tiny, -tiny, 1e-3], dtype=dtype))
    y = apply(rules.identity, F.silu, (x,), {})
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert gradient.isfinite().all()
    assert (gradient[:2] == 0.5).all()
    assert (gradient[2:] > 0).all()


@pytest.mark.parametrize("name", sorted({*NAMES["activation"].split()} - {"prelu", "absolute", *BOUNDS}))
def test_the_slope_at_zero_is_its_limit(name):
    """From both sides, where they agree; elsewhere, and where the limit is 0, it is 0."""
    function = getattr(F, name, None) or getattr(torch, name)
    left, right = (float(function(x) / x) for x in torch.tensor([-1e-6, 1e-6], dtype=torch.float64))
    expected = (left + right) / 2 if abs(left - right) < 1e-4 else 0
    assert slope_at_zero(Call(function, (), {})) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "expected"),
    [
        (torch.clamp, (-1, 2), {}, 1),
        (torch.clamp, (), {"max": 2.0}, 1),
        (torch.Tensor.clamp_, (0,), {}, 0),
        (torch.clip, (), {"min": -1.0, "max": 0.0}, 0),
        (torch.clamp_min, (-0.1,), {}, 1),
        (torch.clamp_max, (0.0,), {}, 0),
        # Its number would tell, but one would have to wait for a GPU to say it.
        (torch.clamp, (torch.tensor(-1.0),), {}, 0),
        (F.hardtanh, (), {}, 1),
        (F.hardtanh, (0.0, 6.0), {}, 0),  # ReLU6
        (F.hardtanh, (), {"min_val": 0.0}, 0),
    ],
)
def test_the_slope_at_zero_between_bounds(function, args, kwargs, expected):
    assert slope_at_zero(Call(function, (torch.zeros(1), *args), kwargs)) == expected


@pytest.mark.parametrize("function", [F.gelu, F.silu, torch.tanh, F.mish, F.elu, torch.erf], ids=lambda f: f.__name__)
def test_summands_that_cancel_keep_their_relevance(function):
    """As if they did not cancel to the last bit; with a slope of 0 there, they would have none."""

    def relevance(by):
        x = leaf(torch.tensor([1.0, -1.0 + by], dtype=torch.float64))
        (gradient,) = torch.autograd.grad(apply(rules.identity, function, (x.sum(),), {}), x)
        return (x * gradient).detach()

    torch.testing.assert_close(relevance(0.0), relevance(1e-9), rtol=0, atol=1e-8)
    assert relevance(0.0)[0] > 0.4


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm(affine, draw):
    x, r = leaf(draw(8)), draw(8)
    weight, bias = (draw(8), draw(8)) if affine else (None, None)
    y = apply(rules.layer_norm, F.layer_norm, (x, (8,), weight, bias), {"eps": 1e-3})
    assert torch.equal(y, F.layer_norm(x, (8,), weight, bias, 1e-3))
    one, zero = (weight, bias) if affine else (torch.ones(8), torch.zeros(8))
    close(
        relevance_of(y, [x], r)[0], reference.layer_norm(x.detach().numpy(), one.numpy(), zero.numpy(), 1e-3, r.numpy())
    )


@pytest.mark.parametrize("eps", [None, 1e-3])
@pytest.mark.parametrize("affine", [True, False])
def test_rms_norm(affine, eps, draw):
    x, r = leaf(draw(8)), draw(8)
    weight = draw(8) if affine else None
    y = apply(rules.rms_norm, F.rms_norm, (x, (8,), weight), {"eps": eps})
    assert torch.equal(y, F.rms_norm(x, (8,), weight, eps))
    expected = reference.rms_norm(
        x.detach().numpy(),
        np.ones(8) if weight is None else weight.numpy(),
        np.finfo(float).eps if eps is None else eps,
        r.numpy(),
    )
    close(relevance_of(y, [x], r)[0], expected)


def test_unit_norm_keeps_all_relevance(draw):
    x, r = leaf(draw(8)), draw(8)
    y = apply(rules.unit_norm, F.normalize, (x,), {"dim": -1})
    assert torch.equal(y, F.normalize(x, dim=-1))
    close(relevance_of(y, [x], r)[0], r.numpy())


def test_unit_norm_has_one_slope_also_at_zero(draw):
    x = leaf(torch.tensor([[3.0, 0.0, -4.0], [0.0, 0.0, 0.0]], dtype=torch.float64))
    (gradient,) = torch.autograd.grad(apply(rules.unit_norm, F.normalize, (x, 2.0, 1), {}).sum(), x)
    assert gradient.tolist() == [[0.2] * 3, [0.0] * 3]


@pytest.mark.parametrize("exponent", [1, 2, 3, 0.5])
def test_power(exponent, draw):
    x, r = leaf(draw(8).abs()), draw(8)
    y = apply(rules.power, torch.pow, (x, exponent), {})
    assert torch.equal(y, x**exponent)
    close(relevance_of(y, [x], r)[0], reference.identity(r.numpy()))


def test_constant_passes_nothing(draw):
    y = apply(rules.constant, torch.softmax, (leaf(draw(8)), -1), {})
    assert not y.requires_grad


@pytest.mark.parametrize("function", [torch.div, torch.Tensor.__truediv__, torch.Tensor.__rtruediv__])
def test_constant_denominator(function, draw):
    a, b, r = leaf(draw(8)), leaf(draw(8)), draw(8)
    y = apply(rules.constant_denominator, function, (a, b), {})
    assert torch.equal(y, function(a, b))
    r_a, r_b = relevance_of(y, [a, b], r)
    numerator, denominator = (r_b, r_a) if function is torch.Tensor.__rtruediv__ else (r_a, r_b)
    close(numerator, r.numpy())
    close(denominator, np.zeros(8))


def test_uniform(draw):
    a, b, r = leaf(draw(8)), leaf(draw(8)), draw(8)
    y = apply(rules.uniform, torch.mul, (a, b), {})
    assert torch.equal(y, a * b)
    for found, expected in zip(relevance_of(y, [a, b], r), reference.uniform(r.numpy()), strict=True):
        close(found, expected)


def test_uniform_of_three_factors(draw):
    factors, r = [leaf(draw(8)) for _ in range(3)], draw(8)
    y = apply(rules.uniform, torch.einsum, ("i,i,i->i", *factors), {})
    assert torch.equal(y, torch.einsum("i,i,i->i", *factors))
    for found in relevance_of(y, factors, r):
        close(found, r.numpy() / 3)


@pytest.mark.parametrize("gate", [0, 1])
def test_signal_takes_all(gate, draw):
    factors, r = [leaf(draw(8)) * 1, leaf(draw(8)) * 1], draw(8)
    ranked(factors[gate], ACTIVATION)
    y = apply(rules.signal_take_all, torch.mul, factors, {})
    assert torch.equal(y, factors[0] * factors[1])
    found = relevance_of(y, factors, r)
    close(found[gate], np.zeros(8))
    close(found[1 - gate], r.numpy())


@pytest.mark.parametrize("gates", [[], [0, 1]])
def test_without_a_signal_both_factors_take_half(gates, draw):
    factors, r = [leaf(draw(8)) * 1, leaf(draw(8)) * 1], draw(8)
    for gate in gates:
        ranked(factors[gate], ACTIVATION)
    for found in relevance_of(apply(rules.signal_take_all, torch.mul, factors, {}), factors, r):
        close(found, r.numpy() / 2)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("rule", "name"), [(rules.uniform_attention, "uniform"), (rules.constant_attention, "constant")]
)
def test_attention(rule, name, causal, draw):
    q, k, v, r = leaf(draw(4, 3)), leaf(draw(4, 3)), leaf(draw(4, 3)), draw(4, 3)
    four = [t[None, None] for t in (q, k, v)]
    y = apply(rule, F.scaled_dot_product_attention, four, {"is_causal": causal, "scale": 0.7})[0, 0]
    assert torch.equal(y, F.scaled_dot_product_attention(*four, is_causal=causal, scale=0.7)[0, 0])
    mask = np.where(np.tril(np.ones((4, 4))) > 0, 0, -np.inf) if causal else np.zeros((4, 4))
    expected = reference.attention(*(t.detach().numpy() for t in (q, k, v)), mask, 0.7, r.numpy(), name)
    for found, right in zip(relevance_of(y, [q, k, v], r), expected, strict=True):
        close(found, right)


@pytest.mark.parametrize("carry", ["q", "k", "v", "qk", "qv", "kv", "mask", "v mask"])
def test_attention_shares_follow_from_who_carries(carry, draw):
    """The fused rule is the three rules of its parts, composed, whichever operands carry gradient."""
    names = ("q", "k", "v")
    q, k, v = (draw(1, 1, 4, 3).requires_grad_(name in carry.replace("mask", "")) for name in names)
    mask = draw(4, 4).requires_grad_("mask" in carry)
    inputs = [t for t in (q, k, v, mask) if t.requires_grad]
    fused = apply(rules.uniform_attention, F.scaled_dot_product_attention, (q, k, v), {"attn_mask": mask})

    def product(a, b):
        both = a.requires_grad and b.requires_grad
        return (rules.uniform if both else Call.__call__)(Call(torch.matmul, (a, b), {}))

    weights = torch.softmax(product(q, k.mT) / 3**0.5 + mask, -1)
    explicit = product(weights, v)
    torch.testing.assert_close(fused, explicit)
    for a, b in zip(*(torch.autograd.grad(y.sum(), inputs) for y in (fused, explicit)), strict=True):
        torch.testing.assert_close(a, b)


BY_WEIGHT = {
    "epsilon": (rules.epsilon(1e-3), lambda *args: reference.epsilon(*args, 1e-3)),
    "gamma": (rules.gamma(0.25), lambda *args: reference.gamma(*args, 0.25)),
    "alpha1beta0": (rules.alpha1beta0, reference.alpha1beta0),
    "alpha2beta1": (rules.alpha_beta(2, 1), lambda *args: reference.alpha_beta(*args, 2, 1)),
}
LINEAR = {
    "linear": lambda x, weight, bias: (F.linear, (x, weight, bias)),
    "linear without bias": lambda x, weight, bias: (F.linear, (x, weight)),
    "addmm": lambda x, weight, bias: (torch.addmm, (bias, x, weight.T)),
    "baddbmm": lambda x, weight, bias: (torch.baddbmm, (bias, x[None], weight.T[None])),
    "matmul": lambda x, weight, bias: (torch.matmul, (x, weight.T)),
    "bmm, weight first": lambda x, weight, bias: (torch.bmm, (weight[None], x[..., None])),
    "conv1d": lambda x, weight, bias: (F.conv1d, (x[..., None], weight[..., None], bias)),
}


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("name", BY_WEIGHT)
def test_rules_of_linear_layers(name, kind, draw):
    rule, twin = BY_WEIGHT[name]
    x, weight, bias, r = leaf(draw(1, 5)), draw(3, 5), draw(3), draw(1, 3)
    function, args = LINEAR[kind](x, weight, bias)
    y = apply(rule, function, args, {})
    assert torch.equal(y, function(*args))
    bias = bias if any(t is bias for t in args) else torch.zeros(3)
    expected = twin(x[0].detach().numpy(), weight.numpy(), bias.numpy(), r[0].numpy())
    close(relevance_of(y.reshape(1, 3), [x], r)[0][0], expected)


def test_gamma_0_is_the_ordinary_gradient_and_epsilon_is_for_small_outputs(draw):
    x, weight = leaf(draw(1, 5)), draw(3, 5)
    plain = torch.autograd.grad(F.linear(x, weight).sum(), x)[0]
    for rule in (rules.gamma(0), rules.epsilon(0)):
        (found,) = torch.autograd.grad(apply(rule, F.linear, (x, weight), {}).sum(), x)
        torch.testing.assert_close(found, plain)
    assert not torch.allclose(torch.autograd.grad(apply(rules.gamma(1), F.linear, (x, weight), {}).sum(), x)[0], plain)


def test_alpha_and_beta_have_to_conserve():
    with pytest.raises(InputError, match=r"alpha_beta\(2, 0\): alpha - beta has to be 1, as in alpha_beta\(2, 1\)"):
        rules.alpha_beta(2, 0)


@pytest.mark.parametrize("rule", [rules.epsilon, rules.gamma, rules.alpha_beta])
@pytest.mark.parametrize("given", [-1, float("nan"), float("inf"), "0.25", None])
def test_parameters_are_numbers_that_are_not_negative(rule, given):
    with pytest.raises(
        InputError, match=rf"is how to call it, with numbers that are not negative; it was given {given!r}\."
    ):
        rule(given)


def test_alpha1beta0_passes_nothing_where_no_contribution_is_positive():
    x = leaf(torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    weight = torch.tensor([[-1.0, -1.0]], dtype=torch.float64)
    y = apply(rules.alpha1beta0, F.linear, (x, weight), {})
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, torch.zeros(1, 2, dtype=torch.float64))


def test_results_may_be_changed_in_place(draw):
    """A model may add into what an operation returned; relevance then follows the sum."""
    x = leaf(draw(8))
    y = apply(rules.identity, F.silu, (x,), {})
    y += 1
    z = apply(rules.layer_norm, F.layer_norm, (y, (8,)), {})
    z *= 2
    (gradient,) = torch.autograd.grad(z[0], x)
    assert gradient.isfinite().all()
