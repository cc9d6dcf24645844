"""Interception: which rule an operation gets, what is recognised, and that nothing is left behind."""

import dataclasses
import types
import warnings

import pytest
import tiny
import torch
from formulas import Formula, draw, relevances
from torch import nn
from torch.nn import functional as F

import lrpx
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.propagation import rules
from lrpx.propagation.rulesets import ATTNLRP, LRP
from lrpx.recognition.activations import activation_modules
from lrpx.recognition.operations import OPERATIONS, kind_of


def gelu_tanh(x):
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608 * (x + 0.044715 * torch.pow(x, 3.0))))


def gelu_in_place(x):
    y = x * 0.7071067811865476
    y = torch.erf(y)
    y = y.add_(1.0)
    return x.mul(0.5) * y


COMPOSED = {
    "swish": lambda x: x * torch.sigmoid(x),
    "swish, reversed": lambda x: torch.sigmoid(1.702 * x) * x,
    "swish by division": lambda x: x / (1 + torch.exp(-x)),
    "gelu by tanh": gelu_tanh,
    "gelu by erf": lambda x: x * 0.5 * (1.0 + torch.erf(x / 2**0.5)),
    "gelu in place": gelu_in_place,
    "squared relu": lambda x: F.relu(x) * F.relu(x),
    "relu ** 2": lambda x: F.relu(x) ** 2,
    "cube": lambda x: x * x * x,
    "mish": lambda x: x * torch.tanh(F.softplus(x)),
    "after a cast": lambda x: (x.float().double() * torch.sigmoid(x.float().double())).to(torch.float64),
    "in place": lambda x: F.relu(x.clone(), inplace=True),
    "clamp in place": lambda x: (x * 1.0).clamp_(-1, 1),
    "elu_": lambda x: F.elu_(x * 1.0),
    "celu_": lambda x: torch.celu_(x * 1.0, 0.5),
    "selu_": lambda x: torch.selu_(x * 1.0),
    "leaky_relu_": lambda x: F.leaky_relu_(x * 1.0, 0.2),
    "hardtanh_": lambda x: F.hardtanh_(x * 1.0, -0.5, 0.5),
}


@pytest.mark.parametrize("rule_set", ["lrp", "attnlrp", "lrp-uniform-gate"])
@pytest.mark.parametrize("name", COMPOSED)
def test_an_activation_written_out_is_one_activation(name, rule_set):
    """All relevance reaches x, whatever the formula is made of."""
    x = draw(20)
    y, (r,), _ = relevances(COMPOSED[name], x, rule_set=rule_set)
    torch.testing.assert_close(r, y.detach(), rtol=1e-6, atol=1e-9)


def test_a_matrix_is_not_element_wise():
    """``x * (W x)`` mixes elements, so it is a product and no activation of x, also where W is square."""
    x, w = draw(5), draw(5, 5, seed=1).detach()
    y, (r,), mode = relevances(lambda x: x * (w @ x), x)
    assert mode.hits == {"product": 1}
    torch.testing.assert_close(r, (y / 2 + x * (w.T @ x) / 2).detach())


def test_writing_into_a_tensor_makes_it_another():
    """After ``g[0] = 0`` the gate is no element-wise function of x, and still a gate."""
    x = draw(5)

    def function(x):
        g = torch.sigmoid(x) * 1.0
        g[0] = 0.0
        return x * g

    _, _, mode = relevances(function, x)
    assert mode.hits == {"product": 1}


def test_a_bias_before_an_activation_keeps_its_share():
    """The activation belongs to x + b, not to x: what b contributes is not given to x."""
    x, b = draw(20), torch.linspace(-1, 1, 20, dtype=torch.float64)

    def swish(z):
        return z * torch.sigmoid(z)

    y, (r,), _ = relevances(lambda x: swish(x + b), x)
    torch.testing.assert_close(r, (y * x / (x + b)).detach())


GATED = {
    "activation": (F.silu, True),
    "sigmoid": (torch.sigmoid, True),
    "softmax": (lambda g: torch.softmax(g, -1), True),
    "activation of a part": (lambda g: F.gelu(g)[..., :20], True),
    "cast, moved and scaled": (lambda g: F.silu(g).float().double().unsqueeze(0).squeeze(0) * 2.0, True),
    "chosen and normalised": (lambda g: _normalised(g.sigmoid()), True),
    "linear of an activation": (lambda g: F.silu(g) @ torch.ones(20, 20, dtype=torch.float64), False),
    "no activation": (lambda g: g * 1.0, False),
}


def _normalised(scores):
    top = scores.topk(20).values
    return top / top.sum(-1, keepdim=True)


@pytest.mark.parametrize("name", GATED)
def test_signal_takes_all_finds_the_gate(name):
    """Under LRP the gate is a constant; where neither factor is one, each takes half."""
    gate, is_gate = GATED[name]
    g, s = draw(20), draw(20, seed=1)
    y, (_, r), _ = relevances(lambda g, s: gate(g) * s, g, s, rule_set="lrp")
    torch.testing.assert_close(r, y.detach() if is_gate else y.detach() / 2)
    y, (_, r), _ = relevances(lambda g, s: s * gate(g), g, s, rule_set="lrp")
    torch.testing.assert_close(r, y.detach() if is_gate else y.detach() / 2)


def test_uniform_gate_and_attnlrp_give_half():
    g, s = draw(20), draw(20, seed=1)
    for rule_set in ("attnlrp", "lrp-uniform-gate"):
        y, found, _ = relevances(lambda g, s: F.silu(g) * s, g, s, rule_set=rule_set)
        for r in found:
            torch.testing.assert_close(r, y.detach() / 2)


def test_in_place_product():
    a, b = draw(5), draw(5, seed=1)

    def function(a, b):
        y = a * 1.0
        y *= b
        y.mul_(b)
        return y

    y, (r_a, r_b), _ = relevances(function, a, b)
    torch.testing.assert_close(r_a, y.detach() / 4)
    torch.testing.assert_close(r_b, y.detach() * 3 / 4)


SILU_MUL = {
    "in place": lambda g, u: F.silu(g * 1.0, inplace=True) * u,
    "relu_": lambda g, u: torch.relu_(g * 1.0) * u,
    "elu": lambda g, u: F.elu(g * 1.0, 1.0, True) * u,
}


@pytest.mark.parametrize("name", SILU_MUL)
def test_an_activation_in_place_is_still_a_gate(name):
    g, u = draw(20), draw(20, seed=1)
    y, (_, r), mode = relevances(SILU_MUL[name], g, u, rule_set="lrp")
    torch.testing.assert_close(r, y.detach())
    assert mode.hits["activation"] == 1


class SiluMul(nn.Module):
    """Two inputs: no activation, whatever its name."""

    def forward(self, g, u):
        return F.silu(g) * u


class SiluAndMul(nn.Module):
    """One input of twice the width: no activation either."""

    def forward(self, x):
        g, u = x.chunk(2, -1)
        return F.silu(g) * u


class ShiftedGelu(nn.Module):
    """f(0) != 0."""

    def forward(self, x):
        return F.gelu(x + 1)


def test_modules_that_are_called_like_activations():
    assert activation_modules([SiluMul(), SiluAndMul(), nn.SiLU(inplace=True), nn.SiLU()]) == {}
    assert list(activation_modules([ShiftedGelu()]).values()) == ["sigmoid"]
    g, u = draw(2, 8), draw(2, 8, seed=1)
    for module, inputs in ((SiluMul(), (g, u)), (SiluAndMul(), (torch.cat([g, u], -1).detach().requires_grad_(),))):
        with lrpx.propagate(nn.Sequential(module), "lrp"):
            y = module(*inputs)
        gradients = torch.autograd.grad(y.sum(), inputs, allow_unused=True)
        gate, signal = gradients if len(inputs) == 2 else gradients[0].chunk(2, -1)
        assert gate is None or not gate.any()
        torch.testing.assert_close(signal * u, y.detach())


def test_an_activation_module_that_writes_into_its_input():
    for kind in (nn.SiLU, nn.LeakyReLU, nn.Hardswish, nn.ELU, nn.ReLU):
        x = draw(20)
        module = kind(inplace=True)
        with lrpx.propagate(nn.Sequential(module), "attnlrp"):
            y = module(x * 1.0)
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(x * gradient, y.detach())


def test_lineage_ends_where_a_tensor_is_written_into():
    """``s`` is a function of the old ``h``; with the new one it is a product."""

    def function(x, u):
        h = x + 0
        s = torch.sigmoid(h)
        h += u
        return h * s

    *_, mode = relevances(function, draw(5), draw(5, seed=1))
    assert mode.hits == {"product": 1}


def test_a_part_of_a_mixed_concatenation_has_no_known_gate():
    def function(g, u):
        a, b = torch.cat([F.silu(g), u], -1).chunk(2, -1)
        return a * b

    *_, mode = relevances(function, draw(6), draw(6, seed=1), rule_set="lrp", unknown="ignore")
    assert any("concatenation" in name for name in mode.unknown)
    *_, mode = relevances(function, draw(6), draw(6, seed=1), rule_set="attnlrp")
    assert not mode.unknown  # half to each needs no gate


F0 = {
    "exp": (lambda x: torch.exp(torch.tanh(x)) * torch.exp(-x / 2), lambda x: torch.exp(torch.tanh(x) - x / 2)),
    "sigmoid by division": (lambda x: 1 / (1 + torch.exp(-x)), torch.sigmoid),
    "sigmoid by reciprocal": (lambda x: torch.reciprocal(1 + torch.exp(-x)), torch.sigmoid),
    "sigmoid by power": (lambda x: (1 + torch.exp(-x)) ** -1, torch.sigmoid),
    "softmax": (lambda x: torch.exp(x) / torch.exp(x).sum(-1, keepdim=True), lambda x: torch.softmax(x, -1)),
    "softmax, shifted": (
        lambda x: (
            torch.exp(x - x.amax(-1, keepdim=True)) / torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True)
        ),
        lambda x: torch.softmax(x, -1),
    ),
    # A root, a power or an activation of one of them is another one.
    "root": (lambda x: torch.exp(x).sqrt(), lambda x: torch.exp(x / 2)),
    "square": (lambda x: torch.exp(x).square(), lambda x: torch.exp(2 * x)),
    "power of softmax": (lambda x: torch.softmax(x, -1) ** 3, lambda x: torch.exp(3 * torch.log_softmax(x, -1))),
    "softmax, sharpened": (
        lambda x: torch.softmax(x, -1) ** 2 / (torch.softmax(x, -1) ** 2).sum(-1, keepdim=True),
        lambda x: torch.softmax(2 * x, -1),
    ),
    "root of softplus": (lambda x: F.softplus(x).sqrt(), lambda x: torch.exp(torch.log(F.softplus(x)) / 2)),
    "softplus": (lambda x: torch.log1p(torch.exp(x)), F.softplus),
    "tanh of a sigmoid": (
        lambda x: torch.tanh(torch.sigmoid(x)),
        lambda x: 2 * torch.sigmoid(2 * torch.sigmoid(x)) - 1,
    ),
}


@pytest.mark.parametrize("rule_set", ["lrp", "attnlrp", "lrp-uniform-gate"])
@pytest.mark.parametrize("name", F0)
def test_a_function_that_is_not_0_at_0_is_the_same_written_out(name, rule_set):
    """Alone, and as the gate of a product."""
    x, u = draw(20), draw(20, seed=1)
    written, known = F0[name]
    for a, b in zip(
        relevances(lambda x, u: written(x) * u, x, u, rule_set=rule_set)[1],
        relevances(lambda x, u: known(x) * u, x, u, rule_set=rule_set)[1],
        strict=True,
    ):
        torch.testing.assert_close(a, b)


def test_a_bias_beside_a_gate_keeps_its_share():
    x = draw(20)
    _, (r,), _ = relevances(lambda x: (x + 1) * torch.sigmoid(x), x, rule_set="lrp")
    torch.testing.assert_close(r, (x * torch.sigmoid(x)).detach())


def test_cut_gradients_are_counted():
    g, u = draw(5), draw(5, seed=1)
    *_, mode = relevances(lambda g, u: F.silu(g) * u.detach() + u.data, g, u)
    assert mode.cuts == {"detach": 1, "data": 1}


def test_vmap_hides_its_operations():
    *_, mode = relevances(
        lambda g, u: torch.vmap(lambda a, b: F.silu(a) * b)(g, u), draw(3, 5), draw(3, 5, seed=1), unknown="ignore"
    )
    assert mode.unknown["vmap"] > 0


def test_exponents_may_be_tensors():
    x = draw(5).detach().abs().requires_grad_()
    y, (r,), mode = relevances(lambda x: torch.pow(x, torch.tensor(2.0)), x)
    torch.testing.assert_close(r, y.detach())
    y, (r,), mode = relevances(lambda x: x * torch.pow((x * x).mean(), torch.tensor(-0.5)), x)
    torch.testing.assert_close(r, y.detach())
    assert mode.hits["normaliser"] == 1


def test_fused_products_keep_their_summand():
    """``addmm(x, y, W)`` is linear in both x and y; nothing is halved."""
    x, y, w = draw(2, 3), draw(2, 4, seed=1), draw(4, 3, seed=2).detach()
    out, found, _ = relevances(lambda x, y: torch.addmm(x, y, w), x, y)
    torch.testing.assert_close(sum(r.sum() for r in found), out.detach().sum())


def test_counts_hits_and_unknown_functions():
    _, _, mode = relevances(lambda x: torch.special.i0(F.layer_norm(F.gelu(x), (5,))), draw(5), unknown="ignore")
    assert mode.hits == {"activation": 1, "layer_norm": 1}
    assert list(mode.unknown) == ["special_i0"]


def test_a_rule_set_is_plain_data():
    x, w = draw(1, 5), draw(3, 5, seed=1).detach()
    y, (r,), mode = relevances(lambda x: F.linear(x, w), x, rule_set={"linear": rules.alpha1beta0})
    assert mode.hits["linear"] == 1
    assert (r.sum(-1) - y.sum(-1)).abs() < 1e-9
    _, (plain,), _ = relevances(lambda x: F.linear(x, w), x, rule_set={})
    assert not torch.allclose(r, plain)


def as_it_is(call):
    """A rule of a user's own that keeps the gradient."""
    return call()


@pytest.mark.parametrize("family", ["causal:gpt2", "causal:llama", "masked:bert", "causal:gpt_neo"])
def test_an_activation_rule_of_ones_own_can_have_the_gradient(family):
    """The activations of transformers are modules, of several functions some of them."""
    model = tiny.build(family)
    ids = tiny.inputs(model)["input_ids"][0].tolist()
    place = {"target": 5, "position": 6}
    norms = dict.fromkeys(("layer_norm", "rms_norm", "normaliser", "division"), as_it_is)
    found, cut = (
        lrpx.explain(model, None, ids, **place, method="lrp", rules={**norms, "activation": rule}).relevance
        for rule in (as_it_is, rules.identity)
    )
    plain = lrpx.explain(model, None, ids, **place, method="gradient-x-input").relevance
    torch.testing.assert_close(torch.tensor(found), torch.tensor(plain), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(torch.tensor(found), torch.tensor(cut), rtol=1e-3)


def test_rules_that_cut_every_way():
    """BERT's predictions go through an activation."""
    model = tiny.build("masked:bert")
    with pytest.raises(
        UnsupportedModelError, match=r"the logits of BertForMaskedLM carry no gradient.*or the rules, cut"
    ):
        lrpx.explain(model, None, [5, 17, 3], position=1, method="lrp", rules={**LRP, "activation": rules.constant})


def test_an_activation_rule_can_ask_for_other_values():
    """The module's own, with neither rules nor hooks."""
    x = draw(6)
    act = nn.SiLU()
    model = Formula(lambda x: act(x))
    model.act = act
    act.__class__ = type("SiLUActivation", (nn.SiLU,), {"__module__": "transformers.activations"})

    def doubled(call):
        return call.function(2 * call.args[0]) - call.function(call.args[0])

    with lrpx.propagate(model, {"activation": doubled}):
        y = model(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    expected = F.silu(2 * x) - F.silu(x)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), x)[0])


def test_an_activation_written_out_has_no_gradient_for_a_rule():
    x = draw(6)
    with pytest.raises(UnsupportedModelError, match="activation written out, for which only the rule of the library"):
        relevances(COMPOSED["swish"], x, rule_set={"activation": as_it_is})


def of_three(function, args, kwargs):
    """A rule as an older lrpx took it."""
    return function(*args, **kwargs)


FAULTY = {
    "returns nothing": (lambda call: None, "it returned None. A rule takes one argument, the call"),
    "returns a number": (lambda call: 0.5, "it returned 0.5"),
    "is never made": (lambda call: rules.identity, "it returned <function identity"),
    "takes other arguments": (
        of_three,
        "missing 2 required positional arguments: 'args' and 'kwargs'. A rule takes one",
    ),
    "is not callable": ("identity", "'str' object is not callable"),
    "is not called": (rules.gamma, r"^gamma\(0\.25\) is how to call it.* nothing, but used as a rule"),
}


@pytest.mark.parametrize("name", FAULTY)
def test_a_rule_that_is_none_is_refused(name):
    rule, message = FAULTY[name]
    with pytest.raises(InputError, match=message) as raised:
        relevances(F.silu, draw(5), rule_set={**LRP, "activation": rule})
    assert "\n" not in str(raised.value)


def test_an_error_inside_a_rule_is_left_as_it_is():
    def faulty(call):
        return call() + None

    with pytest.raises(TypeError, match="unsupported operand"):
        relevances(F.silu, draw(5), rule_set={"activation": faulty})


def test_only_modules_have_rules():
    with (
        pytest.raises(InputError, match=r"is no torch\.nn\.Module\. Give the model itself"),
        lrpx.propagate(torch.sin, "lrp"),
    ):
        pass


def test_a_norm_that_returns_its_statistics_is_refused_by_name():
    with pytest.raises(UnsupportedModelError, match="without a known rule: native_layer_norm"):
        relevances(lambda x: torch.native_layer_norm(x, (5,), None, None, 1e-5)[0], draw(5))


def test_unknown_rule_sets_and_kinds():
    model = nn.Linear(2, 2)
    with pytest.raises(InputError, match="Did you mean 'attnlrp'"), lrpx.propagate(model, "attn-lrp"):
        pass
    with (
        pytest.raises(InputError, match="Did you mean 'softmax'"),
        lrpx.propagate(model, {"soft_max": rules.constant}),
    ):
        pass


@pytest.mark.parametrize("kind", ["fused_product", "cut", "structure", "elementwise", "silent", "container"])
def test_a_rule_that_would_never_apply_is_refused(kind):
    with pytest.raises(InputError, match=kind), lrpx.propagate(nn.Linear(2, 2), {kind: rules.constant}):
        pass


def test_parameters_are_frozen_and_restored():
    model = nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.LayerNorm(3))
    model[0].bias.requires_grad_(False)
    before = {n: p.requires_grad for n, p in model.named_parameters()}
    with lrpx.propagate(model, "lrp"):
        assert not any(p.requires_grad for p in model.parameters())
        model(torch.ones(1, 3).requires_grad_()).sum().backward()
    assert {n: p.requires_grad for n, p in model.named_parameters()} == before
    assert all(p.grad is None for p in model.parameters())


def test_an_exception_leaves_nothing_behind():
    class GELU(nn.Module):
        def forward(self, x):
            raise RuntimeError("inside")

    model = nn.Sequential(nn.Linear(3, 3), GELU())
    x = torch.ones(1, 3).requires_grad_()
    with pytest.raises(RuntimeError, match="inside"), lrpx.propagate(model, "lrp"):
        model(x)
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    a, b = draw(3), draw(3, seed=1)
    (gradient,) = torch.autograd.grad((a * b).sum(), a)
    assert torch.equal(gradient, b)  # outside the block, products have their own gradient again


def test_no_other_model_is_changed():
    one, other = (nn.Sequential(nn.Linear(3, 3), nn.GELU()) for _ in range(2))
    other.load_state_dict(one.state_dict())
    x = draw(1, 3).float().detach().requires_grad_()

    def gradient(model):
        return torch.autograd.grad(model(x).sum(), x)[0]

    before = gradient(other)
    with lrpx.propagate(one, "attnlrp"):
        changed = gradient(one)
    assert torch.equal(gradient(other), before)
    assert torch.equal(gradient(one), before)
    assert not torch.equal(changed, before)


def test_recognises_activation_modules():
    """Every activation of transformers is one operation: a function with a rule, or a module that is made one."""
    from transformers.activations import ACT2CLS

    x = draw(20)
    for name, entry in ACT2CLS.items():
        kind, kwargs = entry if isinstance(entry, tuple) else (entry, {})
        module = kind(**kwargs).double()
        with lrpx.propagate(nn.Sequential(module), "lrp"):
            y = module(x)
        if float(module(torch.zeros(1, dtype=torch.float64)).detach().abs()) > 1e-3:
            gradient = torch.autograd.grad(y.sum(), x, allow_unused=True)[0] if y.requires_grad else None
            assert gradient is None or not gradient.any(), name
            continue
        (gradient,) = torch.autograd.grad(y.sum(), x)
        torch.testing.assert_close(x * gradient, y.detach(), rtol=1e-5, atol=1e-5, msg=name)
        if float(module(torch.zeros(1, dtype=torch.float64)).detach()):
            continue  # xIELU rounds at 0, so y / x has no limit
        summands = torch.tensor([[1.0, -1.0], [1.0, -1.0 + 1e-6]], dtype=torch.float64).requires_grad_()
        with lrpx.propagate(nn.Sequential(module), "lrp"):
            y = module(summands.sum(1))
        cancelling, nearly = torch.autograd.grad(y.sum(), summands)[0]
        ends = torch.tensor([-1e-6, 1e-6], dtype=torch.float64)
        left, right = (module(ends).detach() / ends).tolist()
        expected = nearly if abs(left - right) < 1e-3 else torch.zeros_like(nearly)  # a kink, as of ReLU, has no limit
        torch.testing.assert_close(cancelling, expected, rtol=0, atol=1e-4, msg=name)
    assert activation_modules([nn.Linear(2, 2), nn.Sequential(nn.GELU(), nn.Linear(2, 2))]) == {}


def test_every_name_has_one_kind():
    names = [n for kind in OPERATIONS.values() for n in kind]
    assert len(names) == len(set(names))
    for name, kind in [
        ("__rmul__", "product"),
        ("mul_", "product"),
        ("__imul__", "product"),
        ("__matmul__", "contraction"),
        ("__rpow__", "sigmoid"),
        ("__getitem__", "structure"),
        ("_softmax", "softmax"),
        ("rsub", "elementwise"),
        ("index_add_", "structure"),
        ("i0", "unknown"),
    ]:
        assert kind_of(name) == kind, name
    for rule_set in (LRP, ATTNLRP):
        assert set(rule_set) <= set(OPERATIONS)


# Layers that are one function of PyTorch's


def encoder_layer(**options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dtype=torch.float64, **options)
    return layer.eval().requires_grad_(False)  # with weights that carry gradient, F.linear itself rounds otherwise


def by_hand(layer, x):
    """The same layer of plain operations."""
    batch, length, width = x.shape
    attention = layer.self_attn
    q, k, v = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    q, k, v = (t.view(batch, length, 2, width // 2).transpose(1, 2) for t in (q, k, v))
    weights = torch.softmax(q @ k.mT / (width // 2) ** 0.5, -1)
    mixed = (weights @ v).transpose(1, 2).reshape(batch, length, width)
    x = layer.norm1(x + F.linear(mixed, attention.out_proj.weight, attention.out_proj.bias))
    return layer.norm2(x + layer.linear2(layer.activation(layer.linear1(x))))


@pytest.mark.parametrize("rule_set", ["lrp", "attnlrp"])
def test_a_fused_encoder_layer_is_run_through(rule_set):
    layer, x = encoder_layer(activation=F.gelu), draw(2, 5, 8)
    gradients = []
    for function in (layer, lambda x: by_hand(layer, x)):
        with lrpx.propagate(layer, rule_set) as mode:
            y = function(x)
        assert mode.hits["layer_norm"] == 2
        assert mode.hits["activation"] == 1
        assert mode.hits["attention"] + mode.hits["contraction"] > 0
        gradients += torch.autograd.grad((y * torch.linspace(-1, 1, 8, dtype=torch.float64)).sum(), x)
    torch.testing.assert_close(*gradients)
    plain = torch.autograd.grad((layer(x) * torch.linspace(-1, 1, 8, dtype=torch.float64)).sum(), x)[0]
    assert not torch.allclose(gradients[0], plain, rtol=1e-2)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("rule_set", ["lrp", "attnlrp"])
def test_multihead_attention_is_run_through(rule_set, weights):
    layer, x = encoder_layer().self_attn, draw(2, 5, 8)
    with lrpx.propagate(layer, rule_set) as mode:
        y, _ = layer(x, x, x, need_weights=weights)
    assert torch.equal(y, layer(x, x, x, need_weights=weights)[0])
    assert mode.met["softmax"] + mode.met["attention"] == 1
    if rule_set == "lrp":  # only values carry relevance, so it is linear
        (gradient,) = torch.autograd.grad(y.sum(), x)
        bias = layer.out_proj(F.linear(torch.ones(2, 5, 8, dtype=torch.float64), layer.out_proj.weight * 0)).sum()
        values = layer.in_proj_bias[16:] @ layer.out_proj.weight.T
        torch.testing.assert_close((x * gradient).sum() + bias + values.sum() * 10, y.sum())


def test_unknown_operations_raise_on_leaving():
    x = draw(5)
    with (
        pytest.raises(UnsupportedModelError, match=r"without a known rule: special_i0\. .*unknown=\"warn\""),
        lrpx.propagate(nn.Identity(), "lrp"),
    ):
        torch.special.i0(x)
    with pytest.warns(UserWarning, match="special_i0"), lrpx.propagate(nn.Identity(), "lrp", unknown="warn"):
        torch.special.i0(x)
    with lrpx.propagate(nn.Identity(), "lrp"):
        torch.special.i0(x.detach())  # carries no gradient

    def fail():
        torch.special.i0(x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), lrpx.propagate(nn.Identity(), "lrp"):  # the first error counts
        fail()


class Cubed(torch.autograd.Function):
    """What a mode does not see."""

    @staticmethod
    def forward(ctx, x):
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return gradient


@dataclasses.dataclass
class Returned:
    logits: torch.Tensor


RETURNED = {
    "a tensor": lambda y: y,
    "a tuple": lambda y: (None, y),
    "a dictionary within one": lambda y: {"a": {"b": y}},
    "a list within a tuple": lambda y: ((1, [y]),),
    "a dataclass": Returned,
    "an object": lambda y: types.SimpleNamespace(of=types.SimpleNamespace(logits=y)),
}


@pytest.mark.parametrize("how", RETURNED)
def test_a_function_of_others_is_found_however_its_result_is_returned(how):
    model = Formula(lambda x: RETURNED[how](Cubed.apply(x)))
    with pytest.raises(UnsupportedModelError, match="CubedBackward"), lrpx.propagate(model, "lrp"):
        model(draw(5))
    known = Formula(lambda x: RETURNED[how](F.relu(x)))
    with lrpx.propagate(known, "lrp"):
        known(draw(5))


def test_torchscript_is_refused_by_name():
    with warnings.catch_warnings():  # newer versions of PyTorch call it deprecated
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(nn.GELU(), torch.zeros(3))
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(traced))
    with pytest.raises(UnsupportedModelError, match=r"^1\.0 is TorchScript"), lrpx.propagate(model, "lrp"):
        pass


# Rules for layers that multiply by weights


@pytest.mark.parametrize(
    "rule", [rules.gamma(0.25), rules.alpha_beta(2, 1), rules.epsilon(0.1)], ids=lambda r: r.__name__
)
def test_a_product_with_weights_is_a_linear_layer(rule):
    """However it is written, and whatever was selected of the weights before."""
    weights = nn.ParameterList([torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)])
    x, chosen = draw(2, 5), torch.tensor([2, 0])
    ways = {
        "linear": lambda w: torch.stack([F.linear(x[i], w[chosen[i]]) for i in range(2)]),
        "matmul": lambda w: torch.stack([x[i] @ w[chosen[i]].T for i in range(2)]),
        "bmm": lambda w: torch.bmm(w[chosen], x[..., None])[..., 0],
        "addmm": lambda w: torch.cat(
            [torch.addmm(torch.zeros(3).double(), x[i : i + 1], w[chosen[i]].T) for i in range(2)]
        ),
    }
    found = {}
    for name, way in ways.items():
        with lrpx.propagate(weights, {"linear": rule}):
            y = way(weights[0])
        found[name] = torch.autograd.grad(y.sum(), x)[0]
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, found["linear"], msg=name)
    assert not torch.allclose(found["linear"], torch.autograd.grad(ways["linear"](weights[0]).sum(), x)[0], rtol=1e-2)


def test_a_product_with_constant_attention_weights_is_no_linear_layer():
    """Else eager attention would follow another rule than fused attention."""
    x = draw(4, 5)
    with lrpx.propagate(nn.Identity(), {**LRP, "linear": rules.gamma(10)}) as mode:
        torch.softmax(x @ torch.ones(5, 4).double(), -1) @ x
    assert mode.hits["linear"] == 0


EINSUM = {
    "two": (lambda a, b: torch.einsum("i,i->i", a, b), 2),
    "a list": (lambda a, b: torch.einsum("i,i->i", [a, b]), 2),
    "a tuple": (lambda a, b: torch.einsum("i,i->i", (a, b)), 2),
    "a constant beside": (lambda a, b: torch.einsum("i,i,i->i", torch.full_like(a, 2).detach(), a, b), 2),
    "matmul by keyword": (lambda a, b: torch.matmul(input=a[:, None, None], other=b[:, None, None]).flatten(), 2),
    "mul by keyword": (lambda a, b: torch.mul(input=a, other=b), 2),
}


@pytest.mark.parametrize("name", EINSUM)
def test_however_a_product_is_called(name):
    function, count = EINSUM[name]
    a, b = draw(20), draw(20, seed=1)
    y, found, _ = relevances(function, a, b)
    for r in found:
        torch.testing.assert_close(r, y.detach() / count)
    _, (r_gate, r_signal), _ = relevances(lambda a, b: function(F.silu(a), b), a, b, rule_set="lrp")
    assert not r_gate.any()
    torch.testing.assert_close(r_signal, function(F.silu(a), b).detach())


def test_unknown_is_one_of_three():
    with pytest.raises(InputError, match="unknown='rasie'"), lrpx.propagate(nn.Linear(2, 2), "lrp", unknown="rasie"):
        pass
