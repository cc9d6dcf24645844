"""Delta nets, lightning attention, gated short convolutions, RWKV and mLSTM: what is written, and what selects."""

import sys

import mixer_twins as twins
import pytest
import tiny
import torch
from recurrences import Columns, batch_of, close, relevance
from support import families

from lrpx._torch_internals import function_modes, hooks_of
from lrpx.errors import UnsupportedModelError
from lrpx.passes import validation
from lrpx.passes.attribution import run
from lrpx.propagation.propagate import propagate
from lrpx.recognition import linear_attention
from lrpx.recognition.linear_attention import WRITTEN, LinearAttention, linear_attention_of
from lrpx.recognition.mixers import unknown_mixers

# How much of the ordinary gradient a role takes under AttnLRP, behind the output gate's half.
ATTENTION = {"value": 1 / 4, **dict.fromkeys(("query", "key", "gate"), 1 / 16), "output": 1 / 2}
LIGHTNING = {"value": 1 / 4, "query": 1 / 8, "key": 1 / 8, "output": 1 / 2}  # its decay is a number
CONVOLUTION = {"value": 1 / 4, "gate": 1 / 4, "output": 1 / 2}
SOFTMAX = {"value": 1 / 4, "key": 1 / 4, "output": 1 / 2}
TWINS = {
    "qwen3_next": (twins.qwen3_next, ATTENTION),
    "qwen3_5_text": (twins.qwen3_5, ATTENTION),
    "olmo_hybrid": (twins.olmo_hybrid, ATTENTION),
    "lara_mini": (twins.qwen3_5, ATTENTION),
    "qwen4_exp_text": (twins.qwen3_5, ATTENTION),
    "kimi_linear": (twins.kimi, ATTENTION),
    "bailing_hybrid": (twins.kimi, ATTENTION),
    "minimax": (twins.lightning, LIGHTNING),
    "lfm2": (twins.short_convolution, CONVOLUTION),
    "lfm2_moe": (twins.short_convolution, CONVOLUTION),
    "lfm3": (twins.short_convolution, CONVOLUTION),
    "rwkv": (twins.rwkv, SOFTMAX),
    "xlstm": (twins.mlstm, ATTENTION),
}
TWINS = {name: twin for name, twin in TWINS.items() if f"causal:{name}" in tiny.FAMILIES}
LENGTH = 11


def mixer_in(model):
    return next(m for m in model.modules() if linear_attention_of(m) is not None)


def arguments(module, x):
    """What a mixer is called with, beside the hidden states."""
    return {"position_embeddings": None, "attention_mask": None} if "MiniMax" in type(module).__name__ else {}


def called(module, x):
    y = module(x, **arguments(module, x))
    return y[0] if isinstance(y, tuple) else y


def in_blocks(module, size):
    """Lightning attention in blocks of another size, with decays that matter, as in a first block."""
    module.block_size, module.slope_rate = size, torch.tensor([0.5, 0.2, 0.1, 0.05]).double()[:, None, None]
    decays = module.decay_factors(module.slope_rate)
    module.query_decay, module.key_decay, module.diagonal_decay = (decay.double() for decay in decays)


def built(name):
    model = tiny.build(f"causal:{name}")
    if name == "minimax":
        in_blocks(mixer_in(model), 4)
    x = torch.randn(2, LENGTH, model.config.get_text_config().hidden_size, generator=torch.Generator().manual_seed(3))
    return mixer_in(model), x.double().requires_grad_()


def weighed(function, x):
    """The output, and Gradient x Input of what enters, for the output that random numbers weigh."""
    y = function(x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(4)).double()
    (gradient,) = torch.autograd.grad((y * weights).sum(), x, allow_unused=True)
    return y.detach(), x.detach() * (torch.zeros_like(x) if gradient is None else gradient)


def ruled(module, x, rule_set):
    with propagate(module, rule_set):
        return weighed(lambda x: called(module, x), x)


@pytest.mark.parametrize("name", TWINS)
def test_token_by_token_with_what_is_constant_detached(name):
    module, x = built(name)
    twin, shares = TWINS[name]
    plain = called(module, x).detach()
    parts = {role: weighed(lambda x, role=role: twin(module, x, {role}), x) for role in shares}
    expected = {
        "lrp": parts["value"][1],
        "attnlrp": sum(share * parts[role][1] for role, share in shares.items()),
    }
    for rule_set, explicit in expected.items():
        value, found = ruled(module, x, rule_set)
        assert torch.equal(value, plain)
        torch.testing.assert_close(parts["value"][0], plain, rtol=0, atol=1e-5 * float(plain.abs().max()))
        torch.testing.assert_close(found, explicit, rtol=0, atol=2e-5 * float(explicit.abs().max()))
    for role, (_, part) in parts.items():  # a check that can fail: every share matters
        assert float(part.abs().max()) > 1e-3 * float(explicit.abs().max()), role


LINEAR = sorted(tiny.LINEAR_ATTENTION)
DELTA = [f for f in LINEAR if f.split(":")[1].startswith(("qwen", "olmo", "lara", "kimi", "bailing"))]
QUICK = ("causal:qwen3_next", "causal:minimax")
STEPS = {  # a function of a model's code that goes in chunks -> the one that goes token by token
    "torch_chunk_gated_delta_rule": "torch_recurrent_gated_delta_rule",
    "chunk_kimi_delta_attention": "recurrent_kimi_delta_attention",
}


def replaced(monkeypatch, model, change):
    """Let ``change(chunked, stepwise)`` be called in place of the function in chunks, wherever transformers has it."""
    mixer = mixer_in(model)
    code = sys.modules[type(mixer).__module__]
    for chunked, stepwise in STEPS.items():
        own = chunked.removeprefix("torch_")
        if hasattr(mixer, own):  # before transformers 5.4
            for module in model.modules():
                if hasattr(module, own):
                    monkeypatch.setattr(module, own, change(getattr(mixer, own), getattr(code, stepwise)))
            return
        if hasattr(code, chunked):
            monkeypatch.setattr(code, chunked, change(getattr(code, chunked), getattr(code, stepwise)))
            return
    raise AssertionError("no function in chunks was found")


@families(DELTA, QUICK)
def test_in_chunks_and_token_by_token(monkeypatch, family):
    """Over more tokens than a chunk has."""
    model = tiny.build(family)
    batch = batch_of(model, 67)
    chunked = {rule_set: relevance(model, batch, rule_set) for rule_set in ("lrp", "attnlrp")}
    calls = []

    def step_by_step(_, stepwise):
        def function(*args, chunk_size=None, **kwargs):
            calls.append(chunk_size)
            return stepwise(*args, **{"initial_state": None, "output_final_state": False, **kwargs})

        return function

    replaced(monkeypatch, model, step_by_step)
    for rule_set, found in chunked.items():
        close(relevance(model, batch, rule_set), found, 1e-4)
    assert calls


@pytest.mark.parametrize("family", [f for f in ("causal:minimax", "causal:xlstm") if f in tiny.FAMILIES])
def test_the_size_of_blocks_changes_nothing(family):
    model, found = tiny.build(family), {}
    for size in (4, 64):
        for module in model.modules():
            if hasattr(module, "decay_factors"):
                in_blocks(module, size)
            if type(module).__name__ == "xLSTMBackend":
                module._inference_fn.keywords["chunk_size"] = size
        try:
            model(**batch_of(model, 9).inputs)
        except RuntimeError:
            pytest.skip("this transformers cannot go in chunks of another size")
        found[size] = [relevance(model, batch_of(model, 9), rule_set) for rule_set in ("lrp", "attnlrp")]
    for small, large in zip(found[4], found[64], strict=True):
        close(small, large)


# Which factor got it: conservation cannot see relevance that went to a query.


@families(DELTA, QUICK)
def test_queries_keys_and_gates_get_exactly_0(monkeypatch, family):
    """Under LRP they are constants: making them so by hand changes nothing, bit for bit."""
    model = tiny.build(family)
    batch = batch_of(model, 9)
    before = {rule_set: relevance(model, batch, rule_set) for rule_set in ("lrp", "attnlrp")}

    def constant(chunked, _):
        def function(query, key, value, g, beta, **kwargs):
            return chunked(query.detach(), key.detach(), value, g=g.detach(), beta=beta.detach(), **kwargs)

        return function

    replaced(monkeypatch, model, constant)
    assert torch.equal(relevance(model, batch, "lrp"), before["lrp"])
    after = relevance(model, batch, "attnlrp")
    assert (after - before["attnlrp"]).abs().max() > 1e-3 * after.abs().max()  # a check that can fail


SELECTING = {  # the layer that makes what selects, and which of its results are written, by their number and how many there are
    "causal:minimax": ("qkv_proj", lambda i, mixer: i % (3 * mixer.head_dim) >= 2 * mixer.head_dim),
    "causal:lfm2": ("in_proj", lambda i, mixer: i >= 64),
    "causal:lfm2_moe": ("in_proj", lambda i, mixer: i >= 64),
    "causal:lfm3": ("in_proj", lambda i, mixer: i >= 64),
    "causal:rwkv": ("key receptance", lambda i, mixer: i < 0),
    "causal:xlstm": ("q k igate_preact fgate_preact ogate_preact", lambda i, mixer: i < 0),
}


@families([family for family in SELECTING if family in tiny.FAMILIES], QUICK)
def test_what_selects_gets_exactly_0_where_it_is_projected(family):
    model = tiny.build(family)
    before = {rule_set: relevance(model, batch_of(model, 9), rule_set) for rule_set in ("lrp", "attnlrp")}
    names, written = SELECTING[family]
    for mixer in [m for m in model.modules() if linear_attention_of(m) is not None]:
        for name in names.split():
            layer = getattr(mixer, name)
            constant = ~written(torch.arange(layer.out_features), mixer)
            setattr(mixer, name, Columns(layer, constant).eval())
    assert torch.equal(relevance(model, batch_of(model, 9), "lrp"), before["lrp"])
    after = relevance(model, batch_of(model, 9), "attnlrp")
    assert (after - before["attnlrp"]).abs().max() > 1e-3 * after.abs().max()  # a check that can fail


# What is not as the table says is refused by name.

WRONG = [
    (LinearAttention("norm", (WRITTEN,) * 4), "MiniMaxLightningAttention, in which a split is not seen once"),
    (LinearAttention("no", (WRITTEN,) * 3), "in which no is not seen once"),
    (LinearAttention("norm", (WRITTEN,) * 3, children={"gate": WRITTEN}), "in which gate is not seen once"),
    (LinearAttention("norm", (WRITTEN,) * 3), "a product inside a recurrence, both of whose factors carry gradient"),
]


@pytest.mark.parametrize(("wrong", "message"), WRONG)
def test_a_table_that_is_wrong_about_a_mixer_is_noticed(monkeypatch, wrong, message):
    model = tiny.build("causal:minimax")
    monkeypatch.setitem(linear_attention.LINEAR_ATTENTION, "MiniMaxLightningAttention", wrong)
    with pytest.raises(UnsupportedModelError, match=message):
        run(model, batch_of(model, 5), "lrp")


def test_a_mixer_that_is_not_in_the_table_is_refused(monkeypatch):
    model = tiny.build("causal:qwen3_next")
    assert unknown_mixers(model, [*model.modules()]) == []
    monkeypatch.delitem(linear_attention.LINEAR_ATTENTION, "Qwen3NextGatedDeltaNet")
    with pytest.raises(UnsupportedModelError, match="Qwen3NextForCausalLM mixes tokens with Qwen3NextGatedDeltaNet"):
        run(model, batch_of(model, 5), "lrp")


class Kernel(torch.autograd.Function):
    """As a fused kernel: it hides its operations, and has a gradient of its own."""

    @staticmethod
    def forward(ctx, query, key, value, g, beta):
        return value * beta[..., None]

    @staticmethod
    def backward(ctx, gradient):
        return None, None, gradient, None, None


def test_a_fused_kernel_is_refused(monkeypatch):
    model = tiny.build("causal:qwen3_next")

    def kernel(*_):
        return lambda query, key, value, g, beta, **_: (Kernel.apply(query, key, value, g, beta), None)

    replaced(monkeypatch, model, kernel)
    monkeypatch.setattr(validation, "find_spec", lambda package: package == "fla")
    for rule_set in ("lrp", "attnlrp"):
        with pytest.raises(
            UnsupportedModelError, match=r"KernelBackward\. Kernels of fla hide operations: uninstall them"
        ):
            run(model, batch_of(model, 5), rule_set)


def test_nothing_is_left_behind(monkeypatch):
    model = tiny.build("causal:minimax")
    run(model, batch_of(model, 5), "attnlrp")
    assert not any(map(hooks_of, model.modules()))

    def fails(_):
        raise RuntimeError("in the middle of a mixer")

    monkeypatch.setattr(mixer_in(model).output_gate, "forward", fails)
    with propagate(model, "lrp") as active:
        x = model.get_input_embeddings()(batch_of(model, 5).ids).detach().requires_grad_()
        with pytest.raises(RuntimeError, match="in the middle of a mixer"):
            model(inputs_embeds=x)
        assert function_modes() == [active]
    assert function_modes() == []
    assert not any(map(hooks_of, model.modules()))
