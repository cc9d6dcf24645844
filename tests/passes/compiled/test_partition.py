"""A trace in pieces: nothing lost, equal blocks once, forward and backward piece of a block together, the same numbers."""

import math
from functools import partial

import pytest
import tiny
import torch
from compiled_tools import ASKED, OTHERS, assert_close, batch_for, gpt2, quick
from support import on_states
from torch.fx.experimental.proxy_tensor import make_fx

from lrpx.passes.compiled.cuts import CUT
from lrpx.passes.compiled.partition import segments_of, steps_of
from lrpx.passes.compiled.trace import is_size, tensors_of, traced, weights_of
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassOptions, PassSpec

FAMILIES = [
    ("causal:llama", "attnlrp"),
    ("masked:bert", "lrp"),
    ("causal:gpt_neox", {}),
    ("causal:gemma3_text", "attnlrp"),  # one layer with a sliding window, one without
]


pytestmark = pytest.mark.usefixtures("quickly")


def static(rules="attnlrp", at=("input",), **options):
    return PassSpec(rules, at), PassOptions(static=True, **options)


def nodes_of(trace):
    return list(trace.graph.graph.nodes)


def outputs_of(nodes):
    return [n.name for n in next(n for n in nodes if n.op == "output").args[0]]


def run(trace, steps, model, batch):
    """Without any of ``Plan``: names, values and functions."""
    nodes = nodes_of(trace)
    values = dict(
        zip([n.name for n in nodes if n.op == "placeholder"], tensors_of(weights_of(model), batch), strict=True)
    )
    values |= {n.name: getattr(trace.graph, n.target) for n in nodes if n.op == "get_attr"}
    shape = tuple(batch.inputs["input_ids"].shape)
    values |= {n.name: trace.size_of(n.meta["val"])(*shape) for n in nodes if is_size(n)}
    with torch.no_grad():
        for piece, inputs, outputs in steps:
            values |= dict(zip(outputs, piece(*[values[name] for name in inputs]), strict=True))
    return trace.result.with_tensors([values[name] for name in outputs_of(nodes)])


@pytest.fixture(scope="module")
def deep():
    """A trace of four equal blocks."""
    model = gpt2(layers=4)
    with quick():
        return model, traced(model, batch_for(model), *static())


def kept_bytes(trace, segments, steps, model):
    """What goes from the forward to the backward piece of the last block, beside weights."""
    first, second = (i for i, s in enumerate(segments) if s.block == 1 and s.kind != "between")
    piece, inputs, outputs = steps[first]
    found = []

    def noting(*tensors):
        found.extend(piece(*tensors))
        return found

    run(trace, [*steps[:first], (noting, inputs, outputs), *steps[first + 1 :]], model, batch_for(model))
    between = [t for name, t in zip(outputs, found, strict=True) if name in steps[second][1]]
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in between if torch.is_tensor(t)}
    return sum(size for place, size in sizes.items() if place not in {t.data_ptr() for t in model.parameters()})


# Segments


def test_every_operation_is_in_one_segment_and_in_order(deep):
    nodes = nodes_of(deep[1])
    segments = segments_of(nodes)
    expected = [n for n in nodes if n.op == "call_function" and not is_size(n)]
    assert [n for segment in segments for n in segment.nodes] == expected


def test_blocks_forwards_and_backwards(deep):
    """A gradient that arrives at a block's output belongs to the block; after the first block's comes the end."""
    segments = segments_of(nodes_of(deep[1]))
    assert [(s.kind, s.block) for s in segments if s.kind != "between"] == [
        *(("block", i) for i in range(4)),
        *(("backward", i) for i in reversed(range(4))),
    ]
    assert [(s.kind, s.block) for s in segments if s.kind == "between"] == [("between", -1), ("between", 3)]

    def products(kind, block):
        (segment,) = [s for s in segments if (s.kind, s.block) == (kind, block)]
        return sum("mm" in str(n.target) for n in segment.nodes)

    forwards, backwards = ([products(kind, i) for i in range(4)] for kind in ("block", "backward"))
    assert forwards == [forwards[0]] * 4
    assert forwards[0] >= 4
    assert backwards[1:] == [backwards[1]] * 3
    assert backwards[1] >= 4


# Pieces


@pytest.mark.parametrize(("paired", "kinds"), [(True, 6), (False, 5)], ids=["paired", "single"])
def test_what_is_compiled_does_not_grow_with_the_number_of_blocks(deep, as_traced, paired, kinds):
    """The start, a block, the head, a block backwards, and the first block with what follows: only its half, if paired."""
    model, trace = deep
    nodes, pieces = nodes_of(trace), {}
    segments = segments_of(nodes)
    steps = steps_of(segments, pieces, set(outputs_of(nodes)), paired=paired)
    assert len(steps) == len(segments) == 2 * 4 + 2
    assert len(as_traced) == kinds
    for kind in ("block", "backward"):
        functions = [step[0] for segment, step in zip(segments, steps, strict=True) if segment.kind == kind]
        assert len(set(map(id, functions))) == 2 - (kind == "block" and not paired)
    assert_close(run(trace, steps, model, batch_for(model)), compute(model, batch_for(model), PassSpec("attnlrp")))
    again = steps_of(segments, pieces, set(outputs_of(nodes)), paired=paired)
    assert len(as_traced) == kinds
    assert [step[1:] for step in again] == [step[1:] for step in steps]


def test_blocks_that_differ_and_states_within_them(as_traced):
    """By a number, which is in the code, and by what is asked of them."""
    model = gpt2(layers=3)
    for factor, block in zip((2, 3, 2), model.transformer.h, strict=True):
        block.register_forward_hook(on_states(lambda y, factor=factor: y + factor * y.roll(1, -1)))
    at = ("input", "transformer.h.1.mlp", "transformer.h.0", "transformer.h.2.attn")
    trace = traced(model, batch_for(model), *static(at=at))
    nodes = nodes_of(trace)
    for paired in (True, False):
        steps = steps_of(segments_of(nodes), {}, set(outputs_of(nodes)), paired=paired)
        for asked in (ASKED, *OTHERS):
            batch = batch_for(model, asked)
            assert_close(run(trace, steps, model, batch), compute(model, batch, PassSpec("attnlrp", at)))


@pytest.mark.parametrize(("family", "rules"), FAMILIES, ids=[family for family, _ in FAMILIES])
def test_the_same_numbers(family, rules, as_traced):
    model = tiny.build(family)
    trace = traced(model, batch_for(model), *static(rules))
    nodes = nodes_of(trace)
    segments = segments_of(nodes)
    kept = {}
    for paired in (True, False):
        steps = steps_of(segments, {}, set(outputs_of(nodes)), paired=paired)
        for asked in (ASKED, *OTHERS):
            batch = batch_for(model, asked)
            assert_close(run(trace, steps, model, batch), compute(model, batch, PassSpec(rules)))
        kept[paired] = kept_bytes(trace, segments, steps, model)
    if rules == "attnlrp":  # whose activations and norms are cheap to calculate again
        assert 0 < kept[True] < 0.9 * kept[False]


# By hand


def pieces_of(function, *examples):
    """Functions of a trace that is cut after each operation, and what the graph returns."""
    graph = make_fx(function, tracing_mode="fake")(*examples)
    nodes = list(graph.graph.nodes)
    for node in nodes:
        if node.op == "call_function":
            node.meta[CUT] = ("between", 0)
    return [step[0] for step in steps_of(segments_of(nodes), {}, set(outputs_of(nodes)), paired=False)]


def test_pieces_that_look_alike_but_are_given_other_tensors(as_traced):
    x = torch.randn(4, 4)
    for y in (x.double(), x[:2], x.T, x[None]):
        first, second = pieces_of(lambda x, y: [x.sin(), y.sin()], x, y)
        assert first is not second
    first, second = pieces_of(lambda x, y: [x.sin(), y.sin()], x, x.clone())
    assert first is second


def multiplied(b, x, y):
    return [x * 0.1, y * b]


def test_pieces_that_differ_in_a_number(as_traced):
    x = torch.randn(4, 4)
    for b, same in ((0.1, True), (math.nextafter(0.1, 1), False), (float("inf"), False), (-0.1, False)):
        first, second = pieces_of(partial(multiplied, b), x, x.clone())
        assert (first is second) == same
