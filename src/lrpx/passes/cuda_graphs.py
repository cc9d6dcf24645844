"""CUDA graphs: a short text's forward and backward pass as one launch.

On a GPU a short text costs far less than launching its thousands of small kernels one by one from Python. A CUDA graph
records them once, forward and backward together, and launches them all at once from then on. A graph belongs to a shape:
lengths are rounded up to buckets, shorter texts are padded and masked, and their ids, masks and targets are copied into the
graph's own tensors. The kernels are those of the eager pass, so the numbers are, bit for bit, what that gives for the same
padded batch. What cannot be captured (a model that looks at values on the way) runs as usual, and the log says why.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..errors import LrpxError
from ..models.placement import is_divided
from ..models.signature import context_length, filler, task_of
from ..propagation import rules
from ..propagation.rulesets import get_rules
from ..text.batching import Batch, allowed_waste
from .forward_backward import HeadNotFollowed, PassResult, PassSpec, compute
from .model_state import Fingerprint, foreign_code, structure, surroundings

logger = logging.getLogger("lrpx")

Run = Callable[[PreTrainedModel, Batch, PassSpec], PassResult]

KEPT = 64  # graphs of a model
MAX_TOKENS = 1024  # padded tokens of a batch; beyond, launches no longer matter and padding would cost more
WARM_UP = 2  # eager passes before a capture, in which libraries set themselves up


@dataclass(frozen=True)
class _Graph:
    graph: Any  # torch.cuda.CUDAGraph
    batch: Batch  # the tensors it reads
    answer: PassResult  # the tensors it writes
    weights: Fingerprint  # of the model as it was captured
    filler: int  # the id of padding


class Graphs:
    """The graphs of one model, the most recently used ones."""

    def __init__(self) -> None:
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._refused: dict[Hashable, int] = {}  # and what the model was made of
        self._seen: Counter[Hashable] = Counter()
        self._dropped: Counter[Hashable] = Counter()
        self._pool: Any = None
        self._context: int | None = -1  # not looked up yet
        self._pads = True
        self._told: set[str] = set()

    def __len__(self) -> int:
        return len(self._graphs)

    def replay(self, model: PreTrainedModel, batch: Batch, question: PassSpec) -> PassResult | None:
        """Explain a batch by a graph that is there already; ``None`` if there is none, or the model is no longer the same.

        Nothing else is checked or computed before: on a fast GPU, what Python does takes as long as the pass.
        """
        if not self._graphs or not _fits(batch):
            return None
        key = self._key(model, batch, question)
        found = self._graphs.get(key)
        if found is None:
            return None
        if found.weights.in_place():
            answer = _replay(found, batch, copy=question.hidden)
            if found.weights.holds():  # while the GPU works
                self._graphs.move_to_end(key)
                return answer
        del self._graphs[key]
        self._dropped[key] += 1
        # A model that changes often is captured ever more seldom.
        self._seen[key] = 1 - 2 ** min(self._dropped[key], 10)
        return None

    def answer(
        self, model: PreTrainedModel, batch: Batch, question: PassSpec, run: Run = compute, *, eager: bool
    ) -> PassResult | None:
        """Capture a graph and explain a batch by it; ``None`` where that is not possible, or not worth it.

        Args:
            model: On one CUDA device.
            batch: At most ``MAX_TOKENS`` tokens.
            question: Without checkpointing.
            run: What is captured: ``compute``, or something that gives the same.
            eager: Capture a shape when it is met for the first time; otherwise from the second time on.

        Raises:
            LrpxError, HeadNotFollowed: As ``program.compute``.
        """
        if not _fits(batch) or torch.cuda.is_current_stream_capturing() or is_divided(model):
            return None
        self._context = -1  # looked up once more, as the model may have changed
        key = self._key(model, batch, question)
        self._seen[key] += 1
        if self._seen[key] < 2 and not eager:
            return None
        if key in self._refused and self._refused[key] == structure(model):
            return None
        if self._must_run(model, question):
            return None
        try:
            found = self._capture(model, _padded(model, batch, self._length(model, batch)), question, run)
        except (LrpxError, HeadNotFollowed, torch.OutOfMemoryError):
            raise
        except Exception as error:
            self._refused[key] = structure(model)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            logger.info("%s runs without a CUDA graph: %s", type(model).__name__, reason)
            return None
        self._graphs[key] = found
        while len(self._graphs) > KEPT:
            self._graphs.popitem(last=False)
        return _replay(found, batch, copy=question.hidden)

    def _must_run(self, model: PreTrainedModel, question: PassSpec) -> bool:
        code = foreign_rule(question) or foreign_code(model)
        if code and code not in self._told:
            self._told.add(code)
            logger.info(
                "%s runs without CUDA graphs: %s, and a graph would not run that code again", type(model).__name__, code
            )
        return code is not None

    def _length(self, model: PreTrainedModel, batch: Batch) -> int:
        if self._context == -1:
            self._context, self._pads = context_length(model), allowed_waste(model, task_of(model)) > 0
        length = batch.inputs["input_ids"].shape[1]
        return bucket(length, self._context) if self._pads else length

    def _key(self, model: PreTrainedModel, batch: Batch, question: PassSpec) -> Hashable:
        length = self._length(model, batch)
        around = surroundings(model, batch.positions.device.type)
        return len(batch.spans), length, tuple(batch.inputs), batch.chosen, question_key(question), around

    def _capture(self, model: PreTrainedModel, batch: Batch, question: PassSpec, run: Run) -> _Graph:
        before = Fingerprint(model)
        question = replace(question, static=True)
        device = batch.positions.device
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        if self._pool is None or not self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run(model, batch, question)
            torch.cuda.synchronize(device)
            weights = Fingerprint(model, since=before)
            # Not torch.cuda.graph(): it empties the whole allocator's cache each time.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                answer = run(model, batch, question)
            finally:
                graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)
        if not weights.holds():
            raise RuntimeError(f"it changes itself while it runs: {weights.what_changed()}")
        logger.debug("captured a CUDA graph of %d x %d tokens", *batch.inputs["input_ids"].shape)
        return _Graph(graph, batch, answer, weights, filler(model))


def _fits(batch: Batch) -> bool:
    return batch.positions.device.type == "cuda" and batch.inputs["input_ids"].numel() <= MAX_TOKENS


def bucket(length: int, context: int | None) -> int:
    """The length a text is padded to: a multiple of 8, of more for long texts."""
    step = 8
    while step * 8 < length:
        step *= 2
    return max(length, min(-(-length // step) * step, context or 1 << 60))


def foreign_rule(question: PassSpec) -> str | None:
    """Which rule is somebody's own, and may do something else each time, as part of a sentence; ``None`` if none is."""
    for kind, rule in get_rules(question.rules).items():
        if getattr(rules, getattr(rule, "__name__", ""), None) is not rule:
            return f"the rule for {kind!r} is not one of lrpx.rules"
    return None


def question_key(question: PassSpec) -> Hashable:
    """What distinguishes questions, by value."""
    named = tuple(sorted((kind, id(rule)) for kind, rule in get_rules(question.rules).items()))
    return named, question.at, question.mode, question.checkpoint, question.whole_head, question.compiled


def _padded(model: PreTrainedModel, batch: Batch, length: int) -> Batch:
    """A copy of the batch, padded on the right to ``length``, whose tensors a graph may keep."""

    def longer(name: str, values: Tensor) -> Tensor:
        fill = filler(model) if name == "input_ids" else 0
        return torch.nn.functional.pad(values, (0, length - values.shape[1]), value=fill).clone()

    inputs = {name: longer(name, values) for name, values in batch.outside_inference_mode().inputs.items()}
    columns = (batch.positions.clone(), batch.targets.clone(), batch.contrasts.clone())
    shorter = [slice(0, 1)] * len(batch.spans)  # the graph serves texts of any length up to this one
    return Batch(inputs, shorter, *columns, batch.chosen)


def _replay(captured: _Graph, batch: Batch, *, copy: bool) -> PassResult:
    """Copy the batch into the graph's tensors and launch it. Its tensors are written again by the next launch.

    ``copy``: the hidden states are copied out; the summary always is.
    """
    mine, length = captured.batch, batch.inputs["input_ids"].shape[1]
    for name, values in batch.inputs.items():
        target = mine.inputs[name]
        target[:, :length].copy_(values)
        if length < target.shape[1]:
            target[:, length:].fill_(captured.filler if name == "input_ids" else 0)
    mine.positions.copy_(batch.positions)
    mine.targets.copy_(batch.targets)
    mine.contrasts.copy_(batch.contrasts)
    captured.graph.replay()
    answer = captured.answer
    summary = answer.summary.clone()
    if not copy:
        return replace(answer, summary=summary, states={}, gradients={})
    answer = answer.cut(length)
    return answer.with_tensors([summary, *(t.clone() for t in answer.tensors()[1:])])
