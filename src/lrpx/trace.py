"""One plain forward pass of a model, and what ALTI and ALTI-Logit need of it.

``trace(model, family, batch)`` runs the model once, without gradients, under forward hooks and an ``AttentionTap``, all
of which are gone when it returns or raises. A layer is reduced to its mixing matrix as soon as its attention is done;
kept per layer are value vectors and single rows at the explained position, nothing of size heads x T x T.
The unembedding only meets the explained positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from .affine import Norm, projection
from .attention import AttentionCall, AttentionTap, wide
from .batching import Batch
from .errors import UnsupportedModelError
from .families import ALTERNATIVES, Family, get
from .mixing import WEIGHTS_BYTES, Layer, normalised_rows

Mixing = Callable[[Layer, int, bool], Tensor]


@dataclass(frozen=True, kw_only=True)
class LayerTrace:
    """One block at the explained position p of each of B items, and the values that p attends to; all >= float32.

    Attributes:
        stream: ``[B, d]``: the block's input at p.
        attention: ``[B, d]``: the output of the attention's projection at p, bias included.
        weights: ``[B, H, T]``: attention weights at p.
        value: ``[B, G, T, dv]``: value vectors, biases included.
    """

    stream: Tensor
    attention: Tensor
    weights: Tensor
    value: Tensor


@dataclass(kw_only=True)
class Trace:
    """What one forward pass left behind; all at least float32.

    Attributes:
        layers: One per block.
        mlp: Per block ``[B, d]``: the MLP's output at p.
        mixing: ``[L or L - 1, B, n, n]``: contributions of tokens to tokens, rows summing to 1. n = T, or up to the last
            explained position where later ones do not matter.
        head: Input and output ``[B, ...]`` at p of each module of the head, by path.
        logits: ``[B, V]`` at p.
    """

    layers: list[LayerTrace] = field(default_factory=list)
    mlp: list[Tensor] = field(default_factory=list)
    mixing: Tensor
    head: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    logits: Tensor


def trace(model: nn.Module, family: Family, batch: Batch, *, mixing: Mixing, last: bool) -> Trace:
    """Run ``model`` on ``batch.inputs`` once and keep what the methods need.

    Args:
        model: Any model that ``family`` describes.
        family: Where its parts are.
        batch: Padded items.
        mixing: ``(layer, n, causal)`` -> a layer's matrix ``[B, n, n]``, which is then clipped and its rows normalised.
        last: Whether the matrix of the last layer is wanted too.

    Raises:
        UnsupportedModelError: A layer's attention could not be followed.
    """
    recorder = _Recorder(model, family, batch, mixing, last)
    options = {"use_cache": False} if family.causal else {}
    with torch.no_grad(), _evaluating(model), recorder.tap, ExitStack() as stack:
        for handle in recorder.register():
            stack.callback(handle.remove)
        return recorder.finish(model(**batch.inputs, **options).logits)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout and its like switched off, every module's own mode restored afterwards."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


class _Recorder:
    """The hooks. Each one is called by the model at one place of a block or of the head."""

    def __init__(self, model: nn.Module, family: Family, batch: Batch, mixing: Mixing, last: bool) -> None:
        self.model, self.family, self.mixing = model, family, mixing
        self.blocks = list(get(model, family.blocks))
        self.wanted = len(self.blocks) if last else len(self.blocks) - 1
        self.batch, self.length = batch.inputs["input_ids"].shape
        self.items = torch.arange(self.batch, device=batch.positions.device)
        self.positions = batch.positions
        self.needed = int(batch.positions.max()) + 1 if family.causal else self.length
        self.factor = family.factor(model.config)
        self.tap = AttentionTap()
        self.stream: Tensor | None = None
        self.layers: list[LayerTrace] = []
        self.matrices: Tensor | None = None
        self.mlp: dict[int, Tensor] = {}
        self.head: dict[str, tuple[Tensor, Tensor]] = {}

    def register(self) -> Iterator[Any]:
        """Add the hooks one by one, so that each is known to the caller before the next."""
        for index, block in enumerate(self.blocks):
            yield block.register_forward_pre_hook(self.enter_block, with_kwargs=True)
            yield get(block, self.family.attention_output).register_forward_hook(self.leave_attention)
            yield get(block, self.family.mlp_output).register_forward_hook(self.leave_mlp(index))
        for path in self.family.head:
            module = get(self.model, path)
            if module is not None:
                yield module.register_forward_hook(self.leave_head(path))
        yield get(self.model, self.family.head[-1]).register_forward_pre_hook(self.enter_unembedding)

    def at_position(self, tensor: Tensor) -> Tensor:
        """``[B, T, n]`` or ``[B * T, n]`` at the explained position, a copy: ``[B, n]``."""
        tensor = tensor.reshape(self.batch, -1, tensor.shape[-1])
        if tensor.shape[1] == 1:  # cut down to that position already
            return wide(tensor[:, 0].clone())
        if tensor.shape[1] != self.length:
            raise self.cannot(f"a module returned {tensor.shape[1]} of {self.length} positions")
        return wide(tensor[self.items.to(tensor.device), self.positions.to(tensor.device)])

    def enter_block(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stream = args[0] if args else kwargs["hidden_states"]
        self.tap.open()

    def leave_attention(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        index = len(self.layers)
        call = self.tap.take(self.batch, self.length, args[0].shape[-1])
        if call is None or self.stream is None or index == len(self.blocks):
            raise self.cannot(f"the attention of block {index} is no single call of a torch function that it knows")
        stream, self.stream = self.stream, None
        wanted = index < self.wanted
        heads = args[0].shape[-1] // call.value.shape[-1]
        if wanted and self.batch * heads * self.length**2 * 4 <= WEIGHTS_BYTES:
            call = replace(call, probabilities=call.weights(slice(0, self.length)))
        self.layers.append(
            LayerTrace(
                stream=self.at_position(stream),
                attention=self.at_position(output),
                weights=call.weights(self.positions)[:, :, 0],
                value=wide(call.value).contiguous(),
            )
        )
        if wanted:
            layer = linear_layer(self.blocks[index], self.family, call, module, stream, output, self.factor)
            matrix = self.mixing(layer, self.needed, self.family.causal)
            if self.matrices is None:
                self.matrices = matrix.new_empty(self.wanted, *matrix.shape)
            self.matrices[index] = matrix

    def leave_mlp(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            # Mixtures of experts return their router's logits as well.
            self.mlp[index] = self.at_position(output[0] if isinstance(output, tuple) else output)

        return hook

    def enter_unembedding(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (self.at_position(args[0]).to(args[0].dtype).unsqueeze(1),)

    def leave_head(self, path: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
            self.head[path] = (self.at_position(args[0]), self.at_position(output))

        return hook

    def finish(self, logits: Tensor) -> Trace:
        """The trace, if every hook was called as often as the family says."""
        count = len(self.blocks)
        if len(self.layers) != count or len(self.mlp) != count or self.family.head[-1] not in self.head:
            raise self.cannot(
                f"of {count} blocks, {len(self.layers)} attentions and {len(self.mlp)} MLPs were called through the "
                "modules that the family names"
            )
        matrices = wide(logits.new_empty(0, self.batch, self.needed, self.needed))  # a single layer needs none
        return Trace(
            layers=self.layers,
            mlp=[self.mlp[index] for index in range(count)],
            mixing=normalised_rows(matrices if self.matrices is None else self.matrices),
            head=self.head,
            logits=wide(logits[:, 0]),
        )

    def cannot(self, what: str) -> UnsupportedModelError:
        """The error that says what could not be followed, and what to do."""
        config: Any = self.model.config
        return UnsupportedModelError(
            f"{type(self.model).__name__} (model type {config.model_type!r}, attention "
            f"{getattr(config, '_attn_implementation', 'unknown')!r}) cannot be followed by ALTI-Logit: {what}. Load it with "
            f"attn_implementation='sdpa' or 'eager', without compiling or quantising it. {ALTERNATIVES}"
        )


def linear_layer(
    block: nn.Module,
    family: Family,
    call: AttentionCall,
    projecting: nn.Module,
    stream: Tensor,
    attention: Tensor,
    factor: float,
) -> Layer:
    """A block's attention as a sum of transformed vectors, its deviations held constant.

    With the stream x, the attention output a, the family's factor s and a norm N = G ./ dev + b:

    ===========  ====================  =======================================  ================
    family       y                     T_i(x_j), j != i                         own_i
    ===========  ====================  =======================================  ================
    plain        x + s a               s sum_h A_ij V_j                         x_i
    branch norm  x + s N(a)            s / dev(a_i) sum_h A_ij G V_j            x_i
    sum norm     N(x + s a)            s / dev(x_i + s a_i) sum_h A_ij G V_j    G x_i / dev
    ===========  ====================  =======================================  ================
    """
    stream, attention = wide(stream), wide(attention.reshape(stream.shape))
    weight = projection(projecting)[0].to(stream.dtype)
    if family.branch_norms:
        norm = Norm.of(get(block, family.branch_norms[0]), stream.dtype, family.norm_offset)
        scale = factor * norm.inverse_deviation(attention)
        output = torch.add(stream, norm(attention), alpha=factor)
        return Layer(attention=call, weight=weight, linear=norm.linear, scale=scale, own=stream, output=output)
    total = torch.add(stream, attention, alpha=factor)
    if family.sum_norms:
        norm = Norm.of(get(block, family.sum_norms[0]), stream.dtype, family.norm_offset)
        scale = norm.inverse_deviation(total)
        own = norm.linear(stream) * scale
        return Layer(
            attention=call, weight=weight, linear=norm.linear, scale=scale * factor, own=own, output=norm(total)
        )
    return Layer(attention=call, weight=weight, linear=None, scale=factor, own=stream, output=total)
