"""The tap sees both forms of attention, recomputes what the model computed, and leaves nothing behind."""

import pytest
import torch
import torch.nn.functional as F

from lrpx.methods.alti.attention_weights import AttentionTap, ObservedAttention, repeat_heads

B, H, G, T, D = 2, 4, 2, 6, 8


@pytest.fixture
def qkv():
    torch.manual_seed(0)
    shape = {"dtype": torch.float64}
    return torch.randn(B, H, T, D, **shape), torch.randn(B, G, T, D, **shape), torch.randn(B, G, T, D, **shape)


def padding_mask():
    """Boolean, the first two tokens of item 1 hidden; their own rows see nothing."""
    seen = torch.ones(B, 1, T, T).tril().bool()
    seen[1, :, :, :2] = False
    return seen


def window_mask():
    """Added to the scores, a window of 3; one head has a slope on top."""
    distance = torch.arange(T)[:, None] - torch.arange(T)
    added = torch.zeros(1, H, T, T, dtype=torch.float64).masked_fill((distance < 0) | (distance >= 3), -torch.inf)
    added[:, 1] -= 0.5 * distance
    return added


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"is_causal": True, "scale": 0.3},
        {"attn_mask": padding_mask()},
        {"attn_mask": window_mask()},
        {"attn_mask": torch.ones(T, T).tril().bool()},
    ],
    ids=["full", "causal", "scale", "padding", "window and slope", "two dimensions"],
)
def test_fused_attention_is_recomputed(qkv, options):
    """The weights times the values are what the fused call returned."""
    q, k, v = qkv
    with AttentionTap() as tap:
        tap.open()
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)
        call = tap.take(B, T, H * D)
    weights = call.weights(slice(0, T))
    torch.testing.assert_close(weights @ repeat_heads(call.value, H), out.nan_to_num(0))
    torch.testing.assert_close(call.weights(slice(2, 5)), weights[:, :, 2:5])
    rows = torch.tensor([3, 5])
    torch.testing.assert_close(call.weights(rows)[:, :, 0], weights[torch.arange(B), :, rows])
    assert call.triangle == (options.get("is_causal", False))


def test_heads_packed_into_the_rows_of_a_single_query(qkv):
    """For one token, transformers passes grouped queries as rows [B, G, H / G, D]."""
    q, k, v = qkv
    with AttentionTap() as tap:
        tap.open()
        F.scaled_dot_product_attention(q[:, :, :1].reshape(B, G, H // G, D), k[:, :, :1], v[:, :, :1])
        call = tap.take(B, 1, H * D)
    torch.testing.assert_close(call.weights(slice(0, 1)), torch.ones(B, H, 1, 1, dtype=torch.float64))


@pytest.mark.parametrize(
    "options", [{}, {"is_causal": True}, {"attn_mask": padding_mask()}, {"attn_mask": window_mask()}]
)
def test_stacked_calls_are_calls_of_more_items(qkv, options):
    calls, tap = [], AttentionTap()
    for factor in (1, -2, 3):
        with tap:
            tap.open()
            F.scaled_dot_product_attention(*(factor * x for x in qkv), enable_gqa=True, **options)
            calls.append(tap.take(B, T, H * D))
    assert len({call.form for call in calls}) == 1
    stacked, rows = ObservedAttention.stack(calls), torch.tensor([3, 5])
    for wanted, wanted_each in ((slice(1, T), slice(1, T)), (rows.repeat(3), rows)):
        torch.testing.assert_close(stacked.weights(wanted), torch.cat([call.weights(wanted_each) for call in calls]))
    torch.testing.assert_close(stacked.value, torch.cat([call.value for call in calls]))
    known = [ObservedAttention(value=call.value, probabilities=call.weights(slice(0, T))) for call in calls]
    torch.testing.assert_close(ObservedAttention.stack(known).weights(rows.repeat(3)), stacked.weights(rows.repeat(3)))
    assert ObservedAttention.stack(calls[:1]) is calls[0]


def test_calls_with_masks_of_their_own_are_stacked_with_them(qkv):
    calls = []
    for mask in (torch.zeros(1, 1, T, T), window_mask()[:, :1]):
        with AttentionTap() as tap:
            tap.open()
            F.scaled_dot_product_attention(*qkv, attn_mask=mask.double(), enable_gqa=True)
            calls.append(tap.take(B, T, H * D))
    whole = slice(0, T)
    expected = torch.cat([call.weights(whole) for call in calls])
    torch.testing.assert_close(ObservedAttention.stack(calls).weights(whole), expected)
    assert not torch.allclose(expected[:B], expected[B:])


def test_the_form_tells_calls_apart(qkv):
    value = qkv[2]
    calls = [
        ObservedAttention(value=value, query=value, key=value),
        ObservedAttention(value=value, query=value, key=value, scale=2.0),
        ObservedAttention(value=value, query=value, key=value, mask=torch.zeros(1, 1, T, T)),
        ObservedAttention(value=value, query=value, key=value, triangle=True),
        ObservedAttention(value=value, query=value.float(), key=value),
        ObservedAttention(value=value, probabilities=value),
        ObservedAttention(value=value[..., :1], probabilities=value),
    ]
    assert len({call.form for call in calls}) == len(calls)


def test_spelled_out_attention_is_read(qkv):
    """The weights as they meet the values: after a sink was dropped, with heads folded into the batch."""
    q, k, v = qkv
    k, v = repeat_heads(k, H), repeat_heads(v, H)
    with AttentionTap() as tap:
        tap.open()
        scores = torch.cat([q @ k.transpose(-1, -2), q.new_ones(B, H, T, 1)], -1)
        weights = F.dropout(scores.softmax(-1)[..., :-1], 0.1, training=False)
        torch.bmm(weights.view(B * H, T, T), v.reshape(B * H, T, D))
        call = tap.take(B, T, H * D)
    torch.testing.assert_close(call.weights(slice(0, T)), weights)
    torch.testing.assert_close(call.value, v)


def test_half_precision_is_recomputed_in_float32(qkv):
    q, k, v = (x.bfloat16() for x in qkv)
    with AttentionTap() as tap:
        tap.open()
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        call = tap.take(B, T, H * D)
    assert call.weights(slice(0, T)).dtype == torch.float32


@pytest.mark.parametrize("calls", [0, 2])
def test_no_or_several_calls_are_nothing(qkv, calls):
    q, k, v = qkv
    with AttentionTap() as tap:
        tap.open()
        for _ in range(calls):
            F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        assert tap.take(B, T, H * D) is None


@pytest.mark.parametrize(("length", "width"), [(T, H * D + 1), (T + 1, H * D), (T, D)])
def test_shapes_that_do_not_fit_are_nothing(qkv, length, width):
    q, k, v = qkv
    for form in ("fused", "spelled out"):
        with AttentionTap() as tap:
            tap.open()
            if form == "fused":
                F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            else:
                torch.matmul(torch.softmax(q @ repeat_heads(k, H).transpose(-1, -2), -1), repeat_heads(v, H))
            assert tap.take(B, length, width) is None


def open_twice_and_fail(tap):
    with tap:
        tap.open()
        tap.open()
        raise RuntimeError(f"{torch._C._len_torch_function_stack()} modes")


def test_stops_watching_in_any_case():
    """After ``take``, after an exception and when opened twice, no function mode is left."""
    depth, tap = torch._C._len_torch_function_stack(), AttentionTap()
    with pytest.raises(RuntimeError, match=f"{depth + 1} modes"):
        open_twice_and_fail(tap)
    assert torch._C._len_torch_function_stack() == depth
    with tap:
        tap.open()
        tap.take(1, 1, 1)
        assert torch._C._len_torch_function_stack() == depth


def test_results_are_untouched(qkv):
    q, k, v = qkv
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    with AttentionTap() as tap:
        tap.open()
        assert torch.equal(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), expected)
