"""The contribution matrix: the same in blocks of any size as written out, rows that sum to 1, and little memory."""

import math
from dataclasses import replace

import pytest
import tiny
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lrpx.methods.alti import contributions as mixing
from lrpx.methods.alti import logit as alti_logit
from lrpx.methods.alti import residual_trace as trace
from lrpx.methods.alti.attention_weights import ObservedAttention
from lrpx.methods.alti.contributions import Layers, kept, normalised_rows
from lrpx.text.batching import Item, pad

B, H, T, D = 2, 3, 11, 7


def random_layer(causal, scale=0.7, linear=None):
    torch.manual_seed(0)
    scores = torch.randn(B, H, T, T, dtype=torch.float64)
    mask = torch.zeros(B, 1, T, T)
    mask[1, :, :, :2] = -torch.inf  # padding
    if causal:
        mask = mask.masked_fill(~torch.ones(T, T).tril().bool(), -torch.inf)
    weights = (scores + mask).softmax(-1).nan_to_num(0)
    call = ObservedAttention(value=torch.randn(B, H, T, 4, dtype=torch.float64), probabilities=weights)
    tensors = {name: torch.randn(B, T, D, dtype=torch.float64) for name in ("own", "output")}
    weight = torch.randn(H * 4, D, dtype=torch.float64)
    return Layers(attention=call, weights=[weight], linear=linear, scale=scale, **tensors)


def written_out(layer):
    """|y_i| - |y_i - T_i(x_j)|, pair by pair."""
    result = torch.zeros(B, T, T, dtype=torch.float64)
    scale = layer.scale if isinstance(layer.scale, torch.Tensor) else torch.full((B, T, 1), layer.scale)
    for b in range(B):
        for i in range(T):
            for j in range(T):
                heads = layer.attention.probabilities[b, :, i, j]
                if i != j and not heads.any():
                    continue
                v = (layer.attention.value[b, :, j, None] @ layer.weights[0].view(H, 4, D)).squeeze(1)  # [H, d]
                v = v if layer.linear is None else layer.linear(v)
                moved = scale[b, i] * (heads @ v) + (layer.own[b, i] if i == j else 0)
                y = layer.output[b, i]
                result[b, i, j] = y.abs().sum() - (y - moved).abs().sum()
    return result


@pytest.mark.parametrize("size", [1, 700, 3000, 1 << 20])
@pytest.mark.parametrize("causal", [True, False])
def test_blocks_of_any_size_give_what_is_written_out(monkeypatch, causal, size):
    for name in ("WEIGHTS_BYTES", "VALUES_BYTES"):
        monkeypatch.setattr(mixing, name, size)
    monkeypatch.setitem(mixing.BUFFER_BYTES, "cpu", size // 2)
    layer = random_layer(causal)
    torch.testing.assert_close(kept(layer, T, causal), written_out(layer))


def test_a_norm_after_the_sublayer():
    """A scale by target position, and a linear map of the values."""
    scale = torch.rand(B, T, 1, dtype=torch.float64)
    layer = random_layer(True, scale=scale, linear=lambda v: 2 * (v - v.mean(-1, keepdim=True)))
    torch.testing.assert_close(kept(layer, T, True), written_out(layer))


@pytest.mark.parametrize(
    "device",
    ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))],
)
def test_a_bfloat16_model_gets_the_distances_of_float32(device):
    """Values and projection of a bfloat16 model are multiplied exactly: as in float64, up to float32 rounding."""
    layer = random_layer(True)
    value, weight = layer.attention.value.bfloat16(), layer.weights[0].bfloat16()
    exact = written_out(
        replace(layer, attention=replace(layer.attention, value=value.double()), weights=[weight.double()])
    )
    narrow = ObservedAttention(value=value.to(device), probabilities=layer.attention.probabilities.float().to(device))
    tensors = {name: getattr(layer, name).float().to(device) for name in ("own", "output")}
    found = kept(replace(layer, attention=narrow, weights=[weight.to(device)], **tensors), T, True)
    torch.testing.assert_close(found.cpu().double(), exact, rtol=0, atol=1e-5)


def test_later_positions_do_not_matter_to_a_decoder():
    layer = random_layer(True)
    torch.testing.assert_close(kept(layer, 6, True), kept(layer, T, True)[:, :6, :6])


def test_masked_pairs_are_exactly_zero():
    layer = random_layer(True)
    result = kept(layer, T, True)
    assert (result.triu(1) == 0).all()
    assert (result[1, 2:, :2] == 0).all()


def test_normalised_rows():
    """Negative entries are clipped; a row that keeps nothing is that of the identity."""
    matrix = torch.tensor([[2.0, -1.0, 0.0], [0.0, 0.0, 0.0], [-1.0, 3.0, 1.0]])
    expected = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.75, 0.25]])
    torch.testing.assert_close(normalised_rows(matrix.clone()), expected)
    torch.testing.assert_close(normalised_rows(-matrix.abs()), torch.eye(3))


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation returns."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes():
                self.numel = max(self.numel, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def test_nothing_of_size_heads_times_pairs_times_width(monkeypatch):
    """Beyond the heads x T x T attention weights, tensors grow with T times the width, also with several heads."""
    model = tiny.build("causal:gpt2", dtype=torch.float32)
    config, length = model.config, 60
    monkeypatch.setitem(mixing.BUFFER_BYTES, "cpu", 1 << 14)
    ids = tuple(tiny.inputs(model, length)["input_ids"][0].tolist())
    with Largest() as largest:
        alti_logit.explain(model, pad([Item(ids, length - 1, 20, 30)], model))
    pairs = length**2
    assert largest.numel <= max(config.n_head * pairs, 4 * length * config.n_embd * config.n_head)
    assert largest.numel < pairs * config.n_embd / 5
    with Largest() as naive:  # the measure does see a tensor over all pairs
        torch.zeros(length, length, config.n_embd).abs()
    assert naive.numel == pairs * config.n_embd


def test_long_inputs_recompute_weights_in_blocks(monkeypatch):
    """Where all heads x T x T weights are too many, rows are recomputed; the result is the same."""
    model = tiny.build("causal:llama")
    batch = pad([Item(tuple(tiny.inputs(model, 30)["input_ids"][0].tolist()), 29, 20, 30)], model)
    whole = alti_logit.explain(model, batch)[0]
    for module, size in ((mixing, 4000), (trace, 0)):
        monkeypatch.setattr(module, "WEIGHTS_BYTES", size)
    parts = alti_logit.explain(model, batch)[0]
    assert parts.relevance == pytest.approx(whole.relevance, rel=1e-9)
    assert math.isfinite(parts.residual)
