"""CUDA graphs: a short text's forward and backward pass as one launch.

On a GPU a short text costs far less than launching its thousands of small kernels one by one from Python. A CUDA graph
records them once, forward and backward together, and launches them all at once from then on. A graph belongs to a shape:
lengths are rounded up to buckets, shorter texts are padded and masked, and their ids, masks and targets are copied into the
graph's own tensors. The kernels are those of the eager pass, so the numbers are, bit for bit, what that gives for the same
padded batch. What cannot be captured (a model that looks at values on the way) runs as usual, and the log says why.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..models.placement import is_divided
from ..models.positions import context_length, longest_alike
from ..models.signature import filler, task_of
from ..text.batching import Batch
from ..text.grouping import allowed_waste
from .aside import OnAStream
from .model_state import ModelState
from .spec import PassOptions, PassResult, PassSpec

logger = logging.getLogger("lrpx")

Run = Callable[[Batch, PassSpec, PassOptions], PassResult]

KEPT = 64  # graphs of a model
MAX_TOKENS = 1024  # padded tokens of a batch; beyond, launches no longer matter and padding would cost more
WARM_UP = 2  # eager passes before a capture, in which libraries set themselves up


@dataclass(frozen=True)
class _Graph:
    graph: Any  # torch.cuda.CUDAGraph
    batch: Batch  # the tensors it reads
    result: PassResult  # the tensors it writes
    filler: int  # the id of padding


class Graphs:
    """The graphs of one model, the most recently used ones. Whether the model is still the same is not checked here."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._pool: Any = None
        self._branch: torch.cuda.Stream | None = None

    def __len__(self) -> int:
        return len(self._graphs)

    def clear(self) -> None:
        """Forget all graphs."""
        self._graphs.clear()

    def takes(self, batch: Batch) -> bool:
        """Whether a batch can be captured and is short enough to gain by it."""
        return _fits(batch) and not torch.cuda.is_current_stream_capturing() and not is_divided(self._model)

    def shape_of(self, batch: Batch) -> tuple[int, int]:
        """The number of texts, and the length that they are padded to."""
        length = batch.inputs["input_ids"].shape[1]
        limits = [n for n in (self._context, longest_alike(self._model, length)) if n is not None]
        return len(batch.spans), bucket(length, min(limits, default=None)) if self._pads else length

    def padded(self, batch: Batch) -> Batch:
        """A copy of a batch that ``takes`` says yes to, as a graph would hold it."""
        return _padded(self._model, batch, self.shape_of(batch)[1])

    @cached_property
    def _context(self) -> int | None:
        return context_length(self._model)

    @cached_property
    def _pads(self) -> bool:
        """Whether padding changes nothing."""
        return allowed_waste(self._model, task_of(self._model)) > 0

    def replay(self, batch: Batch, key: Hashable, *, copy: bool) -> PassResult | None:
        """Explain a batch by a graph that is there already; ``None`` if there is none.

        Args:
            batch: Of any length.
            key: What was captured, beside the shape.
            copy: Give the hidden states too.
        """
        if not self._graphs or not _fits(batch):
            return None
        place = (self.shape_of(batch), key)
        found = self._graphs.get(place)
        if found is None:
            return None
        self._graphs.move_to_end(place)
        return _replay(found, batch, copy=copy)

    def capture(
        self,
        batch: Batch,
        spec: PassSpec,
        options: PassOptions,
        *,
        key: Hashable,
        run: Run,
        settle: Callable[[], ModelState],
    ) -> PassResult:
        """Capture a graph and explain a batch by it.

        Args:
            batch: One that ``takes`` says yes to.
            spec: What is asked.
            options: Without checkpointing.
            key: As for ``replay``.
            run: What is captured.
            settle: Called after the warm-up; gives the state that the model must have at the end.

        Raises:
            RuntimeError: The pass cannot be captured (it looks at values on the way), or it changes the model.
            LrpxError, HeadNotFollowed: As ``forward_backward.compute``.
        """
        padded = self.padded(batch)
        device = batch.positions.device
        if self._branch is None:  # one stream for all graphs: each has memory of its own for matrix products
            self._branch = torch.cuda.Stream(device)
        options = replace(options, static=True, aside=OnAStream(device, self._branch))
        stream = torch.cuda.Stream(device, priority=-1)  # before the branch, whose one large product fills the device
        stream.wait_stream(torch.cuda.current_stream(device))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device), torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                run(padded, spec, options)
            torch.cuda.synchronize(device)
            state = settle()
            if self._pool is None or not self._graphs:
                self._pool = torch.cuda.graph_pool_handle()
            # Not torch.cuda.graph(): it empties the whole allocator's cache each time.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = run(padded, spec, options)
            finally:
                graph.capture_end()
        torch.cuda.current_stream(device).wait_stream(stream)
        if not state.holds():
            raise RuntimeError(f"it changes itself while it runs: {state.what_changed()}")
        logger.debug("captured a CUDA graph of %d x %d tokens", *padded.inputs["input_ids"].shape)
        found = _Graph(graph, padded, result, filler(self._model))
        self._graphs[self.shape_of(batch), key] = found
        while len(self._graphs) > KEPT:
            self._graphs.popitem(last=False)
        return _replay(found, batch, copy=spec.hidden)


def _fits(batch: Batch) -> bool:
    return (
        batch.is_text_alone
        and batch.positions.device.type == "cuda"
        and batch.inputs["input_ids"].numel() <= MAX_TOKENS
    )


def bucket(length: int, context: int | None) -> int:
    """The length a text is padded to: a multiple of 8, of more for long texts."""
    step = 8
    while step * 8 < length:
        step *= 2
    return max(length, min(-(-length // step) * step, context or 1 << 60))


def _padded(model: PreTrainedModel, batch: Batch, length: int) -> Batch:
    """A copy of the batch, padded on the right to ``length``, whose tensors a graph may keep."""

    def longer(name: str, values: Tensor) -> Tensor:
        fill = filler(model) if name == "input_ids" else 0
        return torch.nn.functional.pad(values, (0, length - values.shape[1]), value=fill).clone()

    inputs = {name: longer(name, values) for name, values in batch.outside_inference_mode().inputs.items()}
    positions, targets, contrasts = batch.positions.clone(), batch.targets.clone(), batch.contrasts.clone()
    shorter = [slice(0, 1)] * len(batch.spans)  # the graph serves texts of any length up to this one
    return replace(batch, inputs=inputs, spans=shorter, positions=positions, targets=targets, contrasts=contrasts)


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
    result = captured.result
    summary = result.summary.clone()
    if not copy:
        return replace(result, summary=summary, states={}, gradients={})
    result = result.cut(length)
    return result.with_tensors([summary, *(t.clone() for t in result.tensors()[1:])])
