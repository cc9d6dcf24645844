"""Long texts: the pass traced once, fused, and run piece by piece.

``trace.py`` makes a graph of the pass, ``partition.py`` compiles it, and a ``Plan`` runs the pieces one after the other and lets
go of every tensor after its last use. Results agree with the eager pass to rounding: fused operations round less often. What
cannot be traced (a model that looks at values on the way) raises, and ``dispatch.py`` runs it as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from ...models.positions import context_length
from ...models.signature import filler, task_of
from ...text.batching import Batch
from ..aside import AT_ONCE, Aside
from ..model_state import ModelState
from ..scores import accepted, read_once
from ..spec import PassOptions, PassResult, PassSpec
from .cuts import ASIDE
from .partition import Piece, segments_of, steps_of
from .trace import attention_calls, constant_tensor, is_size, tensors_of, traced

KEPT = 16  # plans of a model
TRIED = 16  # tokens on which is tried what a mask does


class CompiledPasses:
    """The compiled passes of one model, the most recently used ones. Whether it is still the same is not checked here."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._plans: list[tuple[Hashable, Plan]] = []  # the last one used last
        self._masks: Masks | None = None

    def __len__(self) -> int:
        return len(self._plans)

    def clear(self) -> None:
        """Forget all compiled passes."""
        self._plans, self._masks = [], None

    def repeat(
        self, batch: Batch, key: Hashable, weights: Sequence[Tensor], *, checkpoint: bool, aside: Aside = AT_ONCE
    ) -> PassResult | None:
        """Explain a batch by a compiled pass that is there already; ``None`` if there is none.

        Args:
            batch: Of any shape.
            key: What was compiled, beside the shape.
            weights: ``ModelState.weights`` of the model.
            checkpoint: Whether blocks are recomputed.
            aside: As of ``PassOptions``.
        """
        if self._masks is None and batch.is_text_alone:
            return None
        batch = batch.outside_inference_mode()
        rows, length = batch.shape
        place = (key, rows == 1, checkpoint, self._needs_no_mask(batch))
        entry = next((e for e in self._plans if e[0] == place and e[1].fits(rows, length)), None)
        if entry is None:
            return None
        self._plans = [*(e for e in self._plans if e is not entry), entry]
        return entry[1].run(batch, weights, aside)

    def run(
        self, batch: Batch, spec: PassSpec, options: PassOptions, *, key: Hashable, settle: Callable[[], ModelState]
    ) -> PassResult:
        """Explain a batch by a compiled pass, which is made if it is not there.

        Args:
            batch: Of any shape.
            spec: What is asked.
            options: How the pass is run.
            key: As for ``repeat``.
            settle: Called after a first pass; gives the state that the model must have at the end.

        Raises:
            RuntimeError: The pass cannot be traced or compiled, or it changes the model.
            LrpxError, HeadNotFollowed: As ``forward_backward.compute``.
        """
        batch = batch.outside_inference_mode()
        if self._masks is None and batch.is_text_alone:
            masks = masks_of(self._model, batch)
            settle()
            self._masks = masks
        state = settle()
        found = self.repeat(batch, key, state.weights, checkpoint=options.checkpoint, aside=options.aside)
        if found is not None:
            return found
        if not batch.is_text_alone:  # what a model sets up may depend on the size of an image
            with torch.no_grad():
                read_once(self._model, batch)
            state = settle()
        unpadded = self._needs_no_mask(batch)
        plan = Plan(self._model, batch, spec, replace(options, static=True, unpadded=unpadded))
        if not state.holds():
            raise RuntimeError(f"it changes itself while it runs: {state.what_changed()}")
        place = (key, batch.shape[0] == 1, options.checkpoint, unpadded)
        self._plans = [*self._plans, (place, plan)][-KEPT:]
        return plan.run(batch, state.weights, options.aside)

    def _needs_no_mask(self, batch: Batch) -> bool:
        """Whether the attention mask can be left out, which is tried with text alone: image tokens may see later ones."""
        return self._masks is not None and batch.is_text_alone and self._masks.hide_nothing(batch)


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
    masked variant too are not believed to look back only, nor is any model that looks ahead in the trial (Gemma 3 can). Other
    heads than those of language models, and readouts, may look at the mask, so they keep it.
    """
    if batch.readout is not None:
        return Masks(spare=False, back=False)
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
    """One piece, and which tensors go in, come out, and are not needed afterwards.

    ``aside``: nothing waits for it until the step that ``joins``.
    """

    run: Piece
    inputs: list[str]
    outputs: list[str]
    done: list[str]
    aside: bool
    joins: bool


class Plan:
    """The pieces of a pass in their order. Tensors are known by the names of the trace's nodes."""

    def __init__(self, model: PreTrainedModel, batch: Batch, spec: PassSpec, options: PassOptions) -> None:
        self._longest: int | None = None
        if options.unpadded:
            self._longest, calls = attention_calls(model, batch)
            options = replace(options, attention=calls)
        self._trace = trace = traced(model, batch, spec, options)
        nodes = list(trace.graph.graph.nodes)
        self._inputs = [n.name for n in nodes if n.op == "placeholder"]
        self._outputs = [n.name for n in next(n for n in nodes if n.op == "output").args[0]]
        known = [*nodes, *trace.checks.inputs]
        self._constants = {n.name: constant_tensor(trace.graph, n) for n in known if n.op == "get_attr"}
        self._sizes = {n.name: trace.size_of(n.meta["val"]) for n in known if is_size(n)}
        self.pieces: dict[str, Any] = {}
        segments = segments_of(nodes)
        steps = steps_of(segments, self.pieces, set(self._outputs), paired=not options.checkpoint)
        last = {name: i for i, (_, inputs, outputs) in enumerate(steps) for name in (*inputs, *outputs)}
        keep = {*self._outputs, *self._constants, *self._sizes}
        aside = [segment.kind == ASIDE for segment in segments]
        later = {name for (_, _, outputs), apart in zip(steps, aside, strict=True) if apart for name in outputs}
        self._steps = [
            _Step(
                run=run,
                inputs=inputs,
                outputs=outputs,
                done=[n for n in {*inputs, *outputs} if last[n] == i and n not in keep],
                aside=aside[i],
                joins=not aside[i] and not later.isdisjoint(inputs),
            )
            for i, (run, inputs, outputs) in enumerate(steps)
        ]

    def fits(self, rows: int, length: int) -> bool:
        """Whether the plan serves a batch of this shape."""
        return (self._longest is None or length <= self._longest) and self._trace.admits(rows, length)

    def run(self, batch: Batch, weights: Sequence[Tensor], aside: Aside = AT_ONCE) -> PassResult:
        """Explain a batch of a shape that fits; ``weights`` are the model's parameters and buffers, each once.

        Raises:
            CheckFailed: The model would refuse it.
        """
        rows, length = batch.shape
        values = dict(zip(self._inputs, tensors_of(weights, batch), strict=True)) | self._constants
        values |= {name: size(rows, length) for name, size in self._sizes.items()}
        with torch.no_grad():
            self._trace.checks.run(values)
            for step in self._steps:
                if step.joins:
                    aside.join()
                work = partial(step.run, *[values[name] for name in step.inputs])
                found = aside(work) if step.aside else work()
                del work
                values.update(zip(step.outputs, found, strict=True))
                del found
                for name in step.done:
                    del values[name]
        return self._trace.result.with_tensors([values[name] for name in self._outputs])
