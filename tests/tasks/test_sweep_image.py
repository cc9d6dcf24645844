"""Every image classifier of the installed transformers: values untouched, relevance accounted for, and patches where they belong.

Under LRP every operation passes on what it receives, except where a constant is added. With biases, positions and tokens of the
model's own set to zero, the relevance of the pixels adds up to the logit.
"""

import re
from functools import partial

import pytest
import tiny_images
import torch
from support import families
from torch import nn
from torch.nn import functional

from lrpx.check import Accounting
from lrpx.errors import InputError, UnsupportedModelError
from lrpx.models.refused import REFUSED
from lrpx.passes.attribution import run
from lrpx.passes.dispatch import PassRunner
from lrpx.passes.execution import Execution
from lrpx.passes.hidden_states import first_blocks
from lrpx.propagation.propagate import propagate
from lrpx.tasks.patches import WITHOUT_PATCHES, default_place, noted_patches
from lrpx.tasks.text_classification import LabelScores
from lrpx.text.batching import Batch

TOLERANCE = 2e-6  # transformers computes some norms in float32, whatever the dtype of the model
QUICK = ("image:vit", "image:dinov2_with_registers", "image:swin", "image:siglip2")
REFUSES = [f for f in tiny_images.FAMILIES if f.split(":")[1] in REFUSED]
EXPLAINED = [f for f in tiny_images.FAMILIES if f not in REFUSES]
CONVNETS = (
    "bit convnext convnextv2 efficientnet focalnet hgnet_v2 mobilenet_v1 mobilenet_v2 poolformer regnet resnet textnet"
).split()
MULTIPLIES = ("image:focalnet", "image:mobilevitv2", "image:swiftformer")
"""Those that multiply two hidden states outside of attention: the tests of gates below have looked at them."""
PATCHES = [f for f in EXPLAINED if f.split(":")[1] not in (*CONVNETS, *WITHOUT_PATCHES)]
"""Those of which relevance is taken at the patches; of the others, at the pixels."""


def batch_of(inputs, target=2, contrast=3):
    rows = len(inputs["pixel_values"])
    ids = [torch.full((rows,), i) for i in (target, contrast)]
    return Batch(
        inputs, [slice(None)] * rows, torch.zeros(rows).long(), *ids, True, readout=LabelScores(), of_images=True
    )


def total(result, name):
    hidden = result.hidden[name]
    return (hidden.state * hidden.gradient).double()


def places(family):
    return ("input", "pixels") if family in PATCHES else ("pixels",)


@families(EXPLAINED, QUICK)
def test_forward_is_bit_identical_and_relevance_adds_up(family):
    model = tiny_images.build(family, zero=True)
    inputs = tiny_images.inputs(model)
    with torch.no_grad():
        plain = model(**inputs).logits
    for rule_set in ("lrp", "attnlrp"):
        with propagate(model, rule_set), torch.enable_grad():
            leaf = inputs["pixel_values"].clone().requires_grad_()
            assert torch.equal(model(**{**inputs, "pixel_values": leaf}).logits, plain)

    result = run(model, batch_of(inputs), "lrp", places(family), mode=Accounting)
    assert result.values[0] == pytest.approx(float(plain[0, 2] - plain[0, 3]), rel=1e-12)
    assert bool(result.mode.hits["product"]) == (family in MULTIPLIES)
    for place in places(family):
        parts = total(result, place)
        missing = result.values[0] - float(parts.sum()) - result.mode.absorbed
        assert abs(missing) < TOLERANCE * float(parts.abs().sum()), place


@families(PATCHES, QUICK)
def test_the_account_would_not_balance_without_the_rules(family):
    """The check above is one that can fail: plain gradients miss by far."""
    model = tiny_images.build(family, zero=True)
    result = run(model, batch_of(tiny_images.inputs(model)), {}, ["pixels"])
    parts = total(result, "pixels")
    assert abs(result.values[0] - float(parts.sum())) > 50 * TOLERANCE * float(parts.abs().sum())


@families([*PATCHES, "image:cvt", "image:mobilevit", "image:resnet", "image:swiftformer"], QUICK)
def test_a_batch_gives_what_each_image_gives_alone_however_it_is_run(family):
    model = tiny_images.build(family)
    inputs = tiny_images.inputs(model, batch=2)
    runner = PassRunner(model, Execution(checkpoint=True))
    for rule_set in ("attnlrp", "lrp"):
        together = run(model, batch_of(inputs), rule_set, places(family))
        again = run(model, batch_of(inputs), rule_set, places(family), runner=runner)
        for place in places(family):
            expected = total(together, place)
            torch.testing.assert_close(total(again, place), expected, rtol=0, atol=1e-12 * float(expected.abs().max()))
            for n in range(2):
                alone = run(
                    model, batch_of({name: t[n : n + 1] for name, t in inputs.items()}), rule_set, places(family)
                )
                atol = 2e-6 * float(expected.abs().max())  # norms in float32
                torch.testing.assert_close(total(alone, place)[0], expected[n], rtol=0, atol=atol)


@families(PATCHES, QUICK)
def test_each_token_is_the_patch_that_it_is_taken_for(family):
    """Pixels of a patch change its own token most, of all that enter the first block; or a neighbour, if convolutions overlap."""
    model = tiny_images.build(family)
    inputs = tiny_images.inputs(model)
    patched = (4, 4) if family == "image:siglip2" else None
    with noted_patches(model) as seen, torch.no_grad():
        model(**inputs)
    grid = seen.grid(model, patched)
    assert grid.rows > 1
    assert grid.columns > 1
    base = first_input(model, inputs)
    assert base.shape[1] == grid.tokens
    names = [divmod(n, grid.columns) for n in range(grid.rows * grid.columns)]
    of_token = dict(zip(grid.order or range(len(names)), names, strict=True))
    for patch in range(0, len(names), 1 if len(names) < 100 else 7):
        row, column = names[patch]
        changed = inputs["pixel_values"].clone()
        if patched:
            changed[:, patch] += 1
        else:
            side = changed.shape[2] // grid.rows
            changed[:, :, row * side : (row + 1) * side, column * side : (column + 1) * side] += 1
        change = (first_input(model, {**inputs, "pixel_values": changed}) - base).abs().sum(-1)[0]
        found = of_token[int(change.argmax()) - grid.before]
        apart = max(abs(found[0] - row), abs(found[1] - column))
        assert apart <= (grid.side is None and not patched), (patch, found)


def first_input(model, inputs):
    """What enters the first block, [1, T, width]."""
    states = []

    def note(_, args, kwargs):
        state = next(v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor))
        if state.ndim == 3:
            states.append(state)

    hooks = [b.register_forward_pre_hook(note, with_kwargs=True) for b in first_blocks(list(model.modules()))]
    with torch.no_grad():
        model(**inputs)
    for hook in hooks:
        hook.remove()
    return states[0]


@families(PATCHES, QUICK)
def test_fused_and_explicit_attention_agree(family):
    try:
        models = [tiny_images.build(family, attn_implementation=kind) for kind in ("sdpa", "eager")]
    except (ValueError, ImportError):
        pytest.skip("has one attention implementation only")
    inputs = tiny_images.inputs(models[0])
    for rule_set in ("lrp", "attnlrp"):
        fused, explicit = (total(run(m, batch_of(inputs), rule_set, ["pixels"]), "pixels") for m in models)
        torch.testing.assert_close(fused, explicit, rtol=0, atol=2e-5 * float(explicit.abs().max()))


@families(REFUSES, ())
def test_refused_by_name(family):
    model = tiny_images.build(family)
    with pytest.raises(UnsupportedModelError, match=type(model).__name__):
        run(
            model,
            batch_of({"pixel_values": torch.zeros(1, 3, 64, 64)} if "gpt" in family else tiny_images.inputs(model)),
            "lrp",
            ["pixels"],
        )


@families([f for f in EXPLAINED if f not in PATCHES], ("image:resnet",))
def test_without_patches_the_pixels_are_recommended(family):
    model = tiny_images.build(family)
    if "focalnet" in family:  # whose blocks are given patches, though they have no attention
        return
    with pytest.raises((InputError, UnsupportedModelError), match=r"Use at=.pixels"):
        run(model, batch_of(tiny_images.inputs(model)), "lrp", ["input"])


@families(EXPLAINED, QUICK)
def test_where_relevance_is_taken(family):
    assert default_place(tiny_images.build(family)) == ("input" if family in PATCHES else "pixels")


# Which factor got it: conservation cannot see relevance that went to a gate.


def gelu_by_gelu(model):
    """FocalNet's contexts, each an activation, times what the model calls gates."""
    for module in model.modules():
        if type(module).__name__ == "FocalNetModulation":
            for gelu in (m for m in module.modules() if isinstance(m, nn.GELU)):
                gelu.register_forward_hook(lambda _, __, output: output.detach())
                yield gelu


def swiglu(model):
    """DINOv2 giant: ``silu(gate) * up``."""
    for module in model.modules():
        if type(module).__name__ == "Dinov2SwiGLUFFN" or type(module).__name__ == "Dinov2WithRegistersSwiGLUFFN":
            module.forward = partial(with_a_constant_gate, module)
            yield module


def values_of_linear_attention(model):
    """MobileViT v2: ``relu(value) * context``, where the context has weights by softmax."""
    for module in model.modules():
        if type(module).__name__ == "MobileViTV2LinearSelfAttention":
            module.forward = partial(with_constant_values, module)
            yield module


SWIGLU = {"use_swiglu_ffn": True}
GATED = {
    "image:dinov2": (SWIGLU, swiglu),
    "image:dinov2_with_registers": (SWIGLU, swiglu),
    "image:focalnet": ({}, gelu_by_gelu),
    "image:mobilevitv2": ({}, values_of_linear_attention),
}
"""Family -> options with which it is gated, and how its gates are made constants by hand."""


@families([f for f in GATED if f in EXPLAINED], ("image:dinov2",))
def test_the_gate_gets_exactly_0(family):
    """The gate is a constant under LRP, so making it one changes nothing, bit for bit; and takes half under AttnLRP."""
    options, constant = GATED[family]
    model = tiny_images.build(family, **options)
    batch = batch_of(tiny_images.inputs(model))
    before = {rules: total(run(model, batch, rules, ["pixels"]), "pixels") for rules in ("lrp", "attnlrp")}
    assert list(constant(model))
    after = {rules: total(run(model, batch, rules, ["pixels"]), "pixels") for rules in ("lrp", "attnlrp")}
    assert torch.equal(before["lrp"], after["lrp"])
    atol = 1e-3 * float(after["attnlrp"].abs().max())
    assert not torch.allclose(before["attnlrp"], after["attnlrp"], rtol=1e-3, atol=atol)


def with_a_constant_gate(module, x):
    if hasattr(module, "gate_proj"):
        return module.down_proj(module.act_fn(module.gate_proj(x)).detach() * module.up_proj(x))
    gate, up = module.weights_in(x).chunk(2, dim=-1)  # before transformers 5.20 or so
    return module.weights_out(functional.silu(gate).detach() * up)


def with_constant_values(module, x):
    query, key, value = module.qkv_proj(x).split([1, module.embed_dim, module.embed_dim], dim=1)
    context = (key * query.softmax(-1)).sum(-1, keepdim=True)
    return module.out_proj(functional.relu(value).detach() * context.expand_as(value))


@families([f for f in EXPLAINED if f in ("image:regnet", "image:efficientnet")], ())
def test_the_gates_of_channels_get_exactly_0(family):
    """Squeeze and excitation: a sigmoid of the means of all channels multiplies them."""
    model = tiny_images.build(family)
    batch = batch_of(tiny_images.inputs(model))
    before = total(run(model, batch, "lrp", ["pixels"]), "pixels")
    gates = [m for m in model.modules() if isinstance(m, nn.Sigmoid)]
    assert gates
    for gate in gates:
        gate.register_forward_hook(lambda _, __, output: output.detach())
    assert torch.equal(before, total(run(model, batch, "lrp", ["pixels"]), "pixels"))


@families(PATCHES, QUICK)
def test_queries_and_keys_get_nothing_under_lrp(family):
    """Attention weights are constants, relative position biases with them."""
    model = tiny_images.build(family)
    batch = batch_of(tiny_images.inputs(model))
    result = run(model, batch, "lrp", ["pixels"])
    before = total(result, "pixels")
    names = [
        n
        for n, m in model.named_modules()
        if isinstance(m, nn.Linear) and re.search(r"(query|key|q_proj|k_proj|\.q|\.k)$", n)
    ]
    if not names or not result.mode.hits["attention"]:
        pytest.skip("projects queries, keys and values together, or has no fused attention")
    attnlrp = total(run(model, batch, "attnlrp", ["pixels"]), "pixels")
    for name in names:
        model.get_submodule(name).register_forward_hook(lambda _, __, output: output.detach())
    assert torch.equal(before, total(run(model, batch, "lrp", ["pixels"]), "pixels"))
    assert not torch.allclose(attnlrp, total(run(model, batch, "attnlrp", ["pixels"]), "pixels"), rtol=1e-3)


def test_padding_patches_get_nothing_and_change_nothing():
    """SigLIP 2 reads images of different shapes, padded to one number of patches."""
    model = tiny_images.build("image:siglip2")
    inputs = tiny_images.inputs(model)
    padded = {
        "pixel_values": torch.cat([inputs["pixel_values"][:, :6], torch.randn(1, 10, 48).double()], 1),
        "pixel_attention_mask": torch.tensor([[1] * 6 + [0] * 10]),
        "spatial_shapes": torch.tensor([[2, 3]]),
    }
    short = {name: t[:, :6] if name != "spatial_shapes" else t for name, t in padded.items()}
    for rules in ("attnlrp", "lrp"):
        found, alone = (run(model, batch_of(x), rules, ["input", "pixels"]) for x in (padded, short))
        for place in ("input", "pixels"):
            parts = total(found, place)
            assert not parts[:, 6:].any()
            torch.testing.assert_close(parts[:, :6], total(alone, place), rtol=1e-6, atol=1e-9)
