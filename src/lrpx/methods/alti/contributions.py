"""How much every token enters every other one in an attention layer: the ALTI contribution matrix.

With the attention weights A and the norms' deviations held constant, the layer's output is a sum of transformed vectors,

    y_i = sum_j T_i(x_j) + bias,    T_i(x_j) = sum_h A^h_ij V^h_j  (+ own_i for j = i),    V^h_j = W_O^h v^h_j,

and the matrix is ``C_ij = max(0, |y_i| - |y_i - T_i(x_j)|)`` in the L1 norm, rows scaled to sum to 1 (Ferrando et al.
2022). The T x T x width vectors ``T_i(x_j)`` are never held at once:

1. ``kept`` takes target positions i in blocks, and source positions j in blocks, for which it computes ``V``;
2. ``l1_in_blocks`` forms ``T_i(x_j)`` for a few j at a time by a matrix product over the heads and reduces it at once (on
   a GPU ``l1_kernel`` does the same without writing it down);
3. ``normalised_rows`` clips and scales all layers together.

Under causal attention only pairs j <= i are visited.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .attention_weights import ObservedAttention, repeat_heads

logger = logging.getLogger("lrpx")

# Bytes of a block. The buffer of transformed vectors should stay in the cache of a CPU core; a GPU wants few launches.
BUFFER_BYTES = {"cpu": 512 << 10}
BUFFER_BYTES_DEFAULT = 64 << 20
WEIGHTS_BYTES = 256 << 20
VALUES_BYTES = 128 << 20
MIXED_BMM = torch.version.hip is None and "dtype_out" in torch.ops.aten.bmm.overloads()  # new in torch 2.8
KERNEL_BYTES = 16 << 20  # from this size of all transformed vectors on, one fused kernel beats four of PyTorch


@dataclass(frozen=True, kw_only=True)
class Layers:
    """Attention layers of one shape, with everything held constant that their linear form needs.

    L layers stand one after another in the batch dimension: B is L times the number of items. All but ``attention`` and
    ``weights`` are >= float32.

    Attributes:
        attention: The call that made the output.
        weights: Of each layer ``[H * dv, d]``: the output projection.
        linear: Maps ``V [L, ..., d]`` through the constant part of a norm that follows, or ``None``.
        scale: Factor of the attention output: a number, or ``[B, T, 1]`` by target position.
        own: ``[B, T, d]``: what a token brings to its own output beside the attention.
        output: ``[B, T, d]``: y.
    """

    attention: ObservedAttention
    weights: Sequence[Tensor]
    linear: Callable[[Tensor], Tensor] | None
    scale: Tensor | float
    own: Tensor
    output: Tensor

    @property
    def heads(self) -> int:
        """H."""
        return self.weights[0].shape[0] // self.attention.value.shape[-1]


def kept(layers: Layers, length: int, causal: bool) -> Tensor:
    """``|y_i| - |y_i - T_i(x_j)|`` ``[B, length, length]`` of the first ``length`` positions, before clipping.

    Pairs that a mask keeps apart get exactly 0.

    Args:
        layers: The layers.
        length: Number of positions wanted. Under causal attention the others do not matter.
        causal: Whether a position sees only itself and earlier ones.
    """
    batch, _, width = layers.output.shape
    heads, unit = layers.heads, layers.output.element_size()
    output, own = layers.output[:, :length], layers.own[:, :length]
    distance = output.new_zeros(batch, length, length)  # [B, j, i]
    unseen = None if layers.attention.triangle else distance.bool()  # [B, i, j]
    for rows in _blocks(length, WEIGHTS_BYTES // (batch * heads * length * unit)):
        weights = layers.attention.weights(rows)[..., :length]  # [B, H, i, j]
        if unseen is not None:
            unseen[:, rows] = weights.sum(1) == 0
        weights = _scaled(weights, layers.scale, rows)
        weights = weights.permute(0, 3, 2, 1).contiguous()  # [B, j, i, H]
        last = rows.stop if causal else length
        for columns in _blocks(last, VALUES_BYTES // (batch * heads * width * unit)):
            start = max(rows.start, columns.start) if causal else rows.start
            values = transformed_values(layers, columns)
            l1_distances = _fastest(values, targets=rows.stop - start)
            l1_distances(
                weights[:, columns, start - rows.start :],
                values,
                output[:, start : rows.stop],
                own[:, columns],
                distance[:, columns, start : rows.stop],
                offset=columns.start - start,
                causal=causal,
            )
    matrix = _norm(output)[:, :, None] - distance.transpose(1, 2)
    if unseen is None:
        return matrix.tril_()
    unseen.diagonal(dim1=1, dim2=2).fill_(False)
    return matrix.masked_fill_(unseen, 0)


def transformed_values(layers: Layers, columns: slice) -> Tensor:
    """``V [B, J, H, d]`` of some source positions."""
    value = layers.attention.value[:, :, columns]
    batch, _, length, size = value.shape
    count, heads, width = len(layers.weights), layers.heads, layers.weights[0].shape[1]
    value = repeat_heads(value, heads).view(count, -1, heads, length, size).transpose(1, 2)
    value = value.reshape(count, heads, -1, size)  # [L, H, B / L * J, dv]
    moved = layers.output.new_empty(count, batch // count * length, heads, width)
    for one, weight, out in zip(value, layers.weights, moved.transpose(1, 2), strict=True):
        _multiply(one, weight.view(heads, size, width), out)
    moved = moved if layers.linear is None else layers.linear(moved)
    return moved.view(batch, length, heads, width)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    """Write ``left @ right`` to ``out``, with products and sums in its type.

    A GPU does that with bfloat16 and float16 factors as they are: their products are exact in float32.
    """
    narrow = left.dtype == right.dtype and left.dtype in (torch.bfloat16, torch.float16) and out.dtype == torch.float32
    if narrow and out.is_cuda and MIXED_BMM:
        torch.bmm(left, right, out_dtype=out.dtype, out=out)
    else:
        torch.bmm(left.to(out.dtype), right.to(out.dtype), out=out)


def l1_in_blocks(
    weights: Tensor, values: Tensor, output: Tensor, own: Tensor, distance: Tensor, *, offset: int, causal: bool
) -> None:
    """Write ``|y_i - T_i(x_j)|`` in the L1 norm to ``distance``.

    Args:
        weights: ``[B, J, I, H]``.
        values: ``[B, J, H, d]``.
        output: ``[B, I, d]``: y.
        own: ``[B, J, d]``: added to ``T_i(x_j)`` where i and j are the same token.
        distance: ``[B, J, I]``: the result.
        offset: Position of the first j minus that of the first i.
        causal: Most pairs with i before j are left as they are.
    """
    batch, sources, targets, heads = weights.shape
    width = values.shape[-1]
    limit = BUFFER_BYTES.get(values.device.type, BUFFER_BYTES_DEFAULT)
    for block in _blocks(sources, limit // (batch * targets * width * values.element_size())):
        first = max(0, block.start + offset) if causal else 0  # the first i that sees any j of the block
        count = block.stop - block.start
        moved = torch.bmm(
            weights[:, block, first:].reshape(batch * count, targets - first, heads),
            values[:, block].reshape(batch * count, heads, width),
        ).view(batch, count, targets - first, width)  # T_i(x_j) as [B, j, i, d]
        moved -= output[:, None, first:]
        low, high = max(first, block.start + offset), min(targets, block.stop + offset)  # i that are a j of the block
        if low < high:
            same = slice(low - offset - block.start, high - offset - block.start)
            diagonal = moved[:, same, low - first : high - first].diagonal(dim1=1, dim2=2)  # [B, d, same]
            diagonal += own[:, low - offset : high - offset].transpose(1, 2)
        distance[:, block, first:] = _norm(moved, overwrite=True)


def _fastest(values: Tensor, targets: int) -> Callable[..., None]:
    """The faster of ``l1_in_blocks`` and ``l1_kernel.l1_fused`` for this device, type and size."""
    if values.device.type != "cuda" or values.dtype != torch.float32:
        return l1_in_blocks
    batch, sources, heads, width = values.shape
    if batch * sources * targets * width * 4 < KERNEL_BYTES:
        return l1_in_blocks
    return _kernel(values.device, heads) or l1_in_blocks


@functools.cache
def _kernel(device: torch.device, heads: int) -> Callable[..., None] | None:
    """The Triton kernel, if it compiles for so many heads on this device and gives what it should."""
    try:
        from .l1_kernel import l1_fused

        generator = torch.Generator(device).manual_seed(0)
        weights, values, output, own = (
            torch.randn(*shape, device=device, generator=generator)
            for shape in ((1, 20, 40, heads), (1, 20, heads, 96), (1, 40, 96), (1, 20, 96))
        )
        expected, found = torch.zeros(2, 1, 20, 40, device=device)
        for l1_distances, distance in ((l1_in_blocks, expected), (l1_fused, found)):
            l1_distances(weights, values, output, own, distance, offset=3, causal=False)
        torch.testing.assert_close(found, expected, rtol=1e-2, atol=0)  # loose: both may be set to use TF32
    except Exception as error:  # no Triton or C compiler, an unknown or small card: PyTorch is slower but always there
        logger.warning("The Triton kernel for ALTI does not work here, PyTorch is used instead: %s", error)
        return None
    return l1_fused


def normalised_rows(matrices: Tensor) -> Tensor:
    """``[..., n, n]`` clipped at 0 and rows scaled to sum to 1, in place.

    A row of which clipping leaves nothing (0/0) becomes that of the identity: the token then stays with itself, and what
    is carried through the matrix keeps its sum.
    """
    total = matrices.clamp_(min=0).sum(-1)
    empty = (total == 0).to(total.dtype)
    matrices.diagonal(dim1=-2, dim2=-1).add_(empty)
    return matrices.div_((total + empty).unsqueeze(-1))


def _scaled(weights: Tensor, scale: Tensor | float, rows: slice) -> Tensor:
    if isinstance(scale, Tensor):
        return weights * scale[:, None, rows]
    return weights if scale == 1 else weights * scale


def _norm(vectors: Tensor, overwrite: bool = False) -> Tensor:
    """L1 norm over the last dimension; may ``overwrite`` its argument."""
    # On a CPU vector_norm is not vectorised for this norm (4 times slower); on a GPU it saves a pass over the memory.
    if vectors.device.type != "cpu":
        return torch.linalg.vector_norm(vectors, 1, dim=-1)
    return (vectors.abs_() if overwrite else vectors.abs()).sum(-1)


def _blocks(length: int, size: int) -> Iterator[slice]:
    """Slices of at most ``size`` (at least 1) that cover ``range(length)``."""
    size = max(1, size)
    for start in range(0, length, size):
        yield slice(start, min(start + size, length))
