"""What heads wrote and what attention, MLP and blocks added: against hooks on named modules, finite differences, conservation."""

import itertools
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from support import COMMON, families, fingerprint, lift_float32_norms, runner_of, slow_but
from swept import EXPLAINED

from lrpx.passes.attribution import run
from lrpx.passes.branch_sums import Rows
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassOptions, PassSpec
from lrpx.propagation.propagate import propagate
from lrpx.text.batching import Item, pad

TOLERANCE = 2e-6  # transformers computes many norms in float32, whatever the dtype of the model
RULES = ("lrp", "attnlrp", {})

# Family -> its blocks, and in a block: the projection that the heads enter, what adds the attention, and what adds the MLP.
MODULES = {
    "causal:llama": ("model.layers", "self_attn.o_proj", "self_attn.o_proj", "mlp"),
    "causal:gpt2": ("transformer.h", "attn.c_proj", "attn.c_proj", "mlp"),  # Conv1D, fused QKV
    "masked:bert": (
        "bert.encoder.layer",
        "attention.output.dense",
        "attention.output.dense",
        "output.dense",
    ),  # post-norm
    "causal:gptj": ("transformer.h", "attn.out_proj", "attn.out_proj", "mlp"),  # parallel
    "causal:cohere": ("model.layers", "self_attn.o_proj", "self_attn.o_proj", "mlp"),  # parallel, in another order
    "causal:falcon": ("transformer.h", "self_attention.dense", "self_attention.dense", "mlp"),  # parallel, multi-query
    "causal:gpt_neox": ("gpt_neox.layers", "attention.dense", "attention.dense", "mlp"),
    "causal:gemma2": (
        *("model.layers", "self_attn.o_proj"),
        *("post_attention_layernorm", "post_feedforward_layernorm"),  # norms on the branches
    ),
    "causal:olmo2": (
        *("model.layers", "self_attn.o_proj"),
        *("post_attention_layernorm", "post_feedforward_layernorm"),
    ),
    "causal:mixtral": ("model.layers", "self_attn.o_proj", "self_attn.o_proj", "mlp"),  # experts
    "causal:deepseek_v3": ("model.layers", "self_attn.o_proj", "self_attn.o_proj", "mlp"),  # MLA, shared experts
    "causal:gpt_oss": ("model.layers", "self_attn.o_proj", "self_attn.o_proj", "mlp"),  # sinks: weights are cut
    "causal:bloom": ("transformer.h", "self_attention.dense", "self_attention.dense", "mlp.dense_4h_to_h"),  # bmm
    "causal:opt": ("model.decoder.layers", "self_attn.out_proj", "self_attn.out_proj", "fc2"),  # flattened MLP
    "causal:qwen3": ("model.layers", "self_attn.o_proj", "self_attn.o_proj", "mlp"),
    "causal:bart": ("model.decoder.layers", "self_attn.out_proj", "self_attn.out_proj", "fc2"),  # post-norm
    "masked:modernbert": ("model.layers", "attn.Wo", "attn.Wo", "mlp"),
}
MODULES = {family: modules for family, modules in MODULES.items() if family in tiny.FAMILIES}


def batch_of(family, model, n=9, **options):
    ids = tiny.inputs(model, n_tokens=n)["input_ids"][0].tolist()
    return pad([Item(tuple(ids), n - 1 if family.startswith("causal") else 4, 11, 13)], model, **options)


def inside(model, batch, rules, **options):
    (found,) = run(model, batch, rules, heads=True, **options).inside
    return found


def blocks_of(family, model):
    """Of each block: itself, the projection, the module that adds the attention, the one that adds the MLP."""
    path, *names = MODULES[family]
    return [(block, *(block.get_submodule(name) for name in names)) for block in model.get_submodule(path)]


def first(output):
    return output[0] if isinstance(output, tuple) else output


def by_hand(family, model, batch, rules):
    """The same relevance from hooks on named modules: each noted tensor times its gradient."""
    seen = []

    with ExitStack() as stack, propagate(model, rules, unknown="ignore"):
        for block, projection, attention, mlp in blocks_of(family, model):
            seen_here = {}

            def enter(_, args, kwargs, here=seen_here):
                entered = args[0] if args else kwargs["hidden_states"]
                here["value of block in"] = entered.requires_grad_().detach().clone()

            stack.callback(block.register_forward_pre_hook(enter, with_kwargs=True).remove)
            for module, name in ((block, "block"), (attention, "attention"), (mlp, "mlp")):

                def note(_, __, output, name=name, here=seen_here):
                    tensor = first(output)
                    here[name], here[f"value of {name}"] = tensor, tensor.detach().clone()  # it may be overwritten

                stack.callback(module.register_forward_hook(note).remove)

            def note_heads(_, args, here=seen_here):
                here["heads"], here["value of heads"] = args[0], args[0].detach().clone()

            stack.callback(projection.register_forward_pre_hook(note_heads).remove)
            seen.append(seen_here)
        logits = model(**batch.inputs).logits[0, int(batch.positions)]
        value = logits[11] - logits[13]
        names = ("heads", "attention", "mlp", "block")
        wanted = [here[name] for here in seen for name in names]
        gradients = iter(torch.autograd.grad(value, wanted))
    heads = model.config.get_text_config().num_attention_heads
    n = batch.inputs["input_ids"].shape[1]
    found = {"by_head": [], "by_attention": [], "by_mlp": [], "by_layer": []}
    for here in seen:
        gradient = {name: next(gradients).detach().double() for name in names}
        state = {name: here[f"value of {name}"].double() for name in (*names, "block in")}
        found["by_head"].append((state["heads"] * gradient["heads"]).reshape(n, heads, -1).sum(-1).T)
        for name in ("attention", "mlp"):
            found[f"by_{name}"].append((state[name] * gradient[name]).reshape(n, -1).sum(-1))
        added = state["block"] - state["block in"]
        found["by_layer"].append((added * gradient["block"]).reshape(n, -1).sum(-1))
    return {name: torch.stack(rows).numpy() for name, rows in found.items()}


QUICK = ("causal:llama", "causal:gpt2", "masked:bert", "causal:gptj", "causal:gemma2")


@pytest.mark.parametrize("rules", RULES)
@families(list(MODULES), quick=QUICK)
def test_agrees_with_hooks_on_named_modules(family, rules):
    model = tiny.build(family)
    batch = batch_of(family, model)
    found, expected = inside(model, batch, rules), by_hand(family, model, batch, rules)
    assert found.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_allclose(found[name], numbers, rtol=0, atol=1e-9 * np.abs(numbers).max(), err_msg=name)


def slope(model, batch, scaled):
    """The derivative of the value by s at s = 1, by central differences; ``scaled(s)`` gives hooks to install."""
    values = []
    for s in (1 + 1e-5, 1 - 1e-5):
        with ExitStack() as stack, torch.no_grad():
            for handle in scaled(s):
                stack.callback(handle.remove)
            logits = model(**batch.inputs).logits[0, int(batch.positions)]
            values.append(float(logits[11] - logits[13]))
    return (values[0] - values[1]) / 2e-5


FINITE = ("causal:gpt2", "masked:bert", "causal:gpt_neox", "causal:llama", "causal:falcon", "causal:opt")


@pytest.mark.parametrize("family", slow_but(FINITE, "causal:gpt2", "masked:bert", "causal:gpt_neox", "causal:llama"))
def test_gradient_x_input_is_the_slope_of_the_value_as_a_part_is_scaled(family):
    """Independent of all that is noted: scale what one head, attention, MLP or block writes, and see what the value does."""
    model = tiny.build(family)
    batch = batch_of(family, model)
    with lift_float32_norms(model, family == "causal:llama"):
        found = inside(model, batch, {})
        for layer, (block, projection, attention, mlp) in enumerate(blocks_of(family, model)):
            entered = {}

            def enter(_, args, kwargs, entered=entered):
                entered["x"] = args[0] if args else kwargs["hidden_states"]

            def scale_block(s, block=block, entered=entered, enter=enter):
                def change(_, __, output):
                    new = entered["x"] + s * (first(output) - entered["x"])
                    return (new, *output[1:]) if isinstance(output, tuple) else new

                return [block.register_forward_pre_hook(enter, with_kwargs=True), block.register_forward_hook(change)]

            def scale(module):
                return lambda s: [module.register_forward_hook(lambda _, __, out: out * s)]

            checks = {"by_attention": scale(attention), "by_mlp": scale(mlp), "by_layer": scale_block}
            for name, hooks in checks.items():
                total = found[name][layer].sum()
                assert slope(model, batch, hooks) == pytest.approx(total, rel=1e-6, abs=1e-9), name
            heads = found["by_head"].shape[1]
            for head in range(heads):

                def scale_head(s, projection=projection, head=head, heads=heads):
                    def change(_, args):
                        factors = torch.ones(heads, dtype=args[0].dtype)
                        factors[head] = s
                        return (args[0] * factors.repeat_interleave(args[0].shape[-1] // heads),)

                    return [projection.register_forward_pre_hook(change)]

                total = found["by_head"][layer, head].sum()
                assert slope(model, batch, scale_head) == pytest.approx(total, rel=1e-6, abs=1e-9)


# Every family: what is not known of it, and why.
NO_BRANCHES = {
    **dict.fromkeys(("causal:xlm", "masked:xlm", "masked:flaubert"), "their attentions and MLPs are in separate lists"),
    **dict.fromkeys(("masked:deberta", "masked:ibert"), "the norms on their residual streams are written out"),
    "masked:neomme": "mixes the embedding into the stream before each block's attention",
    **dict.fromkeys(("causal:inkling2_text", "causal:inkling2_loop_text"), "softmax over blocks mixes its streams"),
    **dict.fromkeys(("causal:zamba", "causal:zamba2"), "go on from a block of attention inside the next block"),
}
ONE_BRANCH = {
    "masked:mobilebert": "its attention and MLPs add to a narrower stream of the block's own",
    "masked:fnet": "has no attention, and mixes tokens by a Fourier transform",
    **dict.fromkeys(tiny.STATE_SPACE, "scans and recurrences are neither attention nor MLP"),
}
NO_HEADS = {
    "masked:nystromformer": "adds a convolution to what the heads wrote, in place",
    "masked:fnet": "has no heads",
    **dict.fromkeys(("causal:mamba", "causal:mamba2", "causal:falcon_mamba"), "scans have no attention weights"),
    "causal:xlstm": "has no attention",
}
NOTHING = {
    **dict.fromkeys(("causal:deepseek_v4", "causal:hy_v4", "causal:gemma3n_text"), "has several residual streams"),
    "causal:rwkv": "has no attention, and rescales its stream between blocks",
    "masked:longformer": "pads the text and computes attention in pieces",
    "masked:squeezebert": "keeps hidden states as [batch, width, tokens]",
}
# Attention adds more than what its heads wrote.
MORE_THAN_HEADS = {
    "masked:convbert": "convolutions beside the heads",
    "causal:dory": "goes towards the attention's output rather than adding it",
}
TWO_ATTENTIONS = ("causal:diffllama", "causal:longcat_flash")
SHOWN = [f for f in EXPLAINED if f not in NOTHING]


@families(SHOWN)
def test_every_family(family):
    """Relevance of all heads of a block is that of its attention, as nothing is lost between them without biases."""
    model = tiny.build(family, zero_biases=True)
    batch = batch_of(family, model)
    found = inside(model, batch, "lrp", at=["embedding" if family == "causal:hrm_text" else "input"])
    unknown = {"by_attention", "by_mlp", "by_layer"} if family in NO_BRANCHES else set()
    unknown |= {"by_head"} if family in NO_HEADS else set()
    unknown |= {"by_attention", "by_mlp"} if family in ONE_BRANCH else set()
    assert found.keys() == {"by_head", "by_attention", "by_mlp", "by_layer"} - unknown
    for name, numbers in found.items():
        assert numbers.shape[0] == next(iter(found.values())).shape[0]
        assert numbers.shape[-1] == 9
        assert np.isfinite(numbers).all()
        assert np.abs(numbers).max() > 0, name
    if "by_head" in found and not (family in TWO_ATTENTIONS or family == "masked:convbert"):
        counts = model.config.get_text_config().num_attention_heads
        assert found["by_head"].shape[1] == (max(counts) if isinstance(counts, list | tuple) else counts)
    if {"by_head", "by_attention"} <= found.keys():
        heads, attention = found["by_head"].sum((1, 2)), found["by_attention"].sum(1)
        scale = np.abs(found["by_head"]).sum((1, 2))
        assert (np.abs(heads - attention) < TOLERANCE * scale).all() != (family in MORE_THAN_HEADS)


@families([f for f in NOTHING if f in EXPLAINED], quick=())
def test_nothing_is_made_up_where_nothing_is_known(family):
    model = tiny.build(family)
    place = ["embedding"] if family == "masked:squeezebert" else ["input"]
    assert run(model, batch_of(family, model), "lrp", place, heads=True).inside is None


@families([f for f in SHOWN if f in MODULES])
def test_relevance_passes_from_block_to_block(family):
    """Without biases, what leaves a block is what entered it: what it added, and what passes unchanged, make up the value."""
    model = tiny.build(family, zero_biases=True)
    batch = batch_of(family, model)
    path = MODULES[family][0]
    places = ["input", *(f"{path}.{i}" for i in range(len(model.get_submodule(path))))]
    result = run(model, batch, "lrp", places, heads=True)
    states = list(result.hidden.values())
    parts = result.inside[0]
    for layer, (before, after) in enumerate(itertools.pairwise(states)):
        passed = (before.state * after.gradient).double().sum(-1)[0].numpy()
        left = (after.state * after.gradient).double().sum(-1)[0].numpy()
        scale = np.abs(left).sum() + np.abs(passed).sum()
        np.testing.assert_allclose(parts["by_layer"][layer] + passed, left, rtol=0, atol=1e-9 * scale)
        if family != "causal:gpt_oss":  # the 1 in its ``(up + 1) * glu`` takes a part
            assert abs(left.sum() - result.values[0]) < TOLERANCE * scale


@families([f for f in SHOWN if f in COMMON or f in MODULES])
def test_a_batch_gives_what_each_text_gets_alone(family):
    model = tiny.build(family)
    ids = tiny.inputs(model, n_tokens=9)["input_ids"][0].tolist()
    items = [Item(tuple(ids[:n]), n - 1, 11, 13) for n in (9, 6)]
    together = run(model, pad(items, model, side="right"), "attnlrp", heads=True)
    for item, span, found in zip(items, pad(items, model).spans, together.inside, strict=True):
        for name, numbers in inside(model, pad([item], model), "attnlrp").items():
            np.testing.assert_allclose(
                found[name][..., span], numbers, rtol=0, atol=5e-6 * np.abs(numbers).max(), err_msg=name
            )


WAYS = [PassOptions(checkpoint=True), PassOptions(static=True), PassOptions(whole_head=True), PassOptions(linked=True)]


@pytest.mark.parametrize("options", WAYS, ids=["checkpoint", "static", "whole head", "linked"])
@pytest.mark.parametrize("family", ["causal:llama", "masked:bert", "causal:bloom"])
def test_however_the_pass_is_run(family, options):
    model = tiny.build(family)
    batch = batch_of(family, model)
    spec = PassSpec("attnlrp", heads=True)
    plain, other = (compute(model, batch, spec, how).read(1).inside[0] for how in (PassOptions(), options))
    assert plain.keys() == other.keys()
    for name, numbers in plain.items():
        np.testing.assert_allclose(other[name], numbers, rtol=1e-12, atol=1e-12 * np.abs(numbers).max())


@pytest.mark.compiler
def test_a_compiled_pass(quickly, as_traced):
    """As it was traced; ``test_compiled_in_float32`` fuses it."""
    model = tiny.build("causal:llama")
    batch = batch_of("causal:llama", model)
    found = inside(model, batch, "attnlrp", runner=runner_of(model, compile=True))
    assert as_traced
    for name, numbers in inside(model, batch, "attnlrp").items():
        np.testing.assert_allclose(found[name], numbers, rtol=0, atol=1e-12 * np.abs(numbers).max())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_dtypes_under_eager_attention(dtype):
    """The weights are cast between softmax and values."""
    narrow = tiny.build("causal:llama", dtype=dtype, attn_implementation="eager")
    wide = tiny.build("causal:llama", attn_implementation="eager")
    found, expected = (inside(m, batch_of("causal:llama", m), "attnlrp") for m in (narrow, wide))
    for name, numbers in expected.items():
        assert np.abs(found[name] - numbers).max() < 0.2 * np.abs(numbers).max(), name


def test_fused_and_explicit_attention_agree():
    models = [tiny.build("causal:llama", attn_implementation=kind) for kind in ("sdpa", "eager")]
    fused, explicit = (inside(m, batch_of("causal:llama", m), "attnlrp") for m in models)
    for name, numbers in explicit.items():
        np.testing.assert_allclose(fused[name], numbers, rtol=0, atol=1e-6 * np.abs(numbers).max())


def test_what_is_explained_stays_the_same_and_the_model_too():
    model = tiny.build("causal:gpt2")
    batch = batch_of("causal:gpt2", model)
    before = fingerprint(model)
    with_heads, without = (run(model, batch, "attnlrp", heads=heads) for heads in (True, False))
    assert fingerprint(model) == before
    np.testing.assert_array_equal(with_heads.products, without.products)
    assert with_heads.notes == without.notes
    assert with_heads.mode.hits == without.mode.hits
    assert without.inside is None


def test_nothing_is_left_behind_after_an_error(monkeypatch):
    model = tiny.build("causal:gpt2")
    before = fingerprint(model)
    batch = batch_of("causal:gpt2", model)

    def fail(*_):
        raise ValueError("no")

    handle = model.transformer.h[1].mlp.register_forward_hook(fail)
    with pytest.raises(ValueError, match="no"):
        run(model, batch, "attnlrp", heads=True)
    handle.remove()
    assert fingerprint(model) == before
    assert inside(model, batch, "attnlrp").keys() == {"by_head", "by_attention", "by_mlp", "by_layer"}


def returns_tuples(block):
    """Whether a block gives its hidden states in a tuple, as in older versions of transformers."""
    with torch.no_grad():
        return isinstance(block(torch.zeros(1, 3, 32, dtype=torch.float64)), tuple)


@pytest.mark.parametrize("writes", ["branch += stream", "stream += branch"])
def test_sums_in_place(writes):
    """A model may write the sum into the branch, whose value is gone then."""
    model, changed = (tiny.build("causal:gpt2") for _ in range(2))
    in_tuple = returns_tuples(model.transformer.h[0])

    def forward(block):
        def call(x, *args, attention_mask=None, **kwargs):
            a = block.attn(block.ln_1(x), attention_mask=attention_mask, use_cache=False)[0]
            if writes == "branch += stream":
                a += x
                x = a
            else:
                x = x.clone()
                x += a
            m = block.mlp(block.ln_2(x))
            m += x
            return (m,) if in_tuple else m

        return call

    for block in changed.transformer.h:
        block.forward = forward(block)
    batch = batch_of("causal:gpt2", model)
    found = inside(changed, batch, "attnlrp")
    for name, numbers in inside(model, batch, "attnlrp").items():
        np.testing.assert_allclose(found[name], numbers, rtol=0, atol=1e-12 * np.abs(numbers).max(), err_msg=name)


def test_a_residual_that_is_not_seen_gives_nothing():
    """What a block adds in a way that is not followed is not guessed."""
    model = tiny.build("causal:gpt2")
    block = model.transformer.h[1]
    in_tuple = returns_tuples(block)

    def forward(x, *args, attention_mask=None, **kwargs):
        a = block.attn(block.ln_1(x), attention_mask=attention_mask, use_cache=False)[0]
        x = torch.stack([x, a]).sum(0)
        x = x + block.mlp(block.ln_2(x))
        return (x,) if in_tuple else x

    block.forward = forward
    assert inside(model, batch_of("causal:gpt2", model), "attnlrp").keys() == {"by_head"}


def test_blocks_with_different_numbers_of_heads():
    rows = Rows(2, (1, 3), branches=False, layers=True)
    numbers = np.arange(1.0, 13).reshape(6, 2)
    found = rows.read(numbers)
    np.testing.assert_array_equal(found["by_head"], [[[1, 2], [0, 0], [0, 0]], [[3, 4], [5, 6], [7, 8]]])
    np.testing.assert_array_equal(found["by_layer"], [[9, 10], [11, 12]])
    assert rows.count == 6
    assert replace(rows, branches=True).count == 10


def test_long_texts_are_multiplied_in_steps(monkeypatch):
    model = tiny.build("causal:llama")
    batch = batch_of("causal:llama", model)
    expected = inside(model, batch, "attnlrp")
    monkeypatch.setattr("lrpx.passes.branch_sums.STACKED", 100)
    monkeypatch.setattr("lrpx.passes.forward_backward.CHUNK", 100)
    for name, numbers in inside(model, batch, "attnlrp").items():
        np.testing.assert_allclose(numbers, expected[name], rtol=1e-12, atol=1e-13)
