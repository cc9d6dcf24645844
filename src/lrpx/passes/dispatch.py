"""How a pass is run: as it is, as a CUDA graph, compiled, or with its blocks recomputed. What it computes is ``program.py``'s.

What is kept of a model between calls (graphs, compiled passes, what was found out about it) belongs to the model and goes
with it.
"""

from __future__ import annotations

import gc
import logging
import threading
import weakref
from dataclasses import dataclass, field, replace

import torch
from transformers import PreTrainedModel

from ..errors import InputError
from ..models.placement import described, entry_device, is_offloaded
from ..text.batching import Batch
from .compiled.plan import Compiled
from .cuda_graphs import Graphs
from .forward_backward import HeadNotFollowed, PassResult, PassSpec, compute
from .validation import check_model, check_not_compiled

logger = logging.getLogger("lrpx")

ROOM = 0.8  # of the free memory that a pass may take by estimate


@dataclass(frozen=True)
class Execution:
    """How passes are run. Results differ by rounding at most, and not at all between ``fast`` and the padded eager pass.

    Attributes:
        fast: CUDA graphs for short texts. ``None``: from the second use of a shape on; ``True``: from the first.
        compile: Trace and fuse the pass, once for all lengths: up to a minute; worth it for long or many texts. A text alone,
            several together, and a text of one token are traced separately, and so is every method.
        checkpoint: Recompute each block in the backward pass, for a fraction of the memory and a third more time. ``None``:
            if an estimate says that it is needed.
        tf32: TF32 matrix products in float32 models, meanwhile: faster on a GPU, with three decimal digits.
    """

    fast: bool | None = None
    compile: bool = False
    checkpoint: bool | None = None
    tf32: bool = False

    def __post_init__(self) -> None:
        for name in ("fast", "compile", "checkpoint", "tf32"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (value is None and name in ("fast", "checkpoint")):
                raise InputError(f"{name}={value!r}: give True or False.")


DEFAULT = Execution()


def say_what_is_idle(model: PreTrainedModel, execution: Execution, method: str, *, has_passes: bool) -> None:
    """Log which of the options that were asked for change nothing for this model and method.

    Args:
        model: The one that is explained.
        execution: What was asked for.
        method: Its name.
        has_passes: Whether it is one of those that go backwards.
    """
    if not (execution.fast or execution.compile or execution.checkpoint or execution.tf32):
        return
    kind = entry_device(model).type
    idle = {f"{name}=True": f"{method} has no backward pass" for name in ("fast", "compile", "checkpoint")}
    if has_passes:
        idle = {"fast=True": f"CUDA graphs need a GPU, and the model is on {kind}"} if kind != "cuda" else {}
        if execution.checkpoint:
            idle["fast=True"] = "a checkpointed pass is not captured"
    if model.dtype != torch.float32:
        idle["tf32=True"] = f"the model is {str(model.dtype).removeprefix('torch.')}"
    for option, reason in idle.items():
        message = f"{option} changes nothing: {reason}"
        if getattr(execution, option.removesuffix("=True")) is True and message not in known_of(model).told:
            known_of(model).told.add(message)
            logger.info("%s", message)


@dataclass
class _Known:
    """What is kept of a model."""

    graphs: Graphs = field(default_factory=Graphs)
    compiled: Compiled = field(default_factory=Compiled)
    whole_head: bool = False
    told: set[str] = field(default_factory=set)


_known: weakref.WeakKeyDictionary[PreTrainedModel, _Known] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def known_of(model: PreTrainedModel) -> _Known:
    """What is kept of ``model``."""
    with _lock:
        return _known.setdefault(model, _Known())


def answer(model: PreTrainedModel, batch: Batch, question: PassSpec, execution: Execution) -> PassResult:
    """Run a pass in the way that ``execution`` asks for, or that suits the batch.

    Raises:
        LrpxError: As ``guards.check_model`` and ``program.compute``.
    """
    known = known_of(model)
    question = replace(question, whole_head=known.whole_head, compiled=execution.compile)
    if execution.fast is not False and not execution.checkpoint:
        found = known.graphs.replay(model, batch, question)
        if found is not None:
            return found
    check_model(model, question.rules)
    if question.rules:
        check_not_compiled(model)
    try:
        return _answer(model, batch, question, execution, known)
    except HeadNotFollowed:
        logger.debug("%s computes all its logits: they are not made one by one", type(model).__name__)
        found = _answer(model, batch, replace(question, whole_head=True), execution, known)
        known.whole_head = True
        return found


def _answer(
    model: PreTrainedModel, batch: Batch, question: PassSpec, execution: Execution, known: _Known
) -> PassResult:
    checkpoint = execution.checkpoint
    if checkpoint is None:
        checkpoint = needs_checkpoint(model, batch, compiled=execution.compile)
    question = replace(question, checkpoint=checkpoint)
    try:
        return _first_answer(model, batch, question, execution, known)
    except torch.OutOfMemoryError:
        if checkpoint or execution.checkpoint is False:
            raise
    logger.warning("the pass does not fit into memory; once more, with each block recomputed (checkpoint=True)")
    gc.collect()
    torch.cuda.empty_cache()
    return compute(model, batch, replace(question, checkpoint=True))


def _first_answer(
    model: PreTrainedModel, batch: Batch, question: PassSpec, execution: Execution, known: _Known
) -> PassResult:
    """By a graph, compiled, or as it is: the first that applies."""
    found = None
    if execution.fast is not False and not question.checkpoint:
        run = known.compiled.capturable if execution.compile else compute
        found = known.graphs.answer(model, batch, question, run, eager=execution.fast is True)
    if found is None and execution.compile:
        found = known.compiled.answer(model, batch, question)
    return compute(model, batch, question) if found is None else found


def needs_checkpoint(model: PreTrainedModel, batch: Batch, *, compiled: bool = False) -> bool:
    """Whether the inner values of all blocks would take more GPU memory than there is, by estimate; logged if so."""
    device = batch.positions.device
    if device.type != "cuda":
        return False
    if is_offloaded(model):
        return True  # loaded weights would stay until the backward pass
    estimate = activation_bytes(model, batch, compiled=compiled)
    estimate //= max(1, described(model).count("cuda"))
    if estimate < 1 << 28:
        return False
    free = torch.cuda.mem_get_info(device)[0]
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if estimate <= ROOM * free:
        return False
    logger.info(
        "%d tokens would take about %.1f GiB of %.1f GiB free: each block is recomputed in the backward pass "
        "(checkpoint=True)",
        *(batch.inputs["input_ids"].numel(), estimate / 2**30, free / 2**30),
    )
    return True


def activation_bytes(model: PreTrainedModel, batch: Batch, *, compiled: bool = False) -> int:
    """About what the backward pass needs of the forward pass, in bytes.

    Per token and block, four vectors of the model's width and three of its MLP's (two where fused), in the model's dtype;
    eager attention keeps its weights too. Measured figures are in ``docs/performance.md``.
    """
    config = model.config.get_text_config()

    def size(*names: str, default: int) -> int:
        return next((n for name in names if isinstance(n := getattr(config, name, None), int) and n > 0), default)

    width = size("hidden_size", "n_embd", "d_model", default=1024)
    inner = size("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", default=4 * width)
    layers = size("num_hidden_layers", "n_layer", "num_layers", "n_layers", default=12)
    heads = size("num_attention_heads", "n_head", default=16)
    active = size("num_experts_per_tok", "top_k", default=1)
    rows, length = batch.inputs["input_ids"].shape
    per_token = 4 * width + (2 if compiled else 3) * inner * active
    if getattr(config, "_attn_implementation", None) == "eager":
        per_token += 3 * heads * length
    return rows * length * layers * per_token * model.dtype.itemsize
