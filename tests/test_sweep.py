"""Every causal and masked model type of the installed transformers: values untouched, relevance accounted for to round-off.

Under LRP every operation passes on what it receives, except where a constant is added: a bias (set to zero here), a
position embedding, the 1 in ``(up + 1) * glu``. So the relevance at the word embeddings plus what those constants take
is the value.
"""

import re
from functools import partial

import pytest
import tiny
import torch
from support import COMMON, families
from swept import EXPLAINED, REFUSES
from torch import nn

from lrpx.check import Accounting
from lrpx.errors import UnsupportedModelError
from lrpx.passes.attribution import run
from lrpx.propagation import rules
from lrpx.propagation.propagate import propagate
from lrpx.propagation.rulesets import get_rules
from lrpx.text.batching import Item, pad

TOLERANCE = 2e-6  # transformers computes many norms in float32, whatever the dtype of the model
# Where relevance is complete: RoCBERT mixes sound and shape of a character in behind the embedding, I-BERT's returns a tuple.
AT = dict.fromkeys(("causal:roc_bert", "masked:roc_bert", "causal:ibert", "masked:ibert"), "input")


def batch_of(family, model):
    ids = tiny.inputs(model, n_tokens=9)["input_ids"][0].tolist()
    return pad([Item(tuple(ids), 8 if family.startswith("causal") else 4, 11, 13)], model)


def total(result):
    hidden = next(iter(result.hidden.values()))
    return (hidden.state * hidden.gradient).double()


def other_tables(model):
    """Embeddings that other tokens change the lookup of, beside the word embedding: seen by running the model twice."""
    seen = {}

    def look(module, args, _):
        if args and isinstance(args[0], torch.Tensor) and not args[0].is_floating_point():
            seen.setdefault(module, []).append(args[0].clone())

    tables = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not model.get_input_embeddings()]
    hooks = [m.register_forward_hook(look) for m in tables if "Position" not in type(m).__name__]
    with torch.no_grad():
        for seed in (0, 1):
            model(**tiny.inputs(model, n_tokens=9, seed=seed))
    for hook in hooks:
        hook.remove()
    return [m for m, found in seen.items() if not torch.equal(found[0], found[-1])]


@families(EXPLAINED)
def test_forward_is_bit_identical_and_relevance_adds_up(family):
    model = tiny.build(family, zero_biases=True)
    batch = batch_of(family, model)
    with torch.no_grad():
        plain = model(**batch.inputs).logits
    for rule_set in ("lrp", "attnlrp"):
        with propagate(model, rule_set), torch.enable_grad():
            assert torch.equal(model(**batch.inputs).logits, plain)

    result = run(model, batch, "lrp", [AT.get(family, "embedding")], mode=Accounting)
    assert any("beside the word embedding" in note for note in result.notes) == bool(other_tables(model))
    parts = total(result)
    missing = result.values[0] - float(parts.sum()) - result.mode.absorbed
    assert abs(missing) < TOLERANCE * float(parts.abs().sum())


@families([f for i, f in enumerate(EXPLAINED) if i % 7 == 0 or f in COMMON])
def test_the_account_would_not_balance_without_the_rules(family):
    """The check above is one that can fail: plain gradients miss by far."""
    model = tiny.build(family, zero_biases=True)
    result = run(model, batch_of(family, model), {}, [AT.get(family, "embedding")])
    parts = total(result)
    assert abs(result.values[0] - float(parts.sum())) > 50 * TOLERANCE * float(parts.abs().sum())


@families(EXPLAINED)
def test_fused_and_explicit_attention_agree(family):
    """Under ``sdpa`` three rules are composed into one; under ``eager`` each is applied by itself."""
    try:
        models = [tiny.build(family, attn_implementation=kind) for kind in ("sdpa", "eager")]
    except (ValueError, ImportError):
        pytest.skip("has one attention implementation only")
    with torch.no_grad():
        plain = [m(**batch_of(family, m).inputs).logits for m in models]
    if not torch.allclose(*plain, rtol=0, atol=1e-5 * float(plain[0].abs().max())):
        pytest.skip("this transformers computes other logits under sdpa than under eager")
    more = ["lrp-uniform-gate"] if family in COMMON else []  # whose rules for attention are those of lrp
    for rule_set in ("lrp", "attnlrp", *more):
        fused, explicit = (total(run(m, batch_of(family, m), rule_set, [AT.get(family, "embedding")])) for m in models)
        torch.testing.assert_close(fused, explicit, rtol=0, atol=2e-5 * float(explicit.abs().max()))


@families(REFUSES)
def test_refuses_by_name(family):
    model = tiny.build(family)
    with pytest.raises(UnsupportedModelError, match=type(model).__name__):
        run(model, batch_of(family, model), "lrp")


# Which factor got it: conservation cannot see relevance that went to the gate instead of the signal.

GATED_BY_NAME = re.compile(r"gate|w1$|v1$")  # of a module beside the activation
GATED = re.compile(
    r"Gat(e|ing)|Router|DbrxExpertGLU|ModernBert(Decoder)?MLP|JetMoeMoE|RecurrentBlock|HybridMLP"
)  # of the class around it


class Constant(nn.Module):
    """An activation whose result is a constant."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, x):
        return self.base(x).detach()


def with_constant_activations(model, batch):
    """Make the activations inside the blocks constants. Returns which of them stand in gated products: all, none, or both."""
    found, ran = set(), set()
    hooks = [m.register_forward_hook(lambda m, *_: ran.add(m)) for m in model.modules()]
    with torch.no_grad():
        model(**batch.inputs)
    for hook in hooks:
        hook.remove()
    for name, module in list(model.named_modules()):
        block = re.search(r"\.\d+\.", f".{name}")
        if not block or type(module).__module__ not in ("transformers.activations", "torch.nn.modules.activation"):
            continue
        if module not in ran or isinstance(module, nn.Softmax | nn.MultiheadAttention | nn.Sigmoid):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        names = [n for n, _ in (*parent.named_children(), *parent.named_parameters(recurse=False))]
        gated = GATED.search(type(parent).__name__) or any(map(GATED_BY_NAME.search, names))
        gated = (
            gated and "LightningAttention" not in type(parent).__name__
        )  # its gate is a sigmoid, and it activates values
        setattr(parent, name.rpartition(".")[2], Constant(module).eval())
        found.add(bool(gated))
    return found


@families(EXPLAINED)
def test_the_gate_branch_gets_exactly_0(family):
    """Under LRP a gate is a constant: making it one by hand changes nothing, bit for bit. Where nothing is gated, it does."""
    place = AT.get(family, "embedding")
    model = tiny.build(family)
    found = total(run(model, batch_of(family, model), "lrp", [place]))
    gated = with_constant_activations(model, batch_of(family, model))
    if not gated:
        pytest.skip("has no modules that are activations")
    constant = total(run(model, batch_of(family, model), "lrp", [place]))
    if gated == {True}:
        assert torch.equal(found, constant)
    else:
        assert not torch.allclose(found, constant, rtol=1e-3, atol=1e-3 * float(found.abs().max()))


@pytest.mark.parametrize("family", [f for f in ("causal:gpt_oss", "causal:minimax_m3_vl_text") if f in tiny.FAMILIES])
def test_a_gate_beside_a_clamped_signal_gets_exactly_0(family):
    """These compute ``(clamp(up) + 1) * glu`` in a method."""
    model = tiny.build(family)
    before = total(run(model, batch_of(family, model), "lrp", ["embedding"]))
    changed = 0
    for module in model.modules():
        if hasattr(module, "_apply_gate"):
            changed += 1
            module._apply_gate = partial(_with_a_constant_gate, module)
    assert changed
    assert torch.equal(before, total(run(model, batch_of(family, model), "lrp", ["embedding"])))


def _with_a_constant_gate(module, gate_up):
    interleaved = type(module).__name__ == "GptOssExperts"
    gate, up = (gate_up[..., ::2], gate_up[..., 1::2]) if interleaved else gate_up.chunk(2, dim=-1)
    limit, alpha = (module.limit, module.alpha) if interleaved else (module.swiglu_limit, module.swiglu_alpha)
    gate, up = gate.clamp(max=limit), up.clamp(min=-limit, max=limit)
    return (up + 1) * (gate * torch.sigmoid(gate * alpha)).detach()


# Mixtures of experts: the same function, computed in three ways.


@pytest.mark.parametrize("rule", [None, rules.gamma(0.25), rules.alpha1beta0], ids=["none", "gamma", "alpha1beta0"])
@pytest.mark.parametrize("base", ["lrp", "attnlrp"])
@families(["causal:mixtral", "causal:qwen3_moe", "causal:gpt_oss"])
def test_one_map_under_all_implementations_of_experts(family, base, rule):
    rule_set = {**get_rules(base), **({"linear": rule} if rule else {})}
    found = {}
    for kind in ("eager", "batched_mm", "grouped_mm"):
        try:
            model = tiny.build(family, dtype=torch.float32, experts_implementation=kind)
            found[kind] = total(run(model, batch_of(family, model), rule_set, ["embedding"]))
        except ImportError:
            if kind != "grouped_mm":  # which needs a newer torch
                raise
    for other in found.values():
        torch.testing.assert_close(other, found["eager"], rtol=0, atol=2e-5 * float(found["eager"].abs().max()))


@pytest.mark.parametrize("family", ["causal:mixtral", "causal:qwen3_moe", "causal:olmoe", "causal:deepseek_v3"])
def test_experts_that_were_not_chosen_get_nothing(family):
    """Whether the router renormalises the weights of the chosen or not: their logits are in no one's softmax."""
    model = tiny.build(family)
    if getattr(model.config, "norm_topk_prob", True) is False:
        model.config.norm_topk_prob = True
        for module in model.modules():
            if hasattr(module, "norm_topk_prob"):
                module.norm_topk_prob = True
    routers = [n for n, m in model.named_modules() if re.search(r"Router|TopKGate", type(m).__name__)]
    seen = {}

    def note(name, _, args, output):
        tensors = output if isinstance(output, tuple) else (output,)
        logits = next(t for t in tensors if t.is_floating_point() and t.shape[-1] == 4 and t.requires_grad)
        logits.retain_grad()
        seen[name] = logits

    hooks = [model.get_submodule(n).register_forward_hook(partial(note, n)) for n in routers]
    ids = tiny.inputs(model)["input_ids"]
    with propagate(model, "attnlrp"):
        x = model.get_input_embeddings()(ids).detach().requires_grad_()
        model(inputs_embeds=x).logits[0, -1, 11].backward()
    for hook in hooks:
        hook.remove()
    used = [logits for logits in seen.values() if logits.grad is not None and logits.grad.any()]
    if not used:
        pytest.skip("this transformers' router does not return the logits that it goes on with")
    for logits in used:
        relevance = (logits * logits.grad).detach()
        size = relevance.abs().amax(-1, keepdim=True)
        assert ((relevance.abs() > 1e-5 * size).sum(-1) <= 2).all()  # two are chosen of four; the softmax is in float32
