"""The L1 distances of ``contributions.l1_in_blocks`` as one Triton kernel: product over the heads and reduction, fused.

PyTorch writes the transformed vectors to memory and reads them back three times; here they stay in registers. One program
takes one source j and a tile of targets i, and walks over the width d:

    T[i, d] = sum_h weights[j, i, h] values[j, h, d]  (+ own[j, d] where i is j)
    distance[j, i] += sum_d |T[i, d] - output[i, d]|

The product runs on tensor cores (``_precision``). Each float32 factor is split into two TF32 numbers, and three of their
four products are added in float32, which is as exact as a sum in float32 (``docs/performance.md``).

``contributions.py`` imports this file on a GPU only, for float32; ``l1_in_blocks`` is its reference and its substitute.
"""

# mypy: ignore-errors
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...models.precision import is_exact

TILE, STEP = 32, 64  # targets of a program, and numbers of the width at a time
MANY_HEADS = 64  # with more than these, both shrink, so that all stays in registers


@triton.jit
def _distances(
    weights,
    values,
    output,
    own,
    distance,
    targets,
    heads,
    width,
    offset,
    w_b,
    w_j,
    w_i,
    w_h,
    v_b,
    v_j,
    v_h,
    v_d,
    y_b,
    y_i,
    o_b,
    o_j,
    d_b,
    d_j,
    d_i,
    CAUSAL: tl.constexpr,
    TARGETS: tl.constexpr,
    WIDTH: tl.constexpr,
    HEADS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile, j, b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    i = tile * TARGETS + tl.arange(0, TARGETS)
    h = tl.arange(0, HEADS)
    there = i < targets
    same = i == j + offset
    if CAUSAL and (tile + 1) * TARGETS <= j + offset:
        return
    a = tl.load(
        weights + b * w_b + j * w_j + i[:, None] * w_i + h[None, :] * w_h,
        mask=there[:, None] & (h[None, :] < heads),
        other=0.0,
    )
    total = tl.zeros((TARGETS,), dtype=tl.float32)
    for start in range(0, width, WIDTH):
        d = start + tl.arange(0, WIDTH)
        inside = d < width
        v = tl.load(
            values + b * v_b + j * v_j + h[:, None] * v_h + d[None, :] * v_d,
            mask=(h[:, None] < heads) & inside[None, :],
            other=0.0,
        )
        y = tl.load(output + b * y_b + i[:, None] * y_i + d[None, :], mask=there[:, None] & inside[None, :], other=0.0)
        x = tl.load(own + b * o_b + j * o_j + d, mask=inside, other=0.0)
        moved = tl.dot(a, v, input_precision=PRECISION) - y
        moved += tl.where(same[:, None], x[None, :], 0.0)
        total += tl.sum(tl.abs(moved), axis=1)
    tl.store(distance + b * d_b + j * d_j + i * d_i, total, mask=there)


def l1_fused(
    weights: Tensor,
    values: Tensor,
    output: Tensor,
    own: Tensor,
    distance: Tensor,
    *,
    offset: int,
    causal: bool,
) -> None:
    """As ``contributions.l1_in_blocks``, for float32 tensors on one GPU, in TF32 where PyTorch's own products are."""
    batch, sources, targets, heads = weights.shape
    output, own = (x if x.stride(-1) == 1 else x.contiguous() for x in (output, own))
    padded = max(16, triton.next_power_of_2(heads))
    excess = max(1, padded // MANY_HEADS)
    rows = max(16, min(TILE // excess, triton.next_power_of_2(targets)))
    with torch.cuda.device_of(weights):
        _distances[(triton.cdiv(targets, rows), sources, batch)](
            weights,
            values,
            output,
            own,
            distance,
            targets,
            heads,
            values.shape[-1],
            offset,
            *weights.stride(),
            *values.stride(),
            *output.stride()[:2],
            *own.stride()[:2],
            *distance.stride(),
            CAUSAL=causal,
            TARGETS=rows,
            WIDTH=max(16, STEP // excess),
            HEADS=padded,
            PRECISION=_precision(weights.device),
            num_warps=4,
        )


def _precision(device: torch.device) -> str:
    """How Triton multiplies float32 numbers: ``"tf32x3"`` is as exact as ``"ieee"`` and runs on tensor cores."""
    if not is_exact():
        return "tf32"
    nvidia = torch.version.hip is None and device.type == "cuda"
    return "tf32x3" if nvidia and torch.cuda.get_device_capability(device) >= (8, 0) else "ieee"
