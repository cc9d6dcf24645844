"""Long texts: the pass traced once, fused, and run piece by piece.

``traced.py`` makes a graph of the pass, ``pieces.py`` compiles it, and a ``Plan`` runs the pieces one after the other and lets
go of every tensor after its last use. Results agree with the eager pass to rounding: fused operations round less often. What
cannot be traced (a model that looks at values on the way) runs as usual, and the log says why.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import PreTrainedModel

from .batching import Batch
from .devices import is_divided
from .errors import LrpxError
from .fingerprint import Fingerprint
from .graphs import question_key
from .pieces import Piece, segments_of, steps_of
from .program import Answer, HeadNotFollowed, Question
from .targets import task_of
from .traced import attention_calls, constant, is_size, tensors_of, traced

logger = logging.getLogger("lrpx")

KEPT = 4  # plans of a model for the same question


class Compiled:
    """The compiled passes of one model, the most recently used ones."""

    def __init__(self) -> None:
        self._plans: dict[Hashable, list[Plan]] = {}
        self._refused: set[Hashable] = set()

    def __len__(self) -> int:
        return sum(map(len, self._plans.values()))

    def capturable(self, model: PreTrainedModel, batch: Batch, question: Question) -> Answer:
        """As ``answer``, for a CUDA graph.

        Raises:
            RuntimeError: The pass cannot be compiled.
        """
        found = self.answer(model, batch, question)
        if found is None:
            raise RuntimeError("it cannot be compiled")
        return found

    def answer(self, model: PreTrainedModel, batch: Batch, question: Question) -> Answer | None:
        """Explain a batch by a compiled pass; ``None`` where that is not possible, with a warning.

        Raises:
            LrpxError, HeadNotFollowed: As ``program.compute``.
        """
        if is_divided(model):
            logger.info("%s is divided over devices and is not compiled", type(model).__name__)
            return None
        batch, question = batch.outside_inference_mode(), replace(question, unpadded=_needs_no_mask(model, batch))
        precision = torch.get_float32_matmul_precision()
        key = (
            len(batch.spans) == 1,
            tuple(batch.inputs),
            batch.chosen,
            question.unpadded,
            question_key(question),
            precision,
        )
        if key in self._refused:
            return None
        rows, length = batch.inputs["input_ids"].shape
        plans = self._plans.setdefault(key, [])
        plan = next((plan for plan in plans if plan.fits(rows, length)), None)
        if plan is None or not plan.weights.holds():
            plans[:] = [kept for kept in plans if kept is not plan][-KEPT:]
            try:
                plan = Plan(model, batch, replace(question, static=True))
                found = plan.run(model, batch)
            except (LrpxError, HeadNotFollowed, torch.OutOfMemoryError):
                raise
            except Exception as error:
                self._refused.add(key)
                reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                logger.warning("%s cannot be compiled and runs as usual: %s", type(model).__name__, reason)
                logger.debug("compiling failed", exc_info=True)
                return None
            plans.append(plan)
            return found
        return plan.run(model, batch)


def _needs_no_mask(model: PreTrainedModel, batch: Batch) -> bool:
    """Whether an attention mask would hide nothing that a token sees. Without one, attention is faster.

    Texts of one length have no padding, and in a causal model no token sees the padding after it.
    """
    length = batch.inputs["input_ids"].shape[1]
    if all(span == slice(0, length) for span in batch.spans):
        return True
    return looks_back(model) and all(span.start == 0 for span in batch.spans)


def looks_back(model: PreTrainedModel) -> bool:
    """Whether no token of this model sees a later one, for certain: a causal model of a type that has no masked variant."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as masked

    return task_of(model) == "causal" and model.config.get_text_config().model_type not in masked


@dataclass(frozen=True)
class _Step:
    """One piece, and which tensors go in, come out, and are not needed afterwards."""

    run: Piece
    inputs: list[str]
    outputs: list[str]
    done: list[str]


class Plan:
    """The pieces of a pass in their order. Tensors are known by the names of the trace's nodes."""

    def __init__(self, model: PreTrainedModel, batch: Batch, question: Question) -> None:
        self.weights = Fingerprint(model)
        self._longest: int | None = None
        if question.unpadded:
            self._longest, calls = attention_calls(model, batch)
            question = replace(question, attention=calls)
        self._trace = trace = traced(model, batch, question)
        nodes = list(trace.graph.graph.nodes)
        self._inputs = [n.name for n in nodes if n.op == "placeholder"]
        self._outputs = [n.name for n in next(n for n in nodes if n.op == "output").args[0]]
        self._constants = {n.name: constant(trace.graph, n) for n in nodes if n.op == "get_attr"}
        self._sizes = {n.name: trace.size_of(n.meta["val"]) for n in nodes if is_size(n)}
        self.pieces: dict[str, Any] = {}
        steps = steps_of(segments_of(nodes), self.pieces, set(self._outputs), paired=not question.checkpoint)
        last = {name: i for i, (_, inputs, outputs) in enumerate(steps) for name in (*inputs, *outputs)}
        keep = {*self._outputs, *self._constants, *self._sizes}
        self._steps = [
            _Step(run, inputs, outputs, [n for n in {*inputs, *outputs} if last[n] == i and n not in keep])
            for i, (run, inputs, outputs) in enumerate(steps)
        ]

    def fits(self, rows: int, length: int) -> bool:
        """Whether the plan serves a batch of this shape."""
        return (self._longest is None or length <= self._longest) and self._trace.admits(rows, length)

    def run(self, model: PreTrainedModel, batch: Batch) -> Answer:
        """Explain a batch of a shape that fits."""
        rows, length = batch.inputs["input_ids"].shape
        values = dict(zip(self._inputs, tensors_of(model, batch), strict=True)) | self._constants
        values |= {name: size(rows, length) for name, size in self._sizes.items()}
        with torch.no_grad():
            for step in self._steps:
                found = step.run(*[values[name] for name in step.inputs])
                values.update(zip(step.outputs, found, strict=True))
                del found
                for name in step.done:
                    del values[name]
        return self._trace.answer.with_tensors([values[name] for name in self._outputs])
