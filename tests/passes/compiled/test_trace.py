"""A pass as one graph: the same numbers as the pass itself, for which shapes it holds, and the model as it was."""

import threading
from dataclasses import replace

import numpy as np
import pytest
import tiny
import torch
from compiled_tools import ASKED, OTHERS, assert_close, batch_for, gpt2, shallow
from support import fingerprint, on_states
from torch import nn

from lrpx.models.positions import context_length
from lrpx.passes.compiled.attention_calls import AttentionCall, AttentionCalls
from lrpx.passes.compiled.trace import SHORT, attention_calls, tensors_of, traced, weights_of
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassOptions, PassSpec

FAMILIES = [
    ("causal:llama", "attnlrp"),
    ("causal:gpt2", "lrp"),
    ("masked:bert", {}),
    ("causal:qwen3", "lrp"),
    ("causal:gpt_neox", {}),
    ("causal:opt", "attnlrp"),
    ("masked:modernbert", "attnlrp"),
    ("causal:gemma2", "lrp"),  # a sliding window of five tokens, and a cap on its logits
    ("causal:bloom", "attnlrp"),  # an activation with a backward pass of its own
]


pytestmark = pytest.mark.usefixtures("quickly")


def run(trace, model, batch):
    return trace.result.with_tensors(trace.graph(*tensors_of(weights_of(model), batch)))


def static(rules="attnlrp", at=("input",), **options):
    return PassSpec(rules, at), PassOptions(static=True, **options)


def shape(batch):
    return tuple(batch.inputs["input_ids"].shape)


# The same numbers


@pytest.mark.parametrize(("family", "rules"), FAMILIES, ids=[family for family, _ in FAMILIES])
def test_one_trace_for_many_texts(family, rules):
    """Of other numbers and lengths, with other weights, on either side of the padding."""
    model = tiny.build(family) if family == "causal:gemma2" else shallow(family)
    trace = traced(model, batch_for(model), *static(rules, at=("input", "embedding")))
    for asked in (ASKED, *OTHERS):
        batch = batch_for(model, asked)
        assert trace.admits(*shape(batch))
        assert_close(run(trace, model, batch), compute(model, batch, PassSpec(rules, ("input", "embedding"))))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.9)
    before, batch = run(trace, model, batch), batch_for(model)
    found = run(trace, model, batch)
    assert_close(found, compute(model, batch, PassSpec(rules, ("input", "embedding"))))
    assert not torch.allclose(found.summary[:2], before.summary[:2])


@pytest.mark.parametrize(("family", "attention"), [("causal:llama", "eager"), ("causal:bloom", None)])
def test_heads_and_layers_are_seen_in_a_trace(family, attention):
    """Also where attention is written out: its weights go through a dropout, which is an operation there."""
    chosen = {} if attention is None else {"attn_implementation": attention}
    model = tiny.build(family, **chosen)
    spec, options = static()
    trace = traced(model, batch_for(model), replace(spec, heads=True), options)
    for asked in (ASKED, OTHERS[0]):
        batch = batch_for(model, asked)
        rows = len(batch.spans)
        with torch.no_grad():
            found = run(trace, model, batch).read(rows).inside
            expected = compute(model, batch, replace(spec, heads=True)).read(rows).inside
        assert expected[0].keys() == {"by_head", "by_attention", "by_mlp", "by_layer"}
        for one, other in zip(found, expected, strict=True):
            assert one.keys() == other.keys()
            for name, numbers in one.items():
                np.testing.assert_allclose(numbers, other[name], atol=1e-5 * np.abs(numbers).max())


def test_one_text_and_checkpointing_and_any_token():
    """A text alone is never padded. What its target is may be asked of the pass, too."""
    model = shallow("causal:llama")
    asked = [(9, 4, None, 13)]
    trace = traced(model, batch_for(model, asked), *static(checkpoint=True))
    for asked in ([(9, 4, None, 13)], [(12, 11, None, None)], [(7, 0, 11, 13)]):
        batch = batch_for(model, asked)
        assert trace.admits(*shape(batch))
        assert_close(run(trace, model, batch), compute(model, batch, PassSpec("attnlrp")))
    assert not trace.admits(2, 9)


def test_inside_inference_mode():
    model = gpt2()
    with torch.inference_mode():
        batch = batch_for(model)
        trace = traced(model, batch, *static())
        found = run(trace, model, batch)
    assert_close(found, compute(model, batch, PassSpec("attnlrp")))


def test_sizes_constants_buffers_and_writing_in_place():
    """All that a model may do to its tensors: nothing in the graph writes, and a buffer is read when it runs."""
    model = gpt2()
    model.register_buffer("scale", torch.tensor(2.0, dtype=torch.float64))
    constant = torch.linspace(1, 2, 32, dtype=torch.float64)

    def change(y):
        shifted = torch.zeros_like(y)
        shifted[:, 1:] = y[:, :-1]  # written into a part
        shifted.mul_(model.scale).add_(constant)
        counted = torch.arange(y.shape[1], dtype=y.dtype).add_(1).view(1, -1, 1) / y.shape[1]
        return y + shifted * counted * torch.tensor(0.5, dtype=y.dtype)

    model.transformer.h[0].register_forward_hook(on_states(change))
    trace = traced(model, batch_for(model), *static({}))
    for scale in (2, 3):
        model.scale.fill_(scale)
        for asked in (ASKED, *OTHERS):
            batch = batch_for(model, asked)
            assert_close(run(trace, model, batch), compute(model, batch, PassSpec({})))
    schemas = [n.target._schema for n in trace.graph.graph.nodes if hasattr(n.target, "_schema")]
    assert len(schemas) > 100
    assert not any(schema.is_mutable for schema in schemas)


# Shapes


def test_a_trace_says_for_which_numbers_of_texts_and_lengths_it_holds():
    """Conditions of the model's own, on lengths and on numbers of texts."""
    model = gpt2()

    def change(y):
        y = y + y.roll(1, -1) if y.shape[1] > 10 else y
        return y - y.roll(2, -1) if y.shape[0] < 4 else y

    model.transformer.h[0].register_forward_hook(on_states(change))
    trace = traced(model, batch_for(model), *static())
    admitted = {(rows, length) for rows in range(1, 7) for length in range(1, 14) if trace.admits(rows, length)}
    assert admitted == {(rows, length) for rows in (2, 3) for length in range(2, 11)}
    for asked in ([(10, 9, 11, 13)] * 3, [(2, 1, 11, 13)] * 2, [(11, 9, 11, 13)] * 2, [(10, 9, 11, 13)] * 4):
        batch = batch_for(model, asked)
        expected = compute(model, batch, PassSpec("attnlrp"))
        if trace.admits(*shape(batch)):
            assert_close(run(trace, model, batch), expected)
        else:
            assert not torch.allclose(run(trace, model, batch).summary, expected.summary)


def test_a_length_that_is_read_as_a_number_is_the_only_one():
    """Some models loop over tokens, or note the length (Funnel)."""
    model = gpt2()
    model.transformer.h[0].register_forward_hook(on_states(lambda y: y + len(range(y.shape[1])) * y.roll(1, -1)))
    trace = traced(model, batch_for(model), *static())
    assert [length for length in range(1, 20) if trace.admits(2, length)] == [9]
    assert trace.admits(3, 9)
    assert_close(run(trace, model, batch_for(model)), compute(model, batch_for(model), PassSpec("attnlrp")))


def test_as_many_texts_as_tokens():
    """Equal numbers are not the same number, unless it is one."""
    model = gpt2()
    trace = traced(model, batch_for(model, [(4, 1, 11, 13)] * 4), *static())
    alone = traced(model, batch_for(model, [(1, 0, 11, 13)]), *static())
    assert [(r, n) for r in (1, 2) for n in (1, 2, 3) if trace.admits(r, n) or alone.admits(r, n)] == [
        (1, 1),
        (2, 2),
        (2, 3),
    ]
    for asked in (ASKED, [(4, 1, 11, 13)] * 4, [(3, 1, 11, 13)] * 5):
        batch = batch_for(model, asked)
        assert trace.admits(*shape(batch))
        assert_close(run(trace, model, batch), compute(model, batch, PassSpec("attnlrp")))
    batch = batch_for(model, [(1, 0, 11, 13)])
    assert_close(run(alone, model, batch), compute(model, batch, PassSpec("attnlrp")))


# Weights


def test_the_model_stays_as_it_is_and_usable_meanwhile():
    """In the middle of the model, another thread computes its logits."""
    model = gpt2().requires_grad_(True)
    inputs = tiny.inputs(model)
    expected = model(**inputs).logits
    before = fingerprint(model)
    found, me = [], threading.get_ident()

    def elsewhere():
        with torch.no_grad():
            found.append(model(**inputs).logits)

    def start(*_):
        if threading.get_ident() == me:
            thread = threading.Thread(target=elsewhere)
            thread.start()
            thread.join()

    hook = model.transformer.h[0].register_forward_pre_hook(start)
    trace = traced(model, batch_for(model), *static())
    hook.remove()
    assert len(found) == 1
    assert torch.equal(found[0], expected)
    assert fingerprint(model) == before
    assert_close(run(trace, model, batch_for(model)), compute(model, batch_for(model), PassSpec("attnlrp")))


READ = {
    "float": float,
    "item": lambda scale: scale.item() if scale > 0 else 0.0,
    "list": lambda scale: scale.tolist(),
    "array": lambda scale: float(scale.detach().numpy()),
    "calculated": lambda scale: float(scale * 1),
    "copied": lambda scale: float(scale.clone()),
}


@pytest.mark.parametrize("read", READ)
def test_numbers_of_weights_are_not_kept(read):
    """They would be wrong as soon as the weight changes."""
    model = gpt2()
    scale = torch.tensor(2.0, dtype=torch.float64)
    if read in ("float", "array", "copied"):
        model.scale = nn.Parameter(scale)
    else:
        model.register_buffer("scale", scale)
    model.transformer.h[0].register_forward_pre_hook(lambda _, args: (args[0] * READ[read](model.scale),))
    before = fingerprint(model)
    with pytest.raises((RuntimeError, torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode)):
        traced(model, batch_for(model), *static())
    assert fingerprint(model) == before


def test_lists_made_of_larger_weights_are_not_kept():
    model = gpt2()
    model.register_buffer("scales", torch.ones(32, dtype=torch.float64))
    model.transformer.h[0].register_forward_pre_hook(lambda _, args: (args[0] * model.scales.tolist()[3],))
    with pytest.raises(RuntimeError, match="tolist"):
        traced(model, batch_for(model), *static())


# Fused attention

CALLED = ["causal:llama", "causal:gpt2", "masked:bert", "causal:mistral", "causal:gemma3_text", "causal:gemma4_text"]


@pytest.mark.parametrize("family", [f for f in CALLED if f in tiny.FAMILIES])
def test_fused_attention_is_called_as_for_texts_of_any_length_up_to_the_longest(family):
    """Some layers of some models have a sliding window, of five tokens."""
    model = tiny.build(family)
    longest, calls = attention_calls(model, batch_for(model, [(9, 4, 11, 13)]))
    assert longest == (
        64 if context_length(model) else SHORT
    )  # 64 is as much as those with a table of positions can read
    slides = [kind == "sliding_attention" for kind in getattr(model.config, "layer_types", None) or []]
    if slides:
        assert [call is None for call in calls] == slides
    for length in (2, 5, 6, 9, 64):
        with torch.no_grad(), AttentionCalls() as noted:
            model(**tiny.inputs(model, n_tokens=length), use_cache=False)
        assert len(noted.calls) == len(calls)
        assert all(call in (None, seen) for call, seen in zip(calls, noted.calls, strict=True))


def test_long_texts_in_float32_have_keys_for_every_head():
    config = tiny.configuration("causal:llama")
    config.max_position_embeddings = 4096
    for dtype in (torch.float32, torch.bfloat16):
        model = type(tiny.build("causal:llama"))._from_config(config, dtype=dtype).eval()
        short, long = (attention_calls(model, batch_for(model, [(n, 4, 11, 13)])) for n in (9, SHORT + 1))
        assert (short[0], long[0]) == (SHORT, 2 * SHORT)
        assert short[1] == (AttentionCall(causal=True, heads=2),) * 2
        assert long[1] == (short[1] if dtype == torch.bfloat16 else (AttentionCall(causal=True, heads=None),) * 2)


def test_not_beyond_a_table_of_positions():
    model = tiny.build("causal:whisper")
    asked = batch_for(model, [(9, 4, 11, 13)])
    assert attention_calls(model, asked)[0] == model.config.max_target_positions == 64
    model.config.max_target_positions = 0  # then the configuration does not name how long it is
    assert attention_calls(model, asked)[0] == 9


@pytest.mark.skipif("causal:gemma4_text" not in tiny.FAMILIES, reason="this transformers has no Gemma 4")
def test_the_same_numbers_with_attention_called_in_this_way():
    model = tiny.build("causal:gemma4_text")  # which leaves out tokens if it is told to give the last logits
    asked = [(9, 4, 11, 13)] * 2
    _, calls = attention_calls(model, batch_for(model, asked))
    batch = batch_for(model, asked)
    found = compute(model, batch, *static(unpadded=True, attention=calls))
    assert_close(found, compute(model, batch, PassSpec("attnlrp")))
