"""A pass traced as one graph of PyTorch's basic operations, with the rules already in it.

The model's own Python code runs once, on tensors without numbers, exactly as in an eager pass; nothing of the model has to be
known or be "compilable". Lengths and numbers of texts are symbols, so that one trace serves many shapes: all that meet the
conditions that came up on the way. Where a block begins, and where the gradient of its output arrives, is noted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from ..._torch_internals import (
    fresh_result,
    not_in_place,
    overwrites,
    tensors_without_numbers,
    traced_graph,
    tracer,
    with_symbols,
)
from ...models.modules import frozen, modules_of
from ...models.positions import context_length
from ...text.batching import Batch
from ..checkpointing import outer_blocks
from ..forward_backward import compute
from ..scores import accepted
from ..spec import PassOptions, PassResult, PassSpec
from .attention_calls import AttentionCall, AttentionCalls
from .checks import Checks, symbols_checked
from .cuts import CUT, Cuts, functional

SHORT = 512  # tokens up to which attention that keeps all its weights costs little


def attention_calls(model: PreTrainedModel, batch: Batch) -> tuple[int, tuple[AttentionCall | None, ...]]:
    """How the model calls fused attention for a text without padding, and up to which length that is certain.

    The model is run once, without gradients, on a text of at least this length: the masks of a sliding window, which do hide
    something, begin at a certain length. In float32 no fused kernel shares keys and values among heads; without one, long
    texts would take memory for all pairs of tokens, so there they are repeated.
    """
    ids = batch.inputs["input_ids"]
    limit = context_length(model)
    longest = max(SHORT, 1 << (ids.shape[1] - 1).bit_length())
    if limit is None and any("position" in name for name, _ in model.named_parameters()):
        limit = 0  # a table of positions has one, which the configuration does not name
    if limit is not None:
        longest = max(ids.shape[1], min(longest, limit))
    one = {
        name: values[:1, -1:].repeat(1, longest) for name, values in batch.inputs.items() if name != "attention_mask"
    }
    # Of one position, to save memory; not as a number, for which Gemma 4 leaves tokens out before its last blocks.
    last = torch.tensor([longest - 1], device=ids.device)
    one = one if batch.readout is None else batch.readout.inputs(one)
    with torch.no_grad(), AttentionCalls() as noted:
        model(**one, **accepted(model, use_cache=False, return_dict=True, logits_to_keep=last))
    calls = noted.calls
    if longest > SHORT and model.dtype.itemsize > 2:
        calls = [call and call._replace(heads=None) for call in calls]
    return longest, tuple(calls)


class _Given(TorchFunctionMode):
    """While a pass is traced, the model's weights stand for inputs of the graph.

    They stay where they are, so that other threads can use the model meanwhile. What turns a weight into numbers meets the
    input, which has none, and fails: the trace would keep the numbers when the weight changes.
    """

    def __init__(self, weights: Sequence[Tensor], inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self._weights, self._inputs = weights, inputs
        self._given = {id(weight): given for weight, given in zip(weights, inputs, strict=True)}
        # PyTorch calculates with single numbers while it traces.
        self._single = {id(w): self._given[id(w)] for w in weights if w.numel() == 1}

    def __enter__(self) -> Any:
        known = tracer().tensor_tracker
        for weight, given in zip(self._weights, self._inputs, strict=True):
            known[weight] = known[given]
        return super().__enter__()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = self._given if getattr(func, "__name__", "") in _NUMBERS else self._single
        if not given:
            return func(*args, **(kwargs or {}))
        kwargs = {name: given.get(id(value), value) for name, value in (kwargs or {}).items()}
        return func(*(given.get(id(value), value) for value in args), **kwargs)


_NUMBERS = frozenset({"tolist", "numpy", "__array__"})


def weights_of(model: nn.Module) -> list[Tensor]:
    """Parameters and buffers, each once."""
    return [*model.parameters(), *model.buffers()]


def tensors_of(weights: Sequence[Tensor], batch: Batch) -> list[Tensor]:
    """The inputs of a traced pass: weights and the batch's tensors."""
    return [*weights, *batch.inputs.values(), batch.positions, batch.targets, batch.contrasts]


class Trace:
    """A pass as one graph, a result that says what its outputs are, and for which shapes and numbers it holds."""

    def __init__(
        self, graph: fx.GraphModule, result: PassResult, checks: Checks, symbols: Sequence[Any], environment: Any
    ) -> None:
        self.graph, self.result, self.checks = graph, result, checks
        self._symbols = symbols  # of rows and length; a plain number where it is the same for all shapes
        self._environment = environment
        self._known: dict[Any, Callable[[int, int], int]] = {}

    def admits(self, rows: int, length: int) -> bool:
        """Whether the conditions that came up, while tracing or compiling, hold for this shape."""
        for symbol, n in zip(self._symbols, (rows, length), strict=True):
            if isinstance(symbol, int):
                if symbol != n:
                    return False
            elif n not in self._environment.var_to_range[symbol]:  # 1 is never among those of a symbol
                return False
        return all(bool(self._of(guard.expr)(rows, length)) for guard in list(self._environment.guards))

    def size_of(self, value: Any) -> Callable[[int, int], int]:
        """A size in the graph as a function of rows and length."""
        return self._of(value.node.expr)

    def _of(self, expression: Any) -> Callable[[int, int], int]:
        if expression not in self._known:
            import sympy

            symbols = [sympy.Dummy() if isinstance(s, int) else s for s in self._symbols]
            # A symbol is replaced where a condition says what it is; that condition itself must not be.
            known = expression.free_symbols <= set(symbols)
            expression_here = expression if known else self._environment.replace(expression)
            if not expression_here.free_symbols <= set(symbols):
                raise RuntimeError(f"a size depends on values: {expression}")

            def value(*numbers: int) -> int:
                return expression_here.subs(dict(zip(symbols, numbers, strict=True)))

            self._known[expression] = cache(lambda rows, length: _number(value(rows, length)))
        return self._known[expression]


def _number(value: Any) -> Any:
    import sympy

    return bool(value) if isinstance(value, sympy.logic.boolalg.Boolean) else int(value)


def traced(model: PreTrainedModel, batch: Batch, spec: PassSpec, options: PassOptions) -> Trace:
    """The pass as one graph without in-place operations.

    Raises:
        RuntimeError: The model looks at values on the way, or does something else that cannot be traced.
        LrpxError, HeadNotFollowed: As ``forward_backward.compute``.
    """
    weights = weights_of(model)
    found: list[PassResult] = []

    def function(cuts: Cuts, *tensors: Tensor) -> list[Tensor]:
        rest = tensors[len(weights) :]
        inputs = dict(zip(batch.inputs, rest, strict=False))
        positions, targets, contrasts = rest[len(inputs) :]
        shown = replace(batch, inputs=inputs, positions=positions, targets=targets, contrasts=contrasts)
        with cuts.noted(outer_blocks(model)), frozen(modules_of(model)), _Given(weights, tensors[: len(weights)]):
            result = compute(model, shown, spec, replace(options, aside=cuts))
        found.append(result.with_tensors([torch.empty(0)] * len(result.tensors())))
        return result.tensors()

    fake, environment = tensors_without_numbers()
    rows, length = batch.shape
    shift = {length: length + (rows == length > 1)}  # equal numbers would become one symbol

    def given(tensor: Tensor) -> Tensor:
        if batch.of_images or not (batch.is_per_token(tensor) or tensor.shape == (rows,)):
            return fake.from_tensor(tensor, static_shapes=True)  # type: ignore[no-any-return]
        return with_symbols(fake, tensor.new_zeros([rows, *(shift.get(n, n) for n in tensor.shape[1:])]))

    tensors = tensors_of([t.detach() for t in weights], batch)
    inputs: list[Tensor] = [fake.from_tensor(t, static_shapes=True) for t in tensors[: len(weights)]]
    inputs += [given(t) for t in tensors[len(weights) :]]
    sizes = batch.shape if batch.of_images else inputs[len(weights)].shape
    symbols = [n.node.expr if isinstance(n, torch.SymInt) else n for n in sizes]

    checked = set[Any]()

    def graph_of(run: Callable[..., Any]) -> fx.GraphModule:
        cuts = Cuts()
        with fake:
            graph = traced_graph(partial(run, cuts), inputs)
        cuts.place(graph.graph)
        checked.update(symbols_checked(graph.graph))
        return graph

    graph = graph_of(function)
    for node in graph.graph.nodes:
        _write_elsewhere(node)
    if any(overwrites(node) for node in graph.graph.nodes):
        graph = graph_of(partial(functional, graph))
    if unchecked := environment.deferred_runtime_asserts.keys() - checked:
        raise RuntimeError(f"it checks numbers that are not known before it runs: {unchecked}")
    for node in graph.graph.nodes:
        if node.op == "get_attr" and "val" not in node.meta:  # before torch 2.7
            node.meta["val"] = fake.from_tensor(constant_tensor(graph, node), static_shapes=True)
    for node in graph.graph.nodes:
        _copy_alone(node)
    checks = Checks(graph.graph, is_size)
    _drop_unused(graph.graph)
    return Trace(graph, found[0], checks, symbols, environment)


def is_size(node: fx.Node) -> bool:
    """Whether a node of the trace is a size, or is computed from sizes alone: a number, not a tensor."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.SymInt)


def _drop_unused(graph: fx.Graph) -> None:
    """Remove what nothing depends on. A cut after a node that goes is one after the node before it."""
    for node in reversed(list(graph.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users:
            if CUT in node.meta:
                node.prev.meta[CUT] = node.meta[CUT]
            graph.erase_node(node)


def _copy_alone(node: fx.Node) -> None:
    """Let a concatenation with nothing but empty tensors (an empty cache) be a copy.

    TorchInductor would make it one too, but laid out in memory as its source is, and not as the trace says.
    """
    if node.target is not torch.ops.aten.cat.default:
        return
    parts: Any = node.args[0]
    full = [part for part in parts if tuple(part.meta["val"].shape) != (0,)]
    if len(full) == 1 and len(parts) > 1 and node.meta["val"].is_contiguous():
        node.target, node.args = torch.ops.aten.clone.default, (full[0],)
        node.kwargs = {"memory_format": torch.contiguous_format}


def _write_elsewhere(node: fx.Node) -> None:
    """Let an operation that overwrites a fresh tensor, which nothing else uses, make a new one instead."""
    if not overwrites(node) or len(node.all_input_nodes) != 1:
        return
    (source,) = node.all_input_nodes
    twin = not_in_place(node)
    if twin is not None and source.op == "call_function" and fresh_result(source) and list(source.users) == [node]:
        node.target = twin


def constant_tensor(graph: fx.GraphModule, node: fx.Node) -> Any:
    """The constant tensor that a node of the trace stands for."""
    value: Any = graph
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value
