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
from torch import Tensor
from transformers import PreTrainedModel

from ...errors import LrpxError
from ...models.placement import is_divided
from ...models.signature import context_length, filler, task_of
from ...text.batching import Batch
from ..cuda_graphs import foreign_rule, question_key
from ..forward_backward import HeadNotFollowed, PassResult, PassSpec, accepted
from ..model_state import Fingerprint, foreign_code, foreign_mode, structure, surroundings
from .partition import Piece, segments_of, steps_of
from .trace import attention_calls, constant, is_size, tensors_of, traced

logger = logging.getLogger("lrpx")

KEPT = 16  # plans of a model
TRIED = 16  # tokens on which is tried what a mask does


class Compiled:
    """The compiled passes of one model, the most recently used ones. They are forgotten when the model changes."""

    def __init__(self) -> None:
        self._plans: list[tuple[Hashable, Plan]] = []  # the last one used last
        self._refused: dict[Hashable, int] = {}  # and what the model was made of
        self._weights: Fingerprint | None = None
        self._masks: Masks | None = None
        self._told: set[str] = set()

    def __len__(self) -> int:
        return len(self._plans)

    def capturable(self, model: PreTrainedModel, batch: Batch, question: PassSpec) -> PassResult:
        """As ``answer``, for a CUDA graph.

        Raises:
            RuntimeError: The pass cannot be compiled.
        """
        found = self.answer(model, batch, question)
        if found is None:
            raise RuntimeError("it cannot be compiled")
        return found

    def answer(self, model: PreTrainedModel, batch: Batch, question: PassSpec) -> PassResult | None:
        """Explain a batch by a compiled pass; ``None`` where that is not possible, with a warning.

        Raises:
            LrpxError, HeadNotFollowed: As ``program.compute``.
        """
        reason = self._why_not(model, batch, question)
        if reason:
            self._warn(model, f"is not compiled and runs as usual: {reason}")
            return None
        around = surroundings(model, batch.positions.device.type)
        key = (len(batch.spans) == 1, tuple(batch.inputs), batch.chosen, question_key(question), around)
        if key in self._refused and self._refused[key] == structure(model):
            return None
        try:
            return self._answer(model, batch.outside_inference_mode(), question, key)
        except (LrpxError, HeadNotFollowed, torch.OutOfMemoryError):
            raise
        except Exception as error:
            self._refused[key] = structure(model)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            self._warn(model, f"cannot be compiled and runs as usual: {reason}")
            logger.debug("compiling failed", exc_info=True)
            return None

    def _warn(self, model: PreTrainedModel, message: str) -> None:
        """Once for each message."""
        if message not in self._told:
            self._told.add(message)
            logger.warning("%s %s", type(model).__name__, message)

    def _why_not(self, model: PreTrainedModel, batch: Batch, question: PassSpec) -> str | None:
        """Why the model is not compiled now; if there is no reason, ``_weights`` is of the model as it is."""
        if is_divided(model):
            return "it is divided over devices"
        if torch.is_autocast_enabled(batch.positions.device.type):
            return "torch.autocast is on"
        code = foreign_rule(question) or foreign_mode()
        if not code and (self._weights is None or not self._weights.holds()):
            code = foreign_code(model)
            if not code:
                self._weights = Fingerprint(model)
                self._plans, self._masks = [], None
        return f"{code}, and a compiled pass would not run that code again" if code else None

    def _answer(self, model: PreTrainedModel, batch: Batch, question: PassSpec, key: Hashable) -> PassResult:
        if self._masks is None:
            self._masks = masks_of(model, batch)
            self._weights = Fingerprint(model, since=self._weights)
        unpadded = self._masks.hide_nothing(batch)
        rows, length = batch.inputs["input_ids"].shape
        entry = next((e for e in self._plans if e[0] == (key, unpadded) and e[1].fits(rows, length)), None)
        if entry is None:
            entry = (key, unpadded), Plan(model, batch, replace(question, static=True, unpadded=unpadded))
            if self._weights is not None and not self._weights.holds():
                raise RuntimeError(f"it changes itself while it runs: {self._weights.what_changed()}")
        answer = entry[1].run(model, batch)
        self._plans = [*(e for e in self._plans if e is not entry), entry][-KEPT:]
        return answer


@dataclass(frozen=True)
class Masks:
    """What attention masks do in a model. Without one, attention is faster.

    Attributes:
        spare: One that hides nothing is the same as none.
        back: No token sees a later one.
    """

    spare: bool
    back: bool

    def hide_nothing(self, batch: Batch) -> bool:
        """Whether the batch's mask hides nothing that a token sees.

        Texts of one length have no padding, and if no token sees a later one, padding after a text is not seen.
        """
        length = batch.inputs["input_ids"].shape[1]
        if not self.spare:
            return False
        return all(span.start == 0 and (self.back or span.stop == length) for span in batch.spans)


def masks_of(model: PreTrainedModel, batch: Batch) -> Masks:
    """Try it: a short text with a mask of ones, without one, and with other tokens in its second half.

    Padding is among the tokens, as some models (XLM) look for it where they have no mask. Types of models that come in a
    masked variant too are not believed to look back only, nor is any model that looks ahead in the trial (Gemma 3 can).
    """
    length = min(TRIED, context_length(model) or TRIED)
    rest = {name: values[:1, -1:].repeat(1, length) for name, values in batch.inputs.items()}
    text = batch.inputs["input_ids"][0].repeat(length)[:length]
    text[[length // 4, -1]] = filler(model)
    other = torch.cat([text[: length // 2], torch.where(text > 0, text - 1, 1)[length // 2 :]])

    def logits(ids: Tensor, *without: str) -> Tensor:
        given = {**rest, "input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
        given = {name: values for name, values in given.items() if name not in without}
        output = model(**given, **accepted(model, use_cache=False, return_dict=True))
        found = output.logits if hasattr(output, "logits") else output[0]
        return found[0]

    def alike(a: Tensor, b: Tensor) -> bool:
        scale = float(a[a.isfinite()].abs().max()) if a.isfinite().any() else 0.0
        rounding = torch.finfo(a.dtype).eps ** 0.5  # mixtures of experts group tokens, and round differently
        return torch.allclose(a, b, rtol=rounding, atol=rounding * scale)

    with torch.no_grad():
        usual, plain = logits(text), logits(text, "attention_mask")
        changed = logits(other, "attention_mask")
    half = length // 2
    return Masks(alike(usual, plain), looks_back(model) and alike(plain[:half], changed[:half]))


def looks_back(model: PreTrainedModel) -> bool:
    """Whether a model is of a type of which no token sees a later one: a causal model without a masked variant."""
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

    def __init__(self, model: PreTrainedModel, batch: Batch, question: PassSpec) -> None:
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

    def run(self, model: PreTrainedModel, batch: Batch) -> PassResult:
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
