"""One plain forward pass of a model, and what ALTI and ALTI-Logit need of it.

``trace(model, family, batch)`` runs the model once, without gradients, under forward hooks and an ``AttentionTap``, all
of which are gone when it returns or raises:

1. ``_Recorder`` notes the stream and the attention of each block as it runs, and the MLP's output at the explained position.
2. It reduces attentions to their mixing matrices, value vectors and single rows at that position; nothing of size heads x T
   x T is kept. A long prompt's are reduced one by one. For a short one, launching an operation costs more than the
   operation, so as many as ``STACK_BYTES`` allows are stacked in the batch dimension and reduced together.
3. The unembedding only meets the explained positions.
4. Of a model that is divided over several devices, value vectors stay where they are and all else is gathered on the
   batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ...errors import UnsupportedModelError
from ...models.modules import modules_of
from ...passes.validation import own_failures_named
from ...text.batching import Batch
from .affine import Norm, projection
from .attention_weights import AttentionTap, ObservedAttention, concatenated, wide
from .contributions import WEIGHTS_BYTES, Layers, normalised_rows
from .families import ALTERNATIVES, Family, get

Mixing = Callable[[Layers, int, bool], Tensor]

# Bytes of the transformed values, or of the attention weights, of blocks that are reduced together.
STACK_BYTES = {"cpu": 128 << 10}
STACK_BYTES_DEFAULT = 128 << 20


@dataclass(frozen=True, kw_only=True)
class ResidualTrace:
    """What one forward pass of L blocks left behind of B items, of which position p is explained; all >= float32.

    Everything is on the batch's device, but the values, which are on their block's.

    Attributes:
        stream: ``[L, B, d]``: each block's input at p.
        attention: ``[L, B, d]``: the output of the attention's projection at p, bias included.
        mlp: ``[L, B, d]``: the MLP's output at p.
        weights: ``[L, B, H, T]``: attention weights at p.
        values: Value vectors, biases included: ``[l, B, G, T, dv]`` of the first l blocks, of the next, ....
        mixing: ``[L or L - 1, B, n, n]``: contributions of tokens to tokens, rows summing to 1. n = T, or up to the last
            explained position where later ones do not matter.
        head: Input and output ``[B, ...]`` at p of each module of the head, by path.
        logits: ``[B, V]`` at p.
    """

    stream: Tensor
    attention: Tensor
    mlp: Tensor
    weights: Tensor
    values: list[Tensor]
    mixing: Tensor
    head: dict[str, tuple[Tensor, Tensor]]
    logits: Tensor


def trace(model: nn.Module, family: Family, batch: Batch, *, mixing: Mixing, last: bool) -> ResidualTrace:
    """Run ``model`` on ``batch.inputs`` once and keep what the methods need.

    Args:
        model: Any model that ``family`` describes.
        family: Where its parts are.
        batch: Padded items.
        mixing: ``(layers, n, causal)`` -> their matrices ``[L * B, n, n]``, which are then clipped and their rows normalised.
        last: Whether the matrix of the last layer is wanted too.

    Raises:
        UnsupportedModelError: A layer's attention could not be followed.
    """
    recorder = _Recorder(model, family, batch, mixing, last)
    options = {"use_cache": False} if family.causal else {}
    with (
        own_failures_named(model, batch.inputs),
        torch.no_grad(),
        _evaluating(model),
        recorder.tap,
        ExitStack() as stack,
    ):
        for handle in recorder.register():
            stack.callback(handle.remove)
        return recorder.finish(model(**batch.inputs, **options).logits)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout and its like switched off, every module's own mode restored afterwards."""
    training = [module for module in modules_of(model) if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


class _Attention(NamedTuple):
    """What was noted of a block's attention, at all positions: the block's input, the projection's output, and the call."""

    stream: Tensor
    output: Tensor
    call: ObservedAttention
    versions: tuple[int, int]  # of stream and output


def _version(tensor: Tensor) -> int:
    """Grows when ``tensor`` is changed in place; not known of one made in inference mode."""
    return 0 if tensor.is_inference() else tensor._version


class _Recorder:
    """The hooks. Each one is called by the model at one place of a block or of the head."""

    def __init__(self, model: nn.Module, family: Family, batch: Batch, mixing: Mixing, last: bool) -> None:
        self.model, self.family, self.mixing = model, family, mixing
        self.blocks = list(get(model, family.blocks))
        self.projections = [get(block, family.attention_output) for block in self.blocks]
        self.wanted = len(self.blocks) if last else len(self.blocks) - 1
        self.batch, self.length = batch.inputs["input_ids"].shape
        self.positions, self.device = batch.positions, batch.positions.device
        self.places = self.positions + self.length * torch.arange(self.batch, device=self.positions.device)
        self.needed = int(batch.positions.max()) + 1 if family.causal else self.length
        self.factor = family.factor(model.config)
        self.tap = AttentionTap()
        self.stream: Tensor | None = None
        self.pending: list[_Attention] = []  # noted and not yet reduced
        self.reduced = 0
        self.rows: dict[str, list[Tensor]] = {"stream": [], "attention": [], "weights": []}
        self.values: list[Tensor] = []
        self.matrices: Tensor | None = None
        self.mlp: dict[int, Tensor] = {}
        self.head: dict[str, tuple[Tensor, Tensor]] = {}

    def register(self) -> Iterator[Any]:
        """Add the hooks one by one, so that each is known to the caller before the next."""
        for index, (block, projecting) in enumerate(zip(self.blocks, self.projections, strict=True)):
            yield block.register_forward_pre_hook(self.enter_block, with_kwargs=True)
            yield projecting.register_forward_hook(self.leave_attention)
            yield get(block, self.family.mlp_output).register_forward_hook(self.leave_mlp(index))
        for path in self.family.head:
            module = get(self.model, path)
            if module is not None:
                yield module.register_forward_hook(self.leave_head(path))
        yield get(self.model, self.family.head[-1]).register_forward_pre_hook(self.enter_unembedding)

    def at_position(self, tensor: Tensor, *layers: int) -> Tensor:
        """``[*layers, B, T, n]``, B and T joined or not, at the explained position, a copy: ``[*layers, B, n]``."""
        tensor = tensor.reshape(*layers, -1, tensor.shape[-1])
        count = tensor.shape[-2]
        if count == self.batch:  # cut down to that position already
            return wide(tensor.clone())
        if count != self.batch * self.length:
            raise self.cannot(f"a module returned {count // self.batch} of {self.length} positions")
        return wide(tensor.index_select(-2, self.places.to(tensor.device)))

    def enter_block(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.stream = args[0] if args else kwargs["hidden_states"]
        self.tap.open()

    def leave_attention(self, module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        width = args[0].shape[-1]
        call = self.tap.take(self.batch, self.length, width)
        index = self.reduced + len(self.pending)
        if call is None or self.stream is None or index == len(self.blocks):
            raise self.cannot(f"the attention of block {index} is no single call of a torch function that it knows")
        if self.pending and self.pending[0].call.form != call.form:
            self.reduce()
        stream = self.stream.to(output.device)  # the first block of a device gets it from another
        self.pending.append(_Attention(stream, output, call, (_version(stream), _version(output))))
        self.stream = None
        heads = width // call.value.shape[-1]
        size = heads * self.batch * self.length * max(output.shape[-1], self.length) * max(4, output.element_size())
        limit = STACK_BYTES.get(output.device.type, STACK_BYTES_DEFAULT)
        if index + 1 in (self.wanted, len(self.blocks)) or (len(self.pending) + 1) * size > limit:
            self.reduce()

    def reduce(self) -> None:
        """Turn what was noted into what is kept."""
        streams, outputs, calls, versions = zip(*self.pending, strict=True)
        start, count = self.reduced, len(self.pending)
        if versions != tuple(zip(map(_version, streams), map(_version, outputs), strict=True)):
            raise self.cannot("the stream or an attention output is changed in place after the attention")
        self.pending, self.reduced = [], start + count
        noted = (wide(concatenated(tensors)) for tensors in (streams, outputs))
        stream, attention = (x.reshape(count, self.batch, -1, x.shape[-1]) for x in noted)
        call, layers = ObservedAttention.stack(calls), slice(start, start + count)
        self.rows["stream"].append(self.at_position(stream, count).to(self.device))
        self.rows["attention"].append(self.at_position(attention, count).to(self.device))
        if start < self.wanted:
            linear = linear_layers(
                self.blocks[layers], self.projections[layers], self.family, self.factor, call, stream, attention
            )
            if len(call.value) * linear.heads * self.length**2 * 4 <= WEIGHTS_BYTES:
                call = replace(call, probabilities=call.weights(slice(0, self.length)))
                linear = replace(linear, attention=call)
            matrices = self.mixing(linear, self.needed, self.family.causal).unflatten(0, (count, self.batch))
            if self.matrices is None:
                self.matrices = matrices.new_empty(self.wanted, *matrices.shape[1:], device=self.device)
            self.matrices[layers] = matrices
        weights = call.weights(self.positions.repeat(count))[:, :, 0]
        self.rows["weights"].append(weights.unflatten(0, (count, self.batch)).to(self.device))
        self.values.append(wide(call.value).contiguous().unflatten(0, (count, self.batch)))

    def leave_mlp(self, index: int) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            # Mixtures of experts return their router's logits as well.
            self.mlp[index] = self.at_position(output[0] if isinstance(output, tuple) else output).to(self.device)

        return hook

    def enter_unembedding(self, module: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        return (self.at_position(args[0]).to(args[0].dtype).unsqueeze(1),)

    def leave_head(self, path: str) -> Callable[[nn.Module, tuple[Tensor], Tensor], None]:
        def hook(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
            self.head[path] = (self.at_position(args[0]).to(self.device), self.at_position(output).to(self.device))

        return hook

    def finish(self, logits: Tensor) -> ResidualTrace:
        """The trace, if every hook was called as often as the family says."""
        count, attentions = len(self.blocks), self.reduced + len(self.pending)
        if attentions != count or len(self.mlp) != count or self.family.head[-1] not in self.head:
            raise self.cannot(
                f"of {count} blocks, {attentions} attentions and {len(self.mlp)} MLPs were called through the modules that "
                "the family names"
            )
        logits = wide(logits[:, 0].to(self.device))
        matrices = logits.new_empty(0, self.batch, self.needed, self.needed)  # a single layer needs none
        return ResidualTrace(
            stream=concatenated(self.rows["stream"]),
            attention=concatenated(self.rows["attention"]),
            weights=concatenated(self.rows["weights"]),
            values=self.values,
            mlp=torch.stack([self.mlp[index] for index in range(count)]),
            mixing=normalised_rows(matrices if self.matrices is None else self.matrices),
            head=self.head,
            logits=logits,
        )

    def cannot(self, what: str) -> UnsupportedModelError:
        """The error that says what could not be followed, and what to do."""
        config: Any = self.model.config
        return UnsupportedModelError(
            f"{type(self.model).__name__} (model type {config.model_type!r}, attention "
            f"{getattr(config, '_attn_implementation', 'unknown')!r}) cannot be followed by ALTI-Logit: {what}.",
            python=f"Load it with attn_implementation='sdpa' or 'eager', without compiling or quantising it. {ALTERNATIVES}",
            app=f"Start the app with --attn-implementation sdpa. {ALTERNATIVES}",
        )


def linear_layers(
    blocks: Sequence[nn.Module],
    projections: Sequence[nn.Module],
    family: Family,
    factor: float,
    call: ObservedAttention,
    stream: Tensor,
    attention: Tensor,
) -> Layers:
    """The attention of L blocks as sums of transformed vectors, its deviations held constant.

    ``stream`` and ``attention`` are ``[L, B, T, d]``. With the stream x, the attention output a, the family's factor s and
    a norm N = G ./ dev + b:

    ===========  ====================  =======================================  ================
    family       y                     T_i(x_j), j != i                         own_i
    ===========  ====================  =======================================  ================
    plain        x + s a               s sum_h A_ij V_j                         x_i
    branch norm  x + s N(a)            s / dev(a_i) sum_h A_ij G V_j            x_i
    sum norm     N(x + s a)            s / dev(x_i + s a_i) sum_h A_ij G V_j    G x_i / dev
    ===========  ====================  =======================================  ================
    """
    linear: Callable[[Tensor], Tensor] | None = None
    scale: Tensor | float = factor
    own = stream
    if family.branch_norms:
        norm = Norm.of([get(block, family.branch_norms[0]) for block in blocks], stream, family.norm_offset)
        linear, scale = norm.linear, factor * norm.inverse_deviation(attention)
        output = torch.add(stream, norm(attention), alpha=factor)
    else:
        output = torch.add(stream, attention, alpha=factor)
    if family.sum_norms:
        norm = Norm.of([get(block, family.sum_norms[0]) for block in blocks], stream, family.norm_offset)
        inverse = norm.inverse_deviation(output)
        linear, scale = norm.linear, factor * inverse
        own, output = norm.linear(stream) * inverse, norm(output)
    return Layers(
        attention=call,
        weights=[projection(module)[0].to(stream.device) for module in projections],
        linear=linear,
        scale=scale.flatten(0, 1) if isinstance(scale, Tensor) else scale,
        own=own.flatten(0, 1),
        output=output.flatten(0, 1),
    )
