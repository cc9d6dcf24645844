"""The same function written in other ways has the same map; and what a look back in the graph must survive."""

import threading
from functools import partial

import formulas
import pytest
import reference
import tiny
import torch
from formulas import Formula, draw
from torch import nn
from torch.nn import functional as F

import lrpx
from lrpx.errors import UnsupportedModelError
from lrpx.propagation import rules
from lrpx.propagation.rulesets import ATTNLRP, LRP

RULESETS = ["lrp", "attnlrp", "lrp-uniform-gate"]


def relevances(function, *inputs, rule_set="attnlrp"):
    return formulas.relevances(function, *inputs, rule_set=rule_set)[1]


def assert_same(one, other, *inputs, rule_set):
    """The same function written in two ways has the same map."""
    torch.testing.assert_close(one(*inputs), other(*inputs))
    for a, b in zip(
        relevances(one, *inputs, rule_set=rule_set), relevances(other, *inputs, rule_set=rule_set), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


# Products of two by other functions; the first argument of einsum is its equation.
EINSUM = {
    "scores": (lambda q, k: torch.einsum("bid,bjd->bij", q, k), lambda q, k: q @ k.mT),
    "list": (lambda q, k: torch.einsum("bid,bjd->bij", [q, k]), lambda q, k: q @ k.mT),
    "linalg": (lambda q, k: torch.linalg.matmul(q, k.mT), lambda q, k: q @ k.mT),
    "tensordot": (lambda q, k: torch.tensordot(q[0], k[0], dims=([1], [1])), lambda q, k: q[0] @ k[0].mT),
    "gate": (lambda g, u: torch.einsum("bid,bid->bid", F.silu(g), u), lambda g, u: F.silu(g) * u),
    "changed in place": (lambda q, k: torch.einsum("bid,bjd->bij", q, k).add_(1.0), lambda q, k: q @ k.mT + 1.0),
}


@pytest.mark.parametrize("rule_set", RULESETS[:2])
@pytest.mark.parametrize("name", EINSUM)
def test_einsum_is_a_product(name, rule_set):
    assert_same(*EINSUM[name], draw(2, 4, 8), draw(2, 4, 8, seed=1), rule_set=rule_set)


@pytest.mark.parametrize("rule_set", RULESETS[:2])
def test_einsum_of_three(rule_set):
    a, b, c = (draw(2, 4, 8, seed=i) for i in range(3))
    y = torch.einsum("bid,bjd,bjd->bi", a, b, c).sum().detach()
    for r in relevances(lambda a, b, c: torch.einsum("bid,bjd,bjd->bi", a, b, c), a, b, c, rule_set=rule_set):
        torch.testing.assert_close(r.sum(), y / 3)


@pytest.mark.parametrize("rule_set", RULESETS)
def test_einsum_that_sums_nothing_is_element_wise(rule_set):
    """Under lrp-uniform-gate a gated product is halved, and of one tensor it is an activation."""
    g, u = draw(2, 4, 8), draw(2, 4, 8, seed=1)
    times = partial(torch.einsum, "bid, bid -> bid")
    assert_same(lambda g, u: times(F.silu(g), u), lambda g, u: F.silu(g) * u, g, u, rule_set=rule_set)
    assert_same(lambda g, u: times(g, torch.sigmoid(g)) * u, lambda g, u: F.silu(g) * u, g, u, rule_set=rule_set)


# Keys and values may be one tensor.
SHARED = {
    "all": (lambda x, _: F.scaled_dot_product_attention(x, x, x), lambda x, _: eager_attention(x, x, x)),
    "keys and values": (lambda x, k: F.scaled_dot_product_attention(x, k, k), lambda x, k: eager_attention(x, k, k)),
}


def eager_attention(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


@pytest.mark.parametrize("rule_set", RULESETS[:2])
@pytest.mark.parametrize("name", SHARED)
def test_fused_attention_on_one_tensor(name, rule_set):
    assert_same(*SHARED[name], draw(2, 4, 8), draw(2, 4, 8, seed=1), rule_set=rule_set)


# An activation written out on a long residual stream.
@pytest.mark.parametrize("name", ["swish", "gelu"])
def test_an_activation_written_out_deep_in_a_residual_stream(name):
    w = (draw(8, 8, seed=3) * 0.05).detach()

    def activation(x):
        if name == "swish":
            return x * torch.sigmoid(x)
        return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))

    def network(x):
        for _ in range(150):
            x = x + activation(x) @ w
        return x

    x = draw(3, 8)
    (r,) = relevances(network, x)
    torch.testing.assert_close(r.sum(), network(x).sum().detach(), rtol=1e-6, atol=1e-9)


# The model's operand carries gradient only after an in-place call.
IN_PLACE = {
    "baddbmm_": (lambda q, k: torch.ones(2, 4, 4).double().baddbmm_(q, k.mT), lambda q, k: 1 + q @ k.mT),
    "addcmul_": (lambda q, k: torch.ones(2, 4, 8).double().addcmul_(q, k), lambda q, k: 1 + q * k),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_fused_products_in_place(name):
    assert_same(*IN_PLACE[name], draw(2, 4, 8), draw(2, 4, 8, seed=1), rule_set="attnlrp")


# A rule's factor belongs to the product, not to the tensor that it returns.
def test_a_product_that_is_a_view_changed_in_place():
    assert_same(
        lambda x, u: torch.inner(x, u).add_(1.0), lambda x, u: x @ u.mT + 1, draw(3, 8), draw(3, 8, seed=1),
        rule_set="attnlrp",
    )  # fmt: skip


def test_the_gradient_at_a_product_is_the_gradient_at_a_product():
    """Relevance of a hidden state that is a product, as a forward hook of the user's sees it."""
    a, b, kept = draw(5), draw(5, seed=1), []
    model = Formula(lambda a, b: a * b)
    model.register_forward_hook(lambda *args: kept.append(args[-1]))
    with lrpx.propagate(model, "attnlrp"):
        y = model(a, b) * 3.0
    (gradient,) = torch.autograd.grad(y.sum(), kept[0])
    torch.testing.assert_close(gradient, torch.full_like(gradient, 3.0))


def test_the_gradient_at_fused_attention():
    x = [draw(1, 4, 8, seed=i) for i in range(3)]
    model = Formula(F.scaled_dot_product_attention)
    with lrpx.propagate(model, "attnlrp"):
        y = model(*x)
        y.retain_grad()
        y.sum().backward()
    torch.testing.assert_close(y.grad, torch.ones_like(y))


# Swish by a division is no sigmoid.
def swish_by_division(x):
    return x / (1 + torch.exp(-x))


@pytest.mark.parametrize("rule_set", RULESETS)
def test_swish_by_division_is_no_sigmoid(rule_set):
    swish, x, u = swish_by_division, draw(3, 8), draw(3, 8, seed=1)
    assert_same(lambda x: swish(x) * swish(x), lambda x: F.silu(x) * F.silu(x), x, rule_set=rule_set)
    assert_same(lambda x, u: swish(x) * F.relu(u), lambda x, u: F.silu(x) * F.relu(u), x, u, rule_set=rule_set)


# A division by what makes a gate is a product with a gate.
DIVIDED = {
    "sigmoid": (lambda g, u: u / (1 + torch.exp(-g)), lambda g, u: u * torch.sigmoid(g)),
    "sigmoid in place": (lambda g, u: (u * 1.0).div_(1 + torch.exp(-g)), lambda g, u: u * torch.sigmoid(g)),
    "exp": (lambda g, u: u / torch.exp(g), lambda g, u: u * torch.exp(-g)),
    "one for a row": (lambda g, u: u / (1 + torch.exp(-g[:, :1])), lambda g, u: u * torch.sigmoid(g)[:, 0, None]),
    "inverse for a row": (lambda g, u: u * (1 / (1 + torch.exp(-g[:, :1]))), lambda g, u: u * torch.sigmoid(g[:, :1])),
    "softplus": (lambda g, u: u / F.softplus(g), lambda g, u: u * (1 / F.softplus(g))),
}


@pytest.mark.parametrize("rule_set", RULESETS)
@pytest.mark.parametrize("name", DIVIDED)
def test_a_division_by_a_gate_is_a_product(name, rule_set):
    assert_same(*DIVIDED[name], draw(3, 8), draw(3, 8, seed=1), rule_set=rule_set)


# A product of two activations of one tensor is an activation.
WRITTEN_GATES = {
    "relu * relu": (lambda g, u: F.relu(g) * F.relu(g) * u, lambda g, u: F.relu(g).square() * u),
    "x * relu": (lambda g, u: (g * F.relu(g)) * u, lambda g, u: F.relu(g).square() * u),
    "relu by clamp": (lambda g, u: g.clamp(min=0) * u, lambda g, u: F.relu(g) * u),
    "relu by an endless clamp": (lambda g, u: g.clamp(0, float("inf")) * u, lambda g, u: F.relu(g) * u),
    "relu6 by clamp": (lambda g, u: g.clamp(0, 6) * u, lambda g, u: F.relu6(g) * u),
    "relu6 by hardtanh": (lambda g, u: F.hardtanh(g, max_val=6.0, min_val=0.0) * u, lambda g, u: F.relu6(g) * u),
    "relu6 by its module": (lambda g, u: nn.ReLU6()(g) * u, lambda g, u: F.relu6(g) * u),
    "relu6 in place": (lambda g, u: nn.ReLU6(inplace=True)(g * 1.0) * u, lambda g, u: F.relu6(g) * u),
}


@pytest.mark.parametrize("name", WRITTEN_GATES)
def test_gates_written_out(name):
    assert_same(*WRITTEN_GATES[name], draw(3, 8), draw(3, 8, seed=1), rule_set="lrp")


# Two passes in two threads share a model, and the hooks on its activations.
def test_two_threads_and_an_activation_module():
    """Both are inside the activation; the first to enter leaves first."""
    second_inside, first_done, first_inside = threading.Event(), threading.Event(), threading.Event()

    class NewGELU(nn.Module):
        def forward(self, x):
            if threading.current_thread().name == "first":
                first_inside.set()
                second_inside.wait(300)
            if threading.current_thread().name == "second":
                second_inside.set()
                first_done.wait(300)
            return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))

    model = nn.Sequential(nn.Linear(8, 8), NewGELU()).double().requires_grad_(False)
    found, failed = {}, []

    def run(name, seed):
        x = draw(2, 8, seed=seed)
        try:
            with lrpx.propagate(model, "attnlrp"):
                y = model(x)
            (found[name],) = torch.autograd.grad(y.sum(), x)
        except Exception as error:
            failed.append(error)
        finally:
            if name == "first":
                first_done.set()

    run("alone first", 0)
    run("alone second", 1)
    first, second = (
        threading.Thread(target=run, args=(name, seed), name=name) for seed, name in enumerate(("first", "second"))
    )
    first.start()
    first_inside.wait(300)
    second.start()
    first.join()
    second.join()
    assert not failed
    torch.testing.assert_close(found["first"], found["alone first"])
    torch.testing.assert_close(found["second"], found["alone second"])


# The look back is neither recursive without a limit nor exponential.
def test_a_long_loop_that_fills_a_tensor():
    x, u = draw(3, 8), draw(1200, 8, seed=1)

    def function(x, u):
        filled = torch.zeros(1200, 8, dtype=x.dtype)
        for t in range(1200):
            filled[t] = x[t % 3] * 1.0
        return filled * u

    for r in relevances(function, x, u, rule_set="lrp"):
        torch.testing.assert_close(r.sum(), function(x, u).sum().detach() / 2)


def test_a_gate_of_many_shared_parts_takes_no_time():
    import lrpx.recognition.gates as gates
    from lrpx.recognition.gates import rank_of

    def transformed(x):
        """A fast Hadamard transform."""
        y = F.softplus(x)
        for _ in range(8):
            a, b = y.view(3, -1, 2).unbind(-1)
            y = torch.cat([a + b, a - b], -1)
        return y

    steps, known = [0], gates.operation_of_node

    def counting(name):
        steps[0] += 1
        if steps[0] > 20_000:
            raise AssertionError("the look back takes exponential time")
        return known(name)

    y = transformed(draw(3, 256))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gates, "operation_of_node", counting)
        rank_of(y)


# RMSNorm's default epsilon: which one, depends on the version of PyTorch where the input is narrower than float32.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rms_norm_with_its_default_epsilon(dtype):
    x = (draw(4, 64).detach() * 0.02).to(dtype).requires_grad_()
    model = nn.RMSNorm(64).to(dtype)
    with lrpx.propagate(model, "lrp"):
        y = model(x)
    (gradient,) = torch.autograd.grad(y.abs().sum(), x)
    torch.testing.assert_close((x * gradient).float().sum(), y.abs().float().sum(), rtol=0.02, atol=0)


# A normaliser written in place is a constant, and no factor that would take half.
NORMALISERS_IN_PLACE = {
    "rsqrt_": lambda m: m.rsqrt_(),
    "pow_": lambda m: m.pow_(-0.5),
    "reciprocal_": lambda m: m.sqrt_().reciprocal_(),
}


@pytest.mark.parametrize("rule_set", RULESETS)
@pytest.mark.parametrize("name", NORMALISERS_IN_PLACE)
def test_a_normaliser_in_place(name, rule_set):
    inverse = NORMALISERS_IN_PLACE[name]
    x, w = draw(3, 8), torch.linspace(0, 3, 8, dtype=torch.float64)
    assert_same(
        lambda x: x * inverse(x.square().mean(-1, keepdim=True).add_(1e-6)) * w, lambda x: F.rms_norm(x, (8,), w, 1e-6),
        x, rule_set=rule_set,
    )  # fmt: skip


# The mean of ``var_mean`` is no normaliser.
@pytest.mark.parametrize("rule_set", RULESETS)
def test_layer_norm_by_var_mean(rule_set):
    def written(x):
        var, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(var + 1e-5)

    w = torch.linspace(0, 3, 8, dtype=torch.float64)
    assert_same(lambda x: written(x) * w, lambda x: F.layer_norm(x, (8,)) * w, draw(3, 8), rule_set=rule_set)


# Renormalised by a 1-norm, as DBRX does, and softmax in other words.
RENORMALISED = {
    "norm": lambda w: w / torch.norm(w, p=1, dim=-1, keepdim=True),
    "vector_norm": lambda w: w / torch.linalg.vector_norm(w, ord=1, dim=-1, keepdim=True),
    "normalize": lambda w: F.normalize(w, p=1.0, dim=-1),
}


@pytest.mark.parametrize("name", RENORMALISED)
def test_renormalised_weights_in_other_words(name):
    renormalised = RENORMALISED[name]
    g, u = draw(3, 8), draw(3, 4, seed=1)
    assert_same(
        lambda g, u: renormalised(torch.softmax(g, -1).topk(4, -1).values) * u,
        lambda g, u: torch.softmax(g.topk(4, -1).values, -1) * u,
        g, u, rule_set="attnlrp",
    )  # fmt: skip
    assert_same(
        lambda g, u: renormalised(torch.exp(g))[:, :4] * u, lambda g, u: torch.softmax(g, -1)[:, :4] * u,
        g, u, rule_set="attnlrp",
    )  # fmt: skip


# Sign, floor and round are constant almost everywhere, whatever autograd says.
STEPS = {
    "symlog": (lambda x: x.sign() * x.abs().log1p(), lambda x: x.sign().detach() * x.abs().log1p()),
    "signed root": (lambda x: x.sign() * x.abs().sqrt(), lambda x: x.sign().detach() * x.abs().sqrt()),
    "soft shrink": (lambda x: x.sign() * F.relu(x.abs() - 0.3), lambda x: x.sign().detach() * F.relu(x.abs() - 0.3)),
    "round": (lambda x: (x * 3).round() * x.flip(0), lambda x: (x.detach() * 3).round() * x.flip(0)),
}


@pytest.mark.parametrize("rule_set", RULESETS)
@pytest.mark.parametrize("name", STEPS)
def test_a_step_function_is_a_constant_factor(name, rule_set):
    assert_same(*STEPS[name], draw(20), rule_set=rule_set)


# Summands that are factors too, or carry gradient.
def test_addcmul_of_a_tensor_to_itself():
    x, s = draw(3, 8), draw(3, 8, seed=1)
    try:
        found = relevances(lambda x, s: torch.addcmul(x, x, s), x, s)
    except UnsupportedModelError:
        return
    for a, b in zip(found, relevances(lambda x, s: x + x * s, x, s), strict=True):
        torch.testing.assert_close(a, b)


def test_addcmul_is_element_wise():
    """Under lrp-uniform-gate a gated product is halved however it is written."""
    one = torch.ones(8, dtype=torch.float64)
    assert_same(
        lambda g, u: torch.addcmul(one, F.silu(g), u), lambda g, u: 1 + F.silu(g) * u, draw(3, 8), draw(3, 8, seed=1),
        rule_set="lrp-uniform-gate",
    )  # fmt: skip


def test_a_bias_is_no_factor():
    x, w, b = draw(3, 5), draw(4, 5, seed=1), draw(4, seed=2)
    assert_same(F.linear, lambda x, w, b: x @ w.mT + b, x, w, b, rule_set="attnlrp")


def test_gamma_and_a_summand_that_carries_gradient():
    x, residual, w = draw(3, 6), draw(3, 4, seed=1), draw(6, 4, seed=2).detach()
    own = {"linear": rules.gamma(0.25)}
    try:
        found = relevances(lambda x, r: torch.addmm(r, x, w), x, residual, rule_set=own)
    except UnsupportedModelError:
        return
    wanted = relevances(lambda x, r: torch.addmm(torch.zeros(4).double(), x, w) + r, x, residual, rule_set=own)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


# A gate in place.
def test_a_gate_in_place_stays_a_constant():
    """gates.py is_constant walks ``next_functions``, not ``edges_of``: what was there before ``copy_`` is gone."""
    w = draw(8, 8, seed=3).detach()
    for rule_set in ("lrp", "lrp-uniform-gate"):
        assert_same(
            lambda g, u: ((g * 1.0).sigmoid_() @ w) @ u.mT, lambda g, u: (torch.sigmoid(g) @ w) @ u.mT,
            draw(3, 8), draw(3, 8, seed=1), rule_set=rule_set,
        )  # fmt: skip


# A layer of rules within the same layer of rules.
def test_nested_propagate():
    """The inner one alone, or refused: every product is halved twice."""
    a, b = draw(5), draw(5, seed=1)
    model = Formula(lambda a, b: a * b)
    try:
        with lrpx.propagate(model, "attnlrp"), lrpx.propagate(model, "attnlrp"):
            y = model(a, b)
    except (UnsupportedModelError, lrpx.errors.InputError):
        return
    torch.testing.assert_close(a * torch.autograd.grad(y.sum(), a)[0], y.detach() / 2)


# What the mode does not see, because it is no PyTorch function.
def test_functions_that_hide_their_operations():
    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            return gradient * b, gradient * a

    from torch.utils.checkpoint import checkpoint

    hidden = [
        Product.apply,
        lambda a, b: checkpoint(lambda a, b: a * b, a, b, use_reentrant=True),
    ]
    a, b = draw(5), draw(5, seed=1)
    quiet = []
    for function in hidden:
        model = Formula(function)
        try:
            with lrpx.propagate(model, "attnlrp"):
                model(a, b)
            quiet.append(function)
        except UnsupportedModelError:
            pass
    assert not quiet


# Rule sets of users.
def test_a_softmax_written_out_gets_the_users_rule():
    own = {**ATTNLRP, "softmax": rules.constant}
    g, u = draw(3, 8), draw(3, 8, seed=1)
    try:
        found = relevances(lambda g, u: g.exp() / g.exp().sum(-1, keepdim=True) * u, g, u, rule_set=own)
    except UnsupportedModelError:
        return
    for a, b in zip(found, relevances(lambda g, u: torch.softmax(g, -1) * u, g, u, rule_set=own), strict=True):
        torch.testing.assert_close(a, b)


def test_a_rule_for_structure_applies_or_is_refused():
    def forbidden(call):
        raise AssertionError("applied")

    with pytest.raises((AssertionError, lrpx.errors.InputError)):
        relevances(lambda x: x.view(-1), draw(3, 8), rule_set={**LRP, "structure": forbidden})


# A norm of a gate is a gate, whether it is fused or written out.
NORMS = {
    "rms_norm": (
        lambda s: F.rms_norm(s, (8,), eps=1e-6),
        lambda s: s * torch.rsqrt(s.pow(2).mean(-1, keepdim=True) + 1e-6),
    ),
    "normalize": (lambda s: F.normalize(s, dim=-1), lambda s: s / s.norm(dim=-1, keepdim=True)),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_of_a_gate(name):
    fused, written = NORMS[name]
    assert_same(
        lambda g, u: fused(F.silu(g)) * u, lambda g, u: written(F.silu(g)) * u, draw(3, 8), draw(3, 8, seed=1),
        rule_set="lrp",
    )  # fmt: skip


# Exponents of more than one number; the model's own hooks.
@pytest.mark.parametrize("rule_set", RULESETS)
def test_an_exponent_for_every_channel(rule_set):
    n = torch.full((8,), 3.0, dtype=torch.float64)
    assert_same(lambda x: x.abs() ** n, lambda x: x.abs() ** 3, draw(3, 8), rule_set=rule_set)


def test_the_trial_of_an_activation_does_not_call_the_users_hooks():
    class NewGELU(nn.Module):
        def forward(self, x):
            return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x**3)))

    model, seen = nn.Sequential(NewGELU()), []
    model[0].register_forward_hook(lambda *args: seen.append(args[-1].shape))
    with lrpx.propagate(model, "lrp"):
        model(draw(3, 8))
    assert seen == [(3, 8)]


# Functions that are several operations in one.
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("rule_set", RULESETS)
def test_group_norm(affine, rule_set):
    """Against the formula, element by element; the value is that of PyTorch's kernel."""
    x, weight, bias = draw(2, 6, 4), *(draw(6, seed=i).detach() if affine else None for i in (1, 2))
    factors = draw(2, 6, 4, seed=3).detach()  # the sum of what is normalised is 0

    def normalised(x):
        return F.group_norm(x, 3, weight, bias, 1e-3) * factors

    y, [found], mode = formulas.relevances(normalised, x, rule_set=rule_set)
    one, zero = (weight, bias) if affine else (torch.ones(6), torch.zeros(6))
    for n in range(2):
        expected = reference.group_norm(
            x[n].detach().numpy(), 3, one.numpy(), zero.numpy(), 1e-3, y[n].detach().numpy()
        )
        torch.testing.assert_close(found[n], torch.from_numpy(expected), rtol=1e-10, atol=1e-12)
    assert mode.hits == {"layer_norm": 1}
    plain = x * torch.autograd.grad(normalised(x).sum(), x)[0]
    assert not torch.allclose(found, plain, rtol=1e-2)  # the deviation takes a part there


def test_group_norm_of_one_group_is_layer_norm_of_all_channels():
    assert_same(
        lambda x: F.group_norm(x, 1)[:, 1], lambda x: F.layer_norm(x, (6, 4, 3))[:, 1], draw(2, 6, 4, 3), rule_set="lrp"
    )
    factors = draw(2, 6, seed=1).detach()
    norm = nn.GroupNorm(2, 6).double().requires_grad_(False)
    assert_same(lambda x: norm(x) * factors, lambda x: torch.group_norm(x, 2) * factors, draw(2, 6), rule_set="attnlrp")


@pytest.mark.parametrize("rule_set", RULESETS)
@pytest.mark.parametrize("dim", [1, -1])
def test_a_gated_linear_unit_is_a_product_with_a_sigmoid(rule_set, dim):
    def written_out(x):
        signal, gate = x.chunk(2, dim)
        return signal * torch.sigmoid(gate)

    assert_same(lambda x: F.glu(x, dim), written_out, draw(2, 6, 4), rule_set=rule_set)
    assert_same(nn.GLU(dim), written_out, draw(2, 6, 4), rule_set=rule_set)
    assert_same(lambda x: F.glu(x, dim).add_(1.0), lambda x: written_out(x) + 1, draw(2, 6, 4), rule_set=rule_set)


def test_which_half_of_a_gated_linear_unit_gets_it():
    """Conservation would not see relevance that went to the gate."""
    signal, gate = draw(3, 8), draw(3, 8, seed=1)

    def unit(signal, gate):
        return F.glu(torch.cat([signal, gate], -1))

    y, (of_signal, of_gate), _ = formulas.relevances(unit, signal, gate, rule_set="lrp")
    assert torch.equal(of_gate, torch.zeros_like(gate))
    torch.testing.assert_close(of_signal, y.detach())
    y, (of_signal, of_gate), _ = formulas.relevances(unit, signal, gate, rule_set="attnlrp")
    torch.testing.assert_close(of_signal, y.detach() / 2)
    torch.testing.assert_close(of_gate, (y * gate * (1 - gate.sigmoid()) / 2).detach())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_functions_that_are_several_operations_keep_their_value(dtype):
    """A kernel rounds once what its parts round one by one."""
    x = draw(2, 64, 32).detach().to(dtype).requires_grad_()
    signal, gate = x.chunk(2, 1)
    for function in (lambda x: F.glu(x, 1), lambda x: F.group_norm(x, 8)):
        formulas.relevances(function, x, rule_set="attnlrp")  # which compares the value, bit for bit
    assert dtype == torch.float32 or not torch.equal(signal * gate.sigmoid(), F.glu(x, 1))


def test_a_rule_of_your_own_for_the_parts_counts():
    signal, gate = draw(3, 8), draw(3, 8, seed=1)
    rules_of_all = {**ATTNLRP, "product": rules.signal_take_all}
    *_, (_, of_gate), mode = formulas.relevances(
        lambda a, b: F.glu(torch.cat([a, b], -1)), signal, gate, rule_set=rules_of_all
    )
    assert not of_gate.any()
    assert mode.hits["product"] == 1


def test_batch_norm_is_linear_with_statistics_that_are_fixed():
    """In eval mode: one factor and one summand for each channel. With statistics of the batch it is no such function."""
    norm = nn.BatchNorm1d(6).double().eval()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    norm.running_var.data.uniform_(0.5, 2)
    norm.requires_grad_(False)
    slope = (norm.weight / (norm.running_var + norm.eps).sqrt())[:, None]

    def written_out(x):
        return (x - norm.running_mean[:, None]) * slope + norm.bias[:, None]

    for rule_set in RULESETS:
        assert_same(norm, written_out, draw(2, 6, 4), rule_set=rule_set)
    with pytest.raises(UnsupportedModelError, match="batch_norm with statistics of the batch"):
        relevances(nn.BatchNorm1d(6, track_running_stats=False).double().eval(), draw(2, 6, 4))


# Plausible code that only moves, adds or copies.
HARMLESS = {
    "cpu": lambda x: x.cpu(),
    "ravel": lambda x: x.ravel(),
    "moveaxis": lambda x: torch.moveaxis(x, 0, 1),
    "imag": lambda x: torch.view_as_complex(x.view(3, 4, 2)).imag,
    "vsplit": lambda x: torch.vsplit(x, 3)[0],
    "column_stack": lambda x: torch.column_stack([x, x]),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[None], 1),
    "conv_transpose1d": lambda x: F.conv_transpose1d(x[None], torch.ones(3, 2, 3, dtype=x.dtype)),
    "batch_norm": lambda x: F.batch_norm(x, torch.zeros(8, dtype=x.dtype), torch.ones(8, dtype=x.dtype)),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_linear_functions_are_not_refused(name):
    relevances(HARMLESS[name], draw(3, 8))


# A model that uses its embeddings before the first block, as Gemma 3n does for its inputs of each layer.
@pytest.mark.filterwarnings("ignore:.*beside the word embedding:lrpx.errors.LrpxWarning")
@pytest.mark.parametrize("family", ["causal:gemma3n_text", "causal:gemma4_text"])
@pytest.mark.parametrize("method", ["lrp", "attnlrp", "gradient-x-input"])
def test_a_model_that_uses_its_embeddings_before_the_first_block(family, method):
    if family not in tiny.FAMILIES:
        pytest.skip("not in this transformers")
    model = tiny.build(family)
    ids = tiny.inputs(model)["input_ids"][0].tolist()
    found = [
        torch.tensor(lrpx.explain(model, None, ids, target=11, position=6, method=method, at=at).relevance)
        for at in ("input", "embedding")
    ]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7)


# What docs/footguns.md says of a ReLU and a clamp that are written by a choice.
CHOICES = {
    "where": lambda g: torch.where(g > 0, g, 0.0),
    "mask": lambda g: g * (g > 0),
    "maximum": lambda g: torch.maximum(g, torch.zeros((), dtype=g.dtype)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_relu_by_a_choice_has_its_gradient_and_makes_no_gate(name):
    g, u, written = draw(3, 8), draw(3, 8, seed=1), CHOICES[name]
    assert_same(written, F.relu, g, rule_set="lrp")
    assert_same(lambda g, u: written(g) * u, lambda g, u: F.relu(g) * u, g, u, rule_set="attnlrp")
    of_gate, of_signal = relevances(lambda g, u: written(g) * u, g, u, rule_set="lrp")
    torch.testing.assert_close(of_gate, of_signal)  # half each, where a gate gets nothing


def test_a_clamp_by_a_choice_loses_what_it_cuts_off():
    x, bound = draw(3, 8), torch.full((), 0.5, dtype=torch.float64)
    (found,), (clamped,) = (
        relevances(f, x, rule_set="lrp") for f in (lambda x: torch.minimum(x, bound), lambda x: x.clamp(max=0.5))
    )
    torch.testing.assert_close(found, torch.where(x < 0.5, x, 0).detach())
    torch.testing.assert_close(clamped, x.clamp(max=0.5).detach())
