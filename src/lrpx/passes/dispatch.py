"""How a pass is run: as it is, as a CUDA graph, compiled, or with its blocks recomputed. ``PassRunner`` decides it.

1. What is kept already (a graph, a compiled pass) is repeated, and while the device works the model is compared with what it
   was when that was made. If it has changed, everything kept is dropped, and the pass is run as for a new model.
2. Otherwise the pass is captured or compiled where that was asked for and is worth it, or else run as it is.
3. A pass that does not fit into memory is run once more, with its blocks recomputed.

What a pass computes is the business of ``forward_backward.py``.
"""

from __future__ import annotations

import gc
import logging
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from ..errors import LrpxError, in_one_line, strict, warn
from ..models.modules import modules_of, neuron_pattern
from ..models.placement import entry_device, is_divided
from ..models.positions import fresh_rotations
from ..models.precision import matmul_precision
from ..models.provenance import provenance
from ..propagation.rulesets import get_rules
from ..recognition.mixers import known_mixers
from ..text.batching import Batch
from .compiled.checks import CheckFailed
from .compiled.plan import CompiledPasses
from .cuda_graphs import Graphs, Run, bucket
from .execution import DEFAULT, Execution
from .forward_backward import compute
from .memory import needs_checkpoint
from .model_state import ModelState, foreign_code, foreign_rule, settings
from .scores import HeadNotFollowed
from .spec import PassOptions, PassResult, PassSpec
from .validation import check_model, check_not_compiled, own_failures_named

logger = logging.getLogger("lrpx")


PATIENCE = 10  # a model that changes by itself is captured after 2, 4, 8, ... and at most 2 ** PATIENCE uses of a shape


class PassRunner:
    """Runs the passes of one model, and owns what is kept between them: CUDA graphs, compiled passes, what was learnt.

    Not safe for several threads: hold ``models.lock.lock_of(model)``.

    Args:
        model: In eval mode.
        execution: How passes are run.

    Attributes:
        graphs, compiled: What is kept.
        whole_head: The model's logits cannot be computed one by one.
        reads_forward: Its predictions were seen to depend on no token after them.
        noted: What a caller has found out about the model, by a key of its own.
        state: The model as it was when the first of these was made; ``None``: nothing is kept.
    """

    def __init__(self, model: PreTrainedModel, execution: Execution = DEFAULT) -> None:
        self.model, self.execution = model, execution
        self._told: set[str] = set()
        self._meanwhile: Callable[[], None] | None = None
        self._raised: Exception | None = None
        self.refresh()

    def refresh(self) -> None:
        """Forget everything that is kept."""
        self._changes = 0
        self._forget()

    def _forget(self) -> None:
        self.graphs, self.compiled = Graphs(self.model), CompiledPasses(self.model)
        self.whole_head = self.reads_forward = False
        self.noted: dict[Hashable, Any] = {}
        self.state: ModelState | None = None
        self._uses: Counter[Hashable] = Counter()
        self._refused: set[Hashable] = set()

    def run(self, batch: Batch, spec: PassSpec) -> PassResult:
        """Run a pass in the way that ``execution`` asks for, or that suits the batch.

        Raises:
            LrpxError: As ``validation.check_model`` and ``forward_backward.compute``.
        """
        with own_failures_named(self.model, batch.inputs), fresh_rotations(self.model):
            return self._run(batch, spec)

    @contextmanager
    def meanwhile(self, work: Callable[[], None]) -> Iterator[None]:
        """Do other work once while the device is busy with a pass of this block, or after the block if it has none.

        An error of the work is no error of the pass: it is raised at the end of the block, before one of the block's own.
        """
        self._meanwhile, self._raised = work, None
        try:
            yield
            self.use_the_wait()
        finally:
            self._meanwhile, raised, self._raised = None, self._raised, None
            if raised is not None:
                raise raised

    def use_the_wait(self) -> None:
        """Do the other work now: a pass is running on the device, and its result has not been asked for."""
        work, self._meanwhile = self._meanwhile, None
        if work is not None:
            try:
                work()
            except Exception as error:
                self._raised = error

    def _run(self, batch: Batch, spec: PassSpec) -> PassResult:
        found = None if batch.functions else self._repeat(batch, spec)
        if found is not None:
            return found
        check_model(self.model, spec.rules)
        if spec.rules:
            check_not_compiled(self.model)
        try:
            return self._run_in_memory(batch, spec, PassOptions(whole_head=self.whole_head))
        except HeadNotFollowed:
            logger.debug("%s computes all its logits: they are not made one by one", type(self.model).__name__)
            found = self._run_in_memory(batch, spec, PassOptions(whole_head=True))
            self.whole_head = True
            return found

    def _repeat(self, batch: Batch, spec: PassSpec) -> PassResult | None:
        """By a graph or a compiled pass that is there; ``None`` if there is none, or the model is no longer the same.

        Nothing is checked before: on a fast GPU, what Python does takes as long as the pass.
        """
        if self.state is None or not batch.is_traceable:
            return None
        key, found = self._key(batch, spec), None
        if self.execution.fast is not False and not self.execution.checkpoint:
            found = self.graphs.replay(batch, key, copy=spec.hidden)
        # A shape of which a graph can be captured still has to be; the plan serves shapes of which there is none.
        waits = found is None and self._may_be_captured(batch, key)
        if found is None and not waits and self.execution.compile and ("compiled", key) not in self._refused:
            compiled = partial(self.compiled.repeat, batch, key, self.state.weights, checkpoint=self.checkpoints(batch))
            with suppress(torch.OutOfMemoryError):  # it will be checkpointed
                found = self._guarded("compiled", key, compiled)
        if self.state.holds():
            return found
        logger.debug("%s has changed: %s", type(self.model).__name__, self.state.what_changed())
        self._changes += 1
        self._forget()
        return None

    def _may_be_captured(self, batch: Batch, key: Hashable) -> bool:
        if self.execution.fast is False or self.checkpoints(batch) or not self.graphs.takes(batch):
            return False
        return ("graph", (self.graphs.shape_of(batch), key)) not in self._refused

    def checkpoints(self, batch: Batch) -> bool:
        """Whether each block is recomputed in the backward pass of ``batch``."""
        if self.execution.checkpoint is not None:
            return self.execution.checkpoint
        return needs_checkpoint(self.model, batch, compiled=self.execution.compile)

    def _run_in_memory(self, batch: Batch, spec: PassSpec, options: PassOptions) -> PassResult:
        checkpoint = self.checkpoints(batch)
        try:
            return self._run_one_way(batch, spec, replace(options, checkpoint=checkpoint))
        except torch.OutOfMemoryError:
            if checkpoint or self.execution.checkpoint is False:
                raise
        logger.warning("the pass does not fit into memory; once more, with each block recomputed (checkpoint=True)")
        gc.collect()
        torch.cuda.empty_cache()
        return compute(self.model, batch, spec, replace(options, checkpoint=True))

    def _run_one_way(self, batch: Batch, spec: PassSpec, options: PassOptions) -> PassResult:
        """Captured, compiled, or as it is: the first that was asked for and applies."""
        if batch.functions:  # a captured pass would not call them again
            return compute(self.model, batch, spec, options)
        if not_done := self.execution.not_done(batch, type(self.model).__name__):
            self._tell(logging.WARNING, not_done)
        if not batch.is_traceable:
            return compute(self.model, batch, spec, options)
        key, found = self._key(batch, spec), None
        if self._graph_is_due(batch, options, key):
            found = self._captured(batch, spec, options, key)
        if found is None and self.execution.compile:
            found = self._compiled(batch, spec, options, key)
        return compute(self.model, batch, spec, options) if found is None else found

    def _compiled(self, batch: Batch, spec: PassSpec, options: PassOptions, key: Hashable) -> PassResult | None:
        compiled = partial(self.compiled.run, batch, spec, options, key=key, settle=self._settle)
        return self._attempt("compiled", key, spec, compiled)

    def _captured(self, batch: Batch, spec: PassSpec, options: PassOptions, key: Hashable) -> PassResult | None:
        """By a new graph, of the compiled pass if that was asked for.

        What is compiled is the pass on the padded text, which the graph repeats. Without padding a model that looks both ways
        needs no mask, so that is another plan, and nothing would use it.
        """
        place = self.graphs.shape_of(batch), key
        if ("graph", place) in self._refused:
            return None
        run: Run = partial(compute, self.model)
        if self.execution.compile and self._compiled(self.graphs.padded(batch), spec, options, key) is not None:
            run = partial(self.compiled.run, key=key, settle=self._settle)
        captured = partial(self.graphs.capture, batch, spec, options, key=key, run=run, settle=self._settle)
        return self._attempt("graph", place, spec, captured)

    def _graph_is_due(self, batch: Batch, options: PassOptions, key: Hashable) -> bool:
        if self.execution.fast is False or options.checkpoint or not self.graphs.takes(batch):
            return False
        shape = len(batch.spans), bucket(batch.ids.shape[1], None), key
        self._uses[shape] += 1
        return self.execution.fast is True or self._uses[shape] >= 2 ** min(1 + self._changes, PATIENCE)

    def _attempt(
        self, kind: str, key: Hashable, spec: PassSpec, function: Callable[[], PassResult]
    ) -> PassResult | None:
        """Capture or compile; ``None``, with a message, where that is not possible. What failed once is not tried again."""
        if (kind, key) in self._refused:
            return None
        if self.state is None:
            self.state = ModelState(self.model)
        reason = self._obstacle(kind, spec)
        if reason is None:
            return self._guarded(kind, key, function)
        self._refuse(kind, key, reason)
        return None

    def _guarded(self, kind: str, key: Hashable, function: Callable[[], PassResult | None]) -> PassResult | None:
        """Call ``function``; a failure to capture, trace or compile is logged, or raised if ``LRPX_STRICT=1``."""
        try:
            return function()
        except (HeadNotFollowed, LrpxError):
            raise
        except CheckFailed:  # as usual, the model says what is wrong
            return None
        except torch.OutOfMemoryError:
            if kind != "graph":
                raise
            reason = "it does not fit into memory beside the graph's own"  # as it is, a pass takes less
        except (RuntimeError, AssertionError) as error:  # also what tracing, TorchInductor and CUDA raise
            if strict():
                raise
            reason = in_one_line(f"{type(error).__name__}: {error}", 300)
            logger.debug("a %s pass failed", kind, exc_info=True)
        if kind == "graph":
            gc.collect()  # what a capture that failed has left
            torch.cuda.empty_cache()
        if self.state is not None and not self.state.holds():
            # Perhaps it changes itself, which must not make us try again each time.
            self.graphs.clear()
            self.compiled.clear()
            self.state.forget_changed(only_integers=False)
        self._refuse(kind, key, reason)
        return None

    def _refuse(self, kind: str, key: Hashable, reason: str) -> None:
        self._refused.add((kind, key))
        name = type(self.model).__name__
        if kind == "graph":
            self._tell(logging.INFO, f"{name} runs without CUDA graphs: {reason}")
        else:
            self._tell(logging.WARNING, f"{name} is not compiled and runs as usual: {reason}")

    def _obstacle(self, kind: str, spec: PassSpec) -> str | None:
        """Why a pass can be neither captured nor compiled, as the end of a sentence."""
        if kind == "compiled" and is_divided(self.model):
            return "it is divided over devices"
        if kind == "compiled" and torch.is_autocast_enabled(entry_device(self.model).type):
            return "torch.autocast is on"
        if kind == "compiled" and known_mixers(modules_of(self.model)):
            return "its mixers are loops over tokens or chunks, which would be compiled anew for every length"
        code = foreign_rule(spec.rules) or foreign_code(self.model)
        return code and f"{code}, and a captured or compiled pass would not run that code again"

    def _settle(self) -> ModelState:
        """Called after a first pass, before one is captured: what it has set up in the model belongs to the model now."""
        assert self.state is not None
        self.state.forget_changed(only_integers=True)
        if not self.state.holds():
            self.graphs.clear()
            self.compiled.clear()
            self.state = ModelState(self.model)
        return self.state

    def _key(self, batch: Batch, spec: PassSpec) -> Hashable:
        """What distinguishes passes besides the number of texts and their length: also the size of images."""
        shapes = [(name, t.shape, t.dtype) for name, t in batch.inputs.items() if not batch.is_per_token(t)]
        named = tuple(sorted(get_rules(spec.rules).items()))
        around = settings(batch.positions.device.type)
        return (
            tuple(batch.inputs),
            tuple(shapes),
            batch.chosen,
            batch.likeliest,
            named,
            spec.at,
            spec.mode,
            spec.readout,
            spec.heads,
            around,
        )

    def provenance(self, method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Where the numbers of ``method`` come from: the model, the method's options, and how passes are run."""
        execution = {**asdict(self.execution), "float32_matmul_precision": matmul_precision()}
        kind = entry_device(self.model).type
        if torch.is_autocast_enabled(kind):  # the weights' dtype does not say in which one it is computed then
            execution["autocast"] = str(torch.get_autocast_dtype(kind)).removeprefix("torch.")
        if "neurons" not in self.noted:  # where an error says that they are; looking takes as long as a short pass
            self.noted["neurons"] = neuron_pattern(self.model)
        return {**provenance(self.model, method, settings, execution), "neurons": self.noted["neurons"]}

    def log_unused_options(self, method: str, *, has_passes: bool) -> None:
        """Log, once, which of the options that were asked for change nothing for this model and ``method``.

        ``has_passes`` says whether the method is one of those that go backwards.
        """
        device = entry_device(self.model).type
        for option, reason in self.execution.idle(method, device, has_passes=has_passes).items():
            self._tell(logging.INFO, f"{option}=True changes nothing: {reason}")

    def warn_once(self, notes: Iterable[str]) -> None:
        """Give each of the notes to the caller as a warning, once."""
        for note in dict.fromkeys(notes):
            if note not in self._told:
                self._told.add(note)
                warn(note)

    def _tell(self, level: int, message: str) -> None:
        """Log a message, once."""
        if message not in self._told:
            self._told.add(message)
            logger.log(level, "%s", message)
