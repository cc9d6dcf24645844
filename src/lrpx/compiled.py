"""Long texts: forward and backward pass traced once, then fused by TorchInductor, block by block.

1. The pass is traced as one graph of PyTorch's basic operations, with the rules already in it: the model's own Python code
   runs once, on fake tensors, exactly as in an eager pass. Nothing of the model has to be known or be "compilable".
2. The graph is cut where a block begins and where the gradient of a block's output arrives. Blocks that are alike give the
   same pieces, so each kind of piece is compiled once, whatever the number of blocks.
3. The forward and the backward piece of a block are partitioned together: what is cheap to compute again is not kept. With
   checkpointing, the trace holds the recomputation, so only what enters a block is kept.
4. ``Plan`` runs the pieces one after the other, and lets go of every tensor after its last use.

Results agree with the eager pass to rounding: fused operations round less often.
"""

from __future__ import annotations

import logging
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn
from transformers import PreTrainedModel

from .batching import Batch, context_length, filler
from .checkpointing import outer_blocks
from .devices import is_divided
from .errors import LrpxError
from .fingerprint import Fingerprint
from .graphs import question_key
from .program import Answer, HeadNotFollowed, Question, compute

logger = logging.getLogger("lrpx")

KEPT = 8  # compiled shapes of a model
_CUT = "lrpx_cut"  # on a node's meta: what begins after it

Piece = Callable[..., Sequence[Tensor]]


class Compiled:
    """The compiled passes of one model, the most recently used ones."""

    def __init__(self) -> None:
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._refused: set[Hashable] = set()
        self._pieces: dict[str, Any] = {}

    def __len__(self) -> int:
        return len(self._plans)

    def answer(self, model: PreTrainedModel, batch: Batch, question: Question) -> Answer | None:
        """Explain a batch by a compiled pass; ``None`` where that is not possible, with a warning.

        Raises:
            LrpxError, HeadNotFollowed: As ``program.compute``.
        """
        if is_divided(model):
            logger.info("%s is divided over devices and is not compiled", type(model).__name__)
            return None
        length = batch.inputs["input_ids"].shape[1]
        batch, question = _unpadded(model, batch.outside_inference_mode(), question)
        shape = tuple(batch.inputs["input_ids"].shape)
        precision = torch.get_float32_matmul_precision()
        key = (shape, tuple(batch.inputs), batch.chosen, question.unpadded, question_key(question), precision)
        if key in self._refused:
            return None
        plan = self._plans.get(key)
        if plan is None or not plan.weights.holds():
            try:
                plan = Plan(model, batch, replace(question, static=True), self._pieces)
                self._plans[key] = plan
                found = plan.run(model, batch)
            except (LrpxError, HeadNotFollowed, torch.OutOfMemoryError):
                self._plans.pop(key, None)
                raise
            except Exception as error:
                self._plans.pop(key, None)
                self._refused.add(key)
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                logger.warning("%s cannot be compiled and runs as usual: %s", type(model).__name__, reason)
                logger.debug("compiling failed", exc_info=True)
                return None
            while len(self._plans) > KEPT:
                self._plans.popitem(last=False)
        else:
            found = plan.run(model, batch)
        self._plans.move_to_end(key)
        return found.cut(length)


def _unpadded(model: PreTrainedModel, batch: Batch, question: Question) -> tuple[Batch, Question]:
    """The batch as it is compiled. Texts of one length need no mask, and a causal model's fast attention has none.

    Then a causal model's length is rounded up, so that fewer shapes are compiled: no token sees what comes after it.
    """
    length = batch.inputs["input_ids"].shape[1]
    if any(span != slice(0, length) for span in batch.spans):
        return batch, question
    question = replace(question, unpadded=True)
    if not is_causal(model):
        return batch, question
    step = 8
    while step * 16 < length:
        step *= 2
    limit = context_length(model)
    longer = max(length, min(-(-length // step) * step, limit or 1 << 60))
    fill = {"input_ids": filler(model)}
    inputs = {
        name: nn.functional.pad(values, (0, longer - length), value=fill.get(name, 0))
        for name, values in batch.inputs.items()
    }
    return replace(batch, inputs=inputs), question


def is_causal(model: PreTrainedModel) -> bool:
    """Whether no token of this model sees a later one, as far as its class and configuration say."""
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel")) and getattr(model.config, "is_causal", True)


@dataclass(frozen=True)
class _Step:
    """One piece, and which tensors go in, come out, and are not needed afterwards."""

    run: Piece
    inputs: list[str]
    outputs: list[str]
    done: list[str]


class Plan:
    """The pieces of a pass in their order. Tensors are known by the names of the trace's nodes."""

    def __init__(self, model: PreTrainedModel, batch: Batch, question: Question, pieces: dict[str, Any]) -> None:
        self.weights = Fingerprint(model)
        traced, self.answer = _trace(model, batch, question)
        graph = traced.graph
        self.inputs = [n.name for n in graph.nodes if n.op == "placeholder"]
        self.outputs = [n.name for n in next(n for n in graph.nodes if n.op == "output").args[0]]
        self.constants = {n.name: _constant(traced, n) for n in graph.nodes if n.op == "get_attr"}
        steps = _steps(_segments(graph), pieces, set(self.outputs), paired=not question.checkpoint)
        last = {name: i for i, (_, inputs, outputs) in enumerate(steps) for name in (*inputs, *outputs)}
        keep = {*self.outputs, *self.constants}
        self.steps = [
            _Step(run, inputs, outputs, [n for n in {*inputs, *outputs} if last[n] == i and n not in keep])
            for i, (run, inputs, outputs) in enumerate(steps)
        ]

    def run(self, model: PreTrainedModel, batch: Batch) -> Answer:
        """Explain a batch of the shape that was traced."""
        values = dict(zip(self.inputs, _tensors(model, batch), strict=True)) | self.constants
        with torch.no_grad():
            for step in self.steps:
                found = step.run(*[values[name] for name in step.inputs])
                values.update(zip(step.outputs, found, strict=True))
                del found
                for name in step.done:
                    del values[name]
        return self.answer.with_tensors([values[name] for name in self.outputs])


# Tracing


class _Call(nn.Module):
    """``compute`` as a module, so that the model's weights can be given as inputs."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, question: Question) -> Answer:
        return compute(self.model, batch, question)


def _tensors(model: nn.Module, batch: Batch) -> list[Tensor]:
    """The inputs of a traced pass: parameters, buffers, and the batch's tensors."""
    weights = [t.detach() for _, t in (*model.named_parameters(), *model.named_buffers())]
    return [*weights, *batch.inputs.values(), batch.positions, batch.targets, batch.contrasts]


def _trace(model: PreTrainedModel, batch: Batch, question: Question) -> tuple[fx.GraphModule, Answer]:
    """The pass as one graph without in-place operations; and an answer that says what its outputs are."""
    from torch.fx.experimental.proxy_tensor import make_fx

    names = [f"model.{name}" for name, _ in (*model.named_parameters(), *model.named_buffers())]
    found: list[Answer] = []

    def function(*tensors: Tensor) -> list[Tensor]:
        weights = dict(zip(names, tensors, strict=False))
        rest = tensors[len(names) :]
        inputs = dict(zip(batch.inputs, rest, strict=False))
        positions, targets, contrasts = rest[len(inputs) :]
        traced = Batch(inputs, batch.spans, positions, targets, contrasts, batch.chosen)
        with _cuts(outer_blocks(model)):
            answer = torch.func.functional_call(_Call(model), weights, (traced, question))
        found.append(answer.with_tensors([torch.empty(0)] * len(answer.tensors())))
        return answer.tensors()

    tensors = _tensors(model, batch)
    graph = make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    if any(_writes(node) for node in graph.graph.nodes):
        functional = torch.func.functionalize(_Again(graph).run, remove="mutations")
        graph = make_fx(functional, tracing_mode="fake", _allow_non_fake_inputs=True)(*tensors)
    graph.graph.eliminate_dead_code()
    return graph, found[0]


def _writes(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


@contextmanager
def _cuts(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """While a trace runs, note where a block begins or ends, and where the gradient of a block's output arrives."""
    thread = threading.get_ident()
    graph = _current_graph()
    running: list[nn.Module] = []
    last = {"block": 0, "backward": 0}  # how many of each have begun

    def cut(kind: str, block: int) -> None:
        node = next(iter(reversed(graph.nodes)), None)
        if node is not None:
            node.meta[_CUT] = (kind, block)

    def elsewhere() -> bool:
        return last["backward"] > 0 or threading.get_ident() != thread  # in the backward pass blocks are recomputed

    def before(module: nn.Module, args: Any) -> None:
        if not running and not elsewhere():
            running.append(module)
            cut("block", last["block"])

    def after(module: nn.Module, args: Any, output: Any) -> None:
        if running != [module] or elsewhere():
            return
        running.clear()
        number = last["block"]
        last["block"] += 1
        cut("between", number)

        def arrives(_: Tensor) -> None:
            last["backward"] += 1
            cut("backward", number)

        state = output[0] if isinstance(output, tuple | list) else output
        if isinstance(state, Tensor) and state.requires_grad:
            state.register_hook(arrives)

    with ExitStack() as stack:
        for module in blocks:
            stack.callback(module.register_forward_pre_hook(before).remove)
            stack.callback(module.register_forward_hook(after).remove)
        yield


def _current_graph() -> fx.Graph:
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode: Any = get_proxy_mode()
    return mode.tracer.graph


class _Again(fx.Interpreter):
    """Runs a traced graph once more, to trace it without in-place operations; cuts stay where they were."""

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if _CUT in n.meta:
            node = next(iter(reversed(_current_graph().nodes)), None)
            if node is not None:
                node.meta[_CUT] = n.meta[_CUT]
        return result


def _constant(graph: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = graph
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


# Pieces


@dataclass
class _Segment:
    """Consecutive nodes between two cuts."""

    kind: str  # "block", "between" or "backward"
    block: int
    nodes: list[fx.Node]


def _segments(graph: fx.Graph) -> list[_Segment]:
    segments = [_Segment("between", -1, [])]
    for node in graph.nodes:
        if node.op not in ("placeholder", "get_attr", "output"):
            segments[-1].nodes.append(node)
        if _CUT in node.meta:
            kind, block = node.meta[_CUT]
            segments.append(_Segment(kind, block, []))
    return [segment for segment in segments if segment.nodes]


def _steps(
    segments: Sequence[_Segment], pieces: dict[str, Any], wanted: set[str], *, paired: bool
) -> list[tuple[Piece, list[str], list[str]]]:
    """(function, names in, names out) of each segment, in order."""
    backward = {s.block: s for s in segments if s.kind == "backward"} if paired else {}
    waiting: dict[int, tuple[Piece, list[str], list[str]]] = {}
    steps: list[tuple[Piece, list[str], list[str]]] = []
    for segment in segments:
        if segment.kind == "block" and segment.block in backward:
            first, waiting[segment.block] = _pair(segment, backward[segment.block], pieces, wanted)
            steps.append(first)
        elif segment.kind == "backward" and segment.block in waiting:
            steps.append(waiting.pop(segment.block))
        else:
            steps.append(_single(segment, pieces, wanted))
    return steps


def _single(segment: _Segment, pieces: dict[str, Any], wanted: set[str]) -> tuple[Piece, list[str], list[str]]:
    inputs = _needs(segment.nodes)
    outputs = _leaves(segment.nodes, set(segment.nodes), wanted)
    graph = _graph_of(segment.nodes, [("primals", n) for n in inputs], outputs)
    piece = _compiled_once(graph, [n.meta["val"] for n in inputs], pieces)
    return piece, [n.name for n in inputs], [n.name for n in outputs]


def _pair(
    forward: _Segment, backward: _Segment, pieces: dict[str, Any], wanted: set[str]
) -> tuple[tuple[Piece, list[str], list[str]], tuple[Piece, list[str], list[str]]]:
    """Forward and backward piece of a block: the partitioner chooses what goes from one to the other."""
    inside = {*forward.nodes, *backward.nodes}
    order = {node: i for i, node in enumerate(forward.nodes[0].graph.nodes)}
    start = order[forward.nodes[0]]
    needed = _needs(forward.nodes)
    later = [n for n in _needs(backward.nodes) if n not in inside and n not in needed]
    primals = needed + [n for n in later if order[n] < start or n.op in ("placeholder", "get_attr")]
    tangents = [n for n in later if n not in primals]
    out_forward = _leaves(forward.nodes, inside, wanted)
    out_backward = _leaves(backward.nodes, inside, wanted)
    roles = [("primals", n) for n in primals] + [("tangents", n) for n in tangents]
    joint = _graph_of([*forward.nodes, *backward.nodes], roles, [*out_forward, *out_backward])
    first, second = _partitioned_once(joint, [n.meta["val"] for _, n in roles], len(out_forward), pieces)
    kept = [f"{forward.nodes[0].name}:kept{i}" for i in range(first.kept)]
    return (
        (first.run, [primals[i].name for i in first.inputs], [*[n.name for n in out_forward], *kept]),
        (second.run, [*kept, *[tangents[i].name for i in second.inputs]], [n.name for n in out_backward]),
    )


def _needs(nodes: Sequence[fx.Node]) -> list[fx.Node]:
    """What the nodes take from outside, in the order of use."""
    inside = set(nodes)
    return list(dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside))


def _leaves(nodes: Sequence[fx.Node], inside: set[fx.Node], wanted: set[str]) -> list[fx.Node]:
    """Those of the nodes whose values are used outside."""
    return [n for n in nodes if n.name in wanted or any(u not in inside and u.op != "output" for u in n.users)]


def _graph_of(
    nodes: Sequence[fx.Node], inputs: Sequence[tuple[str, fx.Node]], outputs: Sequence[fx.Node]
) -> fx.GraphModule:
    """The nodes as a graph of their own, with names that depend on nothing but the operations."""
    graph = fx.Graph()
    new: dict[fx.Node, fx.Node] = {}
    for i, (role, node) in enumerate(inputs):
        new[node] = graph.placeholder(f"{role}_{i + 1}")
        new[node].meta["val"] = node.meta["val"]
    for node in nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: new[n])
        new[node] = graph.create_node(node.op, node.target, args, kwargs)
        if "val" in node.meta:
            new[node].meta["val"] = node.meta["val"]
    graph.output(tuple(new[n] for n in outputs))
    return fx.GraphModule(nn.Module(), graph)


def _key(graph: fx.GraphModule, examples: Sequence[Any]) -> str:
    """What a piece computes: its operations, and what its inputs look like."""
    inputs = [
        (str(e.dtype), tuple(e.shape), e.stride(), str(e.device)) if isinstance(e, Tensor) else e for e in examples
    ]
    return f"{graph.code} {inputs} {torch.get_float32_matmul_precision()}"


def _compiled_once(graph: fx.GraphModule, examples: Sequence[Any], pieces: dict[str, Any]) -> Piece:
    key = _key(graph, examples)
    if key not in pieces:
        pieces[key] = _compile(graph, examples)
    return pieces[key]


@dataclass(frozen=True)
class _Half:
    """One side of a partitioned block: which of its inputs it takes, and how many tensors it keeps for the other."""

    run: Piece
    inputs: list[int]
    kept: int = 0


def _partitioned_once(
    joint: fx.GraphModule, examples: Sequence[Any], n_outputs: int, pieces: dict[str, Any]
) -> tuple[_Half, _Half]:
    key = f"{n_outputs} {_key(joint, examples)}"
    if key not in pieces:
        from functorch.compile import min_cut_rematerialization_partition

        forward, backward = min_cut_rematerialization_partition(joint, examples, num_fwd_outputs=n_outputs)
        halves = []
        for graph in (forward, backward):
            taken = [n for n in graph.graph.nodes if n.op == "placeholder"]
            halves.append((_compile(graph, [n.meta["val"] for n in taken]), taken))
        names = [n.name for n in joint.graph.nodes if n.op == "placeholder"]
        n_kept = len(next(n for n in forward.graph.nodes if n.op == "output").args[0]) - n_outputs
        primals = [names.index(n.name) for n in halves[0][1]]
        first_tangent = sum(name.startswith("primals") for name in names)
        tangents = [names.index(n.name) - first_tangent for n in halves[1][1][n_kept:]]
        pieces[key] = _Half(halves[0][0], primals, n_kept), _Half(halves[1][0], tangents)
    return pieces[key]


def _compile(graph: fx.GraphModule, examples: Sequence[Any]) -> Piece:
    """A piece, fused; one that computes nothing stays as it is."""
    if not any(n.op == "call_function" and n.target is not operator.getitem for n in graph.graph.nodes):
        return graph
    run = torch._inductor.compile(graph, list(examples))

    def piece(*tensors: Tensor) -> Sequence[Tensor]:
        found = run(*tensors)
        return found if isinstance(found, list | tuple) else (found,)

    return piece
