"""Fused attention is called as it was noted, also where blocks run once more."""

import threading

import pytest
import tiny
import torch
from compiled_tools import assert_close, batch_for
from torch.nn.functional import scaled_dot_product_attention as attention

from lrpx.passes.compiled.attention_calls import AttentionCall, AttentionCalls, RepeatAttentionCalls
from lrpx.passes.compiled.trace import attention_calls
from lrpx.passes.forward_backward import compute
from lrpx.passes.spec import PassOptions, PassSpec

SHARED = AttentionCall(causal=True, heads=1)
PLAIN = AttentionCall(causal=False, heads=None)


def tensors(heads=2):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 2, 5, 4, generator=generator)
    kv = torch.randn(1, heads, 5, 4, generator=generator)
    return q, kv, kv


def called(mode):
    """As a traced model calls it: with a mask, and keys and values repeated for every head."""
    q, k, v = tensors(heads=1)
    with AttentionCalls() as noted, mode:
        attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), attn_mask=torch.ones(5, 5).bool().tril())
    return noted.calls


def test_calls_are_noted_and_repeated_in_order():
    q, k, v = tensors(heads=1)
    with AttentionCalls() as noted:
        attention(q, k, v, is_causal=True, enable_gqa=True)
        attention(*tensors())
        attention(*tensors(), attn_mask=torch.ones(5, 5).bool())
    assert noted.calls == [SHARED, PLAIN, None]
    repeat = RepeatAttentionCalls(noted.calls)
    assert [called(repeat) for _ in range(3)] == [[SHARED], [PLAIN], [None]]
    assert repeat.count == 3


@pytest.mark.parametrize("elsewhere", [False, True], ids=["this thread", "another thread"])
def test_a_part_that_runs_again_starts_at_its_own_calls(elsewhere):
    repeat, found = RepeatAttentionCalls([SHARED, PLAIN, None]), []

    def again():
        with AttentionCalls() as noted, repeat.since(1):
            attention(*tensors(), attn_mask=torch.ones(5, 5).bool())
        found.extend(noted.calls)

    with repeat:
        for _ in range(3):
            attention(*tensors())
        thread = threading.Thread(target=again)
        thread.start() if elsewhere else again()
        if elsewhere:
            thread.join()
    assert repeat.count == 3
    assert found == [PLAIN]


@pytest.mark.parametrize("family", ["causal:llama", "causal:gemma3_text"])  # the second has a sliding window
def test_the_same_numbers_where_blocks_are_recomputed(family):
    model = tiny.build(family, attn_implementation="sdpa")
    batch = batch_for(model, [(9, 4, 11, 13)] * 2)
    _, calls = attention_calls(model, batch)
    expected = compute(model, batch, PassSpec("attnlrp"))
    for checkpoint in (False, True):
        options = PassOptions(static=True, unpadded=True, attention=calls, checkpoint=checkpoint)
        assert_close(compute(model, batch, PassSpec("attnlrp"), options), expected)
