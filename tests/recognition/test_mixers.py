"""Mixers that select: compared with the same recurrence written as a sum over pairs of tokens, with its shares stated."""

import importlib.machinery
import re
import sys
import types

import pytest
import tiny
import torch
from recurrences import Columns, batch_of, close, relevance, states
from support import families
from torch import nn
from torch.nn import functional as F

from lrpx._torch_internals import function_modes, hooks_of
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.methods.lrp import explain
from lrpx.passes.attribution import run
from lrpx.propagation.propagate import propagate
from lrpx.propagation.rulesets import ATTNLRP, LRP
from lrpx.recognition import mixers
from lrpx.text.batching import Item, pad

# What a factor's gradient is multiplied by: of what selects (of a scan), what is written, the output gate, and what it gates.
SHARES = {"lrp": (0, 1, 0, 1), "lrp-uniform-gate": (0, 1, 0.5, 0.5), "attnlrp": (1 / 8, 0.5, 0.5, 0.5)}
SELECTIVE = sorted(tiny.SELECTIVE)
IN_CHUNKS = [f for f in SELECTIVE if re.search("mamba2|bamba|falcon_h1|nemotron|zamba2|granite", f)]
QUICK = ("causal:mamba", "causal:mamba2")


def shared(tensor, share):
    """The same value, with a gradient that is multiplied by ``share``."""
    return share * tensor + (1 - share) * tensor.detach()


def silu(x):
    """With the identity rule."""
    return x * (F.silu(x) / x).detach()


def convolved(mixer, x):
    """The causal convolution of ``[B, T, d]``."""
    kernel = mixer.conv1d.kernel_size[0]
    return F.conv1d(F.pad(x.mT, (kernel - 1, 0)), mixer.conv1d.weight, mixer.conv1d.bias, groups=x.shape[-1]).mT


def kept(delta, a):
    """``exp(a * sum of delta from s + 1 to t)``, 0 for s > t: ``delta`` ``[B, T, d]``, ``a`` ``[d, n]``."""
    total = delta.cumsum(1)
    length = total[:, :, None] - total[:, None]
    earlier = torch.ones(length.shape[1:3]).tril().bool()[None, :, :, None]
    return torch.where(earlier, length, torch.inf)[..., None].mul(a).exp()


def mamba(mixer, u, select, write, gate, signal):
    """Mamba: every channel has its own decay for each of its states."""
    x, z = mixer.in_proj(u).chunk(2, -1)
    x = silu(convolved(mixer, x))
    n = mixer.ssm_state_size
    delta, b, c = mixer.x_proj(x).split([mixer.time_step_rank, n, n], -1)
    delta, b, c = (shared(t, select) for t in (F.softplus(mixer.dt_proj(delta)), b, c))
    weights = torch.einsum("btn,btsdn,bsd,bsn->btsd", c, kept(delta, -mixer.A_log.exp()), delta, b)
    y = torch.einsum("btsd,bsd->btd", weights, shared(x, write)) + mixer.D * x
    return mixer.out_proj(shared(y, signal) * shared(silu(z), gate))


def mamba2(mixer, u, select, write, gate, signal):
    """Mamba-2: every head has one decay."""
    inner, groups = mixer.intermediate_size, mixer.n_groups * mixer.ssm_state_size
    z, x, delta = mixer.in_proj(u).split([inner, inner + 2 * groups, mixer.num_heads], -1)
    x, b, c = silu(convolved(mixer, x)).split([inner, groups, groups], -1)
    x = x.unflatten(-1, (mixer.num_heads, -1))
    b, c = (
        t.unflatten(-1, (mixer.n_groups, -1)).repeat_interleave(mixer.num_heads // mixer.n_groups, 2) for t in (b, c)
    )
    delta, b, c = (shared(t, select) for t in (F.softplus(delta + mixer.dt_bias), b, c))
    decay = kept(delta, -mixer.A_log.exp()[:, None])[..., 0]
    weights = torch.einsum("bthn,bshn,btsh,bsh->btsh", c, b, decay, delta)
    y = torch.einsum("btsh,bshd->bthd", weights, shared(x, write)) + mixer.D[:, None] * x
    norms = mixer.n_groups if hasattr(mixer.norm, "group_size") else 1  # earlier releases have one for all groups
    y = (shared(y.flatten(2), signal) * shared(silu(z), gate)).unflatten(-1, (norms, -1))
    y = y * (y.square().mean(-1, keepdim=True) + mixer.norm.variance_epsilon).rsqrt().detach()
    return mixer.out_proj(y.flatten(2) * mixer.norm.weight)


def rglru(unit, x, select, write):
    """RG-LRU: h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t x_t, at the first token without decay and root."""
    heads = x.unflatten(-1, (unit.num_attention_heads, -1))
    i, r = (
        shared((torch.einsum("bthd,hde->bthe", heads, weight) + bias).sigmoid().flatten(2), select)
        for weight, bias in (
            (unit.input_gate_weight, unit.input_gate_bias),
            (unit.recurrent_gate_weight, unit.recurrent_gate_bias),
        )
    )
    log_a = -8 * F.softplus(unit.recurrent_param) * r
    root = (1 - (2 * log_a[:, 1:]).exp()).sqrt()
    root = torch.cat([torch.ones_like(root[:, :1]), root], 1)
    return torch.einsum("btsd,bsd->btd", kept(-log_a, -torch.ones(1, 1))[..., 0], root * i * shared(x, write))


def gradients(function, u, seed=1):
    u = u.clone().requires_grad_()
    y = function(u)
    y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(seed), dtype=y.dtype))
    return y.detach(), u.grad


def compare(module, twin, u, rule_set, *more):
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    with torch.no_grad():
        plain = module(u, *more)
    with propagate(module, rule_set):
        found = gradients(lambda u: module(u, *more), u)
    expected = gradients(twin, u)
    assert torch.equal(found[0], plain)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=3e-6 * float(other.abs().max()))  # kernels cast to float32
    with propagate(module, {}):
        ordinary = gradients(lambda u: module(u, *more), u)[1]
    assert (ordinary - expected[1]).abs().max() > 1e-2 * expected[1].abs().max()  # the comparison is one that can fail


@pytest.mark.parametrize("rule_set", SHARES)
def test_the_scan_of_mamba_is_a_sum_over_pairs_of_tokens(rule_set):
    mixer = tiny.build("causal:mamba").backbone.layers[0].mixer
    compare(mixer, lambda u: mamba(mixer, u, *SHARES[rule_set]), states(2, 11, 32), rule_set)


@pytest.mark.parametrize("rule_set", SHARES)
@pytest.mark.parametrize("chunk", [4, 16])
def test_the_chunks_of_mamba2_are_a_sum_over_pairs_of_tokens(rule_set, chunk):
    mixer = tiny.build("causal:mamba2").backbone.layers[0].mixer
    mixer.chunk_size = chunk
    compare(mixer, lambda u: mamba2(mixer, u, *SHARES[rule_set]), states(2, 11, 32), rule_set)


@pytest.mark.parametrize("rule_set", SHARES)
def test_the_recurrence_of_rglru_is_a_sum_over_pairs_of_tokens(rule_set):
    unit = tiny.build("causal:recurrent_gemma").model.layers[0].temporal_block.rg_lru
    select, write = (1 / 6, 0.5) if rule_set == "attnlrp" else SHARES[rule_set][:2]
    unit.recurrent_states = None
    twin = Fresh(unit)
    compare(twin, lambda x: rglru(unit, x, select, write), states(2, 7, 32), rule_set, torch.arange(7)[None])


class Fresh(nn.Module):
    """A unit that keeps no state from call to call."""

    def __init__(self, unit):
        super().__init__()
        self.unit = unit

    def forward(self, *args):
        self.unit.recurrent_states = None
        return self.unit(*args)


@families(sorted(tiny.STATE_SPACE), QUICK)
def test_padding_changes_nothing(family):
    model = tiny.build(family)
    for rule_set in ("lrp", "attnlrp"):
        together = relevance(model, batch_of(model, 9, 5), rule_set)
        for row, length in enumerate((9, 5)):
            ids = batch_of(model, 9, 5).ids[row, :length].tolist()
            alone = relevance(model, pad([Item(tuple(ids), length - 1, 11, 13)], model), rule_set)[0]
            close(together[row, :length], alone)
            assert not together[row, length:].any()


@families(IN_CHUNKS, QUICK)
def test_the_size_of_chunks_changes_nothing(family):
    models = [tiny.build(family) for _ in range(2)]
    for model, chunk in zip(models, (3, 256), strict=True):
        changed = [m for m in model.modules() if hasattr(m, "chunk_size")]
        assert changed
        for module in changed:
            module.chunk_size = chunk
    with torch.no_grad():
        logits = [model(**batch_of(model, 9).inputs).logits for model in models]
    if not torch.allclose(*logits, rtol=0, atol=1e-4):
        pytest.skip("this transformers computes other logits in other chunks")
    for rule_set in ("lrp", "attnlrp"):
        close(*(relevance(model, batch_of(model, 9), rule_set) for model in models))


def written_columns(mixer):
    """Which results of ``in_proj`` become what is written."""
    inner, columns = mixer.intermediate_size, torch.arange(mixer.in_proj.out_features)
    if mixers.mixer_of(mixer).written == "projected":  # x and z, or, in Zamba, an x and a z in turns
        return columns % 2 == 0 if hasattr(mixer, "n_mamba_heads") else columns < inner
    first = len(columns) - mixer.conv_dim - mixer.num_heads  # z, x, B, C, dt
    return (first <= columns) & (columns < first + inner)


@families([f for f in SELECTIVE if f != "causal:recurrent_gemma"], QUICK)  # whose gates have weights of their own
def test_what_selects_and_the_output_gate_get_exactly_0(family):
    """Under LRP they are constants: making them so by hand, where they are projected, changes nothing, bit for bit."""
    model = tiny.build(family)
    before = {rule_set: relevance(model, batch_of(model, 9), rule_set) for rule_set in ("lrp", "attnlrp")}
    found = [module for module in model.modules() if mixers.mixer_of(module) is not None]
    for mixer in found:
        mixer.in_proj = Columns(mixer.in_proj, ~written_columns(mixer)).eval()
        if hasattr(mixer, "x_proj"):
            mixer.x_proj = Columns(mixer.x_proj, torch.tensor(True)).eval()
    assert found
    assert torch.equal(relevance(model, batch_of(model, 9), "lrp"), before["lrp"])
    after = relevance(model, batch_of(model, 9), "attnlrp")
    assert (after - before["attnlrp"]).abs().max() > 1e-3 * after.abs().max()  # the check is one that can fail


@families(sorted(tiny.STATE_SPACE), QUICK)
def test_the_gradient_is_that_of_finite_differences(family):
    model = tiny.build(family)
    batch = batch_of(model, 9)
    embedding = model.get_input_embeddings()(batch.ids).detach()
    gradient = run(model, batch, {}, ["embedding"]).hidden["embedding"].gradient
    direction, step = states(*embedding.shape), 1e-4  # so small that no router chooses other experts
    inputs = {name: value for name, value in batch.inputs.items() if name != "input_ids"} | {"use_cache": False}
    with torch.no_grad():
        logits = [model(inputs_embeds=embedding + s * step * direction, **inputs).logits[0, -1] for s in (1, -1)]
    found = float((logits[0][11] - logits[0][13] - logits[1][11] + logits[1][13]) / (2 * step))
    size = float((gradient * direction).abs().sum())
    assert found == pytest.approx(float((gradient * direction).sum()), abs=2e-3 * size)


# What is not known is refused by name.


def test_a_mixer_that_is_not_in_the_table_is_refused(monkeypatch):
    model = tiny.build("causal:mamba2")
    assert mixers.unknown_mixers(model, [*model.modules()]) == []
    monkeypatch.delitem(mixers.MIXERS, "Mamba2Mixer")
    with pytest.raises(UnsupportedModelError, match="Mamba2ForCausalLM mixes tokens with Mamba2Mixer"):
        run(model, batch_of(model, 5), "lrp")


class Scan(nn.Module):
    """A mixer with a name that says nothing."""

    def __init__(self):
        super().__init__()
        self.A_log = nn.Parameter(torch.zeros(2))


class MambaMixer(nn.Module):
    """Not the one of transformers."""


@pytest.mark.parametrize("kind", [Scan, MambaMixer])
def test_a_mixer_is_known_by_its_weights_or_its_name(kind):
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(kind(), nn.LayerNorm(2)))
    assert mixers.unknown_mixers(model, [*model.modules()]) == [kind.__name__]
    assert mixers.known_mixers(list(model.modules())) == {}


WRONG = [
    (mixers.Mixer(("softplus", "sigmoid"), (1, 2), 0, 4), "lrp", "no sigmoid was seen that selects"),
    (mixers.Mixer(("softplus",), (0, 1), 0, 4), "lrp", "no split was seen that selects"),
    (
        mixers.Mixer(("softplus",), (), 0, 4),
        "lrp",
        "a product inside a recurrence, both of whose factors carry gradient",
    ),
    (mixers.Mixer(("softplus",), (1, 2), "argument", 4), "attnlrp", "nothing was seen to be written"),
]


@pytest.mark.parametrize(("wrong", "rule_set", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_a_table_that_is_wrong_about_a_mixer_is_noticed(monkeypatch, wrong, rule_set, message):
    model = tiny.build("causal:mamba2")
    monkeypatch.setitem(mixers.MIXERS, "Mamba2Mixer", wrong)
    with pytest.raises(UnsupportedModelError, match=message):
        run(model, batch_of(model, 5), rule_set)


def test_a_scan_in_a_fused_kernel_is_refused_with_what_to_do(monkeypatch):
    """A kernel shows no softplus, and leaves an autograd node of its own."""

    class SelectiveScan(torch.autograd.Function):
        @staticmethod
        def forward(ctx, u):
            return 2 * u

        @staticmethod
        def backward(ctx, grad):
            return 2 * grad

    model = tiny.build("causal:mamba")
    package = types.ModuleType("mamba_ssm")
    package.__spec__ = importlib.machinery.ModuleSpec("mamba_ssm", None)
    monkeypatch.setitem(sys.modules, "mamba_ssm", package)
    run(model, batch_of(model, 5), "lrp")  # installed, but not in use
    monkeypatch.setattr(model.backbone.layers[1].mixer, "forward", lambda u, **_: SelectiveScan.apply(u))
    with pytest.raises(UnsupportedModelError, match=r"SelectiveScan.* Kernels of mamba_ssm hide operations"):
        run(model, batch_of(model, 5), "lrp")


def test_a_rule_set_without_a_rule_for_what_selects_is_refused():
    model = tiny.build("causal:mamba")
    for rule_set in (LRP, ATTNLRP):
        with pytest.raises(InputError, match="no rule for selector, which MambaForCausalLM computes"):
            run(model, batch_of(model, 5), {kind: rule for kind, rule in rule_set.items() if kind != "selector"})


@pytest.mark.parametrize("rule_set", ["lrp", {}])
def test_a_state_that_a_model_keeps_is_kept(rule_set):
    model = tiny.build("causal:recurrent_gemma")
    block = model.model.layers[0].temporal_block
    with torch.no_grad():
        model(**batch_of(model, 9).inputs, use_cache=True)
    before = block.conv1d_state, block.rg_lru.recurrent_states
    assert None not in before
    run(model, batch_of(model, 5), rule_set)
    assert block.conv1d_state is before[0]
    assert block.rg_lru.recurrent_states is before[1]


def test_nothing_is_left_behind(monkeypatch):
    model = tiny.build("causal:mamba")
    mixer = model.backbone.layers[0].mixer
    run(model, batch_of(model, 5), "attnlrp")
    assert not any(map(hooks_of, model.modules()))

    def fails(_):
        raise RuntimeError("in the middle of a mixer")

    monkeypatch.setattr(mixer.out_proj, "forward", fails)
    with propagate(model, "lrp") as active:
        x = model.get_input_embeddings()(batch_of(model, 5).ids).detach().requires_grad_()
        with pytest.raises(RuntimeError, match="in the middle of a mixer"):
            model(inputs_embeds=x)
        assert function_modes() == [active]
    assert function_modes() == []
    assert not any(map(hooks_of, model.modules()))


def test_a_scan_beside_the_attention_is_no_mlp():
    """Falcon-H1 adds both to the stream, and an MLP: what each head wrote is known, and what each block added."""
    model = tiny.build("causal:falcon_h1")
    found = explain(model, batch_of(model, 7), heads=True)[0]
    assert found.by_attention is None is found.by_mlp
    assert found.by_head.shape == (2, 4, 7)
    assert found.by_layer.shape == (2, 7)
